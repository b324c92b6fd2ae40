"""
Telling a listener what happens.

What happens in a task's own call is told there and then, before the call goes on.
What happens between the replies of masters, or in the watchdog's rounds, is told
in the loop's next turn: whatever the listener does, it meets no half-done work.
Both go through one queue, so that everything is told in the order in which it
happened. Without a listener nothing is told, and hardly anything is asked.
"""

import asyncio
import logging
from collections import deque

from redlock_aio._rules.quorum import Answer, Vote
from redlock_aio.events import Event, Listener, MasterBack, MasterLost, Waiting

_log = logging.getLogger("redlock_aio")


def milliseconds(seconds: float) -> int:
    """Return a duration as an event has it."""
    return int(seconds * 1000 + 0.5)


class Teller:
    """
    Who tells a listener, one event at a time.

    Args:
        listener: ``None`` if there is none.
    """

    __slots__ = ("_acquiring", "_listener", "_out", "_telling", "_untold", "loop")

    def __init__(self, listener: Listener | None = None) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        """The one whose next turn is waited for."""
        self._listener = listener
        self._untold: deque[Event] = deque()
        self._telling = False
        # Who acquires and has not been told to wait.
        self._acquiring: dict[asyncio.Task[object] | None, tuple[str, ...]] = {}
        # Why a master has no vote, of those that were told lost.
        self._out: dict[str, Answer] = {}

    def __repr__(self) -> str:
        return f"<Teller, {len(self._untold)} untold>"

    def tell(self, event: Event) -> None:
        """Tell it, behind all that has not been told yet."""
        self._untold.append(event)
        self.tell_all()

    def tell_soon(self, event: Event) -> None:
        """Tell it when this turn of the loop is over, or before what is told sooner."""
        if self.loop is not None and self._listener is not None:
            self._untold.append(event)
            self.loop.call_soon(self.tell_all)

    def tell_all(self) -> None:
        """Tell what has not been told yet."""
        if self._telling or self._listener is None:
            return  # what the listener itself brings about it hears when it has heard this
        self._telling = True
        try:
            while self._untold:
                event = self._untold.popleft()
                try:
                    self._listener(event)
                except (Exception, asyncio.CancelledError):  # noqa: BLE001 - it is the user's code
                    # Nobody who locks is to suffer from who watches; nor is it their
                    # cancellation. The event may be told by its class, no more.
                    _log.exception("the listener failed at %s", type(event).__name__)
        finally:
            self._telling = False

    # Who waits.

    def begins(self, resources: tuple[str, ...]) -> None:
        """Hear that the running task begins to acquire."""
        self._acquiring[asyncio.current_task()] = resources

    def ends(self) -> None:
        """Hear that it has ended to acquire, in whatever way."""
        self._acquiring.pop(asyncio.current_task(), None)

    def waits(self, task: asyncio.Task[object] | None = None) -> None:
        """Tell, once, that *task* has to wait, the running one if it is left out."""
        if self._acquiring:
            resources = self._acquiring.pop(task or asyncio.current_task(), None)
            if resources is not None:
                self.tell_soon(Waiting(resources))

    # Masters.

    def stands(self, vote: Vote) -> None:
        """Tell how a master stands, if that is news; *vote* is what it would say now."""
        out = self._out
        if vote.answer is Answer.GRANTED:
            if out.pop(vote.master, None) is not None:
                self.tell_soon(MasterBack(vote.master))
        elif out.get(vote.master) is not vote.answer:
            out[vote.master] = vote.answer
            self.tell_soon(MasterLost(vote.master, str(vote).removeprefix(f"{vote.master}: ")))


SILENT = Teller()
"""Who tells nobody."""
