"""
One lock manager for a web service: uvicorn fastapi_service:app

`Redlock` is made with the module, and connected for as long as the app runs. No handler
catches `LockLostError`: the work may be half done, so the answer is a 500.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from redlock_aio import LockNotAcquiredError, QuorumUnavailableError, Redlock

MASTERS = os.environ.get("REDLOCK_MASTERS", "redis://localhost:6379").split(",")

redlock = Redlock(MASTERS, key_prefix="billing:")


@asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
    async with redlock:
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/invoices/{invoice_id}/send")
async def send(invoice_id: int) -> dict[str, int]:
    async with redlock.lock(f"invoice:{invoice_id}", ttl=5_000, wait=1_000) as lease:
        await asyncio.sleep(0.1)  # your work
        lease.ensure_valid()
        return {"sent": invoice_id}


@app.get("/ready")
async def ready() -> dict[str, str]:
    await redlock.check(timeout=500)  # if no majority votes, `unavailable` makes it a 503
    return {"status": "ready"}


@app.exception_handler(LockNotAcquiredError)
async def busy(_request: Request, error: LockNotAcquiredError) -> JSONResponse:
    detail = f"{error.resources[0]} is being worked on"
    return JSONResponse({"detail": detail}, status_code=409, headers={"Retry-After": "1"})


@app.exception_handler(QuorumUnavailableError)
async def unavailable(_request: Request, _error: QuorumUnavailableError) -> JSONResponse:
    # The error's text names the masters: for your log, not for your callers.
    detail = "locks are not available"
    return JSONResponse({"detail": detail}, status_code=503, headers={"Retry-After": "5"})
