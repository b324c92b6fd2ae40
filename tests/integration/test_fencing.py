"""Fencing tokens on real servers: rising, over lost scripts, lost keys and full memory."""

import asyncio
import sys
import time

import pytest

from redlock_aio import LockLostError, QuorumUnavailableError, Redlock
from redlock_aio._rules.clock_offsets import Clocks
from redlock_aio._rules.fencing import KEPT
from redlock_aio.testing import EmbeddedMaster

from .helpers import (
    TIMEOUT,
    RealMaster,
    call,
    connected,
    heard,
    pttls,
    put,
    until,
    up,
    urls,
    values,
)
from .servers import process

pytestmark = [pytest.mark.integration, pytest.mark.promise("S7")]

FENCE = "redlock_aio:fence:{r}"
BOTH = pytest.mark.parametrize("fair", [False, True])

WORKER = """
import asyncio, sys, time
from redlock_aio import Redlock
from redlock_aio._engine.attempt import Raising

rounds = []
init = Raising.__init__
def counted(self, *arguments):
    rounds.append(1)
    init(self, *arguments)
Raising.__init__ = counted

async def main(times, fair, *masters):
    granted = []
    async with Redlock(masters, master_timeout=1_500, fencing=True) as redlock:
        for _ in range(int(times)):
            async with redlock.lock("r", fair=fair == "fair") as lease:
                granted.append((time.monotonic_ns(), lease.fencing_token))
            await asyncio.sleep(0.001)
    print(len(rounds), granted)

asyncio.run(main(*sys.argv[1:]))
"""


HOLDER = """
import asyncio, sys
from redlock_aio import Redlock
from redlock_aio._engine.hold.watchdog import Watchdog

renewals = []
renew = Watchdog.renew
def noted(*arguments):
    renewals.append(renew(*arguments))
    return renewals[-1]
Watchdog.renew = noted

async def use(redlock, times, counted):
    for _ in range(times):
        async with redlock.lock("r", fencing=True, auto_extend=False) as lease:
            await asyncio.sleep(0.02)  # others try meanwhile, on masters that it may not have
            for _ in range(20):  # others may just have a master when it is to be restored
                await lease.extend()
                extension = renewals[-1]
                await asyncio.sleep(0.05)  # the last master has answered, and is restored
                yes = sum(reply == b"OK" for reply in extension.replies)
                if yes == 5:
                    break
            counted.append(yes)

async def main(times, *masters):
    counted = []
    async with Redlock(masters, master_timeout=1_500) as redlock:
        await asyncio.gather(*(use(redlock, int(times), counted) for _ in range(2)))
    print(*counted)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.promise("S6")
@pytest.mark.full
async def test_leases_that_are_contended_count_on_all_masters_after_an_extension(
    masters: list[RealMaster],
) -> None:
    """Of four processes with two tasks each, that try on masters which a lease does not have."""
    pipe = asyncio.subprocess.PIPE
    arguments = ("-P", "-c", HOLDER, "3", *urls(masters))
    holders = [
        await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=pipe)
        for _ in range(4)
    ]
    counted: list[int] = []
    for holder in holders:
        said, _ = await holder.communicate()
        assert holder.returncode == 0
        counted += map(int, said.split())
    assert counted == [5] * 24


@pytest.mark.promise("S1")
async def test_one_master_may_go_after_others_have_raised_the_counters_of_two(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    """It was acquired on three masters only; another gets no majority with two and one's loss."""
    put(masters[3:], "r", 60_000)
    async with redlock.lock("r", ttl=60_000, fencing=True, auto_extend=False) as lease:
        for master in masters[3:]:
            call(master, "DEL", "r")
        async with connected(masters[3:]) as others, others.lock("r", fencing=True):
            pass
        assert all(str(value) > str(lease.fencing_token) for value in values(masters[3:], FENCE))
        await lease.extend()
        mark = f".0000{lease.fencing_token:016}"
        await until(lambda: all(str(value).endswith(mark) for value in values(masters, FENCE)))
        assert values(masters, "r") == [lease.token] * 5
        call(masters[0], "DEL", "r")  # as if its clock were set forward
        async with connected(masters) as other:
            assert await other.lock("r", fencing=True).try_acquire() is None
        masters[0].kill()
        try:
            await lease.extend()
            assert lease.valid
        finally:
            masters[0].start()


@pytest.mark.parametrize("names", [("r",), ("r", "s")])
@BOTH
async def test_a_token_that_the_counters_have_reached_is_not_granted_again(
    redlock: Redlock,
    masters: list[RealMaster],
    monkeypatch: pytest.MonkeyPatch,
    names: tuple[str, ...],
    *,
    fair: bool,
) -> None:
    """Two programs may propose the same microsecond, one after the other."""
    now = int(time.time() * 1_000_000)
    monkeypatch.setattr(Clocks, "new_time", lambda *_: now)
    for later in range(3):
        async with redlock.lock(*names, fencing=True, fair=fair) as lease:
            assert lease.fencing_token == now + later
    assert {*values(masters, FENCE)} == {str(now + 2)}


def count_to(masters: list[RealMaster], number: int, *, fence: str = FENCE) -> None:
    """Let the counters say *number*."""
    for master in masters:
        call(master, "SET", fence, number)


@BOTH
async def test_tokens_rise_among_processes_that_contend(
    masters: list[RealMaster], *, fair: bool
) -> None:
    """Five of them: no token twice, all in the order of the grants, most in one round."""
    arguments = ("-c", WORKER, "30", "fair" if fair else "plain", *urls(masters))
    pipe = asyncio.subprocess.PIPE
    workers = [
        await asyncio.create_subprocess_exec(sys.executable, "-P", *arguments, stdout=pipe)
        for _ in range(5)
    ]
    granted: list[tuple[int, int]] = []
    raised = 0
    for worker in workers:
        said, _ = await worker.communicate()
        assert worker.returncode == 0
        rounds, _, pairs = said.decode().partition(" ")
        raised += int(rounds)
        numbers = [int(number) for number in pairs.strip("[]()\n").replace("), (", ", ").split(",")]
        granted += zip(numbers[::2], numbers[1::2], strict=True)
    tokens = [token for _, token in sorted(granted)]
    assert len(tokens) == 150
    assert tokens == sorted(set(tokens))
    assert raised < 0.2 * len(tokens)


@BOTH
async def test_counters_that_differ_agree_after_an_acquisition(
    redlock: Redlock, masters: list[RealMaster], *, fair: bool
) -> None:
    """Those of a majority at once; with all of their 16 digits, and to be kept as long."""
    count_to(masters[1:], 2_000_000_000_000_007)
    async with redlock.lock("r", fencing=True, fair=fair) as lease:
        token = lease.fencing_token
        assert token in {2_000_000_000_000_008, 2_000_000_000_000_009}
        assert values(masters, FENCE).count(str(token)) >= 3
        await lease.extend()
        await heard(redlock)
        assert lease.fencing_token == token
        assert values(masters, FENCE) == [str(token)] * 5, "also where there was no need to"
        assert all(KEPT - 5_000 < left <= KEPT for left in pttls(masters, FENCE))


@BOTH
async def test_scripts_that_are_flushed_are_given_again(
    redlock: Redlock, masters: list[RealMaster], *, fair: bool
) -> None:
    """Before the first round, and before the second; nothing stays of what fails."""
    last = 0
    for _ in range(3):
        for master in masters:
            call(master, "SCRIPT", "FLUSH")
        call(masters[2], "INCRBY", FENCE, 10)
        async with redlock.lock("r", wait=2_000, fencing=True, fair=fair) as lease:
            assert lease.fencing_token > last
            last = lease.fencing_token
            await lease.extend()
    await heard(redlock)
    assert values(masters, "r") == [None] * 5


@pytest.mark.promise("S4")
@pytest.mark.parametrize("fencing", [False, True])
async def test_masters_that_restart_get_the_lock_back(
    redlock: Redlock, masters: list[RealMaster], *, fencing: bool
) -> None:
    """With the next extension, so that after it two others may go."""
    async with redlock.lock("r", ttl=60_000, fencing=fencing) as lease:
        for master in masters[:2]:
            master.restart()
        await until(lambda: up(redlock) < 5)
        await until(lambda: up(redlock) == 5)
        await lease.extend()
        await until(lambda: values(masters, "r") == [lease.token] * 5)
        assert all(55_000 < left <= 60_000 for left in pttls(masters, "r"))
        if fencing:
            assert values(masters, FENCE) == [str(lease.fencing_token)] * 5
        for master in masters[3:]:
            call(master, "FLUSHALL")
        await lease.extend()
        assert lease.valid
    await heard(redlock)
    assert values(masters, "r") == [None] * 5


async def test_counters_beyond_the_token_on_a_majority_are_a_loss(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    """Though the key is its own everywhere."""
    lease = await redlock.lock("r", ttl=60_000, fencing=True).acquire()
    for master in masters[:2]:
        call(master, "INCR", FENCE)
    await lease.extend()
    call(masters[2], "INCR", FENCE)
    with pytest.raises(LockLostError, match="another client has acquired the lock"):
        await lease.extend()


@BOTH
async def test_where_scripts_can_not_count_no_more_tokens_are_given(
    redlock: Redlock, masters: list[RealMaster], *, fair: bool
) -> None:
    """2**53 + 1 is 2**53 to them; a minority like that is left out."""
    count_to(masters, 2**53 - 2)
    async with redlock.lock("r", wait=0, fencing=True, fair=fair) as lease:
        assert lease.fencing_token == 2**53 - 1
    for _ in range(2):
        with pytest.raises(QuorumUnavailableError, match="makes no sense"):
            await redlock.lock("r", wait=0, fencing=True, fair=fair).acquire()
    for master in masters[:3]:
        call(master, "DEL", FENCE)
    async with redlock.lock("r", wait=0, fencing=True, fair=fair) as lease:
        assert lease.fencing_token < 2**52
    await heard(redlock)
    assert values(masters, "r") == [None] * 5


@pytest.mark.promise("S4")
async def test_a_lease_is_extended_and_released_where_memory_has_run_out(kind: str) -> None:
    """Nothing can be acquired there."""
    with process(kind) as master:
        async with Redlock([master.url], master_timeout=TIMEOUT, fencing=True) as redlock:
            lease = await redlock.lock("r", ttl=60_000).acquire()
            full(master)
            await lease.extend(50_000)
            assert 45_000 < call(master, "PTTL", "r") <= 50_000
            with pytest.raises(QuorumUnavailableError, match="OOM"):
                await redlock.lock("r2", wait=0).acquire()
            await lease.release()
            assert call(master, "GET", "r") is None


def full(master: EmbeddedMaster) -> None:
    """Let its memory be over."""
    call(master, "CONFIG", "SET", "maxmemory", "1")
    call(master, "CONFIG", "SET", "maxmemory-policy", "noeviction")
