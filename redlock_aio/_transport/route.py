"""
The route to a master: where to dial it, and whether it may vote.

A master with a fixed address has a `Route`. One that others name, because it may be replaced,
has a `ConfirmedRoute`: each of these, the voters, is asked again and again by a `Poll`.

    voter 1 ──┐ asked every 0.5 s, and at once when something has changed
    voter 2 ──┼─► Confirmation ─► where to dial
    voter 3 ──┘                └► until when the connection takes commands of locks

Each voter has a task and a connection of its own, so that one that hangs does not delay the
others. The laws of this file:

- A server is dialled only while a majority confirms it. Hence everything that begins
  with its first examination, such as a quarantine, begins after the confirmation.
- `Master.send` reads the clock (`is_confirmed`) for each command. A timer would not do: after
  a stall the loop runs ready callbacks before due timers, and would send one more command.
- A grant that was requested in time counts whenever it comes, because a lease lives from
  the request. So the connection stays open when the confirmation runs out.
- The connection ends when a majority names another server, or this one in a later epoch.
"""

import asyncio
import math
import random
from collections.abc import Callable, Sequence

from redlock_aio._protocol import commands, confirmation
from redlock_aio._protocol.cluster_nodes import Owner, place
from redlock_aio._protocol.confirmation import Configuration, Confirmation
from redlock_aio._protocol.request import NoReply, Subscription, ignore
from redlock_aio._rules.causes import NoVoteCause
from redlock_aio._rules.server_info import ServerInfo
from redlock_aio._rules.standing import Bar
from redlock_aio._transport.address import (
    AnyDialler,
    Dialler,
    UnconfirmedError,
    chosen_name,
    why_not_connected,
)
from redlock_aio._transport.connection import Connection, Question

ANSWER_TIMEOUT = 1.0
"""Seconds without a reply after which the connection to a voter is ended."""

DIAL_TIMEOUT = 3.0
"""The timeout in seconds for connecting to a voter, which takes several round trips."""

PATIENCE = 0.8
"""Seconds for which `ConfirmedRoute.dial` waits for a majority; less than its whole timeout."""


class Route:
    """The route to a master with a fixed address."""

    outlives = 0.0
    """Seconds for which a replaced master may continue to grant locks."""
    may_expire = False
    """Whether `is_confirmed` may end by itself, so that it has to be read for each command."""
    notices_failovers = False
    """Whether a replica that takes the place of the master is noticed."""
    tag = b""
    """The tag of all keys there; empty if the master is of no Cluster."""
    questions: Sequence[bytes] = ()
    """Commands for each new connection, whose replies `check` gets."""
    at = ""
    """The address that was dialled last, if the name of the master does not have it."""

    def __init__(self, dialler: Dialler, client_name: str) -> None:
        self._dialler = dialler
        self.naming: bytes = commands.set_name(chosen_name(dialler) or client_name)
        """The command that names a connection to the master; it may be refused."""

    async def dial(self) -> tuple[asyncio.Transport, object]:
        return await self._dialler.dial()

    @property
    def is_confirmed(self) -> bool:
        """Whether commands of locks may be sent to the connected server."""
        return True

    @property
    def bar(self) -> Bar | None:
        """Why the connected server is not known to be the master; ``None`` if it is."""
        return None

    def watch(self, connection: Connection) -> None:
        """Called with the connection to the server that was dialled last."""

    def check(self, replies: Sequence[object]) -> None:
        """Raise an error unless the *replies* to `questions` show that this is the master."""

    def identified(self, info: ServerInfo) -> ServerInfo:
        """Return *info* with an identity that no earlier master at this address had."""
        return info

    def same_server(self, other: str) -> str:
        """Return why the server has no vote here: it is that of *other* as well."""
        return f"the same server as {other}"

    def close(self) -> None:
        """Start to end the tasks that find the master; see `ended`."""

    def abandon(self) -> None:
        """End the connections of these tasks after the event loop was closed."""

    async def ended(self) -> None:
        """Wait until these tasks have ended after `close`; they end anyway."""


class ConfirmedRoute(Route):
    """
    The route to a master that a majority of voters has to confirm.

    A subclass asks the voters, and calls `conclude` after each answer.

    Args:
        changed: Called when the confirmation of the connected server ends, or the server is
            confirmed again.
    """

    outlives = confirmation.CONFIRMED_FOR
    may_expire = True
    notices_failovers = True

    def __init__(
        self,
        dialler: AnyDialler,
        clock: Callable[[], float],
        confirmed: Confirmation,
        *,
        client_name: str,
        changed: Callable[[], None],
    ) -> None:
        self.naming = commands.set_name(chosen_name(dialler) or client_name)
        self._clock = clock
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._confirmation = confirmed
        self._dialled: Configuration | Owner | None = None
        # The connection to the master, and the configuration in which that was dialled.
        self._connection: Connection | None = None
        self._configuration: Configuration | Owner | None = None
        self._confirmed_until = -math.inf
        self._was_confirmed = False
        self._next_answer: asyncio.Future[None] = self._loop.create_future()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}, {self._confirmation!r}>"

    @property
    def is_confirmed(self) -> bool:
        return self._connection is None or self._clock() <= self._confirmed_until

    @property
    def bar(self) -> Bar | None:
        if self.is_confirmed:
            return None
        text = self._confirmation.describe(self._configuration, self._clock())
        return Bar(NoVoteCause.UNCONFIRMED, text)

    async def dial(self) -> tuple[asyncio.Transport, object]:
        ends = self._loop.time() + PATIENCE
        while (found := self._confirmation.current(self._clock())) is None:
            left = ends - self._loop.time()
            if left <= 0 or self._confirmation.is_hopeless:
                raise self._unconfirmed()
            await asyncio.wait([self._next_answer], timeout=left)
        self._dialled = found
        self.at = place(found.host, found.port)
        return await self._dial_to(found.host, found.port)

    def _unconfirmed(self) -> Exception:
        confirmed = self._confirmation
        text = confirmed.describe(None, self._clock())
        return UnconfirmedError(text, permanent=confirmed.is_hopeless)

    async def _dial_to(self, host: str, port: int) -> tuple[asyncio.Transport, object]:
        raise NotImplementedError

    def watch(self, connection: Connection) -> None:
        if self._dialled is None:
            raise ConnectionError("no server was dialled")
        # A majority may name another server since this one was dialled. In that case the
        # next answer ends the connection; now it has no transport yet that could be ended.
        self._connection, self._configuration = connection, self._dialled
        self._confirmed_until = self._confirmation.until(self._dialled)
        self._was_confirmed = True

    def conclude(self) -> None:
        """Re-evaluate after an answer or a timeout: wake dials, mute or end the connection."""
        # The future is replaced before a waiting `dial` runs: if that is not content with this
        # answer, it waits for the next one.
        self._next_answer.set_result(None)
        self._next_answer = self._loop.create_future()
        connection, configuration = self._connection, self._configuration
        if connection is None or configuration is None:
            return
        # No timer tells that a confirmation has run out. If this answer is the first to find that,
        # and confirms the server again, that is a change as well: `Master.send` may be muted since.
        had_run_out = not self.is_confirmed
        self._confirmed_until = self._confirmation.until(configuration)
        is_confirmed = self.is_confirmed
        current = self._confirmation.current(self._clock())
        if current not in {None, configuration}:
            self._connection = None
            connection.condemn(NoVoteCause.FAILOVER, self._replaced_by(str(current)))
        elif had_run_out if is_confirmed else self._was_confirmed:
            self._was_confirmed = is_confirmed
            self._changed()

    def _replaced_by(self, current: str) -> str:
        raise NotImplementedError


class Poll:
    """
    Asks one voter every `ASK_INTERVAL`, over a connection of its own, until `close`.

    Args:
        first: Commands for each new connection, which may be refused.

        subscription: One more of these, which is answered by a push; empty for none.

        questions: The commands that are repeated.

        on_answer: Called with the replies to the questions, and the instant at which they
            were sent, on *clock*.

        on_failure: Called with why there is no answer, and whether that is permanent.

        on_first: Called with the replies to *first*.
    """

    def __init__(  # noqa: PLR0913 - what is asked, and whom it calls
        self,
        dialler: Dialler,
        clock: Callable[[], float],
        *,
        first: Sequence[bytes],
        questions: Sequence[bytes],
        on_answer: Callable[[list[object], float], None],
        on_failure: Callable[[str, bool], None],
        subscription: bytes = b"",
        on_push: Callable[[int, object], None] | None = None,
        on_first: Callable[[list[object]], None] | None = None,
    ) -> None:
        self._dialler = dialler
        self._clock = clock
        self._first = first
        self._questions = questions
        self._on_answer = on_answer
        self._on_failure = on_failure
        self._subscription = subscription
        self._on_push = on_push or ignore
        self._on_first = on_first
        self._loop = asyncio.get_running_loop()
        self._now: asyncio.Future[None] = self._loop.create_future()
        self._open: Connection | None = None
        # Last: with an eager task factory its first step runs within this call.
        self.task: asyncio.Task[None] = self._loop.create_task(
            self._run(), name=f"redlock_aio {dialler}"
        )

    def __repr__(self) -> str:
        return f"<Poll of {self._dialler}>"

    def ask_now(self) -> None:
        """Ask at once, if nothing is asked now; a connection is not made sooner."""
        if not self._now.done():
            self._now.set_result(None)

    async def _run(self) -> None:
        task = asyncio.current_task()
        # If redis-py or another library swallows a cancellation, this condition still ends
        # the task; otherwise it would keep the program from ending.
        while task is not None and not task.cancelling():
            limit = asyncio.timeout(DIAL_TIMEOUT)
            try:
                async with limit:
                    transport, keep = await self._dialler.dial()
                await self._listen(transport, keep)
            except Exception as error:  # noqa: BLE001 - any failure counts as no answer of this voter
                patience = DIAL_TIMEOUT if limit.expired() else None
                bar = why_not_connected(error, self._dialler.secrets, patience)
                self._on_failure(bar.text, bar.permanent)
            delay = confirmation.ASK_INTERVAL * random.uniform(0.5, 1)  # noqa: S311 - no secret
            await asyncio.sleep(delay)

    async def _listen(self, transport: asyncio.Transport, keep: object) -> None:
        connection = Connection(
            0, self._loop, condemn_after=ANSWER_TIMEOUT, on_push=self._on_push, on_lost=ignore
        )
        connection.use(transport, keep)
        self._open = connection
        task = asyncio.current_task()
        try:
            first = [Question(command, self._loop) for command in self._first]
            connection.send(b"".join(self._first), first)
            if self._subscription:
                # One that is refused: this voter is only polled.
                subscription = Subscription(self._subscription)
                connection.send(subscription.payload, [subscription])
            while task is not None and not task.cancelling():
                if self._now.done():
                    # Before the question: a push behind it asks again.
                    self._now = self._loop.create_future()
                await self._ask(connection)
                if self._on_first is not None and first:
                    # All are answered: the replies come in order.
                    self._on_first([question.reply.result() for question in first])
                    first = []
                await asyncio.wait([self._now], timeout=confirmation.ASK_INTERVAL)
        finally:
            self._open = None
            connection.close()

    async def _ask(self, connection: Connection) -> None:
        # Read before sending: the answers describe some instant after this one.
        asked_at = self._clock()
        asked = connection.ask(*self._questions)
        replies = [await question.reply for question in asked]
        for reply in replies:
            if isinstance(reply, NoReply):
                raise ConnectionError(reply.detail)
        self._on_answer(replies, asked_at)

    def close(self) -> None:
        self.task.cancel()

    def abandon(self) -> None:
        """End the connection after the event loop was closed."""
        if self._open is not None:
            self._open.abandon()
            self._open = None
