"""
What ``redlock`` shows in a terminal, in columns and colours.

Imported when there is something to draw: rich would take a tenth of the time of each start.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text


def wrapped(text: str | Text) -> str:
    """Return *text* with its lines wrapped between words, each one behind its indent."""
    shown = Text(text) if isinstance(text, str) else text
    return _drawn(map(_indented, shown.split("\n", allow_blank=True)))


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], styles: Mapping[str, str]) -> str:
    """Return a table in columns; where it is too wide, each row has several lines."""
    made = Table(
        *(Column(name, no_wrap=True) for name in columns),
        box=None,
        pad_edge=False,
        header_style="bold",
    )
    cells = [[Text(cell, styles.get(cell, "")) for cell in row] for row in rows]
    for row in cells:
        made.add_row(*row)  # a `Text`, because a name may look like markup
    console = Console()
    endless = console.options.update(max_width=100_000)
    fits = Measurement.get(console, endless, made).maximum <= console.width
    return _drawn([made] if fits else _stacked(columns, cells, console.width))


def _indented(line: Text) -> RenderableType:
    """Return *line* so that it stays behind its indent when it is wrapped."""
    indent = len(line.plain) - len(line.plain.lstrip())
    return Padding(line[indent:], (0, 0, 0, indent)) if indent else line


def _stacked(
    columns: Sequence[str], rows: Sequence[Sequence[Text]], width: int
) -> Iterator[RenderableType]:
    """Yield the lines of a table that is too wide: a name, and below it its cells with titles."""
    for name, *cells in rows:
        name.stylize("bold")
        yield name
        line = Text()
        for title, cell in zip(columns[1:], cells, strict=True):
            if not cell:
                continue
            piece = Text.assemble((title.lower(), "dim"), " ", cell)
            if line and 4 + len(line) + 3 + len(piece) > width:
                yield _indented(Text(" " * 4) + line)
                line = Text()
            line += Text.assemble("   " if line else "", piece)
        yield _indented(Text(" " * 4) + line)


def _drawn(parts: Iterable[RenderableType]) -> str:
    """Return *parts* as a terminal shows them."""
    console = Console(highlight=False)
    with console.capture() as captured:
        for part in parts:
            console.print(part)
    return captured.get().removesuffix("\n")
