"""
A lock over independent Redis masters, for asyncio.

Everything that a program needs is here; `redlock_aio.testing` holds what its
tests need.
"""

from redlock_aio._api.election import Election as Election, Term as Term
from redlock_aio._api.lease import Lease as Lease
from redlock_aio._api.lock import Lock as Lock
from redlock_aio._api.redlock import Redlock as Redlock
from redlock_aio._api.rw_lock import ReadWriteLock as ReadWriteLock
from redlock_aio._api.semaphore import Semaphore as Semaphore
from redlock_aio._api.watch import LockWatch as LockWatch
from redlock_aio._protocol.lock_state import (
    FoundLocks as FoundLocks,
    LockState as LockState,
    MasterView as MasterView,
    Reader as Reader,
)
from redlock_aio._protocol.semaphore_state import (
    SemaphoreState as SemaphoreState,
    SemaphoreView as SemaphoreView,
)
from redlock_aio._rules.causes import LossCause as LossCause, NoVoteCause as NoVoteCause
from redlock_aio._rules.lock_value import Holder as Holder
from redlock_aio._rules.quorum import Answer as Answer, Vote as Vote
from redlock_aio._rules.retry import Retry as Retry
from redlock_aio._rules.statistics import (
    MasterStatistics as MasterStatistics,
    Statistics as Statistics,
)
from redlock_aio.errors import (
    LockLostError as LockLostError,
    LockNotAcquiredError as LockNotAcquiredError,
    LockNotHeldError as LockNotHeldError,
    QuorumUnavailableError as QuorumUnavailableError,
    RedlockError as RedlockError,
)

__all__ = (
    "Answer",
    "Election",
    "FoundLocks",
    "Holder",
    "Lease",
    "Lock",
    "LockLostError",
    "LockNotAcquiredError",
    "LockNotHeldError",
    "LockState",
    "LockWatch",
    "LossCause",
    "MasterStatistics",
    "MasterView",
    "NoVoteCause",
    "QuorumUnavailableError",
    "ReadWriteLock",
    "Reader",
    "Redlock",
    "RedlockError",
    "Retry",
    "Semaphore",
    "SemaphoreState",
    "SemaphoreView",
    "Statistics",
    "Term",
    "Vote",
)

# Tracebacks, reprs and pickles name the public classes as users import them.
for _name in __all__:
    globals()[_name].__module__ = __name__
del _name


def __getattr__(name: str) -> str:
    if name == "__version__":
        from importlib.metadata import version

        return version("redlock-aio")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
