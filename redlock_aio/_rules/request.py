"""One command to one master, and the callback that takes its reply."""

from collections.abc import Callable

from redlock_aio._rules.protocol import Trust


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
