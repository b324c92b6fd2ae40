"""Grants of permits, and calls for them, that nobody wants: what is left of them."""

import asyncio

import pytest

from redlock_aio import Answer, Redlock
from redlock_aio._engine.wait import permit
from redlock_aio.testing import FakeMaster

from .kit import LATENCY, now, settle

EXECUTED = 0.7 * LATENCY
"""Seconds after which a request was executed, and its reply is underway."""
QUEUE = b"redlock_aio:queue:=redlock_aio:permit:{r}"


def held(masters: list[FakeMaster]) -> list[list[str]]:
    """Return the numbers of the permits that are held on each master."""
    head = "redlock_aio:permit:{r}#"
    return [
        sorted(key.removeprefix(head) for key in master.keys if key.startswith(head))
        for master in masters
    ]


@pytest.fixture(autouse=True)
async def loaded(redlock: Redlock) -> None:
    """Let the masters know the scripts, so that the first request is executed at once."""
    async with redlock.semaphore("other", permits=1):
        pass
    await asyncio.sleep(1)


@pytest.mark.promise("S3")
async def test_the_grants_of_a_cancelled_request_are_released_when_a_master_is_back(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    """The release could not be sent, so it is owed."""
    task = asyncio.create_task(redlock.semaphore("r", permits=2, ttl=60_000).acquire())
    await asyncio.sleep(EXECUTED)
    assert all(held(masters))
    for master in masters[:2]:
        master.cut()
    task.cancel()
    await settle(masters, 2)
    assert task.cancelled()
    assert held(masters) == [[]] * 5


@pytest.mark.promise("S3")
@pytest.mark.parametrize("is_cut", [False, True])
async def test_another_permit_that_a_master_has_granted_is_released(
    redlock: Redlock, masters: list[FakeMaster], monkeypatch: pytest.MonkeyPatch, is_cut: bool
) -> None:
    """The acquisition has won without that master, also if its reply does not come."""
    monkeypatch.setattr(permit, "_order", lambda _: (0, 1))
    masters[0].set("redlock_aio:permit:{r}#0", "theirs", 60_000)
    task = asyncio.create_task(redlock.semaphore("r", permits=2, ttl=60_000).acquire())
    await asyncio.sleep(EXECUTED)
    assert held(masters) == [["0", "1"], ["0"], ["0"], ["0"], ["0"]]
    if is_cut:
        masters[0].cut()
    lease = await task
    await settle(masters, 2)
    assert (lease.permit, held(masters)) == (0, [["0"]] * 5)
    assert lease.votes[0].answer is not Answer.GRANTED
    await lease.release()
    await settle(masters, 2)
    assert held(masters) == [["0"], [], [], [], []]


@pytest.mark.promise("S4")
@pytest.mark.parametrize("number", [0, 1])
async def test_a_master_that_answers_late_keeps_the_permit_that_is_won(
    redlock: Redlock, masters: list[FakeMaster], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """It is asked to release any other one that it may have granted."""
    monkeypatch.setattr(permit, "_order", lambda _: (number, 1))
    masters[4].hang()
    lease = await redlock.semaphore("r", permits=2, ttl=60_000).acquire()
    await asyncio.sleep(0.07)  # it has timed out
    masters[4].resume()
    await asyncio.sleep(0.01)  # before a check could restore the permit
    assert (lease.permit, held(masters)) == (number, [[str(number)]] * 5)
    await lease.release()
    await settle(masters, 1)
    assert held(masters) == [[]] * 5


@pytest.mark.promise("S8")
async def test_a_waiter_that_knows_fewer_permits_stays_in_its_queue(
    redlock: Redlock, other: Redlock, masters: list[FakeMaster]
) -> None:
    """It is called for each permit that becomes free, and declines the ones beyond its number."""
    leases = {}
    for _ in range(4):
        lease = await redlock.semaphore("r", permits=4, ttl=60_000).acquire()
        leases[lease.permit] = lease
    waiter = asyncio.create_task(other.semaphore("r", permits=2, wait=60_000).acquire())
    await asyncio.sleep(0.1)
    (queue,) = (key for key, _ in masters[0]._keys.items() if key.startswith(QUEUE))
    waits_for, other_one = (0, 1) if queue.endswith(b"#0") else (1, 0)
    for number in (2, 3):
        await leases[number].release()
        await asyncio.sleep(0.05)
    began = now()
    await leases[other_one].release()  # it sees the end of the one for which it waits by itself
    lease = await waiter
    assert now() - began < 10 * LATENCY
    assert lease.permit == other_one
    await lease.release()
    await leases[waits_for].release()
