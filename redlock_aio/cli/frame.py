"""
What all commands have in common: the masters, ``--json``, exit codes, and signals.

A command is a coroutine function of a `Frame` and of its own options, which are declared as
typer wants them. `command` adds the common options, so that each is declared once.
"""

import asyncio
import contextlib
import inspect
import logging
import math
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

import typer

from redlock_aio import (
    LockLostError,
    LockNotAcquiredError,
    QuorumUnavailableError,
    Redlock,
    RedlockError,
    Vote,
    requirements,
)
from redlock_aio.cli import durations
from redlock_aio.cli.exits import SIGNALLED, Exit, Failure
from redlock_aio.cli.helping import MASTERS_PANEL, HelpfulCommand
from redlock_aio.cli.output import NotesHandler, Output

MASTERS = "REDLOCK_MASTERS"
"""The variable that names the masters; a URL among the arguments is seen by every user."""

MAJORITY = 3_000
"""
For how many ms a look waits for a majority of the masters, if their timeout is not longer.

With TLS and a password a connection takes six round trips, of 0.3 s to the other side of the world.
"""

MINORITY = 1_000
"""For how many ms it waits for the others after that, if their timeout is not longer."""

CONNECTING = "connecting"
"""Why a master is away, in `Redlock.statistics`, during the first attempt to connect to it."""

PATIENCE = 1_000
"""
The timeout of a master in ms for a single look. A program learns a shorter one, so that a master
that hangs holds no lock up; here the time is of no account, and all answers are wanted.
"""

GuardMode = Literal["auto", "strict", "fsync-always", "off"]


def duration(text: str | int) -> int:
    """Return the ms of an option that is a duration; a default is one already."""
    try:
        return text if isinstance(text, int) else durations.milliseconds(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def Duration(  # noqa: N802 - as `typer.Option`
    *names: str,
    help: str,  # noqa: A002
    panel: str | None = None,
) -> Any:
    """Return the declaration of an option that is a duration."""
    return typer.Option(
        *names, parser=duration, metavar="DURATION", help=help, rich_help_panel=panel
    )


def Number(  # noqa: N802 - as `typer.Option`
    *names: str,
    help: str,  # noqa: A002
    least: int | None = None,
    most: int | None = None,
) -> Any:
    """
    Return the declaration of an option that is a whole number.

    Args:
        least: The lowest that is accepted; ``None`` if the command itself checks the number.

        most: The highest, if there is a *least*; ``None`` for no limit.
    """

    def number(text: str | int) -> int:
        try:
            found = int(text)
        except ValueError:
            raise typer.BadParameter(f"must be a whole number, not {text!r}") from None
        if least is not None and most is not None and not least <= found <= most:
            raise typer.BadParameter(f"must be from {least} to {most}, not {found}")
        if least is not None and found < least:
            raise typer.BadParameter(f"must be at least {least}, not {found}")
        return found

    return typer.Option(*names, parser=number, metavar="NUMBER", help=help, show_default=False)


@dataclass(frozen=True, kw_only=True)
class Common:
    """The options that every command has."""

    masters: Annotated[
        str,
        typer.Option(
            "--masters",
            "-m",
            envvar=MASTERS,
            metavar="URLS",
            rich_help_panel=MASTERS_PANEL,
            help="The masters, as URLs with commas between them. All programs with these locks"
            " name the same masters.",
        ),
    ] = ""
    key_prefix: Annotated[
        str,
        typer.Option(
            "--key-prefix",
            envvar="REDLOCK_KEY_PREFIX",
            metavar="TEXT",
            rich_help_panel=MASTERS_PANEL,
            help="What to put before each name, the same as in the other programs.",
        ),
    ] = ""
    master_timeout: Annotated[
        int | None,
        Duration(
            "--master-timeout",
            help="How long to wait for a master's answer (default: learned; 1s for inspect and"
            " list).",
            panel=MASTERS_PANEL,
        ),
    ] = None
    max_ttl: Annotated[
        int | None,
        Duration(
            "--max-ttl",
            help="The longest ttl that a lock of any program may have (default 60s).",
            panel=MASTERS_PANEL,
        ),
    ] = None
    restart_guard: Annotated[
        GuardMode | None,
        typer.Option(
            "--restart-guard",
            metavar="GUARD",
            rich_help_panel=MASTERS_PANEL,
            help="How masters that may have forgotten locks are kept out of votes: auto, strict,"
            " fsync-always or off (default: auto; off for inspect, list, watch and bench).",
        ),
    ] = None
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            metavar="TEXT",
            rich_help_panel=MASTERS_PANEL,
            help="The name of the holder that others see (default: host and pid).",
        ),
    ] = None
    json: Annotated[
        bool,
        typer.Option(
            "--json",
            rich_help_panel=MASTERS_PANEL,
            help="Write results and messages as JSON, one object on each line.",
        ),
    ] = False


class Frame:
    """
    What a command gets: its output, and the masters.

    Args:
        common: The options that every command has.

        out: Writes results and messages.

        guard: The restart guard if the user names none.
    """

    def __init__(self, common: Common, out: Output, guard: GuardMode) -> None:
        self._common = common
        self._guard = guard
        self.out: Output = out
        self.on_signal: Callable[[int], None] | None = None
        """Called with a signal that ends programs, instead of a cancellation of the command."""
        self.interrupted: bool = False
        """Whether this process is to die of an interrupt."""

    def __repr__(self) -> str:
        return f"<Frame, {self.out!r}>"

    @property
    def masters(self) -> list[str]:
        """
        The URLs of the masters.

        Raises:
            Failure: None is named.
        """
        urls = requirements.split_urls(self._common.masters)
        if not urls:
            raise Failure(
                Exit.USAGE, "no masters: name them in --masters or REDLOCK_MASTERS, with commas"
            )
        return urls

    @property
    def each_master(self) -> list[str]:
        """
        A URL for each master, also for those of one Redis Cluster.

        Raises:
            Failure: None is named, or the URL of the Cluster is invalid.
        """
        with wrong_options():
            return requirements.each_master(self.masters)

    @property
    def max_ttl(self) -> int:
        """The longest ttl in ms."""
        return 60_000 if self._common.max_ttl is None else self._common.max_ttl

    @property
    def master_timeout(self) -> int | None:
        """The timeout of a master in ms; ``None`` if it is learned."""
        return self._common.master_timeout

    @property
    def key_prefix(self) -> str:
        """What is put before each name."""
        return self._common.key_prefix

    @property
    def guard(self) -> GuardMode:
        """The restart guard."""
        return self._common.restart_guard or self._guard

    @contextlib.asynccontextmanager
    async def connected(self, manager: Redlock | None = None) -> AsyncIterator[Redlock]:
        """
        Open a manager, and wait until all masters are up, for some seconds at most.

        An acquisition does not wait for a minority; somebody who looks wants to see all masters,
        and during an outage which of them hang.

        Args:
            manager: The manager to open, if it was made before.

        Cancellation:
            The manager is closed.
        """
        async with contextlib.aclosing(manager or self.redlock()) as redlock:
            # It is not entered: that waits until no attempt of a majority is underway, and one to
            # a master that hangs takes ten timeouts. `check` opens it, and has a limit.
            now, timeout = asyncio.get_running_loop().time, redlock.master_timeout
            wait, enough = max(MAJORITY, timeout), False
            ends = now() + wait / 1000
            with contextlib.suppress(QuorumUnavailableError):
                await redlock.check(wait=wait)
                ends, enough = math.inf, True
            ends = min(ends, now() + max(MINORITY, timeout) / 1000)
            # A majority that refuses connections does so within a round trip. The others need
            # several, and are to be seen: then only first attempts are awaited.
            while now() < ends and any(  # noqa: ASYNC110 - no event tells it
                not master.up and (enough or master.reason == CONNECTING)
                for master in redlock.statistics().masters
            ):
                await asyncio.sleep(0.01)
            yield redlock

    def patient(self) -> Redlock:
        """Return a manager for a single look."""
        timeout = PATIENCE if self.master_timeout is None else self.master_timeout
        return self.redlock(master_timeout=timeout)

    def redlock(self, masters: Sequence[str] | None = None, **options: Any) -> Redlock:
        """
        Return a manager of the masters, or of *masters*.

        Raises:
            Failure: An option is invalid.
        """
        common = self._common
        given: dict[str, Any] = {
            "master_timeout": common.master_timeout,
            "max_ttl": self.max_ttl,
            "key_prefix": common.key_prefix,
            "restart_guard": self.guard,
            "name": common.name,
            **options,
        }
        with wrong_options():
            return Redlock(self.masters if masters is None else masters, **given)


@contextlib.contextmanager
def wrong_options() -> Iterator[None]:
    """Turn the library's error about an argument into a `Failure`."""
    try:
        yield
    except (TypeError, ValueError) as error:
        # What follows is for programs: a duration has a unit here.
        text = str(error).partition("; times are milliseconds")[0]
        raise Failure(Exit.USAGE, text) from None


Body = Callable[..., Coroutine[Any, Any, int]]


def command(
    app: typer.Typer,
    *,
    name: str,
    guard: GuardMode,
    example: str,
    kind: type[HelpfulCommand] = HelpfulCommand,
) -> Callable[[Body], Body]:
    """
    Return a decorator that makes a coroutine function a command of *app*.

    Args:
        name: The name of the command.

        guard: The restart guard if the user names none. Commands that only look have
            ``"off"``, because the others write on the masters.

        example: A command line for its help.

        kind: How its arguments are parsed.
    """
    shared = inspect.signature(Common, eval_str=True).parameters

    def register(body: Body) -> Body:
        own = list(inspect.signature(body, eval_str=True).parameters.values())[1:]

        def run(context: typer.Context, **given: Any) -> None:
            common = Common(**{field.name: given.pop(field.name) for field in fields(Common)})
            frame = Frame(common, Output(context.obj, as_json=common.json), guard)
            with messages_of_the_library(frame.out):
                raise typer.Exit(ended(frame, lambda: body(frame, **given)))

        first = inspect.Parameter(
            "context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context
        )
        parameters = [p.replace(kind=p.KEYWORD_ONLY) for p in (first, *own, *shared.values())]
        vars(run)["__signature__"] = inspect.Signature(parameters)
        run.__doc__ = inspect.getdoc(body)
        app.command(name, cls=kind, epilog=example)(run)
        return body

    return register


@contextlib.contextmanager
def messages_of_the_library(out: Output) -> Iterator[None]:
    """Write what the library logs as messages."""
    log, handler = logging.getLogger("redlock_aio"), NotesHandler(out)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


def ended(frame: Frame, body: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Run *body* in an event loop; return the exit code, after a message about its failure."""
    out = frame.out
    try:
        code = asyncio.run(until_signal(frame, body))
        if frame.interrupted:
            die_of_interrupt()
    except Failure as failure:
        return out.fail(failure)
    except RedlockError as error:
        return out.fail(of_library(error))
    except BrokenPipeError:
        return nobody_reads()
    except OSError as error:
        return out.fail(of_system(error))
    return code


def die_of_interrupt() -> None:
    """
    End this process by SIGINT.

    A shell that gets an interrupt from the keyboard ends its script only if the program for
    which it waits dies of the signal; it does not, if the program exits with 130.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)


def nobody_reads() -> int:
    """Return the exit code after stdout was closed, and spare Python's complaint about it."""
    _discard_stdout()
    return SIGNALLED + 13


def of_system(error: OSError) -> Failure:
    """Return the end that an error of the system means, such as about a full disk."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:  # or else Python would try it again at its end, complain, and exit with 120
        _discard_stdout()
    return Failure(Exit.FAILED, f"failed: {error}")


def _discard_stdout() -> None:
    """Let what is written to stdout, and what it still keeps, go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def of_library(error: RedlockError) -> Failure:
    """Return the end that an error of the library means."""
    code = Exit.NO_LOCK
    facts: dict[str, object] = {}
    if isinstance(error, LockNotAcquiredError):
        away = isinstance(error, QuorumUnavailableError)
        code = Exit.UNAVAILABLE if away else Exit.HELD_BY_OTHERS
        facts["masters"] = facts_of_votes(error.votes)
    elif isinstance(error, LockLostError):
        code = Exit.LOST
        facts.update(cause=error.cause.value, masters=facts_of_votes(error.votes))
    return Failure(code, str(error), **facts)


def facts_of_votes(votes: Sequence[Vote]) -> list[dict[str, str]]:
    """Return *votes* for JSON."""
    return [
        {"master": vote.master, "answer": vote.answer.name.lower(), "detail": vote.detail}
        for vote in votes
    ]


async def until_signal(frame: Frame, body: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """
    Return the exit code of *body*, which is cancelled by the first signal that ends programs.

    Cancellation:
        The body is cancelled.
    """
    caught: list[int] = []
    task = asyncio.create_task(body())

    def on_signal(number: int) -> None:
        if frame.on_signal is not None:
            frame.on_signal(number)
        else:
            caught.append(number)
            task.cancel()

    with handling(("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"), on_signal):
        try:
            return await task
        except asyncio.CancelledError:
            if not caught:
                raise
            frame.interrupted = caught[0] == signal.SIGINT
            return SIGNALLED + caught[0]


@contextlib.contextmanager
def handling(names: Sequence[str], act: Callable[[int], None]) -> Iterator[None]:
    """
    Call *act* in the event loop with the number of each of these signals that comes.

    A signal that is ignored, as SIGHUP is below ``nohup``, stays ignored; one that the system
    does not have is left out. Afterwards each does what it did before.
    """
    loop = asyncio.get_running_loop()
    taken = {}
    try:
        for name in names:
            number = getattr(signal, name, None)
            before = None if number is None else signal.getsignal(number)
            if number is not None and before is not signal.SIG_IGN:
                with contextlib.suppress(NotImplementedError):  # Windows
                    loop.add_signal_handler(number, act, number)
                    taken[number] = before
        yield
    finally:
        for number, before in taken.items():
            loop.remove_signal_handler(number)  # sets what an interrupt does for Python
            if before is not None:  # else it is not Python's
                signal.signal(number, before)
