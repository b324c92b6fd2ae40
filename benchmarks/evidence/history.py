"""
The history of a run: what each client asked for, what came of it, and when.

A history is a folder. Each process writes a file of its own, `NAME.jsonl`, with one JSON object
a line; the runner writes `faults.jsonl` and `meta.json`. All instants are nanoseconds on
CLOCK_BOOTTIME, which all processes of a machine share.

An operation begins with an "invoke" and has at most one end: "ok", "fail" (it surely had no
effect) or "info" (nobody knows). One without an end counts as "info": its process was killed.
The "invoke" is timed before the call and the end after it returned. The effect is in between.

| what | invoke | ok | fail |
|---|---|---|---|
| acquire | keys, fair, shared, fencing, observed, ttl, wait | lease, until, token | why |
| held | | lease, until | |
| extend | lease, ttl | lease, until | lease, why |
| release | lease | lease | lease, why |
| lost | | lease, why | |
| adopt | from, keys, observed, ttl | lease (a new one), from, until, token | why |
| force_release | keys | keys | why |
| write | key, value, token, lease | | why: the fence refused it |
| read | key, lease | value, token | why |
| add | key, lease | value | why |

`ttl` and `wait` are in ms. `until` is the instant up to which the library promised the lease.
`shared` says that it is the lease of a reader, beside which others may read, and nobody may write.
`observed` says that each extension of the lease is recorded, as an `extend` or a `held`, also those
that the library makes by itself. An acquire may say more. `guarded` says that its client writes in
a body that the library cancels when the lease is lost. `keeps` is for how many ms the keys stay
locked from the acquisition on, also if the lease is released earlier. Without `shared`, `fencing`,
`observed` and `guarded` they count as false, and `keeps` as 0.

If *keys* is a semaphore, the invoke of an acquire, adopt or force_release says how many `permits`
there are. The ok of an acquire, and all of the others, have `permit`: the number from 0 on, or none
if the design does not number them. Each permit is a lock of its own, with tokens and registers of
its own: the key of a write under it is "KEY#NUMBER".

`held` and `lost` are observations: they have an "ok" only. A "fail" of a `write` says that the
fence refused the token. Any other error of a `write` is an "info", or it would be taken for a
refusal. `recorder` writes histories. Neither module imports anything of the library, so that a
check of a history does not rest on what it checks.
"""

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from types import NoneType
from typing import Any, Final, Literal

from .recorder import FAULTS

End = Literal["ok", "fail", "info"]

NEVER: Final = 1 << 63
"""Later than each instant of a history: the end of an operation that has none."""


class HistoryError(ValueError):
    """A file is not a history; the message names the file, the line and what is wrong."""


def numbered(key: str, permit: int | str) -> str:
    """Return the name of a permit of the semaphore *key*, which is also that of its register."""
    return f"{key}#{permit}"


@dataclass(slots=True)
class Operation:
    """One operation of one client. A field that its kind does not have has its default."""

    client: str
    number: int
    what: str
    invoked_at: int
    ended_at: int = NEVER
    """When its client saw its end; `NEVER` if no end was recorded."""
    end: End = "info"
    keys: tuple[str, ...] = ()
    lease: str = ""
    exporter: str = ""
    """The lease that an `adopt` takes over."""
    until: int = 0
    token: int | None = None
    shared: bool = False
    """Whether the lease is that of a reader."""
    permits: int = 0
    """How many may have a permit of its key, which is a semaphore; 0 if it is none."""
    permit: int | None = None
    """The number of its permit."""
    fencing: bool = False
    """Whether the lease has to have a token."""
    observed: bool = False
    """Whether each extension of the lease is recorded."""
    guarded: bool = False
    """Whether a loss of the lease cancels what its client does under it."""
    keeps: int = 0
    """For how many ms its keys stay locked from the acquisition on, also after a release."""
    value: int | None = None
    ttl: int = 0
    """In ms."""
    why: str = ""
    where: str = ""
    """File and line of its first event."""
    left_by: int = NEVER
    """When its client began its next acquisition, without having seen its end; else `NEVER`."""

    @property
    def process(self) -> str:
        """The process of its client."""
        return self.client.partition("/")[0]

    @property
    def locks(self) -> tuple[str, ...]:
        """
        What it has to itself: its keys, or the permit of a semaphore.

        A permit without a number is distinct from all others: only their number can be judged.
        """
        if not self.permits:
            return self.keys
        number = self.lease if self.permit is None else self.permit
        return tuple(numbered(key, number) for key in self.keys)

    @property
    def effect_by(self) -> int:
        """The instant by which it had its effect, if it had one: `NEVER` after an "info"."""
        return NEVER if self.end == "info" else self.ended_at

    def describe(self, origin: int = 0) -> str:
        """Return one line for a report, with times in seconds since *origin*."""
        began = f"{(self.invoked_at - origin) / 1e9:.6f}"
        ended = "never" if self.ended_at == NEVER else f"{(self.ended_at - origin) / 1e9:.6f}"
        named = {"keys": ",".join(self.keys), "lease": self.lease, "from": self.exporter}
        facts = [f"{name}={text}" for name, text in named.items() if text]
        numbers = {"permit": self.permit, "token": self.token, "value": self.value}
        facts += [f"{name}={number}" for name, number in numbers.items() if number is not None]
        what = f"{self.what} shared" if self.shared else self.what
        parts = [f"{self.client}#{self.number}", what, *facts, self.end, self.why]
        return f"[{began}, {ended}] {' '.join(part for part in parts if part)}"


@dataclass(slots=True)
class Fault:
    """Something that the run did to masters, networks or clients."""

    name: str
    detail: str
    client: str
    began_at: int
    ended_at: int = NEVER


@dataclass(slots=True)
class Reach:
    """From `at` on, `process` reaches these masters."""

    at: int
    process: str
    masters: frozenset[int]


@dataclass(slots=True)
class History:
    """All that a run has recorded."""

    operations: list[Operation] = field(default_factory=list)
    """In the order of their invocations."""
    faults: list[Fault] = field(default_factory=list)
    reaches: list[Reach] = field(default_factory=list)
    """In the order of time."""
    meta: dict[str, Any] = field(default_factory=dict)
    torn: int = 0
    """How many files end with a torn line."""

    @property
    def ended_at(self) -> int:
        """The end of the run: as `meta.json` says, or the last instant of an operation."""
        if "ended" in self.meta:
            return int(self.meta["ended"])
        ends = (one.ended_at for one in self.operations if one.ended_at != NEVER)
        return max(itertools.chain(ends, (one.invoked_at for one in self.operations)), default=0)


def read(folder: Path) -> History:
    """
    Read a history.

    Raises:
        HistoryError: A line is not an event, an operation has two ends or an end without a
            beginning, or a fact is missing. The last line of a file may be torn.
    """
    history = History()
    meta = folder / "meta.json"
    if meta.exists():
        history.meta = json.loads(meta.read_text())
    for path in sorted(folder.glob("*.jsonl")):
        events = _Events(path)
        if path.stem == FAULTS:
            _read_faults(events, history)
        else:
            _read_operations(events, history)
        history.torn += events.torn
    history.operations.sort(key=attrgetter("invoked_at"))
    history.reaches.sort(key=attrgetter("at"))
    return history


class _Events:
    """The lines of one file, parsed; *where* is that of the last one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._line = 0
        self.torn = 0

    @property
    def where(self) -> str:
        return f"{self._path.name}:{self._line}"

    def __iter__(self) -> Iterator[dict[str, Any]]:
        with self._path.open("rb") as file:
            for self._line, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    self.torn = 1  # also if it happens to parse: a number may lack digits
                    return
                try:
                    event = json.loads(line)
                except ValueError as error:
                    raise HistoryError(f"{self.where}: not JSON: {error}") from None
                if not isinstance(event, dict):
                    raise HistoryError(f"{self.where}: not an object")
                yield event


_OBSERVATIONS: Final = frozenset({"held", "lost"})

_FACTS: Final[dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "acquire": (("keys", "ttl"), ("lease", "until", "token")),
    "held": ((), ("lease", "until")),
    "extend": (("lease", "ttl"), ("lease", "until")),
    "release": (("lease",), ()),
    "lost": ((), ("lease",)),
    "adopt": (("from", "keys", "ttl"), ("lease", "until", "token")),
    "force_release": (("keys",), ()),
    "write": (("key", "value", "token"), ()),
    "read": (("key",), ("value", "token")),
    "add": (("key",), ("value",)),
}
"""The facts that the "invoke" and the "ok" of each kind of operation must have."""

_FIELDS: Final[dict[str, tuple[str, tuple[type, ...]]]] = {
    "keys": ("keys", (list,)),
    "key": ("keys", (str,)),
    "from": ("exporter", (str,)),
    "lease": ("lease", (str, NoneType)),
    "until": ("until", (int,)),
    "token": ("token", (int, NoneType)),
    "shared": ("shared", (bool,)),
    "permits": ("permits", (int,)),
    "permit": ("permit", (int, NoneType)),
    "fencing": ("fencing", (bool,)),
    "observed": ("observed", (bool,)),
    "guarded": ("guarded", (bool,)),
    "keeps": ("keeps", (int,)),
    "value": ("value", (int, NoneType)),
    "ttl": ("ttl", (int,)),
    "why": ("why", (str,)),
}
"""The field of each fact that a check needs, and its types. Other facts are for people."""


def _read_operations(events: _Events, history: History) -> None:
    pending: dict[tuple[str, int], Operation] = {}
    ended: set[tuple[str, int]] = set()
    for event in events:
        try:
            what, how, at = event["what"], event["how"], event["at"]
            name = event["client"], event["op"]
            at_invoke, at_ok = _FACTS[what]
            if how == "invoke" or what in _OBSERVATIONS:
                if name in pending or name in ended:
                    raise HistoryError(f"{events.where}: {name} begins twice")
                one = Operation(*name, what, at, where=events.where)
                history.operations.append(one)
                if what == "acquire":
                    for left in pending.values():  # the few that were cancelled
                        if left.client == one.client:
                            left.left_by = min(left.left_by, at)
                pending[name] = one
                _apply(one, event, at_invoke)
            if how != "invoke":
                if name in ended:
                    raise HistoryError(f"{events.where}: {name} ends twice")
                one = pending.pop(name)
                ended.add(name)
                _end(one, event, at_ok)
        except KeyError as error:
            raise HistoryError(f"{events.where}: {error} is missing or unknown") from None


def _end(one: Operation, event: dict[str, Any], required: tuple[str, ...]) -> None:
    how = event["how"]
    if how not in {"ok", "fail", "info"} or event["what"] != one.what:
        raise KeyError(f"{event['what']} {how}")
    if event["at"] < one.invoked_at:
        raise KeyError("a later at")
    one.end = how
    one.ended_at = event["at"]
    _apply(one, event, required if how == "ok" else ())


def _apply(one: Operation, event: dict[str, Any], required: tuple[str, ...]) -> None:
    """Copy the facts of *event* to the operation."""
    for name in required:
        if name not in event:
            raise KeyError(name)
    for name, value in event.items():
        if name in _FIELDS:
            attribute, types = _FIELDS[name]
            if type(value) not in types:
                raise KeyError(f"{name}={value!r}")
            if name == "keys":
                one.keys = tuple(value)
            elif name == "key":
                one.keys = (value,)
            elif value is not None or attribute in {"token", "value"}:
                setattr(one, attribute, value)


def _read_faults(events: _Events, history: History) -> None:
    open_faults: dict[tuple[str, str, str], Fault] = {}
    for event in events:
        try:
            match event["what"]:
                case "reach":
                    masters = frozenset(event["masters"])
                    history.reaches.append(Reach(event["at"], event["client"], masters))
                case "fault":
                    # Two of a kind may overlap: of two clients, or of different masters.
                    name = event["name"], event.get("detail", ""), event.get("client", "")
                    if event["how"] == "begin":
                        fault = Fault(*name, event["at"])
                        open_faults[name] = fault
                        history.faults.append(fault)
                    else:
                        open_faults.pop(name).ended_at = event["at"]
                case what:
                    raise HistoryError(f"{events.where}: {what!r} is unknown")
        except KeyError as error:
            raise HistoryError(f"{events.where}: {error} is missing or unknown") from None
