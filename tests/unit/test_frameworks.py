"""`redlock_aio.contrib`: what apps of FastAPI and aiohttp answer, and when they are open."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Annotated, Any

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from fastapi import FastAPI
from httpx import ASGITransport, AsyncClient

from redlock_aio import Lease, Lock, Redlock, Semaphore, sync
from redlock_aio.contrib import aiohttp as for_aiohttp, fastapi as for_fastapi
from redlock_aio.testing import FakeMaster

from .kit import check_freed, delete, hang, locks


@pytest.fixture
def redlock(masters: list[FakeMaster]) -> Redlock:
    return Redlock(masters, restart_guard="off")


def invoice(invoice_id: int) -> str:
    return f"invoice:{invoice_id}"


async def account(account_id: int) -> str:
    await asyncio.sleep(0.01)  # as a query does
    return f"account:{account_id}"


@pytest.fixture
async def seen() -> list[object]:
    return []


@pytest.fixture
async def client(
    redlock: Redlock, masters: list[FakeMaster], seen: list[object]
) -> AsyncIterator[AsyncClient]:
    """Open a client of an app with the dependency, the lifespan and the handlers."""
    app = FastAPI(
        lifespan=for_fastapi.lifespan(redlock), exception_handlers=for_fastapi.error_handlers()
    )
    of_invoice = for_fastapi.lock_of(redlock, invoice, wait=50)

    @app.post("/{invoice_id}")
    async def send(invoice_id: int, lease: Annotated[Lease, of_invoice]) -> list[str]:
        assert lease.valid
        seen.append(invoice_id)
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise
        seen.append([*locks(masters)])
        return list(lease.resources)

    @app.put("/all")
    async def all_of_them(
        lease: Annotated[Lease, for_fastapi.lock_of(redlock, "all", fencing=True)],
    ) -> bool:
        return lease.fencing_token > 0

    @app.put("/accounts/{account_id}")
    async def count(
        account_id: int, lease: Annotated[Lease, for_fastapi.lock_of(redlock, account)]
    ) -> bool:
        return lease.resources == (f"account:{account_id}",)

    @app.delete("/all", dependencies=[for_fastapi.lock_of(redlock, "all")])
    async def lose_all_of_them() -> None:
        delete(masters, "all")

    async def watched(scope: Any, receive: Any, send: Any) -> None:
        async def sent(message: Any) -> None:
            held = sum("all" in master.keys for master in masters)
            seen.append((message["type"], held > 2))
            await send(message)

        await app(scope, receive, sent if scope["path"] == "/all" else send)

    transport = ASGITransport(watched, raise_app_exceptions=False)
    assert repr(redlock) == "<Redlock 5 masters, not used yet>"
    async with (
        app.router.lifespan_context(app),
        AsyncClient(transport=transport, base_url="http://x") as client,
    ):
        assert "5 up" in repr(redlock)
        yield client
    assert repr(redlock) == "<Redlock 5 masters, closed>"
    await check_freed(masters)


async def test_a_request_is_served_under_the_lock_of_its_parameter(
    client: AsyncClient, seen: list[object]
) -> None:
    """The name is made of the converted value: /042 and /42 are one invoice."""
    requests = [client.post(path) for path in ("/42", "/042", "/43", "/x")]
    answers = await asyncio.gather(*requests)
    assert [answer.status_code for answer in answers] == [200, 409, 200, 422]
    assert answers[0].json() == ["invoice:42"]
    assert answers[1].headers["Retry-After"] == "1"
    assert answers[1].json() == {"detail": "it is being worked on"}
    assert seen[:2] == [42, 43]
    assert sorted(seen[2]) == ["invoice:42", "invoice:43"]  # type: ignore[call-overload]
    assert (await client.post("/042")).json() == ["invoice:42"]


async def test_a_request_without_a_majority_is_answered_by_503(
    client: AsyncClient, masters: list[FakeMaster]
) -> None:
    hang(masters[:3])
    answer = await client.post("/42")
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
    assert answer.json() == {"detail": "locks are not available"}


async def test_a_loss_cancels_the_request_and_is_a_500(
    client: AsyncClient, redlock: Redlock, seen: list[object]
) -> None:
    request = asyncio.create_task(client.post("/42"))
    await asyncio.sleep(0.5)
    await redlock.force_release("invoice:42")
    assert (await request).status_code == 500
    assert seen == [42, "cancelled"]


async def test_the_lock_is_released_before_the_response_is_sent(
    client: AsyncClient, seen: list[object]
) -> None:
    """A client that reads slowly keeps no lock, and one that has its answer can go on."""
    assert (await client.put("/all")).json() is True
    assert seen == [("http.response.start", False), ("http.response.body", False)]


async def test_a_loss_that_the_release_finds_is_a_500(client: AsyncClient) -> None:
    assert (await client.delete("/all")).status_code == 500


async def test_a_name_may_come_from_a_coroutine_function(client: AsyncClient) -> None:
    assert (await client.put("/accounts/042")).json() is True


NAMING = """
from __future__ import annotations
from typing import Annotated
from fastapi import Query

Number = Annotated[int, Query(alias="n")]

def number(of: Number) -> str:
    return f"number:{of}"
"""


async def test_the_annotations_of_a_name_may_be_texts(redlock: Redlock) -> None:
    """They are those of the module with the function, not of the library's."""
    module: dict[str, Any] = {}
    exec(NAMING, module)
    app = FastAPI()

    @app.get("/")
    async def get(
        lease: Annotated[Lease, for_fastapi.lock_of(redlock, module["number"])],
    ) -> list[str]:
        return list(lease.resources)

    async with redlock, AsyncClient(transport=ASGITransport(app), base_url="http://app") as client:
        assert (await client.get("/", params={"n": 7})).json() == ["number:7"]


async def test_tests_can_override_the_dependency(redlock: Redlock) -> None:
    of_invoice = for_fastapi.lock_of(redlock, invoice)
    app = FastAPI()

    @app.post("/")
    async def send(lease: Annotated[str, of_invoice]) -> str:
        return lease

    async def instead() -> str:
        return "no lease"

    assert of_invoice.dependency is not None
    app.dependency_overrides[of_invoice.dependency] = instead
    async with AsyncClient(transport=ASGITransport(app), base_url="http://x") as client:
        assert (await client.post("/")).json() == "no lease"


def test_the_options_of_a_dependency_are_checked_when_it_is_made(redlock: Redlock) -> None:
    for name in ("r", invoice):
        with pytest.raises(TypeError, match="no option 'timeout'"):
            for_fastapi.lock_of(redlock, name, timeout=3)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="resource must have"):
        for_fastapi.lock_of(redlock, "")
    with pytest.raises(ValueError, match="permits must be from 1 to 1000, not 0"):
        for_fastapi.lock_of(redlock, invoice, permits=0)


async def test_as_many_requests_are_served_at_once_as_there_are_permits(redlock: Redlock) -> None:
    app = FastAPI(exception_handlers=for_fastapi.error_handlers())

    @app.post("/")
    async def call(
        lease: Annotated[Lease, for_fastapi.lock_of(redlock, "api", permits=2, wait=50)],
    ) -> int | None:
        await asyncio.sleep(1)
        return lease.permit

    transport = ASGITransport(app)
    async with redlock, AsyncClient(transport=transport, base_url="http://x") as client:
        served = await asyncio.gather(*(client.post("/") for _ in range(3)))
        assert sorted(answer.status_code for answer in served) == [200, 200, 429]
        assert {answer.json() for answer in served if answer.status_code == 200} == {0, 1}
        assert (await client.post("/")).status_code == 200


async def test_an_aiohttp_app_opens_and_closes_the_manager(redlock: Redlock) -> None:
    app = web.Application(middlewares=[for_aiohttp.lock_errors()])
    app.cleanup_ctx.append(for_aiohttp.cleanup_ctx(redlock))
    runner = web.AppRunner(app)
    await runner.setup()
    assert app[for_aiohttp.REDLOCK] is redlock
    assert "5 up" in repr(redlock)
    await runner.cleanup()
    assert repr(redlock) == "<Redlock 5 masters, closed>"


@pytest.mark.parametrize(
    ("case", "status", "after"), [("held", 409, "7"), ("full", 429, "7"), ("away", 503, "8")]
)
async def test_the_middleware_of_aiohttp_answers_for_locks(
    redlock: Redlock, other: Redlock, masters: list[FakeMaster], case: str, status: int, after: str
) -> None:
    def wanted(manager: Redlock) -> Lock | Semaphore:
        if case == "full":
            return manager.semaphore("r", permits=2, wait=0)
        return manager.lock("r", wait=0)

    async def handler(_request: web.Request) -> web.StreamResponse:
        async with wanted(redlock):
            return web.Response()

    respond: Any = for_aiohttp.lock_errors(busy_for=7, unavailable_for=8)
    request = make_mocked_request("GET", "/")
    async with redlock, other, AsyncExitStack() as held:
        assert (await respond(request, handler)).status == 200
        if case == "away":
            hang(masters)
        else:
            for _ in range(2 if case == "full" else 1):
                await held.enter_async_context(wanted(other))
        response = await respond(request, handler)
    assert (response.status, response.headers["Retry-After"]) == (status, after)
    assert b"m0" not in response.body


@pytest.mark.parametrize("make", [for_fastapi.error_handlers, for_aiohttp.lock_errors])
@pytest.mark.parametrize("name", ["busy_for", "unavailable_for"])
def test_a_wrong_time_is_named(make: Any, name: str) -> None:
    for wrong in ("1", 1.5, True, None):
        with pytest.raises(TypeError, match=f"^{name} must be a number of whole seconds, not "):
            make(**{name: wrong})
    with pytest.raises(ValueError, match=f"^{name} must be 0 or more seconds, not -1$"):
        make(**{name: -1})


@pytest.mark.parametrize(
    "use",
    [
        for_fastapi.lifespan,
        for_aiohttp.cleanup_ctx,
        lambda redlock: for_fastapi.lock_of(redlock, "r"),
    ],
    ids=["lifespan", "cleanup_ctx", "lock_of"],
)
def test_a_service_needs_a_manager_of_asyncio(use: Any, masters: list[FakeMaster]) -> None:
    for wrong in (None, ["redis://a"], Redlock, sync.Redlock(masters)):
        with pytest.raises(TypeError, match=r"^redlock must be a redlock_aio\.Redlock, not "):
            use(wrong)
