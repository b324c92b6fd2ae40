"""
Events of locks and masters.

A `Listener` is given to a manager, ``Redlock(masters, listener=...)``, and called
with each event of its locks and masters: in the event loop, one event at a time,
in the order of the events. It must not block, because nothing else runs in the
loop meanwhile; move slow work to a queue, a task or a thread. An exception of the
listener is logged and changes nothing.

An acquisition emits one `Acquired`, `Missed` or `Cancelled`, and before that at most one
`Waiting`; nothing more if it ends with another error, because the manager is closed or its own
holder would wait for itself, or if it shares the lease of its own holder, by *reentrant*.
A lease emits one `Acquired`, an `Extended` for each successful extension, and at
the end one `Released` or one `Lost`. If its event loop was closed, that is a `Lost` when
the manager is used in another one.

A master emits a `MasterLost` as soon as it is known that it has no vote, and a `MasterBack` when
it votes after that. One that votes from the start emits nothing. Closing the manager is no change.

Durations are milliseconds on the clock of leases, which also counts the time for which the
machine was suspended: waits and holds to the microsecond, the others in whole milliseconds. No
event holds a token or a credential.

Each event of a lock has a `Mode`, which tells readers and holders of permits from holders that
are alone.
"""

import logging
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from redlock_aio._rules.causes import LossCause, NoVoteCause
from redlock_aio._rules.quorum import Vote
from redlock_aio._rules.validation import of_type, quoted
from redlock_aio.errors import LockNotAcquiredError, with_votes

__all__ = (
    "Acquired",
    "Cancelled",
    "Event",
    "Extended",
    "Listener",
    "Lost",
    "MajorityBack",
    "MajorityLost",
    "MasterBack",
    "MasterLost",
    "Missed",
    "Mode",
    "Released",
    "Waiting",
    "log_to",
)

Mode: TypeAlias = Literal["exclusive", "shared", "permit"]
"""
How a lock is held or requested: ``"shared"`` by a reader, ``"permit"`` by a holder of a permit of
a semaphore, ``"exclusive"`` by any other holder.

Later versions may add values. A listener should go on if it gets one that it does not know.
"""


@dataclass(frozen=True, slots=True)
class Waiting:
    """
    An acquisition waits: its first attempt failed, or other tasks of its program come first.

    Emitted at most once in an acquisition, and never by one that does not wait: with a
    *wait* of 0 and by `Lock.try_acquire`.

    Attributes:
        resources: The names that are requested.

        mode: How they are requested.
    """

    resources: tuple[str, ...]
    mode: Mode = "exclusive"


@dataclass(frozen=True, slots=True)
class Acquired:
    """
    A lock was acquired.

    Emitted in the task that holds it, before its block is entered.

    Attributes:
        resources: The names that are locked.

        fingerprint: The identity of this lease, as `Lease.fingerprint`.

        waited_ms: How many milliseconds it took, from the call to the lease.

        fencing_token: As `Lease.fencing_token`; ``None`` if it has none.

        mode: How it has them, as `Lease.mode`.

        permit: The number of the permit of a semaphore, as `Lease.permit`; ``None`` for other
            locks.
    """

    resources: tuple[str, ...]
    fingerprint: str
    waited_ms: float
    fencing_token: int | None
    mode: Mode = "exclusive"
    permit: int | None = None


@dataclass(frozen=True, slots=True)
class Missed:
    """
    An acquisition ended without the lock.

    Attributes:
        resources: The names that were requested.

        waited_ms: How many milliseconds it took.

        error: The reason, a copy of the error that is raised, without its traceback: a
            `QuorumUnavailableError` if too few masters answered, else others held the lock.
            `Lock.try_acquire` does not raise it, but the event has it anyway, with the votes
            at the moment of the decision.
            Its holder is then given for a fair lock only, because `Lock.try_acquire` does
            not wait for that reply.

        mode: As in `Waiting`.
    """

    resources: tuple[str, ...]
    waited_ms: float
    error: LockNotAcquiredError
    mode: Mode = "exclusive"


@dataclass(frozen=True, slots=True)
class Cancelled:
    """
    An acquisition was cancelled, and has no lock.

    Attributes:
        resources: The names that were requested.

        waited_ms: How many milliseconds it took, from the call to the cancellation.

        mode: As in `Waiting`.
    """

    resources: tuple[str, ...]
    waited_ms: float
    mode: Mode = "exclusive"


@dataclass(frozen=True, slots=True)
class Extended:
    """
    A lease was extended, automatically or by `Lease.extend`.

    Attributes:
        resources: The names that are locked.

        fingerprint: As in `Acquired`.

        ttl: The new ttl in milliseconds, which counts from when the extension was sent.

        margin_ms: The remaining validity, in milliseconds, when a majority had granted
            the extension, without it. Near 0, the lease was almost lost.

        mode: As in `Acquired`.
    """

    resources: tuple[str, ...]
    fingerprint: str
    ttl: int
    margin_ms: int
    mode: Mode = "exclusive"


@dataclass(frozen=True, slots=True)
class Lost:
    """
    A lease ended before its holder released it, or had ended by then.

    Attributes:
        resources: The names that were locked.

        fingerprint: As in `Acquired`.

        reason: Why it was lost, for people, as in `LockLostError`.

        held_ms: How many milliseconds it was held, until it was known to be lost.

        cause: Why it was lost, for programs.

        votes: As in `LockLostError`.

        mode: As in `Acquired`.
    """

    resources: tuple[str, ...]
    fingerprint: str
    reason: str
    held_ms: float
    cause: LossCause
    votes: tuple[Vote, ...] = ()
    mode: Mode = "exclusive"


@dataclass(frozen=True, slots=True)
class Released:
    """
    A lease was released by its holder, and was held until then as far as is known.

    Emitted when the holder continues: when a majority of the masters has released it,
    or at once if the holder fails or is cancelled. In the latter case the replies of the
    masters are not awaited, so a loss that they would report is not emitted as `Lost`.

    Attributes:
        resources: The names that were locked.

        fingerprint: As in `Acquired`.

        held_ms: How many milliseconds it was held, until its holder released it.

        mode: As in `Acquired`.

        votes: The votes on its release, if it is known by then that no majority confirms it:
            other masters may keep the lock for its ttl, or a longer *hold_at_least*. Empty
            otherwise.
    """

    resources: tuple[str, ...]
    fingerprint: str
    held_ms: float
    mode: Mode = "exclusive"
    votes: tuple[Vote, ...] = ()


@dataclass(frozen=True, slots=True)
class MasterLost:
    """
    A master has no vote now: it is unreachable, refuses this client, or is quarantined.

    Emitted again without a `MasterBack` in between only when the cause changes, such as
    from `NoVoteCause.RESTARTED` to `NoVoteCause.FLUSHED`; all causes for which a master is
    unreachable count as one. A new reason is logged in any case.

    Attributes:
        master: The master's address, without credentials.

        reason: Why it has no vote, for people.

        cause: Why it has no vote, for programs.

        votes: The vote of each master now: granted, or why it has none.
    """

    master: str
    reason: str
    cause: NoVoteCause
    votes: tuple[Vote, ...]


@dataclass(frozen=True, slots=True)
class MasterBack:
    """
    A master votes again after a `MasterLost`.

    Attributes:
        master: The master's address, without credentials.
    """

    master: str


@dataclass(frozen=True, slots=True)
class MajorityLost:
    """
    So many masters have no vote that the others are no majority: nothing can be acquired.

    It follows the `MasterLost` of the last of these masters. A master that is not known yet,
    because the manager has just been opened, counts as one that may vote.

    Attributes:
        votes: The vote of each master now: granted, or why it has none.
    """

    votes: tuple[Vote, ...]


@dataclass(frozen=True, slots=True)
class MajorityBack:
    """
    A majority of the masters votes again, after a `MajorityLost`.

    If the manager was closed in between, it is emitted after it is opened again.

    Attributes:
        lost_ms: For how many milliseconds no majority voted.
    """

    lost_ms: int


_OfLock = Acquired | Missed | Cancelled | Waiting | Extended | Lost | Released
_Logged = _OfLock | MajorityLost | MajorityBack

Event = _Logged | MasterLost | MasterBack


class Listener(Protocol):
    """A plain function of one event, or another callable with that signature."""

    def __call__(self, event: Event, /) -> None:
        """Called with each event; it must not block."""


def log_to(logger: logging.Logger | None = None) -> Listener:
    """
    Return a listener that writes the events of locks to a log.

    The level of `Lost`, `MajorityLost` and `MajorityBack` is WARNING, of `Missed` INFO, of
    the others DEBUG. Events of single masters are left out, because the library logs these
    itself, with or without a listener.

    Args:
        logger: The logger to write to; ``redlock_aio`` if it is left out.

    Raises:
        TypeError: *logger* is not a logger.
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


_LEVELS: dict[type[_Logged], int] = {
    Waiting: logging.DEBUG,
    Acquired: logging.DEBUG,
    Cancelled: logging.DEBUG,
    Extended: logging.DEBUG,
    Released: logging.DEBUG,
    Missed: logging.INFO,
    Lost: logging.WARNING,
    MajorityLost: logging.WARNING,
    MajorityBack: logging.WARNING,
}


def _names(event: _OfLock) -> str:
    names = quoted(event.resources)
    if isinstance(event, Acquired) and event.permit is not None:
        return f"permit {event.permit} of {names}"
    return names


def _line(event: _Logged) -> tuple[str, *tuple[object, ...]]:
    """Return the format of a log line, and its arguments."""
    if isinstance(event, Missed):
        return "%s", event.error  # the error names its resources itself
    if isinstance(event, MajorityLost):
        return "%s", with_votes("no majority of the masters votes", event.votes)
    if isinstance(event, MajorityBack):
        return "a majority of the masters votes again, after %d ms", event.lost_ms
    names = _names(event)
    if isinstance(event, Waiting):
        return "%s: waiting", names
    if isinstance(event, Cancelled):
        return "%s: cancelled after %.0f ms", names, event.waited_ms
    rest: tuple[object, ...]
    match event:
        case Acquired(fencing_token=None):
            text, rest = "acquired in %.0f ms", (event.waited_ms,)
        case Acquired():
            text = "acquired in %.0f ms with fencing token %d"
            rest = event.waited_ms, event.fencing_token
        case Extended():
            text, rest = "extended to %d ms with %d ms left", (event.ttl, event.margin_ms)
        case Released():
            text, rest = "released after %.0f ms", (event.held_ms,)
        case _:
            why = with_votes(event.reason, event.votes)
            text, rest = "lost after %.0f ms: %s", (event.held_ms, why)
    return "%s (%s) " + text, names, event.fingerprint, *rest
