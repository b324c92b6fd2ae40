"""
The adoption of leases that other processes have exported.

All masters are asked to give the lock a new value where it still has the old one. A
majority counts as for an extension: the validity begins when the round is sent, and the
lease must not have been over by then. A round with too few replies is repeated for as
long as any key can be left.

A failed adoption releases the lock, under the new value and under the old one, so that no
acquisition waits for a lock without a holder. If two processes, A and B, adopt the same
text, and A fails and releases while B goes on, this is harmless:

- A does not know B's value. It releases the old value, which is left only on masters
  that B has not reached yet: a minority, if B has a majority or is to get one.
- On those masters others can take the lock then. They get no majority, and B's next
  extension has its key set again there.
- If B has no majority yet, and can't get one now, it finds the key gone and fails. It
  has not returned a lease before.
"""

import asyncio
from collections.abc import Mapping
from datetime import timedelta

from redlock_aio._api.lease import Lease
from redlock_aio._api.reporting import announce
from redlock_aio._engine.acquire.adopt import Adoption
from redlock_aio._engine.claim import Claim
from redlock_aio._engine.emitter import milliseconds
from redlock_aio._engine.hold import reentrancy
from redlock_aio._engine.hold.held_lease import HeldLease
from redlock_aio._engine.options import OnLost
from redlock_aio._engine.session import Opener, Session
from redlock_aio._protocol import lease_export
from redlock_aio._protocol.lease_export import ExportedLease
from redlock_aio._protocol.primitives import JointMutex, Mutex
from redlock_aio._protocol.resources import Resources
from redlock_aio._rules import lock_value, timing
from redlock_aio._rules.causes import LossCause
from redlock_aio._rules.validation import of_type, one_of
from redlock_aio.errors import LockLostError
from redlock_aio.events import Acquired


async def adopt(  # noqa: PLR0913 - the options of an adoption
    opener: Opener,
    resources: Resources,
    exported: str,
    *,
    auto_extend: bool,
    max_hold: int | timedelta | None,
    on_lost: OnLost,
    metadata: Mapping[str, object] | None,
    owner: object,
) -> Lease:
    """
    Adopt a lease; see `Redlock.adopt`.

    Cancellation:
        The lock is released, under its new value and under the old one.
    """
    handed = lease_export.imported(exported)
    key = _key(resources, handed)
    timing.at_least(timing.at_most(handed.ttl, opener.settings.max_ttl))
    of_type(auto_extend, bool, name="auto_extend")
    one_of(on_lost, ("cancel", "flag"), name="on_lost")
    at_most = None if max_hold is None else timing.milliseconds(max_hold, name="max_hold")
    packed = handed.metadata if metadata is None else lock_value.packed(metadata)
    session = opener.session()
    masters = session.masters
    began = masters.clock()
    counter = key.counter(session.clock_lead) if handed.fence else None
    adoption = Adoption(session, key, handed, counter, masters.stamp + packed)
    try:
        if not session.ready:
            await session.get_ready(handed.ttl)
        won = await adoption.win()
        hold = _hold(adoption, won, session, at_most, renewed=auto_extend)
    except BaseException:
        # A cancellation too: masters may have given the lock the new value, which only
        # this call knows.
        adoption.abandon(session.max_ttl)
        raise
    # Nothing waits from here on: after a cancellation nothing would release the lease.
    adoption.release_old(session.max_ttl)
    if owner is not None:
        hold.owner = owner
        reentrancy.notify_owner_waiters(session.local_queues, hold)
    lease = Lease(session, hold, hold.task, masters.clock(), on_lost)
    if (emitter := session.emitter) is not None:
        waited = milliseconds(masters.clock() - began)
        fence = handed.fence or None
        event = Acquired(lease.resources, lease.fingerprint, waited, fence)
        await announce(emitter, event, lease)
    return lease


def _key(resources: Resources, handed: ExportedLease) -> Mutex | JointMutex:
    """Return the key of the lease that was handed over, with the prefix of this manager."""
    try:
        return resources.keys(handed.resources)
    except ValueError:
        pass
    raise ValueError("exported names a resource that can't be locked here, with this key_prefix")


def _hold(
    adoption: Adoption,
    won: Claim,
    session: Session,
    max_hold: int | None,
    *,
    renewed: bool,
) -> HeldLease:
    """
    Return the adopted lease, added to the watchdog.

    Args:
        max_hold: In ms from now; ``None`` for the remainder of the exporter's.

    Raises:
        LockLostError: The lease has been held for as long as *max_hold* allows.
    """
    handed, masters = adoption.handed, session.masters
    now = masters.clock()
    if handed.max_hold is not None:
        left = timing.remaining(adoption.since + handed.max_hold / 1000, now)
        if not left:
            raise LockLostError(handed.resources, LossCause.MAX_HOLD)
        max_hold = left if max_hold is None else min(left, max_hold)
    queue = session.local_queues.of(won.key)
    hold = HeldLease(won, handed.resources, queue, now, adoption.factor, renewed)
    if max_hold is not None:
        hold.limit(now + max_hold / 1000)
    hold.task = reentrancy.task_ref(asyncio.current_task(masters.loop))
    hold.keep_until = adoption.since + handed.keep / 1000 if handed.keep else 0.0
    session.watchdog.add(hold, now)
    queue.set_holder(hold)
    return hold
