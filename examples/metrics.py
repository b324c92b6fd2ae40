"""
Metrics of locks: a listener that counts events, and one that logs them.

A listener is called in the event loop and must not block. So this one only counts. Send the
numbers to your monitoring from a task or a thread.

docs/how-to/observe.md explains it.
"""

import asyncio
import logging
import math
import os
from bisect import bisect_left
from collections import Counter

from redlock_aio import LockNotAcquiredError, Redlock
from redlock_aio.events import Acquired, Event, Extended, Lost, Missed, Released, log_to

MASTERS = os.environ.get("REDLOCK_MASTERS", "redis://localhost:6379").split(",")
BOUNDS = (1, 10, 100, 1_000, 10_000)  # milliseconds


class Metrics:
    """Counts events, waiting times and holding times, and keeps the smallest margin."""

    def __init__(self) -> None:
        self.events: Counter[str] = Counter()
        self.waited: Counter[int] = Counter()
        self.held: Counter[int] = Counter()
        self.smallest_margin = math.inf

    def __call__(self, event: Event, /) -> None:
        self.events[type(event).__name__] += 1
        match event:
            case Acquired(waited_ms=ms) | Missed(waited_ms=ms):
                self.waited[bisect_left(BOUNDS, ms)] += 1
            case Released(held_ms=ms) | Lost(held_ms=ms):
                self.held[bisect_left(BOUNDS, ms)] += 1
            case Extended(margin_ms=ms):
                self.smallest_margin = min(ms, self.smallest_margin)


def histogram(counts: Counter[int]) -> str:
    names = [*(f"up to {bound:,} ms" for bound in BOUNDS), "more"]
    return ", ".join(f"{names[n]}: {count}" for n, count in sorted(counts.items()))


async def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    metrics, log = Metrics(), log_to(logging.getLogger("locks"))

    def listener(event: Event, /) -> None:
        metrics(event)
        log(event)

    async with (
        Redlock(MASTERS, key_prefix="lock:", listener=listener) as redlock,
        redlock.lock("metrics:1", ttl=600),
    ):
        try:
            await redlock.lock("metrics:1", wait=50).acquire()
        except LockNotAcquiredError:
            await asyncio.sleep(0.5)  # your work; the lease is extended meanwhile
    print(", ".join(f"{name}: {count}" for name, count in sorted(metrics.events.items())))
    print("waited", histogram(metrics.waited))
    print("held", histogram(metrics.held))
    print("smallest margin:", metrics.smallest_margin, "ms")


asyncio.run(main())
