"""
What a master carries in the key `redlock_aio:marker`, as text.

    run_id state at lasts since members

Early versions wrote the first three words only, so the others may be missing. Nothing
here waits, reads a clock or opens a socket.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

MOST_BYTES = 4000
"""How long a value may be that is taken for a marker."""

MOST_LABEL = 64
"""How many characters of a master's name are kept in a marker."""


Members: TypeAlias = tuple[tuple[str, str], ...]
"""The masters of a set: the run_id of each, and its name; in the order of the run_ids."""


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

        lasts: The quarantine of the program that wrote it, in ms: the longest of all
            that it knew of; 0 if the marker does not say it.

        since: Before which instant the master may have forgotten locks, on its own
            clock, in us; 0 if it was one of a new set, or the marker does not say it.

        members: The masters of the set; empty if they are not known. No program writes
            or compares them.
    """

    run_id: str
    rejoining: bool
    at: int
    lasts: int = 0
    since: int = 0
    members: Members = ()

    def __bytes__(self) -> bytes:
        state = "rejoining" if self.rejoining else "member"
        words = [self.run_id, state, str(self.at), str(self.lasts), str(self.since)]
        if self.members:
            words.append(",".join(f"{run_id}={label}" for run_id, label in self.members))
        return " ".join(words).encode()

    @classmethod
    def parse(cls, value: bytes | None) -> "Marker | None":
        """Return what the key says; a value that makes no sense is nobody's marker."""
        if value is None:
            return None
        words = value[: MOST_BYTES + 1].decode("utf-8", "replace").split(" ")
        run_id, state, at, lasts, since, members, *_ = [*words, "", "", "", "", "", ""]
        if len(value) > MOST_BYTES or state not in ("member", "rejoining"):
            return cls("", rejoining=False, at=0)
        return cls(
            run_id,
            rejoining=state == "rejoining",
            at=_number(at, 19),
            lasts=_number(lasts, 10),
            since=_number(since, 19),
            members=_members(members),
        )


def members_of(masters: Iterable[tuple[str, str]]) -> Members:
    """Return what a marker says of *masters*, which are run_ids and names."""
    return tuple(sorted((run_id, _label(name)) for run_id, name in masters))


def milliseconds(seconds: float) -> int:
    """Return how a marker writes the length of a quarantine."""
    return math.ceil(seconds * 1000 - 1e-6)


def _label(name: str) -> str:
    return "".join("_" if c in " ,=" or not c.isprintable() else c for c in name[:MOST_LABEL])


def _members(text: str) -> Members:
    pairs = [part.partition("=") for part in text.split(",")] if text else []
    return tuple(sorted((run_id, label) for run_id, _, label in pairs if run_id))


def _number(digits: str, most: int) -> int:
    known = digits.isascii() and digits.isdigit() and len(digits) <= most
    return int(digits) if known else 0
