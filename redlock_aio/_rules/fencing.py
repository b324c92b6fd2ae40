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
