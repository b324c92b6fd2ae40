"""
Fencing tokens over several masters: the agreement on a token, and why tokens only rise.

Each master has a counter for each resource, and raises it with every lock that it
grants: to the masters' time if that is higher, so most often all counters are equal.
A fencing token is the value that a majority of the counters has *exactly*, while the
holder has the lock on these masters:

    a majority grants ─┬─ equal values, none higher ─────────────► that is the token
                       └─ otherwise: raise all to the highest ─┬─► all exactly that
                                   ▲                           │
                                   └── one is higher now ──────┘

- Two majorities share a master. It has granted the lock to one after the other, and
  raised its counter in between. Therefore the later token is the higher one, whatever
  clocks, pauses and late messages do to the lock itself.
- "At least" instead of "exactly" would hand out one token twice: a counter that
  is higher already does not tell which client has raised it.
- An extension counts only where the counter is not beyond the holder's token. To have
  the lock there is not enough: another client may have had it in between.

A failed attempt of another client leaves counters beyond the token of a holder. The holder
can't lower them, for the attempt may still succeed elsewhere. It lifts its own instead:

    master:      A    B    C    D    E       the holder's token is 100, D and E were
    counter:   100  100  100  105  105       acquired and released by another client
    lift:      105* 105* 105* 105  105       * is the holder's mark, its token
    restore:   105* 105* 105* 105* 105*

- A master counts for the holder if its counter is not beyond the token, or has its
  mark. Each grant overwrites the counter and the mark, so a mark proves that nobody
  has been granted the lock there since it was set.
- `lift` raises and marks the counters of masters that count. When a majority has
  done so, no client can agree on a token up to 105 any more: that takes a master of that
  majority, which gives 106 from now on. And no client has done so before, or that master
  would not have counted. So the counters of D and E mean nothing, and are marked as well.

The README states the assumptions; the tests search all ways in which a few
acquisitions can go. Nothing here waits, reads a clock or opens a socket.
"""

from collections.abc import Sequence

MARK = b".0000"
"""
The separator between a counter and the mark on it, which is a fencing token in 16 digits.
The whole is a number: a script that reads it as one reads the counter.
"""

KEPT = 7 * 24 * 60 * 60 * 1000
"""
The ms for which an unused counter is kept. A master that has deleted it starts from the
time, which is higher by then than any counter was.
"""

MOST_RAISES = 3
"""The most rounds that raise the counters for one acquisition."""

LEAD_SHARE = 1 / 8
"""
The most by which a proposal may differ from a master's clock, as a share of the quarantine after a
restart: two clocks that are wrong by that much, and a lead each, fit into the quarantine.
"""

SHORTEST_LEAD = 2_000_000
"""In us: an acquisition compares whole seconds."""


def agreed(counters: Sequence[int], needed: int) -> int:
    """
    Return the fencing token on which *counters* agree, 0 if they do not.

    A lower value on which enough of them agree would be a valid token, but the masters
    with a higher counter could never count again when the lock is extended.

    Args:
        counters: The counters of the masters that keep the lock for this client.
    """
    highest = max(counters)
    return highest if counters.count(highest) >= needed else 0
