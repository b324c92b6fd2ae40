"""Any reply of a master becomes a vote, never a crash; a master votes again when it is well."""

import asyncio
import contextlib
import shlex
import threading
from collections.abc import Iterator

import pytest
import redis

from redlock_aio import Answer, QuorumUnavailableError, Redlock, Vote
from redlock_aio._rules.quorum import NOT_YET
from redlock_aio.testing import EmbeddedMaster

from .helpers import (
    AT_ONCE,
    TIMEOUT,
    RealMaster,
    call,
    connected,
    detail,
    gone,
    nothing_is_left,
    until,
    up,
    urls,
    values,
)
from .servers import process
from .speaker import Answer as Answerer, healthy, speaker

pytestmark = pytest.mark.integration


async def first_votes(redlock: Redlock, answer: Answer, words: str = "") -> Vote:
    """Wait until the first of three masters gives this vote while two grant; return the vote."""
    votes = []

    async def seen() -> bool:
        lease = await redlock.lock("probe", wait=5_000).acquire()
        await until(lambda: NOT_YET not in lease._hold.claim.replies, what="all have voted")
        votes.append(lease.votes[0])
        await lease.release()
        return votes[-1].answer is answer and words in votes[-1].detail

    await until(seen, what=f"{answer} {words}")
    return votes[-1]


async def test_a_master_without_memory_extends_and_releases(masters: list[RealMaster]) -> None:
    """OOM: it grants no new lock; extensions and releases need no memory."""
    three = masters[:3]
    async with connected(three) as redlock:
        try:
            async with redlock.lock("r", ttl=5_000) as lease:
                await until(lambda: all(values(three, "r")))
                call(three[0], "CONFIG", "SET", "maxmemory", "1")
                await first_votes(redlock, Answer.ERROR, "OOM")
                await lease.extend(60_000)
                await until(lambda: call(three[0], "PTTL", "r") > 30_000)
            await nothing_is_left(three)
        finally:
            call(three[0], "CONFIG", "SET", "maxmemory", "0")
        await first_votes(redlock, Answer.GRANTED)


REFUSALS = {
    # A missing permission is no reason to connect again.
    "NOPERM": ("ACL SETUSER default -set", "ACL SETUSER default +@all", True),
    "not a master": ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE", False),
    # Takes effect with the next connection.
    "uthentication": ("CONFIG SET requirepass new", 'CONFIG SET requirepass ""', False),
}
"""The command of an operator, its reverse, and whether the master stays connected."""


@pytest.mark.parametrize("words", REFUSALS)
async def test_a_master_that_refuses_has_no_vote_until_the_cause_is_removed(
    masters: list[RealMaster], words: str
) -> None:
    three = masters[:3]
    change, undo, stays_connected = REFUSALS[words]
    with contextlib.closing(three[0].client()) as client:
        async with connected(three) as redlock:
            client.execute_command(*shlex.split(change))
            try:
                if words == "uthentication":
                    client.client_kill_filter(_type="normal", skipme=True)
                vote = await first_votes(redlock, Answer.ERROR, words)
                assert vote.permanent == (words != "not a master")
                assert redlock.statistics().masters[0].up or not stays_connected
            finally:
                client.execute_command(*shlex.split(undo))
            await first_votes(redlock, Answer.GRANTED)


@pytest.mark.promise("S3")
async def test_a_busy_master_is_cleaned_when_it_is_idle(
    masters: list[RealMaster],
) -> None:
    """BUSY: it refuses the release too, which is repeated until the master confirms it."""
    first = masters[0]
    async with connected(masters[:3]) as redlock:
        lease = await redlock.lock("r", ttl=60_000).acquire()
        await until(lambda: all(values(masters[:3], "r")))
        call(first, "CONFIG", "SET", "lua-time-limit", "10")

        def block() -> None:
            with contextlib.suppress(redis.ResponseError):  # the script is killed
                call(first, "EVAL", "while true do end", "0")

        blocked = threading.Thread(target=block)
        blocked.start()
        try:
            await first_votes(redlock, Answer.ERROR, "BUSY")
            await lease.release()
            await until(lambda: gone(masters[1:3], "r"))
        finally:
            call(first, "SCRIPT", "KILL")
            blocked.join()
            call(first, "CONFIG", "SET", "lua-time-limit", "5000")
        await until(lambda: gone(masters[:3], "r"))
        await first_votes(redlock, Answer.GRANTED)


@pytest.fixture
def loading(kind: str) -> Iterator[EmbeddedMaster]:
    """Run a master with keys that it loads slowly."""
    slow = ("--enable-debug-command", "yes", "--loading-process-events-interval-bytes", "1024")
    with process(kind, *slow) as master:
        call(master, "DEBUG", "POPULATE", "300", "key", "1000")
        call(master, "SAVE")
        yield master


async def test_a_master_that_loads_its_keys_votes_afterwards(
    masters: list[RealMaster], loading: EmbeddedMaster
) -> None:
    """LOADING: replied on the present connection, and on new ones."""
    async with connected([loading, *masters[:2]]) as redlock:
        call(loading, "CONFIG", "SET", "key-load-delay", "5000")

        def reload() -> None:
            call(loading, "DEBUG", "RELOAD", "NOSAVE")

        reloading = threading.Thread(target=reload)
        reloading.start()
        try:
            await first_votes(redlock, Answer.ERROR, "LOADING")
            call(loading, "CONFIG", "SET", "key-load-delay", "0")
        finally:
            reloading.join()
        await first_votes(redlock, Answer.GRANTED)


@pytest.mark.promise("S10")
async def test_a_password_that_a_majority_refuses_ends_a_wait_and_is_not_shown(
    masters: list[RealMaster],
) -> None:
    """WRONGPASS: the error comes at the first lock; a refusal by a minority has no effect."""
    three = masters[:3]
    named = [f"redis://:wrong@{master.url.removeprefix('redis://')}" for master in three]
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(contextlib.closing(master.client())) for master in three]
        for client in clients:  # connections stay authenticated
            client.execute_command("ACL", "SETUSER", "default", "resetpass", ">right")
        try:
            async with Redlock(named, restart_guard="off") as redlock:
                with pytest.raises(
                    QuorumUnavailableError, match="the masters refuse permanently"
                ) as caught:
                    async with asyncio.timeout(AT_ONCE):
                        await redlock.lock("r").acquire()
                assert "authentication failed" in str(caught.value)
                assert "wrong" not in str(caught.value).replace("WRONGPASS", "")
                for client in clients[:2]:
                    client.execute_command("ACL", "SETUSER", "default", "nopass")
                await until(lambda: up(redlock) == 2)
                async with asyncio.timeout(AT_ONCE), redlock.lock("r"):
                    pass
        finally:
            for client in clients:
                client.execute_command("ACL", "SETUSER", "default", "resetpass", "nopass")


async def test_a_password_that_is_missing_is_told_in_a_few_words(
    masters: list[RealMaster],
) -> None:
    """The servers' own words for it are a lesson about the command HELLO, for each master."""
    (master, *_) = masters
    with contextlib.closing(master.client()) as client:
        client.execute_command("ACL", "SETUSER", "default", "resetpass", ">right")
        try:
            async with Redlock(master.url, restart_guard="off") as redlock:
                with pytest.raises(QuorumUnavailableError) as caught:
                    await redlock.lock("r", wait=0).acquire()
        finally:
            client.execute_command("ACL", "SETUSER", "default", "resetpass", "nopass")
    (vote,) = caught.value.votes
    assert vote.detail == "authentication failed: the server wants a password, and none was given"
    assert vote.permanent


JUNK = {
    "http": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "a huge bulk that does not come": b"$536870912\r\nxxxx",
    "a negative length": b"$-5\r\n",
    "deep nesting": b"*1\r\n" * 2_000,
    "two replies for one": b"$-1\r\n+OK\r\n",
    "a map": b"%1\r\n+a\r\n+b\r\n",
    "an attribute": b"|1\r\n+a\r\n:1\r\n+OK\r\n",
    "a big number": b"(123456789012345678901234567890\r\n",
    "a one": b":1\r\n",
    "a wrong word": b"+QUEUED\r\n",
    "an empty error": b"-\r\n",
    "an error of bytes": b"-ERR \xff\xfe\x1b[31m\r\n",
    "moved": b"-MOVED 3999 127.0.0.1:1\r\n",
}

ONE_TOO_MANY = ("two replies for one", "an attribute")
"""The second reply, an OK, may arrive when the next command is underway, and count as its reply."""


@pytest.mark.spread(0)
@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.promise("S6")
async def test_nonsense_is_one_vote_less(masters: list[RealMaster], junk: str) -> None:
    """Four masters reply with nonsense, each to other commands; the other five decide."""

    def mad(*commands: bytes) -> Answerer:
        sane = healthy(commands[0] * 8)  # each has a run_id of its own
        return lambda command: JUNK[junk] if command[0] in commands else sane(command)

    async with (
        speaker(mad(b"SET", b"EVALSHA")) as a,
        speaker(mad(b"HELLO")) as b,
        speaker(mad(b"INFO")) as c,
        speaker(mad(b"SCRIPT")) as d,
    ):
        named = [*(f"redis://{where}" for where in (a, b, c, d)), *urls(masters)]
        async with Redlock(named, master_timeout=TIMEOUT, restart_guard="off") as redlock:
            await until(lambda: redlock.statistics().masters[0].up)
            for _ in range(2):
                async with redlock.lock("r", wait=8_000) as lease:
                    await lease.extend()
                    vote = lease.votes[0]
                    assert vote.answer is not Answer.GRANTED or junk in ONE_TOO_MANY, vote
                    assert vote.detail.isprintable()
            assert all(detail(redlock, number).isprintable() for number in range(4))
            await until(lambda: gone(masters, "r"))


@pytest.mark.promise("S6")
async def test_a_server_that_does_not_reply_or_has_no_run_id_has_no_vote(
    masters: list[RealMaster],
) -> None:
    """A server without a run_id may be the same server as another master."""
    async with speaker(lambda _: b"") as silent, speaker(healthy(b"")) as nameless:
        named = [f"redis://{silent}", f"redis://{nameless}", *urls(masters[:3])]
        async with Redlock(named, master_timeout=100, restart_guard="off") as redlock:
            async with redlock.lock("r", wait=5_000):
                pass
            await until(lambda: "no connection in" in detail(redlock, 0))
            await until(lambda: "run_id" in detail(redlock, 1))
