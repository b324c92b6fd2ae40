"""Fair waiters that reach only a minority of the masters delay others for a short time only."""

import asyncio
import itertools
from contextlib import AsyncExitStack

import pytest

from redlock_aio import Redlock
from redlock_aio._protocol import scripts
from redlock_aio._rules.fair_ticket import HEARTBEAT, LIVES
from redlock_aio.testing import FakeMaster

from .kit import (
    before,
    fair_acquired_at,
    hang,
    kill,
    now,
    queued,
    remaining_keys,
    resume,
    runs_of,
    values,
)
from .links import BusyLink, Link, links_to

BOUND = LIVES / 1000 + HEARTBEAT + 0.05
"""Seconds by which a waiter that reaches a majority may be delayed."""

pytestmark = pytest.mark.promise("S8")


async def program(stack: AsyncExitStack, links: list[Link]) -> Redlock:
    """Open a manager that has used the masters before."""
    redlock = await stack.enter_async_context(Redlock(links, restart_guard="off"))
    await fair_acquired_at(redlock)
    return redlock


def cut(links: list[Link], *reached: int) -> None:
    """Cut a program off from all masters except those in *reached*."""
    for number, link in enumerate(links):
        if number not in reached:
            link.cut()


CASES: dict[str, tuple[int, int, list[tuple[int, ...]]]] = {
    "three, one down": (3, 1, [(0,)]),
    "three, one down, two cut off": (3, 1, [(0,), (1,)]),
    "three, all up": (3, 0, [(0,), (1,)]),
    "five, two down": (5, 2, [(0, 1)]),
    "five, all up": (5, 0, [(0, 1), (2, 3)]),
    "five, all up, one master each": (5, 0, [(0,), (1,), (2,)]),
}
"""The number of masters, how many are down, and the masters that each waiter reaches."""


@pytest.mark.spread(1)
@pytest.mark.parametrize("ttl", [500, 60_000])
@pytest.mark.parametrize("when", ["before it waits", "while it waits"])
@pytest.mark.parametrize("case", CASES)
async def test_waiters_without_a_majority_delay_others_for_a_short_time_only(
    case: str, when: str, ttl: int
) -> None:
    size, down, reached = CASES[case]
    masters = [FakeMaster(f"m{number}") for number in range(size)]
    async with AsyncExitStack() as stack:
        healthy = await program(stack, links_to(masters))
        ways = [links_to(masters) for _ in reached]
        others = [await program(stack, links) for links in ways]

        def cut_all() -> None:
            for links, numbers in zip(ways, reached, strict=True):
                cut(links, *numbers)

        kill(masters[size - down :])
        await asyncio.sleep(0.01)
        holder = None
        if when == "while it waits":
            holder = await healthy.lock("r", fair=True).acquire()
        else:
            cut_all()
            await asyncio.sleep(1.5)  # until the connections are closed
        waiters = [asyncio.create_task(fair_acquired_at(other, ttl=ttl)) for other in others]
        await asyncio.sleep(0.1)
        last = asyncio.create_task(fair_acquired_at(healthy, ttl=ttl))
        await asyncio.sleep(0.1)
        began = now()
        if holder is not None:
            cut_all()
            await holder.release()
        assert await asyncio.wait_for(last, 60) - began < BOUND
        await asyncio.sleep(began + BOUND - now())
        assert not any(waiter.done() for waiter in waiters)
        assert not remaining_keys(masters)
        for link in itertools.chain(*ways):
            link.mend()
        mended = now()
        assert max(await asyncio.gather(*waiters)) - mended < 2 * HEARTBEAT
        assert not remaining_keys(masters)


async def test_a_waiter_that_gets_no_replies_soon_loses_its_grants() -> None:
    """The masters grant it the lock, but their replies never arrive."""
    masters = [FakeMaster(f"m{number}") for number in range(3)]
    async with AsyncExitStack() as stack:
        healthy = await program(stack, links_to(masters))
        links = links_to(masters)
        other = await program(stack, links)
        for link in links:
            link.cut(requests=False)
        waiter = asyncio.create_task(fair_acquired_at(other, ttl=60_000))
        await asyncio.sleep(0.01)
        assert None not in values(masters)
        began = now()
        assert await asyncio.wait_for(fair_acquired_at(healthy), 60) - began < BOUND
        # From then on no master grants it the lock, not even for a moment.
        for _ in range(40):
            await asyncio.sleep(0.05)
            assert not any("r" in master.keys for master in masters)
        assert not waiter.done()
        for link in links:
            link.mend()
        mended = now()
        assert await waiter - mended < 2 * HEARTBEAT
        await asyncio.sleep(4)
        assert not remaining_keys(masters)


@pytest.mark.parametrize("reached", [(0, 1, 2), (0, 2, 4)])
async def test_a_waiter_that_reaches_a_bare_majority_keeps_its_place(
    reached: tuple[int, ...],
) -> None:
    masters = [FakeMaster(f"m{number}") for number in range(5)]
    async with AsyncExitStack() as stack:
        healthy = await program(stack, links_to(masters))
        links = links_to(masters)
        other = await program(stack, links)
        holder = await healthy.lock("r", fair=True).acquire()
        first = asyncio.create_task(fair_acquired_at(other, hold=0.01))
        await asyncio.sleep(0.1)
        second = asyncio.create_task(fair_acquired_at(healthy))
        cut(links, *reached)
        await asyncio.sleep(10)
        await holder.release()
        assert await first < await second


async def test_a_waiter_without_a_majority_adds_no_debts() -> None:
    masters = [FakeMaster(f"m{number}") for number in range(3)]
    async with AsyncExitStack() as stack:
        redlock = await program(stack, links_to(masters))
        waiter = asyncio.create_task(fair_acquired_at(redlock))
        kill(masters[1:])
        await asyncio.sleep(60)
        assert all(master.debts <= 3 for master in redlock.statistics().masters)
        masters[1].restart()
        masters[2].restart()
        began = now()
        assert await waiter - began < 2 * HEARTBEAT


async def test_grants_of_a_minority_are_given_back_to_the_holder(masters: list[FakeMaster]) -> None:
    """The holder has lost its key on a minority, and restores it there."""
    async with AsyncExitStack() as stack:
        healthy = await program(stack, links_to(masters))
        other = await program(stack, links_to(masters))
        holder = await healthy.lock("r", fair=True, ttl=3_000).acquire()
        waiter = asyncio.create_task(fair_acquired_at(other, ttl=60_000))
        await asyncio.sleep(4.5)  # now the waiter is first in the queues
        for master in masters[:2]:
            master.flush()
        await asyncio.sleep(0.02)
        keys = values(masters)
        assert [key == holder.token for key in keys] == [False] * 2 + [True] * 3
        granted = keys[0]
        await asyncio.sleep(0.2)
        assert granted not in values(masters)
        await asyncio.sleep(4)
        assert [master.keys["r"] == holder.token for master in masters] == [True] * 5
        assert not waiter.done()
        await holder.release()
        await waiter


async def test_masters_that_reply_again_are_asked_at_once(masters: list[FakeMaster]) -> None:
    """The waiter does not wait for the next heartbeat; grants from before are void."""
    async with AsyncExitStack() as stack:
        redlock = await program(stack, links_to(masters))
        hang(masters[2:])
        waiter = asyncio.create_task(fair_acquired_at(redlock))
        await asyncio.sleep(0.3)
        assert not any("r" in master.keys for master in masters[:2])
        resume(masters[2:])
        resumed = now()
        assert await waiter - resumed < 0.05


@pytest.mark.full
async def test_answers_that_a_busy_program_reads_late_count(masters: list[FakeMaster]) -> None:
    """The masters are quick, but 300 tasks of one busy program read their replies late."""
    links = [BusyLink(master) for master in masters]
    async with Redlock(links, restart_guard="off") as redlock:
        await fair_acquired_at(redlock)

        async def pair(number: int) -> float:
            began = now()
            async with redlock.lock(f"r{number}", fair=True):
                return now() - began

        for link in links:
            link.each = 0.001
        took = await asyncio.gather(*map(pair, range(300)))
        assert min(took) < 0.01
        assert max(took) < 0.35
        asked = runs_of(masters[0], scripts.ENQUEUE)
        assert len(asked) == 301


@pytest.mark.promise("S3")
@pytest.mark.parametrize("ends", [False, True])
async def test_a_waiter_that_left_the_queues_has_a_new_name(
    ends: bool,
) -> None:
    """
    The waiter is next on the only master that it reaches, where the lock may end just then.

    When grants are given back, the next waiters of the program send a request, and this one is
    among them. With its old name the request would enter the queue again, or would acquire a
    lock that is never given back.
    """
    masters = [FakeMaster(f"m{number}") for number in range(3)]
    async with AsyncExitStack() as stack:
        healthy = await program(stack, links_to(masters))
        links = links_to(masters)
        other = await program(stack, links)
        holder = await healthy.lock("r", max_hold=60_000).acquire()
        waiter = asyncio.create_task(fair_acquired_at(other, ttl=60_000))
        await asyncio.sleep(0.1)
        cut(links, 0)

        began = len(runs_of(masters[0], scripts.LEAVE))
        gone: list[float] = []

        def has_left() -> bool:
            return b"go" in [words[-2] for words in runs_of(masters[0], scripts.LEAVE)[began:]]

        def end() -> None:
            if ends and not gone and has_left():
                gone.append(now())
                del masters[0]._keys[b"r"]

        before(masters[0], scripts.ENQUEUE, end)
        while not has_left():  # noqa: ASYNC110 - the event happens on a master
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.002)
        assert not queued(masters[0])
        assert masters[0].keys.get("r") == (None if ends else holder.token)
        waiter.cancel()
        await asyncio.wait([waiter])
        await holder.release()
        await asyncio.sleep(0.1)
        assert "r" not in masters[0].keys
