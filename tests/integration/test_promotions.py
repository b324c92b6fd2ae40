"""
A master that was made a replica, and is a master again, grants no lock that a lease still holds.

The server is the same process with the same run_id. Its keys are those of the other server, and
its own former marker came back from there.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from redlock_aio.testing import EmbeddedMaster

from .forgetful import granted_after, guarded, hold, marker, run_id
from .helpers import call, until, up, urls, values
from .proxy import proxied
from .servers import process

pytestmark = [pytest.mark.integration, pytest.mark.promise("S1")]

PROMOTED = "it was a replica, and may lack locks"


@pytest.fixture
def masters(kind: str) -> Iterator[list[EmbeddedMaster]]:
    """Start three masters and the later replica of the first one, which comes last."""
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(process(kind)) for _ in range(4)]
        for server in servers:
            call(server, "CONFIG", "SET", "repl-diskless-sync-delay", 0)
        yield servers


def replication(server: EmbeddedMaster) -> dict[str, Any]:
    found: dict[str, Any] = call(server, "INFO", "replication")
    return found


async def copy(source: EmbeddedMaster, target: EmbeddedMaster) -> None:
    """Make *target* a replica of *source*, and wait until it has its keys."""
    call(target, "REPLICAOF", "127.0.0.1", source.port)
    await until(lambda: replication(target).get("master_link_status") == "up", within=20)


async def there_and_back(first: EmbeddedMaster, second: EmbeddedMaster) -> None:
    """Make *first* a replica of *second*, which has its keys of earlier, and promote it again."""
    before = marker(first)
    run_id_before = run_id(first)
    await copy(second, first)
    call(first, "REPLICAOF", "NO", "ONE")
    assert (marker(first), run_id(first)) == (before, run_id_before)
    assert values([first], "r") == [None]


async def detached_copy(of: EmbeddedMaster, to: EmbeddedMaster) -> None:
    """Copy the keys, and end the replication: later locks are not in the copy."""
    await copy(of, to)
    call(to, "REPLICAOF", "NO", "ONE")


@pytest.mark.full
@pytest.mark.parametrize("forgotten", [False, True], ids=["just now", "an hour ago"])
async def test_a_newcomer_finds_a_promoted_master(
    masters: list[EmbeddedMaster], *, forgotten: bool
) -> None:
    """The holder is cut off. It has the lock on two masters; the first of them loses it."""
    *masters, replica = masters
    async with proxied(urls(masters)) as ways:
        async with guarded(masters):
            await detached_copy(masters[0], replica)
        async with guarded(ways) as holder:
            held = await hold(holder)
            for way in ways:
                way.stall()
            call(masters[2], "DEL", "r")  # as if the holder had never reached it
            await there_and_back(masters[0], replica)
            if forgotten:
                # It happens an hour after the last replica has left; here after a second.
                call(masters[0], "CONFIG", "SET", "repl-backlog-ttl", 1)
                await until(
                    lambda: not str(replication(masters[0])["master_replid2"]).strip("0"),
                    within=20,
                )
            async with guarded(masters) as newcomer:
                reason = newcomer.statistics().masters[0].reason
                assert PROMOTED in reason
                if held.lease.valid:
                    granted = await granted_after(newcomer, held)
                    assert all(PROMOTED in votes[0].detail for _, votes in granted.refusals), (
                        granted.refusals
                    )
            for way in ways:
                way.resume()


async def test_a_program_that_slept_through_a_promotion(masters: list[EmbeddedMaster]) -> None:
    """Its connection lived on: the master's copy of the other's keys is pushed as a flush."""
    *masters, replica = masters
    async with proxied(urls(masters)) as ways, guarded(ways) as sleeper:
        await detached_copy(masters[0], replica)
        await until(lambda: up(sleeper) == 3)
        async with proxied(urls(masters)) as cut_off, guarded(cut_off) as holder:
            held = await hold(holder)
            for way in (*ways, *cut_off):
                way.stall()
            call(masters[2], "DEL", "r")
            await there_and_back(masters[0], replica)
            attempt = asyncio.create_task(sleeper.lock("r", wait=0).try_acquire())
            await asyncio.sleep(0)
            for way in ways:
                way.resume()
            assert await attempt is None
            assert held.lease.valid
            await granted_after(sleeper, held)
            for way in cut_off:
                way.resume()


async def test_the_hour_after_a_promotion_costs_no_second_quarantine(
    masters: list[EmbeddedMaster],
) -> None:
    master, replica, *_ = masters
    async with guarded([master], max_ttl=500) as redlock:
        await detached_copy(master, replica)
        call(replica, "SET", "x", "y")
        await copy(replica, master)
        call(master, "REPLICAOF", "NO", "ONE")
        before = marker(master)
        await until(lambda: marker(master) != before, within=20)
        await until(lambda: redlock.statistics().masters[0].votes, within=20)
        named = marker(master)
        assert named is not None
        assert named.run_id.startswith(f"{run_id(master)}+")
        if "total_net_repl_input_bytes" not in call(master, "INFO", "stats"):
            pytest.skip("a server before Redis 7 does not know it")
        lost: list[object] = []
        call(master, "CONFIG", "SET", "repl-backlog-ttl", 1)
        await until(lambda: not str(replication(master)["master_replid2"]).strip("0"), within=20)
        for _ in range(20):
            await asyncio.sleep(0.1)
            async with guarded([master], max_ttl=500) as newcomer:
                lost += [s.reason for s in newcomer.statistics().masters if not s.votes]
            lost += [s.reason for s in redlock.statistics().masters if not s.votes]
        assert not lost
        assert marker(master) == named
