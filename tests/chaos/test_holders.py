"""Holders in processes of their own that are stopped (SIGSTOP) and continued later."""

import os
import random
import signal
import sys
import time

import pytest

from redlock_aio.testing import EmbeddedMaster, server_binary

from .crew import Crew, Job, at_work, instant
from .history import Section, overlaps
from .keys import left_behind

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

TTL = 800
RESOURCES = ("main", "left", "right")
BODY = (0.02, 0.15)
LOST_WITHIN = 5.0
"""Seconds from SIGCONT to the loss: more than a busy machine takes to run a process."""


@pytest.fixture
def binary() -> str:
    return server_binary()


def job(seconds: float) -> Job:
    return Job(seconds, ttl=TTL, tasks=3, resources=RESOURCES, first_share=1.0, body=BODY)


def find_holder(crew: Crew, chance: random.Random) -> str | None:
    """Return a worker that holds a lock now, as its diary shows; None if there is none."""
    names = crew.running()
    chance.shuffle(names)
    return next((name for name in names if crew.diary(name).open_sections()), None)


def stop(crew: Crew, name: str) -> list[Section]:
    """
    Stop a worker; return its sections that have begun and have not been checked yet.

    A holder that is stopped between its check and its write writes when it is continued: only
    fencing could prevent that, no lock can. Therefore such sections are left out.
    """
    process = crew.processes[name]
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    return [section for section in crew.diary(name).open_sections() if not section.checked]


@pytest.mark.promise("S1")
@pytest.mark.promise("S2")
@pytest.mark.full
def test_a_holder_stopped_past_its_ttl_gets_its_loss(
    masters: list[EmbeddedMaster], chance: random.Random, seconds: float
) -> None:
    caught: list[tuple[Section, int]] = []
    with at_work(job(seconds / 2), masters, chance) as crew:
        while instant() + (TTL / 1000 * 2 + 0.5) * 1e9 < crew.until:
            if (name := find_holder(crew, chance)) is not None:
                held = stop(crew, name)
                time.sleep(TTL / 1000 * chance.uniform(1.05, 2))
                continued_at = instant()
                crew.processes[name].send_signal(signal.SIGCONT)
                caught += [(section, continued_at) for section in held]
            time.sleep(chance.uniform(0.05, 0.3))
        crew.wait()
        left = left_behind(masters, within=1.0)
        sections = crew.sections()
    found = {(section.worker, section.number): section for section in sections}
    delays = []
    for section, continued_at in caught:
        now = found[section.worker, section.number]
        assert now.ended == "lost", f"{now} ended as {now.ended!r} after {TTL} ms of standstill"
        assert not now.wrote
        delays.append((now.ended_at - continued_at) / 1e9)
    assert caught, "no holder was stopped: nothing was tested"
    sys.stdout.write(
        f"{len(caught)} holders stopped; lost {max(delays) * 1000:.0f} ms after SIGCONT\n"
    )
    assert not overlaps(sections)
    assert max(delays) < LOST_WITHIN
    assert not left
