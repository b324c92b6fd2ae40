"""What a manager for threads asks its masters: about locks, and whether they vote."""

import functools
from datetime import timedelta

from redlock_aio import FoundLocks, LockState
from redlock_aio.sync._portal import PortalOpener


class Asking:
    """The part of `Redlock` that asks the masters, and changes nothing there."""

    _opener: PortalOpener

    def inspect(self, resource: str, /) -> LockState:
        """
        Return the holder of *resource* as each master reports it; ``print`` it to read it.

        See `redlock_aio.Redlock.inspect`.

        Raises:
            RedlockError: The manager is closed.

            TypeError, ValueError: As for `Redlock.lock`.
        """
        portal = self._opener.opened()
        return portal.call(portal.redlock.inspect, resource)

    def is_locked(self, resource: str, /) -> bool:
        """
        Return whether *resource* is held: a majority of the masters keeps one value.

        See `redlock_aio.Redlock.is_locked`.

        Raises:
            QuorumUnavailableError: Too few masters have answered to decide.

            RedlockError: The manager is closed.

            TypeError, ValueError: As for `Redlock.lock`.
        """
        portal = self._opener.opened()
        return portal.call(portal.redlock.is_locked, resource)

    def find_locks(self, prefix: str = "", /, *, limit: int = 1_000) -> FoundLocks:
        """
        Return the locks whose names begin with *prefix*, as `inspect` shows each of them.

        See `redlock_aio.Redlock.find_locks`.

        Raises:
            RedlockError: The manager is closed.

            TypeError, ValueError: An argument is invalid.
        """
        portal = self._opener.opened()
        return portal.call(functools.partial(portal.redlock.find_locks, prefix, limit=limit))

    def check(self, *, wait: int | timedelta = 1_000, timeout: int | timedelta = 1_000) -> None:
        """
        Check that a majority of the masters votes; no lock is acquired.

        See `redlock_aio.Redlock.check`.

        Raises:
            QuorumUnavailableError: No majority votes.

            RedlockError: The manager is closed.

            TypeError, ValueError: *wait* is not a positive time, or *timeout* is given too.
        """
        portal = self._opener.opened()
        portal.call(functools.partial(portal.redlock.check, wait=wait, timeout=timeout))
