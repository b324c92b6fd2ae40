"""
One master: its connection, its reconnection, and the releases that it has not confirmed.

    connecting ──► up ──► down ──► connecting ...
         └──────────────────┘ (with growing, random delays)

Commands are sent only while the master is up. Otherwise its vote is a `NoReply` at once,
with the reason. A master that may have forgotten locks gets all commands but those that
acquire one. A release that it has not confirmed is a debt, see `Debts`.
"""

import asyncio
import functools
import math
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from redlock_aio._log import log
from redlock_aio._protocol import commands, replies, request, scripts, tags
from redlock_aio._protocol.request import Altered, NoReply, QuarantineRule, Sender
from redlock_aio._protocol.tags import PLACEHOLDER
from redlock_aio._rules.causes import NoVoteCause
from redlock_aio._rules.quorum import Answer, Vote
from redlock_aio._rules.server_info import ServerInfo
from redlock_aio._rules.standing import Bar, Standing
from redlock_aio._rules.timing import RoundTrips
from redlock_aio._transport.address import Address, AnyDialler, ClusterDialler, why_not_connected
from redlock_aio._transport.cluster import ClusterNodes, route_to
from redlock_aio._transport.connection import (
    LOADS,
    Connection,
    MasterError,
    Question,
    ReplicaError,
    TaggedConnection,
    examined,
)
from redlock_aio._transport.debts import Debts, Send
from redlock_aio._transport.guard import Guard, GuardQuestions, Sentry
from redlock_aio._transport.moved_name import interval, moved

SHORTEST_DIAL = 1.0
"""The shortest timeout of a connection attempt, in seconds."""

LONGEST_DIAL = 4.0
"""The longest timeout: it doubles after each attempt that timed out, if timeouts are adaptive."""

FIRST_DELAY, LONGEST_DELAY = 0.02, 0.5
"""The first and the longest delay between two attempts, in seconds; jitter takes up to half."""

AGAIN = 60.0
"""Seconds after which a reason of the same outage is logged again, if another one came between."""

SAME_WORDS = 0.2
"""Seconds for which the text about a master without a vote is reused."""

TASK_NAME = "redlock_aio "

POLLING = "waiters poll, and each grant is sent with a read of the marker"

FORBIDS_TRACKING = f"it forbids client tracking (client|tracking), so {POLLING}"

LACKS_TRACKING = f"the service has no client tracking (CLIENT TRACKING), so {POLLING}"


class MasterContext(NamedTuple):
    """What the masters of one manager share, and whom they call."""

    trips: RoundTrips
    clock: Callable[[], float]
    """The clock of leases."""
    on_push: Callable[[int, object], None]
    """
    Called with the number of a master and each push. When it comes up or goes down the push is
    made up by `Master` (`replies.EVERYTHING_CHANGED`, `GONE`).
    """
    on_standing: Callable[[int, Standing], None]
    """Called with the number of a master and its standing, once that is known."""
    on_cancelled: Callable[[], None]
    """Called when the task of a master was cancelled from outside: nothing may be acquired now."""
    last_releases: Callable[["Master"], Awaitable[None]]
    """Called after that with the master, unless its task never began: waits for the releases."""
    guard: Guard | None
    vouched: bool
    """Whether the operator guarantees that no master loses a lock."""
    alone: bool
    """Whether there is one master only."""
    neighbours: dict[str, "Master"]
    """The masters by the run_id of their servers."""
    clusters: dict[ClusterDialler, ClusterNodes]
    """The Clusters of which masters are primaries; each has one entry for all of its masters."""
    client_name: str
    """The name of the connections, as the servers' ``CLIENT LIST`` shows it."""


class FirstQuestions(NamedTuple):
    """What a server is asked on a new connection, besides the scripts and the guard's questions."""

    info: Question
    tracking: Question
    """It may fail: without tracking, waiters retry after a delay."""
    can_free: Question
    naming: Question
    """It may fail."""


class Master:
    """
    One master, for as long as its manager is open.

    `Sentry` handles the locks that the master may have lost.
    """

    def __init__(self, number: int, dialler: AnyDialler, context: MasterContext) -> None:
        self.name = str(dialler)
        self._number = number
        self._dialler = dialler
        self._context = context
        self._on_push = on_push = context.on_push
        self._route = route = route_to(
            dialler,
            context.clock,
            context.clusters,
            client_name=context.client_name,
            changed=self._reconfirm,
        )
        self._sentry: Sentry | None = None
        if context.guard is not None:
            self._sentry = context.guard.sentry(
                number, route=route, on_push=on_push, changed=self._reassess
            )
        self._trips = context.trips
        self._dial_timeout = self._patience
        self._loop = asyncio.get_running_loop()
        self._connection: Connection | None = None
        self._away = Bar(NoVoteCause.NO_CONNECTION, "connecting", answer=Answer.UNREACHABLE)
        """Why there is no connection, or why there was none before."""
        self._logged = Standing()
        """The standing as the log has it, with the bars from before while the link is down."""
        self._told_until: dict[object, float] = {}
        """Until when each reason of the present outage is not logged again."""
        self._voted = False
        self._no_reply = NoReply(Answer.UNREACHABLE, "connecting")
        self._described_at = -math.inf
        self._run_id = ""
        self._loaded = ""
        """The run_id of the server that got the scripts last; empty if it has refused them."""
        self._cautioned = ""
        self._cautioned_alone = False
        self._tracks = False
        self._untracked = ""
        self.can_free = True
        """Whether the server has and allows DELIFEQ, or did so when it was last up."""
        self.debts = Debts(
            self._loop, overdue=self.overdue, warn=lambda text: _warn(f"{self.name}: {text}")
        )
        self._closing = False
        self.reached: asyncio.Future[None] = self._loop.create_future()
        """Done as soon as it is known whether the master is up."""
        self.tried: asyncio.Future[None] = self._loop.create_future()
        """Done as soon as it is known whether the master votes."""
        self.send: Send = self._refuse
        """Send commands behind all earlier ones; return a `NoReply` if they were not sent."""
        # Last: with an eager task factory its first step runs within this call.
        self._task = self._loop.create_task(self._serve(), name=f"{TASK_NAME}{self.name}")
        # It may be cancelled before its first step: then `_take_leave` does not run.
        self._task.add_done_callback(lambda _task: self._end_use())

    def __repr__(self) -> str:
        return f"<Master {self.name}, {self.reason or 'up'}, {len(self.debts)} debts>"

    @property
    def standing(self) -> Standing:
        """Why the master has no vote now, if it has none; any thread may read this."""
        if self._connection is None:
            return Standing(link=self._away)
        marker, declared = (None, None) if self._sentry is None else self._sentry.bars
        return Standing(None, marker, declared, self._route.bar)

    @property
    def reason(self) -> str:
        """The reason why the master has no vote; empty if it has one."""
        bar = self.standing.first
        return "" if bar is None else bar.describe(self._context.clock())

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
        return self.standing.votes

    @property
    def quarantine(self) -> str:
        """The reason why a master that is up has no vote (restart guard, Sentinels), or empty."""
        return self.reason if self.up else ""

    @property
    def no_vote(self) -> NoReply | None:
        """The vote in place of a request for a lock; ``None`` if that would be sent."""
        if self._connection is None:
            return self._no_reply
        return None if self.votes else self._why_muted()

    @property
    def reports(self) -> bool:
        """Whether the server reports changes of the keys that it is asked for (client tracking)."""
        return self._tracks and self._connection is not None

    def known_as(self, key: bytes) -> bytes:
        """Return a *key* that the server has named, as the engine knows it."""
        return tags.restored(key, self._route.tag) if self._route.tag else key

    @property
    def pending(self) -> int:
        return connection.pending if (connection := self._connection) is not None else 0

    @property
    def received(self) -> int:
        """The number of times that the current connection has received data."""
        return self._connection.received if self._connection is not None else 0

    # Sending. `_reassess` chooses one of these, by the standing.

    def _refuse(self, _payload: bytes, _senders: Sequence[Sender], /) -> NoReply:
        return self._no_reply

    def _send_checked(self, payload: bytes, senders: Sequence[Sender], /) -> NoReply | None:
        """Send to a master whose vote has to be proved, or may expire before a timer is due."""
        connection, sentry = self._connection, self._sentry
        if connection is None:
            return self._refuse(payload, senders)
        # Read for each command. A timer would not do: after a stall, callbacks that are ready run
        # before timers that are due, and a replaced master would get one more command of a lock.
        if not self._route.is_confirmed:
            return self._send_muted(payload, senders)
        if sentry is None or sentry.tracked:
            return connection.send(payload, senders)
        return sentry.send_proved(connection, payload, senders)

    def _send_muted(self, payload: bytes, senders: Sequence[Sender], /) -> NoReply | None:
        """Send to a master without a vote what is allowed there; most replies do not count."""
        connection = self._connection
        if connection is None:
            return self._refuse(payload, senders)
        no_reply = self._why_muted()
        # None of the batch is sent then. The caller sends each of its commands by itself.
        if any(sender.in_quarantine is QuarantineRule.REFUSE for sender in senders):
            return no_reply
        count, mute = QuarantineRule.COUNT, functools.partial(_mute, no_reply)
        muted = [s if s.in_quarantine is count else Altered(s, mute) for s in senders]
        return connection.send(payload, muted)

    def _why_muted(self) -> NoReply:
        # The text has the seconds that are left. A new one for each of thousands of commands
        # would cost more than the commands.
        now = self._context.clock()
        if now > self._described_at + SAME_WORDS:
            self._described_at = now
            self._no_reply = NoReply(Answer.QUARANTINED, self.quarantine)
        return self._no_reply

    def overdue(self) -> NoReply:
        """Called when a reply is overdue: watch the connection, and return the vote to count."""
        if self._connection is not None:
            self._connection.overdue()
        slow = self._trips.too_slow(self._number)
        return NoReply(Answer.TIMED_OUT, slow) if slow else request.TIMED_OUT

    def add_debt(self, payload: bytes, ttl: int) -> None:
        self.debts.add_debt(payload, ttl)

    async def _serve(self) -> None:
        try:
            try:
                await self._stay_connected()
            except (asyncio.CancelledError, Exception):
                await self._take_leave()
                raise
            await self._take_leave()
        finally:
            # Last: the releases that `_take_leave` waits for are sent over this connection. Without
            # `finally` an error there would leave it open, and the server with a client that asks
            # nothing.
            if self._connection is not None:
                self._connection.close()

    def _end_use(self) -> bool:
        """Called when the task ends; return whether it was cancelled from outside, and only now."""
        if self._closing:
            return False
        self._closing = True  # from here on the end of the connection is no loss to report
        self._wake()
        self._context.on_cancelled()
        return True

    async def _take_leave(self) -> None:
        """If the task was cancelled from outside, wait until all releases were sent."""
        if self._end_use():
            await self._context.last_releases(self)

    async def _stay_connected(self) -> None:
        failures = 0
        task = asyncio.current_task()
        # If redis-py or another library swallows a cancellation, this condition still ends
        # the task; otherwise it would keep the program from ending.
        while task is not None and not task.cancelling():
            # Over the examination too: a server that accepts a connection and then hangs
            # costs one attempt, not the task.
            limit = asyncio.timeout(self._dial_timeout)
            try:
                async with limit:
                    down = await self._connect()
            except Exception as error:  # noqa: BLE001 - any failure is this master's vote
                failures += 1
                if isinstance(error, ReplicaError) and self._sentry is not None:
                    self._sentry.saw_replica(error.info)
                patience = self._dial_timeout if limit.expired() else None
                why = why_not_connected(error, self._dialler.secrets, patience, at=self._route.at)
                self._step_down(why)
                if limit.expired():
                    # That was pause enough. A server that was stopped, and continues, answers
                    # the connection that waits in its backlog at once, but none that is not made.
                    failures = 0
                    if not self._trips.fixed:
                        # It may only be far away: a connection takes several round trips.
                        self._dial_timeout = min(2 * self._dial_timeout, LONGEST_DIAL)
                # Behind `_step_down`: who waits for the first attempt finds the reason for the
                # missing vote.
                self._wake()
            else:
                failures = 0
                if not task.cancelling():
                    await self._watch(down)
                self._wake()  # the master does not vote now
            if self._sentry is not None and self._sentry.dials_again:
                # The guard has ended a connection that worked, only to drop the replies on it.
                # With a delay the master would miss its vote for longer than it takes to look.
                self._sentry.dials_again = False
                continue
            longest = min(LONGEST_DELAY, FIRST_DELAY * 2 ** min(failures, 16))
            await asyncio.sleep(longest * random.uniform(0.5, 1))  # noqa: S311 - no secret

    async def _watch(self, down: asyncio.Future[None]) -> None:
        """Examine the master, and look up its name, until its connection is *down*."""
        # Two tasks look at one connection: `monitor`, in this task and only with a guard, at the
        # server, and `follow` at the name that led there. Either may end the connection. That sets
        # *down*, which ends the wait below; then `follow` is cancelled.
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
        dialler, connection = self._dialler, self._connection
        if connection is None or not isinstance(dialler, Address) or dialler.looks_up is None:
            return None

        async def follow() -> None:
            reason = await moved(
                dialler,
                connection,
                self._run_id,
                every=interval(None if self._sentry is None else self._sentry.quarantine),
                within=self._dial_timeout,
            )
            if reason:
                # As after any end, the name is dialled at once, and the server there examined.
                # The guard knows that another one was seen at this address.
                connection.condemn(NoVoteCause.FAILOVER, reason)

        return self._loop.create_task(follow(), name=f"{TASK_NAME}{dialler.looks_up[0]}")

    def _wake(self, *, votes: bool = True) -> None:
        for known in (self.reached, self.tried) if votes else (self.reached,):
            if not known.done():
                known.set_result(None)

    async def _connect(self) -> asyncio.Future[None]:
        """Connect and examine the server; the future is done when the connection has ended."""
        down: asyncio.Future[None] = self._loop.create_future()

        # The connection may end while it is examined. Then `_lost` has nothing to step down
        # from; the examination gets no replies, and `down` is tested behind it.
        def lost(cause: NoVoteCause, reason: str) -> None:
            if not down.done():
                down.set_result(None)
            self._lost(cause, reason)

        transport, keep = await self._route.dial()
        tag = self._route.tag
        made = functools.partial(TaggedConnection, tag=tag) if tag else Connection
        connection = made(
            self._number,
            self._loop,
            condemn_after=self._patience,
            on_push=self._on_push if self._sentry is None else self._sentry.on_push,
            on_lost=lost,
        )
        self._route.watch(connection)
        connection.use(transport, keep)
        try:
            await self._examine(connection)
        except BaseException:
            connection.condemn(NoVoteCause.CLOSED, "this client did not accept the server")
            raise
        # No await from here on: the guard's verdict, the debts and `send` are of one connection.
        if down.done():
            raise ConnectionError(connection.reason)
        self._connection = connection
        self.debts.connected(connection.send)  # they precede any command of a lock
        self._reassess()
        if not self._voted:
            # Changes since the last connection were pushed to no one, and this connection
            # pushes only changes of keys that it has read. So leases check their keys now:
            # a foreign value there counts against them, even without a vote.
            self._on_push(self._number, replies.EVERYTHING_CHANGED)
        return down

    def _reconfirm(self) -> None:
        """Called when the confirmation of the route has ended, or has come back."""
        # It may have ended unnoticed, and those who asked meanwhile wait for the vote.
        self._voted = False
        self._reassess()

    def _reassess(self) -> None:
        """Called when a source of the `standing` may have changed: choose `send`, report it."""
        connection, sentry = self._connection, self._sentry
        if connection is None:
            return  # still being examined: the master does not count as up
        # `send` first. What is reported below may make a lease or a waiter send at once, and that
        # must not reach a master without a vote by the way of one that has it.
        standing = self.standing
        checked = self._route.may_expire or (sentry is not None and not sentry.tracked)
        if not standing.votes:
            self.send = self._send_muted
        else:
            self.send = self._send_checked if checked else connection.send
        self._described_at = -math.inf
        if sentry is not None:
            self._caution(sentry.info)
        provisional = standing.first is not None and standing.first.provisional
        self._wake(votes=not provisional)
        self._report(standing)
        # First the listener and the log, then the leases and waiters, which may send at once.
        back, self._voted = standing.votes and not self._voted, standing.votes
        if back:
            self._on_push(self._number, replies.EVERYTHING_CHANGED)

    def _report(self, standing: Standing) -> None:
        """Compare the *standing* with the one that was reported last: log a change, pass it on."""
        logged, bar = self._logged, standing.first
        if bar is None:
            vote = Vote(self.name, Answer.GRANTED)
        else:
            vote = Vote(self.name, bar.answer, bar.describe(self._context.clock()))
        if standing.link is not None:
            told, now = _told(standing.link), self._context.clock()
            if logged.link is not None and _told(logged.link) == told:
                return
            # Reasons may alternate: a server that refuses a certificate may reset the connection
            # before it says so. Without this, each attempt to connect would log a line.
            if now >= self._told_until.get(told, -math.inf):
                _warn(str(vote))
                # A text may have a number that is another one each time: what is over goes.
                lasting = {each: until for each, until in self._told_until.items() if until > now}
                self._told_until = {**lasting, told: now + AGAIN}
            # The bars of the former connection stay: if the master comes back with the same
            # quarantine, the log has that line already; if it votes, the log says so.
            self._logged = logged._replace(link=standing.link)
        else:
            if logged.link is not None:
                log.info("%s", f"{self.name}: connected again")
                self._told_until.clear()
            self._logged = logged = logged._replace(link=None)
            if bar is not None and bar.provisional:
                return  # the vote is not known yet
            before = logged.first
            if bar is None and before is not None:
                log.info("%s", f"{self.name}: votes again")
            if bar is not None and not bar.quiet and (before is None or before.topic != bar.topic):
                _warn(str(vote))
            self._logged = standing
        self._context.on_standing(self._number, standing)

    async def _examine(self, connection: Connection) -> None:
        """Load the scripts and examine the server; raise an error if it must not be used."""
        marker = commands.MARKER + PLACEHOLDER if self._route.tag else commands.MARKER
        probe = commands.can_free(marker)
        wanted = commands.INFO, commands.TRACKING, probe, self._route.naming
        asked = FirstQuestions(*[Question(command, self._loop) for command in wanted])
        # They are a hundred times as long as all the rest, and after an outage of the network all
        # programs connect again at once. So a server that had them does not get them again; if it
        # has lost them, NOSCRIPT says so.
        before = self._loaded
        loads = () if before else (Question(LOADS, self._loop, len(scripts.SCRIPTS)),)
        of_route = [Question(command, self._loop) for command in self._route.questions]
        of_guard: GuardQuestions | None = None
        if self._sentry is not None:
            of_guard = self._sentry.questions()
            # Before the read of the marker is sent: a push may come ahead of its reply.
            self._sentry.attach(connection)
        # In one write. TRACKING precedes the read of the marker: a change between the two would
        # be pushed to no one.
        behind = [*asked[1:], *of_route, *(of_guard or ())]
        payload = b"".join([question.payload for question in (asked.info, *loads, *behind)])
        sent = self._loop.time()
        connection.send(payload, [asked.info, *loads * len(scripts.SCRIPTS), *behind])
        reply = await asked.info.reply
        took = self._loop.time() - sent
        if loads:
            _accept(await loads[0].reply)
        info = await examined(reply, connection, self._route.identified)
        if before and info.run_id != before:
            # They are underway if the guard's question has found that they are missing.
            _accept(await connection.load())
        if of_route:
            self._route.check([await question.reply for question in of_route])
        # No await between test and entry: of two masters that reach one server at the same
        # time, one gets the name, and the other no vote.
        other = self._context.neighbours.setdefault(info.run_id, self)
        if other is not self:
            raise MasterError(NoVoteCause.SAME_SERVER, self._route.same_server(other.name))
        self._run_id = info.run_id  # `_step_down` removes the name
        self._loaded = info.run_id
        self._trips.begin(self._number, took * 1000)
        tracking = await asked.tracking.reply
        self.can_free = await asked.can_free.reply == 0
        self._untracked = ""
        self._tracks = not isinstance(tracking, Exception)
        if self._sentry is not None:
            self._sentry.tracked = self._tracks
            if isinstance(tracking, Exception):
                forbids = replies.is_forbidden(tracking)
                self._untracked = FORBIDS_TRACKING if forbids else LACKS_TRACKING
        self._caution(info)
        if self._sentry is not None and of_guard is not None:
            await self._sentry.examine(connection, info, of_guard)

    def _caution(self, info: ServerInfo) -> None:
        """Warn about what *info* shows, unless that was the last warning."""
        forgets = info.forgets if self._context.vouched else ""
        caution = "; ".join(filter(None, [info.caution, forgets, self._untracked]))
        if caution and caution != self._cautioned:
            _warn(f"{self.name}: {caution}")
        self._cautioned = caution
        told = self._cautioned_alone or self._route.notices_failovers or not self._context.alone
        if info.caution_alone and not told:
            self._cautioned_alone = True  # for good: replicas come and go
            _warn(f"{self.name}: {info.caution_alone}")

    def _step_down(self, away: Bar) -> None:
        if self._connection is not None:
            self._on_push(self._number, replies.GONE)
        self._connection = None
        self._voted = False
        if not self._closing:
            # The next session uses them, and may have learned them anew before this one has ended.
            self._trips.forget(self._number)
        # Before `_report`, and before the senders underway get their `NoReply`: a waiter that is
        # woken by either may send again at once, and must find the master down.
        self.send = self._refuse
        self._away = away
        self._no_reply = NoReply(away.answer, away.text, away.permanent)
        if self._sentry is not None:
            self._sentry.gone(closing=self._closing)
        # The guard ends a connection only to make the next one: that one is reported.
        if not self._closing and (self._sentry is None or not self._sentry.dials_again):
            self._report(Standing(link=away))
        # Only the own entry: a second master at the same server was refused because of it, steps
        # down as well, and must not free the name.
        if self._context.neighbours.get(self._run_id) is self:
            del self._context.neighbours[self._run_id]

    def _lost(self, cause: NoVoteCause, reason: str) -> None:
        # Called before the senders get their `NoReply` (`Connection._end`): a task that tries
        # again at once must find the master down.
        if cause is NoVoteCause.FORBIDDEN:
            self._loaded = ""  # the next examination sends them, and says what is forbidden
        if self._connection is not None:  # else the examination reports the reason
            if cause is NoVoteCause.NOT_A_MASTER and self._sentry is not None:
                # READONLY: it may be a master again before this client has connected.
                self._sentry.saw_replica()
            self._step_down(Bar(cause, reason, answer=Answer.UNREACHABLE))
        self.debts.lost()

    def drained(self) -> asyncio.Future[object] | None:
        """
        Send all debts, and a PING, whose reply follows those to all earlier commands.

        Returns:
            The reply; ``None`` if nothing could be sent.
        """
        # A master that has refused a release would keep the key for its ttl: nobody repeats the
        # release when this manager is closed.
        self.debts.collect()
        question = Question(commands.PING, self._loop)
        return question.reply if self.send(question.payload, [question]) is None else None

    def close(self) -> None:
        """Begin to end the connection and the task that renews it; see `ended`."""
        # First: from here on the end of the connection is no loss to report, and the task that
        # is cancelled below must not wait for the releases of a session that has sent them.
        self._closing = True
        self.debts.close()
        self._wake()
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
        """Wait until the task and the route have ended after `close`; they end anyway."""
        await asyncio.wait([self._task])
        await self._route.ended()


def _accept(reply: object) -> None:
    """Raise an error if this is the *reply* of a server that must not be used."""
    if isinstance(reply, NoReply):
        raise ConnectionError(reply.detail)
    if isinstance(reply, Exception):
        raise MasterError(NoVoteCause.SERVER_ERROR, str(reply))


def _warn(text: str) -> None:
    log.warning("%s", text)


def _told(bar: Bar) -> tuple[object, ...]:
    """Return what the log tells once of a *bar* of the link."""
    return bar.answer, bar.topic or bar.text, bar.permanent


def _mute(no_reply: NoReply, sender: Sender, master: int, reply: object) -> None:
    """Pass on the *reply* of a quarantined master: most replies count as *no_reply*."""
    sender.on_reply(master, sender.counted(reply, no_reply))
