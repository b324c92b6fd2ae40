"""One command to one master, and what stands for a reply that never came."""

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from redlock_aio._rules.quorum import Answer


@dataclass(frozen=True, slots=True)
class Silence:
    """Stands in a tally where a master gave no reply, and says why."""

    answer: Answer
    detail: str = ""
    permanent: bool = False


class Trust(enum.Enum):
    """What becomes of a command at a master that may have forgotten locks."""

    FULL = "it is executed and answered as ever"
    IF_FOUND = "it is executed; that nothing was there to be freed means nothing"
    MUTED = "it is executed, but of the answers only a refusal by others counts"
    NONE = "it is not sent"


class Asker(Protocol):
    """Whoever sends a command and is to be told the reply."""

    trust: Trust
    payload: bytes
    debt_ttl: int
    """For a release: how many ms its key may live, so that it is not forgotten; 0 otherwise."""

    @property
    def needless(self) -> int:
        """For a release: a bit for each master that never got what it takes back; 0 otherwise."""

    def answered(self, master: int, reply: object, /) -> None:
        """Take the reply of the master with this number; a `Silence` if there will be none."""


TIMED_OUT = Silence(Answer.TIMED_OUT)

OVERRUN = Silence(Answer.ERROR, "too many requests are unanswered")


def ignore(_master: int, _reply: object, /) -> None:
    """Callback for a reply that nothing depends on."""


class Request:
    """
    One command to one master.

    A question to all masters is a round (`Round`), which counts their replies.

    Args:
        payload: The packed command.

        on_reply: Called with the number of the master and its reply; with a `Silence`
            if there will be none.

        debt_ttl: For a release: for how many ms its key may live without it.

        needless: For a release: a bit for each master that can't have its key.

        trust: What becomes of the command at a quarantined master.
    """

    __slots__ = ("answered", "debt_ttl", "needless", "payload", "trust")

    def __init__(
        self,
        payload: bytes,
        on_reply: Callable[[int, object], None] = ignore,
        *,
        debt_ttl: int = 0,
        needless: int = 0,
        trust: Trust = Trust.FULL,
    ) -> None:
        self.payload: bytes = payload
        self.answered: Callable[[int, object], None] = on_reply
        self.debt_ttl: int = debt_ttl
        self.needless: int = needless
        self.trust: Trust = trust

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self.payload)} bytes>"


class Subscription(Request):
    """A request whose reply is a push, or an error in the place of a reply."""

    __slots__ = ()
