"""What `redlock_aio.contrib` answers to requests that get no lock, in each web framework."""

from collections.abc import Callable
from typing import NamedTuple

from redlock_aio import LockNotAcquiredError, QuorumUnavailableError, Redlock


class WebAnswer(NamedTuple):
    """An answer without any name of a resource or a master."""

    status: int
    content: dict[str, str]
    headers: dict[str, str]


def answers(busy_for: int, unavailable_for: int) -> Callable[[LockNotAcquiredError], WebAnswer]:
    """
    Return what chooses the answer to an error: 409, 429 or 503, with a ``Retry-After``.

    Raises:
        TypeError, ValueError: An argument is no number of whole seconds.
    """
    soon, later = _after(busy_for, name="busy_for"), _after(unavailable_for, name="unavailable_for")
    held = WebAnswer(409, {"detail": "it is being worked on"}, soon)
    full = WebAnswer(429, {"detail": "too many requests are being worked on"}, soon)
    away = WebAnswer(503, {"detail": "locks are not available"}, later)

    def answer(error: LockNotAcquiredError) -> WebAnswer:
        if isinstance(error, QuorumUnavailableError):
            return away
        return held if error.permits is None else full

    return answer


def _after(seconds: int, *, name: str) -> dict[str, str]:
    if type(seconds) is not int:  # HTTP has no fractions there, and no words such as True
        raise TypeError(f"{name} must be a number of whole seconds, not {seconds!r:.80}")
    if seconds < 0:
        raise ValueError(f"{name} must be 0 or more seconds, not {seconds}")
    return {"Retry-After": str(seconds)}


def manager(redlock: Redlock) -> Redlock:
    """
    Return *redlock*.

    Raises:
        TypeError: It is no manager, or one for threads.
    """
    if not isinstance(redlock, Redlock):
        raise TypeError(f"redlock must be a redlock_aio.Redlock, not {redlock!r:.80}")
    return redlock
