"""``python -m redlock_aio.testing``: masters to try locks with."""

import sys

from redlock_aio.testing._serving import main

if __name__ == "__main__":
    sys.exit(main())
