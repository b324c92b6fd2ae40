"""The fewest permissions with which each feature works, found by leaving one out at a time."""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

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
        async with Redlock(server.url) as readers, Redlock([url]) as operator:
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
            Redlock(server.url) as holders,
            Redlock([url]) as operator,
            holders.semaphore("app:r", permits=3) as lease,
        ):
            semaphore = operator.semaphore("app:r", permits=3)
            assert [*(await semaphore.inspect()).holders] == [lease.permit]
            assert dict((await operator.find_locks("app:")).semaphores) == {"app:r": 1}
        check_refused(server)


async def permits_work(url: str) -> bool:
    """Hold all permits, wait for them, be handed them over; return whether it worked."""
    waiters: list[asyncio.Task[Lease]] = []
    async with Redlock([url], master_timeout=TIMEOUT) as redlock, Redlock([url]) as other:
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
        async with Redlock([url]) as redlock:
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
        if "masters:" in expected:
            assert [vote.permanent for vote in refused.value.votes] == [True]


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
