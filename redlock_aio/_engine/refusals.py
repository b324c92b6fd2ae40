"""The errors of acquisitions that failed, which name the vote of every master."""

import math

from redlock_aio._engine.attempt import Attempt
from redlock_aio._protocol import request
from redlock_aio._rules import lock_value, timing
from redlock_aio._rules.blockers import Blockers
from redlock_aio._rules.quorum import Vote, is_contended
from redlock_aio.errors import LockNotAcquiredError, QuorumUnavailableError


def refusal(
    resources: tuple[str, ...],
    votes: tuple[Vote, ...],
    view: Blockers | None,
    *,
    attempts: int,
    began: float,
    now: float,
) -> LockNotAcquiredError:
    """Return the error that explains by *votes* and *view* why a lock was not acquired."""
    holder = retry_after = None
    if view is not None:
        votes = view.explain(votes, now)
        holder = lock_value.holder(view.holder) if view.holder is not None else None
        retry_at = view.retry_at(votes)
        if retry_at < math.inf:
            retry_after = timing.remaining(retry_at, now)
    kind = LockNotAcquiredError if is_contended(votes) else QuorumUnavailableError
    return kind(
        resources,
        attempts=attempts,
        elapsed=int((now - began) * 1000 + 0.5),
        votes=votes,
        holder=holder,
        retry_after=retry_after,
    )


def is_overload(votes: tuple[Vote, ...]) -> bool:
    """Return whether too few masters were asked because of too many unanswered requests."""
    ours = any(vote.detail == request.OVERRUN.detail for vote in votes)
    return ours and not is_contended(votes)


def check_overload(
    resources: tuple[str, ...],
    why: Attempt | LockNotAcquiredError,
    now: float,
    *,
    always: bool = False,
) -> None:
    """Raise the error of a single attempt that failed by overload; of any one with *always*."""
    if isinstance(why, LockNotAcquiredError):
        if always or is_overload(why.votes):
            try:
                raise why
            finally:
                del why
    elif always or (request.OVERRUN in why.replies and is_overload(why.votes())):
        raise single_refusal(resources, why, now)


def single_refusal(resources: tuple[str, ...], failed: Attempt, now: float) -> LockNotAcquiredError:
    """Return the error that says why the only attempt failed."""
    votes = failed.votes()
    return refusal(resources, votes, None, attempts=1, began=failed.began, now=now)
