"""``redlock demo``: the demonstration of `redlock_aio.demo`."""

import contextlib
import sys
from typing import Annotated

import typer

from redlock_aio import demo
from redlock_aio.cli.exits import Exit
from redlock_aio.cli.output import Output

Seconds = Annotated[
    float,
    typer.Option(
        "--seconds",
        min=demo.FEWEST_SECONDS,
        max=3600,
        metavar="NUMBER",
        help="How long it takes, in seconds (default 10).",
    ),
]
NoLock = Annotated[
    bool, typer.Option("--no-lock", help="Do the same without the lock, to see updates lost.")
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Write the result as JSON, and all else to stderr.")
]


def add_to(app: typer.Typer) -> None:
    """Add the command to *app*."""
    app.command("demo")(play)


def play(
    context: typer.Context,
    seconds: Seconds = 10.0,
    no_lock: NoLock = False,
    as_json: AsJson = False,
) -> None:
    """
    Start five masters here, kill and pause some, and count lost updates.

    Several processes increment a counter that only the lock protects.
    """
    arguments = ["--seconds", str(seconds), *(["--no-lock"] if no_lock else [])]
    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
        status = demo.main(arguments)
    if as_json and status in {0, 1}:
        Output(context.obj, as_json=True).result({"updates_lost": bool(status)}, "")
    raise typer.Exit(Exit.FAILED if status == 2 else status)
