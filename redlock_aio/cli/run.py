"""
``redlock run``: a command under a lock, as ``flock`` runs one under a lock of one machine.

    acquire ──► start ──┬─ the command ends ──► its group is empty ──► release ──► its exit code
                        └─ no extension in time ──► SIGTERM, grace, SIGKILL ──► `Exit.LOST`

The lease is not released before the command and what it has started have ended, and the command
is not started before the lease is held. See `supervision` and `child`.
"""

import contextlib
import os
import shutil
from pathlib import Path
from typing import Annotated

import typer

from redlock_aio import (
    Holder,
    Lease,
    Lock,
    LockNotAcquiredError,
    QuorumUnavailableError,
)
from redlock_aio._api.faces import acquire_or_skip
from redlock_aio.cli import durations
from redlock_aio.cli.exits import Exit, Failure
from redlock_aio.cli.frame import (
    Duration,
    Frame,
    Number,
    command,
    of_library,
    wrong_options,
)
from redlock_aio.cli.look import facts_of_holder
from redlock_aio.cli.words import CommandBefore

TTL = 30_000
"""
The default ttl in ms, unless *max_ttl* is shorter.

It is longer than that of the library, because a job that is ended for a short outage of the
masters costs more than a wait of half a minute after a crash.
"""

GRACE, GRACE_SHARE = 5_000, 4
"""The default of ``--grace`` in ms, unless a fourth of the ttl is shorter."""

MOST_GRACE_SHARE = 2
"""The grace may take half of the ttl: the other half is for extensions, from its third on."""

MOST_CODE = 255
"""The highest exit code that a process can have."""

TOKEN = "REDLOCK_FENCING_TOKEN"  # noqa: S105 - a name
"""The variable in the environment of the command with the fencing token."""

COERCED = {"C.UTF-8", "C.utf8", "UTF-8"}
"""What Python may set LC_CTYPE to if no locale is set."""

PERMIT = "REDLOCK_PERMIT"
"""The variable in the environment of the command with the number of its permit."""

Key = Annotated[str, typer.Argument(metavar="KEY", help="The name to lock.")]
Words = Annotated[
    list[str], typer.Argument(metavar="COMMAND...", help="The command with its own options.")
]
Ttl = Annotated[
    int | None,
    Duration("--ttl", help="How long the lock stays if this host crashes (default 30s)."),
]
Wait = Annotated[
    int | None,
    Duration("--wait", help="How long to wait for the lock; 0 tries once (default: for ever)."),
]
Fair = Annotated[bool, typer.Option("--fair", help="Wait in order of arrival.")]
Shared = Annotated[
    bool,
    typer.Option(
        "--shared", "-s", help="Share the lock with others that say --shared, as readers do."
    ),
]
AtOnce = Annotated[
    int | None,
    Number(
        "--permits",
        help="How many commands may run at once, each with a permit of its own,"
        f" whose number is in {PERMIT}.",
    ),
]
Fencing = Annotated[
    bool, typer.Option("--fencing", help=f"Give the command a fencing token, in {TOKEN}.")
]
AtLeast = Annotated[
    int,
    Duration(
        "--hold-at-least", help="The least time to keep the lock, even if the command ends earlier."
    ),
]
Skip = Annotated[
    bool,
    typer.Option("--skip-if-locked", help="If others hold the lock, end at once with code 0."),
]
Grace = Annotated[
    int | None,
    Duration(
        "--grace",
        help="The time from SIGTERM to SIGKILL, before the lock is lost"
        " (default 5s, or a fourth of a shorter ttl).",
    ),
]
Timeout = Annotated[
    int | None,
    Duration("--timeout", help="How long the command may run (default: for ever)."),
]
Conflict = Annotated[
    int | None,
    Number(
        "--conflict-exit-code", "-E", help="The exit code if others hold the lock (default 75)."
    ),
]
LeaderOnly = Annotated[
    bool,
    typer.Option(
        "--leader-only",
        help="Release the lock when the command ends, though others of its process group go on.",
    ),
]


def add_to(app: typer.Typer) -> None:
    """Add the command to *app*."""
    example = "redlock run backup --wait 1m -- pg_dump --file=/backup/db.sql shop"
    command(app, name="run", guard="auto", example=example, kind=CommandBefore)(run)


async def run(  # noqa: PLR0913, PLR0917 - its options
    frame: Frame,
    key: Key,
    words: Words,
    ttl: Ttl = None,
    wait: Wait = None,
    fair: Fair = False,
    shared: Shared = False,
    permits: AtOnce = None,
    fencing: Fencing = False,
    hold_at_least: AtLeast = 0,
    skip_if_locked: Skip = False,
    grace: Grace = None,
    timeout: Timeout = None,  # noqa: ASYNC109 - of the command, by `Supervision`
    conflict_exit_code: Conflict = None,
    leader_only: LeaderOnly = False,
) -> int:
    """
    Run a command while holding a lock; its exit code is that of the command.

    The lock is extended for as long as the command and the processes of its group run. If it
    can't be extended, they are ended before it is lost. Signals for redlock are forwarded to
    them. The options of redlock end at the first word of the command.
    """
    if os.name != "posix":
        raise Failure(Exit.CANNOT_RUN, "'redlock run' needs a POSIX system")
    if shared and (fencing or hold_at_least):
        other = "--fencing" if fencing else "--hold-at-least"
        raise Failure(Exit.USAGE, f"{other} can't be used with --shared: it is for writers")
    if shared and permits is not None:
        raise Failure(
            Exit.USAGE, "--shared can't be used with --permits: a semaphore has no readers"
        )
    check_limits(wait, timeout, conflict_exit_code, skip_if_locked=skip_if_locked)
    ttl = min(TTL, frame.max_ttl) if ttl is None else ttl
    grace = fitting(grace, ttl)
    check_command(words[0])
    # Only a POSIX system has what these modules import.
    from redlock_aio.cli.supervision import Limits, Observed, Supervision

    observed = Observed()
    redlock = frame.redlock(listener=observed.on_event)
    with wrong_options():  # before a master is asked: these errors are about the command line
        lock = redlock.lock(
            key,
            ttl=ttl,
            wait=0 if skip_if_locked else wait,
            fair=fair or None,
            shared=shared,
            permits=permits,
            fencing=fencing,
            hold_at_least=hold_at_least,
            on_lost="flag",
            metadata={"command": name_of(words[0])},
        )
    async with redlock:
        try:
            lease = await acquired(lock, key, skip_if_locked=skip_if_locked)
        except Failure as failure:
            if failure.code != Exit.HELD_BY_OTHERS:
                raise
            code = Exit.HELD_BY_OTHERS if conflict_exit_code is None else conflict_exit_code
            code = Exit.DONE if skip_if_locked else code
            facts = {"error": "held_by_others", "exit_code": int(code), **failure.facts}
            if skip_if_locked:
                frame.out.note(f"{failure}: skipped", **facts)
            else:
                frame.out.note(str(failure), **facts)
            return code
        environment = inherited_environment()
        if fencing:
            environment[TOKEN] = str(lease.fencing_token)
        if lease.permit is not None:
            environment[PERMIT] = str(lease.permit)
        limits = Limits(grace, timeout, leader_only, hold_at_least)
        return await Supervision(frame, lease, observed, limits).run(words, environment)


def check_limits(
    wait: int | None, timeout: int | None, conflict_exit_code: int | None, *, skip_if_locked: bool
) -> None:
    """Raise the `Failure` about options that are invalid, or do not go together."""
    if skip_if_locked and wait:
        got = durations.shown(wait)
        raise Failure(Exit.USAGE, f"--wait must be 0 with --skip-if-locked, not {got}")
    if skip_if_locked and conflict_exit_code:
        raise Failure(
            Exit.USAGE,
            f"--conflict-exit-code must be 0 with --skip-if-locked, not {conflict_exit_code}",
        )
    if conflict_exit_code is not None and not 0 <= conflict_exit_code <= MOST_CODE:
        raise Failure(
            Exit.USAGE, f"--conflict-exit-code must be from 0 to 255, not {conflict_exit_code}"
        )
    if timeout == 0:
        raise Failure(Exit.USAGE, "--timeout must be longer than 0")


def fitting(grace: int | None, ttl: int) -> int:
    """
    Return the grace in ms, which is by default what fits well into *ttl*.

    Raises:
        Failure: It leaves too little of the ttl for extensions.
    """
    if grace is None:
        return min(GRACE, ttl // GRACE_SHARE)
    if grace * MOST_GRACE_SHARE > ttl:
        most = ttl // MOST_GRACE_SHARE
        raise Failure(
            Exit.USAGE,
            f"--grace must be at most {most} ms, half of the ttl of {ttl} ms, not {grace} ms",
        )
    return grace


def check_command(word: str) -> None:
    """Raise `Failure` if there is no such command, before anybody waits for a lock."""
    if shutil.which(word) is not None:
        return
    try:
        exists = os.sep in word and Path(word).exists()
    except OSError as error:  # such as a folder that this user may not enter
        raise Failure(Exit.CANNOT_RUN, f"{word!r} can't be executed: {error.strerror}") from None
    if exists:
        raise Failure(Exit.CANNOT_RUN, f"{word!r} can't be executed")
    raise Failure(Exit.NOT_FOUND, f"there is no command {word!r}")


def inherited_environment() -> dict[str, str]:
    """
    Return the environment that this process was started with.

    Where no locale is set, as below cron, Python sets LC_CTYPE. The command would see
    characters where it has seen bytes before, and ssh may pass the locale on to other hosts.
    """
    environment = dict(os.environ)
    if environment.get("LC_CTYPE") in COERCED:
        with contextlib.suppress(OSError):
            entries = Path("/proc/self/environ").read_bytes().split(b"\0")
            before = [entry for entry in entries if entry.startswith(b"LC_CTYPE=")]
            del environment["LC_CTYPE"]
            for entry in before:
                environment["LC_CTYPE"] = os.fsdecode(entry.partition(b"=")[2])
    return environment


def name_of(word: str) -> str:
    """Return the name of a command as others see it; bytes that are no text are replaced."""
    return os.fsencode(Path(word).name).decode(errors="replace")[:200]


async def acquired(lock: Lock, key: str, *, skip_if_locked: bool) -> Lease:
    """
    Return a lease on *lock*.

    Raises:
        Failure: Others hold it, with the holder in its message.

    Cancellation:
        The lock is not acquired.
    """
    try:
        if skip_if_locked:
            return await acquire_or_skip(lock)
        return await lock.acquire()
    except QuorumUnavailableError:
        raise
    except LockNotAcquiredError as error:
        raise held(error, key) from None


def held(error: LockNotAcquiredError, key: str) -> Failure:
    """Return the end that an *error* about a lock of others, or their permits, means."""
    failure = of_library(error)
    if error.holder is None:
        return failure
    left = "?" if error.retry_after is None else durations.shown(error.retry_after)
    facts = {**failure.facts, "holder": facts_of_holder(error.holder)}
    who = described(error.holder)
    if error.permits is not None:
        return Failure(
            Exit.HELD_BY_OTHERS,
            f"{key!r} has no free permit; one is held by {who}, {left} left",
            **facts,
        )
    return Failure(Exit.HELD_BY_OTHERS, f"{key!r} is held by {who}, {left} left", **facts)


def described(holder: Holder) -> str:
    """Return a holder for people, with its command if it is a ``redlock run``."""
    running = holder.metadata.get("command")
    text = f"{holder} running {running}" if isinstance(running, str) else str(holder)
    return "".join(c if c.isprintable() else "?" for c in text)
