"""
What an operator asks of a manager: who has a lock, and to take it away.

A resource is named as for `Redlock.lock`, and asked for on the same masters.
"""

from typing import Protocol

from redlock_aio._engine import inspecting
from redlock_aio._engine.forcing import Eviction
from redlock_aio._engine.reporting import Engine
from redlock_aio._rules.inspection import LockState
from redlock_aio._rules.keys import Key


class Keeper(Engine, Protocol):
    """The manager, as far as it is needed here."""

    _max_ttl: int

    def _key(self, resource: str) -> Key:
        """Return what the masters call it, or say what is wrong with it."""


async def _key_of(keeper: Keeper, resource: str) -> Key:
    key = keeper._key(resource)
    if not keeper._is_ready():
        await keeper._get_ready(None)
    return key


class Oversight:
    """What a manager can say of locks that others hold, and do about them."""

    __slots__ = ()

    async def inspect(self: Keeper, resource: str, /) -> LockState:
        """
        Return who holds *resource*, as each master tells it; ``print`` it to read it.

        All masters are asked once and heard out, so that one that hangs costs a master
        time-out. Those that do not answer are views that say so; see
        `LockState.certain`.

        Raises:
            RedlockError: The manager is closed, or belongs to another event loop
                or process.

            TypeError, ValueError: As for `lock`.

        Cancellation:
            Nothing was asked that changes anything.
        """
        key = await _key_of(self, resource)
        return await inspecting.inspect(self._fleet, resource, key)

    async def is_locked(self: Keeper, resource: str, /) -> bool:
        """
        Return whether somebody holds *resource*: a majority of the masters keeps one value.

        It is the truth of a moment. Whoever is to do what others must not do meanwhile
        takes the lock, with ``wait=0`` or `Lock.try_acquire`.

        Raises:
            QuorumUnavailableError: Too few masters have answered to tell.

            RedlockError: The manager is closed, or belongs to another event loop
                or process.

            TypeError, ValueError: As for `lock`.

        Cancellation:
            Nothing was asked that changes anything.
        """
        key = await _key_of(self, resource)
        return await inspecting.is_locked(self._fleet, resource, key)

    async def force_release(self: Keeper, resource: str, /) -> bool:
        """
        Take *resource* from whoever holds it, also another library, and wake who waits for it.

        For a moment, a little over 0.1 s and two master time-outs, nobody gets it. In that
        time its holder is told: at once if it is of this process, or if the masters may
        tell it of changes (``client|tracking``), as they do with this library; one that
        says so is enough. Its lease is lost then, and its body cancelled. The time-out is
        the one of this manager. A holder that needs a longer one, because it is farther
        away from the masters, may be told after others have got the lock: give a
        *master_timeout* here that is as long as the longest of all programs. A holder that
        can't be told finds out at its next extension, after a third of its ttl, or when
        its validity is over if it is cut off; another library may not find out.
        What it writes meanwhile only a fencing token can refuse: that of the next holder
        is higher.

        Whoever gets the lock after this call has asked the masters keeps it, but for a
        library that uses one value for several holders. A master that does not answer
        takes it from the same holder as soon as it does.

        What can't be a lock is never touched: a key of another type, one without a ttl (but
        for a lock of this library whose ttl somebody has taken away), one of more than
        2 KiB; unless it has the very value of a lock on another master. On a minority of
        the masters it is left as it is, and the lock is released on the others. On a
        majority, or where no master keeps a lock, it is an error.

        Returns:
            Whether there was anything to take, on any master; also what only a
            minority keeps.

        Raises:
            QuorumUnavailableError: Too few masters have answered to find or free it.
                Those that have answered take it away all the same.

            RedlockError: What the masters keep can't be a lock, and nothing was changed;
                or the manager is closed, or belongs to another event loop or process.

            TypeError, ValueError: As for `lock`.

        Cancellation:
            If the masters have not been asked to take it away, nothing has happened.
            Otherwise they do, and the lock is free after a moment; only the wait ends. No
            key of ours stays.
        """
        key = await _key_of(self, resource)
        return await Eviction(self._fleet, self._watchdog, resource, key, self._max_ttl).run()
