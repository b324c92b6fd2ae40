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
"""Seconds without faults at the end of a run, in which all masters get the missed releases."""

FAULTS = ("pause", "pause", "cut", "cut", "kill")
"""The kinds of fault; kills are rarer, because a restarted master has no vote for long."""

PER_SECOND = 3
"""Increments per second that count as progress; without faults there are up to 100 times more."""

LONGEST_GAP = 5.0
"""
The longest time between two acquisitions, in seconds. An acquisition that gave up while a
master was down releases its key when the master is back, or the key expires with its ttl of
2 s; the rest is for a slow machine.
"""


@pytest.mark.promise("S1")
@pytest.mark.promise("S3")
@pytest.mark.promise("S6")
def test_no_update_is_lost_while_a_minority_of_masters_comes_and_goes(
    masters: list[EmbeddedMaster], chance: random.Random, seconds: float
) -> None:
    """
    Run 36 tasks in four processes, while up to two of five masters are down.

    A killed master restarts empty, and at once: the restart guard keeps it from voting.
    `test_killed` has fair waiters as well, and kills workers.
    """
    job = Job(seconds, long=True)
    quarantine = forgetting(job.ttl, factor=DRIFT_FACTOR)
    faults = nemesis.schedule(
        chance, masters=5, seconds=seconds - CALM, quarantine=quarantine, kinds=FAULTS
    )
    with at_work(job, masters, chance) as crew:
        injected = nemesis.inject(faults, masters)
        crew.wait()
        left = left_behind(masters, within=1.0)
        sections = crew.sections()
        report(crew, injected)
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
        chance = random.Random(seed)
        faults = nemesis.schedule(chance, masters=5, seconds=8, quarantine=3.0, kinds=FAULTS)
        gone: dict[int, nemesis.Fault] = {}
        votes_from = [0.0] * 5
        for fault in faults:
            seen.add(fault.kind)
            if fault.kind in {"resume", "start"}:
                went = gone.pop(fault.master)
                assert fault.kind == {"pause": "resume", "kill": "start"}[went.kind]
                assert fault.at < 8
                votes_from[fault.master] = fault.at + (3.0 if fault.kind == "start" else 0.0)
            else:
                assert fault.master not in gone
                assert len(gone) + sum(at > fault.at for at in votes_from) < 2
                if fault.kind != "cut":
                    gone[fault.master] = fault
        assert not gone
    assert seen == {"pause", "resume", "kill", "start", "cut"}
