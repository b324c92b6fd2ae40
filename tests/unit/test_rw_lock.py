"""Read-write locks through the public API: who is let in, in which order, and what ends it."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from redlock_aio import (
    Lease,
    Lock,
    LockLostError,
    LockNotAcquiredError,
    LossCause,
    QuorumUnavailableError,
    Redlock,
    RedlockError,
    Retry,
)
from redlock_aio._engine.hold.watchdog import CHECK_AFTER, CHECK_INTERVAL
from redlock_aio._protocol import scripts
from redlock_aio._protocol.primitives import Mutex, Share

from . import kit
from .cancelling import When, every_place
from .kit import Masters, hang, now, occupy, refused, remaining_keys, settle

READS: dict[str, Any] = {"shared": True}
WRITES: dict[str, Any] = {"fair": True}
LOST_SOON = CHECK_AFTER + CHECK_INTERVAL + 0.02
"""Seconds within which a holder hears that its lock was released by force."""

pytestmark = pytest.mark.usefixtures("nothing_stays")


async def spans(*uses: tuple[Redlock, dict[str, Any]], hold: float = 1.0) -> list[float]:
    """Acquire `r` in each way, begun one after the other; return when each was acquired."""
    began, tasks = now(), []
    for redlock, options in uses:
        tasks.append(
            asyncio.create_task(kit.acquired_at(redlock, retry=None, hold=hold, **options))
        )
        await asyncio.sleep(0.01)
    return [at - began for at in await asyncio.gather(*tasks)]


async def in_another_task(lock: Lock) -> Lease:
    return await asyncio.create_task(lock.acquire())


# Who is let in.


async def test_many_read_at_once_and_nobody_writes_meanwhile(
    redlock: Redlock, other: Redlock
) -> None:
    docs = redlock.rw_lock("r")
    one, two = [await in_another_task(docs.read()) for _ in range(2)]
    async with one, two, other.lock("r", **READS) as three:
        assert [lease.shared for lease in (one, two, three)] == [True] * 3
        assert len({lease.token for lease in (one, two, three)}) == 3
        for options in (WRITES, {}, {"fencing": True}):
            assert (await asyncio.create_task(refused(other, **options))).holder is not None
    async with docs.write() as lease:
        assert not lease.shared
        assert (await refused(other, **READS)).holder is not None


async def test_an_uncontended_read_takes_one_round_trip(redlock: Redlock, masters: Masters) -> None:
    await kit.acquired_at(redlock, "other", retry=None, **READS)  # the clocks are known
    before, began = kit.commands_received(masters), now()
    async with redlock.lock("r", **READS):
        assert now() - began == pytest.approx(kit.LATENCY)
    await settle(masters, 0.01)
    assert [b - a for a, b in zip(before, kit.commands_received(masters), strict=True)] == [2] * 5


@pytest.mark.parametrize("options", [WRITES, {}, {"fencing": True}], ids=str)
async def test_a_writer_waits_for_the_last_reader(
    redlock: Redlock, other: Redlock, options: dict[str, Any]
) -> None:
    uses = [(redlock, READS), (other, READS), (other, options)]
    first, second, writer = await spans(*uses)
    assert first < second < 0.02
    assert 1.01 < writer < 1.03


async def test_readers_that_come_after_a_waiting_writer_wait(
    redlock: Redlock, other: Redlock
) -> None:
    uses = [(redlock, READS), (other, WRITES), (redlock, READS), (other, READS), (redlock, WRITES)]
    times = await spans(*uses)
    assert times == pytest.approx([0.0, 1.0, 2.0, 2.0, 3.0], abs=0.05)


async def test_readers_behind_a_writer_that_gives_up_are_let_in_at_once(
    redlock: Redlock, other: Redlock
) -> None:
    async with redlock.lock("r", **READS):
        writer = asyncio.create_task(refused(redlock, wait=500, **WRITES))
        await asyncio.sleep(0.1)
        began = now()
        async with other.lock("r", **READS):
            assert now() - began == pytest.approx(0.4, abs=0.02)
        await writer


async def test_readers_in_the_middle_are_let_in_when_the_writer_before_them_gives_up(
    redlock: Redlock, other: Redlock
) -> None:
    """A reader that was granted its share in the queue is first there all the time."""
    writing = asyncio.create_task(kit.acquired_at(redlock, retry=None, hold=0.5, **WRITES))
    await asyncio.sleep(0.05)
    first = asyncio.create_task(kit.acquired_at(redlock, retry=None, hold=3.0, **READS))
    await asyncio.sleep(0.6)  # it reads, and has its entry
    writer = asyncio.create_task(refused(redlock, wait=300, **WRITES))
    await asyncio.sleep(0.1)
    began = now()
    async with other.lock("r", **READS):
        assert now() - began == pytest.approx(0.2, abs=0.02)
    await asyncio.gather(writing, first, writer)


@pytest.mark.full
async def test_a_hundred_readers_are_let_in_together(redlock: Redlock, other: Redlock) -> None:
    writing = asyncio.create_task(kit.acquired_at(redlock, retry=None, hold=1.0, **WRITES))
    await asyncio.sleep(0.05)
    tasks = [
        asyncio.create_task(kit.acquired_at(manager, retry=None, hold=0.5, **READS))
        for _ in range(50)
        for manager in (redlock, other)
    ]
    times = await asyncio.gather(*tasks)
    assert max(times) - await writing == pytest.approx(1.0, abs=0.05)


async def test_a_writer_among_a_stream_of_readers_is_let_in(
    redlock: Redlock, other: Redlock
) -> None:
    async def read_for_ever(manager: Redlock) -> None:
        while True:
            await kit.acquired_at(manager, retry=None, hold=0.05, **READS)

    readers = [asyncio.create_task(read_for_ever(m)) for m in (redlock, other) for _ in range(5)]
    await asyncio.sleep(0.3)
    for _ in range(5):
        began = now()
        async with other.lock("r", **WRITES):
            assert now() - began < 0.2
        await asyncio.sleep(0.1)
    for reader in readers:
        reader.cancel()
    await asyncio.wait(readers)


async def test_another_library_excludes_readers_and_is_excluded(
    redlock: Redlock, masters: Masters
) -> None:
    occupy(masters, ttl=500)
    async with redlock.lock("r", **READS):
        assert now() > 0.5
        for master in masters:
            assert (
                kit.execute(master, b"*4\r\n$3\r\nSET\r\n$1\r\nr\r\n$1\r\nx\r\n$2\r\nNX\r\n")
                is None
            )


# What ends a share.


async def test_a_dead_reader_frees_its_share_though_another_extends(
    redlock: Redlock, other: Redlock, masters: Masters
) -> None:
    dead = await redlock.lock("r", ttl=1_000, auto_extend=False, on_lost="flag", **READS).acquire()
    assert dead.valid
    async with other.lock("r", ttl=300, **READS) as alive:
        await asyncio.sleep(1.1)
        state = await other.inspect("r")
        assert [reader.holder.fingerprint for reader in state.readers] == [alive.fingerprint]
    began = now()
    async with other.lock("r", **WRITES):
        assert now() - began < 0.01
    await settle(masters, 0.1)


async def test_a_writer_gets_in_an_eighth_after_the_ttl_of_a_dead_reader(
    redlock: Redlock, other: Redlock
) -> None:
    dead = await redlock.lock("r", ttl=800, auto_extend=False, on_lost="flag", **READS).acquire()
    assert dead.valid
    began = now()
    async with other.lock("r", **WRITES):
        assert 0.75 < now() - began < 0.8 * 9 / 8 + 0.05


async def test_extensions_beside_a_long_share_do_not_change_the_lock(
    redlock: Redlock, other: Redlock, masters: Masters
) -> None:
    """Each change of the lock is pushed to all who read it."""
    async with redlock.lock("r", ttl=10_000, **READS), other.lock("r", ttl=300, **READS):
        await asyncio.sleep(0.05)
        ends = masters[0]._keys[b"r"][1]
        await asyncio.sleep(2)
        assert masters[0]._keys[b"r"][1] == ends
        assert kit.ran(masters[0], scripts.EXTEND) > 15


@pytest.mark.parametrize("count", [1, 3])
async def test_a_forced_release_ends_all_readers_of_all_programs(
    redlock: Redlock, other: Redlock, count: int
) -> None:
    leases = [
        await in_another_task(manager.lock("r", on_lost="flag", **READS))
        for manager in (redlock, other)
        for _ in range(count)
    ]
    await asyncio.sleep(0.5)
    began = now()
    assert await redlock.force_release("r")
    assert now() - began < LOST_SOON + 0.3
    await asyncio.sleep(LOST_SOON)
    assert [lease.lost.is_set() for lease in leases] == [True] * 2 * count
    with pytest.raises(LockLostError) as caught:
        leases[-1].ensure_valid()
    assert caught.value.cause is LossCause.FORCED
    await kit.acquired_at(other, **WRITES)


@pytest.mark.parametrize("latency", [0.001, pytest.param(0.02, marks=pytest.mark.full)])
async def test_many_readers_of_a_process_hear_of_a_forced_release_before_others_get_in(
    redlock: Redlock, other: Redlock, masters: Masters, latency: float
) -> None:
    """Although one more of them has just come, whose own change has ended the tracking."""
    kit.slow(masters, latency)
    await other.inspect("r")
    lock = redlock.lock("r", on_lost="flag", **READS)
    leases = list(await asyncio.gather(*[in_another_task(lock) for _ in range(100)]))
    await asyncio.sleep(2)
    leases.append(await in_another_task(lock))
    writer = asyncio.create_task(in_another_task(other.lock("r", **WRITES)))
    await other.force_release("r")
    written = await writer
    assert not [lease for lease in leases if lease.valid]
    await written.release()


async def test_a_reader_that_comes_after_those_that_were_seen_is_not_released_by_force(
    redlock: Redlock, other: Redlock, masters: Masters
) -> None:
    first = await redlock.lock("r", **READS).acquire()
    kit.slow(masters, 0.02)
    forcing = asyncio.create_task(redlock.force_release("r"))
    await asyncio.sleep(0.012)  # the inspection is executed, and the revocation not sent yet
    releasing = asyncio.create_task(first.release())
    await asyncio.sleep(0)
    async with redlock.lock("r", **READS) as second:
        await releasing
        assert not await forcing
        await asyncio.sleep(1)
        assert second.valid
        assert await other.is_locked("r")


@pytest.mark.parametrize("options", [READS, WRITES, {}], ids=["read", "fair", "plain"])
async def test_a_forced_release_whose_replies_are_late_ends_the_lease_of_its_process(
    redlock: Redlock, masters: Masters, options: dict[str, Any]
) -> None:
    """The masters have revoked the lock, and push that to no connection that has done it."""
    lease = await redlock.lock("r", ttl=30_000, on_lost="flag", **options).acquire()
    await asyncio.sleep(1)
    forcing = asyncio.create_task(redlock.force_release("r"))
    await asyncio.sleep(0.8 * kit.LATENCY)
    kit.slow(masters, 0.4)  # the revocation is executed, and its replies come too late
    with pytest.raises(QuorumUnavailableError):
        await forcing
    assert lease.lost.is_set()
    kit.slow(masters, kit.LATENCY)
    await settle(masters, 2)


@pytest.mark.full
async def test_short_reads_beside_a_long_one_seldom_change_the_lock(
    redlock: Redlock, other: Redlock, masters: Masters
) -> None:
    """Each change is pushed to all readers, which check their keys."""
    async with redlock.lock("r", ttl=5_000, **READS):
        await asyncio.sleep(0.5)
        ends, changes = 0.0, 0
        for _ in range(200):
            await kit.acquired_at(other, ttl=5_000, hold=0.02, retry=None, **READS)
            await asyncio.sleep(0.03)
            changes += masters[0]._keys[b"r"][1] != ends
            ends = masters[0]._keys[b"r"][1]
        assert changes < 30


async def test_a_forced_release_that_comes_late_does_not_end_later_readers(
    redlock: Redlock, other: Redlock, masters: Masters
) -> None:
    """A master that hung executes it when others read; the lease on the other four would end."""
    early = await redlock.lock("r", ttl=1_000, on_lost="flag", **READS).acquire()
    hang(masters[:1])
    assert await other.force_release("r")
    assert early.lost.is_set()
    await asyncio.sleep(2)
    async with redlock.lock("r", ttl=9_000, **READS) as lease:
        kit.resume(masters)
        await asyncio.sleep(1)
        assert lease.valid
        assert kit.kept_until(masters[4], "r", lease) > now()


async def test_a_lock_that_nobody_reads_any_more_is_released_by_force(
    other: Redlock, masters: Masters
) -> None:
    for master in masters:  # for a program that dies
        kit.execute(master, Share(Mutex(b"r")).restore(b"of the dead", 8_000))
    await asyncio.sleep(8.5)
    state = await other.inspect("r")
    assert (state.locked, state.readers) == (True, ())
    assert await other.force_release("r")
    assert not await other.is_locked("r")


async def test_readers_that_were_let_in_leave_room_in_the_queue(masters: Masters) -> None:
    async with Redlock(masters, restart_guard="off", max_waiters=3) as redlock:
        writing = asyncio.create_task(kit.acquired_at(redlock, retry=None, hold=0.5, **WRITES))
        await asyncio.sleep(0.1)
        reading = [
            asyncio.create_task(kit.acquired_at(redlock, retry=None, hold=1.0, **READS))
            for _ in range(3)
        ]
        await asyncio.sleep(0.5)
        async with redlock.lock("r", wait=2_000, **WRITES):
            assert all(task.done() for task in reading)
        await asyncio.gather(writing, *reading)


@pytest.mark.parametrize(("first", "second"), [(READS, WRITES), (WRITES, READS), ({}, READS)])
async def test_a_lease_is_lost_at_once_if_the_masters_let_in_another_of_its_process(
    redlock: Redlock, masters: Masters, first: Any, second: Any
) -> None:
    """No master pushes that, because both came over one connection."""
    lost = await redlock.lock("r", on_lost="flag", **first).acquire()
    kit.delete(masters[:3])  # before the masters were asked to push changes
    async with await in_another_task(redlock.lock("r", on_lost="flag", **second)):
        await asyncio.sleep(0.01)
        assert lost.lost.is_set()
    await settle(masters, 0.1)


async def test_the_masters_notify_a_reader_after_another_of_its_process_has_left(
    redlock: Redlock, masters: Masters
) -> None:
    """The release of the other one ends the tracking of the key for both."""
    stays = await redlock.lock("r", ttl=30_000, on_lost="flag", **READS).acquire()
    leaves = await in_another_task(redlock.lock("r", ttl=60_000, **READS))
    await asyncio.sleep(0.5)
    await leaves.release()  # changes the end of the lock
    await asyncio.sleep(0.5)
    for master in masters:
        master.delete("r")
    await asyncio.sleep(LOST_SOON)
    assert stays.lost.is_set()
    await settle(masters, 0.1)


async def test_the_loss_of_a_majority_cancels_the_body(redlock: Redlock, masters: Masters) -> None:
    with pytest.raises(LockLostError) as caught:
        async with redlock.lock("r", **READS):
            await asyncio.sleep(0.3)
            kit.delete(masters[:3])
            await asyncio.sleep(9)
    assert now() < 1
    assert caught.value.cause is LossCause.KEY_GONE


async def test_a_lost_share_is_restored_where_it_is_missing(
    redlock: Redlock, masters: Masters
) -> None:
    async with redlock.lock("r", ttl=300, **READS) as lease:
        kit.delete(masters[:2])
        await asyncio.sleep(0.5)
        assert all(kit.kept_until(master, "r", lease) > now() for master in masters)
        assert lease.valid


async def test_two_of_five_masters_are_enough_to_lose_nothing(
    redlock: Redlock, masters: Masters
) -> None:
    hang(masters[:2])
    async with redlock.lock("r", ttl=1_000, **READS) as lease:
        await asyncio.sleep(3)
        assert lease.valid
    kit.resume(masters)
    await settle(masters, 1)


# One holder that asks again.


async def test_an_upgrade_is_refused_at_once(redlock: Redlock) -> None:
    docs = redlock.rw_lock("r", reentrant=True)
    async with docs.read():
        began = now()
        with pytest.raises(RedlockError, match="this task itself reads 'r'; release it first"):
            await docs.write(wait=1_000).acquire()
        with pytest.raises(RedlockError, match="release it first"):
            await redlock.lock("r", "s").acquire()
        with pytest.raises(RedlockError, match="release it first"):
            await redlock.lock("r").try_acquire()
        assert now() == began
        with pytest.raises(LockNotAcquiredError, match="now by readers"):
            await asyncio.create_task(docs.write(wait=50).acquire())


async def test_two_tasks_of_an_owner_can_not_read_and_write(redlock: Redlock) -> None:
    docs = redlock.rw_lock("r", owner="x", reentrant=True)
    async with docs.read():
        with pytest.raises(RedlockError, match="its owner reads 'r'"):
            await asyncio.create_task(docs.write().acquire())


async def test_a_read_inside_the_own_write_shares_its_lease(
    redlock: Redlock, masters: Masters
) -> None:
    docs = redlock.rw_lock("r", reentrant=True)
    async with docs.write(fencing=True) as outer:
        before = kit.commands_received(masters)
        async with docs.read() as inner:
            assert inner.token == outer.token
            assert (inner.hold_count, inner.shared) == (2, False)
            assert inner.fencing_token == outer.fencing_token
        assert kit.commands_received(masters) == before
        with pytest.raises(RedlockError, match="reentrant=True acquires it again"):
            await redlock.lock("r", **READS).acquire()


async def test_a_nested_read_shares_the_lease_though_a_writer_waits(
    redlock: Redlock, other: Redlock
) -> None:
    docs = redlock.rw_lock("r", reentrant=True)
    async with docs.read() as outer:
        writer = asyncio.create_task(kit.acquired_at(other, retry=None, **WRITES))
        await asyncio.sleep(0.1)
        began = now()
        async with docs.read() as inner:
            assert now() == began
            assert (inner.token, inner.hold_count) == (outer.token, 2)
        with pytest.raises(RedlockError, match="might never be free: this task itself reads it"):
            await redlock.lock("r", **READS).acquire()
    await writer


# Errors and options.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fencing": True}, "fencing must not be True with shared=True"),
        ({"hold_at_least": 1}, "hold_at_least must be 0 with shared=True"),
        ({"fair": False}, "fair must not be False with shared=True"),
        ({"retry": Retry()}, "retry must be None with shared=True"),
    ],
)
async def test_options_that_readers_can_not_have(
    redlock: Redlock, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        redlock.lock("r", shared=True, **options)


async def test_a_share_has_one_resource(redlock: Redlock) -> None:
    with pytest.raises(ValueError, match="shared=True takes one resource, not 2"):
        redlock.lock("r", "s", shared=True)
    with pytest.raises(TypeError, match="shared must be a bool, not a str"):
        redlock.lock("r", shared="yes")  # type: ignore[arg-type]


@pytest.mark.parametrize("side", ["read", "write"])
async def test_the_sides_choose_what_they_are(redlock: Redlock, side: str) -> None:
    docs = redlock.rw_lock("r", ttl=5_000)
    make: Callable[..., object] = getattr(docs, side)
    for name in ("shared", "fair"):
        with pytest.raises(TypeError, match=f"{side}\\(\\) has no option '{name}'"):
            make(**{name: True})
    assert repr(make(ttl=3_000)) == "<Lock 'r', ttl 3000 ms>"
    assert repr(make()) == "<Lock 'r', ttl 5000 ms>"


async def test_the_errors_of_a_read_write_lock_come_when_it_is_made(redlock: Redlock) -> None:
    with pytest.raises(ValueError, match="ttl"):
        redlock.rw_lock("r", ttl=1)
    with pytest.raises(TypeError, match="no option 'timeout'"):
        redlock.rw_lock("r", timeout=1)  # type: ignore[call-arg]
    docs = redlock.rw_lock("r")
    with pytest.raises(TypeError, match=r"use its read\(\) or its write\(\)"):
        async with docs:  # type: ignore[attr-defined]
            pass


async def test_a_fencing_manager_gives_readers_no_token(masters: Masters) -> None:
    async with Redlock(masters, fencing=True, restart_guard="off") as redlock:
        docs = redlock.rw_lock("r")
        async with docs.read() as lease:
            assert not hasattr(lease, "fencing_token")
            with pytest.raises(RedlockError, match="can't be handed over: the lock is shared"):
                lease.export()
        async with docs.write() as lease:
            assert lease.fencing_token


async def test_a_decorated_reader(redlock: Redlock, other: Redlock) -> None:
    @redlock.locked("{name}", shared=True)
    async def read(name: str) -> str:
        await asyncio.sleep(1)
        return name

    @other.locked("{name}", skip_if_locked=True, fair=True)
    async def write(name: str) -> str:
        return name

    began = now()
    reading = asyncio.gather(read("r"), read("r"))
    await asyncio.sleep(0.1)
    assert await write("r") is None
    assert [*await reading] == ["r", "r"]
    assert now() - began < 1.1
    assert await write("r") == "r"


async def test_a_reader_that_waits_behind_a_writer_is_told_so(
    redlock: Redlock, other: Redlock
) -> None:
    async with redlock.lock("r", **READS):
        writer = asyncio.create_task(kit.acquired_at(redlock, retry=None, **WRITES))
        await asyncio.sleep(0.05)
        error = await refused(other, **READS)
        assert error.hint == "readers have it, and a writer that came earlier comes first"
    await writer


async def test_an_error_names_readers_as_the_holder(redlock: Redlock, other: Redlock) -> None:
    async with redlock.lock("r", ttl=8_000, **READS):
        error = await refused(other, wait=30)
        assert str(error.holder) == "readers"
        assert error.retry_after == pytest.approx(9_000, abs=50)
        assert "held by others, now by readers" in str(error)


# What others see.


async def test_inspect_names_readers_and_waiting_writers(redlock: Redlock, other: Redlock) -> None:
    async with (
        redlock.lock("r", ttl=5_000, metadata={"job": 1}, **READS) as one,
        other.lock("r", ttl=9_000, **READS) as two,
    ):
        waiting = [
            asyncio.create_task(kit.acquired_at(redlock, retry=None, **options))
            for options in (WRITES, READS, READS)
        ]
        await asyncio.sleep(0.05)
        state = await redlock.inspect("r")
        assert (state.locked, state.shared, state.certain, state.split) == (True, True, True, False)
        assert (state.holder, state.orphaned) == (None, ())
        assert (state.waiters, state.waiting_writers) == (3, 1)
        assert [r.holder.fingerprint for r in state.readers] == [two.fingerprint, one.fingerprint]
        assert state.readers[1].holder.metadata == {"job": 1}
        assert state.readers[1].remaining == pytest.approx(5_000, abs=100)
        assert "3 wait, 1 of them to write" in str(state)
        assert str(state).startswith("'r' is read by 2 on 5 of 5 masters, ")
        assert await other.is_locked("r")
        (found,) = (await other.find_locks()).states
        assert found.shared
    await asyncio.gather(*waiting)
    assert not (await redlock.inspect("r")).locked


async def test_a_reader_on_a_minority_is_no_reader(redlock: Redlock, masters: Masters) -> None:
    async with redlock.lock("r", auto_extend=False, on_lost="flag", **READS):
        kit.delete(masters[:2])
        state = await redlock.inspect("r")
        assert len(state.readers) == 1
        master = masters[2]
        share = master._keys[b"redlock_aio:shares:{r}"] = ({}, now() + 9)
        assert share
        state = await redlock.inspect("r")
        assert (state.shared, state.readers) == (True, ())
        assert str(state).startswith("'r' is read by nobody any more on 3 of 5 masters")


# Cancellation, and masters that do not answer.


async def read(redlock: Redlock) -> None:
    async with redlock.lock("r", **READS) as lease:
        await lease.extend()
        await asyncio.sleep(0.01)


async def read_behind_another_library(redlock: Redlock) -> None:
    async with redlock.lock("theirs", **READS):
        pass


async def read_behind_a_writer(redlock: Redlock) -> None:
    async def write() -> None:
        async with redlock.lock("r", **WRITES):
            await asyncio.sleep(0.02)

    async with asyncio.TaskGroup() as group:
        group.create_task(write())
        await asyncio.sleep(0.001)
        async with redlock.lock("r", **READS):
            await asyncio.sleep(0.01)


async def write_behind_readers(redlock: Redlock) -> None:
    async def reading() -> None:
        async with redlock.lock("r", **READS):
            await asyncio.sleep(0.02)

    async with asyncio.TaskGroup() as group:
        group.create_task(reading())
        group.create_task(reading())
        await asyncio.sleep(0.001)
        async with redlock.lock("r", **WRITES):
            await asyncio.sleep(0.01)


@pytest.mark.spread(1)
@pytest.mark.parametrize("when", ["waiting", "answered"])
@pytest.mark.parametrize("hung", range(3))
@pytest.mark.parametrize(
    "use", [read, read_behind_another_library, read_behind_a_writer, write_behind_readers]
)
async def test_a_cancellation_anywhere_leaves_no_share_and_no_entry(
    redlock: Redlock, masters: Masters, use: Callable[[Redlock], Any], hung: int, when: When
) -> None:
    await every_place(masters, when, hung, lambda: use(redlock))
    assert redlock.statistics().leases == 0
    assert not remaining_keys(masters)
