"""
One question to all masters.

    Fleet.ask ─┬─ link.send(payload) ── master A ──► reply ─┐
               ├─ link.send(payload) ── master B ...        ├─► Round.answered ─► Tally ─► verdict
               └─ ...                                       ┘

A round is settled as soon as its outcome is certain; the masters that have not
answered by then are heard out, and counted as timed out after the master
time-out. It costs one object and one future, whatever the number of masters:
time-outs of rounds come in the order of the rounds, so that one timer serves
all of them.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from redlock_aio._rules import protocol
from redlock_aio._rules.protocol import GRANTED_SCRIPT, Silence
from redlock_aio._rules.quorum import Answer, Tally, Vote


class Hears(Protocol):
    """Whoever is told a reply."""

    payload: bytes
    debt_ttl: int

    def answered(self, master: int, reply: object, /) -> None: ...


class Link(Protocol):
    """What a round needs of a master."""

    @property
    def name(self) -> str: ...
    @property
    def send(self) -> Callable[[bytes, Hears], Silence | None]: ...
    def overdue(self) -> None: ...
    def owe(self, payload: bytes, ttl: int) -> None: ...


NOT_ASKED = Silence(Answer.UNREACHABLE, "not asked: it never had the key")


def clock_of(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """
    Return the clock that leases live by, in seconds.

    It also counts the time that the machine was suspended, where the system has
    such a clock. A loop that makes its own time (see `redlock_aio.testing`)
    is asked for it.
    """
    own: Callable[[], float] | None = getattr(loop, "boottime", None)
    if own is not None:
        return own
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    if clock is None:
        return time.monotonic

    def boottime(_gettime: Callable[[int], float] = time.clock_gettime, _id: int = clock) -> float:
        return _gettime(_id)

    return boottime


class Round(Tally):
    """
    One question to all masters, and their replies so far.

    Args:
        links: The masters.

        payload: What they are asked.

        yes: The reply that grants it.
    """

    __slots__ = ("_links", "_yes", "debt_ttl", "expires_at", "payload", "unsent", "waiter")

    def __init__(self, links: Sequence[Link], payload: bytes, yes: object) -> None:
        super().__init__(len(links))
        self._links = links
        self._yes = yes
        self.payload = payload
        self.debt_ttl = 0
        self.expires_at = 0.0
        self.unsent = 0  # a bit for each master that the question never left for
        self.waiter: asyncio.Future[None] | None = None

    def answered(self, master: int, reply: object, /) -> None:
        """Count a reply."""
        if self.add(master, reply, granted=reply == self._yes):
            self.settled()

    def settled(self) -> None:
        """Wake whoever waits; called once."""
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    def expire(self) -> None:
        """Count the masters that have not answered as timed out."""
        for number in self.missing:
            self._links[number].overdue()
            self.answered(number, protocol.TIMED_OUT)

    def votes(self) -> tuple[Vote, ...]:
        """Return what each master has said so far."""
        said = [protocol.read(reply) for reply in self.replies]
        return tuple(
            Vote(link.name, silence.answer, silence.detail)
            for link, silence in zip(self._links, said, strict=True)
        )

    def refused_by_a_majority(self) -> bool:
        """Return whether so many said no, themselves, that no majority can have said yes."""
        return self.replies.count(0) * 2 >= len(self.replies)


class Release(Round):
    """The question to forget a lock; who does not answer will be asked again."""

    __slots__ = ()

    def __init__(self, links: Sequence[Link], payload: bytes, ttl: int) -> None:
        super().__init__(links, payload, GRANTED_SCRIPT)
        self.debt_ttl = ttl

    def answered(self, master: int, reply: object, /) -> None:
        """Count a reply, and do not take an error for an answer."""
        if isinstance(reply, Exception):
            self._links[master].owe(self.payload, self.debt_ttl)
        super().answered(master, reply)


class Fleet:
    """
    All masters of one manager, and the rounds that are underway.

    Args:
        links: The masters.

        master_timeout: How many milliseconds one of them may take to answer.
    """

    __slots__ = ("_timer", "_underway", "clock", "closed", "links", "loop", "master_timeout")

    def __init__(
        self, links: Sequence[Link], loop: asyncio.AbstractEventLoop, *, master_timeout: int
    ) -> None:
        self.links = tuple(links)
        self.master_timeout = master_timeout
        self.clock = clock_of(loop)
        self.closed = False
        self.loop = loop
        self._underway: deque[Round] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Fleet of {len(self.links)}, {len(self._underway)} rounds underway>"

    def ask(self, round: Round, at_most: float | None = None) -> None:
        """
        Put the question of *round* to all masters.

        Args:
            at_most: How many ms an answer may take, if less than the master time-out.
        """
        payload = round.payload
        for number, link in enumerate(self.links):
            silence = link.send(payload, round)
            if silence is not None:
                round.unsent |= 1 << number
                round.answered(number, silence)
        self._watch(round, at_most)

    def release(self, payload: bytes, ttl: int, asked: Round) -> Release:
        """
        Ask all masters that heard *asked* to forget it, now or when they can.

        Nothing is awaited. The release goes down the same connections, so it
        can't arrive before what it takes back.

        Args:
            payload: The command.

            ttl: For how many milliseconds the key may live without it.

            asked: The round that may have made the key.
        """
        round = Release(self.links, payload, ttl)
        for number, link in enumerate(self.links):
            if asked.unsent >> number & 1:
                round.answered(number, NOT_ASKED)
            elif (silence := link.send(payload, round)) is not None:
                link.owe(payload, ttl)
                round.answered(number, silence)
        self._watch(round)
        return round

    def close(self) -> None:
        """Let no new attempt begin."""
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _watch(self, round: Round, at_most: float | None = None) -> None:
        if at_most is not None and at_most < self.master_timeout:
            self.loop.call_later(at_most / 1000, round.expire)
            return
        round.expires_at = self.loop.time() + self.master_timeout / 1000
        self._underway.append(round)
        if self._timer is None:
            self._timer = self.loop.call_at(round.expires_at, self._expire)

    def _expire(self) -> None:
        underway = self._underway
        now = self.loop.time()
        while underway and underway[0].expires_at <= now:
            round = underway.popleft()
            if not round.complete:
                round.expire()
        self._timer = self.loop.call_at(underway[0].expires_at, self._expire) if underway else None
