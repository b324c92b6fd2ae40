"""
The Sentinels of one master: asks each of them, and acts on their answers.

    Sentinel 1 ──┐ asked every 0.5 s, and at once when one pushes a switch
    Sentinel 2 ──┼─► Confirmation ─► where to dial
    Sentinel 3 ──┘                └► until when the connection takes commands of locks

Each Sentinel has a task and a connection of its own, so that one that hangs does not
delay the others. The laws of this file:

- A server is dialled only while a majority confirms it. Hence everything that begins
  with its first examination, such as a quarantine, begins after the confirmation.
- `Master.send` reads the clock (`is_confirmed`) for each command. A timer would not do: after
  a stall the loop runs ready callbacks before due timers, and would send one more command.
- A grant that was requested in time counts whenever it comes, because a lease lives from
  the request. So the connection stays open when the confirmation runs out.
- The connection ends when a majority names another server, or this one in a later epoch.
"""

import asyncio
import logging
import math
import random
from collections.abc import Callable

from redlock_aio._protocol import commands, confirmation
from redlock_aio._protocol.confirmation import Configuration, Confirmation
from redlock_aio._protocol.request import NoReply, Subscription
from redlock_aio._rules.causes import NoVoteCause
from redlock_aio._rules.server_info import ServerInfo
from redlock_aio._rules.standing import Bar
from redlock_aio._transport.address import (
    AnyDialler,
    Dialler,
    ServiceDialler,
    UnconfirmedError,
    chosen_name,
    why_not_connected,
)
from redlock_aio._transport.connection import Connection, Question

_log = logging.getLogger("redlock_aio")

ANSWER_TIMEOUT = 1.0
"""Seconds without a reply after which the connection to a Sentinel is ended."""

DIAL_TIMEOUT = 3.0
"""The timeout in seconds for connecting to a Sentinel, which takes several round trips."""

PATIENCE = 0.8
"""Seconds for which `Sentinels.dial` waits for a majority; less than its whole timeout."""


class Route:
    """The route to a master with a fixed address."""

    outlives = 0.0
    """Seconds for which a replaced master may continue to grant locks."""
    may_expire = False
    """Whether `is_confirmed` may end by itself, so that it has to be read for each command."""
    notices_failovers = False
    """Whether a replica that takes the place of the master is noticed."""

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

    def identified(self, info: ServerInfo) -> ServerInfo:
        """Return *info* with an identity that no earlier master at this address had."""
        return info

    def close(self) -> None:
        """Start to end the tasks that find the master; see `ended`."""

    def abandon(self) -> None:
        """End the connections of these tasks after the event loop was closed."""

    async def ended(self) -> None:
        """Wait until these tasks have ended after `close`; they end anyway."""


def route_to(
    dialler: AnyDialler,
    clock: Callable[[], float],
    *,
    client_name: str,
    changed: Callable[[], None],
) -> Route:
    """Return the route to the master of *dialler*; see `Sentinels` for the arguments."""
    if isinstance(dialler, ServiceDialler):
        return Sentinels(dialler, clock, client_name=client_name, changed=changed)
    return Route(dialler, client_name)


class Sentinels(Route):
    """
    The route to a master that Sentinels name; polls them until `close`.

    Args:
        client_name: The name of the connections to Sentinels for which the user chose none.

        changed: Called when the confirmation of the connected server ends, or the server is
            confirmed again.
    """

    outlives = confirmation.CONFIRMED_FOR
    may_expire = True
    notices_failovers = True

    def __init__(
        self,
        dialler: ServiceDialler,
        clock: Callable[[], float],
        *,
        client_name: str,
        changed: Callable[[], None],
    ) -> None:
        self._service = dialler
        self.naming = commands.set_name(chosen_name(dialler) or client_name)
        self._clock = clock
        self._client_name = client_name
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._confirmation = Confirmation([str(each) for each in dialler.sentinels])
        self._cautioned = ""
        self._open: set[Connection] = set()
        self._dialled: Configuration | None = None
        # The connection to the master, and the configuration in which that was dialled.
        self._connection: Connection | None = None
        self._configuration: Configuration | None = None
        self._confirmed_until = -math.inf
        self._was_confirmed = False
        self._asked: asyncio.Future[None] = self._loop.create_future()
        self._next_answer: asyncio.Future[None] = self._loop.create_future()
        self._tasks = [
            self._loop.create_task(self._ask(number, each), name=f"redlock_aio {each}")
            for number, each in enumerate(dialler.sentinels)
        ]

    def __repr__(self) -> str:
        return f"<Sentinels of {self._service}, {self._confirmation!r}>"

    @property
    def is_confirmed(self) -> bool:
        return self._connection is None or self._clock() <= self._confirmed_until

    @property
    def bar(self) -> Bar | None:
        if self.is_confirmed:
            return None
        text = self._confirmation.describe(self._configuration, self._clock())
        return Bar(NoVoteCause.UNCONFIRMED, text)

    def identified(self, info: ServerInfo) -> ServerInfo:
        return info.in_epoch(self._dialled.epoch) if self._dialled is not None else info

    async def dial(self) -> tuple[asyncio.Transport, object]:
        ends = self._loop.time() + PATIENCE
        while (found := self._confirmation.current(self._clock())) is None:
            left = ends - self._loop.time()
            if left <= 0:
                raise UnconfirmedError(self._confirmation.describe(None, self._clock()))
            await asyncio.wait([self._next_answer], timeout=left)
        self._dialled = found
        return await self._service.dial_to(found.host, found.port)

    def watch(self, connection: Connection) -> None:
        if self._dialled is None:
            raise ConnectionError("no server was dialled")
        # A majority may name another server since this one was dialled. In that case the
        # next answer ends the connection; now it has no transport yet that could be ended.
        self._connection, self._configuration = connection, self._dialled
        self._confirmed_until = self._confirmation.until(self._dialled)
        self._was_confirmed = True

    async def _ask(self, number: int, sentinel: Dialler) -> None:
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
                bar = why_not_connected(error, sentinel.secrets, DIAL_TIMEOUT)
                self._confirmation.failed(number, bar.text)
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
        connection.use(transport, keep)
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
        # Read before sending: the answers describe some instant after this one.
        asked_at = self._clock()
        asked = connection.ask(*confirmation.questions(self._service.service))
        replies = [await question.reply for question in asked]
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
        # The future is replaced before a waiting `dial` runs: if that is not content with this
        # answer, it waits for the next one.
        self._next_answer.set_result(None)
        self._next_answer = self._loop.create_future()
        caution = self._confirmation.caution
        if caution and caution != self._cautioned:
            _log.warning("%s", f"{self._service}: {caution}")
        self._cautioned = caution
        connection, configuration = self._connection, self._configuration
        if connection is None or configuration is None:
            return
        self._confirmed_until = self._confirmation.until(configuration)
        current = self._confirmation.current(self._clock())
        if current not in {None, configuration}:
            self._connection = None
            reason = f"the Sentinels name {current} as the master"
            connection.condemn(NoVoteCause.FAILOVER, reason)
        elif self._was_confirmed is not self.is_confirmed:
            self._was_confirmed = not self._was_confirmed
            self._changed()

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    def abandon(self) -> None:
        while self._open:
            self._open.pop().abandon()

    async def ended(self) -> None:
        await asyncio.wait(self._tasks)


def _ignore(_cause: NoVoteCause, _reason: str, *_: object) -> None:
    """Do nothing when the connection to a Sentinel ends: it has no debts or votes."""
