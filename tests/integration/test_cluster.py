"""A Cluster of one server: several resources at once need one hash tag."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from redlock_aio import Redlock, RedlockError
from redlock_aio._engine.hold.restoration import Restoration
from redlock_aio.testing import EmbeddedMaster

from .helpers import AT_ONCE, KIND, SELDOM, TIMEOUT, call, gone, until, up
from .servers import process, quiet_port

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def cluster(kind: str) -> Iterator[EmbeddedMaster]:
    """Run a server that has all slots of a Cluster."""
    # By default the port of its bus is 10 000 higher, in the range that clients get.
    bus = str(quiet_port())
    with process(kind, "--cluster-enabled", "yes", "--cluster-port", bus) as server:
        call(server, "CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        yield server


async def test_names_of_several_slots_are_refused(cluster: EmbeddedMaster) -> None:
    async with Redlock([cluster.url], master_timeout=TIMEOUT, restart_guard="off") as redlock:
        await until(lambda: "cluster_state:ok" in call(cluster, "CLUSTER", "INFO"))
        await until(lambda: up(redlock) == 1)
        for names in (("a", "b"), ("{x}a", "{y}a"), ("{}a", "{}b"), ("{x}a", "x}a")):
            with pytest.raises(RedlockError, match="hash tag, as in"):
                await redlock.lock(*names).acquire()
            with pytest.raises(RedlockError, match="hash tag, as in"):
                await redlock.lock(*names).try_acquire()


@KIND
async def test_names_with_one_hash_tag_are_locked_together(
    cluster: EmbeddedMaster, options: dict[str, Any]
) -> None:
    names = ("{order:7}:invoice", "order:7", "a{order:7}")
    async with Redlock([cluster.url], master_timeout=TIMEOUT, restart_guard="off") as redlock:
        await until(lambda: up(redlock) == 1)
        async with redlock.lock(*names, **options) as lease:
            assert all(call(cluster, "GET", name) == lease.token for name in names)
            waiter = asyncio.create_task(redlock.lock(*names, retry=SELDOM, **options).acquire())
            await asyncio.sleep(0.02)
            await lease.extend()
            call(cluster, "DEL", names[1])
            Restoration(redlock._opener.session().masters, lease._hold).send_to(0)
            await until(lambda: call(cluster, "GET", names[1]) == lease.token)
        await (await asyncio.wait_for(waiter, AT_ONCE)).release()
        await until(lambda: gone([cluster], names[0]))
