"""Elections and watches for threads: the loops of `redlock_aio`, without ``async``."""

import asyncio
import contextlib
from types import TracebackType
from typing import Any, Self

import redlock_aio
from redlock_aio import LockLostError, LockState
from redlock_aio._api.faces import is_loss
from redlock_aio.sync._lease import Lease
from redlock_aio.sync._lock import Lock
from redlock_aio.sync._mistakes import OnlyForThreads
from redlock_aio.sync._portal import Portal, PortalOpener


class Term(OnlyForThreads):
    """
    A term as the leader, which an `Election` has won.

    ``with term:`` ends by standing down. A thread can't be cancelled: if the term is lost, the
    body goes on until it calls `ensure_valid`, whose error ends the block without an error, so
    that the loop around it campaigns again.
    """

    __slots__ = ("_lease",)

    def __init__(self) -> None:
        self._lease: Lease  # see `Election.__next__`

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
            LockLostError: The term is lost. ``with term`` ends by it without an error.

            LockNotHeldError: The term is over.

            RedlockError: This process is a forked child of the one that leads.
        """
        self._lease.ensure_valid()

    def __enter__(self) -> Self:
        """
        Return the term, which the end of the block leaves.

        A term that was lost meanwhile begins its block, too, see `ensure_valid`.

        Raises:
            LockNotHeldError: The term is over.

            RuntimeError: It was entered before.

            RedlockError: This process is a forked child of the one that leads.
        """
        lease = self._lease
        try:
            try:
                lease.ensure_valid()
            except LockLostError as lost:
                if not lease._is_told_by(lost):  # noqa: SLF001 - of this package
                    raise
            lease._enter()  # noqa: SLF001 - of this package; last, as in `Lease.__enter__`
        except BaseException as stop:
            if not lease._entered and not lease._is_told_by(stop):  # noqa: SLF001 - as above
                lease._give_up(stop)  # noqa: SLF001 - as above
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        """
        Stand down; see `Lease.__exit__`.

        A loss of this term is no error. Any other exception of the body is raised.
        """
        try:
            self._lease.__exit__(kind, error, trace)
        except BaseException as stop:
            self._lease._give_up(stop)  # noqa: SLF001 - of this package
            if is_loss(stop, self._lease.resources):
                return True
            raise
        return error is not None and is_loss(error, self._lease.resources)


class Election(OnlyForThreads):
    """
    A candidate for the leadership of a resource, made by `Redlock.election`.

    ``for term in election:`` waits until this host leads; see `redlock_aio.Election`.
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

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Term:
        """
        Campaign until this host leads, and return its term.

        Raises:
            QuorumUnavailableError: So many masters refuse permanently that waiting is useless.

            LockNotAcquiredError: As many candidates wait as *max_waiters* of the manager allows.

            RedlockError: The manager is closed.
        """
        before, self._term = self._term, None
        try:
            if before is not None:
                before.lease.release()
        except BaseException as stop:
            if before is None:
                raise
            before.lease._give_up(stop)  # noqa: SLF001 - of this package
            if not before.lease._is_told_by(stop):  # noqa: SLF001 - of this package
                raise
        # Made first: an interrupt at a call behind the acquisition would find nobody who
        # releases the lease.
        term = Term()
        term._lease = self._lock.acquire()  # noqa: SLF001 - of this file
        self._term = term
        return term


class LockWatch(OnlyForThreads):
    """The states of a lock, made by `Redlock.watch`; ``for state in watch:``."""

    __slots__ = ("_opener", "_portal", "_resource", "_task", "_watch")

    def __init__(self, opener: PortalOpener, resource: str) -> None:
        self._opener = opener
        self._resource = resource
        self._portal: Portal | None = None
        self._watch: redlock_aio.LockWatch = opener.redlock.watch(resource)
        self._task: asyncio.Task[Any] | None = None

    def __repr__(self) -> str:
        return repr(self._watch)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> LockState:
        """
        Return the present state at first; then wait for one with another holder or other readers.

        If the wait is interrupted, such as by a KeyboardInterrupt, the next call begins again with
        the present state.

        Raises:
            RedlockError: The manager is closed.
        """
        portal = self._opener.opened()
        if portal is not self._portal:  # the first one, or that of a forked child
            self._portal, self._watch = portal, portal.redlock.watch(self._resource)
        try:
            return portal.call(self._next, self._watch)
        except BaseException:
            # The task of an interrupted call goes on, and may have taken a change already, which
            # nobody has seen. So the next call makes a new watch.
            self._portal = None
            task = self._task  # read once: it may end now
            if task is not None:
                with contextlib.suppress(RuntimeError):  # the loop is closed already
                    task.get_loop().call_soon_threadsafe(task.cancel)
            raise

    async def _next(self, watch: redlock_aio.LockWatch) -> LockState:
        if self._portal is None or watch is not self._watch:
            raise asyncio.CancelledError  # interrupted before it began
        self._task = asyncio.current_task()
        try:
            return await watch.__anext__()
        finally:
            self._task = None
