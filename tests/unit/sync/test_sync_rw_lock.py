"""The read-write lock for threads."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from redlock_aio import LockLostError, LockNotAcquiredError, LossCause, RedlockError, Retry
from redlock_aio.sync import Lock, Redlock

from .threads import SOON, free, lose, until


def test_threads_read_at_once_and_one_writes(redlock: Redlock, pool: ThreadPoolExecutor) -> None:
    """The readers leave when all of them have come."""
    docs = redlock.rw_lock("r")
    together = threading.Barrier(5, timeout=SOON)

    def read() -> bool:
        with docs.read(wait=10_000) as lease:
            together.wait()
            return lease.shared

    def write() -> int:
        with docs.write(fencing=True) as lease:
            assert not lease.shared
            assert not free(redlock)
            assert pool.submit(docs.read().try_acquire).result(SOON) is None
            return lease.fencing_token

    reading = [pool.submit(read) for _ in range(4)]
    until(lambda: len(redlock.inspect("r").readers) == 4)
    assert not free(redlock)
    writing = pool.submit(write)
    until(lambda: redlock.inspect("r").waiting_writers == 1)
    assert not writing.done()
    later = pool.submit(docs.read(wait=20).acquire)
    with pytest.raises(LockNotAcquiredError, match="held by others, now by readers"):
        later.result(SOON)
    together.wait()
    assert [each.result(SOON) for each in reading] == [True] * 4
    assert writing.result(SOON) > 0
    with docs.read(wait=0):
        pass


def test_an_upgrade_is_refused(redlock: Redlock, pool: ThreadPoolExecutor) -> None:
    docs = redlock.rw_lock("r", reentrant=True)
    with docs.read() as outer:
        with pytest.raises(RedlockError, match="its owner reads 'r'; release it first"):
            docs.write(wait=10_000).acquire()
        with docs.read() as inner:
            assert (inner.token, inner.hold_count, inner.shared) == (outer.token, 2, True)
        assert pool.submit(docs.write().try_acquire).result(SOON) is None
    with docs.write() as outer, docs.read() as inner:
        assert (inner.token, inner.hold_count, inner.shared) == (outer.token, 2, False)


def test_a_forced_release_ends_all_readers(redlock: Redlock) -> None:
    heard: list[LockLostError] = []
    docs = redlock.rw_lock("r", on_lost=heard.append)
    leases = [docs.read(owner=name).acquire() for name in "ab"]
    lose(redlock)
    until(lambda: len(heard) == 2)
    assert [error.cause for error in heard] == [LossCause.FORCED] * 2
    for lease in leases:
        with pytest.raises(LockLostError):
            lease.ensure_valid()


def test_decorated_readers_run_at_once(redlock: Redlock, pool: ThreadPoolExecutor) -> None:
    together = threading.Barrier(3, timeout=SOON)

    @redlock.locked("doc:{number}", shared=True)
    def read(number: int) -> int:
        assert redlock.inspect(f"doc:{number}").shared
        together.wait()
        return number

    @redlock.locked("doc:{number}", fair=True, skip_if_locked=True)
    def write(number: int) -> int:
        return number

    reading = [pool.submit(read, 7) for _ in range(2)]
    until(lambda: len(redlock.inspect("doc:7").readers) == 2)
    assert pool.submit(write, 7).result(SOON) is None
    together.wait()
    assert [each.result(SOON) for each in reading] == [7, 7]
    assert write(7) == 7


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fencing": True}, "fencing must not be True with shared=True"),
        ({"hold_at_least": 1}, "hold_at_least must be 0 with shared=True"),
        ({"fair": False}, "fair must not be False with shared=True"),
        ({"retry": Retry()}, "retry must be None with shared=True"),
    ],
    ids=str,
)
def test_options_that_readers_can_not_have(
    redlock: Redlock, options: dict[str, Any], message: str
) -> None:
    makers: list[Callable[..., object]] = [redlock.lock, redlock.locked]
    for make in makers:
        with pytest.raises(ValueError, match=message):
            make("r", shared=True, **options)


def test_the_options_of_both_sides(redlock: Redlock) -> None:
    with pytest.raises(ValueError, match="shared=True takes one resource, not 2"):
        redlock.lock("r", "s", shared=True)
    with pytest.raises(ValueError, match="ttl"):
        redlock.rw_lock("r", ttl=1)
    with pytest.raises(TypeError, match=r"rw_lock\(\) has no option 'fencing'"):
        redlock.rw_lock("r", fencing=True)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="on_lost"):
        redlock.rw_lock("r", on_lost="flag")  # type: ignore[arg-type]
    docs = redlock.rw_lock("r", ttl=5_000)
    assert (docs.resource, repr(docs)) == ("r", "<ReadWriteLock 'r'>")
    with pytest.raises(TypeError, match=r"read\(\) has no option 'hold_at_least'"):
        docs.read(hold_at_least=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"use its read\(\) or its write\(\)"), docs:  # type: ignore[attr-defined]
        pass
    for lock, ttl in ((docs.read(), 5_000), (docs.write(ttl=3_000), 3_000)):
        assert isinstance(lock, Lock)
        with lock as lease:
            assert lease.ttl == ttl


def test_a_lease_of_a_reader_can_not_be_handed_over(redlock: Redlock) -> None:
    with (
        redlock.lock("r", shared=True) as lease,
        pytest.raises(RedlockError, match="can't be handed over: the lock is shared"),
    ):
        lease.export()
