"""
All masters of one session, and the rounds that are underway.

What is asked in one turn of the loop leaves together, in one write to each master.
Time-outs of rounds come in the order of the rounds, so that one timer serves all of them.
"""

import asyncio
import time
from binascii import b2a_base64
from collections import deque
from collections.abc import Callable, Sequence
from os import urandom

from redlock_aio._engine.emitter import Emitter
from redlock_aio._engine.links import Link, clock_of
from redlock_aio._engine.local_queue import JointLine, Line
from redlock_aio._engine.outages import Outages
from redlock_aio._engine.round import Release, Round
from redlock_aio._protocol import commands, replies, request
from redlock_aio._protocol.primitives import Key, Keys
from redlock_aio._protocol.request import Silence, Trust
from redlock_aio._rules.clock_offsets import Clocks
from redlock_aio._rules.quorum import GRANTED, Answer
from redlock_aio._rules.roundtrips import RoundTrips
from redlock_aio.errors import RedlockError

TOKEN_BYTES, TOKENS_AT_ONCE = 21, 100

PROBE_EVERY, PROBE_SOON = 1.0, 0.1
"""
Seconds between two probes of the round trip while the masters are used at all; the second
value is for masters that have just been too slow.
"""

STALLED = 0.01
"""If a timer is so many seconds late, the event loop did not run in between."""

IDLE_LINES = 256
"""How many lines are remembered in which nobody stands."""


class Probe(Round):
    """A question that is asked now and then to learn how long answers take."""

    __slots__ = ("_loop", "_sent", "_trips")
    trust = Trust.FULL

    def __init__(self, fleet: "Fleet", now: float) -> None:
        super().__init__(fleet.links, commands.PING)
        self._loop = fleet.loop
        self._sent = now
        self._trips = fleet.trips

    def answered(self, master: int, reply: object, /) -> None:
        """Measure the round trip by any answer, also an error or one that comes too late."""
        if reply.__class__ is not Silence:
            self._trips.learn(master, (self._loop.time() - self._sent) * 1000)
        super().answered(master, reply)


class Fleet:
    """
    All masters of one manager, and the rounds that are underway.

    What is asked in one turn of the loop leaves together, in one write to each
    master, in the order in which it was asked.

    Args:
        links: The masters.

        trips: How long they take to answer, and may take.

        emitter: Of events to a listener, if there is one.
    """

    __slots__ = (
        "_asked", "_caching", "_most_lines", "_probe_at", "_probed_at", "_timer", "_tokens",
        "_underway", "_why_closed", "can_free", "clock", "clocks", "closed", "emitter", "lines",
        "links", "loop", "outages", "owner_waiters", "stamp", "trips",
    )  # fmt: skip

    def __init__(
        self,
        links: Sequence[Link],
        loop: asyncio.AbstractEventLoop,
        *,
        trips: RoundTrips,
        stamp: bytes = b"",
        emitter: Emitter | None = None,
    ) -> None:
        self.links: tuple[Link, ...] = tuple(links)
        self.emitter: Emitter | None = emitter
        self.trips: RoundTrips = trips
        self.clock: Callable[[], float] = clock_of(loop)
        self.outages: Outages = Outages(self.clock)
        self.clocks: Clocks = Clocks(len(links), time.time() - self.clock())
        self.can_free: bool = False
        """Whether every master that is up has a command for releases."""
        self.closed: bool = False
        self._why_closed = ""
        self.lines: dict[bytes | Keys, Line] = {}
        """For each key who wants it, or wanted it lately."""
        self.owner_waiters: dict[Callable[[object], None], None] = {}
        """Callbacks of waiting tasks with an owner; called with each lease acquired by an owner."""
        self.stamp: bytes = stamp
        """What follows each token in the value, and says who we are."""
        self.loop: asyncio.AbstractEventLoop = loop
        self._caching = Round(links, commands.CACHING)
        for number in range(len(links)):
            self._caching.answered(number, GRANTED)  # nobody asks whether it was
        self._asked: list[Round] = []
        self._underway: deque[tuple[float, list[Round]]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._probed_at = loop.time()  # each master was, when it was connected
        self._probe_at = self._probed_at + PROBE_EVERY
        self._tokens: list[bytes] = []
        self._most_lines = IDLE_LINES

    def __repr__(self) -> str:
        return f"<Fleet of {len(self.links)}, {self.underway} rounds underway>"

    @property
    def underway(self) -> int:
        """How many rounds some master has not answered, and none counts as timed out yet."""
        batches = [self._asked, *(batch for _, batch in self._underway)]
        return sum(not round.complete for batch in batches for round in batch)

    @property
    def waiters(self) -> int:
        """How many tasks of this process wait for a lock."""
        return len({waiter for line in self.lines.values() for waiter in line.waiters})

    @property
    def master_timeout(self) -> int:
        """How many milliseconds a master may take to answer, as it is now known."""
        return self.trips.timeout

    def token(self) -> bytes:
        """
        Return a value that nobody can guess and that has never been used, in base 64.

        Chance is fetched for many at once, a system call costs as much as a
        round's counting. A fleet is never used in a forked child, which would
        draw the same.
        """
        if not self._tokens:
            chance = b2a_base64(urandom(TOKEN_BYTES * TOKENS_AT_ONCE), newline=False)
            digits = TOKEN_BYTES * 4 // 3
            self._tokens = [chance[i : i + digits] for i in range(0, len(chance), digits)]
        return self._tokens.pop()

    def ask(self, round: Round, at_most: float | None = None) -> asyncio.Future[None]:
        """
        Send *round* as `send` does; return a future that is done when it is settled.

        It is for ``await masters.ask(round)``. There is one future for each round that is
        waited for, and none for the others.
        """
        self.send(round, at_most)
        round.waiter = waiter = self.loop.create_future()
        return waiter

    def wait_for(self, round: Round) -> asyncio.Future[None]:
        """Return a future that is done when *round*, which was sent and is open, is settled."""
        round.waiter = waiter = self.loop.create_future()
        return waiter

    def send(self, round: Round, at_most: float | None = None) -> None:
        """
        Send *round* to all masters, behind all that was sent before.

        It leaves in the loop's next turn, in one write with all others of this turn.

        Args:
            at_most: How many ms an answer may take, if less than the master time-out.
        """
        asked = self._asked
        if not asked:
            self.loop.call_soon(self.flush)
        asked.append(round)
        if at_most is not None and at_most < self.master_timeout:
            self.loop.call_later(at_most / 1000, round.expire)

    def send_and_watch(self, round: Round, at_most: float | None = None) -> None:
        """Send *round*, and have the masters report changes of what it lets them read."""
        self.send(self._caching)
        self.send(round, at_most)

    def line(self, key: Key | Keys) -> Line:
        """Return the line of those who want *key*."""
        lines = self.lines
        line = lines.get(key)
        if line is None:
            if len(lines) >= self._most_lines:
                self.lines = lines = {k: line for k, line in lines.items() if not line.idle}
                self._most_lines = 2 * len(lines) + IDLE_LINES
            lines[key] = line = JointLine(key, self.line) if isinstance(key, Keys) else Line()
        return line

    def heard(self, master: int, push: object) -> None:
        """Take what a master says without being asked."""
        changed = replies.changed(push)
        if changed is None:
            self.can_free = all(link.can_free for link in self.links)
            for line in list(self.lines.values()):
                line.changed(master)
            return
        for key in changed:
            if key in self.lines:
                self.lines[key].changed(master)

    def freed(self, key: Key | Keys, master: int | None = None) -> None:
        """
        Tell who waits in this process that something is given back that was no lease.

        The masters do not tell: they spare the connection that changes a key.

        Args:
            master: Where that is done; if left out, it is on its way everywhere.
        """
        for each in key.each:
            line = self.lines.get(each)
            if line is not None:
                line.notify_released(master)

    def flush(self) -> None:
        """Send what was asked in this turn of the loop."""
        asked = self._asked
        if not asked:
            return
        self._asked = []
        now = self.loop.time()
        if now >= self._probe_at:
            self._probed_at = now
            self._probe_at = now + PROBE_EVERY
            # Before the others, which would have the masters work meanwhile.
            asked.insert(0, Probe(self, now))
        payload = asked[0].payload if len(asked) == 1 else b"".join([r.payload for r in asked])
        for number, link in enumerate(self.links):
            silence = link.send(payload, asked)
            if silence is not None:
                self._not_sent(number, silence, asked)
        underway = self._underway
        while underway and self._is_complete(underway[0][1]):
            underway.popleft()
        expires_at = now + self.trips.timeout / 1000
        underway.append((expires_at, asked))
        if self._timer is None:
            self._timer = self.loop.call_at(expires_at, self._expire)

    def _not_sent(self, number: int, silence: Silence, asked: list[Round]) -> None:
        if silence is not request.OVERRUN and silence.answer is not Answer.QUARANTINED:
            for round in asked:
                round.not_sent(number, silence)
            return
        # It is up, and has too much to answer or no vote: it takes what it can, and releases.
        send = self.links[number].send
        for round in asked:
            if (refused := send(round.payload, [round])) is not None:
                round.not_sent(number, refused)

    def _is_complete(self, batch: list[Round]) -> bool:
        masters = len(self.links)
        # The last one is the last to be answered, but for scripts that had to be
        # sent again.
        last = batch[-1]
        if last.granted + last.against < masters:
            return False
        return all([r.granted + r.against == masters for r in batch])  # noqa: C419 - faster

    def release(self, payload: bytes, ttl: int, asked: Round) -> Release:
        """
        Ask all masters that may have heard *asked* to forget it, now or when they can.

        Nothing is awaited. The release goes down the same connections, so it
        can't arrive before what it takes back.
        """
        round = Release(self.links, payload, ttl, asked)
        self.send(round)
        return round

    def check_open(self) -> None:
        """
        Return if it was not closed.

        Raises:
            RedlockError: It was; the error says why.
        """
        if self.closed:
            raise RedlockError(self._why_closed)

    def close(self, why: str = "this Redlock was closed") -> None:
        """
        Send what was asked, let no new attempt begin, and end those that are underway.

        Args:
            why: The text of the error that every use raises from now on.
        """
        if not self.closed:
            self._why_closed = why
        self.closed = True
        for line in self.lines.values():
            line.notify_released()
        self.flush()
        for _, batch in self._underway:
            for round in batch:
                round.expire()

    def _expire(self, due: float | None = None) -> None:
        """Count as timed out who has not answered; a shorter time-out waits for those before."""
        underway = self._underway
        now = self.loop.time()
        if due is None and underway and now - underway[0][0] > STALLED:
            # The loop did not run, and may not have read what came meanwhile.
            self._timer = self.loop.call_later(STALLED, self._expire, now)
            return
        while underway and underway[0][0] <= (due or now):
            for round in underway.popleft()[1]:
                if not round.complete:
                    round.expire()
                    # Its master may be slower than before.
                    self._probe_at = min(self._probe_at, self._probed_at + PROBE_SOON)
        self._timer = self.loop.call_at(underway[0][0], self._expire) if underway else None
