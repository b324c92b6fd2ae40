"""
What the pictures of docs/pictures.py are drawn with: lanes along a time axis, as SVG.

A picture is one file without fonts, scripts or references. Its colours follow the system's light
or dark scheme. Included in a page, they follow the scheme that the reader has chosen there
(docs/extra.css has the same names of colours).
"""

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
    "font-size:12.5px}"
)


class Picture:
    """One picture that is being drawn; `svg` is its text."""

    def __init__(self, name: str, title: str, description: str, height: int) -> None:
        self.name, self.height = name, height
        head = (
            f'<svg class="picture" xmlns="http://www.w3.org/2000/svg" role="img"'
            f' viewBox="0 0 {WIDTH} {height}" aria-labelledby="{name}-title {name}-text">'
        )
        self._parts = [
            head,
            f'<title id="{name}-title">{escape(title)}</title>',
            f'<desc id="{name}-text">{escape(description)}</desc>',
            f"<style>{STYLE}</style>",
            f'<rect width="{WIDTH}" height="{height}" rx="10" style="fill:var(--paper)"/>',
        ]
        self.text(25, 34, title, kind="title")

    def svg(self) -> str:
        """Return the picture as a file's text."""
        return "\n".join([*self._parts, "</svg>\n"])

    def text(
        self, x: float, y: float, text: str, *, kind: str = "", at: str = "start", ink: str = "ink"
    ) -> None:
        """Write *text* with its baseline at *y*; unless it is plain, it interrupts lines behind."""
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{at}"'
            f' style="fill:var(--{ink})">{escape(text)}</text>'
        )

    def label(self, x: float, y: float, text: str, kind: str = "small") -> None:
        """Write *text* into the bar on the lane *y*, around *x*."""
        self.text(x, y + 4.5, text, kind=f"{kind} plain", at="middle")

    def line(
        self, x: float, y: float, to: tuple[float, float], *, ink: str = "line",
        dashed: bool = False, width: float = 1.5,
    ) -> None:  # fmt: skip
        """Draw a straight line."""
        dash = ' stroke-dasharray="5 5"' if dashed else ""
        self._parts.append(
            f'<line x1="{x:g}" y1="{y:g}" x2="{to[0]:g}" y2="{to[1]:g}"'
            f' stroke-width="{width:g}"{dash} style="stroke:var(--{ink})"/>'
        )

    def arrow(
        self, x: float, y: float, to: tuple[float, float], *, ink: str = "soft",
        dashed: bool = False,
    ) -> None:  # fmt: skip
        """Draw a line with a head at its end."""
        across, down = to[0] - x, to[1] - y
        length = (across**2 + down**2) ** 0.5
        across, down = across / length, down / length
        self.line(x, y, (to[0] - 6 * across, to[1] - 6 * down), ink=ink, dashed=dashed)
        back = (to[0] - 9 * across, to[1] - 9 * down)
        points = [to, (back[0] - 4 * down, back[1] + 4 * across)]
        points.append((back[0] + 4 * down, back[1] - 4 * across))
        self._polygon(points, f"fill:var(--{ink})")

    def _polygon(self, points: list[tuple[float, float]], style: str) -> None:
        where = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._parts.append(f'<polygon points="{where}" style="{style}"/>')

    def area(self, points: list[tuple[float, float]], ink: str) -> None:
        """Draw a filled area with an outline."""
        self._polygon(
            points, f"fill:var(--{ink}-soft);stroke:var(--{ink});stroke-width:1.5;"
            "stroke-linejoin:round",
        )  # fmt: skip

    def lane(self, y: float, name: str, below: str = "") -> None:
        """Draw the axis of one participant."""
        self.text(25, y + (0 if below else 5), name, kind="name")
        if below:
            self.text(25, y + 17, below, kind="small", ink="soft")
        self.line(LEFT, y, (RIGHT, y))

    def bar(
        self, y: float, begin: float, end: float, text: str = "", *, ink: str, dashed: bool = False
    ) -> None:
        """Draw a span of time on a lane, with a text in its middle."""
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self._parts.append(
            f'<rect x="{begin:g}" y="{y - HALF:g}" width="{end - begin:g}" height="{2 * HALF}"'
            f' rx="5"{dash} style="fill:var(--{ink}-soft);stroke:var(--{ink});stroke-width:1.5"/>'
        )
        if text:
            self.label((begin + end) / 2, y, text)

    def mark(self, x: float, y: float, *, good: bool) -> None:
        """Draw a tick or a cross in a disc."""
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
        self.text(25, y + 4, "time", kind="small", ink="soft")
        self.arrow(LEFT, y, (RIGHT, y), ink="line")
