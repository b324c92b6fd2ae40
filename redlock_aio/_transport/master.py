"""
One master: its connection, its reconnection, and the releases that it has not confirmed.

    connecting ──► up ──► down ──► connecting ...
         └──────────────────┘ (with growing, random delays)

Commands are sent only while the master is up. Otherwise its vote is a `NoReply` at once,
with the reason. A master that may have forgotten locks gets all commands but those that
acquire one. A release that it has not confirmed is a debt, see `Debts`.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from redlock_aio._protocol import commands, replies, request, scripts
from redlock_aio._protocol.request import NoReply, Sender
from redlock_aio._rules.causes import NoVoteCause
from redlock_aio._rules.quarantine import MEMBER
from redlock_aio._rules.quorum import Answer, Vote
from redlock_aio._rules.roundtrips import RoundTrips
from redlock_aio._rules.server_info import ServerInfo
from redlock_aio._transport.address import Address, AnyDialler
from redlock_aio._transport.connection import Connection, Question
from redlock_aio._transport.debts import Debts
from redlock_aio._transport.guard import Guard, Sentry
from redlock_aio._transport.handshake import MasterError, ReplicaError, examined, is_forbidden, why
from redlock_aio._transport.moved_name import interval, moved
from redlock_aio._transport.sentinels import route_to

SHORTEST_DIAL = 1.0
"""The shortest timeout of a connection attempt, in seconds."""

LONGEST_DIAL = 4.0
"""The longest timeout: it doubles after each attempt that timed out, if timeouts are adaptive."""

FIRST_DELAY, LONGEST_DELAY = 0.02, 0.5
"""The first and the longest delay between two attempts, in seconds; jitter takes up to half."""

TASK_NAME = "redlock_aio "
"""The begin of the name of a master's task."""

POLLING = "waiters poll, and each grant is sent with a read of the marker"

FORBIDS_TRACKING = f"it forbids client tracking (client|tracking), so {POLLING}"

LACKS_TRACKING = f"the service has no client tracking (CLIENT TRACKING), so {POLLING}"


class MasterContext(NamedTuple):
    """The objects that the masters of one manager share, and their callbacks."""

    trips: RoundTrips
    """The round trips of all masters, from which their timeouts follow."""
    clock: Callable[[], float]
    """The clock of leases."""
    on_push: Callable[[int, object], None]
    """
    Called with the number of a master and each push. When it comes up or goes down the push is
    made up by `Master` (`replies.EVERYTHING_CHANGED`, `GONE`).
    """
    tell: Callable[[bool, str], None]
    """Called with a sentence for operators, and first whether it is good news."""
    on_vote: Callable[[int], None]
    """Called with the number of a master that votes, also if it did before."""
    on_no_vote: Callable[[int, Vote, NoVoteCause], None]
    """Called with the number of a master that has no vote, also if it had none before."""
    cancelled: Callable[["Master"], Awaitable[None]]
    """Called with a master whose task ends without a `close`; awaited before it disconnects."""
    never_began: Callable[[], None]
    """Called instead if the task was cancelled before it ran."""
    guard: Guard | None
    """The restart guard; ``None`` if that is off."""
    vouched: bool
    """Whether the operator guarantees that no master loses a lock."""
    neighbours: dict[str, "Master"]
    """The masters by the run_id of their servers."""
    client_name: str
    """The name of the connections, as the servers' ``CLIENT LIST`` shows it."""


class Master:
    """
    One master, for as long as its manager is open.

    `Sentry` handles the locks that the master may have lost.

    Args:
        dialler: Makes its connections; the dialler's text is the master's name.
    """

    def __init__(self, number: int, dialler: AnyDialler, context: MasterContext) -> None:
        self.name = str(dialler)
        self._number = number
        self._dialler = dialler
        self._context = context
        self._on_push = on_push = context.on_push
        self._tell = tell = context.tell
        self._reported = NoReply(Answer.GRANTED)
        judged = self._judged
        self._route = route = route_to(
            dialler, context.clock, client_name=context.client_name, changed=judged, tell=tell
        )
        self._sentry: Sentry | None = None
        if context.guard is not None:
            self._sentry = context.guard.sentry(
                number, route=route, on_push=on_push, judged=judged, looked=self._caution
            )
        self._out = ""
        self._trips = context.trips
        self._dial_timeout = self._patience
        self._loop = asyncio.get_running_loop()
        self._connection: Connection | None = None
        self._no_reply = NoReply(Answer.UNREACHABLE, "connecting")
        self._run_id = ""
        self._cautioned = ""
        self._untracked = ""
        self.can_free = True
        """Whether the server has and allows DELIFEQ, or did so when it was last up."""
        self.debts = Debts(
            self._loop, overdue=self.overdue, warn=lambda text: tell(False, f"{self.name}: {text}")
        )
        self._closing = False
        self.reached: asyncio.Future[None] = self._loop.create_future()
        """Done as soon as it is known whether the master is up."""
        self.tried: asyncio.Future[None] = self._loop.create_future()
        """Done as soon as it is known whether the master votes."""
        self.send: Callable[[bytes, Sequence[Sender]], NoReply | None] = self._refuse
        """Send commands behind all earlier ones; return a `NoReply` if they were not sent."""
        self._task = self._loop.create_task(self._serve(), name=f"{TASK_NAME}{self.name}")
        self._task.add_done_callback(lambda _task: self._ended(context.never_began))

    def __repr__(self) -> str:
        return f"<Master {self.name}, {self.reason or 'up'}, {len(self.debts)} debts>"

    @property
    def reason(self) -> str:
        """The reason why the master has no vote; empty if it has one."""
        return self.quarantine if self.up else self._no_reply.detail

    @property
    def _patience(self) -> float:
        """Seconds without data after which a connection or an attempt to connect is ended."""
        return max(SHORTEST_DIAL, self._trips.timeout / 100)

    @property
    def up(self) -> bool:
        """Whether the master is connected, and was accepted by `_examine`."""
        return self._connection is not None

    @property
    def votes(self) -> bool:
        """Whether the master is up and not quarantined."""
        return self.up and not self.quarantine

    @property
    def quarantine(self) -> str:
        """The reason why a master that is up has no vote (restart guard, Sentinels), or empty."""
        return ("" if (sentry := self._sentry) is None else sentry.detail) or self._route.detail

    @property
    def pending(self) -> int:
        """The number of commands that were sent and are not answered yet."""
        return connection.pending if (connection := self._connection) is not None else 0

    @property
    def received(self) -> int:
        """The number of times that the current connection has received data."""
        return self._connection.received if self._connection is not None else 0

    def _refuse(self, _payload: bytes, _askers: Sequence[Sender], /) -> NoReply:
        return self._no_reply

    def overdue(self) -> NoReply:
        """Called when a reply is overdue: watch the connection, and return the vote to count."""
        if self._connection is not None:
            self._connection.overdue()
        slow = self._trips.too_slow(self._number)
        return NoReply(Answer.TIMED_OUT, slow) if slow else request.TIMED_OUT

    def add_debt(self, payload: bytes, ttl: int) -> None:
        """Repeat the release *payload* until confirmed; its key may live *ttl* ms. See `Debts`."""
        self.debts.add_debt(payload, ttl)

    async def _serve(self) -> None:
        """Keep the master connected until cancelled."""
        try:
            try:
                await self._stay_connected()
            except (asyncio.CancelledError, Exception):
                await self._take_leave()
                raise
            await self._take_leave()
        finally:
            if self._connection is not None:
                self._connection.close()

    def _ended(self, never_began: Callable[[], None]) -> None:
        """Called when the task has ended: wake waiters if it never ran."""
        if not self._closing:
            self._closing = True
            self._is_known()
            never_began()

    async def _take_leave(self) -> None:
        """Without a `close`, keep the connection until *cancelled* has sent the releases."""
        if not self._closing:
            self._closing = True
            self._is_known()
            await self._context.cancelled(self)

    async def _stay_connected(self) -> None:
        failures = 0
        task = asyncio.current_task()
        # If redis-py or another library swallows a cancellation, this condition still ends
        # the task; otherwise it would keep the program from ending.
        while task is not None and not task.cancelling():
            try:
                async with asyncio.timeout(self._dial_timeout):
                    down = await self._connect()
            except Exception as error:  # noqa: BLE001 - any failure is this master's vote
                failures += 1
                if isinstance(error, ReplicaError) and self._sentry is not None:
                    self._sentry.saw_replica(error.info)
                self._step_down(*why(error, self._dialler.secrets, self._dial_timeout))
                if isinstance(error, TimeoutError) and not self._trips.fixed:
                    # The master may only be far away: a connection takes several round trips.
                    self._dial_timeout = min(2 * self._dial_timeout, LONGEST_DIAL)
                if isinstance(error, TimeoutError):
                    # That was pause enough. A server that was stopped, and continues, answers
                    # the connection that waits in its backlog at once, but none that is not made.
                    failures = 0
                self._is_known()
            else:
                failures = 0
                if not task.cancelling():
                    await self._watch(down)
                self._is_known()  # the master does not vote now
            if self._sentry is not None and self._sentry.at_once:
                self._sentry.at_once = False
                continue
            longest = min(LONGEST_DELAY, FIRST_DELAY * 2 ** min(failures, 16))
            await asyncio.sleep(longest * random.uniform(0.5, 1))  # noqa: S311 - no secret

    async def _watch(self, down: asyncio.Future[None]) -> None:
        """Examine the master, and look up its name, until its connection is *down*."""
        following = self._following()
        try:
            await (down if self._sentry is None else self._sentry.monitor(down))
        finally:
            if following is not None:
                # Awaited, so that no task is left when the master has ended. It waits for nothing
                # after its cancellation: look-ups go on in their threads.
                following.cancel()
                await asyncio.wait([following])

    def _following(self) -> asyncio.Task[None] | None:
        """Return the task that looks up the name of the master; ``None`` if it has no name."""
        dialler, connection = self._dialler, self._connection
        if connection is None or not isinstance(dialler, Address) or dialler.looks_up is None:
            return None

        async def follow() -> None:
            reason = await moved(
                dialler,
                connection,
                self._run_id,
                every=interval(None if self._sentry is None else self._sentry.lasts),
                within=self._dial_timeout,
            )
            if reason:
                # As after any end, the name is dialled at once, and the server there examined.
                # The guard knows that another one was seen at this address.
                connection.condemn(NoVoteCause.FAILOVER, reason)

        return self._loop.create_task(follow(), name=f"{TASK_NAME}{dialler.looks_up[0]}")

    def _is_known(self, *, votes: bool = True) -> None:
        for known in (self.reached, self.tried) if votes else (self.reached,):
            if not known.done():
                known.set_result(None)

    async def _connect(self) -> asyncio.Future[None]:
        """Connect and examine the server; the future is done when the connection has ended."""
        down: asyncio.Future[None] = self._loop.create_future()

        def lost(cause: NoVoteCause, reason: str) -> None:
            if not down.done():
                down.set_result(None)
            self._lost(cause, reason)

        transport, keep = await self._route.dial()
        connection = self._route.connection(
            self._number,
            self._loop,
            condemn_after=self._patience,
            on_push=self._on_push if self._sentry is None else self._sentry.on_push,
            on_lost=lost,
        )
        connection.adopt(transport, keep)
        try:
            await self._examine(connection)
        except BaseException:
            connection.condemn(NoVoteCause.CLOSED, "this client did not accept the server")
            raise
        if down.done():
            raise ConnectionError(connection.reason)
        self._connection = connection
        self.send = connection.send  # until `_judged`, below
        self._report(NoReply(Answer.GRANTED), None)
        self.debts.connected(connection.send)
        self._judged()
        if not self.votes:
            # Changes since the last connection were pushed to no one, and this connection
            # pushes only changes of keys that it has read. So leases check their keys now:
            # a foreign value there counts against them, even without a vote.
            self._on_push(self._number, replies.EVERYTHING_CHANGED)
        return down

    def _judged(self) -> None:
        """Called when the vote may have changed: choose `send`, and report a change."""
        connection, sentry = self._connection, self._sentry
        if connection is None:
            return  # still being examined: the master does not count as up
        if sentry is not None and sentry.state is MEMBER:
            sentry = None  # the guard has no objection
        self._is_known(votes=sentry is None or sentry.settled)
        self.send = connection.send if sentry is None else sentry.send
        if sentry is None and self._sentry is not None and not self._sentry.tracked:
            self.send = self._sentry.send_proved
        if self.votes:
            if self._out:
                self._tell(True, f"{self.name}: votes again")
            self._out = ""
            self._context.on_vote(self._number)
            self._on_push(self._number, replies.EVERYTHING_CHANGED)
            return
        if sentry is None or sentry.settled:
            reason = "unconfirmed" if sentry is None else sentry.why
            vote = Vote(self.name, Answer.QUARANTINED, self.quarantine)
            if self._out != reason:
                self._out = reason
                if sentry is None or not sentry.is_told:
                    self._tell(False, str(vote))
            cause = NoVoteCause.UNCONFIRMED if sentry is None else sentry.cause
            self._context.on_no_vote(self._number, vote, cause)

    async def _examine(self, connection: Connection) -> None:
        """Load the scripts and examine the server; raise an error if it must not be used."""
        questions = [Question(commands.INFO, self._loop)]
        questions += [Question(script.load, self._loop) for script in scripts.SCRIPTS]
        # These may fail: without tracking, waiters retry after a delay.
        wishes = [Question(wish, self._loop) for wish in (*commands.WISHES, self._route.naming)]
        if self._sentry is not None:
            wishes += [Question(wish, self._loop) for wish in self._sentry.questions]
            self._sentry.attach(connection)
        sent, every = self._loop.time(), [*questions, *wishes]
        connection.send(b"".join([question.payload for question in every]), every)
        await questions[0].reply
        took = self._loop.time() - sent
        replies = [await question.reply for question in questions]
        for reply in replies:
            if isinstance(reply, NoReply):
                raise ConnectionError(reply.detail)
            if isinstance(reply, Exception):
                raise MasterError(NoVoteCause.SERVER_ERROR, str(reply))
        info = await examined(replies[0], connection)
        other = self._context.neighbours.setdefault(info.run_id, self)
        if other is not self:
            raise MasterError(NoVoteCause.SAME_SERVER, f"the same server as {other.name}")
        self._run_id = info.run_id  # `_step_down` removes the name
        self._trips.begin(self._number, took * 1000)
        tracking = await wishes[0].reply
        self.can_free = await wishes[1].reply == 0
        self._untracked = ""
        if self._sentry is not None:
            self._sentry.tracked = not isinstance(tracking, Exception)
            if isinstance(tracking, Exception):
                forbids = is_forbidden(tracking)
                self._untracked = FORBIDS_TRACKING if forbids else LACKS_TRACKING
        self._caution(info)
        if self._sentry is not None:
            await self._sentry.examine(connection, info, [await w.reply for w in wishes[3:]])

    def _caution(self, info: ServerInfo) -> None:
        """Warn about what *info* shows, unless that was the last warning."""
        forgets = info.forgets if self._context.vouched else ""
        caution = "; ".join(filter(None, [info.caution, forgets, self._untracked]))
        if caution and caution != self._cautioned:
            self._tell(False, f"{self.name}: {caution}")
        self._cautioned = caution

    def _report(self, no_reply: NoReply, cause: NoVoteCause | None) -> None:
        """Report that the master is up or down, unless that was the last report."""
        if no_reply != self._reported:
            self._reported = no_reply
            good = cause is None
            vote = Vote(self.name, no_reply.answer, no_reply.detail)
            self._tell(good, f"{self.name}: connected again" if good else str(vote))
            if cause is not None:  # the vote of a master that is up is not known yet
                self._context.on_no_vote(self._number, vote, cause)

    def _step_down(self, no_reply: NoReply, cause: NoVoteCause) -> None:
        if self._connection is not None:
            self._on_push(self._number, replies.GONE)
        self._connection = None
        self._trips.forget(self._number)
        self.send = self._refuse
        self._no_reply = no_reply
        if self._sentry is not None:
            self._sentry.gone(closing=self._closing)
        if not self._closing and (self._sentry is None or not self._sentry.at_once):
            self._report(no_reply, cause)
        if self._context.neighbours.get(self._run_id) is self:
            del self._context.neighbours[self._run_id]

    def _lost(self, cause: NoVoteCause, reason: str) -> None:
        if self._connection is not None:  # else the examination reports the reason
            if cause is NoVoteCause.NOT_A_MASTER and self._sentry is not None:
                # READONLY: it may be a master again before this client has connected.
                self._sentry.saw_replica()
            self._step_down(NoReply(Answer.UNREACHABLE, reason), cause)
        self.debts.lost()

    def drained(self) -> asyncio.Future[object] | None:
        """Send PING, whose reply follows those to all earlier commands; ``None`` if not sent."""
        question = Question(commands.PING, self._loop)
        return question.reply if self.send(question.payload, [question]) is None else None

    def close(self) -> None:
        """Begin to end the connection and the task that renews it; see `ended`."""
        self._closing = True
        self.debts.close()
        self._is_known()
        self._task.cancel()
        self._route.close()

    def abandon(self) -> None:
        """End the connection of a closed event loop, in which the task can't run any more."""
        self._closing = True
        self._route.abandon()
        if self._sentry is not None:
            self._sentry.gone(closing=self._closing)
        if self._connection is not None:
            self._connection.abandon()
            self._connection = None

    async def ended(self) -> None:
        """
        Wait until the task and the route have ended after `close`.

        Cancellation:
            The task and the route end nevertheless.
        """
        await asyncio.wait([self._task])
        await self._route.ended()
