"""
Checks of the checks: they must find violations where there are some.

The same workers run without a lock and with a lock that is used wrongly, and some diaries are
written by hand.
"""

import random
from collections import Counter
from pathlib import Path

import pytest

from redlock_aio.testing import EmbeddedMaster, server_binary

from .crew import Job, at_work
from .history import Diary, longest_gap, lost_updates, overlaps
from .keys import left_behind
from .order import SLACK, are_even, overtakings

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]


@pytest.fixture
def binary() -> str:
    return server_binary()


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(Job(0.3, guard="none"), id="no lock"),
        pytest.param(
            Job(1.6, guard="short", ttl=50, body=(0.05, 0.1)),
            id="ttl over, not checked",
            marks=pytest.mark.full,
        ),
    ],
)
def test_lost_updates_and_overlaps_are_found_where_the_lock_is_broken(
    masters: list[EmbeddedMaster], chance: random.Random, job: Job
) -> None:
    with at_work(job, masters, chance) as crew:
        crew.wait()
        sections = crew.sections()
        assert len(sections) > 20
        assert lost_updates(sections, crew.counters)
        assert overlaps(sections)


@pytest.mark.full
def test_overtakings_are_found_among_waiters_that_do_not_queue(
    masters: list[EmbeddedMaster], chance: random.Random
) -> None:
    job = Job(3.0, resources=("main",), waiting="plain", patience=10_000)
    with at_work(job, masters, chance) as crew:
        crew.wait()
        waits = crew.waits()
    assert overtakings(waits)


def test_uneven_turns_are_found() -> None:
    assert are_even(Counter({("one", 1): 10, ("one", 2): 8, ("two", 1): 6}))
    assert not are_even(Counter({("one", 1): 10, ("one", 2): 10, ("two", 1): 5}))
    assert not are_even(Counter({("one", 1): 100, ("two", 1): 77}))


MS = 1_000_000


def diary(folder: Path, name: str, *lines: str) -> Diary:
    """Return the diary of a worker that wrote these lines."""
    path = folder / f"{name}.diary"
    path.write_text("".join(f"{line}\n" for line in lines))
    return Diary.read(path)


def turn(number: int, asked: int, acquired: int) -> list[str]:
    """Return the lines of a waiter that asked and acquired at these times, in ms."""
    return [
        f"waits {number} main {asked * MS} 0 fair",
        f"acquired {number} main {acquired * MS} 1000",
        f"ended {number} released {acquired * MS} {acquired * MS}",
    ]


LATER = int(SLACK * 1000) + 1


@pytest.mark.parametrize(
    ("mine", "found"),
    [
        pytest.param(turn(1, 1000, 1200), 1, id="overtaken"),
        pytest.param(turn(1, 1002, 1200), 0, id="at about the same time"),
        pytest.param(turn(1, 1000, 1090), 0, id="before"),
        pytest.param(["waits 1 main 1000000000 0 fair"], 0, id="killed"),
        pytest.param(
            ["waits 1 main 1000000000 0 fair", "missed 1 main 1200000000 X"], 1, id="gave up after"
        ),
        pytest.param(
            ["waits 1 main 1000000000 0 fair", "missed 1 main 1090000000 X"], 0, id="gave up before"
        ),
    ],
)
def test_an_overtaking_in_a_diary_is_found(tmp_path: Path, mine: list[str], found: int) -> None:
    one = diary(tmp_path, "one", *mine)
    two = diary(tmp_path, "two", *turn(1, 1000 + LATER, 1100))
    assert len(overtakings([*one.waits, *two.waits])) == found


def test_a_killed_holder_counts_as_holder_until_its_last_recorded_validity_ends(
    tmp_path: Path,
) -> None:
    """It acquired at 1000 for 500 ms, and recorded at 1400 a validity of 450 ms more."""
    killed = [*turn(1, 900, 1000)[:1], "acquired 1 main 1000000000 500", "valid 1 1400000000 450"]
    for acquired, wrong in ((1200, 1), (1600, 1), (1840, 1), (1860, 0)):
        one = diary(tmp_path, "one", *killed)
        two = diary(tmp_path, "two", *turn(1, 1100, acquired))
        assert len(overlaps([*one.sections, *two.sections])) == wrong


def test_a_gap_counts_from_the_last_kill(tmp_path: Path) -> None:
    sections = diary(tmp_path, "one", *turn(1, 900, 1000), *turn(2, 1000, 9000)).sections
    assert longest_gap(sections) == 8.0
    assert longest_gap(sections, [6000 * MS]) == 5.0
    assert longest_gap(sections, [6000 * MS, 20_000 * MS]) == 11.0


def test_an_entry_that_stays_in_a_queue_is_found(masters: list[EmbeddedMaster]) -> None:
    assert left_behind(masters, within=0.1) == {}
    with masters[3].client() as client:
        client.zadd("redlock_aio:queue:{main}", {"0123456789abcdef/1": 1.0})
    assert left_behind(masters, within=0.1) == {masters[3].url: ["redlock_aio:queue:{main}"]}
