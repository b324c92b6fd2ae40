"""
Holders that are killed, and holders that are stopped and go on later, in processes of their own.
"""

import os
import random
import signal
import sys
import time

import pytest

from redlock_aio.testing import EmbeddedMaster, server_binary

from .crew import Crew, Job, at_work, instant
from .history import Section, by_resource, lost_updates, overlaps
from .keys import left_behind

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

TTL = 800
RESOURCES = ("main", "left", "right")
BODY = (0.02, 0.15)
PATIENCE = 20.0
"""
Seconds for the others to find out that a resource is free: random delays, and a slow machine.

If a key lived on, because somebody else extended it, they would never find out.
"""

TOLD_WITHIN = 5.0
"""Seconds from waking up to the loss; more than a busy machine takes to run a process."""


@pytest.fixture
def binary() -> str:
    return server_binary()


def job(seconds: float) -> Job:
    return Job(seconds, ttl=TTL, tasks=3, resources=RESOURCES, first_share=1.0, body=BODY)


def a_holder(crew: Crew, chance: random.Random) -> str | None:
    """Return a worker that holds something now, as far as its diary tells."""
    names = crew.living()
    chance.shuffle(names)
    return next((name for name in names if crew.diary(name).open_sections()), None)


def next_one(sections: list[Section], section: Section) -> Section | None:
    """Return who had the resource of *section* after it."""
    those = by_resource(sections)[section.resource]
    return next((one for one in those if one.acquired_at > section.acquired_at), None)


@pytest.mark.promise("S1")
@pytest.mark.full
def test_what_a_killed_holder_held_comes_free_after_its_ttl_and_not_before(
    masters: list[EmbeddedMaster], chance: random.Random, seconds: float
) -> None:
    with at_work(job(seconds / 4 + 3 * PATIENCE), masters, chance) as crew:
        kills_until = instant() + seconds / 4 * 1e9
        while instant() < kills_until or not crew.killed_at:
            if (name := a_holder(crew, chance)) is not None:
                crew.kill(name)
                crew.hire()
            time.sleep(chance.uniform(0.05, 0.5))
        held = [one for name in crew.killed_at for one in crew.diary(name).open_sections()]
        # Somebody comes after the last one that was killed, too.
        ends = instant() + (TTL / 1000 + PATIENCE) * 1e9
        while instant() < ends and not all(next_one(crew.sections(), one) for one in held):
            time.sleep(0.1)
        crew.end()
        crew.wait()
        left = left_behind(masters, within=1.0)
        sections = crew.sections()
        counters_wrong = lost_updates(sections, crew.counters)
    assert held, "no holder was killed: the test has seen nothing"
    waits = []
    for section in held:
        after = next_one(sections, section)
        assert after is not None, f"nobody got {section.resource!r} after {section}"
        waits.append((after.acquired_at - crew.killed_at[section.worker]) / 1e9)
    sys.stdout.write(
        f"{len(crew.killed_at)} workers killed with {len(held)} leases, ttl {TTL} ms;"
        f" free again after {min(waits):.3f} to {max(waits):.3f} s\n"
    )
    # Not before: what was open when its holder died counts as held to the end of
    # the validity that it had, see `Section.until`.
    assert not overlaps(sections)
    assert not counters_wrong
    assert max(waits) < TTL / 1000 + PATIENCE
    assert not left


def stop(crew: Crew, name: str) -> list[Section]:
    """
    Stop a worker, and return what it held then and had not begun to look at.

    Who stands behind the look and before the write does write after waking up:
    no lock can prevent that, only fencing can. So those are left out.
    """
    process = crew.processes[name]
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    return [section for section in crew.diary(name).open_sections() if not section.checked]


@pytest.mark.promise("S1")
@pytest.mark.promise("S2")
@pytest.mark.full
def test_a_holder_that_was_stopped_for_longer_than_its_ttl_learns_that_it_has_lost(
    masters: list[EmbeddedMaster], chance: random.Random, seconds: float
) -> None:
    caught: list[tuple[Section, int]] = []
    with at_work(job(seconds / 2), masters, chance) as crew:
        while instant() + (TTL / 1000 * 2 + 0.5) * 1e9 < crew.until:
            if (name := a_holder(crew, chance)) is not None:
                held = stop(crew, name)
                time.sleep(TTL / 1000 * chance.uniform(1.05, 2))
                woken_at = instant()
                crew.processes[name].send_signal(signal.SIGCONT)
                caught += [(section, woken_at) for section in held]
            time.sleep(chance.uniform(0.05, 0.3))
        crew.wait()
        left = left_behind(masters, within=1.0)
        sections = crew.sections()
    found = {(section.worker, section.number): section for section in sections}
    told = []
    for section, woken_at in caught:
        now = found[section.worker, section.number]
        assert now.ended == "lost", f"{now} ended as {now.ended!r} after {TTL} ms of standstill"
        assert not now.wrote
        told.append((now.ended_at - woken_at) / 1e9)
    assert caught, "no holder was caught: the test has seen nothing"
    sys.stdout.write(
        f"{len(caught)} holders stopped; told {max(told) * 1000:.0f} ms after waking\n"
    )
    assert not overlaps(sections)
    assert max(told) < TOLD_WITHIN
    assert not left
