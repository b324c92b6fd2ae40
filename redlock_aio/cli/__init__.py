"""
The command ``redlock``, also ``python -m redlock_aio``; the extra ``cli`` installs its packages.

Results go to stdout, messages to stderr. The modules import public names of redlock_aio only.
"""

import gc
import importlib.util
import signal
import sys
import threading

NEEDED = ("typer", "rich")
"""The packages of the extra ``cli``."""


def main() -> int:
    """Run the command line; return its exit code."""
    # The modules take a while. An interrupt meanwhile ends this process as a later one does, see
    # `frame.die_of_interrupt`, and shows no traceback. One that is ignored stays ignored.
    interrupted = signal.getsignal(signal.SIGINT)
    # Another thread gets no signals, and may not say what they do.
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
    from redlock_aio.cli import app, frame

    # What was imported stays to the end. Python would go through all of it several times when this
    # process ends: a quarter of the processor time of a short command.
    gc.freeze()
    try:
        if raises:
            signal.signal(signal.SIGINT, interrupted)
        return app.main(sys.argv[1:])
    except KeyboardInterrupt:  # before the command has begun, or behind its end
        if raises:
            frame.die_of_interrupt()
        raise
