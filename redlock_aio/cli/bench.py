"""
``redlock bench``: what these masters cost from this machine.

The round trips to each master are measured beside each other, then pairs of acquisition and
release on all of them. From that follow the *master_timeout* and the shortest ttl that suit.
"""

import asyncio
import bisect
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from redlock_aio import LockLostError, LockNotAcquiredError, Redlock
from redlock_aio.cli import durations
from redlock_aio.cli.exits import Exit, Failure
from redlock_aio.cli.frame import Duration, Frame, command, of_library

SECONDS = 4_000
"""The default of ``--for`` in ms."""

SLOWEST = 1_000
"""The timeout in ms while it measures: the longest that the library would learn."""

EDGES: list[float] = [10 ** (exponent / 5) for exponent in range(-5, 16)]
"""The limits in ms of the columns of a picture: five to a factor of ten, 0.1 ms to 1 s."""

BARS = " ▁▂▃▄▅▆▇█"

FAILED_EXTENSIONS = 3
"""So many extensions in a row may time out before a lease with the shortest ttl is lost."""

For = Annotated[int, Duration("--for", help="How long to measure (default 4s).")]


@dataclass(frozen=True)
class Sample:
    """
    Durations in ms, in order.

    Attributes:
        missing: How many requests had no answer.

        error: Why the last of these had none.
    """

    ms: Sequence[float]
    missing: int = 0
    error: LockNotAcquiredError | LockLostError | None = None

    def quantile(self, share: float) -> float:
        """Return the duration that this *share* of all does not exceed; infinite if none did."""
        if not self.ms:
            return math.inf
        return self.ms[min(len(self.ms) - 1, math.ceil(share * len(self.ms)) - 1)]

    def picture(self, mark: float) -> str:
        """Return the distribution as bars on a logarithmic scale, with a line at *mark* ms."""
        counts = [0] * (len(EDGES) + 1)
        for ms in self.ms:
            counts[bisect.bisect(EDGES, ms)] += 1
        most = max(counts)
        bars = [BARS[math.ceil(count * 8 / most)] if most else " " for count in counts]
        bars.insert(bisect.bisect(EDGES, mark), "|")
        return "".join(bars)


def shortest_ttl(timeout: float, pair: float) -> int:
    """
    Return the shortest ttl in ms that survives some extensions which time out.

    An extension begins after a third of the ttl. In the other two thirds, less the drift of
    1 %, `FAILED_EXTENSIONS` may time out before one takes as long as a slow *pair*.
    """
    needed = (FAILED_EXTENSIONS * timeout + pair) * 3 / 2 / 0.99 + 2
    return math.ceil(needed / 50) * 50


def add_to(app: typer.Typer) -> None:
    """Add the command to *app*."""
    command(app, name="bench", guard="off", example="redlock bench --for 10s")(bench)


async def bench(frame: Frame, for_: For = SECONDS) -> int:
    """
    Measure the masters from this machine, and which timeout and ttl they allow.

    It locks a name of its own, again and again, and leaves nothing on the masters.
    """
    if for_ < 100:
        raise Failure(Exit.USAGE, f"--for must be at least 100ms, not {for_}ms")
    redlock = frame.redlock()  # refuses wrong options, before each master is measured alone
    trips = await asyncio.gather(
        *(_round_trips(frame, url, for_ / 2000) for url in frame.each_master)
    )
    timeout, pairs = await _pairs(frame, redlock, for_ / 2000)
    rows = [*trips, ("lock and release", pairs)]
    facts = {
        "master_timeout_ms": timeout,
        "shortest_ttl_ms": shortest_ttl(timeout, pairs.quantile(0.99)) if pairs.ms else None,
        "masters": [{"master": name, **facts_of(sample)} for name, sample in trips],
        "pairs": facts_of(pairs),
    }
    if frame.out.as_json:
        frame.out.result(facts, "")
    else:
        _show(frame, rows, timeout, pairs)
    away = [name for name, sample in trips if not sample.ms]
    late = [name for name, sample in trips if sample.ms and sample.quantile(0.99) > timeout]
    if away:
        frame.out.note(f"{', '.join(away)}: no answer")
    if late:
        frame.out.note(
            f"{', '.join(late)}: slower than master_timeout ({timeout} ms) in 1 % of the requests"
            " or more, so often without a vote"
        )
    if not pairs.ms and pairs.error is not None:  # such as for a missing permission to write
        failure = of_library(pairs.error)
        return frame.out.fail(Failure(Exit.UNAVAILABLE, str(failure), **failure.facts))
    enough = len(trips) - len(late) - len(away) > len(trips) // 2
    return Exit.DONE if pairs.ms and enough else Exit.UNAVAILABLE


async def _round_trips(frame: Frame, url: str, seconds: float) -> tuple[str, Sample]:
    """Return the name of one master, and its round trips."""
    async with frame.connected(frame.redlock([url], master_timeout=SLOWEST)) as redlock:
        name = redlock.statistics().masters[0].name

        async def look() -> None:
            await redlock.is_locked("redlock-bench")

        return name, await measured(look, seconds)


async def _pairs(frame: Frame, manager: Redlock, seconds: float) -> tuple[int, Sample]:
    """Return the master timeout for all masters, and the times of acquisition and release."""
    key = f"redlock-bench:{secrets.token_hex(8)}"
    # Entered as well: the first pair would be that which waits for the votes.
    async with frame.connected(manager) as redlock, redlock:
        lock = redlock.lock(key, ttl=min(10_000, frame.max_ttl), wait=0)

        async def pair() -> None:
            async with lock:
                pass

        sample = await measured(pair, seconds)
        return redlock.master_timeout, sample


async def measured(act: Callable[[], Awaitable[None]], seconds: float) -> Sample:
    """Return how long *act* takes, again and again for some seconds."""
    taken, missing, last = [], 0, None
    ends = time.perf_counter() + seconds
    while (began := time.perf_counter()) < ends:
        try:
            await act()
        except (LockNotAcquiredError, LockLostError) as error:
            missing, last = missing + 1, error
            await asyncio.sleep(0.01)  # a master that is down refuses at once
        else:
            taken.append((time.perf_counter() - began) * 1000)
    return Sample(sorted(taken), missing, last)


def facts_of(sample: Sample) -> dict[str, object]:
    """Return a sample for JSON."""
    quantiles = {"p50_ms": 0.5, "p99_ms": 0.99, "max_ms": 1.0}
    shown = {name: round(sample.quantile(share), 3) for name, share in quantiles.items()}
    known = shown if sample.ms else dict.fromkeys(shown)
    return {"answers": len(sample.ms), "no_answer": sample.missing, **known}


def _show(frame: Frame, rows: Sequence[tuple[str, Sample]], timeout: int, pairs: Sample) -> None:
    """Write the figures and the pictures."""
    table = []
    for name, sample in rows:
        figures = [f"{sample.quantile(share):.1f} ms" for share in (0.5, 0.99, 1.0)]
        figures = figures if sample.ms else ["-"] * 3
        answers = [str(len(sample.ms)), str(sample.missing)]
        table.append([name, *answers, *figures, sample.picture(timeout).rstrip()])
    scale = "0.1 ms ... 1 s"
    frame.out.table(["MASTER", "ANSWERS", "NONE", "P50", "P99", "MAX", scale], table)
    text = f"master_timeout is {timeout} ms, the line in the pictures"
    if pairs.ms:
        ttl = durations.shown(shortest_ttl(timeout, pairs.quantile(0.99)))
        text += f"; ttl can be {ttl} or longer: {FAILED_EXTENSIONS} extensions may time out"
    frame.out.result({}, text)
