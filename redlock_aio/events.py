"""
What happens to locks and masters, for whoever watches.

A `Listener` is given to a manager, ``Redlock(masters, listener=...)``, and called
with each event of its locks and masters: in the event loop, one event at a time,
in the order in which things happened. So it must not block, as nothing else runs
meanwhile; what takes time belongs to a queue, a task or a thread of its own. What
it raises is logged and changes nothing.

An acquisition gives one `Acquired` or one `Missed`, and before that at most one
`Waiting`; nothing more if it is cancelled, or ends because the manager is closed.
A lease gives one `Acquired`, an `Extended` for each extension that holds, and at
the end one `Released` or one `Lost`.

Durations are whole milliseconds on the clock that leases live by, which also
counts the time for which the machine was suspended. No event holds a token or a
credential.
"""

import logging
from dataclasses import dataclass
from typing import Protocol

from redlock_aio._rules.validation import of_type
from redlock_aio.errors import LockNotAcquiredError

__all__ = (
    "Acquired",
    "Event",
    "Extended",
    "Listener",
    "Lost",
    "MasterBack",
    "MasterLost",
    "Missed",
    "Released",
    "Waiting",
    "log_to",
)


@dataclass(frozen=True, slots=True)
class Waiting:
    """
    A lock was not had at the first attempt, or others of its program come first.

    Told at most once in an acquisition, and never if it does not wait: with a
    *wait* of 0 and by `Lock.try_acquire`.

    Attributes:
        resources: The names that are asked for.
    """

    resources: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Acquired:
    """
    A lock was acquired.

    Told in the task that has it, before its block is entered.

    Attributes:
        resources: The names that are locked.

        fingerprint: What tells this lease from all others, as `Lease.fingerprint`.

        waited_ms: How many milliseconds it took, from the call to the lease.

        fencing_token: As `Lease.fencing_token`; ``None`` if it has none.
    """

    resources: tuple[str, ...]
    fingerprint: str
    waited_ms: int
    fencing_token: int | None


@dataclass(frozen=True, slots=True)
class Missed:
    """
    An acquisition ended without the lock.

    Attributes:
        resources: The names that were asked for.

        waited_ms: How many milliseconds it took.

        error: Why, as it is raised: a `QuorumUnavailableError` if too few masters
            answered, else others held the lock. `Lock.try_acquire` raises none; it
            is told here all the same, with the votes at the moment of the decision
            and, but for a fair lock, without the holder, for whom nobody waited.
    """

    resources: tuple[str, ...]
    waited_ms: int
    error: LockNotAcquiredError


@dataclass(frozen=True, slots=True)
class Extended:
    """
    A lease was extended, by itself or by `Lease.extend`.

    Attributes:
        resources: The names that are locked.

        fingerprint: As `Acquired` has told it.

        ttl: For how many milliseconds, from when it was sent.

        margin_ms: For how many milliseconds more the lease could have been believed
            without it when a majority had agreed. Near 0, it was almost lost.
    """

    resources: tuple[str, ...]
    fingerprint: str
    ttl: int
    margin_ms: int


@dataclass(frozen=True, slots=True)
class Lost:
    """
    A lease ended before its holder let go of it, or had ended by then.

    Attributes:
        resources: The names that were locked.

        fingerprint: As `Acquired` has told it.

        reason: How it was lost, as in `LockLostError`.

        held_ms: How many milliseconds it was held, until it was known to be lost.
    """

    resources: tuple[str, ...]
    fingerprint: str
    reason: str
    held_ms: int


@dataclass(frozen=True, slots=True)
class Released:
    """
    A lease was released by its holder, and was held until then as far as is known.

    Told when the holder goes on: when a majority of the masters has released it,
    or, if the holder fails or is cancelled, at once. What the masters would have
    said then is not waited for, so it is not told as `Lost` any more.

    Attributes:
        resources: The names that were locked.

        fingerprint: As `Acquired` has told it.

        held_ms: How many milliseconds it was held, until its holder let go of it.
    """

    resources: tuple[str, ...]
    fingerprint: str
    held_ms: int


@dataclass(frozen=True, slots=True)
class MasterLost:
    """
    A master has no vote now: it is unreachable, refuses us, or is quarantined.

    Told again before it is back only if it has none for another kind of reason:
    it was unreachable, and is quarantined now. A log line says so in any case.

    Attributes:
        master: The master's address, without credentials.

        reason: Why.
    """

    master: str
    reason: str


@dataclass(frozen=True, slots=True)
class MasterBack:
    """
    A master votes again that was told as `MasterLost`.

    Attributes:
        master: The master's address, without credentials.
    """

    master: str


_OfLocks = Acquired | Missed | Waiting | Extended | Lost | Released

Event = _OfLocks | MasterLost | MasterBack


class Listener(Protocol):
    """Whoever is told what happens: a plain function of one event, or what can be called so."""

    def __call__(self, event: Event, /) -> None:
        """Take one event; it must not block."""


def log_to(logger: logging.Logger | None = None) -> Listener:
    """
    Return a listener that writes what happens to locks into a log.

    `Lost` is a warning, `Missed` is info, the others are for debugging. Of masters
    that go and come back the library writes itself, with or without this; so they
    are left out here.

    Args:
        logger: Where to; the logger ``redlock_aio`` if it is left out.

    Raises:
        TypeError: It is no logger.
    """
    if logger is None:
        logger = logging.getLogger("redlock_aio")
    log = of_type(logger, logging.Logger, name="logger")

    def write(event: Event, /) -> None:
        if isinstance(event, MasterLost | MasterBack):
            return
        level = _LEVELS[type(event)]
        if log.isEnabledFor(level):
            log.log(level, *_line(event))

    return write


_LEVELS: dict[type[_OfLocks], int] = {
    Waiting: logging.DEBUG,
    Acquired: logging.DEBUG,
    Extended: logging.DEBUG,
    Released: logging.DEBUG,
    Missed: logging.INFO,
    Lost: logging.WARNING,
}


def _line(event: _OfLocks) -> tuple[str, *tuple[object, ...]]:
    """Return the text of a line, and what is put into it when it is written."""
    if isinstance(event, Missed):
        return "%s", event.error  # it names its resources itself
    names = ", ".join(map(repr, event.resources))
    if isinstance(event, Waiting):
        return "%s: waiting", names
    rest: tuple[object, ...]
    match event:
        case Acquired(fencing_token=None):
            text, rest = "acquired in %d ms", (event.waited_ms,)
        case Acquired():
            text = "acquired in %d ms with fencing token %d"
            rest = event.waited_ms, event.fencing_token
        case Extended():
            text, rest = "extended to %d ms with %d ms left", (event.ttl, event.margin_ms)
        case Released():
            text, rest = "released after %d ms", (event.held_ms,)
        case _:
            text, rest = "lost after %d ms: %s", (event.held_ms, event.reason)
    return "%s (%s) " + text, names, event.fingerprint, *rest
