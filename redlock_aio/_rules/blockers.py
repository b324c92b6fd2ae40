"""
The values that block a lock on each master, and when a majority may be free.

Nothing here waits or reads a clock: instants are seconds on the clock of leases.
"""

import math
from collections.abc import Sequence

from redlock_aio._rules import timing
from redlock_aio._rules.quorum import TAKING_PART, Answer, Vote, majority


class Blockers:
    """For each of *masters*, the value that blocks the lock there, and when it may be free."""

    __slots__ = ("_free_from", "_unfit", "_values")

    def __init__(self, masters: int) -> None:
        self._free_from = [math.inf] * masters
        self._values: list[bytes | None] = [None] * masters
        self._unfit: dict[int, str] = {}

    def __repr__(self) -> str:
        return f"<Blockers {self._free_from}>"

    def held(self, master: int, value: bytes, until: float) -> None:
        self._values[master] = value
        self._free_from[master] = until
        self._unfit.pop(master, None)

    def can_not_be(self, master: int, why: str) -> None:
        """Count *master* as not free for the reason *why*, until a change there is reported."""
        self._values[master] = None
        self._free_from[master] = math.inf
        self._unfit[master] = why

    def may_be_free(self, master: int) -> None:
        self._free_from[master] = 0.0
        self._unfit.pop(master, None)

    @property
    def free_from(self) -> float:
        """The instant from which a majority may be free; infinite if it is not known."""
        return sorted(self._free_from)[majority(len(self._free_from)) - 1]

    def retry_at(self, votes: Sequence[Vote]) -> float:
        """
        Return the earliest instant at which a majority may be free; infinite if it is not known.

        A master that has not answered counts as held for the shortest time of those that
        are held; it may be free before, or never answer again. If fewer masters than a
        majority have answered, the instant is not known.

        Args:
            votes: The vote of each master; one that can't grant a lock does not count.
        """
        replied = [
            value is not None or until < math.inf
            for value, until in zip(self._values, self._free_from, strict=True)
        ]
        needed = majority(len(votes))
        if sum(replied) < needed:
            return math.inf
        held = [until for until in self._free_from if until > 0]
        shortest = min(held, default=0.0)
        instants = [
            until if counts or vote.answer not in TAKING_PART else shortest
            for until, counts, vote in zip(self._free_from, replied, votes, strict=True)
        ]
        return sorted(instants)[needed - 1]

    @property
    def is_hopeless(self) -> bool:
        """Whether so many masters have a key that is no lock that the others are no majority."""
        return len(self._free_from) - len(self._unfit) < majority(len(self._free_from))

    @property
    def parties(self) -> int:
        return len({value for value in self._values if value is not None})

    @property
    def holder(self) -> bytes | None:
        values = self._values
        for value in values:
            if value is not None and values.count(value) >= majority(len(values)):
                return value
        return None

    @property
    def held_by_holder(self) -> list[int]:
        """The masters that have the value of the holder, and no change since; see `holder`."""
        holder, free_from = self.holder, self._free_from
        return [
            master
            for master, value in enumerate(self._values)
            if holder is not None and value == holder and free_from[master]
        ]

    def explain(self, votes: Sequence[Vote], now: float) -> tuple[Vote, ...]:
        """Return *votes* with the remaining time of the lock, or why its key is no lock."""
        return tuple(
            Vote(vote.master, Answer.ERROR, self._unfit[master], permanent=True)
            if master in self._unfit
            else _with(vote, f"{timing.remaining(until, now)} ms left")
            if vote.answer is Answer.HELD and now < until < math.inf
            else vote
            for master, (vote, until) in enumerate(zip(votes, self._free_from, strict=True))
        )


def _with(vote: Vote, more: str) -> Vote:
    return Vote(vote.master, vote.answer, f"{vote.detail}, {more}" if vote.detail else more)
