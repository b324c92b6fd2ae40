"""A lock that can be acquired, and which of its blocks is left, also by threads."""

import asyncio
import functools
import inspect
import math
import sys
from collections.abc import Sequence
from types import CodeType, CoroutineType, FrameType, TracebackType
from typing import Any, TypeAlias, TypeVar

from redlock_aio._api import reporting
from redlock_aio._api.lease import Lease
from redlock_aio._engine.acquire.acquisition import Acquisition, check_overload
from redlock_aio._engine.claim import Claim
from redlock_aio._engine.hold import reentrancy
from redlock_aio._engine.hold.held_lease import HeldLease, Sharer, task_ref
from redlock_aio._engine.options import LockSpec
from redlock_aio._engine.session import Opener, Session
from redlock_aio._protocol.primitives import Mutex
from redlock_aio._rules import lock_value
from redlock_aio._rules.mistakes import NotALease, OnlyForAsyncio
from redlock_aio._rules.retry import Retry
from redlock_aio._rules.validation import quoted
from redlock_aio.errors import LockNotAcquiredError, LockNotHeldError

B = TypeVar("B")
T = TypeVar("T")

GENERATORS = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
"""The flags of functions whose blocks another task or thread may leave."""

Site: TypeAlias = FrameType | CodeType
"""Where a block is entered and left: the frame that does it, or the code that this runs."""

Block: TypeAlias = tuple[Site, B]
"""A block: where it is entered, and the task or thread by which."""


class Lock(NotALease, OnlyForAsyncio):
    """
    A lock on one or several resources, with its options; made by `Redlock.lock`.

    The `Lock` itself is never held. It can be used again, and by several tasks at
    once, and each acquisition is a `Lease` of its own.

    ``async with lock as lease:`` acquires, guards the body, and releases.
    """

    __slots__ = ("_entered", "_opener", "_spec")

    def __init__(self, opener: Opener, spec: LockSpec) -> None:
        self._opener = opener
        self._spec = spec
        self._entered: dict[Lease, Block[Sharer]] = {}

    def __repr__(self) -> str:
        spec = self._spec
        return f"<Lock {quoted(spec.resources)}, ttl {spec.options.ttl} ms>"

    @property
    def resources(self) -> tuple[str, ...]:
        """The names that it locks, all or none."""
        return self._spec.resources

    @property
    def owner(self) -> object:
        """Its option *owner*; ``None`` without one."""
        return self._spec.owner

    @property
    def metadata(self) -> dict[str, object] | None:
        """A copy of its option *metadata*, as others see it; ``None`` without one."""
        packed = self._spec.metadata
        return lock_value.unpacked(packed) if packed else None

    @property
    def retry(self) -> Retry:
        """How it waits between attempts: its option *retry*, or that of the manager."""
        return self._spec.options.retry

    async def acquire(self) -> Lease:
        """
        Wait for the lock and return a lease on it.

        Attempts are repeated for as long as *wait* allows, whether others hold
        the lock or masters are away: when masters push that the lock may be free,
        when its ttl there is over, and after random delays. Tasks of one process
        take turns in the order in which they came; with *fair*, so do all fair
        acquisitions of all processes.

        Returns:
            A lease that is extended automatically, unless *auto_extend* is off.

        Raises:
            LockNotAcquiredError: Others held it to the end.

            QuorumUnavailableError: Too few masters answered to decide (see `try_acquire`),
                or so many refuse permanently that waiting is useless.

            RedlockError: The manager is closed, or belongs to another event
                loop or process; or this task, or its *owner*, holds the lock already and
                would wait for itself.

        Cancellation:
            The lock is not acquired. No master keeps a key of this acquisition; one
            that does not answer now gets the release as soon as it answers again.
        """
        if (emitter := self._opener.emitter) is None:
            return await self._obtain()
        return await reporting.reported(emitter, self._spec, self._obtain)

    async def _obtain(self, place: Site | None = None) -> Lease:
        """Acquire the lock; enter its block, if there is a *place* where one begins."""
        session, spec = self._opener.session(), self._spec
        masters, wait = session.masters, spec.options.wait
        began = asking_since = masters.clock()
        if not session.ready:
            await session.get_ready(wait)
            asking_since = masters.clock()
        while True:
            acquisition = Acquisition(spec, session, wait, began, asking_since)
            # A single resource that nobody in this process holds can't be shared.
            queue = acquisition.queue
            if queue.holder is not None or queue.readers or not isinstance(spec.key, Mutex):
                hold = self._shared(session, waits=True)
                if hold is not None:
                    return self._share(session, hold, place)
            run = acquisition.run()
            try:
                if spec.owner is None or not spec.options.reentrant:
                    won: Claim | None = await run
                else:
                    won = await reentrancy.unless_shared(session.local_queues, spec, run)
            except LockNotAcquiredError as error:
                reentrancy.add_hint(masters, session.local_queues, spec, error)
                raise
            if won is not None:
                return self._lease(acquisition, won, place)

    def _shared(self, session: Session, *, waits: bool) -> HeldLease | None:
        masters, queues = session.masters, session.local_queues
        return reentrancy.find_shared(masters, queues, self._spec, waits=waits)

    def _share(self, session: Session, hold: HeldLease, place: Site | None = None) -> Lease:
        options = self._spec.options
        task = task_ref(asyncio.current_task(session.loop))
        keep = options.hold_at_least
        session.watchdog.share(hold, task, options.ttl, renewed=options.auto_extend, at_least=keep)
        now, on_lost = session.masters.clock(), options.on_lost
        lease = Lease(session, hold, task, now, on_lost, entered=place is not None)
        if place is not None:
            self._entered[lease] = place, task
        return lease

    async def try_acquire(self) -> Lease | None:
        """
        Try once to acquire the lock, whatever *wait* is.

        Returns:
            A lease, or ``None`` if others hold the lock or too few masters answered.

        Raises:
            QuorumUnavailableError: Too many masters have 10,000 unanswered requests of
                this process.

            RedlockError: The manager is closed, or belongs to another event loop or process;
                or this task, or its *owner*, reads what it wants for itself.

        Cancellation:
            As for `acquire`.
        """
        if (emitter := self._opener.emitter) is None:
            return await self._try_once()
        return await reporting.tried(emitter, self._spec, self._try_once)

    async def _try_once(self) -> Lease | None:
        session, spec = self._opener.session(), self._spec
        if not session.ready:
            await session.get_ready(0)
        masters = session.masters
        now = masters.clock()
        acquisition = Acquisition(spec, session, 0, now, now)
        several = not isinstance(spec.key, Mutex)
        may_share = spec.options.reentrant or acquisition.queue.readers or several
        if may_share and (hold := self._shared(session, waits=False)) is not None:
            return self._share(session, hold)
        try:
            tried = await acquisition.try_once()
        except LockNotAcquiredError as error:
            return self._refused(session, error)
        if not tried.until:
            return self._refused(session, tried)
        return self._lease(acquisition, tried)

    def _refused(self, session: Session, why: Claim | LockNotAcquiredError) -> Lease | None:
        """Return ``None``; raise if too few masters were asked, or if an event needs the error."""
        session.masters.check_open()  # what the close has ended tells nothing of the lock
        always, now = session.emitter is not None, session.masters.clock()
        try:
            check_overload(self._spec.resources, session.links, why, now, always=always)
        finally:
            del why  # breaks the cycle of error and frame, which would keep the attempt alive
        return None

    def _lease(self, acquisition: Acquisition, won: Claim, place: Site | None = None) -> Lease:
        session, spec = acquisition.session, self._spec
        options, now = spec.options, session.masters.clock()
        max_hold, keep = options.max_hold, options.hold_at_least
        hold = session.watchdog.hold(
            won,
            spec.resources,
            now,
            options.auto_extend,
            acquisition.queue if acquisition.has_turn else None,
            math.inf if max_hold is None else now + max_hold / 1000,
            now + keep / 1000 if keep else 0.0,
            spec.owner,
        )
        task = hold.task
        lease = Lease(session, hold, task, now, options.on_lost, entered=place is not None)
        if place is not None:
            self._entered[lease] = place, task
        return lease

    # pyright takes an `async def` to return a `CoroutineType`, so only with this annotation is a
    # `Lock` an `AbstractAsyncContextManager` to it; mypy takes it to return a `Coroutine`. Quoted,
    # because `CoroutineType` has no parameters at run time before Python 3.13.
    def __aenter__(self) -> "CoroutineType[Any, Any, Lease]":
        """
        Acquire the lock and guard the body; see `acquire` and `Lease`.

        Cancellation:
            As for `acquire`.
        """
        # `inspect.currentframe()` would make an object of this frame, too.
        place = place_of(sys._getframe(1))  # noqa: SLF001
        if (emitter := self._opener.emitter) is None:
            return self._obtain(place)  # type: ignore[return-value]  # see above
        obtain = functools.partial(self._obtain, place)
        return reporting.reported(emitter, self._spec, obtain, self._entered)  # type: ignore[return-value]

    def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> "CoroutineType[Any, Any, None]":
        """
        Release the lease that was entered where the block began; see `Lease.__aexit__`.

        Raises:
            LockLostError: The lease was lost, and the body has no exception of its own.

        Cancellation:
            The lock is released anyway.
        """
        entered = self._entered
        inside: Sequence[Lease] = ()
        if len(entered) == 1:
            (lease,) = entered
        else:
            lease, inside = self._left(sys._getframe(1))  # noqa: SLF001
        left = lease._leave(inside, kind, error, trace)  # noqa: SLF001 - raises in another loop
        del entered[lease]
        return left

    def _left(self, frame: FrameType) -> tuple[Lease, list[Lease]]:
        """
        Return the lease whose block *frame* leaves, and those of this task's blocks in that.

        If this task has entered none, it is the last one whose task has ended: fixtures may enter
        a block in one task and leave it in another.
        """
        entered, task = self._entered, task_ref(asyncio.current_task())
        if (lease := left_by(frame, (place_of(frame), task), entered)) is not None:
            if entered[lease][1] != task:
                return lease, []
            ours = [each for each, (_, by) in entered.items() if by == task]
            return lease, ours[ours.index(lease) + 1 :]
        for lease, (_, ref) in reversed(entered.items()):
            by = ref and ref()
            if not by or by.done():
                return lease, []
        raise LockNotHeldError(
            self._spec.resources, "this task has not entered its block", "not-entered"
        )


# Which block is left. A lock may be entered again while it is entered, by the same task or thread
# and by others, and `__exit__` gets nothing that says which block it ends.


def caller_of(frame: FrameType | None) -> FrameType | None:
    return None if frame is None else frame.f_back


def place_of(frame: FrameType | None, kept: int = GENERATORS) -> Site:
    """
    Return what *frame*, which enters or leaves a lock, has in common at both ends of a block.

    Args:
        kept: The flags of functions of which the frame itself tells the block. Of others it is
            the code: to keep a frame keeps the variables of all its callers alive, and those of
            an `ExitStack` would stay for as long as the lock is held.
    """
    if frame is None:  # called by no function of Python
        return place_of.__code__
    return frame if frame.f_code.co_flags & kept else frame.f_code


def left_by(frame: FrameType | None, here: Block[B], entered: dict[T, Block[B]]) -> T | None:
    """
    Return the block that *frame* leaves; ``None`` if this task or thread has entered none.

    A ``with`` enters and leaves in one function. Others, such as an `ExitStack`, enter by one
    function and leave by another: they leave the last block that this task or thread has not
    entered by a ``with`` which is still open.

    Args:
        frame: The caller of ``__exit__``.

        here: The place of *frame*, and the task or thread that runs it.

        entered: The blocks in the order of entering.
    """
    place, by = here
    # A generator leaves its own block, whoever ends it.
    whoever = place is frame
    for key, block in reversed(entered.items()):
        if block[0] is place and (whoever or block[1] == by):
            return key
    running = set[Site]()
    while frame is not None:
        running.add(frame.f_code)
        frame = frame.f_back
    ours = [key for key, (_, enterer) in reversed(entered.items()) if enterer == by]
    for key in ours:
        began = entered[key][0]
        if began not in running and not isinstance(began, FrameType):
            return key
    return ours[0] if ours else None
