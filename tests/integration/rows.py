"""
What is tried on each version of a server: the rows of docs/reference/masters.md.

A row is a function that gets the server's program, starts what it needs, and returns the text of
its cell. It raises an error if the library does not do there what it promises.
"""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from evidence.clusters import Cluster, why_no_cluster
from evidence.servers import Place
from redis.asyncio import Redis
from redis.credentials import CredentialProvider

from redlock_aio import Answer, LockLostError, QuorumUnavailableError, Redlock
from redlock_aio.testing import EmbeddedMaster
from redlock_aio.testing._embedded import free_port

from . import features
from .failover import survives_a_failover
from .features import LONG, Works, allowed
from .helpers import AT_ONCE, SELDOM, TIMEOUT, call, gone, listens, put, until, up, urls, waiting
from .tls import Certificates, tls_options

YES = "yes"

Row = Callable[[str], Coroutine[Any, Any, str]]


@contextlib.contextmanager
def servers(binary: str, number: int = 3, *options: str) -> Iterator[list[EmbeddedMaster]]:
    """Run independent servers of one program."""
    with contextlib.ExitStack() as stack:
        masters = [EmbeddedMaster(binary, options=options) for _ in range(number)]
        yield [stack.enter_context(master) for master in masters]


@contextlib.asynccontextmanager
async def opened(masters: list[EmbeddedMaster], **options: Any) -> AsyncIterator[Redlock]:
    """Open a manager that is connected to all *masters*."""
    async with Redlock(urls(masters), master_timeout=TIMEOUT, **options) as redlock:
        await until(lambda: up(redlock) == len(masters))
        yield redlock


async def lock_once(redlock: Redlock, masters: int) -> None:
    """Acquire, extend and release, with the votes of all masters."""
    await until(lambda: up(redlock) == masters)
    async with redlock.lock("r", wait=8_000) as lease:
        await lease.extend()
        await until(lambda: all(vote.answer is Answer.GRANTED for vote in lease.votes))


def feature(does: Works) -> Row:
    """Return the row of a feature that is tried on one server."""

    async def row(binary: str) -> str:
        with servers(binary, 1) as [master]:
            assert await does(master.url, master, LONG)
        return YES

    return row


async def fair_and_fenced(binary: str) -> str:
    with servers(binary) as masters:
        async with opened(masters, fencing=True) as redlock:
            tokens, order = [], []

            async def take(number: int) -> None:
                async with redlock.lock("r", fair=True) as lease:
                    order.append(number)
                    tokens.append(lease.fencing_token or 0)

            async with redlock.lock("r", fair=True) as lease:
                tokens.append(lease.fencing_token or 0)
                tasks = []
                for number in range(3):
                    tasks.append(asyncio.create_task(take(number)))
                    await asyncio.sleep(0.05)
            await asyncio.wait_for(asyncio.gather(*tasks), 4 * AT_ONCE)
            assert order == [0, 1, 2]
            assert tokens == sorted(set(tokens))
    return YES


async def reentrant(binary: str) -> str:
    with servers(binary) as masters:
        async with opened(masters) as redlock:
            async with redlock.lock("r", reentrant=True) as outer:
                async with redlock.lock("r", reentrant=True, wait=0) as inner:
                    assert (inner.token, inner.hold_count) == (outer.token, 2)
                assert not gone(masters, "r")
            await until(lambda: gone(masters, "r"))
    return YES


async def handed_over(binary: str) -> str:
    with servers(binary) as masters:
        async with opened(masters) as here, opened(masters) as there:
            for fencing in (False, True):
                lease = await here.lock("r", fencing=fencing).acquire()
                text = lease.export()
                async with await there.adopt(text) as adopted:
                    assert adopted.token != lease.token
                    if fencing:
                        assert adopted.fencing_token == lease.fencing_token
                    assert await here.lock("r").try_acquire() is None
                await until(lambda: gone(masters, "r"))
    return YES


async def woken(binary: str) -> str:
    """Wake waiters that would try again only after 20 s: by a release, an expiry, a deletion."""
    with servers(binary) as masters:
        async with opened(masters) as redlock, opened(masters) as other:
            for end in ("release", "expiry", "deletion"):
                lease = await other.lock("r").acquire() if end == "release" else None
                if lease is None:
                    put(masters, "r", 3_000 if end == "expiry" else 60_000)
                async with waiting(redlock, "r", retry=SELDOM) as waiter:
                    await until(lambda: listens(redlock))
                    if lease is not None:
                        await lease.release()
                    for master in masters if end == "deletion" else ():
                        call(master, "DEL", "r")
                    await asyncio.wait_for(asyncio.shield(waiter), 3 + AT_ONCE)
    return YES


async def notified(binary: str) -> str:
    """Cancel the body of a lease soon after its keys were deleted, long before an extension."""
    with servers(binary) as masters:
        async with opened(masters, max_ttl=600_000) as redlock:
            with pytest.raises(LockLostError):
                async with redlock.lock("r", ttl=600_000):
                    for master in masters:
                        call(master, "DEL", "r")
                    await asyncio.sleep(AT_ONCE)
    return YES


async def guarded(binary: str) -> str:
    """Quarantine a master that has restarted, and one that was flushed."""
    with servers(binary) as masters:
        async with opened(masters) as redlock:
            async with redlock.lock("r"):
                pass
            masters[0].restart()
            call(masters[1], "FLUSHALL")

            def states() -> list[str]:
                return [master.reason for master in redlock.statistics().masters]

            await until(lambda: "restarted" in states()[0] and "flushed" in states()[1])
            with pytest.raises(QuorumUnavailableError, match="quarantined"):
                await redlock.lock("r", wait=0).acquire()
    return YES


async def permitted(binary: str) -> str:
    """Use each feature with the permissions of docs/reference/acl.md and no others."""
    with servers(binary, 1) as [master]:
        for commands, own, does in features.ENOUGH:
            with allowed(master, *commands, own=own) as url:
                for each in does:
                    assert await each(url, master, LONG)
    return YES


async def frees(binary: str) -> str:
    """Return which command releases a lock."""
    with servers(binary, 1) as [master]:
        async with opened([master]) as redlock:
            await lock_once(redlock, 1)
            await until(lambda: gone([master], "r"))
        used = call(master, "INFO", "commandstats")
        return "`DELIFEQ`" if used.get("cmdstat_delifeq", {"calls": 0})["calls"] > 1 else "a script"


async def by_socket(binary: str) -> str:
    with contextlib.ExitStack() as stack:
        masters = [stack.enter_context(EmbeddedMaster(binary, unix=True)) for _ in range(3)]
        assert all(master.url.startswith("unix://") for master in masters)
        async with Redlock(urls(masters), master_timeout=TIMEOUT) as redlock:
            await lock_once(redlock, 3)
    return YES


class Rotating(CredentialProvider):
    """A credential provider whose password changes."""

    def __init__(self) -> None:
        self.password = "first"
        self.asked = 0

    def get_credentials(self) -> tuple[str, str]:
        self.asked += 1
        return "app", self.password

    async def get_credentials_async(self) -> tuple[str, str]:
        return self.get_credentials()


async def rotated(binary: str) -> str:
    """Change the password on all servers while a lease is held, and end all connections."""
    user = ("--user", "app", "on", ">first", "~*", "+@all")
    with servers(binary, 3, *user) as masters:
        provider = Rotating()
        async with contextlib.AsyncExitStack() as stack:
            clients = [
                Redis(host="127.0.0.1", port=master.port, credential_provider=provider)
                for master in masters
            ]
            for client in clients:
                await stack.enter_async_context(client)
            redlock = await stack.enter_async_context(Redlock(clients, master_timeout=TIMEOUT))
            await lock_once(redlock, 3)
            async with redlock.lock("held", ttl=30_000) as lease:
                for master in masters:
                    call(master, "ACL", "SETUSER", "app", ">second", "<first")
                    master.cut()
                # The servers refuse the old password until the provider returns the new one.
                await until(lambda: provider.asked > 6)
                provider.password = "second"
                await until(lambda: up(redlock) == 3)
                await lease.extend()
            await lock_once(redlock, 3)
    return YES


async def by_tls(binary: str) -> str:
    return await _by_tls(binary, mutual=False)


async def by_mutual_tls(binary: str) -> str:
    return await _by_tls(binary, mutual=True)


async def _by_tls(binary: str, *, mutual: bool) -> str:
    """Lock over TLS; where the servers demand certificates of clients, fail without one."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        certificates = Certificates(Path(folder))
        ports = [free_port() for _ in range(3)]
        try:
            for port in ports:
                options = tls_options(certificates, port, mutual=mutual)
                stack.enter_context(servers(binary, 1, *options))
        except RuntimeError:
            return "not in this build"
        names = [certificates.url(port, with_own=mutual) for port in ports]
        async with Redlock(names, master_timeout=TIMEOUT) as redlock:
            await lock_once(redlock, 3)
        without = [
            certificates.url(port, with_own=False) if mutual else f"rediss://localhost:{port}"
            for port in ports
        ]
        async with Redlock(without, master_timeout=TIMEOUT) as redlock:
            with pytest.raises(QuorumUnavailableError, match=r"certificate|closed|reset"):
                await redlock.lock("r", wait=1_000).acquire()
    return YES


async def clustered(binary: str) -> str:
    """Refuse nodes of a Redis Cluster, for good, though they have all slots."""
    node = EmbeddedMaster(binary, options=("--cluster-enabled", "yes"))
    # The port of its bus is 10 000 higher, and must be one that the system gives to nobody.
    node.port = next(port for port in iter(free_port, 0) if port < 22_000)
    with node:
        call(node, "CLUSTER", "ADDSLOTS", *range(16_384))
        async with Redlock([node.url], master_timeout=TIMEOUT) as redlock:
            with pytest.raises(QuorumUnavailableError, match="a node of a Redis Cluster") as caught:
                await redlock.lock("r", wait=20_000).acquire()
            assert [vote.permanent for vote in caught.value.votes] == [True]
    return "refused"


async def failed_over(binary: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        await survives_a_failover(binary, Path(folder))
    return YES


async def of_cluster(binary: str) -> str:
    """Hand a fair and fenced lock over, and a permit, on three primaries of one Cluster."""
    if why_no_cluster(binary):
        return "not tried"  # `evidence.clusters` makes none of such servers
    with Cluster(Place(binary, Path()), replicas=False) as site:
        options: dict[str, Any] = {"masters": 3, "fencing": True}
        async with (
            Redlock.of_cluster(site.url, **options) as one,
            Redlock.of_cluster(site.url, **options) as other,
        ):
            await until(lambda: up(one) == up(other) == 3, within=30)
            async with one.lock("r", fair=True) as first:
                waiter = asyncio.create_task(other.lock("r", fair=True, wait=20_000).acquire())
                await asyncio.sleep(0.3)
                assert (await one.inspect("r")).waiters == 1
            second = await asyncio.wait_for(waiter, LONG)
            assert (second.fencing_token or 0) > (first.fencing_token or 0)
            await second.release()
            async with one.semaphore("p", permits=2), contextlib.AsyncExitStack() as stack:
                await stack.enter_async_context(one.semaphore("p", permits=2))
                waiter = asyncio.create_task(other.semaphore("p", permits=2).acquire())
                await asyncio.sleep(0.3)
                await stack.aclose()
                await (await asyncio.wait_for(waiter, LONG)).release()
    return YES


ROWS: dict[str, Row] = {
    "a lock: acquired, extended, restored, refused, released": feature(features.works),
    "several resources at once": feature(features.several_works),
    "`fencing=True`": feature(features.fenced_works),
    "`fair=True`": feature(features.fair_works),
    "`fair=True`, `fencing=True`": fair_and_fenced,
    "`reentrant=True`": reentrant,
    "handed over and adopted, plain and fenced": handed_over,
    "waiters are woken by a release, an expiry and a deletion": woken,
    "a holder is notified of deleted keys": notified,
    "a restart and a flush are noticed": guarded,
    "`redlock.inspect`, `redlock.force_release`": feature(features.admin_works),
    "the [smallest permissions](acl.md)": permitted,
    "locks are released by": frees,
    "Unix sockets": by_socket,
    "a password that changes while a lease is held": rotated,
    "TLS": by_tls,
    "mutual TLS": by_mutual_tls,
    "a failover by Sentinel": failed_over,
    "a node of a Redis Cluster": clustered,
    "three primaries of [a Cluster](../how-to/cluster.md) as the masters": of_cluster,
}
"""The rows of the table, in their order."""
