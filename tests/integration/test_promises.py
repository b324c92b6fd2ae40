"""The promises on real servers, for each kind of lock; those about faults are in test_faults."""

import asyncio
import pickle
import random
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from redlock_aio import (
    Answer,
    Holder,
    LockLostError,
    LockNotAcquiredError,
    LockNotHeldError,
    LossCause,
    QuorumUnavailableError,
    Redlock,
    Retry,
)

from .helpers import (
    AT_ONCE,
    KIND,
    KINDS,
    TIMEOUT,
    RealMaster,
    Stopwatch,
    call,
    connected,
    gone,
    leftovers,
    nothing_is_left,
    pttls,
    put,
    replied,
    subscribed,
    until,
    urls,
    values,
)

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("quick_unsubscribe")]

PATIENCE = 30_000
METADATA: dict[str, Any] = {"job": "nightly", "wörker": [1, None]}

WORKER = """
import asyncio, pathlib, random, sys
from redlock_aio import Redlock

async def main(folder, *masters):
    async with Redlock(masters, master_timeout=1_500, restart_guard="off") as redlock:
        async def worker():
            for turn in range(6):
                names = random.sample("abc", random.randint(1, 3))
                fair = random.random() < 0.3
                async with redlock.lock(*names, fair=fair, fencing=True) as lease:
                    for name in names:
                        path = pathlib.Path(folder, name)
                        count, token = map(int, path.read_text().split())
                        assert lease.fencing_token > token
                        await asyncio.sleep(0)
                        path.write_text(f"{count + 1} {lease.fencing_token}")
                        print(name)
        await asyncio.gather(worker(), worker())

asyncio.run(main(*sys.argv[1:]))
"""


# S1, S7: exclusion, and fencing tokens that rise


@pytest.mark.promise("S1")
@pytest.mark.promise("S7")
async def test_locks_of_all_kinds_exclude_each_other(redlock: Redlock, other: Redlock) -> None:
    counter = inside = 0
    tokens = []

    async def worker(manager: Redlock, options: dict[str, Any]) -> None:
        nonlocal counter, inside
        for _ in range(8):
            async with manager.lock("r", wait=PATIENCE, **options) as lease:
                assert inside == 0
                inside += 1
                if "fencing" in options:
                    tokens.append(lease.fencing_token)
                read = counter
                await asyncio.sleep(random.choice((0, 0, 0.001)))
                counter = read + 1
                inside -= 1

    await asyncio.gather(
        *(worker(manager, options) for manager in (redlock, other) for options in KINDS)
    )
    assert counter == 64
    assert tokens == sorted(set(tokens))


@pytest.mark.promise("S1")
@pytest.mark.promise("S7")
async def test_processes_exclude_each_other_on_each_resource(
    masters: list[RealMaster], tmp_path: Path
) -> None:
    """They lock random sets in any order: no update is lost, tokens rise, there is no deadlock."""
    for name in "abc":
        (tmp_path / name).write_text("0 0")
    pipe = asyncio.subprocess.PIPE
    command = (sys.executable, "-P", "-W", "error", "-c", WORKER, str(tmp_path), *urls(masters))
    started = [
        await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe) for _ in range(3)
    ]
    async with asyncio.timeout(30):
        output = [await process.communicate() for process in started]
    assert [error for _, error in output] == [b""] * 3
    written = b"".join(out for out, _ in output).split()
    for name in "abc":
        assert (tmp_path / name).read_text().split()[0] == str(written.count(name.encode()))
    await nothing_is_left(masters)


@KIND
@pytest.mark.promise("S1")
async def test_a_minority_with_foreign_values_is_outvoted_and_left_alone(
    redlock: Redlock, masters: list[RealMaster], options: dict[str, Any]
) -> None:
    """The foreign values and their ttls stay as they are, also without a ttl."""
    put(masters[:1], "r")
    put(masters[1:2], "r", 60_000)
    async with redlock.lock("r", ttl=5_000, **options) as lease:
        await lease.extend()
        answers = [vote.answer for vote in lease.votes]
        assert Answer.GRANTED not in answers[:2]
        assert answers[2:] == [Answer.GRANTED] * 3
    await until(lambda: gone(masters[2:], "r"))
    assert values(masters[:2], "r") == ["somebody else"] * 2
    first, second = pttls(masters[:2], "r")
    assert first == -1
    assert second > 30_000


@pytest.mark.promise("S1")
async def test_a_forced_release_cancels_the_holder_before_the_next_acquires(
    masters: list[RealMaster],
) -> None:
    """The holder has not subscribed to its key yet: it notices the revocation."""
    order = []

    async def work(redlock: Redlock, name: str, seconds: float) -> None:
        async with redlock.lock("r", fair=True, fencing=True, ttl=60_000):
            order.append(f"{name} acquired")
            try:
                await asyncio.sleep(seconds)
            finally:
                order.append(f"{name} ended")

    async with (
        connected(masters, master_timeout=600) as redlock,
        connected(masters, master_timeout=600) as other,
    ):
        holder = asyncio.create_task(work(other, "holder", 60))
        await until(lambda: bool(order))
        waiter = asyncio.create_task(work(redlock, "waiter", 0))
        watch = Stopwatch()
        assert await redlock.force_release("r")
        assert watch.ms > 120 + 2 * 600
        async with asyncio.timeout(AT_ONCE):
            await waiter
        with pytest.raises(LockLostError, match=LossCause.FORCED.text):
            await holder
    assert order == ["holder acquired", "holder ended", "waiter acquired", "waiter ended"]
    await nothing_is_left(masters)


# S2: no lease is valid for longer than its keys live


@KIND
@pytest.mark.promise("S2")
async def test_a_lease_is_valid_for_less_than_its_keys_live(
    redlock: Redlock, masters: list[RealMaster], options: dict[str, Any]
) -> None:
    """Checked after the acquisition, and after an extension to a longer and a shorter ttl."""
    async with redlock.lock("r", ttl=10_000, auto_extend=False, **options) as lease:
        await until(lambda: values(masters, "r") == [lease.token] * 5)
        left = pttls(masters, "r")
        assert 8_000 < lease.remaining < min(left) <= 10_000
        await lease.extend(60_000)
        await until(lambda: min(pttls(masters, "r")) > 50_000)
        left = pttls(masters, "r")
        assert 50_000 < lease.remaining < min(left) <= 60_000
        await lease.extend(2_000)
        assert lease.remaining < 2_000
        await until(lambda: max(pttls(masters, "r")) <= 2_000)
    await nothing_is_left(masters)


@KIND
@pytest.mark.promise("S2")
@pytest.mark.parametrize("fault", ["pause", "kill"])
@pytest.mark.spread(1)
async def test_a_body_is_cancelled_before_its_keys_expire(
    masters: list[RealMaster], options: dict[str, Any], fault: str
) -> None:
    """The holder's timer cancels it: no extension gets a reply."""
    cancelled_at = 0.0
    async with connected(masters) as redlock:
        with pytest.raises(LockLostError, match="validity"):
            async with redlock.lock("r", ttl=700, **options) as lease:
                ends_at = time.monotonic() + lease.remaining / 1000
                for master in masters[:3]:
                    getattr(master, fault)()
                try:
                    await asyncio.sleep(20)
                finally:
                    cancelled_at = time.monotonic()
                    assert not lease.valid or lease.remaining <= 2
    # An extension that succeeded before the fault may have moved the end once,
    # and a busy machine runs timers late.
    assert cancelled_at < ends_at + 0.7 / 3 + AT_ONCE


@pytest.mark.promise("S2")
async def test_after_a_stall_of_the_loop_the_loss_is_raised_at_the_next_wait(
    redlock: Redlock,
) -> None:
    """`ensure_valid` raises it earlier."""
    written = False
    with pytest.raises(LockLostError):
        async with redlock.lock("r", ttl=300) as lease:
            time.sleep(0.5)  # noqa: ASYNC251 - the fault: a blocked loop
            assert not lease.valid
            assert lease.remaining == 0
            with pytest.raises(LockLostError):
                lease.ensure_valid()
            await asyncio.sleep(0.01)
            written = True
    assert not written


# S3, S4: nothing is left behind, and nothing is revived


@KIND
@pytest.mark.promise("S3")
async def test_a_cancelled_acquisition_leaves_nothing(
    redlock: Redlock, other: Redlock, masters: list[RealMaster], options: dict[str, Any]
) -> None:
    """Cancelled at many instants, on a free lock and on one that another program uses."""
    chance = random.Random(0)
    stop = False

    async def busy() -> None:
        while not stop:
            async with other.lock("r", wait=PATIENCE, **options):
                await asyncio.sleep(0.002)

    working: asyncio.Task[None] | None = None
    for number in range(60):
        if number == 30:
            working = asyncio.create_task(busy())
        task = asyncio.create_task(redlock.lock("r", ttl=60_000, **options).acquire())
        for _ in range(number % 30):
            await asyncio.sleep(0)
        if number % 2 and working:
            await asyncio.sleep(chance.random() / 100)
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            await task.result().release()
    stop = True
    assert working
    await working
    await nothing_is_left(masters)


@KIND
@pytest.mark.promise("S3")
@pytest.mark.promise("S5")
async def test_a_refused_attempt_leaves_nothing_and_does_not_refuse_the_next(
    redlock: Redlock, masters: list[RealMaster], options: dict[str, Any]
) -> None:
    """Keys left on the free minority would refuse the next attempt of the same client."""
    put(masters[1:4], "r")
    often = Retry(min_delay=5, max_delay=5)
    with pytest.raises(LockNotAcquiredError) as caught:
        await redlock.lock("r", retry=often, wait=200, **options).acquire()
    assert type(caught.value) is LockNotAcquiredError
    assert [vote.answer for vote in caught.value.votes[1:4]] == [Answer.HELD] * 3
    assert all(url.split("//")[1] in str(caught.value) for url in urls(masters))
    await until(lambda: leftovers(masters) == ["r"] * 3)
    waiter = asyncio.create_task(redlock.lock("r", wait=PATIENCE, **options).acquire())
    await subscribed(redlock, masters, fair="fair" in options)
    call(masters[2], "DEL", "r")
    await (await waiter).release()
    await until(lambda: leftovers(masters) == ["r"] * 2)
    assert values(masters, "r") == [None, "somebody else", None, "somebody else", None]


@KIND
@pytest.mark.promise("S4")
async def test_an_expired_lease_is_not_revived_and_takes_nothing_from_the_next(
    redlock: Redlock, other: Redlock, masters: list[RealMaster], options: dict[str, Any]
) -> None:
    """Checked while the next holder has the lock, and after it has released it."""
    lock = redlock.lock("r", ttl=300, auto_extend=False, on_lost="flag", **options)
    lease = await lock.acquire()
    async with other.lock("r", wait=PATIENCE, **options) as theirs:
        assert not lease.valid
        with pytest.raises(LockLostError):
            await lease.extend()
        await until(lambda: values(masters, "r") == [theirs.token] * 5)
    await nothing_is_left(masters)
    with pytest.raises(LockLostError):
        await lease.extend()
    with pytest.raises(LockNotHeldError):
        await lease.release()
    await nothing_is_left(masters)


@KIND
@pytest.mark.promise("S2")
@pytest.mark.promise("S4")
async def test_a_key_is_set_again_on_a_minority_and_a_loss_on_a_majority(
    redlock: Redlock, masters: list[RealMaster], options: dict[str, Any]
) -> None:
    with pytest.raises(LockLostError, match="'a', 'b' lost"):
        async with redlock.lock("a", "b", ttl=60_000, **options) as lease:
            await until(lambda: values(masters, "a") == [lease.token] * 5)
            for master in masters[:2]:
                call(master, "DEL", "b")
            await lease.extend()
            await until(lambda: values(masters, "b") == [lease.token] * 5)
            await asyncio.sleep(0.2)  # until it has subscribed to its keys
            for master in masters[2:]:
                call(master, "DEL", "a")
            await asyncio.sleep(20)
    await nothing_is_left(masters)


@pytest.mark.parametrize("options", KINDS[3:], ids=["fair and fenced"])
async def test_hold_at_least_keeps_the_lock_after_its_release(
    redlock: Redlock, other: Redlock, masters: list[RealMaster], options: dict[str, Any]
) -> None:
    """The release takes no longer than usual; a waiter gets the lock when the time is over."""
    began = time.monotonic()
    async with redlock.lock("r", ttl=20_000, hold_at_least=3_000, **options) as lease:
        await until(lambda: values(masters, "r") == [lease.token] * 5)
        waiter = asyncio.create_task(other.lock("r", wait=PATIENCE, **options).acquire())
        await subscribed(other, masters, fair="fair" in options)
    assert time.monotonic() < began + 3
    assert not lease.valid
    await replied(redlock)
    left = pttls(masters, "r")
    assert (began + 3 - time.monotonic()) * 1000 - 50 < min(left)
    # A minority may have a counter above the token, and then keeps the lock for its whole ttl.
    assert sorted(left)[2] <= 3_000
    theirs = await waiter
    assert -0.01 < time.monotonic() - began - 3 < AT_ONCE
    await theirs.release()
    await nothing_is_left(masters)


# S10, and the facts in errors and inspections


@KIND
@pytest.mark.promise("S10")
async def test_a_refusal_names_the_holder_and_shows_no_token(
    redlock: Redlock, masters: list[RealMaster], options: dict[str, Any]
) -> None:
    """The lock of redis-py is refused as well."""
    errors = []

    async def refused() -> bool:
        watch = Stopwatch()
        with pytest.raises(LockNotAcquiredError) as caught:
            await redlock.lock("r", wait=300, **options).acquire()
        assert 255 < watch.ms < 300 + 4 * TIMEOUT
        errors.append(caught.value)
        # On a busy machine the replies of a majority may come too late for the error.
        return caught.value.holder is not None

    async with (
        connected(masters, name="web-1") as other,
        other.lock("r", ttl=30_000, metadata=METADATA, **options) as lease,
    ):
        await until(lambda: values(masters, "r") == [lease.token] * 5)
        await until(refused)
        error = errors[-1]
        assert "now by web-1 (" in str(error)
        assert error.holder == Holder(lease.fingerprint, "web-1", METADATA)
        assert error.retry_after is not None
        assert lease.remaining - 1_000 < error.retry_after <= 30_000
        text = f"{error} {error!r} {error.args} {error.votes} {vars(error)} {pickle.dumps(error)!r}"
        assert lease.token[:10] not in text
        async with Redis.from_url(masters[0].url) as client:
            assert not await client.lock("r", timeout=5, blocking=False).acquire()


async def test_an_error_tells_why_each_master_has_no_vote(masters: list[RealMaster]) -> None:
    errors = []
    async with connected(masters) as redlock:

        async def refused() -> bool:
            with pytest.raises(QuorumUnavailableError) as caught:
                await redlock.lock("r", wait=0).acquire()
            errors.append(caught.value)
            free, held, full, dead, hung = [vote.answer for vote in caught.value.votes]
            assert hung in {
                Answer.TIMED_OUT,
                Answer.UNREACHABLE,
            }  # its connection is closed after a while
            # On a busy machine the round may be decided before these masters have replied.
            wanted = (Answer.GRANTED, Answer.HELD, Answer.ERROR, Answer.UNREACHABLE)
            return (free, held, full, dead) == wanted

        put(masters[1:2], "r")
        call(masters[2], "CONFIG", "SET", "maxmemory", "1")
        masters[3].kill()
        masters[4].pause()
        try:
            await until(refused, within=20)
        finally:
            call(masters[2], "CONFIG", "SET", "maxmemory", "0")
    assert "OOM" in errors[-1].votes[2].detail
    assert errors[-1].votes[3].detail


async def test_an_inspection_shows_what_each_master_has(
    redlock: Redlock, other: Redlock, masters: list[RealMaster]
) -> None:
    """Inspected are a free lock, one with a holder and a waiter, and a split one."""
    assert [view.answer for view in (await redlock.inspect("r")).views] == [Answer.FREE] * 5
    async with other.lock("r", fencing=True, fair=True, ttl=20_000) as lease:
        waiter = asyncio.create_task(other.lock("r", fair=True, fencing=True).acquire())
        await subscribed(other, masters, fair=True)
        await until(lambda: None not in values(masters, "r"))
        state = await redlock.inspect("r")
        assert state.locked
        assert state.holder is not None
        assert state.holder.fingerprint == lease.fingerprint
        assert (state.fencing_counter, state.waiters) == (lease.fencing_token, 1)
        assert state.remaining is not None
        assert 10_000 < state.remaining <= 20_000
        assert lease.token not in repr(state) + str(state)
    await (await waiter).release()
    await nothing_is_left(masters)
    call(masters[0], "LPUSH", "r", "x")
    for master, value in zip(masters[1:], "aabb", strict=True):
        call(master, "SET", "r", value)
    state = await redlock.inspect("r")
    assert state.split
    assert state.views[0].detail.startswith("WRONGTYPE")
    with pytest.raises(QuorumUnavailableError, match="WRONGTYPE"):
        await redlock.is_locked("r")  # the master with the list could have had either value
