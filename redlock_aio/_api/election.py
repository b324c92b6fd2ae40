"""The election of a leader: terms that follow each other, each a lease with a number that rises."""

import asyncio
import contextlib
from types import TracebackType
from typing import Self

from anyio import CancelScope

from redlock_aio._api.faces import is_loss
from redlock_aio._api.lease import Lease
from redlock_aio._api.lock import Lock
from redlock_aio._rules.mistakes import OnlyForAsyncio
from redlock_aio.errors import LockLostError, LockNotHeldError


class Term(OnlyForAsyncio):
    """
    A term as the leader, which an `Election` has won.

    ``async with term:`` guards the body: if the term is lost, the body is cancelled, and the
    block ends without an error, so that the loop around it campaigns again. The end of the
    block stands down, and the next candidate leads.
    """

    __slots__ = ("_cancelling", "_lease", "_scope")

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._scope: CancelScope | None = None
        self._cancelling = 0

    def __repr__(self) -> str:
        return f"<Term {self.number} of {self._lease!r}>"

    @property
    def number(self) -> int:
        """The number of the term, a fencing token: higher than that of every earlier term."""
        return self._lease.fencing_token

    @property
    def lease(self) -> Lease:
        """The lease that makes this host the leader."""
        return self._lease

    def ensure_valid(self) -> None:
        """
        Raise unless this host leads now; meant for the line before each write.

        Raises:
            LockLostError: The term is lost. ``async with term`` ends by it without an error.

            LockNotHeldError: The term is over.

            RedlockError: This process is a forked child of the one that leads.
        """
        self._lease.ensure_valid()

    async def __aenter__(self) -> Self:
        """
        Guard the body; see `Lease.__aenter__`.

        A term that was lost meanwhile cancels the body at its first await.

        Raises:
            LockNotHeldError: The term is over.

            RuntimeError: It was entered before.

            RedlockError: It belongs to another event loop, thread or process.

        Cancellation:
            Nothing is awaited.
        """
        task = asyncio.current_task()
        self._cancelling = 0 if task is None else task.cancelling()
        try:
            await self._lease.__aenter__()
        except LockLostError:
            # The error would end the loop around this block; and without a guard the body would
            # lead although another host may do so already.
            self._scope = scope = CancelScope()
            scope.__enter__()
            scope.cancel("the term was lost")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        """
        Stand down; see `Lease.__aexit__`.

        A loss of this term is no error, also in the exception group of a task group. Any other
        exception of the body is raised.

        Cancellation:
            The lock is released anyway.
        """
        is_lost = await self._left(kind, error, trace)
        task = asyncio.current_task()
        if is_lost and task is not None and task.cancelling() > self._cancelling:
            # The program has cancelled the task too, and the loss only came out in the place of
            # that. Without this line the loop would campaign again after a SIGTERM or a timeout.
            raise asyncio.CancelledError from error
        return is_lost

    async def _left(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        """Leave the guard and release the lease; return whether the block ends by its loss."""
        scope, self._scope = self._scope, None
        if scope is not None and scope.__exit__(kind, error, trace):
            return True
        if scope is None:
            try:
                await self._lease.__aexit__(kind, error, trace)
            except LockLostError:
                return True
        return error is not None and is_loss(error, self._lease.resources)

    async def _stand_down(self) -> None:
        """Release the lease, unless it is over."""
        with contextlib.suppress(LockNotHeldError):
            await self._lease.release()


class Election(OnlyForAsyncio):
    """
    A candidate for the leadership of a resource, made by `Redlock.election`.

    ``async for term in election:`` waits until this host leads. Each turn of the loop is a
    `Term`; the next turn campaigns again, behind the candidates that wait already. One task
    iterates an election. A turn that has not left its term with ``async with`` stands down
    when the next one begins.
    """

    __slots__ = ("_lock", "_term")

    def __init__(self, lock: Lock) -> None:
        self._lock = lock
        self._term: Term | None = None

    def __repr__(self) -> str:
        leads = "leads" if self.leading else "does not lead"
        return f"<Election {self.resource!r}, {leads}>"

    @property
    def resource(self) -> str:
        """The name that the leader locks."""
        return self._lock.resources[0]

    @property
    def leading(self) -> bool:
        """Whether this host leads now, by the clock; for a health endpoint or a metric."""
        term = self._term  # read once: any thread may ask
        return term is not None and term.lease.valid

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Term:
        """
        Campaign until this host leads, and return its term.

        Raises:
            QuorumUnavailableError: So many masters refuse permanently that waiting is useless.

            LockNotAcquiredError: As many candidates wait as *max_waiters* of the manager allows.

            RedlockError: The manager is closed, or belongs to another event loop or process.

        Cancellation:
            This host is no candidate any more, and does not lead.
        """
        before, self._term = self._term, None
        if before is not None:
            await before._stand_down()  # noqa: SLF001 - of this file
        self._term = term = Term(await self._lock.acquire())
        return term
