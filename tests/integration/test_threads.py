"""Programs with `redlock_aio.sync`, on real servers: forks, interrupts, the end of the program."""

import asyncio
import signal
import sys
from asyncio.subprocess import Process

import pytest

from redlock_aio import Redlock

from .helpers import RealMaster, gone, until, urls, values

pytestmark = pytest.mark.integration

BEGIN = """
import atexit, os, queue, signal, sys, threading, time
last = []
atexit.register(lambda: [act() for act in last])  # before the library's: it is called after that
from redlock_aio import LockLostError, LockNotHeldError, RedlockError
from redlock_aio.sync import Redlock

redlock = Redlock(sys.argv[1:], master_timeout=1_500, restart_guard="off")
"""

FORKS = """
def ended_well(pid):
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0

def child_of_a_holder():
    assert not redlock.statistics().is_open
    assert not lease.valid
    for use in (lease.ensure_valid, lease.release, lease.extend, lease.export):
        try:
            use()
        except RedlockError as error:
            assert "belongs to the parent process" in str(error), error
        else:
            raise AssertionError(use)
    assert redlock.lock("r", wait=0).try_acquire() is None  # on connections of its own
    with redlock.lock("child"):
        assert redlock.is_locked("r")
    assert redlock.statistics().leases == 0
    assert not lease.lost.is_set()

def run_child(function):
    pid = os.fork()
    if pid:
        return ended_well(pid)
    try:
        function()
        os._exit(0)
    except BaseException:
        import traceback
        traceback.print_exc()
        os._exit(1)

told = []
with redlock.lock("r", ttl=1_000, on_lost=told.append) as lease:
    for _ in range(2):
        run_child(child_of_a_holder)
    time.sleep(1.5)
    lease.ensure_valid()  # its thread has extended it
    lease.extend()
    pid = os.fork()
    if not pid:  # unwinds the parent's block
        time.sleep(0.1)
        raise KeyError("of the child")
    os.waitpid(pid, 0)
    lease.ensure_valid()
assert not told
run_child(lambda: redlock.lock("r", wait=0).acquire().release())  # after a lease of the parent
redlock.close()
run_child(lambda: [redlock.__enter__(), redlock.lock("r").acquire(), redlock.close()])
print("ended")
"""

POOL = """
import multiprocessing, pathlib
counter = pathlib.Path(os.environ["COUNTER"])

@redlock.locked("counter")
def count(_):
    read = int(counter.read_text())
    time.sleep(0.001)
    counter.write_text(str(read + 1))

with redlock.lock("before"):  # as a worker whose parent has used the lock
    pass
with multiprocessing.get_context("fork").Pool(3) as pool:
    pool.map(count, range(12), chunksize=1)
    pool.close()
    pool.join()
print(counter.read_text())
"""

EXITS = """
lease = redlock.lock("r").acquire()
answers = queue.Queue()
def wait():
    try:
        answers.put(redlock.lock("r").acquire())
    except RedlockError as error:
        answers.put(error)
threading.Thread(target=wait, daemon=True).start()
while not redlock.statistics().waiters:
    time.sleep(0.01)
last.append(lambda: print(answers.get(timeout=30)))
print("ended")
"""

WAITS = """
def stop(number, frame):
    sys.exit(3)
signal.signal(signal.SIGTERM, stop)
print("waits", flush=True)
with redlock.lock("r", ttl=60_000):
    print("has it", flush=True)
    time.sleep(60)
"""


async def started(program: str, masters: list[RealMaster], **environment: str) -> Process:
    command = (sys.executable, "-P", "-W", "error", "-c", BEGIN + program, *urls(masters))
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        *command, stdout=pipe, stderr=pipe, env={"PATH": "", **environment} if environment else None
    )


async def run(program: str, masters: list[RealMaster], **environment: str) -> tuple[str, str]:
    """Return the output of a program, and its errors."""
    process = await started(program, masters, **environment)
    output, errors = await asyncio.wait_for(process.communicate(), 60)
    return output.decode(), errors.decode()


async def test_a_forked_child_leaves_the_parent_s_leases_alone(masters: list[RealMaster]) -> None:
    """The child has connections and locks of its own, and the parent goes on."""
    output, errors = await run(FORKS, masters)
    assert output == "ended\n", errors
    assert errors.count("Traceback") == 1
    assert "KeyError: 'of the child'\n'r' lost" not in errors
    assert "the lease on 'r' belongs to the parent process" in errors
    await until(lambda: gone(masters, "r"))


@pytest.mark.full
async def test_the_workers_of_a_pool_exclude_each_other(
    masters: list[RealMaster], tmp_path: object
) -> None:
    counter = f"{tmp_path}/counter"
    with open(counter, "w") as file:  # noqa: ASYNC230, PTH123
        file.write("0")
    output, errors = await run(POOL, masters, COUNTER=counter, PYTHONPATH=":".join(sys.path))
    assert (output, errors) == ("12\n", "")


async def test_a_program_that_ends_releases_its_locks(masters: list[RealMaster]) -> None:
    """Its manager is of a module, and is not closed. A thread that waits gets an error."""
    told = "this Redlock was closed [redlock-closed]"
    assert await run(EXITS, masters) == (f"ended\n{told}\n", "")
    await until(lambda: gone(masters, "r"), within=5)


@pytest.mark.usefixtures("sigint_is_not_ignored")
@pytest.mark.spread(1)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("when", ["waits", "has it"])
async def test_an_interrupted_program_leaves_no_key(
    redlock: Redlock, masters: list[RealMaster], number: signal.Signals, when: str
) -> None:
    """Whether its thread waits for the lock or holds it."""
    holder = await redlock.lock("r", ttl=60_000).acquire()
    process = await started(WAITS, masters)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"waits\n"
    if when == "has it":
        await holder.release()
        assert await process.stdout.readline() == b"has it\n"
    else:
        await asyncio.sleep(0.3)
    process.send_signal(number)
    _, errors = await asyncio.wait_for(process.communicate(), 60)
    if number is signal.SIGINT:
        assert errors.decode().splitlines()[-1] == "KeyboardInterrupt"
    else:
        assert (process.returncode, errors) == (3, b"")
    if when == "waits":
        assert values(masters, "r") == [holder.token] * len(masters)
        await holder.release()
    await until(lambda: gone(masters, "r"), within=5)
    async with redlock.lock("r", wait=0):
        pass
