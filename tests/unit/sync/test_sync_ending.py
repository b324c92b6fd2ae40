"""The lock for threads: objects that are dropped, closed, or left by another thread."""

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from redlock_aio import (
    LockLostError,
    LockNotAcquiredError,
    LockNotHeldError,
    LossCause,
    RedlockError,
)
from redlock_aio.events import Acquired, Event, Released
from redlock_aio.sync import Lease, Redlock, _portal
from redlock_aio.testing import FakeMaster

from .threads import SOON, free, in_loop, portals, until


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


def test_a_dropped_lease_whose_lock_is_acquired_again_and_released_leaves_no_error_in_the_log(
    redlock: Redlock, caplog: pytest.LogCaptureFixture
) -> None:
    """Its watch is garbage then: no loss can come any more."""
    lock = redlock.lock("r", ttl=60_000, reentrant=True)
    for _ in range(2):
        with pytest.warns(ResourceWarning, match="was never released"):
            lock.acquire()
            gc.collect()
        lock.acquire().release()
        assert free(redlock)
        gc.collect()
    assert not [record for record in caplog.records if record.name == "asyncio"]


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


def test_a_generator_that_is_dropped_in_its_block_releases_the_lock(redlock: Redlock) -> None:
    """The interpreter may find it in any thread, also in that of the event loop."""

    def works() -> Iterator[None]:
        with redlock.lock("r", ttl=60_000):
            yield

    def drop() -> None:
        generator = works()
        next(generator)
        cycle: list[object] = [generator]
        cycle.append(cycle)

    gc.disable()
    try:
        drop()
        assert not free(redlock)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its lease is garbage, too, and warns
            in_loop(redlock, gc.collect)
    finally:
        gc.enable()
    until(lambda: free(redlock))


def test_a_generator_that_is_closed_in_its_block_releases_the_lock(redlock: Redlock) -> None:
    """Its thread is not that of the event loop, so the release is a call as any other."""

    def works() -> Generator[None, None, None]:
        with redlock.lock("r", ttl=60_000):
            yield

    generator = works()
    next(generator)
    generator.close()
    assert free(redlock)


def test_a_block_that_is_left_in_the_event_loop_without_an_error_is_refused(
    redlock: Redlock,
) -> None:
    """As by a listener: nobody would hear of a loss that the release finds."""
    lease = redlock.lock("r").acquire()
    with pytest.raises(RedlockError, match="in the thread of its own event loop"):
        in_loop(redlock, lambda: lease.__exit__(None, None, None))
    assert lease.valid
    lease.release()


def test_an_error_is_not_kept_by_a_cycle(redlock: Redlock) -> None:
    """Its traceback has the frames of the call, and they have all that the call works on."""
    gc.collect()
    gc.disable()
    try:
        with redlock.lock("r"):
            try:
                redlock.lock("r", wait=0, owner="another").acquire()
            except LockNotAcquiredError as error:
                ref = weakref.ref(error)
            until(lambda: ref() is None)
    finally:
        gc.enable()


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


@pytest.mark.parametrize("cluster", ["redis+cluster://h", ["redis+cluster://h"]])
def test_the_masters_of_a_cluster_are_counted(cluster: "str | list[str]") -> None:
    text = "<Redlock 3 masters, not used yet, in a thread of its own>"
    assert repr(Redlock(cluster)) == text
    assert repr(Redlock.of_cluster("redis://h")) == text


def test_a_lease_that_has_ended_is_not_watched_any_more(redlock: Redlock) -> None:
    """Its watch would be a task for each lease, and tell *on_lost* of a lock that was given up."""
    losses: list[LockLostError] = []

    def watches() -> list[str]:
        tasks = in_loop(redlock, asyncio.all_tasks)
        return [task.get_name() for task in tasks if "_watch" in repr(task.get_coro())]

    lock = redlock.lock("r", on_lost=losses.append)
    released, exported = lock.acquire(), redlock.lock("s", on_lost=losses.append).acquire()
    assert len(watches()) == 2
    released.release()
    exported.export()
    with lock as left:
        pass
    until(lambda: not watches())
    redlock.close()
    assert losses == []
    assert not any(lease.lost.is_set() for lease in (released, exported, left))


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
    assert raised.value.__notes__ == ["'s' lost: its Redlock was closed [closed]"]
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
@pytest.mark.full
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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_fork_while_another_thread_starts_a_portal_leaves_the_child_no_lock(
    masters: list[FakeMaster],
) -> None:
    """The thread that holds the lock is not in the child, and would never release it."""
    held, forked = threading.Event(), threading.Event()

    def hold() -> None:
        with _portal._lock:
            held.set()
            forked.wait(SOON)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(SOON)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.12 warns of a fork with threads
        child = os.fork()
    if not child:
        signal.alarm(int(SOON))  # ends a child that waits for the lock
        redlock = Redlock(masters, restart_guard="off")
        with contextlib.suppress(BaseException), redlock, redlock.lock("r"):
            os._exit(0)
        os._exit(1)
    forked.set()
    holder.join()
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


FORKED_IN_C = """
import ctypes, os, signal, sys

from redlock_aio import RedlockError
from redlock_aio.sync import Redlock, _portal
from redlock_aio.testing import FakeMaster

_portal.PATIENCE = 3_600
redlock = Redlock([FakeMaster("a")], restart_guard="off")
lease = redlock.lock("held").acquire()
with redlock:
    child = ctypes.PyDLL(None).fork()  # as uWSGI does: Python is not told
    if not child:
        signal.alarm(10)  # ends a child that waits for a thread which it does not have
        for use in (redlock.lock("r").acquire, redlock.__enter__, lease.release, redlock.close):
            try:
                use()
            except RedlockError as error:
                print(error, flush=True)
        # The block keeps the status, and the exit handlers must not wait for that thread either.
        sys.exit(3)
    _, status = os.waitpid(child, 0)
    lease.release()
    print(os.waitstatus_to_exitcode(status), redlock.is_locked("held"))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the C library is another one")
def test_a_child_that_was_forked_without_python_is_told_so() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED_IN_C],
        capture_output=True,
        text=True,
        check=False,
        timeout=3 * SOON,
    )
    why = (
        "this process was forked without os.fork, so Python does not know, and the thread of this"
        " Redlock is not in it: with uWSGI set lazy-apps, or py-call-osafterfork [no-event-loop]"
    )
    assert (done.stdout.splitlines(), done.stderr) == ([why] * 4 + ["3 False"], "")


INTERRUPTED_EXIT = """
import atexit, signal, sys

@atexit.register  # before the import, so that it runs after the managers were closed
def look():
    print(sys.modules["redlock_aio.sync._portal"]._running)

from redlock_aio.sync import Redlock
from redlock_aio.testing import FakeMaster

master = FakeMaster("a")
redlock = Redlock([master], restart_guard="off", master_timeout=2_000)
lease = redlock.lock("r").acquire()
master.hang()  # so it takes a master timeout to close the manager

def handle(*_):
    raise KeyboardInterrupt if sys.argv[1] == "KeyboardInterrupt" else SystemExit(3)

signal.signal(signal.SIGALRM, handle)
if sys.argv[2] == "the exit":
    atexit.register(signal.setitimer, signal.ITIMER_REAL, 0.3)
else:
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        redlock.close()
    except BaseException as error:
        print(type(error).__name__)
"""


@pytest.mark.spread(0)
@pytest.mark.parametrize("during", ["close()", "the exit"])
@pytest.mark.parametrize("raised", ["KeyboardInterrupt", "SystemExit"])
def test_one_signal_does_not_end_the_exit(raised: str, during: str) -> None:
    """Such as by a launcher that passes on the Ctrl-C which the terminal has sent to both."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_EXIT, raised, during],
        capture_output=True,
        text=True,
        check=False,
        timeout=3 * SOON,
    )
    told = f"{raised}\n" if during == "close()" else ""
    assert (done.stdout, done.stderr) == (f"{told}set()\n", "")


EXITS = """
import atexit, sys, threading, time

threads = []

@atexit.register  # before the import, so that it runs after the managers were closed
def join():
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()

from redlock_aio.sync import Redlock
from redlock_aio.testing import FakeMaster

redlock = Redlock([FakeMaster("a")], restart_guard="off")
lease = redlock.lock("r").acquire()
holds = threading.Event()

def waits():
    with redlock.lock("r"):
        pass

def works():
    with redlock.lock("s") as lease:
        holds.set()
        while True:
            lease.extend()

def fails():
    while not threading.excepthook.__class__.__name__ == "partial":
        time.sleep(0.001)
    raise KeyError("a defect of the program")

for target in globals()[sys.argv[1]], works:
    threads.append(threading.Thread(target=target, daemon=True))
    threads[-1].start()
assert holds.wait(10)
while sys.argv[1] == "waits" and not redlock.statistics().waiters:
    time.sleep(0.001)
"""


@pytest.mark.full
@pytest.mark.parametrize(
    ("target", "shown"),
    [("fails", "a defect of the program"), pytest.param("waits", "", marks=pytest.mark.full)],
)
def test_a_daemon_thread_that_waits_at_exit_prints_no_traceback(target: str, shown: str) -> None:
    """Nobody can do anything about it; other errors of threads are shown as ever."""
    command = [sys.executable, "-c", EXITS, target]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert shown in done.stderr if shown else done.stderr == ""
    assert "RedlockError" not in done.stderr
    assert "LockLostError" not in done.stderr


STARTS = """
import threading, time
from redlock_aio.sync import Redlock, _portal
from redlock_aio.testing import FakeMaster

start, starting = threading.Thread.start, threading.Event()

def start_late(thread):
    if thread.name == _portal.THREAD_NAME:
        starting.set()
        time.sleep(1)
    start(thread)

threading.Thread.start = start_late
redlock = Redlock([FakeMaster("a")], restart_guard="off")
threading.Thread(target=redlock.lock("r").acquire, daemon=True).start()
assert starting.wait(10)
"""


@pytest.mark.full
def test_a_daemon_thread_that_starts_a_portal_at_exit_prints_no_traceback() -> None:
    """An error there would also leave the other managers open, with their leases."""
    command = [sys.executable, "-c", STARTS]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


# Which thread leaves a block


def test_a_block_may_be_left_by_another_thread(redlock: Redlock, pool: ThreadPoolExecutor) -> None:
    """As the dependencies of a web framework are, which run in a pool of threads."""
    lock = redlock.lock("r")
    lease = pool.submit(lock.__enter__).result(SOON)
    lock.__exit__(None, None, None)
    assert not lease.valid


def test_a_block_of_several_that_none_is_known_to_leave_is_an_error(
    redlock: Redlock, pool: ThreadPoolExecutor
) -> None:
    lock = redlock.lock("r", reentrant=True, owner="x")
    both = threading.Barrier(2, timeout=SOON)

    def enter() -> Lease:
        both.wait()
        return lock.__enter__()

    leases = [entered.result(SOON) for entered in [pool.submit(enter) for _ in range(2)]]
    with pytest.raises(RedlockError, match="left by a thread that has not entered it"):
        lock.__exit__(None, None, None)
    for lease in leases:
        lease.release()


# In the thread of the event loop


def test_nothing_is_started_in_the_loop_of_a_manager_that_has_ended(redlock: Redlock) -> None:
    portal = redlock._opener.opened()
    portal.leave_to_parent()  # as in a child that the thread of the loop has just forked
    with pytest.raises(RedlockError, match="this Redlock is closed"):
        portal.start(asyncio.sleep, 0)
    portal.close()


def test_the_listener_is_called_in_the_loop_and_can_not_use_it(masters: list[FakeMaster]) -> None:
    seen, of_body = list[object](), KeyError("of the body")

    def listen(event: Event) -> None:
        if isinstance(event, Acquired):
            seen.append(threading.current_thread().name)
            seen.append(manager.statistics().leases)
            manager.__exit__(KeyError, of_body, None)
            for use in (
                lambda: manager.is_locked("r"),
                manager.close,
                lambda: manager.__exit__(None, None, None),
                # Whoever closes the generator drops it, and its notes.
                lambda: manager.__exit__(GeneratorExit, GeneratorExit(), None),
            ):
                try:
                    use()
                except RedlockError as error:
                    seen.append(str(error))

    manager = Redlock(masters, restart_guard="off", listener=listen)
    with manager, manager.lock("r"):
        pass
    why = (
        "this Redlock can't be called in the thread of its own event loop, such as by its"
        " listener: move the call to another thread [own-event-loop]"
    )
    assert seen == [_portal.THREAD_NAME, 1, *[why] * 4]
    assert of_body.__notes__ == [why]


def test_a_listener_that_enters_it_does_not_keep_it_open(masters: list[FakeMaster]) -> None:
    refused: list[str] = []

    def listen(_event: Event) -> None:
        try:
            with manager:
                pass
        except RedlockError as error:
            refused.append(error.code)

    manager = Redlock(masters, restart_guard="off", listener=listen)
    with manager.lock("r"):
        pass
    assert "own-event-loop" in refused
    with manager:
        assert "open" in repr(manager)
    assert "closed" in repr(manager)


def test_greenlets_are_refused(masters: list[FakeMaster], monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads of gevent and eventlet run in the thread of the system that starts them."""
    with monkeypatch.context() as patched:
        patched.setattr(threading, "get_native_id", lambda: 42)
        manager = Redlock(masters, restart_guard="off")
        for use in (manager.__enter__, manager.lock("r").acquire):
            with pytest.raises(RedlockError) as raised:
                use()
            assert str(raised.value) == (
                "gevent or eventlet have replaced the threads of this process, and the event loop"
                " of a Redlock needs a real one: use a pool of threads or processes [no-event-loop]"
            )
    until(lambda: not portals())
    with manager, manager.lock("r") as lease:
        assert lease.valid


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
