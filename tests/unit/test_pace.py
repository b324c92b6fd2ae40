"""The bound on how fast one acquisition asks the masters."""

import asyncio
import random

import pytest

from redlock_aio import Redlock
from redlock_aio._rules.timing import BURST, FLOOR, Pace
from redlock_aio.testing import FakeMaster

from .kit import acquired_at, now

WORK = 0.001


def test_attempts_at_a_lock_that_passes_on_are_bounded_less() -> None:
    pace = Pace()
    pauses = [pace.pause(0.0, b"%d" % holder) for holder in range(20 * BURST)]
    assert max(pauses[: 10 * BURST]) < 1e-6
    assert pauses[-1] == pytest.approx(10 * BURST * FLOOR / 10)


def test_an_attempt_that_finds_no_holder_is_no_reason_to_forget_the_last_one() -> None:
    pace = Pace()
    for _ in range(BURST):
        pace.pause(0.0, b"theirs")
        pace.pause(0.0)
    assert pace.pause(0.0, b"theirs") >= (BURST - 1) * FLOOR


@pytest.mark.parametrize("holder", [None, b"theirs"])
def test_attempts_that_find_no_new_holder_are_bounded(holder: bytes | None) -> None:
    pace = Pace()
    pauses = [pace.pause(0.0, holder) for _ in range(2 * BURST)]
    assert max(pauses[:BURST]) < FLOOR / 2
    assert min(pauses[BURST + 1 :]) >= FLOOR / 2


class Uneven(FakeMaster):
    """A master whose replies take a random time, as those over a network."""

    @property
    def latency(self) -> float:
        return random.uniform(0.0002, 0.0005)

    @latency.setter
    def latency(self, _latency: float) -> None:
        pass


@pytest.mark.full
async def test_a_waiter_does_not_miss_the_pause_of_a_process_that_passes_the_lock_on() -> None:
    """It has lost hundreds of times by then, and must still ask as soon as the lock is free."""
    random.seed(1)
    masters = [Uneven(f"m{number}") for number in range(3)]
    async with Redlock(masters) as redlock, Redlock(masters) as other:

        async def work() -> None:
            while True:
                async with redlock.lock("r"):
                    await asyncio.sleep(WORK)

        tasks = [asyncio.create_task(work()) for _ in range(3)]
        await asyncio.sleep(0.8)
        came = now()
        assert await acquired_at(other) - came <= 0.65  # the tenure has doubled 7 times
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
