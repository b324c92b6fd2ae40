"""
The order in which fair waiters are served, and whether holders stop in time.

These are promises of time: `meta.json` says how late is too late.

A waiter keeps its place while its process runs and reaches the same majority of the masters. One
that does not may have left the queues, or its entry may be lost: it may be overtaken.
"""

import bisect
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from .history import NEVER, Fault, History, Operation
from .leases import MS, Leases, Tenure
from .progress import PAUSE, Reachability

FEWEST_TO_MOST = 0.8
"""The least ratio of the fewest turns of a client to the most turns of a client."""

FEW_LONG = 0.01
"""
The largest share of bodies that are longer than the ttl with which numbers of turns are compared:
whoever has had one has had fewer turns.
"""

SHORT_REST = 0.1
"""
The longest rest of clients after a turn, in seconds, with which numbers of turns are compared: with
longer ones it is chance who asks more often.
"""

ROUNDS = 8
"""
A fair waiter is starved if each of the others had more turns than this on average, for which it
asked later.

In the queue there is none. A waiter whose time to wait is over leaves the queue and comes again,
which is once or twice in a run. In a semaphore one may be passed by those that have waited for half
as long: by each of them as often as its own wait doubles, from some ms to the 5 s of a wait.
"""

Keeps = Callable[[Operation], bool]
"""Tells of a waiter whether it had kept its place."""


Handed = Callable[[Operation, Operation], bool]
"""Tells whether a permit was handed to the first of two, while the second one waited for any."""


def always(_: Operation) -> bool:
    """Say that a waiter kept its place: nothing happened to masters or clients."""
    return True


def each(_one: Operation, _waiter: Operation) -> bool:
    """Say that a permit was handed on."""
    return True


def places(reachability: Reachability) -> Keeps:
    """Return what tells whether a waiter kept its place from its begin to its end."""

    def keeps(one: Operation) -> bool:
        return reachability.is_undisturbed(one.process, one.invoked_at, one.ended_at)

    return keeps


def waits(history: History) -> dict[tuple[str, ...], list[Operation]]:
    """Return the acquisitions of each set of keys whose end is known, in the order of their end."""
    result: dict[tuple[str, ...], list[Operation]] = defaultdict(list)
    for one in sorted(history.operations, key=lambda one: one.ended_at):
        if one.what == "acquire" and one.end != "info":
            keys = tuple(sorted(one.keys))
            result[("a permit of", *keys) if one.permits else keys].append(one)
    return result


def overtakings(
    group: Sequence[Operation], slack: int, keeps: Keeps = always
) -> Iterator[tuple[Operation, Operation]]:
    """
    Yield each waiter that was overtaken, and by whom. Readers may overtake each other.

    A waiter's place is the masters' time, which its process knows to within half a round trip, and
    it is taken a moment after the waiter began to wait. So one may have asked up to *slack* ns
    earlier than another and be served later. A waiter that gave up was overtaken by those
    that asked later and were served before it gave up.

    Args:
        group: The acquisitions of one set of keys, in the order of their end.

        keeps: Of others nothing is promised.
    """
    latest: dict[bool, Operation] = {}  # of the readers that were served, and of the others
    for one in group:
        rivals = [other for shared, other in latest.items() if not (shared and one.shared)]
        rival = max(rivals, key=lambda other: other.invoked_at, default=None)
        if rival is not None and one.invoked_at + slack < rival.invoked_at and keeps(one):
            yield one, rival
        mine = latest.get(one.shared)
        if one.end == "ok" and (mine is None or one.invoked_at > mine.invoked_at):
            latest[one.shared] = one


def passed(
    group: Sequence[Operation],
    slack: int,
    keeps: Keeps = always,
    handed_on: Handed = each,
) -> Iterator[tuple[Operation, Operation]]:
    """
    Yield each waiter for a permit that one passed which had waited for less than half as long.

    Waiters of a semaphore are in one queue for each permit. That is what is promised of one that
    waits for another permit than the one that becomes free.

    Args:
        group: The acquisitions of one semaphore, in the order of their end.

        slack: By how many ns the longer wait may be more than twice the other one.

        keeps: Of waiters that lose their place nothing is promised.

        handed_on: Whether the permit of an acquisition was released by the holder before, while
            the other one waited. One that ends by itself goes to whoever comes then.
    """
    oldest: Operation | None = None  # of those that waited for longer
    for one in reversed(group):
        if oldest is not None and one.end == "ok":
            waited, longer = one.ended_at - one.invoked_at, one.ended_at - oldest.invoked_at
            if longer > 2 * waited + slack and handed_on(one, oldest):
                yield oldest, one
        if (oldest is None or one.invoked_at < oldest.invoked_at) and keeps(one):
            oldest = one


def handed_to_those_who_wait(leases: Leases, group: Sequence[Operation], slack: int) -> Handed:
    """
    Return what tells whether a permit was released, and not offered to another one before.

    If two permits are released at about the same time, masters may call one waiter for both. The
    one that it does not take goes to the first of its own queue, as one that ends by itself. So
    does one for which a waiter was called that has died: it is acquired long after its release. And
    a waiter that was called for one waits no more for the other one, though it hears of it later.
    The release of one permit also calls the first waiter for another one that is free, where nobody
    who lives was called: that permit has ended by itself, or the one that was called has died.

    Args:
        group: The acquisitions of the semaphore, in the order of their end.

        slack: How many ns after its release a permit that is handed over is acquired, at most.
    """
    served = [one for one in group if one.end == "ok"]
    ends = [one.ended_at for one in served]
    order = {
        key: sorted(tenures, key=lambda tenure: tenure.began_at)
        for key, tenures in leases.by_key.items()
    }
    begins = {key: [tenure.began_at for tenure in group] for key, group in order.items()}

    def before(one: Operation) -> Tenure | None:
        for key in one.locks:
            place = bisect.bisect_left(begins[key], one.ended_at) - 1
            if place >= 0:
                return order[key][place]
        return None

    def tells(one: Operation, waiter: Operation) -> bool:
        holder = before(one)
        if holder is None:
            return True
        if not holder.released or one.ended_at - min(holder.ends) > slack:
            return False
        first = bisect.bisect_right(ends, min(holder.ends))
        last = bisect.bisect_left(ends, one.ended_at)
        # They have got other permits: this one's holder before has released it.
        if any(other.invoked_at < one.invoked_at for other in served[first:last]):
            return False
        other = before(waiter) if waiter.end == "ok" else None
        if other is None:
            return True
        handed = min(holder.ends)
        promised = max((until for _, until in other.promises), default=other.began_at)
        freed = min([*other.ends, promised])
        if freed > handed and not other.released:
            return True  # nobody is called for a permit that ends by itself
        return not freed <= one.ended_at <= waiter.ended_at <= max(freed, handed) + slack

    return tells


@dataclass(frozen=True, slots=True)
class Streak:
    """A time for which a client wanted a lock all along, and others had it."""

    client: str
    began_at: int
    ended_at: int
    turns: int
    """How many turns others had in it."""
    later: int
    """Those of them that were asked for later."""
    rivals: int
    """How many others there are."""

    @property
    def rounds(self) -> float:
        """How many turns each of the others had, on average."""
        return self.turns / self.rivals if self.rivals else 0.0

    @property
    def is_starved(self) -> bool:
        """Whether a fair waiter may not wait for so long."""
        return self.later > ROUNDS * self.rivals


def streaks(group: Sequence[Operation], slack: int, keeps: Keeps) -> Iterator[Streak]:
    """
    Yield each time for which a client wanted a lock, to its turn or to the end.

    One that gives up and comes again within `PAUSE` has wanted it throughout. Left out are the
    times in which it lost its place.

    Args:
        group: The acquisitions of one set of keys, in the order of their end.

        slack: By how many ns others ask later, if that counts.
    """
    served = [one for one in group if one.end == "ok"]
    ends = [one.ended_at for one in served]
    clients: dict[str, list[Operation]] = defaultdict(list)
    for one in group:
        clients[one.client].append(one)

    def streak(client: str, began: int, ended: int) -> Streak:
        first, last = bisect.bisect_right(ends, began), bisect.bisect_left(ends, ended)
        others = served[first:last]  # its own turn ends the time
        later = sum(one.invoked_at > began + slack for one in others)
        return Streak(client, began, ended, len(others), later, len(clients) - 1)

    for client, mine in clients.items():
        began: int | None = None
        ended = 0
        for one in mine:
            if began is not None and (one.invoked_at > ended + PAUSE or not keeps(one)):
                yield streak(client, began, ended)
                began = None
            if keeps(one):
                began, ended = one.invoked_at if began is None else began, one.ended_at
                if one.end == "ok":
                    yield streak(client, began, ended)
                    began = None
        if began is not None:
            yield streak(client, began, ended)


def there_all_along(
    group: Sequence[Operation], reachability: Reachability, within: int
) -> set[str]:
    """
    Return the clients that reached the same majority all the time, and came first and went last.

    Args:
        within: How many ns after the first, and before the last acquisition.
    """
    first = min(one.invoked_at for one in group)
    last = max(one.ended_at for one in group)
    seen: dict[str, tuple[int, int]] = {}
    for one in group:
        came, went = seen.get(one.client, (NEVER, 0))
        seen[one.client] = min(came, one.invoked_at), max(went, one.ended_at)
    return {
        client
        for client, (came, went) in seen.items()
        if came <= first + within
        and went >= last - within
        and reachability.is_undisturbed(client.partition("/")[0], first, last)
    }


def turns(group: Sequence[Operation]) -> Counter[str]:
    """Return how often each client had the lock; 0 for one that only waited."""
    result: Counter[str] = Counter()
    for one in group:
        result[one.client] += one.end == "ok"
    return result


def are_even(had: Counter[str], *, shared: bool) -> bool:
    """
    Return whether all clients had about the same number of turns.

    A difference of two is allowed: processes begin one after the other, and all end in a cycle.
    With readers, numbers also differ by chance: readers are let in together, and those that leave
    early ask again early. This adds up turn by turn, so it grows as the root of their number.
    """
    most = max(had.values())
    return min(had.values()) >= FEWEST_TO_MOST * most - 2 - (math.sqrt(most) if shared else 0)


def stopped(history: History, leases: Leases) -> Iterator[tuple[Tenure, Fault, int]]:
    """
    Yield the leases that expired while their process was stopped, the stop, and when they expired.

    Left out are leases that were handed over: nobody is told of their end.
    """
    for fault in history.faults:
        if fault.name != "stall":
            continue
        for tenure in leases.all.values():
            asked = [ttl for at, ttl in tenure.ttls if at < fault.began_at]
            if tenure.origin.process != fault.client or tenure.handed_over != NEVER or not asked:
                continue
            over = fault.began_at + max(asked) * MS
            ended = min([*tenure.ends, *tenure.forced], default=NEVER)
            # What its process did up to `over` it did before it was stopped.
            if tenure.began_at < fault.began_at and over < fault.ended_at and ended > over:
                yield tenure, fault, over


def told_at(tenure: Tenure, since: int) -> int:
    """Return when the holder was told that its lease is over, after *since*; `NEVER` if not."""
    losses = (at for at, _ in tenure.losses)
    refusals = (at for _, at, _ in tenure.refusals)
    return min((at for at in (*losses, *refusals) if at >= since), default=NEVER)


def written_late(
    history: History, leases: Leases, reachability: Reachability, slack: int
) -> Iterator[tuple[Tenure, Operation, int]]:
    """
    Yield each write of a guarded body that began after the end of its lease, and that end.

    Args:
        slack: How many ns after the end, or after its process went on if it stood still then, a
            body may begin a write.
    """
    for one in history.operations:
        tenure = leases.all.get(one.lease) if one.what in {"write", "add"} else None
        if tenure is None or not tenure.origin.guarded:
            continue
        # What a holder found soon after a release by force is no promise, but it went by it.
        known = (*tenure.promises, *tenure.excused)
        over = max((until for at, until in known if at <= one.invoked_at), default=0)
        until = over
        for began, ended in reachability.stalls(one.process):
            if began <= until + slack and ended > until:
                until = ended
        if one.invoked_at > until + slack:
            yield tenure, one, over


def again_too_early(leases: Leases, slack: int) -> Iterator[tuple[str, Tenure, Tenure, int]]:
    """
    Yield each lease of a key that had to stay locked, the lease before, and until when.

    That is promised of leases that their holder has released: the key of one that is lost, or of a
    dead holder, stays for its ttl, and one that somebody releases by force does not stay.

    Args:
        slack: By how many ns the time may begin before the client knew of the acquisition.
    """
    for key, tenures in sorted(leases.by_key.items()):
        order = sorted(tenures, key=lambda tenure: tenure.began_at)
        for place, tenure in enumerate(order[:-1]):
            free_at = tenure.began_at + tenure.origin.keeps * MS - slack
            later = order[place + 1]
            if not tenure.released or later.began_at >= free_at:
                continue
            forced = (
                leases.forced[key].within(tenure.began_at, free_at) if key in leases.forced else ()
            )
            if not any(forced):
                yield key, tenure, later, free_at
