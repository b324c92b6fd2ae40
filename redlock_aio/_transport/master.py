"""
One master: its connection, how it comes back, and what it still owes us.

    connecting ──► up ──► down ──► connecting ...
         └──────────────────┘ (with growing, random delays)

Only while it is up are commands sent; otherwise it votes at once and says why.
While it may have forgotten locks it gets all commands but those that acquire one.
A release that it has not confirmed is a debt, see `Debts`.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, MutableMapping, Sequence

from redlock_aio._protocol import commands, replies, request, scripts
from redlock_aio._protocol.request import Asker, Silence
from redlock_aio._rules.quarantine import MEMBER
from redlock_aio._rules.quorum import Answer, Vote
from redlock_aio._rules.roundtrips import RoundTrips
from redlock_aio._transport.address import AnyDialler
from redlock_aio._transport.connection import Connection, Question
from redlock_aio._transport.debts import Debts
from redlock_aio._transport.handshake import MasterError, info_of, why
from redlock_aio._transport.sentinels import route_to
from redlock_aio._transport.sentry import Sentry, Shared

SHORTEST_DIAL = 1.0
"""For how many seconds a connection attempt may last, at least."""

LONGEST_DIAL = 4.0
"""The same at most: if time-outs are learned, it doubles with each attempt that is too short."""

FIRST_DELAY, LONGEST_DELAY = 0.02, 0.5
"""Seconds between two attempts to connect; a random part of it is left out."""

TASK_NAME = "redlock_aio "
"""How the name of a master's task begins."""

UNTOLD = "it does not let us be told of changes (client|tracking), so a flush is seen late"


class Master:
    """
    One master and its history.

    Args:
        number: Which of the masters it is.

        dialler: How it is reached; its text is the master's name.

        neighbours: Shared by all masters of one manager: who is which server.

        trips: How long masters take to answer, from which its time-outs follow.

        on_push: Called with its number and each push, and with one when it comes up.

        tell: Called with a sentence about it that an operator should know, and
            whether it is good news.

        on_state: Called with what it votes from now on, which may be no change.

        clock: The clock of leases.

        cancelled: Called with this master when its task was cancelled and nobody has
            closed it; the connection ends after that is awaited.

        never_began: Called instead if it was cancelled before its first turn.

        guard: What knows whether it may have forgotten locks; ``None`` if nobody asks.

        vouched: Whether its operator says that it never forgets any.
    """

    def __init__(
        self,
        number: int,
        dialler: AnyDialler,
        *,
        neighbours: MutableMapping[str, "Master"],
        trips: RoundTrips,
        on_push: Callable[[int, object], None],
        tell: Callable[[bool, str], None],
        on_state: Callable[[Vote], None],
        clock: Callable[[], float],
        cancelled: Callable[["Master"], Awaitable[None]],
        never_began: Callable[[], None],
        guard: Shared | None = None,
        vouched: bool = False,
    ) -> None:
        self.name = str(dialler)
        self._number = number
        self._dialler = dialler
        self._neighbours = neighbours
        self._on_push = on_push
        self._tell = tell
        self._on_state = on_state
        self._cancelled = cancelled
        self._told = Silence(Answer.GRANTED)
        self._vouched = vouched
        self._route = route = route_to(dialler, clock, changed=self._judged, tell=tell)
        self._sentry: Sentry | None = None
        if guard is not None:
            self._sentry = Sentry(guard, number, on_push=on_push, judged=self._judged, route=route)
        self._out = ""
        self._trips = trips
        self._dial_timeout = self._patience
        self._loop = asyncio.get_running_loop()
        self._connection: Connection | None = None
        self._silence = Silence(Answer.UNREACHABLE, "connecting")
        self._run_id = ""
        self._cautioned = ""
        self.can_free = True
        """Whether it has a command for releases, or had when it was up."""
        self.clustered = False
        """Whether it takes keys together only if they have the same hash tag."""
        self.debts = Debts(
            self._loop,
            overdue=self.overdue,
            warn=lambda said: tell(False, f"{self.name}: {said}"),
        )
        self._closing = False
        self.reached: asyncio.Future[None] = self._loop.create_future()
        """Done when it is known for the first time whether the master is up."""
        self.tried: asyncio.Future[None] = self._loop.create_future()
        """Done when it is known for the first time whether it votes."""
        self.send: Callable[[bytes, Sequence[Asker]], Silence | None] = self._refuse
        """Send commands behind all others; a `Silence` if they were not taken."""
        self._task = self._loop.create_task(self._serve(), name=f"{TASK_NAME}{self.name}")
        self._task.add_done_callback(lambda _task: self._ended(never_began))

    def __repr__(self) -> str:
        return f"<Master {self.name}, {self.reason or 'up'}, {len(self.debts)} debts>"

    @property
    def reason(self) -> str:
        """Why it has no vote, empty if it has one."""
        return self.quarantine if self.up else self._silence.detail

    @property
    def _patience(self) -> float:
        """For how many seconds it may be silent before it is held to be gone."""
        return max(SHORTEST_DIAL, self._trips.timeout / 100)

    @property
    def up(self) -> bool:
        """Whether commands are taken."""
        return self._connection is not None

    @property
    def votes(self) -> bool:
        """Whether it is up, and the master, and has not forgotten locks as far as is known."""
        return self.up and not self.quarantine

    @property
    def quarantine(self) -> str:
        """Why it has no vote though it is up, empty if it has one."""
        return ("" if self._sentry is None else self._sentry.detail) or self._route.detail

    @property
    def pending(self) -> int:
        """How many commands it has to answer before all is said that was sent."""
        return self._connection.pending if self._connection is not None else 0

    @property
    def received(self) -> int:
        """How often the present connection has received anything; it rises while it answers."""
        return self._connection.received if self._connection is not None else 0

    def _refuse(self, _payload: bytes, _askers: Sequence[Asker], /) -> Silence:
        return self._silence

    def overdue(self) -> Silence:
        """Watch the connection because an answer is overdue; return what counts in its place."""
        if self._connection is not None:
            self._connection.overdue()
        slow = self._trips.too_slow(self._number)
        return Silence(Answer.TIMED_OUT, slow) if slow else request.TIMED_OUT

    def owe(self, payload: bytes, ttl: int) -> None:
        """Remember a release whose key may live *ttl* ms, and repeat it until confirmed."""
        self.debts.owe(payload, ttl)

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
        """Called when its task has ended: wake all who wait for it if that never had a turn."""
        if not self._closing:
            self._closing = True
            self._is_known()
            never_began()

    async def _take_leave(self) -> None:
        """Keep the connection for those who have something to release yet, if nobody closed it."""
        if not self._closing:
            self._closing = True
            self._is_known()
            await self._cancelled(self)

    async def _stay_connected(self) -> None:
        failures = 0
        task = asyncio.current_task()
        # A loop or a client that loses a cancellation on the way must not keep the
        # program from ending.
        while task is not None and not task.cancelling():
            try:
                async with asyncio.timeout(self._dial_timeout):
                    down = await self._connect()
            except Exception as error:  # noqa: BLE001 - any failure is this master's vote
                failures += 1
                self._step_down(why(error, self._dialler.secrets, self._dial_timeout))
                if isinstance(error, TimeoutError) and not self._trips.fixed:
                    # It may only be far away: a connection takes several round trips.
                    self._dial_timeout = min(2 * self._dial_timeout, LONGEST_DIAL)
                self._is_known()
            else:
                failures = 0
                if not task.cancelling():
                    await (down if self._sentry is None else self._sentry.stay(down))
                self._is_known()  # it does not vote now
            if self._sentry is not None and self._sentry.at_once:
                self._sentry.at_once = False
                continue
            longest = min(LONGEST_DELAY, FIRST_DELAY * 2 ** min(failures, 16))
            await asyncio.sleep(longest * random.uniform(0.5, 1))  # noqa: S311 - no secret

    def _is_known(self, *, votes: bool = True) -> None:
        for known in (self.reached, self.tried) if votes else (self.reached,):
            if not known.done():
                known.set_result(None)

    async def _connect(self) -> asyncio.Future[None]:
        """Come up; the future is done when the master is down again."""
        down: asyncio.Future[None] = self._loop.create_future()

        def lost(reason: str) -> None:
            if not down.done():
                down.set_result(None)
            self._lost(reason)

        transport, keep = await self._route.dial()
        connection = self._route.connection(
            self._number,
            self._loop,
            condemn_after=self._patience,
            on_push=self._on_push if self._sentry is None else self._sentry.heard,
            on_lost=lost,
        )
        connection.adopt(transport, keep)
        try:
            await self._examine(connection)
        except BaseException:
            connection.condemn("it was not accepted")
            raise
        if down.done():
            raise ConnectionError(connection.reason)
        self._connection = connection
        self.send = connection.send
        self._report(Silence(Answer.GRANTED))
        self.debts.connected(connection.send)
        self._judged()
        if not self.votes:
            # What has changed since the last connection was told to nobody, and through
            # this one nothing is told that was not asked for. Leases look at their keys
            # now: if somebody else has the lock there, that counts without a vote too.
            self._on_push(self._number, replies.EVERYTHING_CHANGED)
        return down

    def _judged(self) -> None:
        """Wake all who wait to know whether the master has a vote."""
        connection, sentry = self._connection, self._sentry
        if connection is None:
            return  # it is still being examined
        if sentry is not None and sentry.state is MEMBER:
            sentry = None  # it has no objection
        self._is_known(votes=sentry is None or sentry.settled)
        self.send = connection.send if sentry is None else sentry.send
        if self.votes:
            if self._out:
                self._tell(True, f"{self.name}: votes again")
            self._out = ""
            self._on_state(Vote(self.name, Answer.GRANTED))
            self._on_push(self._number, replies.EVERYTHING_CHANGED)
            return
        reason = "unconfirmed" if sentry is None else sentry.why
        if (sentry is None or sentry.settled) and self._out != reason:
            self._out = reason
            vote = Vote(self.name, Answer.QUARANTINED, self.quarantine)
            if sentry is None or not sentry.objection:  # that is told once for all masters
                self._tell(False, str(vote))
            self._on_state(vote)

    async def _examine(self, connection: Connection) -> None:
        """Ask a server that let us in whether it may vote, and give it the scripts."""
        questions = [Question(commands.INFO, self._loop)]
        questions += [Question(script.load, self._loop) for script in scripts.SCRIPTS]
        # Not all may ask to be told of changes; they find out by trying again.
        wishes = [Question(wish, self._loop) for wish in (commands.TRACKING, commands.CAN_FREE)]
        if self._sentry is not None:
            wishes += [Question(wish, self._loop) for wish in self._sentry.questions]
            self._sentry.meet(connection)
        sent, every = self._loop.time(), [*questions, *wishes]
        connection.send(b"".join([question.payload for question in every]), every)
        await questions[0].reply
        took = self._loop.time() - sent
        replies = [await question.reply for question in questions]
        for reply in replies:
            if isinstance(reply, Silence):
                raise ConnectionError(reply.detail)
            if isinstance(reply, Exception):
                raise MasterError(str(reply))
        info = info_of(replies[0])
        other = self._neighbours.setdefault(info.run_id, self)
        if other is not self:
            raise MasterError(f"the same server as {other.name}")
        self._run_id = info.run_id  # stepping down gives the name back
        self._trips.begin(self._number, took * 1000)
        untold = isinstance(await wishes[0].reply, Exception) and self._sentry is not None
        self.can_free = await wishes[1].reply == 0
        self.clustered = info.clustered
        cautions = [info.caution, info.forgets if self._vouched else "", UNTOLD if untold else ""]
        caution = "; ".join(filter(None, cautions))
        if caution and caution != self._cautioned:
            self._tell(False, f"{self.name}: {caution}")
        self._cautioned = caution
        if self._sentry is not None:
            await self._sentry.examine(connection, info, [await w.reply for w in wishes[2:]])

    def _report(self, silence: Silence) -> None:
        """Tell once how the master stands, not at each attempt to connect."""
        if silence != self._told:
            self._told = silence
            good = silence.answer is Answer.GRANTED
            vote = Vote(self.name, silence.answer, silence.detail)
            self._tell(good, f"{self.name}: connected again" if good else str(vote))
            if not good:  # whether one that is up votes is not known yet
                self._on_state(vote)

    def _step_down(self, silence: Silence) -> None:
        if self._connection is not None:
            self._on_push(self._number, replies.GONE)
        self._connection = None
        self._trips.forget(self._number)
        self.send = self._refuse
        self._silence = silence
        if self._sentry is not None:
            self._sentry.gone()
        if not self._closing and (self._sentry is None or not self._sentry.at_once):
            self._report(silence)
        if self._neighbours.get(self._run_id) is self:
            del self._neighbours[self._run_id]

    def _lost(self, reason: str) -> None:
        if self._connection is not None:  # else it is still being examined, which says why
            self._step_down(Silence(Answer.UNREACHABLE, reason))
        self.debts.lost()

    def heard(self) -> asyncio.Future[object] | None:
        """Return what is done when all that was sent is answered; ``None`` while it is down."""
        question = Question(commands.PING, self._loop)
        return question.reply if self.send(question.payload, [question]) is None else None

    def close(self) -> None:
        """Begin to end the connection, and all attempts to have one."""
        self._closing = True
        self.debts.close()
        self._is_known()
        self._task.cancel()
        self._route.close()

    def abandon(self) -> None:
        """End the connection in an event loop that was closed: the task there never runs again."""
        self._closing = True
        self._route.abandon()
        if self._sentry is not None:
            self._sentry.gone()
        if self._connection is not None:
            self._connection.abandon()
            self._connection = None

    async def ended(self) -> None:
        """
        Wait until everything has ended after `close`.

        Cancellation:
            It ends all the same.
        """
        await asyncio.wait([self._task])
        await self._route.ended()
