"""The demonstration as one picture, which is updated in place in a terminal."""

from collections.abc import Sequence
from typing import Self

from rich.align import Align
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from redlock_aio.demo.lines import verdict
from redlock_aio.demo.stage import MASTERS, Count, MasterState, Scene
from redlock_aio.demo.workers import PROCESSES, TASKS, WORKERS, undisturbed

NARROWEST, LOWEST = 80, 16
"""The smallest terminal that has room for a picture."""

WIDEST = 110
"""A wider terminal leaves the rest of its columns empty."""

ROOMY = 22
"""In a terminal with fewer lines the picture has no empty ones and no workers."""

LOOKS = {
    "starts": ("dim", "STARTS", ""),
    "connects": ("cyan", "CONNECTS", "no vote yet"),
    "up": ("green", "UP", "votes"),
    "killed": ("red", "KILLED", "no vote"),
    "paused": ("yellow", "PAUSED", "no answer"),
    "quarantined": ("magenta", "QUARANTINED", "votes in {:.1f} s"),
}
"""For each state of a master its colour, and the two lines in its box."""


class LiveScreen:
    """Shows the run on the alternate screen of a terminal, which is restored at the end."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console()
        self._live = Live(console=self._console, screen=True, auto_refresh=False)

    @staticmethod
    def fits(console: Console) -> bool:
        """Return whether the terminal can show it."""
        width, height = console.size
        # What rich cuts off ends with a character that other encodings than UTF-8 may not have.
        shows_all = not (console.is_dumb_terminal or console.options.ascii_only)
        return shows_all and width >= NARROWEST and height >= LOWEST

    def __enter__(self) -> Self:
        try:
            self._live.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with undisturbed():  # an interrupt would leave the terminal as it is now
            self._live.stop()

    def tell(self, scene: Scene) -> None:
        """Show the scene with its event."""
        self.show(scene)

    def show(self, scene: Scene) -> None:
        """Replace the picture."""
        roomy = self._console.height >= ROOMY
        self._live.update(drawn(scene, self._console.width, roomy=roomy), refresh=True)

    def keep(self, scene: Scene) -> None:
        """Print the last picture where it stays, after the screen was restored."""
        self._console.print(drawn(scene, self._console.width))


def drawn(scene: Scene, width: int, *, roomy: bool = True) -> RenderableType:
    """
    Return the picture of *scene*.

    Args:
        scene: What to show.

        width: The columns of the terminal.

        roomy: Whether there are enough lines for everything.
    """
    space = [Text()] if roomy else []
    news = Text(scene.news, style="bold")
    parts: list[RenderableType] = [
        _heading(scene),
        _row([_box(number, state) for number, state in enumerate(scene.masters, 1)]),
        Align(news, vertical="top", height=2),  # of two lines, so that nothing below moves
        *space,
        _turn(scene),
        *([_workers(scene)] if roomy else []),
        *space,
        _row([_locked(scene), _bare(scene.bare)]),
        *space,
        _last(scene),
    ]
    whole = Table.grid(expand=True)
    whole.add_row(Group(*parts))
    whole.width = min(width, WIDEST)
    return whole


def _row(parts: Sequence[RenderableType]) -> Table:
    """Return *parts* side by side, all of the same width."""
    row = Table.grid(expand=True)
    for _ in parts:
        row.add_column(ratio=1)
    row.add_row(*parts)
    return row


def _heading(scene: Scene) -> Table:
    row = Table.grid(expand=True)
    row.add_column(ratio=1)
    row.add_column(justify="right")
    text = f": one lock on {MASTERS} masters, {WORKERS} workers in {PROCESSES} processes"
    row.add_row(Text.assemble(("redlock_aio", "bold"), text), f"{scene.seconds:.1f} s")
    return row


def _box(number: int, state: MasterState) -> Panel:
    colour, word, more = LOOKS[state.word]
    text = Text.assemble((word, "bold"), "\n", more.format(state.seconds), justify="center")
    text.no_wrap = True
    return Panel(text, title=f"master {number}", border_style=colour, style=colour, padding=0)


def _turn(scene: Scene) -> Table:
    """Return the line that says who holds the lock."""
    if scene.holder:
        who = Text.assemble("held by ", (f"worker {scene.holder}", "bold green"))
    else:
        last = f"; worker {scene.latest[0]} was last" if scene.latest else ""
        who = Text(f"free{last}", style="dim")
    before = Text(no_wrap=True, overflow="ellipsis")
    if scene.latest:
        before.append("turns before: ", style="dim")
        before.append(" ".join(str(worker) for worker in scene.latest))
    row = Table.grid(expand=True)
    row.add_column(width=10)
    row.add_column(width=25)
    row.add_column(ratio=1)
    row.add_row(Text("the lock", style="bold"), who, before)
    return row


def _workers(scene: Scene) -> Table:
    """Return the turns of each worker, the holder marked."""
    grid = Table.grid(expand=True)
    grid.add_column(width=10)
    for _ in range(TASKS):
        grid.add_column(justify="right", width=2)
        grid.add_column(width=1)
        grid.add_column(ratio=1)
        grid.add_column(justify="right", width=5)
        grid.add_column(width=2)
    most = max(*scene.turns, 1)
    for process in range(PROCESSES):
        cells: list[RenderableType] = [f"process {process + 1}"]
        for number in range(process * TASKS, (process + 1) * TASKS):
            holds = scene.holder == number + 1
            turns = scene.turns[number]
            bar = ProgressBar(
                most,
                turns,
                style="dim",
                complete_style="green" if holds else "blue",
                finished_style="green" if holds else "blue",
            )
            name = Text(str(number + 1), style="bold green reverse" if holds else "")
            cells += [name, "", bar, str(turns), ""]
        grid.add_row(*cells)
    return grid


def _locked(scene: Scene) -> Panel:
    lost = scene.locked.lost
    more = f"longest wait {scene.longest:.2f} s, leases lost: {scene.losses}"
    return _counter("WITH THE LOCK", scene.locked, more, "bold red" if lost else "bold green")


def _bare(count: Count) -> Panel:
    more = "nobody waits, and nobody notices"
    return _counter("WITHOUT THE LOCK", count, more, "bold red" if count.lost else "bold")


def _counter(title: str, count: Count, more: str, style: str) -> Panel:
    text = Text.assemble(
        (f"{count.lost} lost", style),
        f"\n{count.turns} turns, the counter says {count.counted}\n",
        (more, "dim"),
        justify="center",
    )
    return Panel(text, title=title, border_style=style, padding=0)


def _last(scene: Scene) -> RenderableType:
    """Return the last line: how far the run is, and in the end its result."""
    if not scene.over:
        return ProgressBar(1.0, scene.progress, style="dim", complete_style="blue")
    return Text(verdict(scene), style="bold red" if scene.locked.lost else "bold green")
