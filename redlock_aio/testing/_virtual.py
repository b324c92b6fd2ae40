"""Virtual time, and cancellation at every suspension."""

import asyncio
import contextlib
import functools
import itertools
import selectors
import signal
import threading
import types
from collections.abc import Coroutine, Generator, Iterator
from typing import Any, Literal, TypeVar

T = TypeVar("T")


class _JumpingSelector(selectors.DefaultSelector):
    """
    A selector that never blocks: it advances the loop's clock instead.

    Attributes:
        jumped: By how many seconds it has advanced the clock.

        jumps: Whether it does so; else it waits in real time for what is ready.

        alarm: The error that the handler of an alarm has raised, until the loop ends.
    """

    jumped = 0.0
    jumps = True
    alarm: BaseException | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready: list[tuple[selectors.SelectorKey, int]] = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if self.alarm is not None:
            raise self.alarm
        if not self.jumps:
            return super().select(timeout)
        if timeout is None:
            raise RuntimeError("deadlock: nothing is ready and no timer is set")
        self.jumped += timeout
        return []

    @contextlib.contextmanager
    def ended_by_alarms(self) -> Iterator[None]:
        """
        Let an error of the handler of SIGALRM end the loop that runs in the body.

        pytest-timeout raises one in whatever line runs. In a real loop that is most often its
        wait. A loop in virtual time never waits, so it is a callback or a task: these keep the
        error, and a test that never ends would run on. So it is raised at the next jump again.
        """
        number = getattr(signal, "SIGALRM", None)
        if number is None or threading.current_thread() is not threading.main_thread():
            yield
            return
        handler = signal.getsignal(number)
        if not callable(handler):
            yield
            return

        def on_alarm(number: int, frame: types.FrameType | None) -> None:
            try:
                handler(number, frame)
            except BaseException as error:
                self.alarm = error
                raise

        signal.signal(number, on_alarm)
        try:
            yield
        finally:
            self.alarm = None
            if signal.getsignal(number) is on_alarm:
                signal.signal(number, handler)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """
    An event loop in virtual time: waiting for an hour takes no real time.

    Time stands still while tasks run, and jumps to the next timer when all of
    them wait. Do not mix it with real sockets or threads: a reply that is
    underway, or work in a thread, does not stop the jump.
    """

    def __init__(self) -> None:
        self._selector_with_clock = _JumpingSelector()
        self._suspended = 0.0
        super().__init__(self._selector_with_clock)

    def run_forever(self) -> None:
        """Run until `stop`, or until the handler of an alarm raises an error."""
        with self._selector_with_clock.ended_by_alarms():
            super().run_forever()

    async def shutdown_default_executor(self, *args: Any, **kwargs: Any) -> None:
        """
        Wait in real time for the threads of the loop to end.

        Cancellation:
            They end later.
        """
        # A jump would be a deadlock, or exceed the timeout that it has since Python 3.12.
        self._selector_with_clock.jumps = False
        try:
            await super().shutdown_default_executor(*args, **kwargs)
        finally:
            self._selector_with_clock.jumps = True

    def time(self) -> float:
        """Return the virtual time, in seconds."""
        return self._selector_with_clock.jumped

    def boottime(self) -> float:
        """Return the virtual time plus the time for which the machine was suspended."""
        return self._selector_with_clock.jumped + self._suspended

    def stall(self, seconds: float) -> None:
        """Advance time without running any task, as a blocked loop or a stopped process does."""
        self._selector_with_clock.jumped += seconds

    def suspend(self, seconds: float) -> None:
        """Advance only `boottime`, which timers do not count, as a suspended machine does."""
        self._suspended += seconds


class VirtualTime:
    """The value of the fixture ``virtual_time``: it moves the time of the running test."""

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run *coroutine* in a new event loop in virtual time, from a test that is not async."""
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            return runner.run(coroutine)

    def stall(self, seconds: float) -> None:
        """Advance time without running any task, as a blocked loop or a stopped process does."""
        self._loop().stall(seconds)

    def suspend(self, seconds: float) -> None:
        """Suspend the machine: timers do not count that time, leases do."""
        self._loop().suspend(seconds)

    @staticmethod
    def _loop() -> VirtualTimeLoop:
        loop = asyncio.get_running_loop()
        if not isinstance(loop, VirtualTimeLoop):
            raise RuntimeError(  # noqa: TRY004 - nothing was passed
                f"the test does not run in virtual time, but in a {type(loop).__name__}"
            )
        return loop


@types.coroutine
def cancelled_at(
    nth: int,
    coroutine: Coroutine[Any, Any, T],
    *,
    when: Literal["waiting", "answered"] = "waiting",
) -> Generator[Any, Any, T]:
    """
    Run *coroutine* and cancel its task at its *nth* suspension.

    Args:
        nth: Counted from 1. A coroutine that suspends less often runs to its
            end; that ends a loop over all suspensions.

        coroutine: The coroutine that is cancelled.

        when: ``"waiting"`` cancels while it waits; ``"answered"`` cancels in
            the same turn of the loop in which the awaited result has come in,
            where results get lost easily.

    Cancellation:
        Passed on to the coroutine.
    """
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("cancelled_at must be awaited in a task")
    cancel = task.cancel
    step = functools.partial(coroutine.send, None)
    for suspension in itertools.count(1):
        try:
            awaited = step()
        except StopIteration as end:
            result: T = end.value
            return result
        if suspension == nth:
            if when == "answered" and awaited is not None:
                awaited.add_done_callback(lambda _: cancel())
            else:
                cancel()
        try:
            value = yield awaited
        except BaseException as error:  # noqa: BLE001 - the coroutine handles it
            step = functools.partial(coroutine.throw, error)
        else:
            step = functools.partial(coroutine.send, value)
    raise AssertionError("unreachable")
