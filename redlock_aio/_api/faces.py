"""
What the locks for asyncio, for threads and of the command line have in common.

`sync` and `cli` may import this private module: what is here exists once, and is no feature.
"""

import asyncio
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias, TypedDict

from redis.asyncio import RedisCluster

from redlock_aio._api.lease import Lease
from redlock_aio._api.lock import Lock
from redlock_aio._api.templates import Names, Template
from redlock_aio._engine.session import RestartGuard
from redlock_aio._rules.retry import Retry
from redlock_aio._transport.address import ClusterDialler, ClusterMaster, masters_of
from redlock_aio.errors import LockLostError, LockNotAcquiredError, QuorumUnavailableError
from redlock_aio.events import Listener

MOST_SPLITS = 10
"""The most attempts for a call that skips if others hold the lock, while no holder is known."""


AnyCluster: TypeAlias = str | RedisCluster | ClusterDialler
"""What `Redlock.of_cluster` takes."""


def cluster_masters(
    cluster: AnyCluster, masters: int | None, tags: Sequence[str] | None
) -> tuple[ClusterMaster, ...]:
    """Return the masters for `Redlock.of_cluster`, which `Redlock` takes in the place of URLs."""
    return masters_of(cluster, masters, tags)


@dataclass(frozen=True, slots=True, eq=False)
class OwnThread:
    """The thread that acquires a permit by `redlock_aio.sync`: it must not wait for itself."""

    thread: threading.Thread

    def __eq__(self, other: object) -> bool:
        # A lease that the thread has adopted has the thread itself as its owner.
        return self.thread is (other.thread if isinstance(other, OwnThread) else other)

    def __hash__(self) -> int:
        return hash(self.thread)


class ReadArguments(TypedDict, total=False):
    """The options that readers have too, for type checkers, but *on_lost*; see `rw_lock`."""

    ttl: int | timedelta | None
    wait: int | timedelta | None
    auto_extend: bool
    max_hold: int | timedelta | None
    reentrant: bool
    owner: object
    metadata: Mapping[str, object] | None


class WriteArguments(ReadArguments, total=False):
    """The options of writers besides those of readers, for type checkers."""

    hold_at_least: int | timedelta
    fencing: bool | None


class CommonLockArguments(WriteArguments, total=False):
    """The options of a lock, for type checkers, but *on_lost*, which threads have otherwise."""

    fair: bool | None
    shared: bool
    permits: int | None
    retry: Retry | None


class ManagerArguments(TypedDict, total=False):
    """The options of a manager besides its masters, for type checkers; see `Redlock`."""

    master_timeout: int | timedelta | None
    drift_factor: float
    retry: Retry
    key_prefix: str
    fencing: bool
    max_waiters: int
    max_ttl: int | timedelta
    restart_guard: RestartGuard
    listener: Listener | None
    name: str | None


def names_of(
    function: Callable[..., object], templates: Sequence[str]
) -> Callable[[tuple[object, ...], dict[str, object]], list[str]]:
    """
    Return the function that turns the arguments of a call into the names that it locks.

    Raises:
        ValueError: *function* has no parameter for a field.
    """
    return Names(function, [Template(template) for template in templates]).of


def is_loss(error: BaseException, resources: tuple[str, ...]) -> bool:
    """Return whether *error*, or each error of a group, says that *resources* are lost."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_loss(each, resources) for each in error.exceptions)
    return isinstance(error, LockLostError) and error.resources == resources


async def acquire_or_skip(lock: Lock) -> Lease:
    """
    Acquire *lock*, whose *wait* is 0, for *skip_if_locked*.

    Raises:
        QuorumUnavailableError: It is not known whether others hold the lock: no skip.

        LockNotAcquiredError: Others hold it: skip.

    Cancellation:
        As for `Lock.acquire`.
    """
    retry, attempt = lock.retry, 0
    most = min(retry.attempts or MOST_SPLITS, MOST_SPLITS)
    while True:
        attempt += 1
        try:
            return await lock.acquire()
        except QuorumUnavailableError:
            raise
        except LockNotAcquiredError as error:
            if error.holder is not None or attempt >= most:
                raise
        # Calls at the same moment have split the votes. If all of them skipped now, none
        # would run.
        await asyncio.sleep(retry.delay(attempt, random.random()) / 1000)  # noqa: S311 - no secret
