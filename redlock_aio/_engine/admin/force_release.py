"""
The release of a lock that another client holds.

    inspect ──► revoke these values ──► a majority ──► grace ─────────► release the
    (all         (set a value without    has done       (the holder       revocations (the
    masters)      holder, with a ttl)    so             finds out)        queue is woken)

- Commands name only values that the inspection found. A client that acquires the lock
  meanwhile has another value and keeps it, also on a master that executes them late. Where
  readers share the lock, they name these, because all such locks have one value.
- The grace exists for the holder. The revocation changes the key, so that masters push
  the change; the holder checks the key, finds the revocation, and its body is cancelled.
  If the key were deleted at once, another client could acquire the lock before that.
- A master that has not confirmed the revocation gets it again (as a debt) when it can be
  reached. The debt is the revocation, not a release: on this master, too, the holder gets
  its grace, and the key expires by itself.
- Masters where the lock is free get a revocation as well. Without it two clients could
  hold the lock: of three masters one has granted it to C, one to the holder, and one is
  free. The values of both are revoked. Then a request of C reaches the free master, which
  grants it. C counts two grants and does not know that the first one is gone; after the
  grace the two other masters grant the lock to D.
- A value that can't be a lock is never named in a command, and therefore never changed.
- If the caller is cancelled, the revocations that were sent expire by themselves.
"""

import asyncio
from collections.abc import Mapping, Sequence

from redlock_aio._engine.admin.survey import Inspection
from redlock_aio._engine.claim import Claim
from redlock_aio._engine.hold.watchdog import CHECK_AFTER, CHECK_INTERVAL
from redlock_aio._engine.masters import RELEASE, MasterSet, Round
from redlock_aio._engine.session import Session
from redlock_aio._protocol import commands, lock_state, replies
from redlock_aio._protocol.lock_state import KeyState
from redlock_aio._protocol.primitives import Mutex
from redlock_aio._protocol.request import NoReply
from redlock_aio._rules.causes import LossCause
from redlock_aio._rules.lock_value import SHARED
from redlock_aio._rules.quorum import OK, OPEN, WON, Answer, Vote, majority
from redlock_aio.errors import QuorumUnavailableError, RedlockError, unavailable

UNCONFIRMED = NoReply(Answer.TIMED_OUT, "it has not confirmed that the lock is revoked")


class ClearingRelease(Round):
    """
    A release, or a revocation, that counts as granted where the value is gone afterwards.

    Each master may have the value, also one that could not be inspected.

    Not a `Query`, because it leaves debts; and `Round` does not count like this itself, because
    it would cost each pair of acquire and release another call for each reply.
    """

    __slots__ = ("found",)

    def __init__(self, masters: MasterSet, claim: Claim, payload: bytes) -> None:
        super().__init__(masters, payload, RELEASE, claim, claim.ttl)
        self.found = False

    def on_reply(self, master: int, reply: object, /) -> None:
        self.found = self.found or reply == OK
        super().on_reply(master, OK if replies.is_settled(reply) else reply)


class ForcedRelease:
    def __init__(self, session: Session, resource: str, key: Mutex) -> None:
        self._masters = masters = session.masters
        self._watchdog = session.watchdog
        self._local_queues = session.local_queues
        self._resource = resource
        self._key = key
        self._max_ttl = session.max_ttl
        self._began = masters.clock()
        self._instead = commands.revocation(masters.token())
        self._grace = _grace(CHECK_AFTER, CHECK_INTERVAL, masters.master_timeout)

    def __repr__(self) -> str:
        return f"<ForcedRelease from {self._resource!r}>"

    @property
    def _lives(self) -> int:
        """
        The ttl of a revocation in ms: the grace, and two timeouts to release it explicitly.

        Only an explicit release wakes the fair queue; an expiry does not.
        """
        return self._grace + 2 * self._masters.master_timeout

    async def run(self) -> bool:
        """
        Release the lock, also if another client holds it.

        Returns:
            Whether the lock was held on any master.
        """
        asked = Inspection(self._masters, lock_state.inspect(self._key))
        await asked.run()
        states = [lock_state.key_state(reply) for reply in asked.replies]
        objections = [lock_state.objection(reply) for reply in asked.replies]
        locks = [None if why else state for state, why in zip(states, objections, strict=True)]
        values = _longest(locks, self._max_ttl)
        no_locks = sum(map(bool, objections))
        if no_locks >= majority(len(states)) or (no_locks and not values):
            raise self._no_lock(objections)
        if not values:
            quarantined = zip(states, asked.quarantines, strict=True)
            known = sum(state is not None and not why for state, why in quarantined)
            if known < majority(len(states)):
                views = lock_state.lock_state(self._resource, asked.master_replies()).views
                raise self._unavailable([view.vote for view in views])
            return False
        readers = {token for state in locks if state is not None for token, _ in state.shares}
        revoked = await self._revoke(values, sorted(readers))
        # No grace if all masters have answered and none had a value any more: the holder has
        # released the lock meanwhile. A master that has not answered may have had a value.
        if any(round.found or round.missing for round in revoked):
            await asyncio.sleep(self._grace / 1000)
        await self._free(revoked)
        return any(round.found for round in revoked)

    async def _revoke(
        self, values: Mapping[bytes, int], readers: Sequence[bytes]
    ) -> list[ClearingRelease]:
        """
        Replace *values* by a revocation; each value is mapped to the ms that it may live.

        Args:
            readers: The values of those who shared the lock, on any master.
        """
        masters, key = self._masters, self._key
        revoked = [
            ClearingRelease(
                masters,
                Claim(key, value, ttl),
                commands.revoke(
                    key, value, self._instead, self._lives, readers if value == SHARED else ()
                ),
            )
            for value, ttl in values.items()
        ]
        for round in revoked:
            masters.send(round)
        try:
            for round in revoked:
                await self._settle(round)
        finally:
            # Also after an error or a cancellation: on some masters the lock is revoked, and
            # no master pushes a change to the connection that made it (NOLOOP). Without this
            # line a holder in this process would find out at its next extension, when another
            # client may have the lock already.
            # Not if a majority has confirmed that it has no such value any more: a reader of this
            # process that came since has the same value, and keeps its share. Masters that have
            # timed out may have revoked the lock all the same.
            gone = [
                value
                for value, round in zip(values, revoked, strict=True)
                if round.found or round.verdict is not WON
            ]
            self._watchdog.lose_values(key, gone, LossCause.FORCED)
        return revoked

    async def _free(self, revoked: Sequence[ClearingRelease]) -> None:
        """Release the revocations, which wakes the fair queues, and notify local waiters."""
        free = self._key.leave(self._instead, commands.NO_MEMBER)
        freed = ClearingRelease(self._masters, Claim(self._key, self._instead, self._lives), free)
        masters = self._masters
        masters.flush()
        for number, link in enumerate(masters.links):
            # A master that has not confirmed the revocation may execute it late, or as a debt.
            # A release behind it would cut the grace short there: the revocation must last
            # from its arrival until it expires.
            if any(round.replies[number] != OK for round in revoked):
                freed.on_reply(number, UNCONFIRMED)
            elif (no_reply := link.send(freed.payload, (freed,))) is not None:
                freed.not_sent(number, no_reply)
        masters.loop.call_later(masters.master_timeout / 1000, freed.expire)
        self._local_queues.notify_released(self._key)
        await self._settle(freed)

    async def _settle(self, round: ClearingRelease) -> None:
        if round.verdict is OPEN:
            await self._masters.wait_for(round)
        self._masters.check_open()
        if round.verdict is not WON:
            raise self._unavailable(round.votes())

    def _no_lock(self, objections: Sequence[str]) -> RedlockError:
        names = (link.name for link in self._masters.links)
        why = "; ".join(f"{n}: {why}" for n, why in zip(names, objections, strict=True) if why)
        return RedlockError(
            f"{self._resource!r} is not a lock, and was not released ({why});"
            " if it is the program's own data, lock under a key_prefix",
            "not-a-lock",
        )

    def _unavailable(self, votes: Sequence[Vote]) -> QuorumUnavailableError:
        return unavailable(self._resource, votes, self._masters.clock() - self._began)


def _grace(look_after: float, look_interval: float, master_timeout: int) -> int:
    """
    Return the ms for which no client can acquire a lock after a forced release.

    A holder with client tracking knows of the revocation by then. Its acquisition may
    be answered late, its first look comes *look_after* seconds later, two looks are
    *look_interval* seconds apart, and a look may be answered late. That holds for
    holders whose own timeout is not longer than *master_timeout*.
    """
    return round((look_after + look_interval) * 1000) + 2 * master_timeout


def _longest(states: Sequence[KeyState | None], max_ttl: int) -> dict[bytes, int]:
    """
    Return the values that masters keep, each with the longest ms that it may still live.

    Args:
        max_ttl: The longest ttl in ms to which its holder may have extended it since.
    """
    longest: dict[bytes, int] = {}
    for state in states:
        if state is not None and state.value is not None:
            longest[state.value] = max(state.left, max_ttl, longest.get(state.value, 0))
    return longest
