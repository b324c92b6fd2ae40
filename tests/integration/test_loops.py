"""The library on every kind of event loop: asyncio's, uvloop's, and with eager tasks."""

import asyncio
import importlib.util
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from redlock_aio import LockLostError, LockNotAcquiredError, Redlock, RedlockError

from .helpers import TIMEOUT, RealMaster, call, connected, gone, put, until, urls, values

pytestmark = pytest.mark.integration

Factory = Callable[[], asyncio.AbstractEventLoop]
Use = Callable[[list[RealMaster]], Coroutine[Any, Any, None]]


def eager() -> asyncio.AbstractEventLoop:
    """Return a loop with eager tasks: each runs to its first wait when it is created."""
    loop = asyncio.new_event_loop()
    loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined, unused-ignore]
    return loop


def uv() -> asyncio.AbstractEventLoop:
    """Return a loop of uvloop."""
    import uvloop

    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def eager_uv() -> asyncio.AbstractEventLoop:
    """Return a loop of uvloop with eager tasks."""
    loop = uv()
    loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined, unused-ignore]
    return loop


no_uvloop = importlib.util.find_spec("uvloop") is None
no_eager = sys.version_info < (3, 12)
FACTORIES = [
    asyncio.new_event_loop,
    pytest.param(uv, marks=pytest.mark.skipif(no_uvloop, reason="no uvloop")),
    pytest.param(eager, marks=pytest.mark.skipif(no_eager, reason="eager tasks came with 3.12")),
    pytest.param(
        eager_uv,
        marks=pytest.mark.skipif(
            no_uvloop or sys.version_info[:2] != (3, 12),
            reason="uvloop and eager tasks go together on 3.12 only: before there are none,"
            " and to the factory of 3.13 uvloop says more than it takes",
        ),
    ),
]


async def acquire_extend_release(masters: list[RealMaster]) -> None:
    async with connected(masters) as redlock:
        async with redlock.lock("r") as lease:
            await lease.extend()
            await until(lambda: values(masters, "r") == [lease.token] * 5)
        await until(lambda: gone(masters, "r"))


async def contend(masters: list[RealMaster]) -> None:
    counter = 0
    async with connected(masters) as redlock:

        async def worker() -> None:
            nonlocal counter
            async with redlock.lock("r"):
                read = counter
                await asyncio.sleep(0)
                counter = read + 1

        await asyncio.gather(*(worker() for _ in range(10)))
    assert counter == 10


async def many_locks(masters: list[RealMaster]) -> None:
    async with connected(masters, master_timeout=5_000) as redlock:

        async def worker(number: int) -> None:
            for _ in range(5):
                async with redlock.lock(f"r{number}", wait=20_000):
                    pass

        await asyncio.gather(*map(worker, range(100)))


async def lose(masters: list[RealMaster]) -> None:
    async with connected(masters) as redlock:
        with pytest.raises(LockLostError):
            async with redlock.lock("r", ttl=300):
                await until(lambda: all(values(masters, "r")))
                put(masters, "r")
                await asyncio.sleep(20)


async def cancel(masters: list[RealMaster]) -> None:
    async with connected(masters) as redlock:
        for turns in range(15):
            task = asyncio.create_task(redlock.lock("r", ttl=60_000).acquire())
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                await task.result().release()
        await until(lambda: gone(masters, "r"))


async def hung(masters: list[RealMaster]) -> None:
    async with connected(masters, master_timeout=100) as redlock:
        for master in masters[:3]:
            master.pause()
        with pytest.raises(LockNotAcquiredError):
            await redlock.lock("r", ttl=60_000, wait=0).acquire()
        for master in masters[:3]:
            master.resume()
        await until(lambda: gone(masters, "r"))


async def close_with_hung_masters(masters: list[RealMaster]) -> None:
    async with connected(masters, master_timeout=100) as redlock:
        lease = await redlock.lock("r", ttl=60_000).acquire()
        for master in masters[:2]:
            master.pause()
    assert not lease.valid
    for master in masters[:2]:
        master.resume()
    await until(lambda: gone(masters, "r"))


async def close_while_dialling(masters: list[RealMaster]) -> None:
    masters[0].pause()
    async with Redlock(urls(masters), master_timeout=50, restart_guard="off"):
        pass
    redlock = Redlock(urls(masters), master_timeout=50, restart_guard="off")
    task = asyncio.create_task(redlock.lock("r").acquire())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    await redlock.aclose()
    masters[0].resume()


USES = [
    acquire_extend_release, contend, many_locks, lose, cancel, hung, close_with_hung_masters,
    close_while_dialling,
]  # fmt: skip


@pytest.mark.spread(1)
@pytest.mark.parametrize("factory", FACTORIES, ids=lambda factory: str(factory.__name__))
@pytest.mark.parametrize("use", USES, ids=lambda use: str(use.__name__))
def test_every_loop_will_do(masters: list[RealMaster], factory: Factory, use: Use) -> None:
    """The loop reports no error, and nothing is open when it ends."""
    reported: list[object] = []
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.get_loop().set_exception_handler(lambda _, context: reported.append(context))
        # The signal of pytest-timeout does not interrupt every loop.
        runner.run(asyncio.wait_for(use(masters), 20))
        assert not asyncio.all_tasks(runner.get_loop())
    assert not reported


def test_a_manager_that_was_closed_can_be_used_on_another_loop(
    masters: list[RealMaster],
) -> None:
    """A manager that was not closed raises an error on another loop."""
    redlock = Redlock(urls(masters), master_timeout=TIMEOUT, restart_guard="off")

    async def once() -> None:
        async with redlock, redlock.lock("r", wait=2_000):
            pass

    asyncio.run(once())
    asyncio.run(once())

    async def open_it() -> None:
        async with redlock.lock("r", wait=0):
            pass

    with asyncio.Runner() as first:
        first.run(redlock.__aenter__())
        with asyncio.Runner() as second, pytest.raises(RedlockError, match="another event loop"):
            second.run(open_it())
        first.run(redlock.aclose())


TWICE = """
import asyncio, sys
from redlock_aio import Redlock

redlock = Redlock(sys.argv[2:], master_timeout=1_500, restart_guard="off")
lock = redlock.lock("r", wait=5_000)

@redlock.locked("job", wait=5_000)
async def job():
    return "done"

async def main():
    async with lock:
        assert await job() == "done"

def run(coroutine):
    if sys.argv[1] == "run":
        asyncio.run(coroutine)
    elif sys.argv[1] == "uvloop":
        import uvloop
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(coroutine)
    else:  # a loop that is closed while it has tasks
        loop = asyncio.new_event_loop()
        loop.run_until_complete(coroutine)
        loop.close()

for _ in range(3):
    run(main())
run(redlock.aclose())
print("ended")
"""

UVLOOP = pytest.param("uvloop", marks=pytest.mark.skipif(no_uvloop, reason="no uvloop"))


async def output_of(program: str, how: str, masters: list[RealMaster]) -> tuple[str, list[str]]:
    """Return the output of a program, and the lines of its errors."""
    strict = () if how == "closed" else ("-W", "error")
    command = (sys.executable, "-P", *strict, "-c", program, how, *urls(masters[:3]))
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    output, errors = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 0
    return output.decode(), [line for line in errors.decode().splitlines() if line.strip()]


@pytest.mark.full
@pytest.mark.parametrize("how", ["run", "closed", UVLOOP])
async def test_a_manager_of_a_module_serves_one_loop_after_the_other(
    masters: list[RealMaster], how: str
) -> None:
    """A worker calls `asyncio.run` for each task, and a test suite has a loop for each test."""
    output, errors = await output_of(TWICE, how, masters)
    if how == "closed":  # asyncio reports each task that is left in the loop
        errors = [line for line in errors if "Task was destroyed" not in line]
        errors = [line for line in errors if not line.startswith("task: <Task")]
    assert (output, errors) == ("ended\n", [])
    await until(lambda: gone(masters[:3], "r"))
    for master in masters[:3]:
        assert call(master, "INFO")["connected_clients"] == 1  # the task of this check


CLEANS_UP = """
import asyncio, sys
from redlock_aio import Redlock

async def hold(redlock, number):
    async with redlock.lock(f"r{number}", ttl=60_000):
        print("held", flush=True)
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.3)

async def main(*masters):
    redlock = Redlock(masters, master_timeout=50, restart_guard="off")
    tasks = [asyncio.create_task(hold(redlock, number)) for number in range(3)]
    await asyncio.sleep(1)
    return tasks

if sys.argv[1] == "uvloop":
    import uvloop
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(*sys.argv[2:]))
else:
    asyncio.run(main(*sys.argv[2:]))
"""


@pytest.mark.promise("S3")
@pytest.mark.parametrize("how", [pytest.param("run", marks=pytest.mark.full), UVLOOP])
async def test_bodies_that_clean_up_at_the_end_of_a_program_leave_no_key(
    masters: list[RealMaster], how: str
) -> None:
    """The manager is not closed, and the clean-up takes longer than a master timeout."""
    output, errors = await output_of(CLEANS_UP, how, masters)
    assert errors == []
    assert "held" in output
    await until(lambda: all(gone(masters[:3], f"r{number}") for number in range(3)), within=5)
