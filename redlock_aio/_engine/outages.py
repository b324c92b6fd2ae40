"""
What is logged while acquisitions wait that can't reach a majority of the masters.

A wait may last for ever, and during an outage it must not do so in silence. One manager
may have thousands of tasks that wait, each of which fails several times a second, and the
reason is nearly always the same for all of them. So a reason is logged once, with the
votes of the first acquisition that meets it, and not again for a while; the end is
logged by the first acquisition that met an outage and is over it.
"""

import logging
import math
from collections.abc import Callable, Collection, Sequence

from redlock_aio._rules.quorum import Answer, Vote, majority

_log = logging.getLogger("redlock_aio")

AGAIN = 60.0
"""Seconds after which a reason is logged again that has been met anew."""

_ANSWERS = frozenset({Answer.GRANTED, Answer.HELD, Answer.FREE})
_AWAY = frozenset({Answer.TIMED_OUT, Answer.UNREACHABLE})

_ABOUT_TIME = ("it got the request too late", "its clock is")
"""What the votes begin with that are about the time of a request; see `FencedAttempt.read`."""


class Outages:
    """
    The outages that the acquisitions of one manager have met.

    Args:
        clock: In seconds.
    """

    __slots__ = ("_clock", "_logged", "_met_at", "_since")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._logged: dict[tuple[str, ...], float] = {}
        self._met_at = -math.inf
        self._since: float | None = None

    def __repr__(self) -> str:
        return f"<Outages, {len(self._logged)} reasons>"

    def note(
        self, resources: Sequence[str], votes: Sequence[Vote], missing: Collection[int], met: bool
    ) -> bool:
        """
        Log the *votes* of an acquisition that waits on, if they are no majority for a new reason.

        Args:
            missing: The numbers of the masters that may still answer; they count as if they had.

            met: What this has returned for the acquisition before.

        Returns:
            Whether a majority can't be reached.
        """
        kinds = tuple("" if i in missing else _kind(vote) for i, vote in enumerate(votes))
        answers = sum(vote.answer in _ANSWERS or i in missing for i, vote in enumerate(votes))
        if answers >= majority(len(votes)):
            if met:
                self.over()
            return False
        now = self._clock()
        if now - self._met_at >= AGAIN:
            self._since = None  # those who met the last one gave up before it was over
        self._met_at = now
        if now - self._logged.get(kinds, -math.inf) >= AGAIN:
            fresh = {why: at for why, at in self._logged.items() if now - at < AGAIN}
            self._logged = {**fresh, kinds: now}
            self._since = now if self._since is None else self._since
            names = ", ".join(map(repr, resources))
            said = "; ".join(map(str, votes))
            _log.warning("%s: waiting for a majority of the masters (%s)", names, said)
        return True

    def over(self) -> None:
        """Log that a majority answers again, unless that was logged or the outage was not."""
        if self._since is not None:
            lasted, self._since = self._clock() - self._since, None
            _log.warning("a majority of the masters answers again, after %.1f s", lasted)


def _kind(vote: Vote) -> str:
    """
    Return the part of a vote that stays the same as long as its reason does.

    Texts are left out that change all the time, such as how long a master has no vote yet. A
    master that is silent for some time is counted as unreachable later. One that answers and
    refuses a request for its time is asked again at once, and is not what is missing.
    """
    if vote.answer in _ANSWERS or vote.detail.startswith(_ABOUT_TIME):
        return ""
    if vote.answer in _AWAY:
        return "away"
    code = vote.detail.partition(" ")[0]
    return f"{vote.answer.value} {code}" if code.isupper() else vote.answer.value
