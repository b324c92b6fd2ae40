"""
Judges kept histories again, by the checker of today.

    python -m benchmarks.evidence.rejudge [HISTORY...]

Each HISTORY is a history, packed or not, or a folder of such: `histories` in `benchmarks` (the
default) or in the folder of `matrix --keep`, or what `archive --into` has written. A line says of
each whether its verdict is still the one that was kept with it. The exit code is 1 if one is
another.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .checker import NEEDLESS, PROMISES, Verdict, check
from .export import named, unpacked
from .provenance import checker
from .results import PUBLISHED
from .stopping import stop_cleanly

LATE = "late updates"


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge histories; return 1 if a verdict has changed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("histories", nargs="*", type=Path, metavar="HISTORY")
    options = parser.parse_args(arguments)
    paths = named(options.histories or [PUBLISHED / "histories"], parser)
    changed = 0
    try:
        for path in paths:
            with unpacked(path) as folder:
                says, differs = compared(kept(folder), counts(check(folder)))
            print(f"{path.name}: {says}", flush=True)
            changed += differs
    except OSError as error:
        parser.error(str(error))
    print(f"{changed} of {len(paths)} verdicts changed; the checker is of commit {checker()}")
    return int(changed > 0)


def compared(before: dict[str, int] | None, now: dict[str, int]) -> tuple[str, bool]:
    """
    Return what to say of two verdicts, and whether the later one is another.

    A promise that was not judged before makes it another one only if nothing was broken then.
    """
    if before is None:
        return f"judged for the first time: {words(now)}", False
    again = {name: times for name, times in now.items() if name in before}
    more = {name: times for name, times in now.items() if name not in before and times}
    if again != before or (more and not any(before[name] for name in before if name != NEEDLESS)):
        return f"CHANGED from {words(before)} to {words(now)}", True
    also = f"; not judged before: {words(more)}" if more else ""
    return f"the same: {words(before)}{also}", False


def kept(folder: Path) -> dict[str, int] | None:
    """Return the counts of the verdict that is kept with a history; None if there is none."""
    path = folder / "verdict.json"
    if not path.exists():
        return None
    facts: dict[str, Any] = json.loads(path.read_text())
    found = {name: int(each["times"]) for name, each in facts["checks"].items()}
    return found | {LATE: int(facts["late_updates"])}


def counts(verdict: Verdict) -> dict[str, int]:
    """Return how often each promise was broken, and how many updates came late."""
    found = {name: len(each.broken) for name, each in verdict.checks.items()}
    return found | {LATE: len(verdict.late_updates)}


def words(found: Mapping[str, int]) -> str:
    """Return the counts that are not 0 as a text."""
    order = [*PROMISES, LATE]
    names = [name for name in sorted(found, key=order.index) if found[name]]
    return ", ".join(f"{name.replace('_', ' ')}: {found[name]:,}" for name in names) or "nothing"


if __name__ == "__main__":
    stop_cleanly()
    sys.exit(main())
