"""Primaries of a real Redis Cluster: names that TLS checks, addresses of IPv6, and passwords."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from redlock_aio import Answer, QuorumUnavailableError, Redlock
from redlock_aio.testing import EmbeddedMaster
from redlock_aio.testing._embedded import free_port

from .helpers import TIMEOUT, call, detail, until, up
from .servers import process
from .tls import Certificates, tls_options

pytestmark = pytest.mark.integration

SLOTS = 16_384
NODES = 3
CLUSTER = ("--cluster-enabled", "yes", "--cluster-require-full-coverage", "no",
           "--cluster-node-timeout", "2000")  # fmt: skip


@contextlib.contextmanager
def cluster(
    kind: str, host: str, ports: Sequence[int], options: Callable[[int], Sequence[str]]
) -> Iterator[list[EmbeddedMaster]]:
    """
    Run a Redis Cluster of three primaries for the body, or skip the test if a node does not start.

    Args:
        host: The address at which the nodes find each other.

        ports: The ports of clients there; of none, those of the nodes.

        options: The options of the node with this number.
    """
    with contextlib.ExitStack() as stack:
        nodes, buses = [], [free_port() for _ in range(NODES)]
        for number, bus in enumerate(buses):
            node = process(kind, *CLUSTER, "--cluster-port", str(bus), *options(number))
            stack.callback(node.stop)
            try:
                node.start()
            except RuntimeError:
                pytest.skip("this server has no TLS, or this machine no such address")
            nodes.append(node)
            first, last = SLOTS * number // NODES, SLOTS * (number + 1) // NODES - 1
            call(node, "CLUSTER", "ADDSLOTSRANGE", first, last)
            call(node, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            where = zip(ports or [each.port for each in nodes], buses, strict=False)
            for port, other in list(where)[:number]:
                call(node, "CLUSTER", "MEET", host, port, other)
        yield nodes


def is_up(node: EmbeddedMaster) -> bool:
    state = str(call(node, "CLUSTER", "INFO"))
    return "cluster_state:ok" in state and f"cluster_known_nodes:{NODES}" in state


async def lock_once(redlock: Redlock) -> None:
    await until(lambda: up(redlock) == NODES, within=30)
    async with redlock.lock("r", wait=8_000, fair=True, fencing=True) as lease:
        await lease.extend()
        await until(lambda: all(vote.answer is Answer.GRANTED for vote in lease.votes))


# TLS.


@contextlib.contextmanager
def with_tls(kind: str, folder: Path, *names: str) -> Iterator[tuple[str, list[EmbeddedMaster]]]:
    """Run one with certificates for "localhost"; its nodes announce *names*. Yield its URL too."""
    certificates = Certificates(folder, "localhost")
    ports = [free_port() for _ in range(NODES)]

    def options(number: int) -> Sequence[str]:
        announced = [word for name in names for word in ("--cluster-announce-hostname", name)]
        return ["--tls-cluster", "yes", *announced, *tls_options(certificates, ports[number])]

    with cluster(kind, "127.0.0.1", ports, options) as nodes:
        yield certificates.url(ports[0]), nodes


async def test_names_that_nodes_announce_are_those_of_their_certificates(
    kind: str, tmp_path: Path
) -> None:
    with with_tls(kind, tmp_path, "localhost") as (url, nodes):
        await until(lambda: all(map(is_up, nodes)), within=30)
        async with Redlock.of_cluster(url, masters=NODES, master_timeout=TIMEOUT) as redlock:
            await lock_once(redlock)


async def test_without_names_the_certificate_does_not_fit_and_the_votes_say_so(
    kind: str, tmp_path: Path
) -> None:
    with with_tls(kind, tmp_path) as (url, nodes):
        await until(lambda: all(map(is_up, nodes)), within=30)
        async with Redlock.of_cluster(url, masters=NODES, master_timeout=TIMEOUT) as redlock:
            with pytest.raises(QuorumUnavailableError):
                await redlock.lock("r", wait=2_000).acquire()
            await until(lambda: "certificate" in detail(redlock, 0))
        unchecked = f"{url}&ssl_check_hostname=false"
        async with Redlock.of_cluster(unchecked, masters=NODES, master_timeout=TIMEOUT) as redlock:
            await lock_once(redlock)


# IPv6.


async def test_nodes_with_addresses_of_ipv6(kind: str) -> None:
    with cluster(kind, "::1", (), lambda _: ("--bind", "127.0.0.1", "::1")) as nodes:
        await until(lambda: all(map(is_up, nodes)), within=30)
        url = f"redis://[::1]:{nodes[0].port}"
        async with Redlock.of_cluster(url, masters=NODES, master_timeout=TIMEOUT) as redlock:
            await lock_once(redlock)
            async with redlock.lock("r") as lease:
                assert all("[::1]:" in vote.master for vote in lease.votes)


# Passwords.


async def test_a_wrong_password_ends_a_wait_at_once(kind: str) -> None:
    with cluster(kind, "127.0.0.1", (), lambda _: ()) as nodes:
        await until(lambda: all(map(is_up, nodes)), within=30)
        for node in nodes:
            call(node, "CONFIG", "SET", "requirepass", "right")
        where = f"127.0.0.1:{nodes[0].port}"
        async with Redlock.of_cluster(f"redis://:wrong@{where}", masters=NODES) as redlock:
            with pytest.raises(QuorumUnavailableError, match="username-password") as caught:
                async with asyncio.timeout(30):
                    await redlock.lock("r").acquire()
        assert caught.value.code == "masters-refuse"
        right = Redlock.of_cluster(f"redis://:right@{where}", masters=NODES, master_timeout=TIMEOUT)
        async with right:
            await lock_once(right)
