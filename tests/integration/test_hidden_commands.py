"""Services that lack CLIENT TRACKING and CLIENT SETNAME, and leave out fields of INFO."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator

import pytest

from redlock_aio.testing import EmbeddedMaster

from .forgetful import QUARANTINE, granted_after, guarded, hold, marker, run_id
from .helpers import call, until, up, urls
from .proxy import Proxy, proxied
from .servers import process

pytestmark = [pytest.mark.integration, pytest.mark.promise("S1")]

HIDDEN = (b"\r\nTRACKING", b"\r\nSETNAME", b"master_replid", b"total_net_repl_input_bytes")


@pytest.fixture
def masters(kind: str) -> Iterator[list[EmbeddedMaster]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(process(kind)) for _ in range(3)]


@pytest.fixture
async def services(masters: list[EmbeddedMaster]) -> AsyncIterator[list[Proxy]]:
    async with proxied(urls(masters)) as ways:
        for way in ways:
            way.hides = HIDDEN
        yield ways


async def test_a_lock_is_handed_over_by_polling_and_the_log_says_why(
    services: list[Proxy], caplog: pytest.LogCaptureFixture
) -> None:
    async with guarded(services) as one, guarded(services) as two:
        assert caplog.text.count("the service has no client tracking") == 6
        assert "forbids" not in caplog.text
        lease = await one.lock("r").acquire()
        waiter = asyncio.create_task(two.lock("r", wait=8_000).acquire())
        await asyncio.sleep(0.5)
        assert not waiter.done()
        await lease.release()
        await (await waiter).release()
        async with one.lock("s", fair=True, fencing=True, wait=8_000) as lease:
            await lease.extend()


def uptime(master: EmbeddedMaster) -> int:
    return int(call(master, "INFO", "server")["uptime_in_seconds"])


@pytest.mark.spread(0)
@pytest.mark.parametrize("hidden", [False, True], ids=["no marker", "another program's marker"])
async def test_a_flush_of_a_majority_gives_no_lock_to_two_holders(
    masters: list[EmbeddedMaster], services: list[Proxy], *, hidden: bool
) -> None:
    async with guarded(services) as holder, guarded(services) as other:
        # Of a younger server without its marker the guard says that it restarted.
        await until(lambda: all(uptime(master) > QUARANTINE for master in masters), within=60)
        held = await hold(holder)
        for master in masters[:2]:
            found = marker(master)
            assert found is not None
            call(master, "FLUSHALL")
            if hidden:
                seconds, us = call(master, "TIME")
                other_marker = f"{found.run_id} member {seconds * 1_000_000 + us}"
                call(master, "SET", "redlock_aio:marker", other_marker)
        granted = await granted_after(other, held)
        last = granted.refusals[-1][1]
        assert any("flushed" in vote.detail or "marked" in vote.detail for vote in last), last


@pytest.mark.full
async def test_a_master_that_was_seen_as_a_replica_waits_although_info_hides_it(
    masters: list[EmbeddedMaster], services: list[Proxy], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "redlock_aio")
    first, second, *_ = masters
    for server in (first, second):
        call(server, "CONFIG", "SET", "repl-diskless-sync-delay", 0)
    async with guarded(services[:1]) as redlock:
        await until(lambda: up(redlock) == 1)
        call(second, "REPLICAOF", "127.0.0.1", first.port)
        await until(lambda: call(second, "ROLE")[3] == "connected", within=20)
        call(second, "REPLICAOF", "NO", "ONE")
        before = marker(first)
        call(first, "REPLICAOF", "127.0.0.1", second.port)
        await until(lambda: call(first, "ROLE")[3] == "connected", within=20)
        await until(lambda: "replica" in caplog.text or "slave" in caplog.text, within=20)
        call(first, "REPLICAOF", "NO", "ONE")
        assert marker(first) == before
        await until(lambda: "it was a replica" in caplog.text, within=20)
        await until(lambda: redlock.statistics().masters[0].votes, within=20)
        found = marker(first)
        assert found is not None
        assert found.run_id == run_id(first)
        assert found.number > before.number if before is not None else False
