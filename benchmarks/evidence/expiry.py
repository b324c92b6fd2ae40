"""
Expiry: a lease that is over is never valid again (S4).

A promise breaks that if it is known

- after the lease has ended: it was released, notified as lost, or handed over;
- after a later lease of one of its keys was granted, also if that one is over again, unless both
  are leases of readers;
- after the last promise was over. For that each extension must be recorded, or an extension that
  nobody has seen may have come in time.

The effect of an extension comes before its end is recorded: the masters may grant it just before
the lease is over, and the client notices that a moment later. So the last rule takes only what is
certain: the extension was asked for when the lease was over (a promise reaches no further than
its ttl from there), or it was noticed later than any turn of an event loop that runs.

A release by force may have failed, and its holder is notified later. What is known soon after it
is no promise here, but it does say how long the lease may have been valid.
"""

import bisect
from collections.abc import Iterator
from operator import attrgetter
from typing import Final

from .history import NEVER
from .leases import MS, Leases, Tenure
from .progress import Reachability

TURN: Final = 500 * MS
"""How late, in ns, a client may notice an extension that was granted in time."""


def revivals(leases: Leases, reachability: Reachability) -> Iterator[tuple[Tenure, int, int, str]]:
    """
    Yield each lease that was promised again though it was over.

    Each is reported once, with the instant at which the promise was known, the instant at which
    the lease was over, and what had ended it.
    """
    later = _later(leases)
    for tenure in leases.all.values():
        found = min(
            (
                *_after_its_end(tenure),
                *_after_a_later_lease(tenure, later.get(tenure.name)),
                *_after_its_validity(tenure, leases, reachability),
            ),
            default=None,
        )
        if found is not None:
            yield (tenure, *found)


def claims(tenure: Tenure) -> list[tuple[int, int]]:
    """
    Return the promises after the first one, in the order of time, as `Tenure.promises`.

    A client that was stopped may get to know an extension when it is over again: that is none.
    """
    return [promise for promise in sorted(tenure.promises)[1:] if promise[0] <= promise[1]]


def _later(leases: Leases) -> dict[str, Tenure]:
    """
    Return for each lease the first one of its keys that was granted after it and excludes it.

    One that was over when its client got to know it may have been granted long before that: its
    client was stopped meanwhile. It says nothing.
    """
    result: dict[str, Tenure] = {}
    for tenures in leases.by_key.values():
        order = [tenure for tenure in tenures if tenure.origin.until > tenure.began_at]
        order.sort(key=attrgetter("began_at"))
        excluding = {False: order, True: [tenure for tenure in order if not tenure.shared]}
        begins = {
            shared: [tenure.began_at for tenure in group] for shared, group in excluding.items()
        }
        for tenure in tenures:
            group = excluding[tenure.shared]
            place = bisect.bisect_right(begins[tenure.shared], tenure.began_at)
            if place < len(group):
                known = result.get(tenure.name, group[place])
                result[tenure.name] = min(known, group[place], key=attrgetter("began_at"))
    return result


def _after_its_end(tenure: Tenure) -> Iterator[tuple[int, int, str]]:
    end = min(tenure.ends, default=NEVER)
    for at, _ in claims(tenure):
        if at > end:
            yield at, end, "it had ended"


def _after_a_later_lease(tenure: Tenure, later: Tenure | None) -> Iterator[tuple[int, int, str]]:
    if later is not None:
        for at, _ in claims(tenure):
            if at > later.began_at:
                yield at, later.began_at, f"{later.name} was granted"


def _after_its_validity(
    tenure: Tenure, leases: Leases, reachability: Reachability
) -> Iterator[tuple[int, int, str]]:
    if not tenure.origin.observed:
        return
    process = tenure.origin.process
    known = [(at, until, tenure) for at, until in (*tenure.promises, *tenure.excused)]
    # An adoption continues the lease, and has to be granted while it is valid.
    known += [
        (other.began_at, other.origin.until, other)
        for other in leases.all.values()
        if other.exporter is tenure
    ]
    over = 0
    for at, until, owner in sorted(known, key=lambda one: one[:2]):
        judged = over and until >= at and (at, until) not in tenure.excused
        ttl = max((ttl for asked_at, ttl in owner.ttls if asked_at <= at), default=0)
        late = at > over + TURN and not reachability.stalled(process, over, at)
        if judged and (until - ttl * MS > over or late):
            yield at, over, "it was over"
        over = until
