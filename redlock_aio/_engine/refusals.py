"""The errors of failed single attempts; some are raised instead of returning ``None``."""

from collections.abc import Sequence

from redlock_aio._engine.claim import Claim
from redlock_aio._engine.links import Link
from redlock_aio._engine.round import votes as votes_of
from redlock_aio._protocol import request
from redlock_aio._rules.quorum import Vote, is_contended
from redlock_aio.errors import LockNotAcquiredError, refusal


def is_overload(votes: tuple[Vote, ...]) -> bool:
    """Return whether too few masters were asked because of too many unanswered requests."""
    ours = any(vote.detail == request.OVERRUN.detail for vote in votes)
    return ours and not is_contended(votes)


def check_overload(
    resources: tuple[str, ...],
    links: Sequence[Link],
    why: Claim | LockNotAcquiredError,
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
    elif always or request.OVERRUN in why.replies:
        votes = votes_of(links, why.replies)
        if always or is_overload(votes):
            raise refusal(resources, votes, None, attempts=1, began=why.began, now=now)
