"""What the locks of all peers have in common: errors that are expected, and their texts."""

import contextlib
import logging
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """
    Keep errors of masters from standard error.

    Libraries log each of them, and a thread that ends by one is reported. All are expected in
    a run, where standard error is for what must not happen.
    """
    disabled, report = logging.root.manager.disable, threading.excepthook
    logging.disable()
    threading.excepthook = lambda _: None
    try:
        yield
    finally:
        logging.disable(disabled)
        threading.excepthook = report


def why(error: BaseException) -> str:
    """Return the class and the text of an error; pottery's text lists the clients' options."""
    return f"{type(error).__name__}: {error}"[:200]
