"""Several sets of masters: which set has a name, what a set that fails stops, how sets change."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from examples.several_sets import set_of, several_sets
from redlock_aio import LockLostError, LockNotAcquiredError, Redlock
from redlock_aio.testing import EmbeddedMaster, embedded_masters

pytestmark = pytest.mark.integration

NAMES = [f"invoice:{number}" for number in range(2_000)]
BUSY = 200
"""How long to wait for a lock that is held, in ms."""


@pytest.fixture
def servers() -> Iterator[Mapping[str, EmbeddedMaster]]:
    """One master for each of three sets."""
    with embedded_masters(3) as running:
        yield dict(zip("abc", running, strict=True))


@pytest.fixture
def sets(servers: Mapping[str, EmbeddedMaster]) -> dict[str, list[str]]:
    return {label: [server.url] for label, server in servers.items()}


def name_in(label: str, labels: str = "abc") -> str:
    return next(name for name in NAMES if set_of(name, labels) == label)


@pytest.mark.parametrize("seed", ["1", "2"])
def test_all_programs_agree_on_the_set_of_a_name(root: Path, seed: str) -> None:
    """Whatever the seed of Python's own hash, and in whatever order they have the labels."""
    program = "from examples.several_sets import *; print(*[set_of(n, 'cab') for n in NAMES])"
    done = subprocess.run(
        [sys.executable, "-c", program.replace("NAMES", repr(NAMES[:200]))],
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [set_of(name, "abc") for name in NAMES[:200]]


def test_the_set_of_a_name_never_changes_with_the_version_of_the_example() -> None:
    """Else a program with the new version and one with the old one would both get a lock."""
    assert "".join(set_of(name, "abc") for name in NAMES[:12]) == "aacbcbcacaab"


def test_names_are_spread_evenly_and_a_new_set_takes_its_share_and_no_more() -> None:
    before = {name: set_of(name, "abc") for name in NAMES}
    for label in "abc":
        assert 0.28 < list(before.values()).count(label) / len(NAMES) < 0.39
    moved = {name for name in NAMES if set_of(name, "abcd") != before[name]}
    assert {set_of(name, "abcd") for name in moved} == {"d"}
    assert 0.2 < len(moved) / len(NAMES) < 0.3


async def test_a_set_that_fails_stops_only_its_names(
    sets: dict[str, list[str]], servers: Mapping[str, EmbeddedMaster]
) -> None:
    async with several_sets(sets) as lock:
        async with lock(name_in("a")), lock(name_in("b")):
            pass
        servers["a"].kill()
        with pytest.raises(LockNotAcquiredError):
            async with lock(name_in("a"), wait=BUSY):
                pass
        for label in "bc":
            async with lock(name_in(label), wait=BUSY) as (lease,):
                assert lease.valid


async def test_a_set_that_is_down_from_the_start_stops_only_its_names(
    sets: dict[str, list[str]], servers: Mapping[str, EmbeddedMaster]
) -> None:
    servers["a"].kill()
    async with several_sets(sets) as lock, lock(name_in("b")) as (lease,):
        assert lease.valid


async def test_layouts_that_share_none_have_two_holders(sets: dict[str, list[str]]) -> None:
    """What the page warns of: the number of sets is changed while locks are held."""
    name = next(n for n in NAMES if set_of(n, "ab") == "a" and set_of(n, "abc") == "c")
    async with (
        several_sets(sets, "ab") as before,
        several_sets(sets, "abc") as after,
        before(name) as (one,),
        after(name, wait=BUSY) as (other,),
    ):
        assert one.valid
        assert other.valid


@pytest.mark.parametrize("moves", [True, False])
async def test_a_program_with_both_layouts_excludes_those_with_either(
    sets: dict[str, list[str]], moves: bool
) -> None:
    name = next(n for n in NAMES if (set_of(n, "ab") != set_of(n, "abc")) == moves)
    async with (
        several_sets(sets, "ab") as before,
        several_sets(sets, "ab", "abc") as both,
        several_sets(sets, "abc") as after,
    ):
        for holder, other in ((before, both), (both, before), (both, after), (after, both)):
            async with holder(name) as leases:
                assert all(lease.valid for lease in leases)
                with pytest.raises(LockNotAcquiredError):
                    async with other(name, wait=BUSY):
                        pass
            async with other(name, wait=2_000):  # nothing of either attempt stays
                pass


async def test_both_locks_are_released_if_the_second_one_is_held(
    sets: dict[str, list[str]],
) -> None:
    name = next(n for n in NAMES if set_of(n, "ab") == "a" and set_of(n, "abc") == "c")
    async with several_sets(sets, "ab", "abc") as both, several_sets(sets, "ab") as before:
        async with several_sets(sets, "abc") as after, after(name):
            with pytest.raises(LockNotAcquiredError):
                async with both(name, wait=BUSY):
                    pass
        async with before(name, wait=BUSY) as (lease,):
            assert lease.valid


async def test_a_body_ends_when_its_lease_is_lost(sets: dict[str, list[str]]) -> None:
    name = name_in("a")
    async with several_sets(sets) as lock, Redlock(sets["a"]) as operator:
        with pytest.raises(LockLostError):
            async with asyncio.timeout(30), lock(name):
                await operator.force_release(name)
                await asyncio.sleep(60)
