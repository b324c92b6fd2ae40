"""Masters without a vote: their refusals count, their grants do not; keys are restored there."""

import asyncio

import pytest

from redlock_aio import LockLostError, LossCause, Redlock
from redlock_aio._protocol import commands, replies
from redlock_aio._protocol.primitives import JointMutex, Mutex
from redlock_aio._protocol.scripts import SCRIPTS
from redlock_aio._rules.quorum import OK, Answer
from redlock_aio.testing import FakeMaster

from .kit import KEYS, QUARANTINE, execute, guarded, has_lock, kill, occupy, restart, slow, values

TTL = 6_000

pytestmark = [pytest.mark.promise("S1")]


async def restarted(masters: list[FakeMaster]) -> None:
    """Restart *masters* without their keys, and wait until the managers have noticed it."""
    restart(masters)
    await asyncio.sleep(0.6)


FENCING = pytest.mark.parametrize("fencing", [False, True])


@pytest.mark.parametrize("extended", [False, True])
@FENCING
@KEYS
@pytest.mark.spread(1)
async def test_a_lease_is_lost_when_another_has_a_majority(
    masters: list[FakeMaster], names: tuple[str, ...], fencing: bool, extended: bool
) -> None:
    """A program without a guard acquires on restarted masters; the holder must not continue."""
    async with guarded(masters, fencing=fencing) as redlock:
        lock = redlock.lock(*names, ttl=TTL, auto_extend=extended, on_lost="flag")
        lease = await lock.acquire()
        await restarted(masters[:3])
        assert lease.valid
        async with Redlock(masters, restart_guard="off", fencing=fencing) as rival:
            other = await rival.lock(*names, ttl=TTL, wait=0).acquire()
            await asyncio.sleep(TTL / 1000 / 3 if extended else 0.1)
            assert not lease.valid
            assert other.valid
            await other.release()
        with pytest.raises(LockLostError) as caught:
            lease.ensure_valid()
        assert caught.value.cause in {LossCause.KEY_GONE, LossCause.OVERTAKEN}


@pytest.mark.parametrize("connected", [False, True])
async def test_a_key_that_another_took_ends_the_lease_before_its_extension(
    masters: list[FakeMaster], connected: bool
) -> None:
    """It ends at the push, or, without a connection at that time, after the next connect."""
    async with guarded(masters) as redlock:
        lease = await redlock.lock("r", ttl=TTL, auto_extend=connected, on_lost="flag").acquire()
        await asyncio.sleep(0.2)
        restart(masters[:3])
        if connected:
            await asyncio.sleep(0.6)
        occupy(masters[:3], ttl=TTL)
        await asyncio.sleep(0.01 if connected else 0.6)
        assert not lease.valid


async def test_a_counter_beyond_the_token_on_a_majority_ends_the_lease(
    masters: list[FakeMaster],
) -> None:
    async with guarded(masters, fencing=True) as redlock:
        lease = await redlock.lock("r", ttl=TTL, on_lost="flag").acquire()
        await restarted(masters[:3])
        async with Redlock(masters, restart_guard="off", fencing=True) as rival:
            await (await rival.lock("r", ttl=TTL, wait=0).acquire()).release()
        with pytest.raises(LockLostError, match=LossCause.OVERTAKEN.text):
            await lease.extend()


@FENCING
@pytest.mark.parametrize("taken", [1, 2])
async def test_a_minority_that_refuses_ends_nothing(
    masters: list[FakeMaster], fencing: bool, taken: int
) -> None:
    """A key of another client counts; a missing key on a restarted master does not."""
    async with guarded(masters, fencing=fencing) as redlock:
        lease = await redlock.lock("r", ttl=TTL, auto_extend=False).acquire()
        await restarted(masters[:3])
        occupy(masters[:taken], ttl=TTL)
        await asyncio.sleep(4)
        assert lease.valid
        await lease.release()


# Restored keys


@pytest.mark.promise("S4")
@FENCING
@KEYS
@pytest.mark.parametrize("latency", [0.0002, 0.01])
@pytest.mark.spread(1)
async def test_a_master_without_a_vote_gets_the_key_again_and_does_not_count(
    masters: list[FakeMaster], latency: float, names: tuple[str, ...], fencing: bool
) -> None:
    slow(masters[:2], latency)
    async with guarded(masters, fencing=fencing) as redlock:
        lease = await redlock.lock(*names, ttl=3_000, on_lost="flag").acquire()
        await restarted(masters[:2])
        await asyncio.sleep(1)
        assert has_lock(masters, lease) == [True] * 5
        masters[4].kill()
        await asyncio.sleep(3)
        assert lease.lost.is_set(), "two of five do not extend it"
    assert values(masters) == [None] * 5


@pytest.mark.promise("S4")
@FENCING
async def test_a_master_that_votes_again_has_the_key_and_counts(
    masters: list[FakeMaster], fencing: bool
) -> None:
    async with guarded(masters, fencing=fencing) as redlock:
        lease = await redlock.lock("r", ttl=3_000, on_lost="flag").acquire()
        await restarted(masters[:2])
        await asyncio.sleep(QUARANTINE)
        kill(masters[3:])
        await lease.extend()
        assert lease.valid
        await lease.release()


@pytest.mark.promise("S3")
async def test_a_key_that_was_set_again_on_a_master_without_a_vote_is_released(
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
        assert values(masters) == [None] * 5


async def test_an_extension_tells_a_missing_key_from_the_key_of_another() -> None:
    master = FakeMaster()
    for script in SCRIPTS:
        master.execute([b"SCRIPT", b"LOAD", script.text])
    one, two = Mutex(b"a"), JointMutex((Mutex(b"a"), Mutex(b"b")))

    def extensions() -> list[object]:
        parts = [
            *(one.extension(b"t", 1000), one.counter(0).extension(b"t", 1000, 5)),
            *(two.extension(b"t", 1000), two.counter(0).extension(b"t", 1000, 5)),
        ]
        return [execute(master, commands.extend(part)) for part in parts]

    assert extensions() == [0] * 4
    master.set("b", "another")
    assert extensions() == [0, 0, -1, -1], "also where the first one is gone"
    master.set("a", "another")
    assert extensions() == [-1] * 4
    assert replies.classify(-1).answer is replies.classify(0).answer is Answer.HELD
    assert replies.classify(OK).answer is Answer.GRANTED
