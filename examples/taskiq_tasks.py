"""
Tasks of taskiq under a lock: taskiq worker taskiq_tasks:broker, with your broker.

A task that gets no lock within a second gives its place in the worker to others, and is sent
again. A timeout of taskiq cancels the task, and that releases its lock.

docs/how-to/recipes.md explains it.
"""

import asyncio
import os

from taskiq import InMemoryBroker, SimpleRetryMiddleware, TaskiqEvents, TaskiqState

from redlock_aio import LockNotAcquiredError, Redlock

MASTERS = os.environ.get("REDLOCK_MASTERS", "redis://localhost:6379").split(",")

# Here is your broker: this one runs the tasks in the program that sends them.
broker = InMemoryBroker().with_middlewares(
    SimpleRetryMiddleware(default_retry_count=100, types_of_exceptions=(LockNotAcquiredError,))
)
redlock = Redlock(MASTERS, key_prefix="lock:")  # it connects on first use


@broker.on_event(TaskiqEvents.WORKER_SHUTDOWN)
async def close(_state: TaskiqState) -> None:
    await redlock.aclose()


@broker.task
@redlock.locked("report:{name}", skip_if_locked=True)  # below the task: the worker acquires it
async def make_report(name: str) -> str | None:
    await asyncio.sleep(0.1)  # your work
    return f"the report {name} is made"


@broker.task(retry_on_error=True, timeout=60)
async def send_invoice(invoice_id: int) -> str:
    async with redlock.lock(f"invoice:{invoice_id}", wait=1_000) as lease:
        await asyncio.sleep(0.1)  # your work
        lease.ensure_valid()
        return f"invoice {invoice_id} is sent"
