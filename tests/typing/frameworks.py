"""Uses of `redlock_aio.contrib`, which the type checkers read and nothing runs."""

from typing import Annotated

from aiohttp import web
from fastapi import FastAPI

from redlock_aio import Lease, Redlock
from redlock_aio.contrib.aiohttp import REDLOCK, cleanup_ctx, lock_errors
from redlock_aio.contrib.fastapi import error_handlers, lifespan, lock_of

redlock = Redlock(["redis://a"])
api = FastAPI(lifespan=lifespan(redlock), exception_handlers={**error_handlers(busy_for=2)})
app = web.Application(middlewares=[lock_errors(unavailable_for=3)])
app.cleanup_ctx.append(cleanup_ctx(redlock))
from_app: Redlock = app[REDLOCK]


def invoice(invoice_id: int) -> str:
    return f"invoice:{invoice_id}"


async def account(account_id: int) -> str:
    return f"account:{account_id}"


async def operation(
    lease: Annotated[Lease, lock_of(redlock, invoice, wait=1_000)],
    other: Annotated[Lease, lock_of(redlock, account)],
    third: Annotated[Lease, lock_of(redlock, "all")],
    fourth: Annotated[Lease, lock_of(redlock, "api", permits=5)],
) -> None: ...


def refused() -> None:
    # Uses that a checker must refuse: an unneeded ignore is an error.
    lock_of(redlock, "all", timeout=10)  # type: ignore[call-arg]
    lock_of(redlock, "all", wait=0.5)  # type: ignore[arg-type]
