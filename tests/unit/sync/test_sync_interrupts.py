"""Interrupted threads: Ctrl-C and signal handlers at a call of the lock for threads."""

import asyncio
import contextlib
import errno
import functools
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from unittest.mock import Mock

import pytest

from redlock_aio import (
    LockLostError,
    LockNotAcquiredError,
    LockNotHeldError,
    LossCause,
    RedlockError,
)
from redlock_aio.sync import Election, Lease, Lock, Redlock, _portal
from redlock_aio.sync._acquisition import ThreadAcquisition
from redlock_aio.sync._portal import Portal
from redlock_aio.testing import FakeMaster

from .threads import SOON, free, portals, until

# Acquiring


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


def test_an_interrupted_watch_takes_no_change_with_it(
    redlock: Redlock, pool: ThreadPoolExecutor, interrupt: Callable[[], None]
) -> None:
    states = redlock.watch("r")
    assert not next(states).locked

    def when_it_watches() -> None:
        until(lambda: states._task is not None)
        interrupt()

    for _ in range(2):
        interrupting = pool.submit(when_it_watches)
        with pytest.raises(TimeLimitError):
            next(states)
        interrupting.result(SOON)
        until(lambda: states._task is None)  # its task has ended: it asks the masters no more
        assert not pool.submit(next, states).result(SOON).locked
    interrupting = pool.submit(when_it_watches)
    with pytest.raises(TimeLimitError):
        next(states)
    interrupting.result(SOON)
    with redlock.lock("r"):
        assert pool.submit(next, states).result(SOON).locked


def test_a_watch_that_is_interrupted_before_it_has_begun_leaves_no_task(
    redlock: Redlock, pool: ThreadPoolExecutor, interrupt: Callable[[], None]
) -> None:
    states = redlock.watch("r")
    assert not next(states).locked
    portal = redlock._opener.opened()
    busy, goes_on = threading.Event(), threading.Event()

    def stall() -> None:
        busy.set()
        goes_on.wait(SOON)

    assert portal._loop is not None
    portal._loop.call_soon_threadsafe(stall)
    assert busy.wait(SOON)

    def when_it_calls() -> None:
        until(lambda: portal._calls)
        interrupt()

    interrupting = pool.submit(when_it_calls)
    with pytest.raises(TimeLimitError):
        next(states)
    interrupting.result(SOON)
    goes_on.set()
    assert not pool.submit(next, redlock.watch("r")).result(SOON).locked
    until(lambda: not portal._calls)


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


def test_a_manager_can_be_closed_by_a_signal_handler_of_a_waiting_thread(
    masters: list[FakeMaster], pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait that the handler interrupts is over, but its thread goes on after the handler."""
    monkeypatch.setattr(_portal, "PATIENCE", 3_600)  # `close` waits for calls that do not end
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
@pytest.mark.parametrize("kind", ["acquire", "try_acquire", "__enter__", "adopt"])
def test_an_interrupt_beside_the_wait_gives_back_the_lease(
    redlock: Redlock, monkeypatch: pytest.MonkeyPatch, when: str, kind: str
) -> None:
    """The signal comes before the task has started, or when it has ended."""
    lock = redlock.lock("r")
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
        redlock.adopt(text) if kind == "adopt" else getattr(lock, kind)()
    monkeypatch.undo()
    assert not lock._entered
    for function in late:
        assert call(function) is None
    if not text or not late:
        assert free(redlock)
    assert redlock.statistics().leases == 0


def test_an_acquisition_that_fails_has_nothing_to_give_back(
    redlock: Redlock, monkeypatch: pytest.MonkeyPatch, pool: ThreadPoolExecutor
) -> None:
    monkeypatch.setattr(ThreadAcquisition, "_take_back", None)
    with redlock.lock("r"), pytest.raises(LockNotAcquiredError):
        pool.submit(redlock.lock("r", wait=0).acquire).result(SOON)


def test_a_thread_that_is_interrupted_twice_gives_back_the_lease(
    redlock: Redlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second signal comes while the thread waits until its lease is taken back."""
    portal = redlock._opener.opened()
    call = portal.call

    def interrupted(function: Callable[..., Any], *args: object) -> None:
        if getattr(function, "__name__", "") == "_take_back":  # it has begun, and goes on
            assert portal._loop is not None
            asyncio.run_coroutine_threadsafe(function(*args), portal._loop)
        else:
            call(function, *args)
        raise TimeLimitError

    monkeypatch.setattr(portal, "call", interrupted)
    with pytest.raises(TimeLimitError):
        redlock.lock("r", ttl=60_000).acquire()
    monkeypatch.undo()
    until(lambda: free(redlock))
    assert redlock.statistics().leases == 0


def test_a_thread_that_is_interrupted_twice_at_once_releases_the_lock_that_it_waits_for(
    redlock: Redlock, monkeypatch: pytest.MonkeyPatch, pool: ThreadPoolExecutor
) -> None:
    """The second signal comes before any line that could tell the loop to take it back."""
    lock = redlock.lock("r")
    holder = pool.submit(lock.acquire).result(SOON)
    portal = redlock._opener.opened()
    waiting = list[Future[object]]()

    def interrupted(function: Callable[..., Any]) -> None:
        if function.__name__ == "_run":
            assert portal._loop is not None
            waiting.append(asyncio.run_coroutine_threadsafe(function(), portal._loop))
            until(lambda: redlock.statistics().waiters)
        raise TimeLimitError

    monkeypatch.setattr(portal, "call", interrupted)
    monkeypatch.setattr(portal, "give_back", interrupted)
    with pytest.raises(TimeLimitError), lock:
        pass
    monkeypatch.undo()
    holder.release()
    assert waiting[0].result(SOON) is None
    assert not lock._entered
    assert free(redlock)


def time_is_over() -> None:
    raise TimeLimitError


class OtherLostError(LockLostError):
    """Raised by a signal handler that looks after another lease."""


def other_is_lost(name: str = "other") -> None:
    raise OtherLostError((name,), LossCause.NOT_EXTENDED)


@pytest.mark.parametrize("handler", [time_is_over, other_is_lost])
@pytest.mark.parametrize("act", ["acquire", "__enter__", "release", "__exit__", "export"])
def test_a_thread_that_is_interrupted_twice_at_once_releases_the_lock_that_it_has_got(
    redlock: Redlock, monkeypatch: pytest.MonkeyPatch, act: str, handler: Callable[[], None]
) -> None:
    """The first signal comes behind the wait, or before it; the second before the next one."""
    lock = redlock.lock("r", ttl=60_000)
    portal = redlock._opener.opened()
    call = portal.call

    def interrupted(function: Callable[..., Any], *args: object) -> None:
        if getattr(function, "__name__", "") == "_run":
            call(function, *args)
            raise TimeLimitError
        handler()

    lease = None if act in {"acquire", "__enter__"} else lock.acquire()
    monkeypatch.setattr(portal, "call", interrupted)
    with pytest.raises((TimeLimitError, OtherLostError)):
        if act == "__exit__":
            Lease.__exit__(lease, None, None, None)  # type: ignore[arg-type]
        else:
            getattr(lease or lock, act)()
    monkeypatch.undo()
    until(lambda: free(redlock))
    assert not lock._entered
    assert redlock.statistics().leases == 0


def interrupted_at(
    call: int, act: Callable[[Any], None], handler: Callable[[], None] = time_is_over
) -> int:
    """
    Call *act*, and interrupt it where CPython handles a signal for the *call*-th time.

    Args:
        act: Sets the profile function that it gets for the part of it that counts.

        handler: What the signal does there.

    Returns:
        The number of these places in that part, or until the interrupt.
    """
    calls = 0

    def profile(frame: Any, event: str, _: object) -> None:
        nonlocal calls
        # An error of a finalizer, or of a weak reference's callback, is printed and not raised.
        if event in {"call", "c_return"} and frame.f_code.co_name not in {"_remove", "__del__"}:
            calls += 1
            if calls == call:
                sys.setprofile(None)
                handler()

    before = sys.getprofile()
    try:
        act(profile)
    except (TimeLimitError, OtherLostError):
        pass
    else:
        assert calls < call or handler not in {time_is_over, other_is_lost}, "the error is lost"
    finally:
        sys.setprofile(before)
    return calls


def enters(block: Lock | Redlock) -> Callable[[Any], None]:
    def act(profile: Any) -> None:
        sys.setprofile(profile)
        with block:
            sys.setprofile(None)

    return act


def test_an_interrupt_at_any_call_leaves_neither_a_lease_nor_a_block(redlock: Redlock) -> None:
    """Neither does it stop the event loop."""
    lock = redlock.lock("r")
    call = calls = 0
    while calls == call:
        call += 1
        calls = interrupted_at(call, enters(lock))
        assert not lock._entered
        assert free(redlock)
        assert redlock.statistics().leases == 0
    assert calls > 10


class OtherHeldError(LockNotAcquiredError):
    """Raised by a signal handler that tries to lock something else."""


def test_a_call_is_not_skipped_because_a_signal_handler_finds_another_lock_held(
    redlock: Redlock,
) -> None:
    redlock.check()
    calls_of_the_function = 0

    @redlock.locked("r", skip_if_locked=True)
    def function() -> None:
        nonlocal calls_of_the_function
        sys.setprofile(None)
        calls_of_the_function += 1

    def act(profile: Any) -> None:
        sys.setprofile(profile)
        function()

    def handler() -> None:
        raise OtherHeldError(["other"], attempts=1, elapsed=0, votes=())

    call = calls = raised = 0
    while calls == call:
        call += 1
        try:
            calls = interrupted_at(call, act, handler)
        except OtherHeldError:
            raised += 1
            calls = call
    assert (raised, calls_of_the_function) == (call - 1, 1)
    assert calls > 10


def test_a_signal_handler_may_close_a_manager_at_any_call_of_an_acquisition(
    masters: list[FakeMaster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`close` waits for that call, which may not have begun: its thread runs the handler."""
    monkeypatch.setattr(_portal, "PATIENCE", 0.05)
    codes: set[str] = set()
    call = calls = 0
    while calls == call:
        call += 1
        redlock = Redlock(masters, restart_guard="off")
        redlock.check()
        lock = redlock.lock("r")

        def acquire(profile: Any, lock: Lock = lock) -> None:
            lease = None
            sys.setprofile(profile)
            try:
                lease = lock.acquire()
            except RedlockError as error:
                codes.add(error.code)
            sys.setprofile(None)
            if lease is not None:
                with contextlib.suppress(LockNotHeldError):
                    lease.release()

        calls = interrupted_at(call, acquire, redlock.close)
        redlock.close()
    assert codes == {"redlock-closed"}
    assert calls > 10


def leaves_lock(lock: Lock, profile: Any) -> None:
    with lock:
        sys.setprofile(profile)
    sys.setprofile(None)


def leaves_lease(lock: Lock, profile: Any) -> None:
    with lock.acquire():
        sys.setprofile(profile)
    sys.setprofile(None)


def releases(lock: Lock, profile: Any) -> None:
    lease = lock.acquire()
    sys.setprofile(profile)
    lease.release()
    sys.setprofile(None)


def enters_lease(lock: Lock, profile: Any) -> None:
    lease = lock.acquire()
    sys.setprofile(profile)
    with lease:
        sys.setprofile(None)


def enters_term(lock: Lock, profile: Any) -> None:
    term = next(Election(lock))
    sys.setprofile(profile)
    with term:
        sys.setprofile(None)


def leaves_term(lock: Lock, profile: Any) -> None:
    with next(Election(lock)):
        sys.setprofile(profile)
    sys.setprofile(None)


def campaigns(lock: Lock, profile: Any) -> None:
    election = Election(lock)
    sys.setprofile(profile)
    for term in election:
        sys.setprofile(None)
        with term:
            break


def campaigns_again(lock: Lock, profile: Any) -> None:
    for number, term in enumerate(Election(lock)):
        if number == 0:
            sys.setprofile(profile)
            continue
        sys.setprofile(None)
        with term:
            break


@pytest.mark.parametrize(
    ("act", "unguarded"),
    [
        (leaves_lock, 1),
        (enters_lease, 1),
        (leaves_lease, 1),
        (releases, 1),
        (campaigns, 0),
        (campaigns_again, 1),
        (enters_term, 1),
        (leaves_term, 1),
    ],
)
@pytest.mark.parametrize("handler", [time_is_over, other_is_lost])
@pytest.mark.spread(0)
def test_an_interrupt_where_a_lock_is_held_releases_it_anyway(
    redlock: Redlock,
    act: Callable[[Lock, Any], None],
    unguarded: int,
    handler: Callable[[], None],
) -> None:
    """But for the first call, which comes before any line that could catch it."""
    lock = redlock.lock("r")
    call = calls = unguarded
    while calls == call:
        call += 1
        calls = interrupted_at(call, functools.partial(act, lock), handler)
        assert not lock._entered
        until(lambda: free(redlock))
        until(lambda: redlock.statistics().leases == 0)
    assert calls > 5


@pytest.mark.parametrize("act", [enters_lease, enters_term])
def test_the_loss_of_another_lease_of_its_name_is_an_interrupt_as_well(
    redlock: Redlock, act: Callable[[Lock, Any], None]
) -> None:
    """Such as one of another manager; but for the first call, as above."""
    call = calls = 1
    while calls == call:
        call += 1
        calls = interrupted_at(
            call, functools.partial(act, redlock.lock("r")), functools.partial(other_is_lost, "r")
        )
        until(lambda: free(redlock))
    assert calls > 5


@pytest.mark.spread(0)
@pytest.mark.parametrize(
    "options",
    [{}, {"fair": True, "fencing": True}, {"permits": 1}],
    ids=["plain", "fair", "permit"],
)
@pytest.mark.parametrize("handler", [time_is_over, other_is_lost])
def test_an_interrupted_export_releases_the_lock(
    redlock: Redlock, options: Any, handler: Callable[[], None]
) -> None:
    """Nobody has got the text; but for the first call, which comes before any line."""
    lock, texts = redlock.lock("r", ttl=60_000, wait=5_000, **options), list[str]()

    def exports(profile: Any) -> None:
        lease = lock.acquire()
        sys.setprofile(profile)
        text = lease.export()
        sys.setprofile(None)
        texts.append(text)

    call = calls = 1
    while calls == call:
        call += 1
        calls = interrupted_at(call, exports, handler)
        for text in texts:
            redlock.adopt(text).release()
        lock.acquire().release()
        until(lambda: redlock.statistics().leases == 0)
    assert len(texts) == 1
    assert calls > 10


@pytest.mark.parametrize("kind", ["a lease", "a term"])
def test_a_lease_that_another_thread_enters_first_is_not_given_up(
    redlock: Redlock, pool: ThreadPoolExecutor, kind: str
) -> None:
    """It does so at any call of the thread that enters it as well, and is refused."""
    lock = redlock.lock("r", fencing=True)
    call = calls = 0
    while calls == call:
        call += 1
        block = lock.acquire() if kind == "a lease" else next(Election(lock))
        lease = block if isinstance(block, Lease) else block.lease
        refused = list[RuntimeError]()

        def enter(profile: Any, block: Any = block, refused: list[Any] = refused) -> None:
            sys.setprofile(profile)
            try:
                block.__enter__()
                sys.setprofile(None)
            except RuntimeError as error:
                sys.setprofile(None)
                refused.append(error)

        def enters_first(block: Any = block) -> None:
            pool.submit(block.__enter__).result(SOON)

        calls = interrupted_at(call, enter, enters_first)
        assert lease.valid
        assert len(refused) == (calls == call)
        lease.release()
    assert calls > 2


# Opening


def test_an_interrupt_at_any_call_leaves_no_block_of_a_manager(masters: list[FakeMaster]) -> None:
    redlock = Redlock(masters, restart_guard="off", master_timeout=200)
    redlock.check()
    call = calls = 0
    while calls == call:
        call += 1
        calls = interrupted_at(call, enters(redlock))
        with redlock:
            pass
        assert redlock._opener.running is None
        redlock = Redlock(masters, restart_guard="off", master_timeout=200)
        redlock.check()
    redlock.close()
    assert calls > 10


@pytest.mark.parametrize("handler", ["raises", "closes"])
def test_an_interrupt_at_any_call_of_its_opening_leaves_no_thread_of_a_manager(
    masters: list[FakeMaster], handler: str
) -> None:
    before = portals()
    call = calls = 0
    while calls == call:
        call += 1
        redlock = Redlock(masters, restart_guard="off", master_timeout=200)

        def opens(profile: Any, redlock: Redlock = redlock) -> None:
            def but_in_start(frame: Any, event: str, arg: object) -> None:
                # An interrupt there breaks the locks of CPython's own classes.
                caller = frame
                while caller is not None and caller.f_code is not threading.Thread.start.__code__:
                    caller = caller.f_back
                if caller is None:
                    profile(frame, event, arg)

            sys.setprofile(but_in_start)
            with contextlib.suppress(RedlockError):  # this Redlock is closed
                redlock._opener.opened()
            sys.setprofile(None)

        calls = interrupted_at(call, opens, redlock.close if handler == "closes" else time_is_over)
        if handler == "raises" or calls != call:
            redlock.close()
        until(lambda: portals() == before)
    assert calls > 10


def leaves_manager(redlock: Redlock, profile: Any) -> None:
    with redlock:
        sys.setprofile(profile)
    sys.setprofile(None)


def closes(redlock: Redlock, profile: Any) -> None:
    redlock.check()
    sys.setprofile(profile)
    redlock.close()
    sys.setprofile(None)


@pytest.mark.parametrize("handler", [time_is_over, other_is_lost])
@pytest.mark.parametrize("act", [leaves_manager, closes], ids=["a block", "close()"])
@pytest.mark.spread(0)
def test_an_interrupt_at_the_end_of_a_manager_closes_it_anyway(
    masters: list[FakeMaster], act: Callable[[Redlock, Any], None], handler: Callable[[], None]
) -> None:
    """But for the first two calls, which come before any line that could catch it."""
    before = portals()
    call = calls = 2
    while calls == call:
        call += 1
        redlock = Redlock(masters, restart_guard="off", master_timeout=200)
        calls = interrupted_at(call, functools.partial(act, redlock), handler)
        until(lambda: portals() == before)
        with redlock:
            pass
        assert portals() == before
    assert calls > 20


class RuntimeLimitError(TimeLimitError, RuntimeError):
    """Raised by the handler of a program whose errors are runtime errors."""


def test_an_interrupt_by_a_runtime_error_ends_the_wait_of_close_and_is_raised(
    masters: list[FakeMaster], pool: ThreadPoolExecutor
) -> None:
    """An event loop that is closed, and a thread that has not started, raise such errors, too."""
    before = portals()
    call = calls = 2
    while calls == call:
        call += 1
        redlock = Redlock(masters, restart_guard="off", master_timeout=200)
        raised = list[RuntimeLimitError]()

        def handler() -> None:
            raise RuntimeLimitError

        def act(
            profile: Any, redlock: Redlock = redlock, raised: list[RuntimeLimitError] = raised
        ) -> None:
            try:
                closes(redlock, profile)
            except RuntimeLimitError as error:
                raised.append(error)

        closing = pool.submit(interrupted_at, call, act, handler)
        try:
            calls = closing.result(SOON)
        finally:
            redlock.close()
        assert len(raised) == (calls == call)
        until(lambda: portals() == before)
    assert calls > 20


@pytest.mark.parametrize("handler", [time_is_over, other_is_lost])
def test_an_interrupt_at_the_end_of_an_inner_block_of_a_manager_ends_only_that(
    masters: list[FakeMaster], handler: Callable[[], None]
) -> None:
    redlock = Redlock(masters, restart_guard="off", master_timeout=200)
    call = calls = 2
    while calls == call:
        call += 1
        with redlock:
            calls = interrupted_at(call, functools.partial(leaves_manager, redlock), handler)
            portal = redlock._opener.running
            assert portal is not None
            assert portal.entered == 1
        assert redlock._opener.running is None
    assert calls > 3


def test_a_signal_while_managers_are_told_to_end_at_exit_leaves_none_open(
    masters: list[FakeMaster], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, stop, calls = portals(), Portal.stop, 0

    def interrupted(portal: Portal) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise TimeLimitError
        stop(portal)

    redlocks = [Redlock(masters, restart_guard="off") for _ in range(2)]
    for redlock in redlocks:
        redlock.check()
    monkeypatch.setattr(_portal, "_exiting", False)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    monkeypatch.setattr(Portal, "stop", interrupted)
    _portal._close_all()
    assert portals() == before


@pytest.mark.parametrize("runs", ["at once", "later"])
def test_a_thread_that_is_interrupted_when_it_opens_a_manager_can_open_it_again(
    masters: list[FakeMaster], monkeypatch: pytest.MonkeyPatch, runs: str
) -> None:
    """The thread of the manager ends, whether its loop runs before or after the interrupt."""
    run, interrupted = asyncio.run, threading.Event()

    def runs_later(main: Coroutine[Any, Any, None]) -> None:
        assert interrupted.wait(SOON)
        run(main)

    if runs == "later":
        monkeypatch.setattr(asyncio, "run", runs_later)

    launch = Portal.launch

    def interrupted_launch(portal: Portal) -> None:
        monkeypatch.setattr(portal, "_started", Mock(acquire=time_is_over))
        launch(portal)

    before = portals()
    redlock = Redlock(masters, restart_guard="off")
    monkeypatch.setattr(Portal, "launch", interrupted_launch)
    with pytest.raises(TimeLimitError):
        redlock.lock("r").acquire()
    monkeypatch.undo()
    interrupted.set()
    until(lambda: portals() == before)
    with redlock.lock("r"):
        pass
    redlock.close()


def test_a_manager_whose_event_loop_can_not_be_made_can_be_opened_again(
    masters: list[FakeMaster], monkeypatch: pytest.MonkeyPatch
) -> None:
    def new_event_loop() -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    before = portals()
    redlock = Redlock(masters, restart_guard="off")
    monkeypatch.setattr(asyncio.events, "new_event_loop", new_event_loop)
    with pytest.warns(RuntimeWarning, match="never awaited"):
        with pytest.raises(OSError, match="Too many open files"):
            redlock.lock("r").acquire()
        gc.collect()  # what was to run in the loop goes with the error
    monkeypatch.undo()
    until(lambda: portals() == before)
    with redlock.lock("r"):
        pass
    redlock.close()


@pytest.mark.parametrize("use", ["acquires", "closes"])
def test_a_signal_handler_may_use_a_manager_that_is_being_opened(
    masters: list[FakeMaster], monkeypatch: pytest.MonkeyPatch, use: str
) -> None:
    """The handler runs when the thread of the manager is started, and nobody knows of it yet."""
    before = portals()
    redlock = Redlock(masters, restart_guard="off")

    class Interrupted(Portal):
        def launch(self) -> None:
            monkeypatch.undo()
            super().launch()
            if use == "closes":
                redlock.close()
            else:
                redlock.lock("s").acquire().release()

    monkeypatch.setattr(_portal, "Portal", Interrupted)
    if use == "closes":
        with pytest.raises(RedlockError, match="this Redlock is closed; 'with' opens it again"):
            redlock.lock("r").acquire()
    else:
        with redlock.lock("r"):
            until(lambda: portals() == before + 1)
        redlock.close()
    until(lambda: portals() == before)
