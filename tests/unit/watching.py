"""Whoever is told, and what tests do to masters meanwhile."""

import asyncio

from redlock_aio.events import (
    Acquired,
    Event,
    Extended,
    Lost,
    Released,
)
from redlock_aio.testing import FakeMaster, VirtualTimeLoop


def loop() -> VirtualTimeLoop:
    running = asyncio.get_running_loop()
    assert isinstance(running, VirtualTimeLoop)
    return running


def now() -> float:
    return loop().time()


class Diary:
    """A listener that writes down what it is told, and when."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.times: list[float] = []

    def __call__(self, event: Event, /) -> None:
        self.events.append(event)
        self.times.append(now())

    def of(self, *kinds: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kinds)]

    def leases(self) -> dict[str, list[Event]]:
        """Return what was told of each lease."""
        told: dict[str, list[Event]] = {}
        for event in self.events:
            if isinstance(event, Acquired | Extended | Lost | Released):
                told.setdefault(event.fingerprint, []).append(event)
        return told

    def check(self) -> None:
        """See that every lease that is over has a beginning and one end."""
        for told in self.leases().values():
            assert isinstance(told[0], Acquired)
            assert isinstance(told[-1], Released | Lost)
            assert all(isinstance(event, Extended) for event in told[1:-1])


def take(masters: list[FakeMaster], number: int = 3) -> None:
    """Let somebody else have the lock on some masters."""
    for master in masters[:number]:
        master.set("r", "theirs")


def drop(masters: list[FakeMaster], number: int = 3) -> None:
    for master in masters[:number]:
        master.delete("r")


def hang(masters: list[FakeMaster], number: int = 3) -> None:
    for master in masters[:number]:
        master.hang()


async def settle(masters: list[FakeMaster]) -> None:
    for master in masters:
        master.resume()
    await asyncio.sleep(3)
