"""
The shipped rules that the proofs run, and the wrong ones that the proofs must catch.

A defect is the set of shipped rules with one of them replaced. Each was a defect of
a sketch, or is one of another library.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from redlock_aio._protocol import commands
from redlock_aio._protocol.primitives import FencingCounter
from redlock_aio._rules import fencing
from redlock_aio._rules.fair_ticket import UNASKED, Standing, Ticket


@dataclass(frozen=True)
class Rules:
    """
    What a client goes by.

    Attributes:
        agreed: Which token the counters amount to that a majority says.

        heard: What a master is taken to have said, when it was asked for a value.

        extend: Returns the command that extends a lock.

        lift: Returns the command that lifts the counters for a holder.

        lifts_a_majority: Whether a majority must have been lifted before a master
            that has lost the lock may count again.

        ticket: Which answers of a waiter's masters count.

        stays_away: Whether a master that has forgotten everything grants nothing.

        counts_the_away: Whether such a master counts for an extension all the same.

        fresh: Whether each attempt has a token of its own.
    """

    agreed: Callable[[Sequence[int], int], int] = fencing.agreed
    heard: Callable[[int, int], int] = lambda said, _asked: said
    extend: Callable[[FencingCounter, bytes, int, int], bytes] = FencingCounter.extend
    lift: Callable[[FencingCounter, bytes, int, int], bytes] = FencingCounter.lift
    lifts_a_majority: bool = True
    ticket: type[Ticket] = Ticket
    stays_away: bool = True
    counts_the_away: bool = False
    fresh: bool = True


def _at_least(counters: Sequence[int], needed: int) -> int:
    return sorted(counters)[-needed] if len(counters) >= needed else 0


def _value_only(_counter: FencingCounter, token: bytes, ttl: int, _fence: int) -> bytes:
    return commands.extend(b"r", token, ttl)


def _lifts_any(counter: FencingCounter, token: bytes, fence: int, ceiling: int) -> bytes:
    return counter.restore(token, 1, fence, ceiling)


class CountsAfterYield(Ticket):
    """A ticket that takes every answer for one to the last question."""

    __slots__ = ()

    def on_reply(
        self,
        master: int,
        number: int,  # noqa: ARG002 - that is the defect
        standing: Standing,
        counter: int = 0,
        done: float = 0.0,
    ) -> bool:
        return super().on_reply(master, self._numbers[master], standing, counter, done)


class CountsAfterLeaving(Ticket):
    """A ticket that goes on counting questions from before its waiter has left the queues."""

    __slots__ = ()

    def start_over(self) -> None:
        self.standings = [UNASKED] * len(self.standings)


SHIPPED = Rules()

INEXACT_ACKS = replace(SHIPPED, heard=lambda said, asked: said and asked)
"""Who keeps the lock and is told a value has acknowledged it, whatever it says."""

AT_LEAST = replace(SHIPPED, agreed=_at_least)
"""The token is what a majority's counters have reached."""

VALUE_ONLY = replace(SHIPPED, extend=_value_only)
"""An extension counts a master that has our value, whatever its counter says."""

LIFTS_ANY = replace(SHIPPED, lift=_lifts_any)
"""The holder's mark is put on any counter, also of a master that somebody else has had since."""

LIFTS_ONE = replace(SHIPPED, lifts_a_majority=False)
"""One master that was lifted is enough for the others to count again."""

NO_QUARANTINE = replace(SHIPPED, stays_away=False)
"""A master that has forgotten everything grants again at once."""

COUNTS_THE_AWAY = replace(SHIPPED, counts_the_away=True)
"""Such a master counts for extensions, after it was told of the lock again."""

REUSED_TOKEN = replace(SHIPPED, fresh=False)
"""A client's second attempt has the token of the first."""

COUNTED_AFTER_YIELD = replace(SHIPPED, ticket=CountsAfterYield)
"""An answer counts that was given before the grant was given back."""

COUNTED_AFTER_LEAVING = replace(SHIPPED, ticket=CountsAfterLeaving)
"""An answer counts that was given before its waiter has left the queues."""
