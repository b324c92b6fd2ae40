"""
The primaries of a real Redis Cluster as masters: whatever happens to it, no lock has two holders.

Most tests use one master, so that each wrong vote gives a second holder.
"""

import asyncio
import contextlib
import re
import statistics
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
from evidence.clusters import Cluster, slot_of

from redlock_aio import (
    Answer,
    LockNotAcquiredError,
    QuorumUnavailableError,
    Redlock,
    Vote,
)
from redlock_aio._protocol.confirmation import CONFIRMED_FOR
from redlock_aio._protocol.tags import default_tags
from redlock_aio._rules import timing

from .clusters import cluster
from .helpers import TIMEOUT, until, up
from .holders import QUICK_RETRY, competing, now

MAX_TTL = 1_000
QUARANTINE = timing.forgetting(MAX_TTL, factor=timing.DRIFT_FACTOR) + CONFIRMED_FOR
"""Seconds for which a new owner has no vote."""

LATE = 8.0
"""Seconds by which it may vote later on a busy machine; uptimes are whole seconds besides."""

(ONLY,) = (tag.decode() for tag in default_tags(1))
SLOT = slot_of(ONLY)
TAGS = [tag.decode() for tag in default_tags(3)]

pytestmark = [pytest.mark.integration, pytest.mark.promise("S1")]


@pytest.fixture(scope="module")
def nodes(kind: str) -> Iterator[Cluster]:
    with cluster(kind) as made:
        yield made


@pytest.fixture
def site(nodes: Cluster) -> Iterator[Cluster]:
    """Return the cluster, with all nodes running, in agreement and in sync."""

    def repair() -> None:
        for node in nodes.nodes:
            node.resume()
            node.start()
        nodes.wait_until(nodes.is_up, "it is up")

    repair()
    yield nodes
    repair()


@contextlib.asynccontextmanager
async def program(site: Cluster, masters: int = 1, **options: Any) -> AsyncIterator[Redlock]:
    """Open a manager, all of whose masters vote. Locks of other numbers of masters are others."""
    settings: dict[str, Any] = {
        "max_ttl": MAX_TTL,
        "master_timeout": TIMEOUT,
        "key_prefix": f"{masters}:",
    }
    settings |= options
    async with Redlock.of_cluster(site.url, masters=masters, **settings) as redlock:
        await until(lambda: votes(redlock) == [True] * masters, within=60, what="all vote")
        yield redlock


def votes(redlock: Redlock) -> list[bool]:
    return [master.votes for master in redlock.statistics().masters]


def reasons(redlock: Redlock) -> list[str]:
    return [master.reason for master in redlock.statistics().masters]


async def attempt(redlock: Redlock, name: str = "probe") -> tuple[Vote, ...]:
    """Return the votes on one attempt; a lock that is granted is released."""
    try:
        async with redlock.lock(name, wait=0, ttl=MAX_TTL) as lease:
            return lease.votes
    except LockNotAcquiredError as error:
        return error.votes


async def told(work: Callable[..., Any], *arguments: Any) -> Any:
    """Let the operator work in a thread, while programs go on."""
    return await asyncio.to_thread(work, *arguments)


async def voted_again(redlock: Redlock, since: float) -> None:
    """Wait until the only master votes; fail if that is too early or too late after *since*."""
    async with redlock.lock("late", ttl=MAX_TTL, wait=60_000, retry=QUICK_RETRY):
        late = now()
    assert late > since + QUARANTINE
    assert late < since + QUARANTINE + LATE


# What works.


async def test_all_kinds_of_locks_work(site: Cluster) -> None:
    async with program(site, 3, fencing=True) as one, program(site, 3, fencing=True) as other:
        tokens = []
        for redlock, fair in ((one, False), (other, True), (one, True)):
            async with redlock.lock("r", ttl=MAX_TTL, fair=fair) as lease:
                tokens.append(lease.fencing_token)
                assert await other.is_locked("r")
                assert await redlock.lock("r", wait=0).try_acquire() is None
        assert tokens == sorted({*tokens})
        async with one.rw_lock("doc").read(), other.rw_lock("doc").read():
            # Another task: one that reads itself gets an error.
            attempted = asyncio.create_task(one.lock("doc", wait=0).try_acquire())
            assert await attempted is None
            assert len((await other.inspect("doc")).readers) == 2
        async with one.semaphore("api", permits=2), other.semaphore("api", permits=2):
            assert await other.semaphore("api", permits=2, wait=0).try_acquire() is None
        async with one.lock("a", "b", ttl=MAX_TTL):
            states = {state.resource for state in (await other.find_locks()).states}
            assert states == {"a", "b"}


async def test_the_keys_of_each_master_are_at_its_node_with_its_tag(site: Cluster) -> None:
    async with program(site, 3) as redlock, redlock.lock("r", ttl=MAX_TTL) as lease:
        await until(lambda: up(redlock) == 3)
        for tag in TAGS:
            owner = site.owner(slot_of(tag))
            await until(lambda owner=owner, tag=tag: owner.call("GET", f"{tag}3:r") == lease.token)  # type: ignore[misc]


async def test_a_forced_release_ends_the_lease(site: Cluster) -> None:
    async with program(site, 3) as one, program(site, 3) as other:
        lease = await one.lock("r", ttl=MAX_TTL, on_lost="flag").acquire()
        assert await other.force_release("r")
        await asyncio.wait_for(lease.lost.wait(), 10)
        async with other.lock("r", ttl=MAX_TTL, wait=10_000):
            pass


async def test_a_waiter_is_woken_by_a_release(site: Cluster) -> None:
    async with program(site, 3) as one, program(site, 3) as other:
        for fair in (False, True):
            lease = await one.lock("r", ttl=MAX_TTL, fair=fair).acquire()
            waiter = asyncio.create_task(other.lock("r", fair=fair, wait=20_000).acquire())
            await asyncio.sleep(0.3)
            await lease.release()
            await (await asyncio.wait_for(waiter, 10)).release()


HAND_OVERS = 10
"""How often a permit goes from one program to the other, for each count of messages."""


def messages(site: Cluster, which: str) -> Counter[str]:
    """Return how many messages all nodes have sent or received, by kind, as they count them."""
    total = Counter[str]()
    for node in site.running:
        found = re.findall(rf"messages_(\w+)_{which}:(\d+)", node.call("CLUSTER", "INFO"))
        total.update({name: int(number) for name, number in found if name.startswith("publish")})
    return total


async def hand_over(one: Redlock, other: Redlock) -> float:
    """Give the permit of one program to the other; return the seconds for it."""
    # Only a message tells of a permit for which the other one does not wait.
    async with one.semaphore("api", permits=2), contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(one.semaphore("api", permits=2))
        waiter = asyncio.create_task(other.semaphore("api", permits=2, wait=20_000).acquire())
        await asyncio.sleep(0.3)
        began = now()
        await stack.aclose()
        lease = await asyncio.wait_for(waiter, 10)
        took = now() - began
        await lease.release()
        return took


@pytest.fixture(params=[True, False], ids=["SPUBLISH", "PUBLISH"])
def wakes(request: pytest.FixtureRequest, kind: str) -> Iterator[tuple[Cluster, bool]]:
    """Run a cluster whose servers know SPUBLISH, or do not, as before Redis 7.0."""
    lacks = ("SPUBLISH", "SSUBSCRIBE", "SUNSUBSCRIBE")
    older = [word for name in lacks for word in ("--rename-command", name, "")]
    with cluster(kind, options=() if request.param else older) as made:
        yield made, request.param


@pytest.mark.spread(0)
@pytest.mark.promise("S9")
async def test_a_wake_up_reaches_the_other_nodes_only_where_spublish_is_missing(
    wakes: tuple[Cluster, bool],
) -> None:
    site, sharded = wakes
    async with program(site, 3) as one, program(site, 3) as other:
        await hand_over(one, other)  # it stays subscribed for a second
        took, sent = [], [messages(site, "sent")]
        for _ in range(HAND_OVERS):
            took.append(await hand_over(one, other))
            sent.append(messages(site, "sent"))
        tag = TAGS[0]
        kind = "SHARDCHANNELS" if sharded else "CHANNELS"
        channels = site.owner(slot_of(tag)).call("PUBSUB", kind, f"redlock_aio:wake:{tag}*")
        assert len(channels) == 1
        await until(lambda: messages(site, "received") == messages(site, "sent"), within=60)
    # A heartbeat comes a second after the waiter at the earliest.
    assert statistics.median(took) < 0.5
    # Each of three masters wakes the waiter: by a message to its replica, or to the five other
    # nodes. One that has got its majority may not wait any more where the last one is freed. If
    # the machine stands still for a moment, a master may wake it twice.
    most, name = (3, "publishshard") if sharded else (15, "publish")
    made = statistics.median(after[name] - before[name] for before, after in pairwise(sent))
    assert most / 2 < made <= most, sent
    assert set(+messages(site, "sent")) == {name}


# Owners that change.


@pytest.fixture
def fresh(kind: str) -> Iterator[Cluster]:
    """Run another cluster: on the shared one, markers would tell of a longer ttl from now on."""
    with cluster(kind) as made:
        yield made


@pytest.mark.full
async def test_a_failover_that_loses_a_grant_has_one_holder(fresh: Cluster) -> None:
    """The replica was away when the lock was granted, and is promoted while the lease is valid."""
    site, long = fresh, 10_000
    async with program(site, max_ttl=long) as one, program(site, max_ttl=long) as other:
        old = site.owner(SLOT)
        new = site.replica(old)
        new.kill()
        lock = one.lock("r", ttl=long, auto_extend=False, on_lost="flag")
        lease = await lock.acquire()
        old.kill()
        new.start()
        assert await told(site.wait_for_promotion, old, SLOT) is new
        assert lease.valid
        assert new.call("DBSIZE") == 0
        refused: list[Answer] = []
        while (lease_of_other := await other.lock("r", ttl=1_000, wait=0).try_acquire()) is None:
            refused += [vote.answer for vote in await attempt(other)]
            await asyncio.sleep(0.05)
        assert not lease.valid
        assert Answer.QUARANTINED in refused
        await lease_of_other.release()


@pytest.mark.full
async def test_a_failover_that_loses_the_marker_too_makes_no_new_set(fresh: Cluster) -> None:
    """Nobody who saw the old owner is left when a new program comes."""
    site, long = fresh, 20_000
    async with program(site, max_ttl=long) as one:
        assert (await one.lock("r", ttl=long).acquire()).export()  # it is valid until the end
    old = site.owner(SLOT)
    site.lose(old)
    old.kill()
    new = await told(site.wait_for_promotion, old, SLOT)
    assert new.call("DBSIZE") == 0
    settings: dict[str, Any] = {"max_ttl": long, "key_prefix": "1:", "master_timeout": TIMEOUT}
    async with Redlock.of_cluster(new.url, masters=1, **settings) as late:
        assert await late.lock("r", ttl=1_000, wait=3_000).try_acquire() is None
        assert "may have forgotten locks" in reasons(late)[0]


async def test_a_killed_primary_is_replaced(site: Cluster) -> None:
    async with (
        program(site) as one,
        program(site) as other,
        competing({"a": one, "b": other}) as holders,
    ):
        await asyncio.sleep(0.5)
        old = site.owner(SLOT)
        killed = now()
        old.kill()
        assert await told(site.wait_for_promotion, old, SLOT) is not old
        promoted = now()
        await voted_again(one, killed)
        await until(lambda: holders.count("a", promoted) + holders.count("b", promoted) > 3, 60)


@pytest.mark.full
async def test_a_paused_primary_does_not_vote_when_it_wakes(site: Cluster) -> None:
    """Its successor has been quarantined, and votes. Requests lie in the sockets of the old one."""
    async with program(site) as one, program(site) as other:
        async with competing({"a": one, "b": other}) as holders:
            await asyncio.sleep(0.3)
            old = site.owner(SLOT)
            paused = now()
            old.pause()
            await told(site.wait_for_promotion, old, SLOT)
            await voted_again(one, paused)
            old.resume()
            await asyncio.sleep(2)
        assert holders.count("a", paused) + holders.count("b", paused) > 0


async def test_there_and_back_again_is_a_new_owner(site: Cluster) -> None:
    """The server, its run_id, its marker and the connections to it are as before."""
    async with program(site) as one, program(site) as other:
        async with competing({"a": one, "b": other}):
            await asyncio.sleep(0.3)
            first = site.owner(SLOT)
            run_id = first.facts("server")["run_id"]
            began = now()
            second = await told(site.fail_over, first, "TAKEOVER")
            await told(site.wait_until, site.is_up, "it is up")
            assert await told(site.fail_over, second, "TAKEOVER") is first
            assert first.facts("server")["run_id"] == run_id
            back = now()
            await until(lambda: not any(votes(one) + votes(other)), within=10)
            await voted_again(one, back - 1)
        assert back - began < QUARANTINE + LATE


@pytest.mark.full
@pytest.mark.parametrize("how", ["", "FORCE", "TAKEOVER"])
async def test_a_planned_failover_costs_the_quarantine(site: Cluster, how: str) -> None:
    async with program(site) as one, program(site) as other:
        async with competing({"a": one, "b": other}):
            await asyncio.sleep(0.3)
            began = now()
            await told(site.fail_over, site.owner(SLOT), how)
            switched = now()
            async with one.lock("late", ttl=MAX_TTL, wait=60_000, retry=QUICK_RETRY):
                late = now()
        assert began + QUARANTINE < late < switched + QUARANTINE + LATE


@pytest.mark.spread(0)
@pytest.mark.parametrize("how", ["move", "take"])
async def test_a_slot_that_moves_has_a_new_owner(site: Cluster, how: str) -> None:
    """With its keys, as in a reshard, or without: in both cases the new owner is quarantined."""
    async with program(site) as one, program(site) as other:
        old = site.owner(SLOT)
        new = next(node for node in site.running if node.is_primary and node is not old)
        try:
            async with competing({"a": one, "b": other}):
                await asyncio.sleep(0.3)
                began = now()
                await told(getattr(site, how), SLOT, new)
                assert site.owner(SLOT) is new
                await until(lambda: not any(votes(one) + votes(other)), within=10)
                await voted_again(one, began)
        finally:
            await told(site.move, SLOT, old)


async def test_a_slot_that_is_on_its_way_has_no_vote(site: Cluster) -> None:
    """ASK and TRYAGAIN are no votes, and nothing is asked of the other node."""
    async with program(site) as redlock:
        old = site.owner(SLOT)
        new = next(node for node in site.running if node.is_primary and node is not old)
        site.begin_move(SLOT, new)
        try:
            (vote,) = await attempt(redlock)
            assert vote.answer is Answer.ERROR
            assert "ASK" in vote.detail
            assert new.call("CLUSTER", "COUNTKEYSINSLOT", SLOT) == 0
        finally:
            for node in (old, new):
                node.call("CLUSTER", "SETSLOT", SLOT, "STABLE")
        await until(lambda: votes(redlock) == [True], within=20)
        assert (await attempt(redlock))[0].answer is Answer.GRANTED


@pytest.mark.full
async def test_nodes_that_come_and_go_cost_no_vote(site: Cluster) -> None:
    async with program(site, 3) as redlock:
        lost: list[list[str]] = []

        async def watch() -> None:
            while True:
                lost.extend([reasons(redlock)] if votes(redlock) != [True] * 3 else [])
                await asyncio.sleep(0.02)

        watcher = asyncio.create_task(watch())
        added = await told(site.add)
        await asyncio.sleep(CONFIRMED_FOR)
        await told(site.forget, added)
        await asyncio.sleep(CONFIRMED_FOR)
        watcher.cancel()
        await asyncio.wait([watcher])
        site.nodes.remove(added)
        added.stop()
        assert not lost


# Availability.


@pytest.mark.full
@pytest.mark.parametrize("required", ["no", "yes"])
async def test_full_coverage_decides_whether_others_stop(
    site: Cluster, required: str, caplog: pytest.LogCaptureFixture
) -> None:
    """With "yes" nobody gets a lock from the failure of one until its replica is promoted."""
    site.require_full_coverage(required)
    try:
        async with program(site, 3) as redlock:
            assert ("cluster-require-full-coverage is yes" in caplog.text) == (required == "yes")
            old = site.owner(slot_of(TAGS[0]))
            old.pause()
            promotion = asyncio.create_task(
                asyncio.to_thread(site.wait_for_promotion, old, slot_of(TAGS[0]))
            )
            # One after the other they could miss the moment: on a busy machine an attempt may last
            # until the promotion.
            attempts: list[asyncio.Task[tuple[Vote, ...]]] = []
            while not promotion.done():
                name = f"probe:{len(attempts)}"
                attempts.append(asyncio.create_task(attempt(redlock, name)))
                await asyncio.sleep(0.02)
            await promotion
            found = await asyncio.gather(*attempts)
        refused = [votes for votes in found if any("CLUSTERDOWN" in vote.detail for vote in votes)]
        granted = [
            votes for votes in found if sum(vote.answer is Answer.GRANTED for vote in votes) >= 2
        ]
        assert granted
        assert bool(refused) == (required == "yes")
    finally:
        site.require_full_coverage("no")


@pytest.mark.full
async def test_a_master_whose_failover_is_underway_costs_the_others_nothing(site: Cluster) -> None:
    """The gap between two leases, with one of three primaries paused and replaced."""
    async with program(site, 3) as redlock:
        old = site.owner(slot_of(TAGS[1]))
        old.pause()
        promotion = asyncio.create_task(
            asyncio.to_thread(site.wait_for_promotion, old, slot_of(TAGS[1]))
        )
        longest, last = 0.0, now()
        while not promotion.done():
            async with redlock.lock("r", ttl=MAX_TTL, wait=20_000):
                longest, last = max(longest, now() - last), now()
        await promotion
        assert longest < TIMEOUT / 1000 + 1


# Tags, and numbers of masters.


@pytest.mark.full
async def test_two_tags_on_one_node_have_one_vote(site: Cluster) -> None:
    """The error names a primary that has no tag."""
    first, second = (slot_of(tag) for tag in TAGS[:2])
    home = site.owner(second)
    async with program(site, 3) as redlock:
        await told(site.move, second, site.owner(first))
        try:
            await until(lambda: "so only one of them votes" in str(reasons(redlock)), within=30)
            text = next(reason for reason in reasons(redlock) if "only one of them" in reason)
            assert f"move slot {second} to 127.0.0.1:{home.port}" in text or (
                f"move slot {first} to 127.0.0.1:{home.port}" in text
            )
            await until(lambda: votes(redlock).count(True) == 2, within=QUARANTINE + LATE)
            async with redlock.lock("r", ttl=MAX_TTL, wait=20_000):
                pass
        finally:
            await told(site.move, second, home)
        await until(lambda: votes(redlock) == [True] * 3, within=60)


async def test_fewer_primaries_than_masters_are_told(site: Cluster) -> None:
    async with Redlock.of_cluster(
        site.url, masters=5, max_ttl=MAX_TTL, master_timeout=TIMEOUT
    ) as redlock:
        await until(lambda: "use masters=3" in str(reasons(redlock)), within=30)
        assert "the Cluster has 3 primaries" in str(reasons(redlock))


@pytest.mark.parametrize("masters", [2, 4])
def test_an_even_number_of_masters_is_refused(masters: int) -> None:
    with pytest.raises(ValueError, match="odd"):
        Redlock.of_cluster("redis://127.0.0.1", masters=masters)


async def test_a_server_without_a_cluster_is_told(kind: str) -> None:
    from .servers import process

    with process(kind) as server:
        async with Redlock.of_cluster(server.url, masters=3, master_timeout=TIMEOUT) as redlock:
            with pytest.raises(QuorumUnavailableError, match="no node of a Redis Cluster"):
                await redlock.lock("r", wait=20_000).acquire()
