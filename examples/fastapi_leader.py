"""
A web service of several hosts, one of which leads: uvicorn fastapi_leader:app

Each host serves requests. In the background it is a candidate, and watches who leads.

docs/how-to/fastapi.md explains it.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncGenerator

from fastapi import FastAPI

from redlock_aio import Redlock, Term

MASTERS = os.environ.get("REDLOCK_MASTERS", "redis://localhost:6379").split(",")
NAME = os.environ.get("HOST_NAME")  # by default host and process

redlock = Redlock(MASTERS, key_prefix="billing:", name=NAME)
election = redlock.election("leader", ttl=5_000)
log = logging.getLogger("leader")


async def lead(term: Term) -> None:
    """Do what one host does for all."""
    while True:
        term.ensure_valid()  # before each write
        await asyncio.sleep(1)  # your work, which passes on `term.number`


async def campaign() -> None:
    """Lead whenever this host is the leader."""
    while True:
        try:
            async for term in election:
                async with term:
                    await lead(term)
        except Exception:  # of the work: this host has stood down, and another one leads
            log.exception("this host is no candidate for a second")
            await asyncio.sleep(1)


async def observe() -> None:
    """Keep the name of the leader that was seen last; by now another host may lead."""
    async for state in redlock.watch("leader"):
        app.state.seen = state.holder.name if state.holder else None


@contextlib.asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncGenerator[None]:
    async with redlock:
        tasks = [asyncio.create_task(campaign()), asyncio.create_task(observe())]
        try:
            yield
        finally:  # the leader stands down, and another host leads at once
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


app = FastAPI(lifespan=lifespan)
app.state.seen = None


@app.get("/leader")
async def leader() -> dict[str, object]:
    return {"leading": election.leading, "seen": app.state.seen}
