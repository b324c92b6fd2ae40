"""Reentrant locks: the tasks that share a lease, its cost, and tasks waiting for themselves."""

import asyncio
import gc
import re
import weakref
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from redlock_aio import Lease, LockNotAcquiredError, Redlock, RedlockError, Retry
from redlock_aio._engine.hold.held_lease import HeldLease

from . import kit
from .kit import Masters, cancelling, check_no_keys, commands_received, now, refused

OWNER: dict[str, Any] = {"reentrant": True, "owner": "x"}
SHARES: dict[str, Any] = {"reentrant": True, "wait": 20}
WOULD_NEVER_COME = (
    "'r' would never be free: this task itself holds 'r'; reentrant=True acquires it again, or set"
    " wait= if another task will release it"
)
ENDS = pytest.mark.parametrize("ends", [{"auto_extend": False}, {"max_hold": 900}], ids=str)


# The same task


@pytest.mark.spread(1)
@pytest.mark.parametrize("first", [{}, {"fair": True}, {"reentrant": True}, {"metadata": {"a": 1}}])
@pytest.mark.parametrize("again", [{}, {"fair": True}, {"wait": 0}, {"on_lost": "flag"}])
async def test_a_share_costs_no_command(
    redlock: Redlock, masters: Masters, first: dict[str, Any], again: dict[str, Any]
) -> None:
    async with redlock.lock("r", **first) as outer:
        await asyncio.sleep(0.01)
        before, began = commands_received(masters), now()
        async with redlock.lock("r", reentrant=True, **again) as inner:
            assert inner is not outer
            assert (inner.token, inner.resources) == (outer.token, ("r",))
            assert (inner.hold_count, outer.hold_count) == (2, 2)
        assert (now(), commands_received(masters)) == (began, before)
        assert (inner.hold_count, outer.hold_count) == (0, 1)
    await check_no_keys(masters)


async def test_a_recursive_function_shares_its_lock(redlock: Redlock) -> None:
    @redlock.locked("tree:{name}", reentrant=True)
    async def walk(name: str, depth: int) -> int:
        return 1 + await walk(name, depth - 1) if depth else 0

    assert await walk("x", 20) == 20


async def test_a_share_has_the_fencing_token(redlock: Redlock, masters: Masters) -> None:
    """A share does not ask the masters for their time either, when that is due."""
    lock = redlock.lock("r", reentrant=True, fencing=True)
    async with lock as outer:
        kit.session(redlock).masters.clocks.due_at = 0.0
        await asyncio.sleep(0.01)
        before = commands_received(masters)
        tried = await lock.try_acquire()
        assert tried is not None
        async with lock as inner, tried:
            assert inner.fencing_token == tried.fencing_token == outer.fencing_token
            assert commands_received(masters) == before


async def test_a_share_without_the_wanted_token_is_refused(redlock: Redlock) -> None:
    async with redlock.lock("r") as lease:
        for wait in (None, 0, 100):
            with pytest.raises(RedlockError, match="'r' can't be acquired again with fencing=True"):
                await redlock.lock("r", reentrant=True, fencing=True, wait=wait).acquire()
        with pytest.raises(RedlockError, match="held without a fencing token"):
            await redlock.lock("r", reentrant=True, fencing=True).try_acquire()
        assert lease.hold_count == 1
        async with redlock.lock("r", reentrant=True, fencing=False, metadata={"a": 1}) as again:
            assert "{" not in again.token


async def test_no_other_task_shares(redlock: Redlock) -> None:
    lock = redlock.lock("r", **SHARES)

    async def child() -> str:
        try:
            async with lock:
                return "in"
        except LockNotAcquiredError:
            return "waited"

    async with lock as lease:
        assert await child() == "in"
        async with asyncio.TaskGroup() as group:
            children = [group.create_task(child()) for _ in range(3)]
        assert [task.result() for task in children] == ["waited"] * 3
        with pytest.raises(ExceptionGroup):
            async with anyio.create_task_group() as nursery:
                nursery.start_soon(lock.acquire)
        assert await asyncio.create_task(lock.try_acquire()) is None
        again = await lock.try_acquire()
        assert again is not None
        await again.release()
        assert lease.hold_count == 1


async def test_a_new_task_in_the_memory_of_an_old_one_does_not_share(redlock: Redlock) -> None:
    kept: list[Lease] = []

    async def acquire() -> None:
        kept.append(await redlock.lock("r", reentrant=True, wait=10).acquire())

    await asyncio.create_task(acquire())
    for _ in range(50):
        # CPython usually gives the memory of the old task to the new one.
        with pytest.raises(LockNotAcquiredError):
            await asyncio.create_task(acquire())
    await kept.pop().release()


async def test_a_task_that_failed_does_not_keep_its_leases(redlock: Redlock) -> None:
    holds: list[HeldLease] = []

    async def die() -> None:
        lock = redlock.lock("r", ttl=1000, reentrant=True)
        leases = [await lock.acquire(), await lock.acquire()]
        holds.append(leases[0]._hold)
        raise KeyError(len(leases))

    task = asyncio.create_task(die())
    await asyncio.wait([task])
    died = weakref.ref(task)
    assert isinstance(task.exception(), KeyError)
    with pytest.warns(ResourceWarning, match="never released"):
        del task
        gc.collect()
    assert died() is None
    assert not holds.pop().is_of(None), "code outside of tasks is not that task"
    began = now()
    async with redlock.lock("r"):
        assert now() - began < 1.1


async def test_the_task_that_enters_a_lease_has_it(redlock: Redlock) -> None:
    """Another task acquired it, and has to wait from then on."""
    lock = redlock.lock("r", **SHARES)
    leave = asyncio.Event()

    async def work(lease: Lease) -> None:
        async with lease, lock as again:
            assert again.hold_count == 2
            await leave.wait()

    task = asyncio.create_task(work(await lock.acquire()))
    await asyncio.sleep(0.01)
    with pytest.raises(LockNotAcquiredError):
        await lock.acquire()
    leave.set()
    async with redlock.lock("r"):  # it waits, without an error
        assert task.done()
    await task


# Tasks of one owner


class ByName:
    """An owner that equals others of its name; it is not hashable and not the same object."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByName) and other.name == self.name

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    "owner",
    [lambda: "request 7", lambda: ByName("x"), int, str],
    ids=["str", "other", "0", "empty"],
)
async def test_tasks_of_one_owner_share(
    redlock: Redlock, masters: Masters, owner: Callable[[], object]
) -> None:
    def lock(who: object) -> Any:
        return redlock.lock("r", owner=who, **SHARES)

    async def child(who: object) -> int:
        async with lock(who) as lease:
            await asyncio.sleep(0.05)
            return int(lease.hold_count)

    async with lock(owner()) as lease:
        before = commands_received(masters)
        children = [asyncio.create_task(child(owner())) for _ in range(2)]
        assert await asyncio.gather(*children) == [3, 2]
        assert commands_received(masters) == before
        assert lease.hold_count == 1
        for stranger in (asyncio.create_task(child("another")), asyncio.create_task(child(None))):
            with pytest.raises(LockNotAcquiredError):
                await stranger
        with pytest.raises(LockNotAcquiredError):
            await child("another")
        assert await child(None) == 2  # this task holds the lock
    await check_no_keys(masters)


async def test_an_owner_does_not_share_the_lease_of_a_task(redlock: Redlock) -> None:
    async with redlock.lock("r"):
        await refused(redlock, wait=20, **OWNER)


async def test_tasks_of_one_owner_that_come_together_share(
    redlock: Redlock, masters: Masters
) -> None:
    """Otherwise the second task would wait for the first, which may wait for the second."""
    everybody = asyncio.Barrier(6)

    async def work(*names: str, **options: Any) -> None:
        async with redlock.lock(*names, **OWNER, **options), asyncio.timeout(1):
            assert not cancelling(), "the cancellation of the wait is over"
            await everybody.wait()

    async with asyncio.timeout(1), asyncio.TaskGroup() as group:
        group.create_task(work("a", "b"))
        for names in (("a",), ("b",), ("b", "a")):
            group.create_task(work(*names))
        group.create_task(work("a", fair=True))
        group.create_task(work("b", wait=900))
    assert not kit.session(redlock).local_queues.owner_waiters
    await check_no_keys(masters)


@pytest.mark.parametrize("fair", [False, True])
async def test_waiters_share_when_their_owner_has_acquired(
    redlock: Redlock, masters: Masters, *, fair: bool
) -> None:
    lock = redlock.lock("r", fair=fair, **OWNER)
    async with redlock.lock("r"):
        first, second = asyncio.create_task(lock.acquire()), asyncio.create_task(lock.acquire())
        stranger = asyncio.create_task(redlock.lock("r", reentrant=True, owner="y").acquire())
        await asyncio.sleep(0.1)
    leases = await asyncio.wait_for(asyncio.gather(first, second), 5)
    assert [lease.hold_count for lease in leases] == [2, 2]
    assert not stranger.done()
    for lease in leases:
        await lease.release()
    await (await stranger).release()
    assert not kit.session(redlock).local_queues.owner_waiters
    await check_no_keys(masters)


class Picky:
    """An owner that can be compared with its like only, as is written easily."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(self.number)


@pytest.mark.parametrize("wanted", ["other", "r"])
async def test_an_owner_that_can_not_be_compared_fails_no_other_task(
    redlock: Redlock, masters: Masters, wanted: str
) -> None:
    for name in {"r", wanted}:
        kit.occupy(masters, name)
    first = asyncio.create_task(redlock.lock(wanted, owner="job").acquire())
    await asyncio.sleep(0.1)
    picky = redlock.lock("r", reentrant=True, owner=Picky(1))
    waiter = asyncio.create_task(picky.acquire())
    await asyncio.sleep(0.1)
    kit.delete(masters, wanted)
    await (await first).release()
    kit.delete(masters)
    if wanted == "r":  # the error of the comparison comes in the task that has this owner
        with pytest.raises(TypeError):
            await waiter
    else:
        await (await waiter).release()
    await check_no_keys(masters)


async def test_an_owner_need_not_be_comparable_with_none(redlock: Redlock) -> None:
    async with redlock.lock("r", owner=Picky(1)):
        error = await asyncio.create_task(refused(redlock))
    assert error.hint == ""


async def test_a_waiter_for_more_than_its_owner_gets_waits_on(redlock: Redlock) -> None:
    async with redlock.lock("b"):
        both = asyncio.create_task(redlock.lock("a", "b", **OWNER).acquire())
        await asyncio.sleep(0.1)
        async with redlock.lock("a", **OWNER):
            await asyncio.sleep(0.1)
    lease = await both
    assert lease.hold_count == 1
    await lease.release()


@pytest.mark.parametrize("drops", [False, True])
async def test_a_task_that_has_left_shares_no_more(redlock: Redlock, *, drops: bool) -> None:
    """This holds although another task of its owner still holds the lock."""
    leave = asyncio.Event()

    async def other() -> None:
        async with redlock.lock("r", owner="x", **SHARES), redlock.lock("r", **SHARES) as again:
            assert again.hold_count == (2 if drops else 3)
            await leave.wait()

    lease = await redlock.lock("r", owner="x", **SHARES).acquire()
    if drops:
        with pytest.warns(ResourceWarning, match="not extended any more"):
            del lease
            gc.collect()
        task = asyncio.create_task(other())
        await asyncio.sleep(0.01)
    else:
        async with lease:
            task = asyncio.create_task(other())
            await asyncio.sleep(0.01)
            async with redlock.lock("r", **SHARES) as share:
                assert share.hold_count == 4
    await refused(redlock, **SHARES)
    leave.set()
    await task


# Tasks that would wait for themselves


@pytest.mark.parametrize(
    "options",
    [{}, {"fair": True}, {"fencing": True}, {"fair": True, "retry": Retry(attempts=3)}],
    ids=str,
)
async def test_a_wait_for_oneself_is_an_error_at_once(
    redlock: Redlock, masters: Masters, options: dict[str, Any]
) -> None:
    async with redlock.lock("r"):
        await asyncio.sleep(0.01)
        before = commands_received(masters)
        for _ in range(2):
            with pytest.raises(RedlockError, match=re.escape(WOULD_NEVER_COME)) as caught:
                async with redlock.lock("r", **options):
                    pytest.fail("it was acquired")
            assert type(caught.value) is RedlockError
        assert commands_received(masters) == before
    async with redlock.lock("r"):
        pass


@pytest.mark.parametrize(
    "options",
    [
        {"wait": 0},
        {"wait": 100},
        {"wait": 100, "fair": True},
        {"wait": None, "retry": Retry(min_delay=10, max_delay=10, attempts=3)},
        {"wait": 0, **OWNER},
    ],
    ids=str,
)
async def test_a_bounded_wait_for_oneself_fails_as_for_others(
    redlock: Redlock, options: dict[str, Any]
) -> None:
    async with redlock.lock("r") as lease:
        error = await refused(redlock, **options)
        assert error.holder is not None
        assert error.holder.fingerprint == lease.fingerprint


@pytest.mark.parametrize("options", [{}, {"wait": 0}, {"fair": True}, OWNER], ids=str)
async def test_one_try_fails_as_for_others(redlock: Redlock, options: dict[str, Any]) -> None:
    async with redlock.lock("r"):
        for names in (("r",), ("r", "s")):
            assert await redlock.lock(*names, **options).try_acquire() is None


async def test_a_part_can_be_shared_and_more_can_not(redlock: Redlock) -> None:
    async with redlock.lock("a", "b"):
        for more in (("b", "c"), ("c", "b", "a")):
            for reentrant in (True, False):  # with it, they would get the same error
                lock = redlock.lock(*more, reentrant=reentrant)
                with pytest.raises(
                    RedlockError, match="holds 'a', 'b'; a lease can't get more resources"
                ):
                    await lock.acquire()
                assert await lock.try_acquire() is None
                error = await refused(redlock, *more, reentrant=reentrant)
                assert error.hint.endswith("acquire all at once")
        for part in (("a",), ("b",), ("b", "a")):
            async with redlock.lock(*part, reentrant=True) as lease:
                assert lease.hold_count == 2
                assert lease.resources == ("a", "b")
    async with redlock.lock("a"), redlock.lock("b"):
        with pytest.raises(RedlockError, match="'a', 'b' would never be free"):
            await redlock.lock("a", "b", reentrant=True).acquire()


async def test_an_owner_that_would_wait_for_itself_gets_an_error(redlock: Redlock) -> None:
    only = "this task itself holds 'r'; only the owner that acquired it can acquire it again"
    for first in (OWNER, {}):
        async with redlock.lock("r", **first):
            for reentrant in (True, False):  # with it, they would get the same error
                with pytest.raises(RedlockError, match=only):
                    await redlock.lock("r", reentrant=reentrant, owner="y").acquire()
                error = await refused(redlock, reentrant=reentrant, owner="y")
                assert error.hint == only
    async with redlock.lock("a", **OWNER):
        more = asyncio.create_task(redlock.lock("a", "b", **OWNER).acquire())
        with pytest.raises(
            RedlockError, match="its owner holds 'a'; a lease can't get more resources"
        ):
            await more


@ENDS
async def test_a_lease_that_ends_by_itself_is_waited_for(
    redlock: Redlock, ends: dict[str, Any]
) -> None:
    lease = await redlock.lock("r", ttl=1000, **ends).acquire()
    async with redlock.lock("r") as second:
        assert not lease.valid
        assert second.valid


@ENDS
async def test_a_wait_that_the_end_would_cancel_is_an_error(
    redlock: Redlock, ends: dict[str, Any]
) -> None:
    """This holds also if the body that would be cancelled is not the first of the lease."""
    lock = redlock.lock("r", ttl=1000, **OWNER, **ends)
    leave = asyncio.Event()

    async def first() -> None:
        async with lock:
            await leave.wait()

    task = asyncio.create_task(first())
    await asyncio.sleep(0.01)
    async with lock:
        leave.set()
        await task
        with pytest.raises(RedlockError, match="would never be free"):
            await redlock.lock("r").acquire()
    async with lock:
        with pytest.raises(RedlockError, match="would never be free"):
            await redlock.lock("r").acquire()


async def test_a_lease_that_another_task_releases_needs_a_wait(redlock: Redlock) -> None:
    async def release(lease: Lease) -> None:
        await asyncio.sleep(0.5)
        await lease.release()

    task = asyncio.create_task(release(await redlock.lock("r").acquire()))
    with pytest.raises(RedlockError, match="or set wait= if another task will release it"):
        await redlock.lock("r").acquire()
    async with redlock.lock("r", wait=5_000):
        await task


async def test_the_first_lock_of_an_owner_need_not_be_reentrant(redlock: Redlock) -> None:
    """As that of a task: the inner lock says that the lease may be shared."""
    owned = redlock.lock("r", owner="x")

    async def in_another_task() -> None:
        async with redlock.lock("r", **OWNER) as inner:
            assert inner.hold_count == 2
        with pytest.raises(RedlockError, match="its owner holds 'r'; reentrant=True acquires it"):
            await owned.acquire()
        error = await refused(redlock, owner="x")
        assert error.hint == "its owner holds 'r'; reentrant=True acquires it again"
        assert await owned.try_acquire() is None
        assert (await refused(redlock, owner="y")).hint == ""

    async with owned:
        await asyncio.create_task(in_another_task())


async def test_locks_of_one_owner_that_are_not_reentrant_take_turns(redlock: Redlock) -> None:
    """A waiter that is not reentrant is not woken to share the lease of its owner."""
    lock = redlock.lock("r", owner="x")
    alone = True

    async def work() -> None:
        nonlocal alone
        async with lock as lease:
            assert alone
            alone = False
            await asyncio.sleep(0.1)
            assert lease.hold_count == 1
            alone = True

    async with asyncio.timeout(1), asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(work())


def test_reentrant_is_a_bool() -> None:
    with pytest.raises(TypeError, match="reentrant must be a bool, not an int"):
        Redlock(["redis://a"]).lock("r", reentrant=1)  # type: ignore[arg-type]
