"""A master that has lost a key gets it back with an extension, and never after the lease."""

import asyncio
import itertools

import pytest

from redlock_aio import Lease, LockLostError, Redlock
from redlock_aio._engine.hold.held_lease import KEY_GONE, OVERTAKEN
from redlock_aio._protocol.scripts import LIFT
from redlock_aio.testing import FakeMaster, cancelled_at

from .kit import before, count_up, fence, has_lock, kill, now, restart, slow

pytestmark = pytest.mark.promise("S4")

FENCE = fence("r")
BOTH = pytest.mark.parametrize("fenced", [False, True])


@pytest.fixture
async def redlock(masters: list[FakeMaster], *, fenced: bool) -> Redlock:
    """One whose locks have a token, or have not, which makes no difference here."""
    return Redlock(masters, restart_guard="off", fencing=fenced)


async def heard() -> None:
    """Let what was sent be executed."""
    await asyncio.sleep(0.01)


@BOTH
@pytest.mark.parametrize("fair", [False, True])
async def test_a_minority_that_lost_the_key_gets_it_back(
    redlock: Redlock, masters: list[FakeMaster], *, fenced: bool, fair: bool
) -> None:
    """With the time and the counter that it has elsewhere."""
    async with redlock, redlock.lock("r", ttl=3000, fair=fair) as lease:
        masters[0].flush()
        masters[1].restart()
        await asyncio.sleep(0.8)
        assert has_lock(masters, lease) == [False, False, True, True, True]
        await asyncio.sleep(0.3)
        assert has_lock(masters, lease) == [True] * 5
        assert all(2700 < master.pttl("r") <= 3000 for master in masters)
        if fenced:
            assert {master.keys[FENCE] for master in masters} == {str(lease.fencing_token)}
        masters[2].flush()
        masters[3].kill()
        await lease.extend()
        assert lease.valid
        masters[3].restart()
        await asyncio.sleep(2)
        assert has_lock(masters, lease) == [True] * 5
    assert all("r" not in master.keys for master in masters)


@BOTH
async def test_masters_that_were_away_when_it_was_acquired_get_it_when_they_are_back(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    """After that any other two may go."""
    masters[0].kill()
    masters[1].kill()
    async with redlock, redlock.lock("r", ttl=3000) as lease:
        assert has_lock(masters, lease) == [False, False, True, True, True]
        masters[0].restart()
        masters[1].restart()
        await asyncio.sleep(1.7)
        assert has_lock(masters, lease) == [True] * 5
        masters[2].kill()
        masters[3].kill()
        await lease.extend()
        masters[2].restart()
        masters[3].restart()
        await asyncio.sleep(0.5)
    await heard()
    assert all("r" not in master.keys for master in masters)


@BOTH
@pytest.mark.parametrize("latency", [0.0002, 0.001, 0.01])
async def test_it_does_not_matter_who_answers_first(
    redlock: Redlock, masters: list[FakeMaster], latency: float
) -> None:
    """Those who have lost the key answer before the others, or when all is settled."""
    masters[0].latency = masters[1].latency = latency
    async with redlock, redlock.lock("r", ttl=3000) as lease:
        masters[0].flush()
        masters[1].flush()
        await lease.extend()
        await asyncio.sleep(0.03)
        assert has_lock(masters, lease) == [True] * 5


@BOTH
@pytest.mark.promise("S3")
async def test_who_got_it_late_and_is_cut_off_is_cleaned_as_well(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    """It was away when the lock was acquired, but a release is owed to it by now."""
    masters[0].kill()
    async with redlock:
        lease = await redlock.lock("r", ttl=60_000).acquire()
        masters[0].restart()
        await asyncio.sleep(1)
        await lease.extend()
        await heard()
        assert has_lock(masters, lease) == [True] * 5
        masters[0].cut()
        await asyncio.sleep(0.0001)
        await lease.release()
        await asyncio.sleep(1)
        assert "r" not in masters[0].keys


@BOTH
async def test_what_is_set_again_counts_from_the_next_extension_on(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    """Two that keep the key and two that would set it again are no majority."""
    async with redlock, redlock.lock("r", ttl=3000, auto_extend=False) as lease:
        masters[0].flush()
        masters[1].flush()
        masters[4].hang()
        extending = asyncio.create_task(lease.extend())
        await asyncio.sleep(0.5)
        assert not extending.done()
        assert has_lock(masters, lease)[:4] == [False, False, True, True]
        masters[4].resume()
        await extending
        await heard()
        assert has_lock(masters, lease) == [True] * 5
        masters[2].flush()
        masters[4].hang()
        extending = asyncio.create_task(lease.extend())
        await asyncio.wait([extending], timeout=0.02)
        assert extending.done(), "the two count by now"
        masters[4].resume()
        await extending


@BOTH
async def test_the_key_of_somebody_else_is_left_alone(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    async with redlock, redlock.lock("r", ttl=3000) as lease:
        masters[0].set("r", "theirs", ttl=60_000)
        await lease.extend()
        await heard()
        assert masters[0].keys["r"] == "theirs"
        assert lease.valid


@BOTH
@pytest.mark.parametrize("held", [1, 12, 60])
async def test_a_master_that_somebody_else_has_for_a_moment_is_tried_again(
    redlock: Redlock, masters: list[FakeMaster], held: int
) -> None:
    """Those who wait are woken by the extension, and try on masters that are free."""
    async with redlock, redlock.lock("r", ttl=3000, auto_extend=False) as lease:
        masters[0].set("r", "theirs", ttl=held)
        await lease.extend()
        await asyncio.sleep(0.059)
        assert has_lock(masters, lease) == [held < 50, True, True, True, True]
        sent = len(masters[0].commands)
        await asyncio.sleep(1)
        assert len(masters[0].commands) - sent < 5


@BOTH
async def test_nothing_is_tried_again_for_a_lease_that_is_released(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    async with redlock:
        async with redlock.lock("r", ttl=3000, auto_extend=False) as lease:
            masters[0].set("r", "theirs", ttl=4)
            await lease.extend()
            await asyncio.sleep(0.002)
        await asyncio.sleep(0.1)
        assert all("r" not in master.keys for master in masters)


@BOTH
async def test_an_extension_without_a_majority_sets_nothing(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    async with redlock:
        lease = await redlock.lock("r", ttl=3000).acquire()
        for master in masters[:3]:
            master.flush()
        with pytest.raises(LockLostError, match=KEY_GONE):
            await lease.extend()
        await heard()
        assert all("r" not in master.keys for master in masters)


@pytest.mark.spread(2)
@BOTH
@pytest.mark.promise("S3")
@pytest.mark.parametrize("late", [0.001, 0.01, 0.04])
@pytest.mark.parametrize("after", [0.0, 0.0004, 0.0006, 0.002, 0.006, 0.012])
@pytest.mark.parametrize("harm", ["none", "cut", "hang"])
async def test_nothing_is_set_again_for_a_lease_that_is_released(
    redlock: Redlock, masters: list[FakeMaster], late: float, after: float, harm: str
) -> None:
    """However soon after the extension, and whatever happens to the connection."""
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
        assert all("r" not in master.keys for master in masters)
        assert all("0 debts" in repr(master) for master in redlock._opener.session().links)


@BOTH
@pytest.mark.promise("S3")
async def test_nothing_is_set_again_after_the_deadline(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    """The answers that would do come when the lease is over."""
    async with redlock:
        lease = await redlock.lock("r", ttl=3000, auto_extend=False).acquire()
        await asyncio.sleep(2.9)
        masters[0].flush()
        slow(masters, 0.09)
        with pytest.raises(LockLostError):
            await lease.extend()
        await asyncio.sleep(0.5)
        assert all("r" not in master.keys for master in masters)


@BOTH
@pytest.mark.promise("S3")
@pytest.mark.parametrize("when", ["waiting", "answered"])
async def test_an_extension_that_is_cancelled_leaves_nothing_behind_the_release(
    redlock: Redlock, masters: list[FakeMaster], when: str
) -> None:
    async with redlock:
        for place in itertools.count(1):
            lease = await redlock.lock("r", ttl=3000).acquire()
            masters[0].flush()

            async def use(lease: Lease = lease) -> None:
                async with lease:
                    await lease.extend()

            async def whole(place: int = place) -> None:
                await cancelled_at(place, use(), when=when)  # type: ignore[arg-type]

            task = asyncio.create_task(whole())
            await asyncio.wait([task])
            await heard()
            assert all("r" not in master.keys for master in masters), f"suspension {place}"
            if not task.cancelled():
                assert task.exception() is None
                assert place > 1
                return


@BOTH
async def test_a_lease_that_is_not_extended_is_not_set_again(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    async with redlock, redlock.lock("r", ttl=3000, auto_extend=False) as lease:
        masters[0].flush()
        await asyncio.sleep(2)
        assert has_lock(masters, lease) == [False, True, True, True, True]


@BOTH
async def test_a_master_that_could_not_set_it_again_does_so_later(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    async with redlock, redlock.lock("r", ttl=3000) as lease:
        masters[0].flush()
        masters[0].error = "OOM command not allowed when used memory > 'maxmemory'."
        await asyncio.sleep(1.5)
        masters[0].error = ""
        await asyncio.sleep(1.1)
        assert has_lock(masters, lease) == [True] * 5


# With a fencing token: whoever came after is seen by the counters.


@pytest.mark.promise("S7")
@pytest.mark.parametrize("fenced", [True])
async def test_a_counter_beyond_the_token_does_not_count_before_an_extension_has_held(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    """Though the key is ours there."""
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


def marked(lease: Lease, counter: int) -> str:
    """Return how a counter is kept that was lifted for *lease*."""
    return f"{counter:016}.0000{lease.fencing_token:016}"


@pytest.mark.promise("S1", "S6")
@pytest.mark.parametrize("fenced", [True])
@pytest.mark.parametrize("gone", [False, True])
@pytest.mark.parametrize("by", [(1, 1), (70, 7), (0, 5)])
async def test_masters_whose_counters_others_have_raised_count_after_the_next_extension(
    redlock: Redlock, masters: list[FakeMaster], by: tuple[int, int], *, gone: bool
) -> None:
    """Then two others may go, and the token is the same."""
    async with redlock, redlock.lock("r", ttl=3000, auto_extend=False) as lease:
        raised = [count_up(master, n) for master, n in zip(masters, by, strict=False)]
        if gone:
            masters[0].delete("r")
            masters[1].delete("r")
        await lease.extend()
        await heard()
        assert has_lock(masters, lease) == [True] * 5
        token = lease.fencing_token
        highest = f"{max(raised):016}.0000{token:016}"
        assert {master.keys[FENCE] for master in masters[2:]} == {highest}
        kill(masters[3:])
        await lease.extend()
        assert lease.fencing_token == token
        restart(masters[3:])
        await asyncio.sleep(0.1)
        await lease.extend()
        await heard()
        assert has_lock(masters, lease) == [True] * 5
    async with redlock, redlock.lock("r") as later:
        assert later.fencing_token > max(raised)


@pytest.mark.promise("S1")
@pytest.mark.parametrize("fenced", [True])
async def test_a_master_that_somebody_has_had_since_it_was_lifted_does_not_count(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    """Though the key is ours again, by a request that came late."""
    async with redlock:
        lease = await redlock.lock("r", ttl=3000, auto_extend=False).acquire()
        count_up(masters[0])
        await lease.extend()
        await heard()
        lifted = marked(lease, lease.fencing_token + 1)
        assert {master.keys[FENCE] for master in masters} == {lifted}
        for master in masters[:3]:
            master.set(FENCE, f"{lease.fencing_token + 2:016}")
        with pytest.raises(LockLostError, match=OVERTAKEN):
            await lease.extend()


@pytest.mark.promise("S7")
@pytest.mark.parametrize("fenced", [True])
async def test_what_a_minority_has_lifted_counts_as_before_and_lets_nobody_else_count(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    async with redlock, redlock.lock("r", ttl=3000, auto_extend=False) as lease:
        ahead = count_up(masters[0])
        for master in masters[2:]:
            before(master, LIFT, lambda master=master: setattr(master, "error", "BUSY"))  # type: ignore[misc]
        await lease.extend()
        await heard()
        assert masters[0].keys[FENCE] == f"{ahead:016}"
        assert masters[1].keys[FENCE] == marked(lease, ahead)
        for master in masters[2:]:
            vars(master).pop("execute")
            master.error = ""
        masters[2].hang()
        masters[3].hang()
        extending = asyncio.create_task(lease.extend())
        await asyncio.sleep(0.5)
        assert not extending.done(), "two count, and a third has a counter beyond the token"
        masters[2].resume()
        await extending
        masters[3].resume()
        await lease.extend()
        await heard()
        assert {master.keys[FENCE] for master in masters} == {marked(lease, ahead)}


@pytest.mark.promise("S7")
@pytest.mark.parametrize("fenced", [True])
async def test_a_counter_that_scripts_can_not_count_with_stays_where_it_is(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    async with redlock, redlock.lock("r", ttl=3000) as lease:
        masters[0].set(FENCE, str(2**53))
        await lease.extend()
        await heard()
        assert [master.keys[FENCE] for master in masters[1:]] == [str(lease.fencing_token)] * 4


@pytest.mark.promise("S7")
@pytest.mark.parametrize("fenced", [True])
async def test_counters_beyond_the_token_on_a_majority_are_a_loss_at_once(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    """Late requests have made the key ours again, after somebody else has had the lock."""
    async with redlock:
        lease = await redlock.lock("r", ttl=60_000).acquire()
        for master in masters[:3]:
            count_up(master)
        began = now()
        with pytest.raises(LockLostError, match=OVERTAKEN):
            await lease.extend()
        assert now() - began == pytest.approx(0.001)
        await heard()
        assert all("r" not in master.keys for master in masters)


@pytest.mark.promise("S7")
@pytest.mark.parametrize("fenced", [True])
async def test_a_counter_that_fell_behind_is_raised_by_an_extension(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    async with redlock, redlock.lock("r", ttl=3000) as lease:
        masters[0].set(FENCE, "1")
        masters[1].delete(FENCE)
        await lease.extend()
        assert {master.keys[FENCE] for master in masters} == {str(lease.fencing_token)}
        assert all(master.pttl(FENCE) > 10**8 for master in masters)


@pytest.mark.parametrize("fenced", [False, True])
async def test_a_quarantined_minority_gets_the_key_back_and_counts_when_it_votes_again(
    masters: list[FakeMaster], *, fenced: bool
) -> None:
    redlock = Redlock(masters, fencing=fenced, max_ttl=3000)
    async with redlock, redlock.lock("r", ttl=3000) as lease:
        masters[0].restart()
        masters[1].flush()
        await asyncio.sleep(3)
        assert ["r" in master.keys for master in masters] == [True] * 5
        await asyncio.sleep(3)
        kill(masters[2:4])
        await asyncio.sleep(6)
        assert lease.valid
