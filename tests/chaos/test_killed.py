"""Workers that are killed at any moment, holding or waiting, while masters come and go."""

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
"""Seconds for which a master keeps a waiter in its queue without a heartbeat."""

HEARTBEAT = 1.0
"""Seconds between two heartbeats of a waiter that gets no wake-up."""

LONGEST_STALL = {
    # The lock of a killed holder expires with its ttl. Waiters are notified then, or retry
    # within the longest back-off, and masters may hang at that moment.
    "plain": TTL / 1000 + 2.0,
    # Until the registration of a killed waiter expires, no waiter behind it is served. The
    # next one learns of the expiry by its next heartbeat. If a killed waiter had been
    # granted the lock on some masters, or masters come and go so that the votes have to be
    # collected again, another ttl may pass. Each kill may begin this anew, so the time
    # counts from the last kill.
    "fair": REGISTRATION + HEARTBEAT + TTL / 1000,
}
LONGEST_STALL["mixed"] = LONGEST_STALL["fair"]

BETWEEN = {"plain": (0.3, 1.2), "fair": (0.3, 2.0), "mixed": (0.3, 2.0)}
"""The shortest and the longest time between two kills, in seconds."""

FIRST = 0.5
"""Seconds until the first kill."""

SHARE = {"plain": 0.5, "fair": 0.8, "mixed": 0.7}
"""The length of a run, as a share of that of `test_counter`."""


@pytest.fixture
def binary() -> str:
    return server_binary()


@contextlib.contextmanager
def killing(crew: Crew, chance: random.Random, between: tuple[float, float]) -> Iterator[None]:
    """
    Kill one worker after the other, at any point of its work, and start another one each time.

    The last kill is so early that its locks and registrations expire before the run ends.
    """
    over = threading.Event()
    ends = crew.until - int((LONGEST_STALL[crew.job.waiting] + 0.5) * 1e9)

    def kill() -> None:
        delay = FIRST
        while not over.wait(delay) and instant() < ends:
            crew.kill(chance.choice(crew.running()))
            crew.start_worker()
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
    quarantine = forgetting(max(job.ttl, LONG_TTL), factor=DRIFT_FACTOR)
    faults = nemesis.schedule(
        chance,
        masters=5,
        seconds=seconds - 1.5,
        quarantine=quarantine,
        kinds=("pause", "cut", "cut", "kill"),
    )
    kill_chance = random.Random(chance.getrandbits(32))
    with at_work(job, masters, chance) as crew:
        with killing(crew, kill_chance, BETWEEN[waiting]):
            injected = nemesis.inject(faults, masters)
            time.sleep(max(0.0, (crew.until - instant()) / 1e9))
        crew.wait()
        # The other workers have run for longer than a registration lasts, and have removed
        # those of the killed ones.
        left = left_behind(masters, within=1.0)
        sections = crew.sections()
        report(crew, injected)
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
    # The end of the run counts as an acquisition, so a waiter that still waits then counts too.
    marks = (*crew.killed_at.values(), crew.until)
    stall, most = longest_gap(by_resource(sections)["main"], marks), LONGEST_STALL[waiting]
    sys.stdout.write(f"longest stall {stall:.2f} s of {most:.2f} s, {late:.2f} s late\n")
    assert stall < most + 4 * late


@pytest.mark.promise("S3")
@pytest.mark.parametrize("waiting", ["plain", "fair"])
@pytest.mark.full
def test_the_keys_of_killed_workers_expire(
    masters: list[EmbeddedMaster], chance: random.Random, waiting: str
) -> None:
    lives = {"plain": TTL / 1000, "fair": REGISTRATION}[waiting]
    job = Job(30, ttl=TTL, tasks=4, resources=("main",), body=(0.02, 0.05), waiting=waiting)
    for _ in range(5):  # all may be killed between two sections, when there are no keys to leave
        with at_work(job, masters, chance, workers=2) as crew:
            time.sleep(1.0)
            for name in crew.running():
                crew.kill(name)
            killed_at = instant()
            if not left_behind(masters, within=0.0):
                continue
            left = left_behind(masters, within=lives + 1.0)
            took = (instant() - killed_at) / 1e9
            sys.stdout.write(f"{waiting}: clean {took:.2f} s after the kill\n")
            break
    else:
        pytest.fail("five times no worker was killed while it held a lock or waited")
    assert not left


@pytest.mark.full
def test_fair_waiters_are_served_in_order_and_get_equally_many_turns(
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
def test_fair_waiters_make_progress_while_a_minority_is_dead(
    masters: list[EmbeddedMaster], chance: random.Random
) -> None:
    for master in masters[:2]:
        master.kill()
    job = Job(2.0, resources=("main",), waiting="fair", patience=10_000)
    stalls = []
    for _ in range(3):  # dead masters would stall every run; a busy machine stalls one now and then
        with at_work(job, masters, chance) as crew:
            crew.wait()
            report(crew, {"dead": 2})
            stalls.append(longest_gap(crew.sections()) - 4 * crew.late())
        if stalls[-1] < HEARTBEAT / 2:
            break
    assert stalls[-1] < HEARTBEAT / 2, stalls
