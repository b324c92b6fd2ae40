"""
Which masters may vote beside programs that name other masters for the same locks.

Each program keeps two kinds of lines on each of its masters: one with the names of all its
masters, and for each master the server that it is connected to. A master keeps its lines in
the order in which they came, and forgets those that nobody has written for a while. Two
rules follow, and in both only the one that came second is restricted:

1. A server has no vote if another server stood first at the same address. An address alone
   is no proof of one server: a name may lead to a new server while others are still
   connected to the old one.

2. Let S be the names of another set with N masters and the quorum q that came first.
   ``b = N - q + 1`` votes are the fewest that meet each majority of S. Of this program's
   masters that are not *surely* in S, only so many keep their votes that each of its own
   majorities has *b* masters that are. If there are too few, none votes: the program is
   refused.

Then two leases of one key need one common server, if the programs have met: the lines of both
were on one master, which has put them in an order. A program that came first is never
restricted, and need not know the others. `tests/proofs/test_sets.py` searches the
interleavings.

A server that is not known is in no set for certain, and refuses nobody. Nothing here waits,
reads a clock or opens a socket.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from redlock_aio._rules.quorum import majority

LIVES = 1.75
"""
The time for which a line counts that is not written again, in longest quarantines.

A lease that was granted at the last moment before the next write lives for the whole of it.
Lines are written, and read, at least every 3/8. A server stands first at its address for one
quarantine only. It may have restarted, and the new one votes when its quarantine is over.
"""

MOST_NAMED = 200
"""The most characters of the text of a set of masters; a longer one is cut."""

ADVICE = (
    "replace masters one by one, as the page how-to/replace-a-master of the documentation says;"
    " independent applications on the same masters need a key_prefix each"
)

Addresses: TypeAlias = tuple[str, ...]
"""The addresses of a set of masters without credentials, sorted."""


class Place(NamedTuple):
    """
    One master, as one program names it.

    Attributes:
        run_id: The server that the program is connected to there; empty if there is none.
    """

    address: str
    run_id: str = ""


Masters: TypeAlias = Sequence[Place]


class Line(NamedTuple):
    """
    What programs have written on a master: the names of a set, or the server of one address.

    Attributes:
        names: The names of a set of masters; or one address.

        run_id: The server at that address; empty for a set.

        since: When the line came, in ms of the master's clock. No two lines have the same.

        until: The instant until which it counts, on the clock of leases, in seconds.

        held: The instant until which leases may be valid that were granted before the line was
            written last.
    """

    names: Addresses
    run_id: str
    since: int
    until: float
    held: float = math.inf


class Known(NamedTuple):
    """
    What lines on all masters have shown; each fact counts until the instant beside it.

    Attributes:
        older: The sets that stood before this program's on a master. A master that forgets
            its lines, or shows them in another order later, does not end that.

        first: The servers that stood before all others of their address on a master, among
            those that leases may still be held by.

        before: Pairs of servers of one address, of which the first one stood before the second
            one on a master, and leases may still be held by it.

        servers: All servers of addresses.
    """

    older: Mapping[Addresses, float] = {}
    first: Mapping[Place, float] = {}
    before: Mapping[tuple[Place, Place], float] = {}
    servers: Mapping[Place, float] = {}


class Restriction(NamedTuple):
    """
    The masters that have no vote because of other programs.

    Attributes:
        moved: The numbers of the masters at whose address another server stood first.

        strangers: The numbers of the masters that keep their vote from a majority without
            the masters of a set that came first, each with that set.

        refused_by: A set beside which no master may vote.

        shared: The addresses of the masters that are surely in *refused_by*.
    """

    moved: frozenset[int] = frozenset()
    strangers: Mapping[int, Addresses] = {}
    refused_by: Addresses | None = None
    shared: Addresses = ()


def names_of(masters: Masters) -> Addresses:
    return tuple(sorted(place.address for place in masters))


def learn(known: Known, ours: Addresses, lines: Iterable[Line], now: float) -> Known:
    """
    Return what is known after a master has shown its *lines*.

    Args:
        lines: With this program's lines that were deleted before they had run out, as by an
            eviction: they keep the places that they had.
    """
    ordered = sorted(lines, key=lambda line: line.since)
    older = {names: until for names, until in known.older.items() if until > now}
    first = {place: until for place, until in known.first.items() if until > now}
    servers = {place: until for place, until in known.servers.items() if until > now}
    before = {pair: until for pair, until in known.before.items() if until > now}
    is_behind, stood = True, dict[str, list[tuple[Place, float]]]()
    for line in ordered:
        if not line.run_id:
            if line.names == ours:
                is_behind = False
            elif is_behind or line.names in older:
                # Once older, a set stays so until it has run out. If it came back behind ours
                # after a restart, its programs may hold leases that they got before.
                older[line.names] = max(line.until, older.get(line.names, now))
            continue
        place = Place(line.names[0], line.run_id)
        servers[place] = max(line.until, servers.get(place, now))
        held = min(line.held, line.until)
        earlier = stood.setdefault(place.address, [])
        for other, until in earlier:
            before[other, place] = max(until, before.get((other, place), now))
        if held > now:
            if not earlier:
                first[place] = max(held, first.get(place, now))
            earlier.append((place, held))
    return Known(older, first, before, servers)


def has_moved(place: Place, known: Known) -> bool:
    """Return whether another server stood first, or before that of *place*, at its address."""
    return any(
        other.address == place.address and other.run_id != place.run_id for other in known.first
    ) or any(later == place for _, later in known.before)


def is_surely_in(place: Place, theirs: Addresses, known: Known, *, until: float) -> bool:
    """
    Return whether a master of this program is one of another set.

    Args:
        until: The instant until which the lines must count that show it; before that, this
            program reads them again. Until then no other server can get a vote at the address
            that *theirs* have for this one.
    """
    if place.address in theirs:
        return True
    return bool(place.run_id) and any(
        other.run_id == place.run_id
        and other.address in theirs
        and last >= until
        and not has_moved(other, known)
        for other, last in known.first.items()
    )


def other_names(ours: Masters, known: Known) -> set[Place]:
    """
    Return the servers of *ours* by the addresses that older sets have for them.

    This program writes these lines too, because it relies on them: they would run out before
    the older sets do, when the last program has ended that has written them.
    """
    here = {place.run_id for place in ours if place.run_id} if known.older else set[str]()
    own = {place.address for place in ours}
    theirs = {name for names in known.older for name in names} - own
    return {
        other
        for other in known.servers
        if other.run_id in here and other.address in theirs and not has_moved(other, known)
    }


def restriction(ours: Masters, known: Known, *, until: float) -> Restriction:
    moved = frozenset(
        number for number, place in enumerate(ours) if place.run_id and has_moved(place, known)
    )
    strangers: dict[int, Addresses] = {}
    quorum = majority(len(ours))
    for theirs in sorted(known.older):
        sure = [is_surely_in(place, theirs, known, until=until) for place in ours]
        needed = meeting(len(theirs))
        if quorum - sure.count(False) >= needed:
            continue  # each majority of ours meets each of theirs
        # Refused is only who can't have enough common masters, whatever is found out later.
        if _possible(ours, theirs, known, sure) < needed or quorum < needed:
            shared = (place.address for place, is_sure in zip(ours, sure, strict=True) if is_sure)
            return Restriction(moved, {}, theirs, tuple(sorted(shared)))
        others = [number for number, is_sure in enumerate(sure) if not is_sure]
        for number in others[quorum - needed :]:
            strangers.setdefault(number, theirs)
    return Restriction(moved, strangers)


def _possible(ours: Masters, theirs: Addresses, known: Known, sure: Sequence[bool]) -> int:
    """Return how many masters the sets have in common if each unknown server is in both."""
    unknown = sum(
        not is_sure and not place.run_id for is_sure, place in zip(sure, ours, strict=True)
    ) + sum(all(other.address != name for other in known.servers) for name in theirs)
    return min(sure.count(True) + min(sure.count(False), unknown), len(theirs))


def is_same(ours: Masters, theirs: Addresses, known: Known) -> bool:
    """Return whether two sets have the same names, or the same servers under other names."""
    if names_of(ours) == theirs:
        return True
    sure = [is_surely_in(place, theirs, known, until=0.0) for place in ours]
    return len(ours) == len(theirs) and all(sure)


def conflicts(ours: Masters, theirs: Addresses, known: Known) -> bool:
    """Return whether majorities of the two sets may miss each other, as far as is known."""
    sure = [is_surely_in(place, theirs, known, until=0.0) for place in ours]
    common = _possible(ours, theirs, known, sure)
    return len(ours) + len(theirs) - 2 * common > 1


def meeting(number: int) -> int:
    """Return how many of *number* masters are the fewest that meet each majority of them."""
    return number - majority(number) + 1


def strangers_of(theirs: Addresses, ours: Masters, known: Known) -> Addresses:
    """Return the masters of a later set that have no vote for its programs because of *ours*."""
    here = {place.run_id for place in ours if place.run_id}
    names = {place.address for place in ours}
    servers = {place: place.run_id in here for place in known.servers}
    others = tuple(
        name
        for name in theirs
        if name not in names
        and not any(servers[place] for place in servers if place.address == name)
    )
    if majority(len(theirs)) - len(others) >= meeting(len(ours)):
        return ()
    # Their programs may not have told yet which servers these are.
    return others if {place.address for place in servers} >= set(others) else ()


def write(place: Place) -> bytes:
    return json.dumps({place.address: place.run_id}, separators=(",", ":")).encode()


def write_set(names: Addresses) -> bytes:
    return json.dumps(names, separators=(",", ":")).encode()


def parse(text: object) -> tuple[Addresses, str] | None:
    """Parse the *text* of a line: names and run_id, as in `Line`; ``None`` if it is malformed."""
    if not isinstance(text, bytes):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if isinstance(value, dict) and len(value) == 1:
        ((address, run_id),) = value.items()
        return ((address,), run_id) if isinstance(run_id, str) and run_id else None
    if isinstance(value, list) and value and {type(name) for name in value} == {str}:
        return tuple(value), ""
    return None


def describe_refusal(ours: Addresses, restriction: Restriction, *, lives: float) -> str:
    """Return why a program has no votes; a set lives for *lives* seconds."""
    theirs = restriction.refused_by or ()
    return (
        f"programs with the masters {_named(theirs)} were here first; of {_named(ours)} they have"
        f" {_named(restriction.shared) or 'none'}, and {meeting(len(theirs))} are needed: no votes"
        f" until {math.ceil(lives)} s after the last of them ended"
    )


def describe_stranger(ours: Addresses, theirs: Addresses) -> str:
    return (
        f"programs with the masters {_named(theirs)} were here first, and it is none of these,"
        f" as far as is known; this program names {_named(ours)};"
        " see the page how-to/replace-a-master of the documentation"
    )


def describe_moved(*, lives: float) -> str:
    """Return why a server has no vote; its line lives for *lives* seconds."""
    return (
        "this address has led other programs, or this one, to another server; this server votes"
        f" {math.ceil(lives)} s after the last of them has left that one"
    )


def describe_later(theirs: Addresses, strangers: Addresses) -> str:
    return (
        f"programs with the masters {_named(theirs)} came later, and get no votes of"
        f" {_named(strangers)}, which this program does not name; {ADVICE}"
    )


def describe_deleted(address: str) -> str:
    return (
        f"{address}: the key with the sets of masters was deleted or evicted; a master must have"
        " the maxmemory-policy noeviction"
    )


def is_refusal(detail: str) -> bool:
    return " were here first" in detail


def _named(masters: Addresses) -> str:
    names = ", ".join(sorted(masters))
    names = "".join(c if c.isprintable() else "?" for c in names)
    return names if len(names) <= MOST_NAMED else f"{names[:MOST_NAMED]}..."
