"""Helpers for tests of the restart guard: which masters have no vote, how long, and why."""

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
from redlock_aio._rules.quarantine import Marker

from .helpers import Reachable, RealMaster, call, connected, until

MAX_TTL = 4_000
"""Milliseconds: a lease must outlive the restart of all masters on a busy machine."""

QUARANTINE = 5.04
"""The quarantine in seconds that follows from `MAX_TTL`: 1 % more, and a second."""

LATE = 4.5
"""
Seconds by which a master may vote later than its vote said: uptimes are whole seconds, and the
machine is busy. Less than `QUARANTINE`, so that a second quarantine would be noticed.
"""

RESTARTED = r"it restarted \d+ s ago and may have forgotten locks"
FLUSHED = "its keys were flushed, and locks with them"
MARKED = "it is marked as one that may have forgotten locks"
UNPROVEN = r"it started \d+ s ago, and it is not known yet that all masters are new"


DOWN = {Answer.UNREACHABLE, Answer.TIMED_OUT}


def restart_all(masters: Sequence[RealMaster]) -> float:
    """Restart *masters* at once; return when that began. The event loop does not run meanwhile."""
    began = time.monotonic()
    for master in masters:
        master.kill()
    with ThreadPoolExecutor(len(masters)) as threads:
        list(threads.map(lambda master: master.start(), masters))
    return began


def guarded(
    masters: Iterable[Reachable], *, max_ttl: int = MAX_TTL, fencing: bool = False
) -> contextlib.AbstractAsyncContextManager[Redlock]:
    """Open a manager with a restart guard."""
    return connected(masters, restart_guard="auto", max_ttl=max_ttl, fencing=fencing)


def run_id(master: RealMaster) -> str:
    """Return the run_id of a server, which is new at each start."""
    return str(call(master, "INFO", "server")["run_id"])


def marker(master: RealMaster) -> Marker | None:
    """Return the marker of a master, or None."""
    value = call(master, "GET", commands.MARKER)
    return None if value is None else Marker.parse(value.encode())


def marked(masters: Iterable[RealMaster], *, rejoining: bool) -> bool:
    """Return whether all *masters* are marked with their present run_id, as *rejoining* or not."""
    return all(
        (found := marker(master)) is not None
        and (found.run_id, found.rejoining) == (run_id(master), rejoining)
        for master in masters
    )


@dataclass(frozen=True, slots=True)
class Held:
    """
    A lease that is not extended.

    Attributes:
        earliest: The instant until which it must be valid, on `time.monotonic`.

        latest: The instant after which it must not be valid.
    """

    lease: Lease
    earliest: float
    latest: float

    async def is_valid_to_its_end(self) -> None:
        """Wait until the lease is over; fail if it ends too early or too late."""
        before = time.monotonic()
        while self.lease.valid:
            assert before < self.latest, "it is valid for too long"
            await asyncio.sleep(0.005)
            before = time.monotonic()
        assert time.monotonic() >= self.earliest, "it ended too early"
        await asyncio.wait_for(self.lease.lost.wait(), 20)


async def hold(redlock: Redlock) -> Held:
    """Acquire the lock ``r``, without extensions."""
    lasts = (MAX_TTL - timing.drift(MAX_TTL, factor=timing.DRIFT_FACTOR)) / 1000
    lock = redlock.lock("r", ttl=MAX_TTL, auto_extend=False, on_lost="flag")
    before = time.monotonic()
    lease = await lock.acquire()
    return Held(lease, before + lasts - MARGIN, time.monotonic() + lasts)


@dataclass(frozen=True, slots=True)
class Granted:
    """
    The attempts of a client until it got the lock.

    Attributes:
        at: When the successful attempt began, on `time.monotonic`.

        refusals: When each attempt before began, and its votes.
    """

    at: float
    refusals: list[tuple[float, tuple[Vote, ...]]]

    def check(self, forgetful: Sequence[int], *reasons: str) -> None:
        """Check that *forgetful* masters were quarantined for these reasons, and for how long."""
        pattern = re.compile(rf"(?:{'|'.join(reasons)}); it votes again in (\d+) s")
        excluded = seen = 0
        for at, votes in self.refusals:
            quarantined = {i: v for i, v in enumerate(votes) if v.answer is Answer.QUARANTINED}
            assert set(quarantined) <= set(forgetful), votes
            excluded += set(quarantined) == set(forgetful)
            seen += all(votes[i].answer not in DOWN for i in forgetful)
            for vote in quarantined.values():
                match = pattern.fullmatch(vote.detail)
                assert match, vote
                # A master may vote a second earlier than another: uptimes are whole seconds.
                assert -LATE < int(match[1]) - (self.at - at) < 2 + LATE / 2, (vote, self.at - at)
        assert excluded > seen / 2, "the masters were quarantined for a part of the time only"
        assert excluded > 0


async def granted_after(redlock: Redlock, held: Held) -> Granted:
    """
    Attempt to acquire the lock until it is granted.

    Fails if it is granted while the lease *held* is valid, or if that lease ends too early or
    too late.
    """
    assert held.lease.valid or time.monotonic() >= held.earliest
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(held.is_valid_to_its_end())
        return await _granted(redlock, held)


async def _granted(redlock: Redlock, held: Held) -> Granted:
    refusals = []
    ends = time.monotonic() + QUARANTINE + 20
    while True:
        at = time.monotonic()
        try:
            lease = await redlock.lock("r", ttl=MAX_TTL, wait=0).acquire()
        except LockNotAcquiredError as error:
            refusals.append((at, error.votes))
        else:
            assert not held.lease.valid, "two clients hold the lock"
            await lease.release()
            await until(lambda: all(m.votes for m in redlock.statistics().masters), within=20)
            return Granted(at, refusals)
        assert at < ends, f"the lock is never granted: {refusals[-1]}"
        await asyncio.sleep(0.02)


def check_log(log: pytest.LogCaptureFixture, masters: Iterable[RealMaster], *reasons: str) -> None:
    """Check that the log has the reason, length and end of the quarantine of each master."""
    why = f"(?:{'|'.join(reasons)})"
    lines = [(line.levelno, line.getMessage()) for line in log.records]
    for master in masters:
        name = master.url.removeprefix("redis://")
        entry = re.compile(rf"{re.escape(name)}: quarantined, {why}; it votes again in \d+ s")
        assert any(entry.fullmatch(text) for level, text in lines if level == logging.WARNING), (
            lines
        )
        assert (logging.INFO, f"{name}: votes again") in lines
