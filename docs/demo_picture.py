"""
Draws the picture of the demonstration: `python docs/demo_picture.py` writes docs/assets/demo.svg.

It runs `redlock_aio.demo`, and keeps a frame in which two masters are away: the frame is that of
a real run, so each run draws another one. The colours follow the system's light or dark scheme.
"""

import io
import re
import sys
from pathlib import Path

from drawing import DARK, LIGHT, variables
from rich.color import blend_rgb
from rich.color_triplet import ColorTriplet
from rich.console import Console
from rich.terminal_theme import TerminalTheme

from redlock_aio.demo.picture import drawn
from redlock_aio.demo.stage import Scene, Stage

FILE = Path(__file__).parent / "assets" / "demo.svg"

WIDTH = 80
"""The columns of the terminal."""

NAMES = ["ink", "bad", "good", "wait", "other", "other", "other", "ink"]
"""The names of the colours in `drawing` for the eight colours of a terminal, black first."""

FORMAT = """\
<svg class="picture" xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {width} HEIGHT"\
 aria-labelledby="demo-title demo-text">
<title id="demo-title">The demonstration of redlock_aio</title>
<desc id="demo-text">TEXT</desc>
<style>COLOURS{styles}STYLE</style>
<rect width="{width}" height="HEIGHT" rx="10" style="fill:var(--paper)"/>
<g transform="translate({terminal_x},12)">
{backgrounds}
<g class="demo-matrix">{matrix}</g>
</g>
</svg>
"""

COLOURS = (
    f".picture{{{variables(LIGHT)}}}"
    f"@media (prefers-color-scheme:dark){{.picture{{{variables(DARK)}}}}}"
)
STYLE = (
    # Slightly larger than rich takes it, so that the lines of boxes meet.
    ".demo-matrix text{font-family:ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;"
    "font-size:21px;white-space:pre}"
)
SOON = 0.1
"""The least seconds of a quarantine that the picture shows."""

LINE, MARGIN = 24.4, 12
"""The height of a line, as rich has it, and the space above the first one."""

TEXT = (
    "A terminal with five masters, of which one is quarantined and one is paused. Workers take"
    " turns under one lock. Of {turns} updates under the lock {lost} are lost; of {bare_turns}"
    " without it {bare_lost} are lost."
)


class Best:
    """Keeps the latest scene in which two masters are away."""

    def __init__(self) -> None:
        self.scene: Scene | None = None

    def tell(self, scene: Scene) -> None:
        """Look at the scene; what has happened is in it."""
        self.show(scene)

    def show(self, scene: Scene) -> None:
        """Keep the scene, if two masters are away and a worker holds the lock."""
        states = {state.word: state for state in scene.masters}
        both = scene.holder and "paused" in states and "quarantined" in states
        if both and states["quarantined"].seconds > SOON:
            self.scene = scene


def svg(scene: Scene) -> str:
    """Return the picture of *scene* as a file's text."""
    theme = TerminalTheme(_rgb("paper"), _rgb("ink"), [_rgb(name) for name in NAMES])
    console = Console(
        record=True, width=WIDTH, color_system="standard", force_terminal=True, file=io.StringIO()
    )
    lines = console.render_lines(drawn(scene, WIDTH))
    console.print(drawn(scene, WIDTH))
    numbers = {
        "turns": scene.locked.turns,
        "lost": scene.locked.lost,
        "bare_turns": scene.bare.turns,
        "bare_lost": scene.bare.lost,
    }
    text = console.export_svg(theme=theme, code_format=FORMAT, unique_id="demo")
    text = re.sub(r' clip-path="[^"]*"', "", text)
    text = text.replace("HEIGHT", f"{len(lines) * LINE + 2 * MARGIN:g}")
    text = text.replace("TEXT", TEXT.format(**numbers)).replace("STYLE", STYLE)
    # Each colour of the light scheme becomes its name, so that the dark scheme can replace it.
    soft = blend_rgb(ColorTriplet(*_rgb("ink")), ColorTriplet(*_rgb("paper")), 0.4).hex
    head, end, drawing = text.partition("</style>")
    for name, colour in [("soft", soft), *((name, LIGHT[name]) for name in ("paper", *NAMES))]:
        head, drawing = (part.replace(colour, f"var(--{name})") for part in (head, drawing))
    if unknown := re.findall(r"#[0-9a-f]{6}", head + drawing):
        raise AssertionError(f"colours without a name: {unknown}")
    drawing = re.sub(r'fill="(var\([^"]*)"', r'style="fill:\1"', drawing)
    # The ends of lines are texts of their own in what rich writes.
    drawing = re.sub(r"<text [^>]*>\s*</text>", "", drawing)
    return head.replace("COLOURS", COLOURS) + end + drawing


def _rgb(name: str) -> tuple[int, int, int]:
    red, green, blue = bytes.fromhex(LIGHT[name][1:])
    return red, green, blue


def main() -> None:
    """Run the demonstration, and write the picture."""
    best = Best()
    Stage(10.0, best).play()
    if best.scene is None:
        sys.exit("no frame has what the picture shows: run it again on a machine with less load")
    FILE.write_text(svg(best.scene))


if __name__ == "__main__":
    main()
