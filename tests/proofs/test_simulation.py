"""
A hundred thousand leases under loads and faults: no property is broken, and defects are found.

Each run has one seed for each set of conditions. The others of the full run are recorded, as the
searches are, and so are the seeds that find a defect. A failure names its seed; run more seeds
with, for instance, ``REDLOCK_AIO_SEEDS=0:3000 pytest tests/proofs/test_simulation.py``.
"""

import os
from collections.abc import Callable
from dataclasses import replace

import pytest

from . import rules
from .conditions import Conditions
from .rules import SHIPPED, Rules
from .simulation import Client, World

SEEDS = range(*map(int, os.environ.get("REDLOCK_AIO_SEEDS", "0:1").split(":")))
MORE = range(1, 20)
"""The other seeds of the full run."""
AT_LEAST = 100_000
"""The least number of leases in the full run."""

ONE_CLIENT = Conditions(clients=1)
TEN_CLIENTS = Conditions(clients=10)
FAULTS = Conditions(
    clients=5, work=0.02, loss=0.02, duplicates=0.02, slow=0.05, crash=10, pause=0.02, skew=0.05,
    error=0.02,
)  # fmt: skip
CRASHES = replace(FAULTS, crash=2, work=0.05)
# Locks end early, so leases do not exclude each other.
EARLY_ENDS = Conditions(
    clients=8, ttl=60, work=0.05, think=0.002, loss=0.01, duplicates=0.1, slow=0.15, late=0.02,
    pause=0.02, skew=0.03, error=0.08, ends=0.01,
)  # fmt: skip
# A wrong clock has raised the counters far above the time.
COUNTERS_AHEAD = replace(EARLY_ENDS, ahead=1e6)

CONDITIONS = {
    "one client": (ONE_CLIENT, 800),
    "one client, five masters": (replace(ONE_CLIENT, masters=5), 400),
    "ten clients": (TEN_CLIENTS, 1_600),
    "ten clients, five masters": (replace(TEN_CLIENTS, masters=5), 500),
    "faults": (FAULTS, 600),
    "faults, five masters": (replace(FAULTS, masters=5), 100),
    "frequent crashes": (CRASHES, 100),
    "locks end early": (EARLY_ENDS, 500),
    "counters far ahead": (COUNTERS_AHEAD, 500),
}
"""Each set of conditions, and the number of leases for a seed."""

pytestmark = [pytest.mark.promise("S7"), pytest.mark.promise("S1"), pytest.mark.timeout(0)]


def simulate(seed: int, conditions: Conditions, leases: int, rules: Rules = SHIPPED) -> World:
    world = World(seed, conditions, rules)
    for _ in range(conditions.clients):
        Client(world)
    return world.run(leases)


def command(seed: int) -> str:
    """Return the command that repeats the run of one seed."""
    return f"repeat it by REDLOCK_AIO_SEEDS={seed}:{seed + 1} pytest {__file__}"


def test_the_full_run_has_enough_leases() -> None:
    leases = sum(leases for _, leases in CONDITIONS.values())
    assert (1 + len(MORE)) * leases >= AT_LEAST


@pytest.mark.spread(0)
@pytest.mark.parametrize("name", CONDITIONS)
def test_tokens_rise_under_all_conditions(name: str) -> None:
    check(name, SEEDS)


@pytest.mark.full
@pytest.mark.parametrize("name", CONDITIONS)
def test_tokens_rise_with_more_seeds(name: str, recorded: Callable[[int], None]) -> None:
    recorded(check(name, MORE))


def check(name: str, seeds: range) -> int:
    """Run a simulation with each seed; return the number of leases."""
    conditions, leases = CONDITIONS[name]
    one_round = reported = extensions = 0
    for seed in seeds:
        world = simulate(seed, conditions, leases)
        assert not world.broken, f"{world.first}; {command(seed)}"
        reported += world.reported
        one_round += world.one_round
        extensions += world.extensions
    assert reported == leases * len(seeds)
    if conditions.clients == 1:
        assert one_round == reported
    elif name.startswith("ten"):
        assert one_round > 0.95 * reported
    elif len(seeds) >= len(MORE):
        assert extensions or reported < 10_000
        assert one_round < reported  # else no counter was raised
    return reported


DEFECTS = {
    "inexact acks": (rules.INEXACT_ACKS, COUNTERS_AHEAD, {"P2"}),
    "value-only extension": (rules.VALUE_ONLY, COUNTERS_AHEAD, {"P4"}),
    "no quarantine": (rules.NO_QUARANTINE, CRASHES, {"P1", "P3", "P5"}),
    "reused token": (rules.REUSED_TOKEN, CRASHES, {"P1", "P2", "P3", "P5"}),
}
"""The defect, conditions that show it, and the properties that may be broken."""

MOST = 40
"""The number of seeds in which a defect must be found; the first few suffice."""


@pytest.mark.full
@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_found(name: str, recorded: Callable[[int], None]) -> None:
    wrong, conditions, breaks = DEFECTS[name]
    leases = 0
    for seed in range(MOST):
        world = simulate(seed, conditions, 1_000, wrong)
        leases += world.reported
        if world.broken:
            assert set(world.broken) <= breaks, f"{world.first}; seed {seed}"
            recorded(leases)
            return
    pytest.fail(f"{name} breaks nothing")
