"""The fewest permissions with which everything works, found by leaving one out at a time."""

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from redlock_aio import Answer, Holder, LockNotAcquiredError, QuorumUnavailableError, Redlock
from redlock_aio._engine.attempt import agree
from redlock_aio._engine.hold.restoration import Restoration
from redlock_aio._protocol.primitives import FencingCounter
from redlock_aio.testing import EmbeddedMaster

from .helpers import TIMEOUT, call, gone, listens, own_keys, put, queued, until, up, waiting
from .servers import process

pytestmark = pytest.mark.integration

NEEDED = (
    "evalsha", "script|load", "get", "getrange", "set", "del", "pexpire", "pttl", "time", "info",
    "ping", "client|tracking", "client|caching",
)  # fmt: skip
"""
What a user of the server's access list has to be allowed, and nothing else:

    ACL SETUSER redlock on >PASSWORD resetkeys ~KEYS resetchannels ~redlock_aio:marker
        ~redlock_aio:masters:* -@all +evalsha +script|load +get +getrange +set +del +pexpire
        +pttl +time +info +ping +client|tracking +client|caching

HELLO and AUTH need no permission. SELECT is needed for another database than 0.
"""

WISHED = ("client|tracking", "client|caching")
"""Without these it works as well; who waits is not woken and tries again."""

FAIR = (
    "publish", "subscribe", "unsubscribe", "zadd", "zrem", "zscore", "zcard", "zrange",
    "zrangebyscore",
)  # fmt: skip
"""
What is needed for ``fair=True`` besides, and:

    ~redlock_aio:* &redlock_aio:wake:*
"""

GUARD = ("~redlock_aio:marker", "~redlock_aio:masters:*")
"""What the restart guard needs; `OWN` allows it too."""

OWN = ("~redlock_aio:*", "&redlock_aio:wake:*")

COUNTERS = ("~redlock_aio:fence:*",)
"""The keys of the counters, which are needed for ``fencing=True`` besides."""


@pytest.fixture(scope="module")
def server(kind: str) -> Iterator[EmbeddedMaster]:
    with process(kind) as master:
        yield master


@contextlib.contextmanager
def allowed(master: EmbeddedMaster, *commands: str, own: tuple[str, ...] = GUARD) -> Iterator[str]:
    """Give the URL of a user who may do this and no more, with *own* keys and channels."""
    rules = ["on", ">secret", "resetkeys", "~app:*", "resetchannels", *own, "-@all"]
    call(master, "ACL", "DELUSER", "app")
    call(master, "ACL", "SETUSER", "app", *rules, *(f"+{command}" for command in commands))
    call(master, "ACL", "LOG", "RESET")
    call(master, "FLUSHALL")
    call(master, "SCRIPT", "FLUSH")
    yield f"redis://app:secret@127.0.0.1:{master.port}"
    call(master, "ACL", "DELUSER", "app")


SHORT, LONG = 0.5, 5.0
"""Seconds for what needs a permission that is missing, and for what a busy machine must do."""


async def everything_works(url: str, master: EmbeddedMaster, patience: float = SHORT) -> bool:
    """Acquire, extend, forget the scripts, release, fail and close; return whether all went."""
    redlock = Redlock([url], master_timeout=TIMEOUT)
    try:
        async with redlock.lock("app:r", ttl=5_000, wait=0) as lease:
            call(master, "SCRIPT", "FLUSH")
            renewal = None
            for _ in range(2):  # the first finds its script forgotten and is not repeated
                renewal = redlock._opener.session().watchdog.renew(
                    lease._hold, 60_000, redlock._opener.session().masters.clock()
                )
                await until(lambda round=renewal: round.complete)  # type: ignore[misc]
            if renewal is None or renewal.votes()[0].answer is not Answer.GRANTED:
                return False
            holders: list[Holder | None] = []

            async def told() -> bool:
                with pytest.raises(LockNotAcquiredError) as refused:
                    await redlock.lock("app:r", wait=0).acquire()
                holders.append(refused.value.holder)
                return holders[-1] is not None

            with contextlib.suppress(AssertionError):  # a late answer is not heard out
                await until(told, within=patience)
            last = holders[-1]
            if last is None or last.fingerprint != lease.fingerprint:
                return False
        if not gone([master], "app:r"):
            return False
        heard = redlock._opener.session().links[0].drained()
        return heard is not None and not isinstance(await heard, Exception)
    except QuorumUnavailableError:
        return False
    finally:
        await redlock.aclose()


async def wakes(url: str, master: EmbeddedMaster, patience: float) -> bool:
    """Return whether who waits is woken by a stranger's DEL."""
    put([master], "app:r", 60_000)
    async with (
        Redlock([url], master_timeout=TIMEOUT) as redlock,
        waiting(redlock, "app:r") as waiter,
    ):
        await until(lambda: listens(redlock, "app:r"))
        call(master, "DEL", "app:r")
        await asyncio.wait([waiter], timeout=patience)
        return waiter.done()


async def fair_works(url: str, master: EmbeddedMaster, patience: float = SHORT) -> bool:
    """Wait behind a stranger and another waiter, give up, be served; return whether all went."""
    put([master], "app:r", 60_000)
    redlock = Redlock([url], master_timeout=TIMEOUT)
    try:
        async with redlock, waiting(redlock, "app:r", fair=True) as first:
            await until(lambda: queued([master], "app:r") == [1], within=patience)
            connection = redlock._opener.session().links[0]._connection
            async with waiting(redlock, "app:r", fair=True) as second:
                await until(lambda: queued([master], "app:r") == [2], within=patience)
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
                await until(lambda: not own_keys([master]), within=2 + patience)
            if redlock._opener.session().links[0]._connection is not connection:
                return False  # the refusal has cost it
        return gone([master], "app:r")
    except (AssertionError, QuorumUnavailableError, asyncio.InvalidStateError):
        return False
    finally:
        await redlock.aclose()


@pytest.mark.promise("S10")
async def test_these_permissions_are_enough(
    server: EmbeddedMaster, caplog: pytest.LogCaptureFixture
) -> None:
    """And nothing is even tried that is not allowed, but for what redis-py says of itself."""
    with allowed(server, *NEEDED) as url, caplog.at_level(logging.INFO):
        assert await everything_works(url, server, LONG)
        assert not caplog.text
        refused = {entry["object"] for entry in map(as_dict, call(server, "ACL", "LOG"))}
        assert refused <= {"client|setinfo", "delifeq"}  # tried once, and not needed


@pytest.mark.parametrize("missing", [*sorted(set(NEEDED) - set(WISHED)), *GUARD])
async def test_each_of_these_permissions_is_needed(server: EmbeddedMaster, missing: str) -> None:
    """Without it something does not work, so that the list has nothing in excess."""
    own = tuple(pattern for pattern in GUARD if pattern != missing)
    with allowed(server, *(command for command in NEEDED if command != missing), own=own) as url:
        assert not await everything_works(url, server)


async def test_the_marker_is_named_in_the_vote_and_can_be_done_without(
    server: EmbeddedMaster,
) -> None:
    with allowed(server, *NEEDED, own=()) as url:
        async with Redlock([url], master_timeout=TIMEOUT) as redlock:
            with pytest.raises(
                QuorumUnavailableError, match=r'redlock_aio:marker.*restart_guard="off".*NOPERM'
            ):
                await redlock.lock("app:r", wait=0).acquire()
        redlock = Redlock([url], master_timeout=TIMEOUT, restart_guard="off")
        async with redlock, redlock.lock("app:r", wait=0):
            pass


@pytest.mark.parametrize("missing", ["time", GUARD[1]])
async def test_the_key_of_the_sets_is_named_in_the_vote(
    server: EmbeddedMaster, missing: str
) -> None:
    commands = [command for command in NEEDED if command != missing]
    own = tuple(pattern for pattern in GUARD if pattern != missing)
    with allowed(server, *commands, own=own) as url:
        async with Redlock([url], master_timeout=500, key_prefix="app:") as redlock:
            match = r'redlock_aio:masters:app:.*restart_guard="off".*NOPERM'
            with pytest.raises(QuorumUnavailableError, match=match) as refused:
                await redlock.lock("r", wait=0).acquire()
            assert [vote.permanent for vote in refused.value.votes] == [True]


@pytest.mark.parametrize("missing", ["", *WISHED])
async def test_who_may_not_be_told_of_changes_tries_again(
    server: EmbeddedMaster, missing: str
) -> None:
    """With the permissions who waits is woken; without them only that is missing."""
    with allowed(server, *(command for command in NEEDED if command != missing)) as url:
        assert await everything_works(url, server, LONG)
        assert await wakes(url, server, SHORT if missing else LONG) is not bool(missing)
        put([server], "app:r", 200)
        redlock = Redlock([url], master_timeout=TIMEOUT)
        async with redlock, redlock.lock("app:r", wait=5_000):
            pass


@pytest.mark.promise("S10")
async def test_these_permissions_are_enough_for_fair(
    server: EmbeddedMaster, caplog: pytest.LogCaptureFixture
) -> None:
    """And those for a plain lock are no less so."""
    with allowed(server, *NEEDED, *FAIR, own=OWN) as url, caplog.at_level(logging.INFO):
        assert await fair_works(url, server, LONG)
        assert await everything_works(url, server, LONG)
        assert not caplog.text
        refused = {entry["object"] for entry in map(as_dict, call(server, "ACL", "LOG"))}
        assert refused <= {"client|setinfo", "delifeq"}  # tried once, and not needed


@pytest.mark.parametrize("missing", [*FAIR, *OWN])
@pytest.mark.full
async def test_each_of_these_permissions_is_needed_for_fair(
    server: EmbeddedMaster, missing: str
) -> None:
    """Without it something does not work, so that the list has nothing in excess."""
    commands = [command for command in (*NEEDED, *FAIR) if command != missing]
    own = tuple(pattern for pattern in OWN if pattern != missing)
    with allowed(server, *commands, own=own) as url:
        assert not await fair_works(url, server)


async def fencing_works(url: str, master: EmbeddedMaster) -> bool:
    """Acquire, raise the counter, extend, set again, release; return whether all went."""
    redlock = Redlock([url], master_timeout=TIMEOUT, fencing=True)
    try:
        async with redlock.lock("app:r", ttl=5_000, wait=0) as lease:
            agreed = await agree(
                redlock._opener.session().masters,
                FencingCounter((b"app:r",), 0),
                lease.token.encode(),
                [lease.fencing_token],
            )
            if agreed != lease.fencing_token:
                return False
            renewal = redlock._opener.session().watchdog.renew(
                lease._hold, 60_000, redlock._opener.session().masters.clock()
            )
            await until(lambda: renewal.complete)
            if renewal.votes()[0].answer is not Answer.GRANTED:
                return False
            call(master, "DEL", "app:r")
            Restoration(redlock._opener.session().masters, lease._hold).send_to(0)
            await until(lambda: not gone([master], "app:r"), within=0.5)
        return gone([master], "app:r")
    except (AssertionError, QuorumUnavailableError):
        return False
    finally:
        await redlock.aclose()


@pytest.mark.promise("S10")
async def test_these_permissions_are_enough_for_fencing(
    server: EmbeddedMaster, caplog: pytest.LogCaptureFixture
) -> None:
    """And those for a plain lock are no less so; with all three sets all works together."""
    with (
        allowed(server, *NEEDED, own=(*GUARD, *COUNTERS)) as url,
        caplog.at_level(logging.INFO),
    ):
        assert await fencing_works(url, server)
        assert await everything_works(url, server)
        assert not caplog.text
        refused = {entry["object"] for entry in map(as_dict, call(server, "ACL", "LOG"))}
        assert refused <= {"client|setinfo", "delifeq"}  # tried once, and not needed
    with allowed(server, *NEEDED, *FAIR, own=OWN) as url:
        assert await fencing_works(url, server)
        async with Redlock([url], fencing=True) as redlock, redlock.lock("app:r", fair=True) as own:
            assert own.fencing_token > 0


@pytest.mark.parametrize(
    "missing", [*sorted(set(NEEDED) - {*WISHED, "pttl", "info", "ping"}), *COUNTERS]
)
async def test_each_of_these_permissions_is_needed_for_fencing(
    server: EmbeddedMaster, missing: str
) -> None:
    """Without it something does not work, so that the list has nothing in excess."""
    commands = [command for command in NEEDED if command != missing]
    own = (*GUARD, *(pattern for pattern in COUNTERS if pattern != missing))
    with allowed(server, *commands, own=own) as url:
        assert not await fencing_works(url, server)


async def oversight_works(url: str, master: EmbeddedMaster) -> bool:
    """Inspect what others hold and wait for, and take it from them; return whether all went."""
    put([master], "app:r", 60_000)
    redlock = Redlock([url], master_timeout=TIMEOUT)
    try:
        async with redlock, waiting(redlock, "app:r", fair=True) as waiter:
            await until(lambda: queued([master], "app:r") == [1], within=LONG)
            state = await redlock.inspect("app:r")
            if (state.locked, state.waiters) != (True, 1) or not state.remaining:
                return False
            if not await redlock.force_release("app:r"):
                return False
            lease = await asyncio.wait_for(waiter, LONG)
            freed = await redlock.force_release("app:r")
            return freed and not lease.valid and gone([master], "app:r")
    except QuorumUnavailableError:
        return False


@pytest.mark.promise("S10")
async def test_these_permissions_are_enough_for_oversight(
    server: EmbeddedMaster, caplog: pytest.LogCaptureFixture
) -> None:
    """Those for fair locks are; whether a lock is held is said to whoever may take one."""
    with allowed(server, *NEEDED, *FAIR, own=OWN) as url, caplog.at_level(logging.INFO):
        assert await oversight_works(url, server)
        assert not caplog.text
        refused = {entry["object"] for entry in map(as_dict, call(server, "ACL", "LOG"))}
        assert refused <= {"client|setinfo", "delifeq"}  # tried once, and not needed
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


@pytest.mark.parametrize(
    "missing",
    ["evalsha", "get", "set", "pttl", "time", "del", "zrange", "zrangebyscore", "zrem", OWN[0]],
)
async def test_each_of_these_permissions_is_needed_for_oversight(
    server: EmbeddedMaster, missing: str, kind: str
) -> None:
    """Without it something does not work: a waiter is not seen, or nothing is freed."""
    if kind == "valkey":
        pytest.skip("the same as on Redis, and each takes a second")
    commands = [command for command in (*NEEDED, *FAIR) if command != missing]
    own = (*GUARD, *(pattern for pattern in OWN if pattern != missing))
    with allowed(server, *commands, own=own) as url:
        put([server], "app:r", 60_000)
        redlock = Redlock([url], master_timeout=TIMEOUT, restart_guard="off")
        async with redlock:
            call(server, "ZADD", "redlock_aio:queue:{app:r}", 1, "me/1")
            call(server, "ZADD", "redlock_aio:live:{app:r}", 2**52 + 0.5, "me/1", 2**52, "me/2")
            call(server, "ZADD", "redlock_aio:queue:{app:r}", 2, "me/2")
            state = await redlock.inspect("app:r")
            seen = (state.locked, state.waiters) == (True, 1) and state.remaining is not None
            try:
                freed = await redlock.force_release("app:r")
            except QuorumUnavailableError:
                freed = False
            assert not (seen and freed and gone([server], "app:r"))


@pytest.mark.promise("S10")
@pytest.mark.parametrize(
    ("options", "more", "own"),
    [
        ({}, (), GUARD),
        ({"fencing": True}, (), (*GUARD, *COUNTERS)),
        ({"fair": True}, FAIR, OWN),
    ],
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
        refused = {entry["object"] for entry in map(as_dict, call(server, "ACL", "LOG"))}
        assert refused <= {"client|setinfo", "delifeq"}


@pytest.mark.promise("S10")
async def test_other_keys_are_out_of_reach(server: EmbeddedMaster) -> None:
    """A resource outside of the user's keys is that master's vote."""
    with allowed(server, *NEEDED) as url:
        async with Redlock([url], master_timeout=TIMEOUT) as redlock:
            await until(lambda: up(redlock) == 1)
            with pytest.raises(QuorumUnavailableError, match="NOPERM"):
                await redlock.lock("theirs:r", wait=0).acquire()


@pytest.mark.promise("S3")
async def test_the_command_for_releases_can_be_withdrawn_at_run_time(
    server: EmbeddedMaster,
) -> None:
    """The first release finds out, and goes on with the script; no key is left for a moment."""
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


async def test_a_missing_permission_is_named_in_the_vote(server: EmbeddedMaster) -> None:
    """So that an operator knows what to allow."""
    with allowed(server, *(command for command in NEEDED if command != "info")) as url:
        async with Redlock([url], master_timeout=TIMEOUT) as redlock:
            with pytest.raises(QuorumUnavailableError, match="'info'"):
                await redlock.lock("app:r", wait=0).acquire()


def test_the_documentation_says_the_same() -> None:
    """Both commands, word by word."""
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


def as_dict(entry: object) -> dict[str, str]:
    """Read an entry of ``ACL LOG`` in either protocol."""
    if isinstance(entry, dict):
        return {str(key): str(value) for key, value in entry.items()}
    assert isinstance(entry, list)
    return dict(zip(map(str, entry[::2]), map(str, entry[1::2]), strict=True))
