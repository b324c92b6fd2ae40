"""
The state that the sentries of one manager share.

Only all masters together show whether a whole set is new, and which quarantine is the
longest that any program on these masters uses.
"""

from collections.abc import Awaitable, Callable, Collection, Sequence
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
    """Whether young servers without a marker count as restarted even if all masters are young."""
    tell: Callable[[bool, str], None]
    """Called with a sentence for operators, and first whether it is good news."""
    addresses: Sequence[str]
    """The names of the masters."""
    key: bytes
    """The key under which programs write about their masters."""


class Peer(NamedTuple):
    """The callbacks by which one sentry informs the others and is notified by them."""

    is_old: Callable[[], bool]
    """Returns whether the sentry's master is known not to be new."""
    on_longer: Callable[[], None]
    """Called when the quarantine has become longer."""
    on_restricted: Callable[[], None]
    """Called when the sentry's master loses its vote because of other programs' masters."""


class GuardState:
    """
    The state that the sentries of one manager share.

    Args:
        seen: The observations of each address; they outlive the connections.

        clock: The clock of leases.

        found: Marks all masters as members, if none of them has a marker.

    Attributes:
        lasts: The quarantine in seconds. It grows when the marker of a master carries a
            longer one.

        founding: Whether a new set is being marked.

        peers: The sentries, in the order of the masters.
    """

    def __init__(
        self,
        seen: list[Seen],
        clock: Callable[[], float],
        settings: GuardSettings,
        found: Callable[[], Awaitable[None]],
    ) -> None:
        self.seen = seen
        self.clock = clock
        self.found = found
        self.lasts = settings.lasts
        self.strict = settings.strict
        self._tell = settings.tell
        self.peers: list[Peer] = []
        self.declarations = Declarations(
            settings.addresses,
            settings.key,
            clock=clock,
            lasts=lambda: self.lasts,
            on_restricted=self._restrict,
            tell=settings.tell,
        )
        self.founding = False

    def __repr__(self) -> str:
        return f"<GuardState of {len(self.peers)}, {self.lasts:g} s>"

    @property
    def is_old(self) -> bool:
        """Whether a master is known not to be new."""
        return any(peer.is_old() for peer in self.peers)

    def _restrict(self, numbers: Collection[int]) -> None:
        for number in numbers:
            self.peers[number].on_restricted()

    def learn(self, lasts: float, *, by: Peer | None = None) -> None:
        """
        Lengthen the quarantine to *lasts* seconds if that is longer; it is never shortened.

        A program with a longer *max_ttl* writes its quarantine into the marker of a master
        before that master votes for it. Therefore every master that may have lost one of
        its leases stays in quarantine until that lease is over.

        Args:
            by: The sentry that has read the marker; it is not notified.
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
                peer.on_longer()  # its master may vote by the shorter time
