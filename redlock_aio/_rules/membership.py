"""
Check whether two programs with different sets of masters exclude each other.

They do if each majority of the one set shares a master with each majority of the other.
That is so for equal sets, and if one set has one master more than the other. Each program
declares its set on its masters (`declare`), and reads the sets of others there.

A false refusal stops all locking, so two places count as one master whenever that is
possible: they have an address in common or have had the same server, or the server at one
of them is not known, or this program's server started after the other set was last
declared. A master votes only when its server is known, and one that has just started in a
set in use has no vote during its quarantine. Therefore neither can help two majorities to
miss each other: live programs declare their set again before the quarantine is over.

Nothing here waits, reads a clock or opens a socket.
"""

import itertools
import json
import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

MOST_SERVERS = 4
"""The number of former and current servers of one address that are stored."""

UPTIME_ERROR = 1.0
"""The most seconds by which a server is older than its uptime, which has no fractions."""

MOST_NAMED = 200
"""The most characters of the text of a set of masters; a longer one is cut."""

_REFUSED = "use these locks; this program names"

ADVICE = (
    "replace masters one by one, as docs/how-to/replace-a-master.md says; independent applications"
    " on the same masters need a key_prefix each"
)


class Place(NamedTuple):
    """
    One master, as one program names it.

    Attributes:
        address: Its name without credentials.

        run_ids: The servers that this program has found there, the last one at the end;
            empty if it has not reached any.

        started: When the last one started, on the clock of leases, in seconds; minus
            infinity if none was found, plus infinity if it is not known. It is not declared.
    """

    address: str
    run_ids: tuple[str, ...] = ()
    started: float = -math.inf

    def found(self, run_id: str, started: float = -math.inf) -> "Place":
        """Return the place after *run_id* was found there."""
        before = [known for known in self.run_ids if known != run_id]
        return Place(self.address, (*before[1 - MOST_SERVERS :], run_id), started)


Masters: TypeAlias = tuple[Place, ...]
"""A set of masters, in the order of the addresses."""


class Declared(NamedTuple):
    """
    A set of masters that programs use, as declared on one master.

    Attributes:
        age: The ms for which the set has been in use, by that master's clock.

        at: The instant of its last declaration, on the clock of leases, in seconds.
    """

    text: bytes
    masters: Masters
    age: int
    at: float = math.inf


def is_same(one: Place, other: Place) -> bool:
    """Return whether two places are one master, as far as is known."""
    return one.address == other.address or not set(one.run_ids).isdisjoint(other.run_ids)


def may_be_same(one: Place, other: Place) -> bool:
    """Return whether two places may be one master."""
    return not one.run_ids or not other.run_ids or is_same(one, other)


def conflicts(ours: Masters, theirs: Masters, at: float = math.inf) -> bool:
    """
    Return whether majorities of the two sets may miss each other.

    Args:
        at: The last declaration of *theirs*. A server in *ours* that started later may be any
            of their masters after a restart, under another address: programs that have
            ended, or are cut off, can't declare that any more.
    """
    pairs = _pairs(
        [
            [one.started > at - UPTIME_ERROR or may_be_same(one, other) for other in theirs]
            for one in ours
        ]
    )
    return len(ours) + len(theirs) - 2 * pairs > 1


def is_equal(ours: Masters, theirs: Masters) -> bool:
    """Return whether both are the same servers, all of which are known."""
    if len(ours) != len(theirs) or not all(place.run_ids for place in (*ours, *theirs)):
        return False
    return _pairs([[is_same(one, other) for other in theirs] for one in ours]) == len(ours)


def _pairs(fits: Sequence[Sequence[bool]]) -> int:
    """Return the size of a maximum matching of rows and columns that fit (augmenting paths)."""
    owner: dict[int, int] = {}

    def gets_one(row: int, tried: set[int]) -> bool:
        for column, fit in enumerate(fits[row]):
            if fit and column not in tried:
                tried.add(column)
                if column not in owner or gets_one(owner[column], tried):
                    owner[column] = row
                    return True
        return False

    return sum(gets_one(row, set()) for row in range(len(fits)))


def age_of(ours: Masters, found: Iterable[Sequence[Declared]], lasts: int) -> int:
    """
    Return the longest age in ms of *ours* on any master; 0 if it is less than *lasts*.

    A master that was flushed or restarted gets this age, so a set in use stays older there
    than a new one that was declared first. Younger sets get none: of two sets that are
    declared at the same time, the second one on a master would become the older one there,
    but the program with the first one has read that master already, and votes.

    A set of which not all servers are known has no age. Therefore, of two sets whose conflict
    appears when a server becomes known, the set that was changed by that gives way: the
    programs with the other one do not know of the conflict yet, and go on voting.
    """
    ages = [declared.age for sets in found for declared in sets if is_equal(ours, declared.masters)]
    return max([age for age in ages if age >= lasts], default=0)


def older(ours: Masters, found: Iterable[Sequence[Declared]], lasts: int) -> Declared | None:
    """
    Return a set in conflict with *ours* that was in use before it on some master.

    Args:
        found: The sets that are declared on each master.

        lasts: As for `age_of`.
    """
    found = tuple(found)
    seen = _servers([ours, *(declared.masters for sets in found for declared in sets)])
    text, age = write(ours), age_of(ours, found, lasts)
    for sets in found:
        mine = next((declared.age for declared in sets if declared.text == text), age)
        for declared in sets:
            theirs = seen(declared.masters)
            if declared.age >= mine and conflicts(seen(ours), theirs, declared.at):
                return declared
    return None


def _servers(sets: Iterable[Masters]) -> Callable[[Masters], Masters]:
    """
    Return a function that adds the servers that any program has found at the same addresses.

    After a restart, a program that has just started and a program that is not connected again
    yet have no server in common there. If they name the master by different addresses, only
    the declaration of a third program, which has seen both servers, proves that it is one.
    """
    servers: dict[str, set[str]] = {}
    for place in itertools.chain.from_iterable(sets):
        servers.setdefault(place.address, set()).update(place.run_ids)
    return lambda masters: tuple(
        place._replace(run_ids=tuple(servers[place.address])) if place.run_ids else place
        for place in masters
    )


def write(masters: Masters) -> bytes:
    """Return the text by which a set is declared, on one line."""
    places = sorted([place.address, *place.run_ids] for place in masters)
    return json.dumps(places, separators=(",", ":")).encode()


def parse(text: object) -> Masters | None:
    """Parse the *text* of a declared set; ``None`` if it is malformed."""
    if not isinstance(text, bytes):
        return None
    try:
        places = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(places, list) or not places:
        return None
    for place in places:
        if not isinstance(place, list) or not place or {type(word) for word in place} != {str}:
            return None
    return tuple(Place(address, tuple(run_ids)) for address, *run_ids in places)


def describe(ours: Masters, theirs: Masters, *, lasts: float) -> str:
    """Return the reason why a program with *ours* is refused."""
    return (
        f"programs with the masters {_named(theirs)} {_REFUSED}"
        f" {_named(ours)}, and gets no votes until {math.ceil(lasts)} s after the last of them"
        " ended"
    )


def is_refusal(detail: str) -> bool:
    """Return whether a vote's *detail* was made by `describe`."""
    return _REFUSED in detail


def _named(masters: Masters) -> str:
    names = ", ".join(sorted(place.address for place in masters))
    names = "".join(c if c.isprintable() else "?" for c in names)
    return names if len(names) <= MOST_NAMED else f"{names[:MOST_NAMED]}..."
