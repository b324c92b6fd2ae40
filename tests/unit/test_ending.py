"""What becomes of a manager whose tasks are cancelled, or whose event loop is closed."""

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from redlock_aio import Lease, LockLostError, LockNotHeldError, Redlock, RedlockError
from redlock_aio.testing import FakeMaster, VirtualTimeLoop

from .kit import hang
from .sentinels import FakeSentinel, FakeService

CANCELLED = "tasks of this Redlock were cancelled"


def run(coroutine: Coroutine[Any, Any, None]) -> float:
    """Run it as `asyncio.run` does, which cancels what is left; return the loop's time then."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        loop = runner.get_loop()
        runner.run(coroutine)
    return loop.time()


@pytest.fixture
def three() -> list[FakeMaster]:
    return [FakeMaster(f"m{i}") for i in range(3)]


@pytest.fixture(autouse=True)
def no_loop_is_left() -> Iterator[None]:
    """The tests of this file run loops of their own."""
    yield
    asyncio.set_event_loop(None)


def keys(masters: list[FakeMaster]) -> list[dict[str, str]]:
    found: list[dict[str, str]] = []

    async def look() -> None:
        found.extend(master.keys for master in masters)

    run(look())
    return found


# The end of a program.


@pytest.mark.promise("S3")
@pytest.mark.parametrize("takes", [0.01, 0.3, 5.0])
def test_a_body_that_cleans_up_at_the_end_of_the_program_leaves_no_key(
    three: list[FakeMaster], takes: float
) -> None:
    ended: list[bool] = []

    async def hold(redlock: Redlock, name: str) -> None:
        async with redlock.lock(name, ttl=10_000) as lease:
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(takes)
                ended.append(lease.valid)

    async def main() -> None:
        redlock = Redlock(three, restart_guard="off")
        tasks.extend(asyncio.create_task(hold(redlock, f"r{i}")) for i in range(3))
        await asyncio.sleep(0.1)

    tasks: list[asyncio.Task[None]] = []
    assert run(main()) == pytest.approx(0.1 + takes, abs=0.15)
    assert ended == [True] * 3
    assert keys(three) == [{}] * 3


@pytest.mark.parametrize("turns", range(5))
def test_a_program_ends_that_is_cancelled_while_it_begins_to_connect(
    three: list[FakeMaster], turns: int
) -> None:
    """The tasks of the masters may not have had their first turn, and somebody tries again."""
    said: list[str] = []

    async def stubborn(redlock: Redlock) -> None:
        while not said:
            try:
                await asyncio.create_task(redlock.lock("r").acquire())
            except asyncio.CancelledError:
                continue
            except RedlockError as error:
                said.append(str(error))

    async def main() -> None:
        redlock = Redlock(three, restart_guard="off")
        async with asyncio.TaskGroup() as group:
            group.create_task(stubborn(redlock))
            for _ in range(turns + 2):
                await asyncio.sleep(0)
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

    assert run(main()) < 1
    assert CANCELLED in said[0]


def test_a_lease_that_nobody_releases_does_not_keep_the_program(three: list[FakeMaster]) -> None:
    leases: list[Lease] = []

    async def main() -> None:
        redlock = Redlock(three, restart_guard="off")
        leases.append(await redlock.lock("r", ttl=60_000).acquire())

    assert run(main()) < 0.5
    assert not leases[0].valid
    assert keys(three) == [{}] * 3


def test_a_body_that_does_not_end_keeps_its_lease_no_longer_than_the_ttl(
    three: list[FakeMaster],
) -> None:
    """Nothing extends it while the program ends, and the loss cancels it once more."""
    leases: list[Lease] = []

    async def stubborn(redlock: Redlock) -> None:
        async with redlock.lock("r", ttl=3_000) as lease:
            leases.append(lease)
            while True:
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    if lease.lost.is_set():
                        raise

    async def main() -> None:
        redlock = Redlock(three, restart_guard="off")
        tasks.append(asyncio.create_task(stubborn(redlock)))
        await asyncio.sleep(0.5)

    tasks: list[asyncio.Task[None]] = []
    assert 2 < run(main()) < 4
    assert leases[0].lost.is_set()
    assert keys(three) == [{}] * 3


@pytest.mark.parametrize("fair", [False, True])
def test_who_waits_at_the_end_of_the_program_is_told_so(
    three: list[FakeMaster], *, fair: bool
) -> None:
    """Also who does not give up when he is cancelled."""
    said: list[str] = []

    async def patient(redlock: Redlock) -> None:
        waiting = asyncio.ensure_future(redlock.lock("r", fair=fair).acquire())
        while not waiting.done():
            try:
                await asyncio.shield(waiting)
            except asyncio.CancelledError:
                continue
            except RedlockError as error:
                said.append(str(error))

    async def main() -> None:
        redlock = Redlock(three, restart_guard="off")
        leases.append(await redlock.lock("r", fair=fair).acquire())
        tasks.append(asyncio.create_task(patient(redlock)))
        await asyncio.sleep(0.5)
        for task in asyncio.all_tasks():
            if "redlock_aio" in task.get_name():
                task.cancel()
        await asyncio.wait(tasks)
        await asyncio.sleep(0.1)  # for the leases

    leases: list[Lease] = []
    tasks: list[asyncio.Task[None]] = []
    run(main())
    assert len(said) == 1
    assert CANCELLED in said[0]
    assert keys(three) == [{}] * 3


# All tasks are cancelled, and the loop goes on.


async def cancel_all() -> None:
    """Do what a shutdown helper does."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.wait(others)


def test_after_all_tasks_were_cancelled_it_says_so_and_can_be_opened_again(
    three: list[FakeMaster],
) -> None:
    async def main() -> None:
        redlock = Redlock(three, restart_guard="off")
        lease = await redlock.lock("r", ttl=10_000).acquire()
        await cancel_all()
        with pytest.raises(LockLostError, match="tasks of the Redlock"):
            await lease.extend()
        with pytest.raises(LockNotHeldError, match="tasks of the Redlock"):
            await lease.release()
        for use in (
            redlock.lock("r").acquire,
            redlock.lock("r", wait=100).acquire,
            redlock.lock("r", fair=True).acquire,
            redlock.lock("r").try_acquire,
            redlock.lock("a", "b").acquire,
        ):
            with pytest.raises(RedlockError, match=CANCELLED):
                await use()
        with pytest.raises(RedlockError, match=CANCELLED):
            await redlock.is_locked("r")
        with pytest.raises(RedlockError, match=CANCELLED):
            await redlock.force_release("r")
        async with redlock, redlock.lock("r", wait=0):
            assert [list(master.keys) for master in three] == [["r"]] * 3

    run(main())
    assert keys(three) == [{}] * 3


def test_it_is_closed_like_any_other_after_its_tasks_were_cancelled(
    three: list[FakeMaster],
) -> None:
    async def main() -> None:
        redlock = Redlock(three, restart_guard="off")
        async with redlock.lock("r"):
            pass
        await cancel_all()
        await redlock.aclose()
        with pytest.raises(RedlockError, match="closed"):
            await redlock.lock("r").acquire()

    run(main())


@pytest.mark.parametrize("hung", [2, 3])
def test_who_waits_for_masters_is_told_so_too(three: list[FakeMaster], hung: int) -> None:
    hang(three[:hung])

    async def main() -> None:
        redlock = Redlock(three, restart_guard="off")
        waiting = asyncio.create_task(redlock.lock("r").acquire())
        await asyncio.sleep(5)
        for task in asyncio.all_tasks():
            if "redlock_aio" in task.get_name():
                task.cancel()
        with pytest.raises(RedlockError, match=CANCELLED):
            await asyncio.wait_for(waiting, 5)

    run(main())


def test_a_holder_that_cancels_all_other_tasks_does_not_wait_for_itself(
    three: list[FakeMaster],
) -> None:
    """The masters' tasks wait for those that were cancelled, and it waits for theirs."""

    async def main() -> None:
        redlock = Redlock(three, restart_guard="off")
        with pytest.raises(LockLostError):
            async with redlock.lock("r", ttl=60_000):
                await cancel_all()
                await asyncio.sleep(0)
                await asyncio.sleep(1)
        await asyncio.sleep(0.1)

    assert run(main()) < 1
    assert keys(three) == [{}] * 3


# The loop is closed.


def test_one_whose_loop_is_closed_binds_anew(three: list[FakeMaster]) -> None:
    """`asyncio.run` twice, without closing it; what is known of restarts stays."""
    redlock = Redlock(three)
    lock = redlock.lock("r", wait=1_000)
    leases: list[Lease] = []

    @redlock.locked("job")
    async def job() -> str:
        return "done"

    async def main() -> None:
        async with lock:
            assert await job() == "done"
        leases.append(await redlock.lock("kept", ttl=60_000).acquire())

    run(main())
    known = [seen.run_id for seen in redlock._opener._seen]
    assert known == [master.run_id for master in three]
    run(main())
    assert [seen.run_id for seen in redlock._opener._seen] == known
    assert not any(lease.valid for lease in leases)
    assert keys(three) == [{}] * 3


def stopped_and_closed(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run it, and close the loop without cancelling what is left, as many programs do."""
    loop = VirtualTimeLoop()
    try:
        loop.run_until_complete(coroutine)
        for task in asyncio.all_tasks(loop):  # asyncio would report them
            task._log_destroy_pending = False  # type: ignore[attr-defined]
    finally:
        loop.close()


def test_a_loop_that_was_closed_with_tasks_in_it_is_let_go_of(three: list[FakeMaster]) -> None:
    redlock = Redlock(three, restart_guard="off")
    leases: list[Lease] = []

    async def first() -> None:
        leases.append(await redlock.lock("r", ttl=60_000).acquire())
        assert not leases[0].lost.is_set()

    async def second() -> None:
        before = [len(master.commands) for master in three]
        assert await redlock.lock("r").try_acquire() is None
        assert not leases[0].valid
        assert leases[0].lost.is_set()
        with pytest.raises(LockNotHeldError, match="event loop in which it was acquired was"):
            await leases[0].release()
        with pytest.raises(LockLostError, match="event loop in which it was acquired was"):
            await leases[0].extend()
        said = [c for master, n in zip(three, before, strict=True) for c in master.commands[n:]]
        assert not any(leases[0].token.encode() in command for command in said)
        async with redlock.lock("other"):
            pass
        await redlock.aclose()

    stopped_and_closed(first())
    stopped_and_closed(second())


def test_it_can_be_closed_and_opened_when_its_loop_is_closed(three: list[FakeMaster]) -> None:
    redlock = Redlock(three, restart_guard="off")

    async def use() -> None:
        async with redlock.lock("r"):
            pass

    async def close() -> None:
        await redlock.aclose()
        with pytest.raises(RedlockError, match="is closed"):
            await use()
        async with redlock:
            await use()

    async def enter() -> None:
        async with redlock:
            await use()

    for ending in (run, stopped_and_closed):
        for then in (close, enter):
            redlock = Redlock(three, restart_guard="off")
            ending(use())
            ending(then())


def test_a_loop_that_does_not_run_now_is_another_loop(three: list[FakeMaster]) -> None:
    redlock = Redlock(three, restart_guard="off")

    async def use() -> None:
        async with redlock.lock("r"):
            pass

    loop = VirtualTimeLoop()
    loop.run_until_complete(use())
    with (
        asyncio.Runner(loop_factory=VirtualTimeLoop) as runner,
        pytest.raises(RedlockError, match="in use by another event loop"),
    ):
        runner.run(use())
    loop.run_until_complete(redlock.aclose())
    loop.close()


@pytest.mark.parametrize("end", ["cancelled", "stopped"])
def test_asking_sentinels_ends_with_the_program_and_with_the_loop(end: str) -> None:
    """And begins again in the next loop, over connections of its own."""
    sentinels = [FakeSentinel(f"s{i}") for i in range(3)]
    redlock = Redlock([FakeService(sentinels, {"old": FakeMaster("old")})])

    def use(coroutine: Coroutine[Any, Any, None]) -> None:
        if end == "stopped":
            stopped_and_closed(coroutine)
        else:
            assert run(coroutine) < 5.5

    async def main() -> None:
        async with redlock.lock("r", wait=1_000, ttl=1_000):
            await asyncio.sleep(5)
            connected.append([len(sentinel._connections) for sentinel in sentinels])

    async def last() -> None:
        await main()
        await redlock.aclose()

    connected: list[list[int]] = []
    use(main())
    use(main())
    use(last())
    assert connected == [[1] * 3] * 3
    assert [len(sentinel._connections) for sentinel in sentinels] == [0] * 3
