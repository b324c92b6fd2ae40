"""A master behind Sentinels votes while a majority of them confirms it, end to end."""

import asyncio
import contextlib
import itertools
import logging
import random
import re
from typing import Any

import pytest
from redis.asyncio import Sentinel
from redis.exceptions import AuthenticationError

from redlock_aio import (
    Answer,
    LockNotAcquiredError,
    QuorumUnavailableError,
    Redlock,
    Retry,
    Vote,
)
from redlock_aio._protocol.commands import MARKER
from redlock_aio._protocol.confirmation import ASK_INTERVAL, CONFIRMED_FOR
from redlock_aio._rules import timing
from redlock_aio._rules.quarantine import LOOKS, PUSHED_INTERVAL
from redlock_aio._transport.connection import Connection
from redlock_aio.testing import FakeMaster, cancelled_at

from . import kit
from .kit import hang, in_coroutine, kill, loop, now, slow, until
from .sentinels import CutLink, FakeSentinel, FakeService, replicate

MAX_TTL = 2_000
QUARANTINE = timing.forgetting(MAX_TTL, factor=timing.DRIFT_FACTOR) + CONFIRMED_FOR
"""Seconds for which a promoted server has no vote: it may also have been superseded."""
SOON = 0.1
"""Seconds in which all operations end that do not have to wait."""

pytestmark = [pytest.mark.promise("S1")]


class Site:
    """Three Sentinels, an old master and its replica."""

    def __init__(self) -> None:
        self.sentinels = [FakeSentinel(f"s{i}") for i in range(3)]
        self.old, self.new = FakeMaster("old"), FakeMaster("new")

    def service(self) -> FakeService:
        """Return the master for a manager that names all Sentinels."""
        return FakeService(self.sentinels, {"old": self.old, "new": self.new})

    def promote(self, *, by: int = 3) -> None:
        """Make the replica the master; the last *by* Sentinels name it."""
        replicate(self.old, self.new)
        for sentinel in self.sentinels[3 - by :]:
            sentinel.switch("new", 1)

    def promote_old_again(self) -> None:
        """Make the old master the master again, without the locks that the replica granted."""
        for sentinel in self.sentinels:
            sentinel.switch("old", 2)


@pytest.fixture
async def site() -> Site:
    return Site()


def manager(service: FakeService, **options: Any) -> Redlock:
    return Redlock([service], max_ttl=MAX_TTL, **options)


async def attempt(redlock: Redlock) -> Vote:
    """Return the master's vote in one attempt, and release the lock."""
    try:
        async with redlock.lock("probe", wait=0, ttl=1_000) as lease:
            return lease.votes[0]
    except LockNotAcquiredError as error:
        return error.votes[0]


async def voting_at(redlock: Redlock) -> float:
    """Return the time at which the master first grants a lock."""
    async with redlock.lock("late", ttl=1_000, retry=Retry(min_delay=5, max_delay=10)):
        return now()


def confirmed_until(redlock: Redlock) -> float:
    until: float = kit.session(redlock).links[0]._route._confirmed_until  # type: ignore[attr-defined]
    return until


# Confirmation by a majority.


@pytest.mark.parametrize(("number", "fault"), [(0, ""), (0, "hang"), (2, "hang"), (1, "kill")])
@pytest.mark.spread(1)
async def test_a_confirmed_master_votes_at_once_also_without_one_sentinel(
    site: Site, number: int, fault: str
) -> None:
    if fault:
        getattr(site.sentinels[number], fault)()
    async with manager(site.service()) as redlock:
        assert (await attempt(redlock)).answer is Answer.GRANTED
        assert now() < SOON
        await asyncio.sleep(100)
        assert (await attempt(redlock)).answer is Answer.GRANTED


@pytest.mark.parametrize("fault", ["hang", "kill"])
async def test_without_a_majority_its_vote_ends_within_the_bound(site: Site, fault: str) -> None:
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
        connection = kit.session(redlock).links[0]._connection
        kill(site.sentinels)
        await asyncio.sleep(60)
        assert (await attempt(redlock)).answer is Answer.QUARANTINED
        back = now()
        for sentinel in site.sentinels:
            sentinel._alive = True
        assert await voting_at(redlock) < back + 2 * ASK_INTERVAL
        assert kit.session(redlock).links[0]._connection is connection
    logged = [line for line in caplog.messages if line.startswith("mine")]
    assert len(logged) == 2, logged
    assert "0 of 3 Sentinels confirm" in logged[0]
    assert "votes again" in logged[1]


@pytest.mark.parametrize("others", ["away", "ignorant", "elsewhere", "another epoch"])
async def test_a_server_that_no_majority_names_is_not_dialled(site: Site, others: str) -> None:
    for number, sentinel in enumerate(site.sentinels[1:]):
        if others == "away":
            sentinel.kill()
        else:
            names = {
                "elsewhere": (f"x{number}", 6379, 1),
                "another epoch": ("old", 6379, 3 + number),
            }
            sentinel.names = names.get(others)
    async with manager(site.service()) as redlock:
        vote = await attempt(redlock)
        assert vote.answer is Answer.UNREACHABLE
        assert "0 of 3 Sentinels confirm the master, 2 must: s0 names old:6379" in vote.detail
        assert site.old.commands == []


async def test_the_vote_names_the_server_that_can_not_be_reached(site: Site) -> None:
    """Sentinels may name an address that is known to their network only."""
    service = site.service()
    service.servers["old"].cut()
    async with manager(service) as redlock:
        vote = await attempt(redlock)
        assert vote.detail == "no connection in 1 s at old:6379"


async def test_a_sentinel_that_was_not_named_is_reported_once(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    for sentinel in site.sentinels:
        sentinel.known = 5
    async with manager(site.service()) as redlock:
        await asyncio.sleep(10)
        assert (await attempt(redlock)).answer is Answer.GRANTED
    assert caplog.text.count("its Sentinels know of 5, but 3 were named") == 1


@pytest.mark.promise("S10")
async def test_no_text_holds_a_password(site: Site) -> None:
    class Leaky(CutLink):
        async def dial(self) -> tuple[asyncio.Transport, object]:
            raise ConnectionError("wrong password s3cret")

    service = site.service()
    service.sentinels = [Leaky(sentinel) for sentinel in site.sentinels]
    async with manager(service) as redlock:
        detail = (await attempt(redlock)).detail
        assert "wrong password ***" in detail
        (master,) = kit.session(redlock).links
        assert "s3cret" not in f"{master!r} {master._route!r}"


async def test_a_wrong_password_of_all_sentinels_ends_a_wait_at_once(site: Site) -> None:
    class Refused(CutLink):
        async def dial(self) -> tuple[asyncio.Transport, object]:
            raise AuthenticationError("WRONGPASS invalid username-password pair")

    service = site.service()
    service.sentinels = [Refused(sentinel) for sentinel in site.sentinels]
    async with manager(service) as redlock:
        with pytest.raises(QuorumUnavailableError) as caught:
            await redlock.lock("r").acquire()
        assert now() < 2.0
        assert caught.value.code == "masters-refuse"
        assert "s0 (authentication failed: WRONGPASS" in caught.value.votes[0].detail


# The time of a confirmation.


@pytest.mark.parametrize("how", ["stall", "suspend"])
async def test_the_clock_is_read_when_a_command_is_sent(site: Site, how: str) -> None:
    """A program that was suspended for longer than the bound asks before its next attempt."""
    async with manager(site.service()) as redlock:
        await attempt(redlock)
        hang(site.sentinels)
        getattr(loop(), how)(CONFIRMED_FOR + 0.01)
        assert (await attempt(redlock)).answer is Answer.QUARANTINED
        assert site.old.keys == {}


async def test_an_answer_counts_from_when_it_was_asked_for(site: Site) -> None:
    """The answer may describe any instant between the request and the reply."""
    slow(site.sentinels, 0.7)
    async with manager(site.service(), master_timeout=500) as redlock:
        await voting_at(redlock)
        for _ in range(500):
            await asyncio.sleep(0.01)
            asked_at = sorted(sentinel.asked_at for sentinel in site.sentinels)[1]
            # A request arrives half of the latency after it was sent.
            assert confirmed_until(redlock) <= asked_at - 0.35 + CONFIRMED_FOR + 1e-9


@pytest.mark.parametrize("unnoticed", [0.2, 1.5])
async def test_a_confirmation_that_was_over_between_two_answers_wakes_those_who_wait(
    site: Site, unnoticed: float
) -> None:
    """Nothing tells its end. In a second and a half the restart guard looks at the master, too."""
    (service := site.service()).sentinels[1:] = []
    async with manager(service) as redlock:
        await attempt(redlock)
        site.sentinels[0].hang()
        over = confirmed_until(redlock)
        await asyncio.sleep(over + 0.01 - now())
        waiting = [asyncio.create_task(redlock.lock(f"r{i}").acquire()) for i in range(10)]
        await asyncio.sleep(unnoticed)
        site.sentinels[0].resume()
        await until(lambda: confirmed_until(redlock) > over)
        back = now()
        await asyncio.gather(*waiting)
        assert now() < back + SOON


async def test_a_grant_that_was_asked_for_in_time_counts_when_it_comes_late(site: Site) -> None:
    async with manager(site.service(), master_timeout=500) as redlock:
        hang(site.sentinels)
        until = confirmed_until(redlock)
        await asyncio.sleep(until - 0.1 - now())
        site.old.hang()
        task = asyncio.create_task(redlock.lock("r", wait=0, ttl=2_000).acquire())
        await asyncio.sleep(0.2)
        site.old.resume()
        lease = await task
        assert lease.valid
        assert lease.remaining <= (until - 0.1 + 2 - now()) * 1000
        assert (await attempt(redlock)).answer is Answer.QUARANTINED


async def test_a_master_that_is_not_confirmed_extends_no_lease(site: Site) -> None:
    async with manager(site.service()) as redlock:
        lease = await redlock.lock("r", ttl=2_000, auto_extend=True).acquire()
        kill(site.sentinels)
        killed = now()
        await lease.lost.wait()
        assert now() <= killed + CONFIRMED_FOR + 2


@pytest.mark.promise("S3")
async def test_a_master_that_is_not_confirmed_gets_releases(site: Site) -> None:
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


@pytest.mark.parametrize("pushed", [True, False])
async def test_a_failover_ends_the_connection(site: Site, *, pushed: bool) -> None:
    """It ends at once if a Sentinel pushes the failover, else at the next request."""
    async with manager(site.service()) as redlock:
        await asyncio.sleep(1.1)
        site.promote(by=2 if pushed else 0)
        if not pushed:
            for sentinel in site.sentinels[1:]:
                sentinel.names = ("new", 6379, 1)
            await asyncio.sleep(ASK_INTERVAL)
        await asyncio.sleep(0.05)
        vote = await attempt(redlock)
        assert vote.answer is Answer.QUARANTINED
        assert "it was a replica, and may lack locks" in vote.detail
        assert len(site.new.commands) > 5


async def test_a_failover_while_the_old_master_is_dialled_is_seen(site: Site) -> None:
    """The connection is to the wrong server, and must not stay open without a vote."""
    site.old.latency = 0.2
    redlock = manager(site.service(), master_timeout=500)
    opening = asyncio.create_task(redlock.__aenter__())
    await asyncio.sleep(0.1)
    site.promote()
    await opening
    async with contextlib.aclosing(redlock), asyncio.timeout(20):
        await voting_at(redlock)
        assert len(site.new.commands) > 5


async def test_one_sentinel_that_names_another_server_ends_no_connection(site: Site) -> None:
    async with manager(site.service()) as redlock:
        connection = kit.session(redlock).links[0]._connection
        site.promote(by=1)
        await asyncio.sleep(10)
        assert (await attempt(redlock)).answer is Answer.GRANTED
        assert kit.session(redlock).links[0]._connection is connection


@pytest.mark.spread(1)
@pytest.mark.parametrize("again", [False, True], ids=["a replica", "the former master"])
@pytest.mark.parametrize("newcomer", [False, True], ids=["seen", "a newcomer"])
async def test_a_promoted_server_waits_for_the_bound_besides_the_quarantine(
    site: Site, *, again: bool, newcomer: bool
) -> None:
    """The former master has its old marker, but no locks that the other server granted."""
    async with manager(site.service()) as redlock:
        site.promote()
        if again:
            await asyncio.sleep(100)
            if newcomer:
                await redlock.aclose()
            async with manager(site.service()) as other:
                await voting_at(other)
            site.promote_old_again()
        promoted = now()
        await asyncio.sleep(SOON)
        if newcomer:
            await redlock.aclose()
        async with manager(site.service()) if newcomer else contextlib.aclosing(redlock) as program:
            assert promoted + QUARANTINE < await voting_at(program) < promoted + QUARANTINE + 1
    began = now()
    async with manager(site.service()) as later:
        assert await voting_at(later) < began + SOON, "a member of the same epoch"


async def test_a_master_that_was_failed_over_before_its_first_use_waits(site: Site) -> None:
    """No program knows the time of that failover, or the locks granted before it."""
    for sentinel in site.sentinels:
        sentinel.names = ("old", 6379, 4)
    async with manager(site.service()) as redlock:
        assert QUARANTINE < await voting_at(redlock) < QUARANTINE + 1


async def test_a_master_that_some_programs_name_by_its_address_has_no_vote(site: Site) -> None:
    """Each program takes the marker of the other for that of another server."""
    async with manager(site.service()) as one, Redlock([site.old], max_ttl=MAX_TTL) as other:
        await asyncio.sleep(SOON)
        for _ in range(3):
            await asyncio.sleep(QUARANTINE / 3)
            for redlock in (one, other):
                vote = await attempt(redlock)
                assert vote.answer is Answer.QUARANTINED
                assert "its keys were flushed" in vote.detail


@pytest.mark.parametrize("each", [1, pytest.param(3, marks=pytest.mark.full)])
@pytest.mark.parametrize("named", ["by address", "in another epoch"])
async def test_programs_that_name_a_master_in_two_ways_do_not_keep_it_busy(
    site: Site, named: str, each: int
) -> None:
    """They replace each other's marker, and neither may do that at the speed of round trips."""
    others: list[Any] = [site.old] * each
    if named == "in another epoch":
        others = [FakeService([FakeSentinel("x")], {"old": site.old}) for _ in range(each)]
        for other in others:
            other.sentinels[0].server.names = ("old", 6379, 4)
    async with contextlib.AsyncExitStack() as stack:
        for server in (*[site.service() for _ in range(each)], *others):
            await stack.enter_async_context(Redlock([server], max_ttl=MAX_TTL))
        await asyncio.sleep(1)
        site.old.commands.clear()
        await asyncio.sleep(10)
        naming = sum(MARKER in command for command in site.old.commands)
    # Each program reads the marker, writes its own and reads it back, and also looks when
    # an earlier look is a quarter of a quarantine ago.
    looks = 10 / PUSHED_INTERVAL + 10 / (QUARANTINE / LOOKS)
    assert naming <= 2 * each * 3 * looks


async def test_two_sides_of_a_partition_never_hold_one_lock(site: Site) -> None:
    """A is on the side of the old master and one Sentinel, B on that of the others."""
    mine, yours = site.service(), site.service()
    held: list[tuple[float, float, Redlock]] = []
    async with manager(mine) as a, manager(yours) as b:
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
    spans = sorted(held, key=lambda span: span[:2])
    for (_, ends, _), (begins, _, _) in itertools.pairwise(spans):
        assert ends <= begins, f"two holders: one until {ends}, another from {begins}"
    assert {redlock for _, _, redlock in held} == {a, b}


async def compete(redlock: Redlock, held: list[tuple[float, float, Redlock]]) -> None:
    """Acquire the lock again and again, and record the validity of each lease."""
    while True:
        lock = redlock.lock("r", ttl=MAX_TTL, wait=None, auto_extend=False, on_lost="flag")
        async with lock as lease:
            began = now()
            held.append((began, began + lease.remaining / 1000, redlock))
            if random.random() < 0.8:
                await asyncio.sleep(random.uniform(0, 0.02))
            else:
                await lease.lost.wait()
            held[-1] = (began, now(), redlock)
        await asyncio.sleep(random.uniform(0, 0.02))


# Arguments, and the end.


async def test_masters_may_have_one_name_on_sentinels_of_their_own() -> None:
    """It is mymaster in most configurations."""

    def service(number: int) -> FakeService:
        sentinels = [FakeSentinel(f"{number}s{i}") for i in range(3)]
        return FakeService(sentinels, {"old": FakeMaster(f"old{number}")})

    async with Redlock([service(number) for number in range(3)]) as redlock:
        async with redlock.lock("r", wait=1_000):
            assert [master.votes for master in redlock.statistics().masters] == [True] * 3
        await asyncio.sleep(120)
        assert [master.votes for master in redlock.statistics().masters] == [True] * 3


async def test_masters_without_sentinels_have_plain_connections(masters: list[FakeMaster]) -> None:
    async with Redlock(masters) as redlock:
        for master in kit.session(redlock).links:
            assert type(master._connection) is Connection
            assert master.send == master._connection.send


@pytest.mark.parametrize(
    ("sentinels", "options", "complaint"),
    [
        (["abc"], {"restart_guard": "fsync-always"}, "masters[0] is found through Sentinel"),
        ([""], {}, "masters[0] names no Sentinel"),
        (["aba"], {}, "masters[0] names the Sentinel a:26379 twice"),
        (["abc", "abc"], {}, "is named twice"),
        (["a", "b", "c"], {}, ""),
    ],
)
async def test_sentinels_of_a_master_are_checked(
    sentinels: list[str], options: dict[str, Any], complaint: str
) -> None:
    """Two masters with one name behind different Sentinels are different masters."""
    sites = [Sentinel([(host, 26379) for host in hosts]) for hosts in sentinels]
    masters = [site.master_for("mine") for site in sites]
    if not complaint:
        Redlock(masters, **options)
        return
    with pytest.raises(ValueError, match=re.escape(complaint)):
        Redlock(masters, **options)


async def test_closing_ends_all_tasks_wherever_the_first_use_was_cancelled(site: Site) -> None:
    for nth in range(1, 100):
        redlock = manager(site.service())
        step = cancelled_at(nth, redlock.lock("r", ttl=1_000).acquire())
        task = asyncio.create_task(in_coroutine(step))
        await asyncio.wait([task])
        await redlock.aclose()
        if not task.cancelled():
            return
    pytest.fail("it never runs to its end")


@pytest.mark.parametrize("connects", [True, False])
async def test_closing_ends_all_tasks_if_a_cancellation_is_lost_in_a_dial(
    site: Site, *, connects: bool
) -> None:
    """Some versions of Python, event loops and clients sometimes lose a cancellation."""

    class IgnoresCancellation(CutLink):
        async def dial(self) -> tuple[asyncio.Transport, object]:
            try:
                await asyncio.sleep(1)
            except asyncio.CancelledError:
                if not connects:
                    raise ConnectionError("no connection") from None
            return await super().dial()

    service = site.service()
    service.sentinels[2] = IgnoresCancellation(site.sentinels[2])
    redlock = manager(service)
    await attempt(redlock)
    async with asyncio.timeout(10):
        await redlock.aclose()
    assert not [task for task in asyncio.all_tasks() if "redlock_aio" in task.get_name()]


async def test_the_longer_quarantine_of_one_master_lengthens_no_others(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """One program finds the master by Sentinels, one by its address; both share two others."""
    others = [FakeMaster("a"), FakeMaster("b")]
    found = Redlock([site.service(), *others], max_ttl=MAX_TTL)
    named = Redlock([site.old, *others], max_ttl=MAX_TTL)
    async with found, named:
        for _ in range(4):  # each time, both programs read all markers
            for master in (site.old, *others):
                master.set(MARKER.decode(), master.marker or "")
            await asyncio.sleep(MAX_TTL / 1000)
        assert "longer max_ttl" not in caplog.text
        carried = {(master.marker or "").split()[3] for master in (site.old, *others)}
        assert len(carried) == 1


async def test_replicas_behind_sentinels_are_not_warned_of(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.old.replicas = 1
    async with manager(site.service()):
        await asyncio.sleep(20)
    assert "replicas" not in caplog.text
