"""A lease that is used in another event loop, thread or process than its own."""

import asyncio
import os
import threading
import warnings
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from redlock_aio import Lease, LockLostError, LockNotHeldError, Redlock, RedlockError
from redlock_aio.events import Event
from redlock_aio.testing import FakeMaster, VirtualTimeLoop

THREAD = "belongs to another thread's event loop"
CHILD = "belongs to the parent process"

Use = Callable[[Lease], Coroutine[Any, Any, object]]


async def export(lease: Lease) -> object:
    return lease.export()


async def wait(lease: Lease) -> object:
    return await lease.lost.wait()


USES: dict[str, Use] = {
    "release": lambda lease: lease.release(),
    "extend": lambda lease: lease.extend(),
    "export": export,
    "enter": lambda lease: lease.__aenter__(),
    "leave": lambda lease: lease.__aexit__(None, None, None),
}
EACH_USE = pytest.mark.parametrize("use", USES.values(), ids=USES)


def result(work: Callable[[], object]) -> str:
    """Return what comes of it, as a text."""
    try:
        return f"returned {work()!r}"
    except BaseException as error:  # noqa: BLE001 - it is what is asked for
        return f"{type(error).__name__}: {error} {' '.join(getattr(error, '__notes__', ()))}"


def in_a_thread(work: Callable[[], object]) -> str:
    results: list[str] = []
    thread = threading.Thread(target=lambda: results.append(result(work)))
    thread.start()
    thread.join()
    return results[0]


def in_a_child(work: Callable[[], object]) -> str:
    """Do it in a forked child, and return what comes of it there."""
    here, there = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(there, result(work).encode())
        finally:
            os._exit(0)
    os.close(there)
    with os.fdopen(here) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


def in_a_loop(coroutine: Coroutine[Any, Any, object]) -> object:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(coroutine)


ELSEWHERE = pytest.mark.parametrize(
    ("elsewhere", "says"), [(in_a_thread, THREAD), (in_a_child, CHILD)]
)


@ELSEWHERE
@EACH_USE
@pytest.mark.promise("S1")
async def test_a_lease_is_of_use_only_where_it_was_acquired(
    redlock: Redlock, masters: list[FakeMaster], elsewhere: Any, says: str, use: Use
) -> None:
    lease = await redlock.lock("r").acquire()
    await asyncio.sleep(0.05)
    before = [len(master.commands) for master in masters]
    said = elsewhere(lambda: in_a_loop(use(lease)))
    assert said.startswith("RedlockError: the lease on 'r' ")
    assert says in said
    await asyncio.sleep(0.05)
    assert [len(master.commands) for master in masters] == before
    assert lease.valid
    await lease.release()
    assert not any(master.keys for master in masters)


@ELSEWHERE
async def test_a_block_is_left_only_where_it_was_entered(
    redlock: Redlock, masters: list[FakeMaster], elsewhere: Any, says: str
) -> None:
    lock = redlock.lock("r")
    async with lock as lease:

        async def leave() -> None:
            await lock.__aexit__(None, None, None)

        assert says in elsewhere(lambda: in_a_loop(leave()))

        async def fail() -> None:
            error = KeyError("mine")
            await lock.__aexit__(KeyError, error, None)

        said = elsewhere(lambda: in_a_loop(fail()))
        assert said.startswith("KeyError: 'mine' ")
        assert says in said
        assert lease.valid
        await asyncio.sleep(20)
        assert lease.valid
    assert not any(master.keys for master in masters)


async def test_a_thread_may_ask_whether_the_lock_is_held(redlock: Redlock) -> None:
    """As a thread does that works for the body."""
    lease = await redlock.lock("r", ttl=1_000, on_lost="flag").acquire()
    assert in_a_thread(lambda: lease.valid) == "returned True"
    assert in_a_thread(lease.ensure_valid) == "returned None"
    assert in_a_thread(lease.lost.is_set) == "returned False"
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop.stall(2)
    assert in_a_thread(lambda: lease.valid) == "returned False"
    assert in_a_thread(lease.ensure_valid).startswith("LockLostError: 'r' lost")
    assert not lease.lost.is_set(), "that is the loop's business"
    with pytest.raises(LockLostError):
        lease.ensure_valid()
    assert lease.lost.is_set()
    assert in_a_thread(lambda: in_a_loop(lease.release())).startswith("LockNotHeldError")


async def test_a_child_holds_nothing(redlock: Redlock) -> None:
    async with redlock.lock("r") as lease:
        assert in_a_child(lambda: lease.valid) == "returned False"
        assert in_a_child(lambda: lease.remaining) == "returned 0"
        assert in_a_child(lambda: repr(lease)).startswith('returned "<Lease')
        assert CHILD in in_a_child(lease.ensure_valid)
        assert lease.valid


async def test_a_child_that_drops_a_lease_has_not_forgotten_to_release_it(
    redlock: Redlock,
) -> None:
    leases = [await redlock.lock("r").acquire()]

    def drop() -> str:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            leases.clear()
        return str([str(warning.message) for warning in caught])

    assert in_a_child(drop) == "returned '[]'"
    await leases[0].release()


@EACH_USE
def test_a_loop_that_ran_before_is_another_one(use: Use) -> None:
    """In the same thread, with a manager that was not closed."""
    masters = [FakeMaster() for _ in range(3)]
    redlock = Redlock(masters, restart_guard="off")
    loop = VirtualTimeLoop()
    try:
        lease = loop.run_until_complete(redlock.lock("r").acquire())
        before = [len(master.commands) for master in masters]
        said = result(lambda: in_a_loop(use(lease)))
        assert said.startswith("RedlockError: the lease on 'r' belongs to another event loop")
        assert [len(master.commands) for master in masters] == before
        loop.run_until_complete(lease.release())
        loop.run_until_complete(redlock.aclose())
    finally:
        loop.close()


@ELSEWHERE
async def test_a_listener_hears_nothing_of_it(
    masters: list[FakeMaster], elsewhere: Any, says: str
) -> None:
    events: list[Event] = []
    async with Redlock(masters, restart_guard="off", listener=events.append) as redlock:
        lease = await redlock.lock("r").acquire()
        await asyncio.sleep(0.1)
        events.clear()
        for use in USES.values():
            assert says in elsewhere(lambda use=use: in_a_loop(use(lease)))
        await asyncio.sleep(0.1)
        assert events == []
        await lease.release()


async def test_what_is_over_is_over_everywhere(redlock: Redlock) -> None:
    lease = await redlock.lock("r").acquire()
    await lease.release()
    with pytest.raises(LockNotHeldError):
        await lease.release()
    assert "RedlockError" in in_a_thread(lambda: in_a_loop(lease.release()))
    assert isinstance(LockNotHeldError(["r"], "x"), RedlockError)
