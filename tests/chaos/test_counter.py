"""Workers add to counters under the lock while masters are paused, killed and cut off."""

import random

import pytest

from redlock_aio._rules.timing import DRIFT_FACTOR, forgetting
from redlock_aio.testing import EmbeddedMaster

from . import nemesis
from .crew import Job, at_work, report
from .history import by_resource, longest_gap, lost_updates, overlaps
from .keys import left_behind

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

CALM = 1.5
"""Seconds at the end of a run in which all masters are back, and get the missed releases."""

DEEDS = ("pause", "pause", "cut", "cut", "kill")
"""The faults; kills are rarer, because a master that restarts has no vote for long."""

PER_SECOND = 3
"""How many increments count as progress; without faults there are up to a hundred times more."""

LONGEST_GAP = 5.0
"""
Seconds. A key of an acquisition that gave up while a master was down is released when the
master is back, or expires with its ttl, 2 s; and the machine is slow.
"""


@pytest.mark.promise("S1")
@pytest.mark.promise("S3")
@pytest.mark.promise("S6")
def test_no_update_is_lost_while_a_minority_of_masters_comes_and_goes(
    masters: list[EmbeddedMaster], chance: random.Random, seconds: float
) -> None:
    """
    Four processes, 36 tasks, two of five masters down at any time.

    A killed master restarts empty, and at once: the restart guard keeps it from voting.
    `test_killed` has fair waiters as well, and kills workers.
    """
    job = Job(seconds, long=True)
    out = forgetting(job.ttl, factor=DRIFT_FACTOR)
    deeds = nemesis.schedule(chance, masters=5, seconds=seconds - CALM, out=out, what=DEEDS)
    with at_work(job, masters, chance) as crew:
        done = nemesis.perform(deeds, masters)
        crew.wait()
        left = left_behind(masters, within=1.0)
        sections = crew.sections()
        report(crew, done)
        assert not lost_updates(sections, crew.counters)
        assert not overlaps(sections)
        assert not left
        assert all(section.wrote or section.ended == "lost" for section in sections)
        first = by_resource(sections)["main"]
        assert len(first) > PER_SECOND * seconds
        assert longest_gap(first) < LONGEST_GAP + crew.late()


def test_the_nemesis_leaves_a_majority_that_votes() -> None:
    seen = set()
    for seed in range(200):
        deeds = nemesis.schedule(random.Random(seed), masters=5, seconds=8, out=3.0, what=DEEDS)
        gone: dict[int, nemesis.Deed] = {}
        votes_from = [0.0] * 5
        for deed in deeds:
            seen.add(deed.what)
            if deed.what in {"resume", "start"}:
                went = gone.pop(deed.master)
                assert deed.what == {"pause": "resume", "kill": "start"}[went.what]
                assert deed.at < 8
                votes_from[deed.master] = deed.at + (3.0 if deed.what == "start" else 0.0)
            else:
                assert deed.master not in gone
                assert len(gone) + sum(at > deed.at for at in votes_from) < 2
                if deed.what != "cut":
                    gone[deed.master] = deed
        assert not gone
    assert seen == {"pause", "resume", "kill", "start", "cut"}
