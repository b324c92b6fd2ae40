"""
The cost of fencing tokens in round trips, and their order.

The benchmark claims that a token takes one round trip without contention, and in more
than 95 of 100 acquisitions if ten processes contend for one lock; that no token is
granted twice; and that of any two leases the later one has the higher token.

The masters are asked a second time when the counters of a majority differ. That is
not visible from outside, so each process counts the calls of the engine's `agree`.

    python benchmarks/fencing.py [--quick]

The table goes to `results-fencing.md`.
"""

import asyncio
import itertools
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import measuring
from measuring import TTL, bar

from redlock_aio import Redlock
from redlock_aio._engine import fenced
from redlock_aio._engine.wait import fair_waiter
from redlock_aio.testing import embedded_masters

WORK = 0.001
"""Seconds of work under the lock."""

LEAST_SHARE = 0.95


@dataclass(frozen=True, slots=True)
class Setting:
    """The contending processes and waiters."""

    processes: int
    waiters: int
    fair: bool

    @property
    def least_share(self) -> float:
        return 1.0 if self.processes * self.waiters == 1 else LEAST_SHARE


SETTINGS = [
    Setting(processes, waiters, fair)
    for processes, waiters in ((1, 1), (1, 10), (10, 1), (10, 5))
    for fair in (False, True)
]

Held = tuple[float, float, int]
"""The begin and end of a lease, on the clock of the machine, and its token."""


@dataclass(slots=True)
class Found:
    """The measurements of one setting."""

    held: list[Held]
    second_rounds: int

    @property
    def share(self) -> float:
        return 1 - self.second_rounds / len(self.held)

    @property
    def unique(self) -> bool:
        return len({token for _, _, token in self.held}) == len(self.held)

    @property
    def rising(self) -> bool:
        in_turn = itertools.pairwise(sorted(self.held))
        return all(first[1] <= second[0] and first[2] < second[2] for first, second in in_turn)


async def contend(urls: Sequence[str], waiters: int, seconds: float, *, fair: bool) -> Found:
    """Acquire one lock again and again, with *waiters* tasks."""
    found = Found([], 0)
    agree = fenced.agree

    async def counted(*arguments: object) -> bool:
        found.second_rounds += 1
        return await agree(*arguments)  # type: ignore[arg-type]

    fenced.agree = fair_waiter.agree = counted  # type: ignore[assignment, attr-defined]
    clock = time.monotonic
    async with Redlock(urls, fencing=True) as redlock:
        lock = redlock.lock("benchmark", ttl=TTL, fair=fair)
        async with lock:
            pass
        ends = clock() + seconds

        async def acquire_repeatedly() -> None:
            while clock() < ends:
                async with lock as lease:
                    began = clock()
                    await asyncio.sleep(WORK)
                    found.held.append((began, clock(), lease.fencing_token))

        await asyncio.gather(*(acquire_repeatedly() for _ in range(waiters)))
    return found


async def measure(urls: Sequence[str], setting: Setting, seconds: float) -> Found:
    """Run the processes of one setting, and join their results."""
    what = (json.dumps(urls), str(setting.waiters), str(seconds), str(int(setting.fair)))
    clients = [
        await asyncio.create_subprocess_exec(
            sys.executable, __file__, "--client", *what, stdout=asyncio.subprocess.PIPE
        )
        for _ in range(setting.processes)
    ]
    found = Found([], 0)
    for output, _ in await asyncio.gather(*(client.communicate() for client in clients)):
        held, second_rounds = json.loads(output)
        found.held += [tuple(each) for each in held]
        found.second_rounds += second_rounds
    return found


def client(urls: str, waiters: str, seconds: str, fair: str) -> None:
    """Run one process of a setting."""
    found = measuring.run(contend(json.loads(urls), int(waiters), float(seconds), fair=fair == "1"))
    json.dump([found.held, found.second_rounds], sys.stdout)


def row(setting: Setting, found: Found) -> list[str]:
    least = setting.least_share
    return [
        f"{setting.processes} x {setting.waiters}{', fair' if setting.fair else ''}",
        f"{len(found.held):,}",
        f"{found.second_rounds:,}",
        f"{found.share:.2%}",
        ", ".join(
            [
                bar(f"one round trip in {least:.0%}", passed=found.share >= least),
                bar("unique", passed=found.unique),
                bar("rising", passed=found.rising),
            ]
        ),
    ]


async def rows(urls: Sequence[str], *, quick: bool) -> list[list[str]]:
    """Measure all settings; *quick* takes two, and few processes, which have to start."""
    few = [replace(each, processes=min(each.processes, 2)) for each in (SETTINGS[0], SETTINGS[-1])]
    seconds, settings = (0.2, few) if quick else (4.0, SETTINGS)
    return [row(setting, await measure(urls, setting, seconds)) for setting in settings]


def report(table: Iterator[list[str]] | list[list[str]], url: str) -> str:
    head = ["processes x waiters", "leases", "second rounds", "in one round trip", "bars"]
    machine = measuring.machine(url, "redlock_aio", "redis", "hiredis")
    what = f"One lock on five masters as processes, {WORK * 1000:.0f} ms of work under it"
    title = "# What a fencing token takes"
    about = [f"{what}: {machine}.", measuring.command()]
    return "\n\n".join([title, *about, measuring.table(head, table)])


def main() -> None:
    if sys.argv[1:2] == ["--client"]:
        client(*sys.argv[2:])
        return
    options = measuring.arguments(__doc__).parse_args()
    with embedded_masters(5) as servers:
        urls = [server.url for server in servers]
        text = report(asyncio.run(rows(urls, quick=options.quick)), urls[0])
    print(text)
    if not options.quick:
        (measuring.HERE / "results-fencing.md").write_text(f"{text}\n")


if __name__ == "__main__":
    main()
