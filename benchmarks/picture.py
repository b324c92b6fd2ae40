"""
The picture of the comparison, for light pages and for dark ones.

There is no background, and the grey of the words is as far from white as from
black.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

WORDS, OURS, OTHERS = "#7a828c", "#e0483e", "#9aa3ad"


@dataclass(frozen=True, slots=True)
class Bar:
    """One contestant: pairs in a second, and us for a pair alone."""

    name: str
    pairs: float
    latency: float
    ours: bool


def draw(bars: Sequence[Bar], path: Path) -> None:
    """Draw rates and latencies, one bar for each contestant, and write them to *path*."""
    # With the salt the same figures give the same file.
    with plt.rc_context({"font.size": 10.5, "text.color": WORDS, "svg.hashsalt": "redlock_aio"}):
        figure, (left, right) = plt.subplots(
            1, 2, figsize=(9.6, 0.46 * len(bars) + 0.7), sharey=True, layout="constrained"
        )
        _panel(left, bars, [bar.pairs for bar in bars], "{:,.0f}")
        left.set_yticks(range(len(bars)), [bar.name for bar in bars], color=WORDS)
        left.invert_yaxis()  # the panels share it
        for name, bar in zip(left.get_yticklabels(), bars, strict=True):
            if bar.ours:
                name.set(color=OURS, fontweight="bold")
        left.set_title("Locks taken and released in a second, 100 tasks", loc="left", fontsize=10.5)
        _panel(right, bars, [bar.latency for bar in bars], "{:,.0f} µs")
        right.tick_params(labelleft=False)
        right.set_title("Time for one, alone (shorter is better)", loc="left", fontsize=10.5)
        figure.savefig(path, transparent=True, metadata={"Date": None})
        plt.close(figure)


def _panel(axes: Axes, bars: Sequence[Bar], values: Sequence[float], label: str) -> None:
    rows = range(len(bars))
    drawn = axes.barh(rows, values, height=0.62, color=[OURS if b.ours else OTHERS for b in bars])
    axes.bar_label(drawn, [label.format(value) for value in values], padding=4, color=WORDS)
    axes.set_xlim(0, max(values) * 1.22)
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
