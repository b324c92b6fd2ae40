"""The events of acquisitions and adoptions; used only if the manager has a listener."""

import asyncio
import copy
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from redlock_aio._api.lease import Lease
from redlock_aio._engine.acquire.acquisition import is_overload
from redlock_aio._engine.clock import clock_of
from redlock_aio._engine.emitter import Emitter, event_ms
from redlock_aio._engine.options import LockSpec
from redlock_aio._engine.session import running_loop
from redlock_aio.errors import LockNotAcquiredError
from redlock_aio.events import Acquired, Cancelled, Missed

T = TypeVar("T", bound=Lease | None)


async def reported(
    emitter: Emitter,
    lock: LockSpec,
    obtain: Callable[[], Coroutine[object, object, T]],
    entered: dict[Lease, Any] | None = None,
) -> T:
    """
    Await *obtain*, and emit `Acquired`, `Missed` or `Cancelled`.

    Args:
        entered: The entered blocks of the lock, if *obtain* also enters one.
    """
    loop = running_loop()
    clock, task = clock_of(loop), asyncio.current_task(loop)
    began = clock()
    requested = lock.key.mode
    emitter.begin_acquiring(task, lock.resources, requested)
    try:
        lease = await obtain()
    except LockNotAcquiredError as error:
        # A listener may keep the event. The traceback of the error that is raised keeps the
        # variables of all its callers: their memory, and leases that were dropped.
        told = copy.copy(error)
        emitter.emit(Missed(lock.resources, event_ms(clock() - began), told, requested))
        raise
    except asyncio.CancelledError:
        emitter.emit(Cancelled(lock.resources, event_ms(clock() - began), requested))
        raise
    finally:
        emitter.end_acquiring(task)
    # Else it shares a lease whose beginning is emitted, which is no acquisition.
    if lease is not None and not lease._hold.announced:  # noqa: SLF001
        await announce(emitter, lease, clock() - began, entered)
    return lease


async def announce(
    emitter: Emitter, lease: Lease, waited: float, entered: dict[Lease, Any] | None = None
) -> None:
    """
    Emit `Acquired` in the task that has got *lease* after *waited* s, before it goes on.

    Args:
        entered: As for `reported`.
    """
    lease._hold.announced = True  # noqa: SLF001
    fence = getattr(lease, "fencing_token", None)
    who, mode, permit = lease.fingerprint, lease.mode, lease.permit
    try:
        emitter.emit(Acquired(lease.resources, who, event_ms(waited), fence, mode, permit))
    except BaseException as stop:
        # The listener has raised an exception that ends the program, such as a
        # KeyboardInterrupt. The caller gets no lease then, and could not release it. As
        # after a body that has failed, the release is sent and not awaited.
        if entered is not None:
            del entered[lease]
        await lease.__aexit__(type(stop), stop, stop.__traceback__)
        raise


async def tried(
    emitter: Emitter,
    lock: LockSpec,
    attempt: Callable[[], Coroutine[object, object, Lease | None]],
) -> Lease | None:
    """Await *attempt* as `reported` does, but return ``None`` if it was refused."""
    try:
        return await reported(emitter, lock, attempt)
    except LockNotAcquiredError as error:
        if is_overload(error.votes):
            raise
        return None
