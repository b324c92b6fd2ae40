"""
Tasks of Celery under a lock: celery -A celery_tasks worker

Celery may deliver a task twice, and starts a periodic one again while its last run goes on. The
lock lets one of them work at a time, on whatever host.

docs/how-to/recipes.md explains it.
"""

import os
import time

from celery import Celery

from redlock_aio import LockNotAcquiredError
from redlock_aio.sync import Redlock

MASTERS = os.environ.get("REDLOCK_MASTERS", "redis://localhost:6379").split(",")
BROKER = os.environ.get("BROKER", "redis://localhost:6379/1")

app = Celery("celery_tasks", broker=BROKER, backend=BROKER)
redlock = Redlock(MASTERS, key_prefix="lock:")  # each process of the pool connects on first use


@app.task
@redlock.locked("report:{name}", skip_if_locked=True)  # below the task: the worker acquires it
def make_report(name: str) -> str:
    time.sleep(0.1)  # your work
    return f"the report {name} is made"


# A task that gets no lock within a second gives its place in the worker to others, and is tried
# again later. After a LockLostError it is not: the work may be half done.
@app.task(autoretry_for=(LockNotAcquiredError,), retry_backoff=1, max_retries=None)
def send_invoice(invoice_id: int) -> str:
    with redlock.lock(f"invoice:{invoice_id}", wait=1_000) as lease:
        time.sleep(0.1)  # your work
        lease.ensure_valid()  # before each write: a thread is not cancelled by a loss
        return f"invoice {invoice_id} is sent"
