"""
Partitions of a real Redis Cluster: packets of chosen nodes and programs are lost, in one direction.

Each program has an event loop in a thread of its own, which is on a node of the network.
"""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Self

import pytest
from evidence import networks
from evidence.clusters import Cluster, slot_of, why_no_cluster
from evidence.networks import Network
from evidence.servers import Place

from redlock_aio import Redlock
from redlock_aio._protocol.confirmation import CONFIRMED_FOR
from redlock_aio._protocol.tags import default_tags
from redlock_aio._rules import timing

from .helpers import TIMEOUT
from .holders import Holders, now
from .servers import binary_of

MAX_TTL = 1_000
QUARANTINE = timing.forgetting(MAX_TTL, factor=timing.DRIFT_FACTOR) + CONFIRMED_FOR
(TAG,) = (tag.decode() for tag in default_tags(1))
SLOT = slot_of(TAG)
NODES = [f"n{number}" for number in range(6)]

pytestmark = [pytest.mark.integration, pytest.mark.promise("S1"), pytest.mark.full]


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    if reason := networks.why_not():
        pytest.skip(reason)
    with Network([*NODES, "w0", "w1"]) as made:
        yield made


@pytest.fixture
def site(kind: str, network: Network) -> Iterator[Cluster]:
    binary = binary_of(kind)
    if reason := why_no_cluster(binary):
        pytest.skip(reason)
    try:
        with Cluster(Place(binary, Path(), network)) as made:
            yield made
    finally:
        network.heal()


class Away:
    """
    A program that runs on a node of the network, in a thread with an event loop of its own.

    Attributes:
        redlock: Its manager.
    """

    redlock: Redlock

    def __init__(self, network: Network, node: str, site: Cluster) -> None:
        self.holders = Holders()
        self.name = node
        self._network = network
        self._site = site
        self._ready = Future[None]()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=node)
        self._stop = asyncio.Event()

    def _run(self) -> None:
        self._network.enter(self.name)
        self._loop.run_until_complete(self._main())
        self._loop.close()

    async def _main(self) -> None:
        async with Redlock.of_cluster(
            self._site.url, masters=1, max_ttl=MAX_TTL, master_timeout=TIMEOUT
        ) as self.redlock:
            async with self.redlock.lock("first", ttl=MAX_TTL, wait=60_000):
                pass
            task = asyncio.create_task(self.holders.compete(self.redlock, self.name))
            self._ready.set_result(None)
            await self._stop.wait()
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled(), task.exception()

    async def __aenter__(self) -> Self:
        self._thread.start()
        await asyncio.wait_for(asyncio.wrap_future(self._ready), 90)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        await asyncio.to_thread(self._thread.join)

    def count(self, since: float) -> int:
        """Return how often it has acquired a lock since an instant."""
        return self.holders.count(self.name, since)

    @property
    def reason(self) -> str:
        """Why its master has no vote."""

        async def read() -> str:
            return self.redlock.statistics().masters[0].reason

        return asyncio.run_coroutine_threadsafe(read(), self._loop).result(10)


@contextlib.asynccontextmanager
async def both(network: Network, site: Cluster) -> AsyncIterator[tuple[Away, Away]]:
    """Run two programs that compete, and check at the end that they excluded each other."""
    async with Away(network, "w0", site) as one, Away(network, "w1", site) as other:
        yield one, other
    together = Holders()
    for program in (one, other):
        for name, spans in program.holders.spans.items():
            together.spans.setdefault(name, []).extend(spans)
    together.check()


Cut = Callable[[Network, list[str], list[str]], None]

DIRECTIONS: dict[str, Cut] = {
    "both": lambda net, ones, others: net.separate(ones, others),
    "what it sends": lambda net, ones, others: net.cut(ones, others),
    "what it gets": lambda net, ones, others: net.cut(others, ones),
}


@pytest.mark.parametrize("direction", DIRECTIONS)
async def test_an_old_primary_with_a_program_on_its_side(
    network: Network, site: Cluster, direction: str
) -> None:
    """The other nodes promote its replica. The program beside it gets no lock meanwhile."""
    async with both(network, site) as (near, far):
        await asyncio.sleep(0.5)
        old = site.owner(SLOT)
        others = [node for node in NODES if node != old.name]
        DIRECTIONS[direction](network, [old.name], others)
        network.separate(["w0"], others)
        network.separate(["w1"], [old.name])
        cut = now()
        away = [node for node in site.running if node is not old]
        await until(lambda: site.owner(SLOT, away[0]) is not old)
        switched = now()
        await until(lambda: far.count(switched) > 5, QUARANTINE + 30)
        assert near.count(cut + CONFIRMED_FOR + 0.1) == 0
        assert "of 6 nodes confirm" in near.reason
        network.heal()
        healed = now()
        await until(lambda: near.count(healed) > 0, 60)


async def test_a_program_that_reaches_half_of_the_nodes_gets_no_lock(
    network: Network, site: Cluster
) -> None:
    """The owner is among them, and nothing has failed. With one node more it gets the lock."""
    async with both(network, site) as (one, other):
        await asyncio.sleep(0.5)
        owner = site.owner(SLOT).name
        away = [node for node in NODES if node != owner][:3]
        network.separate(["w0"], away)
        cut = now()
        await asyncio.sleep(CONFIRMED_FOR + 2)
        assert one.count(cut + CONFIRMED_FOR + 0.1) == 0
        assert "3 of 6 nodes confirm" in one.reason
        assert other.count(cut + CONFIRMED_FOR + 0.1) > 0
        network.heal()
        network.separate(["w0"], away[:2])
        healed = now()
        # Nobody else owned the slot meanwhile: it votes at once.
        await until(lambda: one.count(healed) > 0, 15)


async def test_a_program_that_does_not_reach_the_owner_gets_no_lock(
    network: Network, site: Cluster
) -> None:
    async with both(network, site) as (one, other):
        await asyncio.sleep(0.5)
        network.separate(["w0"], [site.owner(SLOT).name])
        cut = now()
        await asyncio.sleep(4)
        assert one.count(cut + 2.5) == 0
        assert other.count(cut + 2.5) > 0


async def until(condition: Callable[[], bool | Awaitable[bool]], within: float = 40.0) -> None:
    """Wait until *condition* is true, asking it in a thread: it may call servers."""
    ends = now() + within
    while not await asyncio.to_thread(condition):
        assert now() < ends, "it did not become true"
        await asyncio.sleep(0.05)
