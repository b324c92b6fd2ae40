"""
Repeats a sample of all evidence, and compares its verdicts with the published ones.

    python -m benchmarks.evidence.all --hours 2
    python -m benchmarks.evidence.all --minutes 5 [--seed N] [--only PART...]
                                      [--porcupine SOURCE] [--list]

Each part has a share of the time, and begins nothing after it:

- *cells* and *controls* of the fault matrix, drawn by the seed from the published ones,
- the *soak*, in parts of 20 to 60 seconds,
- the *proofs*, a file of the model checker after another,
- the *simulation*, with seeds that nobody has published, and some that are,
- the kept *histories*, judged again by the checker of today,
- *porcupine*, a checker by others, if a folder with its source is given,
- the *speed*, whose ratios are printed and not judged,
- the *power*: defects that the matrix has seen, if there are results of them.

A table says what was repeated, how many, the verdicts of now, and the published ones. What can't be
run here is counted apart, with the reason. Nothing is written in `benchmarks`. The exit code is 1
if a verdict differs from the published one, and 2 if nothing could be compared.
"""

import argparse
import contextlib
import functools
import importlib.util
import json
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from .export import histories_in
from .provenance import ROOT, commit, measured
from .results import PUBLISHED, Entry, Results
from .stopping import stop_cleanly
from .tables import table

PATIENCE: Final = 240.0
"""Seconds that something may take beyond its share, once it has begun."""

TRIES: Final = 4
"""How often a defect is tried, until it is seen."""

AT_A_TIME: Final = 5
"""How many seeds of the simulation run before it is known whether the time is over."""

HOLDS, FAILS, MAY = "holds", "fails, as it must", "may overlap"
SKIPPED, UNFINISHED = "not run here", "not done in time"


class Unfinished(Exception):  # noqa: N818 - it is no error of the run
    """Something was not done in its time, or can't be run here; the text says why."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was repeated."""

    what: str
    now: str
    published: str
    why_not: str = ""
    """Why it says nothing."""

    @property
    def differs(self) -> bool:
        """Whether the verdict of now is another one than the published one."""
        return not self.why_not and self.now != self.published


@dataclass
class Share:
    """The time of one part, and what it may use."""

    seconds: float
    chance: random.Random
    scratch: Path
    porcupine: Path | None = None
    ends: float = field(init=False)
    lines: list[str] = field(default_factory=list)
    """What is told and not judged."""

    def __post_init__(self) -> None:
        self.ends = time.monotonic() + self.seconds

    @property
    def left(self) -> float:
        """The seconds that are left."""
        return self.ends - time.monotonic()

    def folder(self) -> Path:
        """Return a new folder for results."""
        return Path(tempfile.mkdtemp(dir=self.scratch))

    def run(self, *words: object, module: bool = True) -> tuple[int, str]:
        """
        Run a command of Python; return its exit code, and what it says.

        It gets SIGTERM if this program is interrupted, or if it is not done long after the share.

        Raises:
            Unfinished: It was not done in time.
        """
        command = [sys.executable, *(["-m"] if module else []), *map(str, words)]
        process = subprocess.Popen(  # noqa: S603 - our own programs
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        try:
            said, _ = process.communicate(timeout=max(self.left, 0) + PATIENCE)
        except subprocess.TimeoutExpired:
            raise Unfinished(f"{UNFINISHED}: {' '.join(command[2:])}") from None
        finally:
            _end(process)
            if process.stdout is not None:
                process.stdout.close()
        return process.returncode, said


def _end(process: subprocess.Popen[str]) -> None:
    """End a program that still runs, as `timeout` does; it ends what it has started."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def entries(folder: Path) -> list[Entry]:
    """Return the results of a matrix in *folder*."""
    return list(Results(folder / "results-faults.json"))


def verdict(entry: Entry) -> str:
    """Return what a cell has shown, in words that two runs of it have in common."""
    if entry.wrong:
        return "the run failed"
    if entry.expected == "may overlap" and entry.is_as_expected:
        return MAY
    if entry.expected == "fails":
        return FAILS if entry.is_as_expected else "holds, though it must fail"
    return HOLDS if entry.holds else f"broke {', '.join(sorted(set(entry.broken) - {'losses'}))}"


def in_turn(share: Share, things: Sequence[Any]) -> Iterator[Any]:
    """Yield *things* in the order of chance: one at least, and more until the share is used up."""
    for place, thing in enumerate(share.chance.sample(things, len(things))):
        if place and share.left <= 0:
            return
        yield thing


def matrix(share: Share, *, control: bool) -> Iterator[Finding]:
    """Repeat cells of the matrix, or controls."""
    known = [
        each for each in entries(PUBLISHED) if bool(each.control) == control and not each.skipped
    ]
    for each in in_turn(share, known):
        output = share.folder()
        which = (
            ["--controls", each.control]
            if control
            else ["--rows", each.row, "--columns", each.column]
        )
        seed = share.chance.randrange(10**6)
        name = each.control or f"{each.row}, {each.column}"
        repeat = functools.partial(_cell, share, which, seed, output)
        yield from attempt(share, name, verdict(each), repeat)


def _cell(share: Share, which: Sequence[str], seed: int, output: Path) -> str:
    _, said = share.run("benchmarks.evidence.matrix", *which, "--seed", seed, "--output", output)
    found = entries(output)
    if len(found) != 1:
        raise RuntimeError(said[-500:])
    if found[0].skipped:
        raise Unfinished(f"{SKIPPED}: {found[0].skipped}")
    if found[0].wrong:
        raise RuntimeError("; ".join(found[0].wrong)[:500])
    return verdict(found[0])


def attempt(
    share: Share, what: str, published: str, repeat: Callable[[], str]
) -> Iterator[Finding]:
    """Yield what *repeat* has found, or why it says nothing."""
    try:
        now = repeat()
    except Unfinished as error:
        yield Finding(what, "", published, str(error))
    except (RuntimeError, OSError, ValueError, KeyError) as error:
        share.lines.append(f"{what}: {error}")
        yield Finding(what, "the run failed", published)
    else:
        yield Finding(what, now, published)


def soak(share: Share) -> Iterator[Finding]:
    """Run parts of a soak."""
    lines = (PUBLISHED / "results-soak.jsonl").read_text().splitlines()
    published = _held(json.loads(line) for line in lines)
    seconds = max(20, min(60, share.seconds / 4))
    parts = max(1, int(share.seconds / (seconds + 8)))
    output = share.folder()

    def repeat() -> str:
        _, said = share.run(
            "benchmarks.evidence.soak", "--minutes", parts * seconds / 60 * 0.95, "--seconds",
            seconds, "--seed", share.chance.randrange(10**6), "--output", output,
        )  # fmt: skip
        log = output / "results-soak.jsonl"
        if not log.exists():
            raise RuntimeError(said[-500:])
        return _held(json.loads(line) for line in log.read_text().splitlines())

    yield from attempt(share, f"{parts} parts of {seconds:.0f} s", published, repeat)


def _held(parts: Iterator[dict[str, Any]]) -> str:
    broken = {name for part in parts for name in (*part["broken"], *part["wrong"])} - {"losses"}
    return HOLDS if not broken else f"broke {', '.join(sorted(broken))}"


def proofs(share: Share) -> Iterator[Finding]:
    """Run files of the model checker: their short searches, and the planted defects."""
    if importlib.util.find_spec("pytest") is None:
        yield Finding("the proofs", "", "passed", f"{SKIPPED}: there is no pytest")
        return
    for path in in_turn(share, sorted((ROOT / "tests" / "proofs").glob("test_*.py"))):
        name = str(path.relative_to(ROOT))

        def repeat(name: str = name) -> str:
            words = ("pytest", "-n0", "-q", "-p", "no:cacheprovider", name)
            code, said = share.run(*words)
            if code not in {0, 1}:
                raise RuntimeError(said[-500:])
            if code:
                share.lines.append(f"{name}: {said[-1000:]}")
            return "passed" if code == 0 else "failed"

        yield from attempt(share, name, "passed", repeat)


def simulation(share: Share) -> Iterator[Finding]:
    """Run seeds of the simulation: some that were published, and some that nobody has run."""
    log = PUBLISHED / "results-simulation.jsonl"
    chunks = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    failed = {int(seed) for chunk in chunks for seed in chunk["failed"]}
    if chunks:
        chunk = share.chance.choice(chunks)
        first = share.chance.randrange(chunk["first"], max(chunk["first"], chunk["last"] - 49) + 1)
        last = min(first + 49, chunk["last"])
        known = failed & set(range(first, last + 1))
        yield from attempt(
            share, f"published seeds {first} to {last}", _seeds(len(known)),
            lambda: _simulated(share, f"{first}-{last}"),
        )  # fmt: skip
    fresh = 10**7 + share.chance.randrange(10**6) * 1000
    published = _seeds(len(failed)) if chunks else _seeds(0)
    yield from attempt(
        share, f"seeds from {fresh}", published,
        lambda: _simulated(share, f"{fresh}-{fresh + 10**6}"),
    )  # fmt: skip


def _simulated(share: Share, seeds: str) -> str:
    output = share.folder()
    code, said = share.run(
        "benchmarks.evidence.simulation", "--seeds", seeds, "--minutes",
        max(0.01, share.left / 60), "--chunk", AT_A_TIME, "--output", output,
    )  # fmt: skip
    log = output / "results-simulation.jsonl"
    if not log.exists():
        raise RuntimeError(said[-500:])
    chunks = [json.loads(line) for line in log.read_text().splitlines()]
    share.lines.append(f"simulation: {sum(c['last'] - c['first'] + 1 for c in chunks):,} seeds")
    if code:
        share.lines.append(said[-3000:])
    return _seeds(sum(len(chunk["failed"]) for chunk in chunks))


def _seeds(failed: int) -> str:
    return HOLDS if not failed else f"{failed} failed"


def histories(share: Share) -> Iterator[Finding]:
    """Judge kept histories again."""
    for path in in_turn(share, histories_in(PUBLISHED / "histories")):

        def repeat(path: Path = path) -> str:
            code, said = share.run("benchmarks.evidence.rejudge", path)
            if code not in {0, 1} or "of 1 verdicts changed" not in said:
                raise RuntimeError(said[-500:])
            return "as kept with it" if code == 0 else said.splitlines()[0].partition(": ")[2]

        yield from attempt(share, path.name, "as kept with it", repeat)


def porcupine(share: Share) -> Iterator[Finding]:
    """Let porcupine judge kept histories."""
    if share.porcupine is None:
        yield Finding("porcupine", "", "both agree", f"{SKIPPED}: --porcupine names no source")
        return
    # It is built once, so all that fit into the share are judged by one command.
    known = histories_in(PUBLISHED / "histories")
    chosen = share.chance.sample(known, min(len(known), max(1, int(share.seconds / 10))))

    def repeat() -> str:
        code, said = share.run(
            "benchmarks.evidence.porcupine", "--source", share.porcupine, *chosen
        )
        if code not in {0, 1}:
            raise RuntimeError(said[-500:])
        return "both agree" if code == 0 else "they differ"

    yield from attempt(share, f"{len(chosen)} histories", "both agree", repeat)


def speed(share: Share) -> Iterator[Finding]:
    """Measure a pair of calls beside other libraries; what comes of it is told and not judged."""
    try:
        code, said = share.run("benchmarks/compare.py", "--quick", module=False)
    except Unfinished as error:
        yield Finding("speed", "", "", str(error))
        return
    share.lines.append(said)
    # There is nothing to judge: a ratio depends on the machine.
    why = "told and not judged" if code == 0 else f"{SKIPPED}: {said.strip()[-200:]}"
    yield Finding("compare --quick", "", "", why)


def power(share: Share) -> Iterator[Finding]:
    """
    Put defects into the library that the matrix has seen.

    Some show in one of two runs, and one run would say of those what chance says: each is tried up
    to `TRIES` times.
    """
    log = PUBLISHED / "results-power.jsonl"
    if importlib.util.find_spec(f"{__package__}.power") is None or not log.exists():
        yield Finding("power", "", "seen", f"{SKIPPED}: there are no results of it")
        return
    tries: dict[str, list[dict[str, Any]]] = {}
    for line in log.read_text().splitlines():
        one = json.loads(line)
        tries.setdefault(one["defect"], []).append(one)
    seen = [name for name, those in tries.items() if _seen(those[0])]
    for name in in_turn(share, seen):

        def repeat(name: str = name) -> str:
            for _ in range(TRIES):
                output = share.folder()
                _, said = share.run(
                    "benchmarks.evidence.power", "--minutes", 0.01, "--defects", name,
                    "--output", output,
                )  # fmt: skip
                found = output / "results-power.jsonl"
                if not found.exists():
                    raise RuntimeError(said[-500:])
                if _seen(json.loads(found.read_text().splitlines()[0])):
                    return "seen"
            return "not seen"

        yield from attempt(share, name, "seen", repeat)


def _seen(one: dict[str, Any]) -> bool:
    return not one["wrong"] and bool(set(one["broken"]) - {"losses"})


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of evidence."""

    run: Callable[[Share], Iterator[Finding]]
    share: float
    """Its share of the time; those of the parts that are run are scaled up to all of it."""


PARTS: Final = {
    "cells": Part(lambda share: matrix(share, control=False), 0.38),
    "controls": Part(lambda share: matrix(share, control=True), 0.1),
    "soak": Part(soak, 0.12),
    "proofs": Part(proofs, 0.1),
    "simulation": Part(simulation, 0.1),
    "histories": Part(histories, 0.05),
    "porcupine": Part(porcupine, 0.03),
    "speed": Part(speed, 0.04),
    "power": Part(power, 0.08),
}


def compared(found: dict[str, list[Finding]]) -> str:
    """Return the table of all parts."""
    rows = []
    for name, findings in found.items():
        judged = [each for each in findings if not each.why_not]
        differ = [each for each in judged if each.differs]
        rows.append(
            [
                name,
                f"{len(judged)}",
                counted(each.now for each in judged),
                counted(each.published for each in judged),
                "" if not judged else "same" if not differ else f"**{len(differ)} DIFFER**",
                counted(each.why_not for each in findings if each.why_not),
            ]
        )
    head = ["what", "how many", "verdicts now", "verdicts published", "", "not judged"]
    return table(head, rows)


def counted(words: Iterator[str]) -> str:
    """Return how often each text comes."""
    return "; ".join(f"{times} {text}" for text, times in Counter(words).most_common())


def main(arguments: Sequence[str] | None = None) -> int:
    """Repeat a sample; return 1 if a verdict differs, 2 if there is nothing to compare."""
    options = parse(arguments)
    found: dict[str, list[Finding]] = {}
    whole = sum(PARTS[name].share for name in options.only)
    print(f"{commit(measured())}; seed {options.seed}", flush=True)
    lines: list[str] = []
    with tempfile.TemporaryDirectory(prefix="evidence-all-") as scratch:
        for name in options.only:
            part = PARTS[name]
            share = Share(
                options.minutes * 60 * part.share / whole,
                random.Random(f"{options.seed} {name}"),
                Path(scratch),
                options.porcupine,
            )
            found[name] = []
            for finding in part.run(share):
                found[name].append(finding)
                says = finding.why_not or f"{finding.now} (published: {finding.published})"
                mark = "  <-- DIFFERS" if finding.differs else ""
                print(f"{name}: {finding.what}: {says}{mark}", flush=True)
            lines += share.lines
    if lines:
        print("\n" + "\n".join(lines))
    print("\n" + compared(found))
    everything = [finding for findings in found.values() for finding in findings]
    if not any(not each.why_not for each in everything):
        print("nothing could be compared", file=sys.stderr)
        return 2
    return int(any(each.differs for each in everything))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.evidence.all", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    how_long = parser.add_mutually_exclusive_group()
    how_long.add_argument("--hours", type=float, help="how long it may take in all")
    how_long.add_argument("--minutes", type=float, help="the same in minutes")
    add("--seed", type=int, help="draws the same sample again")
    add("--only", nargs="+", choices=list(PARTS), metavar="PART", help="these parts alone")
    add("--porcupine", type=Path, metavar="SOURCE", help="a folder with porcupine's source")
    add("--list", action="store_true", help="print the parts and their shares")
    options = parser.parse_args(arguments)
    if options.list:
        print(table(["part", "share"], [[n, f"{each.share:.0%}"] for n, each in PARTS.items()]))
        raise SystemExit
    if options.hours is None and options.minutes is None:
        parser.error("one of --hours and --minutes says how long it may take")
    if options.hours is not None:
        options.minutes = options.hours * 60
    if options.minutes <= 0:
        parser.error(f"--hours or --minutes is a positive number, not {options.minutes:g} minutes")
    if options.porcupine is not None and not options.porcupine.is_dir():
        parser.error(f"--porcupine is a folder with porcupine's source, not {options.porcupine}")
    if options.seed is None:
        options.seed = secrets.randbelow(10**6)
    options.only = [name for name in PARTS if name in (options.only or PARTS)]
    return options


if __name__ == "__main__":
    stop_cleanly()
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
