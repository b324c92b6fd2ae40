"""
From the wish to have a lock to a majority of the masters.

An attempt is one round with a token of its own. One that fails, comes too late
or is cancelled is taken back on every master that may have heard of it, before
anything else happens. The answers to that say what stands in the way, and from
then on each master tells when it changes: so whoever waits tries again when a
majority may be free, by a release, an expiry or anything else, and after a
random time if nothing is heard.
"""

import asyncio
import math
import random
from collections.abc import Callable, Coroutine

from redlock_aio._engine.attempts import Attempt, FencedAttempt, Freeing, Watch
from redlock_aio._engine.line import Line
from redlock_aio._engine.masters import Fleet
from redlock_aio._engine.refusals import refusal
from redlock_aio._engine.rounds import Release
from redlock_aio._rules import timing
from redlock_aio._rules.fencing import Counter
from redlock_aio._rules.keys import Key, Keys
from redlock_aio._rules.protocol import hash_tag
from redlock_aio._rules.quorum import SPLIT, TAKING_PART, WON, is_contended, is_final, majority
from redlock_aio._rules.timing import Retry
from redlock_aio._rules.view import View
from redlock_aio.errors import LockNotAcquiredError, RedlockError


async def attempt(
    fleet: Fleet,
    key: Key | Keys,
    ttl: int,
    factor: float,
    at_most: float | None = None,
    *,
    stamp: bytes = b"",
    counter: Counter | None = None,
    watched: bool = False,
    again: bool = False,
) -> Attempt:
    """
    Ask all masters once for *key*, twice if their counters differ.

    Args:
        ttl: In milliseconds.

        factor: The drift factor.

        at_most: How many ms a round may take, if that is less than the master time-out.

        stamp: What follows the token in the value: who we are.

        counter: The one from which it is to have a fencing token, if any.

        watched: Whether, if it fails, the masters are to tell of changes.

        again: Whether this is the repetition of one that had no chance.

    Cancellation:
        It did not happen: whatever was sent is taken back.
    """
    fleet.check_open()
    if counter is None:
        round = Attempt(fleet, key, ttl, stamp)
    else:
        round = FencedAttempt(fleet, counter, key, ttl, stamp)
    fleet.ask(round, at_most)
    round.waiter = fleet.loop.create_future()
    try:
        await round.waiter
        if round.verdict is SPLIT:
            await round.agree(fleet, at_most)
    except BaseException:
        take_back(fleet, round, ttl)
        fleet.freed(key)
        raise
    if round.verdict is WON and not fleet.closed:
        # The clock is read after the task has resumed: however long that took,
        # an attempt that is too old is not believed.
        until = timing.deadline(round.began, ttl, factor=factor)
        if fleet.clock() < until:
            round.until = until
            return round
    if round.is_curable and not again:
        take_back(fleet, round, ttl)
        return await attempt(
            fleet,
            key,
            ttl,
            factor,
            at_most,
            stamp=stamp,
            counter=counter,
            watched=watched,
            again=True,
        )
    round.watch = watch = Watch(fleet, round)
    (fleet.ask_and_watch if watched else fleet.ask)(watch)
    return round


def take_back(fleet: Fleet, attempt: Attempt, ttl: int) -> Release:
    """Ask all masters to forget *attempt*, whose key may live *ttl* ms; nothing is awaited."""
    if fleet.can_free and attempt.can_free:
        freeing = Freeing(fleet, attempt, ttl)
        fleet.ask(freeing)
        return freeing
    return fleet.release(attempt.release(), ttl, attempt)


def check_slots(fleet: Fleet, resources: tuple[str, ...], keys: Keys) -> None:
    """Raise the error that says so if a Redis Cluster can't keep *keys* together."""
    if not any(link.clustered for link in fleet.links) or len({hash_tag(key) for key in keys}) == 1:
        return
    raise RedlockError(
        f"{', '.join(map(repr, resources))} can't be locked together: a master"
        " is a Cluster, which keeps them in different slots; give them a hash tag,"
        " as in '{order:7}:invoice' and '{order:7}:stock'"
    )


def time_left(fleet: Fleet, began: float, wait: int | None) -> float | None:
    """
    Return how many ms an attempt may take if *wait* counts from *began*, ``None`` for no limit.

    A wait of 0 is one attempt, which takes as long as it takes.
    """
    return max(wait - (fleet.clock() - began) * 1000, 1.0) if wait else None


def time_to_answer(fleet: Fleet, began: float, wait: int | None, asked: float) -> float | None:
    """
    Return how many ms an attempt may take that is to tell who holds the lock.

    If *wait* is shorter than the masters may take to answer, it is exceeded: else
    healthy masters would look as if they did not answer.

    Args:
        asked: When the masters were asked anything first: *began*, or after that
            if other tasks came first.
    """
    left = time_left(fleet, began, wait)
    if left is None:
        return None
    return max(left, fleet.trips.at_least - (fleet.clock() - asked) * 1000)


def pause(fleet: Fleet, delay: float, began: float, wait: int | None) -> float | None:
    """Return *delay* in ms, shorter if the last attempt comes before; ``None`` if it has been."""
    waited = (fleet.clock() - began) * 1000
    return timing.pause(delay, wait=wait, waited=waited, reserve=fleet.master_timeout)


def _rest(fleet: Fleet, began: float, wait: int | None) -> float:
    """Return how many ms of *wait* are left, 0 or less when it is over."""
    return math.inf if wait is None else wait - (fleet.clock() - began) * 1000


def is_split(failed: Attempt, view: View) -> bool:
    """Return whether *failed* because nobody got a majority, as far as can be seen."""
    several = failed.granted > 0 or view.parties > 1
    return several and view.holder is None and is_contended(view.explain(failed.votes(), 0.0))


def _emit_waiting(fleet: Fleet) -> None:
    """Emit, once, that the running task waits."""
    if fleet.emitter is not None:
        fleet.emitter.on_waiting()


async def turn(
    fleet: Fleet,
    line: Line,
    began: float,
    wait: int | None,
    ask: Callable[[float], Coroutine[object, object, Attempt]],
) -> tuple[bool, Attempt | None]:
    """
    Wait for a turn in *line*, for as long as *wait* allows.

    Shortly before the end of *wait* one attempt is made out of turn, so that the
    error can name the holder. The place in the line is kept meanwhile: a turn
    that comes in the last moment is used.

    Args:
        ask: Makes that attempt, given when masters are first asked.

    Returns:
        Whether the turn has come, and the attempt that was made without it.

    Cancellation:
        The turn is passed on to the next in line.
    """
    place: asyncio.Future[bool] = fleet.loop.create_future()
    line.join(place)
    tried = None
    come = False
    _emit_waiting(fleet)
    try:
        if wait is None:
            await place
        else:
            await asyncio.wait([place], timeout=(pause(fleet, math.inf, began, wait) or 0) / 1000)
            if not place.done():
                tried = await ask(fleet.clock())
                if not tried.until:
                    left = max(_rest(fleet, began, wait), 0)
                    await asyncio.wait([place], timeout=left / 1000)
        come = place.done()  # perhaps while that attempt was underway
        if tried is not None and not tried.until:
            # All who came together end together: a turn that one of them passes
            # on in that moment comes too late for the others.
            come = come and _rest(fleet, began, wait) > timing.SHORTEST_PAUSE
    finally:
        if not come:
            line.leave(place)
    return come, tried


async def politely(
    fleet: Fleet,
    line: Line,
    began: float,
    wait: int | None,
    ask: Callable[[], Coroutine[object, object, Attempt]],
) -> Attempt:
    """
    Make an attempt by *ask*, after other processes could make one if that is due.

    Cancellation:
        As for *ask*.
    """
    polite = line.courtesy(fleet.clock()) if wait != 0 else 0.0
    if not polite:
        return await ask()
    delay = pause(fleet, polite * 1000, began, wait)
    await asyncio.sleep((delay or 0) / 1000)
    asked = await ask()
    line.used(by_others=not asked.until)
    return asked


async def persist(
    fleet: Fleet,
    resources: tuple[str, ...],
    failed: Attempt,
    line: Line,
    *,
    mine: bool,
    attempts: int,
    factor: float,
    began: float,
    wait: int | None,
    retry: Retry,
) -> Attempt:
    """
    Attempt again until the lock is won that *failed* was to win.

    The last attempt that is made unasked comes so early that its answers arrive
    before *wait* is over. From then to the end of *wait* another one is made only
    when masters or leases of this process tell that the lock may be free.

    Args:
        line: Who else in this process wants it.

        mine: Whether it is our turn there.

        attempts: How many have been made.

        began: When the caller began to wait, on the fleet's clock.

        wait: For how many milliseconds from then; ``None`` for ever.

    Raises:
        LockNotAcquiredError: Others held it at the last attempt.

        QuorumUnavailableError: Too few masters answered at the last attempt.

        RedlockError: The manager was closed meanwhile.

    Cancellation:
        No key stays on any master that can be reached.
    """
    at_most = told = None
    pace, met = timing.Pace(), False
    while not failed.until:
        watch, failed.watch = failed.watch, None  # they know each other
        if told is None or not _is_cut_short(failed, fleet, at_most):
            told = failed, watch
        delay = pause(fleet, retry.delay(attempts, random.random()), began, wait)  # noqa: S311
        is_last = delay is None
        delay = _rest(fleet, began, wait) if delay is None else delay
        enough = delay <= timing.SHORTEST_PAUSE or attempts == retry.attempts
        if watch is None or enough or is_final(failed.votes()):
            raise await _refusal(fleet, resources, *told, attempts=attempts, began=began)
        took = fleet.clock() - failed.began
        line.watch(watch, mine=mine)
        _emit_waiting(fleet)
        try:
            is_free = await watch.wait(delay / 1000)
        finally:
            line.unwatch(watch)
        votes = watch.view.explain(failed.votes(), 0.0)
        if (is_last and not is_free) or is_final(votes):
            raise await _refusal(fleet, resources, *told, attempts=attempts, began=began)
        met = fleet.outages.note(resources, votes, failed.missing, met)
        line.met(is_split(failed, watch.view), took)
        await _hold_back(fleet, line, pace, began, wait)
        at_most = time_left(fleet, began, wait)
        failed = await attempt(
            fleet,
            failed.key,
            failed.ttl,
            factor,
            at_most,
            stamp=failed.stamp,
            counter=failed.counter,
            watched=True,
        )
        attempts += 1
    if met:
        fleet.outages.over()
    return failed


async def _hold_back(
    fleet: Fleet, line: Line, pace: timing.Pace, began: float, wait: int | None
) -> None:
    """
    Wait a moment after split votes, or if attempts have followed each other too fast.

    Cancellation:
        Nothing was begun that must be taken back.
    """
    nap = pace.pause(fleet.clock()) * 1000
    if line.spread:
        spread = pause(fleet, line.spread * 1000 * random.random(), began, wait)  # noqa: S311
        nap = max(nap, spread or 0)
    if nap:
        await asyncio.sleep(min(nap, max(_rest(fleet, began, wait), 0)) / 1000)


def _is_cut_short(failed: Attempt, fleet: Fleet, at_most: float | None) -> bool:
    """
    Return whether *failed* was given too little time for the masters to answer.

    Such an attempt says nothing about them: that they hold the lock for others,
    as the attempt before it said, is still the best that is known.
    """
    if at_most is None or at_most > fleet.master_timeout - 1:
        return False
    votes = failed.votes()
    if is_contended(votes):
        return False
    return sum(vote.answer in TAKING_PART for vote in votes) >= majority(len(votes))


async def _refusal(
    fleet: Fleet,
    resources: tuple[str, ...],
    failed: Attempt,
    watch: Watch | None,
    *,
    attempts: int,
    began: float,
) -> LockNotAcquiredError:
    """Return the error that says why the last attempt failed."""
    clock = fleet.clock
    contended = is_contended(failed.votes())
    if watch is not None and (contended or not failed.complete):
        # Most who have not answered are only a little later, and the error is to
        # say what they say. Nothing depends on it.
        needed = majority(len(fleet.links)) if contended else 0
        await watch.hear_out(max(clock() - failed.began, 0.001), needed)
    return refusal(
        resources,
        failed.votes(),
        None if watch is None else watch.view,
        attempts=attempts,
        began=began,
        now=clock(),
    )
