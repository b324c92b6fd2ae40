"""
One lock manager for a web service with aiohttp: python -m aiohttp.web aiohttp_service:make_app

`Redlock` is opened when the app starts, and closed when it ends. Nothing catches
`LockLostError`: the work may be half done, so the answer is a 500.

docs/how-to/aiohttp.md explains it.
"""

import asyncio
import os

from aiohttp import web

from redlock_aio import Redlock
from redlock_aio.contrib.aiohttp import REDLOCK, cleanup_ctx, lock_errors

MASTERS = os.environ.get("REDLOCK_MASTERS", "redis://localhost:6379").split(",")


async def send(request: web.Request) -> web.Response:
    invoice_id = int(request.match_info["invoice_id"])
    redlock = request.app[REDLOCK]
    async with redlock.lock(f"invoice:{invoice_id}", ttl=5_000, wait=1_000) as lease:
        await asyncio.sleep(0.1)  # your work
        lease.ensure_valid()
    return web.json_response({"sent": invoice_id})


async def ready(request: web.Request) -> web.Response:
    await request.app[REDLOCK].check(wait=500)  # if no majority votes, `lock_errors` answers 503
    return web.json_response({"status": "ready"})


def make_app(_argv: list[str] | None = None) -> web.Application:
    app = web.Application(middlewares=[lock_errors()])
    app.cleanup_ctx.append(cleanup_ctx(Redlock(MASTERS, key_prefix="billing:")))
    app.router.add_post(r"/invoices/{invoice_id:\d+}/send", send)
    app.router.add_get("/ready", ready)
    return app
