"""
The pictures of the comparisons, for light pages and for dark ones.

There is no background, and the grey of the texts has the same contrast to white and
to black. Each picture is drawn twice: with its panels side by side, and for phones one above the
other, in a file whose name ends with `-narrow`.
"""

import functools
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WORDS, OURS, OTHERS = "#7a828c", "#e0483e", "#9aa3ad"
ON_BARS = "#1f2328"
SHADES = (OURS, "#f0908a", "#b3261e")
"""The colours of our locks, where there are several in one panel: plain ones have `OURS`."""
GREYS = (OTHERS, "#c0883c")
NARROW = 3.9
"""The width of a narrow picture in inches: on a phone a letter is larger there than in a text."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One contestant: pairs per second, and the latency of a pair in µs."""

    name: str
    pairs: float
    latency: float
    ours: bool


@dataclass(frozen=True, slots=True)
class Rates:
    """One setting: the turns of each contestant per second; the fewest and most of a waiter."""

    title: str
    values: Sequence[float]
    turns: Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Grouped:
    """One panel: the values in ms of each series, the ideal first, one for each group."""

    title: str
    series: Mapping[str, Sequence[float]]


@dataclass(frozen=True, slots=True)
class Lines:
    """One panel: the values of each series at the same places of the axis."""

    title: str
    series: Mapping[str, Sequence[float]]
    logarithmic: bool = False


@dataclass(frozen=True, slots=True)
class Sheet:
    """A picture in one of its layouts: its panels, and where it is written to."""

    figure: "Figure"
    panels: "Sequence[Axes]"
    narrow: bool

    def title(self, panel: "Axes", text: str) -> None:
        """Write *text* above a panel, in several lines where there is less room."""
        text = textwrap.fill(text, 28) if self.narrow else text
        panel.set_title(text, loc="left", fontsize=10.5)

    @property
    def small(self) -> float:
        """The size of the figures at bars that are narrow."""
        return 9.5 if self.narrow else 8


def sheets(
    path: Path, panels: int, height: float, *, narrow_height: float = 0, shared: bool = True
) -> Iterator[Sheet]:
    """
    Yield the wide and the narrow picture, and write each when it has been drawn.

    *height* is that of a panel in inches, also in the narrow picture unless that is given.
    """
    for narrow in (False, True):
        with _style():
            rows, columns = (panels, 1) if narrow else (1, panels)
            size = (NARROW, (narrow_height or height) * panels) if narrow else (9.6, height)
            figure, axes = _pyplot().subplots(
                rows, columns, figsize=size, sharey=shared and not narrow, layout="constrained"
            )
            yield Sheet(figure, list(axes), narrow)
            file = path.with_name(f"{path.stem}-narrow{path.suffix}") if narrow else path
            figure.savefig(file, transparent=True, metadata={"Date": None})
            _pyplot().close(figure)


def draw(bars: Sequence[Bar], path: Path) -> None:
    """Draw rates and latencies, one bar for each contestant, and write them to *path*."""
    ours = [bar.ours for bar in bars]
    for sheet in sheets(path, 2, 0.46 * len(bars) + 0.7):
        left, right = sheet.panels
        _panel(left, ours, [b.pairs for b in bars], [f"{b.pairs:,.0f}" for b in bars])
        _names(sheet, ours, [bar.name for bar in bars])
        sheet.title(left, "Locks taken and released in a second, 100 tasks")
        _panel(right, ours, [b.latency for b in bars], [f"{b.latency:,.0f} µs" for b in bars])
        sheet.title(right, "Time for one, alone (shorter is better)")


def draw_rates(
    names: Sequence[str], ours: Sequence[str], panels: Sequence[Rates], ideal: float, path: Path
) -> None:
    """Draw a panel for each setting, with the *ideal* as a line, and write them to *path*."""
    red = [name in ours for name in names]
    turns = [
        [
            f"{value:,.0f}  ({fewest:,} to {most:,})"
            for value, (fewest, most) in zip(panel.values, panel.turns, strict=True)
        ]
        for panel in panels
    ]
    height = 0.46 * len(names) + 1.0
    for sheet in sheets(path, len(panels), height, narrow_height=0.62 * len(names) + 0.5):
        for number, (each, panel) in enumerate(zip(sheet.panels, panels, strict=True)):
            # Beside the bars the figures would touch the line, and narrow bars have no room.
            inside = [] if sheet.narrow else turns[number]
            _panel(each, red, panel.values, inside, inside=True)
            each.set_xlim(0, max(ideal, *panel.values) * 1.08)
            each.axvline(ideal, color=WORDS, linestyle="--", linewidth=1)
            sheet.title(each, panel.title)
        _names(sheet, red, names, turns)
        above = (
            "Turns of 1 ms in a second, one lock for all (fewest to most turns of a waiter in 3 s);"
            f" the line is the ideal, {ideal:,.0f}"
        )
        sheet.figure.suptitle(textwrap.fill(above, 50) if sheet.narrow else above, fontsize=10.5)


def draw_grouped(groups: Sequence[str], panels: Sequence[Grouped], path: Path) -> None:
    """Draw a panel for each measurement, with a bar for each series in each group."""
    for sheet in sheets(path, len(panels), 0.72 * len(groups) + 0.9):
        for each, panel in zip(sheet.panels, panels, strict=True):
            height = 0.84 / len(panel.series)
            most = max(max(values) for values in panel.series.values())
            shades = dict(zip(panel.series, (OTHERS, *SHADES), strict=False))
            for number, (name, values) in enumerate(panel.series.items()):
                rows = [row - 0.42 + (number + 0.5) * height for row in range(len(groups))]
                drawn = each.barh(rows, values, height * 0.9, color=shades[name], label=name)
                labels = [f"{value:.0f} ms" if not number else f"{value:.1f}" for value in values]
                each.bar_label(drawn, labels, padding=3, color=WORDS, fontsize=sheet.small)
            sheet.title(each, panel.title)
            each.set_xlim(0, most * 1.2)
            each.set_xticks([])
            each.tick_params(length=0)
            each.spines[:].set_visible(False)
        _names(sheet, [False] * len(groups), groups)
        _legend(sheet)


def draw_lines(
    places: Sequence[str], axis: str, panels: Sequence[Lines], ours: Sequence[str], path: Path
) -> None:
    """Draw a panel for each measurement, with a line for each series, and write them to *path*."""
    for sheet in sheets(path, len(panels), 3.6, shared=False):
        for each, panel in zip(sheet.panels, panels, strict=True):
            reds, greys = iter(SHADES), iter(GREYS)
            for name, values in panel.series.items():
                colour, dashes = (next(reds), "-") if name in ours else (next(greys), "--")
                each.plot(places, values, dashes, marker="o", color=colour, label=name)
            sheet.title(each, panel.title)
            each.set_xlabel(axis)
            if panel.logarithmic:
                each.set_yscale("log")
            else:
                each.set_ylim(bottom=0)
            each.yaxis.set_major_formatter("{x:,.0f}")
            each.yaxis.set_minor_formatter("")
            each.grid(axis="y", color=WORDS, alpha=0.25)
            each.spines[["top", "right"]].set_visible(False)
            each.spines[["left", "bottom"]].set_color(WORDS)
        _legend(sheet)


def _legend(sheet: Sheet) -> None:
    handles, names = sheet.panels[0].get_legend_handles_labels()
    columns = 1 if sheet.narrow else len(names)
    sheet.figure.legend(handles, names, loc="outside lower center", ncols=columns, frameon=False)


@functools.cache
def _pyplot() -> Any:
    """Return what draws: it is imported for that only, because that takes half a second."""
    import matplotlib as mpl

    mpl.use("svg")

    from matplotlib import pyplot as plt

    return plt


def _style() -> AbstractContextManager[None]:
    style: AbstractContextManager[None] = _pyplot().rc_context(
        {
            "font.size": 10.5,
            "text.color": WORDS,
            "axes.labelcolor": WORDS,
            "xtick.color": WORDS,
            "ytick.color": WORDS,
            # With a fixed salt the same figures give the same file.
            "svg.hashsalt": "redlock_aio",
        }
    )
    return style


def _names(
    sheet: Sheet, ours: Sequence[bool], names: Sequence[str], below: Sequence[Sequence[str]] = ()
) -> None:
    """Write the names of the rows, in a narrow picture with what is *below* each, by panel."""
    for number, panel in enumerate(sheet.panels if sheet.narrow else sheet.panels[:1]):
        shown = [textwrap.fill(name, 19) if sheet.narrow else name for name in names]
        if sheet.narrow and below:
            shown = ["\n".join(both) for both in zip(shown, below[number], strict=True)]
        panel.set_yticks(range(len(names)), shown, color=WORDS)
        panel.invert_yaxis()  # panels side by side share it
        for label, red in zip(panel.get_yticklabels(), ours, strict=True):
            if red:
                label.set(color=OURS, fontweight="bold")
    if not sheet.narrow:
        for panel in sheet.panels[1:]:
            panel.tick_params(labelleft=False)


def _panel(
    axes: "Axes",
    ours: Sequence[bool],
    values: Sequence[float],
    labels: Sequence[str],
    *,
    inside: bool = False,
) -> None:
    rows = range(len(values))
    drawn = axes.barh(rows, values, height=0.62, color=[OURS if red else OTHERS for red in ours])
    if not labels:
        pass
    elif inside:
        axes.bar_label(drawn, labels, label_type="center", color=ON_BARS)
    else:
        axes.bar_label(drawn, labels, padding=4, color=WORDS)
    axes.set_xlim(0, max(values) * 1.22)
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
