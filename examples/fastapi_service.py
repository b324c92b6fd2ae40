"""
One lock manager for a web service: uvicorn fastapi_service:app

`Redlock` is made with the module, and connected for as long as the app runs. Nothing catches
`LockLostError`: the work may be half done, so the answer is a 500.

docs/how-to/fastapi.md explains it.
"""

import asyncio
import os
from typing import Annotated

from fastapi import FastAPI

from redlock_aio import Lease, Redlock
from redlock_aio.contrib.fastapi import error_handlers, lifespan, lock_of

MASTERS = os.environ.get("REDLOCK_MASTERS", "redis://localhost:6379").split(",")

redlock = Redlock(MASTERS, key_prefix="billing:")
app = FastAPI(lifespan=lifespan(redlock), exception_handlers=error_handlers())


def invoice(invoice_id: int) -> str:
    return f"invoice:{invoice_id}"


Locked = Annotated[Lease, lock_of(redlock, invoice, ttl=5_000, wait=1_000)]


@app.post("/invoices/{invoice_id}/send")
async def send(invoice_id: int, lease: Locked) -> dict[str, int]:
    await asyncio.sleep(0.1)  # your work
    lease.ensure_valid()
    return {"sent": invoice_id}


@app.get("/ready")
async def ready() -> dict[str, str]:
    await redlock.check(wait=500)  # if no majority votes, `error_handlers` makes it a 503
    return {"status": "ready"}
