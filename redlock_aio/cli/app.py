"""The commands of ``redlock``, and the place where its arguments become one of them."""

import os
import traceback
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.main import get_command

import redlock_aio
from redlock_aio.cli import bench, look, masters, release, run, show
from redlock_aio.cli.doctor import command as doctor
from redlock_aio.cli.exits import SIGNALLED, Exit, Failure
from redlock_aio.cli.frame import MASTERS, nobody_reads, of_system
from redlock_aio.cli.helping import HelpfulGroup
from redlock_aio.cli.output import Output
from redlock_aio.cli.redaction import Redaction
from redlock_aio.cli.words import CommandBefore

app: typer.Typer = typer.Typer(
    name="redlock",
    add_completion=True,
    cls=HelpfulGroup,
    rich_markup_mode=None,  # the help is made in `helping`
    epilog="redlock run backup -- pg_dump --file=/backup/db.sql shop",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"redlock {redlock_aio.__version__}")
        raise typer.Exit


@app.callback()
def redlock(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Work with locks over independent Redis or Valkey masters."""


look.add_to(app)
release.add_to(app)
run.add_to(app)
doctor.add_to(app)
show.add_to(app)
bench.add_to(app)
masters.add_to(app)

PROGRAM: Any = get_command(app)
"""Made by the import, during which an interrupt shows no traceback, see `redlock_aio.cli.main`."""


def _own(arguments: Sequence[str]) -> Sequence[str]:
    """Return the words before those of another command that is to be run."""
    at = next((at for at, word in enumerate(arguments) if not word.startswith("-")), None)
    command = PROGRAM.commands.get(arguments[at]) if at is not None else None
    if at is not None and isinstance(command, CommandBefore):
        return arguments[: at + 1 + command.count_own(arguments[at + 1 :])]
    return arguments[: arguments.index("--")] if "--" in arguments else arguments


def main(arguments: Sequence[str]) -> int:
    """Run the command that *arguments* name; return its exit code."""
    hide = Redaction([*arguments, os.environ.get(MASTERS, "")])
    out = Output(hide, as_json="--json" in _own(arguments))
    try:
        code = PROGRAM.main(
            args=list(arguments or ["--help"]), prog_name="redlock", standalone_mode=False, obj=hide
        )
    except typer.TyperException as error:
        return out.fail(Failure(Exit.USAGE, error.format_message()))
    except typer.Abort:
        return SIGNALLED + 2
    except SystemExit as end:
        # typer and rich end a program by 1 when they find that nobody reads what they write.
        if isinstance(end.__context__, BrokenPipeError):
            return nobody_reads()
        raise
    except OSError as error:
        return out.fail(of_system(error))
    except Exception:  # noqa: BLE001 - the end of the program; a traceback may have a password
        return out.fail(Failure(Exit.FAILED, traceback.format_exc()))
    return code if isinstance(code, int) else Exit.DONE
