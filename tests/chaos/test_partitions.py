"""
Workers that are cut off from some masters by a real network that drops their packets.

Checked are exclusion, rising fencing tokens and progress: workers that reach a majority of the
masters get each lock within a bound, although one worker is cut off.
"""

import contextlib
import random
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from evidence import networks
from evidence.networks import Network
from evidence.servers import Place, Server

from redlock_aio._rules.fair_ticket import HEARTBEAT, LIVES
from redlock_aio.testing import server_binary

from .crew import Job, at_work, instant, report
from .history import (
    Section,
    by_resource,
    longest_gap,
    lost_updates,
    overlaps,
    tokens_that_do_not_rise,
)
from .keys import left_behind

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]

TTL = 1_000
RESOURCES = ("plain", "fenced", "fair", "fair-fenced")
BEFORE, CUT, AFTER = 1.0, 9.0, 2.0
"""Seconds before the partition, of the partition, and after it."""

BOUND = LIVES / 1000 + HEARTBEAT + TTL / 1000 + 2.0
"""
The longest time without an acquisition, in seconds. A worker that is cut off may delay the others
until its registration in a queue has expired and a heartbeat has noticed that, and until its lock
has expired; the rest is for a slow machine.
"""


class Partition(NamedTuple):
    """Which masters a worker is cut off from, in which direction, and how many are down."""

    cut: Sequence[int]
    requests: bool
    replies: bool
    down: Sequence[int] = ()


PARTITIONS = {
    "minority, one master down": Partition((0, 1), requests=True, replies=True, down=(4,)),
    "majority": Partition((0, 1, 2), requests=True, replies=True),
    "requests to a minority": Partition((0, 1), requests=True, replies=False),
    "requests to a majority, one master down": Partition(
        (0, 1, 2), requests=True, replies=False, down=(4,)
    ),
    "replies of a minority, one master down": Partition(
        (0, 1), requests=False, replies=True, down=(4,)
    ),
    "replies of a majority": Partition((0, 1, 2), requests=False, replies=True),
}


def gaps(sections: Sequence[Section], since: int, until: int) -> dict[str, float]:
    """Return for each resource the longest time without an acquisition, in seconds."""
    found = by_resource(one for one in sections if since <= one.acquired_at <= until)
    return {name: longest_gap(found.get(name, ()), (since, until)) for name in RESOURCES}


MASTERS = tuple(f"m{number}" for number in range(5))
WORKERS = ("w0", "w1", "w2")


@pytest.fixture
def net() -> Iterator[Network]:
    """Return a network in which each master and each worker is a node."""
    if why := networks.why_not():
        pytest.skip(f"no partitions: {why}")
    with Network((*MASTERS, *WORKERS)) as net:
        yield net


@pytest.fixture
def masters(net: Network, tmp_path: Path) -> Iterator[list[Server]]:
    place = Place(server_binary(), tmp_path, net)
    with contextlib.ExitStack() as stack:
        servers = [Server(place, name) for name in MASTERS]
        for server in servers:
            stack.callback(server.kill)
            server.start()
        yield servers


@pytest.mark.promise("S1")
@pytest.mark.promise("S7")
@pytest.mark.promise("S8")
@pytest.mark.parametrize("partition", PARTITIONS.values(), ids=PARTITIONS.keys())
@pytest.mark.full
def test_workers_that_reach_a_majority_make_progress_while_one_is_cut_off(
    partition: Partition, net: Network, masters: list[Server], chance: random.Random
) -> None:
    job = Job(
        BEFORE + CUT + AFTER, ttl=TTL, tasks=4, resources=RESOURCES, first_share=1.0,
        body=(0.0, 0.01), waiting="named", patience=20_000,
    )  # fmt: skip
    cut = [MASTERS[number] for number in partition.cut]
    within = [net.within(name) for name in WORKERS]
    with at_work(job, masters, chance, within=within) as crew:
        time.sleep(BEFORE)
        for number in partition.down:
            masters[number].pause()
        if partition.requests:
            net.cut(WORKERS[:1], cut)
        if partition.replies:
            net.cut(cut, WORKERS[:1])
        cut_at = instant()
        time.sleep(CUT)
        healed_at = instant()
        for number in partition.down:
            masters[number].resume()
        net.heal()
        crew.wait()
        left = left_behind(masters, within=LIVES / 1000 + 1.0)
        report(crew, {})
        sections = crew.sections()
        counters_wrong = lost_updates(sections, crew.counters)
    gaps_of_others = gaps([one for one in sections if one.worker != "worker0"], cut_at, healed_at)
    sys.stdout.write(f"longest gap of the workers that reach a majority: {gaps_of_others}\n")
    assert not overlaps(sections)
    assert not counters_wrong
    assert not tokens_that_do_not_rise(sections)
    assert max(gaps_of_others.values()) < BOUND, gaps_of_others
    after = [one for one in sections if one.worker == "worker0" and one.acquired_at > healed_at]
    assert after, "the worker that was cut off acquires no lock after the partition"
    assert not left
