"""
The state that the sentries of one manager share.

Only all masters together show whether a whole set is new, and which quarantine is the
longest that any program on these masters uses.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from redlock_aio._rules.marker import milliseconds
from redlock_aio._rules.quarantine import Seen
from redlock_aio._transport.declarations import Declarations


class GuardSettings(NamedTuple):
    """The settings of a restart guard."""

    lasts: float
    """The quarantine in seconds: the longest validity of a lease that a master may have lost."""
    strict: bool
    """Whether young servers without a marker count as restarted even if all masters are so."""
    tell: Callable[[bool, str], None]
    """Called with True for good news and a sentence for operators."""
    addresses: Sequence[str]
    """The names of the masters."""
    key: bytes
    """The key under which sets of masters are declared."""


class Peer(NamedTuple):
    """What a sentry tells the others, and how they notify it."""

    is_old: Callable[[], bool]
    """Returns whether its master is known not to be new."""
    on_longer: Callable[[], None]
    """Called when the quarantine has become longer."""
    on_refused: Callable[[], None]
    """Called when no master may vote any more."""


class GuardState:
    """
    The state that the sentries of one manager share.

    Args:
        seen: The observations of each address; they outlive the connections.

        clock: The clock of leases.

    Attributes:
        lasts: The quarantine in seconds. It grows when the marker of a master carries a
            longer one.

        founding: Whether a new set is being marked.

        peers: The sentries, in the order of the masters.
    """

    def __init__(
        self, seen: list[Seen], clock: Callable[[], float], settings: GuardSettings
    ) -> None:
        self.seen = seen
        self.clock = clock
        self.lasts = settings.lasts
        self.strict = settings.strict
        self._tell = settings.tell
        self.peers: list[Peer] = []
        self.declarations = Declarations(
            settings.addresses,
            settings.key,
            clock=clock,
            lasts=lambda: self.lasts,
            on_refused=self._refuse,
            tell=settings.tell,
        )
        self.founding = False

    def __repr__(self) -> str:
        return f"<GuardState of {len(self.peers)}, {self.lasts:g} s>"

    @property
    def is_old(self) -> bool:
        """Whether some master is known not to be new."""
        return any(peer.is_old() for peer in self.peers)

    def _refuse(self) -> None:
        for peer in self.peers:
            peer.on_refused()

    def learn(self, lasts: float, *, by: Peer | None = None) -> None:
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
        for peer in self.peers:
            if peer is not by:
                peer.on_longer()  # it may vote by the shorter time
