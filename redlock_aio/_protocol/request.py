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
    The sender of a command, which gets the replies.

    A `Request` asks one master, a `Round` of the engine all of them; a `Question` is asked by the
    transport itself. Everything that a connection may ask of a sender is here.
    """

    __slots__ = ()
    debt_ttl: int = 0
    """For a release: the ms for which its key may live and its debt is kept; else 0."""
    is_repeated: bool = False
    """Whether the same command was sent on this connection before; it is not sent again then."""
    payload: bytes

    @property
    def in_quarantine(self) -> QuarantineRule:
        return QuarantineRule.COUNT

    @property
    def needless(self) -> int:
        """A bit for each master that never got the key of a release; not asked of other senders."""
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

GOT_LATE = NoReply(Answer.ERROR, "it got the request too late")
"""By its clock a master has refused a request that was sent too long ago."""


def ignore(*_: object) -> None:
    """Do nothing: for a reply, or another call, that is not needed."""


class Altered(Sender):
    """
    Another sender whose replies are changed or held back on their way to it.

    In all else it is the original, also for a command that is sent in the place of its own.

    Args:
        sender: The original.

        pass_on: Called with the original, the number of the master, and its reply.
    """

    __slots__ = ("_pass_on", "_sender", "debt_ttl", "in_quarantine", "is_repeated", "payload")

    def __init__(self, sender: Sender, pass_on: Callable[[Sender, int, object], None]) -> None:
        self._sender = sender
        self._pass_on = pass_on
        self.payload = sender.payload
        self.debt_ttl = sender.debt_ttl
        self.in_quarantine: QuarantineRule = sender.in_quarantine
        self.is_repeated = sender.is_repeated

    @property
    def needless(self) -> int:
        return self._sender.needless  # not copied: it may change until it is read

    def on_reply(self, master: int, reply: object, /) -> None:
        self._pass_on(self._sender, master, reply)

    def is_refusal(self, reply: object) -> bool:
        return self._sender.is_refusal(reply)

    def counted(self, reply: object, no_reply: NoReply) -> object:
        return self._sender.counted(reply, no_reply)

    def instead(self, master: int) -> Sender | None:
        """Return the alternative of the original, whose replies are passed on in the same way."""
        other = self._sender.instead(master)
        return None if other is None else Altered(other, self._pass_on)


class Request(Sender):
    """
    One command to one master.

    A command to all masters is a `Round`, which counts their replies.

    Args:
        was_sent: Called with the number of the master when the request was sent to it.
    """

    __slots__ = (
        "debt_ttl", "in_quarantine", "is_repeated", "needless", "on_reply", "payload", "was_sent",
    )  # fmt: skip

    def __init__(
        self,
        payload: bytes,
        on_reply: Callable[[int, object], None] = ignore,
        was_sent: Callable[[int], None] = ignore,
        *,
        debt_ttl: int = 0,
        needless: int = 0,
        in_quarantine: QuarantineRule = QuarantineRule.COUNT,
    ) -> None:
        self.payload: bytes = payload
        self.on_reply: Callable[[int, object], None] = on_reply
        self.was_sent: Callable[[int], None] = was_sent
        self.debt_ttl: int = debt_ttl
        self.needless: int = needless
        self.in_quarantine: QuarantineRule = in_quarantine
        self.is_repeated: bool = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self.payload)} bytes>"

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
