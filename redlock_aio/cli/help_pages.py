"""The pages of help of ``redlock`` and its commands, see `helping`."""

import inspect
from collections.abc import Iterable, Iterator
from typing import Any

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from redlock_aio.cli import durations

WIDEST = 100
"""Longer lines are hard to read."""


def of_command(command: Any, ctx: Any, last: str) -> str:
    """Return the help of a command; the panel *last* comes after the others."""
    return _rendered(_parts(command, ctx, last))


def of_group(group: Any, ctx: Any, last: str) -> str:
    """Return the help of ``redlock`` itself; *last* as for `of_command`."""
    rows = [
        (Text(name, style="bold cyan"), Text(_first_paragraph(command.help or "")))
        for name, command in group.commands.items()
    ]
    parts = [
        *_head(f"{ctx.command_path} [OPTIONS] COMMAND ...", group.help, group.epilog),
        _panel("Commands", rows, _width(rows)),
        *_panels(group.get_params(ctx), last),
        Text(f"{ctx.command_path} COMMAND --help tells more about a command."),
    ]
    return _rendered(parts)


def _parts(command: Any, ctx: Any, last: str) -> Iterator[RenderableType]:
    params = command.get_params(ctx)
    arguments = [param for param in params if param.param_type_name == "argument"]
    words = [arg.metavar if arg.required else f"[{arg.metavar}]" for arg in arguments]
    usage = " ".join([ctx.command_path, "[OPTIONS]", *words])
    yield from _head(usage, command.help, command.epilog)
    yield from _panels(params, last)
    if any(param.metavar == "DURATION" for param in params):
        yield Text(f"A DURATION is {durations.EXPLAINED}.")


def _head(usage: str, text: str | None, example: str | None) -> Iterator[RenderableType]:
    yield Text.assemble(("Usage: ", "bold"), usage)
    for paragraph in inspect.cleandoc(text or "").split("\n\n"):
        yield Text()
        yield Text(paragraph.replace("\n", " "))
    if example:
        yield Text()
        yield Text.assemble(("Example: ", "bold"), (example, "green"))
    yield Text()


def _panels(params: Iterable[Any], last: str) -> Iterator[RenderableType]:
    """Yield the panels of *params*: arguments, the command's own options, those of all commands."""
    panels: dict[str, list[tuple[Text, Text]]] = {"Arguments": [], "Options": []}
    for param in params:
        name = "Arguments" if param.param_type_name == "argument" else "Options"
        rows = panels.setdefault(getattr(param, "rich_help_panel", None) or name, [])
        text = Text(param.help or "")
        if variable := getattr(param, "envvar", None):
            text.append(f" Variable: {variable}.")
        rows.append((_names(param), text))
    if common := panels.pop(last, None):
        panels[last] = common  # also below --help
    width = max(map(_width, panels.values()))
    for title, rows in panels.items():
        if rows:
            yield _panel(title, rows, width)


def _names(param: Any) -> Text:
    """Return the names of an option and its value, or the name of an argument."""
    if param.param_type_name == "argument":
        return Text(param.metavar, style="bold cyan")
    names = Text(", ".join(sorted(param.opts, key=len)), style="bold cyan")
    if not param.is_flag and not param.count:
        names.append(f" {param.metavar}", style="yellow")
    return names


def _width(rows: Iterable[tuple[Text, Text]]) -> int:
    return max((len(names) for names, _ in rows), default=0)


def _panel(title: str, rows: Iterable[tuple[Text, Text]], width: int) -> Panel:
    table = Table.grid(padding=(0, 2, 0, 0), expand=True)
    table.add_column(width=width)
    table.add_column(ratio=1)
    for row in rows:
        table.add_row(*row)
    return Panel(table, title=title, title_align="left", border_style="dim")


def _first_paragraph(text: str) -> str:
    return inspect.cleandoc(text).partition("\n\n")[0].replace("\n", " ")


def _rendered(parts: Iterable[RenderableType]) -> str:
    """Return the text of *parts*, as wide as the terminal, and in colour if it has some."""
    console = Console(highlight=False)
    with console.capture() as captured:
        for part in parts:
            console.print(Padding(part, (0, 1)), width=min(console.width, WIDEST))
    return "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())
