"""
The marker of the restart guard: the text in a master's key `redlock_aio:marker`.

    identity state at lasts since

Early versions wrote the first three words only, so the others may be missing. Nothing
here waits, reads a clock or opens a socket.
"""

import math
from dataclasses import dataclass

MOST_BYTES = 4000
"""The most bytes of a marker; a longer value is not a marker."""

MOST_DIGITS = 20
"""The most digits of its numbers: enough for the end of a quarantine of the longest *max_ttl*."""


@dataclass(frozen=True, slots=True)
class Marker:
    """
    The marker of one master.

    Attributes:
        run_id: The identity of the server for which it was written; see `ServerInfo`.

        rejoining: Whether the master may have forgotten locks.

        at: For a rejoining master the instant at which it votes again, on its own clock,
            in us; 0 if that is not known. A member keeps the number, so that a marker
            that was written anew can be recognised.

        lasts: The quarantine of the program that wrote the marker, in ms: the longest
            that the program knew; 0 if the marker does not contain it.

        since: The instant before which the master may have forgotten locks, on its own
            clock, in us; 0 if it was one of a new set, or the marker does not contain it.
    """

    run_id: str
    rejoining: bool
    at: int
    lasts: int = 0
    since: int = 0

    def __bytes__(self) -> bytes:
        state = "rejoining" if self.rejoining else "member"
        return f"{self.run_id} {state} {self.at} {self.lasts} {self.since}".encode()

    def continues(self, earlier: "Marker") -> bool:
        """
        Return whether no flush came between *earlier* and this marker.

        Programs with a longer *max_ttl* may change the other numbers. A program that finds no
        marker writes another instant.
        """
        mine = self.run_id, self.rejoining, self.at
        return mine == (earlier.run_id, earlier.rejoining, earlier.at)

    @classmethod
    def parse(cls, value: bytes | None) -> "Marker | None":
        """Parse the value of the key; a malformed value is a marker of no server."""
        if value is None:
            return None
        words = value[: MOST_BYTES + 1].decode("utf-8", "replace").split(" ")
        run_id, state, at, lasts, since, *_ = [*words, "", "", "", "", ""]
        if len(value) > MOST_BYTES or state not in ("member", "rejoining"):
            return cls("", rejoining=False, at=0)
        return cls(
            run_id,
            rejoining=state == "rejoining",
            at=_number(at),
            lasts=_number(lasts),
            since=_number(since),
        )


def milliseconds(seconds: float) -> int:
    """Return the length of a quarantine as a marker contains it."""
    return math.ceil(seconds * 1000 - 1e-6)


def _number(digits: str) -> int:
    known = digits.isascii() and digits.isdigit() and len(digits) <= MOST_DIGITS
    return int(digits) if known else 0
