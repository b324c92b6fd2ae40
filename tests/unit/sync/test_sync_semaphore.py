"""Semaphores for threads."""

import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import FrameType
from typing import Any

import pytest

from redlock_aio import LockLostError, LockNotAcquiredError, LossCause, RedlockError, Retry
from redlock_aio.sync import Lease, Lock, Redlock, Semaphore

from .threads import SOON, free, until


def test_as_many_threads_as_permits_hold_it_at_once(
    redlock: Redlock, pool: ThreadPoolExecutor
) -> None:
    """Three stay until all of them have come; another one gets no permit until one is back."""
    api = redlock.semaphore("api", permits=3, wait=10_000)
    together, leave = threading.Barrier(4, timeout=SOON), threading.Event()

    def hold() -> int | None:
        with api as lease:
            together.wait()
            assert leave.wait(SOON)
            assert (lease.mode, lease.shared, lease.valid) == ("permit", False, True)
            return lease.permit

    holding = [pool.submit(hold) for _ in range(3)]
    together.wait()
    assert pool.submit(api.try_acquire).result(SOON) is None
    with pytest.raises(LockNotAcquiredError):
        redlock.semaphore("api", permits=3, wait=0).acquire()
    later = pool.submit(api.acquire)
    until(lambda: api.inspect().certain)  # a stall of the machine may be a timeout of masters
    state = api.inspect()
    assert (state.resource, state.permits, state.claimed, state.available) == ("api", 3, 3, 0)
    assert set(state.holders) == {0, 1, 2}
    until(lambda: api.inspect().waiters == 1)
    assert free(redlock, "api")  # a lock of the same name is independent
    assert not later.done()
    leave.set()
    assert sorted(each.result(SOON) or 0 for each in holding) == [0, 1, 2]
    lease = later.result(SOON)
    assert lease.permit in {0, 1, 2}
    lease.release()


def test_a_thread_may_have_several_permits(redlock: Redlock) -> None:
    """None is shared, as a lock is with *reentrant*."""
    api = redlock.semaphore("api", permits=2, wait=0)
    with api as first, api as second:
        assert {first.permit, second.permit} == {0, 1}
        assert (first.hold_count, second.hold_count) == (1, 1)
        assert first.token != second.token
        assert api.try_acquire() is None
        second.release()
        third = api.try_acquire()
        assert third is not None
        assert third.permit == second.permit
        third.release()


def test_a_thread_that_holds_all_permits_does_not_wait_for_ever(
    redlock: Redlock, pool: ThreadPoolExecutor
) -> None:
    api = redlock.semaphore("api", permits=2)
    # In 50 ms a busy machine answers nothing, and the error would say that of the masters.
    limited = redlock.semaphore("api", permits=2, wait=500)
    with api:
        other = pool.submit(api.acquire).result(SOON)
        assert pool.submit(api.try_acquire).result(SOON) is None
        with pytest.raises(LockNotAcquiredError) as full:
            limited.acquire()
        assert full.value.hint.startswith("its owner holds 1 of them; ")
        other.release()
        with api as second:
            with pytest.raises(RedlockError, match="its owner holds all its permits"):
                api.acquire()
            with pytest.raises(LockNotAcquiredError, match="its owner holds 2 of them"):
                limited.acquire()
            elsewhere = pool.submit(api.acquire)  # another thread may wait for ever
            until(lambda: api.inspect().waiters == 1)
            second.release()
            elsewhere.result(SOON).release()


def test_a_block_in_a_generator_is_left_by_any_thread(
    redlock: Redlock, pool: ThreadPoolExecutor
) -> None:
    """As FastAPI ends its dependencies. It must not release the permit of another block."""
    api = redlock.semaphore("api", permits=5)

    def permit() -> Iterator[Lease]:
        with api as lease:
            yield lease

    def entered() -> tuple[Iterator[Lease], Lease]:
        block = permit()
        return block, next(block)

    first, lease = entered()
    with api as mine:
        second, another = pool.submit(entered).result(SOON)
        next(second, None)
        assert (lease.valid, mine.valid, another.valid) == (True, True, False)
        pool.submit(next, first, None).result(SOON)
        assert (lease.valid, mine.valid) == (False, True)
    assert redlock.statistics().leases == 0


def test_a_block_of_a_function_is_left_before_that_of_a_generator_within(redlock: Redlock) -> None:
    api = redlock.semaphore("api", permits=5)

    def permit() -> Iterator[Lease]:
        with api as lease:
            yield lease

    with api as mine:
        block = permit()
        its = next(block)
    assert (mine.valid, its.valid) == (False, True)
    next(block, None)
    assert redlock.statistics().leases == 0


def test_each_thread_leaves_its_own_block(redlock: Redlock, pool: ThreadPoolExecutor) -> None:
    api = redlock.semaphore("api", permits=5)
    with api as mine:
        its = pool.submit(api.__enter__).result(SOON)
    assert (mine.valid, its.valid) == (False, True)
    pool.submit(api.__exit__, None, None, None).result(SOON)
    assert redlock.statistics().leases == 0


def test_a_thread_that_has_entered_no_block_releases_none(
    redlock: Redlock, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither if all blocks but one end while it is told so."""
    lock, left = redlock.semaphore("r", permits=2), Lock._left
    for _ in range(2):
        pool.submit(lock.__enter__).result(SOON)
    one, other = (entered.lease for entered in lock._entered)

    def meanwhile(self: Lock, frame: FrameType | None) -> object:
        try:
            return left(self, frame)
        finally:
            monkeypatch.undo()
            lock._entered.pop()
            other.release()

    monkeypatch.setattr(Lock, "_left", meanwhile)
    with pytest.raises(RedlockError, match="left by a thread that has not entered it"):
        lock.__exit__(None, None, None)
    assert one.valid
    one.release()


def test_a_lock_in_a_stack_keeps_no_variables_of_its_callers_alive(redlock: Redlock) -> None:
    class Large:
        pass

    def enter(stack: ExitStack) -> "weakref.ref[Large]":
        large = Large()
        stack.enter_context(redlock.semaphore("api", permits=5))
        return weakref.ref(large)

    with ExitStack() as stack:
        assert enter(stack)() is None


def test_a_stack_keeps_its_lease_behind_a_block_that_began_before(redlock: Redlock) -> None:
    api = redlock.semaphore("api", permits=5)
    with ExitStack() as stack:
        with api as inner:
            first, second = [stack.enter_context(api) for _ in range(2)]
        assert (inner.valid, first.valid, second.valid) == (False, True, True)
        with api as inner:
            stack.close()
            assert (inner.valid, first.valid, second.valid) == (True, False, False)
        assert not inner.valid
    assert redlock.statistics().leases == 0


def test_a_lock_with_permits_is_a_semaphore(redlock: Redlock) -> None:
    for made in (redlock.semaphore("api", permits=5), redlock.lock("api", permits=5, fair=True)):
        assert isinstance(made, Semaphore)
        assert isinstance(made, Lock)
        assert (made.permits, made.resources, made.owner) == (5, ("api",), None)
        assert repr(made) == "<Semaphore 'api', 5 permits>"
    assert type(redlock.lock("api")) is Lock
    with redlock.lock("api") as lease:
        assert (lease.mode, lease.permit) == ("exclusive", None)


def test_the_options_of_a_semaphore(redlock: Redlock) -> None:
    mine = {"job": 7}
    api = redlock.semaphore(
        "api", permits=1, ttl=5_000, wait=0, fencing=True, metadata=mine, hold_at_least=200
    )
    mine["job"] = 8  # each acquisition reads what was given
    with api as first:
        assert (first.ttl, api.metadata) == (5_000, {"job": 7})
        token = first.fencing_token
    assert api.try_acquire() is None  # the masters keep the permit
    with redlock.semaphore("api", permits=1, fencing=True, wait=10_000) as second:
        assert second.fencing_token > token


def test_a_forced_release_ends_the_holder_of_one_permit(
    redlock: Redlock, pool: ThreadPoolExecutor
) -> None:
    heard: list[LockLostError] = []
    api = redlock.semaphore("api", permits=2, wait=10_000, on_lost=heard.append)
    leases: dict[int | None, Lease] = {}
    for _ in range(2):
        lease = api.acquire()
        leases[lease.permit] = lease
    waiting = pool.submit(api.acquire)
    assert redlock.semaphore("api", permits=1).force_release(1)  # one beyond those of the caller
    until(lambda: heard)
    assert [error.cause for error in heard] == [LossCause.FORCED]
    with pytest.raises(LockLostError):
        leases[1].ensure_valid()
    leases[0].ensure_valid()
    assert waiting.result(SOON).permit == 1
    waiting.result(SOON).release()
    leases[0].release()
    assert not api.force_release(0)


@pytest.mark.parametrize(
    ("permit", "kind", "message"),
    [
        ("1", TypeError, "permit must be an int, not a str"),
        (True, ValueError, "permit must be from 0 to 999, not True"),
        (-1, ValueError, "permit must be from 0 to 999, not -1"),
        (1_000, ValueError, "permit must be from 0 to 999, not 1000"),
    ],
)
def test_a_forced_release_of_no_permit(
    redlock: Redlock, permit: Any, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind) as refused:
        redlock.semaphore("api", permits=2).force_release(permit)
    assert str(refused.value) == message


def test_decorated_functions_run_at_once(redlock: Redlock, pool: ThreadPoolExecutor) -> None:
    together = threading.Barrier(3, timeout=SOON)

    @redlock.locked("api:{host}", permits=2)
    def call(host: str) -> str:
        together.wait()
        together.wait()
        return host

    @redlock.locked("api:{host}", permits=2, skip_if_locked=True)
    def skips(host: str) -> str:
        return host

    calls = [pool.submit(call, "a") for _ in range(2)]
    together.wait()
    assert pool.submit(skips, "a").result(SOON) is None
    assert skips("b") == "b"
    together.wait()
    assert [each.result(SOON) for each in calls] == ["a", "a"]
    assert skips("a") == "a"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"permits": 0}, "permits must be from 1 to 1000, not 0"),
        ({"permits": 1_001}, "permits must be from 1 to 1000, not 1001"),
        ({"permits": True}, "permits must be from 1 to 1000, not True"),
        ({"permits": "5"}, "permits must be an int, not a str"),
        ({"shared": True}, "shared must not be True with permits=5: a semaphore has no readers"),
        ({"owner": "me"}, "owner must be None with permits=5: each acquisition has its own permit"),
        ({"fair": False}, "fair must not be False with permits=5: its waiters wait in queues"),
        ({"retry": Retry()}, "retry must be None with permits=5: its waiters wait in queues"),
    ],
    ids=str,
)
def test_options_that_a_semaphore_can_not_have(
    redlock: Redlock, options: dict[str, Any], message: str
) -> None:
    makers: list[Callable[..., object]] = [redlock.lock, redlock.locked]
    for make in makers:
        with pytest.raises((TypeError, ValueError)) as refused:
            make("api", **{"permits": 5, **options})
        assert str(refused.value) == message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"permits": None}, "permits must be an int, not None"),
        ({"permits": 5.0}, "permits must be an int, not a float"),
        ({"permits": 5, "fair": True}, "semaphore() has no option 'fair'"),
        ({"permits": 5, "owner": None}, "semaphore() has no option 'owner'"),
        ({"permits": 5, "on_lost": "flag"}, "on_lost must be a plain function or None, not 'flag'"),
    ],
    ids=str,
)
def test_arguments_that_are_no_options_of_a_semaphore(
    redlock: Redlock, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(TypeError) as refused:
        redlock.semaphore("api", **options)
    assert str(refused.value) == message


def test_an_adopted_permit_is_one_of_the_thread(redlock: Redlock, pool: ThreadPoolExecutor) -> None:
    """One that has all of them does not wait for itself, however it has got them."""

    def adopt_and_ask(wait: int | None) -> str:
        exported = redlock.semaphore("api", permits=1).acquire().export()
        with redlock.adopt(exported) as lease:
            assert lease.permit == 0
            with pytest.raises(RedlockError) as caught:
                redlock.semaphore("api", permits=1, wait=wait).acquire()
        return str(caught.value)

    assert "own" in pool.submit(adopt_and_ask, None).result(SOON)
    assert "its owner holds 1 of them" in pool.submit(adopt_and_ask, 0).result(SOON)
