"""
Jobs of arq under a lock: arq arq_worker.WorkerSettings

A worker that is stopped (SIGTERM) or a job that takes longer than `job_timeout` cancels the job,
and that releases its lock.

docs/how-to/recipes.md explains it.
"""

import asyncio
import os
from typing import Any

from arq import Retry
from arq.connections import RedisSettings

from redlock_aio import LockNotAcquiredError, Redlock

MASTERS = os.environ.get("REDLOCK_MASTERS", "redis://localhost:6379").split(",")
BROKER = os.environ.get("BROKER", "redis://localhost:6379/1")

redlock = Redlock(MASTERS, key_prefix="lock:")  # it connects on first use


async def send_invoice(_context: dict[str, Any], invoice_id: int) -> str:
    try:
        async with redlock.lock(f"invoice:{invoice_id}", wait=1_000) as lease:
            await asyncio.sleep(0.1)  # your work
            lease.ensure_valid()
            return f"invoice {invoice_id} is sent"
    except LockNotAcquiredError as error:  # others work on it: try again later
        raise Retry(defer=1) from error


@redlock.locked("report:{name}", skip_if_locked=True)
async def make_report(_context: dict[str, Any], name: str) -> str:
    await asyncio.sleep(0.1)  # your work
    return f"the report {name} is made"


async def close(_context: dict[str, Any]) -> None:
    await redlock.aclose()


class WorkerSettings:
    functions = (make_report, send_invoice)
    redis_settings = RedisSettings.from_dsn(BROKER)
    on_shutdown = close
    job_timeout = 60  # seconds
    max_tries = 100
