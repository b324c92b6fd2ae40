"""
The errors that the library raises about locks.

Every class here carries its facts as attributes and builds its own message
from them. A message names every master and its vote, and never a password or a
token. It ends with the code of its cause in brackets, which is the anchor of its entry in the pages
about troubleshooting.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, cast

from redlock_aio._rules import lock_value, timing
from redlock_aio._rules.blockers import Blockers
from redlock_aio._rules.causes import Loss, LossCause
from redlock_aio._rules.lock_value import Holder
from redlock_aio._rules.quorum import Answer, Vote, is_contended, is_final, majority
from redlock_aio._rules.validation import of_type, quoted

__all__ = (
    "ErrorCode",
    "LockLostError",
    "LockNotAcquiredError",
    "LockNotHeldError",
    "QuorumUnavailableError",
    "RedlockError",
)


ErrorCode: TypeAlias = Literal[
    # not acquired
    "held", "no-permit", "too-few-masters", "answers-too-late", "masters-refuse",
    # not acquired, because of what the caller holds or where it runs
    "own-lock", "own-permits", "own-read", "read-to-write", "reentrant-fencing",
    "redlock-closed", "redlock-cancelled", "redlock-elsewhere", "no-event-loop",
    "own-event-loop", "interpreter-exits", "not-a-lock",
    # lost: the causes of `LossCause`
    "not-extended", "loop-stalled", "max-hold", "key-gone", "overtaken", "forced", "closed",
    "cancelled", "loop-closed", "adopted-late", "not-adopted", "fencing-ahead",
    # not held, or used in a wrong place
    "released", "handed-over", "not-entered", "lease-elsewhere", "left-by-another-task",
    "left-by-another-thread", "export-of-shared", "export-of-reader",
    # fencing
    "no-fencing-token", "stale-token", "bad-token",
]  # fmt: skip
"""
The causes of errors about locks, as `RedlockError.code` has them.

They stay the same when a text is improved. `docs/troubleshooting.md` lists the pages that have
an entry for each, under this word.
"""


class RedlockError(Exception):
    """The base class of all errors that this library raises about locks."""

    def __init__(self, text: str, code: ErrorCode) -> None:
        super().__init__(text, code)

    @property
    def code(self) -> ErrorCode:
        """
        The cause in a short word, such as ``too-few-masters``; it is also the end of the message.

        It stays the same when the text is improved. The pages of
        `docs/troubleshooting.md` have an entry with this anchor, which says what to do.
        """
        return self._code()

    def __str__(self) -> str:
        return f"{self._text()} [{self.code}]"

    def _code(self) -> ErrorCode:
        code: ErrorCode = self.args[1]
        return code

    def _text(self) -> str:
        """Return the message without its code."""
        return str(self.args[0])


class LockNotAcquiredError(RedlockError):
    """
    The lock was not obtained in the time allowed, because others held it.

    Attributes:
        resources: The names that were requested.

        attempts: The number of attempts; 0 if none was made, because another task of this
            process asked for the lock, or no majority could answer.

        elapsed: How long they took, in milliseconds.

        votes: The votes of the last round, one for each master.

        holder: The holder on a majority of the masters: its `Holder.fingerprint`,
            name and metadata; ``None`` if there was none.

        retry_after: In how many milliseconds the lock is free if it is not extended;
            ``None`` if that is not known. A master that did not answer in time
            counts as free as soon as the first of the others.

        permits: How many permits the semaphore has; ``None`` for other locks. The *holder*
            is that of one permit, and *retry_after* the time until this one is free.

        hint: Advice for this case, if there is any; else empty.
    """

    def __init__(  # noqa: PLR0913 - the facts of the error
        self,
        resources: Sequence[str],
        *,
        attempts: int,
        elapsed: int,
        votes: Sequence[Vote],
        holder: Holder | None = None,
        retry_after: int | None = None,
        permits: int | None = None,
    ) -> None:
        self.resources: tuple[str, ...] = tuple(resources)
        self.attempts: int = attempts
        self.elapsed: int = elapsed
        self.votes: tuple[Vote, ...] = tuple(votes)
        self.holder: Holder | None = holder
        self.retry_after: int | None = retry_after
        self.permits: int | None = permits
        self.hint: str = ""
        facts = (self.resources, attempts, elapsed, self.votes, holder, retry_after, permits)
        Exception.__init__(self, *facts)

    def _code(self) -> ErrorCode:
        if is_final(self.votes):
            return "masters-refuse"
        granted = sum(vote.answer is Answer.GRANTED for vote in self.votes)
        if self.votes and granted >= majority(len(self.votes)):
            return "answers-too-late"
        return self._otherwise()

    def _otherwise(self) -> ErrorCode:
        """Return the code if neither permanent refusals nor late answers are the cause."""
        return "held" if self.permits is None else "no-permit"

    def _text(self) -> str:
        rounds = "1 round" if self.attempts == 1 else f"{self.attempts} rounds"
        because = _BECAUSE[self.code].format(permits=self.permits)
        if self.code == "no-permit" and self.permits == 1:
            because = "the only permit is held, or waited for"
        # The other reasons say nothing of the lock: "too few masters answered, now by ..." would
        # blame the holder for the masters.
        if self.holder is not None and self.code in {"held", "no-permit"}:
            one_of_many = self.permits is not None and self.permits > 1
            because += (
                f", one of them by {self.holder}" if one_of_many else f", now by {self.holder}"
            )
        return (
            f"{quoted(self.resources)} not acquired in {rounds}, {self.elapsed} ms: {because}"
            f" ({'; '.join(map(str, self.votes))})" + (f"; {self.hint}" if self.hint else "")
        )

    def __reduce__(self) -> tuple[object, ...]:
        # Also the notes: another lock's loss, say, that was noted on the way.
        return _revive, (type(self), self.args), {**vars(self)}


class QuorumUnavailableError(LockNotAcquiredError):
    """
    The lock was not obtained because too few masters answered to determine its holder.

    It is raised before *wait* is over if waiting can't help: so many masters refuse for good
    (no permission, a wrong password, a key of another type, a node of a Redis Cluster)
    that no majority is left. Each such vote is `Vote.permanent`.

    It is also raised when only the state of the lock was requested, or the lock was to
    be released by force; then *attempts* is 0. `Redlock.check` raises it without *resources*.
    """

    def _otherwise(self) -> ErrorCode:
        return "too-few-masters"

    def _text(self) -> str:
        if self.attempts:
            return super()._text()
        because = _BECAUSE[self.code]
        if self.code == "too-few-masters":
            because = f"too few masters answered in {self.elapsed} ms"
        text = with_votes(because, self.votes)
        return f"{quoted(self.resources)}: {text}" if self.resources else text


class LockLostError(RedlockError):
    """
    The lease ended before its holder released it: others may hold the lock now.

    Attributes:
        resources: The names that were locked.

        cause: Why it was lost, for programs.

        reason: Why it was lost, for people: the text of the *cause*, and its detail.

        votes: The votes of the round that showed the loss, of the masters that had answered
            by then; if the validity was over, those of the last extension, if that had failed;
            empty if the masters had no part in it.

    Raises:
        TypeError: *cause* is not a `LossCause`.
    """

    def __init__(
        self,
        resources: Sequence[str],
        cause: LossCause,
        detail: str = "",
        votes: Sequence[Vote] = (),
    ) -> None:
        self.resources: tuple[str, ...] = tuple(resources)
        self.cause: LossCause = of_type(cause, LossCause, name="cause")
        self.reason: str = Loss(cause, detail).reason
        self.votes: tuple[Vote, ...] = tuple(votes)
        Exception.__init__(self, self.resources, cause, detail, self.votes)

    def _code(self) -> ErrorCode:
        return _code_of(self.cause)

    def _text(self) -> str:
        return f"{quoted(self.resources)} lost: {with_votes(self.reason, self.votes)}"


class LockNotHeldError(RedlockError):
    """
    A lease can't be released or extended, because its holder does not hold it any more.

    Attributes:
        resources: The names that had been locked.

        reason: Why it is not held. If the lock was lost, the reason and the code are those of
            the loss.
    """

    def __init__(self, resources: Sequence[str], reason: str, code: ErrorCode) -> None:
        self.resources: tuple[str, ...] = tuple(resources)
        self.reason: str = reason
        Exception.__init__(self, self.resources, reason, code)

    def _code(self) -> ErrorCode:
        code: ErrorCode = self.args[2]
        return code

    def _text(self) -> str:
        return f"{quoted(self.resources)} not held: {self.reason}"


def refusal(  # noqa: PLR0913 - the facts of the error
    resources: tuple[str, ...],
    votes: tuple[Vote, ...],
    view: Blockers | None,
    *,
    attempts: int,
    began: float,
    now: float,
    permits: int | None = None,
) -> LockNotAcquiredError:
    """Return the error for a lock that was not acquired, with the reasons in *votes* and *view*."""
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
        permits=permits,
    )


def unavailable(resource: str | None, votes: Sequence[Vote], took: float) -> QuorumUnavailableError:
    """
    Return the error for too few answers, after *took* seconds, without any attempt.

    Args:
        resource: The name of the lock; ``None`` if the masters were asked about none.
    """
    resources = [] if resource is None else [resource]
    elapsed = int(took * 1000 + 0.5)
    return QuorumUnavailableError(resources, attempts=0, elapsed=elapsed, votes=votes)


def lost_before(resources: Sequence[str], loss: Loss) -> LockNotHeldError:
    """Return the error for the release of a lease that was lost."""
    return LockNotHeldError(resources, loss.reason, _code_of(loss.cause))


def with_votes(text: str, votes: Sequence[Vote]) -> str:
    """Return *text* with *votes* in parentheses behind it, if there are any."""
    return f"{text} ({'; '.join(map(str, votes))})" if votes else text


_BECAUSE: dict[ErrorCode, str] = {
    "held": "held by others",
    "no-permit": "all {permits} permits are held, or waited for",
    "too-few-masters": "too few masters answered",
    "answers-too-late": "the answers came too late for the ttl",
    "masters-refuse": "the masters refuse permanently, so waiting does not help",
}


def _code_of(cause: LossCause) -> ErrorCode:
    return cast("ErrorCode", cause.value.replace("_", "-"))


def _revive(kind: type[LockNotAcquiredError], facts: tuple[Any, ...]) -> LockNotAcquiredError:
    resources, attempts, elapsed, votes, holder, retry_after, permits = facts
    return kind(
        resources,
        attempts=attempts,
        elapsed=elapsed,
        votes=votes,
        holder=holder,
        retry_after=retry_after,
        permits=permits,
    )
