"""Look-ups of host names that take virtual time, and connections to the addresses found."""

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from threading import Lock
from types import SimpleNamespace
from typing import Any

import pytest

from redlock_aio._transport import address, resolver
from redlock_aio._transport.resolver import KEPT_FOR, look_up
from redlock_aio.testing import VirtualTimeLoop

from .kit import loop

TAKES = 5.0
"""Seconds that a look-up takes."""


class Thread:
    """A thread that runs its function after `TAKES` seconds, in the event loop."""

    def __init__(self, *, target: Callable[[], None], name: str, daemon: bool) -> None:
        assert daemon, name
        self._target = target

    def start(self) -> None:
        loop().call_later(TAKES, self._target)


@pytest.fixture
async def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The hosts that were looked up; each has two addresses."""
    asked: list[str] = []

    def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        asked.append(host)
        return [(0, 0, 0, "", (f"10.0.0.{number}", port)) for number in (1, 2)]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(resolver, "threading", SimpleNamespace(Thread=Thread, Lock=Lock))
    monkeypatch.setattr(resolver, "time", SimpleNamespace(monotonic=loop().time))
    monkeypatch.setattr(resolver, "_look_ups", {})
    return asked


async def cancelled_look_up() -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(look_up("m.test", 1), TAKES / 2)


async def test_callers_share_a_look_up_that_is_underway(asked: list[str]) -> None:
    await cancelled_look_up()
    found = await asyncio.gather(look_up("m.test", 1), look_up("m.test", 1))
    assert [*found] == [("10.0.0.1", "10.0.0.2")] * 2
    assert loop().time() == TAKES
    assert asked == ["m.test"]


@pytest.mark.parametrize(("later", "look_ups"), [(KEPT_FOR - 1, 1), (KEPT_FOR + 1, 2)])
async def test_a_result_that_no_caller_has_used_is_kept_for_a_while(
    asked: list[str], later: float, look_ups: int
) -> None:
    await cancelled_look_up()
    await asyncio.sleep(TAKES / 2 + later)
    await look_up("m.test", 1)
    assert len(asked) == look_ups


@pytest.mark.usefixtures("asked")
async def test_any_error_of_a_look_up_reaches_its_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    def getaddrinfo(*_: Any, **__: Any) -> list[Any]:
        raise OverflowError("Python int too large to convert to C long")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with pytest.raises(OverflowError):
        await asyncio.wait_for(look_up("m.test", 2**64), 2 * TAKES)


@pytest.mark.usefixtures("asked")
async def test_a_forked_child_looks_up_anew() -> None:
    """It has none of the threads that would end the look-up, or that held the lock at the fork."""
    await cancelled_look_up()
    with resolver._lock:
        child = os.fork()
        if not child:
            code = 1
            try:
                signal.alarm(10)  # ends a child that waits for the lock
                with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
                    found = runner.run(asyncio.wait_for(look_up("m.test", 1), 2 * TAKES))
                code = 0 if len(found) == 2 else 2
            finally:
                os._exit(code)
    _, status = os.waitpid(child, 0)  # noqa: ASYNC222 - it ends at once
    assert os.waitstatus_to_exitcode(status) == 0


async def test_addresses_that_were_found_are_tried_without_a_look_up(asked: list[str]) -> None:
    tried: list[str] = []

    class Connecting:
        host, port = "m.test", 1

        async def _connect(self) -> None:
            tried.append(self.address)  # type: ignore[attr-defined]

    connection = address.looking_up(Connecting)()  # type: ignore[arg-type]
    connection.addresses = ["10.0.0.9"]
    await connection._connect()
    assert (tried, asked) == (["10.0.0.9"], [])


@pytest.mark.usefixtures("asked")
async def test_if_no_address_can_be_reached_the_error_of_the_first_one_is_raised() -> None:
    class Refused:
        host, port = "m.test", 1

        async def _connect(self) -> None:
            raise ConnectionRefusedError(f"{self.address} refused")  # type: ignore[attr-defined]

    with pytest.raises(ConnectionRefusedError, match=r"10\.0\.0\.1 refused"):
        await address.looking_up(Refused)()._connect()  # type: ignore[arg-type]
