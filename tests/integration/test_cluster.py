"""Nodes of a Redis Cluster can't be masters by their addresses, nor a client of it by itself."""

import contextlib
from collections.abc import Iterator

import pytest
from redis.asyncio import RedisCluster

from redlock_aio import Answer, QuorumUnavailableError, Redlock
from redlock_aio.testing import EmbeddedMaster
from redlock_aio.testing._embedded import free_port

from .helpers import TIMEOUT, call, detail, until
from .servers import process

pytestmark = [pytest.mark.integration, pytest.mark.promise("S1")]

SLOTS = 16_384


@pytest.fixture(scope="module")
def nodes(kind: str) -> Iterator[list[EmbeddedMaster]]:
    """Run a Redis Cluster of three nodes that is up."""
    with contextlib.ExitStack() as stack:
        nodes = []
        for number in range(3):
            # By default the port of its bus is 10 000 higher, in the range that clients get.
            bus = str(free_port())
            node = process(kind, "--cluster-enabled", "yes", "--cluster-port", bus)
            nodes.append(stack.enter_context(node))
            first, last = SLOTS * number // 3, SLOTS * (number + 1) // 3 - 1
            call(node, "CLUSTER", "ADDSLOTSRANGE", first, last)
            call(node, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            call(node, "CLUSTER", "MEET", "127.0.0.1", nodes[0].port, bus_of(nodes[0]))
        yield nodes


def bus_of(node: EmbeddedMaster) -> str:
    return node._options[-1]


def is_up(node: EmbeddedMaster) -> bool:
    state = call(node, "CLUSTER", "INFO")
    return "cluster_state:ok" in str(state) and "cluster_known_nodes:3" in str(state)


@pytest.mark.parametrize("guard", ["auto", "off"])
async def test_its_nodes_have_no_vote_and_end_a_wait(
    nodes: list[EmbeddedMaster], guard: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A node with the slot of the key would grant it, and forget that at a failover."""
    await until(lambda: all(map(is_up, nodes)))
    urls = [node.url for node in nodes]
    async with Redlock(urls, master_timeout=TIMEOUT, restart_guard=guard) as redlock:  # type: ignore[arg-type]
        with pytest.raises(QuorumUnavailableError) as caught:
            await redlock.lock("r", wait=20_000).acquire()
        await until(lambda: all("Cluster" in detail(redlock, number) for number in range(3)))
    refusals = [vote for vote in caught.value.votes if vote.permanent]
    assert len(refusals) >= 2  # the third node may still be connecting
    for vote in refusals:
        assert vote.answer is Answer.ERROR
        assert vote.detail.startswith("a node of a Redis Cluster (cluster_enabled is 1)")
    assert sum(call(node, "DBSIZE") for node in nodes) == 0
    assert caplog.text.count("a node of a Redis Cluster") == 3


async def test_other_masters_go_on_without_it(kind: str, nodes: list[EmbeddedMaster]) -> None:
    with process(kind) as first, process(kind) as second:
        urls = [first.url, second.url, nodes[0].url]
        redlock = Redlock(urls, master_timeout=TIMEOUT, restart_guard="off")
        async with redlock, redlock.lock("r", wait=8_000) as lease:
            votes = {vote.answer for vote in lease.votes}
    assert votes == {Answer.GRANTED, Answer.ERROR}


async def test_a_client_of_it_is_refused_with_the_reason(nodes: list[EmbeddedMaster]) -> None:
    await until(lambda: all(map(is_up, nodes)))
    async with RedisCluster.from_url(nodes[0].url) as client:
        with pytest.raises(TypeError, match=r"masters\[1\] can't be a Redis Cluster: Redlock"):
            Redlock(["redis://127.0.0.1", client])  # type: ignore[list-item]
