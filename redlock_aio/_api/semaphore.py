"""A semaphore: a lock that several may hold at the same time, one permit each."""

from redlock_aio._api.lock import Lock
from redlock_aio._engine.admin import survey
from redlock_aio._engine.admin.force_release import ForcedRelease
from redlock_aio._engine.options import LockSpec
from redlock_aio._engine.session import Opener
from redlock_aio._protocol.primitives import Permits
from redlock_aio._protocol.semaphore_state import SemaphoreState
from redlock_aio._rules.validation import MOST_PERMITS, from_to


class Semaphore(Lock):
    """
    A semaphore: at most *permits* hold the resource at the same time; made by `Redlock.semaphore`.

    It is used as a `Lock`. Each lease has the permit `Lease.permit`, and nobody else has that
    number while the lease is valid.

    Waiters are served in about the order in which they came: where a permit is released, one
    may be passed by another that came later, but only by one that has waited for at least half
    as long. A permit that ends by itself, after *hold_at_least* or the death of its holder, goes
    to the first that waits for just this one, or to the next that comes.

    The number of permits is not stored on the masters. Programs that use different numbers hold
    at most the largest of them together, so it can be changed by a deployment.
    """

    __slots__ = ("_permits",)

    def __init__(self, opener: Opener, spec: LockSpec, permits: Permits) -> None:
        super().__init__(opener, spec)
        self._permits = permits

    def __repr__(self) -> str:
        return f"<Semaphore {self._spec.resources[0]!r}, {self.permits} permits>"

    @property
    def permits(self) -> int:
        """How many may hold the resource at the same time."""
        return self._permits.number

    async def inspect(self) -> SemaphoreState:
        """
        Return the holder of each permit, as each master reports it; ``print`` it to read it.

        It costs each master one command, which looks at all numbers that a permit can have. All
        masters are asked once and all replies awaited, as by `Redlock.inspect`. The answer may be
        out of date when it arrives: to get a permit, acquire it.

        Raises:
            RedlockError: The manager is closed, or belongs to another event loop
                or process.

        Cancellation:
            Nothing was asked that changes anything.
        """
        session = await self._opener.ready_session()
        return await survey.inspect_permits(session.masters, self.resources[0], self._permits)

    async def force_release(self, permit: int) -> bool:
        """
        Release a permit for any holder, and wake the next waiter; see `Redlock.force_release`.

        Args:
            permit: Its number, from 0 on; also one beyond *permits*, which a program with
                a larger number holds.

        Returns:
            Whether any master, even a minority, kept the permit.

        Raises:
            QuorumUnavailableError, RedlockError: As for `Redlock.force_release`.

            TypeError: *permit* is not an int.

            ValueError: There is no such permit.

        Cancellation:
            As for `Redlock.force_release`.
        """
        from_to(permit, 0, MOST_PERMITS - 1, name="permit")
        session = await self._opener.ready_session()
        name = f"permit {permit} of {self.resources[0]!r}"
        return await ForcedRelease(session, name, self._permits.permit(permit)).run()
