"""Uses of all public names, which the type checkers read and nothing runs."""

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import assert_never, assert_type

from redis.asyncio import Redis, RedisCluster

from redlock_aio import (
    Answer,
    Election,
    FoundLocks,
    Holder,
    Lease,
    Lock,
    LockLostError,
    LockNotAcquiredError,
    LockNotHeldError,
    LockState,
    LockWatch,
    LossCause,
    MasterStatistics,
    MasterView,
    NoVoteCause,
    QuorumUnavailableError,
    Reader,
    ReadWriteLock,
    Redlock,
    RedlockError,
    Retry,
    Semaphore,
    SemaphoreState,
    SemaphoreView,
    Statistics,
    Term,
    Vote,
)
from redlock_aio.errors import ErrorCode
from redlock_aio.events import (
    Acquired,
    Cancelled,
    Event,
    Extended,
    Listener,
    Lost,
    MajorityBack,
    MajorityLost,
    MasterBack,
    MasterLost,
    Missed,
    Mode,
    Released,
    Waiting,
    log_to,
)


async def use(client: Redis) -> None:
    redlock = Redlock(
        ["redis://a", client],
        master_timeout=timedelta(milliseconds=50),
        drift_factor=0.01,
        retry=Retry(min_delay=1, max_delay=2, attempts=3),
        key_prefix="x:",
        max_waiters=10,
        name="web-1",
    )
    async with redlock as same:
        assert_type(same, Redlock)
        lock = redlock.lock("r", ttl=1000, wait=None, auto_extend=True, max_hold=timedelta(hours=1))
        assert_type(lock, Lock)
        statistics: Statistics = redlock.statistics()
        assert_type(statistics.masters, tuple[MasterStatistics, ...])
        assert_type(statistics.debts, int)
        async with contextlib.AsyncExitStack() as stack:
            assert_type(await stack.enter_async_context(redlock.lock("a")), Lease)
            assert_type(await stack.enter_async_context(await lock.acquire()), Lease)
        async with lock as lease:
            assert_type(lease, Lease)
            assert_type(lease.resources, tuple[str, ...])
            assert_type(lease.token, str)
            assert_type(lease.fingerprint, str)
            assert_type(lease.ttl, int)
            assert_type(lease.validity, int)
            assert_type(lease.remaining, int)
            assert_type(lease.valid, bool)
            assert_type(lease.hold_count, int)
            assert_type(lease.votes, tuple[Vote, ...])
            assert_type(lease.lost, asyncio.Event)
            lease.ensure_valid()
            await lease.extend(timedelta(seconds=1))
            assert_type(lease.export(), str)
            assert_type(await redlock.adopt("x"), Lease)
            adopted = redlock.adopt(
                "x",
                auto_extend=True,
                max_hold=timedelta(hours=1),
                on_lost="flag",
                metadata={"a": 1},
                owner="request 7",
            )
            assert_type(await adopted, Lease)
            await lease.release()
        assert_type(await lock.acquire(), Lease)
        assert_type(await redlock.lock("r", fair=True).acquire(), Lease)
        again = redlock.lock(
            *("r", "s"),
            reentrant=True,
            owner=client,
            hold_at_least=timedelta(seconds=1),
            metadata={"job": "x", "host": 1},
        )
        assert_type(again, Lock)
        assert_type(await redlock.lock("r", hold_at_least=0, metadata=None).acquire(), Lease)
        redlock.lock("r", reentrant=1)  # type: ignore[arg-type]
        redlock.lock("r", hold_at_least=1.5)  # type: ignore[arg-type]
        redlock.lock("r", metadata=["x"])  # type: ignore[arg-type]
        tried = await redlock.lock("r", on_lost="flag", wait=0).try_acquire()
        assert_type(tried, Lease | None)
        state = await redlock.inspect("r")
        assert_type(state, LockState)
        assert_type((state.locked, state.split, state.certain), tuple[bool, bool, bool])
        assert_type((state.holder, state.remaining), tuple[Holder | None, int | None])
        assert_type(state.views, tuple[MasterView, ...])
        assert_type(state.orphaned, tuple[MasterView, ...])
        assert_type(await redlock.is_locked("r"), bool)
        assert_type(await redlock.find_locks("invoice:", limit=10), FoundLocks)
        assert_type(await redlock.force_release("r"), bool)
    await redlock.aclose()


async def use_semaphore(redlock: Redlock) -> None:
    semaphore = redlock.semaphore("r", permits=5)
    assert_type(semaphore, Semaphore)
    assert_type(semaphore.permits, int)
    permits = await semaphore.inspect()
    assert_type(permits, SemaphoreState)
    assert_type((permits.claimed, permits.available, permits.waiters), tuple[int, int, int])
    assert_type(permits.holders, Mapping[int, Holder])
    assert_type(permits.remaining, Mapping[int, int | None])
    assert_type(permits.views, tuple[SemaphoreView, ...])
    assert_type(permits.certain, bool)
    assert_type(await semaphore.force_release(3), bool)
    await semaphore.force_release("3")  # type: ignore[arg-type]


async def read_and_write(redlock: Redlock) -> None:
    docs = redlock.rw_lock(
        "r",
        ttl=1000,
        wait=timedelta(seconds=1),
        auto_extend=True,
        max_hold=None,
        reentrant=True,
        owner=redlock,
        metadata={"job": "x"},
        on_lost="flag",
    )
    assert_type(docs, ReadWriteLock[Lock])
    assert_type(docs.resource, str)
    assert_type(docs.read(), Lock)
    assert_type(docs.write(fencing=True, hold_at_least=1), Lock)
    async with docs.read(wait=500, metadata={"part": 1}, owner="request 7") as reading:
        assert_type(reading, Lease)
        assert_type(reading.shared, bool)
    assert_type(await redlock.lock("r", shared=True).acquire(), Lease)
    assert_type(await redlock.lock("r", fair=None).acquire(), Lease)
    docs.read(fencing=True)  # type: ignore[call-arg]
    docs.write(fair=False)  # type: ignore[call-arg]
    redlock.rw_lock("r", "s")  # type: ignore[call-arg, arg-type]
    redlock.rw_lock("r", hold_at_least=1)  # type: ignore[call-arg]
    redlock.lock("r", shared="yes")  # type: ignore[arg-type]
    async with docs:  # type: ignore[attr-defined]
        pass
    state = await redlock.inspect("r")
    assert_type((state.shared, state.waiters, state.waiting_writers), tuple[bool, int, int])
    assert_type(state.readers, tuple[Reader, ...])
    for reader in state.readers:
        assert_type((reader.holder, reader.remaining), tuple[Holder, int])
    for view in state.views:
        assert_type((view.shared, view.waiting_writers), tuple[bool, int])
        assert_type(view.readers, tuple[Reader, ...])


async def permit(redlock: Redlock) -> None:
    api = redlock.semaphore(
        "r",
        permits=5,
        ttl=1000,
        wait=timedelta(seconds=1),
        auto_extend=True,
        max_hold=None,
        hold_at_least=timedelta(seconds=1),
        fencing=True,
        metadata={"job": "x"},
        on_lost="flag",
    )
    assert_type(api, Semaphore)
    assert_type((api.permits, api.resources), tuple[int, tuple[str, ...]])
    async with api as lease:
        assert_type(lease, Lease)
        assert_type((lease.permit, lease.mode), tuple[int | None, Mode])
    async with contextlib.AsyncExitStack() as stack:
        assert_type(await stack.enter_async_context(api), Lease)
    assert_type(await api.acquire(), Lease)
    assert_type(await api.try_acquire(), Lease | None)
    assert_type(await api.force_release(4), bool)
    lock: Lock = api
    assert_type(redlock.lock("r", permits=5), Lock)
    assert_type(redlock.lock("r", permits=None), Lock)
    redlock.semaphore("r")  # type: ignore[call-arg]
    redlock.semaphore("r", "s", permits=5)  # type: ignore[misc, arg-type]
    redlock.semaphore("r", permits=None)  # type: ignore[arg-type]
    redlock.semaphore("r", permits="5")  # type: ignore[arg-type]
    redlock.semaphore("r", permits=5.0)  # type: ignore[arg-type]
    redlock.semaphore("r", permits=5, fair=True)  # type: ignore[call-arg]
    redlock.semaphore("r", permits=5, owner=lock)  # type: ignore[call-arg]
    redlock.lock("r", permits="5")  # type: ignore[arg-type]
    await api.force_release("4")  # type: ignore[arg-type]
    with api:  # type: ignore[attr-defined]
        pass


async def lead_and_watch(redlock: Redlock) -> None:
    election = redlock.election("r", ttl=1000, max_hold=timedelta(minutes=1), metadata={"a": 1})
    assert_type(election, Election)
    assert_type((election.resource, election.leading), tuple[str, bool])
    async for term in election:
        assert_type(term, Term)
        async with term as entered:
            assert_type(entered, Term)
            entered.ensure_valid()
        assert_type((term.number, term.lease), tuple[int, Lease])
    redlock.election("r", fair=False)  # type: ignore[call-arg]
    for _ in election:  # type: ignore[attr-defined]
        pass
    assert_type(redlock.watch("r"), LockWatch)
    async for state in redlock.watch("r"):
        assert_type(state, LockState)
    assert_type(await anext(redlock.watch("r")), LockState)


async def check(redlock: Redlock) -> None:
    await redlock.check()
    await redlock.check(wait=500)
    await redlock.check(wait=timedelta(seconds=1))
    await redlock.check(wait=0.5)  # type: ignore[arg-type]


typed = Redlock("redis://a")
assert_type(typed.lock("r").resources, tuple[str, ...])
assert_type(typed.lock("r").metadata, dict[str, object] | None)
assert_type(typed.lock("r").owner, object)
assert_type(typed.lock("r").retry, Retry)


@typed.locked("r:{number}", "s", ttl=1000, wait=timedelta(seconds=1), on_lost="flag", fencing=None)
async def decorated(number: int, text: str = "") -> str:
    return text * number


@typed.locked("r", skip_if_locked=True, retry=Retry())
async def skipped(number: int) -> str:
    return str(number)


@typed.locked("r:{number}", shared=True)
async def reads(number: int) -> str:
    return str(number)


@typed.locked("r:{number}", permits=5)
async def permitted(number: int) -> str:
    return str(number)


class Decorated:
    @typed.locked("r:{self}", skip_if_locked=False)
    async def method(self, number: int) -> str:
        return str(number)

    @classmethod
    @typed.locked("r:{cls}")
    async def of_the_class(cls, number: int) -> str:
        return str(number)

    @staticmethod
    @typed.locked("r", skip_if_locked=True)
    async def static(number: int) -> str:
        return str(number)


def plain(number: int) -> str:
    return str(number)


async def call(perhaps: bool) -> None:
    assert_type(await decorated(1), str)
    assert_type(await decorated(number=1, text="x"), str)
    assert_type(await skipped(1), str | None)
    assert_type(await reads(1), str)
    assert_type(await permitted(1), str)
    assert_type(await Decorated().method(1), str)
    assert_type(await Decorated.of_the_class(1), str)
    assert_type(await Decorated.static(1), str | None)
    assert_type(await typed.locked("r", skip_if_locked=perhaps)(decorated)(1), str | None)
    # Uses that a checker must refuse: an unneeded ignore is an error.
    await decorated("1")  # type: ignore[arg-type]
    await Decorated().method()  # type: ignore[call-arg]
    typed.locked("r", tll=1000)  # type: ignore[call-overload]
    typed.locked("r", ttl=1.5)  # type: ignore[call-overload]
    typed.locked("r", permits="5")  # type: ignore[call-overload]
    typed.locked(42)  # type: ignore[call-overload]
    typed.locked("r")(plain)  # type: ignore[arg-type]
    if typed.locked("r"):  # type: ignore[truthy-function]
        typed.lock("r", timeout=10)  # type: ignore[call-arg]
        Redlock(["redis://a"], retry_count=3)  # type: ignore[call-arg]
        Redlock.of_cluster("redis://a", retry_count=3)  # type: ignore[call-arg]


vote = Vote("a:6379", Answer.GRANTED)
assert_type(vote.master, str)
assert_type(vote.answer, Answer)
error: RedlockError = QuorumUnavailableError(["r"], attempts=1, elapsed=2, votes=[vote])
assert_type(
    LockNotAcquiredError(["r"], attempts=1, elapsed=2, votes=[vote]).votes, tuple[Vote, ...]
)
refused = LockNotAcquiredError(
    ["r"], attempts=1, elapsed=2, votes=[vote], holder=Holder("x", "web-1:1")
)
assert_type(refused.holder, Holder | None)
if refused.holder is not None:
    assert_type(refused.holder.fingerprint, str)
    assert_type(refused.holder.name, str | None)
    assert_type(refused.holder.metadata, Mapping[str, object])
assert_type(refused.retry_after, int | None)
lost = LockLostError(["r"], LossCause.KEY_GONE, "why", [vote])
assert_type(lost.reason, str)
assert_type(lost.cause, LossCause)
word: str = lost.cause.value
assert_type(lost.votes, tuple[Vote, ...])
LockLostError(["r"], "why")  # type: ignore[arg-type]
assert_type(LockNotHeldError(["r"], "why", "released").resources, tuple[str, ...])
assert_type(lost.code, ErrorCode)
cause_in_a_word: str = error.code
RedlockError("why", "too-few-master")  # type: ignore[arg-type]
if error.code == "too-few-master":  # type: ignore[comparison-overlap]
    pass


def listen(event: Event) -> None:  # noqa: C901 - a case for each event
    assert_type(event, Event)
    match event:
        case Acquired():
            assert_type(event.mode, Mode)
            assert_type(event.resources, tuple[str, ...])
            assert_type(event.fingerprint, str)
            assert_type(event.waited_ms, float)
            assert_type(event.fencing_token, int | None)
            assert_type(event.permit, int | None)
        case Missed():
            assert_type(event.mode, Mode)
            assert_type(event.waited_ms, float)
            assert_type(event.error, LockNotAcquiredError)
        case Cancelled():
            assert_type(event.mode, Mode)
            assert_type(event.waited_ms, float)
        case Waiting():
            assert_type(event.mode, Mode)
            assert_type(event.resources, tuple[str, ...])
        case Extended():
            assert_type(event.mode, Mode)
            assert_type(event.ttl, int)
            assert_type(event.margin_ms, int)
        case Lost():
            assert_type(event.mode, Mode)
            assert_type(event.cause, LossCause)
            assert_type(event.votes, tuple[Vote, ...])
            assert_type(event.reason, str)
            assert_type(event.held_ms, float)
        case Released():
            assert_type(event.mode, Mode)
            assert_type(event.held_ms, float)
        case MasterLost():
            assert_type(event.master, str)
            assert_type(event.reason, str)
            assert_type(event.cause, NoVoteCause)
            assert_type(event.votes, tuple[Vote, ...])
        case MasterBack():
            assert_type(event.master, str)
        case MajorityLost():
            assert_type(event.votes, tuple[Vote, ...])
        case MajorityBack():
            assert_type(event.lost_ms, int)
        case _:
            assert_never(event)


class Listening:
    def __call__(self, event: Event, /) -> None: ...


events: list[Event] = []
for listener in (
    listen,
    Listening(),
    events.append,
    log_to(),
    log_to(logging.getLogger("x")),
    None,
):
    assert_type(Redlock(["redis://a"], listener=listener), Redlock)
    assert_type(Redlock.of_cluster("redis://a", masters=3, listener=listener), Redlock)
    of_client = RedisCluster(host="a", port=7000)
    assert_type(Redlock.of_cluster(of_client, tags=["0001"], max_ttl=5_000), Redlock)
assert_type(log_to(), Listener)
