"""
Writes the history of a process while it works; `history` describes the format.

This module imports nothing of the library, so that a check of a history does not rest on what
it checks.
"""

import itertools
import json
import os
import time
from pathlib import Path
from typing import Final, Literal

FAULTS: Final = "faults"
"""The name of the runner's file."""

_encode = json.JSONEncoder(separators=(",", ":")).encode


_CLOCK: Final = int(os.environ.get("HISTORY_CLOCK", getattr(time, "CLOCK_BOOTTIME", 7)))
"""The clock of all histories. A process with clocks of its own is told a number of the true one."""


def now() -> int:
    """Return the time on the clock of all histories, in ns."""
    return time.clock_gettime_ns(_CLOCK)


class Recorder:
    """
    Writes the history of this process.

    Each line is one unbuffered write, so that it outlives a SIGKILL of the process. The file
    must be new: a process that was killed may have left half a line at its end.
    """

    def __init__(self, folder: Path, name: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(folder / f"{name}.jsonl", flags, 0o644)
        self.name = name

    def client(self, number: int) -> "Client":
        """Return client *number* of this process. A client does one operation at a time."""
        return Client(self, f"{self.name}/{number}")

    def record(self, event: dict[str, object]) -> None:
        """Append one event."""
        os.write(self._file, _encode(event).encode() + b"\n")

    def fault(
        self, name: str, how: Literal["begin", "end"], detail: str = "", *, client: str = ""
    ) -> None:
        """
        Record that a fault begins or ends.

        Args:
            detail: What tells it from others of its name; the same at its begin and end.

            client: The process that the fault concerns. For a "stall" it must be given.
        """
        event = {"at": now(), "what": "fault", "how": how, "name": name, "detail": detail}
        self.record(event | ({"client": client} if client else {}))

    def reach(self, process: str, masters: list[int]) -> None:
        """Record that from now on *process* reaches these *masters*, and they vote."""
        self.record({"at": now(), "what": "reach", "client": process, "masters": masters})

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


class Client:
    """The operations of one task, numbered."""

    __slots__ = ("_numbers", "name", "recorder")

    def __init__(self, recorder: Recorder, name: str) -> None:
        self.recorder = recorder
        self.name = name
        self._numbers = itertools.count()

    def invoke(self, what: str, **facts: object) -> "Pending":
        """Record that an operation begins now; the result records its end."""
        return self.invoke_at(what, now(), **facts)

    def invoke_at(self, what: str, at: int, **facts: object) -> "Pending":
        """Record that an operation began at an instant before; as `invoke`."""
        pending = Pending(self, what, next(self._numbers))
        pending.record("invoke", at, facts)
        return pending

    def held(self, lease: str, until: int, *, at: int) -> None:
        """Record that *lease* was found valid until *until*. *at* was read before the check."""
        facts: dict[str, object] = {"lease": lease, "until": until}
        Pending(self, "held", next(self._numbers)).record("ok", at, facts)

    def lost(self, lease: str, why: str) -> None:
        """Record that the holder has just been notified of the loss of *lease*."""
        at = now()
        facts: dict[str, object] = {"lease": lease, "why": why}
        Pending(self, "lost", next(self._numbers)).record("ok", at, facts)


class Pending:
    """An operation underway. Call one of `ok`, `fail` and `info` as soon as it has returned."""

    __slots__ = ("_client", "_number", "_what")

    def __init__(self, client: Client, what: str, number: int) -> None:
        self._client = client
        self._what = what
        self._number = number

    def ok(self, **facts: object) -> None:
        """Record that the operation succeeded."""
        self.record("ok", now(), facts)

    def fail(self, why: str, **facts: object) -> None:
        """Record that the operation surely had no effect."""
        self.record("fail", now(), facts | {"why": why})

    def info(self, why: str, **facts: object) -> None:
        """Record that the operation may have had its effect, or may still have it later."""
        self.record("info", now(), facts | {"why": why})

    def record(self, how: str, at: int, facts: dict[str, object]) -> None:
        """Append an event of this operation."""
        event: dict[str, object] = {
            "at": at,
            "client": self._client.name,
            "op": self._number,
            "what": self._what,
            "how": how,
        }
        event.update(facts)
        self._client.recorder.record(event)
