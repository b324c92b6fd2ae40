"""``redlock masters``: the same as ``python -m redlock_aio.testing``."""

from typing import Annotated

import typer

from redlock_aio.cli.exits import Exit, Failure
from redlock_aio.cli.helping import HelpfulCommand
from redlock_aio.cli.output import Output
from redlock_aio.testing._serving import HELP, serve

Number = Annotated[int, typer.Argument(metavar="NUMBER", help=HELP["number"], show_default=False)]
Port = Annotated[int | None, typer.Option("--port", metavar="NUMBER", help=HELP["port"])]
Restart = Annotated[
    float | None, typer.Option("--restart", metavar="SECONDS", help=HELP["restart"])
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Write the URLs as JSON instead of a line for a shell.")
]


def add_to(app: typer.Typer) -> None:
    """Add the command to *app*."""
    app.command("masters", cls=HelpfulCommand, epilog="redlock masters 3 --port 7001")(masters)


def masters(
    context: typer.Context,
    number: Number = 5,
    port: Port = None,
    restart: Restart = None,
    as_json: AsJson = False,
) -> None:
    """
    Start masters on this machine, to try locks with, until Ctrl-C.

    The line that it prints tells programs in a shell where they are.
    """
    out = Output(context.obj, as_json=as_json)
    announce = (lambda urls: out.result({"masters": urls}, "")) if as_json else None
    try:
        status = serve(number, port=port, restart=restart, announce=announce)
    except ValueError as error:
        status = out.fail(Failure(Exit.USAGE, str(error)))
    except (OSError, RuntimeError) as error:
        status = out.fail(Failure(Exit.FAILED, f"the masters can't run: {error}"))
    raise typer.Exit(status)
