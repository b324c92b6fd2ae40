"""
``redlock run``: a command under a lock, as ``flock`` runs one under a lock of one machine.

    acquire ──► start ──┬─ the command ends ──► release ──► its exit code
                        └─ the lock is lost ──► SIGTERM, grace, SIGKILL ──► `Exit.LOST`

The lease is not released before the command has ended, and the command is not started before
the lease is held. What ends `redlock` meanwhile goes to the command; see `child`.
"""

import asyncio
import contextlib
import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from redlock_aio import (
    Holder,
    Lease,
    Lock,
    LockNotAcquiredError,
    LockNotHeldError,
    QuorumUnavailableError,
)
from redlock_aio.cli import durations
from redlock_aio.cli.exits import Exit, Failure
from redlock_aio.cli.frame import (
    Duration,
    Frame,
    command,
    facts_of_votes,
    handling,
    of_library,
    wrong_options,
)
from redlock_aio.cli.look import facts_of_holder
from redlock_aio.cli.words import CommandBefore
from redlock_aio.events import Event, Lost

TTL = 30_000
"""
The default ttl in ms, unless *max_ttl* is shorter.

It is longer than that of the library, because a job that is ended for a short outage of the
masters costs more than a wait of half a minute after a crash.
"""

GRACE = 5_000
"""The default of ``--grace`` in ms."""

MOST_SPLITS = 10
"""The most attempts with ``--skip-if-locked`` while nobody holds the lock."""

TOKEN = "REDLOCK_FENCING_TOKEN"  # noqa: S105 - a name
"""The variable in the environment of the command with the fencing token."""

Key = Annotated[str, typer.Argument(metavar="KEY", help="The name to lock.")]
Words = Annotated[list[str], typer.Argument(metavar="COMMAND...", help="The command with its own options.")]
Ttl = Annotated[
    int | None,
    Duration("--ttl", help="How long the lock stays if this host crashes (default 30s)."),
]
Wait = Annotated[
    int | None,
    Duration("--wait", help="How long to wait for the lock; 0 tries once (default: for ever)."),
]
Fair = Annotated[bool, typer.Option("--fair", help="Wait in order of arrival.")]
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
    int,
    Duration("--grace", help="If the lock is lost, the time from SIGTERM to SIGKILL (default 5s)."),
]


def add_to(app: typer.Typer) -> None:
    """Add the command to *app*."""
    command(app, name="run", guard="auto", kind=CommandBefore)(run)


async def run(  # noqa: PLR0913, PLR0917 - its options
    frame: Frame,
    key: Key,
    words: Words,
    ttl: Ttl = None,
    wait: Wait = None,
    fair: Fair = False,
    fencing: Fencing = False,
    hold_at_least: AtLeast = 0,
    skip_if_locked: Skip = False,
    grace: Grace = GRACE,
) -> int:
    """
    Run a command while holding a lock; its exit code is that of the command.

    The lock is extended for as long as the command runs. If it is lost, the command and all
    processes of its group are ended. Signals for redlock are forwarded to the command.
    The options of redlock end at the first word of the command.
    """
    if os.name != "posix":
        raise Failure(Exit.CANNOT_RUN, "'redlock run' needs a POSIX system")
    if skip_if_locked and wait:
        got = durations.shown(wait)
        raise Failure(Exit.USAGE, f"--wait must be 0 with --skip-if-locked, not {got}")
    check_command(words[0])
    losses: list[Lost] = []

    def on_event(event: Event) -> None:
        if isinstance(event, Lost):
            losses.append(event)

    async with frame.redlock(listener=on_event) as redlock:
        with wrong_options():
            lock = redlock.lock(
                key,
                ttl=min(TTL, frame.max_ttl) if ttl is None else ttl,
                wait=0 if skip_if_locked else wait,
                fair=fair,
                fencing=fencing,
                hold_at_least=hold_at_least,
                on_lost="flag",
                metadata={"command": name_of(words[0])},
            )
        try:
            lease = await acquired(lock, key, MOST_SPLITS if skip_if_locked else 1)
        except Failure as failure:
            if failure.code == Exit.HELD_BY_OTHERS and skip_if_locked:
                facts = {"error": "held_by_others", "exit_code": 0, **failure.facts}
                frame.out.note(f"{failure}: skipped", **facts)
                return Exit.DONE
            raise
        environment = dict(os.environ)
        if fencing:
            environment[TOKEN] = str(lease.fencing_token)
        return await Supervision(frame, lease, losses, grace).run(words, environment)


def check_command(word: str) -> None:
    """Raise `Failure` if there is no such command, before anybody waits for a lock."""
    if shutil.which(word) is None:
        if os.sep in word and Path(word).exists():
            raise Failure(Exit.CANNOT_RUN, f"{word!r} can't be executed")
        raise Failure(Exit.NOT_FOUND, f"there is no command {word!r}")


def name_of(word: str) -> str:
    """Return the name of a command as others see it; bytes that are no text are replaced."""
    return os.fsencode(Path(word).name).decode(errors="replace")[:200]


async def acquired(lock: Lock, key: str, attempts: int) -> Lease:
    """
    Return a lease on *lock*.

    Args:
        attempts: How many times to try while nobody holds it. Hosts that try at the same
            moment split the votes, and if all of them skipped then, none would run the command.

    Raises:
        Failure: Others hold it, with the holder in its message.

    Cancellation:
        The lock is not acquired.
    """
    while True:
        attempts -= 1
        try:
            return await lock.acquire()
        except LockNotAcquiredError as error:
            if isinstance(error, QuorumUnavailableError):
                raise
            if error.holder is not None or attempts < 1:
                raise held(error, key) from None
        await asyncio.sleep(random.uniform(0.01, 0.2))  # noqa: S311 - a jitter


def held(error: LockNotAcquiredError, key: str) -> Failure:
    """Return the end that an *error* about a lock of others means."""
    failure = of_library(error)
    if error.holder is None:
        return failure
    left = "?" if error.retry_after is None else durations.shown(error.retry_after)
    facts = {**failure.facts, "holder": facts_of_holder(error.holder)}
    who = described(error.holder)
    return Failure(Exit.HELD_BY_OTHERS, f"{key!r} is held by {who}, {left} left", **facts)


def described(holder: Holder) -> str:
    """Return a holder for people, with its command if it is a ``redlock run``."""
    running = holder.metadata.get("command")
    text = f"{holder} running {running}" if isinstance(running, str) else str(holder)
    return "".join(c if c.isprintable() else "?" for c in text)


class Supervision:
    """
    A command that runs under a lease.

    Args:
        frame: Where messages go, and signals come from.

        lease: The lease, which is released at the end.

        losses: Gets the event of its loss, before a release fails for it.

        grace: How many ms after SIGTERM a command without a lock gets SIGKILL.
    """

    def __init__(self, frame: Frame, lease: Lease, losses: Sequence[Lost], grace: int) -> None:
        self._frame = frame
        self._out = frame.out
        self._lease = lease
        self._losses = losses
        self._grace = grace

    def __repr__(self) -> str:
        return f"<Supervision under {self._lease!r}>"

    async def run(self, words: list[str], environment: dict[str, str]) -> int:
        """
        Run the command to its end, release the lock, and return the exit code.

        Raises:
            Failure: It can't be executed.

            LockLostError: The lock was lost before the command has begun.

        Cancellation:
            Does not occur: signals are forwarded to the command from now on.
        """
        from redlock_aio.cli.child import TO_COMMAND, TO_GROUP, Child
        from redlock_aio.cli.impatience import Impatience

        lease, started = self._lease, list[Child]()

        def forward(number: int) -> None:
            for child in started:
                child.forward(number)

        patient, self._out.deliver = self._out.deliver, Impatience().write
        # Signals are handled before the command begins, because it may send some at once: they
        # are forwarded in a later turn of the loop, when it has begun. And until the lock is
        # released: a late SIGUSR1, meant for the command, must not end this process before.
        self._frame.on_signal = forward
        with handling((*TO_GROUP, *TO_COMMAND), forward):
            try:
                with self._guardian() as watch:
                    lease.ensure_valid()  # `redlock` may have been stopped since the acquisition
                    child = Child(
                        words,
                        environment,
                        before=watch,
                        may_go_on=lambda: lease.valid,
                        on_stop=self._on_stop,
                    )
                    started.append(child)
                    try:
                        await self._ended_or_lost(child)
                    finally:
                        self._frame.interrupted = child.close()
            finally:
                lost = await self._released()
                self._out.deliver = patient
        if lost is not None:
            self._tell(lost, child.status if child.ended.done() else None)
            return Exit.LOST
        return child.status

    def _tell(self, lost: Lost, status: int | None) -> None:
        facts = {
            "error": "lost",
            "exit_code": int(Exit.LOST),
            "command_exit_code": status,
            "cause": lost.cause.value,
            "masters": facts_of_votes(lost.votes),
        }
        if status is None:
            self._out.note(
                f"the lock was lost: {lost.reason}; the command can't be ended, and goes on",
                **facts,
            )
        else:
            self._out.note(
                f"the lock was lost: {lost.reason}; the command has ended with {status}", **facts
            )

    @contextlib.contextmanager
    def _guardian(self) -> Iterator[Callable[[], None]]:
        """Run a guardian during the body; yield what lets it watch a new process."""
        from redlock_aio.cli.guardian import Guardian

        try:
            guardian = Guardian(self._grace)
        except OSError as error:
            self._out.note(f"no /bin/sh ({error}): a SIGKILL of redlock does not end the command")
            yield lambda: None
            return
        try:
            yield guardian.watch
        finally:
            guardian.dismiss()

    async def _ended_or_lost(self, child: Any) -> None:
        lost = asyncio.create_task(self._lease.lost.wait())
        try:
            await asyncio.wait([child.ended, lost], return_when=asyncio.FIRST_COMPLETED)
            if not child.ended.done():
                self._out.note(f"the lock is lost; ending {child.group} by SIGTERM")
                await child.end(self._grace)
        finally:
            lost.cancel()

    async def _released(self) -> Lost | None:
        """Release the lock; return its loss if it was lost."""
        try:
            await self._lease.release()
        except LockNotHeldError:
            return self._losses[0]  # the listener has got it by now
        return None

    def _on_stop(self) -> None:
        left = durations.shown(self._lease.remaining)
        self._out.note(f"stopped; the lock is lost if that takes longer than {left}")
