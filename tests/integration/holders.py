"""Programs that compete for locks, and the check that no lock had two holders."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator

from redlock_aio import LockNotHeldError, Redlock, Retry

HELD = 1_000
"""Milliseconds for which each lease is held, without extensions."""

QUICK_RETRY = Retry(min_delay=2, max_delay=10)


def now() -> float:
    """Return the time of the clock by which the tests measure, in seconds."""
    return time.monotonic()


class Holders:
    """The times in which each program held each lock, by its own clock."""

    def __init__(self) -> None:
        self.spans: dict[str, list[tuple[float, float, str]]] = {}

    async def compete(self, redlock: Redlock, who: str, *, at_once: int = 10) -> None:
        """Acquire locks again and again, and hold each until its lease is over."""

        async def take(name: str) -> None:
            while True:
                lock = redlock.lock(
                    name, ttl=HELD, auto_extend=False, on_lost="flag", retry=QUICK_RETRY
                )
                lease = await lock.acquire()
                began = now()
                spans = self.spans.setdefault(name, [])
                place = len(spans)
                spans.append((began, began + lease.remaining / 1000, who))
                try:
                    await lease.lost.wait()  # set up to 1 ms before the deadline
                finally:  # also where this ends before the lease does
                    spans[place] = (began, min(spans[place][1], now()), who)
                    with contextlib.suppress(LockNotHeldError):
                        await lease.release()

        await asyncio.gather(*(take(f"r{i}") for i in range(at_once)))

    def check(self) -> None:
        """Check that no lock had two holders."""
        for name, spans in self.spans.items():
            for (_, ends, one), (begins, _, other) in itertools.pairwise(sorted(spans)):
                assert ends <= begins + 0.001, f"{name}: {one} until {ends}, {other} from {begins}"

    def count(self, who: str, since: float) -> int:
        """Return how often a program acquired a lock after *since*."""
        spans = itertools.chain(*self.spans.values())
        return sum(holder == who and began > since for began, _, holder in spans)


@contextlib.asynccontextmanager
async def competing(programs: dict[str, Redlock]) -> AsyncIterator[Holders]:
    """Make the programs compete for locks during the body; check that they excluded each other."""
    holders = Holders()
    tasks = [asyncio.create_task(holders.compete(r, who)) for who, r in programs.items()]
    try:
        yield holders
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in tasks:
        assert task.cancelled(), task.exception()
    holders.check()
