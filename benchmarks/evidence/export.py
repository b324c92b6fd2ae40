"""
Histories as other checkers read them: JSON, with all operations of each lock and register.

    python -m benchmarks.evidence.export HISTORY... > histories.jsonl

Each HISTORY is a history, packed (`.tar.xz`) as those in `benchmarks/histories` or not, or a folder
of such. A history becomes one line: `{"history": NAME, "objects": [...]}`. An object has a name, a
model and operations, each with the number of its client, and with `call` and `return` in ns.
`return` is null for an operation that may take effect at any later time, or never.

- `lock`: a key that is locked, or a permit of a semaphore. Its operations are `acquire`, from its
  invocation to the instant at which the lease was promised, and `release`, at the instant at which
  the promise ended, in whichever way (see `leases`). `shared` are those of readers, of which there
  may be several at a time; all others exclude each other.
- `register`: a fenced register, with `read` and `write`. A write with a lower `token` than the
  highest before it is refused (`end` is "fail"); it changes nothing. Without a token it is 0.
"""

import argparse
import contextlib
import json
import lzma
import sys
import tarfile
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from .history import NEVER, History, Operation, read
from .leases import Leases

PACKED = ".tar.xz"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print histories."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("histories", nargs="+", type=Path, metavar="HISTORY")
    try:
        for path in named(parser.parse_args(arguments).histories, parser):
            with unpacked(path) as folder:
                print(json.dumps({"history": path.name, "objects": objects(read(folder))}))
    except OSError as error:
        parser.error(str(error))
    return 0


def named(paths: Iterable[Path], parser: argparse.ArgumentParser) -> list[Path]:
    """
    Return the histories at *paths*, packed or not, and those in the folders among them.

    If there is nothing at a path, or no history in a folder, the program ends with an error.
    """
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            parser.error(f"there is no file or folder {path}")
        if not path.is_dir() or is_history(path):
            found.append(path)
            continue
        inside = histories_in(path)
        if not inside:
            parser.error(f"there is no history in the folder {path}")
        found += inside
    return found


def histories_in(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.iterdir()) if is_history(path)]


def is_history(path: Path) -> bool:
    """Return whether *path* is a packed history, or the folder of one."""
    if path.is_dir():
        return (path / "meta.json").exists() or any(path.glob("*.jsonl"))
    return path.name.endswith(PACKED)


@contextlib.contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """
    Yield the folder of a history, which is a temporary one if *path* is a packed history.

    Raises:
        OSError: There is no such file, or it is no packed history.
    """
    if path.is_dir():
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="evidence-") as scratch:
        try:
            with tarfile.open(path) as packed:
                packed.extractall(scratch, filter="data")
        except (tarfile.TarError, lzma.LZMAError, EOFError) as error:
            raise OSError(f"{path} is no packed history: {error}") from error
        found = sorted(Path(scratch).glob("*/meta.json"))
        if len(found) != 1:
            raise OSError(f"{path} is no packed history; `archive --into` unpacks archives")
        yield found[0].parent


def objects(history: History) -> list[dict[str, Any]]:
    """Return all locks and registers of *history* with their operations."""
    clients: dict[str, int] = {}

    def client(one: Operation) -> int:
        return clients.setdefault(one.client, len(clients))

    registers: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for one in history.operations:
        # A read that failed has seen nothing. A write that failed was refused.
        if one.what == "write" or (one.what == "read" and one.end == "ok"):
            registers[one.keys[0]].append({
                "client": client(one), "what": one.what, "call": one.invoked_at,
                "return": None if one.effect_by == NEVER else one.effect_by,
                "value": one.value, "token": one.token or 0, "end": one.end,
            })  # fmt: skip
    leases = Leases(history)
    locks: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for lock in leases.by_key:
        for began, ended, tenure in leases.valid(lock):
            origin = tenure.origin
            facts = {"client": client(origin), "lease": tenure.name, "shared": tenure.shared}
            # Promised once more after an end, it begins at the instant at which that was known.
            asked = origin.invoked_at if began == tenure.began_at else began
            acquired = {"what": "acquire", "call": asked, "return": began}
            released = {"what": "release", "call": ended, "return": ended}
            locks[lock] += [facts | acquired, facts | released]
    return [
        {"name": name, "model": model, "operations": operations}
        for model, group in (("lock", locks), ("register", registers))
        for name, operations in sorted(group.items())
    ]


if __name__ == "__main__":
    sys.exit(main())
