"""
May this master have forgotten locks?

A server that has lost its memory would grant what a holder still believes in. So
each master carries a marker, a key with the run_id of the server that it was
written for, and whoever connects compares:

    member     it has not lost a lock since it was marked: it votes
    rejoining  it may have; it votes from the instant that the marker names

A run_id is new with every start of a server. A marker that is missing or was
written for another one is told from a new set of masters by what this process
saw here before, and by what the other masters have. Wherever it is not certain
that nothing was forgotten, a master stays out of votes until every lease that it
may have forgotten is over: that time is called *lasts* here.

Nothing here waits, reads a clock or opens a socket: instants are seconds on the
clock of leases, those in markers are microseconds on the master's own.
"""

import enum
import math
from dataclasses import dataclass, replace

from redlock_aio._rules.server import ServerInfo

GUARDS = ("auto", "strict", "fsync-always", "off")
"""What *restart_guard* can be."""

LONGEST_UPTIME = 10**9
"""The seconds beyond which an uptime is a mistake of some clock: about 32 years."""


class State(enum.Enum):
    """How a master that can be reached stands."""

    MEMBER = "it votes"
    QUARANTINED = "it may have forgotten locks"
    UNDECIDED = "it may have forgotten locks, or be one of a new set"


MEMBER, QUARANTINED, UNDECIDED = State.MEMBER, State.QUARANTINED, State.UNDECIDED


class Reason(enum.Enum):
    """Why a master has no vote, for people; *ago* are the seconds since it started."""

    NONE = ""
    RESTARTED = "it restarted {ago} s ago and may have forgotten locks"
    FLUSHED = "its keys were flushed, and locks with them"
    ABSURD = "its uptime makes no sense: it may have restarted and forgotten locks"
    PROMOTED = "it was a replica, and may lack locks"
    MARKED = "it is marked as one that may have forgotten locks"
    UNPROVEN = "it started {ago} s ago, and it is not known yet that all masters are new"


@dataclass(frozen=True, slots=True)
class Marker:
    """
    What a master carries.

    Attributes:
        run_id: The server that it was written for.

        rejoining: Whether it may have forgotten locks.

        at: For a rejoining one when it votes again, on its own clock, in us; 0 if
            that is not known. A member keeps the number, by which it is seen that
            a marker was written anew.
    """

    run_id: str
    rejoining: bool
    at: int

    def __bytes__(self) -> bytes:
        state = "rejoining" if self.rejoining else "member"
        return f"{self.run_id} {state} {self.at}".encode()

    @classmethod
    def parse(cls, value: bytes | None) -> "Marker | None":
        """Read the value of the key; what makes no sense is nobody's marker."""
        if value is None:
            return None
        run_id, state, at, *_ = [*value.decode("utf-8", "replace").split(" "), "", "", ""]
        if state not in ("member", "rejoining"):
            return cls("", rejoining=False, at=0)
        known = at.isascii() and at.isdigit() and len(at) < 20
        return cls(run_id, rejoining=state == "rejoining", at=int(at) if known else 0)


@dataclass(frozen=True, slots=True)
class Seen:
    """
    What this process knows of one address.

    Attributes:
        run_id: Which server was there last.

        at: When that was.

        marker: The number in its marker, ``None`` if it had none.

        until: How long it has no vote, whatever others find; minus infinity if it has one.

        reason: Why it has none.
    """

    run_id: str = ""
    at: float = -math.inf
    marker: int | None = None
    until: float = -math.inf
    reason: Reason = Reason.NONE


@dataclass(frozen=True, slots=True)
class Verdict:
    """
    How a master stands, and what is to be written there.

    Attributes:
        state: How it stands.

        seconds: How long it has no vote, if nothing else becomes known.

        reason: Why it has none.

        write: Its new marker, ``None`` if it is to stay as it is.

        careful: Whether that is written only if there is none: somebody else may
            know better.
    """

    state: State
    seconds: float = 0.0
    reason: Reason = Reason.NONE
    write: Marker | None = None
    careful: bool = False


def judge(
    info: ServerInfo,
    marker: Marker | None,
    seen: Seen,
    now: float,
    *,
    lasts: float,
    strict: bool = False,
) -> Verdict:
    """
    Return how a master stands.

    Args:
        info: What the server says of itself.

        marker: What it carries.

        seen: What was known of its address before.

        now: The instant, on the clock of *seen*.

        lasts: For how many seconds a forgotten lease may be believed at most.

        strict: Whether a young server without a marker has restarted, whatever the
            others are.
    """
    if seen.run_id != info.run_id:
        if seen.run_id and now - seen.at < lasts:
            # A server that is older than our absence was there before, as a replica.
            older = info.promoted and (info.uptime or 0) > now - seen.at
            return _out(info, lasts, Reason.PROMOTED if older else Reason.RESTARTED)
        seen = Seen()  # of another server, long ago
    elif (left := _since_flush(info, marker, seen, lasts)) > 0:
        return _out(info, left, Reason.FLUSHED)
    verdict = _by_marker(info, marker, seen, now, lasts, strict=strict)
    left = seen.until - now
    if left <= verdict.seconds:
        return verdict
    # We know of something that others may not have noticed.
    marked = marker is not None and marker.run_id == info.run_id
    return _out(info, left, seen.reason, write=not marked)


def _since_flush(info: ServerInfo, marker: Marker | None, seen: Seen, lasts: float) -> float:
    """
    Return for how many seconds leases may live that were lost with the marker seen here.

    It is 0 if the marker is still there.
    """
    if seen.marker is None:
        return 0.0
    if marker is None or marker.run_id != info.run_id:
        return lasts
    # A rejoining one may be written anew at any time by whoever knows more.
    if marker.rejoining or marker.at == seen.marker:
        return 0.0
    # The keys were deleted, and a program that had not seen the old marker wrote
    # this one at the instant that it carries, or later others ended a quarantine
    # at that instant. This process may have been away for hours since: what was
    # deleted was deleted before that instant, not now.
    return _bounded(lasts + _until(marker, info, lasts), lasts)


def _by_marker(
    info: ServerInfo,
    marker: Marker | None,
    seen: Seen,
    now: float,
    lasts: float,
    *,
    strict: bool,
) -> Verdict:
    """Judge as one who has not seen anything happen."""
    if marker is not None and marker.run_id == info.run_id:
        return _by_own_marker(info, marker, seen, now, lasts)
    if info.uptime is None or not 0 <= info.uptime <= LONGEST_UPTIME:
        return _out(info, lasts, Reason.ABSURD)
    if info.promoted:
        # When it was promoted is not known, and its uptime says nothing about that. A
        # replica that was not in step when it was promoted may lack the marker too.
        return _out(info, lasts, Reason.PROMOTED, careful=marker is None)
    young = lasts - info.uptime
    if marker is not None:  # restored from a disk
        return _out(info, young, Reason.RESTARTED) if young > 0 else _in(info, marker.at)
    if young <= 0:
        return _in(info, info.time or 0, careful=True)
    return not_new(info, lasts) if strict else Verdict(UNDECIDED, young, Reason.UNPROVEN)


def _by_own_marker(
    info: ServerInfo, marker: Marker, seen: Seen, now: float, lasts: float
) -> Verdict:
    """Judge by a marker that was written for this very server."""
    if not marker.rejoining:
        return Verdict(MEMBER)
    reason = Reason.MARKED
    if marker.at == seen.marker and seen.until > -math.inf:
        # Our own clock has the last word: an uptime is whole seconds of another.
        left, reason = seen.until - now, seen.reason
    elif info.uptime is None or not 0 <= info.uptime <= LONGEST_UPTIME:
        left, reason = lasts, Reason.ABSURD
    else:
        young = lasts - info.uptime
        left = _bounded(max(young, _until(marker, info, lasts)), lasts)
        reason = Reason.RESTARTED if young > 0 else reason
    return Verdict(QUARANTINED, left, reason) if left > 0 else _in(info, marker.at)


def not_new(info: ServerInfo, lasts: float, *, certain: bool = False) -> Verdict:
    """Return how a young server without a marker stands that is not one of a new set."""
    young = lasts if info.uptime is None else _bounded(lasts - info.uptime, lasts)
    return _out(info, young, Reason.RESTARTED, careful=not certain)


def founding(info: ServerInfo) -> Verdict:
    """Return how a server stands if the whole set is new; it depends on what is there then."""
    return _in(info, info.time or 0, careful=True)


def remember(
    seen: Seen, info: ServerInfo, marker: Marker | None, verdict: Verdict, now: float
) -> Seen:
    """Return what is known after *verdict*, for which *marker* was read."""
    ours = marker is not None and marker.run_id == info.run_id
    certain = verdict.state is QUARANTINED and not verdict.careful
    until = now + verdict.seconds if certain else -math.inf
    if certain and seen.run_id == info.run_id and abs(until - seen.until) < 1e-6:
        until = seen.until  # sums of floats must not move it on
    at = marker.at if marker is not None and ours else None
    return Seen(info.run_id, now, at, until, verdict.reason)


def last_seen(seen: Seen, now: float) -> Seen:
    """Return what is known when the connection to a server ends that was there until *now*."""
    return replace(seen, at=now)


def describe(reason: Reason, *, ago: float, left: float) -> str:
    """Return why a master has no vote, and for how long yet."""
    why = reason.value.format(ago=max(0, math.floor(ago)))
    return f"{why}; it votes again in {max(1, math.ceil(left))} s"


def _in(info: ServerInfo, at: int, *, careful: bool = False) -> Verdict:
    written = Marker(info.run_id, rejoining=False, at=at)
    return Verdict(MEMBER, write=written, careful=careful)


def _out(
    info: ServerInfo, left: float, reason: Reason, *, write: bool = True, careful: bool = False
) -> Verdict:
    at = 0 if info.time is None else info.time + math.ceil(left * 1_000_000)
    written = Marker(info.run_id, rejoining=True, at=at) if write else None
    return Verdict(QUARANTINED, left, reason, written, careful)


def _until(marker: Marker, info: ServerInfo, lasts: float) -> float:
    """Return the seconds until a rejoining master votes again, *lasts* if they are not known."""
    if not marker.at or info.time is None:
        return lasts
    return (marker.at - info.time) / 1_000_000


def _bounded(left: float, lasts: float) -> float:
    return min(max(left, 0.0), lasts)
