"""
Locks in a FastAPI app: a lifespan, a dependency, and answers to requests that get no lock.

    redlock = Redlock(MASTERS)
    app = FastAPI(lifespan=lifespan(redlock), exception_handlers=error_handlers())

`lifespan` and `error_handlers` also work for Starlette, which FastAPI is made of.
"""

import functools
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from fastapi import Depends
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from redlock_aio import Lease, LockNotAcquiredError, QuorumUnavailableError, Redlock

__all__ = ("error_handlers", "lifespan", "lock_of")

Handler = Callable[[Request, Any], Coroutine[Any, Any, Response]]


def lifespan(redlock: Redlock) -> Callable[[Any], AbstractAsyncContextManager[None]]:
    """
    Return a lifespan that opens *redlock* when the app starts, and closes it when it ends.

    An app with a lifespan of its own writes ``async with redlock:`` there. If the masters
    can't be reached, the app starts nevertheless.
    """

    @asynccontextmanager
    async def opened(_app: object) -> AsyncGenerator[None]:
        async with redlock:
            yield

    return opened


def lock_of(
    redlock: Redlock, name: str | Callable[..., str], **options: Any
) -> Callable[..., AsyncGenerator[Lease]]:
    """
    Return a dependency: a request is served under a lock, and gets the lease of it.

    ``lease: Annotated[Lease, Depends(lock_of(redlock, invoice, wait=1_000))]`` is a parameter
    of a path operation. If the lease is lost, the operation is cancelled, and the answer is
    a 500: the work may be half done.

    Args:
        redlock: The manager.

        name: What is locked: a name, or a function that returns one. The parameters of the
            function are those of a dependency, so ``def invoice(invoice_id: int) -> str``
            gets the ``{invoice_id}`` of the path as an int.

        options: Those of `Redlock.lock`. A *wait* should be shorter than the timeout of what
            is in front of the service.

    Raises:
        TypeError, ValueError: An option is invalid, as for `Redlock.lock`.
    """
    redlock.lock("stand-in" if callable(name) else name, **options)  # checks the options
    naming = _named(name)

    async def held(name: str = Depends(naming)) -> AsyncGenerator[Lease]:
        async with redlock.lock(name, **options) as lease:
            yield lease

    return held


def error_handlers(
    *, busy_for: int = 1, unavailable_for: int = 5
) -> dict[int | type[Exception], Handler]:
    """
    Return exception handlers: 409 if others hold the lock, 503 if too few masters answer.

    Both answers have a ``Retry-After``, and name neither resources nor masters. A
    `LockLostError` is left to the app: the work may be half done, so the answer is a 500.

    Args:
        busy_for: The seconds after which to try again if others hold the lock.

        unavailable_for: The seconds after which to try again if too few masters answer.
    """

    def answer(status: int, detail: str, after: int) -> Handler:
        async def handle(_request: Request, _error: Any) -> Response:
            return JSONResponse({"detail": detail}, status, {"Retry-After": str(after)})

        return handle

    return {
        LockNotAcquiredError: answer(409, "it is being worked on", busy_for),
        QuorumUnavailableError: answer(503, "locks are not available", unavailable_for),
    }


def _named(name: str | Callable[..., str]) -> Callable[..., Awaitable[str]]:
    """Return a dependency with the parameters of *name*, which returns the name to lock."""
    if not callable(name):

        async def fixed() -> str:
            return name

        return fixed
    naming = name

    @functools.wraps(naming)
    async def named(*args: Any, **kwargs: Any) -> str:
        return naming(*args, **kwargs)  # FastAPI would run a plain function in a thread

    return named
