"""
Requests that restore the key of a lease on a master, or keep it after the release.

A master may lack the key because another client had it when the lease was acquired, or
because the master has lost it since. After an extension that holds, the key is set there
again. `_rules.fencing` describes when a master does not count even after that.

    extension holds ─► Restoration ─► key set: counts from the next extension on
                         ▲   │
                         │   ├─ another client has the key there now ─► again, a few times
                         │   └─ its counter is beyond the fencing token ─► lift
                         └──────────────── a majority has lifted its counters ┘
"""

import random

from redlock_aio._engine.hold.held_lease import HeldLease
from redlock_aio._engine.masters import MasterSet, Query
from redlock_aio._protocol import commands, replies
from redlock_aio._protocol.commands import NEVER
from redlock_aio._protocol.request import NoReply, QuarantineRule, Request
from redlock_aio._rules.quorum import WON, Outcome

COUNT_REFUSALS = QuarantineRule.COUNT_REFUSALS

REPEAT_AFTER = 0.01
"""The mean delay in seconds before a restoration is repeated on a master."""


class Restoration:
    """
    The request to restore the key of a held lease on one master.

    The master counts from the next extension on: until then it keeps the key, while a
    majority of others has it. If its counter is beyond the fencing token, it keeps the key
    from now on, so that no other client can raise the counter, and counts only after a
    `lift`.

    Args:
        ceiling: The value to which a majority has lifted its counters; see `lift`.

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


def lift(masters: MasterSet, hold: HeldLease, master: int, ceiling: int) -> None:
    """
    Lift the counters of a majority to *ceiling*, so that *master* can count again.

    A failed attempt of another client may have raised the counter of *master* beyond the
    fencing token. Without this only the other masters would count until the lease ends.
    When a majority has lifted its counters, no other acquisition can get a fencing token up
    to that value. Therefore the key is restored on *master*, although its counter is higher.
    """
    claim = hold.claim
    counter = claim.counter
    if counter is None or ceiling >= NEVER or not hold.valid(masters.clock()):
        return

    def restore(verdict: Outcome) -> None:
        if verdict is WON:
            Restoration(masters, hold, ceiling).send_to(master)

    payload = counter.lift(claim.token, claim.fence, ceiling)
    # What a quarantined master has lifted does not count: it may forget it again.
    masters.send(Query(masters.links, payload, in_quarantine=COUNT_REFUSALS, then=restore))


class Keeping(Query):
    """
    The request to keep the key of a lease that was released, for *hold_at_least*.

    Args:
        left: The ms for which the key is kept.
    """

    __slots__ = ("_claim", "_lives", "_masters", "_until")

    def __init__(self, masters: MasterSet, hold: HeldLease, left: int) -> None:
        payload = commands.extend(hold.claim.extension(left))
        super().__init__(masters.links, payload, in_quarantine=COUNT_REFUSALS, repeat=True)
        self._masters = masters
        self._claim = hold.claim
        self._until = hold.keep_until
        self._lives = max(hold.longest_ttl, left)

    def classify(self, reply: object) -> NoReply:
        """Return the vote in *reply*: whether the lease still has its key there."""
        return replies.read_kept(reply)

    def declined(self, master: int, reply: object) -> None:
        """
        Schedule a release of the key on a master that keeps it for too long.

        If the master hung, or the connection ended before the reply, it may still execute
        the request later, and would keep the key for the full time from then on. After an
        error, or if its counter is beyond the fencing token, the key keeps the ttl of the
        lease. A reply of 0 or -1 means that the key is gone, or is that of another holder.
        """
        never_sent = self._claim.unsent >> master & 1
        gone = isinstance(reply, int) and reply <= 0
        if not never_sent and not gone:
            left = max(self._until - self._masters.clock(), 0.0)
            self._masters.loop.call_later(left, self._release, master)

    def _release(self, master: int) -> None:
        if not self._masters.closed:
            self._links[master].add_debt(self._claim.release(), self._lives)
