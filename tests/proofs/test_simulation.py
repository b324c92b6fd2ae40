"""
A hundred thousand leases in every weather: no property is broken, and defects are found.

The default run has one seed in each weather. A failure names its seed; run more seeds with, for
instance, ``REDLOCK_AIO_SEEDS=0:3000 pytest tests/proofs/test_simulation.py``.
"""

import os
from dataclasses import replace

import pytest

from . import rules
from .rules import SHIPPED, Rules
from .simulation import Client, World
from .weather import Weather

FULL = "REDLOCK_AIO_FULL" in os.environ
SEEDS = range(*map(int, os.environ.get("REDLOCK_AIO_SEEDS", "0:20" if FULL else "0:1").split(":")))
AT_LEAST = 100_000
"""How many leases the full run reports at least."""

ALONE = Weather(clients=1)
TEN = Weather(clients=10)
STORM = Weather(
    clients=5, work=0.02, loss=0.02, duplicates=0.02, slow=0.05, crash=10, pause=0.02, skew=0.05,
    error=0.02,
)  # fmt: skip
STORMS = replace(STORM, crash=2, work=0.05)
# Locks end early, so leases do not exclude each other.
HAIL = Weather(
    clients=8, ttl=60, work=0.05, think=0.002, loss=0.01, duplicates=0.1, slow=0.15, late=0.02,
    pause=0.02, skew=0.03, error=0.08, ends=0.01,
)  # fmt: skip
# A clock that was wrong has driven the counters far ahead of the time.
FOG = replace(HAIL, ahead=1e6)

WEATHERS = {
    "alone": (ALONE, 800),
    "alone, five masters": (replace(ALONE, masters=5), 400),
    "ten": (TEN, 1_600),
    "ten, five masters": (replace(TEN, masters=5), 500),
    "storm": (STORM, 600),
    "storm, five masters": (replace(STORM, masters=5), 100),
    "storms, one after the other": (STORMS, 100),
    "hail": (HAIL, 500),
    "fog": (FOG, 500),
}
"""Each weather, and the number of leases for a seed."""

pytestmark = [pytest.mark.promise("S7"), pytest.mark.promise("S1"), pytest.mark.timeout(0)]


def simulate(seed: int, weather: Weather, leases: int, rules: Rules = SHIPPED) -> World:
    world = World(seed, weather, rules)
    for _ in range(weather.clients):
        Client(world)
    return world.run(leases)


def alone(seed: int) -> str:
    """Return the command that repeats a run."""
    return f"alone: REDLOCK_AIO_SEEDS={seed}:{seed + 1} pytest {__file__}"


def test_the_full_run_has_enough_leases() -> None:
    if FULL and "REDLOCK_AIO_SEEDS" not in os.environ:
        assert len(SEEDS) * sum(leases for _, leases in WEATHERS.values()) >= AT_LEAST


@pytest.mark.parametrize("name", WEATHERS)
def test_tokens_rise_in_every_weather(name: str) -> None:
    weather, leases = WEATHERS[name]
    at_once = reported = extensions = 0
    for seed in SEEDS:
        world = simulate(seed, weather, leases)
        assert not world.broken, f"{world.first}; {alone(seed)}"
        reported += world.reported
        at_once += world.at_once
        extensions += world.extensions
    assert reported == leases * len(SEEDS)
    if weather.clients == 1:
        assert at_once == reported
    elif name.startswith("ten"):
        assert at_once > 0.95 * reported
    elif FULL:
        assert extensions or reported < 10_000
        assert at_once < reported  # else raising was not tried


DEFECTS = {
    "inexact acks": (rules.INEXACT_ACKS, FOG, {"P2"}),
    "value-only extension": (rules.VALUE_ONLY, FOG, {"P4"}),
    "no quarantine": (rules.NO_QUARANTINE, STORMS, {"P1", "P3", "P5"}),
    "reused token": (rules.REUSED_TOKEN, STORMS, {"P1", "P2", "P3", "P5"}),
}
"""The wrong rules, a weather that shows it, and the properties that are broken."""

MOST = 40
"""The number of seeds in which a defect must be found; the first few suffice."""


@pytest.mark.full
@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_found(name: str) -> None:
    wrong, weather, breaks = DEFECTS[name]
    for seed in range(MOST):
        world = simulate(seed, weather, 1_000, wrong)
        if world.broken:
            assert set(world.broken) <= breaks, f"{world.first}; seed {seed}"
            return
    pytest.fail(f"{name} breaks nothing")
