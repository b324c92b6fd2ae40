"""`RedisFence` on real servers: a write with the token of an earlier lease is refused."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.asyncio import Redis, RedisCluster
from redis.exceptions import RedisError, ResponseError

from redlock_aio import Redlock, RedlockError
from redlock_aio.fencing import FENCE_LUA, MOST_WORDS, RedisFence, StaleTokenError
from redlock_aio.testing._embedded import free_port

from .helpers import RealMaster, call
from .servers import process

pytestmark = [pytest.mark.integration, pytest.mark.promise("S7")]

HIGHEST = 2**53 - 1


@pytest.fixture
async def client(masters: list[RealMaster]) -> AsyncIterator[Redis]:
    async with Redis.from_url(masters[0].url, decode_responses=True) as client:
        yield client


@pytest.fixture
def fence(client: Redis) -> RedisFence:
    return RedisFence(client, "k")


async def refused(fence: RedisFence, token: int, highest: int) -> None:
    """Try to write with a stale token."""
    with pytest.raises(StaleTokenError) as caught:
        await fence.write(("SET", "k", "late and secret"), token=token)
    error = caught.value
    assert (error.name, error.token, error.highest) == (fence._name, token, highest)
    assert "secret" not in f"{error} {error!r}"
    assert error.__suppress_context__


@pytest.mark.parametrize(
    ("lower", "higher"), [(5, 7), (9, 10), (99, 1795262942744769), (HIGHEST - 1, HIGHEST)]
)
async def test_a_lower_token_is_refused_and_the_same_is_not(
    fence: RedisFence, client: Redis, lower: int, higher: int
) -> None:
    for token, value in ((lower, "a"), (lower, "b"), (higher, "c"), (higher, "d")):
        assert await fence.write(("SET", "k", value), token=token) == ["OK"]
        await refused(fence, token - 1, token)
    await refused(fence, lower, higher)
    assert await client.get("k") == "d"


async def test_the_tokens_of_leases_will_do(fence: RedisFence, redlock: Redlock) -> None:
    # On a server that is also a master: the key of the fence is not that of the counter.
    tokens = []
    for _ in range(2):
        async with redlock.lock("k", fencing=True) as lease:
            tokens.append(lease.fencing_token)
            await fence.write(("SET", "data", "v"), token=tokens[-1])
    await refused(fence, *tokens)


async def test_each_name_has_its_own_token(fence: RedisFence, client: Redis) -> None:
    assert await fence.write(token=2) == []
    await refused(fence, 1, 2)
    assert await client.get("k") is None
    assert await RedisFence(client, "other").write(("SET", "other", "b"), token=1) == ["OK"]


async def test_several_writes_are_one(fence: RedisFence, client: Redis) -> None:
    writes: list[tuple[str | int | bytes, ...]] = [
        ("SET", "k", b"\x00\xff"), ("HSET", "h", "f", 1), ("RPUSH", "l", *range(3)),
        ("GET", "none"), ("LRANGE", "l", 0, -1), ("SADD", "s", *range(MOST_WORDS - 2)),
    ]  # fmt: skip
    expected = ["OK", 1, 3, None, ["0", "1", "2"], MOST_WORDS - 2]
    assert await fence.write(*writes, token=1) == expected
    await fence.write(token=2)
    with pytest.raises(StaleTokenError):
        await fence.write(("SET", "x", 1), ("DEL", "h"), token=1)
    assert await client.exists("x", "h", "l") == 2


async def test_a_command_that_fails_ends_the_rest(fence: RedisFence, client: Redis) -> None:
    with pytest.raises(ResponseError) as caught:
        await fence.write(("SET", "k", "text"), ("INCR", "k"), ("SET", "after", 1), token=3)
    assert not isinstance(caught.value, RedlockError)
    assert await client.mget("k", "after") == ["text", None]
    await refused(fence, 2, 3)


async def test_a_script_of_the_user_s_sees_its_own_keys_and_arguments(
    fence: RedisFence, client: Redis
) -> None:
    script = """
        local fence = "a name that is not ours"
        redis.call("SET", KEYS[1], ARGV[1])
        local ours = pcall(function() return token end)
        return {KEYS[1], ARGV[1], KEYS[2], ARGV[2], tostring(ours)}
    """
    seen = await fence.run(script, ["k"], [7], token=2)
    assert seen == ["k", "7", fence.key, "2", "false"]
    with pytest.raises(StaleTokenError):
        await fence.run("redis.call('SET', KEYS[1], 'late')", ["k"], token=1)
    assert await client.get("k") == "7"


@pytest.mark.parametrize(("decode", "protocol"), [(True, 2), (True, 3), (False, 2), (False, 3)])
async def test_every_kind_of_client_works(
    masters: list[RealMaster], *, decode: bool, protocol: int
) -> None:
    async with Redis.from_url(masters[0].url, decode_responses=decode, protocol=protocol) as client:
        fence = RedisFence(client, "k")
        for token in (1, 2):
            await client.script_flush()
            ok, value = ("OK", "ä") if decode else (b"OK", "ä".encode())
            assert await fence.write(("SET", "k", "ä"), ("GET", "k"), token=token) == [ok, value]
            await client.script_flush()
            assert await fence.run("return 'ä'", token=token) == value
        await refused(fence, 1, 2)


async def test_of_many_at_once_none_writes_behind_a_later_one(masters: list[RealMaster]) -> None:
    # There are 300 connections at once: to make them, a busy machine needs more than the usual 5 s.
    url = f"{masters[0].url}?socket_timeout=60&socket_connect_timeout=60"
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(Redis.from_url(url)) for _ in range(10)]

        async def write(client: Redis, token: int) -> int:
            try:
                await RedisFence(client, "k").write(("RPUSH", "log", token), token=token)
            except StaleTokenError:
                return 0
            return token

        tokens = [token for token in range(1, 101) for _ in range(3)]
        chance = random.Random(0)
        tokens.sort(key=lambda token: token + 5 * chance.random())  # some writes compete
        took = await asyncio.gather(
            *(write(clients[number % 10], token) for number, token in enumerate(tokens))
        )
    log = [int(token) for token in call(masters[0], "LRANGE", "log", 0, -1)]
    assert log == sorted(token for token in took if token)
    assert log[-1] == 100
    assert len(log) < 300


async def test_a_key_that_holds_no_token_is_an_error(fence: RedisFence, client: Redis) -> None:
    wanted = r"^'redlock_aio:seen:{k}' holds no token; nothing"
    numbers = ["-1", "+1", "1.5", "1e3", "0x10", " 5", "5\n", "nan", str(2**53), "9" * 400]
    for garbage in ["", "x", *numbers]:
        await client.set(fence.key, garbage)
        with pytest.raises(RedlockError, match=wanted) as caught:
            await fence.write(("SET", "k", "v"), token=HIGHEST)
        assert type(caught.value) is RedlockError
        assert await client.mget("k", fence.key) == [None, garbage]
    await client.delete(fence.key)
    await client.rpush(fence.key, 1)
    with pytest.raises(RedlockError, match=wanted):
        await fence.run("return redis.call('SET', 'k', 'v')", token=1)
    assert await client.get("k") is None
    assert await client.type(fence.key) == "list"


@pytest.mark.parametrize("may", ["~k +@all", "~* +@all -get"])
async def test_other_errors_of_the_server_stay_what_they_are(
    masters: list[RealMaster], may: str
) -> None:
    call(masters[0], "ACL", "SETUSER", "writer", "on", "nopass", *may.split())
    try:
        url = masters[0].url.replace("//", "//writer:any@")
        async with Redis.from_url(url) as writer:
            with pytest.raises(RedisError, match=r"permission|can't run"):
                await RedisFence(writer, "k").write(("SET", "k", "v"), token=1)
    finally:
        call(masters[0], "ACL", "DELUSER", "writer")
    assert call(masters[0], "GET", "k") is None


async def test_the_token_outlives_the_data_unless_it_gets_an_end(
    fence: RedisFence, client: Redis
) -> None:
    await fence.write(("SET", "k", "v", "PX", 1), token=5)
    await client.delete("k")
    assert await client.ttl(fence.key) == -1
    await refused(fence, 4, 5)
    for token in (5, 5, 6):
        await fence.write(("SET", "k", "v"), ("PEXPIRE", fence.key, 60_000), token=token)
        assert 50_000 < await client.pttl(fence.key) <= 60_000


async def test_the_token_comes_back_from_the_disk_with_the_data(kind: str) -> None:
    with process(kind, "--appendonly", "yes", "--appendfsync", "always") as server:
        async with Redis.from_url(server.url) as client:
            await RedisFence(client, "k").write(("SET", "k", "v"), token=5)
        server.restart()
        async with Redis.from_url(server.url) as client:
            await refused(RedisFence(client, "k"), 4, 5)
            assert await client.get("k") == b"v"


async def test_a_server_without_memory_stores_no_token_without_its_write(kind: str) -> None:
    with process(kind, "--maxmemory", "1") as server:
        async with Redis.from_url(server.url) as client:
            fence = RedisFence(client, "k")
            with pytest.raises(RedisError):
                await fence.write(("SET", "k", "v"), token=5)
            assert await client.exists("k", fence.key) == 0


async def test_the_lua_alone_refuses_by_an_error(client: Redis) -> None:
    for token in ("x", "", "1e3", str(2**53)):
        with pytest.raises(ResponseError, match="BADTOKEN"):
            await client.eval(FENCE_LUA + "redis.call('SET', 'k', 1)", 1, "fence", token)
    assert await client.exists("k", "fence") == 0
    script: Any = FENCE_LUA + "return redis.call('SET', KEYS[1], ARGV[1])"
    assert await client.eval(script, 2, "k", "fence", "v", 12) == "OK"
    with pytest.raises(ResponseError, match=r"^STALETOKEN 12"):
        await client.eval(script, 2, "k", "fence", "late", 11)
    assert await client.mget("k", "fence") == ["v", "12"]


async def test_a_cluster_has_token_and_data_in_one_slot(kind: str) -> None:
    # By default it needs the port that is 10,000 higher, which another program may have.
    bus = ("--cluster-port", str(free_port()))
    with process(kind, "--cluster-enabled", "yes", *bus) as server:
        call(server, "CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        while "cluster_state:ok" not in str(call(server, "CLUSTER", "INFO")):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        async with RedisCluster.from_url(server.url, decode_responses=True) as client:
            fence = RedisFence(client, "invoice:42")
            writes = [("SET", "invoice:42", "v"), ("SADD", "lines:{invoice:42}", "x")]
            assert await fence.write(*writes, token=2) == ["OK", 1]
            await client.script_flush()
            with pytest.raises(StaleTokenError):
                await fence.write(*writes, token=1)
            tagged = RedisFence(client, "{invoice:42}:sum")
            assert await tagged.write(("SET", "{invoice:42}:sum", 1), token=1) == ["OK"]
        keys = ("invoice:42", "lines:{invoice:42}", "{invoice:42}:sum", fence.key, tagged.key)
        assert len({call(server, "CLUSTER", "KEYSLOT", key) for key in keys}) == 1
