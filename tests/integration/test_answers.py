"""Whatever a master answers is its vote, never a crash, and it votes again when it is well."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator

import pytest
import redis

from redlock_aio import Answer, QuorumUnavailableError, Redlock
from redlock_aio.testing import EmbeddedMaster

from .helpers import (
    TIMEOUT,
    RealMaster,
    call,
    connected,
    detail,
    gone,
    line,
    until,
    up,
    urls,
    values,
)
from .servers import process
from .speaker import Answer as Answerer, healthy, speaker

pytestmark = pytest.mark.integration


async def vote_of_first(redlock: Redlock, answer: Answer, words: str) -> None:
    """See that the first of three masters votes so, and that the others win all the same."""

    async def seen() -> bool:
        lease = await redlock.lock("probe", wait=5_000).acquire()
        await until(lambda: lease._hold.attempt.complete, what="all have voted")
        vote = lease.votes[0]
        await lease.release()
        return vote.answer is answer and words in vote.detail

    await until(seen, what=f"{answer} {words}")


async def test_a_master_without_memory_says_so_and_lets_go_all_the_same(
    masters: list[RealMaster],
) -> None:
    """OOM: no new lock there, but those that it has are extended and released."""
    async with connected(masters[:3]) as redlock:
        async with redlock.lock("r", ttl=5_000) as lease:
            await until(lambda: all(values(masters[:3], "r")))
            call(masters[0], "CONFIG", "SET", "maxmemory", "1")
            try:
                await vote_of_first(redlock, Answer.ERROR, "OOM")
                await lease.extend(60_000)
                await until(lambda: call(masters[0], "PTTL", "r") > 30_000)
            finally:
                call(masters[0], "CONFIG", "SET", "maxmemory", "0")
        await until(lambda: gone(masters[:3], "r"))
        await vote_of_first(redlock, Answer.GRANTED, "")


async def test_a_lock_is_released_on_a_master_without_memory(masters: list[RealMaster]) -> None:
    """OOM: at once, not when it has memory again."""
    async with connected(masters[:3]) as redlock:
        try:
            async with redlock.lock("r", ttl=60_000):
                await until(lambda: all(values(masters[:3], "r")))
                call(masters[0], "CONFIG", "SET", "maxmemory", "1")
            await until(lambda: gone(masters[:3], "r"))
        finally:
            call(masters[0], "CONFIG", "SET", "maxmemory", "0")


async def test_a_master_that_becomes_a_replica_loses_its_vote(masters: list[RealMaster]) -> None:
    """READONLY, then "not a master", for as long as it is none."""
    async with connected(masters[:3]) as redlock:
        call(masters[0], "REPLICAOF", "127.0.0.1", "1")
        try:
            await vote_of_first(redlock, Answer.ERROR, "not a master")
        finally:
            call(masters[0], "REPLICAOF", "NO", "ONE")
        await vote_of_first(redlock, Answer.GRANTED, "")


@pytest.mark.promise("S3")
async def test_a_master_that_is_busy_says_so_and_is_cleaned_afterwards(
    masters: list[RealMaster],
) -> None:
    """BUSY: it refuses the release too, so it is told again until it obeys."""
    first = masters[0]
    async with connected(masters[:3]) as redlock:
        lease = await redlock.lock("r", ttl=60_000).acquire()
        await until(lambda: all(values(masters[:3], "r")))
        call(first, "CONFIG", "SET", "lua-time-limit", "10")

        def block() -> None:
            with contextlib.suppress(redis.ResponseError):  # it is killed
                call(first, "EVAL", "while true do end", "0")

        blocked = threading.Thread(target=block)
        blocked.start()
        try:
            await vote_of_first(redlock, Answer.ERROR, "BUSY")
            await lease.release()
            await until(lambda: gone(masters[1:3], "r"))
        finally:
            call(first, "SCRIPT", "KILL")
            blocked.join()
            call(first, "CONFIG", "SET", "lua-time-limit", "5000")
        await until(lambda: gone(masters[:3], "r"))
        await vote_of_first(redlock, Answer.GRANTED, "")


@pytest.fixture
def loading(kind: str) -> Iterator[EmbeddedMaster]:
    """A master that has something to load, and takes its time when it is asked to."""
    slow = ("--enable-debug-command", "yes", "--loading-process-events-interval-bytes", "1024")
    with process(kind, *slow) as master:
        call(master, "DEBUG", "POPULATE", "300", "key", "1000")
        call(master, "SAVE")
        yield master


async def test_a_master_that_loads_says_so_and_votes_afterwards(
    masters: list[RealMaster], loading: EmbeddedMaster
) -> None:
    """LOADING: on the connection that it had, and on new ones."""
    async with connected([loading, *masters[:2]]) as redlock:
        call(loading, "CONFIG", "SET", "key-load-delay", "5000")

        def reload() -> None:
            call(loading, "DEBUG", "RELOAD", "NOSAVE")

        reloading = threading.Thread(target=reload)
        reloading.start()
        try:
            await vote_of_first(redlock, Answer.ERROR, "LOADING")
            call(loading, "CONFIG", "SET", "key-load-delay", "0")
        finally:
            reloading.join()
        await vote_of_first(redlock, Answer.GRANTED, "")


async def test_a_master_that_wants_a_password_now_says_so(masters: list[RealMaster]) -> None:
    """NOAUTH: from the next connection on."""
    async with connected(masters[:3]) as redlock:
        client = masters[0].client()
        with contextlib.closing(client):
            client.config_set("requirepass", "new")
            client.client_kill_filter(_type="normal", skipme=True)
            try:
                await vote_of_first(redlock, Answer.ERROR, "uth")
                assert "newer" not in detail(redlock, 0)
            finally:
                client.config_set("requirepass", "")
        await vote_of_first(redlock, Answer.GRANTED, "")


async def test_a_permission_that_is_taken_away_is_the_masters_vote(
    masters: list[RealMaster],
) -> None:
    """NOPERM: no reason to connect again, and over when it is given back."""
    async with connected(masters[:3]) as redlock:
        call(masters[0], "ACL", "SETUSER", "default", "-set")
        try:
            await vote_of_first(redlock, Answer.ERROR, "NOPERM")
            assert redlock.statistics().masters[0].up
        finally:
            call(masters[0], "ACL", "SETUSER", "default", "+@all")
        await vote_of_first(redlock, Answer.GRANTED, "")


@pytest.mark.parametrize("fair", [False, True])
async def test_permissions_that_a_majority_takes_away_end_a_wait(
    masters: list[RealMaster], *, fair: bool
) -> None:
    """NOPERM: nobody waits for ever for what an operator has to give back."""
    three = masters[:3]
    for master in three:
        call(master, "SET", "r", "theirs")
    async with connected(three) as redlock:
        waiter = asyncio.create_task(redlock.lock("r", fair=fair).acquire())
        await until(lambda: bool(line(redlock).watcher or line(redlock).guests))
        try:
            for master in three[1:]:
                call(master, "ACL", "SETUSER", "default", "-set", "-evalsha")
            for master in three:
                call(master, "DEL", "r")
            await asyncio.wait([waiter], timeout=8)
            error = waiter.exception()
            assert isinstance(error, QuorumUnavailableError)
            assert [vote.permanent for vote in error.votes[1:]] == [True] * 2
            assert "NOPERM" in str(error)
        finally:
            for master in three[1:]:
                call(master, "ACL", "SETUSER", "default", "+@all")


@pytest.mark.parametrize("fair", [False, True])
@pytest.mark.promise("S10")
async def test_a_password_that_a_majority_does_not_take_ends_a_wait(
    masters: list[RealMaster], *, fair: bool
) -> None:
    """WRONGPASS: at the first lock, and not in a minority's case."""
    three = masters[:3]
    named = [f"redis://:wrong@{master.url.removeprefix('redis://')}" for master in three]
    for master in three:
        call(master, "ACL", "SETUSER", "default", "resetpass", ">right")
    clients = [
        redis.Redis.from_url(master.url.replace("redis://", "redis://:right@")) for master in three
    ]
    try:
        async with Redlock(named, restart_guard="off") as redlock:
            with pytest.raises(QuorumUnavailableError, match="no waiting mends") as refused:
                async with asyncio.timeout(8):
                    await redlock.lock("r", fair=fair).acquire()
            assert "authentication failed" in str(refused.value)
            assert "wrong" not in str(refused.value).replace("WRONGPASS", "")
            for client in clients[:2]:
                client.execute_command("ACL", "SETUSER", "default", "nopass")
            async with asyncio.timeout(8):
                await until(lambda: up(redlock) == 2)
                await (await redlock.lock("r", fair=fair).acquire()).release()
    finally:
        for client in clients:
            client.execute_command("ACL", "SETUSER", "default", "resetpass", "nopass")
            client.close()


JUNK = {
    "http": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "zeros": b"\x00" * 64,
    "a huge bulk that does not come": b"$536870912\r\nxxxx",
    "a negative length": b"$-5\r\n",
    "deep nesting": b"*1\r\n" * 2_000,
    "two replies for one": b"$-1\r\n+OK\r\n",
    "a map": b"%1\r\n+a\r\n+b\r\n",
    "a set": b"~2\r\n:1\r\n:2\r\n",
    "an attribute": b"|1\r\n+a\r\n:1\r\n+OK\r\n",
    "a double": b",1.0\r\n",
    "a true": b"#t\r\n",
    "a big number": b"(123456789012345678901234567890\r\n",
    "a one": b":1\r\n",
    "a wrong word": b"+QUEUED\r\n",
    "an empty error": b"-\r\n",
    "an error of bytes": b"-ERR \xff\xfe\x1b[31m\r\n",
    "moved": b"-MOVED 3999 127.0.0.1:1\r\n",
    "a verbatim text": b"=7\r\ntxt:YES\r\n",
}


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.promise("S6")
async def test_nonsense_for_an_answer_is_one_vote_less(
    masters: list[RealMaster], junk: str
) -> None:
    """Whatever one master says to a SET, an extension and a release, the others decide."""
    sane = healthy()

    def answer(command: list[bytes]) -> bytes:
        return JUNK[junk] if command[0] in (b"SET", b"EVALSHA") else sane(command)

    async with speaker(answer) as where:
        named = [f"redis://{where}", *urls(masters[:2])]
        async with Redlock(named, master_timeout=TIMEOUT, restart_guard="off") as redlock:
            await until(lambda: up(redlock) == 3)
            for _ in range(3):
                async with redlock.lock("r", wait=5_000) as lease:
                    await lease.extend()
                    vote = lease.votes[0]
                    assert vote.answer is not Answer.GRANTED, vote
                    assert vote.detail.isprintable()
            await until(lambda: gone(masters[:2], "r"))


@pytest.mark.parametrize("junk", JUNK)
async def test_nonsense_for_a_greeting_is_one_vote_less(
    masters: list[RealMaster], junk: str
) -> None:
    """Of three masters, each of which is mad at another step of the acquaintance."""

    def mad(asked: bytes) -> Answerer:
        sane = healthy(asked)
        return lambda command: JUNK[junk] if command[0] == asked else sane(command)

    async with (
        speaker(mad(b"HELLO")) as a,
        speaker(mad(b"INFO")) as b,
        speaker(mad(b"SCRIPT")) as c,
    ):
        named = [*(f"redis://{where}" for where in (a, b, c)), *urls(masters[:4])]
        async with Redlock(named, master_timeout=100, restart_guard="off") as redlock:
            for _ in range(2):
                async with redlock.lock("r", wait=5_000) as lease:
                    await lease.extend()
            assert all(detail(redlock, number).isprintable() for number in range(3))


@pytest.fixture
async def silent() -> AsyncIterator[str]:
    """A port behind which nobody says anything."""
    async with speaker(lambda _: b"") as where:
        yield where


@pytest.mark.promise("S6")
async def test_a_server_that_says_nothing_is_not_waited_for(
    masters: list[RealMaster], silent: str
) -> None:
    """It is unreachable after a while, and says so."""
    named = [f"redis://{silent}", *urls(masters[:2])]
    async with Redlock(named, master_timeout=100, restart_guard="off") as redlock:
        async with redlock.lock("r", wait=5_000):
            pass
        await until(lambda: "no connection in" in detail(redlock, 0))


async def test_a_server_that_names_no_run_id_has_no_vote(masters: list[RealMaster]) -> None:
    """It could be any of the others."""
    async with speaker(healthy(b"")) as where:
        named = [f"redis://{where}", *urls(masters[:2])]
        async with Redlock(named, master_timeout=TIMEOUT, restart_guard="off") as redlock:
            await until(lambda: "run_id" in detail(redlock, 0))
