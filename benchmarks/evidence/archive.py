"""
Keeps the histories of a whole run of the matrix in one small file.

    python -m benchmarks.evidence.archive FILE --of HISTORY...    writes it
    python -m benchmarks.evidence.archive FILE --into FOLDER      writes each history to a folder

Each HISTORY is a history, packed or not, or a folder of such. FILE is a tar with a short form of
their lines, which takes a third of what the histories packed one by one take:

- Instants are in µs. `at` is the difference to that of the line before, `until` that to `at`.
- All other whole numbers are differences to the last one of the same field and client.
- Leases have numbers instead of names.
- Lines with the same fields, "what" and "how" form a table, and are kept by columns: what is alike
  is side by side, and the compression finds it.

What comes back has instants in whole µs and other names of leases, but for those in the verdict
that was kept with it. All else is as it was, down to the order of the lines. Each history is judged
in both forms before FILE is written. If a promise is broken more often in one of them than in the
other, FILE is not written, and the exit code is 1.
"""

import argparse
import contextlib
import io
import json
import lzma
import shutil
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .checker import check
from .export import PACKED, named, unpacked
from .rejudge import compared, counts
from .results import parts
from .stopping import stop_cleanly

LEASES = ("lease", "from")
ROOT = "archive"
"""The folder of all in it; a packed history, which has another form, has none."""

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
    target = options.into or options.file
    if not target.resolve().parent.is_dir():
        parser.error(f"there is no folder for {target}")
    try:
        if options.into is not None:
            if options.into.exists():
                parser.error(f"{options.into} exists already")
            found = extract(options.file, options.into)
            print(f"{found} histories are in {options.into}")
            return 0
        if options.file.is_dir():
            parser.error(f"{options.file} is a folder")
        paths = named(options.of, parser)
        again = [name for name, count in Counter(map(name_of, paths)).items() if count > 1]
        if again:
            parser.error(f"several histories are named {', '.join(again)}")
        return write(options.file, paths)
    except OSError as error:
        parser.error(str(error))


def write(file: Path, paths: Iterable[Path]) -> int:
    """Write the archive of the histories at *paths*; return 1 if a verdict is another in it."""
    shortened: dict[str, dict[str, bytes]] = {}
    changed = 0
    for path in paths:
        with unpacked(path) as folder, tempfile.TemporaryDirectory(prefix="evidence-") as scratch:
            short = shortened[name_of(path)] = shorten(folder)
            again = Path(scratch) / "again"
            restore(short, again)
            says, differs = compared(counts(check(folder)), counts(check(again)))
        if differs:
            print(f"{path.name}: {says}", file=sys.stderr, flush=True)
        changed += differs
    if changed:
        print(f"{changed} of {len(shortened)} verdicts changed: nothing is written")
        return 1
    part = file.with_name(f"{file.name}.part")
    try:
        with (
            lzma.open(part, "wb", preset=9 | lzma.PRESET_EXTREME) as packed_file,
            tarfile.open(fileobj=packed_file, mode="w|") as archive,
        ):
            for name, files in sorted(shortened.items()):
                for each, content in sorted(files.items()):
                    info = tarfile.TarInfo(f"{ROOT}/{name}/{each}")
                    info.size = len(content)
                    archive.addfile(info, io.BytesIO(content))
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)
    print(f"{len(shortened)} histories are in {file}: {file.stat().st_size:,} bytes")
    return 0


def name_of(path: Path) -> str:
    """Return the name in an archive of the history at *path*."""
    return path.resolve().name.removesuffix(PACKED)


def extract(file: Path, into: Path) -> int:
    """
    Write each history of the archive *file* to a folder in *into*; return how many there are.

    Raises:
        OSError: *file* is no archive, a part of one, or can't be read. Nothing is written.
    """
    part = into.with_name(f"{into.name}.part")
    part.mkdir()
    try:
        found = 0
        for name, files in histories(file):
            restore(files, part / name)
            found += 1
        part.replace(into)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return found


def histories(file: Path) -> Iterator[tuple[str, dict[str, bytes]]]:
    """
    Yield the name and the files of each history in the archive *file*, in its short form.

    Raises:
        OSError: *file* is no archive, a part of one, or can't be read.
    """
    name, files = "", dict[str, bytes]()
    try:
        with contextlib.closing(tarfile.open(file)) as archive:
            for member in archive:
                root, *rest = member.name.split("/")
                # No name leads out of the folder to which it will be written.
                if root != ROOT or len(rest) != 2 or not {"", ".", ".."}.isdisjoint(rest):
                    raise OSError(f"{file} is no archive of histories: {member.name} in it")
                folder, each = rest
                if folder != name and files:
                    yield name, files
                    files = {}
                name = folder
                if content := archive.extractfile(member):
                    files[each] = content.read()
    except (tarfile.TarError, lzma.LZMAError, EOFError) as error:
        raise OSError(f"{file} is no archive of histories: {error}") from error
    if not files:
        raise OSError(f"{file} is no archive of histories: it is empty")
    yield name, files


def shorten(folder: Path) -> dict[str, bytes]:
    """Return the files of the history in *folder*; those of lines in their short form."""
    leases: dict[str, int] = {}
    found = {}
    for path in parts(folder):
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
    return json.dumps(value, separators=(",", ":")).encode()


if __name__ == "__main__":
    stop_cleanly()
    sys.exit(main())
