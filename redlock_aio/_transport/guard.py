"""
The restart guard: whether a master may have lost locks, and when it votes again.

    away ──► UNDECIDED ──► QUARANTINED ──► MEMBER
       └─────────┴───────────────┴───────────┘ (by the verdict of `quarantine.judge`)

A `Sentry` examines its master on each new connection, before any command of a lock is sent
there, and again while the connection lives: when the quarantine is over, when the server
pushes a change of the marker, and periodically, for proxies that hide such pushes. If a
member has lost its marker, the connection is ended: no reply that is underway then counts.

A server pushes the same for a flush of its locks, for that of another database, and when it
becomes a replica and drops its keys. From the push on, replies are held back until INFO and
the marker were read behind them (`Proof`). Where a server has no client tracking, nothing is
pushed; there each request that may grant a lock brings its own proof.
"""

import asyncio
import math
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from redlock_aio._log import log
from redlock_aio._protocol import commands, replies
from redlock_aio._protocol.request import NoReply, QuarantineRule, Sender
from redlock_aio._protocol.tags import PLACEHOLDER
from redlock_aio._rules import quarantine
from redlock_aio._rules.causes import NoVoteCause
from redlock_aio._rules.quarantine import (
    MEMBER,
    QUARANTINED,
    UNDECIDED,
    Marker,
    Reason,
    Seen,
    Verdict,
    in_marker,
)
from redlock_aio._rules.quorum import OK, Answer
from redlock_aio._rules.server_info import ServerInfo
from redlock_aio._rules.standing import Bar
from redlock_aio._rules.timing import Pace
from redlock_aio._transport.connection import (
    Connection,
    MasterError,
    Question,
    ReplicaError,
    examined,
    info_of,
)
from redlock_aio._transport.proof import Proof
from redlock_aio._transport.route import Route
from redlock_aio._transport.sets import DeclaredSets

M = TypeVar("M", Marker, Marker | None)


FLUSHED = "its keys were flushed"

WRITES = 3
"""Attempts in a row to write a marker: another program may write first, or memory be full."""

NEED_PROOF = frozenset({QuarantineRule.REFUSE, QuarantineRule.COUNT_REFUSALS})
"""The requests whose grants count only with the marker, where no flush is pushed."""

REFUSED = 0.75, 1.25
"""The range of the random delay in seconds until a refused set of masters is examined again."""


class GuardQuestions(NamedTuple):
    """What the guard asks a server of a new connection."""

    sets: Question
    caching: Question
    marker: Question


class MarkerWrite(NamedTuple):
    """The questions by which a marker is written and read back."""

    written: Question
    caching: Question
    found: Question


@dataclass(frozen=True, eq=False, slots=True)
class Ruling:
    """
    What was decided about a master when it was judged last.

    Rulings are compared by identity: an equal one that was made later is another ruling.

    Attributes:
        marker: The marker that it follows from, or that was written because of it.

        reason: Why the master has no vote by its marker.

        until: The instant at which the master is judged again, if it has no vote.

        forgot_at: The last instant at which the master may have forgotten locks.

        refusal: Why the declared sets refused the vote of a member.
    """

    marker: Marker | None = None
    reason: Reason = Reason.NONE
    until: float = 0.0
    forgot_at: float = -math.inf
    refusal: Bar | None = None


class Guard:
    """
    The restart guard of one manager: a sentry for each master, and what only all together show.

    That is whether a whole set is new, and which quarantine is the longest that any program on
    these masters uses.

    Args:
        seen: The observations of each address; they outlive the connections.

        quarantine: In seconds: the longest validity of a lease that a master may have lost. It
            grows when the marker of a master carries a longer one.

        strict: Whether young servers without a marker count as restarted, even if all
            masters are young.
    """

    def __init__(
        self,
        seen: list[Seen],
        clock: Callable[[], float],
        *,
        quarantine: float,
        strict: bool,
        addresses: Sequence[str],
        key: bytes,
    ) -> None:
        self.seen = seen
        self.clock = clock
        self.quarantine = quarantine
        self.strict = strict
        self.sets = DeclaredSets(
            addresses,
            key,
            clock=clock,
            quarantine=lambda: self.quarantine,
            confirmed=lambda number: self._sentries[number].is_confirmed,
            reexamine=self._reexamine,
        )
        self.founding = False  # whether a new set is being marked
        self._sentries: list[Sentry] = []  # in the order of the masters

    def __repr__(self) -> str:
        states = ", ".join(s.state.name if s.state else "AWAY" for s in self._sentries)
        return f"<Guard of {states}, {self.quarantine:g} s>"

    def sentry(
        self,
        number: int,
        *,
        route: Route,
        on_push: Callable[[int, object], None],
        changed: Callable[[], None],
    ) -> "Sentry":
        sentry = Sentry(self, number, route=route, on_push=on_push, changed=changed)
        self._sentries.append(sentry)
        return sentry

    @property
    def is_old(self) -> bool:
        """Whether a master is known not to be new, or all may have lost their markers."""
        return any(sentry.is_old for sentry in self._sentries) or self._all_were_replicas

    @property
    def _all_were_replicas(self) -> bool:
        # In a Cluster a promotion alone does not show that a master is old: it may have happened
        # before this library came. But where no owner of a slot was a primary from the beginning,
        # their failovers may have lost each marker, and locks with it. With one master, one does.
        return all(
            s.state is not None and s.info.of_slot and s.info.promoted for s in self._sentries
        )

    def _reexamine(self, numbers: Collection[int]) -> None:
        for number in numbers:
            self._sentries[number].reexamine()

    def learn(self, quarantine: float, *, by: "Sentry | None" = None) -> None:
        """
        Lengthen the quarantine if *quarantine*, in seconds, is longer; it is never shortened.

        A program with a longer *max_ttl* writes its quarantine into the marker of a master
        before that master votes for it. Therefore every master that may have lost one of
        its leases stays in quarantine until that lease is over.

        Args:
            by: The sentry that has read the marker; it is not notified.
        """
        if in_marker(quarantine) <= in_marker(self.quarantine):
            return
        more = quarantine - self.quarantine
        self.quarantine += more
        self.seen[:] = [replace(seen, until=seen.until + more) for seen in self.seen]
        log.warning(
            "%s",
            f"a master that may have forgotten locks waits for {self.quarantine:g} s now: a program"
            " on these masters has a longer max_ttl than this one",
        )
        for sentry in self._sentries:
            if sentry is not by:
                sentry.outlasted()  # its master may vote by the shorter time

    async def found(self) -> None:
        """
        Mark all masters as members, if none of them has a marker.

        The set is new only if the markers, read back after all were written, still prove it:
        another program that knows a master from before may have marked it as rejoining
        meanwhile. A master that refuses its marker counts as one that restarted. After a
        cancellation the markers that were written by then stay.
        """
        if self.founding or self.is_old or any(s.state is None for s in self._sentries):
            return
        # Those that vote have been judged. A marker that is written there once more would hide
        # that a flush, whose push is on its way, has deleted the first one.
        sentries = [sentry for sentry in self._sentries if sentry.state is UNDECIDED]
        # Each sentry calls this. The first one writes for all; meanwhile `_look` does not judge a
        # marker that may be this program's own.
        self.founding = True
        connections = [sentry.connection for sentry in sentries]
        try:
            # All writes leave before the first reply is awaited, so that a master that hangs
            # delays the verdict, but not the markers of the others.
            asked = [
                s.ask_for(quarantine.founding(s.info, s.quarantine), over=b"") for s in sentries
            ]
            # Where a connection has just ended, nothing was sent. The markers of the others count
            # as soon as they are read, so they are judged nevertheless, as if a reply were missing.
            answers = [
                (await write.written.reply, await write.found.reply) if write else (None, None)
                for write in asked
            ]
        finally:
            self.founding = False
        self._judge_new(sentries, connections, answers)

    def _judge_new(
        self,
        sentries: "Sequence[Sentry]",
        connections: Sequence[Connection | None],
        answers: Sequence[tuple[object, object]],
    ) -> None:
        """
        Judge the masters that `found` has marked.

        Args:
            sentries: Those of these masters.

            connections: Those to the masters, over which it asked.

            answers: The reply of each master to its marker, and the marker that was read then.
        """
        # Another program may know one of these servers from before, and mark it as rejoining
        # while this one marks all of them as new. Its marker is left, or replaces this
        # program's. Hence the markers are judged after all were written: one that rejoins
        # shows that the set is not new, and the markers written here are replaced below.
        found = [read_marker(reply) for _, reply in answers]
        # Before the set is judged: a longer quarantine of another program applies to it.
        for marker in found:
            self.learn(0.0 if marker is None else marker.quarantine_ms / 1000)
        new = not any(
            marker is not None and (marker.rejoining or not sentry.info.is_named(marker.run_id))
            for sentry, marker in zip(sentries, found, strict=True)
        )
        for sentry, connection, marker, (marked, get) in zip(
            sentries, connections, found, answers, strict=True
        ):
            late = quarantine.not_new(sentry.info, sentry.quarantine, certain=True)
            if sentry.connection is not connection:
                # The marker was read over a connection that has ended. The server may have lost
                # it since, by a flush or a restart; or it still has this program's own, although
                # the set is not new: also if that connection ended before the replies, so that no
                # marker was read. The next examination has to know, and one that is underway may
                # have judged without that.
                if (marker is not None or not new) and sentry.state in {None, UNDECIDED}:
                    sentry.remember(Verdict(MEMBER) if new else late, marker)
                    sentry.recheck_soon()
            elif refuses(marked, get) and sentry.state is UNDECIDED:
                # A program with a lease from before the restart can't mark it either. Once it
                # accepts writes, this program may be the first of the two: its marker would
                # prove nothing, now or later.
                sentry.set_verdict(late, marker)
            elif new and marker is not None and sentry.state is UNDECIDED:
                if marker.quarantine_ms < in_marker(self.quarantine):
                    sentry.recheck_soon()  # a program with a shorter quarantine has marked it
                else:
                    sentry.set_verdict(Verdict(MEMBER), marker)
            elif not new and marked == OK:
                sentry.ask_for(late, over=get)
                # A `_look` that waits for its replies may have read the marker of a new set, which
                # has just been replaced. Without this it would let the master vote.
                sentry.remember(late, None)
                sentry.recheck_soon()  # masters do not push a client's own changes to it


class Sentry:
    """
    Watches the marker and identity of one master, and quarantines it after a restart or flush.

    Args:
        route: Distinguishes the server from earlier ones at its address (`Route.identified`).

        on_push: Called with each push that is not for the sentry alone.

        changed: Called when `bars` or `info` may have changed.
    """

    def __init__(
        self,
        guard: Guard,
        number: int,
        *,
        route: Route,
        on_push: Callable[[int, object], None],
        changed: Callable[[], None],
    ) -> None:
        self.state: quarantine.MasterStatus | None = None
        """The state of the master; ``None`` while it is not connected."""
        self.dials_again = False
        """Whether `_again` ended the connection: the master is to be dialled without a delay."""
        self.unmarked = False
        """Whether the master had no marker whenever it was looked at over this connection."""
        self.tracked = True
        """Whether the server pushes changes of the marker over this connection."""
        self._guard = guard
        self._number = number
        self._on_push = on_push
        self._changed = changed
        self._route = route
        self._identified = route.identified
        self._outlives = route.outlives
        self._tag = route.tag
        self._key = commands.MARKER + PLACEHOLDER if route.tag else commands.MARKER
        self._reading = commands.read_marker(self._key)
        self.connection: Connection | None = None
        self._wake: asyncio.Future[None] | None = None
        self._recheck = False
        self._flushed = False
        """Whether a flush was pushed to a quarantined master since its marker was last asked."""
        self._ruling = Ruling()
        self._proof: Proof | None = None
        self._rereads = 0
        self._ahead: int | None = None
        """The us by which the server's clock is ahead of this process's; ``None``: not known."""
        self._started = 0.0
        self.info: ServerInfo

    def __repr__(self) -> str:
        return f"<Sentry {self._number}, {self.state.name if self.state else 'AWAY'}>"

    @property
    def is_confirmed(self) -> bool:
        """Whether commands of locks may be sent to the connected server."""
        return self._route.is_confirmed

    @property
    def quarantine(self) -> float:
        """In seconds. Markers carry only the part that is the same for all masters."""
        return self._guard.quarantine + self._outlives

    @property
    def bars(self) -> tuple[Bar | None, Bar | None]:
        """Why the master has no vote: by its marker, and by the declared sets."""
        ruling = self._ruling
        if self.state in {None, MEMBER} or ruling.refusal is not None:
            return None, ruling.refusal
        ago = self._guard.clock() - self._started
        bar = quarantine.bar(ruling.reason, ago=ago, until=ruling.until)
        topic = self.info.identity, ruling.reason
        # All quick rereads of the marker come before an undecided master is reported.
        provisional = self.state is UNDECIDED and self._rereads <= len(quarantine.REREADS)
        return replace(bar, topic=topic, provisional=provisional), None

    @property
    def is_old(self) -> bool:
        if self.state is MEMBER or self._ruling.refusal is not None:
            return not self.unmarked
        return self.state is QUARANTINED

    def send_proved(
        self, connection: Connection, payload: bytes, senders: Sequence[Sender]
    ) -> NoReply | None:
        """Send to a master with a vote; grants count only with its marker, read behind them."""
        if not any(sender.in_quarantine in NEED_PROOF for sender in senders):
            return connection.send(payload, senders)
        # The marker is read behind the commands, in the same write. If the server had lost its keys
        # when it executed one of them, the marker is gone when it is read, or is another one. The
        # grants are held until then: an attempt that counted one at once would hold a lock that
        # another client may have.
        proof = Proof([self._reading], self._has_marker)
        held = [proof.hold(s) if s.in_quarantine in NEED_PROOF else s for s in senders]
        return connection.send(payload + proof.payload, [*held, *proof.senders])

    # Examination of the server and its marker.

    def attach(self, connection: Connection) -> None:
        """Use *connection* from now on, so that no push is missed before the marker is read."""
        # A proof that is underway belongs to the former connection: the next flush needs a new one.
        self.connection = connection
        self._proof = None

    def questions(self) -> GuardQuestions:
        """Return the questions whose replies `examine` needs; the caller sends them."""
        loop = asyncio.get_running_loop()
        asked = self._guard.sets.reading, commands.CACHING, self._reading
        return GuardQuestions(*[Question(command, loop) for command in asked])

    async def examine(
        self, connection: Connection, info: ServerInfo, asked: GuardQuestions
    ) -> None:
        """
        Judge the server of a new connection, which has sent the `questions` behind ``INFO``.

        Args:
            info: With the identity of `Route.identified`.

        Cancellation:
            The master counts as not connected.
        """
        declared, found = await asked.sets.reply, await asked.marker.reply
        if self.connection is not connection:
            raise ConnectionError(connection.reason)
        self._rereads = 0
        try:
            self.unmarked = marker_of(found, self._tag) is None
            sets, number = self._guard.sets, self._number
            # The marker was read before the set is declared. Another program may change it in
            # between; that push reaches `on_push`, because `attach` came before the read.
            server = info.run_id + self._tag.decode()
            joining = await sets.join(number, server, connection, declared)
            await self._judge(info, found)
            await sets.joined(number, connection, joining)  # the master had no vote before
            if self.state is MEMBER and sets.bar(number) is not None:
                # The set was not declared there.
                self.set_verdict(Verdict(MEMBER), self._ruling.marker)
            if self._recheck:  # the marker was changed, or the keys flushed, since it was read
                self._recheck = False
                await self._look()
        except BaseException:
            self.gone()
            raise

    async def monitor(self, down: asyncio.Future[None]) -> None:
        pace = Pace(quarantine.PUSHED_INTERVAL)
        while not down.done():
            try:
                if self.state is UNDECIDED:
                    # Before the wait: the last master of a new set makes all usable at once.
                    await self._guard.found()
                # `_rest` clears `_recheck` before `_look` reads the marker. A push that comes
                # behind that read sets it again, and the next rest ends at once; cleared after the
                # read, such a push would be lost.
                await self._rest(down, pace)
                if not down.done():
                    await self._look()
            except ConnectionError:
                pass  # the connection is down
            except MasterError as error:
                if isinstance(error, ReplicaError):
                    self.saw_replica(error.info)
                if self.connection is not None:
                    self.connection.condemn(error.cause, replies.harmless(str(error)))

    async def _rest(self, down: asyncio.Future[None], pace: Pace) -> None:
        wait = self._pause()
        if not self._recheck:
            self._wake = wake = asyncio.get_running_loop().create_future()
            await asyncio.wait([down, wake], timeout=wait, return_when="FIRST_COMPLETED")
        if self._recheck and self.state is QUARANTINED:
            # Programs that name the server by a URL and through Sentinel replace each other's
            # markers, each as soon as the other's is pushed. A member is examined at once: its
            # vote may have to end. This one has none, and is examined when its wait is over.
            await asyncio.wait([down], timeout=min(pace.pause(self._guard.clock()), self._pause()))
        self._recheck = False

    def _pause(self) -> float:
        """Return the delay until the next examination; enough quick rereads end the assessment."""
        if self.state is UNDECIDED:
            self._rereads += 1
            if self._rereads == len(quarantine.REREADS) + 1:
                self._changed()
        ruling = self._ruling
        left = ruling.until - self._guard.clock()
        pause = quarantine.pause(self.state, left, self.quarantine, self._rereads)
        if self.state is QUARANTINED and ruling.marker is None and ruling.refusal is None:
            # The master refuses the marker, or hides it. A program that begins before it is
            # written would take the masters for a new set.
            return min(pause, quarantine.UNDECIDED_INTERVAL)
        return pause

    async def _look(self) -> None:
        connection = self.connection
        if connection is None:
            return
        # While this waits for replies, `found` may set a verdict, a push may set `_flushed`, and
        # the connection may end. Each is tested below, before these replies count.
        ruling = self._ruling
        quarantined = ruling.reason is not Reason.NONE
        await self._guard.sets.look(self._number, connection, quarantined=quarantined)
        self._flushed = False  # before the read is sent: a push behind it must not be lost
        info, _, marker = connection.ask(commands.INFO, commands.CACHING, self._reading)
        now = await examined(await info.reply, connection, self._identified)
        found = carried(marker_of(await marker.reply, self._tag), self._outlives)
        if self.connection is not connection:
            return  # the replies are of a former server; `examine` has judged the present one
        if self._ruling is not ruling or (self.state is UNDECIDED and self._guard.founding):
            return  # a new set was, or is being, founded: this program may have written the marker
        # A set is new for a moment only. If another master is reached later, it may have restarted
        # since programs that reach it use the set.
        self.unmarked = self.unmarked and found is None
        if self.state is MEMBER:
            # The server may have lost its keys and granted another client's lock since. That
            # reply may be underway now: only the end of the connection keeps it from counting.
            verdict = self._verdict(now, found)
            if verdict.state is not MEMBER:
                until = self._guard.clock() + verdict.seconds
                bar = quarantine.bar(verdict.reason, ago=now.uptime or 0, until=until)
                self._again(bar.cause, bar.describe(self._guard.clock()))
                return
        await self._judge(now, marker.reply.result())

    def _verdict(self, info: ServerInfo, marker: Marker | None) -> Verdict:
        guard = self._guard
        guard.learn(
            0.0 if marker is None else marker.quarantine_ms / 1000 - self._outlives, by=self
        )
        seen, now = guard.seen[self._number], guard.clock()
        verdict = quarantine.judge(
            info, marker, seen, now, quarantine=self.quarantine, strict=guard.strict
        )
        reread = self._rereads >= len(quarantine.REREADS)
        long = info.of_slot and self._rereads > len(quarantine.REREADS) + quarantine.UNDECIDED_SLOT
        if verdict.state is UNDECIDED and (long or (reread and guard.is_old)):
            return quarantine.not_new(info, self.quarantine)
        return verdict

    async def _judge(self, info: ServerInfo, found: object) -> None:
        """Judge by *info* and the marker that was *found*, write one if due, set the state."""
        marker = carried(marker_of(found, self._tag), self._outlives)
        self.info = info
        now = self._guard.clock()
        self._ahead = None if info.time is None else info.time - round(now * 1_000_000)
        self._started = now - (info.uptime or 0)
        verdict = self._verdict(info, marker)
        if verdict.state is MEMBER and self.state is None and self._guard.founding:
            # The marker may be this program's own, of a set that is not known to be new. `found`
            # has it examined again.
            self.set_verdict(Verdict(UNDECIDED), marker)
            return
        # Two programs may judge the same restart at the same time, and one may know more: a
        # longer quarantine, or the server from before. Each writes, reads back, and judges again
        # by the marker that it finds, until that equals its own or has at least as many facts.
        for again in reversed(range(WRITES)):
            self.remember(verdict, marker)
            asked = self.ask_for(verdict, over=found)
            if asked is None:
                break
            written, found = await asked.written.reply, await asked.found.reply
            marker = carried(marker_of(found, self._tag), self._outlives)
            if isinstance(written, Exception) and replies.is_forbidden(written):
                raise forbidden(written, self._tag)
            longest = marker is not None and marker.quarantine_ms >= in_marker(self.quarantine)
            if marker == verdict.write and not verdict.careful and longest:
                break  # equal to the written marker: no other program knows more
            verdict = self._verdict(info, marker)
            if replies.has_no_script(written) and again:
                continue  # the connection has just loaded the scripts
            if isinstance(written, Exception) and verdict.state is MEMBER:
                must_carry(marker, self.quarantine, written)
        if verdict.state is MEMBER and self._flushed:
            # The push came behind the last read of the marker, or just before it. This is not
            # known, so the marker has to be read on a new connection.
            self._again(NoVoteCause.FLUSHED, FLUSHED)
            return
        self.set_verdict(verdict, marker)

    def ask_for(self, verdict: Verdict, *, over: object) -> MarkerWrite | None:
        """
        Write the marker of *verdict* and read it back; ``None`` if there is none to write.

        It is written only *over* the reply by which the verdict was reached: otherwise a flush
        since then would stay hidden.
        """
        if verdict.write is None or self.connection is None:
            return None
        marker = carried(verdict.write, -self._outlives)
        read = over if isinstance(over, bytes) else b""
        mark = commands.mark(bytes(marker), over=read, marker=self._key)
        packed, loop = (mark, commands.CACHING, self._reading), asyncio.get_running_loop()
        asked = MarkerWrite(*[Question(command, loop) for command in packed])
        self._flushed = False
        if self.connection.send(b"".join(packed), asked) is not None:
            return None  # it has ended, and `gone` was not called yet
        self.connection.overdue()
        return asked

    def remember(self, verdict: Verdict, marker: Marker | None) -> None:
        guard, number = self._guard, self._number
        guard.seen[number] = quarantine.remember(
            guard.seen[number], self.info, marker, verdict, guard.clock()
        )

    def set_verdict(self, verdict: Verdict, marker: Marker | None) -> None:
        # In one step, without an await: `send` and the votes follow in `_changed`, before
        # another task can see the new state.
        self.remember(verdict, marker)
        now = self._guard.clock()
        state, until = verdict.state, now + verdict.seconds
        # Only here: a set that is refused no more gives the vote back at the next examination,
        # when the marker was read again.
        refusal = self._guard.sets.bar(self._number) if state is MEMBER else None
        if refusal is not None:
            refusal = replace(refusal, topic=(self.info.identity,))
            state, until = QUARANTINED, now + random.uniform(*REFUSED)  # noqa: S311 - no secret
        forgot_at = now - quarantine.since_forgot(self.info, marker)
        self.state = state
        # A `_look` that has asked before this, and waits for its replies, finds another ruling
        # then and drops them.
        self._ruling = Ruling(marker, verdict.reason, until, forgot_at, refusal)
        self._changed()

    def outlasted(self) -> None:
        """
        Called when the quarantine has become longer: examine the master again soon.

        If this master would be in quarantine now, its vote ends at once. Otherwise the master
        that reported it could vote, and this one grant the same lock before it is examined.
        """
        if self.state is MEMBER and self._guard.clock() < self._ruling.forgot_at + self.quarantine:
            why = "it may have forgotten locks of a program with a longer max_ttl"
            self._again(NoVoteCause.MARKED, why)
        self.recheck_soon()

    def on_push(self, number: int, push: object) -> None:
        """Called with each push: a flush or a changed marker is examined."""
        # The connection calls this between two replies. Those behind the push may be grants of a
        # server without its keys, so what they need is done before this returns.
        changed = replies.changed(push)
        if changed is not None:
            if self._key in changed:
                self.recheck_soon()
            self._on_push(number, push)
        elif self.state is MEMBER:
            self._prove()
        elif self.state is UNDECIDED:
            # Other masters may be about to let it vote, as one of a new set.
            self._again(NoVoteCause.FLUSHED, FLUSHED)
        else:
            # Nothing that it grants counts yet. `_judge` and `examine` read the marker again
            # before it gets a vote.
            self._flushed = self.state is QUARANTINED
            self.recheck_soon()
            self._on_push(number, push)

    def _prove(self) -> None:
        """
        Called at the push of a flush: hold back replies until INFO and the marker were read.

        The replies behind the push may be of a server without its keys. Those behind the proof's
        own need no proof. If the master hangs, the held replies are missing, like all others.
        """
        connection, proof = self.connection, self._proof
        if connection is None:
            return
        if proof is None or proof.over:
            packed = commands.INFO, commands.CACHING, self._reading
            self._proof = proof = Proof(packed, self._is_same)
            connection.prove(proof)
        elif proof.begun:
            # INFO was read before this push, and the marker will be read behind it. Together
            # they prove nothing. It is rare: the two are executed one after the other.
            self._again(NoVoteCause.FLUSHED, FLUSHED)
        # Otherwise both are executed after this flush, too.

    def _is_same(self, replies_: Sequence[object]) -> NoReply | None:
        """Judge a proof: end the connection unless server and marker are as before the flush."""
        info, _, marker = replies_
        try:
            now = info_of(info, self._identified)
        except (ConnectionError, MasterError) as error:
            if isinstance(error, ReplicaError):
                self.saw_replica(error.info)
            return self._distrust()
        # A replica that drops its keys for its master's pushes a flush as well. When it is
        # promoted, its own marker may be among them.
        if not now.is_named(self.info.identity):
            return self._distrust()
        no_reply = self._has_marker([marker])
        if no_reply is None:  # another database was flushed
            self._on_push(self._number, replies.EVERYTHING_CHANGED)  # no key is tracked any more
        return no_reply

    def _has_marker(self, replies_: Sequence[object]) -> NoReply | None:
        """Judge a proof by the marker alone: end the connection if it has changed."""
        [reply] = replies_
        try:
            found = carried(marker_of(reply, self._tag), self._outlives)
        except (ConnectionError, MasterError):
            return self._distrust()
        marker = self._ruling.marker
        if found is None or marker is None or not found.continues(marker):
            return self._distrust()
        if found != marker:
            self.recheck_soon()  # a program with a longer max_ttl has written it
        return None

    def _distrust(self) -> NoReply:
        self._again(NoVoteCause.FLUSHED, FLUSHED)
        return NoReply(Answer.UNREACHABLE, FLUSHED)

    def recheck_soon(self) -> None:
        # The flag is for a task that is in the middle of an examination, and waits for nothing
        # yet: it would miss the wake-up.
        self._recheck = True
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def reexamine(self) -> None:
        """End the vote of the master, if it has one, with the replies underway; look at it soon."""
        if self.state is MEMBER:
            bar = self._guard.sets.bar(self._number)
            self._again(NoVoteCause.SET_CONFLICT, "" if bar is None else bar.text)
        self.recheck_soon()

    def _again(self, cause: NoVoteCause, reason: str) -> None:
        """End the connection, so that no reply underway counts, and dial again at once."""
        if self.connection is not None:
            # Before `condemn`, which calls `Master._step_down`: that reads the flag.
            self.dials_again = True
            self.connection.condemn(cause, reason)

    def saw_replica(self, info: ServerInfo | None = None) -> None:
        """
        Called when the server was found to be a replica, and so has dropped its keys.

        Args:
            info: Its reply to ``INFO``. Without one, the server that was examined last is meant.
        """
        guard, number = self._guard, self._number
        if info is None:
            # Its own clock now, by the offset that was measured then.
            now, run_id = round(guard.clock() * 1_000_000), self.info.run_id
            time = None if self._ahead is None else now + self._ahead
        else:
            time, run_id = info.time, info.run_id
        guard.seen[number] = quarantine.seen_as_replica(guard.seen[number], run_id, time)

    def gone(self, *, closing: bool = False) -> None:
        """Called when the connection has ended; *closing* if the manager ends."""
        # From now on this process does not see what happens to the server. If another server is
        # found at the next connection, `judge` compares the time since then with the quarantine.
        if self.state is not None:
            guard, number = self._guard, self._number
            guard.seen[number] = quarantine.last_seen(guard.seen[number], guard.clock())
        self._guard.sets.gone(self._number, closing=closing)
        self.connection = None
        self.state = None


def marker_of(reply: object, tag: bytes) -> Marker | None:
    """Return the marker in the *reply*, ``None`` if there is none; raise if it is no answer."""
    if isinstance(reply, NoReply):
        raise ConnectionError(reply.detail)
    if isinstance(reply, Exception):
        if str(reply).startswith("NOPERM"):
            raise forbidden(reply, tag)
        raise MasterError(NoVoteCause.SERVER_ERROR, str(reply))
    return read_marker(reply)


def refuses(written: object, found: object) -> bool:
    """Return whether a master has refused its marker, and has none."""
    return isinstance(written, Exception) and found == b"" and not replies.has_no_script(written)


def read_marker(reply: object) -> Marker | None:
    """Return the marker in a reply; ``None`` for any other reply."""
    # The reply of GETRANGE for a missing key is an empty string.
    return Marker.parse(reply if isinstance(reply, bytes) and reply else None)


def carried(marker: M, outlives: float) -> M:
    """Return *marker* with *outlives* seconds added to the quarantine in it."""
    if marker is None or not marker.quarantine_ms or not outlives:
        return marker
    return replace(marker, quarantine_ms=marker.quarantine_ms + round(outlives * 1000))


def must_carry(marker: Marker | None, quarantine: float, error: Exception) -> None:
    """
    Raise unless *marker* carries a quarantine of *quarantine* seconds or more.

    Called when the master refused a new marker. After its restart, programs with a shorter
    *max_ttl* would otherwise not wait until the leases of this program are over.
    """
    if marker is None or marker.quarantine_ms < in_marker(quarantine):
        text = f"its marker can't be written: {error}"
        raise MasterError(NoVoteCause.SERVER_ERROR, text)


def forbidden(error: Exception, tag: bytes) -> MasterError:
    key = (commands.MARKER + tag).decode()
    return MasterError(
        NoVoteCause.FORBIDDEN,
        f"the restart guard must GETRANGE and SET the key {key}, or be off"
        f' (restart_guard="off"): {error}',
    )
