"""
The events of the masters of one session, and of their majority.

A master without a vote is an event, and each change of that. A majority is lost as soon as
the masters that vote, and those that are not known yet, are none.
"""

from collections.abc import Callable, Sequence

from redlock_aio._engine.emitter import Emitter, milliseconds
from redlock_aio._rules.causes import NoVoteCause
from redlock_aio._rules.quorum import Answer, Vote, majority
from redlock_aio.events import MajorityBack, MajorityLost, MasterBack, MasterLost


class MasterEvents:
    """
    Emits an event for each change of a master's vote, and of the majority.

    Args:
        emitter: Calls the listener.

        names: The names of the masters, in their order.

        clock: The clock of leases.
    """

    __slots__ = ("_causes", "_clock", "_emitter", "_unknown", "_votes")

    def __init__(self, emitter: Emitter, names: Sequence[str], clock: Callable[[], float]) -> None:
        self._emitter = emitter
        self._clock = clock
        self._votes = [Vote(name, Answer.UNREACHABLE, "connecting") for name in names]
        self._causes: list[NoVoteCause | None] = [None] * len(names)
        self._unknown = set(range(len(names)))

    def __repr__(self) -> str:
        return f"<MasterEvents, {self._voting} of {len(self._votes)} vote>"

    @property
    def _voting(self) -> int:
        return sum(vote.answer is Answer.GRANTED for vote in self._votes)

    def on_vote(self, master: int) -> None:
        """Emit `MasterBack` if this *master*, which votes, was lost before."""
        name, answer = self._votes[master].master, self._votes[master].answer
        if answer is not Answer.GRANTED:
            self._unknown.discard(master)
            self._votes[master] = Vote(name, Answer.GRANTED)
            if master in self._emitter.lost:
                self._emitter.lost.remove(master)
                self._emitter.emit_soon(MasterBack(name))
            self._count()

    def on_no_vote(self, master: int, vote: Vote, cause: NoVoteCause) -> None:
        """Emit `MasterLost` if *vote*, the current one, is the first, or for another cause."""
        before, self._votes[master] = self._votes[master], vote
        was, self._causes[master] = self._causes[master], cause
        # A connection ends for one cause, and can't be made again for another: that is one loss.
        alike = cause is was or vote.answer is Answer.UNREACHABLE
        if master not in self._unknown and alike and before.answer is vote.answer:
            return
        self._unknown.discard(master)
        self._emitter.lost.add(master)
        reason = str(vote).removeprefix(f"{vote.master}: ")
        self._emitter.emit_soon(MasterLost(vote.master, reason, cause, tuple(self._votes)))
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
            emitter.emit_soon(MajorityBack(round(milliseconds(lost))))
