"""A semaphore for threads."""

import functools
from typing import cast

import redlock_aio
from redlock_aio import SemaphoreState
from redlock_aio.sync._lock import Lock


class Semaphore(Lock):
    """
    A semaphore: at most *permits* hold the resource at the same time; made by `Redlock.semaphore`.

    It is used as a `redlock_aio.sync.Lock`; see `redlock_aio.Semaphore`. A thread may have several
    permits, and each lease is another one. If it holds all of them and would wait for one more for
    ever, it gets a `RedlockError`.
    """

    __slots__ = ()

    @property
    def permits(self) -> int:
        """How many may hold the resource at the same time."""
        return cast("redlock_aio.Semaphore", self._checked).permits

    def inspect(self) -> SemaphoreState:
        """
        Return the holder of each permit, as each master reports it; ``print`` it to read it.

        See `redlock_aio.Semaphore.inspect`.

        Raises:
            RedlockError: The manager is closed.
        """
        portal = self._opener.opened()
        there = cast("redlock_aio.Semaphore", self._of(portal.redlock, None))
        return portal.call(there.inspect)

    def force_release(self, permit: int) -> bool:
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
        """
        portal = self._opener.opened()
        there = cast("redlock_aio.Semaphore", self._of(portal.redlock, None))
        return portal.call(functools.partial(there.force_release, permit))
