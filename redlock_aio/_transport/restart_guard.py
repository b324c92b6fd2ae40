"""
The state that the sentries of one manager share.

Only all masters together show whether a whole set is new, and which quarantine is the
longest that any program on these masters uses.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from redlock_aio._rules import quarantine
from redlock_aio._rules.marker import milliseconds
from redlock_aio._rules.quarantine import MEMBER, UNDECIDED, Seen, Verdict
from redlock_aio._rules.quorum import GRANTED
from redlock_aio._transport.declarations import Declarations
from redlock_aio._transport.handshake import read_marker
from redlock_aio._transport.sentry import Sentry


class Guard:
    """
    The state that the sentries of one manager share.

    Args:
        seen: The observations of each address; they outlive the connections.

        clock: The clock of leases.

        lasts: The quarantine in seconds: the longest validity of a lease that a master
            may have lost. It grows when the marker of a master carries a longer one.

        strict: Whether young servers without a marker count as restarted even if all
            masters are like that.

        tell: Called with True for good news and a sentence for operators.

        addresses: The names of the masters.

        key: The key under which sets of masters are declared.
    """

    def __init__(
        self,
        seen: list[Seen],
        clock: Callable[[], float],
        *,
        lasts: float,
        strict: bool,
        tell: Callable[[bool, str], None],
        addresses: Sequence[str],
        key: bytes,
    ) -> None:
        self.seen = seen
        self.clock = clock
        self.lasts = lasts
        self.strict = strict
        self._tell = tell
        self.sentries: list[Sentry] = []
        self.declarations = Declarations(
            addresses,
            key,
            clock=clock,
            lasts=lambda: self.lasts,
            on_refused=self._refuse,
            tell=tell,
        )
        self.founding = False
        """Whether a new set is being marked."""

    def __repr__(self) -> str:
        states = ", ".join(s.state.name if s.state else "AWAY" for s in self.sentries)
        return f"<Guard of {states}>"

    @property
    def is_old(self) -> bool:
        """Whether some master is known not to be new."""
        return any(sentry.is_old for sentry in self.sentries)

    def _refuse(self) -> None:
        for sentry in self.sentries:
            sentry.refuse()

    def learn(self, lasts: float, *, by: Sentry | None = None) -> None:
        """
        Lengthen the quarantine to *lasts* seconds if that is longer; it is never shortened.

        A program with a longer *max_ttl* writes its quarantine into the marker of a master
        before that master votes for it. Hence every master that may have forgotten one of
        its leases stays in quarantine until that lease is over.

        Args:
            by: The sentry that has read the marker; it is judging, and is not notified.
        """
        if milliseconds(lasts) <= milliseconds(self.lasts):
            return
        more = lasts - self.lasts
        self.lasts += more
        self.seen[:] = [replace(seen, until=seen.until + more) for seen in self.seen]
        self._tell(
            False,
            f"a master that may have forgotten locks waits for {self.lasts:g} s now: a program"
            " on these masters has a longer max_ttl than this one",
        )
        for sentry in self.sentries:
            if sentry is not by:
                sentry.outlasted()  # it may vote by the shorter time

    async def found(self) -> None:
        """
        Mark all masters as members, if none of them has a marker.

        The set is new only if the markers, read back after all were written, still say so:
        another program that knows a master from before may have marked it as rejoining
        meanwhile. A master that can't be marked is judged alone.

        Cancellation:
            Markers that were written by then stay.
        """
        sentries = self.sentries
        if self.founding or self.is_old or any(sentry.state is None for sentry in sentries):
            return
        self.founding = True
        try:
            asked = [s.ask_for(quarantine.founding(s.info, s.lasts)) for s in sentries]
            if None in asked:
                return  # one has just gone
            replies = [(await mark.reply, await get.reply) for mark, get in filter(None, asked)]
        finally:
            self.founding = False
        found = [read_marker(reply) for _, reply in replies]
        for marker in found:
            self.learn(0.0 if marker is None else marker.lasts / 1000)
        new = not any(
            marker is not None and (marker.rejoining or marker.run_id != sentry.info.run_id)
            for sentry, marker in zip(sentries, found, strict=True)
        )
        for sentry, marker, (marked, _) in zip(sentries, found, replies, strict=True):
            if new and marker is not None and sentry.state is UNDECIDED:
                if marker.lasts < milliseconds(self.lasts):
                    sentry.doubt()  # a program with a shorter quarantine has marked it
                else:
                    sentry.stand(Verdict(MEMBER), marker)
            elif not new and marked == GRANTED:
                sentry.ask_for(quarantine.not_new(sentry.info, sentry.lasts, certain=True))
                sentry.doubt()  # masters do not push a client's own changes to it
