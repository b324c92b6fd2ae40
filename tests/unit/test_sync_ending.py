"""The lock for threads: what ends, and what an interrupted thread gives back."""

import contextlib
import gc
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from redlock_aio import (
    LockLostError,
    LockNotAcquiredError,
    LockNotHeldError,
    LossCause,
    RedlockError,
)
from redlock_aio.events import Acquired, Event, Released
from redlock_aio.sync import Redlock, _portal
from redlock_aio.sync._acquisition import ThreadAcquisition
from redlock_aio.testing import FakeMaster

from .threads import SOON, free, portals, until


@pytest.fixture
def masters() -> list[FakeMaster]:
    return [FakeMaster(f"m{i}") for i in range(3)]


@pytest.fixture
def redlock(masters: list[FakeMaster]) -> Iterator[Redlock]:
    with Redlock(masters, restart_guard="off") as redlock:
        yield redlock


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a manager that is closed wait for ever for calls that do not end."""
    monkeypatch.setattr(_portal, "PATIENCE", 3_600)


# Dropped objects


def test_a_lease_that_is_dropped_warns_and_ends(redlock: Redlock) -> None:
    losses: Future[LockLostError] = Future()
    redlock.lock("s").acquire().release()
    with pytest.warns(ResourceWarning, match="was never released; it is not extended any more"):
        redlock.lock("r", ttl=300, on_lost=losses.set_result).acquire()
        gc.collect()
    loss = losses.result(SOON)
    assert loss.cause is LossCause.NOT_EXTENDED
    assert loss.reason.endswith(": it was dropped without a release")
    until(lambda: free(redlock))


def test_a_manager_that_is_dropped_warns_and_its_thread_ends(masters: list[FakeMaster]) -> None:
    before = portals()
    redlock = Redlock(masters, restart_guard="off")
    lock = redlock.lock("r")
    del redlock
    gc.collect()
    with lock:  # the lock keeps it
        assert portals() == before + 1
    with pytest.warns(ResourceWarning, match=r"a Redlock was dropped without close\(\)"):
        del lock
        gc.collect()
    until(lambda: portals() == before)
    until(lambda: not any(master._connections for master in masters))


def test_the_thread_of_a_dropped_manager_ends_also_if_warnings_are_errors(
    masters: list[FakeMaster], monkeypatch: pytest.MonkeyPatch
) -> None:
    gc.collect()
    before = portals()
    errors: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda error: errors.append(error.exc_type))
    redlock = Redlock(masters, restart_guard="off")
    with redlock.lock("r"):
        pass
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del redlock
        gc.collect()
    until(lambda: portals() == before)
    assert errors == [ResourceWarning]


def test_a_forked_child_does_not_count_what_its_parent_holds(masters: list[FakeMaster]) -> None:
    redlock = Redlock(masters, restart_guard="off")
    lease = redlock.lock("r").acquire()
    portal = redlock._opener.opened()
    portal.leave_to_parent()  # as in a child that has just been forked
    numbers = redlock.statistics()
    assert (numbers.is_open, numbers.leases) == (False, 0)
    assert repr(redlock) == "<Redlock 3 masters, not used yet, in a thread of its own>"
    portal.close()
    assert not lease.valid


def test_a_manager_that_was_never_used_has_no_thread(masters: list[FakeMaster]) -> None:
    before = portals()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        redlock = Redlock(masters)
        redlock.lock("r")
        assert repr(redlock) == "<Redlock 3 masters, not used yet, in a thread of its own>"
        assert redlock.statistics().leases == 0
        assert redlock.master_timeout == 50
        redlock.close()
        redlock.close()
        del redlock
        gc.collect()
    assert portals() == before


# Closing


def test_closing_ends_leases_and_waits(masters: list[FakeMaster], pool: ThreadPoolExecutor) -> None:
    redlock = Redlock(masters, restart_guard="off")
    losses: Future[LockLostError] = Future()
    lease = redlock.lock("r", on_lost=losses.set_result).acquire()
    failing = redlock.lock("s").acquire()
    waiting = pool.submit(redlock.lock("r").acquire)
    until(lambda: redlock.statistics().waiters)
    assert repr(redlock) == "<Redlock 3 masters, open, in a thread of its own>"
    redlock.close()
    assert repr(redlock) == "<Redlock 3 masters, closed, in a thread of its own>"
    with pytest.raises(RedlockError, match="this Redlock was closed"):
        waiting.result(SOON)
    assert losses.result(SOON).reason == "its Redlock was closed"
    assert not lease.valid
    with pytest.raises(LockNotHeldError, match="its Redlock was closed"):
        lease.release()
    for use in (
        lease.extend,
        lease.export,
        lease.ensure_valid,
        lambda: lease.__exit__(None, None, None),
    ):
        with pytest.raises(LockLostError, match="its Redlock was closed"):
            use()
    with pytest.raises(KeyError) as raised, contextlib.ExitStack() as stack:
        stack.push(failing)
        raise KeyError("mine")
    assert raised.value.__notes__ == ["'s' lost: its Redlock was closed"]
    assert not any(master._keys.keys() & {b"r", b"s"} for master in masters)
    assert redlock.statistics().leases == 0


@pytest.mark.parametrize(
    "use",
    [
        lambda redlock: redlock.lock("r").acquire(),
        lambda redlock: redlock.lock("r").try_acquire(),
        lambda redlock: redlock.inspect("r"),
        lambda redlock: redlock.is_locked("r"),
        lambda redlock: redlock.find_locks("r"),
        lambda redlock: redlock.force_release("r"),
    ],
    ids=["acquire", "try_acquire", "inspect", "is_locked", "find_locks", "force_release"],
)
def test_a_closed_manager_refuses_calls_and_with_opens_it(
    masters: list[FakeMaster], use: Callable[[Redlock], object]
) -> None:
    redlock = Redlock(masters, restart_guard="off")
    redlock.close()
    with pytest.raises(RedlockError, match="this Redlock is closed; 'with' opens it again"):
        use(redlock)
    with redlock, redlock.lock("r"):
        pass
    with pytest.raises(RedlockError, match="this Redlock is closed; 'with' opens it again"):
        use(redlock)


@pytest.mark.usefixtures("patient")
def test_calls_while_a_manager_is_closed_end(
    masters: list[FakeMaster], pool: ThreadPoolExecutor
) -> None:
    """A call comes before, while and after the loop ends; none waits for ever."""

    def work(redlock: Redlock) -> None:
        with contextlib.suppress(RedlockError):
            while True:
                with redlock.lock(str(threading.get_ident())):
                    pass

    for _ in range(10):
        redlock = Redlock(masters, restart_guard="off")
        working = [pool.submit(work, redlock) for _ in range(4)]
        until(lambda redlock=redlock: redlock.statistics().leases)  # type: ignore[misc]
        redlock.close()
        for each in working:
            each.result(SOON)


# In the thread of the event loop


def test_the_listener_is_called_in_the_loop_and_can_not_use_it(masters: list[FakeMaster]) -> None:
    seen: list[object] = []

    def listen(event: Event) -> None:
        if isinstance(event, Acquired):
            seen.append(threading.current_thread().name)
            seen.append(manager.statistics().leases)
            for use in (manager.close, lambda: manager.is_locked("r")):
                try:
                    use()
                except RedlockError as error:
                    seen.append(str(error))

    manager = Redlock(masters, restart_guard="off", listener=listen)
    with manager, manager.lock("r"):
        pass
    why = (
        "this Redlock can't be called in the thread of its own event loop, such as by its"
        " listener: move the call to another thread"
    )
    assert seen == [_portal.THREAD_NAME, 1, why, why]


@pytest.mark.parametrize("stop", [SystemExit, KeyboardInterrupt, KeyError])
def test_a_listener_can_not_end_the_thread(
    masters: list[FakeMaster], stop: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Event] = []

    def listen(event: Event) -> None:
        seen.append(event)
        raise stop("mine")

    with Redlock(masters, restart_guard="off", listener=listen) as redlock:
        with redlock.lock("r") as lease:
            lease.extend()
        with redlock.lock("r"):
            pass
    assert [type(event) for event in seen].count(Released) == 2
    assert caplog.text.count("the listener raised an error at Released") == 2


# Interrupted threads


class TimeLimitError(Exception):
    """Raised by a signal handler, as the time limit of a Celery task is."""


@pytest.fixture
def interrupt() -> Iterator[Callable[[], None]]:
    """Return a function that makes the main thread raise `TimeLimitError`."""

    def handler(_number: int, _frame: Any) -> None:
        raise TimeLimitError

    before = signal.signal(signal.SIGUSR1, handler)
    yield lambda: os.kill(os.getpid(), signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


def test_an_interrupted_wait_gives_up_the_lock(
    redlock: Redlock, pool: ThreadPoolExecutor, interrupt: Callable[[], None]
) -> None:
    lease = pool.submit(redlock.lock("r").acquire).result(SOON)

    def when_it_waits() -> None:
        until(lambda: redlock.statistics().waiters)
        interrupt()

    interrupting = pool.submit(when_it_waits)
    with pytest.raises(TimeLimitError):
        redlock.lock("r").acquire()
    interrupting.result(SOON)
    assert redlock.statistics().waiters == 0
    lease.release()
    assert free(redlock)


@pytest.mark.usefixtures("patient")
def test_a_manager_can_be_closed_by_a_signal_handler_of_a_waiting_thread(
    masters: list[FakeMaster], pool: ThreadPoolExecutor
) -> None:
    """The wait that the handler interrupts is over, but its thread goes on after the handler."""
    redlock = Redlock(masters, restart_guard="off")
    lease = pool.submit(redlock.lock("r").acquire).result(SOON)

    def handler(_number: int, _frame: Any) -> None:
        redlock.close()

    def when_it_waits() -> None:
        until(lambda: redlock.statistics().waiters)
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        pool.submit(when_it_waits)
        with pytest.raises(RedlockError, match="this Redlock was closed"):
            redlock.lock("r").acquire()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not lease.valid


@pytest.mark.parametrize("when", ["before the task", "behind the lease"])
@pytest.mark.parametrize("kind", ["acquire", "try_acquire", "adopt"])
def test_an_interrupt_beside_the_wait_gives_back_the_lease(
    redlock: Redlock, monkeypatch: pytest.MonkeyPatch, when: str, kind: str
) -> None:
    """The signal comes before the task has started, or when it has ended."""
    text = redlock.lock("r").acquire().export() if kind == "adopt" else ""
    portal = redlock._opener.opened()
    call, late = portal.call, []

    def interrupted(function: Callable[..., Any], *args: object) -> object:
        if getattr(function, "__name__", "") != "_run":
            return call(function, *args)
        if when == "behind the lease":
            call(function, *args)
        else:
            late.append(function)
        raise TimeLimitError

    monkeypatch.setattr(portal, "call", interrupted)
    with pytest.raises(TimeLimitError):
        redlock.adopt(text) if kind == "adopt" else getattr(redlock.lock("r"), kind)()
    monkeypatch.undo()
    for function in late:
        assert call(function) is None
    if not text or not late:
        assert free(redlock)
    assert redlock.statistics().leases == 0


def test_an_acquisition_that_fails_has_nothing_to_give_back(
    redlock: Redlock, monkeypatch: pytest.MonkeyPatch, pool: ThreadPoolExecutor
) -> None:
    monkeypatch.setattr(ThreadAcquisition, "_cancel", None)
    with redlock.lock("r"), pytest.raises(LockNotAcquiredError):
        pool.submit(redlock.lock("r", wait=0).acquire).result(SOON)
