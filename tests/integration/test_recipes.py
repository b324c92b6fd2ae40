"""The recipes of examples/ for task queues and schedulers, each with its real package."""

import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from redlock_aio import Redlock
from redlock_aio.testing import embedded_masters

from .helpers import RealMaster, gone, until
from .recipes import EXAMPLES, Place, Program, need, running

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("members")]

SEND = {
    "celery": """
from celery_tasks import make_report, send_invoice
sent = [send_invoice.delay(42) for _ in range(2)]
def report():
    return make_report.delay("sales").get(timeout=140)
print("skipped:", report())
print(*[one.get(timeout=140) for one in sent], report(), sep=", ")
""",
    "arq": """
import asyncio
from arq import create_pool
from arq_worker import WorkerSettings
async def main():
    pool = await create_pool(WorkerSettings.redis_settings)
    sent = [await pool.enqueue_job("send_invoice", 42) for _ in range(2)]
    async def report():
        job = await pool.enqueue_job("make_report", "sales")
        return await job.result(timeout=140)
    print("skipped:", await report())
    print(*[await one.result(timeout=140) for one in sent], await report(), sep=", ")
asyncio.run(main())
""",
    "taskiq": """
import asyncio, logging
from taskiq_tasks import broker, make_report, send_invoice
async def main():
    logging.basicConfig(level=logging.INFO)
    await broker.startup()
    sent = [await send_invoice.kiq(42) for _ in range(2)]
    async def result(task):
        return (await task.wait_result(timeout=140)).return_value
    print("skipped:", await result(await make_report.kiq("sales")))
    results = [await result(one) for one in sent]
    print(*results, await result(await make_report.kiq("sales")), sep=", ")
    await broker.shutdown()
asyncio.run(main())
""",
}


@pytest.fixture(scope="session")
def kind() -> str:
    return "valkey"  # what a recipe does depends on no kind of server


@pytest.fixture
def broker() -> Iterator[str]:
    with embedded_masters(1) as servers:
        yield servers[0].url


async def check_tasks(
    redlock: Redlock, masters: list[RealMaster], sender: Program, worker: Program, retried: str
) -> None:
    """Hold the locks of the recipe, see what its tasks do, and give the locks back."""
    async with redlock.lock("lock:invoice:42") as invoice:
        async with redlock.lock("lock:report:sales"):
            await sender.says("skipped: None\n")
            await worker.says(retried, 2)
        invoice.ensure_valid()
    assert await sender.ends() == 0, sender.output
    done = "invoice 42 is sent, invoice 42 is sent, the report sales is made"
    assert sender.output.splitlines()[-1] == done, sender.output
    await until(lambda: gone(masters, "lock:invoice:42") and gone(masters, "lock:report:sales"))


async def test_celery(
    redlock: Redlock, masters: list[RealMaster], broker: str, tmp_path: Path
) -> None:
    """Two invoices wait in the queue while another program works on the first."""
    need("celery")
    command = ("-m", "celery", "-A", "celery_tasks", "worker", "-c", "2", "--loglevel", "INFO")
    at = Place(masters, tmp_path)
    async with (
        running(*command, BROKER=broker, at=at) as worker,
        running("-c", SEND["celery"], BROKER=broker, at=at) as sender,
    ):
        await check_tasks(redlock, masters, sender, worker, "Retry in .*LockNotAcquiredError")
        assert await worker.ends(signal.SIGTERM) == 0


async def test_arq(
    redlock: Redlock, masters: list[RealMaster], broker: str, tmp_path: Path
) -> None:
    need("arq", extra="arq")
    command = ("-m", "arq", "arq_worker.WorkerSettings")
    at = Place(masters, tmp_path)
    async with (
        running(*command, BROKER=broker, at=at) as worker,
        running("-c", SEND["arq"], BROKER=broker, at=at) as sender,
    ):
        await check_tasks(redlock, masters, sender, worker, "send_invoice retrying job in 1.00s")
        await worker.ends(signal.SIGTERM)


async def test_taskiq(redlock: Redlock, masters: list[RealMaster], tmp_path: Path) -> None:
    """The broker of the recipe runs the tasks in the program that sends them."""
    need("taskiq")
    async with running("-c", SEND["taskiq"], at=Place(masters, tmp_path)) as both:
        await check_tasks(redlock, masters, both, both, "invocation failed. Retrying")


async def test_apscheduler(masters: list[RealMaster], tmp_path: Path) -> None:
    """Two hosts have the same schedule: one of them does the work, the other skips it."""
    need("apscheduler")
    command = str(EXAMPLES / "apscheduler_jobs.py")
    at = Place(masters, tmp_path)
    environment = {"EVERY": "0.5", "KEEP_MS": "300000"}
    async with (
        running(command, **environment, at=at) as one,
        running(command, **environment, at=at) as other,
    ):
        for host in (one, other):
            await host.says("executed successfully", 2)
            assert await host.ends(signal.SIGTERM) == 0, host.output
    assert (one.output + other.output).count("cleaning up") == 1


async def test_a_job_of_apscheduler_that_is_stopped_cleans_up_under_its_lock(
    masters: list[RealMaster], tmp_path: Path
) -> None:
    """A manager that was closed first would cancel the job again in its clean-up."""
    need("apscheduler")
    work = """
    try:
        print("at work", flush=True)
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0.2)
        print("cleaned up", flush=True)
"""
    recipe = (EXAMPLES / "apscheduler_jobs.py").read_text()
    program = recipe.replace('    print("cleaning up", flush=True)\n', work)
    assert program != recipe
    at = Place(masters, tmp_path)
    async with running("-c", program, EVERY="0.5", KEEP_MS="0", at=at) as host:
        await host.says("at work\n")
        assert await host.ends(signal.SIGTERM) == 0, host.output
    assert "cleaned up\n" in host.output, host.output
    await until(lambda: gone(masters, "lock:job:clean-up"))


def jobs_of_cron() -> list[str]:
    """Return the commands of the crontab of the recipe, as cron gives them to the shell."""
    lines = [
        line
        for line in (EXAMPLES / "crontab").read_text().splitlines()
        if not re.match(r"#|[A-Z_]+=", line)
    ]
    return [line.split(maxsplit=5)[5] for line in lines]


def programs_of_cron(folder: Path) -> str:
    """Return a ``PATH`` with `redlock` and a backup, as a host has them."""
    for name, text in {
        "redlock": f'exec "{sys.executable}" -m redlock_aio "$@"',
        "backup": "echo the backup is made",
    }.items():
        program = folder / name
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


@pytest.mark.full
async def test_cron(masters: list[RealMaster], tmp_path: Path) -> None:
    """Two hosts start the job: one of them runs it, the other skips it, and so does a late one."""
    (job,) = jobs_of_cron()
    assert "--hold-at-least 50s" in job
    # On a busy machine the late host may come after a minute, and a master answer late.
    job = job.replace("50s", "10m --master-timeout 10s")
    command = ("-c", f"import os; os.execv('/bin/sh', ['sh', '-c', {job!r}])")
    at, environment = Place(masters, tmp_path), {"PATH": programs_of_cron(tmp_path)}
    async with (
        running(*command, at=at, **environment) as one,
        running(*command, at=at, **environment) as other,
    ):
        ends = [await one.ends(), await other.ends()]
    async with running(*command, at=at, **environment) as late:
        ends.append(await late.ends())
    outputs = [host.output for host in (one, other, late)]
    assert ends == [0, 0, 0], outputs
    made, *skipped = sorted(outputs, key=lambda output: "the backup is made" not in output)
    assert "the backup is made\n" in made
    for output in skipped:
        assert "the backup is made" not in output
        assert re.search(r"'cron:backup' is held by .* running backup, .* left: skipped\n", output)
