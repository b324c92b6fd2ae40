"""
What a master carries in the key `redlock_aio:marker`, as text.

    run_id state at lasts since

Early versions wrote the first three words only, so the others may be missing. Nothing
here waits, reads a clock or opens a socket.
"""

import math
from dataclasses import dataclass

MOST_BYTES = 4000
"""How long a value may be that is taken for a marker."""


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
    """

    run_id: str
    rejoining: bool
    at: int
    lasts: int = 0
    since: int = 0

    def __bytes__(self) -> bytes:
        state = "rejoining" if self.rejoining else "member"
        return f"{self.run_id} {state} {self.at} {self.lasts} {self.since}".encode()

    @classmethod
    def parse(cls, value: bytes | None) -> "Marker | None":
        """Return what the key says; a value that makes no sense is nobody's marker."""
        if value is None:
            return None
        words = value[: MOST_BYTES + 1].decode("utf-8", "replace").split(" ")
        run_id, state, at, lasts, since, *_ = [*words, "", "", "", "", ""]
        if len(value) > MOST_BYTES or state not in ("member", "rejoining"):
            return cls("", rejoining=False, at=0)
        return cls(
            run_id,
            rejoining=state == "rejoining",
            at=_number(at, 19),
            lasts=_number(lasts, 10),
            since=_number(since, 19),
        )


def milliseconds(seconds: float) -> int:
    """Return how a marker writes the length of a quarantine."""
    return math.ceil(seconds * 1000 - 1e-6)


def _number(digits: str, most: int) -> int:
    known = digits.isascii() and digits.isdigit() and len(digits) <= most
    return int(digits) if known else 0
