"""
Taking up a lease that another process has handed over.

All masters are asked to give the lock a new value where it still has the old one. A
majority that has done so is counted as an extension is: from before it was asked,
and before the lease was over. What a master has not answered can be said again, for
as long as anything of the lock can be left.

Whoever fails to adopt a lease frees it, under the new value and under the old, so
that nobody waits for what nobody holds. What if somebody else has adopted it?

- His value is one that only he knows. What is freed is the old value, where he has
  not come yet: on a minority, if he has a majority already, or will have one.
- On these a stranger may take the lock then, who finds no majority; and the next
  extension sets it again there.
- If he has no majority yet, he finds the lock gone, and fails: he believed nothing.
"""

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Protocol

from redlock_aio._engine import reentrance
from redlock_aio._engine.adoption import Adopted, Adoption
from redlock_aio._engine.emitter import milliseconds
from redlock_aio._engine.hold import HeldLease
from redlock_aio._engine.lease import Lease
from redlock_aio._engine.options import OnLost
from redlock_aio._engine.reporting import Engine
from redlock_aio._rules import handing, holders, timing
from redlock_aio._rules.arguments import of_type, one_of
from redlock_aio._rules.handing import Handed
from redlock_aio._rules.keys import Key, Keys
from redlock_aio.errors import LockLostError
from redlock_aio.events import Acquired

HELD_TOO_LONG = "it was held for as long as max_hold allows"


class Handing(Engine, Protocol):
    """What an adoption needs of its manager."""

    _max_ttl: int

    def _key(self, resource: str) -> Key:
        """Return the key of a resource."""

    def _keys(self, resources: tuple[str, ...]) -> Keys:
        """Return the keys of several."""


class Adopting:
    """What a manager does with a lease that another process has handed over."""

    __slots__ = ()

    async def adopt(
        self: Handing,
        /,
        exported: str,
        *,
        auto_extend: bool = True,
        max_hold: int | timedelta | None = None,
        on_lost: OnLost = "cancel",
        metadata: Mapping[str, object] | None = None,
        owner: object = None,
    ) -> Lease:
        """
        Go on with a lease that another process has handed over by `Lease.export`.

        It gets a token of its own, so that one of several who adopt it has it at most,
        and *exported* is of no use any more. Its resources, ttl and fencing token stay
        the same, and what remains of *max_hold* and *hold_at_least*. The manager must
        have the same masters and *key_prefix*.

        Masters that do not answer are asked again for as long as the lease can last.

        Args:
            exported: What `Lease.export` has returned.

            auto_extend: As for `Redlock.lock` (default yes).

            max_hold: As for `Redlock.lock`, from the adoption on (default: what remains
                of the exporter's).

            on_lost: As for `Redlock.lock` (default ``"cancel"``).

            metadata: As for `Redlock.lock` (default: that of the exporter).

            owner: Whose the lease is here: locks with ``reentrant=True`` and an *owner*
                that equals it share the lease (default: the task that adopts it). It is
                not part of the text; an owner means something in one process only.

        Raises:
            TypeError: An argument is of another type.

            ValueError: *exported* is damaged, or its ttl is longer than the manager's
                *max_ttl*.

            LockLostError: The lease is over, somebody else has adopted it, or too few
                masters have answered. Whatever was left of it is freed.

            RedlockError: The manager is closed, or belongs to another event loop or
                process.

        Cancellation:
            The lock is released. A master that does not answer now is told as soon as
            it answers again.
        """
        handed = handing.imported(exported)
        key = _key(self, handed)
        timing.at_least(timing.at_most(handed.ttl, self._max_ttl))
        of_type(auto_extend, bool, name="auto_extend")
        one_of(on_lost, ("cancel", "flag"), name="on_lost")
        at_most = None if max_hold is None else timing.milliseconds(max_hold, name="max_hold")
        said = handed.metadata if metadata is None else holders.packed(metadata)
        ready = self._is_ready()
        fleet = self._fleet
        began = fleet.clock()
        counter = key.counter(self._clock_lead) if handed.fence else None
        adoption = Adoption(fleet, key, handed, counter, self._drift_factor, fleet.stamp + said)
        try:
            if not ready:
                await self._get_ready(handed.ttl)
            won = await adoption.win()
            hold = _hold(self, adoption, won, at_most, renewed=auto_extend)
        except BaseException:
            adoption.forgo(self._max_ttl)
            raise
        adoption.sweep(self._max_ttl)
        if owner is not None:
            hold.owner = owner
            reentrance.tell(fleet, hold)
        lease = Lease(self._watchdog, hold, fleet.clock(), on_lost)
        if (emitter := self._emitter) is not None:
            waited = milliseconds(fleet.clock() - began)
            fence = handed.fence or None
            emitter.emit_soon(Acquired(lease.resources, lease.fingerprint, waited, fence))
        return lease


def _key(redlock: Handing, handed: Handed) -> Key | Keys:
    """Return the key of what was handed over, as this manager makes it."""
    names = handed.resources
    try:
        return redlock._key(names[0]) if len(names) == 1 else redlock._keys(names)
    except ValueError:
        pass
    raise ValueError("exported names a resource that can't be locked here, with this key_prefix")


def _hold(
    redlock: Handing, adoption: Adoption, won: Adopted, max_hold: int | None, *, renewed: bool
) -> HeldLease:
    """
    Watch over what was adopted.

    Raises:
        LockLostError: It has been held for as long as it may.
    """
    handed, fleet = adoption.handed, redlock._fleet
    now = fleet.clock()
    if handed.max_hold is not None:
        left = timing.remaining(adoption.since + handed.max_hold / 1000, now)
        if not left:
            raise LockLostError(handed.resources, HELD_TOO_LONG)
        max_hold = left if max_hold is None else min(left, max_hold)
    line = fleet.line(won.key)
    hold = HeldLease(won, handed.resources, line, now, redlock._drift_factor, renewed)
    if max_hold is not None:
        hold.limit(now + max_hold / 1000)
    hold.task = reentrance.known(asyncio.current_task(fleet.loop))
    hold.keep_until = adoption.since + handed.keep / 1000 if handed.keep else 0.0
    redlock._watchdog.add(hold, now)
    line.keep(hold)
    return hold
