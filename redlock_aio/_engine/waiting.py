"""
From the wish to have a lock to a majority of the masters.

An attempt is one round with a token of its own. One that fails, comes too late
or is cancelled is taken back on every master that may have heard of it, before
anything else happens; then a random time passes until the next one.
"""

import asyncio
import random

from redlock_aio._engine.rounds import Fleet, Release, Round
from redlock_aio._rules import protocol, timing
from redlock_aio._rules.quorum import WON, is_contended
from redlock_aio._rules.timing import Retry
from redlock_aio.errors import LockNotAcquiredError, QuorumUnavailableError, RedlockError


class Attempt(Round):
    """
    One round for a lock.

    The token is new for each attempt. If two attempts shared one, a release of
    the first that comes late would delete the lock that the second has won.
    """

    __slots__ = ("began", "key", "token", "ttl", "until")

    def __init__(self, fleet: Fleet, key: bytes, ttl: int) -> None:
        self.key = key
        self.ttl = ttl
        self.token = token = fleet.token()
        self.until = 0.0
        """Until when the lock may be believed; 0 if it was not won, or too late."""
        super().__init__(fleet.links, protocol.acquire(key, token, ttl))
        self.began = fleet.clock()


async def attempt(
    fleet: Fleet, key: bytes, ttl: int, factor: float, at_most: float | None = None
) -> Attempt:
    """
    Ask all masters once for *key*.

    Args:
        ttl: In milliseconds.

        factor: The drift factor.

        at_most: How many ms it may take, if that is less than the master time-out.

    Cancellation:
        It did not happen: whatever was sent is taken back.
    """
    if fleet.closed:
        raise RedlockError("this Redlock was closed")
    round = Attempt(fleet, key, ttl)
    fleet.ask(round, at_most)
    try:
        round.waiter = fleet.loop.create_future()
        await round.waiter
        if round.verdict is WON and not fleet.closed:
            # The clock is read after the task has resumed: however long that
            # took, an attempt that is too old is not believed.
            until = timing.deadline(round.began, ttl, factor=factor)
            if fleet.clock() < until:
                round.until = until
    finally:
        if not round.until:
            take_back(fleet, round, ttl)
    return round


def take_back(fleet: Fleet, attempt: Attempt, ttl: int) -> Release:
    """Ask all masters to forget *attempt*, whose key may live *ttl* ms; nothing is awaited."""
    return fleet.release(protocol.release(attempt.key, attempt.token), ttl, attempt)


def time_left(fleet: Fleet, began: float, wait: int | None) -> float | None:
    """
    Return how many ms an attempt may take if *wait* counts from *began*, ``None`` for no limit.

    A wait of 0 is one attempt, which takes as long as it takes.
    """
    return max(wait - (fleet.clock() - began) * 1000, 1.0) if wait else None


async def persist(
    fleet: Fleet,
    resources: tuple[str, ...],
    failed: Attempt,
    *,
    factor: float,
    began: float,
    wait: int | None,
    retry: Retry,
) -> Attempt:
    """
    Attempt again until the lock is won that *failed* was to win.

    Args:
        began: When the caller began to wait, on the fleet's clock.

        wait: For how many milliseconds from then; ``None`` for ever.

    Raises:
        LockNotAcquiredError: Others held it at the last attempt.

        QuorumUnavailableError: Too few masters answered at the last attempt.

        RedlockError: The manager was closed meanwhile.

    Cancellation:
        No key stays on any master that can be reached.
    """
    clock = fleet.clock
    attempts = 1
    while not failed.until:
        delay = timing.pause(
            retry.delay(attempts, random.random()),  # noqa: S311 - no secret
            wait=wait,
            waited=(clock() - began) * 1000,
            reserve=fleet.master_timeout,
        )
        if delay is None or attempts == retry.attempts:
            if not failed.complete:
                # Most who have not answered are only a little later, and the
                # error is to say what they say. Nothing depends on it.
                await asyncio.sleep(max(clock() - failed.began, 0.001))
            votes = failed.votes()
            kind = LockNotAcquiredError if is_contended(votes) else QuorumUnavailableError
            elapsed = int((clock() - began) * 1000 + 0.5)
            raise kind(resources, attempts=attempts, elapsed=elapsed, votes=votes)
        await asyncio.sleep(delay / 1000)
        at_most = time_left(fleet, began, wait)
        failed = await attempt(fleet, failed.key, failed.ttl, factor, at_most)
        attempts += 1
    return failed
