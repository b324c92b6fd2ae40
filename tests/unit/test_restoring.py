"""A key that a master lost is restored by an extension, and never after the lease."""

import asyncio
import itertools

import pytest

from redlock_aio import Lease, LockLostError, LossCause, Redlock
from redlock_aio._protocol.scripts import LIFT
from redlock_aio.testing import cancelled_at

from .cancelling import When
from .kit import (
    Masters,
    before,
    commands_received,
    count_up,
    fail,
    fence,
    has_lock,
    in_coroutine,
    kill,
    now,
    occupy,
    restart,
    resume,
    slow,
    values,
)

pytestmark = pytest.mark.promise("S4")

FENCE = fence("r")
NOBODY = [None] * 5
BOTH = pytest.mark.parametrize("fenced", [False, True], ids=["plain", "fenced"])
FENCED = pytest.mark.parametrize("fenced", [True], ids=["fenced"])


@pytest.fixture
async def redlock(masters: Masters, *, fenced: bool) -> Redlock:
    """Open a manager whose locks have a fencing token, or have none."""
    return Redlock(masters, restart_guard="off", fencing=fenced)


async def executed() -> None:
    """Wait until the masters have executed all requests."""
    await asyncio.sleep(0.01)


def flush(masters: Masters) -> None:
    """Delete all keys of *masters*."""
    for master in masters:
        master.flush()


def counters(masters: Masters) -> set[str]:
    """Return the different values of the counters of *masters*."""
    return {master.keys[FENCE] for master in masters}


@BOTH
@pytest.mark.parametrize("fair", [False, True])
async def test_a_minority_that_lost_the_key_gets_it_back(
    redlock: Redlock, masters: Masters, *, fenced: bool, fair: bool
) -> None:
    """The restored key has the ttl and the counter of the other masters."""
    async with redlock, redlock.lock("r", ttl=3000, fair=fair) as lease:
        masters[0].flush()
        masters[1].restart()
        await asyncio.sleep(0.8)
        assert has_lock(masters, lease) == [False, False, True, True, True]
        await asyncio.sleep(0.3)
        assert has_lock(masters, lease) == [True] * 5
        assert all(2700 < master.pttl("r") <= 3000 for master in masters)
        if fenced:
            assert counters(masters) == {str(lease.fencing_token)}
        masters[2].flush()
        masters[3].kill()
        await lease.extend()
        masters[3].restart()
        await asyncio.sleep(2)
        assert has_lock(masters, lease) == [True] * 5
    assert values(masters) == NOBODY


@BOTH
@pytest.mark.promise("S3")
async def test_masters_that_come_back_get_the_key(redlock: Redlock, masters: Masters) -> None:
    """Then any two others may fail; the release becomes a debt even if they are cut off."""
    kill(masters[:2])
    async with redlock:
        lease = await redlock.lock("r", ttl=3000).acquire()
        assert has_lock(masters, lease) == [False, False, True, True, True]
        restart(masters[:2])
        await asyncio.sleep(1.7)
        assert has_lock(masters, lease) == [True] * 5
        kill(masters[2:4])
        await lease.extend()
        restart(masters[2:4])
        masters[0].cut()
        await asyncio.sleep(0.0001)
        await lease.release()
        await asyncio.sleep(1)
    assert values(masters) == NOBODY


@BOTH
@pytest.mark.parametrize("latency", [0.0002, 0.01])
async def test_the_order_of_replies_does_not_matter(
    redlock: Redlock, masters: Masters, latency: float
) -> None:
    """Masters without the key may reply before the others, or after the verdict."""
    slow(masters[:2], latency)
    async with redlock, redlock.lock("r", ttl=3000) as lease:
        flush(masters[:2])
        first = commands_received(masters)
        await lease.extend()
        await asyncio.sleep(0.03)
        assert has_lock(masters, lease) == [True] * 5
        last = commands_received(masters)
        asked = [after - before for before, after in zip(first, last, strict=True)]
        assert max(asked[2:]) < min(asked[:2])  # the others have kept it


@BOTH
async def test_a_restored_key_counts_from_the_next_extension(
    redlock: Redlock, masters: Masters
) -> None:
    """Two masters with the key and two on which it is restored are no majority."""
    async with redlock, redlock.lock("r", ttl=3000, auto_extend=False) as lease:
        flush(masters[:2])
        masters[4].hang()
        extending = asyncio.create_task(lease.extend())
        await asyncio.sleep(0.5)
        assert not extending.done()
        assert has_lock(masters, lease)[:4] == [False, False, True, True]
        masters[4].resume()
        await extending
        await executed()
        assert has_lock(masters, lease) == [True] * 5
        masters[2].flush()
        masters[4].hang()
        extending = asyncio.create_task(lease.extend())
        await asyncio.wait([extending], timeout=0.02)
        assert extending.done(), "the two count by now"
        masters[4].resume()
        await extending


@BOTH
@pytest.mark.parametrize("held", [1, 12, 60])
async def test_a_restoration_is_repeated_where_another_client_has_the_key(
    redlock: Redlock, masters: Masters, held: int
) -> None:
    """The extension wakes waiters, whose attempts hold the free masters for a moment."""
    async with redlock, redlock.lock("r", ttl=3000, auto_extend=False) as lease:
        occupy(masters[:1], ttl=held)
        await lease.extend()
        await asyncio.sleep(0.059)
        assert has_lock(masters, lease) == [held < 50, True, True, True, True]
        sent = len(masters[0].commands)
        await asyncio.sleep(1)
        assert len(masters[0].commands) - sent < 5


@BOTH
async def test_after_the_release_no_restoration_is_repeated(
    redlock: Redlock, masters: Masters
) -> None:
    async with redlock:
        async with redlock.lock("r", ttl=3000, auto_extend=False) as lease:
            occupy(masters[:1], ttl=4)
            await lease.extend()
            await asyncio.sleep(0.002)
        await asyncio.sleep(0.1)
        assert values(masters) == NOBODY


@BOTH
async def test_an_extension_without_a_majority_sets_nothing(
    redlock: Redlock, masters: Masters
) -> None:
    async with redlock:
        lease = await redlock.lock("r", ttl=3000).acquire()
        flush(masters[:3])
        with pytest.raises(LockLostError, match=LossCause.KEY_GONE.text):
            await lease.extend()
        await executed()
        assert values(masters) == NOBODY


@pytest.mark.spread(2)
@BOTH
@pytest.mark.promise("S3")
@pytest.mark.parametrize("late", [0.001, 0.01, 0.04])
@pytest.mark.parametrize("after", [0.0, 0.0004, 0.0006, 0.002, 0.006, 0.012])
@pytest.mark.parametrize("harm", ["none", "cut", "hang"])
async def test_after_the_release_nothing_is_restored(
    redlock: Redlock, masters: Masters, late: float, after: float, harm: str
) -> None:
    """The release may follow the extension at once, and the connection may break."""
    masters[0].latency = late
    async with redlock:
        lease = await redlock.lock("r", ttl=3000, auto_extend=False).acquire()
        await asyncio.sleep(0.05)
        masters[0].flush()
        await lease.extend()
        await asyncio.sleep(after)
        if harm == "cut":
            masters[0].cut()
        elif harm == "hang":
            masters[0].hang()
        await lease.release()
        await asyncio.sleep(1.5 if harm == "hang" else 0.0)
        masters[0].resume()
        await asyncio.sleep(1)
        assert values(masters) == NOBODY
        assert redlock.statistics().debts == 0


@BOTH
@pytest.mark.promise("S3")
async def test_after_the_deadline_nothing_is_restored(redlock: Redlock, masters: Masters) -> None:
    """A majority grants the extension only when the lease is over."""
    async with redlock:
        lease = await redlock.lock("r", ttl=3000, auto_extend=False).acquire()
        await asyncio.sleep(2.9)
        masters[0].flush()
        slow(masters, 0.09)
        with pytest.raises(LockLostError):
            await lease.extend()
        await asyncio.sleep(0.5)
        assert values(masters) == NOBODY


@BOTH
@pytest.mark.promise("S3")
@pytest.mark.parametrize("when", ["waiting", "answered"])
async def test_a_cancelled_extension_leaves_nothing(
    redlock: Redlock, masters: Masters, when: When
) -> None:
    async with redlock:
        for place in itertools.count(1):
            lease = await redlock.lock("r", ttl=3000).acquire()
            masters[0].flush()

            async def use(lease: Lease = lease) -> None:
                async with lease:
                    await lease.extend()

            task = asyncio.create_task(in_coroutine(cancelled_at(place, use(), when=when)))
            await asyncio.wait([task])
            await executed()
            assert values(masters) == NOBODY, f"suspension {place}"
            if not task.cancelled():
                assert task.exception() is None
                assert place > 1
                return


@BOTH
async def test_without_extensions_nothing_is_restored(redlock: Redlock, masters: Masters) -> None:
    async with redlock, redlock.lock("r", ttl=3000, auto_extend=False) as lease:
        masters[0].flush()
        await asyncio.sleep(2)
        assert has_lock(masters, lease) == [False, True, True, True, True]


@BOTH
@pytest.mark.promise("S3")
async def test_a_key_that_a_check_restores_ends_with_the_lease(
    redlock: Redlock, masters: Masters
) -> None:
    """If its holder dies, others need not wait longer there than on the other masters."""
    masters[0].kill()
    async with redlock:
        lease = await redlock.lock("r", ttl=10_000, auto_extend=False).acquire()
        await asyncio.sleep(6)
        masters[0].restart()
        await asyncio.sleep(2)
        assert has_lock(masters, lease) == [True] * 5
        assert lease.remaining - 10 < masters[0].pttl("r") <= lease.remaining + 10
        await lease.release()


@BOTH
@pytest.mark.promise("S1")
async def test_a_check_does_not_restore_what_a_master_had_and_lost(
    redlock: Redlock, masters: Masters
) -> None:
    """A forced release may have deleted it; an extension tells whether a majority has it."""
    occupy(masters[:1], ttl=50)
    async with redlock, redlock.lock("r", ttl=10_000, auto_extend=False) as lease:
        await asyncio.sleep(0.5)
        assert has_lock(masters, lease) == [True] * 5
        masters[0].delete("r")
        masters[1].delete("r")
        await asyncio.sleep(1)
        assert has_lock(masters, lease) == [False, False, True, True, True]
        await lease.extend()
        await executed()
        assert has_lock(masters, lease) == [True] * 5


@BOTH
async def test_a_master_that_refuses_gets_the_key_later(redlock: Redlock, masters: Masters) -> None:
    async with redlock, redlock.lock("r", ttl=3000) as lease:
        masters[0].flush()
        fail(masters[:1])
        await asyncio.sleep(1.5)
        fail(masters, "")
        await asyncio.sleep(1.1)
        assert has_lock(masters, lease) == [True] * 5


@pytest.mark.parametrize("fenced", [False, True])
async def test_a_quarantined_minority_gets_the_key_and_counts_later(
    masters: Masters, *, fenced: bool
) -> None:
    redlock = Redlock(masters, fencing=fenced, max_ttl=3000)
    async with redlock, redlock.lock("r", ttl=3000) as lease:
        masters[0].restart()
        masters[1].flush()
        await asyncio.sleep(3)
        assert None not in values(masters)
        await asyncio.sleep(3)
        kill(masters[2:4])
        await asyncio.sleep(6)
        assert lease.valid


# Fencing: counters that show other holders


def lifted(lease: Lease, value: int) -> str:
    """Return the text of a counter that was lifted to *value* for *lease*."""
    return f"{value:016}.0000{lease.fencing_token:016}"


@pytest.mark.promise("S7")
@FENCED
async def test_a_counter_beyond_the_token_does_not_count_at_once(
    redlock: Redlock, masters: Masters
) -> None:
    """The master does not count although it has the key."""
    async with redlock, redlock.lock("r", ttl=3000, auto_extend=False) as lease:
        count_up(masters[0])
        count_up(masters[1])
        masters[2].hang()
        extending = asyncio.create_task(lease.extend())
        await asyncio.sleep(0.5)
        assert not extending.done()
        assert has_lock(masters, lease) == [True] * 5
        masters[2].resume()
        await extending


@pytest.mark.promise("S1", "S6")
@FENCED
@pytest.mark.parametrize("gone", [False, True])
@pytest.mark.parametrize("by", [(1, 1), (70, 7), (0, 5)])
async def test_masters_with_raised_counters_count_after_an_extension(
    redlock: Redlock, masters: Masters, by: tuple[int, int], *, gone: bool
) -> None:
    """Then two other masters may fail; the fencing token stays the same."""
    async with redlock, redlock.lock("r", ttl=3000, auto_extend=False) as lease:
        raised = [count_up(master, n) for master, n in zip(masters, by, strict=False)]
        if gone:
            masters[0].delete("r")
            masters[1].delete("r")
        await lease.extend()
        await executed()
        assert has_lock(masters, lease) == [True] * 5
        token = lease.fencing_token
        assert counters(masters[2:]) == {lifted(lease, max(raised))}
        kill(masters[3:])
        await lease.extend()
        assert lease.fencing_token == token
        restart(masters[3:])
        await asyncio.sleep(0.1)
        await lease.extend()
        await executed()
        assert has_lock(masters, lease) == [True] * 5
    async with redlock, redlock.lock("r") as later:
        assert later.fencing_token > max(raised)


@pytest.mark.promise("S1", "S7")
@FENCED
@pytest.mark.parametrize("was_lifted", [False, True])
async def test_counters_beyond_the_token_on_a_majority_are_a_loss(
    redlock: Redlock, masters: Masters, *, was_lifted: bool
) -> None:
    """Another client had the lock, although late requests have set the old key again."""
    async with redlock:
        lease = await redlock.lock("r", ttl=60_000, auto_extend=False).acquire()
        if was_lifted:
            count_up(masters[0])
            await lease.extend()
            await executed()
            assert counters(masters) == {lifted(lease, lease.fencing_token + 1)}
        for master in masters[:3]:
            master.set(FENCE, f"{lease.fencing_token + 2:016}")
        began = now()
        with pytest.raises(LockLostError, match=LossCause.OVERTAKEN.text):
            await lease.extend()
        assert now() - began == pytest.approx(0.001)
        await executed()
        assert values(masters) == NOBODY


@pytest.mark.promise("S7")
@FENCED
async def test_a_counter_that_only_a_minority_has_lifted_has_no_effect(
    redlock: Redlock, masters: Masters
) -> None:
    async with redlock, redlock.lock("r", ttl=3000, auto_extend=False) as lease:
        ahead = count_up(masters[0])
        for master in masters[2:]:
            before(master, LIFT, lambda master=master: fail([master], "BUSY"))  # type: ignore[misc]
        await lease.extend()
        await executed()
        assert masters[0].keys[FENCE] == f"{ahead:016}"
        assert masters[1].keys[FENCE] == lifted(lease, ahead)
        for master in masters[2:]:
            vars(master).pop("execute")
        fail(masters, "")
        masters[2].hang()
        masters[3].hang()
        extending = asyncio.create_task(lease.extend())
        await asyncio.sleep(0.5)
        assert not extending.done(), "two count, and a third has a counter beyond the token"
        resume(masters)
        await extending
        await lease.extend()
        await executed()
        assert counters(masters) == {lifted(lease, ahead)}


@pytest.mark.promise("S7")
@FENCED
async def test_a_counter_too_large_for_scripts_lifts_no_other(
    redlock: Redlock, masters: Masters
) -> None:
    async with redlock, redlock.lock("r", ttl=3000) as lease:
        masters[0].set(FENCE, str(2**53))
        await lease.extend()
        await executed()
        assert counters(masters[1:]) == {str(lease.fencing_token)}


@pytest.mark.promise("S7")
@FENCED
async def test_an_extension_raises_a_lower_counter(redlock: Redlock, masters: Masters) -> None:
    async with redlock, redlock.lock("r", ttl=3000) as lease:
        masters[0].set(FENCE, "1")
        masters[1].delete(FENCE)
        await lease.extend()
        assert counters(masters) == {str(lease.fencing_token)}
        assert all(master.pttl(FENCE) > 10**8 for master in masters)


@pytest.mark.promise("S3")
@pytest.mark.parametrize("names", [("r",), ("q", "r"), ("p", "q", "r")], ids=" and ".join)
@BOTH
async def test_each_key_that_is_restored_has_the_ttl_of_the_lease(
    masters: Masters, redlock: Redlock, names: tuple[str, ...], *, fenced: bool
) -> None:
    """Without it, the lock would stay for ever after a crash of its holder."""
    async with redlock, redlock.lock(*names, ttl=5_000, auto_extend=False) as lease:
        for gone in [*[[name] for name in names], names]:
            for name in gone:
                masters[0].delete(name)
            await lease.extend()
            await executed()
            kept = [*names, *map(fence, names)] if fenced else names
            assert set(kept) <= set(masters[0].keys)
            assert all(4_900 < masters[0].pttl(name) <= 5_000 for name in names)
            assert all(masters[0].pttl(key) > 0 for key in kept)
