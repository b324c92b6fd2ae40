"""
The lock without asyncio, for threads: the names of `redlock_aio`, without ``await``.

A `redlock_aio.sync.Redlock` runs an event loop in a thread of its own, which starts with
the first call that needs the masters. All threads of the program may use it at once. Events,
errors, votes and `redlock_aio.Retry` are those of `redlock_aio`.

A thread can't be cancelled. If a lease is lost, the work under it goes on, until it calls
`redlock_aio.sync.Lease.ensure_valid` or looks at `redlock_aio.sync.Lease.lost`; *on_lost*
is called at once. See `docs/how-to/without-asyncio.md`.
"""

from redlock_aio.sync._election import (
    Election as Election,
    LockWatch as LockWatch,
    Term as Term,
)
from redlock_aio.sync._lease import Lease as Lease
from redlock_aio.sync._lock import Lock as Lock
from redlock_aio.sync._redlock import Redlock as Redlock
from redlock_aio.sync._semaphore import Semaphore as Semaphore

__all__ = ("Election", "Lease", "Lock", "LockWatch", "Redlock", "Semaphore", "Term")

# Tracebacks, reprs and pickles name the public classes as users import them.
for _name in __all__:
    globals()[_name].__module__ = __name__
del _name
