"""
The shipped rules that the proofs run, and the defects that the proofs must find.

A defect is the set of shipped rules with one of them replaced. Each was in an early
design of this library, or is in another library.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from redlock_aio._protocol import commands
from redlock_aio._protocol.primitives import FencingCounter, Mutex
from redlock_aio._rules import fencing
from redlock_aio._rules.fair_ticket import UNASKED, Position, Ticket


def extend(counter: FencingCounter, token: bytes, ttl: int, fence: int) -> bytes:
    """Return the command that extends one lease."""
    return commands.extend(counter.extension(token, ttl, fence))


@dataclass(frozen=True)
class Rules:
    """
    The rules by which clients and masters decide.

    Attributes:
        agreed: Returns the token that follows from the counters of a majority; 0 for none.

        acknowledged: Returns the counter that a master acknowledged, from its reply and the
            value to which it was to be raised.

        extend: Returns the command that extends a lock.

        lift: Returns the command that lifts the counters for a holder.

        lifts_a_majority: Whether a majority must have been lifted before a master
            that has lost the lock may count again.

        ticket: The class that decides which replies to a fair waiter count.

        quarantines: Whether a master that has lost its keys grants nothing.

        counts_quarantined: Whether a quarantined master counts for an extension.

        new_tokens: Whether each attempt has a token of its own.
    """

    agreed: Callable[[Sequence[int], int], int] = fencing.agreed
    acknowledged: Callable[[int, int], int] = lambda reply, _value: reply
    extend: Callable[[FencingCounter, bytes, int, int], bytes] = extend
    lift: Callable[[FencingCounter, bytes, int, int], bytes] = FencingCounter.lift
    lifts_a_majority: bool = True
    ticket: type[Ticket] = Ticket
    quarantines: bool = True
    counts_quarantined: bool = False
    new_tokens: bool = True


def _at_least(counters: Sequence[int], needed: int) -> int:
    return sorted(counters)[-needed] if len(counters) >= needed else 0


def _value_only(_counter: FencingCounter, token: bytes, ttl: int, _fence: int) -> bytes:
    return commands.extend(Mutex(b"r").extension(token, ttl))


def _lifts_any(counter: FencingCounter, token: bytes, fence: int, ceiling: int) -> bytes:
    return counter.restore(token, 1, fence, ceiling)


class CountsAfterYield(Ticket):
    """A ticket that counts each reply as one to the last request."""

    __slots__ = ()

    def on_reply(
        self,
        master: int,
        number: int,  # noqa: ARG002 - the defect: the number is not compared
        standing: Position,
        counter: int = 0,
        done: float = 0.0,
    ) -> bool:
        return super().on_reply(master, self._numbers[master], standing, counter, done)


class CountsAfterLeaving(Ticket):
    """A ticket that still counts replies to requests sent before its waiter left the queues."""

    __slots__ = ()

    def start_over(self, _now: float) -> None:
        self.standings = [UNASKED] * len(self.standings)


SHIPPED = Rules()

INEXACT_ACKS = replace(SHIPPED, acknowledged=lambda reply, value: reply and value)
"""A master that still has the lock counts as raised to the requested value, whatever its reply."""

AT_LEAST = replace(SHIPPED, agreed=_at_least)
"""The token is the highest value that a majority's counters have reached or passed."""

VALUE_ONLY = replace(SHIPPED, extend=_value_only)
"""An extension counts each master that has the holder's value, whatever its counter is."""

LIFTS_ANY = replace(SHIPPED, lift=_lifts_any)
"""A lift marks any counter, also on a master where another client has had the lock since."""

LIFTS_ONE = replace(SHIPPED, lifts_a_majority=False)
"""After one master was lifted, the others may count again."""

NO_QUARANTINE = replace(SHIPPED, quarantines=False)
"""A master that has lost its keys grants again at once."""

COUNTS_QUARANTINED = replace(SHIPPED, counts_quarantined=True)
"""A quarantined master counts for extensions after the lock was restored on it."""

REUSED_TOKEN = replace(SHIPPED, new_tokens=False)
"""The second attempt of a client has the token of its first."""

COUNTED_AFTER_YIELD = replace(SHIPPED, ticket=CountsAfterYield)
"""A reply counts that was sent before the grant was given back."""

COUNTED_AFTER_LEAVING = replace(SHIPPED, ticket=CountsAfterLeaving)
"""A reply counts that was sent before the waiter left the queues."""
