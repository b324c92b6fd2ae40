"""
What stands in the way of an attempt that failed, and waiting until that may be gone.

The failed attempt is released on every master that may have granted it. The answers to that
tell who holds the lock there and until when, and from then on each master pushes when the key
changes. So a waiter tries again when a majority may be free, by a release, an expiry or
anything else, and otherwise after a random time.
"""

import asyncio
import math

from redlock_aio._engine.attempt import EXPIRY_SLACK, Attempt
from redlock_aio._engine.masters import Fleet
from redlock_aio._engine.round import Release
from redlock_aio._protocol import replies
from redlock_aio._protocol.request import Trust
from redlock_aio._rules.blockers import View
from redlock_aio._rules.quorum import GRANTED, NOT_YET, TAKING_PART, Answer, is_contended, majority


class Watch(Release):
    """
    The release of an attempt that failed, and a look at what stands in its way.

    Whoever waits is told when that may have gone on a majority.
    """

    __slots__ = ("_bell", "_clock", "_fleet", "_key", "_loop", "view")
    trust = Trust.FULL

    def __init__(self, fleet: Fleet, attempt: Attempt) -> None:
        super().__init__(fleet.links, attempt.release(), attempt.ttl, attempt)
        self._fleet = fleet
        self._key = attempt.key
        self._clock = fleet.clock
        self._loop = fleet.loop
        self.view: View = View(len(fleet.links))
        self._bell: asyncio.Future[None] | None = None

    @property
    def is_split(self) -> bool:
        """Whether the attempt failed because nobody got a majority, as far as can be seen."""
        several = self._asked.granted > 0 or self.view.parties > 1
        if not several or self.view.holder is not None:
            return False
        return is_contended(self.view.explain(self._asked.votes(), 0.0))

    def answered(self, master: int, reply: object, /) -> None:
        """Note what is in the way; also late, when it does not count as an answer any more."""
        held = replies.held(reply)
        if held is not None:
            value, left = held
            self.view.held(master, value, self._clock() + left)
        elif replies.is_of_another_type(reply):
            # SET answers nothing then, as if somebody had the lock. If that were taken
            # for a lock that has just been freed, the next attempt followed at once.
            self.view.can_not_be(master, replies.read(reply).detail)
        elif replies.is_settled(reply) and not self._was_refused(master):
            self.view.may_be_free(master)
        super().answered(master, reply)
        self._ring()
        # It was ours, and in the way of others; not so if the master could not have granted
        # it, or this attempt would be repeated at once, again and again.
        if reply == GRANTED and not self._was_refused(master):
            self._fleet.freed(self._key, master)

    def _was_refused(self, master: int) -> bool:
        """Whether a master refused for another reason; then it means nothing that nobody has it."""
        said = replies.read(self._asked.replies[master]).answer
        return said in {Answer.ERROR, Answer.QUARANTINED}

    def changed(self, master: int) -> None:
        """Hear that the key was changed on one master, after it was looked at there."""
        if self.replies[master] is not NOT_YET:
            self.view.may_be_free(master)
            self._ring()

    def on_local_release(self) -> None:
        """Hear that a lock of this process has ended, whose release is on its way."""
        for master in range(len(self.replies)):
            self.view.may_be_free(master)
        self._ring()

    def _ring(self) -> None:
        if self._bell is not None and not self._bell.done():
            self._bell.set_result(None)

    async def wait(self, seconds: float) -> bool:
        """
        Wait until a majority may be free, at most so many *seconds*.

        It ends also when it is known that waiting does not help: see `View.is_hopeless`.

        Returns:
            Whether it may be.

        Cancellation:
            Nothing was waited for that must be taken back.
        """
        ends = self._clock() + seconds
        view = self.view
        while (left := min(view.free_from + EXPIRY_SLACK, ends) - self._clock()) > 0:
            if view.is_hopeless:
                break
            await self._listen(left)
        return self.view.free_from + EXPIRY_SLACK <= self._clock()

    async def hear_out(self, seconds: float, needed: int) -> None:
        """
        Wait until all masters have answered, at most so many *seconds* once *needed* have.

        It ends with the master time-out in any case.

        Cancellation:
            Nothing was waited for that must be taken back.
        """
        masters = len(self.replies)
        while not self.complete and len(self.missing) > masters - needed:
            await self._listen(math.inf)
        ends = self._clock() + seconds
        while not self.complete and (left := ends - self._clock()) > 0:
            await self._listen(left)

    async def _listen(self, seconds: float) -> None:
        self._bell = bell = self._loop.create_future()
        timer = self._loop.call_later(seconds, self._ring) if seconds < math.inf else None
        try:
            await bell
        finally:
            if timer is not None:
                timer.cancel()


def is_cut_short(failed: Attempt, at_most: float | None, master_timeout: float) -> bool:
    """
    Return whether *failed* was given too little time for the masters to answer.

    Such an attempt tells nothing about them: that they hold the lock for others,
    as the attempt before it told, is still the best that is known.

    Args:
        at_most: How many ms it was given, ``None`` for a whole *master_timeout*.
    """
    if at_most is None or at_most > master_timeout - 1:
        return False
    votes = failed.votes()
    if is_contended(votes):
        return False
    return sum(vote.answer in TAKING_PART for vote in votes) >= majority(len(votes))
