"""
A lease on its way from one process to another: as a text, and as a command.

    text = base64url of JSON   e.g. of {"v":1,"r":["invoice:42"],"t":"q83v...@web-1:4242", ...}

The text holds the value of the lock. A reader of the text can take the lock, so the text
is as secret as the token. `imported` trusts nothing in it: a text that differs from its
written form is refused with an error that quotes nothing of it.

Adopting a lease gives the lock a new value at every master that still has the old
one. Therefore at most one of several adopters gets the lock, the former holder can't
extend it any more, and the text is useless afterwards. A key that is gone is never set
again: a majority that is won has kept the lock all the time.

Nothing here waits, reads a clock or opens a socket.
"""

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Self

from redlock_aio._protocol.commands import NEVER
from redlock_aio._protocol.primitives import FencingCounter, LockKey
from redlock_aio._protocol.request import pack
from redlock_aio._protocol.scripts import ADOPT
from redlock_aio._rules import lock_value, timing
from redlock_aio._rules.fencing import KEPT
from redlock_aio._rules.validation import MOST_PERMITS, MOST_RESOURCES, of_type, quoted, text

VERSION = 1

LONGEST = 150_000
"""The most characters of a text: enough for `MOST_RESOURCES` with the longest names."""

LAST = 1e11
"""An instant that is later than all others, in seconds: some thousand years."""

DAMAGED = "exported must be what Lease.export() has returned, whole and unchanged"
OTHER_VERSION = "exported was made by a version of redlock_aio with another format"

_ALPHABET = re.compile(r"[A-Za-z0-9_-]+")
_MEMBER = re.compile(rb"[0-9a-f]{1,32}/[0-9]{1,16}(?:p[0-9]{1,4})?")  # see `member_mark`
_BOOT = re.compile(r"(?:[0-9a-f]{16})?")


class LeaseText(str):
    """The text of a lease; its repr hides the text, JSON and pickle treat it as a plain `str`."""

    __slots__ = ("_names",)
    _names: str

    def __new__(cls, text: str, resources: Sequence[str]) -> Self:
        made = super().__new__(cls, text)
        made._names = quoted(resources)
        return made

    def __repr__(self) -> str:
        return f"<exported lease of {self._names}>"

    def __reduce__(self) -> tuple[object, ...]:
        return str, (str(self),)


@dataclass(frozen=True, slots=True)
class ExportedLease:
    """
    The facts of a lease that go from one process to another.

    Attributes:
        at: The instant of the export, in seconds on the clock of leases.

        left: The validity from that instant, in ms.

        boot: The identity of that clock, see `boot`; empty if other processes can't know it.

        fence: The fencing token, 0 if there is none.

        member: The holder's name in the masters' queues; empty if it has none.

        max_hold: The ms after which the lease ends in any case, ``None`` for no limit.

        keep: The ms for which the resources stay locked even if the lease is released.

        permit: The number of its permit, ``None`` for other locks.

        permits: How many permits there are, 0 for other locks.
    """

    resources: tuple[str, ...]
    value: bytes = field(repr=False)
    ttl: int
    at: float
    left: int
    boot: str
    fence: int = 0
    member: bytes = b""
    max_hold: int | None = None
    keep: int = 0
    permit: int | None = None
    permits: int = 0

    @property
    def metadata(self) -> bytes:
        _, brace, rest = self.value.partition(b"{")
        return brace + rest

    def on(self, boot: str) -> bool:
        """Return whether the lease's instants are on the clock of this *boot*."""
        return self.boot == boot != ""


def boot(machine: str) -> str:
    """
    Return an identity for one run of one machine's clock, different from all others.

    Args:
        machine: The system's identity of the machine; only a hash of it is returned.
    """
    return sha256(b"redlock_aio:" + machine.encode()).hexdigest()[:16]


def exported(handed: ExportedLease) -> LeaseText:
    value: dict[str, object] = {
        "v": VERSION,
        "r": handed.resources,
        "t": handed.value.decode(),
        "l": handed.ttl,
        "a": handed.at,
        "n": handed.left,
        "b": handed.boot,
        "f": handed.fence,
        "m": handed.member.decode(),
        "k": handed.keep,
    }
    if handed.max_hold is not None:
        value["h"] = handed.max_hold
    if handed.permit is not None:
        value["p"] = handed.permit, handed.permits
    plain = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    return LeaseText(base64.urlsafe_b64encode(plain).decode().rstrip("="), handed.resources)


def imported(exported: str) -> ExportedLease:
    handed, wrong = _parsed(of_type(exported, str, name="exported"))
    # Raised here, outside of any except block: an exception from the parser carries
    # the text that it could not parse, and would become the context of this one.
    if handed is None:
        raise ValueError(wrong)
    return handed


def _parsed(exported: str) -> tuple[ExportedLease | None, str]:
    if len(exported) > LONGEST or _ALPHABET.fullmatch(exported) is None:
        return None, DAMAGED
    try:
        value = json.loads(base64.urlsafe_b64decode(exported + "=" * (-len(exported) % 4)).decode())
        version = value["v"] if isinstance(value, dict) else None
        if version.__class__ is int and version != VERSION:
            return None, OTHER_VERSION
        return (_handed(value), "") if version == VERSION else (None, DAMAGED)
    except (KeyError, TypeError, ValueError, RecursionError):
        return None, DAMAGED


def _handed(fields: Mapping[str, object]) -> ExportedLease:
    """Return the facts in a decoded text; `_parsed` catches the errors of this function."""
    names = fields["r"]
    if not isinstance(names, list) or not 1 <= len(names) <= MOST_RESOURCES:
        raise ValueError
    for name in names:
        text(name, name="resource")
    if len(set(names)) < len(names):
        raise ValueError
    at = fields["a"]
    if isinstance(at, bool) or not isinstance(at, int | float) or not abs(at) <= LAST:
        raise ValueError
    member, run = _text(fields["m"]), _text(fields["b"])
    if (member and _MEMBER.fullmatch(member.encode()) is None) or _BOOT.fullmatch(run) is None:
        raise ValueError
    ends = fields.get("h")
    permit, permits = _permit(fields["p"]) if "p" in fields else (None, 0)
    if permits and len(names) > 1:
        raise ValueError
    return ExportedLease(
        resources=tuple(names),
        value=_value(_text(fields["t"])),
        ttl=_number(fields["l"], 1, timing.LONGEST),
        at=float(at),
        left=_number(fields["n"], 0, timing.LONGEST),
        boot=run,
        fence=_number(fields["f"], 0, NEVER - 1),
        member=member.encode(),
        max_hold=None if ends is None else _number(ends, 0, timing.LONGEST),
        keep=_number(fields["k"], 0, timing.LONGEST),
        permit=permit,
        permits=permits,
    )


def _permit(given: object) -> tuple[int, int]:
    """Return the number of a permit, and how many there are."""
    if not isinstance(given, list):
        raise TypeError
    number, permits = given
    permits = _number(permits, 1, MOST_PERMITS)
    return _number(number, 0, permits - 1), permits


def _number(value: object, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _value(given: str) -> bytes:
    """Return the value of a lock if this library can have written it; see `lock_value`."""
    value = given.encode()
    ours = lock_value.TOKEN.match(value)
    if ours is None or len(value) > lock_value.LONGEST:
        raise ValueError
    name, brace, rest = value[ours.end() :].partition(b"{")
    text(name.decode(), name="name")
    if brace:
        lock_value.packed(json.loads(brace + rest))
    return value


def adoption(
    key: LockKey, counter: FencingCounter | None, handed: ExportedLease, value: bytes
) -> bytes:
    """
    Return the command that gives the lock a new *value* where it has the old or the new one.

    A master writes the fencing token of a text into its counter only if the token is not
    ahead of its clock: a text with the highest possible token would use up all tokens.
    """
    names = key.each if counter is None else (*key.each, *counter.keys)
    arguments = [handed.value, value, b"%d" % handed.ttl]
    if counter is not None:
        arguments += [b"%016d" % handed.fence, b"%d" % KEPT, b"%d" % counter.lead]
    return pack(b"EVALSHA", ADOPT.sha, b"%d" % len(names), *names, *arguments)
