"""The page "How far it goes": its figures, its formula, and what the commands behind it say."""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from redlock_aio import LockNotHeldError
from redlock_aio._rules import lease_state
from redlock_aio._transport.connection import LOADS


@pytest.fixture
def page(root: Path) -> str:
    return (root / "docs/explanation/how-far-it-goes.md").read_text()


def benchmark(name: str) -> ModuleType:
    """Return a module of the folder benchmarks, which is on the path of all tests."""
    return importlib.import_module(name)


def test_the_page_has_the_figures_of_the_results_if_there_are_any(root: Path, page: str) -> None:
    path = root / "benchmarks/results-capacity.md"
    results = path.read_text() if path.exists() else ""
    publish = benchmark("publish")
    assert publish.published_far(page, results) == page
    assert (publish.NOT_MEASURED in page) == (not results)


def found() -> Any:
    """Return measurements as `capacity.py` would make them, with round numbers."""
    capacity = benchmark("capacity")

    def run(processes: int, pairs: float, master: float, busiest: float = 0.0) -> Any:
        return capacity.Run(
            processes, 5.0, pairs, commands=2 * pairs, came=300 * pairs, sent=20 * pairs,
            extended=2_000.0, master=master, busiest=busiest or master, client=0.5, machine=0.6,
            lost=0,
        )  # fmt: skip

    pairs = [
        capacity.Cost(kind, paced, run(n, 400.0, 0.02 if paced else 0.01))
        for kind in capacity.KINDS
        for paced in (True, False)
        for n in (1, 4, 16)
    ]
    runs = [run(n, 0.0, 0.04) for n in (1, 4, 16)]
    costs = capacity.Costs(50e-6, 20e-6, 250e-6)
    return capacity.Found(
        pairs,
        leases=runs,
        waiters=[(kind, 160, each) for kind in ("plain", "fair") for each in runs],
        mixed=[capacity.Mixed(each, costs, 0.05) for each in runs],
        full=[run(n, 30_000.0, 0.99) for n in (1, 4, 16)],
        connected=capacity.Connected(1_000, 1_000, 20_480.0, run(4, 0.0, 0.03)),
        memory={"valkey 9.1.2": dict.fromkeys(capacity.OF_KEYS, (88.0, 250.0))},
    )


def test_results_fill_the_page(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    capacity, publish = benchmark("capacity"), benchmark("publish")
    monkeypatch.setattr(capacity.measuring, "machine", lambda *_: "a machine")
    plan = capacity.Plan.of(quick=False)
    report = capacity.report(found(), plan, "as processes", "redis://nowhere")
    filled = publish.published_far(page, report)
    assert publish.NOT_MEASURED not in filled
    assert publish.published_far(filled, report) == filled
    # 2,000 x 50 us + 6,417 x 20 us + 500 x 250 us + 1,000 x 30 us
    assert "each master uses 38% of its core: 10.0% for the pairs" in filled
    assert "12.8% for the extensions, 12.5% for the waiters, 3.0% for the connections" in filled
    rows = {line.partition(" | ")[0]: line for line in filled.splitlines() if "| " in line}
    assert rows["| plain, at a rate"].endswith(
        "| 16 | 2.0 | 300 | 20 | 50.0 µs | 20,000 | nothing |"
    )
    assert rows["| 1,000 managers"] == "| 1,000 managers | 1,000 | 20,480 | 0.00 | 3.00% |"
    assert rows["| a reader"] == "| a reader | 88 | 250 |"
    assert "| 16 | 20,000 | 40,000 | 30,000 | 99.0% | 50.0% | a master |" in filled


def test_a_row_says_what_was_full() -> None:
    run = found().mixed[0].run
    capacity = benchmark("capacity")
    for shares, what in (
        ({}, "nothing"), ({"machine": 0.99}, "the machine"), ({"client": 0.95}, "a client"),
        ({"busiest": 0.95, "client": 0.95, "machine": 1.0}, "a master"),
    ):  # fmt: skip
        assert capacity.replace(run, **shares).full == what


def test_extensions_are_those_of_the_library(page: str) -> None:
    mean = lease_state.RENEW_SHARE * (1 - lease_state.RENEW_SPREAD / 2)
    assert pytest.approx(1 / mean) == benchmark("capacity").EXTENSIONS
    assert f"{1 / mean:.1f} times in each ttl" in page
    assert f"leases x {1 / mean:.1f} / ttl" in page


def test_the_formula_adds_what_each_part_costs() -> None:
    capacity = benchmark("capacity")
    costs = capacity.Costs(pair=20e-6, extension=10e-6, waiter=100e-6, process=50e-6)

    def share(**load: int) -> float:
        nothing = {"pairs": 0, "leases": 0, "ttl": 10_000, "waiters": 0, "processes": 0}
        found: float = capacity.share_of_core(costs, **{**nothing, **load})
        return found

    assert share() == 0
    assert share(pairs=50_000) == pytest.approx(1)
    assert share(leases=10_000) == pytest.approx(10_000 * capacity.EXTENSIONS / 10 * 10e-6)
    assert share(leases=10_000, ttl=20_000) == pytest.approx(share(leases=10_000) / 2)
    assert share(waiters=1_000) == pytest.approx(0.1)
    assert share(processes=1_000) == pytest.approx(0.05)
    both = share(pairs=50_000, waiters=1_000, leases=10_000, processes=1_000)
    assert both == pytest.approx(1.15 + share(leases=10_000))


def share_of_two_cores(text: str) -> float:
    """Return the share that 100,000 leases and five masters used, from results of leases.py."""
    rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in text.splitlines()]
    begin = next(n for n, row in enumerate(rows) if row[0].startswith("100,000 leases"))
    found = {row[0]: row[1] for row in rows[begin : begin + 14]}
    own = float(found["... share of one core"].removesuffix("%"))
    each = float(found["... share of one core, each master"].removesuffix("%"))
    return (own + 5 * each) / 200


def test_what_a_hundred_thousand_leases_use_of_two_cores(root: Path, page: str) -> None:
    results = root / "benchmarks"
    assert "on a slower machine, with the masters in containers, nine tenths of them" in page
    processes = share_of_two_cores((results / "results-leases.md").read_text())
    containers = share_of_two_cores((results / "results-leases-containers.md").read_text())
    assert f"use {100 * processes:.0f} % of two cores" in page
    assert 0.85 < containers < 0.95


class Released:
    """A lease that may have been lost."""

    def __init__(self, reason: str = "") -> None:
        self._reason = reason
        self.released = False

    async def release(self) -> None:
        self.released = True
        if self._reason:
            raise LockNotHeldError(["lease:7"], self._reason, "not-extended")


async def test_lost_leases_do_not_end_the_benchmark_of_leases() -> None:
    leases = [Released("too late"), Released(), Released("gone"), Released("too late")]
    found = await benchmark("leases").release(leases)
    assert found == {"too late": 2, "gone": 1}
    assert all(lease.released for lease in leases)


def held(**facts: Any) -> Any:
    leases = benchmark("leases")
    given = {
        "load": leases.Load(100_000, 30_000, 60.0, 50), "seconds": 60.0, "valid": 0,
        "alive": [0] * 5, "shortest": 0, "cpu": 0.3, "cpu_of_masters": 0.2, "extensions": 1,
        "floor_us": 1.0, "longest_turn": 1.0, "most_cpu": 1.0, "collection": 1.0, "left": 0,
        "busy": 0.5, "losses": {},
    }  # fmt: skip
    return leases.Held(**{**given, **facts})


def test_the_benchmark_of_leases_says_why_they_were_lost() -> None:
    why_lost = benchmark("leases").why_lost
    assert why_lost(held()) == ""
    said = why_lost(held(losses={"too late": 150, "gone": 50}, busy=0.6))
    assert said.startswith("Of 100,000 leases 200 were lost: 150 because too late; 50 because gone")
    assert "60% of the time" in said
    assert "The machine was full" not in said
    assert "The machine was full" in why_lost(held(losses={"too late": 1}, busy=0.99))


def test_the_page_says_how_long_the_scripts_are(page: str) -> None:
    assert f"{len(LOADS) / 1000:.0f} kB of scripts" in page
