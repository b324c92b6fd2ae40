"""The options of a lock, as the engine reads them: checked, and not changed any more."""

from dataclasses import dataclass
from typing import Literal

from redlock_aio._protocol.primitives import LockKey, Permits
from redlock_aio._rules.retry import Retry

OnLost = Literal["cancel", "flag"]


@dataclass(frozen=True, slots=True)
class LockOptions:
    """
    The options of a lock, all of them valid. Times are in milliseconds.

    The owner and the metadata are not included, because they differ from lock to lock.
    Slots, because reading one takes a tenth of the time of a named tuple's field, and an
    acquisition reads about fifteen.
    """

    ttl: int
    validity: float
    """For how many seconds *ttl* is valid, from before its first request is sent."""
    wait: int | None
    auto_extend: bool
    max_hold: int | None
    hold_at_least: int
    fair: bool
    fencing: bool
    permits: int
    """The number of permits of a semaphore; 0 for a lock."""
    reentrant: bool
    on_lost: OnLost
    retry: Retry


@dataclass(slots=True, eq=False)
class LockSpec:
    """The resources of a lock, and its options, as the engine reads them."""

    resources: tuple[str, ...]
    key: LockKey | Permits
    options: LockOptions
    owner: object
    """The owner that shares its leases; ``None`` for the task that acquires."""
    metadata: bytes
    """The metadata of the holder, as the masters keep it in the value."""
