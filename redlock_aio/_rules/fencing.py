"""
Fencing tokens over several masters: whose is the higher one?

Each master counts for each resource, and raises its counter with every lock that
it grants: to the masters' time if that is higher, so that most often all say the
same. A token is what a majority of the counters says *exactly*, while the lock is
ours there:

    a majority grants ─┬─ and says the same, and none more ──────► that is the token
                       └─ otherwise: raise all to the highest ─┬─► all exactly that
                                   ▲                           │
                                   └── somebody says more ─────┘

- Two majorities share a master. It has given the lock to one after the other, and
  raised its counter in between. So the later token is the higher one, whatever
  clocks, pauses and late messages do to the lock itself.
- "At least" instead of "exactly" would hand out one token twice: a counter that
  is higher already says nothing about who made it so.
- Whoever extends is counted only where the counter is not beyond its token. That
  the lock is its own is not enough: it may be so again after somebody else.

A failed attempt of others leaves counters beyond the token of a holder. The holder
can't lower them, for the attempt may still succeed elsewhere. It lifts its own instead:

    master:      A    B    C    D    E       the holder's token is 100, D and E were
    counter:   100  100  100  105  105       taken and given back by somebody else
    lift:      105* 105* 105* 105  105       * is the holder's mark, its token
    restore:   105* 105* 105* 105* 105*

- A master counts for the holder if its counter is not beyond the token, or has its
  mark. Each grant overwrites the counter and the mark, so a mark proves that nobody
  has been granted the lock there since it was set.
- `lift` raises and marks the counters of masters that count. When a majority has
  done so, nobody can agree on a token up to 105 any more: that takes a master of that
  majority, which gives 106 from now on. And nobody has done so before, or it would
  not have counted. So the counters of D and E mean nothing, and are marked as well.

What is assumed is said in the README; the tests search all ways in which a few
acquisitions can go. Nothing here waits, reads a clock or opens a socket.
"""

from collections.abc import Sequence

from redlock_aio._rules.protocol import hash_tagged
from redlock_aio._rules.scripts import (
    ACQUIRE,
    ACQUIRE_ALL,
    EXTEND,
    LIFT,
    RAISE,
    RESTORE_FENCED,
    bulk,
    pack,
)

MARK = b".0000"
"""
What is between a counter and the mark on it, which is a fencing token in 16 digits. The
whole is a number: a script that reads it as one reads the counter.
"""

KEPT = 7 * 24 * 60 * 60 * 1000
"""
For how many ms a counter is kept that nobody uses. A master that has forgotten it
goes by the time, which is higher by then than any counter was.
"""

MOST_RAISES = 3
"""How often the counters are raised for one acquisition."""

LEAD_SHARE = 1 / 8
"""
By which part of the time for which a master that restarts stays away a proposal may
be off its clock: two clocks that are wrong by that much, and a lead each, fit into it.
"""

SHORTEST_LEAD = 2_000_000
"""In us: an acquisition looks at whole seconds."""


def agreed(counters: Sequence[int], needed: int) -> int:
    """
    Return the fencing token that *counters* amount to, 0 if they do not agree.

    A lower one that many agree on would do, but those who say more could never
    be counted again when the lock is extended.

    Args:
        counters: What the masters say that keep the lock for us.

        needed: How many must say the same.
    """
    highest = max(counters)
    return highest if counters.count(highest) >= needed else 0


class Counter:
    """
    The counter of one resource, or of several: what is said to the masters about it.

    Several that are locked together get the same value, one beyond the highest of
    them: so one token is higher than all before it, of each of them.

    Args:
        keys: The lock's key, or the keys of all its resources.

        lead: By how many us a proposal may be off a master's clock.
    """

    __slots__ = ("_head", "_keys", "_lead", "keys")

    def __init__(self, keys: Sequence[bytes], lead: int) -> None:
        self.keys: tuple[bytes, ...] = tuple(
            b"redlock_aio:fence:" + hash_tagged(key) for key in keys
        )
        self._keys = (b"%d" % (2 * len(keys)), *keys, *self.keys)
        self._lead = max(lead, SHORTEST_LEAD)
        # An acquisition is packed again and again, so what is the same is kept.
        script = ACQUIRE_ALL if len(keys) > 1 else ACQUIRE
        self._head = b"*%d\r\n%b" % (
            9 + 2 * len(keys), bulk(b"EVALSHA", script.sha, *self._keys),
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"<Counter {self.keys!r}>"

    @property
    def lead(self) -> int:
        """By how many us a value may be off a master's clock, to be written there."""
        return self._lead

    def acquire(self, token: bytes, ttl: int, proposal: int, patience: int) -> bytes:
        """
        Return the command that takes the lock for *token*, if nobody has it.

        Args:
            ttl: In milliseconds.

            proposal: What the counter is to be at least: the masters' time in us.

            patience: How many us after that it comes too late.
        """
        digits = b"%d" % ttl
        lead = self._lead
        # The master looks at whole seconds only, which is made up for here.
        late = (patience if patience < lead else lead) - 1_000_000  # noqa: FURB136 - faster
        return _ACQUIRE % (
            self._head, len(token), token, len(digits), digits, proposal,
            max(proposal - lead, 0), min(proposal + late, _LAST_TIME), _KEPT,
        )  # fmt: skip

    def raise_to(self, value: int, token: bytes) -> bytes:
        """Return the command that raises it to *value*, if the lock is *token*'s."""
        return pack(b"EVALSHA", RAISE.sha, *self._keys, token, b"%016d" % value, _KEPT)

    def extend(self, token: bytes, ttl: int, fence: int) -> bytes:
        """
        Return the command that lets the lock live for *ttl* more, if it is *token*'s.

        Args:
            fence: The fencing token; a master whose counter is beyond it refuses,
                unless `lift` or `restore` has marked the counter with it.
        """
        lives, own = b"%d" % ttl, b"%016d" % fence
        return pack(b"EVALSHA", EXTEND.sha, *self._keys, token, lives, b"", own, _KEPT)

    def lift(self, token: bytes, fence: int, ceiling: int) -> bytes:
        """Return the command that raises the counters to *ceiling* and marks them with *fence*."""
        own, least = b"%016d" % fence, b"%016d" % ceiling
        return pack(b"EVALSHA", LIFT.sha, *self._keys, token, own, least, _KEPT)

    def restore(self, token: bytes, ttl: int, fence: int, ceiling: int = 0) -> bytes:
        """
        Return the command that sets the lock for *ttl* ms again where nobody has it.

        Args:
            fence: The fencing token.

            ceiling: Up to where a majority has lifted its counters, if it has.
        """
        own, most = b"%016d" % fence, b"%016d" % max(fence, ceiling)
        lives = b"%d" % ttl
        return pack(b"EVALSHA", RESTORE_FENCED.sha, *self._keys, token, lives, own, most, _KEPT)

    def proposed(self, proposal: int) -> tuple[bytes, ...]:
        """Return what `protocol.enqueue` says besides, to have a fencing token as well."""
        return b"%d" % proposal, b"%d" % self._lead, _KEPT


_KEPT = b"%d" % KEPT
_LAST_TIME = 10**16 - 1
_ACQUIRE = (
    b"%b$%d\r\n%b\r\n$%d\r\n%b\r\n$16\r\n%016d\r\n$16\r\n%016d\r\n$16\r\n%016d\r\n$9\r\n%b\r\n"
)
