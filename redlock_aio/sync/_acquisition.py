"""One acquisition by a thread, which is taken back if the thread is interrupted."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

import redlock_aio
from redlock_aio._api.lock import Block, Site
from redlock_aio.sync._callbacks import OnLostCall
from redlock_aio.sync._lease import Lease
from redlock_aio.sync._portal import PortalOpener


class Entered(NamedTuple):
    """An entered block of a lock, with the number of the thread that has entered it."""

    block: Block[int]
    lease: Lease


class ThreadAcquisition:
    """
    One acquisition by a thread.

    The thread may be interrupted while it waits: by Ctrl-C, or by any signal handler that
    raises, such as the time limit of a Celery task. The task in the event loop would go on
    then, and get a lease that nobody releases. So the thread takes it back: a task that waits
    is cancelled, and a lease that it has got is released. Both happen in the event loop, and
    therefore also if the thread is interrupted once more.

    Args:
        opener: Starts the portal of the manager.

        acquire: Acquires the lock of that manager.

        on_lost: As for `Redlock.lock`.

        entered: The entered blocks of a lock, for an acquisition that enters one: this is added
            to them.

        place: Where that block begins.
    """

    __slots__ = (
        "_acquire", "_block", "_entered", "_failed", "_lease", "_on_lost", "_opener", "_portal",
        "_taken_back", "_task",
    )  # fmt: skip

    def __init__(
        self,
        opener: PortalOpener,
        acquire: Callable[[redlock_aio.Redlock], Coroutine[Any, Any, redlock_aio.Lease | None]],
        on_lost: OnLostCall | None,
        entered: list[Entered] | None = None,
        place: Site | None = None,
    ) -> None:
        self._opener = opener
        self._portal = opener.opened()
        self._acquire = acquire
        self._on_lost = on_lost
        self._entered = [] if entered is None else entered
        self._block = None if place is None else (place, threading.get_ident())
        self._task: asyncio.Task[Any] | None = None
        self._lease: Lease | None = None
        self._failed = self._taken_back = False

    def run(self) -> Lease | None:
        """
        Acquire the lock, and return its lease; ``None`` as *acquire* does.

        Raises:
            RedlockError: As *acquire*, or the manager is closed.
        """
        # An interrupt behind this line would find nobody who releases the lease, until the body
        # of the caller's `with` begins. CPython handles signals when a call begins, and not when
        # a function of Python returns. So the methods above this one return its result and
        # call nothing else.
        try:
            return self._portal.call(self._run)
        except BaseException:
            # First, because an assignment calls nothing: one more interrupt comes behind it. If it
            # comes before the first line of `give_back`, nobody cancels a task that waits, but the
            # lock that it gets is released at once.
            self._taken_back = True
            if not self._failed:
                self._portal.give_back(self._take_back)
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
        if lease is not None and self._taken_back:  # by a thread that was interrupted twice
            await lease.release()
        elif lease is not None:  # nothing is awaited from here on
            block = self._block
            self._lease = got = Lease(
                self._opener, self._portal, lease, self._on_lost, entered=block is not None
            )
            if block is not None:
                self._entered.append(Entered(block, got))
        return self._lease

    async def _take_back(self) -> None:
        """
        Cancel the task, if it waits, and release the lease that it has got.

        Raises:
            RedlockError: The lease was lost.
        """
        task, self._task = self._task, None
        if task is not None:  # once: a thread that is interrupted twice may do this twice
            task.cancel()
            await asyncio.wait([task])  # until its releases are underway
        if self._lease is not None:
            if self._block is not None:
                with contextlib.suppress(ValueError):  # another thread has left the block
                    self._entered.remove(Entered(self._block, self._lease))
            await self._lease._release()  # noqa: SLF001 - its public names are the async ones
