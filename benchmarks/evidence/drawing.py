"""
The picture of the fault matrix: a tick or a cross, and a bar for the longest gap.

A dash is a run in which two held a lock, in a row for which that is not promised otherwise.

It is one SVG without fonts, scripts or references, and follows the system's light or dark scheme.
A second file, whose name ends with `-narrow`, is for phones: it has the marks, and of each row the
longest gap.
"""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from .faults import ROWS
from .ours import COLUMNS
from .results import Entry
from .tables import in_order

LIGHT = {
    "paper": "#f6f8fa", "ink": "#1f2933", "soft": "#627180", "line": "#d5dce2",
    "good": "#0b7a66", "good-soft": "#bfe6dc", "bad": "#b3372f", "bad-soft": "#f3bfb8",
}  # fmt: skip
DARK = {
    "paper": "#1c222b", "ink": "#e6ebf0", "soft": "#9fb0bf", "line": "#38434f",
    "good": "#5fd3bb", "good-soft": "#1d5a50", "bad": "#ff8f85", "bad-soft": "#6a3033",
}  # fmt: skip
LEFT, TOP, LINE = 250, 106, 27
COLUMN, BAR = 94, 30
NARROW, NARROW_TOP, NARROW_LINE = 360, 202, 46
LETTER = 9.3
"""The width of a letter of the title, at most on average."""

MOST = 8.0
"""The seconds of the longest bar; longer gaps are drawn as long, and say their length."""


def draw(entries: Sequence[Entry], path: Path) -> None:
    """Write the picture of the matrix to *path*, and the narrow one beside it."""
    columns = in_order({each.column for each in entries}, [each.name for each in COLUMNS])
    rows = in_order({each.row for each in entries}, [row.name for row in ROWS])
    cells = {(each.row, each.column): each for each in entries}
    good = sum(each.holds and not each.skipped for each in entries)
    tried = sum(not each.skipped for each in entries)
    title = f"{good} of {tried} runs under faults broke no promise of safety"
    if unpromised := sum(each.is_not_promised for each in entries):
        title += f"; in {unpromised} two held a lock where no promise is made"
    width = LEFT + COLUMN * len(columns) + 16
    lines = textwrap.wrap(title, int((width - 40) / LETTER))
    more = 20 * (len(lines) - 1)  # what a longer title moves down
    top, height = TOP + more, TOP + more + LINE * len(rows) + 20
    about = "Bars: the longest time in which a lock that was wanted had no holder"
    parts = _begin("matrix", width, height, title)
    parts += [_text(20, 32 + 20 * number, line, "title") for number, line in enumerate(lines)]
    parts.append(_text(20, 53 + more, about, "soft"))
    for place, column in enumerate(columns):
        for number, line in enumerate(reversed(textwrap.wrap(column, 11, break_long_words=False))):
            parts.append(_text(LEFT + COLUMN * place, top - 12 - 15 * number, line, "name"))
    for number, row in enumerate(rows):
        y = top + LINE * number
        parts.append(f'<path d="M20 {y}H{width - 16}" style="stroke:var(--line)"/>')
        parts.append(_text(20, y + 18, row, ""))
        for place, column in enumerate(columns):
            entry = cells.get((row, column))
            if entry is not None and not entry.skipped:
                parts += _cell(LEFT + COLUMN * place, y + LINE / 2, entry)
    path.write_text("\n".join([*parts, "</svg>\n"]))
    narrow = _narrow(title, columns, rows, cells)
    path.with_name(f"{path.stem}-narrow.svg").write_text("\n".join([*narrow, "</svg>\n"]))


def _narrow(
    title: str, columns: Sequence[str], rows: Sequence[str], cells: Mapping[tuple[str, str], Entry]
) -> list[str]:
    """Return the parts of the narrow picture: each row has its name and gap above its marks."""
    lines = textwrap.wrap(title, int((NARROW - 28) / LETTER))
    more = 19 * max(0, len(lines) - 2)  # what a longer title moves down
    top = NARROW_TOP + more
    parts = _begin("matrix-narrow", NARROW, top + NARROW_LINE * len(rows) + 12, title)
    about = "Of each fault: the longest time in which a lock that was wanted had no holder"
    step = (NARROW - 28) / max(1, len(columns))
    for number, line in enumerate(lines):
        parts.append(_text(14, 28 + 19 * number, line, "title"))
    for number, line in enumerate(textwrap.wrap(about, 52)):
        parts.append(_text(14, 68 + more + 16 * number, line, "soft"))
    for place, column in enumerate(columns):
        turn = f'transform="translate({14 + step * place + 12:g} {top - 8:g}) rotate(-90)"'
        parts.append(f'<text {turn} class="name narrow">{escape(column)}</text>')
    for number, row in enumerate(rows):
        y = top + NARROW_LINE * number
        parts.append(f'<path d="M14 {y}H{NARROW - 14}" style="stroke:var(--line)"/>')
        parts.append(_text(14, y + 17, row, ""))
        shown = [cells[row, each] for each in columns if (row, each) in cells]
        gap = max((each.gap for each in shown if not each.skipped), default=0.0)
        parts.append(_text(NARROW - 44, y + 17, f"{gap:.1f} s", "small"))
        for place, column in enumerate(columns):
            entry = cells.get((row, column))
            if entry is not None and not entry.skipped:
                parts.append(_mark(14 + step * place + 8, y + 31, entry))
    return parts


def _begin(name: str, width: int, height: int, title: str) -> list[str]:
    head = (
        f'<svg class="matrix" xmlns="http://www.w3.org/2000/svg" role="img"'
        f' viewBox="0 0 {width} {height}" aria-labelledby="{name}-title">'
    )
    return [
        head,
        f'<title id="{name}-title">{title}</title>',
        f"<style>{_style()}</style>",
        f'<rect width="{width}" height="{height}" rx="10" style="fill:var(--paper)"/>',
    ]


def _mark(x: float, y: float, entry: Entry) -> str:
    ink, mark = "bad", "m-3-3 6 6m0-6-6 6"
    if entry.holds:
        ink, mark = "good", "m-3.5 .5 2.5 2.5 4.5-5.5"
    elif entry.is_not_promised:
        ink, mark = "soft", "m-3.5 0h7"
    disc = f'<circle r="7" style="fill:var(--{ink})"/>'
    sign = f'<path d="{mark}" fill="none" stroke-width="1.8" style="stroke:var(--paper)"/>'
    return f'<g transform="translate({x:g} {y:g})">{disc}{sign}</g>'


def _cell(x: float, y: float, entry: Entry) -> list[str]:
    fill = "good-soft" if entry.holds else "line" if entry.is_not_promised else "bad-soft"
    length = max(2.0, BAR * min(entry.gap, MOST) / MOST)
    place = f'x="{x + 20:g}" y="{y - 5:g}" width="{length:.1f}" height="10" rx="2"'
    return [
        _mark(x + 8, y, entry),
        f'<rect {place} style="fill:var(--{fill})"/>',
        _text(x + 24 + length, y + 4.5, f"{entry.gap:.1f} s", "small"),
    ]


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}">{escape(text)}</text>'


def _style() -> str:
    light, dark = (
        ";".join(f"--{name}:{value}" for name, value in each.items()) for each in (LIGHT, DARK)
    )
    return (
        f".matrix{{{light}}}@media (prefers-color-scheme:dark){{.matrix{{{dark}}}}}"
        ".matrix text{font:13px system-ui,'Segoe UI',Roboto,Helvetica,Arial,sans-serif;"
        "fill:var(--ink)}.matrix .title{font-size:16px;font-weight:600}"
        ".matrix .name{font-weight:600}.matrix .small{font-size:11.5px;fill:var(--soft)}"
        ".matrix .soft{fill:var(--soft)}.matrix .narrow{font-size:12px}"
    )
