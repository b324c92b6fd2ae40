"""The library's log."""

import contextlib
import logging
import sys
import traceback
from typing import Any


class _Log(logging.LoggerAdapter[logging.Logger]):
    """A logger that raises nothing: handlers and filters are the user's code."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        try:
            super().log(level, msg, *args, stacklevel=2, **kwargs)
        except Exception:  # noqa: BLE001 - an error would end what is logged, such as a connection
            # Shown as a handler of the standard library shows its own.
            if logging.raiseExceptions and sys.stderr is not None:
                with contextlib.suppress(OSError):
                    traceback.print_exc()


log = _Log(logging.getLogger("redlock_aio"))
