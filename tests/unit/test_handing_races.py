"""Whoever else wants a lease that is handed over, and whoever is stopped on the way."""

import asyncio
import contextlib
import itertools
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

from redlock_aio import Lease, LockLostError, LockNotHeldError, Redlock, RedlockError
from redlock_aio._protocol.scripts import ADOPT
from redlock_aio.testing import FakeMaster, cancelled_at

from .cancelling import When, every_place
from .kit import (
    KEYS,
    KIND,
    KINDS,
    KINDS_AND_KEYS,
    Kind,
    hang,
    locks_of_each,
    loop,
    now,
    ran,
    settle,
    slow,
    values,
)

# Several who adopt the same lease.


@pytest.mark.promise("S1")
@KINDS_AND_KEYS
async def test_one_of_several_gets_it(
    redlock: Redlock, there: Redlock, masters: list[FakeMaster], names: Any, options: Kind
) -> None:
    for number in range(20):
        random.seed(number)
        exported = (await redlock.lock(*names, **options).acquire()).export()
        for master in masters:
            master.latency = random.choice([0.001, 0.002, 0.004, 0.008])
        tries = [manager.adopt(exported) for manager in random.sample([redlock, there] * 2, 4)]
        leases = await asyncio.gather(*tries, return_exceptions=True)
        held = [lease for lease in leases if isinstance(lease, Lease)]
        assert len(held) <= 1
        assert all(isinstance(lease, Lease | LockLostError) for lease in leases)
        for lease in held:
            await asyncio.sleep(11)  # what the others freed is not what it has
            assert lease.valid
            assert values(masters, names[0]) == [lease.token] * 5
            await lease.release()
        await settle(masters, 0.5)
        assert locks_of_each(masters) == [{}] * 5


@pytest.mark.promise("S1")
@KIND
async def test_whoever_is_second_leaves_the_first_alone(
    redlock: Redlock, there: Redlock, masters: list[FakeMaster], kind: Any
) -> None:
    """He is refused at once, and frees the old value on those that the first did not reach."""
    exported = (await redlock.lock("r", **kind).acquire()).export()
    hang(masters[3:])
    lease = await there.adopt(exported)
    for call in (there.adopt, redlock.adopt):
        began = now()
        with pytest.raises(LockLostError, match="or somebody else has adopted it"):
            await call(exported)
        assert now() - began < 0.002
    assert lease.valid
    await lease.extend()
    await settle(masters, 0.5)
    await asyncio.sleep(5)
    assert values(masters) == [lease.token] * 5
    await lease.release()
    await settle(masters, 0.5)
    assert locks_of_each(masters) == [{}] * 5


async def test_if_nobody_can_have_a_majority_nobody_has_it_and_nobody_waits_for_it() -> None:
    """Two of four for each: both are refused, and free what they had."""
    masters = [FakeMaster(f"m{i}") for i in range(4)]
    async with Redlock(masters) as one, Redlock(masters) as two:
        exported = (await one.lock("r").acquire()).export()
        halves = {one: masters[:2], two: masters[2:]}
        tasks = []
        for manager, first in halves.items():
            for master in masters:
                master.latency = 0.001 if master in first else 0.002
            tasks.append(asyncio.create_task(manager.adopt(exported)))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        done = await asyncio.gather(*tasks, return_exceptions=True)
        held = [lease for lease in done if isinstance(lease, Lease)]
        assert len(held) <= 1
        for lease in held:
            await lease.release()
        await settle(masters, 0.5)
        assert locks_of_each(masters) == [{}] * 4


async def test_a_replay_gets_nothing(
    redlock: Redlock, there: Redlock, masters: list[FakeMaster]
) -> None:
    exported = (await redlock.lock("r").acquire()).export()
    await (await there.adopt(exported)).release()
    with pytest.raises(LockLostError):
        await there.adopt(exported)
    async with redlock.lock("r") as lease:
        with pytest.raises(LockLostError):
            await there.adopt(exported)
        await asyncio.sleep(0.1)
        assert locks_of_each(masters) == [{"r": lease.token}] * 5


@pytest.mark.promise("S1")
async def test_an_answer_to_an_earlier_round_says_nothing_of_a_later_time(
    redlock: Redlock, there: Redlock, masters: list[FakeMaster]
) -> None:
    """Three say yes late to the first round: nothing is believed from the second one on."""
    exported = (await redlock.lock("r", ttl=1_000).acquire()).export()
    began = now()
    slow(masters[2:], 0.080)  # the round waits for 50 ms
    lease = asyncio.create_task(there.adopt(exported))
    await asyncio.sleep(0.130)
    slow(masters[2:], 0.001)
    adopted = await lease
    rounds = ran(masters[0], ADOPT)
    assert rounds >= 2
    asked = began + (rounds - 1) * 0.1
    assert adopted.remaining <= (asked - now()) * 1000 + 1_000 - 12 + 1
    await adopted.release()
    await settle(masters, 0.5)
    assert locks_of_each(masters) == [{}] * 5


# A small world of an exporter, two adopters and a stranger, in random weather.


@dataclass
class World:
    masters: list[FakeMaster]
    managers: list[Redlock]
    options: dict[str, Any]
    chance: random.Random
    history: list[tuple[float, str]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    believers: dict[str, Lease] = field(default_factory=dict)
    adopted: int = 0

    def check(self) -> None:
        """Nobody believes beside another."""
        valid = [who for who, lease in self.believers.items() if lease.valid]
        assert len(valid) <= 1, (valid, self.history)

    def holds(self, who: str, lease: Lease) -> None:
        self.history.append((now(), who))
        self.believers[who] = lease
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

    async def adopter(self, who: int, exported: str) -> None:
        await asyncio.sleep(self.chance.choice([0, 0, 0.0005, 0.003, 0.1, 0.5]))
        extended = self.chance.random() < 0.5  # else it is believed to the last moment
        adopting = asyncio.create_task(
            self.managers[who].adopt(exported, on_lost="flag", auto_extend=extended)
        )
        if self.chance.random() < 0.2:
            asyncio.get_running_loop().call_later(self.chance.uniform(0, 0.1), adopting.cancel)
        await asyncio.wait([adopting])
        if adopting.cancelled() or isinstance(adopting.exception(), LockLostError):
            return
        lease = adopting.result()
        self.adopted += 1
        self.holds(f"adopter {who}", lease)
        await self.spend(1)
        if not extended:
            await asyncio.sleep(lease.remaining / 1000)
        with contextlib.suppress(LockNotHeldError):
            await lease.release()
        self.check()

    async def stranger(self) -> None:
        for _ in range(3):
            with contextlib.suppress(LockLostError, RedlockError):
                lock = self.managers[3].lock("r", ttl=200, wait=3_000, **self.options)
                async with lock as lease:
                    self.holds("stranger", lease)
                    await self.spend(0.1)
            self.check()
            await self.spend(0.1)

    async def weather(self) -> None:
        """What befalls a minority: that it hangs, is cut off, is slow, or dies for good."""
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


@pytest.mark.promise("S1")
@pytest.mark.seeds(40, full=150)
async def test_nobody_believes_beside_another(seed: int) -> None:
    chance = random.Random(seed)
    random.seed(seed)
    masters = [FakeMaster(f"m{i}") for i in range(5)]
    async with contextlib.AsyncExitStack() as stack:
        managers = [
            await stack.enter_async_context(Redlock(masters, restart_guard="off")) for _ in range(4)
        ]
        world = World(masters, managers, KINDS[seed % 4], chance)
        exported = await world.exporter()
        weather = asyncio.create_task(world.weather())
        try:
            async with asyncio.TaskGroup() as tasks:
                for coroutine in (
                    world.adopter(1, exported), world.adopter(2, exported), world.stranger(),
                ):  # fmt: skip
                    tasks.create_task(coroutine)
        finally:
            weather.cancel()
            await asyncio.wait([weather])
        await settle(masters, 0.5)
        await asyncio.sleep(3.5)  # the places in queues of those who could not leave
        alive = [master for master in masters if "dead" not in repr(master)]
        assert locks_of_each(alive) == [{}] * len(alive), world.history
        COUNT.append(world.adopted)


COUNT: list[int] = []


def test_the_world_has_seen_adoptions() -> None:
    """Else nothing was shown; and never one of both."""
    assert not COUNT or (max(COUNT) <= 1 and 0.3 < sum(COUNT) / len(COUNT) < 1)


# Stopped on the way.


def handing_over(redlock: Redlock, there: Redlock, names: Any, kind: Any) -> Any:
    async def use() -> None:
        lease = await redlock.lock(*names, **kind).acquire()
        adopted = await there.adopt(lease.export())
        try:
            await adopted.extend()
        finally:
            await adopted.release()

    return use


@pytest.mark.spread(2)
@pytest.mark.promise("S3")
@pytest.mark.parametrize("when", ["waiting", "answered"])
@pytest.mark.parametrize("hung", range(3))
@KEYS
@pytest.mark.parametrize("kind", [{}, {"fair": True}], ids=["plain", "fair"])
async def test_nothing_stays_wherever_it_is_cancelled(
    redlock: Redlock, there: Redlock, masters: list[FakeMaster], kind: Any, names: Any, hung: int,
    when: When,
) -> None:  # fmt: skip
    await every_place(masters, when, hung, handing_over(redlock, there, names, kind))
    assert "0 leases" in repr(redlock)
    assert "0 leases" in repr(there)


async def cancelled_adoptions(
    masters: list[FakeMaster],
    use: Callable[[str], Coroutine[Any, Any, None]],
    here: Redlock,
    when: When,
    prepare: Callable[[], None],
) -> None:
    """Cancel at every place of an adoption alone."""
    for place in itertools.count(1):
        exported = (await here.lock("r").acquire()).export()
        prepare()

        async def whole(exported: str = exported, place: int = place) -> None:
            await cancelled_at(place, use(exported), when=when)

        task = asyncio.create_task(whole())
        await asyncio.wait([task])
        await settle(masters, 0.5)
        assert locks_of_each(masters) == [{}] * 5, place
        if not task.cancelled():
            assert place > 1
            task.result()
            return


@pytest.mark.promise("S3")
@pytest.mark.parametrize("when", ["waiting", "answered"])
async def test_nothing_stays_of_an_adoption_that_is_cancelled_between_rounds(
    redlock: Redlock, there: Redlock, masters: list[FakeMaster], when: When
) -> None:
    """Three masters hang for a while, so that it takes several rounds."""

    async def use(exported: str) -> None:
        await (await there.adopt(exported)).release()

    def hang_three() -> None:
        for master in masters[:3]:
            master.hang()
            loop().call_later(0.32, master.resume)

    await cancelled_adoptions(masters, use, redlock, when, hang_three)
    assert "0 leases" in repr(there)


@pytest.mark.promise("S3")
@pytest.mark.parametrize("when", ["waiting", "answered"])
async def test_nothing_stays_of_an_adoption_as_a_first_use_that_is_cancelled(
    redlock: Redlock, masters: list[FakeMaster], when: When
) -> None:
    """Before it is connected the lock is known, and who has it nobody else."""
    opened: list[Redlock] = []

    async def use(exported: str) -> None:
        opened.append(Redlock(masters, restart_guard="off"))
        await (await opened[-1].adopt(exported)).release()

    await cancelled_adoptions(masters, use, redlock, when, lambda: None)
    for manager in opened:
        await manager.aclose()


@pytest.mark.promise("S3")
@pytest.mark.parametrize(
    ("after", "befalls"),
    [(0.0001, None), (0.0005, None), (0.02, "hang"), (0.07, "hang"), (0.02, "kill")],
)
async def test_closing_ends_an_adoption_and_frees_the_lock(
    redlock: Redlock, masters: list[FakeMaster], after: float, befalls: str | None
) -> None:
    """In a round and between two; the masters that answer are told before the connections end."""
    exported = (await redlock.lock("r").acquire()).export()
    async with Redlock(masters, restart_guard="off") as there:
        for master in masters[:3] if befalls else []:
            getattr(master, str(befalls))()
        await asyncio.sleep(0.001)
        task = asyncio.create_task(there.adopt(exported))
        await asyncio.sleep(after)
    with pytest.raises(RedlockError, match="this Redlock was closed"):
        await task
    assert not any("r" in master.keys for master in masters[3:])
    await settle(masters, 0.5)
    assert not any("r" in master.keys for master in masters[3:])
    await asyncio.sleep(11)
