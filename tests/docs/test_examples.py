"""Every example runs, on real servers, as a user would run it."""

import ast
import asyncio
import importlib.util
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiohttp.test_utils import TestServer

import redlock_aio
import redlock_aio.contrib.aiohttp
import redlock_aio.contrib.fastapi
import redlock_aio.events
import redlock_aio.fencing
import redlock_aio.sync
import redlock_aio.testing
from redlock_aio import Redlock
from redlock_aio.testing import EmbeddedMaster, FakeMaster, VirtualTimeLoop

pytestmark = pytest.mark.integration

Run = Callable[..., subprocess.CompletedProcess[str]]

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
OUTPUT = {
    "api_limit.py": (
        r"sunny in Oslo\nsunny in Rome\n"
        r"11 calls, 5 a second, took 2 seconds or more: True\n"
        r"permit 0 is held\nbusy: answer 429\n"
        r"not in time, held by \{'job': 'reports'\}\n"
        r"called\n"
    ),
    "decorated.py": (
        r"(invoice 42 is being sent\ninvoice 42 is sent\n){2}"
        r"ada has 50\n"
        r"cleaned up; the second call returned None\n"
    ),
    "aiohttp_service.py": "",
    "fastapi_leader.py": "",
    "fastapi_service.py": "",
    "fenced_writes.py": (
        r"sent, with token (?P<first>\d+)\n"
        r"cancelled, with token (?P<second>\d+)\n"
        r"Redis: 'fenced:42' not written: token (?P=first) is stale, (?P=second) has been seen"
        r" \[stale-token\]\n"
        r"SQL: 'fenced:42' not written: token (?P=first) is stale, a higher one has been seen"
        r" \[stale-token\]\n"
        r"Redis says: cancelled\nSQL says: cancelled\n"
    ),
    "first_lock.py": r"(invoice 42: nobody else works on it; \d+ ms are left\n){2}",
    "hand_over.py": (
        r"202 sales is being made, with token (?P<token>\d+)\n"
        r"409 sales is being made already\n"
        r"sales is made, with token (?P=token)\n"
        r"and free again\n"
    ),
    "losing_a_lease.py": (
        r"the body was cancelled: .*\n"
        r"after the block: 'report' lost: .*\n"
        r"\d+ writes, then ensure_valid\(\) raised: 'ledger' lost: .*\n"
    ),
    "leader.py": r"(.* leads, term (?P<term>\d+)\n)(.* leads, term (?P=term)\n){2}",
    "metrics.py": (
        r"Acquired: 1, Extended: [2-4], Missed: 1, Released: 1, Waiting: 1\n"
        r"waited up to \d+ ms: \d(, up to [\d,]+ ms: 1)?\nheld up to 1,000 ms: 1\n"
        r"smallest margin: \d+ ms\n"
    ),
    "one_host_only.py": r"cleaning up\n",
    "paused_holder.py": (
        r"first: has the lock, with token (?P<first>\d+)\n"
        r"first: is stopped\n"
        r"second: has the lock, with token (?P<second>\d+)\n"
        r"second: has written\n"
        r"first: goes on and writes\n"
        r"first: 'ledger:paused' not written: token (?P=first) is stale, (?P=second) .*\n"
        r"the last to write without the fence: first\n"
        r"the last to write through the fence: second\n"
    ),
    "readers_and_writers.py": (
        r"(search [12] reads version 0\n){2}"
        r"2 read, 1 waits to write\n"
        r"(search [12] is done\n){2}"
        r"version (?P<version>\d+) is written\n"
        r"search 3 reads version (?P=version)\nsearch 3 is done\n"
        r"'index:shop' can't be acquired: this task itself reads 'index:shop'; release .*\n"
        r"version \d+ is written\n"
    ),
    "reentrant.py": (
        r"10 from ada, held 1 times\n"
        r"20 from ada, held 2 times\n"
        r"'account:ada' would never be free: this task itself holds 'account:ada', 'account:bob'\n"
        r"request 1, part 1: 2 of it at work\n"
        r"request 1, part 2: 3 of it at work\n"
        r"request 1 is done\n"
        r"request 2, part 1: 1 of it at work\n"
    ),
    "sharing.py": (
        r"(reader [12]: 2 at work\n){2}"
        r"the writer: 1 at work\n"
        r"(call [1-4] with permit [01]: [12] at work\n){4}"
    ),
    "sigterm.py": r"at work\ndone\n",
    "retry.py": r"(attempt \d: held, again in \d+ ms or a little more\n){1,4}sent\n",
    "several_at_once.py": (r"\{'ada': 80, 'bob': 120\}\nnot both: account:ada, account:bob\n"),
    "several_sets.py": (
        r"invoice:0 is locked in set a True\n"
        r"invoice:1 is locked in set a True\n"
        r"invoice:2 is locked in set c True\n"
    ),
    "short_lived.py": r"invoice 42 is charged\n",
    "threads.py": (
        r"(invoice 42 is being sent\ninvoice 42 is sent\n){2}"
        r"it is made by this thread\n"
        r"(the next part of the work\n)*"
        r"told: 'job' lost: it was released by force( \(.*\))? \[forced\]\n"
        r"(the next part of the work\n)*stopped\n"
    ),
    "virtual_time.py": (
        r"valid after an hour: True\n"
        r"'report' lost: it was not extended before its validity was over \(a: unreachable, .*\)"
        r" \[not-extended\]\n"
    ),
    "waiting.py": (
        r"it was free\n"
        r"not now: .*\n"
        r"gave up after 3 attempts and \d+ ms\n"
        r"it was released in time\n"
        r"number 1 is served\nnumber 2 is served\nnumber 3 is served\n"
    ),
    "with_anyio.py": r"(gave up waiting: True\n|written by a thread\n){2}",
    "work_in_a_thread.py": (
        r"part 1 is written\npart 2 is written\n"
        r"(part \d+ is written\n)*"
        r"the thread has ended: 'report' lost: it was released by force( \(.*\))? \[forced\]\n"
    ),
    "worker.py": r"each job was done once: \[1, 2, 3\]\n",
    "who_holds_it.py": (
        r"not free, held by (?P<who>.*)\n"
        r"'report:nightly' is held by (?P=who) on \d of \d masters, \d+ ms left, fencing .*\n"
        r"(  .*\n)+"
        r"the holder: 'report:nightly' lost: it was released by force( \(.*\))? \[forced\]\n"
        r"held by somebody: False\n"
        r"a higher token: True\n"
    ),
}
LOGS = {
    "losing_a_lease.py": r": unreachable, ",
    "virtual_time.py": r"^[ab]: unreachable, ",
    "metrics.py": r"^INFO 'metrics:1' not acquired in \d rounds?, \d+ ms: held by others",
}


SHORT_RUN = {"first_lock.py", "fastapi_service.py", "threads.py"}
RECIPES = {  # they need packages that other tests do not need
    "apscheduler_jobs.py", "arq_worker.py", "celery_tasks.py", "django_site.py",
    "flask_site.py", "litestar_service.py", "taskiq_tasks.py",
}  # fmt: skip


def test_every_recipe_is_run_with_its_package() -> None:
    """And has its section on the page of recipes."""
    tests = "".join(path.read_text() for path in ROOT.glob("tests/integration/test_recipes*.py"))
    page = (ROOT / "docs" / "how-to" / "recipes.md").read_text()
    for name in RECIPES:
        assert name.removesuffix(".py") in tests
        assert f"<!-- file: examples/{name} -->" in page


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.name, marks=() if path.name in SHORT_RUN else pytest.mark.full)
        for path in EXAMPLES
        if path.name not in RECIPES
    ],
)
def test_it_runs(path: Path, run: Run) -> None:
    if path.name.startswith("test_"):
        done = run("-m", "pytest", "-q", "-p", "pytest_redlock_aio", str(path))
        assert "4 passed" in done.stdout, done.stdout
    else:
        done = run(str(path))
        assert re.fullmatch(OUTPUT[path.name], done.stdout), done.stdout
    # The output has the library's log lines about killed masters or missed locks, and no others.
    logged = LOGS.get(path.name)
    unexpected = [
        line for line in done.stderr.splitlines() if not (logged and re.search(logged, line))
    ]
    assert unexpected == []
    assert done.returncode == 0


def test_the_index_has_each_example_with_the_page_that_it_names() -> None:
    index = (ROOT / "examples" / "README.md").read_text()
    rows = re.findall(
        r"^\| \[`([\w.-]+)`\]\(\1\) \| .+ \| \[.+\]\(\.\./(.+)\) \|$", index, re.MULTILINE
    )
    files = {path.name for path in (ROOT / "examples").iterdir() if path.is_file()}
    assert sorted(name for name, _ in rows) == sorted(files - {"README.md"})
    for name, page in rows:
        text = (ROOT / "examples" / name).read_text()
        assert page in text or name.endswith(".json"), name
        assert f"examples/{name}" in (ROOT / page).read_text(), f"{page} does not show {name}"


def demo_and_examples() -> list[Path]:
    return [*EXAMPLES, *Path(redlock_aio.__file__).with_name("demo").glob("*.py")]


@pytest.mark.parametrize("path", demo_and_examples(), ids=lambda path: path.name)
def test_it_imports_public_names_only(path: Path) -> None:
    public = {
        "redlock_aio": redlock_aio.__all__,
        "redlock_aio.contrib.aiohttp": redlock_aio.contrib.aiohttp.__all__,
        "redlock_aio.contrib.fastapi": redlock_aio.contrib.fastapi.__all__,
        "redlock_aio.events": redlock_aio.events.__all__,
        "redlock_aio.fencing": redlock_aio.fencing.__all__,
        "redlock_aio.sync": redlock_aio.sync.__all__,
        "redlock_aio.testing": redlock_aio.testing.__all__,
    }
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("redlock_aio"):
            names = public.get(node.module or "")
            of_the_demo = (node.module or "").startswith("redlock_aio.demo")
            assert of_the_demo or {name.name for name in node.names} <= set(names or [])
        if isinstance(node, ast.Import):
            assert not any(name.name.startswith("redlock_aio") for name in node.names)


@pytest.mark.full
async def test_the_job_runs_on_one_host(environment: dict[str, str], root: Path) -> None:
    environment["KEEP_MS"] = "60000"

    async def host(name: str) -> asyncio.subprocess.Process:
        environment["HOST_NAME"] = name
        job = str(root / "examples" / "one_host_only.py")
        return await asyncio.create_subprocess_exec(
            *(sys.executable, job), env=environment, stdout=asyncio.subprocess.PIPE
        )

    hosts = [await host(name) for name in ("alpha", "beta", "gamma")]
    outputs = [(await each.communicate())[0].decode() for each in hosts]
    assert min(outputs) == "cleaning up\n"
    winner = outputs.index("cleaning up\n")
    name = ("alpha", "beta", "gamma")[winner]
    others = f"it runs or has run on {name}, as process {hosts[winner].pid}\n"
    late = await host("late")  # this host comes when the job is done
    outputs.append((await late.communicate())[0].decode())
    assert sorted(outputs)[1:] == [others] * 3


def module_at(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class FailsOnce(list[int]):
    """A database whose first write of job 2 fails."""

    failed = False

    def append(self, job: int, /) -> None:
        if job == 2 and not self.failed:
            self.failed = True
            raise ConnectionError("the database is away")
        super().append(job)


def test_a_worker_gives_back_each_job_that_it_has_not_done() -> None:
    """Of a worker that has crashed, of a failed write, and of a worker that is stopped."""
    worker = module_at(ROOT / "examples" / "worker.py")
    worker.done = done = FailsOnce()

    async def main() -> None:
        async with Redlock([FakeMaster("m")], restart_guard="off") as redlock:
            # Like the lock of a worker that has crashed, whose job comes again at once.
            crashed = await redlock.lock("job:1", auto_extend=False).acquire()
            for job in (1, 2, 3):
                worker.queue.put_nowait(job)
            stopped = asyncio.create_task(worker.work(redlock))
            await asyncio.sleep(2.15)
            assert done == []
            assert worker.queue.qsize() == 2  # job 3 is being done
            stopped.cancel()
            await asyncio.wait([stopped])
            assert worker.queue.qsize() == 3
            task = asyncio.create_task(worker.work(redlock))
            await asyncio.wait_for(worker.queue.join(), 15)
            task.cancel()
            await asyncio.wait([task])
            assert not crashed.valid

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main())
    assert sorted(done) == [1, 2, 3]


@asynccontextmanager
async def fastapi_service(path: Path) -> AsyncIterator[httpx.AsyncClient]:
    module = module_at(path)
    transport = httpx.ASGITransport(module.app)
    async with (
        module.app.router.lifespan_context(module.app),
        httpx.AsyncClient(transport=transport, base_url="http://service") as client,
    ):
        yield client
    assert repr(module.redlock) == "<Redlock 3 masters, closed>"


@asynccontextmanager
async def aiohttp_service(path: Path) -> AsyncIterator[httpx.AsyncClient]:
    module = module_at(path)
    app = module.make_app()
    async with TestServer(app) as server, httpx.AsyncClient() as client:
        client.base_url = httpx.URL(str(server.make_url("")))
        yield client
    assert repr(app[module.REDLOCK]) == "<Redlock 3 masters, closed>"


@pytest.fixture(params=[fastapi_service, aiohttp_service], ids=["fastapi", "aiohttp"])
async def service(
    request: pytest.FixtureRequest,
    masters: list[EmbeddedMaster],
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[httpx.AsyncClient]:
    monkeypatch.setenv("REDLOCK_MASTERS", ",".join(master.url for master in masters))
    async with request.param(root / "examples" / f"{request.param.__name__}.py") as client:
        yield client


async def test_the_service_works_on_one_request_at_a_time(service: httpx.AsyncClient) -> None:
    answers = await asyncio.gather(*(service.post("/invoices/42/send") for _ in range(2)))
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].json() == {"sent": 42}


async def test_the_service_is_busy_while_others_hold_the_lock(
    service: httpx.AsyncClient, masters: list[EmbeddedMaster]
) -> None:
    async with Redlock([master.url for master in masters]) as elsewhere:
        async with elsewhere.lock("billing:invoice:42"):
            answer = await service.post("/invoices/42/send")
            other = await service.post("/invoices/43/send")
        assert (answer.status_code, answer.headers["Retry-After"]) == (409, "1")
        assert answer.json() == {"detail": "it is being worked on"}
        assert other.status_code == 200


async def test_the_service_is_unavailable_without_a_majority(
    service: httpx.AsyncClient, masters: list[EmbeddedMaster]
) -> None:
    for master in masters[:2]:
        master.kill()
    answer = await service.post("/invoices/42/send")
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
    assert "socket" not in answer.text, "masters are nobody's business"


async def test_the_service_is_ready_while_a_majority_votes(
    service: httpx.AsyncClient, masters: list[EmbeddedMaster]
) -> None:
    answer = await service.get("/ready")
    assert (answer.status_code, answer.json()) == (200, {"status": "ready"})
    masters[0].kill()
    assert (await service.get("/ready")).status_code == 200
    masters[1].kill()
    answer = await service.get("/ready")
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
    assert "socket" not in answer.text, "masters are nobody's business"


async def test_one_host_of_the_service_leads(
    masters: list[EmbeddedMaster], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All hosts see it. When it ends, the other one leads."""
    monkeypatch.setenv("REDLOCK_MASTERS", ",".join(master.url for master in masters))
    path = root / "examples" / "fastapi_leader.py"

    async def leads(service: httpx.AsyncClient, seen: str, *, leading: bool) -> None:
        expected = {"leading": leading, "seen": seen}
        async with asyncio.timeout(30):
            while (await service.get("/leader")).json() != expected:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async with AsyncExitStack() as other:
        monkeypatch.setenv("HOST_NAME", "one")
        async with fastapi_service(path) as one:
            await leads(one, "one", leading=True)
            monkeypatch.setenv("HOST_NAME", "two")
            two = await other.enter_async_context(fastapi_service(path))
            await leads(two, "one", leading=False)
        await leads(two, "two", leading=True)


async def test_a_leader_whose_work_fails_makes_room(
    masters: list[EmbeddedMaster],
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("REDLOCK_MASTERS", ",".join(master.url for master in masters))
    one = module_at(root / "examples" / "fastapi_leader.py")
    failed = asyncio.Event()

    async def lead(_term: object) -> None:
        await asyncio.sleep(0.1)
        failed.set()
        raise KeyError

    one.lead = lead
    async with one.lifespan(one.app), asyncio.timeout(30):
        await failed.wait()
        while "no candidate" not in caplog.text:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert not one.election.leading
        failed.clear()
        await failed.wait()


@pytest.mark.parametrize(
    ("command", "up", "end"),
    [
        (
            ("uvicorn", "fastapi_service:app", "--ws", "none", "--uds"),
            b"Uvicorn running",
            b"Application shutdown complete",
        ),
        (("aiohttp.web", "aiohttp_service:make_app", "--path"), b"Running on", b""),
    ],
    ids=["fastapi", "aiohttp"],
)
async def test_the_service_runs_by_the_command_in_its_docstring(
    environment: dict[str, str], root: Path, command: tuple[str, ...], up: bytes, end: bytes
) -> None:
    module, app, *options = command
    with tempfile.TemporaryDirectory() as folder:
        server = await asyncio.create_subprocess_exec(
            *(sys.executable, "-W", "error", "-u", "-m", module),
            *([app, *options, f"{folder}/http"] if end else [*options, f"{folder}/http", app]),
            env=environment,
            cwd=root / "examples",
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        assert server.stdout is not None
        try:
            log = await server.stdout.readuntil(up)
            transport = httpx.AsyncHTTPTransport(uds=f"{folder}/http")
            async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
                assert (await client.post("/invoices/42/send")).json() == {"sent": 42}
            server.send_signal(signal.SIGTERM)
            log += await server.stdout.read()
        finally:
            if server.returncode is None:
                server.kill()
            await server.wait()
        assert end in log, log.decode()
        assert b"Traceback" not in log
