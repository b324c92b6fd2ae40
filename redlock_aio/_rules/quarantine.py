"""
The restart guard's rules: keep a master that may have forgotten locks out of votes.

A server that has lost its memory would grant a lock whose lease is still valid. Therefore
each master has a marker, a key with the identity of the server that it was written for,
and each client that connects compares:

    member     it has not lost a lock since it was marked: it votes
    rejoining  it may have lost some: it votes from the instant in the marker

An identity is new with every start and promotion of a server (`ServerInfo.identity`). If
the marker is missing or was written for another one, the master restarted, was promoted, or
is one of a new set. The observations of this process and the markers of the other masters
decide which. Unless it is certain that nothing was forgotten, a master stays out of votes until
every lease that it may have forgotten is over: that time is called *quarantine* here. It follows
from the longest ttl that any program may ask for. Markers carry it: a program with a shorter
*quarantine* reads a longer one there, and waits as long.

Nothing here waits, reads a clock or opens a socket: instants are seconds on the
clock of leases, those in markers are microseconds on the master's own.
"""

import enum
import math
from dataclasses import dataclass, replace
from typing import NamedTuple

from redlock_aio._rules.causes import NoVoteCause
from redlock_aio._rules.server_info import ServerInfo
from redlock_aio._rules.standing import Bar

GUARDS = ("auto", "strict", "fsync-always", "off")

LONGEST_UPTIME = 10**9
"""The seconds beyond which an uptime is an error of a clock: about 32 years."""

REREADS = (0.02, 0.03, 0.05, 0.1, 0.15, 0.15)
"""
The delays in seconds before the marker of an undecided master is read again: another
process may be marking a new set at this very moment.
"""

UNDECIDED_INTERVAL = 0.5
"""Seconds between two later reads, while other masters can't be reached."""

UNDECIDED_SLOT = 20
"""
The number of later reads after which the quarantine of an owner of a slot begins, though it is
not known whether the masters are new. It has no uptime that would end this by itself.
"""

PUSHED_INTERVAL = 0.5
"""
Seconds between two checks of a master in quarantine that pushes request, on average, after
the first `timing.BURST`.
"""

LOOKS = 4
"""The number of checks of a connected master during *quarantine*."""

NEVER = 2**63
"""An instant in microseconds that is later than all others."""

SLACK = 0.001
"""Seconds by which a timer may fire too early."""


MOST_BYTES = 4000
"""The most bytes of a marker; a longer value is not a marker."""

MOST_DIGITS = 20
"""The most digits of its numbers: enough for the end of a quarantine of the longest *max_ttl*."""


@dataclass(frozen=True, slots=True)
class Marker:
    """
    The marker of one master.

    Attributes:
        rejoining: Whether the master may have forgotten locks.

        number: An instant on the master's clock, in us, by which a marker that was written anew
            can be recognised: a rejoining master votes again at it, and keeps it as a member.
            0 if it is not known.

        quarantine_ms: The quarantine of the program that wrote the marker, in ms: the longest
            that the program knew; 0 if the marker does not contain it.

        since: The instant before which the master may have forgotten locks, on its own
            clock, in us; 0 if it was one of a new set, or the marker does not contain it.
    """

    run_id: str
    rejoining: bool
    number: int
    quarantine_ms: int = 0
    since: int = 0

    def __bytes__(self) -> bytes:
        state = "rejoining" if self.rejoining else "member"
        return f"{self.run_id} {state} {self.number} {self.quarantine_ms} {self.since}".encode()

    @property
    def votes_at(self) -> int:
        """The instant at which the master votes (again), on its clock in us; 0 if not known."""
        return self.number

    def continues(self, earlier: "Marker") -> bool:
        """
        Return whether no flush came between *earlier* and this marker.

        Programs with a longer *max_ttl* may change the other numbers. A program that finds no
        marker writes another instant.
        """
        mine = self.run_id, self.rejoining, self.number
        return mine == (earlier.run_id, earlier.rejoining, earlier.number)

    @classmethod
    def parse(cls, value: bytes | None) -> "Marker | None":
        """Parse the value of the key; a malformed value is a marker of no server."""
        if value is None:
            return None
        words = value[: MOST_BYTES + 1].decode("utf-8", "replace").split(" ")
        run_id, state, number, quarantine_ms, since, *_ = [*words, "", "", "", "", ""]
        if len(value) > MOST_BYTES or state not in ("member", "rejoining"):
            return cls("", rejoining=False, number=0)
        return cls(
            run_id,
            rejoining=state == "rejoining",
            number=_marker_number(number),
            quarantine_ms=_marker_number(quarantine_ms),
            since=_marker_number(since),
        )


def in_marker(seconds: float) -> int:
    """Return the length of a quarantine as a marker contains it, in ms."""
    return math.ceil(seconds * 1000 - 1e-6)


def _marker_number(digits: str) -> int:
    known = digits.isascii() and digits.isdigit() and len(digits) <= MOST_DIGITS
    return int(digits) if known else 0


class MasterStatus(enum.Enum):
    MEMBER = "it votes"
    QUARANTINED = "it may have forgotten locks"
    UNDECIDED = "it may have forgotten locks, or be one of a new set"


MEMBER, QUARANTINED, UNDECIDED = (
    MasterStatus.MEMBER,
    MasterStatus.QUARANTINED,
    MasterStatus.UNDECIDED,
)


class Reason(enum.Enum):
    """The texts of the reasons for a quarantine; *ago* is the number of seconds since the start."""

    NONE = ""
    RESTARTED = "it restarted {ago} s ago and may have forgotten locks"
    FLUSHED = "its keys were flushed, and locks with them"
    ABSURD = "its uptime is not plausible: it may have restarted and forgotten locks"
    PROMOTED = "it was a replica, and may lack locks"
    MOVED = "its slot has come from another node, or its epoch has changed, and it may lack locks"
    MARKED = "it is marked as one that may have forgotten locks"
    UNPROVEN = "it started {ago} s ago, and it is not known yet that all masters are new"


class Replica(NamedTuple):
    run_id: str
    at: int
    """The last instant of that, on the server's clock in us; `NEVER` if it is not known."""


@dataclass(frozen=True, slots=True)
class Seen:
    """
    The observations of this process at one address.

    Attributes:
        marker: The number in the server's marker (`Marker.number`), ``None`` if it had none.

        until: The instant before which it has no vote, whatever other programs find;
            minus infinity if it has one.

        replica: The last replica at the address, until it is found as a master.
    """

    run_id: str = ""
    at: float = -math.inf
    marker: int | None = None
    until: float = -math.inf
    reason: Reason = Reason.NONE
    replica: Replica | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """
    The standing of a master, and the marker to write there.

    Attributes:
        seconds: The seconds without a vote, if nothing else becomes known.

        careful: Whether the marker is written only if there is none: another program
            may know better.
    """

    state: MasterStatus
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
    quarantine: float,
    strict: bool = False,
) -> Verdict:
    """
    Return the standing of a master.

    Args:
        quarantine: The most seconds for which a lost lease may be valid.
    """
    if _was_replica(info, marker, seen.replica):
        return _out(info, quarantine, quarantine, Reason.PROMOTED)
    if not info.is_named(seen.run_id):
        if seen.run_id and now - seen.at < quarantine:
            # A server that started before this process lost the connection was there
            # already, as a replica.
            older = info.promoted and (info.uptime or 0) > now - seen.at
            reason = Reason.PROMOTED if older else Reason.RESTARTED
            reason = _why_moved(info, now - seen.at) if info.of_slot else reason
            return _out(info, quarantine, quarantine, reason)
        seen = Seen()  # the observation is of another server, long ago
    elif (left := _since_flush(info, marker, seen, quarantine)) > 0:
        return _out(info, left, quarantine, Reason.FLUSHED)
    if info.of_slot and not (marker is not None and info.is_named(marker.run_id)):
        verdict = _by_slot(info, marker, quarantine, strict=strict)
    else:
        verdict = _by_marker(info, marker, seen, now, quarantine, strict=strict)
    left = seen.until - now
    # An undecided master votes at once if all others are new, too, so that verdict is no
    # quarantine, however long it may last. It would forget the restart that this process has
    # seen, if the master refuses the marker of its quarantine and takes that of a new set later.
    if left <= 0 or (left <= verdict.seconds and verdict.state is not UNDECIDED):
        return verdict
    # This process has seen a reason for a quarantine that other programs may have missed.
    # A program that wrote the marker anew for another reason may even have overwritten
    # "rejoining". A program that ended the quarantine keeps the number: its clock is ahead
    # of this one by less than a second, and writing the marker back would only take the
    # master's vote away from that program.
    marked = (
        marker is not None
        and info.is_named(marker.run_id)
        and (marker.rejoining or marker.number == seen.marker)
    )
    return _out(info, left, quarantine, seen.reason, write=not marked)


def _was_replica(info: ServerInfo, marker: Marker | None, replica: Replica | None) -> bool:
    """
    Return whether this server was a replica since its marker was written.

    Such a server has the keys of another one, and the marker of its own former life may be
    among them. Some services hide in ``INFO`` that it was promoted; then run_id and marker
    look as if nothing had happened.
    """
    if replica is None or replica.run_id != info.run_id:
        return False
    # Another program may have begun a quarantine after the promotion: that one is enough.
    judged = marker is not None and info.is_named(marker.run_id) and marker.since > replica.at
    return not judged


def _since_flush(info: ServerInfo, marker: Marker | None, seen: Seen, quarantine: float) -> float:
    """
    Return the seconds for which leases may live that were lost with the earlier marker.

    The result is 0 if that marker still exists.
    """
    if seen.marker is None:
        return 0.0
    if marker is None or not info.is_named(marker.run_id):
        return quarantine
    # A program that knows more may write a rejoining marker anew at any time.
    if marker.rejoining or marker.number == seen.marker:
        return 0.0
    # The keys were deleted, and a program that had not seen the old marker wrote
    # this one at the instant that it carries, or later others ended a quarantine
    # at that instant. This process may have been away for hours since: the keys
    # were deleted before that instant, not now.
    if not marker.votes_at or info.time is None:
        return quarantine
    return _bounded(quarantine + (marker.votes_at - info.time) / 1_000_000, quarantine)


def _by_marker(
    info: ServerInfo,
    marker: Marker | None,
    seen: Seen,
    now: float,
    quarantine: float,
    *,
    strict: bool,
) -> Verdict:
    """Return the standing by marker and uptime alone, without earlier observations of a loss."""
    if marker is not None and info.is_named(marker.run_id):
        return _by_own_marker(info, marker, seen, now, quarantine)
    if info.uptime is None or not 0 <= info.uptime <= LONGEST_UPTIME:
        return _out(info, quarantine, quarantine, Reason.ABSURD)
    if info.promoted:
        # The time of the promotion is not known, and does not follow from the uptime. A
        # replica that was not in sync when it was promoted may lack the marker too.
        return _out(info, quarantine, quarantine, Reason.PROMOTED, careful=marker is None)
    young = quarantine - info.uptime
    if marker is not None:  # restored from a disk
        votes = _in(info, marker.number, quarantine, since=_started(info))
        return _out(info, young, quarantine, Reason.RESTARTED) if young > 0 else votes
    if young <= 0:
        return _in(info, info.time or 0, quarantine, since=_started(info), careful=True)
    return not_new(info, quarantine) if strict else Verdict(UNDECIDED, young, Reason.UNPROVEN)


def _by_slot(
    info: ServerInfo, marker: Marker | None, quarantine: float, *, strict: bool
) -> Verdict:
    """
    Return the standing of the owner of a slot without a marker of its own.

    How long the server has been running says nothing: it may have got the slot just now.
    """
    if marker is not None:
        return _out(info, quarantine, quarantine, _why_moved(info, quarantine))
    if strict:
        return not_new(info, quarantine)
    return Verdict(UNDECIDED, quarantine, Reason.UNPROVEN)


def _why_moved(info: ServerInfo, quarantine: float) -> Reason:
    if info.uptime is not None and 0 <= info.uptime < quarantine:
        return Reason.RESTARTED
    return Reason.PROMOTED if info.promoted else Reason.MOVED


def _by_own_marker(
    info: ServerInfo, marker: Marker, seen: Seen, now: float, quarantine: float
) -> Verdict:
    shorter = marker.quarantine_ms < in_marker(quarantine)
    if not marker.rejoining:
        if not shorter:
            return Verdict(MEMBER)
        # The master votes after the quarantine of a program that did not know leases this long.
        left = _until(marker, info, quarantine) if marker.since else 0.0
        if left > 0:
            return _out(info, _bounded(left, quarantine), quarantine, Reason.MARKED)
        return _in(info, marker.number, quarantine, since=marker.since)
    reason = Reason.MARKED
    if marker.number == seen.marker and seen.until > -math.inf:
        # The clock of this process decides: an uptime is whole seconds of another clock.
        left, reason = seen.until - now, seen.reason
    elif info.uptime is None or not 0 <= info.uptime <= LONGEST_UPTIME:
        left, reason = quarantine, Reason.ABSURD
    else:
        young = quarantine - info.uptime
        left = _bounded(max(young, _until(marker, info, quarantine)), quarantine)
        reason = Reason.RESTARTED if young > 0 else reason
    if left > 0:
        return _out(info, left, quarantine, reason, write=shorter)
    return _in(info, marker.number, quarantine, since=marker.since)


def not_new(info: ServerInfo, quarantine: float, *, certain: bool = False) -> Verdict:
    """Return the standing of a young server without a marker that is not one of a new set."""
    if info.of_slot:
        reason = _why_moved(info, quarantine)
        return _out(info, quarantine, quarantine, reason, careful=not certain)
    young = quarantine if info.uptime is None else _bounded(quarantine - info.uptime, quarantine)
    return _out(info, young, quarantine, Reason.RESTARTED, careful=not certain)


def founding(info: ServerInfo, quarantine: float) -> Verdict:
    """Return the standing of a server of a new set; its marker is written only if there is none."""
    return _in(info, info.time or 0, quarantine, since=0, careful=True)


def remember(
    seen: Seen, info: ServerInfo, marker: Marker | None, verdict: Verdict, now: float
) -> Seen:
    ours = marker is not None and info.is_named(marker.run_id)
    certain = verdict.state is QUARANTINED and not verdict.careful
    until = now + verdict.seconds if certain else -math.inf
    if certain and info.is_named(seen.run_id) and abs(until - seen.until) < 1e-6:
        until = seen.until  # the rounding of floats must not change the instant
    number = marker.number if marker is not None and ours else None
    # A replica that is no master yet may be found again, while another server is used here.
    away = seen.replica is not None and seen.replica.run_id != info.run_id
    replica = seen.replica if away else None
    return Seen(info.identity, now, number, until, verdict.reason, replica)


def seen_as_replica(seen: Seen, run_id: str, time: int | None) -> Seen:
    return replace(seen, replica=Replica(run_id, NEVER if time is None else time))


def last_seen(seen: Seen, now: float) -> Seen:
    return replace(seen, at=now)


def since_forgot(info: ServerInfo, marker: Marker | None) -> float:
    """Return the seconds since which the master can't have lost locks; may be infinite."""
    if marker is None or not marker.since or info.time is None:
        return math.inf
    return (info.time - marker.since) / 1_000_000


def pause(state: MasterStatus | None, left: float, quarantine: float, looks: int) -> float:
    """
    Return the seconds until the next check of a master.

    Args:
        left: The remaining seconds without a vote.

        looks: The number of checks of an undecided master.
    """
    if state is QUARANTINED:
        return max(min(left + SLACK, quarantine / LOOKS), 0.0)
    if state is not UNDECIDED:
        return quarantine / LOOKS
    if looks <= len(REREADS):
        return REREADS[looks - 1]
    return min(max(left, 0.0), UNDECIDED_INTERVAL)


def bar(reason: Reason, *, ago: float, until: float) -> Bar:
    """Return why a master in quarantine has no vote; *ago* are the seconds since its start."""
    text = reason.value.format(ago=max(0, math.floor(ago)))
    return Bar(cause(reason), text, until)


def cause(reason: Reason) -> NoVoteCause:
    return _CAUSES[reason]


_CAUSES = {
    Reason.NONE: NoVoteCause.UNPROVEN,
    Reason.RESTARTED: NoVoteCause.RESTARTED,
    Reason.FLUSHED: NoVoteCause.FLUSHED,
    Reason.ABSURD: NoVoteCause.BAD_UPTIME,
    Reason.PROMOTED: NoVoteCause.PROMOTED,
    Reason.MOVED: NoVoteCause.MOVED,
    Reason.MARKED: NoVoteCause.MARKED,
    Reason.UNPROVEN: NoVoteCause.UNPROVEN,
}


def _in(
    info: ServerInfo, at: int, quarantine: float, *, since: int, careful: bool = False
) -> Verdict:
    length = in_marker(quarantine)
    written = Marker(info.identity, rejoining=False, number=at, quarantine_ms=length, since=since)
    return Verdict(MEMBER, write=written, careful=careful)


def _out(
    info: ServerInfo,
    left: float,
    quarantine: float,
    reason: Reason,
    *,
    write: bool = True,
    careful: bool = False,
) -> Verdict:
    at = since = 0
    if info.time is not None:
        at = info.time + math.ceil(left * 1_000_000)
        since = max(at - math.floor(quarantine * 1_000_000), 1)
    length = in_marker(quarantine)
    written = Marker(info.identity, rejoining=True, number=at, quarantine_ms=length, since=since)
    return Verdict(QUARANTINED, left, reason, written if write else None, careful)


def _started(info: ServerInfo) -> int:
    """Return the start of a server, on its own clock in us; 0 if that is not known."""
    if info.time is None or info.uptime is None:
        return 0
    return max(info.time - info.uptime * 1_000_000, 1)


def _until(marker: Marker, info: ServerInfo, quarantine: float) -> float:
    """Return the seconds until a rejoining master votes; *quarantine* if they are not known."""
    if not marker.votes_at or info.time is None:
        return quarantine
    if marker.since and marker.quarantine_ms < in_marker(quarantine):
        return (marker.since - info.time) / 1_000_000 + quarantine
    return (marker.votes_at - info.time) / 1_000_000


def _bounded(left: float, quarantine: float) -> float:
    return min(max(left, 0.0), quarantine)
