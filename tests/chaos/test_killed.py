"""
Workers that are killed at any moment, while masters come and go: some hold, some wait.
"""

import contextlib
import random
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from redlock_aio._rules.timing import DRIFT_FACTOR, forgetting
from redlock_aio.testing import EmbeddedMaster, server_binary

from . import nemesis
from .crew import Crew, Job, at_work, instant, report
from .history import by_resource, longest_gap, lost_updates, overlaps
from .keys import left_behind
from .order import SLACK, are_even, overtakings, turns, worst_inversion
from .worker import LONG_TTL

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

TTL = 1_000
REGISTRATION = 3.0
"""For how many seconds a master believes that a waiter lives of which it hears nothing."""

HEARTBEAT = 1.0
"""Seconds between two words of a waiter that hears nothing."""

LONGEST_STALL = {
    # What a killed holder had comes free after its ttl; whoever waits hears of that,
    # or tries again within the longest random delay, and masters may be hung then.
    "plain": TTL / 1000 + 2.0,
    # Until the registration of a killed waiter is over nobody comes before it. The
    # next one finds that out with its next heartbeat. If by then a killed waiter had
    # a part of the masters, or masters come and go so that the votes have to come
    # together anew, another ttl may pass. Whoever is killed meanwhile has it begin
    # again, so it counts from the last one that was killed.
    "fair": REGISTRATION + HEARTBEAT + TTL / 1000,
}
LONGEST_STALL["mixed"] = LONGEST_STALL["fair"]

BETWEEN = {"plain": (0.3, 1.2), "fair": (0.3, 2.0), "mixed": (0.3, 2.0)}
"""Seconds between two workers that are killed."""

FIRST = 0.5
"""Seconds until the first one is."""

SHARE = {"plain": 0.5, "fair": 0.8, "mixed": 0.7}
"""How long a run is, as a part of the longest."""


@pytest.fixture
def binary() -> str:
    return server_binary()


@contextlib.contextmanager
def killing(crew: Crew, chance: random.Random, between: tuple[float, float]) -> Iterator[None]:
    """
    Kill one worker after the other and hire another one, whatever it does just now.

    The last one is killed so early that the others get over it.
    """
    over = threading.Event()
    ends = crew.until - int((LONGEST_STALL[crew.job.waiting] + 0.5) * 1e9)

    def kill() -> None:
        delay = FIRST
        while not over.wait(delay) and instant() < ends:
            crew.kill(chance.choice(crew.living()))
            crew.hire()
            delay = chance.uniform(*between)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.promise("S1")
@pytest.mark.promise("S6")
@pytest.mark.parametrize("waiting", SHARE)
@pytest.mark.full
def test_no_update_is_lost_while_workers_are_killed_and_masters_come_and_go(
    masters: list[EmbeddedMaster], chance: random.Random, seconds: float, waiting: str
) -> None:
    seconds *= SHARE[waiting]
    job = Job(seconds, ttl=TTL, tasks=6, waiting=waiting, patience=10_000, long=True)
    out = forgetting(max(job.ttl, LONG_TTL), factor=DRIFT_FACTOR)
    deeds = nemesis.schedule(
        chance, masters=5, seconds=seconds - 1.5, out=out, what=("pause", "cut", "cut", "kill")
    )
    fate = random.Random(chance.getrandbits(32))
    with at_work(job, masters, chance) as crew:
        with killing(crew, fate, BETWEEN[waiting]):
            done = nemesis.perform(deeds, masters)
            time.sleep(max(0.0, (crew.until - instant()) / 1e9))
        crew.wait()
        # The living have gone on for longer than the dead were believed to live, and
        # have cleared away what those had left.
        left = left_behind(masters, within=1.0)
        sections = crew.sections()
        report(crew, done)
        late = crew.late()
        wrong = lost_updates(sections, crew.counters)
    assert not wrong
    assert not overlaps(sections)
    assert not left
    assert len(crew.killed_at) > 0
    assert all(
        one.wrote or one.ended == "lost" for one in sections if one.worker not in crew.killed_at
    )
    assert any(one.worker in crew.killed_at and not one.ended for one in sections) or seconds < 30
    # The end counts as an acquisition: nobody may have to wait for longer than until then.
    marks = (*crew.killed_at.values(), crew.until)
    stall, most = longest_gap(by_resource(sections)["main"], marks), LONGEST_STALL[waiting]
    sys.stdout.write(f"longest stall {stall:.2f} s of {most:.2f} s, {late:.2f} s late\n")
    assert stall < most + 4 * late


@pytest.mark.promise("S3")
@pytest.mark.parametrize("waiting", ["plain", "fair"])
@pytest.mark.full
def test_what_killed_workers_leave_goes_by_itself(
    masters: list[EmbeddedMaster], chance: random.Random, waiting: str
) -> None:
    lives = {"plain": TTL / 1000, "fair": REGISTRATION}[waiting]
    job = Job(30, ttl=TTL, tasks=4, resources=("main",), body=(0.02, 0.05), waiting=waiting)
    for _ in range(5):  # a kill may fall between two turns, when nobody has anything to leave
        with at_work(job, masters, chance, workers=2) as crew:
            time.sleep(1.0)
            for name in crew.living():
                crew.kill(name)
            killed_at = instant()
            if not left_behind(masters, within=0.0):
                continue
            left = left_behind(masters, within=lives + 1.0)
            took = (instant() - killed_at) / 1e9
            sys.stdout.write(f"{waiting}: clean {took:.2f} s after the kill\n")
            break
    else:
        pytest.fail("five times nobody was killed in the middle of anything")
    assert not left


@pytest.mark.full
def test_who_asks_first_is_served_first_and_all_have_as_many_turns(
    masters: list[EmbeddedMaster], chance: random.Random, seconds: float
) -> None:
    job = Job(seconds * 0.3, resources=("main",), waiting="fair", patience=10_000)
    with at_work(job, masters, chance) as crew:
        crew.wait()
        left = left_behind(masters, within=1.0)
        waits, late = crew.waits(), crew.late()
        had = turns(waits)
        report(crew, {})
    fewest, most = min(had.values()), max(had.values())
    sys.stdout.write(
        f"{len(had)} tasks with {fewest} to {most} turns;"
        f" inversions below {worst_inversion(waits) * 1000:.1f} ms; {late * 1000:.1f} ms late\n"
    )
    assert not overtakings(waits, slack=SLACK + 2 * late)
    assert len(had) == 4 * job.tasks
    assert are_even(had)
    assert not left


@pytest.mark.promise("S6")
@pytest.mark.full
def test_fair_waits_get_on_as_well_while_masters_are_dead(
    masters: list[EmbeddedMaster], chance: random.Random
) -> None:
    for master in masters[:2]:
        master.kill()
    job = Job(2.0, resources=("main",), waiting="fair", patience=10_000)
    with at_work(job, masters, chance) as crew:
        crew.wait()
        report(crew, {"dead": 2})
        assert longest_gap(crew.sections()) < HEARTBEAT / 2 + 4 * crew.late()
