"""
Progress: how long nobody got a lock, also one that was free, and needless losses of leases.

Both depend on what each process could reach. The runner records that whenever it changes. A
process without such a record reaches all masters; one that was killed reaches none, and the
runner has to record that.
"""

import itertools
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from .history import NEVER, History, HistoryError, Operation, Reach, numbered
from .leases import MS, Leases, Span, Tenure

PAUSE: Final = 100 * MS
"""A client that asks again within this time has wanted the lock throughout."""


def union(spans: Iterable[Span], pause: int = 0) -> list[Span]:
    """Return *spans* in the order of time; those that are *pause* apart or less become one."""
    result: list[Span] = []
    for began, ended in sorted(spans):
        if result and began <= result[-1][1] + pause:
            result[-1] = result[-1][0], max(ended, result[-1][1])
        else:
            result.append((began, ended))
    return result


def without(spans: Iterable[Span], others: Iterable[Span]) -> Iterator[Span]:
    """Yield what is left of *spans* outside the *others*. Both are unions."""
    rest = iter(others)
    other = next(rest, None)
    for began, ended in spans:
        at = began
        while other is not None and other[0] < ended:
            if other[0] > at:
                yield at, other[0]
            at = max(at, other[1])
            if other[1] >= ended:
                break
            other = next(rest, None)
        if at < ended:
            yield at, ended


class Reachability:
    """When each process ran, and which masters it reached."""

    def __init__(self, history: History) -> None:
        masters = _masters(history)
        self._quorum = masters // 2 + 1
        all_masters = frozenset(range(masters))
        self._reached: dict[str, list[tuple[int, int, frozenset[int]]]] = {}
        self._everything = [(-NEVER, NEVER, all_masters)]
        by_process: dict[str, list[Reach]] = defaultdict(list)
        for reach in history.reaches:
            by_process[reach.process].append(reach)
        for process, reaches in by_process.items():
            # What a process reached before the first record of it is not known: nothing.
            begins = [-NEVER] + [one.at for one in reaches]
            reached = [frozenset[int]()] + [one.masters for one in reaches]
            ends = [*begins[1:], NEVER]
            self._reached[process] = list(zip(begins, ends, reached, strict=True))
        self._stalled: dict[str, list[Span]] = defaultdict(list)
        for fault in history.faults:
            if fault.name == "stall":
                process = fault.client.partition("/")[0]
                self._stalled[process].append((fault.began_at, fault.ended_at))

    def _steps(self, process: str) -> list[tuple[int, int, frozenset[int]]]:
        return self._reached.get(process, self._everything)

    def disturbed(self, process: str) -> list[Span]:
        """Return when *process* was stopped, or reached no majority."""
        cut_off = (
            (began, ended)
            for began, ended, reached in self._steps(process)
            if len(reached) < self._quorum
        )
        return union([*cut_off, *self._stalled.get(process, ())])

    def stalls(self, process: str) -> list[Span]:
        """Return when *process* was stopped, or its event loop blocked, in the order of time."""
        return sorted(self._stalled.get(process, ()))

    def stalled(self, process: str, began: int, ended: int) -> bool:
        """Return whether *process* was stopped, or its event loop blocked, at some time."""
        stalls = self._stalled.get(process, ())
        return any(start <= ended and end > began for start, end in stalls)

    def is_undisturbed(self, process: str, began: int, ended: int) -> bool:
        """Return whether *process* ran, and reached the same majority, all the time."""
        if self.stalled(process, began, ended):
            return False
        all_along = [
            reached
            for start, end, reached in self._steps(process)
            if start <= ended and end > began
        ]
        return len(frozenset.intersection(*all_along)) >= self._quorum


def _masters(history: History) -> int:
    """Return how many masters there are."""
    match history.meta.get("masters"):
        case int(number):
            return number
        case list() as addresses:
            return len(addresses)
    if history.reaches:
        raise HistoryError("meta.json does not say how many masters there are")
    return 1


@dataclass(frozen=True, slots=True)
class Gap:
    """A time in which a process wanted the lock, could get it, and nobody had it."""

    began_at: int
    ended_at: int
    keys: tuple[str, ...]
    process: str

    @property
    def seconds(self) -> float:
        """How long it was."""
        return (self.ended_at - self.began_at) / 1e9


def gaps(history: History, leases: Leases, reachability: Reachability) -> dict[str, Gap]:
    """
    Return the longest gap of each key, or of each set of keys that are locked together.

    Each permit of a semaphore is a key here, which each waiter wants: none may be left unused while
    somebody waits. Of a semaphore that does not number its permits nothing is said.

    In a gap a process has an acquisition underway all the time (or a pause of `PAUSE` at most
    before the next), it runs and reaches a majority all the time, and no lease of any of the
    keys is valid. A key that a killed or cut off client has left on the masters ends no gap.
    """
    wanted: dict[tuple[tuple[str, ...], str], list[Span]] = defaultdict(list)
    end = history.ended_at
    unnumbered = {
        tenure.origin.keys
        for tenure in leases.all.values()
        if tenure.origin.permits and tenure.origin.permit is None
    }
    for one in history.operations:
        if one.what == "acquire":
            span = one.invoked_at, min(one.ended_at, end)
            for keys in _wants(one, unnumbered):
                wanted[keys, one.process].append(span)
    result: dict[str, Gap] = {}
    held: dict[tuple[str, ...], list[Span]] = {}
    for (keys, process), spans in wanted.items():
        if keys not in held:
            held[keys] = _held(history, leases, keys)
        wants = without(union(spans, PAUSE), reachability.disturbed(process))
        longest = max(without(wants, held[keys]), key=lambda span: span[1] - span[0], default=None)
        name = ",".join(keys)
        if longest is not None and (
            name not in result or longest[1] - longest[0] > result[name].seconds * 1e9
        ):
            result[name] = Gap(*longest, keys, process)
    return dict(sorted(result.items()))


def _wants(one: Operation, unnumbered: Container[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """Yield the keys that an acquisition wants together: each permit of a semaphore by itself."""
    if not one.permits:
        yield tuple(sorted(one.keys))
    elif one.keys not in unnumbered:
        for permit in range(one.permits):
            yield tuple(numbered(key, permit) for key in one.keys)


def _held(history: History, leases: Leases, keys: tuple[str, ...]) -> list[Span]:
    """
    Return when a lease of any of *keys* was valid, or was being adopted.

    An acquisition ends a gap in any case. The masters keep a lease that was handed over, also
    while a client tries to adopt it that does not reach them.
    """
    valid = ((began, ended) for key in keys for began, ended, _ in leases.valid(key))
    instants = (
        (tenure.began_at, tenure.began_at + 1) for key in keys for tenure in leases.by_key[key]
    )
    adopted = (
        (one.invoked_at, min(one.ended_at, one.invoked_at + one.ttl * MS))
        for one in history.operations
        if one.what == "adopt" and not set(keys).isdisjoint(one.locks)
    )
    return union(itertools.chain(valid, instants, adopted))


def longest_pause(history: History, began: int) -> float:
    """Return the longest time in seconds since *began* without an acquisition of a key."""
    instants: dict[str, list[int]] = {}
    for one in history.operations:
        for key in one.keys if one.what == "acquire" else ():
            group = instants.setdefault(key, [])
            if one.end == "ok":
                group.append(one.ended_at)
    bounds = [began, history.ended_at]
    pauses = [
        after - before
        for group in instants.values()
        for before, after in itertools.pairwise(sorted([*group, *bounds]))
    ]
    return max(pauses, default=history.ended_at - began) / 1e9


def lost_without_need(
    leases: Leases, reachability: Reachability
) -> Iterator[tuple[Tenure, int, str]]:
    """
    Yield each lease that was lost without need, when its client was notified, and by what.

    Its process ran and reached the same majority during the whole ttl before that, nobody released
    its keys by force, and no other process had begun to adopt it.
    """
    for tenure in leases.all.values():
        if not tenure.losses:
            continue
        at, why = min(tenure.losses)
        asked = [ttl for when, ttl in tenure.ttls if when <= at]
        began = at - asked[-1] * MS
        forced = any(
            next(leases.forced[key].within(max(tenure.origin.invoked_at, began), at), None)
            for key in leases.forced.keys() & set(tenure.locks)
        )
        adopted = tenure.handed_over <= at
        process = tenure.origin.process
        if not forced and not adopted and reachability.is_undisturbed(process, began, at):
            yield tenure, at, why
