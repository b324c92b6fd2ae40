"""
Locks in a FastAPI app: a lifespan, a dependency, and answers to requests that get no lock.

    redlock = Redlock(MASTERS)
    app = FastAPI(lifespan=lifespan(redlock), exception_handlers=error_handlers())

`lifespan` and `error_handlers` also work for Starlette, which FastAPI is made of.
"""

import functools
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Unpack

from fastapi import Depends, params
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.websockets import WebSocket, WebSocketState

from redlock_aio import Lease, LockNotAcquiredError, Redlock
from redlock_aio._api.decorator import LockArguments
from redlock_aio.contrib._answers import answers, manager

__all__ = ("error_handlers", "lifespan", "lock_of")

Handler = Callable[[Request, Any], Coroutine[Any, Any, Response]]
Name = str | Callable[..., str | Awaitable[str]]

TRY_AGAIN_LATER = 1013
"""The code with which a WebSocket is closed."""


def lifespan(redlock: Redlock) -> Callable[[Any], AbstractAsyncContextManager[None]]:
    """
    Return a lifespan that opens *redlock* when the app starts, and closes it when it ends.

    An app with a lifespan of its own writes ``async with redlock:`` there. If the masters
    can't be reached, the app starts nevertheless.

    Raises:
        TypeError: *redlock* is no manager.
    """
    manager(redlock)

    @asynccontextmanager
    async def opened(_app: object) -> AsyncGenerator[None]:
        async with redlock:
            yield

    return opened


def lock_of(redlock: Redlock, name: Name, **options: Unpack[LockArguments]) -> params.Depends:
    """
    Return a dependency: a path operation runs under a lock, and gets the lease of it.

    ``lease: Annotated[Lease, lock_of(redlock, invoice, wait=1_000)]`` is a parameter of the
    path operation; where nobody needs the lease, ``dependencies=[lock_of(...)]`` does it. If
    the lease is lost, the operation is cancelled, and the answer is a 500: the work may be
    half done.

    The lock is released when the operation has returned, and before its response is sent. So
    a client that reads slowly does not keep the lock, and one that has its answer finds the
    lock free. Responses that are streamed, and background tasks, run without the lock.

    Args:
        redlock: The manager.

        name: What is locked: a name, or a function that returns one, ``async`` or not. The
            parameters of the function are those of a dependency, so
            ``def invoice(invoice_id: int) -> str`` gets the ``{invoice_id}`` of the path as
            an int.

        options: Those of `Redlock.lock`. A *wait* should be shorter than the timeout of what
            is in front of the service.

    Raises:
        TypeError, ValueError: *redlock* is no manager, or an option is invalid, as for
            `Redlock.lock`.
    """
    manager(redlock).lock("stand-in" if callable(name) else name, **options)  # checks the options
    naming = _named(name)

    async def held(name: str = Depends(naming)) -> AsyncGenerator[Lease]:
        async with redlock.lock(name, **options) as lease:
            yield lease

    # By default FastAPI would leave the block after the response: a loss that the release finds
    # could not be a 500 then, and the lock would be held for as long as the client reads.
    return params.Depends(held, scope="function")


def error_handlers(
    *, busy_for: int = 1, unavailable_for: int = 5
) -> dict[int | type[Exception], Handler]:
    """
    Return exception handlers, which answer 409, 429 or 503 to requests that get no lock.

    It is 409 if others hold the lock, 429 if others have all permits of a semaphore, and 503 if
    too few masters answer. All answers have a ``Retry-After``, and name neither resources nor
    masters. A `LockLostError` is left to the app: the work may be half done, so the answer is a
    500. A WebSocket that is accepted can't get such an answer: it is closed with the code 1013.

    Args:
        busy_for: The seconds after which to try again if others hold the lock or have all permits.

        unavailable_for: The seconds after which to try again if too few masters answer.

    Raises:
        TypeError, ValueError: An argument is no number of whole seconds.
    """
    answer = answers(busy_for, unavailable_for)

    async def handle(connection: Request | WebSocket, error: LockNotAcquiredError) -> Any:
        found = answer(error)
        if (
            isinstance(connection, WebSocket)
            and connection.application_state is WebSocketState.CONNECTED
        ):
            await connection.close(TRY_AGAIN_LATER, found.content["detail"])
            return None
        return JSONResponse(found.content, found.status, found.headers)

    return {LockNotAcquiredError: handle}


def _named(name: Name) -> Callable[..., Awaitable[str]]:
    """Return a dependency with the parameters of *name*, which returns the name to lock."""
    if not callable(name):

        async def fixed() -> str:
            return name

        return fixed
    naming = name

    @functools.wraps(naming)
    async def named(*args: Any, **kwargs: Any) -> str:
        found = naming(*args, **kwargs)  # FastAPI would run a plain function in a thread
        return await found if isinstance(found, Awaitable) else found

    return named
