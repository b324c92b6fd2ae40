"""A web response that has begun when its handler gets no lock: no second one follows it."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from fastapi import FastAPI, WebSocket
from fastapi.responses import StreamingResponse

from redlock_aio import Redlock
from redlock_aio.contrib import aiohttp as for_aiohttp, fastapi as for_fastapi
from redlock_aio.testing import FakeMaster

pytestmark = pytest.mark.integration


@pytest.fixture
async def redlock() -> AsyncIterator[Redlock]:
    """Return a manager whose lock "taken" is held."""
    masters = [FakeMaster(f"m{number}") for number in range(3)]
    async with Redlock(masters, restart_guard="off") as redlock:
        lease = await redlock.lock("taken").acquire()
        yield redlock
        await lease.release()


async def exchanged(app: web.Application, path: str) -> bytes:
    """Return all bytes that a server of *app* sends for one request, until it closes."""
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        reader, writer = await asyncio.open_connection(*runner.addresses[0][:2])
        writer.write(b"GET %b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % path.encode())
        async with asyncio.timeout(60):
            found = await reader.read()
        writer.close()
        return found
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("writes", [False, True], ids=["headers sent", "body begun"])
async def test_aiohttp_ends_a_response_that_has_begun(
    redlock: Redlock, writes: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        if writes:
            await response.write(b"half of it")
        async with redlock.lock("taken", wait=0):
            raise AssertionError

    app = web.Application(middlewares=[for_aiohttp.lock_errors()])
    app.router.add_get("/", stream)
    with caplog.at_level(logging.CRITICAL, "aiohttp"):
        found = await exchanged(app, "/")
    assert found.startswith(b"HTTP/1.1 200 OK\r\n")
    assert found.count(b"HTTP/1.1") == 1
    # Without the last chunk the client learns that the response is not complete.
    assert not found.endswith(b"0\r\n\r\n")


async def test_aiohttp_answers_where_no_response_has_begun(redlock: Redlock) -> None:
    async def take(_request: web.Request) -> web.StreamResponse:
        async with redlock.lock("taken", wait=0):
            raise AssertionError

    app = web.Application(middlewares=[for_aiohttp.lock_errors()])
    app.router.add_get("/", take)
    found = await exchanged(app, "/")
    assert found.startswith(b"HTTP/1.1 409 ")
    assert b"Retry-After: 1\r\n" in found


async def serve(app: FastAPI, sent: list[dict[str, Any]], **scope: Any) -> None:
    """Run *app* for one connection whose client stays, and note what it has *sent*."""
    came = [{"type": "websocket.connect"}] if scope["type"] == "websocket" else []

    async def receive() -> Any:
        return came.pop() if came else await asyncio.get_running_loop().create_future()

    async def send(message: Any) -> None:
        sent.append(message)

    always = {
        "asgi": {"version": "3.0"}, "path": "/", "raw_path": b"/", "query_string": b"",
        "headers": [], "scheme": "http", "server": ("x", 80), "client": ("x", 1), "root_path": "",
    }  # fmt: skip
    await app({**always, **scope}, receive, send)


async def test_fastapi_ends_a_response_that_has_begun(redlock: Redlock) -> None:
    app = FastAPI(exception_handlers=for_fastapi.error_handlers())

    async def parts() -> AsyncIterator[bytes]:
        yield b"half of it"
        async with redlock.lock("taken", wait=0):
            raise AssertionError

    @app.get("/")
    async def stream() -> StreamingResponse:
        return StreamingResponse(parts())

    sent: list[dict[str, Any]] = []
    with pytest.raises((RuntimeError, ExceptionGroup)):  # so the server closes the connection
        await serve(app, sent, type="http", http_version="1.1", method="GET")
    assert [each["type"] for each in sent] == ["http.response.start", "http.response.body"]
    assert sent[0]["status"] == 200


@pytest.mark.parametrize("accepts", [False, True], ids=["asked for", "accepted"])
async def test_fastapi_closes_a_websocket_that_is_accepted(redlock: Redlock, accepts: bool) -> None:
    """A response of HTTP is no answer then; ASGI forbids it."""
    app = FastAPI(exception_handlers=for_fastapi.error_handlers())

    @app.websocket("/")
    async def talk(websocket: WebSocket) -> None:
        if accepts:
            await websocket.accept()
        async with redlock.lock("taken", wait=0):
            raise AssertionError

    sent: list[dict[str, Any]] = []
    extensions: dict[str, Any] = {"websocket.http.response": {}}
    await serve(app, sent, type="websocket", subprotocols=[], extensions=extensions)
    if accepts:
        assert [each["type"] for each in sent] == ["websocket.accept", "websocket.close"]
        assert (sent[1]["code"], sent[1]["reason"]) == (1013, "it is being worked on")
    else:
        assert sent[0]["type"] == "websocket.http.response.start"
        assert sent[0]["status"] == 409
