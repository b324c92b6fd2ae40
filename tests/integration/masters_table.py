"""
The table of docs/reference/masters.md: what works on which version of a server.

``PYTHONPATH=benchmarks python -m tests.integration.masters_table`` tries all and writes the table;
`versions` downloads the servers before. The full run of the tests compares each cell.
"""

import asyncio
from pathlib import Path

from .rows import ROWS
from .versions import VERSIONS, binary

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "masters.md"
BEGIN, END = "<!-- masters:begin -->\n", "<!-- masters:end -->\n"


def parts() -> tuple[str, str, str]:
    """Return the page before the table, the table, and the page after it."""
    before, begin, rest = PAGE.read_text().partition(BEGIN)
    table, end, after = rest.partition(END)
    assert begin, f"{PAGE} has no {BEGIN.strip()}"
    assert end, f"{PAGE} has no {END.strip()}"
    return before + begin, table, end + after


def cells() -> dict[tuple[str, str], str]:
    """Return the cells of the page, by row and version."""
    _, table, _ = parts()
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.strip().split("\n")]
    versions = lines[0][1:]
    return {
        (row, version): cell
        for row, *found in lines[2:]
        for version, cell in zip(versions, found, strict=True)
    }


def written(found: dict[tuple[str, str], str]) -> str:
    """Return the table with these cells."""
    head = ["| | " + " | ".join(VERSIONS) + " |", "|---|" + "---|" * len(VERSIONS)]
    body = [
        " | ".join([f"| {row}", *[found[row, version] for version in VERSIONS]]) + " |"
        for row in ROWS
    ]
    return "\n".join([*head, *body]) + "\n"


def main() -> None:
    """Try each row on each version, and write the table."""
    found: dict[tuple[str, str], str] = {}
    for version in VERSIONS:
        server = binary(version)  # if it is missing, the error says how to get it
        for row, try_it in ROWS.items():
            found[row, version] = asyncio.run(try_it(server))
            print(f"{version}: {row}: {found[row, version]}", flush=True)  # noqa: T201
    before, _, after = parts()
    PAGE.write_text(before + written(found) + after)


if __name__ == "__main__":
    main()
