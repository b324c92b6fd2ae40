"""
A lock in a service with Litestar: uvicorn litestar_service:app

`Redlock` is made with the module, and connected for as long as the app runs. Nothing catches
`LockLostError`: the work may be half done, so the answer is a 500.

docs/how-to/recipes.md explains it.
"""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from litestar import Litestar, Request, Response, post

from redlock_aio import LockNotAcquiredError, QuorumUnavailableError, Redlock

MASTERS = os.environ.get("REDLOCK_MASTERS", "redis://localhost:6379").split(",")

redlock = Redlock(MASTERS, key_prefix="billing:")


@asynccontextmanager
async def opened(_app: Litestar) -> AsyncGenerator[None]:
    async with redlock:
        yield


def busy(_request: Request, _error: LockNotAcquiredError) -> Response:
    return Response(
        {"detail": "it is being worked on"}, status_code=409, headers={"Retry-After": "1"}
    )


def unavailable(_request: Request, _error: QuorumUnavailableError) -> Response:
    detail = {"detail": "locks are not available"}
    return Response(detail, status_code=503, headers={"Retry-After": "5"})


# The handler acquires the lock, and no dependency: Litestar ends several dependencies with `yield`
# in tasks of their own, and a block has to be left by the task that has entered it.
@post("/invoices/{invoice_id:int}/send", status_code=200)
async def send(invoice_id: int) -> dict[str, int]:
    async with redlock.lock(f"invoice:{invoice_id}", ttl=5_000, wait=1_000) as lease:
        await asyncio.sleep(0.1)  # your work
        lease.ensure_valid()
    return {"sent": invoice_id}


app = Litestar(
    route_handlers=[send],
    lifespan=[opened],
    exception_handlers={LockNotAcquiredError: busy, QuorumUnavailableError: unavailable},
)
