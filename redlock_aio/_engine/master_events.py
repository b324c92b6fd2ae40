"""
The events of the masters of one session, and of their majority.

A master without a vote is an event, and each change of that. A majority is lost as soon as
the masters that vote, and those that are not known yet, are none.
"""

from collections.abc import Callable, Sequence

from redlock_aio._engine.emitter import Emitter, event_ms
from redlock_aio._rules.quorum import Answer, Vote, majority
from redlock_aio._rules.standing import Bar, Standing
from redlock_aio.events import MajorityBack, MajorityLost, MasterBack, MasterLost


class MasterEvents:
    """
    Emits an event for each change of a master's standing, and of the majority.

    Args:
        emitter: Calls the listener.

        names: The names of the masters, in their order.

        clock: The clock of leases.
    """

    __slots__ = ("_bars", "_clock", "_emitter", "_unknown", "_votes")

    def __init__(self, emitter: Emitter, names: Sequence[str], clock: Callable[[], float]) -> None:
        self._emitter = emitter
        self._clock = clock
        self._votes = [Vote(name, Answer.UNREACHABLE, "connecting") for name in names]
        # The bar of each vote; ``None`` for a master that votes, or is not known yet.
        self._bars: list[Bar | None] = [None] * len(names)
        self._unknown = set(range(len(names)))

    def __repr__(self) -> str:
        return f"<MasterEvents, {self._voting} of {len(self._votes)} vote>"

    @property
    def _voting(self) -> int:
        return sum(vote.answer is Answer.GRANTED for vote in self._votes)

    def on_standing(self, master: int, standing: Standing) -> None:
        """Emit what has changed since the last call for this *master*."""
        before, bar = self._bars[master], standing.first
        name, is_known = self._votes[master].master, master not in self._unknown
        self._bars[master] = bar
        self._unknown.discard(master)
        if bar is None:
            if is_known and before is None:
                return
            self._votes[master] = Vote(name, Answer.GRANTED)
            if master in self._emitter.lost:
                self._emitter.lost.remove(master)
                self._emitter.emit_soon(MasterBack(name))
        else:
            self._votes[master] = vote = Vote(name, bar.answer, bar.describe(self._clock()))
            # A connection ends for one cause, and can't be made again for another: one loss.
            alike = before is not None and before.cause is bar.cause
            was = None if before is None else before.answer
            if was is bar.answer and (alike or bar.answer is Answer.UNREACHABLE):
                return
            self._emitter.lost.add(master)
            reason = str(vote).removeprefix(f"{name}: ")
            self._emitter.emit_soon(MasterLost(name, reason, bar.cause, tuple(self._votes)))
        self._count()

    def _count(self) -> None:
        """Emit the loss of the majority, or its return."""
        emitter, voting, needed = self._emitter, self._voting, majority(len(self._votes))
        if emitter.majority_lost_at is None and voting + len(self._unknown) < needed:
            emitter.majority_lost_at = self._clock()
            emitter.emit_soon(MajorityLost(tuple(self._votes)))
        elif emitter.majority_lost_at is not None and voting >= needed:
            # The clock of another event loop may be behind, in virtual time.
            lost = max(self._clock() - emitter.majority_lost_at, 0.0)
            emitter.majority_lost_at = None
            emitter.emit_soon(MajorityBack(round(event_ms(lost))))
