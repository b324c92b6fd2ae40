"""
Warnings while waiting acquisitions can't reach a majority of the masters.

A wait may have no limit, and an outage must not go unnoticed meanwhile. One manager may
have thousands of waiting tasks, each of which fails several times a second, nearly always
for the same reason. Therefore a reason is logged once, with the votes of the first
acquisition that observes it, and not again for `AGAIN` seconds. The first acquisition that
observed the outage and reaches a majority again logs its end.
"""

import logging
import math
from collections.abc import Callable, Collection, Sequence

from redlock_aio._rules.quorum import Answer, Vote, majority

_log = logging.getLogger("redlock_aio")

AGAIN = 60.0
"""Seconds after which a reason is logged again if it occurs again."""

_ANSWERS = frozenset({Answer.GRANTED, Answer.HELD, Answer.FREE})
_AWAY = frozenset({Answer.TIMED_OUT, Answer.UNREACHABLE})

_ABOUT_TIME = ("it got the request too late", "its clock is")
"""The first words of votes about the time of a request; `FencedAttempt.read` makes them."""


class Outages:
    """
    The outages that acquisitions of one manager have observed.

    Args:
        clock: The clock of leases, in seconds.
    """

    __slots__ = ("_clock", "_logged", "_met_at", "_since")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._logged: dict[tuple[str, ...], float] = {}
        self._met_at = -math.inf
        self._since: float | None = None

    def __repr__(self) -> str:
        return f"<Outages, {len(self._logged)} reasons>"

    def record(
        self,
        resources: Sequence[str],
        votes: Sequence[Vote],
        missing: Collection[int],
        in_outage: bool,
    ) -> bool:
        """
        Log the *votes* of a waiting acquisition if they lack a majority for a new reason.

        Args:
            missing: The numbers of the masters that may still answer; they count as answers.

            in_outage: The previous result of this method for the same acquisition.

        Returns:
            Whether a majority can't be reached.
        """
        kinds = tuple("" if i in missing else _kind(vote) for i, vote in enumerate(votes))
        answers = sum(vote.answer in _ANSWERS or i in missing for i, vote in enumerate(votes))
        if answers >= majority(len(votes)):
            if in_outage:
                self.over()
            return False
        now = self._clock()
        if now - self._met_at >= AGAIN:
            self._since = None  # the acquisitions in the last outage gave up before its end
        self._met_at = now
        if now - self._logged.get(kinds, -math.inf) >= AGAIN:
            fresh = {why: at for why, at in self._logged.items() if now - at < AGAIN}
            self._logged = {**fresh, kinds: now}
            self._since = now if self._since is None else self._since
            names = ", ".join(map(repr, resources))
            listed = "; ".join(map(str, votes))
            _log.warning("%s: waiting for a majority of the masters (%s)", names, listed)
        return True

    def over(self) -> None:
        """Log the end of an outage that was logged; once."""
        if self._since is not None:
            lasted, self._since = self._clock() - self._since, None
            _log.info("a majority of the masters answers again, after %.1f s", lasted)


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
