"""
The emitter of events to the listener of a manager.

An event of a task's own call is emitted at once, before the call continues. An event of a
master's reply or of the watchdog is emitted in the loop's next turn, so that no listener
runs in the middle of a change of state. Both kinds go through one queue: the listener gets
all events in the order in which they happened. A manager without a listener has no emitter;
each place that emits an event tests for that first.
"""

import asyncio
from collections import deque

from redlock_aio._log import log
from redlock_aio.events import Event, Listener, Mode, Waiting


def event_ms(seconds: float) -> float:
    """Return a duration in ms as events give it: to the µs, for the sums of many short ones."""
    return round(seconds * 1000, 3)


class Emitter:
    """Calls a listener, with one event at a time."""

    __slots__ = (
        "_acquiring",
        "_emitting",
        "_listener",
        "_queue",
        "loop",
        "lost",
        "majority_lost_at",
    )

    def __init__(self, listener: Listener) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        """The loop in whose next turn `emit_soon` emits; ``None`` before the first use."""
        self.majority_lost_at: float | None = None
        """
        The instant of a `MajorityLost` without a `MajorityBack`; ``None`` if there is none.

        It outlives a session: the listener gets the return of the majority from the next one.
        """
        self.lost: set[int] = set()
        """
        The numbers of the masters with a `MasterLost` without a `MasterBack`.

        As above: a master that votes in the next session is back for the listener.
        """
        self._listener = listener
        self._queue: deque[Event] = deque()
        self._emitting = False
        # What each task requests that is acquiring and has not emitted `Waiting`.
        self._acquiring: dict[asyncio.Task[object] | None, tuple[tuple[str, ...], Mode]] = {}

    def __repr__(self) -> str:
        return f"<Emitter, {len(self._acquiring)} acquiring, {len(self._queue)} events underway>"

    def emit(self, event: Event) -> None:
        """Call the listener with *event* now, after all earlier events."""
        self._queue.append(event)
        self.flush()

    def emit_soon(self, event: Event) -> None:
        """Emit *event* in the loop's next turn, or before the next `emit`."""
        if self.loop is not None:
            self._queue.append(event)
            self.loop.call_soon(self.flush)

    def flush(self) -> None:
        if self._emitting:
            return  # called by the listener: the loop below continues afterwards
        self._emitting = True
        try:
            while self._queue:
                event = self._queue.popleft()
                try:
                    self._listener(event)
                except (Exception, asyncio.CancelledError):  # noqa: BLE001 - the listener is the user's code
                    # An error of the listener must not fail the task that locks, and its
                    # CancelledError is no cancellation of that task. The log names only the
                    # event's class.
                    log.exception("the listener raised an error at %s", type(event).__name__)
        finally:
            self._emitting = False

    # Acquisitions.

    def begin_acquiring(
        self, task: asyncio.Task[object] | None, resources: tuple[str, ...], mode: Mode
    ) -> None:
        self._acquiring[task] = resources, mode

    def end_acquiring(self, task: asyncio.Task[object] | None) -> None:
        self._acquiring.pop(task, None)

    def on_waiting(self, task: asyncio.Task[object] | None = None) -> None:
        """Emit `Waiting` for *task* (default: the running one), once per acquisition."""
        if self._acquiring:
            requested = self._acquiring.pop(task or asyncio.current_task(), None)
            if requested is not None:
                self.emit_soon(Waiting(*requested))
