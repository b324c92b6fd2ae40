"""``redlock demo``: the demonstration of `redlock_aio.demo`."""

import contextlib
import sys
from typing import Annotated

import typer

from redlock_aio import demo
from redlock_aio.cli.exits import Exit
from redlock_aio.cli.helping import HelpfulCommand
from redlock_aio.cli.output import Output

Seconds = Annotated[
    float,
    typer.Option(
        "--seconds",
        min=demo.FEWEST_SECONDS,
        max=3600,
        metavar="NUMBER",
        help="About how long it takes, in seconds, from 3 to 3600 (default 10).",
    ),
]
Plain = Annotated[bool, typer.Option("--plain", help="Print lines of text also in a terminal.")]
AsJson = Annotated[
    bool, typer.Option("--json", help="Write the result as JSON, and all else to stderr.")
]


def add_to(app: typer.Typer) -> None:
    """Add the command to *app*."""
    app.command("demo", cls=HelpfulCommand, epilog="redlock demo --seconds 30")(play)


def play(
    context: typer.Context,
    seconds: Seconds = 10.0,
    plain: Plain = False,
    as_json: AsJson = False,
) -> None:
    """
    Start five masters here, kill and pause some, and count lost updates.

    The tasks of several processes increment one counter under the lock, and another one without
    it.
    """
    # With --json the text on stderr is for a log.
    arguments = ["--seconds", str(seconds), *(["--plain"] if plain or as_json else [])]
    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
        status = demo.main(arguments)
    if as_json and status in {0, 1}:
        Output(context.obj, as_json=True).result({"updates_lost": bool(status)}, "")
    raise typer.Exit(Exit.FAILED if status == 2 else status)
