"""A master, its replica and three Sentinels of one version, and a failover."""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import redis
from evidence.servers import SERVICE, SentinelServer
from redis.asyncio.sentinel import Sentinel

from redlock_aio import Redlock
from redlock_aio.testing import EmbeddedMaster
from redlock_aio.testing._embedded import free_port

from .helpers import TIMEOUT, call, until, up

MAX_TTL = 1_000
"""The quarantine after a failover is 3 s longer."""


@contextlib.contextmanager
def sentinel(binary: str, folder: Path, master: int) -> Iterator[int]:
    """Run a Sentinel for the master at this port; yield its own port."""
    port = free_port()
    lines = [
        *(f"port {port}", "bind 127.0.0.1"),
        f"sentinel down-after-milliseconds {SERVICE} 2000",
    ]
    url, config = f"redis://127.0.0.1:{port}", folder / f"sentinel-{port}.conf"
    server = SentinelServer(binary, config, url, ("127.0.0.1", master), lines)
    server.start()
    try:
        yield port
    finally:
        server.kill()


def role(server: EmbeddedMaster) -> list[Any]:
    """Return the role of a server; a Sentinel that changes it ends all connections."""
    with contextlib.suppress(redis.ConnectionError):
        found: list[Any] = call(server, "ROLE")
        return found
    return [None] * 4


async def survives_a_failover(binary: str, folder: Path) -> None:
    """Lock, promote the replica, see its quarantine, and lock there when that is over."""
    with contextlib.ExitStack() as stack:
        old, new = (stack.enter_context(EmbeddedMaster(binary)) for _ in range(2))
        call(new, "REPLICAOF", "127.0.0.1", old.port)
        ports = [stack.enter_context(sentinel(binary, folder, old.port)) for _ in range(3)]
        manager = Sentinel([("127.0.0.1", port) for port in ports])
        clients = manager.sentinels

        async def complete() -> bool:
            with contextlib.suppress(redis.RedisError, KeyError):
                states: list[Any] = [await client.sentinel_master(SERVICE) for client in clients]
                known = [(state["num-slaves"], state["num-other-sentinels"]) for state in states]
                return known == [(1, 2)] * 3
            return False

        async def begun() -> bool:
            # A Sentinel promotes a replica only if its last INFO said that it is connected.
            with contextlib.suppress(redis.ResponseError):
                await clients[0].execute_command("SENTINEL", "FAILOVER", SERVICE)
                return True
            return False

        try:
            await until(lambda: bool(role(new)[3] == "connected"), within=30)
            await until(complete, within=30)
            client = manager.master_for(SERVICE)
            async with (
                client,
                Redlock([client], master_timeout=TIMEOUT, max_ttl=MAX_TTL) as redlock,
            ):
                await until(lambda: up(redlock) == 1)
                async with redlock.lock("r", ttl=MAX_TTL, wait=20_000):
                    assert call(old, "EXISTS", "r") == 1
                await until(begun, within=30)
                await until(lambda: role(new)[0] == "master", within=30)
                # The connection ends, and the promoted master has no vote until the leases that
                # it may lack are over.
                await until(lambda: "was a replica" in redlock.statistics().masters[0].reason)
                assert await redlock.lock("r", ttl=MAX_TTL).try_acquire() is None
                async with redlock.lock("r", ttl=MAX_TTL, wait=30_000):
                    assert call(new, "EXISTS", "r") == 1
        finally:
            await asyncio.gather(*(client.aclose() for client in clients))
