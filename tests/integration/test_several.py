"""Several resources at once, on real masters."""

import asyncio
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from redlock_aio import LockLostError, LockNotAcquiredError, Redlock, RedlockError
from redlock_aio._engine.hold.restoration import Restoration
from redlock_aio.testing import EmbeddedMaster

from .helpers import (
    SELDOM,
    TIMEOUT,
    RealMaster,
    Stopwatch,
    call,
    gone,
    own_keys,
    put,
    until,
    up,
    urls,
    values,
)
from .servers import process, quiet_port

pytestmark = pytest.mark.integration

KINDS: list[dict[str, Any]] = [
    {},
    {"fencing": True},
    {"fair": True},
    {"fair": True, "fencing": True},
]
KIND = pytest.mark.parametrize("how", KINDS, ids=["plain", "fenced", "fair", "fair and fenced"])
SOON = 3_000
"""Ms in which whoever is woken has the lock on a busy machine; else it would be 20 000."""

WORKER = """
import asyncio, pathlib, random, sys
from redlock_aio import Redlock

async def main(folder, *masters):
    async with Redlock(masters, master_timeout=1_500, restart_guard="off") as redlock:
        async def worker():
            for turn in range(6):
                names = random.sample("abc", random.randint(1, 3))
                fair = random.random() < 0.3
                async with redlock.lock(*names, fair=fair, fencing=True) as lease:
                    for name in names:
                        path = pathlib.Path(folder, name)
                        count, token = map(int, path.read_text().split())
                        assert lease.fencing_token > token
                        await asyncio.sleep(0)
                        path.write_text(f"{count + 1} {lease.fencing_token}")
                        print(name)
        await asyncio.gather(worker(), worker())

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.promise("S1")
@pytest.mark.promise("S7")
async def test_processes_exclude_each_other_on_each_resource(
    masters: list[RealMaster], tmp_path: Any
) -> None:
    """Random sets, named in any order: no count is lost, tokens rise, everybody gets on."""
    for name in "abc":
        (tmp_path / name).write_text("0 0")
    pipe = asyncio.subprocess.PIPE
    command = (sys.executable, "-P", "-W", "error", "-c", WORKER, str(tmp_path), *urls(masters))
    started = [
        await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe) for _ in range(3)
    ]
    async with asyncio.timeout(30):
        said = [await process.communicate() for process in started]
    assert [error for _, error in said] == [b""] * 3
    written = b"".join(out for out, _ in said).split()
    for name in "abc":
        assert (tmp_path / name).read_text().split()[0] == str(written.count(name.encode()))
    await until(lambda: all(gone(masters, name) for name in "abc"))


@KIND
@pytest.mark.promise("S9")
async def test_a_release_wakes_who_waits_for_a_part_or_for_more(
    redlock: Redlock, other: Redlock, masters: list[RealMaster], how: dict[str, Any]
) -> None:
    for manager in (redlock, other):
        for held, wanted in ((("a", "b"), ("b", "c")), (("b",), ("a", "b")), (("b", "a"), ("b",))):
            lease = await manager.lock(*held, **how).acquire()
            lock = redlock.lock(*wanted, retry=SELDOM, **how)
            waiter = asyncio.create_task(lock.acquire())
            await asyncio.sleep(0.05)
            assert not waiter.done()
            watch = Stopwatch()
            await lease.release()
            await (await waiter).release()
            assert watch.ms < SOON
    await until(lambda: all(gone(masters, name) for name in "abc"))


@KIND
@pytest.mark.promise("S9")
async def test_the_end_of_the_last_wakes(
    redlock: Redlock, masters: list[RealMaster], how: dict[str, Any]
) -> None:
    put(masters, "a", 100)
    put(masters, "b", 60_000)
    put(masters, "c", 60_000)
    with pytest.raises(LockNotAcquiredError) as caught:
        await redlock.lock("b", "a", wait=0, **how).acquire()
    assert caught.value.retry_after is not None
    assert caught.value.retry_after > 30_000
    waiter = asyncio.create_task(redlock.lock("a", "c", "b", retry=SELDOM, **how).acquire())
    await asyncio.sleep(0.15)
    watch = Stopwatch()
    for name in "bc":
        for master in masters:
            call(master, "DEL", name)
    async with await waiter as lease:
        assert watch.ms < SOON
        assert values(masters, "c").count(lease.token) >= 3


@KIND
@pytest.mark.promise("S2")
@pytest.mark.promise("S4")
async def test_one_key_that_goes_is_set_again_or_the_loss_of_all(
    redlock: Redlock, masters: list[RealMaster], how: dict[str, Any]
) -> None:
    with pytest.raises(LockLostError, match="'a', 'b' lost"):
        async with redlock.lock("a", "b", ttl=60_000, **how) as lease:
            await until(lambda: values(masters, "a") == [lease.token] * 5)
            for master in masters[:2]:
                call(master, "DEL", "b")
            await lease.extend()
            await until(lambda: values(masters, "b") == [lease.token] * 5)
            await asyncio.sleep(0.2)  # now the masters tell
            for master in masters[2:]:
                call(master, "DEL", "a")
            await asyncio.sleep(20)
    await until(lambda: gone(masters, "a") and gone(masters, "b"))


@pytest.mark.promise("S8")
@pytest.mark.usefixtures("soon_deaf")
async def test_queues_are_in_order_and_nothing_is_left_of_them(
    redlock: Redlock, other: Redlock, masters: list[RealMaster]
) -> None:
    served: list[int] = []

    async def one(number: int, manager: Redlock, names: str) -> None:
        async with manager.lock(*names, fair=True):
            served.append(number)

    lease = await redlock.lock("b", fair=True).acquire()
    waiters = []
    for number, names in enumerate(("ab", "a", "ca", "c", "bc")):
        waiters.append(asyncio.create_task(one(number, (other, redlock)[number % 2], names)))
        await asyncio.sleep(0.05)
    assert served == []
    await lease.release()
    async with asyncio.timeout(10):
        await asyncio.gather(*waiters)
    assert served == sorted(served)
    await until(lambda: not own_keys(masters))


# A server that is a Cluster by itself.


@pytest.fixture(scope="module")
def cluster(kind: str) -> Iterator[EmbeddedMaster]:
    """One server that has all slots of a Cluster."""
    # The port of its bus would be its own and 10 000: where the system gives ports to clients.
    bus = str(quiet_port())
    with process(kind, "--cluster-enabled", "yes", "--cluster-port", bus) as server:
        call(server, "CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        yield server


async def test_a_cluster_wants_a_hash_tag_and_says_so(cluster: EmbeddedMaster) -> None:
    async with Redlock([cluster.url], master_timeout=TIMEOUT, restart_guard="off") as redlock:
        await until(lambda: "cluster_state:ok" in call(cluster, "CLUSTER", "INFO"))
        await until(lambda: up(redlock) == 1)
        for names in (("a", "b"), ("{x}a", "{y}a"), ("{}a", "{}b"), ("{x}a", "x}a")):
            with pytest.raises(RedlockError, match="hash tag, as in"):
                await redlock.lock(*names).acquire()
            with pytest.raises(RedlockError, match="hash tag, as in"):
                await redlock.lock(*names).try_acquire()


@KIND
async def test_with_a_hash_tag_a_cluster_takes_all(
    cluster: EmbeddedMaster, how: dict[str, Any]
) -> None:
    names = ("{order:7}:invoice", "order:7", "a{order:7}")
    async with Redlock([cluster.url], master_timeout=TIMEOUT, restart_guard="off") as redlock:
        await until(lambda: up(redlock) == 1)
        async with redlock.lock(*names, **how) as lease:
            assert all(call(cluster, "GET", name) == lease.token for name in names)
            waiter = asyncio.create_task(redlock.lock(*names, retry=SELDOM, **how).acquire())
            await asyncio.sleep(0.02)
            await lease.extend()
            call(cluster, "DEL", names[1])
            Restoration(redlock._opener.session().masters, lease._hold).send_to(0)
            await until(lambda: call(cluster, "GET", names[1]) == lease.token)
        await (await asyncio.wait_for(waiter, 3)).release()
        await until(lambda: gone([cluster], names[0]))
