"""
Looks up host names, each in a thread of its own.

`loop.getaddrinfo` runs in the event loop's default executor, which the program also uses,
and a look-up can't be cancelled. With a name server that hangs, each attempt to connect
would occupy one of its threads until nothing else runs there. The program could not end
either, because the threads of an executor are joined.

- There is at most one look-up for a host and port at a time; all callers share it.
- Its thread is a daemon: a program that ends does not wait for it.
- A result that comes when no task waits any more is kept for the next caller.
"""

import asyncio
import contextlib
import ipaddress
import os
import socket
import threading
import time
from collections.abc import Sequence

KEPT_FOR = 10.0
"""Seconds for which a result that no caller has used is kept."""


class LookUp:
    """One call of `socket.getaddrinfo`, underway or done."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._waiters: dict[asyncio.Future[None], asyncio.AbstractEventLoop] = {}
        self._found: tuple[str, ...] = ()
        self._error: Exception | None = None
        self._ended_at: float | None = None

    def __repr__(self) -> str:
        state = "underway" if self._ended_at is None else "done"
        return f"<LookUp {self._host}:{self._port}, {state}>"

    @property
    def is_usable(self) -> bool:
        """Whether the look-up is underway, or its result is recent."""
        return self._ended_at is None or time.monotonic() < self._ended_at + KEPT_FOR

    def start(self) -> None:
        """Start the thread; raises RuntimeError if the process can't have another."""
        name = f"redlock_aio looks up {self._host}"
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        try:
            entries = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
            self._found = tuple(dict.fromkeys(str(entry[4][0]) for entry in entries))
        except Exception as error:  # noqa: BLE001 - raised by `result`
            # Whatever it is, such as the OverflowError of an impossible port: if the thread died of
            # it, the look-up would be underway for ever, and each caller wait for its timeout.
            self._error = error
        with _lock:
            self._ended_at = time.monotonic()
            waiters, self._waiters = self._waiters, {}
        for waiter, loop in waiters.items():
            with contextlib.suppress(RuntimeError):  # the loop of the waiter was closed
                loop.call_soon_threadsafe(_wake, waiter)

    async def ended(self) -> None:
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        with _lock:
            if self._ended_at is None:
                self._waiters[waiter] = loop
            else:
                waiter.set_result(None)
        try:
            await waiter
        finally:
            with _lock:
                self._waiters.pop(waiter, None)

    def result(self) -> Sequence[str]:
        if self._error is not None:
            raise self._error
        return self._found


_lock = threading.Lock()
_look_ups: dict[tuple[str, int], LookUp] = {}


def _forget_all() -> None:
    """Forget all look-ups: a forked child does not have the threads of its parent."""
    global _lock  # noqa: PLW0603 - the parent may have held it while it forked
    _lock = threading.Lock()
    _look_ups.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


def is_numeric(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


async def look_up(host: str, port: int) -> Sequence[str]:
    """
    Return at least one address of *host*, in the order in which to try them.

    Raises:
        OSError, UnicodeError: There is no address; this and any other error is that of
            `socket.getaddrinfo`.

        RuntimeError: The process can't have another thread.
    """
    if is_numeric(host):
        return (host,)
    key = (host, port)
    with _lock:
        look_up = _look_ups.get(key)
        if look_up is None or not look_up.is_usable:
            look_up = LookUp(host, port)
            look_up.start()
            _look_ups[key] = look_up
    await look_up.ended()
    # A result that was used is not kept: the next caller looks up again.
    with _lock:
        if _look_ups.get(key) is look_up:
            del _look_ups[key]
    return look_up.result()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
