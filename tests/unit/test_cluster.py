"""Primaries of a Redis Cluster as masters, end to end."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.exceptions import AuthenticationError

from redlock_aio import (
    Answer,
    LockLostError,
    LockNotAcquiredError,
    QuorumUnavailableError,
    Redlock,
    Retry,
    Vote,
)
from redlock_aio._engine.wait.fair_queue import IDLE
from redlock_aio._protocol.confirmation import ASK_INTERVAL, CONFIRMED_FOR
from redlock_aio._protocol.tags import PLACEHOLDER
from redlock_aio._rules import timing
from redlock_aio._transport.cluster import FORGOTTEN_AFTER
from redlock_aio.testing import FakeMaster
from redlock_aio.testing._fake_lua import Error

from . import kit
from .clusters import TAGS, FakeCluster, FakeNode, FakeSite
from .kit import hang, kill, now, resume
from .sentinels import CutLink

MAX_TTL = 2_000
QUARANTINE = timing.forgetting(MAX_TTL, factor=timing.DRIFT_FACTOR) + CONFIRMED_FOR
SOON = 0.2

pytestmark = [pytest.mark.promise("S1")]


@pytest.fixture
async def site() -> FakeSite:
    return FakeSite()


def manager(cluster: FakeCluster, **options: Any) -> Redlock:
    return Redlock.of_cluster(cluster, **{"masters": 3, "max_ttl": MAX_TTL, **options})


async def attempt(redlock: Redlock, name: str = "probe") -> tuple[Vote, ...]:
    """Return the votes in one attempt, and release the lock."""
    try:
        async with redlock.lock(name, wait=0, ttl=1_000) as lease:
            await asyncio.sleep(SOON)  # until the stragglers have answered
            return lease.votes
    except LockNotAcquiredError as error:
        return error.votes


async def voting(redlock: Redlock) -> list[bool]:
    await asyncio.sleep(0)
    return [master.votes for master in redlock.statistics().masters]


def reason(redlock: Redlock, number: int) -> str:
    return redlock.statistics().masters[number].reason


# Refusals.


class Refused(CutLink):
    """A link to a node that refuses the password."""

    async def dial(self) -> tuple[asyncio.Transport, object]:
        raise AuthenticationError("WRONGPASS invalid username-password pair or user is disabled.")


async def test_a_wrong_password_ends_a_wait_at_once(site: FakeSite) -> None:
    """As with other masters: else `wait=None` would never end."""
    cluster = site.link("a", "b")
    right, cluster.links = cluster.links, {host: Refused(site[host]) for host in "ab"}
    async with manager(cluster) as redlock:
        with pytest.raises(QuorumUnavailableError) as caught:
            await redlock.lock("r").acquire()
        assert now() < 2.0
        assert caught.value.code == "masters-refuse"
        for vote in caught.value.votes:
            assert vote.permanent
            assert vote.detail.count("authentication failed: WRONGPASS") == 2
        cluster.links = right
        await asyncio.sleep(10)
        async with redlock.lock("r", wait=0):
            pass


async def test_one_node_that_takes_the_password_is_enough_to_find_the_others() -> None:
    site = FakeSite("xy")
    cluster = site.link("x", "y", "a")
    cluster.links |= {host: Refused(site[host]) for host in "xy"}
    site["a"].latency = 0.2
    async with manager(cluster) as redlock, redlock.lock("r", wait=20_000):
        pass


async def test_a_wait_for_a_server_that_would_name_the_others_goes_on() -> None:
    """Of three that were named two refuse, and are no members; the third one is down so far."""
    site = FakeSite("xy")
    cluster = site.link("x", "y", "a")
    cluster.links |= {host: Refused(site[host]) for host in "xy"}
    kill([site["a"]])
    async with manager(cluster) as redlock:
        waiting = asyncio.create_task(redlock.lock("r", wait=20_000).acquire())
        await asyncio.sleep(3)
        site["a"]._alive = True
        await (await waiting).release()


# Names of keys.


@pytest.mark.parametrize("name", ["r", "a{b}c", "{0001}", "{}", "redlock_aio:x"])
@pytest.mark.parametrize("kind", kit.KINDS, ids=kit.NAMES_OF_KINDS)
@pytest.mark.spread(1)
async def test_all_keys_of_a_master_have_its_tag(
    site: FakeSite, name: str, kind: dict[str, Any]
) -> None:
    """The nodes assert that the keys of each command are in one slot, and that it is theirs."""
    async with manager(site.link(), key_prefix="my:") as redlock:
        async with redlock.lock(name, "other", ttl=1_000, **kind) as lease:
            for host, tag in zip("abc", TAGS, strict=True):
                assert site[host].keys[f"{tag.decode()}my:{name}"] == lease.token
                assert all(tag in key for key in site[host]._keys)
        assert all(await voting(redlock))
    assert not any(PLACEHOLDER in word for word in site.received())
    assert not any(node._keys for host, node in site.nodes.items() if host in "rst")


async def test_all_kinds_of_locks_work(site: FakeSite) -> None:
    one, two = manager(site.link("a")), manager(site.link("t"))
    async with one, two:
        async with one.lock("fair", fair=True, fencing=True, ttl=1_000) as lease:
            waiter = asyncio.create_task(two.lock("fair", fair=True, fencing=True).acquire())
            await asyncio.sleep(SOON)
            first, ended = lease.fencing_token, now()
            assert (await one.inspect("fair")).waiters == 1
        later = await waiter
        assert now() < ended + 0.02  # woken by a message, not by a heartbeat
        assert later.fencing_token is not None
        assert first is not None
        assert later.fencing_token > first
        await later.release()
        docs = one.rw_lock("doc"), two.rw_lock("doc")
        async with docs[0].read(), docs[1].read():
            assert len((await one.inspect("doc")).readers) == 2
        async with docs[1].write():
            assert await one.is_locked("doc")
        permits = [each.semaphore("sem", permits=2) for each in (one, two)]
        async with permits[0], contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(permits[1])
            waiting = asyncio.create_task(one.semaphore("sem", permits=2).acquire())
            await asyncio.sleep(SOON)
            assert (await two.find_locks("s")).semaphores == {"sem": 2}
            freed = now()
            await stack.aclose()
            permit = await waiting
            assert now() < freed + 0.02
        await permit.release()
        plain = await one.lock("plain").acquire()
        assert [state.resource for state in (await two.find_locks()).states] == ["plain"]
        assert await two.force_release("plain")
        await asyncio.sleep(0.02)
        assert not plain.valid
        given = await one.lock("given", fencing=True, fair=True).acquire()
        taken = await two.adopt(given.export())
        assert taken.valid
        await taken.release()
    assert not any(PLACEHOLDER in word for word in site.received())


@contextlib.asynccontextmanager
async def woken(one: Redlock, two: Redlock) -> AsyncIterator[None]:
    """Let *two* wait for a permit, and check that it is woken when another one becomes free."""
    # Only a message tells of a permit for which it does not wait.
    async with one.semaphore("sem", permits=2), contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(one.semaphore("sem", permits=2))
        waiter = asyncio.create_task(two.semaphore("sem", permits=2).acquire())
        await asyncio.sleep(SOON)
        freed = now()
        await stack.aclose()
        lease = await waiter
        assert now() < freed + 0.02
        yield
        await lease.release()


@pytest.mark.parametrize("sharded", [True, False])
async def test_a_waiter_is_woken_by_the_master_that_frees_the_permit_alone(
    site: FakeSite, *, sharded: bool
) -> None:
    """PUBLISH would tell all nodes of a Cluster. The channel of each master has its tag."""
    site.sharded = sharded
    verb = b"SSUBSCRIBE" if sharded else b"SUBSCRIBE"
    sent = ("SPUBLISH" if sharded else "PUBLISH", 1)
    async with manager(site.link("a")) as one, manager(site.link("b")) as two:
        async with woken(one, two):
            for host, tag in zip("abc", TAGS, strict=True):
                [channel] = [c[1] for c in site[host].commands if c[0] == verb]
                assert channel.startswith(b"redlock_aio:wake:" + tag)
                assert site[host].published == [sent]
        await asyncio.sleep(IDLE + 1)
        ended = [b"SUNSUBSCRIBE"] if sharded else [b"SUNSUBSCRIBE", b"UNSUBSCRIBE"]
        for host in "abc":
            assert [c[0] for c in site[host].commands if b"UNSUB" in c[0]] == ended


async def test_a_user_who_may_not_use_the_channels_of_a_slot_gets_the_others(
    site: FakeSite,
) -> None:
    """One that may wakes it too: a message that reached nobody is published."""
    for host in "abc":
        site[host].forbid = {"SSUBSCRIBE"}
    async with manager(site.link("a")) as one, manager(site.link("b")) as two, woken(one, two):
        sent = [("SPUBLISH", 0), ("PUBLISH", 1)]
        assert [site[host].published for host in "abc"] == [sent] * 3


async def test_a_subscription_that_ends_because_a_slot_moves_wakes_nobody(site: FakeSite) -> None:
    """The node says so by itself, between the replies; the next command ends the connection."""
    async with manager(site.link("b")) as one, manager(site.link("c")) as two:
        lease = await one.lock("r", fair=True, ttl=1_000).acquire()
        waiter = asyncio.create_task(two.lock("r", fair=True, ttl=1_000).acquire())
        await asyncio.sleep(SOON)
        before = len(site["b"].commands)
        site.promote("r", 0, loses=False)
        await asyncio.sleep(0.001)
        assert not any(c[0] == b"EVALSHA" for c in site["b"].commands[before:])
        await asyncio.sleep(1)
        assert "may lack locks" in reason(two, 0)
        freed = now()
        await lease.release()
        await (await waiter).release()
        assert now() < freed + 0.02


async def test_pushes_name_keys_as_the_engine_knows_them(site: FakeSite) -> None:
    """A waiter is woken by the release of another program, and a holder by a deletion."""
    one, two = manager(site.link("a")), manager(site.link("t"))
    async with one, two:
        lease = await one.lock("r").acquire()
        waiter = asyncio.create_task(two.lock("r", retry=kit.NEVER, ttl=2_000).acquire())
        await asyncio.sleep(SOON)
        freed = now()
        await lease.release()
        later = await waiter
        assert now() < freed + 0.02
        await asyncio.sleep(1)  # an extension has read the keys
        for host, tag in zip("ab", TAGS, strict=False):
            site[host].delete(f"{tag.decode()}r")
        await asyncio.sleep(0.02)
        assert not later.valid


async def test_a_marker_that_is_deleted_is_noticed_at_once(site: FakeSite) -> None:
    async with manager(site.link()) as redlock:
        site["a"].delete("redlock_aio:marker{0001}")
        await asyncio.sleep(0.1)
        assert await voting(redlock) == [False, True, True]


# Who may vote.


async def test_all_masters_of_a_new_set_vote_at_once_however_old_the_servers_are(
    site: FakeSite,
) -> None:
    site["b"].replica_before = True  # it was promoted at some time before this library came
    site["c"].uptime = 5
    async with manager(site.link()) as redlock:
        assert await voting(redlock) == [True] * 3
        assert now() < 1
        again = manager(site.link("s"))
        async with again:
            assert await voting(again) == [True] * 3


async def test_with_a_strict_guard_no_set_is_new(site: FakeSite) -> None:
    async with manager(site.link(), restart_guard="strict") as redlock:
        assert await voting(redlock) == [False] * 3
        await asyncio.sleep(QUARANTINE + SOON)
        assert await voting(redlock) == [True] * 3


async def test_two_masters_vote_after_a_while_if_the_third_never_appears(site: FakeSite) -> None:
    site["c"].kill()
    async with manager(site.link()) as redlock:
        await asyncio.sleep(5)
        assert await voting(redlock) == [False] * 3
        await asyncio.sleep(8 + QUARANTINE)
        assert await voting(redlock) == [True, True, False]


@pytest.mark.parametrize("fault", ["hang", "kill"])
async def test_without_a_majority_of_all_nodes_no_master_votes(site: FakeSite, fault: str) -> None:
    async with manager(site.link()) as redlock:
        for host in "rs":
            getattr(site[host], fault)()
        await asyncio.sleep(10)
        assert await voting(redlock) == [True] * 3
        getattr(site["t"], fault)()
        lost = now()
        await asyncio.sleep(CONFIRMED_FOR - ASK_INTERVAL - 0.1)
        assert all(vote.answer is Answer.GRANTED for vote in await attempt(redlock))
        await asyncio.sleep(lost + CONFIRMED_FOR + 0.01 - now())
        for vote in await attempt(redlock):
            assert vote.answer is Answer.QUARANTINED
            assert "3 of 6 nodes confirm" in vote.detail
            assert ", 4 must: r:7000 (" in vote.detail


async def test_the_owner_alone_can_not_confirm_itself(site: FakeSite) -> None:
    """On its side of a partition it would do so for ever."""
    cluster = site.link()
    async with manager(cluster) as redlock:
        for host in "brst":
            cluster[host].cut()
        await asyncio.sleep(CONFIRMED_FOR + 1)
        votes = await attempt(redlock)
    assert [vote.answer for vote in votes] == [
        Answer.QUARANTINED, Answer.UNREACHABLE, Answer.QUARANTINED,
    ]  # fmt: skip


# Another owner of a slot.


async def test_a_promoted_replica_is_quarantined(site: FakeSite) -> None:
    async with manager(site.link("b")) as redlock, manager(site.link("c")) as newcomer:
        site["a"].kill()
        site.promote("r", 0, told="bcrst")
        failed = now()
        await asyncio.sleep(2)
        # One of the two has marked it, and the other one has read that.
        reasons = {reason(redlock, 0), reason(newcomer, 0)}
        assert any("it was a replica, and may lack locks; it votes" in each for each in reasons)
        assert await voting(newcomer) == [False, True, True]
        async with manager(site.link("s")) as late:  # it has not seen the old one
            assert await voting(late) == [False, True, True]
        await asyncio.sleep(failed + QUARANTINE - 0.1 - now())
        assert await voting(redlock) == [False, True, True]
        await asyncio.sleep(1.5)
        assert await voting(redlock) == [True] * 3


async def test_a_paused_old_primary_gives_no_second_vote(site: FakeSite) -> None:
    """
    It executes what is in its sockets when it wakes, before it learns of its successor.

    The lock is held on the successor and one more master then.
    """
    cluster = site.link("b")
    async with manager(cluster, name="P") as redlock, manager(site.link("c"), name="Q") as other:
        hang([site["a"]])
        site.promote("r", 0, told="bcrst")
        await asyncio.sleep(QUARANTINE + 3)
        cluster["c"].cut()  # P has the old primary and b, or nothing
        lease = await other.lock("r", ttl=1_500).acquire()
        assert [vote.answer for vote in lease.votes] == [Answer.GRANTED] * 3
        asking = asyncio.create_task(kit.refused(redlock, "r", wait=0))
        await asyncio.sleep(0.01)
        resume([site["a"]])
        votes = (await asking).votes
        assert votes[0].answer is not Answer.GRANTED
        assert lease.valid
        await lease.release()


async def test_replies_of_a_replaced_owner_that_were_underway_do_not_count(site: FakeSite) -> None:
    async with manager(site.link("b"), master_timeout=1_000) as redlock:
        await asyncio.sleep(1)
        hang([site["a"]])
        site.promote("r", 0, told="bcrst")
        asked = asyncio.create_task(attempt(redlock))
        await asyncio.sleep(ASK_INTERVAL + 0.1)
        resume([site["a"]])
        assert (await asked)[0].answer is not Answer.GRANTED
        assert "r:7000" not in reason(redlock, 0)


@pytest.mark.parametrize("number", [0, 1])
async def test_there_and_back_again_is_noticed(site: FakeSite, number: int) -> None:
    """The run_id is the same, and so is the marker."""
    old, new = "ab"[number], "rs"[number]
    async with manager(site.link("c")) as redlock:
        marker = site[old]._keys[b"redlock_aio:marker" + TAGS[number]]
        site.promote(new, number)
        site.promote(old, number)
        assert site[old]._keys[b"redlock_aio:marker" + TAGS[number]] == marker
        await asyncio.sleep(2)
        assert "its slot has come from another node" in reason(redlock, number)
        async with manager(site.link("t")) as late:
            assert not (await voting(late))[number]
        await asyncio.sleep(QUARANTINE)
        assert await voting(redlock) == [True] * 3


@pytest.mark.parametrize("marked", [True, False], ids=["with its keys", "without"])
async def test_a_slot_that_another_node_has_got_is_quarantined_there(*, marked: bool) -> None:
    """That node has been running for days, and has never been a replica."""
    site = FakeSite("d")
    async with manager(site.link("b")) as redlock, redlock.lock("held", ttl=1_500):
        site.promote("d", 0, loses=False)
        if not marked:
            site["d"]._keys.clear()
        async with manager(site.link("t")) as late:
            assert await voting(late) == [False, True, True]
        await asyncio.sleep(1)
        assert await voting(redlock) == [False, True, True]
        await asyncio.sleep(QUARANTINE)
        assert await voting(redlock) == [True] * 3


@pytest.mark.parametrize("masters", [1, 3])
async def test_a_new_program_does_not_take_promoted_replicas_for_a_new_set(masters: int) -> None:
    """They were not in sync, so the markers are gone with the locks; nobody is left who knows."""
    site = FakeSite()
    async with manager(site.link("b"), masters=masters) as redlock:
        exported = (await redlock.lock("r", ttl=MAX_TTL).acquire()).export()
    for number, host in enumerate("rst"):
        site.promote(host, number)
        site[host]._keys.clear()
    began = now()
    async with manager(site.link("t"), masters=masters) as late:
        lease = await late.lock("r", wait=10_000, ttl=1_000).acquire()
        assert now() > began + QUARANTINE
        await lease.release()
        with pytest.raises(LockLostError):
            await late.adopt(exported)
        assert await voting(late) == [True] * masters


async def test_another_node_at_the_address_of_the_owner_gets_no_vote(site: FakeSite) -> None:
    """Of another Cluster, where it owns the same slot."""
    cluster = site.link("b")
    other = FakeSite()
    other["a"].known = ["c"]
    other["a"].view = dict.fromkeys(range(3), ("a", 9))
    other["a"].host = "c"
    other["a"].view = dict.fromkeys(range(3), ("c", 9))
    cluster.links["a"] = CutLink(other["a"])
    async with manager(cluster) as redlock:
        await asyncio.sleep(1)
        assert not (await voting(redlock))[0]
        assert "another node answers at the address of a:7000 (epoch 1)" in reason(redlock, 0)


async def test_moved_ends_the_connection_and_asks_all_nodes_at_once(site: FakeSite) -> None:
    async with manager(site.link("b")) as redlock:
        await asyncio.sleep(0.3)
        site.promote("r", 0)
        began, asked = now(), site["t"].asked
        votes = await attempt(redlock)
        assert votes[0].answer is Answer.UNREACHABLE
        assert votes[0].detail.startswith("MOVED ")
        assert not votes[0].permanent
        assert now() < began + SOON + 0.1
        assert site["t"].asked > asked
        assert "may lack locks" in reason(redlock, 0)


async def test_an_owner_that_is_no_owner_any_more_says_so(site: FakeSite) -> None:
    """Its slot moves between the confirmation and its examination."""
    async with manager(site.link("b")) as redlock:
        site.promote("r", 0, told="r")
        site["a"].view[0] = ("r", 7)
        await attempt(redlock)
        await asyncio.sleep(SOON)
        assert reason(redlock, 0).startswith("MOVED ")


async def test_a_release_follows_the_slot(site: FakeSite) -> None:
    async with manager(site.link("b")) as redlock:
        lease = await redlock.lock("r", ttl=2_000).acquire()
        site.promote("r", 0, loses=False)
        assert "{0001}r" in site["r"].keys
        await lease.release()
        await asyncio.sleep(1)
        assert "{0001}r" not in site["r"].keys


@pytest.mark.parametrize("error", ["ASK 2731 t:7000", "TRYAGAIN Multiple keys", "CLUSTERDOWN x"])
async def test_while_a_slot_moves_or_the_cluster_is_down_there_is_no_vote(
    site: FakeSite, error: str
) -> None:
    cluster = site.link("b")
    async with manager(cluster) as redlock:
        dialled = len(cluster.dialled)
        site["a"].error = error
        votes = await attempt(redlock)
        assert votes[0].answer is Answer.ERROR
        assert not votes[0].permanent
        site["a"].error = ""
        assert len(cluster.dialled) == dialled  # ASK is never followed
        assert all(vote.answer is Answer.GRANTED for vote in await attempt(redlock))


@pytest.mark.spread(0)
@pytest.mark.promise("S6")
@pytest.mark.parametrize("seed", ["a", "b"])
async def test_a_program_that_reaches_half_of_the_nodes_takes_no_vote_from_others(
    site: FakeSite, seed: str
) -> None:
    """It is connected to a primary that does not know, and never will, that it was replaced."""
    cluster = site.link(seed)
    async with manager(site.link()) as redlock, manager(cluster) as other:
        await attempt(other)
        for host in "rst":
            cluster[host].cut()
        await asyncio.sleep(CONFIRMED_FOR + 1)
        site.promote("r", 0, told="bcrst")
        await asyncio.sleep(3 * QUARANTINE)
        assert await voting(redlock) == [True] * 3
        assert await voting(other) == [False] * 3
        assert "of 6 nodes confirm" in reason(other, 0)
        for host in "rst":
            cluster[host].mend()
        await asyncio.sleep(5)
        assert await voting(other) == [True] * 3


# Nodes that come and go.


async def test_a_node_that_joins_counts_and_one_that_leaves_does_not(site: FakeSite) -> None:
    async with manager(site.link()) as redlock:
        for node in site.nodes.values():
            node.known.remove("t")  # forgotten by all, itself too: it was reset
        site["t"].known = ["t"]
        await asyncio.sleep(CONFIRMED_FOR + 1)
        hang([site["r"], site["s"]])
        await asyncio.sleep(CONFIRMED_FOR + 1)
        assert await voting(redlock) == [True] * 3  # three of five
        asked = site["t"].asked
        await asyncio.sleep(2)
        assert site["t"].asked == asked
        for host in "abc":
            site[host].known.append("t")
        site["t"].known = list("abcrst")
        kill([site["t"]])
        await asyncio.sleep(CONFIRMED_FOR + 1)
        assert "3 of 6 nodes confirm" in reason(redlock, 1)


async def test_the_list_of_a_node_that_is_away_does_not_count_for_ever(site: FakeSite) -> None:
    async with manager(site.link()) as redlock:
        hang([site["r"], site["s"]])  # they would name t as a member
        for host in "abc":
            site[host].known.remove("t")
        site["t"].known = ["t"]
        await asyncio.sleep(2 * CONFIRMED_FOR)
        assert await voting(redlock) == [True] * 3  # three of five


async def test_a_seed_that_is_away_or_was_removed_does_no_harm(site: FakeSite) -> None:
    kill([site["t"]])
    async with manager(site.link("t", "s")) as redlock:
        assert await voting(redlock) == [True] * 3


async def test_nodes_are_found_again_when_all_were_away(site: FakeSite) -> None:
    async with manager(site.link()) as redlock:
        hang(site.nodes.values())
        await asyncio.sleep(30)
        assert await voting(redlock) == [False] * 3
        resume(site.nodes.values())
        await asyncio.sleep(5)
        assert await voting(redlock) == [True] * 3


def reach(cluster: FakeCluster, other: FakeSite) -> None:
    """Let a program reach the nodes of another Cluster too."""
    cluster.links |= {host: CutLink(node) for host, node in other.nodes.items()}


@pytest.mark.spread(0)
@pytest.mark.parametrize("hosts", ["uvwxyz", "uvwxyzklm"])
async def test_the_address_of_a_node_may_lead_to_another_cluster_for_a_while(
    site: FakeSite, hosts: str
) -> None:
    """As of a pod that was replaced; the others there must not vote, also if they are more."""
    other, cluster = FakeSite(hosts=hosts), site.link()
    reach(cluster, other)
    async with manager(cluster) as redlock, manager(site.link()) as right:
        former = cluster["r"]
        former.cut()
        cluster.links["r"] = CutLink(other[hosts[-1]])
        await asyncio.sleep(5)
        assert await voting(redlock) == [True] * 3
        cluster.links["r"].cut()
        cluster.links["r"] = former
        former.mend()
        await asyncio.sleep(2 * QUARANTINE)
        assert cluster.dialled[-1] not in other.nodes
        async with right.lock("r", ttl=1_000):
            error = await kit.refused(redlock, "r", wait=0)
            assert [vote.answer for vote in error.votes] == [Answer.HELD] * 3


@pytest.mark.spread(0)
@pytest.mark.parametrize("hosts", ["uvw", "uvwxyzklm"])
@pytest.mark.parametrize("starts", ["before", pytest.param("after", marks=pytest.mark.full)])
async def test_a_named_node_that_went_to_another_cluster_costs_those_that_name_it_all_votes(
    site: FakeSite, hosts: str, starts: str
) -> None:
    other, cluster = FakeSite(hosts=hosts), site.link("t", "a")
    reach(cluster, other)
    redlock = manager(cluster)
    async with manager(site.link("a", "b")) as right:
        if starts == "before":
            assert await voting(await redlock.__aenter__()) == [True] * 3
        for node in site.nodes.values():
            node.known.remove("t")
        moved = other.nodes["t"] = FakeNode("t", other)
        moved.role, moved.view = "slave", dict(other[hosts[0]].view)
        for node in other.nodes.values():
            node.known = list(other.nodes)
        site["t"].kill()
        cluster.links["t"] = CutLink(moved)
        if starts == "after":
            await redlock.__aenter__()
        for _ in range(100):
            await asyncio.sleep(QUARANTINE / 20)
            async with right.lock("r", wait=0, ttl=1_000):
                await kit.refused(redlock, "r", wait=0)
        assert not any(await voting(redlock))
        for number in range(3):
            assert reason(redlock, number).endswith(
                "is a node of another Cluster; all addresses that are named must lead to one"
            )
        moved.kill()
        await asyncio.sleep(3 * QUARANTINE)
        assert not any(await voting(redlock)), "nothing has become clear"
        if starts == "before":
            cluster.links["t"] = CutLink(site["s"])
            await asyncio.sleep(SOON + ASK_INTERVAL)
            assert await voting(redlock) == [True] * 3
        await redlock.aclose()


@pytest.mark.spread(0)
@pytest.mark.parametrize("first", ["a", "z"])
@pytest.mark.parametrize(
    "away",
    [
        "a",
        pytest.param("abcrst", marks=pytest.mark.full),
        pytest.param("z", marks=pytest.mark.full),
        "uvwxyz",
    ],
)
async def test_named_nodes_of_two_clusters_give_no_vote_while_some_are_away(
    site: FakeSite, first: str, away: str
) -> None:
    other, cluster = FakeSite(hosts="uvwxyz"), site.link("z", "a")
    reach(cluster, other)
    for node in (site if first == "z" else other).nodes.values():
        node.latency = 0.05
    async with manager(cluster) as redlock, manager(site.link()) as right:
        await asyncio.sleep(CONFIRMED_FOR)
        for host in away:
            cluster[host].cut()
        for _ in range(int(FORGOTTEN_AFTER + 2 * QUARANTINE)):
            await asyncio.sleep(1)
            async with right.lock("r", ttl=1_000):
                error = await kit.refused(redlock, "r", wait=0)
                assert not [vote for vote in error.votes if vote.answer is Answer.GRANTED]


@pytest.mark.spread(0)
@pytest.mark.parametrize("hosts", ["z", "uvwxyz"])
@pytest.mark.parametrize("seeds", ["a", "ab"])
@pytest.mark.parametrize("outage", [3, pytest.param(FORGOTTEN_AFTER + 30, marks=pytest.mark.full)])
async def test_another_cluster_gets_no_vote_while_a_program_can_not_reach_its_own(
    site: FakeSite, hosts: str, seeds: str, outage: float
) -> None:
    other, cluster = FakeSite(hosts="uvwxyz"), site.link(*seeds)
    if hosts == "z":
        other["z"].known, other["z"].view = ["z"], dict.fromkeys(range(3), ("z", 9))
    reach(cluster, other)
    async with manager(cluster) as redlock, manager(site.link()) as right:
        cluster["r"].cut()
        cluster.links["r"] = CutLink(other["z"])
        await asyncio.sleep(5)
        assert await voting(redlock) == [True] * 3
        for host in "abcst":
            cluster[host].cut()
        for _ in range(int(outage)):
            await asyncio.sleep(1)
            async with right.lock("r", ttl=1_000):
                await kit.refused(redlock, "r", wait=0)
        for host in "abcst":
            cluster[host].mend()
        await asyncio.sleep(5)
        assert await voting(redlock) == [True] * 3


@pytest.mark.parametrize("late", ["a", "u"])
async def test_a_named_node_that_is_a_cluster_of_its_own_gives_no_vote(
    site: FakeSite, late: str
) -> None:
    other, cluster = FakeSite(hosts="uvw"), site.link("u", "a")
    other["u"].known, other["u"].view = ["u"], dict.fromkeys(range(3), ("u", 9))
    reach(cluster, other)
    for node in (site if late == "a" else other).nodes.values():
        node.latency = 0.1
    async with manager(cluster) as redlock:
        await asyncio.sleep(2 * QUARANTINE)
        assert not any(await voting(redlock))


async def test_a_cluster_may_grow_from_one_node() -> None:
    site = FakeSite(hosts="abc")
    site["a"].known, site["a"].view = ["a"], dict.fromkeys(range(3), ("a", 1))
    site["b"].known, site["b"].view = ["a", "b"], dict(site["a"].view)
    async with manager(site.link(), masters=1) as redlock:
        assert await voting(redlock) == [True]
        site["a"].known = ["a", "b"]
        for _ in range(50):
            await asyncio.sleep(SOON)
            assert await voting(redlock) == [True]


async def test_a_cluster_may_be_made_after_a_program_has_begun(site: FakeSite) -> None:
    """Its nodes have slots already, and have not met."""
    views = {host: node.view for host, node in site.nodes.items()}
    for host, node in site.nodes.items():
        node.known = [host]
        node.view = {number: owner for number, owner in node.view.items() if owner[0] == host}
    async with manager(site.link()) as redlock:
        await asyncio.sleep(1)
        assert not all(await voting(redlock))
        for host, node in site.nodes.items():
            node.known, node.view = list(site.nodes), views[host]
        await asyncio.sleep(QUARANTINE)
        assert await voting(redlock) == [True] * 3


@pytest.mark.full
async def test_a_cluster_that_was_made_anew_counts_when_the_former_nodes_are_gone(
    site: FakeSite,
) -> None:
    """Those at the addresses that are named, and not of a third one at the address of another."""
    other, third, cluster = FakeSite(hosts="uvwxyz"), FakeSite(hosts="ijklmn"), site.link("a")
    reach(cluster, other)
    reach(cluster, third)
    async with manager(cluster) as redlock:
        assert await voting(redlock) == [True] * 3
        kill(site.nodes.values())
        cluster.links["a"], other["u"].latency = CutLink(other["u"]), 0.1
        cluster.links["r"] = CutLink(third["i"])
        await asyncio.sleep(FORGOTTEN_AFTER - CONFIRMED_FOR - 1)
        assert "a:7000 is a node of another Cluster" in reason(redlock, 0)
        await asyncio.sleep(CONFIRMED_FOR + QUARANTINE + 20)
        assert await voting(redlock) == [True] * 3


async def test_a_node_that_was_removed_may_be_the_first_to_answer(site: FakeSite) -> None:
    for node in site.nodes.values():
        node.known.remove("t")
    site["t"].known, site["t"].view = ["t"], {}
    for host in "ab":
        site[host].latency = 0.1
    async with manager(site.link("t", "a")) as redlock:
        await asyncio.sleep(1)
        assert await voting(redlock) == [True] * 3


async def test_nodes_are_dialled_by_their_names_where_tls_checks_them(site: FakeSite) -> None:
    site.named = True
    cluster = site.link()
    cluster.prefers_names = True
    async with manager(cluster) as redlock:
        assert await voting(redlock) == [True] * 3
    assert {host for host in cluster.dialled if host != "a"} == {f"{h}.example" for h in "abcrst"}


# Masters that share a node, and programs that disagree.


async def test_of_two_tags_on_one_node_one_votes_and_the_error_says_what_to_do(
    site: FakeSite,
) -> None:
    site.promote("a", 1)
    async with manager(site.link()) as redlock:
        await asyncio.sleep(QUARANTINE + 12)
        assert sorted(await voting(redlock)) == [False, True, True]
        [text] = [reason(redlock, number) for number in range(3) if reason(redlock, number)]
    assert "are both on the node a:7000, so only one of them votes" in text
    assert text.endswith(
        "the Cluster has 2 primaries, and masters=3 needs as many; add some, or use masters=1"
    )


async def test_the_error_names_a_primary_without_a_tag(site: FakeSite) -> None:
    async with manager(site.link(), tags=["0001", "8239", "0011"]) as redlock:
        await asyncio.sleep(1)
        [text] = [reason(redlock, n) for n in range(3) if "are both on" in reason(redlock, n)]
    assert " to b:7000, a primary without a master's tag" in text


async def test_programs_with_other_tags_get_no_second_majority(site: FakeSite) -> None:
    """Two tags on one server are two masters: a lock has a key under each."""
    async with manager(site.link()) as redlock, redlock.lock("r", ttl=1_000):
        others = manager(site.link("b"), tags=["0001", "9381", "0011"])
        async with others:
            await asyncio.sleep(1)
            error = await kit.refused(others, "r", wait=0)
            assert isinstance(error, QuorumUnavailableError)
            assert any("were here first" in vote.detail for vote in error.votes)


# Settings.


async def test_full_coverage_is_said_once(site: FakeSite, caplog: pytest.LogCaptureFixture) -> None:
    for node in site.nodes.values():
        node.coverage = b"yes"
    async with manager(site.link()):
        await asyncio.sleep(5)
    assert caplog.text.count("cluster-require-full-coverage is yes, so all masters refuse") == 1


async def test_no_permission_to_read_the_settings_costs_nothing(
    site: FakeSite, caplog: pytest.LogCaptureFixture
) -> None:
    for node in site.nodes.values():
        node.forbid.add("CONFIG")
    async with manager(site.link()) as redlock:
        assert await voting(redlock) == [True] * 3
    assert not [line for line in caplog.records if line.levelno >= logging.WARNING]


async def test_nodes_that_were_never_joined_are_told(site: FakeSite) -> None:
    for host in "abc":
        site[host].known, site[host].view = [host], {}
    async with manager(site.link("a", "b", "c")) as redlock:
        for _ in range(2):
            error = await kit.refused(redlock, "r", wait=0)
            assert "c:7000 (knows no other node)" in str(error)
            assert "not asked yet" not in str(error)
            await asyncio.sleep(3)
        for host in "abc":
            site[host].known = list("abc")
            site[host].view = {number: (owner, 1) for number, owner in enumerate("abc")}
        await asyncio.sleep(QUARANTINE + 20)
        assert await voting(redlock) == [True] * 3


async def test_a_forbidden_marker_is_named_with_its_tag(site: FakeSite) -> None:
    for node in site.nodes.values():
        node.forbid.add("GETRANGE")
    async with manager(site.link()) as redlock:
        error = await kit.refused(redlock, "r")
        assert "must GETRANGE and SET the key redlock_aio:marker{0001}, or be off" in str(error)


class Plain(FakeMaster):
    """A server that is no node of a Cluster."""

    def _do_cluster(self, _verb: bytes) -> object:
        raise Error("ERR This instance has cluster support disabled")


async def test_a_server_that_is_no_node_ends_the_wait(site: FakeSite) -> None:
    site.nodes["a"] = Plain("a")  # type: ignore[assignment]
    async with manager(site.link()) as redlock:
        error = await kit.refused(redlock, "r")
        assert all(vote.permanent for vote in error.votes)
        assert "no node of a Redis Cluster (cluster_enabled is 0)" in str(error)


async def test_a_cluster_of_one_master(site: FakeSite) -> None:
    async with manager(site.link(), masters=1) as redlock:
        async with redlock.lock("r", retry=Retry(min_delay=5, max_delay=10)):
            assert "{8209}r" in site["b"].keys
        site.promote("s", 0, told="")
    assert "1 masters" in repr(redlock)
