"""Uses of locks, and functions that cancel a use, or close its manager, at each of its awaits."""

import asyncio
import contextlib
import itertools
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Literal, TypeVar

from redlock_aio import Redlock
from redlock_aio.testing import FakeMaster, cancelled_at

from .kit import hang, in_coroutine, occupy, remaining_keys, settle

When = Literal["waiting", "answered"]
"""Cancel before the awaited reply, or after it but before the task runs again."""

T = TypeVar("T")

Use = Callable[[Redlock], Coroutine[Any, Any, None]]


async def with_block(redlock: Redlock) -> None:
    async with redlock.lock("r"):
        await asyncio.sleep(0.01)


async def acquire_and_release(redlock: Redlock) -> None:
    lease = await redlock.lock("r").acquire()
    try:
        await lease.extend()
    finally:
        await lease.release()


async def try_acquire(redlock: Redlock) -> None:
    lease = await redlock.lock("r").try_acquire()
    if lease is not None:
        async with lease:
            await asyncio.sleep(0.01)


async def wait_for_a_holder(redlock: Redlock) -> None:
    async with redlock.lock("theirs"):
        pass


async def in_a_queue(redlock: Redlock) -> None:
    async with redlock.lock("r", fair=True):
        await asyncio.sleep(0.01)


async def wait_in_a_queue(redlock: Redlock) -> None:
    async with redlock.lock("theirs", fair=True):
        pass


async def several_at_once(redlock: Redlock) -> None:
    async with redlock.lock("r", "s", "t"):
        await asyncio.sleep(0.01)


async def several_with_a_token(redlock: Redlock) -> None:
    async with redlock.lock("r", "s", fencing=True) as lease:
        await lease.extend()


async def wait_for_one_of_several(redlock: Redlock) -> None:
    async with redlock.lock("r", "theirs", fencing=True):
        pass


async def wait_in_queues_for_one_of_several(redlock: Redlock) -> None:
    async with redlock.lock("theirs", "r", fair=True):
        await asyncio.sleep(0.01)


async def fail_in_the_body(redlock: Redlock) -> None:
    try:
        async with redlock.lock("r"):
            await asyncio.sleep(0.01)
            raise KeyError
    except KeyError:
        pass


async def nested(redlock: Redlock) -> None:
    lock = redlock.lock("r", reentrant=True)
    async with lock:
        await asyncio.sleep(0.01)
        async with lock as lease, redlock.lock("r", ttl=20_000, reentrant=True):
            await lease.extend()
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.01)


async def shares_in_another_order(redlock: Redlock) -> None:
    lock = redlock.lock("r", reentrant=True)
    leases = [await lock.acquire()]
    try:
        leases += [await lock.acquire(), await lock.acquire()]
        await leases[1].extend(5_000)
    finally:
        for lease in leases:
            with contextlib.suppress(asyncio.CancelledError):
                await lease.release()


async def share_of_several(redlock: Redlock) -> None:
    whole, part = redlock.lock("r", "s", fair=True), redlock.lock("s", reentrant=True)
    async with whole, part as lease:
        assert lease.hold_count == 2
        await asyncio.sleep(0.01)


async def two_tasks_of_one_owner(redlock: Redlock) -> None:
    lock = redlock.lock("r", reentrant=True, owner="x")

    async def work() -> None:
        async with lock:
            await asyncio.sleep(0.01)

    async with asyncio.TaskGroup() as group:
        group.create_task(work())
        await asyncio.sleep(0)
        async with lock:
            await asyncio.sleep(0.01)


USES: list[Use] = [
    with_block,
    acquire_and_release,
    try_acquire,
    wait_for_a_holder,
    in_a_queue,
    wait_in_a_queue,
    several_at_once,
    several_with_a_token,
    wait_for_one_of_several,
    wait_in_queues_for_one_of_several,
    fail_in_the_body,
]

SHARING: list[Use] = [nested, shares_in_another_order, share_of_several, two_tasks_of_one_owner]
"""Uses in which a lease is shared."""


async def every_place(
    masters: list[FakeMaster],
    when: When,
    hung: int,
    use: Callable[[], Coroutine[Any, Any, None]],
) -> None:
    """Cancel *use* at each of its awaits in turn; check each time that no key is left."""
    for place in itertools.count(1):
        hang(masters[:hung])
        occupy(masters, "theirs", ttl=30)
        task = asyncio.create_task(in_coroutine(cancelled_at(place, use(), when=when)))
        await asyncio.wait([task])
        await settle(masters, 2)
        assert not remaining_keys(masters, counters=False), f"suspension {place}"
        if not task.cancelled():
            assert task.exception() is None
            assert place > 1
            return


def run_next(coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Return a task whose first step runs before all callbacks that are ready."""
    loop = asyncio.get_running_loop()
    task = loop.create_task(coroutine)
    ready = loop._ready  # type: ignore[attr-defined]
    ready.appendleft(ready.pop())
    return task


@types.coroutine
def interposed(
    nth: int, coroutine: Coroutine[Any, Any, T], act: Callable[[], object]
) -> Generator[Any, Any, T]:
    """Run *coroutine*, and *act* when its *nth* suspension has its result, before it resumes."""
    for suspension in itertools.count(1):
        try:
            awaited = coroutine.send(None)
        except StopIteration as end:
            result: T = end.value
            return result
        if suspension == nth:
            if awaited is None:
                act()
            else:
                awaited.add_done_callback(lambda _: act())
        # An error of what is awaited is raised by its `result()`, which the coroutine calls.
        yield awaited
    raise AssertionError
