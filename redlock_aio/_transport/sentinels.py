"""
The Sentinels of one master: asks each of them, and acts on their answers.

    Sentinel 1 ──┐ asked every 0.5 s, and at once when one pushes a switch
    Sentinel 2 ──┼─► Confirmation ─► where to dial
    Sentinel 3 ──┘                └► until when the connection takes commands of locks

Each Sentinel has a task and a connection of its own, so that one that hangs does not
delay the others. The laws of this file:

- A server is dialled only while a majority confirms it. Hence everything that begins
  with its first examination, such as a quarantine, begins after the confirmation.
- The clock is read whenever a command is sent. A timer would not do: after a stall the
  loop runs ready callbacks before due timers, and would send one more command.
- A grant that was requested in time counts whenever it comes, because a lease lives from
  the request. So the connection stays open when the confirmation runs out.
- The connection ends when a majority names another server, or this one in a later epoch.
"""

import asyncio
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

from redlock_aio._protocol import commands, confirmation
from redlock_aio._protocol.confirmation import Configuration, Confirmation
from redlock_aio._protocol.request import NoReply, Sender, Subscription
from redlock_aio._rules.causes import NoVoteCause
from redlock_aio._rules.quorum import Answer
from redlock_aio._rules.server_info import ServerInfo
from redlock_aio._transport.address import AnyDialler, Dialler, ServiceDialler, chosen_name
from redlock_aio._transport.connection import Connection, Question
from redlock_aio._transport.handshake import UnconfirmedError, mute, why

ANSWER_TIMEOUT = 1.0
"""Seconds without a reply after which the connection to a Sentinel is ended."""

DIAL_TIMEOUT = 3.0
"""The timeout in seconds for connecting to a Sentinel, which takes several round trips."""

PATIENCE = 0.8
"""Seconds for which `Sentinels.dial` waits for a majority; less than its whole timeout."""


class ConfirmedConnection(Connection):
    """
    A connection to a master that Sentinels name.

    Args:
        sentinels: The Sentinels that confirm the master.

        configuration: The configuration in which the master was dialled.
    """

    __slots__ = ("_sentinels", "configuration", "confirmed_until")

    def __init__(
        self, *args: Any, sentinels: "Sentinels", configuration: Configuration, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._sentinels = sentinels
        self.configuration = configuration
        self.confirmed_until = -math.inf

    def send(self, payload: bytes, senders: Sequence[Sender], /) -> NoReply | None:
        """Send as `Connection.send` while confirmed; otherwise as to a master without a vote."""
        sentinels = self._sentinels
        if sentinels.clock() <= self.confirmed_until:
            return super().send(payload, senders)
        return mute(super().send, payload, senders, sentinels.no_reply)


class Route:
    """The route to a master with a fixed address."""

    outlives = 0.0
    """Seconds for which a replaced master may continue to grant locks."""
    detail = ""
    """The reason why the connected server is not known to be the master; empty if it is."""

    def __init__(self, dialler: Dialler, client_name: str) -> None:
        self._dialler = dialler
        self.naming: bytes = commands.set_name(chosen_name(dialler) or client_name)
        """The command that names a connection to the master; it may be refused."""

    async def dial(self) -> tuple[asyncio.Transport, object]:
        """
        Connect to the master; see `Dialler.dial`.

        Cancellation:
            The connection is closed.
        """
        return await self._dialler.dial()

    def connection(self, *args: Any, **kwargs: Any) -> Connection:
        """Return a `Connection` to the server dialled last, made with these arguments."""
        return Connection(*args, **kwargs)

    def identified(self, info: ServerInfo) -> ServerInfo:
        """Return *info* with an identity that no earlier master at this address had."""
        return info

    def close(self) -> None:
        """Start to end the tasks that find the master."""

    def abandon(self) -> None:
        """End the connections of these tasks after the event loop was closed."""

    async def ended(self) -> None:
        """
        Wait until these tasks have ended after `close`.

        Cancellation:
            They end anyway.
        """


def route_to(
    dialler: AnyDialler,
    clock: Callable[[], float],
    *,
    client_name: str,
    changed: Callable[[], None],
    tell: Callable[[bool, str], None],
) -> Route:
    """Return the route to the master of *dialler*; see `Sentinels` for the arguments."""
    if isinstance(dialler, ServiceDialler):
        return Sentinels(dialler, clock, client_name=client_name, changed=changed, tell=tell)
    return Route(dialler, client_name)


class Sentinels(Route):
    """
    The route to a master that Sentinels name; polls them until `close`.

    Args:
        dialler: Makes the connections to the master and to its Sentinels.

        clock: The clock of leases.

        client_name: The name of the connections to Sentinels for which the user chose none.

        changed: Called when the confirmation of the connected server ends, or the server is
            confirmed again.

        tell: Called with a sentence for operators, and first whether it is good news.
    """

    outlives = confirmation.CONFIRMED_FOR

    def __init__(
        self,
        dialler: ServiceDialler,
        clock: Callable[[], float],
        *,
        client_name: str,
        changed: Callable[[], None],
        tell: Callable[[bool, str], None],
    ) -> None:
        self._service = dialler
        self.naming = commands.set_name(chosen_name(dialler) or client_name)
        self.clock = clock
        self._client_name = client_name
        self._changed = changed
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._confirmation = Confirmation([str(each) for each in dialler.sentinels])
        self._cautioned = ""
        self._open: set[Connection] = set()
        self._connection: ConfirmedConnection | None = None
        self._dialled: Configuration | None = None
        self._is_confirmed = False
        self._no_reply: NoReply | None = None
        self._asked: asyncio.Future[None] = self._loop.create_future()
        self._next_answer: asyncio.Future[None] = self._loop.create_future()
        self._tasks = [
            self._loop.create_task(self._ask(number, each), name=f"redlock_aio {each}")
            for number, each in enumerate(dialler.sentinels)
        ]

    def __repr__(self) -> str:
        return f"<Sentinels of {self._service}, {self._confirmation!r}>"

    @property
    def detail(self) -> str:  # type: ignore[override]
        """The reason why the connected server is not confirmed; empty if it is."""
        connection = self._connection
        now = self.clock()
        if connection is None or now <= connection.confirmed_until:
            return ""
        return self._confirmation.describe(connection.configuration, now)

    @property
    def no_reply(self) -> NoReply:
        """The vote of the server while it is not confirmed."""
        if self._no_reply is None:  # cached until the next answer
            self._no_reply = NoReply(Answer.QUARANTINED, self.detail)
        return self._no_reply

    def identified(self, info: ServerInfo) -> ServerInfo:
        """Return *info* with the configuration epoch in which the server was dialled."""
        return info.in_epoch(self._dialled.epoch) if self._dialled is not None else info

    async def dial(self) -> tuple[asyncio.Transport, object]:
        """
        Connect to the server that a majority confirms.

        Raises:
            UnconfirmedError: No server is confirmed; the text has the answer of each Sentinel.

            OSError, redis.RedisError: The server could not be reached, or refused the login.

        Cancellation:
            The connection is closed.
        """
        ends = self._loop.time() + PATIENCE
        while (found := self._confirmation.current(self.clock())) is None:
            left = ends - self._loop.time()
            if left <= 0:
                raise UnconfirmedError(self._confirmation.describe(None, self.clock()))
            await asyncio.wait([self._next_answer], timeout=left)
        self._dialled = found
        return await self._service.dial_to(found.host, found.port)

    def connection(self, *args: Any, **kwargs: Any) -> ConfirmedConnection:
        """Return the connection to the server dialled last."""
        if self._dialled is None:
            raise ConnectionError("no server was dialled")
        connection = ConfirmedConnection(
            *args, sentinels=self, configuration=self._dialled, **kwargs
        )
        # A majority may name another server since this one was dialled. In that case the
        # next answer ends the connection; now it has no transport yet that could be ended.
        connection.confirmed_until = self._confirmation.until(self._dialled)
        self._connection = connection
        self._is_confirmed = True
        return connection

    async def _ask(self, number: int, sentinel: Dialler) -> None:
        """Ask one Sentinel until cancelled; connect again whenever the connection ends."""
        task = asyncio.current_task()
        # If redis-py or another library swallows a cancellation, this condition still ends
        # the task; otherwise it would keep the program from ending.
        while task is not None and not task.cancelling():
            try:
                async with asyncio.timeout(DIAL_TIMEOUT):
                    transport, keep = await sentinel.dial()
                name = commands.set_name(chosen_name(sentinel) or self._client_name)
                await self._listen(number, transport, keep, name)
            except Exception as error:  # noqa: BLE001 - any failure counts as no answer of this Sentinel
                reason = why(error, sentinel.secrets, DIAL_TIMEOUT).no_reply.detail
                self._confirmation.failed(number, reason)
            self._conclude()
            delay = confirmation.ASK_INTERVAL * random.uniform(0.5, 1)  # noqa: S311 - no secret
            await asyncio.sleep(delay)

    async def _listen(
        self, number: int, transport: asyncio.Transport, keep: object, name: bytes
    ) -> None:
        connection = Connection(
            number,
            self._loop,
            condemn_after=ANSWER_TIMEOUT,
            on_push=self._pushed,
            on_lost=_ignore,
        )
        connection.adopt(transport, keep)
        self._open.add(connection)
        task = asyncio.current_task()
        try:
            connection.send(name, [Question(name, self._loop)])  # it may be refused
            # The subscription is for failovers; a Sentinel that forbids it is only polled.
            subscription = Subscription(confirmation.SUBSCRIBE)
            connection.send(subscription.payload, [subscription])
            while task is not None and not task.cancelling():
                await self._ask_once(number, connection)
                await asyncio.wait([self._asked], timeout=confirmation.ASK_INTERVAL)
        finally:
            self._open.discard(connection)
            connection.close()

    async def _ask_once(self, number: int, connection: Connection) -> None:
        asked = confirmation.questions(self._service.service)
        questions = [Question(command, self._loop) for command in asked]
        # Read before sending: the answers describe some instant after this one.
        asked_at = self.clock()
        refused = connection.send(b"".join(asked), questions)
        connection.overdue()
        replies = [refused] if refused else [await question.reply for question in questions]
        for reply in replies:
            if isinstance(reply, NoReply):
                raise ConnectionError(reply.detail)
        self._confirmation.on_answer(number, confirmation.read_answer(replies, asked_at))
        self._conclude()

    def _pushed(self, _number: int, push: object) -> None:
        """Called with each push: after a failover all Sentinels are asked at once."""
        if confirmation.is_switch(push, self._service.service) and not self._asked.done():
            self._asked.set_result(None)
            self._asked = self._loop.create_future()

    def _conclude(self) -> None:
        """Re-evaluate after an answer or a timeout: wake dials, mute or end the connection."""
        self._next_answer.set_result(None)
        self._next_answer = self._loop.create_future()
        self._no_reply = None
        caution = self._confirmation.caution
        if caution and caution != self._cautioned:
            self._tell(False, f"{self._service}: {caution}")
        self._cautioned = caution
        connection, now = self._connection, self.clock()
        if connection is None:
            return
        connection.confirmed_until = self._confirmation.until(connection.configuration)
        current = self._confirmation.current(now)
        if current not in (None, connection.configuration):
            self._connection = None
            reason = f"the Sentinels name {current} as the master"
            connection.condemn(NoVoteCause.FAILOVER, reason)
        elif self._is_confirmed is not (now <= connection.confirmed_until):
            self._is_confirmed = not self._is_confirmed
            self._changed()

    def close(self) -> None:
        """Cancel the tasks, which end their connections; see `ended`."""
        for task in self._tasks:
            task.cancel()

    def abandon(self) -> None:
        """End all connections to Sentinels after the event loop was closed."""
        while self._open:
            self._open.pop().abandon()

    async def ended(self) -> None:
        """
        Wait until all tasks have ended after `close`.

        Cancellation:
            They end anyway.
        """
        await asyncio.wait(self._tasks)


def _ignore(_cause: NoVoteCause, _reason: str, *_: object) -> None:
    """Do nothing when the connection to a Sentinel ends: it has no debts or votes."""
