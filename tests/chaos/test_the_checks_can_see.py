"""
The same workers without a lock, and with one that is used wrongly: a check that finds nothing
there is worth nothing.
"""

import random

import pytest

from redlock_aio.testing import EmbeddedMaster, server_binary

from .crew import Job, at_work
from .history import lost_updates, overlaps

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(60)]


@pytest.fixture
def binary() -> str:
    return server_binary()


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(Job(0.3, guard="none"), id="no lock"),
        pytest.param(Job(0.8, guard="short", ttl=10, body=(0.01, 0.03)), id="ttl over, not looked"),
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
