"""A manager whose tasks are cancelled, or whose event loop is closed."""

import asyncio
import gc
import warnings
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from redlock_aio import Lease, LockLostError, LockNotHeldError, LossCause, Redlock, RedlockError
from redlock_aio.events import Acquired, Lost
from redlock_aio.testing import FakeMaster, VirtualTimeLoop

from .diary import Diary
from .kit import NEVER, Masters, commands_received, hang, keys, now, occupy, resume
from .sentinels import FakeSentinel, FakeService

CANCELLED = "tasks of this Redlock were cancelled"
LOOP_CLOSED = "event loop in which it was acquired was"

Ending = Callable[[Coroutine[Any, Any, None]], object]


def run(coroutine: Coroutine[Any, Any, None]) -> float:
    """Run *coroutine* as `asyncio.run` does, cancel the remaining tasks; return the loop's time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        loop = runner.get_loop()
        runner.run(coroutine)
    return loop.time()


def run_and_abandon(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run *coroutine*, and close the loop without cancelling other tasks, as many programs do."""
    loop = VirtualTimeLoop()
    try:
        loop.run_until_complete(coroutine)
        for task in asyncio.all_tasks(loop):  # asyncio would report these tasks
            task._log_destroy_pending = False  # type: ignore[attr-defined]
    finally:
        loop.close()


@pytest.fixture
def masters() -> Masters:
    return [FakeMaster(f"m{i}") for i in range(3)]


@pytest.fixture
def redlock(masters: Masters) -> Redlock:
    """Return a manager that is not closed, and that each loop of a test may use."""
    return Redlock(masters, restart_guard="off")


@pytest.fixture(autouse=True)
def no_loop_is_left() -> Iterator[None]:
    """Replace the check of the loop: the tests of this file run loops of their own."""
    yield
    asyncio.set_event_loop(None)


def check_no_keys(masters: Masters) -> None:
    """Check that no key is left; in a loop, because an expiry needs a clock."""

    async def look() -> None:
        assert keys(masters) == [{}] * 3

    run(look())


async def cancel_all() -> None:
    """Cancel all other tasks, as a shutdown helper does."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.wait(others)


def cancel_own() -> None:
    """Cancel the tasks of the manager."""
    for task in asyncio.all_tasks():
        if "redlock_aio" in task.get_name():
            task.cancel()


async def use(redlock: Redlock) -> None:
    async with redlock.lock("r"):
        pass


# The end of a program


@pytest.mark.promise("S3")
@pytest.mark.parametrize(("seconds", "timeout"), [(0.01, None), (0.01, 2_000), (5.0, None)])
def test_bodies_that_clean_up_at_the_end_leave_no_key(
    masters: Masters, seconds: float, timeout: int | None
) -> None:
    redlock = Redlock(masters, restart_guard="off", master_timeout=timeout)
    ended: list[bool] = []

    async def hold(name: str) -> None:
        async with redlock.lock(name, ttl=10_000) as lease:
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(seconds)
                ended.append(lease.valid)

    async def main() -> None:
        tasks.extend(asyncio.create_task(hold(f"r{i}")) for i in range(3))
        await asyncio.sleep(0.1)

    tasks: list[asyncio.Task[None]] = []
    assert run(main()) == pytest.approx(0.1 + seconds, abs=0.15)
    assert ended == [True] * 3
    check_no_keys(masters)


@pytest.mark.parametrize("turns", range(5))
def test_a_program_cancelled_while_it_connects_ends(redlock: Redlock, turns: int) -> None:
    """The masters' tasks may not have run yet, and a task retries."""
    errors: list[str] = []

    async def stubborn() -> None:
        while not errors:
            try:
                await asyncio.create_task(redlock.lock("r").acquire())
            except asyncio.CancelledError:
                continue
            except RedlockError as error:
                errors.append(str(error))

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(stubborn())
            for _ in range(turns + 2):
                await asyncio.sleep(0)
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

    assert run(main()) < 1
    assert CANCELLED in errors[0]


def test_a_lease_without_references_does_not_delay_the_end(
    redlock: Redlock, masters: Masters
) -> None:
    leases: list[Lease] = []

    async def main() -> None:
        leases.append(await redlock.lock("r", ttl=60_000).acquire())

    assert run(main()) < 0.5
    assert not leases[0].valid
    check_no_keys(masters)


def test_a_body_that_does_not_end_loses_its_lease(redlock: Redlock, masters: Masters) -> None:
    """The lease is not extended while the program ends, and its loss cancels the body again."""
    leases: list[Lease] = []

    async def stubborn() -> None:
        async with redlock.lock("r", ttl=3_000) as lease:
            leases.append(lease)
            while True:
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    if lease.lost.is_set():
                        raise

    async def main() -> None:
        tasks.append(asyncio.create_task(stubborn()))
        await asyncio.sleep(0.5)

    tasks: list[asyncio.Task[None]] = []
    assert 2 < run(main()) < 4
    assert leases[0].lost.is_set()
    check_no_keys(masters)


# All tasks are cancelled, and the loop continues


@pytest.mark.parametrize(("fair", "hung"), [(False, 0), (True, 0), (False, 2), (False, 3)], ids=str)
def test_waiters_get_an_error(redlock: Redlock, masters: Masters, *, fair: bool, hung: int) -> None:
    """They wait for a holder, or for replies of masters."""

    async def main() -> None:
        hang(masters[:hung])
        lock = redlock.lock("r", fair=fair)
        if not hung:
            leases.append(await lock.acquire())
        waiting = asyncio.create_task(lock.acquire())
        await asyncio.sleep(5)
        cancel_own()
        await asyncio.sleep(0.001)
        assert all(lease.valid for lease in leases)
        began = now()
        with pytest.raises(RedlockError, match=CANCELLED):
            await lock.acquire()  # it does not wait for the end of the lease
        assert now() == began
        with pytest.raises(RedlockError, match=CANCELLED):
            await asyncio.wait_for(waiting, 5)
        await asyncio.sleep(0.1)  # for the leases

    leases: list[Lease] = []
    run(main())
    check_no_keys(masters)


@pytest.mark.parametrize("closes", [False, True])
def test_a_manager_whose_tasks_were_cancelled_can_be_opened_again(
    redlock: Redlock, masters: Masters, *, closes: bool
) -> None:
    async def main() -> None:
        lease = await redlock.lock("r", ttl=10_000).acquire()
        await cancel_all()
        with pytest.raises(LockLostError, match="tasks of its Redlock"):
            await lease.extend()
        with pytest.raises(LockNotHeldError, match="tasks of its Redlock"):
            await lease.release()
        for call in (
            redlock.lock("r").acquire,
            redlock.lock("r", wait=100).acquire,
            redlock.lock("r", fair=True).acquire,
            redlock.lock("r").try_acquire,
            redlock.lock("a", "b").acquire,
            lambda: redlock.is_locked("r"),
            lambda: redlock.inspect("r"),
            redlock.semaphore("r", permits=2).inspect,
            redlock.find_locks,
            redlock.check,
            lambda: redlock.force_release("r"),
        ):
            with pytest.raises(RedlockError, match=CANCELLED):
                await call()
        if closes:
            await redlock.aclose()
            with pytest.raises(RedlockError, match="closed"):
                await redlock.lock("r").acquire()
        async with redlock, redlock.lock("r", wait=0):
            assert [list(master.keys) for master in masters] == [["r"]] * 3

    run(main())
    check_no_keys(masters)


def test_a_holder_that_cancels_all_other_tasks_does_not_wait_for_itself(
    redlock: Redlock, masters: Masters
) -> None:
    """The masters' tasks wait for the cancelled ones, and the holder waits for the masters'."""

    async def main() -> None:
        with pytest.raises(LockLostError):
            async with redlock.lock("r", ttl=60_000):
                await cancel_all()
                await asyncio.sleep(0)
                await asyncio.sleep(1)
        await asyncio.sleep(0.1)

    assert run(main()) < 1
    check_no_keys(masters)


# The loop is closed


def test_the_next_loop_can_use_the_manager(masters: Masters) -> None:
    """`asyncio.run` may be called twice; facts about restarts are kept."""
    redlock = Redlock(masters)
    lock = redlock.lock("r", wait=1_000)
    leases: list[Lease] = []

    @redlock.locked("job")
    async def job() -> str:
        return "done"

    async def main() -> None:
        async with lock:
            assert await job() == "done"
        leases.append(await redlock.lock("kept", ttl=60_000).acquire())

    for _ in range(2):
        run(main())
        known = [seen.run_id for seen in redlock._opener._seen]
        assert known == [master.run_id for master in masters]
    assert not any(lease.valid for lease in leases)
    check_no_keys(masters)


def test_leases_of_a_closed_loop_are_lost(redlock: Redlock, masters: Masters) -> None:
    leases: list[Lease] = []

    async def first() -> None:
        leases.append(await redlock.lock("r", ttl=60_000).acquire())
        assert not leases[0].lost.is_set()

    async def second() -> None:
        (lease,) = leases
        before = commands_received(masters)
        assert await redlock.lock("r").try_acquire() is None
        assert not lease.valid
        assert lease.lost.is_set()
        with pytest.raises(LockNotHeldError, match=LOOP_CLOSED):
            await lease.release()
        with pytest.raises(LockLostError, match=LOOP_CLOSED):
            await lease.extend()
        sent = [c for master, n in zip(masters, before, strict=True) for c in master.commands[n:]]
        assert not any(lease.token.encode() in command for command in sent)
        async with redlock.lock("other"):
            pass
        await redlock.aclose()

    run_and_abandon(first())
    run_and_abandon(second())


@pytest.mark.parametrize("close", [False, True])
def test_a_listener_gets_the_leases_that_a_closed_loop_has_lost(
    masters: Masters, *, close: bool
) -> None:
    """Without an end of each lease, spans would stay open, and losses would not be counted."""
    diary, leases = Diary(), list[Lease]()
    redlock = Redlock(masters, restart_guard="off", listener=diary)

    async def first() -> None:
        leases.append(await redlock.lock("r", ttl=60_000).acquire())
        await asyncio.sleep(0.25)

    async def second() -> None:
        if not close:
            assert await redlock.lock("r").try_acquire() is None
        await redlock.aclose()
        await asyncio.sleep(0)

    run_and_abandon(first())
    run(second())
    (acquired,) = diary.of(Acquired)
    assert isinstance(acquired, Acquired)
    cause = LossCause.LOOP_CLOSED
    assert diary.of(Lost) == [Lost(("r",), acquired.fingerprint, cause.text, 250, cause)]


@pytest.mark.parametrize("ending", [run, run_and_abandon])
def test_after_its_loop_a_manager_can_be_closed_and_opened(
    masters: Masters, ending: Ending
) -> None:
    async def close() -> None:
        await redlock.aclose()
        with pytest.raises(RedlockError, match="is closed"):
            await use(redlock)
        await enter()

    async def enter() -> None:
        async with redlock:
            await use(redlock)

    for then in (close, enter):
        redlock = Redlock(masters, restart_guard="off")
        ending(use(redlock))
        ending(then())


def test_a_manager_that_is_dropped_in_a_loop_that_was_left_warns(masters: Masters) -> None:
    """As in IPython; without the warning Python would only name its sockets."""
    loop = VirtualTimeLoop()
    redlock = Redlock(masters, restart_guard="off")
    loop.run_until_complete(use(redlock))
    with pytest.warns(
        ResourceWarning, match=r"without aclose\(\), .* use 'async with redlock', or"
    ):
        del redlock
        gc.collect()
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(1))
    loop.close()


def test_a_manager_that_its_loop_closes_does_not_warn(masters: Masters) -> None:
    async def main() -> None:
        await use(Redlock(masters, restart_guard="off"))
        gc.collect()  # dropped while the loop runs

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(main())
        redlock = Redlock(masters, restart_guard="off")
        run(use(redlock))
        del redlock
        never_used = Redlock(masters)
        del never_used
        gc.collect()


@pytest.mark.parametrize("ending", [run, run_and_abandon])
def test_a_manager_whose_loop_was_closed_counts_nothing(redlock: Redlock, ending: Ending) -> None:
    """Nothing in that loop can end the lease any more, or find that a master is away."""
    leases: list[Lease] = []

    async def main() -> None:
        leases.append(await redlock.lock("r").acquire())
        assert redlock.statistics().leases == 1

    ending(main())
    seen, why = redlock.statistics(), "its event loop was closed"
    assert (seen.is_open, seen.leases) == (False, 0)
    masters = {(master.up, master.votes, master.reason) for master in seen.masters}
    assert masters == {(False, False, why)}
    assert repr(redlock) == f"<Redlock 3 masters, {why}>"
    run(redlock.aclose())
    assert redlock.statistics().masters[0].reason == "closed"


def test_a_loop_that_pauses_is_another_loop(redlock: Redlock) -> None:
    loop = VirtualTimeLoop()
    loop.run_until_complete(use(redlock))
    with pytest.raises(RedlockError, match="in use by another event loop"):
        run(use(redlock))
    loop.run_until_complete(redlock.aclose())
    loop.close()


@pytest.mark.parametrize("ending", [run, run_and_abandon])
def test_connections_to_sentinels_end_with_the_loop(ending: Ending) -> None:
    """The next loop makes new connections."""
    sentinels = [FakeSentinel(f"s{i}") for i in range(3)]
    redlock = Redlock([FakeService(sentinels, {"old": FakeMaster("old")})])

    async def main() -> None:
        async with redlock.lock("r", wait=1_000, ttl=1_000):
            await asyncio.sleep(5)
            connected.append([len(sentinel._connections) for sentinel in sentinels])

    async def last() -> None:
        await main()
        await redlock.aclose()

    connected: list[list[int]] = []
    for work in (main, main, last):
        ended = ending(work())
        assert not isinstance(ended, float) or ended < 5.5
    assert connected == [[1] * 3] * 3
    assert [len(sentinel._connections) for sentinel in sentinels] == [0] * 3


def test_closing_ends_a_wait_at_once_though_a_master_hangs(masters: Masters) -> None:
    """The end of its connections alone would wake the waiter a master timeout later."""

    async def program() -> None:
        async with Redlock(masters, restart_guard="off", master_timeout=500) as redlock:
            occupy(masters)
            waiter = asyncio.create_task(redlock.lock("r", retry=NEVER).acquire())
            await asyncio.sleep(0.1)
            hang(masters)
            began = now()
            closing = asyncio.create_task(redlock.aclose())
            with pytest.raises(RedlockError, match="was closed"):
                await waiter
            assert now() - began < 0.01
            await closing
        resume(masters)

    run(program())
