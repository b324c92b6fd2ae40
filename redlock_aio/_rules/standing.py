"""
Why a master has no vote: a `Standing` with a `Bar` from each source that has a reason.

What is done with a master follows from its standing: how commands are sent there, the vote of
an attempt, the lines of the log, the events and the statistics.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

from redlock_aio._rules.causes import NoVoteCause
from redlock_aio._rules.quorum import Answer


@dataclass(frozen=True, slots=True)
class Bar:
    """
    One reason for which a master has no vote.

    Attributes:
        text: The reason, without the time that is left.

        until: The instant at which the bar ends by itself; infinite if that is not known.

        answer: The vote of the master in an attempt.

        permanent: Whether a person has to change something first.

        topic: The log tells a bar once, also if its text changes: as long as this is equal.

        quiet: Whether the log needs no line: it has one for all masters, or none is of use.

        provisional: Whether it is about to be decided. Then it is not reported yet.
    """

    cause: NoVoteCause
    text: str
    until: float = math.inf
    answer: Answer = Answer.QUARANTINED
    permanent: bool = False
    topic: tuple[object, ...] = ()
    quiet: bool = False
    provisional: bool = False

    def describe(self, now: float) -> str:
        if self.until == math.inf:
            return self.text
        text = f"{self.text}; it votes again in {max(1, math.ceil(self.until - now))} s"
        # Those of a new set vote as soon as the last one of them is seen.
        return f"{text} at the latest" if self.cause is NoVoteCause.UNPROVEN else text


class Standing(NamedTuple):
    """
    The bars of one master, ``None`` for each source that has no objection.

    Attributes:
        link: There is no connection.

        marker: It may have forgotten locks, by the restart guard.

        declared: Other programs name other masters for the same locks.

        route: Too few of the Sentinels, or of the nodes of its Cluster, confirm it.
    """

    link: Bar | None = None
    marker: Bar | None = None
    declared: Bar | None = None
    route: Bar | None = None

    @property
    def bars(self) -> tuple[Bar, ...]:
        """The bars, beginning with the one that is reported."""
        return tuple([bar for bar in self if bar is not None])

    @property
    def votes(self) -> bool:
        return not self.bars

    @property
    def first(self) -> Bar | None:
        """The bar that is reported; ``None`` for a master that votes."""
        return next(iter(self.bars), None)
