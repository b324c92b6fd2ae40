"""
Says of a history whether the promises of the lock were kept.

    python -m benchmarks.evidence.checker FOLDER...          a text for people
    python -m benchmarks.evidence.checker --json FOLDER...   one JSON object a folder and line

The exit code is 0 if each history is as its `meta.json` expects: no promise was broken, or, for a
control that expects "fails", one was, or an update was lost to a late one. Otherwise it is 1, and
2 for a folder that is not a history. Needless losses are counted, and break no promise: a lease
may be lost at any time. Nothing of the library is imported here.
"""

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from .expiry import claims, revivals
from .history import NEVER, History, HistoryError, Operation, read
from .leases import (
    MS,
    Leases,
    Tenure,
    beyond_permits,
    changed_reads,
    grants,
    lost_updates,
    misnumbered,
    needless_token,
    overlaps,
    pairs_of_reads,
    token_faults,
    without_token,
)
from .linearizable import NotLinearizable, RegisterState, check_register
from .order import (
    FEW_LONG,
    SHORT_REST,
    again_too_early,
    are_even,
    handed_to_those_who_wait,
    overtakings,
    passed,
    places,
    stopped,
    streaks,
    there_all_along,
    told_at,
    turns,
    waits,
    written_late,
)
from .progress import Reachability, gaps, longest_pause, lost_without_need

PROMISES: Final = {
    "exclusion": "two leases of one key were valid at the same time",
    "permits": "more permits were valid at the same time than there are, or one had a wrong number",
    "expiry": "a lease was promised again though it was over",
    "updates": "an update was lost, though each was made under a valid lease",
    "reads": "a reader saw a change under its lease, though its writer had one, too",
    "tokens": "a fencing token was missing, not higher than an earlier one, or that of a reader",
    "register": "no order explains the reads and writes through the fence",
    "writes": "a body wrote after the end of its lease, which should have cancelled it",
    "keeping": "a lock was acquired again before the time was over for which it had to be kept",
    "progress": "nobody got a free lock for too long",
    "losses": "a lease was lost without need",
    "order": "a fair waiter was overtaken, or had fewer turns than others",
    "starvation": "a fair waiter had no turn while others had many",
    "notices": "a holder whose lease had expired while it was stopped was not told so in time",
    "keys_left": "a key was left behind",
}
"""What is checked, and what it says of a history that breaks it."""

OVERLAPS: Final = frozenset(
    {"exclusion", "permits", "expiry", "updates", "reads", "writes", "keeping"}
)
"""
What is broken if two clients have a lock at a time, or too many a permit, or too early. Each counts
as the failure of a control.
"""

THERE: Final = 1_000 * MS
"""Clients that come later than this, or go earlier, need not have as many turns as others."""

NEEDLESS: Final = "losses"
"""The check that is only counted: it breaks no promise."""


@dataclass(slots=True)
class Check:
    """How much was checked of a promise, and what broke it."""

    checked: int = 0
    """How many intervals, updates, tokens, operations or leases. With 0 it says nothing."""
    broken: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Verdict:
    """What a history shows."""

    folder: str
    facts: dict[str, Any]
    """`meta.json`."""
    checks: dict[str, Check]
    """A check of each of the `PROMISES`."""
    gaps: dict[str, float]
    """The longest gap of each key (or of keys that are locked together), in seconds."""
    pause: float
    """The longest time in seconds without an acquisition of a key, for whatever reason."""
    rounds: float
    """
    How many turns each of the others had, on average, while a client waited for a lock that reached
    the same majority all along: the most of all waits, also of locks that are not fair.
    """
    late_updates: list[str]
    """Updates that were lost to one after the end of its lease: only a fence prevents that."""
    operations: dict[str, dict[str, int]]
    """How many operations of each kind had each end."""
    acquired: int
    losses: int
    """The leases that were lost, with need or without."""
    seconds: float

    @property
    def broken(self) -> tuple[str, ...]:
        """The promises that were broken."""
        return tuple(
            name for name, check in self.checks.items() if check.broken and name != NEEDLESS
        )

    @property
    def holds(self) -> bool:
        """Whether no promise was broken."""
        return not self.broken

    @property
    def is_as_expected(self) -> bool:
        """Whether it holds, or is a control that does not, or that loses updates to late ones."""
        if self.facts.get("expected") == "may overlap":
            return not set(self.broken) - OVERLAPS
        if self.facts.get("expected") == "fails":
            return bool(OVERLAPS & set(self.broken) or self.late_updates)
        return self.holds

    @property
    def worst_gap(self) -> float:
        """The longest gap of all keys, in seconds."""
        return max(self.gaps.values(), default=0.0)

    @property
    def rate(self) -> float:
        """Acquisitions per second."""
        return self.acquired / self.seconds if self.seconds else 0.0

    def as_json(self, most: int = 10) -> str:
        """Return it as a JSON object in one line, with *most* examples of each kind."""
        result = asdict(self)
        for name, check in self.checks.items():
            result["checks"][name]["times"] = len(check.broken)
            result["checks"][name]["broken"] = check.broken[:most]
        result["late_updates"] = len(self.late_updates)
        result |= {"holds": self.holds, "as_expected": self.is_as_expected, "rate": self.rate}
        return json.dumps(result)

    def as_text(self, most: int = 3) -> str:
        """Return it as lines for people, with *most* examples of each kind."""
        return "\n".join(self._lines(most))

    def _lines(self, most: int) -> Iterator[str]:
        result = "no promise was broken" if self.holds else f"BROKEN: {', '.join(self.broken)}"
        if not self.is_as_expected:
            result += " (NOT AS EXPECTED)"
        elif self.facts.get("expected") == "fails":
            result += " (as expected of a control)"
        yield f"{self.folder}: {result}"
        for name, check in self.checks.items():
            if check.broken:
                yield f"  {name}: {PROMISES[name]}, {len(check.broken)} of {check.checked}"
                for text in check.broken[:most]:
                    yield "    " + text.replace("\n", "\n    ")
            else:
                yield f"  {name}: {f'{check.checked} checked' if check.checked else 'not tried'}"
        if self.late_updates:
            yield f"  {len(self.late_updates)} updates were lost to late ones, for lack of a fence"
            yield from (f"    {text}" for text in self.late_updates[:most])
        if self.gaps:
            key = max(self.gaps, key=lambda name: self.gaps[name])
            yield f"  longest gap: {self.worst_gap:.3f} s, of {key!r}"
        yield f"  most turns of each other while one waited: {self.rounds:.1f}"
        yield f"  {self.acquired} acquisitions in {self.seconds:.1f} s: {self.rate:.1f}/s"
        for what, ends in self.operations.items():
            yield f"  {what}: " + ", ".join(f"{number} {end}" for end, number in ends.items())


def check(folder: Path, *, longest_gap: float | None = None) -> Verdict:
    """
    Read the history in *folder* and return the verdict.

    Args:
        longest_gap: A longer gap, in seconds, breaks the promise "progress" (default: that of
            `meta.json`, or no limit).

    Raises:
        HistoryError: The folder is not a history.
    """
    history = read(folder)
    if not history.operations:
        raise HistoryError(f"{folder}: there are no operations")
    return verdict(history, str(folder), longest_gap=longest_gap)


def verdict(history: History, folder: str = "", *, longest_gap: float | None = None) -> Verdict:
    """Return what *history* shows; as `check`."""
    began = int(history.meta.get("began", history.operations[0].invoked_at))
    writer = _Writer(history, began)
    reachability = Reachability(history)
    longest = gaps(history, writer.leases, reachability)
    limit = history.meta.get("longest_gap") if longest_gap is None else longest_gap
    late: list[str] = []
    checks = {
        "exclusion": writer.exclusion(),
        "permits": writer.permits(),
        "expiry": writer.expiry(reachability),
        "updates": writer.updates(late),
        "reads": writer.reads(),
        "tokens": writer.tokens(),
        "register": writer.register(),
        "writes": writer.writes(reachability, history.meta.get("cancelled_within")),
        "keeping": writer.keeping(history.meta.get("kept_within")),
        "progress": Check(len(longest) if limit is not None else 0),
        "losses": writer.losses(reachability),
        "order": writer.order(reachability, history.meta.get("overtaken_within")),
        "starvation": writer.starvation(reachability, history.meta.get("overtaken_within")),
        "notices": writer.notices(history.meta.get("lost_within")),
        "keys_left": _keys_left(history),
    }
    for name, gap in longest.items():
        if limit is not None and gap.seconds > limit:
            checks["progress"].broken.append(
                f"{name!r}: {gap.process} wanted it for {gap.seconds:.3f} s from "
                f"{writer.at(gap.began_at)}, and nobody had it"
            )
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for one in history.operations:
        counts[one.what][one.end] += 1
    return Verdict(
        folder=folder,
        facts=history.meta,
        checks=checks,
        gaps={name: gap.seconds for name, gap in longest.items()},
        pause=longest_pause(history, began),
        rounds=writer.rounds(reachability),
        late_updates=late,
        operations={what: dict(sorted(ends.items())) for what, ends in sorted(counts.items())},
        acquired=counts["acquire"]["ok"],
        losses=sum(1 for tenure in writer.leases.all.values() if tenure.losses),
        seconds=max(0.0, (history.ended_at - began) / 1e9),
    )


class _Writer:
    """Makes the checks of a history, and sentences of what they find."""

    def __init__(self, history: History, began: int) -> None:
        self._history = history
        self._began = began
        self.leases = Leases(history)

    def at(self, instant: int) -> str:
        """Return *instant* in seconds since the beginning."""
        return f"{(instant - self._began) / 1e9:.6f}"

    def _lease(self, tenure: Tenure) -> str:
        origin = tenure.origin
        token = "" if tenure.token is None else f", token {tenure.token}"
        kind = ", shared" if tenure.shared else ""
        kind += "" if origin.permit is None else f", permit {origin.permit}"
        spans = self.leases.spans(tenure)
        times = ", ".join(f"{self.at(began)} to {self.at(ended)}" for began, ended in spans[:3])
        more = f" and {len(spans) - 3} times more" if len(spans) > 3 else ""
        valid = f"valid {times}{more}" if spans else "never valid"
        return f"{tenure.name} ({origin.client}#{origin.number}{kind}{token}, {valid})"

    def exclusion(self) -> Check:
        result = Check(sum(len(self.leases.valid(key)) for key in self.leases.by_key))
        for key, first, second, began, ended in overlaps(self.leases):
            result.broken.append(
                f"{key!r}: from {self.at(began)} to {self.at(ended)} both "
                f"{self._lease(first)} and {self._lease(second)}"
            )
        return result

    def permits(self) -> Check:
        tenures = self.leases.all.values()
        result = Check(sum(1 for tenure in tenures if tenure.origin.permits))
        for tenure, why in misnumbered(tenures):
            result.broken.append(f"{self._lease(tenure)} has a wrong number: {why}")
        for key, permits, at, valid in beyond_permits(self.leases):
            those = "\n  ".join(self._lease(tenure) for tenure in valid)
            result.broken.append(f"{key!r}: at {self.at(at)} {len(valid)} of {permits}:\n  {those}")
        return result

    def expiry(self, reachability: Reachability) -> Check:
        result = Check(sum(len(claims(tenure)) for tenure in self.leases.all.values()))
        for tenure, at, over, why in revivals(self.leases, reachability):
            result.broken.append(
                f"{self._lease(tenure)} was promised at {self.at(at)}, but {why} at {self.at(over)}"
            )
        return result

    def updates(self, late: list[str]) -> Check:
        adds: dict[str, list[Operation]] = defaultdict(list)
        for one in self._history.operations:
            if one.what == "add":
                adds[one.keys[0]].append(one)
        result = Check(sum(len(group) for group in adds.values()))
        for key, group in sorted(adds.items()):
            for first, second, cause in lost_updates(self.leases, group):
                text = f"{key!r}: {self._describe(first)} and then {self._describe(second)}"
                if cause is None:
                    result.broken.append(text)
                else:
                    late.append(f"{text}, beside {self._describe(cause)}")
        return result

    def reads(self) -> Check:
        operations = self._history.operations
        result = Check(sum(1 for _ in pairs_of_reads(self.leases, operations)))
        for first, second in changed_reads(self.leases, operations):
            result.broken.append(f"{self._describe(first)} and then {self._describe(second)}")
        return result

    def tokens(self) -> Check:
        missing = list(without_token(self.leases.all.values()))
        result = Check(len(grants(self.leases.all.values())) + len(missing))
        result.broken += [f"{self._lease(tenure)} has none" for tenure in missing]
        for tenure in needless_token(self.leases.all.values()):
            result.broken.append(f"{self._lease(tenure)} has one, and only reads")
        for key, first, second in token_faults(self.leases):
            result.broken.append(f"{key!r}: {self._lease(second)}, after {self._lease(first)}")
        return result

    def register(self) -> Check:
        written = sum(1 for one in self._history.operations if one.what in {"write", "read"})
        result = Check(written)
        for key, found in check_register(self._history.operations).items():
            if found is not None:
                result.broken.append(f"{key!r}: {self._no_order(found)}")
        return result

    def losses(self, reachability: Reachability) -> Check:
        result = Check(len(self.leases.all))
        for tenure, at, why in lost_without_need(self.leases, reachability):
            result.broken.append(f"{self._lease(tenure)} at {self.at(at)}, {why}")
        return result

    def writes(self, reachability: Reachability, within: float | None) -> Check:
        """Check that bodies stop to write *within* s after their lease; without it nothing."""
        result = Check()
        if within is None:
            return result
        guarded = {name for name, each in self.leases.all.items() if each.origin.guarded}
        result.checked = sum(
            one.what in {"write", "add"} and one.lease in guarded
            for one in self._history.operations
        )
        slack = int(within * 1e9)
        for tenure, one, over in written_late(self._history, self.leases, reachability, slack):
            late = f"it was over at {self.at(over)}"
            result.broken.append(f"{self._describe(one)} under {self._lease(tenure)}: {late}")
        return result

    def keeping(self, within: float | None) -> Check:
        """Check that locks are kept for as long as they have to be, to *within* s."""
        result = Check()
        if within is None:
            return result
        tenures = self.leases.all.values()
        result.checked = sum(1 for each in tenures if each.origin.keeps and each.released)
        for key, first, second, at in again_too_early(self.leases, int(within * 1e9)):
            result.broken.append(
                f"{key!r}: {self._lease(second)}, before {self.at(at)}, after {self._lease(first)}"
            )
        return result

    def order(self, reachability: Reachability, within: float | None) -> Check:
        """Check the order of all waiters, who are all fair; without *within* nothing."""
        result = Check()
        slack, keeps = int((within or 0) * 1e9), places(reachability)
        for keys, group in waits(self._history).items() if within is not None else ():
            result.checked += len(group)
            found = (
                passed(group, slack, keeps, handed_to_those_who_wait(self.leases, group, slack))
                if group[0].permits
                else overtakings(group, slack, keeps)
            )
            for one, other in found:
                result.broken.append(f"{self._describe(one)} by {self._describe(other)}")
            all_along = there_all_along(group, reachability, THERE)
            had = turns([one for one in group if one.client in all_along])
            # With several permits a client's turns depend on its own bodies: the others go on.
            meta = self._history.meta
            comparable = meta.get("long", 0.0) <= FEW_LONG and meta.get("rest", 0.0) <= SHORT_REST
            even = not had or are_even(had, shared=any(one.shared for one in group))
            if comparable and not group[0].permits and not even:
                (most, _), *_, (fewest, _) = had.most_common()
                result.broken.append(
                    f"{keys}: {fewest} had {had[fewest]} turns, and {most} {had[most]}"
                )
        return result

    def starvation(self, reachability: Reachability, within: float | None) -> Check:
        """Check that no fair waiter is passed over again and again; without *within* nothing."""
        result = Check()
        slack, keeps = int((within or 0) * 1e9), places(reachability)
        for keys, group in waits(self._history).items() if within is not None else ():
            for streak in streaks(group, slack, keeps):
                result.checked += 1
                if streak.is_starved:
                    result.broken.append(
                        f"{keys}: {streak.client} had no turn from {self.at(streak.began_at)} to "
                        f"{self.at(streak.ended_at)}, and {streak.rivals} others had "
                        f"{streak.later} for which they asked later"
                    )
        return result

    def rounds(self, reachability: Reachability) -> float:
        keeps = places(reachability)
        groups = waits(self._history).values()
        return max(
            (streak.rounds for group in groups for streak in streaks(group, 0, keeps)), default=0.0
        )

    def notices(self, within: float | None) -> Check:
        """Check that holders are told of their losses *within* s; without it nothing."""
        result = Check()
        for tenure, fault, over in stopped(self._history, self.leases) if within else ():
            result.checked += 1
            told = told_at(tenure, over)
            if told > fault.ended_at + (within or 0) * 1e9:
                when = "never" if told == NEVER else f"at {self.at(told)}"
                result.broken.append(
                    f"{self._lease(tenure)}: stopped until {self.at(fault.ended_at)}, told {when}"
                )
        return result

    def _describe(self, one: Operation) -> str:
        return one.describe(self._began)

    def _no_order(self, found: NotLinearizable[Operation, RegisterState]) -> str:
        states = " or ".join(f"value {state.value} token {state.token}" for state in found.states)
        first = "gave up before an order was found for" if found.gave_up else "no order has"
        lines = [f"{first} {self._describe(found.blocked)}; the register had {states}"]
        for one in found.window:
            mark = ">" if one is found.blocked else " "
            lines.append(f"{mark} {self._describe(one)}")
        return "\n".join(lines)


def _keys_left(history: History) -> Check:
    left = history.meta.get("keys_left")
    if left is None:
        return Check()
    keys = {key for one in history.operations for key in one.keys}
    result = Check(len(keys | left.keys()))
    for key, masters in sorted(left.items()):
        if masters:
            result.broken.append(f"{key!r} on {masters}")
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Check histories of evidence runs.")
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--json", action="store_true", help="one JSON object a folder and line")
    parser.add_argument("--gap", type=float, help="the longest gap allowed, in seconds")
    options = parser.parse_args(arguments)
    code = 0
    for folder in options.folders:
        try:
            result = check(folder, longest_gap=options.gap)
        except (HistoryError, OSError) as error:
            print(f"{folder}: {error}", file=sys.stderr)
            code = 2
            continue
        print(result.as_json() if options.json else result.as_text())
        if not result.is_as_expected:
            code = max(code, 1)
    return code


if __name__ == "__main__":
    sys.exit(main())
