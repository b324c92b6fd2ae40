"""
The gate: tasks wait here while no majority of the masters can answer an attempt.

    an attempt has failed, and no majority ─┐
    a new acquisition, and it is shut ──────┴► wait ─► a majority has answered a PING ─► attempt

Without it each waiting task would ask again and again, and each new one once, all of them in
vain. With thousands of tasks that is more than this program can do, and more than masters that
have stood still for a moment can answer when they go on: the moment would have no end.

The gate is shut by the first task that finds no majority, until the masters have answered the last
tasks that have passed. If it opened before, tasks that come then would ask in addition to those.
A task that is in the queues of the masters shuts it, and does not wait here: it keeps its places.
"""

import asyncio
import itertools
import math
from collections.abc import Sequence

from redlock_aio._engine.masters import Link, MasterSet, Query, is_underway, votes
from redlock_aio._protocol import commands
from redlock_aio._protocol.request import OVERRUN, NoReply
from redlock_aio._rules.quorum import NOT_YET, Answer, Vote, is_final, majority

LARGEST = 500
"""The most tasks that pass in one turn of the loop: nothing else of the program runs meanwhile."""

SHARE = 0.75
"""The part of the master timeout in which the masters are to answer the tasks that pass."""

NOT_ASKED = NoReply(Answer.ERROR, "not asked, because no majority could answer")

ASK_EVERY = 1.0
"""Seconds between two tasks that pass although no majority can answer, to see why not."""


class Gate:
    """
    The tasks of one session that wait for a majority; they pass in the order in which they came.

    A master can answer an attempt at once if it votes and has answered the last PING: it answers
    in order, so it owes no reply to anything before.

    At first one task passes. From then on as many pass at a time as a majority can answer in a
    `SHARE` of the master timeout. That follows from how long the last ones took, with the PING
    behind them, and is at most twice their number.

    Attributes:
        is_shut: Whether new tasks have to wait.

        waiting: The place of each task, and until when it may pass.
    """

    __slots__ = (
        "_answered", "_asked_at", "_at_once", "_masters", "_ping", "_timer", "is_shut",
        "waiting",
    )  # fmt: skip

    def __init__(self, masters: MasterSet) -> None:
        self._masters = masters
        self.is_shut: bool = False
        self.waiting: dict[asyncio.Future[bool], float] = {}
        self._at_once = 0  # how many passed last
        self._asked_at = 0.0
        self._ping: Query | None = None
        self._answered: set[int] = set()  # the masters that have answered it, in time or late
        self._timer: asyncio.TimerHandle | None = None  # runs while it is shut

    def __repr__(self) -> str:
        return f"<Gate, {len(self.waiting)} wait>"

    async def wait(self, seconds: float, at_most: float) -> bool:
        """
        Wait for a majority, and for the tasks before this one.

        Args:
            seconds: After these there is too little time for an attempt, and the task passes no
                more. With thousands of tasks such attempts could be all that busy masters have
                time for.

            at_most: After these the wait is over.

        Returns:
            Whether the task has passed.
        """
        loop = self._masters.loop
        place: asyncio.Future[bool] = loop.create_future()
        self.waiting[place] = loop.time() + seconds
        self.shut()
        ends = loop.call_later(at_most, _end, place, False) if at_most < math.inf else None
        try:
            return await place
        finally:
            self.waiting.pop(place, None)
            if ends is not None:
                ends.cancel()

    def shut(self) -> None:
        """Let new tasks wait, until a majority has answered a PING: one task has found none."""
        if not self.is_shut:
            self.is_shut = True
            self._timer = self._masters.loop.call_later(ASK_EVERY, self._ask_in_vain)
            self._at_once = 0
            self._send_ping()

    def open_if_able(self) -> None:
        """Let the first tasks pass if a majority can answer them; else do nothing."""
        if self._ping is None:
            return
        links = self._masters.links
        able = sum(link.votes and number in self._answered for number, link in enumerate(links))
        won = able >= majority(len(links))
        if not won and not is_final(self.votes()):
            return  # else the tasks are to learn that so many masters refuse for good
        # Of more than the masters can answer in time, most would time out, and ask again: masters
        # that are busy anyhow would never catch up.
        passed, took = self._at_once, self._masters.loop.time() - self._asked_at
        target = SHARE * self._masters.master_timeout / 1000
        can = passed * target / took if took > 0 else math.inf
        first = self._first(int(max(min(can, 2 * passed, LARGEST), 1)))
        if won and self.waiting:
            # Those that have seen the outage begin, and would tell, may have given up.
            self._masters.outages.log_end(by_ping=True)
        if not first:
            self._open()
            return
        self._ping = None
        self._at_once = len(first)
        self._let_pass(*first)
        # In the next turn, in which these tasks send their requests: behind them.
        self._masters.loop.call_soon(self._send_ping)

    def votes(self, before: Sequence[Vote] = ()) -> tuple[Vote, ...]:
        """
        Return why the tasks wait: a vote of each master, from the last PING.

        Args:
            before: The votes for an attempt of the task, for masters that the PING says nothing of.
        """
        links, ping = self._masters.links, self._ping
        replies = [NOT_YET] * len(links) if ping is None else ping.replies
        given = votes(links, list(map(_vote, links, replies)))
        if not before:
            return given
        both = zip(given, before, strict=True)
        return tuple(own if vote.detail == NOT_ASKED.detail else vote for vote, own in both)

    def close(self) -> None:
        """Let all tasks pass, which then find the session closed."""
        self._open()
        self._let_pass(*self.waiting)

    def _first(self, many: int) -> list[asyncio.Future[bool]]:
        now = self._masters.loop.time()
        in_time = (place for place, until in self.waiting.items() if now <= until)
        return list(itertools.islice(in_time, many))

    def _let_pass(self, *places: asyncio.Future[bool]) -> None:
        for place in places:
            self.waiting.pop(place, None)
            _end(place, True)

    def _send_ping(self) -> None:
        if not self.is_shut:
            return
        self._answered = answered = set[int]()

        def count(master: int, reply: object) -> object:
            # What has timed out is still to come. A master with too many unanswered requests did
            # not get the PING.
            if not is_underway(reply) and reply is not OVERRUN:
                answered.add(master)
            return reply

        self._asked_at = self._masters.loop.time()
        self._ping = Query(self._masters, commands.PING, count=count, enough=self._on_answer)
        self._masters.send(self._ping)

    def _on_answer(self, ping: object) -> bool:
        if ping is self._ping:
            self.open_if_able()
        return False

    def _ask_in_vain(self) -> None:
        self._timer = self._masters.loop.call_later(ASK_EVERY, self._ask_in_vain)
        self._let_pass(*self._first(1))
        # A PING that is underway will be answered, at the latest when its connection ends. But a
        # master that was too full to get it sends no reply, so it is asked again. And nothing else
        # leads here when a master has begun to refuse for good.
        if self._ping is not None and OVERRUN in self._ping.replies:
            self._send_ping()
        self.open_if_able()

    def _open(self) -> None:
        self.is_shut, self._ping = False, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _end(place: asyncio.Future[bool], passes: bool) -> None:
    if not place.done():
        place.set_result(passes)


def _vote(link: Link, reply: object) -> NoReply:
    if link.no_vote is not None:
        return link.no_vote
    # One that votes, but has lost the PING with a connection, has another connection now.
    if isinstance(reply, NoReply) and reply.answer is not Answer.UNREACHABLE:
        return reply
    return NOT_ASKED
