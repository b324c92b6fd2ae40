"""``python -m redlock_aio`` is the command ``redlock``, see `redlock_aio.cli`."""

import sys

from redlock_aio.cli import main

if __name__ == "__main__":
    sys.exit(main())
