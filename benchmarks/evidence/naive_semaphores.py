"""
Semaphores as one would write them at first: controls, in which the checks must find too many.

Each master has two permits and grants no third one, and a client needs the grants of a majority, as
in Redlock. So two majorities, it seems, are all there are. But five masters grant ten times, and
that is enough for three majorities of three.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from .naive import AllMasters, Naive, NaiveLease

PERMITS = 2

_ENTER_IF_FEW = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, now)
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[3]) then return 0 end
redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
"""


class _Semaphore(AllMasters):
    async def acquire(
        self, keys: Sequence[str], ttl: int, wait: int, *, auto_extend: bool
    ) -> NaiveLease:
        del auto_extend
        (key,) = keys

        async def attempt() -> NaiveLease | None:
            lease = NaiveLease(self.leave, key, ttl)
            answers = await self.grants(lease, ttl)
            if self.is_majority(answers):
                lease.permit = self.number(answers)
                return lease
            await self.leave(lease)
            return None

        return await self.until_acquired(wait, attempt)

    async def grants(self, lease: NaiveLease, ttl: int) -> list[Any]:
        """Ask all masters for a permit, and return what they answer."""
        raise NotImplementedError

    async def leave(self, lease: NaiveLease) -> None:
        """Give back what any master has granted."""
        raise NotImplementedError

    def number(self, answers: Sequence[Any]) -> int | None:
        """Return the number of the permit that these answers grant, if it has one."""
        del answers
        return None


class _HoldersCounted(_Semaphore):
    """Each master keeps a sorted set of its holders, and lets no third one in."""

    async def grants(self, lease: NaiveLease, ttl: int) -> list[Any]:
        script = "EVAL", _ENTER_IF_FEW, 1, f"{lease.key}:holders"
        return await self.answers(*script, lease.id, ttl, PERMITS)

    async def leave(self, lease: NaiveLease) -> None:
        await self.answers("ZREM", f"{lease.key}:holders", lease.id)


_TAKE_ANY_SLOT = """
for number, slot in ipairs(KEYS) do
  if redis.call('SET', slot, ARGV[1], 'NX', 'PX', ARGV[2]) then return number end
end
return 0
"""
_LEAVE_ALL_SLOTS = """
for _, slot in ipairs(KEYS) do
  if redis.call('GET', slot) == ARGV[1] then redis.call('DEL', slot) end
end
return 1
"""


class _SlotsAddedUp(_Semaphore):
    """
    Each permit is a key, and each master grants any that is free.

    The grants of different permits count together, and the permit is the one that most have
    granted: another client may have a majority with the same one.
    """

    @staticmethod
    def _slots(lease: NaiveLease) -> list[str]:
        return [f"{lease.key}:slot:{number}" for number in range(PERMITS)]

    async def grants(self, lease: NaiveLease, ttl: int) -> list[Any]:
        slots = self._slots(lease)
        return await self.answers("EVAL", _TAKE_ANY_SLOT, PERMITS, *slots, lease.id, ttl)

    async def leave(self, lease: NaiveLease) -> None:
        await self.answers("EVAL", _LEAVE_ALL_SLOTS, PERMITS, *self._slots(lease), lease.id)

    def number(self, answers: Sequence[Any]) -> int:
        ((slot, _),) = Counter(each for each in answers if each).most_common(1)
        return int(slot) - 1


NAIVE_SEMAPHORES = (
    Naive("holders counted", _HoldersCounted, permits=PERMITS),
    Naive("slots added up", _SlotsAddedUp, permits=PERMITS),
)
