"""One command to one master: its encoding, its sender, and `NoReply` in the place of a reply."""

import enum
from collections.abc import Callable
from dataclasses import dataclass

from redlock_aio._rules.quorum import Answer


def bulk(*arguments: bytes) -> bytes:
    """Return *arguments* as bulk strings of RESP."""
    return b"".join([b"$%d\r\n%b\r\n" % (len(argument), argument) for argument in arguments])


def pack(*arguments: bytes) -> bytes:
    """Return a command as an array of RESP."""
    return b"*%d\r\n%b" % (len(arguments), bulk(*arguments))


@dataclass(frozen=True, slots=True)
class NoReply:
    """A substitute for the reply that a master did not give, with the reason."""

    answer: Answer
    detail: str = ""
    permanent: bool = False


class QuarantineRule(enum.Enum):
    """The treatment of a command for a quarantined master, which may have lost locks."""

    COUNT = "it is sent, and its reply counts"
    COUNT_IF_FOUND = "it is sent; a reply of 0 (no key) does not count: the key may be lost"
    COUNT_REFUSALS = "it is sent; only a refusal counts: another client's value is there"
    REFUSE = "it is not sent"


class Sender:
    """
    The sender of a command, which gets the replies: a `Request`, or a `Round` of the engine.

    Everything that a connection may ask of a sender is here.
    """

    __slots__ = ()
    in_quarantine: QuarantineRule = QuarantineRule.COUNT
    debt_ttl: int = 0
    """For a release: the ms for which its key may live and its debt is kept; else 0."""
    payload: bytes

    @property
    def needless(self) -> int:
        """For a release: a bit for each master that never got the key; 0 otherwise."""
        return 0

    def on_reply(self, master: int, reply: object, /) -> None:
        """Called with the reply of the master with this number; a `NoReply` if none will come."""
        raise NotImplementedError

    def is_refusal(self, _reply: object) -> bool:
        """Return whether the reply proves that another client has, or has had, the lock."""
        return False

    def counted(self, reply: object, no_reply: NoReply) -> object:
        """
        Return what counts of the *reply* of a quarantined master: itself, or *no_reply*.

        A grant of such a master, and a missing key there, prove nothing: it may have
        forgotten locks. A reply that another client has the lock counts anyway: it can
        only end a lease, or refuse one.
        """
        if self.in_quarantine is QuarantineRule.COUNT_IF_FOUND:
            return reply if reply != 0 else no_reply
        return reply if self.is_refusal(reply) else no_reply

    def instead(self, _master: int) -> "Sender | None":
        """Return what to send to a master that has refused the command; ``None`` for nothing."""
        return None


TIMED_OUT = NoReply(Answer.TIMED_OUT)

OVERRUN = NoReply(Answer.ERROR, "too many requests are unanswered")


def ignore(_master: int, _reply: object, /) -> None:
    """Discard a reply that is not needed."""


class Request(Sender):
    """
    One command to one master.

    A command to all masters is a `Round`, which counts their replies.
    """

    __slots__ = ("debt_ttl", "in_quarantine", "needless", "on_reply", "payload")

    def __init__(
        self,
        payload: bytes,
        on_reply: Callable[[int, object], None] = ignore,
        *,
        debt_ttl: int = 0,
        needless: int = 0,
        in_quarantine: QuarantineRule = QuarantineRule.COUNT,
    ) -> None:
        self.payload: bytes = payload
        self.on_reply: Callable[[int, object], None] = on_reply
        self.debt_ttl: int = debt_ttl
        self.needless: int = needless
        self.in_quarantine: QuarantineRule = in_quarantine

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self.payload)} bytes>"

    def was_sent(self, master: int) -> None:
        """Called when the request was sent to *master*; does nothing here."""

    def not_sent(self, master: int, no_reply: NoReply) -> None:
        self.on_reply(master, no_reply)


class Subscription(Request):
    """
    A request that is answered by a push, or by an error in the place of a reply.

    Args:
        other: What is sent to a master that does not know the command, or forbids it.
    """

    __slots__ = ("_other",)

    def __init__(self, payload: bytes, other: bytes = b"") -> None:
        super().__init__(payload)
        self._other = other

    def is_confirmed_by(self, kind: bytes) -> bool:
        """Return whether a push of this *kind* takes the place of the reply."""
        # Not any kind: a node of a Cluster sends "sunsubscribe" by itself when a slot moves away.
        return b"\r\n%b\r\n" % kind.upper() in self.payload

    def instead(self, _master: int) -> Sender | None:
        return Subscription(self._other) if self._other else None
