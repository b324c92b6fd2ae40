"""
What is asked of the masters so that they keep the key of a lease again, or for longer.

A master may be without the key because it was taken by somebody else when the lease was
acquired, or has lost it since. An extension that holds has it set again there. What keeps
a master from counting after that is described in `_rules.fencing`.
"""

import functools
import random

from redlock_aio._engine.hold import Hold, Keeper
from redlock_aio._engine.rounds import Fleet, Round
from redlock_aio._rules import protocol
from redlock_aio._rules.fencing import Counter
from redlock_aio._rules.protocol import Trust
from redlock_aio._rules.quorum import WON

REPEAT_AFTER = 0.01
"""Seconds, on average, until a key is set again that somebody else had on a master."""


class Restoration:
    """The request to set the key of a lease again; the next extension tells what became of it."""

    __slots__ = ("debt_ttl", "payload")
    trust = Trust.FULL
    needless = 0

    def __init__(self, payload: bytes) -> None:
        self.payload = payload
        self.debt_ttl = 0

    def answered(self, master: int, reply: object, /) -> None:
        """Do nothing: the next extension shows whether the key is there."""


class Restoring(Restoration):
    """
    The request to set the key of a held lease again on one master.

    If the master's counter is beyond the fencing token, it keeps the key from now on, so
    that nobody raises the counter any more. It counts again only after a `Lifting`.
    """

    __slots__ = ("_ceiling", "_hold", "_tries", "_watchdog")

    def __init__(self, watchdog: Keeper, hold: Hold, ceiling: int, tries: int) -> None:
        super().__init__(hold.attempt.restoration(hold.ttl, ceiling))
        self._watchdog = watchdog
        self._hold = hold
        self._ceiling = ceiling
        self._tries = tries

    def answered(self, master: int, reply: object, /) -> None:
        """
        Repeat it where somebody else has the key; lift the counters to a higher one.

        An extension changes the key on all masters, which wakes the waiters. They try at
        once, and get the key on the masters where it is free, just before this request
        comes. They fail and give it back in a moment. Without a repetition the same
        master could be missed at each extension.
        """
        if isinstance(reply, int) and reply > 0:
            if not self._ceiling:
                self._watchdog.lift(self._hold, master, reply)
        elif self._tries and (reply is None or isinstance(reply, int)):
            # Not all at the same time as those who try again after a failure.
            delay = REPEAT_AFTER * (0.5 + random.random())  # noqa: S311 - no secret
            restore = functools.partial(self._watchdog.restore, self._hold, master)
            loop = self._watchdog.fleet.loop
            loop.call_later(delay, restore, self._ceiling, self._tries - 1)


class Lifting(Round):
    """
    The request to lift the counters of a lease to the higher one of another master.

    When a majority has done so, nobody else can agree on a fencing token up to there.
    So the other master counts again with its counter as it is.
    """

    __slots__ = ("_ceiling", "_hold", "_master", "_watchdog")

    def __init__(
        self, watchdog: Keeper, hold: Hold, counter: Counter, master: int, ceiling: int
    ) -> None:
        attempt = hold.attempt
        payload = counter.lift(attempt.token, attempt.fence, ceiling)
        super().__init__(watchdog.fleet.links, payload)
        self._watchdog = watchdog
        self._hold = hold
        self._master = master
        self._ceiling = ceiling

    def settled(self) -> None:
        """With a majority, make the other master count again; else the next extension retries."""
        if self.verdict is WON:
            self._watchdog.restore(self._hold, self._master, self._ceiling)
        super().settled()


class Leaving(Round):
    """What is said behind a lease that has ended and that the masters are to keep for a while."""

    __slots__ = ()

    def declined(self, master: int, reply: object) -> None:
        """Repeat the request, behind the scripts that a master has forgotten and now gets."""
        if protocol.has_no_script(reply):
            self._links[master].send(self.payload, (Restoration(self.payload),))


class Keeping(Leaving):
    """The request to keep the key of a lease that has ended, for as long as that wanted it."""

    __slots__ = ("_attempt", "_fleet", "_lives", "_until")

    def __init__(self, fleet: Fleet, hold: Hold, left: int) -> None:
        super().__init__(fleet.links, hold.attempt.extension(left))
        self._fleet = fleet
        self._attempt = hold.attempt
        self._until = hold.keep_until
        self._lives = max(hold.longest_ttl, left)

    def declined(self, master: int, reply: object) -> None:
        """Release the key after its time on a master that may get this request too late."""
        super().declined(master, reply)
        never_sent = self._attempt.unsent >> master & 1
        if not never_sent and not isinstance(reply, int | Exception):
            left = max(self._until - self._fleet.clock(), 0.0)
            self._fleet.loop.call_later(left, self._is_over, master)

    def _is_over(self, master: int) -> None:
        if not self._fleet.closed:
            self._links[master].owe(self._attempt.release(), self._lives)
