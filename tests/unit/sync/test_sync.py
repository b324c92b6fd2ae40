"""The lock for threads: leases, nested locks, losses and mistakes."""

import asyncio
import contextlib
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

import redlock_aio
from redlock_aio import (
    LockLostError,
    LockNotAcquiredError,
    LockNotHeldError,
    QuorumUnavailableError,
    RedlockError,
)
from redlock_aio.contrib.prometheus import Metrics
from redlock_aio.sync import Lease, Redlock
from redlock_aio.testing import FakeMaster

from .threads import SOON, delete, free, in_loop, lose, portals, until

# Holding


def test_a_block_holds_the_lock(redlock: Redlock, masters: list[FakeMaster]) -> None:
    with redlock.lock("r", ttl=5_000, fencing=True) as lease:
        assert isinstance(lease, Lease)
        assert (lease.resources, lease.ttl, lease.hold_count) == (("r",), 5_000, 1)
        keys = in_loop(redlock, lambda: [master.keys["r"] for master in masters])
        assert keys == [lease.token] * 3
        assert lease.fencing_token > 0
        assert 0 < lease.remaining <= lease.validity < 5_000
        assert len(lease.votes) == 3
        assert lease.valid
        assert not lease.lost.is_set()
        assert repr(lease).startswith("<Lease 'r', ")
        lease.ensure_valid()
        lease.extend(timedelta(seconds=20))
        assert lease.ttl == 20_000
        state = redlock.inspect("r")
        assert state.holder is not None
        assert state.holder.fingerprint == lease.fingerprint
        assert redlock.is_locked("r")
        assert [found.resource for found in redlock.find_locks("r", limit=2).states] == ["r"]
        assert redlock.statistics().leases == 1
    assert not lease.valid
    assert not redlock.is_locked("r")
    with pytest.raises(LockNotHeldError, match="it has been released"):
        lease.ensure_valid()
    with pytest.raises(RedlockError, match="no fencing token"), redlock.lock("r") as plain:
        _ = plain.fencing_token


def test_a_lease_is_released_once(redlock: Redlock) -> None:
    lease = redlock.lock("r").acquire()
    with lease as same:
        assert same is lease
        lease.release()
        assert free(redlock)
    for use in (lease.release, lease.extend, lease.export, lease.__enter__):
        with pytest.raises(LockNotHeldError, match="it has been released"):
            use()


def test_a_lease_is_entered_once(redlock: Redlock) -> None:
    """The end of an inner block would release it, and the outer one would go on without it."""
    lock = redlock.lock("r")
    blocks: list[Callable[[], Any]] = [lambda: lock, lock.acquire]
    for make in blocks:
        with make() as lease:
            with pytest.raises(RuntimeError, match="a lease can be entered only once"), lease:
                pass
            assert lease.valid
        assert free(redlock)


def test_the_metadata_is_that_of_the_lock_s_making(redlock: Redlock) -> None:
    metadata: dict[str, object] = {"job": 1}
    lock = redlock.lock("r", metadata=metadata)
    metadata["job"] = object()
    with lock:
        holder = redlock.inspect("r").holder
    assert holder is not None
    assert holder.metadata == {"job": 1}


def test_an_error_of_the_body_comes_out_and_the_lock_is_released(redlock: Redlock) -> None:
    for of_a_lock in (True, False):
        lock = redlock.lock("r", wait=5_000)
        with pytest.raises(KeyError, match="mine") as raised, lock if of_a_lock else lock.acquire():
            raise KeyError("mine")
        assert not hasattr(raised.value, "__notes__")
        until(lambda: free(redlock))


def test_threads_take_turns(redlock: Redlock, pool: ThreadPoolExecutor) -> None:
    """Eight threads share a manager, its thread, and one lock."""
    lock, counter = redlock.lock("r"), 0

    def work(_: int) -> None:
        nonlocal counter
        with lock:
            read = counter
            time.sleep(0.001)
            counter = read + 1

    before = portals()
    list(pool.map(work, range(24)))
    assert counter == 24
    assert portals() == before
    assert not lock._entered


def test_a_lock_that_others_hold_is_waited_for(redlock: Redlock, pool: ThreadPoolExecutor) -> None:
    with redlock.lock("r") as lease:
        with pytest.raises(LockNotAcquiredError) as refused:
            pool.submit(redlock.lock("r", wait=50).acquire).result(SOON)
        assert refused.value.holder is not None
        assert refused.value.holder.fingerprint == lease.fingerprint
        assert pool.submit(redlock.lock("r").try_acquire).result(SOON) is None
        waiting = pool.submit(redlock.lock("r").acquire)
        until(lambda: redlock.statistics().waiters)
    waiting.result(SOON).release()


def test_a_thread_that_would_wait_for_itself_gets_an_error(redlock: Redlock) -> None:
    lock = redlock.lock("r")
    with lock:
        with pytest.raises(RedlockError, match="'r' would never be free: its owner holds 'r'"):
            lock.acquire()
        with pytest.raises(LockNotAcquiredError, match="its owner holds 'r'; reentrant=True"):
            redlock.lock("r", wait=20).acquire()


def test_a_nested_lock_of_the_thread_shares_the_lease(
    redlock: Redlock, pool: ThreadPoolExecutor
) -> None:
    again = redlock.lock("r", reentrant=True)
    with redlock.lock("r"):
        with again as inner:
            assert inner.hold_count == 2
        assert pool.submit(again.try_acquire).result(SOON) is None
    with redlock.lock("r", reentrant=True, owner="request 7"):
        mine = redlock.lock("r", reentrant=True, owner="request 7")
        with pool.submit(mine.acquire).result(SOON) as shared:
            assert shared.hold_count == 2


def test_a_lease_is_handed_over_to_a_manager_with_or_without_asyncio(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    with redlock.lock("r", fencing=True) as lease:
        token = lease.fencing_token
        text = lease.export()
    assert redlock.is_locked("r")
    with redlock.adopt(text, on_lost=print) as adopted:
        assert adopted.fencing_token == token
        with redlock.lock("r", reentrant=True) as again:  # it belongs to this thread
            assert again.hold_count == 2
        text = adopted.export()

    async def adopt() -> None:
        other = redlock_aio.Redlock(masters, restart_guard="off")
        async with other, await other.adopt(text) as last:
            assert last.fencing_token == token

    redlock._opener.opened().call(adopt)
    assert free(redlock)
    with pytest.raises(LockLostError):
        redlock.adopt(text)


def test_the_masters_are_checked(redlock: Redlock, masters: list[FakeMaster]) -> None:
    redlock.check()
    for master in masters[:2]:
        in_loop(redlock, master.hang)
    with pytest.raises(QuorumUnavailableError, match="too few masters answered in"):
        redlock.check(wait=100)
    with pytest.raises(TypeError, match="wait must be"):
        redlock.check(wait=0.1)  # type: ignore[arg-type]


def test_a_scrape_does_not_wait_for_the_event_loop(
    masters: list[FakeMaster], pool: ThreadPoolExecutor
) -> None:
    """Metrics are read in a thread of their exporter, which a stalled loop would hold up."""
    registry = CollectorRegistry()
    metrics = Metrics(registry=registry)
    stalled, go_on = threading.Event(), threading.Event()

    def stall() -> None:
        stalled.set()
        go_on.wait(SOON)

    with Redlock(masters, restart_guard="off", listener=metrics) as redlock:
        metrics.watch(redlock)
        with redlock.lock("r", ttl=60_000):
            stalling = pool.submit(in_loop, redlock, stall)
            assert stalled.wait(SOON)
            try:
                assert registry.get_sample_value("redlock_leases") == 1
                assert not stalling.done()
            finally:
                go_on.set()
            stalling.result(SOON)


# Losing


def test_a_loss_is_told_once_in_a_thread_of_its_own(redlock: Redlock) -> None:
    losses: list[tuple[LockLostError, threading.Thread]] = []

    def on_lost(error: LockLostError) -> None:
        losses.append((error, threading.current_thread()))

    forced = pytest.raises(LockLostError, match="'r' lost: it was released by force")
    with forced, redlock.lock("r", on_lost=on_lost) as lease:
        lose(redlock)
        assert lease.lost.wait(SOON)
        until(lambda: losses)
        assert not lease.valid
        assert lease.remaining == 0
        for use in (lease.ensure_valid, lease.extend, lease.export):
            with pytest.raises(LockLostError, match="it was released by force"):
                use()
    assert free(redlock)
    [(error, thread)] = losses
    assert (error.resources, error.reason) == (("r",), "it was released by force")
    assert thread.name == "redlock_aio on_lost"
    assert thread.daemon


@pytest.mark.parametrize("kind", [KeyError, pytest.param(SystemExit, marks=pytest.mark.full)])
def test_a_callback_that_blocks_or_fails_holds_nobody_up(
    redlock: Redlock, caplog: pytest.LogCaptureFixture, kind: type[BaseException]
) -> None:
    go_on, called = threading.Event(), threading.Event()

    def block(_: LockLostError) -> None:
        called.set()
        go_on.wait(SOON)
        raise kind("mine")

    with contextlib.suppress(LockLostError), redlock.lock("r", on_lost=block):
        lose(redlock)
        assert called.wait(SOON)
    with redlock.lock("s") as other:
        other.extend()
        assert not go_on.is_set()
    go_on.set()
    until(lambda: "on_lost raised an error: 'r' lost" in caplog.text)
    assert f"{kind.__name__}: " in caplog.text


def test_a_body_that_fails_after_a_loss_keeps_its_error(redlock: Redlock) -> None:
    with pytest.raises(KeyError, match="mine") as raised, redlock.lock("r") as lease:
        lose(redlock)
        assert lease.lost.wait(SOON)
        raise KeyError("mine")
    assert raised.value.__notes__ == ["'r' lost: it was released by force [forced]"]


def test_a_loss_that_the_release_finds_comes_out_of_the_block(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    losses: list[LockLostError] = []
    gone = pytest.raises(LockLostError, match="a majority of the masters no longer has its key")
    with gone, redlock.lock("r", on_lost=losses.append):
        delete(redlock, masters)
    lease = redlock.lock("r", on_lost=losses.append).acquire()
    delete(redlock, masters)
    with pytest.raises(LockNotHeldError, match="no longer has its key"):
        lease.release()
    with redlock.lock("r"):  # the loop has run since
        assert losses == []


def test_a_lease_that_ends_before_the_masters_answer_is_lost(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    """The loop has its own timer: no master is needed to tell the loss."""
    losses: Future[LockLostError] = Future()
    with (
        pytest.raises(LockLostError),
        redlock.lock("r", ttl=200, on_lost=losses.set_result) as lease,
    ):
        for master in masters[1:]:
            master.hang()
        error = losses.result(SOON)
        assert "before its validity was over" in error.reason
        assert not lease.valid


def test_a_released_lease_tells_no_loss(redlock: Redlock) -> None:
    losses: list[LockLostError] = []
    with redlock.lock("r", on_lost=losses.append) as lease:
        pass
    redlock.close()
    assert losses == []
    assert not lease.lost.is_set()
    assert lease._watching.cancelled()


# Mistakes


async def later(_: object = None) -> None: ...


class Later:
    async def __call__(self, _: object) -> None: ...


WRONG: dict[str, Callable[[Any], object]] = {
    "on_lost must be a plain function or None, not 'cancel'": lambda it: it.lock(
        "r", on_lost="cancel"
    ),
    "on_lost must be a plain function or None, not a coroutine function": lambda it: it.lock(
        "r", on_lost=later
    ),
    "on_lost must be a plain function or None, not a coroutine": lambda it: it.adopt(
        "x", on_lost=Later()
    ),
    "on_lost must be a plain function or None, not 'flag'": lambda it: it.adopt(
        "x", on_lost="flag"
    ),
    "on_lost must be a plain function or None, not 3": lambda it: it.locked("r", on_lost=3),
    "lock() has no option 'timeout'; use ttl=": lambda it: it.lock("r", timeout=3),
    "ttl must be": lambda it: it.lock("r", ttl=1.5),
    "lock() wants at least one resource": lambda it: it.lock(),
    "resource must be a str": lambda it: it.is_locked(3),
    "masters must be a URL or a redis.asyncio.Redis client, not an int": lambda _: make(3),
    "listener must be a plain function": lambda _: make(["redis://a"], listener=later),
    "listener must be a plain function, not a coroutine": lambda _: make(
        ["redis://a"], listener=Later()
    ),
    "Redlock() has no option 'timeout'": lambda _: make(["redis://a"], timeout=3),
}
make: Any = Redlock


@pytest.mark.parametrize("why", WRONG)
def test_a_wrong_argument_is_named(redlock: Redlock, why: str) -> None:
    with pytest.raises(TypeError, match=re.escape(why)):
        WRONG[why](redlock)


def test_a_lock_that_is_used_like_a_lease_says_so(redlock: Redlock) -> None:
    lock = redlock.lock("r", ttl=5_000)
    assert repr(lock) == "<Lock 'r', ttl 5000 ms>"
    for name in ("release", "extend", "valid", "fencing_token", "owned"):
        with pytest.raises(AttributeError, match=f"{name}.*: a Lock holds nothing; use the lease"):
            getattr(lock, name)
    with pytest.raises(AttributeError, match=r"use 'redlock.is_locked\(name\)'"):
        _ = lock.locked  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"has no attribute 'nonsense'$"):
        _ = lock.nonsense  # type: ignore[attr-defined]
    assert not hasattr(lock, "options")


def test_a_single_master_need_not_be_in_a_list(masters: list[FakeMaster]) -> None:
    with Redlock(masters[0], restart_guard="off") as redlock, redlock.lock("r"):
        assert repr(redlock) == "<Redlock 1 masters, open, in a thread of its own>"
        assert list(masters[0]._keys) == [b"r"]
    assert repr(Redlock("redis://a")).startswith("<Redlock 1 masters,")


def test_a_lock_shows_what_it_was_made_of(redlock: Redlock) -> None:
    lock = redlock.lock("r", "s", owner="request 7", metadata={"job": 3})
    assert (lock.resources, lock.owner, lock.metadata) == (("r", "s"), "request 7", {"job": 3})
    plain = redlock.lock("r")
    assert (plain.owner, plain.metadata) == (None, None)


def test_asyncio_can_not_use_the_lock_for_threads(redlock: Redlock) -> None:
    """``async with`` and ``await`` say what to write instead, for each object."""

    async def enter(thing: Any) -> None:
        async with thing:
            pass

    async def wait_for(thing: Any) -> None:
        await thing

    with redlock.lock("r") as lease:
        for thing in (redlock, redlock.lock("s"), lease):
            kind = type(thing).__name__
            why = f"'async with' can't enter a {kind} of redlock_aio.sync: use 'with' in a thread"
            with pytest.raises(TypeError, match=why):
                asyncio.run(enter(thing))
        with pytest.raises(TypeError, match=r"a Lock of redlock_aio\.sync can't be awaited: use"):
            asyncio.run(wait_for(redlock.lock("s")))
        assert free(redlock, "s")


def test_the_event_of_a_loss_has_no_truth_value(redlock: Redlock) -> None:
    why = r"use 'lease.lost.is_set\(\)', or 'lease.valid'"
    with redlock.lock("r") as lease, pytest.raises(TypeError, match=why):
        bool(lease.lost)


def test_a_lease_without_a_fencing_token_has_no_such_attribute(redlock: Redlock) -> None:
    with redlock.lock("r") as lease, redlock.lock("s", fencing=True) as fenced:
        assert not hasattr(lease, "fencing_token")
        assert getattr(lease, "fencing_token", None) is None
        assert fenced.fencing_token > 0


def test_the_last_block_that_ends_closes_the_manager(
    redlock: Redlock, pool: ThreadPoolExecutor
) -> None:
    def enter() -> None:
        with redlock, redlock.lock("inner"):
            pass

    with redlock.lock("r") as lease:
        enter()
        pool.submit(enter).result()
        lease.ensure_valid()
        assert redlock.is_locked("r")
    with redlock:
        redlock.close()  # at once, whoever is in it
        assert "closed" in repr(redlock)
