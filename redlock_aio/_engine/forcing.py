"""
Releasing a lock that somebody else holds.

    who has it? ─► revoke those values ─► a majority has ─► its holder ─► free
     (all are       (nobody gets in)       done so           is told        (the queue
     heard out)                                              meanwhile      is called)

- Only values that were seen are ever named to a master. So whoever gets the lock
  meanwhile keeps it, and a master that hears of it late harms nobody.
- A master that has not confirmed the revocation is asked again when it answers.
  There too nobody gets in before the holder may know: the revocation is what is
  repeated, and it ends by itself.
- What can't be a lock is never named to a master, and so never touched.
- Masters where the lock is free are closed as well. Else somebody could make a
  majority of them and of grants from before, which it does not know to be revoked.
- Whoever is cancelled leaves revocations that end by themselves.
"""

import asyncio
from collections.abc import Mapping, Sequence

from redlock_aio._engine.inspecting import Inspection, hear, unavailable
from redlock_aio._engine.rounds import Fleet, Release, Round
from redlock_aio._engine.watchdog import CHECK_AFTER, CHECK_INTERVAL, Watchdog
from redlock_aio._rules import inspection, protocol, revocation
from redlock_aio._rules.inspection import Told
from redlock_aio._rules.protocol import Silence
from redlock_aio._rules.quorum import GRANTED, OPEN, WON, Answer, Vote, majority
from redlock_aio._rules.revocation import BY_FORCE
from redlock_aio.errors import QuorumUnavailableError, RedlockError

UNCONFIRMED = Silence(Answer.TIMED_OUT, "it has not confirmed that the lock is revoked")


class Clearing(Release):
    """A demand that is granted by a master that does not keep a value, or no longer."""

    __slots__ = ("found",)

    def __init__(self, fleet: Fleet, payload: bytes, ttl: int, asked: Round) -> None:
        super().__init__(fleet.links, payload, ttl, asked)
        self.found = False
        """Whether any master had the value."""

    def answered(self, master: int, reply: object, /) -> None:
        """Count as granted whatever says that the value is not there any more."""
        self.found = self.found or reply == GRANTED
        super().answered(master, GRANTED if protocol.is_settled(reply) else reply)


class Revocation(Clearing):
    """The demand to put something that nobody holds in the place of a value."""

    __slots__ = ()

    @property
    def needless(self) -> int:
        """None: every master may have the value, also one that could not be asked before."""
        return 0


class Eviction:
    """
    The release of one lock that somebody else holds.

    Args:
        resource: What errors call it.

        max_ttl: For how many ms a holder may have it without an extension.
    """

    def __init__(
        self, fleet: Fleet, watchdog: Watchdog, resource: str, key: bytes, max_ttl: int
    ) -> None:
        self._fleet = fleet
        self._watchdog = watchdog
        self._resource = resource
        self._key = key
        self._max_ttl = max_ttl
        self._began = fleet.clock()
        self._instead = revocation.revocation(fleet.token())
        self._grace = revocation.grace(CHECK_AFTER, CHECK_INTERVAL, fleet.master_timeout)

    def __repr__(self) -> str:
        return f"<Eviction from {self._resource!r}>"

    @property
    def _lives(self) -> int:
        """How many ms a revocation lasts: longer than the grace, for to free it calls the queue."""
        return self._grace + 2 * self._fleet.master_timeout

    async def run(self) -> bool:
        """
        Take the lock from whoever has it.

        Returns:
            Whether anybody had it, on any master.

        Raises:
            QuorumUnavailableError: Too few masters have answered.

            RedlockError: What the masters keep is no lock; or the manager was closed
                meanwhile.

        Cancellation:
            If it was being revoked already, it is free after a moment all the same.
        """
        asked = Inspection(self._fleet, self._key)
        await hear(self._fleet, asked)
        told = [inspection.read(reply) for reply in asked.replies]
        objections = [inspection.objection(reply) for reply in asked.replies]
        locks = [None if why else said for said, why in zip(told, objections, strict=True)]
        values = _longest(locks, self._max_ttl)
        no_locks = sum(map(bool, objections))
        if no_locks >= majority(len(told)) or (no_locks and not values):
            raise self._no_lock(objections)
        if not values:
            outs = zip(told, asked.quarantines, strict=True)
            known = sum(said is not None and not out for said, out in outs)
            if known < majority(len(told)):
                views = inspection.lock_state(self._resource, asked.said()).views
                raise self._unavailable([view.vote for view in views])
            return False
        revoked = await self._revoke(values, asked)
        if any(round.found or round.missing for round in revoked):
            await asyncio.sleep(self._grace / 1000)
        await self._free(revoked)
        return any(round.found for round in revoked)

    async def _revoke(self, values: Mapping[bytes, int], asked: Inspection) -> list[Revocation]:
        """Put what nobody holds in the place of *values*, which may live for so many ms."""
        fleet = self._fleet
        revoked = [
            Revocation(
                fleet,
                revocation.revoke(self._key, value, self._instead, self._lives),
                ttl,
                asked,
            )
            for value, ttl in values.items()
        ]
        for round in revoked:
            fleet.ask(round)
        try:
            for round in revoked:
                await self._settle(round)
        finally:
            # However it went: on some masters it is revoked, and of what was done
            # by this process they do not tell it.
            self._watchdog.lose_tokens(values, BY_FORCE)
        return revoked

    async def _free(self, revoked: Sequence[Revocation]) -> None:
        """Free what was put there, call the queue, and wake who waits here."""
        keys = (self._key, *protocol.queue_keys(self._key))
        free = protocol.leave(keys, self._instead, revocation.NO_MEMBER, stay=True)
        freed = Clearing(self._fleet, free, self._lives, revoked[0])
        fleet = self._fleet
        fleet.flush()
        for number, link in enumerate(fleet.links):
            # Where it has not been confirmed it may come later, and must last then.
            if any(round.replies[number] != GRANTED for round in revoked):
                Round.not_sent(freed, number, UNCONFIRMED)
            elif (silence := link.send(freed.payload, (freed,))) is not None:
                freed.not_sent(number, silence)
        fleet.loop.call_later(fleet.master_timeout / 1000, freed.expire)
        if self._key in fleet.lines:
            fleet.lines[self._key].freed()
        await self._settle(freed)

    async def _settle(self, round: Clearing) -> None:
        if round.verdict is OPEN:
            round.waiter = self._fleet.loop.create_future()
            await round.waiter
        if self._fleet.closed:
            raise RedlockError(self._fleet.why_closed)
        if round.verdict is not WON:
            raise self._unavailable(round.votes())

    def _no_lock(self, objections: Sequence[str]) -> RedlockError:
        names = (link.name for link in self._fleet.links)
        said = "; ".join(f"{n}: {why}" for n, why in zip(names, objections, strict=True) if why)
        return RedlockError(
            f"{self._resource!r} is not a lock, and was not released ({said});"
            " if it is the program's own data, lock under a key_prefix"
        )

    def _unavailable(self, votes: Sequence[Vote]) -> QuorumUnavailableError:
        return unavailable(self._resource, votes, self._fleet.clock() - self._began)


def _longest(told: Sequence[Told | None], max_ttl: int) -> dict[bytes, int]:
    """
    Return what the masters keep, each with the ms for which one of them may keep it.

    Args:
        max_ttl: How long that may be if it was extended since.
    """
    longest: dict[bytes, int] = {}
    for said in told:
        if said is not None and said.value is not None:
            longest[said.value] = max(said.left, max_ttl, longest.get(said.value, 0))
    return longest
