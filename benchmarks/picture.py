"""
The pictures of the comparisons, for light pages and for dark ones.

There is no background, and the grey of the texts has the same contrast to white and
to black.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

WORDS, OURS, OTHERS = "#7a828c", "#e0483e", "#9aa3ad"
ON_BARS = "#1f2328"
SHADES = (OURS, "#f0908a", "#b3261e")
"""The colours of our locks, where there are several in one panel: plain ones have `OURS`."""
GREYS = (OTHERS, "#c0883c")


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


def draw(bars: Sequence[Bar], path: Path) -> None:
    """Draw rates and latencies, one bar for each contestant, and write them to *path*."""
    with _style():
        figure, (left, right) = plt.subplots(
            1, 2, figsize=(9.6, 0.46 * len(bars) + 0.7), sharey=True, layout="constrained"
        )
        ours = [bar.ours for bar in bars]
        _panel(left, ours, [b.pairs for b in bars], [f"{b.pairs:,.0f}" for b in bars])
        _names(left, ours, [bar.name for bar in bars])
        left.set_title("Locks taken and released in a second, 100 tasks", loc="left", fontsize=10.5)
        _panel(right, ours, [b.latency for b in bars], [f"{b.latency:,.0f} µs" for b in bars])
        right.tick_params(labelleft=False)
        right.set_title("Time for one, alone (shorter is better)", loc="left", fontsize=10.5)
        figure.savefig(path, transparent=True, metadata={"Date": None})
        plt.close(figure)


def draw_rates(
    names: Sequence[str], ours: Sequence[str], panels: Sequence[Rates], ideal: float, path: Path
) -> None:
    """Draw a panel for each setting, with the *ideal* as a line, and write them to *path*."""
    with _style():
        figure, axes = plt.subplots(
            1,
            len(panels),
            figsize=(9.6, 0.46 * len(names) + 1.0),
            sharey=True,
            layout="constrained",
        )
        red = [name in ours for name in names]
        for each, panel in zip(axes, panels, strict=True):
            # Beside the bars the figures would touch the line.
            labels = [
                f"{value:,.0f}  ({fewest:,} to {most:,})"
                for value, (fewest, most) in zip(panel.values, panel.turns, strict=True)
            ]
            _panel(each, red, panel.values, labels, inside=True)
            each.set_xlim(0, max(ideal, *panel.values) * 1.08)
            each.axvline(ideal, color=WORDS, linestyle="--", linewidth=1)
            each.set_title(panel.title, loc="left", fontsize=10.5)
        _names(axes[0], red, names)
        for each in axes[1:]:
            each.tick_params(labelleft=False)
        figure.suptitle(
            "Turns of 1 ms in a second, one lock for all (fewest to most turns of a waiter in 3 s);"
            f" the line is the ideal, {ideal:,.0f}",
            fontsize=10.5,
        )
        figure.savefig(path, transparent=True, metadata={"Date": None})
        plt.close(figure)


def draw_grouped(groups: Sequence[str], panels: Sequence[Grouped], path: Path) -> None:
    """Draw a panel for each measurement, with a bar for each series in each group."""
    with _style():
        figure, axes = plt.subplots(
            1,
            len(panels),
            figsize=(9.6, 0.72 * len(groups) + 0.9),
            sharey=True,
            layout="constrained",
        )
        for each, panel in zip(axes, panels, strict=True):
            height = 0.84 / len(panel.series)
            most = max(max(values) for values in panel.series.values())
            shades = dict(zip(panel.series, (OTHERS, *SHADES), strict=False))
            for number, (name, values) in enumerate(panel.series.items()):
                rows = [row - 0.42 + (number + 0.5) * height for row in range(len(groups))]
                drawn = each.barh(rows, values, height * 0.9, color=shades[name], label=name)
                labels = [f"{value:.0f} ms" if not number else f"{value:.1f}" for value in values]
                each.bar_label(drawn, labels, padding=3, color=WORDS, fontsize=8)
            each.set_title(panel.title, loc="left", fontsize=10.5)
            each.set_xlim(0, most * 1.2)
            each.set_xticks([])
            each.tick_params(length=0)
            each.spines[:].set_visible(False)
        axes[0].set_yticks(range(len(groups)), groups, color=WORDS)
        axes[0].invert_yaxis()  # the panels share it
        for each in axes[1:]:
            each.tick_params(labelleft=False)
        handles, names = axes[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False)
        figure.savefig(path, transparent=True, metadata={"Date": None})
        plt.close(figure)


def draw_lines(
    places: Sequence[str], axis: str, panels: Sequence[Lines], ours: Sequence[str], path: Path
) -> None:
    """Draw a panel for each measurement, with a line for each series, and write them to *path*."""
    with _style():
        figure, axes = plt.subplots(1, len(panels), figsize=(9.6, 3.6), layout="constrained")
        for each, panel in zip(axes, panels, strict=True):
            reds, greys = iter(SHADES), iter(GREYS)
            for name, values in panel.series.items():
                colour, dashes = (next(reds), "-") if name in ours else (next(greys), "--")
                each.plot(places, values, dashes, marker="o", color=colour, label=name)
            each.set_title(panel.title, loc="left", fontsize=10.5)
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
        handles, names = axes[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False)
        figure.savefig(path, transparent=True, metadata={"Date": None})
        plt.close(figure)


def _style() -> AbstractContextManager[None]:
    return plt.rc_context(
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


def _names(axes: Axes, ours: Sequence[bool], names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), names, color=WORDS)
    axes.invert_yaxis()  # the panels share it
    for label, red in zip(axes.get_yticklabels(), ours, strict=True):
        if red:
            label.set(color=OURS, fontweight="bold")


def _panel(
    axes: Axes,
    ours: Sequence[bool],
    values: Sequence[float],
    labels: Sequence[str],
    *,
    inside: bool = False,
) -> None:
    rows = range(len(values))
    drawn = axes.barh(rows, values, height=0.62, color=[OURS if red else OTHERS for red in ours])
    if inside:
        axes.bar_label(drawn, labels, label_type="center", color=ON_BARS)
    else:
        axes.bar_label(drawn, labels, padding=4, color=WORDS)
    axes.set_xlim(0, max(values) * 1.22)
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
