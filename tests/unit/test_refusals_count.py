"""Masters without a vote: their refusals count, their grants do not, and they get keys again."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from redlock_aio import LockLostError, Redlock
from redlock_aio._engine.hold.held_lease import KEY_GONE, OVERTAKEN
from redlock_aio._protocol import replies
from redlock_aio._protocol.primitives import JointMutex, Mutex
from redlock_aio._protocol.scripts import SCRIPTS
from redlock_aio._rules import timing
from redlock_aio._rules.quorum import GRANTED, Answer
from redlock_aio.testing import FakeMaster

from .kit import has_lock, restart

MAX_TTL = 10_000
LASTS = timing.forgetting(MAX_TTL, factor=timing.DRIFT_FACTOR)
TTL = 6_000

pytestmark = [pytest.mark.promise("S1")]


def guarded(masters: list[FakeMaster], **options: Any) -> Redlock:
    return Redlock(masters, max_ttl=MAX_TTL, **options)


async def restarted(masters: list[FakeMaster]) -> None:
    """Let *masters* come back empty, and wait until they are known to."""
    restart(masters)
    await asyncio.sleep(0.6)


@pytest.mark.parametrize("extended", [False, True])
@pytest.mark.parametrize("fencing", [False, True])
@pytest.mark.parametrize("names", [("r",), ("r", "s")])
async def test_who_sees_that_another_has_a_majority_has_lost_the_lock(
    masters: list[FakeMaster], names: tuple[str, ...], fencing: bool, extended: bool
) -> None:
    """A program without a guard gets what restarted masters grant; the holder must not go on."""
    async with guarded(masters, fencing=fencing) as redlock:
        lock = redlock.lock(*names, ttl=TTL, auto_extend=extended, on_lost="flag")
        lease = await lock.acquire()
        await restarted(masters[:3])
        assert lease.valid
        async with Redlock(masters, restart_guard="off", fencing=fencing) as rival:
            other = await rival.lock(*names, ttl=TTL, wait=0).acquire()
            await asyncio.sleep(TTL / 1000 / 3 if extended else 0.1)
            assert not (lease.valid and other.valid)
            assert other.valid
            await other.release()
        with pytest.raises(LockLostError, match=f"{KEY_GONE}|{OVERTAKEN}"):
            lease.ensure_valid()


async def test_who_is_told_of_the_change_need_not_wait_for_the_next_extension(
    masters: list[FakeMaster],
) -> None:
    async with guarded(masters) as redlock:
        lease = await redlock.lock("r", ttl=TTL, on_lost="flag").acquire()
        await restarted(masters[:3])
        for master in masters[:3]:
            master.set("r", "another", TTL)
        await asyncio.sleep(0.01)
        assert not lease.valid


async def test_what_another_took_while_the_connection_was_down_ends_the_lease(
    masters: list[FakeMaster],
) -> None:
    async with guarded(masters) as redlock:
        lease = await redlock.lock("r", ttl=TTL, auto_extend=False, on_lost="flag").acquire()
        await asyncio.sleep(0.2)
        for master in masters[:3]:
            master.restart()
            master.set("r", "another", TTL)
        await asyncio.sleep(0.6)
        assert not lease.valid


async def test_a_counter_beyond_the_token_on_a_majority_ends_the_lease(
    masters: list[FakeMaster],
) -> None:
    async with guarded(masters, fencing=True) as redlock:
        lease = await redlock.lock("r", ttl=TTL, on_lost="flag").acquire()
        await restarted(masters[:3])
        async with Redlock(masters, restart_guard="off", fencing=True) as rival:
            await (await rival.lock("r", ttl=TTL, wait=0).acquire()).release()
        with pytest.raises(LockLostError, match=OVERTAKEN):
            await lease.extend()


@pytest.mark.parametrize("fencing", [False, True])
@pytest.mark.parametrize("taken", [1, 2])
async def test_a_minority_that_refuses_ends_nothing(
    masters: list[FakeMaster], fencing: bool, taken: int
) -> None:
    """Another's value counts, that a restarted master has no key does not."""
    async with guarded(masters, fencing=fencing) as redlock:
        lease = await redlock.lock("r", ttl=TTL, auto_extend=False).acquire()
        await restarted(masters[:3])
        for master in masters[:taken]:
            master.set("r", "another", TTL)
        await asyncio.sleep(4)
        assert lease.valid
        await lease.release()


# Keys come back.


@pytest.mark.promise("S4")
@pytest.mark.parametrize("fencing", [False, True])
@pytest.mark.parametrize("names", [("r",), ("r", "s")])
@pytest.mark.parametrize("latency", [0.0002, 0.001, 0.01])
async def test_a_master_without_a_vote_gets_the_key_again_and_does_not_count(
    masters: list[FakeMaster], latency: float, names: tuple[str, ...], fencing: bool
) -> None:
    masters[0].latency = masters[1].latency = latency
    async with guarded(masters, fencing=fencing) as redlock:
        lease = await redlock.lock(*names, ttl=3_000, on_lost="flag").acquire()
        await restarted(masters[:2])
        await asyncio.sleep(1)
        assert has_lock(masters, lease) == [True] * 5
        masters[4].kill()
        await asyncio.sleep(3)
        assert lease.lost.is_set(), "two of five do not extend it"
    assert not any("r" in master.keys for master in masters)


@pytest.mark.promise("S4")
@pytest.mark.parametrize("fencing", [False, True])
async def test_a_master_that_votes_again_has_the_key_and_counts(
    masters: list[FakeMaster], fencing: bool
) -> None:
    async with guarded(masters, fencing=fencing) as redlock:
        lease = await redlock.lock("r", ttl=3_000, on_lost="flag").acquire()
        await restarted(masters[:2])
        await asyncio.sleep(LASTS)
        masters[3].kill()
        masters[4].kill()
        await lease.extend()
        assert lease.valid
        await lease.release()


@pytest.mark.promise("S3")
async def test_what_was_set_again_on_a_master_without_a_vote_is_released(
    masters: list[FakeMaster],
) -> None:
    async with guarded(masters) as redlock:
        async with redlock.lock("r", ttl=3_000):
            masters[0].kill()
            await restarted(masters[1:2])
            masters[0].restart()
            await asyncio.sleep(1.5)
            assert "r" in masters[0].keys
        await asyncio.sleep(0.01)
        assert not any("r" in master.keys for master in masters)


# What the scripts answer.


async def test_an_extension_tells_a_missing_key_from_the_key_of_another() -> None:
    master = FakeMaster()
    for script in SCRIPTS:
        master.execute([b"SCRIPT", b"LOAD", script.text])

    def ask(packed: bytes) -> object:
        return master.execute(packed.split(b"\r\n")[2::2])

    one, two = Mutex(b"a"), JointMutex((Mutex(b"a"), Mutex(b"b")))
    asked: list[Callable[[], object]] = [
        lambda: ask(one.extend(b"t", 1000)),
        lambda: ask(one.counter(0).extend(b"t", 1000, 5)),
        lambda: ask(two.extend(b"t", 1000)),
        lambda: ask(two.counter(0).extend(b"t", 1000, 5)),
    ]
    assert [extend() for extend in asked] == [0] * 4
    master.set("b", "another")
    assert [extend() for extend in asked] == [0, 0, -1, -1], "also where the first one is gone"
    master.set("a", "another")
    assert [extend() for extend in asked] == [-1] * 4
    assert replies.read(-1).answer is replies.read(0).answer is Answer.HELD
    assert replies.read(GRANTED).answer is Answer.GRANTED
