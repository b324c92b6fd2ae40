"""
Keeps the histories of a whole run of the matrix in one small file.

    python -m benchmarks.evidence.archive FILE --of HISTORY...    writes it
    python -m benchmarks.evidence.archive FILE --into FOLDER      writes each history to a folder

Each HISTORY is a history, packed or not, or a folder of such. FILE is a tar with a short form of
their lines, which takes a third of what the histories packed one by one take:

- Instants are in µs. `at` is the difference to that of the line before, `until` that to `at`.
- All other whole numbers are differences to the last one of the same field and client.
- Leases have numbers instead of names.
- Lines with the same fields, "what" and "how" form a table, and are kept by columns. So that what
  is alike is side by side, and the compression finds it.

What comes back has instants in whole µs and other names of leases; all else is as it was, down to
the order of the lines. Each history is judged in that form before FILE is written. If a verdict is
another than the one that was kept with it, FILE is not written, and the exit code is 1.
"""

import argparse
import contextlib
import io
import json
import lzma
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .checker import check
from .export import named, unpacked
from .rejudge import compared, counts, kept
from .stopping import stop_cleanly

LEASES = ("lease", "from")
KEPT = (".json", ".jsonl", ".log")

Line = dict[str, Any]
Table = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write an archive, or the histories of one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, metavar="FILE")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--of", nargs="+", type=Path, metavar="HISTORY")
    what.add_argument("--into", type=Path, metavar="FOLDER")
    options = parser.parse_args(arguments)
    if options.into is not None:
        print(f"{extract(options.file, options.into)} histories are in {options.into}")
        return 0
    return write(options.file, named(options.of, parser))


def write(file: Path, paths: Iterable[Path]) -> int:
    """Write the archive of the histories at *paths*; return 1 if a verdict is another in it."""
    shortened: dict[str, dict[str, bytes]] = {}
    changed = 0
    for path in paths:
        with unpacked(path) as folder, tempfile.TemporaryDirectory(prefix="evidence-") as scratch:
            short = shortened[folder.name] = shorten(folder)
            again = Path(scratch) / folder.name
            restore(short, again)
            says, differs = compared(kept(folder), counts(check(again)))
        if differs:
            print(f"{path.name}: {says}", file=sys.stderr, flush=True)
        changed += differs
    if changed:
        print(f"{changed} of {len(shortened)} verdicts changed: nothing is written")
        return 1
    part = file.with_suffix(".part")
    with (
        lzma.open(part, "wb", preset=9 | lzma.PRESET_EXTREME) as packed_file,
        tarfile.open(fileobj=packed_file, mode="w|") as archive,
    ):
        for name, files in sorted(shortened.items()):
            for each, content in sorted(files.items()):
                info = tarfile.TarInfo(f"{name}/{each}")
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    part.replace(file)
    print(f"{len(shortened)} histories are in {file}: {file.stat().st_size:,} bytes")
    return 0


def extract(file: Path, into: Path) -> int:
    """Write each history of the archive *file* to a folder in *into*; return how many there are."""
    found = 0
    for name, files in histories(file):
        restore(files, into / name)
        found += 1
    return found


def histories(file: Path) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Yield the name and the files of each history in the archive *file*, in its short form."""
    name, files = "", dict[str, bytes]()
    with contextlib.closing(tarfile.open(file)) as archive:
        for member in archive:
            folder, _, each = member.name.partition("/")
            if folder != name:
                if files:
                    yield name, files
                name, files = folder, {}
            if content := archive.extractfile(member):
                files[each] = content.read()
    if files:
        yield name, files


def shorten(folder: Path) -> dict[str, bytes]:
    """Return the files of the history in *folder*; those of lines in their short form."""
    leases: dict[str, int] = {}
    found = {}
    for path in sorted(folder.iterdir()):
        if path.suffix not in KEPT:
            continue
        content = path.read_bytes()
        if path.suffix == ".jsonl":
            # A process that was killed may have left half a line.
            whole, _, torn = content.rpartition(b"\n")
            table = tables([json.loads(line) for line in whole.splitlines()], leases)
            content = packed(table | {"torn": torn.decode()})
        found[path.name] = content
    return found


def restore(files: Mapping[str, bytes], folder: Path) -> None:
    """Write the *files* of a history in its short form to *folder*."""
    folder.mkdir(parents=True)
    for name, content in files.items():
        with (folder / name).open("wb") as file:
            if name.endswith(".jsonl"):
                table = json.loads(content)
                file.writelines(packed(line) + b"\n" for line in lines(table))
                file.write(table["torn"].encode())
            else:
                file.write(content)


def tables(events: Iterable[Line], leases: dict[str, int]) -> Table:
    """
    Return the short form of the lines of one file.

    Args:
        leases: The numbers of the names of leases so far; those of new ones are added.
    """
    before: dict[object, int] = {}
    order: list[int] = []
    numbers: dict[tuple[Any, ...], int] = {}
    columns: list[list[list[Any]]] = []
    for event in events:
        shape = (event.get("what"), event.get("how"), *event)
        number = numbers.setdefault(shape, len(numbers))
        if number == len(columns):
            columns.append([[] for _ in event])
        order.append(number)
        at = event["at"] // 1000
        for column, (field, value) in zip(columns[number], event.items(), strict=True):
            if field == "at":
                value = at  # noqa: PLW2901
            elif field == "until":
                value = value // 1000 - at  # noqa: PLW2901
            elif field in LEASES and isinstance(value, str):
                value = leases.setdefault(value, len(leases))  # noqa: PLW2901
            if field != "until" and type(value) is int:
                last = series(event, field)
                before[last], value = value, value - before.get(last, 0)  # noqa: PLW2901
            column.append(value)
    return {"order": order, "fields": [list(shape[2:]) for shape in numbers], "columns": columns}


def lines(table: Table) -> Iterator[Line]:
    """Yield the lines of a file from their short form."""
    before: dict[object, int] = {}
    rows = [zip(*columns, strict=True) for columns in table["columns"]]
    for number in table["order"]:
        event: Line = dict(zip(table["fields"][number], next(rows[number]), strict=True))
        for field, value in event.items():
            if field != "until" and type(value) is int:
                last = series(event, field)
                event[field] = before[last] = value + before.get(last, 0)
        if "until" in event:
            event["until"] = (event["at"] + event["until"]) * 1000
        event["at"] *= 1000
        for field in LEASES:
            if type(event.get(field)) is int:
                event[field] = f"lease-{event[field]}"
        yield event


def series(event: Line, field: str) -> object:
    """Return what identifies the numbers that follow one another."""
    if field == "at":
        return field
    return "lease" if field in LEASES else field, event.get("client")


def packed(value: object) -> bytes:
    """Return JSON without spaces."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


if __name__ == "__main__":
    stop_cleanly()
    sys.exit(main())
