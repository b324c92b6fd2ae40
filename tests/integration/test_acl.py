"""The fewest permissions with which each feature works, found by leaving one out at a time."""

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from evidence.clusters import Cluster

from redlock_aio import (
    Answer,
    Lease,
    Lock,
    LockNotAcquiredError,
    QuorumUnavailableError,
    ReadWriteLock,
    Redlock,
    requirements,
)
from redlock_aio.testing import EmbeddedMaster

from .clusters import cluster
from .features import (
    COUNTERS,
    ENOUGH,
    FAIR,
    GUARD,
    LONG,
    NEEDED,
    OWN,
    SHORT,
    WISHED,
    Works,
    allowed,
    as_dict,
    check_refused,
    fair_works,
    fenced_works,
    works,
)
from .helpers import TIMEOUT, call, gone, listens, put, until, up, waiting
from .servers import process

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def server(kind: str) -> Iterator[EmbeddedMaster]:
    with process(kind) as master:
        yield master


@pytest.mark.promise("S10")
@pytest.mark.parametrize(
    ("commands", "own", "features"),
    [
        pytest.param(*ENOUGH[0], id="plain"),
        pytest.param(*ENOUGH[1], id="fencing"),
        pytest.param(*ENOUGH[2], id="fair and fencing", marks=pytest.mark.full),
    ],
)
async def test_these_permissions_are_enough(
    server: EmbeddedMaster,
    caplog: pytest.LogCaptureFixture,
    commands: tuple[str, ...],
    own: tuple[str, ...],
    features: tuple[Works, ...],
) -> None:
    with allowed(server, *commands, own=own) as url, caplog.at_level(logging.INFO):
        for feature in features:
            assert await feature(url, server, LONG)
        assert not caplog.text
        check_refused(server)


async def test_with_these_permissions_the_server_logs_no_refusal(server: EmbeddedMaster) -> None:
    tried = []
    for name in ("client|setname", "client|setinfo", "delifeq"):
        with contextlib.suppress(redis.ResponseError):  # the server does not know it
            call(server, "ACL", "SETUSER", "another", f"+{name}")
            tried.append(name)
    with allowed(server, *NEEDED, *tried) as url:
        assert await works(url, server, LONG)
        assert call(server, "ACL", "LOG") == []
    for missing in tried:
        with allowed(server, *NEEDED, *(name for name in tried if name != missing)) as url:
            assert await works(url, server, LONG)
            log = [as_dict(entry)["object"] for entry in call(server, "ACL", "LOG")]
            assert log == [missing]


@pytest.mark.full
@pytest.mark.parametrize("missing", [*sorted(set(NEEDED) - set(WISHED)), *GUARD])
async def test_each_of_these_permissions_is_needed(server: EmbeddedMaster, missing: str) -> None:
    own = tuple(pattern for pattern in GUARD if pattern != missing)
    with allowed(server, *(command for command in NEEDED if command != missing), own=own) as url:
        assert not await works(url, server)


@pytest.mark.full
@pytest.mark.parametrize("missing", [*FAIR, *OWN])
async def test_each_of_these_is_needed_for_fair(server: EmbeddedMaster, missing: str) -> None:
    commands = [command for command in (*NEEDED, *FAIR) if command != missing]
    own = tuple(pattern for pattern in OWN if pattern != missing)
    with allowed(server, *commands, own=own) as url:
        assert not await fair_works(url, server)


async def test_the_counters_are_needed_for_fencing(server: EmbeddedMaster) -> None:
    with allowed(server, *NEEDED) as url:
        assert not await fenced_works(url, server)


@pytest.mark.parametrize("missing", ["", *WISHED])
async def test_a_waiter_that_may_not_be_notified_tries_again(
    server: EmbeddedMaster, missing: str
) -> None:
    with allowed(server, *(command for command in NEEDED if command != missing)) as url:
        assert await works(url, server, LONG)
        put([server], "app:r", 60_000)
        async with Redlock([url], master_timeout=TIMEOUT) as redlock:
            async with waiting(redlock, "app:r") as waiter:
                await until(lambda: listens(redlock, "app:r"))
                call(server, "DEL", "app:r")
                await asyncio.wait([waiter], timeout=SHORT if missing else LONG)
                assert waiter.done() is not bool(missing)
            put([server], "app:r", 200)
            async with redlock.lock("app:r", wait=5_000):
                pass


@pytest.mark.promise("S10")
async def test_without_the_queues_a_lock_can_be_seen_and_not_forced(server: EmbeddedMaster) -> None:
    with allowed(server, *NEEDED) as url:
        put([server], "app:r", 60_000)
        async with Redlock([url], master_timeout=TIMEOUT) as redlock:
            assert await redlock.is_locked("app:r")
            state = await redlock.inspect("app:r")
            assert state.views[0].answer is Answer.ERROR
            assert state.views[0].detail.startswith("NOPERM")
            with pytest.raises(QuorumUnavailableError, match="NOPERM"):
                await redlock.force_release("app:r")
            assert await redlock.is_locked("app:r")


@pytest.mark.parametrize("may_scan", [True, False])
async def test_locks_are_listed_with_the_permission_to_scan(
    server: EmbeddedMaster, may_scan: bool
) -> None:
    more = ("scan",) if may_scan else ()
    with allowed(server, *NEEDED, *FAIR, *more, own=OWN) as url:
        put([server], "app:r", 60_000)
        async with Redlock([url], master_timeout=TIMEOUT, key_prefix="app:") as redlock:
            found = await redlock.find_locks()
        assert [state.resource for state in found.states] == (["r"] if may_scan else [])
        assert found.complete is may_scan
        assert may_scan or "scan" in found.votes[0].detail


SHARED = tuple(
    command
    for command in requirements.permissions(shared=True).commands
    if command not in (*NEEDED, *FAIR)
)
"""Commands that ``shared=True`` needs besides those of ``fair=True``."""


@pytest.mark.parametrize("missing", ["", *SHARED])
async def test_readers_need_these_permissions_besides(server: EmbeddedMaster, missing: str) -> None:
    """Without one they do not get the lock; a writer works all the same."""
    more = tuple(command for command in SHARED if command != missing)
    with allowed(server, *NEEDED, *FAIR, *more, own=OWN) as url:
        async with Redlock([url], master_timeout=TIMEOUT) as redlock:
            docs = redlock.rw_lock("app:r", ttl=1_000, wait=300)
            reader = await read_twice(docs)
            assert reader is not bool(missing)
            if not missing:
                check_refused(server)
            async with docs.write(fencing=True, wait=5_000):
                pass


async def test_what_others_read_is_released_by_force_without_the_permission_of_readers(
    server: EmbeddedMaster,
) -> None:
    with allowed(server, *NEEDED, *FAIR, own=OWN) as url:
        async with (
            Redlock(server.url, master_timeout=TIMEOUT) as readers,
            Redlock([url], master_timeout=TIMEOUT) as operator,
        ):
            lock = readers.lock("app:r", ttl=30_000, on_lost="flag", shared=True)
            leases = [await asyncio.create_task(lock.acquire()) for _ in range(2)]
            state = await operator.inspect("app:r")
            assert len(state.readers) == 2
            assert await operator.force_release("app:r")
            assert all(lease.lost.is_set() for lease in leases)
            async with operator.lock("app:r", wait=5_000):
                pass


SEMAPHORES = tuple(
    command
    for command in requirements.permissions(semaphores=True).commands
    if command not in (*NEEDED, *FAIR)
)
"""Commands that semaphores need besides those of ``fair=True``."""


@pytest.mark.promise("S10")
@pytest.mark.parametrize("missing", ["", *SEMAPHORES])
async def test_semaphores_need_these_permissions_besides(
    server: EmbeddedMaster, missing: str
) -> None:
    more = tuple(command for command in SEMAPHORES if command != missing)
    with allowed(server, *NEEDED, *FAIR, *more, own=OWN) as url:
        assert await permits_work(url) is not bool(missing)
        if not missing:
            check_refused(server)


async def test_a_semaphore_is_inspected_with_the_permissions_of_a_lock(
    server: EmbeddedMaster,
) -> None:
    with allowed(server, *NEEDED, *FAIR, "scan", own=OWN) as url:
        async with (
            Redlock(server.url, master_timeout=TIMEOUT) as holders,
            Redlock([url], master_timeout=TIMEOUT) as operator,
            holders.semaphore("app:r", permits=3) as lease,
        ):
            semaphore = operator.semaphore("app:r", permits=3)
            assert [*(await semaphore.inspect()).holders] == [lease.permit]
            assert dict((await operator.find_locks("app:")).semaphores) == {"app:r": 1}
        check_refused(server)


async def permits_work(url: str) -> bool:
    """Hold all permits, wait for them, be handed them over; return whether it worked."""
    waiters: list[asyncio.Task[Lease]] = []
    async with (
        Redlock([url], master_timeout=TIMEOUT) as redlock,
        Redlock([url], master_timeout=TIMEOUT) as other,
    ):
        options: dict[str, Any] = {"permits": 2, "ttl": 5_000, "fencing": True}
        semaphore = redlock.semaphore("app:r", wait=2_000, **options)
        waits = other.semaphore("app:r", wait=5_000, **options)
        try:
            async with semaphore as first, semaphore:
                waiters += [asyncio.create_task(waits.acquire()) for _ in range(2)]
                await until(lambda: other.statistics().waiters == 2, within=LONG)
                await first.extend()
                with pytest.raises(LockNotAcquiredError) as missed:
                    await redlock.semaphore("app:r", wait=0, **options).acquire()
            for waiter in waiters:
                await (await waiter).release()
            return not isinstance(missed.value, QuorumUnavailableError)
        except (QuorumUnavailableError, AssertionError):
            return False
        finally:
            for waiter in waiters:
                waiter.cancel()
            await asyncio.gather(*waiters, return_exceptions=True)


async def read_twice(docs: ReadWriteLock[Lock]) -> bool:
    """Read and extend, beside another reader; return false if there is no permission to read."""
    try:
        async with docs.read() as lease:
            other = await asyncio.create_task(docs.read().acquire())
            await other.release()
            await lease.extend()
    except QuorumUnavailableError:
        return False
    return True


@pytest.mark.promise("S10")
@pytest.mark.parametrize(
    ("options", "more", "own"),
    [({}, (), GUARD), ({"fencing": True}, (), (*GUARD, *COUNTERS)), ({"fair": True}, FAIR, OWN)],
    ids=["plain", "fencing", "fair"],
)
async def test_a_lease_is_handed_over_with_no_more_than_that(
    server: EmbeddedMaster, options: Any, more: tuple[str, ...], own: tuple[str, ...]
) -> None:
    with allowed(server, *NEEDED, *more, own=own) as url:
        async with Redlock([url], master_timeout=TIMEOUT) as redlock:
            lease = await redlock.lock("app:r", **options).acquire()
            async with await redlock.adopt(lease.export()):
                pass
        assert gone([server], "app:r")
        check_refused(server)


@pytest.mark.promise("S3")
async def test_the_command_for_releases_can_be_withdrawn_at_run_time(
    server: EmbeddedMaster,
) -> None:
    """The first release is refused and continues with the script; no key is left."""
    with allowed(server, *NEEDED) as url:
        try:
            call(server, "ACL", "SETUSER", "app", "+delifeq")
        except redis.ResponseError:
            pytest.skip("this server has no DELIFEQ")
        async with Redlock([url], master_timeout=5_000) as redlock:
            leases = [await redlock.lock(f"app:{i}", ttl=60_000).acquire() for i in range(3)]
            await leases[0].release()
            call(server, "ACL", "SETUSER", "app", "-delifeq")
            for number in (1, 2):
                await leases[number].release()
                assert gone([server], f"app:{number}")
            refused = [as_dict(entry) for entry in call(server, "ACL", "LOG")]
            tried = [entry["count"] for entry in refused if entry["object"] == "delifeq"]
            assert tried == ["1"]


@pytest.mark.promise("S10")
@pytest.mark.parametrize(
    ("missing", "name", "expected"),
    [
        ("info", "app:r", "'info'"),
        ("", "theirs:r", "NOPERM"),
        ("time", "app:r", r'redlock_aio:masters:app:.*restart_guard="off".*NOPERM'),
        (GUARD[0], "app:r", r'redlock_aio:marker.*restart_guard="off".*NOPERM'),
        (GUARD[1], "app:r", r'redlock_aio:masters:app:.*restart_guard="off".*NOPERM'),
    ],
)
async def test_the_vote_names_the_missing_permission(
    server: EmbeddedMaster, missing: str, name: str, expected: str
) -> None:
    commands = [command for command in NEEDED if command != missing]
    own = tuple(pattern for pattern in GUARD if pattern != missing)
    prefix, _, name = name.rpartition(":")
    with allowed(server, *commands, own=own) as url:
        async with Redlock([url], master_timeout=TIMEOUT, key_prefix=f"{prefix}:") as redlock:
            with pytest.raises(QuorumUnavailableError, match=expected) as refused:
                await redlock.lock(name, wait=0).acquire()
            assert "NOPERM NOPERM" not in str(refused.value)
        if "masters:" in expected:
            assert [vote.permanent for vote in refused.value.votes] == [True]


@pytest.mark.promise("S9")
async def test_a_wait_ends_at_once_if_a_script_lacks_a_permission(server: EmbeddedMaster) -> None:
    """Redis 7.0 does not say which one, and does not begin the error with NOPERM."""
    commands = [*NEEDED, *(command for command in FAIR if command != "zrange")]
    with allowed(server, *commands, own=OWN) as url:
        async with Redlock([url], master_timeout=TIMEOUT, key_prefix="app:") as redlock:
            async with asyncio.timeout(5):
                with pytest.raises(QuorumUnavailableError) as refused:
                    await redlock.lock("r", fair=True).acquire()
    assert [vote.permanent for vote in refused.value.votes] == [True]


@pytest.mark.promise("S3")
async def test_releases_that_are_forbidden_are_told_once(
    server: EmbeddedMaster, caplog: pytest.LogCaptureFixture
) -> None:
    """Everything else works, and each name is held for all of its ttl."""
    commands = [command for command in NEEDED if command != "del"]
    with allowed(server, *commands, own=GUARD) as url:
        async with Redlock([url], master_timeout=TIMEOUT, key_prefix="app:") as redlock:
            for name in "abc":
                async with redlock.lock(name, ttl=1_000, auto_extend=False):
                    await asyncio.sleep(0.3)
                await asyncio.sleep(1)  # the key has expired, and its release finds none
            await until(lambda: redlock.statistics().masters[0].debts == 0)
    told = [text for text in caplog.messages if "forbids releases, so keys stay" in text]
    assert len(told) == 1


async def test_without_a_guard_its_keys_are_not_needed(server: EmbeddedMaster) -> None:
    with allowed(server, *NEEDED, own=()) as url:
        redlock = Redlock([url], master_timeout=TIMEOUT, restart_guard="off")
        async with redlock, redlock.lock("app:r", wait=0):
            await until(lambda: up(redlock) == 1)


def test_the_documentation_lists_the_same_permissions() -> None:
    text = (Path(__file__).parents[2] / "docs" / "reference" / "acl.md").read_text()
    block = text.partition("<!-- acl:begin -->")[2].partition("<!-- acl:end -->")[0]
    commands = [line.split() for line in block.splitlines() if line.startswith("ACL SETUSER")]
    start = ["ACL", "SETUSER", "redlock", "on", ">PASSWORD", "resetkeys", "~KEYS", "resetchannels"]
    plain = [f"+{command}" for command in NEEDED]
    fair = [f"+{command}" for command in FAIR]
    assert commands == [
        [*start, *GUARD, "-@all", *plain],
        [*start, *GUARD, *COUNTERS, "-@all", *plain],
        [*start, *OWN, "-@all", *plain, *fair],
    ]
    for others in (SHARED, SEMAPHORES):
        more = " ".join(f"+{command}" for command in others)
        assert f"| `{more}`, to the third set |" in text.partition("## What can be added")[2]


# On a Redis Cluster.

SHARDED = ("spublish", "ssubscribe", "sunsubscribe")
"""Commands without which a message that wakes a waiter goes through all nodes."""


def rules_of_clusters() -> list[list[str]]:
    """Return what the documentation lists for the nodes of a Cluster, for plain and fair locks."""
    text = (Path(__file__).parents[2] / "docs" / "reference" / "acl.md").read_text()
    block = text.partition("<!-- acl:cluster:begin -->")[2].partition("<!-- acl:cluster:end -->")[0]
    lines = [line.split() for line in block.splitlines() if line.startswith("ACL SETUSER redlock ")]
    return [line[3:] for line in lines]


def test_the_documentation_lists_the_permissions_on_a_cluster() -> None:
    start = ["on", ">PASSWORD", "resetkeys", "~{????}KEYS", "resetchannels"]
    wanted = []
    for fair, more in ((False, ()), (True, SHARDED)):
        needed = requirements.permissions(fencing=True, fair=fair, cluster=True)
        # The guard's marker of each master ends in its tag.
        own = [f"~{key}".replace("marker*", "marker{????}") for key in needed.keys]
        own += [f"&{name}" for name in needed.channels]
        commands = [f"+{command}" for command in (*needed.commands, *more)]
        wanted.append([*start, *own, "-@all", *commands])
    assert rules_of_clusters() == wanted


@pytest.fixture(scope="module")
def nodes(kind: str) -> Iterator[Cluster]:
    with cluster(kind, replicas=False) as made:
        yield made


@contextlib.contextmanager
def allowed_on(nodes: Cluster, rules: list[str], *missing: str) -> Iterator[str]:
    """Yield the URL of a user with these *rules* on all nodes, without those that are *missing*."""
    given = [
        rule.replace("PASSWORD", "secret").replace("KEYS", "app:*")
        for rule in rules
        if rule not in missing
    ]
    for node in nodes.nodes:
        node.call("ACL", "SETUSER", "app", "reset")
        node.call("ACL", "SETUSER", "app", *given)
        node.call("ACL", "LOG", "RESET")
    yield nodes.url.replace("redis://", "redis://app:secret@")
    for node in nodes.nodes:
        node.call("ACL", "DELUSER", "app")


def refused_by(nodes: Cluster) -> set[str]:
    """Return what the nodes have refused, besides what is tried once."""
    entries = [entry for node in nodes.nodes for entry in node.call("ACL", "LOG")]
    refused = {entry["object"] for entry in map(as_dict, entries)}
    return refused - {"client|setinfo", "client|setname", "delifeq", "config|get"}


def program_on(url: str) -> Redlock:
    return Redlock.of_cluster(url, masters=3, key_prefix="app:", max_ttl=5_000)


@pytest.mark.promise("S10")
@pytest.mark.parametrize("fair", [False, True])
async def test_these_permissions_are_enough_on_a_cluster(nodes: Cluster, *, fair: bool) -> None:
    with allowed_on(nodes, rules_of_clusters()[fair]) as url:
        async with program_on(url) as one, program_on(url) as other:
            await until(lambda: up(one) == up(other) == 3, within=30)
            lock = one.lock("r", fencing=True, fair=fair)
            async with lock as first:
                await first.extend()
                assert await other.is_locked("r")
                waiter = asyncio.create_task(
                    other.lock("r", fencing=True, fair=fair, wait=20_000).acquire()
                )
                await asyncio.sleep(0.3)
            second = await waiter
            assert second.fencing_token > first.fencing_token
            if fair:
                assert (await one.inspect("r")).locked
                assert await one.force_release("r")
            else:
                async with await one.adopt(second.export()):
                    pass
    assert refused_by(nodes) == set()


async def test_without_the_channels_of_slots_a_fair_waiter_is_woken_nevertheless(
    nodes: Cluster,
) -> None:
    """By PUBLISH: one that releases the lock may have the permissions that the waiter lacks."""
    rules = [*rules_of_clusters()[1], "+zcard"]
    missing = [f"+{command}" for command in SHARDED]
    with allowed_on(nodes, rules, *missing) as url:
        async with program_on(url) as one, program_on(nodes.url) as other, program_on(url) as third:
            await until(lambda: [up(each) for each in (one, other, third)] == [3] * 3, within=30)
            for frees, waits in ((other, one), (one, third)):
                permits: dict[str, Any] = {"permits": 2, "wait": 20_000}
                held = [await frees.semaphore("r", **permits).acquire() for _ in range(2)]
                waiter = asyncio.create_task(waits.semaphore("r", **permits).acquire())
                await asyncio.sleep(0.3)
                began = asyncio.get_running_loop().time()
                await held[1].release()
                lease = await waiter
                # A heartbeat would come a second after the waiter has begun.
                assert asyncio.get_running_loop().time() < began + SHORT
                await lease.release()
                await held[0].release()
    assert {"ssubscribe", "spublish"} <= refused_by(nodes) <= {*SHARDED}


@pytest.mark.full
@pytest.mark.parametrize("missing", ["+cluster|nodes", "~redlock_aio:marker{????}", "~{????}KEYS"])
async def test_each_of_these_is_needed_on_a_cluster(nodes: Cluster, missing: str) -> None:
    with allowed_on(nodes, rules_of_clusters()[0], missing) as url:
        async with program_on(url) as redlock:
            with pytest.raises(LockNotAcquiredError):
                await redlock.lock("r", wait=2_000).acquire()
