"""
The options of a lock: checked once, then passed on as one immutable value.

`Redlock.lock` looks up the options of a call in a cache, under a key that holds the values
and their types. Values alone would not do: ``10_000 == 10_000.0`` and ``True == 1``, and both
hash alike, so a value of a wrong type would be found instead of being refused.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, NamedTuple

from redlock_aio._protocol.primitives import JointMutex, Mutex
from redlock_aio._rules import timing
from redlock_aio._rules.retry import Retry
from redlock_aio._rules.validation import of_type, one_of

OnLost = Literal["cancel", "flag"]

MOST_OPTIONS = 256
"""The number of different sets of options that are cached for one manager."""


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
    reentrant: bool
    on_lost: OnLost
    retry: Retry


class LockSpec:
    """
    The resources of a lock, and its options, as the engine reads them.

    Args:
        resources: The names of the resources, as they were given.

        key: Their key or keys on the masters.

        options: The options of acquiring and holding them.

        owner: The owner that shares its leases; ``None`` for the task that acquires.

        metadata: The metadata of the holder, as the masters keep it in the value.
    """

    __slots__ = ("key", "metadata", "options", "owner", "resources")

    def __init__(
        self,
        resources: tuple[str, ...],
        key: Mutex | JointMutex,
        options: LockOptions,
        owner: object,
        metadata: bytes,
    ) -> None:
        self.resources: tuple[str, ...] = resources
        self.key: Mutex | JointMutex = key
        self.options: LockOptions = options
        self.owner: object = owner
        self.metadata: bytes = metadata


class GivenOptions(NamedTuple):
    """The options of one call of `Redlock.lock` as given, in this order, not checked yet."""

    ttl: int | timedelta | None
    wait: int | timedelta | None
    auto_extend: bool
    max_hold: int | timedelta | None
    hold_at_least: int | timedelta
    fair: bool
    fencing: bool | None
    reentrant: bool
    on_lost: OnLost
    retry: Retry | None
    retry_id: int
    """
    A retry is compared by its id as well, because a subclass may hold more than its fields. The
    cache keeps the retry alive, so that the id is not used again.
    """


class OptionsCache:
    """
    The checks of options for the locks of one manager.

    Args:
        max_ttl: The longest ttl, in milliseconds.

        drift_factor: The drift factor of the manager.

        fencing: The default of *fencing*: whether locks have a fencing token.

        retry: The default of *retry*: how locks wait between attempts.

    Attributes:
        cached: Returns the checked options for the values of `GivenOptions`. It raises the
            errors of `uncached`, and a TypeError for a value that is not hashable.
    """

    __slots__ = ("_drift_factor", "_fencing", "_max_ttl", "_retry", "cached")

    def __init__(self, *, max_ttl: int, drift_factor: float, fencing: bool, retry: Retry) -> None:
        self._max_ttl = max_ttl
        self._drift_factor = drift_factor
        self._fencing = fencing
        self._retry = retry
        self.cached: Callable[..., LockOptions] = functools.lru_cache(MOST_OPTIONS, typed=True)(
            self._checked
        )

    def uncached(self, *given: Any) -> LockOptions:
        """
        Return the checked options for the values of `GivenOptions`, after `cached` has failed.

        An instance of a subclass of int may be valid and not hashable.

        Raises:
            TypeError: An option is of a wrong type.

            ValueError: An option has an invalid value.
        """
        try:
            return self._checked(*given)
        except (TypeError, ValueError) as error:
            raise error from None  # the error of the cache says the same, or less

    def _checked(self, *values: Any) -> LockOptions:
        given = GivenOptions(*values)
        ttl = min(timing.TTL, self._max_ttl) if given.ttl is None else given.ttl
        ttl = timing.at_most(timing.milliseconds(ttl, name="ttl"), self._max_ttl)
        wait, max_hold, keep = given.wait, given.max_hold, given.hold_at_least
        fencing, retry = given.fencing, given.retry
        return LockOptions(
            ttl=timing.at_least(ttl),
            validity=timing.validity(ttl, factor=self._drift_factor),
            wait=None if wait is None else timing.milliseconds(wait, name="wait", zero=True),
            max_hold=None if max_hold is None else timing.milliseconds(max_hold, name="max_hold"),
            hold_at_least=timing.milliseconds(keep, name="hold_at_least", zero=True),
            on_lost=one_of(given.on_lost, ("cancel", "flag"), name="on_lost"),
            auto_extend=of_type(given.auto_extend, bool, name="auto_extend"),
            fair=of_type(given.fair, bool, name="fair"),
            reentrant=of_type(given.reentrant, bool, name="reentrant"),
            fencing=self._fencing if fencing is None else of_type(fencing, bool, name="fencing"),
            retry=self._retry if retry is None else of_type(retry, Retry, name="retry"),
        )
