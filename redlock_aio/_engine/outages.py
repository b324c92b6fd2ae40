"""
Outages, as waiting acquisitions observe them: warnings, and turns to ask again.

A wait may have no limit, and an outage must not go unnoticed meanwhile. One manager may
have thousands of waiting tasks, nearly all of which fail for the same reason. Therefore a
reason is logged once, with the votes of the first acquisition that observes it, and not again
for `AGAIN` seconds. The first acquisition that observed the outage and reaches a majority again
logs its end.

Masters that are silent are waited for at the `Gate`. But those that refuse to write, such as
without memory, answer each attempt at once, so the tasks of a thousand names would ask ten
thousand times a second, in vain. They ask in turn until one of them is accepted, then all at once.
"""

import asyncio
import itertools
import math
from collections.abc import Callable, Collection, Sequence

from redlock_aio._log import log
from redlock_aio._protocol.request import GOT_LATE
from redlock_aio._rules.quorum import Answer, Vote, majority
from redlock_aio._rules.validation import quoted

AGAIN = 60.0
"""Seconds after which a reason is logged again if it occurs again."""

TURN = 0.01
"""Seconds between the turns of two tasks that masters have refused."""

LONGEST_TURN = 10.0
"""The most seconds to a turn: of so many tasks that it would be longer, several ask at a time."""

_ANSWERS = frozenset({Answer.GRANTED, Answer.HELD, Answer.FREE})
_AWAY = frozenset({Answer.TIMED_OUT, Answer.UNREACHABLE})

_ABOUT_TIME = (GOT_LATE.detail, "its clock is")
"""The first words of votes about the time of a request; `FencedAttempt` makes the second one."""


class Outages:
    """
    The outages that acquisitions of one manager have observed.

    Attributes:
        line: The tasks that wait for their turn, in the order in which they came.

        refused: Whether most masters answered the last failed attempt, with errors.
    """

    __slots__ = ("_clock", "_last_at", "_logged", "_since", "_timer", "line", "refused")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._logged: dict[tuple[str, ...], float] = {}  # when each reason was logged
        self._last_at = -math.inf
        self._timer: asyncio.TimerHandle | None = None  # of the next turn; runs while any wait
        self.line: dict[asyncio.Future[None], None] = {}
        self.refused: bool = False
        self._since: float | None = None  # the begin of an outage whose end is not logged yet

    def __repr__(self) -> str:
        return f"<Outages, {len(self._logged)} reasons>"

    def log_begin(
        self, resources: Sequence[str], votes: Sequence[Vote], reason: tuple[str, ...]
    ) -> None:
        """Log *votes* that lack a majority, unless the same *reason* was logged lately."""
        now = self._clock()
        if now - self._last_at >= AGAIN:
            self._since = None  # the acquisitions in the last outage gave up before its end
        self._last_at = now
        refusals = sum(kind.startswith(Answer.ERROR.value) for kind in reason)
        self.refused = len(reason) - refusals < majority(len(reason))
        if now - self._logged.get(reason, -math.inf) >= AGAIN:
            fresh = {why: at for why, at in self._logged.items() if now - at < AGAIN}
            self._logged = {**fresh, reason: now}
            self._since = now if self._since is None else self._since
            names = quoted(resources)
            listed = "; ".join(map(str, votes))
            log.warning("%s: waiting for a majority of the masters (%s)", names, listed)

    def log_end(self, *, by_ping: bool = False) -> None:
        """
        Log that the outage is over, unless nobody has logged its begin.

        Args:
            by_ping: All that is known is that a majority has answered a PING. Masters that refuse
                to write, as without memory, answer it too: then the outage goes on.
        """
        if self._since is not None and not (by_ping and self.refused):
            lasted, self._since = self._clock() - self._since, None
            log.info("a majority of the masters answers again, after %.1f s", lasted)

    async def take_turn(self, at_most: float) -> None:
        """Wait until the caller may ask again, for at most so many seconds."""
        loop = asyncio.get_running_loop()
        place: asyncio.Future[None] = loop.create_future()
        self.line[place] = None
        if self._timer is None:
            self._timer = loop.call_later(TURN, self._give_turns)
        ends = loop.call_later(at_most, _end, place) if at_most < math.inf else None
        try:
            await place
        finally:
            self.line.pop(place, None)
            if ends is not None:
                ends.cancel()

    def end_turns(self) -> None:
        """Let all ask again now: the masters have accepted one, or the session has closed."""
        self._let_ask(len(self.line))

    def _give_turns(self) -> None:
        # Of those that wait now. With an instant for each when it comes, one would wait for the
        # turns of those that have given up, and be the last to hear that the masters accept again.
        self._let_ask(math.ceil(len(self.line) * TURN / LONGEST_TURN))
        self._timer = None
        if self.line:
            self._timer = asyncio.get_running_loop().call_later(TURN, self._give_turns)

    def _let_ask(self, many: int) -> None:
        for place in list(itertools.islice(self.line, many)):
            del self.line[place]
            _end(place)


class Observer:
    """One waiting acquisition, which may observe an outage and its end."""

    __slots__ = ("_outages", "_resources", "in_outage")

    def __init__(self, outages: Outages, resources: Sequence[str]) -> None:
        self._outages = outages
        self._resources = resources
        self.in_outage: bool = False

    def __repr__(self) -> str:
        return f"<Observer{' in an outage' if self.in_outage else ''}>"

    def record(self, votes: Sequence[Vote], missing: Collection[int] = ()) -> None:
        """
        Log the *votes* of an attempt that failed, if they lack a majority for a new reason.

        Args:
            missing: The numbers of the masters that may still answer; they count as answers.
        """
        reason = tuple("" if i in missing else _kind(vote) for i, vote in enumerate(votes))
        answers = sum(vote.answer in _ANSWERS or i in missing for i, vote in enumerate(votes))
        if answers >= majority(len(votes)):
            self.on_majority()
        else:
            self.in_outage = True
            self._outages.log_begin(self._resources, votes, reason)

    async def take_turn(self, at_most: float) -> None:
        """Wait until this one may ask again, if most masters have refused it; see `Outages`."""
        if self.in_outage and self._outages.refused:
            await self._outages.take_turn(at_most)

    def on_majority(self) -> None:
        if self.in_outage:
            self.in_outage = False
            self._outages.log_end()
            self._outages.end_turns()


def _end(place: asyncio.Future[None]) -> None:
    if not place.done():
        place.set_result(None)


def _kind(vote: Vote) -> str:
    """
    Return the part of a vote that is constant while its reason stays the same.

    Texts that change all the time are left out, such as how long a master has no vote yet.
    Timed out and unreachable are one kind, because a silent master is counted as unreachable
    after some time. A refusal for the time of a request is no reason: the master answers, and
    is asked again at once.
    """
    if vote.answer in _ANSWERS or vote.detail.startswith(_ABOUT_TIME):
        return ""
    if vote.answer in _AWAY:
        return "away"
    code = vote.detail.partition(" ")[0]
    return f"{vote.answer.value} {code}" if code.isupper() else vote.answer.value
