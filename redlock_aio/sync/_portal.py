"""
The thread of a manager: an event loop, in which the manager of `redlock_aio` lives.

    any thread ── call ──► Portal ──► a task in the loop ──► redlock_aio.Redlock

The thread starts with the first call that needs it. It ends when the manager is closed or
dropped, or when the interpreter exits. In a forked child it does not run: the child's first
call starts one of its own, with a new manager, because connections and leases stay the parent's.

It does what anyio's `BlockingPortal` does, with two differences. A call waits for the loop once
and not twice, which halves its CPU time. And a thread that is interrupted at a call, at whatever
line, can't block the loop.
"""

import asyncio
import atexit
import contextlib
import functools
import os
import threading
import time
import warnings
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import redlock_aio
from redlock_aio import RedlockError
from redlock_aio.errors import ErrorCode

T = TypeVar("T")

THREAD_NAME = "redlock_aio"

CLOSED: tuple[str, ErrorCode] = "this Redlock is closed; 'with' opens it again", "redlock-closed"

WAS_CLOSED: tuple[str, ErrorCode] = "this Redlock was closed", "redlock-closed"

EXITS: tuple[str, ErrorCode] = (
    "the interpreter exits, so this Redlock is closed", "interpreter-exits",
)  # fmt: skip

NO_THREAD: tuple[str, ErrorCode] = (
    (
        "gevent or eventlet have replaced the threads of this process, and the event loop of a"
        " Redlock needs a real one: use a pool of threads or processes"
    ),
    "no-event-loop",
)

NOT_TOLD: tuple[str, ErrorCode] = (
    (
        "this process was forked without os.fork, so Python does not know, and the thread of this"
        " Redlock is not in it: with uWSGI set lazy-apps, or py-call-osafterfork"
    ),
    "no-event-loop",
)

CLOSINGS: frozenset[ErrorCode] = frozenset({"redlock-closed", "interpreter-exits", "closed"})
"""What threads get that use a manager, or a lease of one, when the interpreter exits."""

PATIENCE = 5.0
"""Seconds for which a closed manager waits for calls that have not ended, and the interpreter."""


class Call:
    """
    One call of a thread: a task in the event loop, and the thread that waits for its end.

    The thread acquires a lock, which the event loop releases. There is no `Future` in between,
    because its lock is acquired by both: if the thread were interrupted in the moment in which
    it has that lock, the loop would wait for it for ever.

    Attributes:
        task: The task, once it is started.

        ended: Released when the task has ended.
    """

    __slots__ = ("_args", "_function", "ended", "task")

    def __init__(
        self, function: Callable[..., Coroutine[Any, Any, object]], args: tuple[object, ...]
    ) -> None:
        self._function = function
        self._args = args
        self.task: asyncio.Task[Any] | None = None
        self.ended = threading.Lock()
        self.ended.acquire()

    def __repr__(self) -> str:
        return f"<Call of {self._function!r}>"

    async def run(self) -> object:
        """Run the coroutine function."""
        return await self._function(*self._args)


class Portal:
    """
    A thread with an event loop, in which a manager of `redlock_aio` lives.

    Args:
        redlock: The manager; no other event loop uses it.

    Attributes:
        ended: Whether calls are refused, because the thread ends or is not of this process.

        entered: How many blocks of ``with`` are in it; the end of the last one closes it.

        of_the_parent: Whether this process is a forked child of the one with the thread.
    """

    def __init__(self, redlock: redlock_aio.Redlock) -> None:
        self.redlock: redlock_aio.Redlock = redlock
        self.ended: bool = False
        self.entered: int = 0
        self.of_the_parent: bool = False
        self._process = os.getpid()
        # The calls that are underway. Each change of a dict is atomic, so no lock is needed,
        # which a fork could leave locked. A call stays until its task has ended, and not until
        # its thread goes on: that may be the thread which waits in `close`, in a signal handler.
        self._calls: dict[Call, None] = {}
        self._stop = asyncio.Event()
        self._stopping = self._unused = False
        # Released when the loop runs, or can't. No `Future`, as for a `Call`.
        self._started = threading.Lock()
        self._started.acquire()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(
            target=self._run, args=(threading.get_native_id(),), name=THREAD_NAME, daemon=True
        )
        self._loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        return f"<Portal {'ended' if self.ended else 'running'}, {len(self._calls)} calls>"

    @property
    def is_here(self) -> bool:
        """Whether the caller runs in the event loop, as a listener does."""
        return threading.current_thread() is self._thread

    @property
    def is_in_process(self) -> bool:
        """Whether the thread is one of this process, or was left to the parent."""
        return self.of_the_parent or self._process == os.getpid()

    def launch(self) -> None:
        """
        Start the thread, and wait until its event loop runs.

        Raises:
            RedlockError, RuntimeError, OSError: It can't; then the portal is to be discarded.
        """
        _running.add(self)
        self._thread.start()
        self._started.acquire()
        failure, self._failure = self._failure, None
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # breaks the cycle of error and frame

    def call(self, function: Callable[..., Coroutine[Any, Any, T]], *args: object) -> T:
        """
        Run a coroutine function in the event loop, and wait for its result.

        If the wait is interrupted, such as by a KeyboardInterrupt, the coroutine goes on.

        Raises:
            RedlockError: The manager is closed, or the caller runs in the event loop, or in a
                process without it.
        """
        self.check_caller()
        loop, call = self._loop, Call(function, args)
        # First added, then tested: `_serve` sets `ended` first, and then looks for calls. So
        # it sees this call, or this call sees that it came too late. A call that came after
        # the last turn of the loop would never get a result.
        self._calls[call] = None
        if self.ended or loop is None:
            del self._calls[call]
            raise RedlockError(*CLOSED)
        try:
            loop.call_soon_threadsafe(self._begin, call)
            call.ended.acquire()
        except BaseException as error:
            # Interrupted, perhaps before the task was started: then nobody waits for it.
            if call.task is None:
                self._calls.pop(call, None)
            if isinstance(error, RuntimeError) and loop.is_closed():
                raise RedlockError(*WAS_CLOSED) from None  # see `_run`
            raise
        task, call.task = call.task, None
        try:
            if task is None or task.cancelled():
                raise RedlockError(*WAS_CLOSED)
            result: T = task.result()
            return result
        finally:
            # The traceback of the task's error has this frame and that of `Call.run`: with the
            # task in either of them it would be a cycle.
            del task

    def start(self, function: Callable[..., Coroutine[Any, Any, object]], *args: object) -> None:
        """
        Start a coroutine function; only for the thread of the event loop, which can't wait for it.

        Raises:
            RedlockError: The manager is closed.
        """
        if self.ended or self._loop is None:
            raise RedlockError(*CLOSED)
        self._begin(Call(function, args))

    def give_back(
        self, function: Callable[..., Coroutine[Any, Any, object]], *args: object
    ) -> None:
        """
        Run a coroutine function that releases what an interrupted thread has got, if it can be run.

        If the thread is interrupted once more, perhaps before the event loop has been told, the
        function is started again, and nothing is awaited: nobody else would release that. The
        function may run twice then.
        """
        try:
            self.call(function, *args)
        except BaseException as again:
            loop = self._loop
            if loop is not None and not self.ended and self.takes_calls_here:
                with contextlib.suppress(RuntimeError):  # it was closed: all leases are over
                    loop.call_soon_threadsafe(self._begin, Call(function, args))
            if not isinstance(again, RedlockError):  # else it may be that of the call
                raise

    def _begin(self, call: Call) -> None:
        """Start the task of *call*; in the event loop."""
        self._calls[call] = None  # keeps the task, also if its thread was interrupted
        call.task = task = asyncio.create_task(call.run())
        task.add_done_callback(functools.partial(self._end, call))

    def _end(self, call: Call, task: asyncio.Task[Any]) -> None:
        """Wake the thread of *call*; in the event loop."""
        self._calls.pop(call, None)
        if not task.cancelled():
            task.exception()  # else asyncio would log an error for which no thread waits any more
        call.ended.release()

    @property
    def takes_calls_here(self) -> bool:
        """Whether `check_caller` raises no error."""
        return self.is_in_process and not self.is_here

    def check_caller(self) -> None:
        """
        Raise a `RedlockError` if the caller would wait for ever.

        So it would in the event loop, for itself; and for a thread that is not in its process,
        which was forked in C, and nobody has called `leave_to_parent`.
        """
        if not self.is_in_process:
            raise RedlockError(*NOT_TOLD)
        if self.is_here:
            raise RedlockError(
                "this Redlock can't be called in the thread of its own event loop, such as by its"
                " listener: move the call to another thread",
                "own-event-loop",
            )

    def _run(self, starter: int) -> None:
        """Run the event loop, unless the thread that has started this one is the same."""
        try:
            # A greenlet would do at first. But a thread of the system has one running loop: no
            # other manager, and no `asyncio.run` of the program, would get one there.
            if threading.get_native_id() == starter:
                raise RedlockError(*NO_THREAD)  # noqa: TRY301 - `launch` raises it in the caller
            asyncio.run(self._serve())
        except BaseException as error:
            if self._loop is not None:
                raise
            self._failure = error
            self._started.release()
        finally:
            self.ended = True
            _running.discard(self)
            # A signal handler has closed the manager between the lines of a call, in the thread
            # of that: the loop has waited in vain for the call to begin it.
            for call in list(self._calls):
                call.ended.release()

    async def _serve(self) -> None:
        """
        Serve calls until `stop`, then close the manager.

        Calls that wait for a lock get an error then, and those that release one end soon.
        """
        loop = self._loop = asyncio.get_running_loop()
        self._started.release()
        if not self._stopping:
            await self._stop.wait()
        if not self._unused:
            await self.redlock.aclose()
        self.ended = True
        ends = loop.time() + PATIENCE
        while self._calls and loop.time() < ends:  # noqa: ASYNC110 - threads add to it
            await asyncio.sleep(0.002)

    def stop(self) -> None:
        """Make the thread close the manager and end; do not wait for it."""
        self._stopping = True
        loop = self._loop
        if loop is not None:
            try:
                loop.call_soon_threadsafe(self._stop.set)
            except RuntimeError:
                if not loop.is_closed():
                    raise  # by a signal handler: `close` would wait for ever

    def close(self, timeout: float | None = None) -> None:
        """
        Close the manager, and wait until the thread has ended.

        Args:
            timeout: The most seconds to wait, ``None`` for as long as it takes.

        Raises:
            RedlockError: The caller runs in the event loop, or in a process without it.
        """
        self.check_caller()
        self.stop()
        # At the exit of the interpreter another thread may be about to start this one. Nothing was
        # acquired by it, and once it runs it ends by itself.
        if self._thread.is_alive():
            self._thread.join(timeout)

    def discard(self) -> None:
        """Make the thread end, which no call has used; another portal may use the manager."""
        self._unused = True
        self.stop()
        _running.discard(self)

    def leave_to_parent(self) -> None:
        """Refuse all calls: this process is a forked child, and the thread is the parent's."""
        self.ended = self.of_the_parent = True


class PortalOpener:
    """
    Starts the portal of a manager on first use, and again after a fork.

    Args:
        make: Makes the manager. It is called at once, so that its options are checked, and
            again in each forked child that needs one of its own.
    """

    def __init__(self, make: Callable[[], redlock_aio.Redlock]) -> None:
        self._portal: Portal | None = None
        self._closed = False
        self._make = make
        self._redlock = make()

    def __del__(self) -> None:
        portal = getattr(self, "_portal", None)  # there is none if an option was refused
        if portal is not None and not portal.ended:
            portal.stop()  # no wait: this may run anywhere, also in the portal's thread
            warnings.warn(  # last, because it raises if warnings are errors
                "a Redlock was dropped without close()", ResourceWarning, stacklevel=2, source=self
            )

    @property
    def redlock(self) -> redlock_aio.Redlock:
        """The manager; a forked child gets one of its own, which knows nothing of the parent's."""
        portal = self._portal
        if portal is not None and portal.of_the_parent:
            with _lock:
                if self._portal is portal:  # no other thread was faster
                    self._redlock = self._make()
                    self._portal = None
        return self._redlock

    @property
    def state(self) -> str:
        """The state of the manager, for its repr."""
        if self.running is not None:
            return "open"
        return "closed" if self._closed else "not used yet"

    @property
    def running(self) -> Portal | None:
        """The portal, if there is one that takes calls."""
        portal = self._portal
        return None if portal is None or portal.ended else portal

    def opened(self) -> Portal:
        """
        Return the portal; start one if there is none.

        Raises:
            RedlockError: The manager was closed.
        """
        return (not self._closed and self.running) or self._start()

    def enter(self) -> None:
        """
        Open the manager for a block of ``with``, also one that was closed.

        Raises:
            RedlockError: The caller runs in the manager's own event loop.
        """
        if self._closed and (closing := self.running) is not None:
            closing.close()
        entered = False
        try:
            with _lock:
                portal = self._start(again=True)
                portal.check_caller()
                portal.entered += 1
                entered = True  # no signal is handled between these lines, which call nothing
            portal.call(portal.redlock.__aenter__)
        except BaseException:
            if entered:
                self.close(block=True)
            raise

    def _start(self, *, again: bool = False) -> Portal:
        with _lock:
            if self._closed and not again:
                raise RedlockError(*CLOSED)
            if _exiting:
                raise RedlockError(*EXITS)
            self._closed = False
            if (portal := self.running) is not None:  # another thread was faster
                return portal
            portal = Portal(self.redlock)
            try:
                portal.launch()
                # Not if a signal handler has opened or closed the manager meanwhile: first the
                # call, at which it may still do so.
                if self.running is None and not self._closed:
                    self._portal = portal
                    return portal
            finally:
                # Also if the thread was interrupted: nobody else would end that of the portal.
                if self._portal is not portal:
                    portal.discard()
            return self._start()

    def close(self, *, block: bool = False) -> None:
        """
        Close the manager, and wait until that is done; harmless if it is closed.

        If the thread is interrupted, such as by a KeyboardInterrupt, the manager is closed anyway.

        Args:
            block: Whether only a block of ``with`` ends, so that the manager is left open if it
                was not the last one.

        Raises:
            RedlockError: The caller runs in the manager's own event loop.
        """
        portal, ended = None, False
        try:
            with _lock:
                portal = self.running
                if block and portal is not None and portal.entered > 1:
                    portal.entered -= 1
                    portal, ended = None, True  # as in `enter`
                else:
                    if portal is not None:
                        portal.check_caller()
                    self._closed = ended = True
            if portal is not None:
                portal.close()
        except BaseException:
            # The type of the error says nothing, see `Lease._give_up`.
            if ended and portal is not None:
                portal.stop()
            elif not ended and (portal is None or portal.takes_calls_here):
                with contextlib.suppress(RedlockError):
                    self.close(block=block)
            raise


_running: set[Portal] = set()
_of_the_parent: list[Portal] = []
_exiting = False
_lock = threading.RLock()  # not a Lock: a signal handler may open a manager, too


def _leave_to_parent() -> None:
    """
    Refuse all calls of portals that this process, a forked child, has from its parent.

    The portals are kept alive: to close their event loops would change the epoll that the child
    shares with its parent. Another thread may have held the lock at the fork.
    """
    global _lock  # noqa: PLW0603 - the lock belongs to the process
    _lock = threading.RLock()
    for portal in _running:
        portal.leave_to_parent()
    _of_the_parent.extend(_running)
    _running.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)


def _without_closings(
    excepthook: Callable[[threading.ExceptHookArgs], object], args: threading.ExceptHookArgs, /
) -> None:
    """
    Report the error that has ended a thread, unless it says that its manager was closed.

    Only daemon threads are left when the interpreter exits. It would have ended them in the
    middle of a wait, so the error that wakes a waiting one is no news. It is raised anyway: an
    exit handler that joins the thread does not wait for ever. Where nothing joins it, the
    interpreter may end it first.
    """
    error = args.exc_value
    if not (isinstance(error, RedlockError) and error.code in CLOSINGS):
        excepthook(args)


@atexit.register
def _close_all() -> None:
    """Close the managers that are still open when the interpreter exits: leases are released."""
    global _exiting  # noqa: PLW0603 - there is one interpreter
    _exiting = True
    if _running:
        threading.excepthook = functools.partial(_without_closings, threading.excepthook)
    here = [portal for portal in list(_running) if portal.is_in_process]
    for portal in here:
        # All of them first, also if a signal handler raises: see below.
        try:  # noqa: SIM105 - it may do so at the calls of `suppress` as well
            portal.stop()
        except BaseException:  # noqa: BLE001, S110
            pass
    ends = time.monotonic() + PATIENCE
    for portal in here:
        # What a signal handler raises here, Python would print. A launcher may pass on the Ctrl-C
        # that the terminal has sent to both: the leases are released nevertheless.
        with contextlib.suppress(BaseException):
            portal.close(PATIENCE)
        # Before Python 3.13 a `join` that was interrupted takes its thread for ended, also in a
        # `close` of the program, and the next one does not wait. One more signal ends this wait.
        while portal in _running and time.monotonic() < ends:
            time.sleep(0.002)
