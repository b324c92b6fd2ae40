"""
Masters that may have forgotten locks, and how they come to vote again.

    away ──► UNDECIDED ──► QUARANTINED ──► MEMBER
       └─────────┴───────────────┴───────────┘ (by what `quarantine.judge` says)

A `Sentry` examines one master at each connection, before it is sent anything of a
lock, and goes on looking while the connection lives: when the quarantine is over, when the
server says that its marker was changed, and now and then, for proxies that hide it. A
member that has lost its marker loses its connection, so that nothing underway counts.

What the sentries of one manager share is in `restart_guard`.
"""

import asyncio
import math
import random
from collections.abc import Callable, Sequence
from typing import Protocol

from redlock_aio._protocol import commands, replies
from redlock_aio._protocol.request import Asker, Silence
from redlock_aio._rules import display, quarantine
from redlock_aio._rules.marker import Marker, milliseconds
from redlock_aio._rules.quarantine import MEMBER, QUARANTINED, UNDECIDED, Seen, Verdict
from redlock_aio._rules.quorum import Answer
from redlock_aio._rules.server_info import ServerInfo
from redlock_aio._transport.connection import Connection, Question
from redlock_aio._transport.declarations import Declarations
from redlock_aio._transport.handshake import (
    MasterError,
    carried,
    forbidden,
    info_of,
    marker_of,
    must_carry,
    mute,
)
from redlock_aio._transport.sentinels import Route

WRITES = 3
"""How often a marker is written in a row; somebody may be quicker, or the server be full."""

REFUSED = 0.75, 1.25
"""After how many seconds it is seen whether other sets of masters are still in use."""

SAME_WORDS = 0.2
"""Seconds for which the text about a master without a vote is reused."""


class Shared(Protocol):
    """What the sentries of one manager share; see `restart_guard`."""

    seen: list[Seen]
    clock: Callable[[], float]
    lasts: float
    strict: bool
    founding: bool
    sentries: list["Sentry"]
    declarations: Declarations

    @property
    def is_old(self) -> bool:
        """Whether some master is known not to be new."""

    def learn(self, lasts: float, *, by: "Sentry | None" = None) -> None:
        """Wait for *lasts* seconds, if that is longer, as the master of *by* says."""

    async def found(self) -> None:
        """Mark all masters as members, if none of them has a marker."""


class Sentry:
    """
    Who knows whether one master may have forgotten locks.

    Args:
        number: Which of the masters it is.

        on_push: Called with its number and with what the server says unasked.

        judged: Called when it is known whether it has a vote.

        route: How it is reached, and told from the servers that were there before.
    """

    def __init__(
        self,
        guard: Shared,
        number: int,
        *,
        on_push: Callable[[int, object], None],
        judged: Callable[[], None],
        route: Route,
    ) -> None:
        self.state: quarantine.State | None = None
        """How the master stands, ``None`` while it is away."""
        self.at_once = False
        """Whether the connection was ended by us, to see anew what the master has."""
        self.settled = False
        """Whether enough has been done to decide."""
        self.unmarked = False
        """Whether it had no marker when we came."""
        self._guard = guard
        self._number = number
        self._on_push = on_push
        self._judged = judged
        self._identified = route.identified
        self._outlives = route.outlives
        self._connection: Connection | None = None
        self._wake: asyncio.Future[None] | None = None
        self._doubt = False
        self._stood = 0
        self._rereads = 0
        self._until = 0.0
        self._started = 0.0
        self._forgot_at = -math.inf
        self._reason = quarantine.Reason.NONE
        self.objection = ""
        """What other programs say against it, if nothing else does."""
        self._silence = Silence(Answer.QUARANTINED)
        self._said_at = -math.inf
        self.info: ServerInfo
        guard.sentries.append(self)

    def __repr__(self) -> str:
        return f"<Sentry {self._number}, {self.state.name if self.state else 'AWAY'}>"

    @property
    def lasts(self) -> float:
        """
        For how many seconds it stays away when it may have forgotten locks.

        It is longer for a master behind Sentinel, so markers carry the part that is the
        same for all.
        """
        return self._guard.lasts + self._outlives

    @property
    def detail(self) -> str:
        """Why the master has no vote, empty if it has one."""
        if self.state in (None, MEMBER) or self.objection:
            return self.objection
        now = self._guard.clock()
        return quarantine.describe(self._reason, ago=now - self._started, left=self._until - now)

    @property
    def why(self) -> str:
        """By what this quarantine is told from others."""
        return f"{self.info.run_id} {self._reason.name} {bool(self.objection)}"

    @property
    def is_old(self) -> bool:
        """Whether the master is known not to be new."""
        if self.state is MEMBER or self.objection:
            return not self.unmarked
        return self.state is QUARANTINED

    @property
    def left(self) -> float:
        """For how many seconds it has no vote yet."""
        return self._until - self._guard.clock()

    def send(self, payload: bytes, askers: Sequence[Asker], /) -> Silence | None:
        """Send what a master without a vote may get; a `Silence` if there is anything else."""
        now = self._guard.clock()
        if now > self._said_at + SAME_WORDS:
            self._said_at = now
            self._silence = Silence(Answer.QUARANTINED, self.detail)
        connection, silence = self._connection, self._silence
        return silence if connection is None else mute(connection.send, payload, askers, silence)

    # Looking.

    def meet(self, connection: Connection) -> None:
        """Hear what a server says unasked from before its marker is read."""
        self._connection = connection

    @property
    def questions(self) -> tuple[bytes, ...]:
        """What a server is asked before it is examined."""
        return self._guard.declarations.read, commands.CACHING, commands.LOOK

    async def examine(
        self, connection: Connection, info: ServerInfo, replies: Sequence[object]
    ) -> None:
        """
        Judge a server that let us in.

        Args:
            info: What it says of itself.

            replies: To the `questions`.

        Raises:
            MasterError: It does not let us use the marker.

            ConnectionError: The connection has ended.

        Cancellation:
            The master is away.
        """
        if self._connection is not connection:
            raise ConnectionError(connection.reason)
        self._rereads = 0
        self.settled = False
        try:
            marker = carried(marker_of(replies[-1]), self._outlives)
            self.unmarked = marker is None
            sets, number = self._guard.declarations, self._number
            declared = sets.join(number, info, connection, replies[0])
            await self._judge(self._identified(info), marker)
            await sets.joined(number, connection, declared)  # it gets no packed before
            if self._doubt:  # the marker was changed while our set was declared
                self._doubt = False
                await self._look()
        except BaseException:
            self.gone()
            raise

    async def stay(self, down: asyncio.Future[None]) -> None:
        """
        Look after a connection until it is *down*.

        Cancellation:
            Nothing is looked after any more.
        """
        while not down.done():
            try:
                if self.state is UNDECIDED:
                    await self._guard.found()
                await self._rest(down)
                if not down.done():
                    await self._look()
            except ConnectionError:
                pass  # it is down
            except MasterError as error:
                if self._connection is not None:
                    self._connection.condemn(display.harmless(str(error)))

    async def _rest(self, down: asyncio.Future[None]) -> None:
        """Wait until there is something to look at."""
        wait = self._pause()
        if not self._doubt:
            self._wake = wake = asyncio.get_running_loop().create_future()
            await asyncio.wait([down, wake], timeout=wait, return_when="FIRST_COMPLETED")
        self._doubt = False

    def _pause(self) -> float:
        """Return for how many seconds there is nothing to do."""
        if self.state is UNDECIDED:
            self._rereads += 1
            if self._rereads > len(quarantine.REREADS) and not self.settled:
                self.settled = True
                self._judged()
        return quarantine.pause(self.state, self.left, self.lasts, self._rereads)

    async def _look(self) -> None:
        """See whether the server and its marker are what they were."""
        connection = self._connection
        if connection is None:
            return
        stood = self._stood
        await self._guard.declarations.look(self._number, connection)
        loop = asyncio.get_running_loop()
        packed = (commands.INFO, commands.CACHING, commands.LOOK)
        info, _, marker = questions = [Question(command, loop) for command in packed]
        connection.send(b"".join(packed), questions)
        connection.overdue()
        now = self._identified(info_of(await info.reply))
        found = carried(marker_of(await marker.reply), self._outlives)
        if self._connection is not connection:
            return
        if stood != self._stood or (self.state is UNDECIDED and self._guard.founding):
            return  # a new set was, or is being, founded: what was read may be ours
        if self.state is MEMBER:
            verdict = self._verdict(now, found)
            if verdict.state is not MEMBER:
                ago, left = now.uptime or 0, verdict.seconds
                self._again(quarantine.describe(verdict.reason, ago=ago, left=left))
                return
        await self._judge(now, found)

    def _verdict(self, info: ServerInfo, marker: Marker | None) -> Verdict:
        guard = self._guard
        guard.learn(0.0 if marker is None else marker.lasts / 1000 - self._outlives, by=self)
        seen, now = guard.seen[self._number], guard.clock()
        verdict = quarantine.judge(info, marker, seen, now, lasts=self.lasts, strict=guard.strict)
        reread = self._rereads >= len(quarantine.REREADS)
        if verdict.state is UNDECIDED and reread and guard.is_old:
            return quarantine.not_new(info, self.lasts)
        return verdict

    async def _judge(self, info: ServerInfo, marker: Marker | None) -> None:
        """Draw the consequences of what was found, and write them down there."""
        self.info = info
        self._started = self._guard.clock() - (info.uptime or 0)
        verdict = self._verdict(info, marker)
        for _ in range(WRITES):
            self._remember(verdict, marker)
            asked = self.ask_for(verdict)
            if asked is None:
                break
            marked, get = await asked[0].reply, await asked[1].reply
            marker = carried(marker_of(get), self._outlives)
            if isinstance(marked, Exception) and str(marked).startswith("NOPERM"):
                raise forbidden(marked)
            longest = marker is not None and marker.lasts >= milliseconds(self.lasts)
            if marker == verdict.write and not verdict.careful and longest:
                break  # it says no more than what we know, and we know why
            verdict = self._verdict(info, marker)
            if isinstance(marked, Exception) and verdict.state is MEMBER:
                must_carry(marker, self.lasts, marked)
        self.stand(verdict, marker)

    def ask_for(self, verdict: Verdict) -> tuple[Question, Question] | None:
        """Write what *verdict* says, and read what is there then; ``None`` if it says nothing."""
        if verdict.write is None or self._connection is None:
            return None
        loop = asyncio.get_running_loop()
        written = carried(verdict.write, -self._outlives)
        mark = commands.mark(bytes(written), careful=verdict.careful)
        packed = (mark, commands.CACHING, commands.LOOK)
        questions = [Question(command, loop) for command in packed]
        self._connection.send(b"".join(packed), questions)
        self._connection.overdue()
        return questions[0], questions[2]

    def _remember(self, verdict: Verdict, marker: Marker | None) -> None:
        guard, number = self._guard, self._number
        guard.seen[number] = quarantine.remember(
            guard.seen[number], self.info, marker, verdict, guard.clock()
        )

    def stand(self, verdict: Verdict, marker: Marker | None) -> None:
        """Let the master stand as *verdict* says, for which *marker* was read."""
        self._remember(verdict, marker)
        before, self.state = self.state, verdict.state
        self._stood += 1
        self._until = self._guard.clock() + verdict.seconds
        objection = self._guard.declarations.objection(self._number)
        self.objection = objection if verdict.state is MEMBER else ""
        if self.objection:
            self.state = QUARANTINED
            self._until = self._guard.clock() + random.uniform(*REFUSED)  # noqa: S311 - no secret
        self._reason = verdict.reason
        self._forgot_at = self._guard.clock() - quarantine.since_forgot(self.info, marker)
        self._said_at = -math.inf
        if verdict.state is not UNDECIDED:
            self.settled = True
        if before is not self.state:
            self._judged()

    def outlasted(self) -> None:
        """
        Judge anew, because the quarantine is longer now.

        A vote that it ends is ended at once. Else the master that tells of the longer one
        would vote, and this one could still grant the same lock before it is looked at.
        """
        if self.state is MEMBER and self._guard.clock() < self._forgot_at + self.lasts:
            self._again("it may have forgotten locks of a program with a longer max_ttl")
        self.doubt()

    def heard(self, number: int, push: object) -> None:
        """Take what the server says unasked."""
        changed = replies.changed(push)
        if changed is None:
            self._again("its keys were flushed")
            return
        if commands.MARKER in changed:
            self.doubt()
        self._on_push(number, push)

    def doubt(self) -> None:
        """Look soon what the marker says."""
        self._doubt = True
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def refuse(self) -> None:
        """Take the vote from the master, and from what is underway; called for all of them."""
        if self.state is MEMBER:
            self._again(self._guard.declarations.refusal)
        self.doubt()  # our set is taken back there

    def _again(self, reason: str) -> None:
        """End the connection, so that nothing counts that is underway, and look anew."""
        if self._connection is not None:
            self.at_once = True
            self._connection.condemn(reason)

    def gone(self) -> None:
        """Hear that the connection has ended."""
        if self.state is not None:
            guard, number = self._guard, self._number
            guard.seen[number] = quarantine.last_seen(guard.seen[number], guard.clock())
        self._guard.declarations.gone(self._number)
        self._connection = None
        self.state = None
