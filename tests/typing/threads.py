"""Uses of all names of `redlock_aio.sync`, which the type checkers read and nothing runs."""

import contextlib
import threading
from datetime import timedelta
from typing import assert_type

from redis.asyncio import Redis

from redlock_aio import (
    FoundLocks,
    LockLostError,
    LockState,
    ReadWriteLock,
    Retry,
    SemaphoreState,
    Statistics,
    Vote,
)
from redlock_aio.events import Mode, log_to
from redlock_aio.sync import Election, Lease, Lock, LockWatch, Redlock, Semaphore, Term


def on_lost(error: LockLostError) -> None:
    assert_type(error.reason, str)


def use(client: Redis) -> None:
    redlock = Redlock(
        ["redis://a", client],
        master_timeout=timedelta(milliseconds=50),
        retry=Retry(attempts=3),
        restart_guard="off",
        listener=log_to(),
    )
    with redlock as same:
        assert_type(same, Redlock)
        lock = redlock.lock("r", ttl=1000, wait=None, owner="request 7", on_lost=on_lost)
        assert_type(lock, Lock)
        assert_type(redlock.statistics(), Statistics)
        redlock.check(wait=timedelta(seconds=1))
        assert_type(redlock.master_timeout, int)
        with contextlib.ExitStack() as stack:
            assert_type(stack.enter_context(redlock.lock("a")), Lease)
            assert_type(stack.enter_context(lock.acquire()), Lease)
        with lock as lease:
            assert_type(lease, Lease)
            assert_type((lease.resources, lease.votes), tuple[tuple[str, ...], tuple[Vote, ...]])
            assert_type((lease.token, lease.fingerprint, lease.valid), tuple[str, str, bool])
            assert_type((lease.ttl, lease.validity, lease.remaining), tuple[int, int, int])
            assert_type((lease.fencing_token, lease.hold_count), tuple[int, int])
            assert_type(lease.lost, threading.Event)
            lease.ensure_valid()
            lease.extend(timedelta(seconds=1))
            assert_type(lease.export(), str)
            assert_type(redlock.adopt("x", on_lost=on_lost, metadata={"a": 1}), Lease)
            lease.release()
        docs = redlock.rw_lock("r", ttl=1000, reentrant=True, on_lost=on_lost)
        assert_type(docs, ReadWriteLock[Lock])
        with docs.read(wait=500) as reading:
            assert_type(reading, Lease)
            assert_type(reading.shared, bool)
        with docs.write(fencing=True, hold_at_least=1) as writing:
            assert_type(writing, Lease)
        assert_type(redlock.lock("r", shared=True).acquire(), Lease)
        docs.read(fencing=True)  # type: ignore[call-arg]
        redlock.rw_lock("r", on_lost="cancel")  # type: ignore[arg-type]
        with docs:  # type: ignore[attr-defined]
            pass
        assert_type(lock.try_acquire(), Lease | None)
        assert_type(redlock.inspect("r"), LockState)
        assert_type(redlock.is_locked("r"), bool)
        assert_type(redlock.find_locks("invoice:", limit=10), FoundLocks)
        assert_type(redlock.force_release("r"), bool)
        redlock.lock("r", on_lost="cancel")  # type: ignore[arg-type]
        redlock.lock("r", metadata=["x"])  # type: ignore[arg-type]
    redlock.close()


def permit(redlock: Redlock) -> None:
    api = redlock.semaphore("r", permits=5, ttl=1000, hold_at_least=1, on_lost=on_lost)
    assert_type(api, Semaphore)
    assert_type((api.permits, api.resources), tuple[int, tuple[str, ...]])
    with api as permitted:
        assert_type(permitted, Lease)
        assert_type((permitted.permit, permitted.mode), tuple[int | None, Mode])
    assert_type(api.acquire(), Lease)
    assert_type(api.try_acquire(), Lease | None)
    assert_type(api.inspect(), SemaphoreState)
    assert_type(api.force_release(4), bool)
    assert_type(redlock.lock("r", permits=5), Lock)
    redlock.semaphore("r")  # type: ignore[call-arg]
    redlock.semaphore("r", permits="5")  # type: ignore[arg-type]
    redlock.semaphore("r", permits=5, fair=True)  # type: ignore[call-arg]
    redlock.semaphore("r", permits=5, on_lost="cancel")  # type: ignore[arg-type]


def lead_and_watch(redlock: Redlock) -> None:
    election = redlock.election("r", ttl=1000, max_hold=None, metadata=None)
    assert_type(election, Election)
    assert_type((election.resource, election.leading), tuple[str, bool])
    for term in election:
        assert_type(term, Term)
        with term as entered:
            assert_type((entered.number, entered.lease), tuple[int, Lease])
            entered.ensure_valid()
    assert_type(redlock.watch("r"), LockWatch)
    for state in redlock.watch("r"):
        assert_type(state, LockState)


typed = Redlock("redis://a")
assert_type(typed.lock("r").resources, tuple[str, ...])
assert_type(typed.lock("r").metadata, dict[str, object] | None)
assert_type(typed.lock("r").owner, object)
assert_type(typed.lock("r").retry, Retry)


@typed.locked("r:{number}", ttl=1000, wait=timedelta(seconds=1), on_lost=on_lost)
def decorated(number: int, text: str = "") -> str:
    return text * number


@typed.locked("r", skip_if_locked=True)
def skipped(number: int) -> str:
    return str(number)


@typed.locked("r:{number}", shared=True)
def reads(number: int) -> str:
    return str(number)


@typed.locked("r:{number}", permits=5)
def permitted(number: int) -> str:
    return str(number)


class Decorated:
    @typed.locked("r:{self}")
    def method(self, number: int) -> str:
        return str(number)


def call() -> None:
    assert_type(decorated(1, text="x"), str)
    assert_type(skipped(1), str | None)
    assert_type(reads(1), str)
    assert_type(permitted(1), str)
    assert_type(Decorated().method(1), str)
    # Uses that a checker must refuse: an unneeded ignore is an error.
    decorated("1")  # type: ignore[arg-type]
    typed.locked("r", tll=1000)  # type: ignore[call-overload]
    typed.lock("r", timeout=10)  # type: ignore[call-arg]
    Redlock(["redis://a"], retry_count=3)  # type: ignore[call-arg]
    Redlock.of_cluster("redis://a", masters=3, retry_count=3)  # type: ignore[call-arg]
    typed.locked("r", on_lost="flag")  # type: ignore[call-overload]
