"""The recipes of examples/ for web frameworks that have no module of their own."""

import ast
import asyncio
import re
import signal
import socket
import tempfile
from pathlib import Path

import httpx
import pytest

from redlock_aio import Redlock

from .helpers import RealMaster, gone, until
from .recipes import EXAMPLES, Place, need, running

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("members")]

DJANGO = """
import time
from concurrent.futures import ThreadPoolExecutor
import django_site
from django.db import connection
from django.test import Client
from redlock_aio import LockLostError

def count(account=42):
    answer = Client().post(f"/accounts/{account}/count")
    return answer.status_code, answer.headers.get("Retry-After")

def total(account=42):
    with connection.cursor() as cursor:
        return cursor.execute("SELECT total FROM account WHERE id = %s", [account]).fetchone()[0]

def lose_at_the_update(execute, sql, params, many, context):
    result = execute(sql, params, many, context)
    if sql.startswith("UPDATE"):
        django_site.redlock.force_release("account:42")
        while django_site.redlock.statistics().leases:
            time.sleep(0.01)
    return result

with connection.cursor() as cursor:
    cursor.execute("CREATE TABLE account (id INTEGER, total INTEGER)")
    cursor.execute("INSERT INTO account VALUES (42, 0), (43, 0)")
print("GET:", Client().get("/accounts/42/count").status_code)
with ThreadPoolExecutor() as pool:
    at_once = [pool.submit(count) for _ in range(3)]
    print("at once:", {one.result() for one in at_once}, "total:", total())
print("held by others:", count(43), "total:", total(43))
with connection.execute_wrapper(lose_at_the_update):
    try:
        Client().post("/accounts/42/count")
    except LockLostError as error:
        print(error, "total:", total())
"""

LOSS_IN_FLASK = """
import time, types
import flask_site

def work(_seconds):
    flask_site.redlock.force_release("invoice:42")
    while flask_site.redlock.statistics().leases:
        time.sleep(0.01)

flask_site.time = types.SimpleNamespace(sleep=work)
print("answer:", flask_site.app.test_client().post("/invoices/42/send").status_code)
"""


@pytest.fixture(scope="session")
def kind() -> str:
    return "valkey"  # what a recipe does depends on no kind of server


async def test_django(redlock: Redlock, masters: list[RealMaster], tmp_path: Path) -> None:
    """A lost lease rolls the transaction back, and requests without a lock get their answers."""
    need("django")
    async with (
        redlock.lock("lock:account:43"),
        running("-c", DJANGO, at=Place(masters, tmp_path)) as site,
    ):
        assert await site.ends() == 0, site.output
    for line in (
        "GET: 405",
        "at once: {(200, None)} total: 3",
        "held by others: (409, '1') total: 0",
    ):
        assert line in site.output.splitlines(), site.output
    lost = r"^'account:42' lost: it was released by force.* total: 3$"
    assert re.search(lost, site.output, re.MULTILINE), site.output


async def test_the_site_of_django_works_as_its_docstring_says(
    masters: list[RealMaster], tmp_path: Path
) -> None:
    need("django")
    program = EXAMPLES / "django_site.py"
    docstring = ast.get_docstring(ast.parse(program.read_text())) or ""
    assert "python django_site.py runserver\n" in docstring
    assert "curl --request POST http://localhost:8000/accounts/42/count" in docstring
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        at = f"127.0.0.1:{free.getsockname()[1]}"
    arguments = (str(program), "runserver", "--noreload", at)
    async with (
        running("-u", *arguments, at=Place(masters, tmp_path)) as site,
        httpx.AsyncClient(base_url=f"http://{at}", timeout=60) as client,
    ):
        await site.says("Quit the server")
        await until(lambda: _listens(at))
        for total in (1, 2):
            answer = await client.post("/accounts/42/count")
            assert (answer.status_code, answer.json()) == (200, {"total": total}), site.output
        assert (await client.post("/accounts/7/count")).status_code == 404


def _listens(at: str) -> bool:
    host, _, port = at.partition(":")
    with socket.socket() as one:
        return one.connect_ex((host, int(port))) == 0


async def _sends_an_invoice(
    client: httpx.AsyncClient, redlock: Redlock, masters: list[RealMaster]
) -> None:
    """One request at a time sends it; 409 while others hold its lock, 503 without a majority."""
    answers = await asyncio.gather(*(client.post("/invoices/42/send") for _ in range(2)))
    assert [answer.json() for answer in answers] == [{"sent": 42}, {"sent": 42}]
    async with redlock.lock("billing:invoice:42"):
        answer = await client.post("/invoices/42/send")
        assert (answer.status_code, answer.headers["Retry-After"]) == (409, "1")
    for master in masters[:3]:
        master.kill()
    answer = await client.post("/invoices/42/send")
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")


async def test_flask(redlock: Redlock, masters: list[RealMaster], tmp_path: Path) -> None:
    need("flask")
    docstring = ast.get_docstring(ast.parse((EXAMPLES / "flask_site.py").read_text())) or ""
    assert "flask --app flask_site run\n" in docstring
    assert "curl --request POST http://localhost:5000/invoices/42/send" in docstring
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ("-m", "flask", "--app", "flask_site", "run", "--port", str(port))
    async with (
        running(*command, at=Place(masters, tmp_path)) as site,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
    ):
        await site.says("Running on")
        await _sends_an_invoice(client, redlock, masters)
        await site.ends(signal.SIGINT)
    await until(lambda: gone(masters[3:], "billing:invoice:42"))


async def test_a_loss_is_a_500_of_flask(masters: list[RealMaster], tmp_path: Path) -> None:
    need("flask")
    async with running("-c", LOSS_IN_FLASK, at=Place(masters, tmp_path)) as site:
        assert await site.ends() == 0, site.output
    assert "LockLostError: 'invoice:42' lost: it was released by force" in site.output
    assert site.output.endswith("answer: 500\n"), site.output


async def test_litestar(redlock: Redlock, masters: list[RealMaster], tmp_path: Path) -> None:
    need("litestar")
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/http"  # a path of pytest's may be too long for a socket
        command = ("-m", "uvicorn", "litestar_service:app", "--ws", "none", "--uds", path)
        transport = httpx.AsyncHTTPTransport(uds=path)
        async with (
            running(*command, at=Place(masters, tmp_path)) as service,
            httpx.AsyncClient(transport=transport, base_url="http://x", timeout=60) as client,
        ):
            await service.says("Uvicorn running")
            await _sends_an_invoice(client, redlock, masters)
            assert await service.ends(signal.SIGTERM) in {0, -signal.SIGTERM}, service.output
            assert "Application shutdown complete" in service.output
    await until(lambda: gone(masters[3:], "billing:invoice:42"))
