"""The fewest permissions with which each feature works, found by leaving one out at a time."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from redlock_aio import Answer, Holder, LockNotAcquiredError, QuorumUnavailableError, Redlock, Vote
from redlock_aio._engine.attempt import agree
from redlock_aio._engine.hold.restoration import Restoration
from redlock_aio._protocol.primitives import FencingCounter
from redlock_aio.testing import EmbeddedMaster

from .helpers import TIMEOUT, call, gone, leftovers, listens, put, queued, until, up, waiting
from .servers import process

pytestmark = pytest.mark.integration

NEEDED = (
    "evalsha", "script|load", "get", "getrange", "set", "del", "pexpire", "pttl", "time", "info",
    "ping", "client|tracking", "client|caching",
)  # fmt: skip
"""
Commands that plain locks need in the server's access list, with the keys of `GUARD`.

HELLO and AUTH need no permission. SELECT is needed for another database than 0.
"""

WISHED = ("client|tracking", "client|caching")
"""Commands without which locks work as well; a waiter is then not notified and retries."""

FAIR = (
    "publish", "subscribe", "unsubscribe", "zadd", "zrem", "zrank", "zrange",
    "zrangebyscore",
)  # fmt: skip
"""Commands that ``fair=True`` needs in addition, with the keys and channels of `OWN`."""

GUARD = ("~redlock_aio:marker", "~redlock_aio:masters:*")
"""Keys of the restart guard; `OWN` allows them too."""

OWN = ("~redlock_aio:*", "&redlock_aio:wake:*")

COUNTERS = ("~redlock_aio:fence:*",)
"""Keys of the counters, which ``fencing=True`` needs in addition."""

SHORT, LONG = 0.5, 5.0
"""Seconds for an operation that lacks a permission, and for one on a busy machine."""


@pytest.fixture(scope="module")
def server(kind: str) -> Iterator[EmbeddedMaster]:
    with process(kind) as master:
        yield master


@contextlib.contextmanager
def allowed(master: EmbeddedMaster, *commands: str, own: tuple[str, ...] = GUARD) -> Iterator[str]:
    """Yield the URL of a user with these permissions only, with *own* keys and channels."""
    rules = ["on", ">secret", "resetkeys", "~app:*", "resetchannels", *own, "-@all"]
    call(master, "ACL", "DELUSER", "app")
    call(master, "ACL", "SETUSER", "app", *rules, *(f"+{command}" for command in commands))
    call(master, "ACL", "LOG", "RESET")
    call(master, "FLUSHALL")
    call(master, "SCRIPT", "FLUSH")
    yield f"redis://app:secret@127.0.0.1:{master.port}"
    call(master, "ACL", "DELUSER", "app")


def check_refused(master: EmbeddedMaster) -> None:
    """Check that the server refused no command, except those that are tried once."""
    refused = {entry["object"] for entry in map(as_dict, call(master, "ACL", "LOG"))}
    assert refused <= {"client|setinfo", "delifeq"}


def as_dict(entry: object) -> dict[str, str]:
    """Read an entry of ``ACL LOG`` in either protocol."""
    if isinstance(entry, dict):
        return {str(key): str(value) for key, value in entry.items()}
    assert isinstance(entry, list)
    return dict(zip(map(str, entry[::2]), map(str, entry[1::2]), strict=True))


async def works(
    url: str,
    master: EmbeddedMaster,
    patience: float = SHORT,
    names: tuple[str, ...] = ("app:r",),
    *,
    fencing: bool = False,
) -> bool:
    """Acquire, restore, extend, fail to acquire and release; return whether all worked."""
    redlock = Redlock([url], master_timeout=TIMEOUT, fencing=fencing)
    try:
        async with redlock.lock(*names, ttl=5_000, wait=0) as lease:
            session = redlock._opener.session()
            if fencing:
                counter = FencingCounter([name.encode() for name in names], 0)
                token = [lease.fencing_token]
                if [await agree(session.masters, counter, lease.token.encode(), token)] != token:
                    return False
            call(master, "DEL", names[-1])
            Restoration(session.masters, lease._hold).send_to(0)
            await until(lambda: call(master, "GET", names[-1]) == lease.token, within=patience)
            call(master, "SCRIPT", "FLUSH")
            votes: list[Vote] = []
            for _ in range(2):  # the first finds its script missing and is not repeated
                renewal = session.watchdog.renew(lease._hold, 60_000, session.masters.clock())
                await until(lambda round=renewal: round.complete)  # type: ignore[misc]
                votes += renewal.votes()
            if votes[-1].answer is not Answer.GRANTED:
                return False
            holders: list[Holder | None] = []

            async def names_the_holder() -> bool:
                with pytest.raises(LockNotAcquiredError) as refused:
                    await redlock.lock(*names, wait=0).acquire()
                holders.append(refused.value.holder)
                return holders[-1] is not None

            # A late reply does not count.
            await until(names_the_holder, within=patience)
            if holders[-1] is None or holders[-1].fingerprint != lease.fingerprint:
                return False
        drained = session.links[0].drained()
        if drained is None or isinstance(await drained, Exception):
            return False
        return all(gone([master], name) for name in names)
    except (AssertionError, QuorumUnavailableError):
        return False
    finally:
        await redlock.aclose()


async def several_works(url: str, master: EmbeddedMaster, patience: float) -> bool:
    return await works(url, master, patience, names=("app:a", "app:b"))


async def fenced_works(url: str, master: EmbeddedMaster, patience: float = SHORT) -> bool:
    return await works(url, master, patience, fencing=True)


async def fair_works(url: str, master: EmbeddedMaster, patience: float = SHORT) -> bool:
    """Wait behind a foreign key and waiters, one dead; give up, acquire; return if all worked."""
    put([master], "app:r", 60_000)
    redlock = Redlock([url], master_timeout=TIMEOUT)
    try:
        async with redlock, waiting(redlock, "app:r", fair=True) as first:
            await until(lambda: queued([master], "app:r") == [1], within=patience)
            connection = redlock._opener.session().links[0]._connection
            async with waiting(redlock, "app:r", fair=True) as second:
                await until(lambda: queued([master], "app:r") == [2], within=patience)
                # A member whose deadline is over; the next request removes it.
                call(master, "ZADD", "redlock_aio:queue:{app:r}", 1, "dead/1", 4e15, "~dead/1")
                with pytest.raises(LockNotAcquiredError):
                    await redlock.lock("app:r", fair=True, wait=100).acquire()
                await until(lambda: queued([master], "app:r") == [2], within=patience)
                if not call(master, "PUBSUB", "CHANNELS"):
                    return False
                call(master, "DEL", "app:r")
                await asyncio.wait([first], timeout=patience)
                await first.result().release()
                await asyncio.wait([second], timeout=patience)
                await second.result().release()
                await until(lambda: not leftovers([master]), within=2 + patience)
            if redlock._opener.session().links[0]._connection is not connection:
                return False  # the refusal has cost it
        return gone([master], "app:r")
    except (AssertionError, QuorumUnavailableError, asyncio.InvalidStateError):
        return False
    finally:
        await redlock.aclose()


async def admin_works(url: str, master: EmbeddedMaster, patience: float = SHORT) -> bool:
    """Inspect a lock with a holder and a waiter, and release it by force; return success."""
    put([master], "app:r", 60_000)
    redlock = Redlock([url], master_timeout=TIMEOUT)
    async with redlock, waiting(redlock, "app:r", fair=True) as waiter:
        await until(lambda: queued([master], "app:r") == [1], within=patience)
        state = await redlock.inspect("app:r")
        if (state.locked, state.waiters) != (True, 1) or not state.remaining:
            return False
        if not await redlock.force_release("app:r"):
            return False
        lease = await asyncio.wait_for(waiter, patience)
        freed = await redlock.force_release("app:r")
        return freed and not lease.valid and gone([master], "app:r")


Works = Callable[[str, EmbeddedMaster, float], Awaitable[bool]]

ENOUGH: list[tuple[tuple[str, ...], tuple[str, ...], tuple[Works, ...]]] = [
    (NEEDED, GUARD, (works, several_works)),
    (NEEDED, (*GUARD, *COUNTERS), (works, fenced_works)),
    ((*NEEDED, *FAIR), OWN, (works, fair_works, admin_works, fenced_works)),
]


@pytest.mark.promise("S10")
@pytest.mark.parametrize(
    ("commands", "own", "features"), ENOUGH, ids=["plain", "fencing", "fair and fencing"]
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
