"""
The leases of a history: when each was valid, and which two of one key were at the same time.

A lease is a chain of promises: of its acquisition or adoption, of each extension, and of each
check that found it valid. A promise holds from the instant at which the client knew it until the
next one takes its place, its `until` is over, or the lease ends:

- its release is invoked, or its holder is notified of its loss;
- another process has adopted it. An adoption that fails releases the lock, so it ends the
  exporter's lease where it is invoked;
- a `force_release` of one of its keys is invoked. Until a second after it, what its holder found
  is no promise either: a holder that can't be notified at once is the documented exception;
- the ttl of an extension is over that was invoked and did not succeed, as far as anybody knows. If
  that ttl is shorter than what was left, the library promises no more from the request on.

A *shared* lease is that of a reader. It may be valid beside other shared ones; all others exclude
each other, and the shared ones.

Each permit of a semaphore is a lock of its own, and leases of two of them do not exclude each
other. How many there are is judged besides.

A promise that is known *after* such an end is a new one: a holder that finds its lease valid
after it was adopted by another, or lost, may act on it. That it was made at all is for `expiry`
to judge.
"""

import bisect
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from .history import NEVER, History, HistoryError, Operation

LATE: Final = 1_000_000_000
"""
How long after its process has died, or has left it, an operation may reach its server, in ns.

An operation whose end nobody knows has its effect by then, where a check needs to know when.
"""

OVER: Final = ("notheld", "notowned", "unlocked", "notacquired")
"""In lower case, parts of the names of errors by which libraries say that a lease is over."""

MS: Final = 1_000_000
"""A ms in ns."""

Span = tuple[int, int]
"""Two instants. The second one is not in it."""


@dataclass(slots=True)
class Tenure:
    """A lease, from its acquisition or adoption on."""

    name: str
    origin: Operation
    """The operation that has returned it."""
    token: int | None
    promises: list[Span] = field(default_factory=list)
    """When each promise was known, and until when it reaches."""
    ends: list[int] = field(default_factory=list)
    """What has ended the lease; see above. Releases by force are apart."""
    forced: list[int] = field(default_factory=list)
    """When a release by force of one of its keys was invoked."""
    shortened: list[int] = field(default_factory=list)
    """When the ttls of extensions that did not succeed were over, counted from their requests."""
    excused: list[Span] = field(default_factory=list)
    """What its holder found soon after a release by force: these are no promises."""
    ttls: list[Span] = field(default_factory=list)
    """When a ttl was asked for, and the ttl in ms."""
    losses: list[tuple[int, str]] = field(default_factory=list)
    """When its client was notified of its loss, and by what."""
    refusals: list[tuple[int, int, str]] = field(default_factory=list)
    """When an extension or release that found it over was invoked and ended, and its error."""
    released: bool = False
    """Whether its holder has released it, and no error said that it was over."""
    handed_over: int = NEVER
    """When the first adoption of it was invoked."""
    exporter: "Tenure | None" = None

    @property
    def shared(self) -> bool:
        """Whether others may have shared leases of its keys at the same time."""
        return self.origin.shared

    @property
    def locks(self) -> tuple[str, ...]:
        """What it excludes others from: its keys, or its permit of a semaphore."""
        return self.origin.locks

    @property
    def began_at(self) -> int:
        """When its holder could begin to act."""
        return self.origin.ended_at

    def spans(self) -> list[Span]:
        """Return when it was valid, in the order of time."""
        known = sorted(self.promises)
        ends = sorted([*self.ends, *self.forced, *self.shortened])
        result: list[Span] = []
        for number, (at, until) in enumerate(known):
            end = min(until, known[number + 1][0] if number + 1 < len(known) else NEVER)
            first = bisect.bisect_left(ends, at)
            if first < len(ends):
                end = min(end, ends[first])
            if at < end:
                if result and result[-1][1] == at:
                    result[-1] = (result[-1][0], end)
                else:
                    result.append((at, end))
        return result


def effect_by(one: Operation) -> int:
    """Return the instant by which *one* has had its effect, also if nobody knows its end."""
    if one.end != "info":
        return one.ended_at
    # A body that is cancelled within a write records no end of it. If its event loop was blocked,
    # it may have sent the write long after it began it, but not after its next acquisition.
    seen = min(one.ended_at, one.left_by)
    return (one.invoked_at if seen == NEVER else seen) + LATE


class Around:
    """Operations by the time in which they may have had their effect."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        self._all = sorted(operations, key=lambda one: one.invoked_at)
        self._begins = [one.invoked_at for one in self._all]
        self._longest = max((effect_by(one) - one.invoked_at for one in self._all), default=0)

    def within(self, began: int, ended: int) -> Iterator[Operation]:
        """Yield those that may have had their effect from *began* to *ended*."""
        first = bisect.bisect_left(self._begins, began - self._longest)
        for one in self._all[first : bisect.bisect_right(self._begins, ended)]:
            if effect_by(one) >= began:
                yield one


class Leases:
    """All leases of a history."""

    def __init__(self, history: History) -> None:
        self.all: dict[str, Tenure] = {}
        self._forced: dict[str, list[Operation]] = defaultdict(list)
        for one in history.operations:
            if one.what in {"acquire", "adopt"} and one.end == "ok":
                self._begin(one)
        for one in history.operations:
            self._apply(one)
        self.forced = {key: Around(operations) for key, operations in self._forced.items()}
        """The forced releases of each key that may have had an effect."""
        for tenure in self.all.values():
            for key in self.forced.keys() & set(tenure.locks):
                self._force(tenure, self.forced[key])
        self._spans = {tenure.name: tenure.spans() for tenure in self.all.values()}
        for tenure in self.all.values():
            self._find_losses(tenure)
        self.by_key: dict[str, list[Tenure]] = defaultdict(list)
        self._own: dict[tuple[str, str], list[Span]] = defaultdict(list)
        for tenure in self.all.values():
            for key in tenure.locks:
                self.by_key[key].append(tenure)
                own = [] if tenure.shared else self.spans(tenure)
                self._own[tenure.origin.client, key] += own
        for spans in self._own.values():
            spans.sort()

    def spans(self, tenure: Tenure) -> list[Span]:
        """Return when *tenure* was valid."""
        return self._spans[tenure.name]

    def valid(self, key: str) -> list[tuple[int, int, Tenure]]:
        """Return when each lease of *key* was valid, in the order of time."""
        result = [
            (began, ended, tenure)
            for tenure in self.by_key[key]
            for began, ended in self.spans(tenure)
        ]
        result.sort(key=lambda item: item[:2])
        return result

    def protect(self, one: Operation) -> bool:
        """Return whether its client could write its key during the whole of *one*."""
        spans = self._own.get((one.client, one.keys[0]), [])
        place = bisect.bisect_right(spans, (one.invoked_at, NEVER)) - 1
        return place >= 0 and effect_by(one) <= spans[place][1]

    def _begin(self, one: Operation) -> None:
        if not one.lease or one.lease in self.all:
            raise HistoryError(f"{one.where}: the lease {one.lease!r} is not a new one")
        tenure = self.all[one.lease] = Tenure(one.lease, one, one.token)
        tenure.promises.append((one.ended_at, one.until))
        tenure.ttls.append((one.invoked_at, one.ttl))

    def _apply(self, one: Operation) -> None:
        match one.what:
            case "adopt":
                self._hand_over(one)
            case "force_release" if one.end != "fail":
                for key in one.locks:
                    self._forced[key].append(one)
            case "held" | "extend" | "release" | "lost":
                tenure = self.all.get(one.lease)
                if tenure is None:
                    raise HistoryError(f"{one.where}: the lease {one.lease!r} is unknown")
                self._continue(tenure, one)

    @staticmethod
    def _continue(tenure: Tenure, one: Operation) -> None:
        match one.what, one.end:
            case "held", _:
                tenure.promises.append((one.invoked_at, one.until))
            case "extend", "ok":
                tenure.promises.append((one.ended_at, one.until))
            case "extend", _:
                tenure.shortened.append(one.invoked_at + one.ttl * MS)
            case "release", _:
                tenure.released |= one.end == "ok"
                tenure.ends.append(one.invoked_at)
        if one.what == "extend":
            tenure.ttls.append((one.invoked_at, one.ttl))
        # Only the name of the error counts: its text may say that a connection was lost.
        error = one.why.partition(":")[0].lower() if one.end == "fail" else ""
        if one.what == "lost" or "lost" in error:
            tenure.ends.append(one.ended_at)
            tenure.losses.append((one.ended_at, f"{one.what}: {one.why}"))
        elif any(name in error for name in OVER):
            tenure.ends.append(one.ended_at)
            tenure.refusals.append((one.invoked_at, one.ended_at, f"{one.what}: {one.why}"))

    def _find_losses(self, tenure: Tenure) -> None:
        """Count as a loss what found the lease over at an instant for which it was promised."""
        for invoked_at, ended_at, what in tenure.refusals:
            if any(began <= invoked_at <= ended for began, ended in self.spans(tenure)):
                tenure.losses.append((ended_at, what))

    def _hand_over(self, one: Operation) -> None:
        exporter = self.all.get(one.exporter)
        if exporter is None:
            raise HistoryError(f"{one.where}: the lease {one.exporter!r} is unknown")
        exporter.handed_over = min(exporter.handed_over, one.invoked_at)
        exporter.ends.append(one.ended_at if one.end == "ok" else one.invoked_at)
        if one.end == "ok":
            self.all[one.lease].exporter = exporter

    @staticmethod
    def _force(tenure: Tenure, forced: Around) -> None:
        if not tenure.promises:  # a release of another of its keys has ended all of them
            return
        last = max(until for _, until in tenure.promises)
        for one in forced.within(tenure.began_at, last):
            tenure.forced.append(one.invoked_at)
            until = effect_by(one) + LATE
            for promise in list(tenure.promises):
                if one.invoked_at <= promise[0] <= until:
                    tenure.promises.remove(promise)
                    tenure.excused.append(promise)


def overlaps(leases: Leases) -> Iterator[tuple[str, Tenure, Tenure, int, int]]:
    """
    Yield each two leases of one key that were valid at the same time, but for two shared ones.

    Each is reported as the key, the earlier lease, the later one, the instant at which the
    later one began to be valid (or was so again), and the end of the time in common.
    """
    for key in sorted(leases.by_key):
        found = set[frozenset[str]]()
        longest: dict[bool, tuple[int, Tenure]] = {}  # of the shared leases, and of the others
        for began, ended, tenure in leases.valid(key):
            for shared, (until, other) in longest.items():
                pair = frozenset((other.name, tenure.name))
                if shared and tenure.shared:
                    continue
                if began < until and tenure is not other and pair not in found:
                    found.add(pair)
                    yield key, other, tenure, began, min(ended, until)
            known = longest.get(tenure.shared)
            if known is None or ended > known[0]:
                longest[tenure.shared] = ended, tenure


def beyond_permits(leases: Leases) -> Iterator[tuple[str, int, int, list[Tenure]]]:
    """
    Yield each instant at which more leases of a semaphore begin to be valid than it has permits.

    Reported are the key, the number of permits, the instant, and all leases that are valid then.
    Programs may say different numbers: those that say one number, or a lower one, have at most
    that many permits together.
    """
    semaphores: dict[str, list[Tenure]] = defaultdict(list)
    for tenure in leases.all.values():
        for key in tenure.origin.keys if tenure.origin.permits else ():
            semaphores[key].append(tenure)
    for key, tenures in sorted(semaphores.items()):
        for permits in sorted({tenure.origin.permits for tenure in tenures}):
            # At one instant the end comes first: a permit that is handed over is held once.
            events = sorted(
                (at, begins, tenure.name)
                for tenure in tenures
                if tenure.origin.permits <= permits
                for span in leases.spans(tenure)
                for begins, at in zip((True, False), span, strict=True)
            )
            valid: dict[str, Tenure] = {}
            for at, begins, name in events:
                if begins:
                    valid[name] = leases.all[name]
                    if len(valid) > permits:
                        yield key, permits, at, list(valid.values())
                else:
                    del valid[name]


def misnumbered(tenures: Iterable[Tenure]) -> Iterator[tuple[Tenure, str]]:
    """Yield the leases whose permit does not have the number that it should have, and why."""
    for one in tenures:
        permit, permits = one.origin.permit, one.origin.permits
        if one.exporter is not None and one.exporter.origin.permit != permit:
            yield one, f"it had the number {one.exporter.origin.permit} before its adoption"
        elif permit is not None and not 0 <= permit < permits:
            yield one, f"there are {permits}"
        elif permit is None and permits and one.origin.fencing:
            yield one, "its token is that of a permit, but of which one?"


def without_token(tenures: Iterable[Tenure]) -> Iterator[Tenure]:
    """Yield the leases that should have a token, and have none."""
    for one in tenures:
        owed = one.origin.fencing or (one.exporter is not None and one.exporter.token is not None)
        if owed and one.token is None:
            yield one


def needless_token(tenures: Iterable[Tenure]) -> Iterator[Tenure]:
    """Yield the leases of readers that have a token: a fence would take them for writers."""
    for one in tenures:
        if one.shared and one.token is not None:
            yield one


def grants(tenures: Iterable[Tenure]) -> list[Tenure]:
    """Return the leases that were given a token. An adopted lease continues its exporter's."""
    return [
        one
        for one in tenures
        if one.token is not None and (one.exporter is None or one.exporter.token != one.token)
    ]


def token_faults(leases: Leases) -> Iterator[tuple[str, Tenure, Tenure]]:
    """
    Yield each two leases of one key of which the second should have had a higher token.

    That is so if the second one was asked for after the first one was granted. Of two leases that
    were asked for at the same time, the tokens only have to differ.
    """
    for key, tenures in sorted(leases.by_key.items()):
        group = grants(tenures)
        by_token: dict[int, Tenure] = {}
        # At one instant the request comes first: operations that touch are concurrent.
        events = [(one.origin.invoked_at, 0, number) for number, one in enumerate(group)]
        events += [(one.origin.ended_at, 1, number) for number, one in enumerate(group)]
        highest: Tenure | None = None
        before: dict[int, Tenure | None] = {}
        for _, kind, number in sorted(events):
            tenure = group[number]
            if kind == 0:
                before[number] = highest
            elif highest is None or (tenure.token or 0) > (highest.token or 0):
                highest = tenure
        for number, tenure in enumerate(group):
            earlier = before[number]
            same = by_token.setdefault(tenure.token or 0, tenure)
            if same is not tenure:
                yield key, same, tenure
            elif earlier is not None and (earlier.token or 0) >= (tenure.token or 0):
                yield key, earlier, tenure


def lost_updates(
    leases: Leases, adds: list[Operation]
) -> Iterator[tuple[Operation, Operation, Operation | None]]:
    """
    Yield each two additions to one counter of which the second one wrote too low a value.

    The third one is an addition around them that may have come after its lease was over,
    if there is one. It may have set the counter back, which no lock can prevent, only a fence.
    One that wrote a higher value than the second one has set nothing back.
    """
    late = Around(one for one in adds if one.end != "fail" and not leases.protect(one))
    done = sorted((one for one in adds if one.end == "ok"), key=lambda one: one.ended_at)
    by_value: dict[int, Operation] = {}
    highest: list[Operation] = []  # each has a higher value than all that ended before it
    for one in done:
        if not highest or (one.value or 0) > (highest[-1].value or 0):
            highest.append(one)
    ended = [one.ended_at for one in highest]
    for one in done:
        # The latest of the same value: a late write may have set the counter back since the first.
        earlier = by_value.get(one.value or 0, one)
        by_value[one.value or 0] = one
        place = bisect.bisect_left(ended, one.invoked_at)
        if earlier is one and place:
            earlier = highest[place - 1]
        if earlier is not one and (earlier.value or 0) >= (one.value or 0):
            began = min(earlier.invoked_at, one.invoked_at)
            causes = late.within(began, one.ended_at)
            low = (each for each in causes if each.value is None or each.value <= (one.value or 0))
            yield earlier, one, next(low, None)


def pairs_of_reads(
    leases: Leases, operations: Iterable[Operation]
) -> Iterator[tuple[Operation, Operation]]:
    """
    Yield each read under a shared lease with the first one of the same key under it.

    The lease was valid from the first one to the other one, so nobody may have written in between.
    """
    first: dict[tuple[str, str], Operation] = {}
    for one in operations:
        tenure = leases.all.get(one.lease)
        if one.what != "read" or one.end != "ok" or tenure is None or not tenure.shared:
            continue
        earlier = first.setdefault((one.lease, one.keys[0]), one)
        if earlier is not one and any(
            began <= earlier.invoked_at and one.ended_at <= ended
            for began, ended in leases.spans(tenure)
        ):
            yield earlier, one


def changed_reads(
    leases: Leases, operations: Sequence[Operation]
) -> Iterator[tuple[Operation, Operation]]:
    """
    Yield the `pairs_of_reads` that saw different states.

    Left out are those in whose time somebody may have written whose lease was over. No fence
    refuses that while only readers came after it, because they have no token.
    """
    writes: dict[str, list[Operation]] = defaultdict(list)
    for one in operations:
        if one.what == "write" and one.end != "fail" and not leases.protect(one):
            writes[one.keys[0]].append(one)
    late = {key: Around(group) for key, group in writes.items()}
    for first, second in pairs_of_reads(leases, operations):
        key = first.keys[0]
        excused = key in late and any(late[key].within(first.invoked_at, second.ended_at))
        if (first.value, first.token) != (second.value, second.token) and not excused:
            yield first, second
