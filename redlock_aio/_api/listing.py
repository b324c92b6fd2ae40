"""Which locks are held: the listing of a manager."""

from redlock_aio._api.opener import Opener
from redlock_aio._engine.admin import scan
from redlock_aio._protocol.lock_state import FoundLocks
from redlock_aio._protocol.resources import Resources
from redlock_aio._rules.validation import of_type, positive, text

MOST_FOUND = 1_000
"""The most locks that are returned by default."""


class Listing:
    """The part of `Redlock` that finds locks."""

    __slots__ = ()
    _opener: Opener
    _resources: Resources

    async def find_locks(self, prefix: str = "", /, *, limit: int = MOST_FOUND) -> FoundLocks:
        """
        Return the locks whose names begin with *prefix*, as `inspect` shows each of them.

        Each master is scanned in small steps (``SCAN``, never ``KEYS``), which needs one
        permission more than `inspect`: ``+scan``. Without a *key_prefix*, all strings on the
        masters are looked at, also those of other programs. A lock that is acquired or
        released meanwhile may be found or not.

        Args:
            prefix: How the names begin; the special characters of patterns have no meaning
                in it.

            limit: The most names to look at; if there are more, any of them may be left
                out, and `FoundLocks.complete` is false.

        Raises:
            RedlockError: The manager is closed, or belongs to another event loop
                or process.

            TypeError, ValueError: An argument is invalid.

        Cancellation:
            Nothing was asked that changes anything.
        """
        begin = text(prefix, name="prefix") if of_type(prefix, str, name="prefix") else b""
        positive(limit, name="limit")
        session = await self._opener.ready_session()
        whole = self._resources.prefix + begin
        return await scan.find_locks(session.masters, whole, limit, self._resources.name_of)
