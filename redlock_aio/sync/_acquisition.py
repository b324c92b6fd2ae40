"""One acquisition by a thread, which is taken back if the thread is interrupted."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import redlock_aio
from redlock_aio import RedlockError
from redlock_aio.sync._callbacks import OnLostCall
from redlock_aio.sync._lease import Lease
from redlock_aio.sync._portal import PortalOpener


class ThreadAcquisition:
    """
    One acquisition by a thread.

    The thread may be interrupted while it waits: by Ctrl-C, or by any signal handler that
    raises, such as the time limit of a Celery task. The task in the event loop would go on
    then, and get a lease that nobody releases. So the thread takes it back: a task that waits
    is cancelled, and a lease that it has got is released.

    Args:
        opener: Starts the portal of the manager.

        acquire: Acquires the lock of that manager.

        on_lost: As for `Redlock.lock`.
    """

    __slots__ = (
        "_acquire", "_failed", "_lease", "_on_lost", "_opener", "_portal", "_taken_back", "_task",
    )  # fmt: skip

    def __init__(
        self,
        opener: PortalOpener,
        acquire: Callable[[redlock_aio.Redlock], Coroutine[Any, Any, redlock_aio.Lease | None]],
        on_lost: OnLostCall | None,
    ) -> None:
        self._opener = opener
        self._portal = opener.opened()
        self._acquire = acquire
        self._on_lost = on_lost
        self._task: asyncio.Task[Any] | None = None
        self._lease: Lease | None = None
        self._failed = self._taken_back = False

    def run(self) -> Lease | None:
        """
        Acquire the lock, and return its lease; ``None`` as *acquire* does.

        Raises:
            RedlockError: As *acquire*, or the manager is closed.
        """
        try:
            return self._portal.call(self._run)
        except BaseException:
            if not self._failed:
                with contextlib.suppress(RedlockError):  # all leases of a closed manager are over
                    self._portal.call(self._cancel)
                    if self._lease is not None:
                        self._lease.release()
            raise

    async def _run(self) -> Lease | None:
        if self._taken_back:  # the thread was interrupted before this task was started
            return None
        self._task = asyncio.current_task()
        try:
            lease = await self._acquire(self._portal.redlock)
        except BaseException:
            self._failed = True  # nothing is left to take back
            raise
        finally:
            self._task = None
        if lease is not None:  # nothing is awaited from here on
            self._lease = Lease(self._opener, self._portal, lease, self._on_lost)
        return self._lease

    async def _cancel(self) -> None:
        """Cancel the task, if it waits, and wait until its releases are underway."""
        self._taken_back = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
