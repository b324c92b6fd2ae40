"""
The command ``redlock``, also ``python -m redlock_aio``; the extra ``cli`` installs its packages.

Results go to stdout, messages to stderr. The modules import public names of redlock_aio only.
"""

import sys

NEEDED = ("typer", "rich")
"""The packages of the extra ``cli``."""


def main() -> int:
    """Run the command line; return its exit code."""
    try:
        from redlock_aio.cli import app
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in NEEDED:
            raise
        sys.stderr.write(
            f"redlock: the package {package!r} is missing:"
            " pip install '.[cli]' in the clone of redlock_aio\n"
        )
        return 70  # as `exits.Exit.FAILED`
    return app.main(sys.argv[1:])
