"""
Requests that restore the key of a lease on a master, or keep it after the release.

A master may lack the key because another client had it when the lease was acquired, or
because the master has lost it since. After an extension that holds, the key is set there
again. `_rules.fencing` describes when a master does not count even after that.

    extension holds ─► Restoration ─► key set: counts from the next extension on
                         ▲   │
                         │   ├─ another client has the key there now ─► again, a few times
                         │   └─ its counter is beyond the fencing token ─► Lifting
                         └──────────────── a majority has lifted its counters ┘
"""

import functools
import random

from redlock_aio._engine.hold.held_lease import HeldLease
from redlock_aio._engine.masters import MasterSet
from redlock_aio._engine.round import Round
from redlock_aio._protocol import commands, replies
from redlock_aio._protocol.commands import NEVER
from redlock_aio._protocol.primitives import FencingCounter
from redlock_aio._protocol.request import NoReply, Request
from redlock_aio._rules.quorum import WON

REPEAT_AFTER = 0.01
"""The mean delay in seconds before a restoration is repeated on a master."""


class Restoration:
    """
    The request to restore the key of a held lease on one master.

    The master counts from the next extension on: until then it keeps the key, while a
    majority of others has it. If its counter is beyond the fencing token, it keeps the key
    from now on, so that no other client can raise the counter, and counts only after a
    `Lifting`.

    Args:
        ceiling: The value to which a majority has lifted its counters; see `Lifting`.

        tries: The number of repetitions if another client has the key there.
    """

    __slots__ = ("_ceiling", "_hold", "_masters", "_tries")

    def __init__(
        self, masters: MasterSet, hold: HeldLease, ceiling: int = 0, tries: int = 0
    ) -> None:
        self._masters = masters
        self._hold = hold
        self._ceiling = ceiling
        self._tries = tries

    def send_to(self, master: int) -> None:
        """Send the request to *master*, unless the lease is over."""
        masters, hold = self._masters, self._hold
        if not hold.valid(masters.clock()):
            return
        masters.flush()  # behind all earlier requests
        request = Request(hold.claim.restoration(hold.ttl, self._ceiling), self._on_reply)
        if masters.links[master].send(request.payload, (request,)) is None:
            hold.claim.unsent &= ~(1 << master)

    def _on_reply(self, master: int, reply: object) -> None:
        """
        Repeat it if another client has the key; lift the counters if the master's is higher.

        1. An extension changes the key on all masters, which wakes the waiters.
        2. They try at once, and get the key on the masters where it is free, just before
           this request arrives there.
        3. They fail, and give the key back a moment later.

        Without a repetition this race could go the same way at each extension, and the
        master would never count.
        """
        if isinstance(reply, int) and reply > 0:
            if not self._ceiling:
                lift(self._masters, self._hold, master, reply)
        elif self._tries and (reply is None or isinstance(reply, int)):
            self._tries -= 1
            # At random, so that it is not in step with the retries of other clients.
            delay = REPEAT_AFTER * (0.5 + random.random())  # noqa: S311 - no secret
            self._masters.loop.call_later(delay, self.send_to, master)


class Lifting(Round):
    """
    The request to lift the counters of a lease to the higher one of another master.

    When a majority has done so, no other acquisition can get a fencing token up to that
    value. Therefore the other master counts again, although its counter is higher.
    """

    __slots__ = ("_on_won",)

    def __init__(
        self,
        masters: MasterSet,
        hold: HeldLease,
        counter: FencingCounter,
        master: int,
        ceiling: int,
    ) -> None:
        claim = hold.claim
        super().__init__(masters.links, counter.lift(claim.token, claim.fence, ceiling))
        self._on_won = functools.partial(Restoration(masters, hold, ceiling).send_to, master)

    def settled(self) -> None:
        """If a majority has lifted its counters, restore the key on the other master."""
        if self.verdict is WON:
            self._on_won()
        super().settled()


def lift(masters: MasterSet, hold: HeldLease, master: int, ceiling: int) -> None:
    """
    Lift the counters of a majority to *ceiling*, so that *master* can count again.

    A failed attempt of another client may have raised the counter of *master* beyond the
    fencing token. Without this only the other masters would count until the lease ends.
    """
    counter = hold.claim.counter
    if counter is not None and ceiling < NEVER and hold.valid(masters.clock()):
        masters.send(Lifting(masters, hold, counter, master, ceiling))


class Leaving(Round):
    """A request at the end of a lease whose key the masters keep (*hold_at_least*)."""

    __slots__ = ()

    def classify(self, reply: object) -> NoReply:
        """Return the vote in *reply*: whether the lease still has its key there."""
        return replies.read_kept(reply)

    def declined(self, master: int, reply: object) -> None:
        """Repeat the request on a master without the scripts, behind the scripts."""
        if replies.has_no_script(reply):
            self._links[master].send(self.payload, (Request(self.payload),))


class Keeping(Leaving):
    """
    The request to keep the key of a lease that was released, for *hold_at_least*.

    Args:
        left: The ms for which the key is kept.
    """

    __slots__ = ("_claim", "_lives", "_masters", "_until")

    def __init__(self, masters: MasterSet, hold: HeldLease, left: int) -> None:
        super().__init__(masters.links, commands.extend(hold.claim.extension(left)))
        self._masters = masters
        self._claim = hold.claim
        self._until = hold.keep_until
        self._lives = max(hold.longest_ttl, left)

    def declined(self, master: int, reply: object) -> None:
        """
        Schedule a release of the key on a master that keeps it for too long.

        If the master hung, or the connection ended before the reply, it may still execute
        the request later, and would keep the key for the full time from then on. After an
        error, or if its counter is beyond the fencing token, the key keeps the ttl of the
        lease. A reply of 0 or -1 means that the key is gone, or is that of another holder.
        """
        super().declined(master, reply)
        never_sent = self._claim.unsent >> master & 1
        gone = isinstance(reply, int) and reply <= 0
        if not never_sent and not gone:
            left = max(self._until - self._masters.clock(), 0.0)
            self._masters.loop.call_later(left, self._release, master)

    def _release(self, master: int) -> None:
        if not self._masters.closed:
            self._links[master].add_debt(self._claim.release(), self._lives)
