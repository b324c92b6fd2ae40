"""A master behind Sentinel votes while a majority of the Sentinels confirms it, end to end."""

import asyncio
import itertools
import logging
import random
import re

import pytest
from redis.asyncio import Sentinel

from redlock_aio import Answer, Lease, LockNotAcquiredError, Redlock, Retry, Vote
from redlock_aio._protocol.confirmation import ASK_INTERVAL, CONFIRMED_FOR
from redlock_aio._rules import timing
from redlock_aio._transport.connection import Connection
from redlock_aio.testing import FakeMaster, cancelled_at

from .kit import hang, in_coroutine, kill, loop, now, slow
from .sentinels import FakeSentinel, FakeService, Wire, replicate

MAX_TTL = 2_000
LASTS = timing.forgetting(MAX_TTL, factor=timing.DRIFT_FACTOR)
SOON = 0.1
"""Seconds in which everything is done that does not have to wait."""

pytestmark = [pytest.mark.promise("S1")]


class Site:
    """Three Sentinels, an old master, and a replica of it."""

    def __init__(self) -> None:
        self.sentinels = [FakeSentinel(f"s{i}") for i in range(3)]
        self.old, self.new = FakeMaster("old"), FakeMaster("new")

    def service(self) -> FakeService:
        """Return what a client that names all Sentinels gives to its manager."""
        return FakeService(self.sentinels, {"old": self.old, "new": self.new})

    def promote(self, *, by: int = 3) -> None:
        """Make the replica the master; so many Sentinels learn of it."""
        replicate(self.old, self.new)
        for sentinel in self.sentinels[3 - by :]:
            sentinel.switch("new", 1)

    def promote_old_again(self) -> None:
        """Make the old master the master again, without what the replica had."""
        for sentinel in self.sentinels:
            sentinel.switch("old", 2)


@pytest.fixture
async def site() -> Site:
    return Site()


def manager(service: FakeService, **options: object) -> Redlock:
    return Redlock([service], max_ttl=MAX_TTL, **options)  # type: ignore[arg-type]


async def attempt(redlock: Redlock, name: str = "probe") -> Vote:
    """Return what the master says to one attempt, which is taken back."""
    try:
        async with redlock.lock(name, wait=0, ttl=1_000) as lease:
            return lease.votes[0]
    except LockNotAcquiredError as error:
        return error.votes[0]


async def voting_at(redlock: Redlock) -> float:
    """Return when the master grants a lock at last."""
    async with redlock.lock("late", ttl=1_000, retry=Retry(min_delay=5, max_delay=10)):
        return now()


# Who confirms.


async def test_a_confirmed_master_votes_at_once(site: Site) -> None:
    async with manager(site.service()) as redlock:
        assert (await attempt(redlock)).answer is Answer.GRANTED
        assert now() < SOON
        await asyncio.sleep(100)
        assert (await attempt(redlock)).answer is Answer.GRANTED


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("fault", ["hang", "kill"])
async def test_one_sentinel_that_is_away_holds_nobody_up(
    site: Site, number: int, fault: str
) -> None:
    getattr(site.sentinels[number], fault)()
    async with manager(site.service()) as redlock:
        assert (await attempt(redlock)).answer is Answer.GRANTED
        assert now() < SOON
        await asyncio.sleep(100)
        assert (await attempt(redlock)).answer is Answer.GRANTED


@pytest.mark.parametrize("fault", ["hang", "kill"])
async def test_without_a_majority_it_has_no_vote_within_the_bound(site: Site, fault: str) -> None:
    async with manager(site.service()) as redlock:
        for sentinel in site.sentinels[:2]:
            getattr(sentinel, fault)()
        lost = now()
        await asyncio.sleep(CONFIRMED_FOR - ASK_INTERVAL - 0.01)
        assert (await attempt(redlock)).answer is Answer.GRANTED
        await asyncio.sleep(lost + CONFIRMED_FOR + 0.01 - now())
        vote = await attempt(redlock)
        assert vote.answer is Answer.QUARANTINED
        assert "1 of 3 Sentinels confirm old:6379 (epoch 0), 2 must: s0 (" in vote.detail
        assert "s2" not in vote.detail


async def test_it_votes_again_at_once_when_it_is_confirmed_again(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="redlock_aio")
    async with manager(site.service()) as redlock:
        connection = redlock._opener.session().links[0]._connection
        kill(site.sentinels)
        await asyncio.sleep(60)
        assert (await attempt(redlock)).answer is Answer.QUARANTINED
        back = now()
        for sentinel in site.sentinels:
            sentinel._alive = True
        assert await voting_at(redlock) < back + 2 * ASK_INTERVAL
        assert redlock._opener.session().links[0]._connection is connection
    said = [record.getMessage() for record in caplog.records]
    said = [line for line in said if line.startswith("mine")]  # not of whoever waits meanwhile
    assert len(said) == 2, said
    assert "0 of 3 Sentinels confirm" in said[0]
    assert "votes again" in said[1]


@pytest.mark.parametrize("others", ["away", "ignorant", "elsewhere"])
async def test_nobody_is_dialled_whom_no_majority_names(site: Site, others: str) -> None:
    for number, sentinel in enumerate(site.sentinels[1:]):
        if others == "away":
            sentinel.kill()
        else:
            sentinel.names = None if others == "ignorant" else (f"x{number}", 6379, 1)
    async with manager(site.service()) as redlock:
        vote = await attempt(redlock)
        assert vote.answer is Answer.UNREACHABLE
        assert "0 of 3 Sentinels confirm the master, 2 must: s0 names old:6379" in vote.detail
        assert site.old.commands == []


async def test_sentinels_that_name_one_server_in_two_epochs_do_not_agree(site: Site) -> None:
    site.sentinels[0].names = ("old", 6379, 3)
    site.sentinels[1].kill()
    async with manager(site.service()) as redlock:
        assert (await attempt(redlock)).answer is Answer.UNREACHABLE


async def test_one_sentinel_under_two_names_counts_once(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="redlock_aio")
    first, _, last = site.sentinels
    last.kill()
    service = FakeService([first, first, last], {"old": site.old})
    async with manager(service) as redlock:
        assert (await attempt(redlock)).answer is Answer.UNREACHABLE
    assert "lead to the same one" in caplog.text


async def test_a_sentinel_that_was_not_named_is_missed(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="redlock_aio")
    for sentinel in site.sentinels:
        sentinel.known = 5
    async with manager(site.service()) as redlock:
        await asyncio.sleep(10)
        assert (await attempt(redlock)).answer is Answer.GRANTED
    assert caplog.text.count("its Sentinels know of 5, but 3 were named") == 1


@pytest.mark.promise("S10")
async def test_no_text_holds_a_password(site: Site) -> None:
    class Leaky(Wire):
        async def dial(self) -> tuple[asyncio.Transport, object]:
            raise ConnectionError("wrong password s3cret")

    service = site.service()
    service.sentinels = [Leaky(sentinel) for sentinel in site.sentinels]
    async with manager(service) as redlock:
        detail = (await attempt(redlock)).detail
        assert "wrong password ***" in detail
        assert "s3cret" not in repr(redlock._opener.session().links[0]) + repr(
            redlock._opener.session().links[0]._route
        )


async def test_a_master_that_was_failed_over_before_it_was_first_used_waits(site: Site) -> None:
    """Nobody can tell what programs have had locks of it, and when that failover was."""
    for sentinel in site.sentinels:
        sentinel.names = ("old", 6379, 4)
    async with manager(site.service()) as redlock:
        assert LASTS + CONFIRMED_FOR < await voting_at(redlock) < LASTS + CONFIRMED_FOR + 1


# What is counted.


@pytest.mark.parametrize("how", ["stall", "suspend"])
async def test_the_clock_is_read_when_a_command_is_sent(site: Site, how: str) -> None:
    """A program that was away for longer than the bound sends no attempt before it asked."""
    async with manager(site.service()) as redlock:
        await attempt(redlock)
        hang(site.sentinels)
        getattr(loop(), how)(CONFIRMED_FOR + 0.01)
        assert (await attempt(redlock)).answer is Answer.QUARANTINED
        assert site.old.keys == {}


async def test_an_answer_counts_from_when_it_was_asked_for(site: Site) -> None:
    """It may be about any instant of the time that it took."""
    slow(site.sentinels, 0.7)
    redlock = manager(site.service(), master_timeout=500)
    async with redlock:
        await voting_at(redlock)
        for _ in range(500):
            await asyncio.sleep(0.01)
            asked_at = sorted(sentinel.asked_at for sentinel in site.sentinels)[1]
            connection = redlock._opener.session().links[0]._connection
            # A question arrives half of the latency after it was sent.
            assert connection.confirmed_until <= asked_at - 0.35 + CONFIRMED_FOR + 1e-9  # type: ignore[union-attr]


async def test_a_grant_that_was_asked_for_in_time_counts_when_it_comes_late(site: Site) -> None:
    async with manager(site.service(), master_timeout=500) as redlock:
        hang(site.sentinels)
        confirmed_until = redlock._opener.session().links[0]._route._connection.confirmed_until  # type: ignore[attr-defined]
        await asyncio.sleep(confirmed_until - 0.1 - now())
        site.old.hang()
        task = asyncio.create_task(redlock.lock("r", wait=0, ttl=2_000).acquire())
        await asyncio.sleep(0.2)
        site.old.resume()
        lease = await task
        assert lease.valid
        assert lease.remaining <= (confirmed_until - 0.1 + 2 - now()) * 1000
        assert (await attempt(redlock)).answer is Answer.QUARANTINED


async def test_an_extension_by_a_master_that_is_not_confirmed_does_not_count(site: Site) -> None:
    async with manager(site.service()) as redlock:
        lease = await redlock.lock("r", ttl=2_000, auto_extend=True).acquire()
        kill(site.sentinels)
        killed = now()
        await lease.lost.wait()
        assert now() <= killed + CONFIRMED_FOR + 2


@pytest.mark.promise("S3")
async def test_a_release_reaches_a_master_that_is_not_confirmed(site: Site) -> None:
    async with manager(site.service()) as redlock:
        lease = await redlock.lock("r", ttl=2_000, auto_extend=False).acquire()
        kill(site.sentinels)
        loop().stall(1.9)
        await asyncio.sleep(0)
        assert site.old.keys
        await lease.release()
        await asyncio.sleep(0.01)
        assert not site.old.keys


# Failovers.


async def test_a_failover_ends_the_connection_at_once(site: Site) -> None:
    async with manager(site.service()) as redlock:
        await asyncio.sleep(1.1)
        site.promote(by=2)
        await asyncio.sleep(0.05)
        vote = await attempt(redlock)
        assert vote.answer is Answer.QUARANTINED
        assert "it was a replica, and may lack locks" in vote.detail
        assert len(site.new.commands) > 5


async def test_a_failover_that_nobody_tells_of_is_seen_at_the_next_question(site: Site) -> None:
    async with manager(site.service()) as redlock:
        site.promote(by=0)
        for sentinel in site.sentinels[1:]:
            sentinel.names = ("new", 6379, 1)
        await asyncio.sleep(ASK_INTERVAL + 0.05)
        vote = await attempt(redlock)
        assert "it was a replica" in vote.detail


async def test_a_failover_while_the_old_master_is_dialled_is_seen(site: Site) -> None:
    """The connection must not stay without a vote: it leads to the wrong server."""
    site.old.latency = 0.2
    redlock = manager(site.service(), master_timeout=500)
    opening = asyncio.create_task(redlock.__aenter__())
    await asyncio.sleep(0.1)
    site.promote()
    await opening
    async with redlock, asyncio.timeout(20):
        await voting_at(redlock)
        assert len(site.new.commands) > 5


async def test_one_sentinel_that_names_another_does_not_end_it(site: Site) -> None:
    async with manager(site.service()) as redlock:
        connection = redlock._opener.session().links[0]._connection
        site.promote(by=1)
        await asyncio.sleep(10)
        assert (await attempt(redlock)).answer is Answer.GRANTED
        assert redlock._opener.session().links[0]._connection is connection


@pytest.mark.parametrize("knows", [True, False], ids=["a program that was there", "a newcomer"])
async def test_a_promoted_master_waits_for_the_bound_besides_the_quarantine(
    site: Site, *, knows: bool
) -> None:
    async with manager(site.service()) as redlock:
        site.promote()
        promoted = now()
        await asyncio.sleep(SOON)
        if not knows:
            await redlock.aclose()
        program = redlock if knows else manager(site.service())
        async with program:
            voted = await voting_at(program)
    assert promoted + LASTS + CONFIRMED_FOR < voted < promoted + LASTS + CONFIRMED_FOR + 1


@pytest.mark.parametrize("knows", [True, False], ids=["a program that was there", "a newcomer"])
async def test_a_server_that_is_promoted_again_waits_also_if_it_was_never_a_replica(
    site: Site, *, knows: bool
) -> None:
    """It has its old marker, and nothing says that it has missed what the other granted."""
    async with manager(site.service()) as redlock:
        site.promote()
        await asyncio.sleep(50 * LASTS)
        if not knows:
            await redlock.aclose()
        async with manager(site.service()) as other:
            await voting_at(other)
        site.promote_old_again()
        promoted = now()
        await asyncio.sleep(SOON)
        program = redlock if knows else manager(site.service())
        async with program:
            voted = await voting_at(program)
    assert promoted + LASTS + CONFIRMED_FOR < voted < promoted + LASTS + CONFIRMED_FOR + 1


async def test_a_later_program_of_the_same_epoch_finds_a_member(site: Site) -> None:
    async with manager(site.service()) as redlock:
        site.promote()
        await asyncio.sleep(SOON)
        await voting_at(redlock)
    began = now()
    async with manager(site.service()) as newcomer:
        assert await voting_at(newcomer) < began + SOON


async def test_two_sides_of_a_partition_never_hold_one_lock(site: Site) -> None:
    """A is cut off with the old master and one Sentinel, B is with the others."""
    mine, yours = site.service(), site.service()
    async with manager(mine) as a, manager(yours) as b:
        held: list[tuple[float, float, str]] = []
        tasks = [asyncio.create_task(compete(redlock, held)) for redlock in (a, b)]
        await asyncio.sleep(1)
        for wire in (*mine.sentinels[1:], mine.servers["new"], yours.servers["old"]):
            wire.cut()
        yours.sentinels[0].cut()
        site.promote(by=2)
        await asyncio.sleep(20)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    assert_exclusive(held)
    assert len({where for _, _, where in held}) == 2, "each side had it"


async def compete(redlock: Redlock, held: list[tuple[float, float, str]]) -> None:
    """Take the lock again and again, and write down for how long it is believed."""
    while True:
        lock = redlock.lock("r", ttl=MAX_TTL, wait=None, auto_extend=False, on_lost="flag")
        lease = await lock.acquire()
        held.append((now(), now() + lease.remaining / 1000, str(id(redlock))))
        try:
            await linger(lease)
            held[-1] = (held[-1][0], now(), held[-1][2])
        finally:
            await lease.release()
        await asyncio.sleep(random.uniform(0, 0.02))


async def linger(lease: Lease) -> None:
    """Work under the lock: mostly for a moment, sometimes for as long as it is valid."""
    if random.random() < 0.8:
        await asyncio.sleep(random.uniform(0, 0.02))
    else:
        await lease.lost.wait()


def assert_exclusive(held: list[tuple[float, float, str]]) -> None:
    """Check that no two of these spans share an instant."""
    spans = sorted(held)
    for (_, ends, _), (begins, _, _) in itertools.pairwise(spans):
        assert ends <= begins, f"two holders: one until {ends}, another from {begins}"


# The rest.


async def test_masters_without_sentinels_pay_nothing(masters: list[FakeMaster]) -> None:
    async with Redlock(masters) as redlock:
        for master in redlock._opener.session().links:
            assert type(master._connection) is Connection
            assert master.send == master._connection.send


async def test_fsync_always_is_no_word_for_a_failover(site: Site) -> None:
    with pytest.raises(ValueError, match="masters\\[0\\] is found through Sentinel"):
        manager(site.service(), restart_guard="fsync-always")


@pytest.mark.parametrize(
    ("hosts", "complaint"),
    [
        ([], "masters[0] names no Sentinel"),
        (["a", "b", "a"], "masters[0] names the Sentinel a:26379 twice"),
    ],
)
async def test_a_list_of_sentinels_must_make_sense(hosts: list[str], complaint: str) -> None:
    client = Sentinel([(host, 26379) for host in hosts]).master_for("mine")
    with pytest.raises(ValueError, match=re.escape(complaint)):
        Redlock([client])


async def test_masters_of_one_name_behind_different_sentinels_differ() -> None:
    sites = [Sentinel([(host, 26379)]) for host in "abc"]
    Redlock([site.master_for("mymaster") for site in sites])
    with pytest.raises(ValueError, match="is there twice"):
        Redlock([sites[0].master_for("mymaster") for _ in range(3)])


async def test_everything_ends_wherever_the_first_use_is_cancelled(site: Site) -> None:
    for nth in range(1, 100):
        redlock = manager(site.service())
        step = cancelled_at(nth, redlock.lock("r", ttl=1_000).acquire())
        task = asyncio.create_task(in_coroutine(step))
        await asyncio.wait([task])
        await redlock.aclose()
        if not task.cancelled():
            return
    raise AssertionError("it never got through")


@pytest.mark.parametrize("connects", [True, False])
async def test_it_ends_if_a_cancellation_is_lost_where_a_sentinel_is_dialled(
    site: Site, *, connects: bool
) -> None:
    """Some versions of Python, event loops and clients lose one now and then."""

    class Deaf(Wire):
        async def dial(self) -> tuple[asyncio.Transport, object]:
            try:
                await asyncio.sleep(1)
            except asyncio.CancelledError:
                if not connects:
                    raise ConnectionError("no connection") from None
            return await super().dial()

    service = site.service()
    service.sentinels[2] = Deaf(site.sentinels[2])
    redlock = manager(service)
    await attempt(redlock)
    async with asyncio.timeout(10):
        await redlock.aclose()
    assert not [task for task in asyncio.all_tasks() if "redlock_aio" in task.get_name()]


async def test_the_longer_quarantine_of_one_master_does_not_make_those_of_others_longer(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """Some find the master by Sentinels, some name its address; both share two more masters."""
    others = [FakeMaster("a"), FakeMaster("b")]
    found = Redlock([site.service(), *others], max_ttl=MAX_TTL)
    named = Redlock([site.old, *others], max_ttl=MAX_TTL)
    async with found, named:
        for _ in range(4):  # each time all of them look at all markers
            for master in (site.old, *others):
                master.set("redlock_aio:marker", master.marker or "")
            await asyncio.sleep(MAX_TTL / 1000)
        assert "longer max_ttl" not in caplog.text
        carried = {(master.marker or "").split()[3] for master in (site.old, *others)}
        assert len(carried) == 1
