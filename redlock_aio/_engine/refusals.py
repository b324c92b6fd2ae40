"""The errors of failed single attempts; some are raised instead of returning ``None``."""

from redlock_aio._engine.attempt import Attempt
from redlock_aio._protocol import request
from redlock_aio._rules.quorum import Vote, is_contended
from redlock_aio.errors import LockNotAcquiredError, refusal


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
    """Return the error that gives the reason why the only attempt failed."""
    votes = failed.votes()
    return refusal(resources, votes, None, attempts=1, began=failed.began, now=now)
