"""
The options of `Redlock.lock`: checked once for each set of them, then found in a cache.

The key of the cache holds the values and their types. Values alone would not do:
``10_000 == 10_000.0`` and ``True == 1``, and both hash alike, so a value of a wrong type would
be found instead of being refused.
"""

import functools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from redlock_aio._engine.options import LockOptions, OnLost
from redlock_aio._rules import timing
from redlock_aio._rules.retry import Retry
from redlock_aio._rules.validation import of_type, one_of

MOST_OPTIONS = 256


class OptionsCache:
    """
    The checks of options for the locks of one manager, whose own options are the defaults.

    `cached` and `uncached` take the parameters of `_checked`, by position. `cached` also raises
    a TypeError for a value that is not hashable.
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
        Check the options after `cached` has failed.

        An instance of a subclass of int may be valid and not hashable.
        """
        try:
            return self._checked(*given)
        except (TypeError, ValueError) as error:
            raise error from None  # the error of the cache says the same, or less

    def _checked(  # noqa: PLR0913, PLR0917 - the options of a lock, as a key of the cache
        self,
        ttl: int | timedelta | None,
        wait: int | timedelta | None,
        auto_extend: bool,
        max_hold: int | timedelta | None,
        hold_at_least: int | timedelta,
        fair: bool,
        fencing: bool | None,
        reentrant: bool,
        on_lost: OnLost,
        retry: Retry | None,
        # A retry is compared by its id as well, because a subclass may hold more than its fields.
        # The cache keeps the retry alive, so the id is not used again.
        _retry_id: int,
    ) -> LockOptions:
        ttl = min(timing.TTL, self._max_ttl) if ttl is None else ttl
        ttl = timing.at_most(timing.milliseconds(ttl, name="ttl"), self._max_ttl)
        return LockOptions(
            ttl=timing.at_least(ttl),
            validity=timing.validity(ttl, factor=self._drift_factor),
            wait=None if wait is None else timing.milliseconds(wait, name="wait", zero=True),
            max_hold=None if max_hold is None else timing.milliseconds(max_hold, name="max_hold"),
            hold_at_least=timing.milliseconds(hold_at_least, name="hold_at_least", zero=True),
            on_lost=one_of(on_lost, ("cancel", "flag"), name="on_lost"),
            auto_extend=of_type(auto_extend, bool, name="auto_extend"),
            fair=of_type(fair, bool, name="fair"),
            reentrant=of_type(reentrant, bool, name="reentrant"),
            fencing=self._fencing if fencing is None else of_type(fencing, bool, name="fencing"),
            retry=self._retry if retry is None else of_type(retry, Retry, name="retry"),
        )
