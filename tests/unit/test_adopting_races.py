"""Adoptions among rivals while masters fail at random, and adoptions that are cancelled."""

import asyncio
import contextlib
import itertools
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

from redlock_aio import Lease, LockLostError, LockNotHeldError, Redlock, RedlockError
from redlock_aio.testing import FakeMaster, cancelled_at

from .cancelling import When, every_place
from .kit import KEYS, KINDS, hang, kill, locks_of_each, loop, now, settle

WHEN = pytest.mark.parametrize("when", ["waiting", "answered"])


@dataclass
class World:
    """An exporter, two adopters and a rival, while a minority of masters fails at random."""

    masters: list[FakeMaster]
    managers: list[Redlock]
    options: dict[str, Any]
    chance: random.Random
    history: list[tuple[float, str]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    leases: dict[str, Lease] = field(default_factory=dict)
    adopted: int = 0

    def check(self) -> None:
        """Check that at most one lease is valid."""
        valid = [name for name, lease in self.leases.items() if lease.valid]
        assert len(valid) <= 1, (valid, self.history)

    def holds(self, name: str, lease: Lease) -> None:
        self.history.append((now(), name))
        self.leases[name] = lease
        self.check()
        if "fencing" in self.options:
            self.tokens.append(lease.fencing_token)
            assert self.tokens == sorted(self.tokens), self.history

    async def spend(self, most: float) -> None:
        ends = now() + self.chance.uniform(0, most)
        while now() < ends:
            self.check()
            await asyncio.sleep(0.003)

    async def exporter(self) -> str:
        lease = await self.managers[0].lock("r", ttl=400, wait=5_000, **self.options).acquire()
        self.holds("exporter", lease)
        await self.spend(0.5)
        late = [asyncio.create_task(lease.extend()) for _ in range(self.chance.randrange(3))]
        if self.chance.random() < 0.5:
            await asyncio.sleep(self.chance.uniform(0, 0.002))
        exported = lease.export()
        for task in late:
            with contextlib.suppress(RedlockError):
                await task
        return exported

    async def adopter(self, number: int, exported: str) -> None:
        await asyncio.sleep(self.chance.choice([0, 0, 0.0005, 0.003, 0.1, 0.5]))
        extended = self.chance.random() < 0.5  # else the lease is held to its last moment
        adopting = asyncio.create_task(
            self.managers[number].adopt(exported, on_lost="flag", auto_extend=extended)
        )
        if self.chance.random() < 0.2:
            loop().call_later(self.chance.uniform(0, 0.1), adopting.cancel)
        await asyncio.wait([adopting])
        if adopting.cancelled() or isinstance(adopting.exception(), LockLostError):
            return
        lease = adopting.result()
        self.adopted += 1
        self.holds(f"adopter {number}", lease)
        await self.spend(1)
        if not extended:
            await asyncio.sleep(lease.remaining / 1000)
        with contextlib.suppress(LockNotHeldError):
            await lease.release()
        self.check()

    async def rival(self) -> None:
        for _ in range(3):
            with contextlib.suppress(RedlockError):
                lock = self.managers[3].lock("r", ttl=200, wait=3_000, **self.options)
                async with lock as lease:
                    self.holds("rival", lease)
                    await self.spend(0.1)
            self.check()
            await self.spend(0.1)

    async def faults(self) -> None:
        """Hang, cut off or slow down masters, or kill a minority for good."""
        alive = list(self.masters)
        while True:
            await asyncio.sleep(self.chance.uniform(0, 0.1))
            master = self.chance.choice(alive)
            match self.chance.randrange(10):
                case 0 if len(alive) > 3:
                    alive.remove(master)
                    master.kill()
                case 1 | 2 | 3:
                    master.hang()
                    await asyncio.sleep(self.chance.uniform(0, 0.3))
                    master.resume()
                case 4 | 5:
                    master.cut()
                case _:
                    master.latency = self.chance.choice([0.001, 0.001, 0.003, 0.02, 0.06])


async def adoptions_in_world(seed: int) -> int:
    """Run a random world; return the number of adoptions that succeeded."""
    random.seed(seed)
    masters = [FakeMaster(f"m{i}") for i in range(5)]
    async with contextlib.AsyncExitStack() as stack:
        managers = [
            await stack.enter_async_context(Redlock(masters, restart_guard="off")) for _ in range(4)
        ]
        world = World(masters, managers, KINDS[seed % 4], random.Random(seed))
        exported = await world.exporter()
        faults = asyncio.create_task(world.faults())
        try:
            await asyncio.gather(
                world.adopter(1, exported), world.adopter(2, exported), world.rival()
            )
        finally:
            faults.cancel()
            await asyncio.wait([faults])
        await settle(masters, 0.5)
        await asyncio.sleep(3.5)  # until queue entries that could not be removed have expired
        alive = [master for master in masters if "dead" not in repr(master)]
        assert locks_of_each(alive) == [{}] * len(alive), world.history
        return world.adopted


@pytest.mark.promise("S1")
@pytest.mark.seeds(1, full=15)
async def test_no_two_leases_are_valid_at_once(seed: int) -> None:
    adopted = [await adoptions_in_world(10 * seed + number) for number in range(10)]
    assert max(adopted) == 1
    assert sum(adopted) >= 3


# Cancellation


@pytest.mark.spread(1)
@pytest.mark.promise("S3")
@WHEN
@pytest.mark.parametrize("hung", range(3))
@KEYS
@pytest.mark.parametrize("kind", [{}, {"fair": True}], ids=["plain", "fair"])
async def test_nothing_is_left_wherever_an_adoption_is_cancelled(
    redlock: Redlock, there: Redlock, masters: list[FakeMaster], kind: Any, names: Any, hung: int,
    when: When,
) -> None:  # fmt: skip
    async def use() -> None:
        lease = await redlock.lock(*names, **kind).acquire()
        adopted = await there.adopt(lease.export())
        try:
            await adopted.extend()
        finally:
            await adopted.release()

    await every_place(masters, when, hung, use)
    assert redlock.statistics().leases == there.statistics().leases == 0


async def cancelled_adoptions(
    masters: list[FakeMaster],
    here: Redlock,
    when: When,
    use: Callable[[str], Coroutine[Any, Any, None]],
) -> None:
    """Cancel *use* of an exported lease at each of its awaits; check that no lock is left."""
    for place in itertools.count(1):
        exported = (await here.lock("r").acquire()).export()
        task = asyncio.create_task(whole(place, use(exported), when))
        await asyncio.wait([task])
        await settle(masters, 0.5)
        assert locks_of_each(masters) == [{}] * 5, place
        if not task.cancelled():
            assert place > 1
            task.result()
            return


async def whole(place: int, use: Coroutine[Any, Any, None], when: When) -> None:
    await cancelled_at(place, use, when=when)


@pytest.mark.promise("S3")
@WHEN
async def test_nothing_is_left_of_an_adoption_that_is_cancelled_between_rounds(
    redlock: Redlock, there: Redlock, masters: list[FakeMaster], when: When
) -> None:
    """Three masters hang for a while, so the adoption takes several rounds."""

    async def use(exported: str) -> None:
        for master in masters[:3]:
            master.hang()
            loop().call_later(0.32, master.resume)
        await (await there.adopt(exported)).release()

    await cancelled_adoptions(masters, redlock, when, use)
    assert there.statistics().leases == 0


@pytest.mark.promise("S3")
@WHEN
async def test_nothing_is_left_of_a_first_use_that_is_a_cancelled_adoption(
    redlock: Redlock, masters: list[FakeMaster], when: When
) -> None:
    """The lock must be released although the manager is not connected yet."""
    opened: list[Redlock] = []

    async def use(exported: str) -> None:
        opened.append(Redlock(masters, restart_guard="off"))
        await (await opened[-1].adopt(exported)).release()

    await cancelled_adoptions(masters, redlock, when, use)
    for manager in opened:
        await manager.aclose()


@pytest.mark.promise("S3")
@pytest.mark.parametrize(
    ("after", "fault"),
    [(0.0001, None), (0.0005, None), (0.02, hang), (0.07, hang), (0.02, kill)],
)
async def test_closing_ends_an_adoption_and_releases_the_lock(
    redlock: Redlock, masters: list[FakeMaster], after: float, fault: Any
) -> None:
    """It ends in a round and between two; the release is sent before the connections close."""
    exported = (await redlock.lock("r").acquire()).export()
    async with Redlock(masters, restart_guard="off") as there:
        if fault is not None:
            fault(masters[:3])
        await asyncio.sleep(0.001)
        task = asyncio.create_task(there.adopt(exported))
        await asyncio.sleep(after)
    with pytest.raises(RedlockError, match="this Redlock was closed"):
        await task
    assert not any("r" in master.keys for master in masters[3:])
    await settle(masters, 0.5)
    assert not any("r" in master.keys for master in masters[3:])
    await asyncio.sleep(11)
