"""
The releases that one master has not confirmed.

A release that is not confirmed is a debt. It is sent again on the next connection, before
any other command, until it is confirmed. A live connection repeats it every
`DEBT_INTERVAL`. Repetition is safe because a release deletes only the value of one attempt.

A master that refuses all writes for a while, for example because it has no replica, refuses each
release. Then one debt at a time is repeated, and all of them as soon as it is not refused.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeAlias

from redlock_aio._protocol import replies
from redlock_aio._protocol.request import NoReply, Sender
from redlock_aio._rules.quorum import OK

MAX_DEBTS = 50_000
"""
The limit of debts of one master; beyond it the keys of the oldest are left to their ttl.

A master that hangs leaves at most one debt for each command that may be unanswered
(`MAX_PENDING`), and one for each lease that was held then.
"""

Send: TypeAlias = Callable[[bytes, Sequence[Sender]], NoReply | None]

DEBT_INTERVAL = 0.2
"""Seconds after which a release without confirmation is repeated on a live connection."""


class Debt(Sender):
    __slots__ = ("_debts", "debt_ttl", "is_refused", "payload", "underway", "until")

    def __init__(self, debts: "Debts", payload: bytes, ttl: int) -> None:
        self._debts = debts
        self.payload = payload
        self.debt_ttl = ttl
        self.underway = False
        self.is_refused = False
        """Whether the master has answered the last repetition with an error that may end."""
        self.until: float | None = None
        """The instant at which the key has expired on the master; ``None`` without a connection."""

    def on_reply(self, _number: int, reply: object, /) -> None:
        """Forget the debt if *reply* proves that the value is gone from this master."""
        self.underway = False
        was_refused, self.is_refused = self.is_refused, False
        if replies.is_settled(reply):
            self._debts.settle_debt(self)
            if reply == OK:
                self._debts.allowed()
        elif replies.is_forbidden(reply):
            self._debts.refused("its access list forbids releases", reply)
        elif replies.lacks_command(reply):
            # It is a script's, never DELIFEQ, which has this one for servers without it.
            self._debts.refused("it lacks the command by which locks are released", reply)
        else:
            self.is_refused = isinstance(reply, Exception)
        if was_refused and not self.is_refused:
            self._debts.collect()


class Debts:
    """
    The debts of one master.

    Args:
        overdue: Called while debts remain, to end a connection without data.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        overdue: Callable[[], object],
        warn: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._send: Send | None = None
        self._overdue = overdue
        self._warn = warn
        self._owed: dict[bytes, Debt] = {}
        self._gave_up = False
        self._is_refused = False
        self._turn = 0
        self._collector: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<{len(self)} debts>"

    def __len__(self) -> int:
        return len(self._owed)

    def add_debt(self, payload: bytes, ttl: int) -> None:
        """Repeat the release *payload* until it is confirmed, or its key has lived *ttl* ms."""
        debt = Debt(self, payload, ttl)
        self._owed.pop(payload, None)
        if len(self._owed) >= MAX_DEBTS:
            del self._owed[next(iter(self._owed))]
            if not self._gave_up:
                self._gave_up = True
                self._warn(
                    f"it has not confirmed {MAX_DEBTS} releases, and more follow; the keys of"
                    " the oldest stay there for their ttl"
                )
        self._owed[payload] = debt
        if self._send is not None:
            debt.until = self._loop.time() + ttl / 1000
            self._collect_later()

    def settle_debt(self, debt: Debt) -> None:
        if self._owed.get(debt.payload) is debt:
            del self._owed[debt.payload]
            self._gave_up = self._gave_up and bool(self._owed)

    def allowed(self) -> None:
        """Called when a release has deleted its key; one that finds none needs no permission."""
        self._is_refused = False

    def refused(self, why: str, reply: object) -> None:
        """Warn once: otherwise locks seem to work, and each name is held for all of its ttl."""
        if not self._is_refused:
            self._is_refused = True
            self._warn(f"{why}, so keys stay for their ttl: {replies.harmless(str(reply))}")

    def connected(self, send: Send) -> None:
        """Called on each new connection, before other commands: send all debts by *send*."""
        self._send = send
        for debt in self._owed.values():
            debt.until = self._loop.time() + debt.debt_ttl / 1000
        self.collect()

    def lost(self) -> None:
        """Called when the connection has ended: debts are kept for the next one."""
        self._send = None
        for debt in self._owed.values():
            # The ttl of a key counts only once its SET is known to have been executed.
            debt.until = None
            debt.underway = debt.is_refused = False

    def close(self) -> None:
        if self._collector is not None:
            self._collector.cancel()

    def _collect_later(self) -> None:
        if self._collector is None:
            self._collector = self._loop.call_later(DEBT_INTERVAL, self._repeat)

    def _repeat(self) -> None:
        refused = [debt for debt in self._owed.values() if debt.is_refused]
        if refused:
            # With a debt for each of thousands of waiters, all repetitions together would be more
            # than the master can answer. They take turns: one may be refused for its own reason.
            self._turn += 1
            refused.pop(self._turn % len(refused))
        self._send_all_but(set(refused))

    def collect(self) -> None:
        """Send all debts that are not underway, in one write, and drop the expired ones."""
        for debt in self._owed.values():
            debt.is_refused = False
        self._send_all_but(set())

    def _send_all_but(self, those: set[Debt]) -> None:
        if self._collector is not None:  # called before the timer
            self._collector.cancel()
        self._collector = None
        send = self._send
        if send is None:
            return
        now = self._loop.time()
        due = []
        for debt in list(self._owed.values()):
            if debt.until is not None and now >= debt.until:
                if not debt.underway:  # the key has expired
                    del self._owed[debt.payload]
            elif not debt.underway and debt not in those:
                due.append(debt)
        # One write: after an outage there may be thousands of debts.
        if due and send(b"".join([debt.payload for debt in due]), due) is None:
            for debt in due:
                debt.underway = True
        if self._owed:
            self._overdue()
            self._collect_later()
