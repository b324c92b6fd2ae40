"""
A view of Flask under a lock: flask --app flask_site run

Try it: curl --request POST http://localhost:5000/invoices/42/send

Nothing catches `LockLostError`: the work may be half done, so the answer is a 500.

docs/how-to/recipes.md explains it.
"""

import os
import time

from flask import Flask

from redlock_aio import LockNotAcquiredError, QuorumUnavailableError
from redlock_aio.sync import Redlock

MASTERS = os.environ.get("REDLOCK_MASTERS", "redis://localhost:6379").split(",")

Answer = tuple[dict[str, str], int, dict[str, str]]

app = Flask(__name__)
redlock = Redlock(MASTERS, key_prefix="billing:")  # it connects on first use


@app.errorhandler(LockNotAcquiredError)
def busy(_error: LockNotAcquiredError) -> Answer:
    return {"detail": "it is being worked on"}, 409, {"Retry-After": "1"}


@app.errorhandler(QuorumUnavailableError)  # a LockNotAcquiredError too: the nearer class decides
def unavailable(_error: QuorumUnavailableError) -> Answer:
    return {"detail": "locks are not available"}, 503, {"Retry-After": "5"}


@app.post("/invoices/<int:invoice_id>/send")
def send(invoice_id: int) -> dict[str, int]:
    with redlock.lock(f"invoice:{invoice_id}", ttl=5_000, wait=1_000) as lease:
        time.sleep(0.1)  # your work
        lease.ensure_valid()  # before each write: a thread is not cancelled by a loss
    return {"sent": invoice_id}
