"""
Locks in an aiohttp app: a cleanup context, and answers to requests that get no lock.

    app = web.Application(middlewares=[lock_errors()])
    app.cleanup_ctx.append(cleanup_ctx(Redlock(MASTERS)))

A handler finds the manager in ``request.config_dict[REDLOCK]``.
"""

from collections.abc import AsyncIterator, Callable

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from redlock_aio import LockNotAcquiredError, Redlock
from redlock_aio.contrib._answers import answers, manager

__all__ = ("REDLOCK", "cleanup_ctx", "lock_errors")

REDLOCK: web.AppKey[Redlock] = web.AppKey("redlock", Redlock)
"""The key of the manager in an app."""


def cleanup_ctx(redlock: Redlock) -> Callable[[web.Application], AsyncIterator[None]]:
    """
    Return a cleanup context that opens *redlock* when the app starts, and closes it at its end.

    The manager is ``app[REDLOCK]`` then. If the masters can't be reached, the app starts
    nevertheless.

    Raises:
        TypeError: *redlock* is no manager.
    """
    manager(redlock)

    async def opened(app: web.Application) -> AsyncIterator[None]:
        async with redlock:
            app[REDLOCK] = redlock
            yield

    return opened


def lock_errors(*, busy_for: int = 1, unavailable_for: int = 5) -> Middleware:
    """
    Return a middleware, which answers 409, 429 or 503 to requests that get no lock.

    It is 409 if others hold the lock, 429 if others have all permits of a semaphore, and 503 if
    too few masters answer. All answers have a ``Retry-After``, and name neither resources nor
    masters. A `LockLostError` is left to the app: the work may be half done, so the answer is a
    500. An error of a handler that has begun its response is left to the app as well: aiohttp
    closes the connection then.

    Args:
        busy_for: The seconds after which to try again if others hold the lock or have all permits.

        unavailable_for: The seconds after which to try again if too few masters answer.

    Raises:
        TypeError, ValueError: An argument is no number of whole seconds.
    """
    answer = answers(busy_for, unavailable_for)

    @web.middleware
    async def respond(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except LockNotAcquiredError as error:
            # Another response would become a part of the body that the client is reading.
            if _has_begun(request):
                raise
            found = answer(error)
        return web.json_response(found.content, status=found.status, headers=found.headers)

    return respond


def _has_begun(request: web.Request) -> bool:
    """Return whether a part of the response was sent."""
    sent: object = request.writer.output_size
    return isinstance(sent, int) and sent > 0  # a request for tests has a mock there
