"""A lease works only in its event loop, thread and process, and its block in its task."""

import asyncio
import contextlib
import gc
import os
import threading
import unittest
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from typing import Annotated, Any

import pytest
from fastapi import Depends, FastAPI
from fastapi.responses import StreamingResponse
from httpx import ASGITransport, AsyncClient

from redlock_aio import Lease, LockLostError, LockNotHeldError, Redlock, RedlockError
from redlock_aio.events import Event
from redlock_aio.testing import FakeMaster, VirtualTimeLoop

from .kit import Masters, commands_received, hang, keys, loop, resume

THREAD = "belongs to another thread's event loop"
CHILD = "belongs to the parent process"
TASK = "not by the task that entered the block"

Use = Callable[[Lease], Coroutine[Any, Any, object]]


# Another event loop, thread or process


async def export(lease: Lease) -> object:
    return lease.export()


USES: dict[str, Use] = {
    "release": lambda lease: lease.release(),
    "extend": lambda lease: lease.extend(),
    "export": export,
    "enter": lambda lease: lease.__aenter__(),
    "leave": lambda lease: lease.__aexit__(None, None, None),
}


def result(work: Callable[[], object]) -> str:
    """Return the result of *work*, or its error, as a text."""
    try:
        return f"returned {work()!r}"
    except BaseException as error:  # noqa: BLE001 - any error is a result
        return f"{type(error).__name__}: {error} {' '.join(getattr(error, '__notes__', ()))}"


def in_a_thread(work: Callable[[], object]) -> str:
    results: list[str] = []
    thread = threading.Thread(target=lambda: results.append(result(work)))
    thread.start()
    thread.join()
    return results[0]


def in_a_child(work: Callable[[], object]) -> str:
    """Call *work* in a forked child, and return its result there."""
    here, there = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(there, result(work).encode())
        finally:
            os._exit(0)
    os.close(there)
    with os.fdopen(here) as pipe:
        written = pipe.read()
    os.waitpid(child, 0)
    return written


def in_a_loop(coroutine: Coroutine[Any, Any, object]) -> object:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(coroutine)


ELSEWHERE = pytest.mark.parametrize(
    ("elsewhere", "match"), [(in_a_thread, THREAD), (in_a_child, CHILD)], ids=["thread", "child"]
)


@ELSEWHERE
@pytest.mark.promise("S1")
async def test_a_lease_can_not_be_used_elsewhere(
    masters: Masters, elsewhere: Callable[..., str], match: str
) -> None:
    """Nothing is sent, no event is emitted, and the lease stays valid."""
    events: list[Event] = []
    async with Redlock(masters, restart_guard="off", listener=events.append) as redlock:
        lease = await redlock.lock("r").acquire()
        await asyncio.sleep(0.01)
        before = commands_received(masters)
        events.clear()
        for use in USES.values():
            got = elsewhere(lambda use=use: in_a_loop(use(lease)))
            assert got.startswith("RedlockError: the lease on 'r' ")
            assert match in got
        await asyncio.sleep(0.05)
        assert (commands_received(masters), events) == (before, [])
        assert lease.valid
        await lease.release()
        assert keys(masters) == [{}] * 5


@ELSEWHERE
async def test_a_block_can_not_be_left_elsewhere(
    redlock: Redlock, masters: Masters, elsewhere: Callable[..., str], match: str
) -> None:
    lock = redlock.lock("r")
    async with lock as lease:

        async def leave(*error: Any) -> None:
            await lock.__aexit__(*(error or (None, None, None)))

        assert match in elsewhere(lambda: in_a_loop(leave()))
        got = elsewhere(lambda: in_a_loop(leave(KeyError, KeyError("mine"), None)))
        assert got.startswith("KeyError: 'mine' ")
        assert match in got
        await asyncio.sleep(20)
        assert lease.valid
    assert keys(masters) == [{}] * 5


async def test_a_thread_may_ask_whether_the_lock_is_held(redlock: Redlock) -> None:
    """A thread that works for the body may do so."""
    lease = await redlock.lock("r", ttl=1_000, on_lost="flag").acquire()
    assert in_a_thread(lambda: lease.valid) == "returned True"
    assert in_a_thread(lease.ensure_valid) == "returned None"
    assert in_a_thread(lease.lost.is_set) == "returned False"
    loop().stall(2)
    assert in_a_thread(lambda: lease.valid) == "returned False"
    assert in_a_thread(lease.ensure_valid).startswith("LockLostError: 'r' lost")
    assert not lease.lost.is_set(), "only the loop sets it"
    with pytest.raises(LockLostError):
        lease.ensure_valid()
    assert lease.lost.is_set()
    assert in_a_thread(lambda: in_a_loop(lease.release())).startswith("LockNotHeldError")


async def test_a_child_holds_nothing(redlock: Redlock) -> None:
    """A forked child does not warn either when it drops the lease of its parent."""
    leases = [await redlock.lock("r").acquire()]
    assert in_a_child(lambda: leases[0].valid) == "returned False"
    assert in_a_child(lambda: leases[0].remaining) == "returned 0"
    assert in_a_child(lambda: repr(leases[0])).startswith('returned "<Lease')
    assert CHILD in in_a_child(leases[0].ensure_valid)
    assert leases[0].valid

    def drop() -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            leases.clear()
        return [str(warning.message) for warning in caught]

    assert in_a_child(drop) == "returned []"
    await leases[0].release()
    assert "RedlockError" in in_a_thread(lambda: in_a_loop(leases[0].release()))


async def test_a_child_counts_nothing_of_its_parent(redlock: Redlock) -> None:
    """An exporter in the child would add the parent's leases once more, for as long as it runs."""
    why = "it belongs to the parent process"

    def counts() -> tuple[object, ...]:
        now = redlock.statistics()
        masters = {(master.up, master.votes, master.reason) for master in now.masters}
        return now.is_open, now.leases, now.waiters, now.rounds, masters

    async with redlock.lock("r"):
        waiter = asyncio.create_task(redlock.lock("r").acquire())
        await asyncio.sleep(0.01)
        nothing = False, 0, 0, 0, {(False, False, why)}
        assert in_a_child(counts) == f"returned {nothing!r}"
        shown = f"<Redlock 5 masters, {why}>"
        assert in_a_child(lambda: repr(redlock)) == f"returned {shown!r}"
        assert counts()[:3] == (True, 1, 1)
        waiter.cancel()


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_loop_that_ran_before_is_another_one(use: Use) -> None:
    """It ran in the same thread, with a manager that was not closed."""
    masters = [FakeMaster() for _ in range(3)]
    redlock = Redlock(masters, restart_guard="off")
    with contextlib.closing(VirtualTimeLoop()) as first:
        lease = first.run_until_complete(redlock.lock("r").acquire())
        before = commands_received(masters)
        got = result(lambda: in_a_loop(use(lease)))
        assert got.startswith("RedlockError: the lease on 'r' belongs to another event loop")
        assert commands_received(masters) == before
        first.run_until_complete(lease.release())
        first.run_until_complete(redlock.aclose())


# Another task: fixtures and generators


async def fixture(redlock: Redlock, **options: Any) -> AsyncGenerator[Lease, None]:
    """Hold a lock around a yield, as a fixture does."""
    async with redlock.lock("r", ttl=1_000, **options) as lease:
        yield lease


async def step(generator: AsyncGenerator[Lease, None]) -> Lease | None:
    return await anext(generator, None)


def in_a_task(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    return asyncio.create_task(work)


async def released(masters: Masters) -> bool:
    await asyncio.sleep(0.01)
    return keys(masters) == [{}] * 5


@pytest.mark.promise("S3")
async def test_a_block_left_by_another_task_is_released_with_an_error(
    redlock: Redlock, masters: Masters
) -> None:
    generator = fixture(redlock)
    lease = await in_a_task(step(generator))
    await asyncio.sleep(2)
    assert lease.valid
    with pytest.raises(RedlockError, match=TASK) as caught:
        await in_a_task(step(generator))
    assert type(caught.value) is RedlockError
    assert "'r'" in str(caught.value)
    assert "on_lost='flag'" in str(caught.value)
    assert await released(masters)
    with pytest.raises(LockNotHeldError):
        await lease.release()


async def test_with_flag_or_acquire_any_task_may_release(
    redlock: Redlock, masters: Masters
) -> None:
    generator = fixture(redlock, on_lost="flag")
    lease = await in_a_task(step(generator))
    assert lease.valid
    assert await in_a_task(step(generator)) is None
    assert await released(masters)
    lease = await in_a_task(redlock.lock("r").acquire())
    await asyncio.sleep(20)
    assert lease.valid
    await in_a_task(lease.release())
    assert await released(masters)


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.promise("S2")
async def test_after_a_release_by_another_task_the_first_is_not_cancelled(
    redlock: Redlock, masters: Masters, *, ended: bool
) -> None:
    generator = fixture(redlock)
    leases: list[Lease] = []
    cancelled = 0

    async def enter_and_go_on() -> None:
        nonlocal cancelled
        leases.append(await anext(generator))
        while not ended:
            try:
                await asyncio.sleep(1)
            except asyncio.CancelledError:
                cancelled += 1

    task = in_a_task(enter_and_go_on())
    await asyncio.sleep(0.1)
    hang(masters)
    await leases[0].lost.wait()
    resume(masters)
    with pytest.raises(LockLostError):
        await in_a_task(step(generator))
    before = cancelled
    assert bool(before) is not ended
    await asyncio.sleep(60)
    assert cancelled == before
    ended = True
    await task


async def test_without_a_loss_the_first_task_continues(redlock: Redlock, masters: Masters) -> None:
    stack = contextlib.AsyncExitStack()

    async def enter_and_go_on() -> bool:
        lease = await stack.enter_async_context(redlock.lock("r"))
        await asyncio.sleep(1)
        async with redlock.lock("s"), asyncio.timeout(9):
            await asyncio.sleep(1)
        return lease.valid

    task = in_a_task(enter_and_go_on())
    await asyncio.sleep(0.5)
    with pytest.raises(RedlockError, match=TASK):
        await stack.aclose()
    assert await released(masters)
    assert not await task
    assert await released(masters)


@pytest.mark.parametrize("error", [KeyError("mine"), asyncio.CancelledError("mine")], ids=repr)
async def test_an_error_of_the_body_gets_the_misuse_as_a_note(
    redlock: Redlock, masters: Masters, error: BaseException
) -> None:
    generator = fixture(redlock)
    await in_a_task(step(generator))
    with pytest.raises(type(error)) as caught:
        await generator.athrow(error)
    assert caught.value is error
    assert any(TASK in note for note in error.__notes__)
    assert await released(masters)


async def test_a_generator_that_the_loop_ends_reports_it(
    redlock: Redlock, masters: Masters
) -> None:
    reported: list[dict[str, Any]] = []
    before = loop().get_exception_handler()
    loop().set_exception_handler(lambda _, context: reported.append(context))
    try:
        await in_a_task(step(fixture(redlock)))
        gc.collect()
        assert await released(masters)
        gc.collect()
    finally:
        loop().set_exception_handler(before)
    assert len(reported) == 1
    assert TASK in str(reported[0]["exception"])


@pytest.mark.parametrize("on_lost", ["cancel", "flag"])
@pytest.mark.promise("S3")
async def test_a_generator_that_is_not_exhausted_releases_its_own_permit(
    redlock: Redlock, on_lost: Any
) -> None:
    """Its consumer goes on, and other tasks have blocks of the same semaphore."""
    api = redlock.semaphore("api", permits=5, on_lost=on_lost)
    reported: list[dict[str, Any]] = []
    before = loop().get_exception_handler()
    loop().set_exception_handler(lambda _, context: reported.append(context))

    async def stream() -> AsyncGenerator[Lease, None]:
        async with api as lease:
            yield lease

    async def consume() -> None:
        async for _ in stream():
            break
        await asyncio.sleep(1)

    try:
        consumers = [in_a_task(consume()) for _ in range(2)]
        async with api as own:
            await asyncio.sleep(0.5)
            assert own.valid
            assert redlock.statistics().leases == 1
        await asyncio.gather(*consumers)
        gc.collect()
    finally:
        loop().set_exception_handler(before)
    told = [str(context["exception"]) for context in reported]
    assert len(told) == (2 if on_lost == "cancel" else 0)
    assert all(TASK in text for text in told)


async def test_a_task_that_ends_the_generator_of_another_keeps_its_own_permit(
    redlock: Redlock,
) -> None:
    api = redlock.semaphore("api", permits=5, on_lost="flag")

    async def block() -> AsyncGenerator[Lease, None]:
        async with api as lease:
            yield lease

    generator = block()

    async def enter_and_go_on(lease: asyncio.Future[Lease]) -> None:
        lease.set_result(await anext(generator))
        await asyncio.sleep(1)

    entered = loop().create_future()
    other = in_a_task(enter_and_go_on(entered))
    theirs = await entered
    async with api as mine:
        await generator.aclose()
        assert (mine.valid, theirs.valid) == (True, False)
    assert not mine.valid
    await other


KINDS: dict[str, dict[str, Any]] = {
    "permits": {"permits": 5},
    "reentrant": {"reentrant": True},
    "readers": {"shared": True, "reentrant": True},
}
"""Locks that a task may enter again while it is in a block of them."""


@pytest.mark.parametrize("on_lost", ["cancel", "flag"])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_stack_keeps_its_lease_behind_a_block_that_began_before(
    redlock: Redlock, kind: str, on_lost: Any
) -> None:
    lock = redlock.lock("r", on_lost=on_lost, **KINDS[kind])
    async with contextlib.AsyncExitStack() as stack:
        async with lock as inner:
            first, second = [await stack.enter_async_context(lock) for _ in range(2)]
        assert (inner.valid, first.valid, second.valid) == (False, True, True)
        async with lock as inner:
            await stack.aclose()
            assert (inner.valid, first.valid, second.valid) == (True, False, False)
        assert not inner.valid
    assert redlock.statistics().leases == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("early", [False, True])
async def test_a_block_that_goes_on_behind_one_that_began_before_is_guarded(
    redlock: Redlock, masters: Masters, kind: str, *, early: bool
) -> None:
    """Also if the body has released its lease before."""
    lock = redlock.lock("r", ttl=1_000, **KINDS[kind])
    with pytest.raises(LockLostError):
        async with contextlib.AsyncExitStack() as stack:
            async with lock as inner:
                leases = [await stack.enter_async_context(lock) for _ in range(3)]
                if early:
                    await leases[2].release()
            assert not inner.valid
            hang(masters)
            began = loop().time()
            await asyncio.sleep(60)
    assert loop().time() - began < 2
    assert not any(lease.valid for lease in leases)
    assert redlock.statistics().leases == 0
    resume(masters)
    await asyncio.sleep(2)  # nothing cancels what comes behind


@pytest.mark.parametrize("which", [0, 1])
async def test_of_blocks_that_end_in_another_order_the_lost_one_raises(
    redlock: Redlock, which: int
) -> None:
    lock = redlock.semaphore("r", permits=5)
    first = second = await lock.acquire()
    await first.release()
    raised: list[int] = []
    try:
        async with contextlib.AsyncExitStack() as stack:
            try:
                async with lock as first:
                    second = await stack.enter_async_context(lock)
                    await lock.force_release((first, second)[which].permit or 0)
                    await asyncio.sleep(60)
            except LockLostError:
                raised.append(0)
            assert not first.valid
            await asyncio.sleep(60)
            assert second.valid
    except LockLostError:
        raised.append(1)
    assert raised == [which]
    assert redlock.statistics().leases == 0
    await asyncio.sleep(60)  # nothing cancels what comes behind


async def test_a_block_that_goes_on_passes_the_cancellation_of_its_task(redlock: Redlock) -> None:
    """Its lease is lost after the task was cancelled, and before the task has ended."""
    lock = redlock.semaphore("r", permits=5)
    cleaned: list[float] = []

    async def work() -> None:
        async with contextlib.AsyncExitStack() as stack:
            try:
                async with lock:
                    going_on = await stack.enter_async_context(lock)
                    await asyncio.sleep(60)
            finally:
                began = loop().time()
                try:
                    await lock.force_release(going_on.permit or 0)
                    await asyncio.sleep(60)
                finally:
                    cleaned.append(loop().time() - began)

    task = in_a_task(work())
    await asyncio.sleep(0.5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cleaned[0] < 2
    assert redlock.statistics().leases == 0


async def test_of_two_blocks_that_go_on_and_share_a_lost_lock_both_raise(
    redlock: Redlock, masters: Masters
) -> None:
    """The inner one can't if both are cancelled at once."""
    lock = redlock.lock("r", ttl=1_000, reentrant=True)
    outer, inner = contextlib.AsyncExitStack(), contextlib.AsyncExitStack()
    raised: list[str] = []
    try:
        async with outer:
            try:
                async with inner, lock:
                    for stack in (outer, inner):
                        await stack.enter_async_context(lock)
                    hang(masters)
                    await asyncio.sleep(60)
            except LockLostError:
                raised.append("inner")
            await asyncio.sleep(60)
    except LockLostError:
        raised.append("outer")
    assert raised == ["inner", "outer"]
    assert redlock.statistics().leases == 0
    resume(masters)


async def test_of_several_blocks_each_task_leaves_its_own(redlock: Redlock) -> None:
    """A task that entered no block leaves the block of a task that has ended, if there is one."""
    lock = redlock.lock("r", reentrant=True, owner="o", on_lost="flag")
    held: list[Lease] = []

    async def hold(leave: asyncio.Event) -> None:
        async with lock as lease:
            held.append(lease)
            await leave.wait()

    events = [asyncio.Event(), asyncio.Event()]
    tasks = [in_a_task(hold(event)) for event in events]
    await asyncio.sleep(0.1)
    with pytest.raises(LockNotHeldError, match="this task has not entered"):
        await lock.__aexit__(None, None, None)
    await in_a_task(lock.__aenter__())
    assert held[0].hold_count == 3
    await lock.__aexit__(None, None, None)
    for task, event in zip(tasks, events, strict=True):
        event.set()
        await task
    assert not any(lease.valid for lease in held)
    with pytest.raises(LockNotHeldError):
        await lock.__aexit__(None, None, None)


@pytest.mark.parametrize("on_lost", ["cancel", "flag"])
async def test_a_dependency_of_fastapi_holds_the_lock(
    redlock: Redlock, masters: Masters, on_lost: Any
) -> None:
    """It holds the lock for the whole request, also for one that is streamed or fails."""
    app = FastAPI()

    async def locked() -> AsyncIterator[Lease]:
        async with redlock.lock("r", on_lost=on_lost) as lease:
            yield lease

    Locked = Annotated[Lease, Depends(locked)]  # noqa: N806 - a type

    @app.get("/plain")
    async def plain(lease: Locked) -> bool:
        return lease.valid

    @app.get("/stream")
    async def stream(lease: Locked) -> StreamingResponse:
        async def parts() -> AsyncIterator[str]:
            for _ in range(3):
                await asyncio.sleep(1)
                yield str(lease.valid).lower()

        return StreamingResponse(parts())

    @app.get("/fails")
    async def fails(lease: Locked) -> bool:
        raise KeyError(lease.valid)

    async with AsyncClient(transport=ASGITransport(app), base_url="http://a") as client:
        for path, text in (("/plain", "true"), ("/stream", "true" * 3)):
            reply = await client.get(path)
            assert (reply.status_code, reply.text) == (200, text)
            assert await released(masters)
        with pytest.raises(KeyError):
            await client.get("/fails")
    assert await released(masters)


class WithUnittest(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self) -> None:
        self.masters = [FakeMaster() for _ in range(3)]
        self.redlock = await self.enterAsyncContext(Redlock(self.masters))
        self.addCleanup(self.check)
        lease = await self.redlock.lock("r", on_lost="flag").acquire()
        self.addAsyncCleanup(lease.release)

    def check(self) -> None:
        assert [master.keys for master in self.masters] == [{}] * 3

    async def test_others_wait(self) -> None:
        assert await self.redlock.is_locked("r")


# Not found by pytest as a test of its own.
WithUnittest.__test__ = False  # type: ignore[attr-defined]


def test_unittest_opens_a_manager_and_releases_a_lock_in_its_clean_up() -> None:
    """It awaits a release in its loop, and would leave the block of a lock outside of that."""
    result = unittest.TestResult()
    WithUnittest("test_others_wait").run(result)
    assert result.errors + result.failures == []
    assert result.testsRun == 1
