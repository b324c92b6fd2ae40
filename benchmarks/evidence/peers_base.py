"""What leases and clients of all peers have in common."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Iterator

from .locks import Held, NotAcquired, NotHeld, unique


class PeerLease:
    """A lease without a token, whose holder is not told of its loss."""

    token = None
    until = 0

    def __init__(self) -> None:
        self.id = unique()

    def ensure_valid(self) -> None:
        """Return always: there is nothing to ask."""

    async def wait_lost(self) -> str:
        """Wait for ever."""
        await asyncio.get_running_loop().create_future()
        return ""

    def export(self) -> str:
        """Fail: it is never asked for."""
        raise NotHeld("no such feature")


class PeerLocks:
    """A client that can do nothing but acquire."""

    async def adopt(self, exported: str) -> Held:
        """Fail: it is never asked for."""
        raise NotAcquired(exported)

    async def force_release(self, key: str) -> None:
        """Fail: it is never asked for."""
        raise NotAcquired(key)


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
