"""``python -m redlock_aio.demo``."""

import sys

from redlock_aio.demo import main

if __name__ == "__main__":
    sys.exit(main())
