"""
The command ``redlock``, also ``python -m redlock_aio``; the extra ``cli`` installs its packages.

Results go to stdout, messages to stderr. The modules import public names of redlock_aio only.
"""

import gc
import importlib.util
import os
import signal
import sys
import threading

NEEDED = ("typer", "rich")
"""The packages of the extra ``cli``."""


def main() -> int:
    """Run the command line; return its exit code."""
    # Until the event loop of a command handles signals, and behind its end, an interrupt ends this
    # process as a later one does, see `frame.die_of_interrupt`, and shows no traceback. One that
    # is ignored stays ignored. Another thread gets no signals, and may not say what they do.
    interrupted = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    raises = is_main and interrupted is signal.default_int_handler
    if raises:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    for package in NEEDED:
        # One of them is imported only when there is something to draw.
        if importlib.util.find_spec(package) is None:
            sys.stderr.write(
                f"redlock: the package {package!r} is missing:"
                " pip install '.[cli]' in the clone of redlock_aio\n"
            )
            return 70  # as `exits.Exit.FAILED`
    from redlock_aio.cli import app

    # What was imported stays to the end. Python would go through all of it several times when this
    # process ends: a quarter of the processor time of a short command.
    gc.freeze()
    if raises and os.name != "posix":  # there it cancels a command, whose loop handles no signals
        signal.signal(signal.SIGINT, interrupted)
    return app.main(sys.argv[1:])
