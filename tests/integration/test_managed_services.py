"""
Servers as managed services show them: what the service hides is hidden by a proxy.

No managed service is reached. The profiles follow the documentation of the services, see
``docs/how-to/managed-redis.md``.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import redis

from redlock_aio import Answer, LockNotAcquiredError, Redlock
from redlock_aio.cli.doctor.findings import Kind
from redlock_aio.testing import EmbeddedMaster

from .forgetful import QUARANTINE, granted_after, guarded, hold
from .helpers import call, connected, gone, queued, until, up, urls
from .proxy import Proxy, proxied
from .servers import process
from .test_doctor import examined, kinds

pytestmark = [pytest.mark.integration]

NO_TRACKING = (b"\r\nTRACKING", b"\r\nCACHING", b"\r\nSETNAME")
"""The commands of a service without client tracking."""

NO_CLIENT = (b"\r\nCLIENT",)
"""The command of a service that has no subcommand of CLIENT, as Memorystore for Redis."""

NO_CONFIG = (
    b"\r\nCONFIG", b"\r\nDEBUG", b"\r\nREPLICAOF", b"\r\nSAVE", b"\r\nMONITOR", b"\r\nLASTSAVE",
    b"\r\nmaster_replid", b"\r\ntotal_net_repl_input_bytes", b"\r\nserver_time_usec",
    b"\r\nconnected_slaves", b"\r\naof_enabled", b"\r\nmaxmemory:", b"\r\nconfig_file",
)  # fmt: skip
"""Administration that services keep for themselves, and fields of INFO without which it works."""

PROMOTION = (b"\r\nmaster_replid", b"\r\ntotal_net_repl_input_bytes")
"""The fields of INFO that show that a server was a replica."""

NO_ACL = (b"\r\nACL", b"\r\nDELIFEQ", b"\r\nMODULE", b"\r\nCLUSTER")
"""The commands of a service that keeps the users to itself; it evicts keys with a ttl."""

PROFILES = {
    "no tracking": NO_TRACKING,
    "no CLIENT": NO_CLIENT,
    "no CONFIG, a short INFO": NO_CONFIG,
    "no ACL, an eviction": NO_ACL,
    "all at once": NO_CLIENT + NO_CONFIG + NO_ACL,
}
EVICTS = ("no ACL, an eviction", "all at once")

WAIT = 20_000


@pytest.fixture(scope="module")
def masters(kind: str) -> Iterator[list[EmbeddedMaster]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(process(kind)) for _ in range(3)]


@pytest.fixture(params=PROFILES)
async def services(
    masters: list[EmbeddedMaster], request: pytest.FixtureRequest
) -> AsyncIterator[list[Proxy]]:
    policy = "volatile-lru" if request.param in EVICTS else "noeviction"
    for master in masters:
        call(master, "FLUSHALL")
        call(master, "CONFIG", "SET", "maxmemory", "100mb", "maxmemory-policy", policy)
    async with proxied(urls(masters)) as ways:
        for way in ways:
            way.hides = PROFILES[request.param]
        yield ways


def opened(services: list[Proxy]) -> contextlib.AbstractAsyncContextManager[Redlock]:
    """Open a manager whose guard gives new servers a vote at once."""
    return connected(services, restart_guard="auto", max_ttl=10_000)


def votes(redlock: Redlock) -> list[bool]:
    """Return which masters have a vote."""
    return [master.votes for master in redlock.statistics().masters]


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    "options", [{}, {"fencing": True}, {"fair": True, "fencing": True}], ids=str
)
async def test_a_lock_is_held_extended_refused_and_handed_over(
    services: list[Proxy], masters: list[EmbeddedMaster], options: dict[str, Any]
) -> None:
    async with opened(services) as one, opened(services) as two:
        lease = await one.lock("a", "b", ttl=8_000, **options).acquire()
        assert [vote.answer for vote in lease.votes].count(Answer.GRANTED) >= 2
        await lease.extend()
        assert lease.valid
        with pytest.raises(LockNotAcquiredError):
            await two.lock("b", ttl=8_000, wait=0, **options).acquire()
        waiter = asyncio.create_task(two.lock("b", ttl=8_000, wait=WAIT, **options).acquire())
        await asyncio.sleep(0.3)
        assert not waiter.done()
        await lease.release()
        got = await waiter
        if options.get("fencing"):
            assert got.fencing_token > lease.fencing_token
        await got.release()
    await until(lambda: gone(masters, "a") and gone(masters, "b"))


@pytest.mark.spread(0)
async def test_fair_waiters_get_it_in_order(
    services: list[Proxy], masters: list[EmbeddedMaster]
) -> None:
    order: list[int] = []

    async def turn(redlock: Redlock, number: int) -> None:
        async with redlock.lock("q", ttl=8_000, wait=WAIT, fair=True):
            order.append(number)

    async with opened(services) as one, opened(services) as two, opened(services) as three:
        lease = await one.lock("q", ttl=8_000, fair=True).acquire()
        waiters = []
        for number, redlock in enumerate((two, three, one), 1):
            waiters.append(asyncio.create_task(turn(redlock, number)))
            await until(lambda count=number: queued(masters, "q") == [count] * 3)  # type: ignore[misc]
        await lease.release()
        await asyncio.gather(*waiters)
    assert order == [1, 2, 3]


@pytest.mark.spread(0)
async def test_readers_share_and_a_writer_waits_for_them(services: list[Proxy]) -> None:
    async with opened(services) as one, opened(services) as two, opened(services) as three:
        first = await one.lock("doc", ttl=8_000, shared=True).acquire()
        second = await two.lock("doc", ttl=8_000, shared=True).acquire()
        with pytest.raises(LockNotAcquiredError):
            await three.lock("doc", ttl=8_000, wait=0, fair=True).acquire()
        writer = asyncio.create_task(three.lock("doc", ttl=8_000, wait=WAIT, fair=True).acquire())
        await first.extend()
        await first.release()
        await asyncio.sleep(0.2)
        assert not writer.done()
        await second.release()
        got = await writer
        with pytest.raises(LockNotAcquiredError):
            await one.lock("doc", ttl=8_000, wait=0, shared=True).acquire()
        await got.release()


@pytest.mark.spread(0)
async def test_no_more_than_the_permits_are_held(services: list[Proxy]) -> None:
    async with opened(services) as one, opened(services) as two, opened(services) as three:
        leases = [
            await redlock.semaphore("s", permits=2, ttl=8_000).acquire() for redlock in (one, two)
        ]
        waits = three.semaphore("s", permits=2, ttl=8_000, wait=WAIT)
        waiter = asyncio.create_task(waits.acquire())
        await asyncio.sleep(0.3)
        assert not waiter.done()
        await leases[0].extend()
        await leases[0].release()
        got = await waiter
        assert got.permit == leases[0].permit
        await got.release()
        await leases[1].release()


@pytest.mark.promise("S1")
@pytest.mark.parametrize("services", ["all at once"], indirect=True)
async def test_two_flushed_services_grant_nothing_twice(
    services: list[Proxy], masters: list[EmbeddedMaster]
) -> None:
    async with guarded(services) as holder, guarded(services) as other:
        await until(lambda: up(holder) == up(other) == 3)
        held = await hold(holder)
        for master in masters[:2]:
            call(master, "FLUSHALL")
        granted = await granted_after(other, held)
        last = granted.refusals[-1][1]
        assert any("flushed" in vote.detail or "marked" in vote.detail for vote in last), last


async def test_eviction_is_warned_of_also_where_the_limit_is_hidden(
    services: list[Proxy], request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(services) as redlock:
        await (await redlock.lock("r", ttl=8_000).acquire()).release()
    evicts = any(name in request.node.name for name in EVICTS)
    expected = 3 if evicts else 0
    assert caplog.text.count("its maxmemory-policy volatile-lru may drop locks") == expected


@pytest.mark.parametrize("services", ["all at once"], indirect=True)
async def test_the_doctor_examines_them_and_names_what_is_unsafe(services: list[Proxy]) -> None:
    _, found = await examined(urls(services))
    assert kinds(found) >= {Kind.EVICTION, Kind.NO_TRACKING}
    assert not kinds(found) & {Kind.REFUSES, Kind.NO_MAJORITY, Kind.PERMISSION}, found


async def test_one_endpoint_whose_server_has_a_replica_is_warned_of_once(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        process(kind) as primary,
        process(kind, "--replicaof", "127.0.0.1", str(primary.port)) as replica,
    ):
        await until(lambda: call(replica, "INFO", "replication")["master_link_status"] == "up", 60)
        async with proxied(urls([primary])) as (endpoint,), opened([endpoint]) as redlock:
            await (await redlock.lock("r", ttl=8_000).acquire()).release()
            endpoint.reset()
            await until(lambda: caplog.text.count("unreachable") == 1 and up(redlock) == 1)
            await (await redlock.lock("r", ttl=8_000).acquire()).release()
    assert caplog.text.count("it is the only master, and it has replicas") == 1


@pytest.mark.parametrize(("policy", "kept"), [("volatile-lru", False), ("noeviction", True)])
def test_what_a_full_server_does_to_a_lock(kind: str, policy: str, *, kept: bool) -> None:
    """Keys without a ttl fill it, as those of a cache do; the only key with one is a lock."""
    with process(kind) as master, contextlib.closing(master.client()) as client:
        client.set("lock", "token", px=60_000)
        used = client.info("memory")["used_memory"]
        client.config_set("maxmemory-policy", policy)
        client.config_set("maxmemory", used + 2_000_000)
        with pytest.raises(redis.ResponseError, match="maxmemory"):
            for number in range(10_000):
                client.set(f"cache:{number}", "x" * 1_000)
        assert bool(client.exists("lock")) is kept


async def test_an_address_that_does_not_move_hides_a_failover(kind: str) -> None:
    """
    What the page says of a load balancer: the old primary lives on behind it, and two hold a lock.

    No promise is broken: the page says that this is not seen. The token of the later holder is
    higher, because counters follow the clocks of the servers.
    """
    with process(kind) as old, process(kind) as new:
        async with proxied(urls([old])) as (endpoint,), guarded([endpoint]) as first:
            held = await first.lock("r", ttl=4_000, fencing=True).acquire()
            call(new, "REPLICAOF", "127.0.0.1", old.port)
            await until(lambda: call(new, "INFO", "replication")["master_link_status"] == "up", 60)
            call(new, "REPLICAOF", "NO", "ONE")
            endpoint._port = new.port  # for new connections; the others stay
            async with guarded([endpoint]) as second:
                lock = second.lock("r", ttl=4_000, fencing=True, wait=WAIT)
                call(new, "DEL", "r")  # as if it had not been replicated
                got = await lock.acquire()
                assert held.valid
                assert got.valid
                assert got.fencing_token > held.fencing_token
                await got.release()
            await held.release()


def replicates(server: EmbeddedMaster) -> bool:
    """Return whether a replica has the keys of its master."""
    return bool(call(server, "INFO", "replication")["master_link_status"] == "up")


@pytest.mark.full
@pytest.mark.promise("S1")
@pytest.mark.parametrize("hides", [(), PROMOTION], ids=["INFO shows it", "INFO hides it"])
async def test_of_three_such_addresses_the_new_server_has_no_vote_beside_the_old_one(
    kind: str, hides: tuple[bytes, ...]
) -> None:
    with contextlib.ExitStack() as stack:
        *old, new = (stack.enter_context(process(kind)) for _ in range(4))
        async with proxied(urls(old)) as endpoints, guarded(endpoints) as first:
            await until(lambda: votes(first) == [True] * 3)
            call(new, "REPLICAOF", "127.0.0.1", old[0].port)
            await until(lambda: call(new, "INFO", "replication")["master_link_status"] == "up", 60)
            call(new, "REPLICAOF", "NO", "ONE")
            endpoints[0]._port = new.port
            endpoints[0].hides = hides
            async with guarded(endpoints) as second:
                await until(lambda: votes(second)[1:] == [True] * 2)
                ends = time.monotonic() + 2 * QUARANTINE
                while time.monotonic() < ends:
                    assert not votes(second)[0]
                    await asyncio.sleep(0.1)
                assert votes(first) == [True] * 3
                async with second.lock("r", ttl=4_000, wait=WAIT) as lease:
                    assert lease.votes[0].answer is not Answer.GRANTED


@pytest.mark.full
@pytest.mark.promise("S1")
async def test_of_two_such_addresses_of_three_neither_new_server_has_a_vote(kind: str) -> None:
    """The third master, which both programs share, is enough to know of the old ones."""
    with contextlib.ExitStack() as stack:
        *old, one, other = (stack.enter_context(process(kind)) for _ in range(5))
        async with proxied(urls(old)) as endpoints, guarded(endpoints) as first:
            await until(lambda: votes(first) == [True] * 3)
            for number, new in enumerate((one, other)):
                call(new, "REPLICAOF", "127.0.0.1", old[number].port)
                await until(lambda server=new: replicates(server), 60)  # type: ignore[misc]
                call(new, "REPLICAOF", "NO", "ONE")
            endpoints[0]._port, endpoints[1]._port = one.port, other.port
            async with guarded(endpoints) as second:
                await until(lambda: votes(second)[2])
                ends = time.monotonic() + 2 * QUARANTINE
                while time.monotonic() < ends:
                    assert not any(votes(second)[:2])
                    await asyncio.sleep(0.1)
                assert votes(first) == [True] * 3
