"""
The masters of one session, and the rounds that are sent to them.

    MasterSet.ask ─┬─ send(payload) ── master A ──► reply ─┐
                   ├─ send(payload) ── master B ...        ├─► Round.on_reply ─► Tally ─► outcome
                   └─ ...                                  ┘

A round is one request to all masters, and the tally of their replies. It is decided as soon
as its outcome is certain. Masters that have not answered by then can still do so, and count
as timed out after the master timeout. A round costs one object and one future, whatever the
number of masters.

All rounds sent in one turn of the loop leave together, in one write to each master.
Rounds time out in the order in which they were sent, so that one timer serves all of them.
"""

import asyncio
import math
import time
from binascii import b2a_base64
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from os import urandom
from struct import Struct
from typing import Any, NamedTuple, Protocol

from redlock_aio._engine.claim import Claim
from redlock_aio._engine.clock import clock_of
from redlock_aio._engine.emitter import Emitter
from redlock_aio._engine.outages import Outages
from redlock_aio._protocol import commands, replies, request
from redlock_aio._protocol.request import NoReply, QuarantineRule, Request, Sender
from redlock_aio._rules import fair_ticket
from redlock_aio._rules.clock_offsets import Clocks
from redlock_aio._rules.quorum import (
    COMPLETE,
    LOST,
    NOT_YET,
    OK,
    WON,
    Answer,
    Outcome,
    Tally,
    Vote,
    majority,
)
from redlock_aio._rules.timing import RoundTrips
from redlock_aio.errors import ErrorCode, RedlockError

TOKEN_BYTES, TOKENS_AT_ONCE = 21, 100
_TOKENS = Struct(f"{TOKEN_BYTES * 4 // 3}s" * TOKENS_AT_ONCE)  # in base 64

PROBE_EVERY, PROBE_SOON = 1.0, 0.1
"""
Seconds between two probes of the round trip while the masters are used at all; the second
value is for masters that have just been too slow.
"""

CLOSED: tuple[str, ErrorCode] = "this Redlock was closed", "redlock-closed"

STALLED = 0.01
"""A timer that is late by this many seconds shows that the event loop was blocked."""

CUT_SHORT = NoReply(Answer.TIMED_OUT, "it had less time than a master timeout")
"""The vote of a master that has not answered within a limit below the master timeout."""


class Link(Protocol):
    """The interface of a master as rounds use it: a `Master`, or a fake without a connection."""

    @property
    def name(self) -> str: ...

    can_free: bool

    @property
    def votes(self) -> bool: ...
    @property
    def no_vote(self) -> NoReply | None: ...
    @property
    def quarantine(self) -> str: ...
    @property
    def reports(self) -> bool: ...
    @property
    def received(self) -> int: ...
    @property
    def send(self) -> Callable[[bytes, Sequence[Sender]], NoReply | None]: ...
    def overdue(self) -> NoReply: ...
    def known_as(self, key: bytes, /) -> bytes: ...
    def add_debt(self, payload: bytes, ttl: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Policy:
    """
    What the replies to one kind of round mean: a value that all rounds of the kind share.

    Attributes:
        in_quarantine: What happens to the request on a quarantined master.

        classify: What a reply means as a vote; see `replies.vote`.

        yes: The reply that grants.
    """

    in_quarantine: QuarantineRule = QuarantineRule.COUNT_REFUSALS
    classify: Callable[[object], NoReply] = replies.classify
    yes: object = OK


FREED = 1
"""The reply of ``DELIFEQ`` that it has deleted the key."""

DEFAULT = Policy()
ACQUIRE = Policy(QuarantineRule.REFUSE)
KEPT = Policy(classify=replies.classify_kept)
"""For the extension and the check of a key that a lease has."""
RELEASE = Policy(QuarantineRule.COUNT_IF_FOUND, replies.classify_kept)
DELIFEQ = Policy(QuarantineRule.COUNT_IF_FOUND, replies.classify_freed, FREED)
"""
For a release by ``DELIFEQ``, a command that few servers have.

Its reply has fewer facts than that of the script, but it takes a third of the time.
"""


class Round(Tally, Sender):
    """
    One request to all masters, and their replies so far.

    Requests for a lock and releases are both of this class, not of one class each: CPython runs
    code that sees objects of one class faster.

    Args:
        claim: What is requested or released; ``None`` for a request of another kind.

        debt_ttl: For a release: the ms for which its key may live without it. Until then it is
            repeated on each master that has not confirmed it. 0 for any other request.
    """

    __slots__ = ("_claim", "debt_ttl", "masters", "payload", "policy", "waiter")

    def __init__(
        self,
        masters: "MasterSet",
        payload: bytes,
        policy: Policy = DEFAULT,
        claim: Claim | None = None,
        debt_ttl: int = 0,
    ) -> None:
        # Not `super()`: through four base classes it costs as much as all the rest.
        Tally.__init__(self, len(masters.links), policy.yes)
        self.masters: MasterSet = masters
        self.payload: bytes = payload
        self.policy: Policy = policy
        self._claim: Claim | None = claim
        self.debt_ttl: int = debt_ttl
        self.waiter: asyncio.Future[None] | None = None

    @property
    def in_quarantine(self) -> QuarantineRule:
        return self.policy.in_quarantine

    @property
    def needless(self) -> int:
        # Read when it is asked for: the request may leave in the same turn of the loop as this.
        return 0 if self._claim is None else self._claim.unsent

    @property
    def is_curable(self) -> bool:
        """Whether only NOSCRIPT replies prevented a majority: a repetition may succeed."""
        forgotten = sum(map(replies.has_no_script, self.replies))
        return self.verdict is LOST and forgotten >= self.to_win

    def not_sent(self, master: int, no_reply: NoReply) -> None:
        """Count *no_reply* for a master that never gets the request."""
        # Of a request for a lock: the key can't be on this master, so its release will leave no
        # debt there. Otherwise a master that is down would get a debt for each attempt.
        if self._claim is not None and not self.debt_ttl:
            self._claim.unsent |= 1 << master
        self.on_reply(master, no_reply)
        if not replies.is_unsettled(no_reply):  # otherwise `declined` has added the debt
            self._add_debt(master)

    def declined(self, master: int, reply: object) -> None:
        # A timeout of a release is not final: it is on the connection, behind the request. Either
        # its reply still comes, to `late`, or the connection ends, and `late` gets that as the
        # reply. Errors and that end make a debt. A debt at each timeout would repeat releases that
        # are only late.
        if replies.is_unsettled(reply):
            self._add_debt(master)

    late = declined  # a late reply is not counted, but the key is still on the master

    def _add_debt(self, master: int) -> None:
        claim = self._claim
        if claim is None or not self.debt_ttl or claim.unsent >> master & 1:
            return
        # Not DELIFEQ: another server may be at the address when the debt is repeated.
        debt = claim.release() if self.policy is DELIFEQ else self.payload
        self.masters.links[master].add_debt(debt, self.debt_ttl)

    def instead(self, master: int) -> Request | None:
        """
        Return the script to send to *master*, if it lacks ``DELIFEQ``.

        Also stop using the command until that master has been asked for it on a new
        connection: otherwise each release would cost another round trip.
        """
        if self.policy is not DELIFEQ or self._claim is None:
            return None
        # Both: the next push would compute the manager's flag from those of the links.
        self.masters.links[master].can_free = self.masters.can_free = False
        # The connection sends this behind all that was sent since, and the master is counted by the
        # reply to it, or by the timeout of the round. If the connection ends first, `_by_script`
        # gets that as the reply, and the debt is added as for the command.
        return Request(
            self._claim.release(),
            self._by_script,
            debt_ttl=self.debt_ttl,
            needless=self.needless,
            in_quarantine=self.in_quarantine,
        )

    def _by_script(self, master: int, reply: object) -> None:
        # Without the translation, a release by the script would not count as a grant.
        self.on_reply(master, FREED if reply == OK else reply)

    def wake(self) -> None:
        waiter = self.waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    on_verdict = wake  # a subclass may act on the verdict first

    def expire(self) -> None:
        """Count the masters that have not replied as timed out."""
        # Of a complete round none is missing, so that a timer that comes too late changes nothing.
        # Nor does a reply that comes after this change a vote.
        for number in self.missing:
            self.on_reply(number, self.masters.links[number].overdue())

    def cut_short(self) -> None:
        """Count the masters that have not replied as such that had too little time for it."""
        for number in self.missing:
            late = self.masters.links[number].overdue()
            # A master that is too slow for the timeout would have needed more than all of it.
            self.on_reply(number, late if late.detail else CUT_SHORT)

    def is_worth_repeating(self) -> bool:
        """
        Return whether a majority could answer a repetition of this round at once.

        A master that has no vote can't, nor can one that has still to answer this round: it
        answers in order. What is sent again anyhow wins nothing, and is more to do for the masters
        when they go on, and for this program meanwhile. With thousands of leases or waiting tasks
        it would be more than they can do, and a moment in which the masters stand still would have
        no end.

        Only of rounds whose `late` records that a master has answered.
        """
        able = sum(
            link.votes and not is_underway(reply)
            for link, reply in zip(self.masters.links, self.replies, strict=True)
        )
        return able >= majority(len(self.replies))

    def votes(self) -> tuple[Vote, ...]:
        return votes(self.masters.links, self.replies, self.policy.classify)

    def votes_so_far(self) -> tuple[Vote, ...]:
        missing = self.missing
        return tuple(vote for i, vote in enumerate(self.votes()) if i not in missing)

    def refused_by_a_majority(self, never: int = 0) -> bool:
        """
        Return whether refusals by the masters themselves prove that no majority has granted.

        Args:
            never: A bit for each master that can't have granted the request in any case.
        """
        no = sum(
            reply.__class__ is int or reply.__class__ is list or never >> i & 1
            for i, reply in enumerate(self.replies)
        )
        return no * 2 >= len(self.replies)


def votes(
    links: Sequence[Link],
    answers: Iterable[object],
    classify: Callable[[object], NoReply] = replies.classify,
) -> tuple[Vote, ...]:
    return tuple(
        replies.vote(link.name, answer, classify)
        for link, answer in zip(links, answers, strict=True)
    )


def is_underway(counted: object) -> bool:
    """Return whether a master that was *counted* so has still to answer."""
    if isinstance(counted, NoReply):
        return counted.answer is Answer.TIMED_OUT
    return counted is NOT_YET


class Query(Round):
    """
    A round whose policy is given as values, for requests that are not on the hot path.

    Args:
        count: Called with the number of a master and each of its replies, late ones too;
            returns the reply to count. `OK` makes a majority.

        enough: Called with the round after each reply; the task that awaits the round is
            woken when it is true. By default that is when the verdict is final.

        then: Called with the verdict when it is final, before that task is woken.

        repeat: Whether a script is sent once more to a master that lacks it, behind the
            scripts. Only for requests that may be executed late.

        refuses: Whether a reply proves that another client has, or has had, the lock. It
            counts in quarantine then, with `QuarantineRule.COUNT_REFUSALS`.

    Attributes:
        unsent: A bit for each master to which it could not be sent.
    """

    __slots__ = ("_count", "_enough", "_refuses", "_repeated", "_then", "unsent")

    def __init__(  # noqa: PLR0913 - the policy
        self,
        masters: "MasterSet",
        payload: bytes,
        *,
        in_quarantine: QuarantineRule = QuarantineRule.COUNT,
        count: Callable[[int, object], object] | None = None,
        enough: "Callable[[Round], bool] | None" = None,
        then: Callable[[Outcome], object] | None = None,
        repeat: bool = False,
        refuses: Callable[[object], bool] | None = None,
        classify: Callable[[object], NoReply] = replies.classify,
    ) -> None:
        super().__init__(masters, payload, Policy(in_quarantine, classify))
        self._count = count
        self._enough = enough
        self._then = then
        self._repeated = 0 if repeat else -1  # a bit for each master that gets it no more
        self._refuses = refuses
        self.unsent: int = 0

    def not_sent(self, master: int, no_reply: NoReply) -> None:
        """Count *no_reply*, and the master as one that never gets the request."""
        self.unsent |= 1 << master
        self.on_reply(master, no_reply)

    def is_refusal(self, reply: object) -> bool:
        return self._refuses is not None and self._refuses(reply)

    def on_reply(self, master: int, reply: object, /) -> None:
        again = not self._repeated >> master & 1 and self.replies[master] is NOT_YET
        if again and replies.has_no_script(reply):
            self._repeated |= 1 << master
            # The connection has sent the scripts again before this.
            no_reply = self.masters.links[master].send(self.payload, [self])
            if no_reply is None:
                return
            reply = no_reply
        if self._count is not None:
            reply = self._count(master, reply)
        super().on_reply(master, reply)
        if self._enough is not None and self._enough(self):
            self.wake()

    def on_verdict(self) -> None:
        if self._then is not None:
            self._then(self.verdict)
        if self._enough is None:
            self.wake()


class Addressed(NamedTuple):
    """A request to one master, in the batch of its turn of the loop."""

    master: int
    request: Request


class MasterSet:
    """
    All masters of one session, and the rounds that are underway.

    All rounds sent in one turn of the loop leave together, in one write to each master, in
    the order in which they were sent. Requests to single masters leave with them.
    """

    __slots__ = (
        "_addressed", "_asked", "_caching", "_next_joins", "_probe_at", "_probed_at", "_timer",
        "_tokens", "_underway", "_why_closed", "can_free", "clock", "clocks", "closed", "emitter",
        "links", "loop", "outages", "stamp", "trips",
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
        """Whether every master that is up has the DELIFEQ command for releases."""
        self.closed: bool = False
        self._why_closed = CLOSED
        self.stamp: bytes = stamp
        """The suffix of each token, which identifies this manager."""
        self.loop: asyncio.AbstractEventLoop = loop
        self._caching = Round(self, commands.CACHING)
        for number in range(len(links)):
            self._caching.on_reply(number, OK)  # complete: no reply to it is awaited
        self._asked: list[Round | Addressed] = []
        self._next_joins = False  # whether the batch waits for a task that has got its turn
        self._addressed = False  # whether the batch has a request to a single master
        self._underway: deque[tuple[float, list[Round]]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._probed_at = loop.time()  # connecting to a master measures its round trip as well
        self._probe_at = self._probed_at + PROBE_EVERY
        self._tokens: list[bytes] = []

    def __repr__(self) -> str:
        return f"<MasterSet of {len(self.links)}, {self.underway} rounds underway>"

    @property
    def underway(self) -> int:
        """The number of rounds for which a master has neither answered nor timed out."""
        asked = [each for each in self._asked if isinstance(each, Round)]
        underway = list(self._underway)  # copied in one step, see `Session.statistics`
        batches = [asked, *(batch for _, batch in underway)]
        return sum(not round.complete for batch in batches for round in batch)

    @property
    def master_timeout(self) -> int:
        """The current timeout for the reply of a master, in ms."""
        return self.trips.timeout

    def token(self) -> bytes:
        """
        Return a new random value in base 64, which cannot be guessed.

        Random bytes are read for 100 tokens at once, because a system call costs as much as
        counting a round. A forked child would draw the same tokens, but a session is never
        used in a forked child.
        """
        if not self._tokens:
            chance = b2a_base64(urandom(TOKEN_BYTES * TOKENS_AT_ONCE), newline=False)
            self._tokens.extend(_TOKENS.unpack(chance))
        return self._tokens.pop()

    def ask(self, round: Round, at_most: float | None = None) -> asyncio.Future[None]:
        """Send *round* as `send` does; return a future that is done when the round calls `wake`."""
        # The batch leaves in the loop's next turn, so no reply can come before there is a future
        # for it to wake.
        self.send(round, at_most)
        waiter: asyncio.Future[None] = asyncio.Future(loop=self.loop)
        round.waiter = waiter
        return waiter

    def wait_for(self, round: Round) -> asyncio.Future[None]:
        """Return a future that is done when *round*, which was sent and is open, calls `wake`."""
        waiter: asyncio.Future[None] = asyncio.Future(loop=self.loop)
        round.waiter = waiter
        return waiter

    def send(self, round: Round, at_most: float | None = None) -> None:
        """
        Send *round* to all masters, after all rounds that were sent before.

        The request leaves in the loop's next turn, in one write with all others of this turn.

        Args:
            at_most: The limit for a reply in ms, if it is less than the master timeout.
        """
        # The first request of a turn schedules the flush. Whatever other tasks send in the same
        # turn joins this batch, behind it: a release never overtakes the request that it undoes.
        asked = self._asked
        if not asked:
            self.loop.call_soon(self._send_batch)
        asked.append(round)
        # `_underway` is in the order of one timeout, so a shorter limit has a timer of its own. If
        # the round is complete when that fires, nothing is left to expire.
        if at_most is not None and at_most < self.master_timeout:
            # Up to 1 ms less is the time in which the limit was computed.
            short = at_most <= self.master_timeout - 1
            self.loop.call_later(at_most / 1000, round.cut_short if short else round.expire)

    def send_to(self, master: int, request: Request) -> None:
        """
        Send *request* to one master, in the same write as the rounds of this turn of the loop.

        The request follows all requests that were sent to this master before. The
        caller has to time out the reply.
        """
        if not self._asked:
            self.loop.call_soon(self._send_batch)
        self._asked.append(Addressed(master, request))
        self._addressed = True

    def take_back(self, claim: Claim, ttl: int) -> Round:
        """Release *claim*, whose key may live *ttl* ms, on all masters; nothing is awaited."""
        # A server without the command refuses it, and has the script sent instead (see
        # `Round.instead`). So a flag that is out of date costs a round trip and leaves no key.
        if self.can_free and not claim.member and (free := claim.key.free) is not None:
            release = Round(self, free(claim.token), DELIFEQ, claim, ttl)
            self.send(release)
            return release
        # The place in the queue may outlive the key. A master that refuses the release at first
        # would keep it, and the next waiters would wait for it there.
        longest = max(ttl, fair_ticket.LIVES) if claim.member else ttl
        return self.release_by(claim, claim.release(), longest)

    def release_by(self, claim: Claim, payload: bytes, ttl: int) -> Round:
        """
        Release *claim* by *payload*, on each master as soon as it can be reached.

        Nothing is awaited.

        The release uses the same connections, and therefore cannot arrive before the request that
        it undoes.
        """
        release = Round(self, payload, RELEASE, claim, ttl)
        self.send(release)
        return release

    def send_and_watch(self, round: Round, at_most: float | None = None) -> None:
        """Send *round* with client tracking: masters push changes of the keys that it reads."""
        # The servers apply CACHING to the next command of the connection alone. Both join the batch
        # in one step, so no request of another task comes between them; otherwise the keys of that
        # one would be tracked, and the waiter of this one would get no push.
        self.send(self._caching)
        self.send(round, at_most)

    def on_push(self, push: object) -> None:
        # No list of keys: a connection has begun or ended, or a flush was pushed. A server that
        # lacks the command was noted by `Round.instead`, and each new connection asks
        # again.
        if replies.changed(push) is None:
            self.can_free = all(link.can_free for link in self.links)

    def let_next_join(self) -> None:
        """
        Send the batch of this turn of the loop one turn later.

        Called when a lease is released and a task of this process gets its turn: the task runs in
        the next turn, and its request for the lock leaves with the release. Two writes to each
        master would take more time than all the rest.
        """
        self._next_joins = True

    def flush(self) -> None:
        """Send the batch of this turn of the loop now."""
        self._next_joins = False
        self._send_batch()

    def _send_batch(self) -> None:
        asked = self._asked
        if not asked:
            return
        if self._next_joins:
            self.loop.call_soon(self.flush)  # that waits for nobody else
            return
        self._asked = []  # first: a refusal below may make its round send another one
        now = self.loop.time()
        if now >= self._probe_at:
            self._probed_at = now
            self._probe_at = now + PROBE_EVERY
            # The probe goes first: behind the other requests it would measure their execution, too.
            asked.insert(0, self._probe(now))
        rounds = self._send_each(asked) if self._addressed else self._send_all(asked)
        # In the usual case all replies to the last batches are there, and no timer has to tell.
        underway = self._underway
        while underway and self._is_complete(underway[0][1]):
            underway.popleft()
        # Requests to single masters are not among these: their senders time them out.
        if not rounds:
            return
        expires_at = now + self.trips.timeout / 1000
        underway.append((expires_at, rounds))
        # The one timer is that of the oldest batch, and `_expire` sets it for the next one. If the
        # timeout has become shorter meanwhile, this batch still waits for the ones before it.
        if self._timer is None:
            self._timer = self.loop.call_at(expires_at, self._expire)

    def _probe(self, now: float) -> Query:
        """Return a PING to all masters that measures their round trips."""
        trips, time = self.trips, self.loop.time

        def measure(master: int, reply: object) -> object:
            if reply.__class__ is not NoReply:  # an error or a late reply counts as well
                trips.learn(master, (time() - now) * 1000)
            return reply

        return Query(self, commands.PING, count=measure)

    async def know_the_time(self, at_most: float | None) -> bool:
        """
        Send a TIME round, which measures the offsets of the masters' clocks, if one is due.

        Only the first round is awaited. Later rounds run in the background, because the known
        offsets are good enough until the replies arrive.

        Returns:
            Whether a round was awaited, and a majority answered.
        """
        clocks, due_at, began = self.clocks, self.clocks.due_at, self.clock()
        if began < due_at:
            return False

        def learn(master: int, reply: object) -> object:
            now = replies.time(reply)
            if now is None:
                return reply
            clocks.learn(master, now, began, self.clock())
            return OK

        def ask_later(verdict: Outcome) -> None:
            if verdict is WON:
                clocks.ask_later(self.clock())

        times = Query(self, commands.TIME, count=learn, then=ask_later)
        self.send(times, at_most)
        if due_at > -math.inf:
            return False
        await self.wait_for(times)
        # If too few masters have answered, the attempt fails for that reason, not for lack of the
        # time. A wrong proposal is corrected by the masters that refuse it: they reply with their
        # time.
        clocks.due_at = max(clocks.due_at, self.clock())
        return times.verdict is WON

    def _send_all(self, rounds: list[Any]) -> list[Round]:
        payload = b"".join([round.payload for round in rounds])
        for number, link in enumerate(self.links):
            no_reply = link.send(payload, rounds)
            if no_reply is not None:
                self._not_sent(number, no_reply, rounds)
        return rounds

    def _send_each(self, asked: list[Round | Addressed]) -> list[Round]:
        """Send a batch with requests to single masters; return its rounds."""
        self._addressed = False
        rounds: list[Round] = []
        batches: list[list[Round | Request]] = [[] for _ in self.links]
        for each in asked:
            if isinstance(each, Addressed):
                batches[each.master].append(each.request)
            else:
                rounds.append(each)
                for batch in batches:
                    batch.append(each)
        for number, (link, batch) in enumerate(zip(self.links, batches, strict=True)):
            if not batch:
                continue
            no_reply = link.send(b"".join([sender.payload for sender in batch]), batch)
            if no_reply is not None:
                self._not_sent(number, no_reply, batch)
                continue
            for sender in batch:
                if isinstance(sender, Request):
                    sender.was_sent(number)
        return rounds

    def _not_sent(self, number: int, no_reply: NoReply, asked: Sequence[Round | Request]) -> None:
        if no_reply is not request.OVERRUN and no_reply.answer is not Answer.QUARANTINED:
            for sender in asked:
                sender.not_sent(number, no_reply)
            return
        # The master is up, but overloaded or quarantined. It gets each round by itself: some
        # pass, and releases do.
        send = self.links[number].send
        for sender in asked:
            # The order within the batch is kept: a release still follows its request.
            if (refused := send(sender.payload, [sender])) is not None:
                sender.not_sent(number, refused)
            elif isinstance(sender, Request):
                sender.was_sent(number)

    def _is_complete(self, batch: list[Round]) -> bool:
        # The last round is the last one to be answered, except when scripts had to be sent
        # again. Testing it first spares a loop over the batch in most cases.
        if not batch[-1].complete:
            return False
        # A list: to resume a generator for each round costs more than all the rest of this.
        return not [round for round in batch if round.to_win + round.to_lose != COMPLETE]

    def check_open(self) -> None:
        if self.closed:
            raise RedlockError(*self._why_closed)

    def close(self, why: tuple[str, ErrorCode] = CLOSED) -> None:
        """
        Send pending rounds, refuse new attempts, and end the rounds that are underway.

        Args:
            why: The text and the code of the errors that new attempts get.
        """
        if not self.closed:
            self._why_closed = why
        # In this order: tasks that resume find the session closed. The flush writes what was sent
        # in this turn, as the releases of the leases that have just ended. Last the rounds expire,
        # which wakes their tasks. What a round sends at its verdict joins a new batch, so
        # `_underway` does not change meanwhile.
        self.closed = True
        self.flush()
        for _, batch in self._underway:
            for round in batch:
                round.expire()
        self.outages.end_turns()

    def _expire(self, due: float | None = None) -> None:
        """Count missing replies as timed out; rounds expire in the order of their sending."""
        underway = self._underway
        now = self.loop.time()
        if due is None and underway and now - underway[0][0] > STALLED:
            # The loop was blocked, and may not have read replies that arrived meanwhile. The second
            # call, with *due*, counts only what was due before: it can't be put off again. Without
            # this pause, masters that answered in time would be counted as timed out, and an
            # attempt or an extension would fail for no other reason.
            self._timer = self.loop.call_later(STALLED, self._expire, now)
            return
        while underway and underway[0][0] <= (due or now):
            for round in underway.popleft()[1]:
                if not round.complete:
                    round.expire()
                    # Its master may be slower than before.
                    self._probe_at = min(self._probe_at, self._probed_at + PROBE_SOON)
        self._timer = self.loop.call_at(underway[0][0], self._expire) if underway else None
