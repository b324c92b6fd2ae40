"""What the tests ask of a guard: who is kept out, for how long, and what is said of it."""

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from redlock_aio import Answer, Lease, LockNotAcquiredError, Redlock, Vote
from redlock_aio._protocol import commands
from redlock_aio._rules import timing
from redlock_aio._rules.lease_state import MARGIN
from redlock_aio._rules.marker import Marker

from .helpers import Reachable, RealMaster, call, connected, until

MAX_TTL = 4_000
"""In ms; so long that a lease outlives the restart of all masters on a busy machine."""

LASTS = 5.04
"""For how many seconds a master stays away then: 1 % more than that, and a second."""

LATE = 4.5
"""
Seconds by which it may vote later than it says: uptimes are whole seconds, and the machine is busy.

Less than `LASTS`, so that nobody is kept out for a second time.
"""

RESTARTED = r"it restarted \d+ s ago and may have forgotten locks"
FLUSHED = "its keys were flushed, and locks with them"
MARKED = "it is marked as one that may have forgotten locks"
UNPROVEN = r"it started \d+ s ago, and it is not known yet that all masters are new"


AWAY = {Answer.UNREACHABLE, Answer.TIMED_OUT}


def restart_all(masters: Sequence[RealMaster]) -> float:
    """Restart *masters*; return when that began. Nobody of this process can see them between."""
    began = time.monotonic()
    for master in masters:
        master.kill()
    with ThreadPoolExecutor(len(masters)) as threads:
        list(threads.map(lambda master: master.start(), masters))
    return began


def guarded(
    masters: Iterable[Reachable], *, max_ttl: int = MAX_TTL, fencing: bool = False
) -> contextlib.AbstractAsyncContextManager[Redlock]:
    """Have a manager that looks after masters that may have forgotten locks."""
    return connected(masters, restart_guard="auto", max_ttl=max_ttl, fencing=fencing)


def run_id(master: RealMaster) -> str:
    """Return by what this start of a server is told from others."""
    return str(call(master, "INFO", "server")["run_id"])


def marker(master: RealMaster) -> Marker | None:
    """Return what a master carries."""
    value = call(master, "GET", commands.MARKER)
    return None if value is None else Marker.parse(value.encode())


def marked(masters: Iterable[RealMaster], *, rejoining: bool) -> bool:
    """Return whether all *masters* are marked, for what they are now, as *rejoining* or not."""
    return all(
        (found := marker(master)) is not None
        and (found.run_id, found.rejoining) == (run_id(master), rejoining)
        for master in masters
    )


@dataclass(frozen=True, slots=True)
class Held:
    """
    A lease that nobody extends.

    Attributes:
        earliest: The instant before which it is to be believed, on `time.monotonic`.

        latest: The instant after which it is not.
    """

    lease: Lease
    earliest: float
    latest: float

    async def is_believed_to_its_end(self) -> None:
        """Wait until it is over, and fail if that is too early or too late."""
        before = time.monotonic()
        while self.lease.valid:
            assert before < self.latest, "it is believed for too long"
            await asyncio.sleep(0.005)
            before = time.monotonic()
        assert time.monotonic() >= self.earliest, "it is not believed any more"
        await asyncio.wait_for(self.lease.lost.wait(), 20)


async def hold(redlock: Redlock) -> Held:
    """Take the lock."""
    lasts = (MAX_TTL - timing.drift(MAX_TTL, factor=timing.DRIFT_FACTOR)) / 1000
    lock = redlock.lock("r", ttl=MAX_TTL, auto_extend=False, on_lost="flag")
    before = time.monotonic()
    lease = await lock.acquire()
    return Held(lease, before + lasts - MARGIN, time.monotonic() + lasts)


@dataclass(frozen=True, slots=True)
class KeptOut:
    """
    How somebody came by the lock.

    Attributes:
        at: When it was asked for with success, on `time.monotonic`.

        refused: When it was asked for before, and what the masters said.
    """

    at: float
    refused: list[tuple[float, tuple[Vote, ...]]]

    def check(self, forgetful: Sequence[int], *reasons: str) -> None:
        """Check that *forgetful* masters were left out for these reasons, and said how long yet."""
        said = re.compile(rf"(?:{'|'.join(reasons)}); it votes again in (\d+) s")
        left_out = seen = 0
        for at, votes in self.refused:
            quarantined = {i: v for i, v in enumerate(votes) if v.answer is Answer.QUARANTINED}
            assert set(quarantined) <= set(forgetful), votes
            left_out += set(quarantined) == set(forgetful)
            seen += all(votes[i].answer not in AWAY for i in forgetful)
            for vote in quarantined.values():
                told = said.fullmatch(vote.detail)
                assert told, vote
                # Others may vote a second earlier, by their uptimes.
                assert -LATE < int(told[1]) - (self.at - at) < 2 + LATE / 2, (vote, self.at - at)
        assert left_out > seen / 2, "all the time, but for a moment"
        assert left_out > 0


async def kept_out(redlock: Redlock, held: Held) -> KeptOut:
    """
    Ask for the lock until it is granted.

    Fails if that is while the holder believes to have it, or if the holder does not believe
    so to the end of its lease.
    """
    assert held.lease.valid or time.monotonic() >= held.earliest
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(held.is_believed_to_its_end())
        return await _granted(redlock, held)


async def _granted(redlock: Redlock, held: Held) -> KeptOut:
    refused = []
    ends = time.monotonic() + LASTS + 20
    while True:
        at = time.monotonic()
        try:
            lease = await redlock.lock("r", ttl=MAX_TTL, wait=0).acquire()
        except LockNotAcquiredError as error:
            refused.append((at, error.votes))
        else:
            assert not held.lease.valid, "two have it"
            await lease.release()
            await until(lambda: all(m.votes for m in redlock.statistics().masters), within=20)
            return KeptOut(at, refused)
        assert at < ends, f"nobody gets it any more: {refused[-1]}"
        await asyncio.sleep(0.02)


def check_log(log: pytest.LogCaptureFixture, masters: Iterable[RealMaster], *reasons: str) -> None:
    """Check that the log says why and for how long *masters* are left out, and when no more."""
    why = f"(?:{'|'.join(reasons)})"
    lines = [(line.levelno, line.getMessage()) for line in log.records]
    for master in masters:
        name = master.url.removeprefix("redis://")
        out = re.compile(rf"{re.escape(name)}: quarantined, {why}; it votes again in \d+ s")
        assert any(out.fullmatch(text) for level, text in lines if level == logging.WARNING), lines
        assert (logging.INFO, f"{name}: votes again") in lines
