"""
What the pictures of docs/pictures.py are drawn with: lanes along a time axis, as SVG.

A picture is one file without fonts, scripts or references. Its colours follow the system's light
or dark scheme. Included in a page, they follow the scheme that the reader has chosen there
(docs/extra.css has the same names of colours).

There are two layouts of one picture. In the wide one time runs from left to right, and texts stand
where they belong. In the narrow one, for phones, time runs from top to bottom. Its texts stand
beside the lanes, each with a number that is also where the text belongs. Both take the places of
the wide one: `x` is when, `y` is whose lane.
"""

import math
import textwrap
from dataclasses import dataclass, replace
from xml.sax.saxutils import escape

LIGHT = {
    "paper": "#f6f8fa", "ink": "#1f2933", "soft": "#627180", "line": "#b9c4ce", "card": "#ffffff",
    "good": "#0b7a66", "good-soft": "#d3efe8", "bad": "#b3372f", "bad-soft": "#fadfdb",
    "wait": "#8a5a00", "wait-soft": "#fbeac6", "other": "#3c5aa8", "other-soft": "#dde5f8",
}  # fmt: skip
DARK = {
    "paper": "#1c222b", "ink": "#e6ebf0", "soft": "#9fb0bf", "line": "#4a5866", "card": "#262e39",
    "good": "#5fd3bb", "good-soft": "#1d4740", "bad": "#ff8f85", "bad-soft": "#57282a",
    "wait": "#f0c15c", "wait-soft": "#4a3b18", "other": "#9db6ff", "other-soft": "#2c3a60",
}  # fmt: skip

WIDTH, LEFT, RIGHT = 900, 150, 875
"""The width of a picture, and where its lanes begin and end."""

HALF = 13
"""Half of the height of a bar."""


def variables(colours: dict[str, str]) -> str:
    """Return the declarations of *colours* in CSS."""
    return ";".join(f"--{name}:{value}" for name, value in colours.items())


STYLE = (
    f".picture{{{variables(LIGHT)}}}"
    f"@media (prefers-color-scheme:dark){{.picture{{{variables(DARK)}}}}}"
    ".picture text{font:14px system-ui,'Segoe UI',Roboto,Helvetica,Arial,sans-serif;"
    "fill:var(--ink)}.picture text{paint-order:stroke;stroke:var(--paper);stroke-width:5px;"
    "stroke-linejoin:round}.picture .plain{stroke:none}"
    ".picture .small{font-size:12.5px}.picture .title{font-size:17px;font-weight:600}"
    ".picture .name{font-weight:600}"
    ".picture .code{font-family:ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;"
    "font-size:12.5px}.picture .number{font-size:12px;font-weight:600}"
)


@dataclass(frozen=True, slots=True)
class Text:
    """A text at its place in the wide layout, and what it is about."""

    place: tuple[float, float]
    text: str
    kind: str
    at: str
    ink: str
    """The colour of its letters."""

    about: tuple[float, float]
    of: str
    """The colour of what it is about."""


class Picture:
    """One picture that is being drawn, in the wide layout; `svg` is its text."""

    def __init__(self, name: str, title: str, description: str, height: int) -> None:
        self.name, self.title, self.description = name, title, description
        self.height = height
        self._parts: list[str] = []
        self._begin()

    def _begin(self) -> None:
        self._write((25, 34), self.title, kind="title")

    def svg(self) -> str:
        """Return the picture as a file's text."""
        return self._file(WIDTH, self.height)

    def _file(self, width: int, height: float) -> str:
        name = self.name
        head = (
            '<svg class="picture" xmlns="http://www.w3.org/2000/svg" role="img"'
            f' viewBox="0 0 {width} {height:g}" aria-labelledby="{name}-title {name}-text">'
        )
        begin = (
            head,
            f'<title id="{name}-title">{escape(self.title)}</title>',
            f'<desc id="{name}-text">{escape(self.description)}</desc>',
            f"<style>{STYLE}</style>",
            f'<rect width="{width}" height="{height:g}" rx="10" style="fill:var(--paper)"/>',
        )
        return "\n".join([*begin, *self._parts, "</svg>\n"])

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return where in the file the time *x* of the lane *y* is."""
        return x, y

    def text(
        self, place: tuple[float, float], text: str, *, kind: str = "small", at: str = "start",
        ink: str = "ink", about: tuple[float, float] | None = None,
    ) -> None:  # fmt: skip
        """
        Write *text* with its first baseline at *place*; it interrupts lines behind.

        It is *about* another place, if that is given.
        """
        self.put(Text(place, text, kind, at, ink, about or place, ink))

    def label(self, x: float, y: float, text: str, kind: str = "small", ink: str = "ink") -> None:
        """Write *text* into the bar of the colour *ink* on the lane *y*, around *x*."""
        self.put(Text((x, y + 4.5), text, f"{kind} plain", "middle", "ink", (x, y), ink))

    def put(self, text: Text) -> None:
        """Write *text* as the layout has it."""
        x, y = text.place
        for number, line in enumerate(text.text.split("\n")):
            self._write((x, y + 17 * number), line, kind=text.kind, at=text.at, ink=text.ink)

    def _write(
        self, place: tuple[float, float], text: str, *, kind: str, at: str = "start",
        ink: str = "ink", turned: int = 0,
    ) -> None:  # fmt: skip
        x, y = place
        turn = f' transform="rotate({turned} {x:g} {y:g})"' if turned else ""
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{at}"{turn}'
            f' style="fill:var(--{ink})">{escape(text)}</text>'
        )

    def remark(self, place: Text, text: str, below: float) -> None:
        """Write a number at its *place*, and what it stands for below, in the last line."""
        self.put(place)
        self.caption(below, f"{place.text}: {text}")

    def caption(self, x: float, text: str) -> None:
        """Write a line about the whole picture below it, from *x* on."""
        self._write((x, self.height - 53), text, kind="small", ink="soft")

    def line(
        self, x: float, y: float, to: tuple[float, float], *, ink: str = "line",
        dashed: bool = False, width: float = 1.5,
    ) -> None:  # fmt: skip
        """Draw a straight line."""
        self._line(self.at(x, y), self.at(*to), ink, dashed=dashed, width=width)

    def _line(
        self, begin: tuple[float, float], end: tuple[float, float], ink: str, *,
        dashed: bool = False, width: float = 1.5,
    ) -> None:  # fmt: skip
        dash = ' stroke-dasharray="5 5"' if dashed else ""
        self._parts.append(
            f'<line x1="{begin[0]:g}" y1="{begin[1]:g}" x2="{end[0]:g}" y2="{end[1]:g}"'
            f' stroke-width="{width:g}"{dash} style="stroke:var(--{ink})"/>'
        )

    def arrow(
        self, x: float, y: float, to: tuple[float, float], *, ink: str = "soft",
        dashed: bool = False,
    ) -> None:  # fmt: skip
        """Draw a line with a head at its end."""
        self._arrow(self.at(x, y), self.at(*to), ink, dashed=dashed)

    def _arrow(
        self, begin: tuple[float, float], end: tuple[float, float], ink: str, *,
        dashed: bool = False,
    ) -> None:  # fmt: skip
        across, down = end[0] - begin[0], end[1] - begin[1]
        length = math.hypot(across, down)
        across, down = across / length, down / length
        self._line(begin, (end[0] - 6 * across, end[1] - 6 * down), ink, dashed=dashed)
        back = (end[0] - 9 * across, end[1] - 9 * down)
        points = [end, (back[0] - 4 * down, back[1] + 4 * across)]
        points.append((back[0] + 4 * down, back[1] - 4 * across))
        self._polygon(points, f"fill:var(--{ink})")

    def _polygon(self, points: list[tuple[float, float]], style: str) -> None:
        where = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._parts.append(f'<polygon points="{where}" style="{style}"/>')

    def area(self, points: list[tuple[float, float]], ink: str) -> None:
        """Draw a filled area with an outline."""
        self._polygon(
            [self.at(*point) for point in points],
            f"fill:var(--{ink}-soft);stroke:var(--{ink});stroke-width:1.5;stroke-linejoin:round",
        )

    def panel(self, top: float, what: str, hosts: dict[str, float]) -> None:
        """Begin a part of the picture with lanes of its own, those of *hosts*."""
        self._write((25, top), what, kind="name small")
        for host, y in hosts.items():
            self._write((75, y + 5), f"host {host}", kind="small", ink="soft")
            self.line(LEFT, y, (RIGHT, y))

    def lane(self, y: float, name: str, below: str = "") -> None:
        """Draw the axis of one participant."""
        self._write((25, y + (0 if below else 5)), name, kind="name")
        if below:
            self._write((25, y + 17), below, kind="small", ink="soft")
        self.line(LEFT, y, (RIGHT, y))

    def bar(
        self, y: float, begin: float, end: float, text: str = "", *, ink: str, dashed: bool = False
    ) -> None:
        """Draw a span of time on a lane, with a text in its middle."""
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        left, top = self.at(begin, y - HALF)
        right, bottom = self.at(end, y + HALF)
        self._parts.append(
            f'<rect x="{left:g}" y="{top:g}" width="{right - left:g}" height="{bottom - top:g}"'
            f' rx="5"{dash} style="fill:var(--{ink}-soft);stroke:var(--{ink});stroke-width:1.5"/>'
        )
        if text:
            self.label((begin + end) / 2, y, text, ink=ink)

    def mark(self, x: float, y: float, *, good: bool) -> None:
        """Draw a tick or a cross in a disc."""
        x, y = self.at(x, y)
        ink = "good" if good else "bad"
        path = "m-4.5 .5 3 3 6-7" if good else "m-4-4 8 8m0-8-8 8"
        self._parts.append(
            f'<g transform="translate({x:g} {y:g})"><circle r="9" style="fill:var(--{ink})"/>'
            f'<path d="{path}" fill="none" stroke-width="2.2" stroke-linecap="round"'
            ' stroke-linejoin="round" style="stroke:var(--paper)"/></g>'
        )

    def time(self) -> None:
        """Draw the direction of time at the bottom."""
        y = self.height - 22
        self._write((25, y + 4), "time", kind="small", ink="soft")
        self.arrow(LEFT, y, (RIGHT, y), ink="line")


class Narrow(Picture):
    """The same picture in the narrow layout, in which time runs from top to bottom."""

    WIDTH = 360
    """As wide as a phone leaves for it, so a letter is as large as the file says."""

    def _begin(self) -> None:
        self.name += "-narrow"
        # The texts of the lanes above, with the place of each in the file and its colour.
        self._notes: list[tuple[float, float, Text]] = []
        self._captions: list[str] = []
        self._heads = 0
        # Time runs for so long from there; where the first lane is, and how near are the others.
        self._length, self._top = 440.0, 40.0
        self._first, self._across = 88.0, 0.46
        self._last = self._bottom = 0.0

    def at(self, x: float, y: float) -> tuple[float, float]:
        down = self._top + (x - LEFT) / (RIGHT - LEFT) * self._length
        return round(50 + (y - self._first) * self._across, 1), round(down, 1)

    def svg(self) -> str:
        self._write_notes()
        height = self._bottom + 10
        for caption in self._captions:
            for line in textwrap.wrap(caption, 52):
                height += 18
                self._write((16, height), line, kind="small", ink="soft")
        above = self._heads + 20  # for what stands above the lanes, of which the last may be long
        inside = "\n".join(self._parts)
        self._parts = [f'<g transform="translate(0 {above})">', inside, "</g>"]
        self._write((16, 28), self.title, kind="title")
        return self._file(self.WIDTH, round(above + height + 16))

    def put(self, text: Text) -> None:
        self._note(*self.at(*text.about), text)

    def _note(self, x: float, y: float, text: Text) -> None:
        self._notes.append((x, y, text))

    def remark(self, place: Text, text: str, below: float) -> None:  # noqa: ARG002 - it has no last line
        self.put(replace(place, text=text, kind="small"))

    def caption(self, x: float, text: str) -> None:  # noqa: ARG002 - it begins at the left
        self._captions.append(text)

    def bar(
        self, y: float, begin: float, end: float, text: str = "", *, ink: str, dashed: bool = False
    ) -> None:
        super().bar(y, begin, end, ink=ink, dashed=dashed)
        if text:  # below what may be at the beginning of the bar
            (x, top), (_, bottom) = self.at(begin, y), self.at(end, y)
            what = Text((begin, y), text, "small", "start", "ink", (begin, y), ink)
            self._note(x, min(top + 20, (top + bottom) / 2), what)

    def lane(self, y: float, name: str, below: str = "") -> None:
        self.line(LEFT, y, (RIGHT, y))
        x, top = self.at(LEFT, y)
        self._last = max(self._last, x)
        head = f"{name}, {below}" if below else name
        self._heads = max(self._heads, round(len(head) * 7.1 * math.sin(math.radians(50))))
        self._write((x + 4, top - 10), head, kind="small name", turned=-50)

    def panel(self, top: float, what: str, hosts: dict[str, float]) -> None:  # noqa: ARG002 - below the last one
        self._write_notes()
        below = (self._bottom or 12) + 30
        for line in textwrap.wrap(what, 40):
            self._write((16, below), line, kind="name")
            below += 17
        self._length, self._top = 150, below + 20
        self._first, self._across = min(hosts.values()), 0.7
        for host, y in hosts.items():
            self.line(LEFT, y, (RIGHT, y))
            x, _ = self.at(LEFT, y)
            self._last = max(self._last, x)
            self._write((x, self._top - 8), host, kind="small name", at="middle")

    def time(self) -> None:
        """Do nothing: each part has its own, see `_write_notes`."""

    def _write_notes(self) -> None:
        """Write the texts of some lanes beside them, in the order of time; equal ones once."""
        if not self._notes:
            return
        self._arrow((14, self._top), (14, self._top + self._length), "line")
        self._write((16, self._top - 8), "time", kind="small", at="middle", ink="soft")
        left, below = self._last + 24, self._top
        numbers: dict[tuple[str, str], int] = {}
        for x, y, note in sorted(self._notes, key=lambda it: it[1]):
            text = note.text.replace("\n", " ")
            if (text, note.of) not in numbers:
                numbers[text, note.of] = len(numbers) + 1
                below = self._write_note(left, max(y, below + 8), note, len(numbers))
            self._disc(x, y, numbers[text, note.of], note.of)
        self._notes.clear()
        self._bottom = max(below, self._top + self._length)

    def _write_note(self, left: float, middle: float, note: Text, number: int) -> float:
        """Write one text with its *number* beside the lanes, and return where it ends."""
        self._disc(left, middle, number, note.of)
        kind = note.kind.replace(" plain", "") + " plain"
        letter = 7.6 if "code" in kind else 7.1 if "name" in kind else 6.3
        room = int((self.WIDTH - left - 20) / letter)
        ink = note.ink if "name" in kind else "ink"
        for line in textwrap.wrap(note.text.replace("\n", " "), room):
            self._write((left + 14, middle + 4.5), line, kind=kind, ink=ink)
            middle += 16
        return middle - 3.5

    def _disc(self, x: float, y: float, number: int, ink: str) -> None:
        self._parts.append(
            f'<circle cx="{x:g}" cy="{y:g}" r="9" style="fill:var(--card);stroke:var(--{ink})"/>'
        )
        self._write((x, y + 4.3), str(number), kind="number plain", at="middle", ink=ink)
