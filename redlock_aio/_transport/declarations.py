"""
The sets of masters that programs declare on the masters, and the refusal of this program's.

    join ──► read ──► write ──► vote        a master that was just reached
    look ──────────► write                  periodically, while this set is in use
    look ──► read (──► write ──► vote)      about every second, while it is refused

A set is refused while an older set on any master is in conflict with it; see `membership`.
Each program reads the declared sets before it writes its own. Hence a program that is
refused, and tries again for ever, leaves nothing that could refuse others. It also judges
the sets in the reply to its own write, because two programs may read at the same time.

Each reply is evaluated when it arrives, even if the task that awaited it was cancelled.
"""

import asyncio
import math
from collections.abc import Callable, Sequence

from redlock_aio._protocol import declaration, replies
from redlock_aio._protocol.request import NoReply
from redlock_aio._rules import membership, quarantine
from redlock_aio._rules.causes import NoVoteCause
from redlock_aio._rules.membership import Declared, Place
from redlock_aio._rules.server_info import ServerInfo
from redlock_aio._transport.connection import Connection, Question
from redlock_aio._transport.handshake import MasterError, is_forbidden

LIVES = 1.5
"""
The time for which a declared set counts without a repetition, in longest quarantines.

A lease that was granted at the last moment before the next declaration lives for the whole
of it, and sets are declared at least every 3/8 of it.
"""

DUE = 1 / 8
"""The share of the longest quarantine after which `look` declares a set again."""

PATIENCE = 0.5
"""Seconds for which a new master waits until the others have confirmed the new set."""

TRIES = 3
"""The number of requests in a row to a master that lacks the scripts."""

UNDECLARED = "this program's set of masters is not declared there yet"


class Declaration(Question):
    """A question whose reply is evaluated when it arrives, even if no task waits for it."""

    __slots__ = ("_on_reply",)

    def __init__(
        self,
        payload: bytes,
        loop: asyncio.AbstractEventLoop,
        on_reply: Callable[[int, object], None],
    ) -> None:
        super().__init__(payload, loop)
        self._on_reply = on_reply

    def on_reply(self, master: int, reply: object, /) -> None:
        """Evaluate *reply*, then pass it on to the waiting task."""
        self._on_reply(master, reply)
        super().on_reply(master, reply)


class Declarations:
    """
    The declared sets on the masters of one manager, and this program's own.

    Args:
        addresses: The names of the masters, without credentials.

        key: The key under which sets are declared.

        clock: The clock of leases.

        lasts: Returns the longest quarantine, in seconds.

        on_refused: Called when the masters lose their votes.

        tell: Called with a sentence for operators, and first whether it is good news.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        key: bytes,
        *,
        clock: Callable[[], float],
        lasts: Callable[[], float],
        on_refused: Callable[[], None],
        tell: Callable[[bool, str], None],
    ) -> None:
        self.refusal = ""
        """The reason why no master votes; empty if there is no conflict."""
        self.read = declaration.declare(key, b"read")
        """The command that reads the sets in use on a master."""
        self._key = key
        self._clock = clock
        self._lasts = lasts
        self._on_refused = on_refused
        self._tell = tell
        self._masters = tuple(Place(address) for address in addresses)
        self._text = membership.write(self._masters)
        self._found: dict[int, tuple[float, list[Declared]]] = {}
        self._links: dict[int, tuple[Connection, float]] = {}
        self._written: dict[int, bytes] = {}

    def __repr__(self) -> str:
        return f"<Declarations, {self.refusal or 'no conflict'}>"

    @property
    def cause(self) -> NoVoteCause:
        """The cause of an `objection`, for programs."""
        return NoVoteCause.SET_CONFLICT if self.refusal else NoVoteCause.SET_UNDECLARED

    def objection(self, number: int) -> str:
        """Return why this master may not vote, empty if it may."""
        return self.refusal or ("" if number in self._links else UNDECLARED)

    def join(
        self, number: int, info: ServerInfo, connection: Connection, reply: object
    ) -> list[asyncio.Future[object]]:
        """
        Declare this program's set on a master that was just reached.

        A server that was not known before changes the set, which is then declared on the
        other masters again: programs that do not use this master declare a conflicting set
        only there.

        Args:
            info: The server's reply to ``INFO``.

            reply: Its reply to the command `read`.

        Returns:
            The replies to wait for, see `joined`.

        Raises:
            MasterError: The server forbids access to the key.

            ConnectionError: The connection has ended.
        """
        self._check(reply)
        text = self._text
        self._note(number, info)
        self._take(number, reply)
        others = []
        if text != self._text and not self.refusal:
            links = list(self._links.items())
            others = [self._ask(other, link).reply for other, (link, _) in links]
        return [self._ask(number, connection).reply, *others]

    async def joined(
        self, number: int, connection: Connection, answers: Sequence[asyncio.Future[object]]
    ) -> None:
        """
        Wait for the replies to `join`; then `objection` has the result.

        Args:
            answers: The result of `join`. A master that hangs among the others delays this
                one by `PATIENCE`.

        Raises:
            MasterError: The master forbids access to the key.

            ConnectionError: The connection has ended.

        Cancellation:
            Replies that arrive later are still evaluated.
        """
        own, *others = answers
        reply = await own
        self._check(reply)
        if replies.has_no_script(reply):
            await self._ask_until_answered(number, connection)
        if others:
            await asyncio.wait(others, timeout=PATIENCE)

    async def look(self, number: int, connection: Connection) -> None:
        """
        Declare the set again if that is due, or read whether it is still refused.

        Raises:
            MasterError: The master forbids access to the key.

            ConnectionError: The connection has ended.

        Cancellation:
            As for `joined`.
        """
        if self.refusal or number not in self._links:
            await self._ask_until_answered(number, connection, reads=True)
        elif self._clock() < self._links[number][1] + self._lasts() * DUE:
            return
        if not self.refusal:
            await self._ask_until_answered(number, connection)

    def gone(self, number: int) -> None:
        """Called when the connection to a master has ended."""
        self._links.pop(number, None)

    async def _ask_until_answered(
        self, number: int, connection: Connection, *, reads: bool = False
    ) -> None:
        for _ in range(TRIES):
            reply = await self._ask(number, connection, reads=reads).reply
            self._check(reply)
            if not replies.has_no_script(reply):
                return

    def _ask(self, number: int, connection: Connection, *, reads: bool = False) -> Question:
        """Declare the set on a master; a refused set is withdrawn there, or only read."""
        command = self.read
        if self.refusal and number in self._written:
            # The script withdraws a set that was declared only once: one that was in use
            # counts until its leases end.
            command = declaration.declare(self._key, b"withdraw", self._written.pop(number))
        elif not self.refusal and not reads:
            command = self._declaration(self._written.get(number, b""))
            self._written[number] = self._text
            self._links[number] = connection, self._clock()
        question = Declaration(command, asyncio.get_running_loop(), self._take)
        refused = connection.send(command, [question])
        if refused is not None:
            question.on_reply(number, refused)
        connection.overdue()
        return question

    def _declaration(self, former: bytes) -> bytes:
        lasts = self._lasts() * 1000
        return declaration.declare(
            self._key,
            b"write",
            self._text,
            age=membership.age_of(self._masters, self._current(), int(lasts)),
            lasts=int(lasts * LIVES),
            former=former if former != self._text else b"",
        )

    def _check(self, reply: object) -> None:
        """Raise an error if *reply* means that the connection is lost, or the key forbidden."""
        if isinstance(reply, NoReply):
            raise ConnectionError(reply.detail)
        if is_forbidden(reply):
            raise MasterError(
                NoVoteCause.FORBIDDEN,
                f"the restart guard must run scripts on the key {self._key.decode()!r}, with GET,"
                f' SET and TIME, or be off (restart_guard="off"): NOPERM {reply}',
            )

    def _current(self) -> list[list[Declared]]:
        """Return the sets that masters have reported, without reports that are out of date."""
        since = self._clock() - self._lasts() * LIVES
        return [sets for at, sets in self._found.values() if at > since]

    def _note(self, number: int, info: ServerInfo) -> None:
        """Record the server that this master is now, and its start."""
        # An invalid uptime may hide a restart; such a server has no vote either.
        known = info.uptime is not None and 0 <= info.uptime <= quarantine.LONGEST_UPTIME
        started = self._clock() - (info.uptime or 0) if known else math.inf
        places = list(self._masters)
        places[number] = places[number].found(info.run_id, started)
        self._masters = tuple(places)
        self._text = membership.write(self._masters)

    def _take(self, number: int, reply: object) -> None:
        """Update `refusal` with the sets in *reply*; a malformed reply has no sets."""
        now = self._clock()
        sets = declaration.read(reply, now)
        if sets is not None:
            self._found[number] = now, sets
        lasts = self._lasts()
        other = membership.older(self._masters, self._current(), int(lasts * 1000))
        was_refused, self.refusal = self.refusal, ""
        if other is None:
            return
        self.refusal = membership.describe(self._masters, other.masters, lasts=lasts * LIVES)
        if not was_refused:
            self._links.clear()
            self._tell(False, f"{self.refusal}; {membership.ADVICE}")
            self._on_refused()
