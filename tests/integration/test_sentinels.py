"""Real Sentinels: failovers, split brains and unreachable Sentinels never give two holders."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio
from evidence.servers import SERVICE

from redlock_aio import Answer, LockNotAcquiredError, Redlock, Vote
from redlock_aio._protocol.confirmation import CONFIRMED_FOR
from redlock_aio._rules import timing

from .helpers import until
from .holders import QUICK_RETRY, competing, now
from .sentinels import CLIENTS, ClientView, Site, need_addresses, view

MAX_TTL = 1_000
QUARANTINE = timing.forgetting(MAX_TTL, factor=timing.DRIFT_FACTOR)
A, B = sorted(CLIENTS)
SECRET = "p@ss/w:rd,1"
SECRET_IN_URL = "p%40ss%2Fw%3Ard,1"

pytestmark = pytest.mark.promise("S1")


@pytest.fixture(scope="module")
def kind() -> str:
    """Return one kind of server; most of these tests are the same on all kinds."""
    return "redis"


@pytest.fixture
async def site(kind: str, tmp_path: Path) -> AsyncIterator[Site]:
    need_addresses()
    async with contextlib.AsyncExitStack() as stack:
        site = Site(kind, tmp_path)
        await site.start(stack)
        yield site


@contextlib.asynccontextmanager
async def program(site: Site, caller: str = A) -> AsyncIterator[tuple[Redlock, ClientView]]:
    """Open a manager whose only master is the one that the Sentinels name."""
    async with (
        view(site, caller) as seen,
        Redlock([seen.client], max_ttl=MAX_TTL, master_timeout=300) as redlock,
    ):
        # A server that has just been started is quarantined at first.
        async with redlock.lock("first", ttl=MAX_TTL, wait=30_000, retry=QUICK_RETRY):
            pass
        yield redlock, seen


async def attempt(redlock: Redlock, name: str = "probe") -> Vote:
    """Return the master's vote on one attempt; a lock that it grants is released."""
    try:
        async with redlock.lock(name, wait=0, ttl=MAX_TTL) as lease:
            return lease.votes[0]
    except LockNotAcquiredError as error:
        return error.votes[0]


@pytest.mark.full
async def test_a_split_brain_has_one_holder(site: Site) -> None:
    """A is on the side of the old master and one Sentinel, B on that of the two others."""
    async with program(site) as (a, near_old), program(site, B) as (b, near_new):
        async with competing({"a": a, "b": b}) as holders:
            await asyncio.sleep(0.5)
            site.cut_off_old(with_sentinels=[2], with_clients=[near_old])
            near_new.proxies[2].stall()
            for proxy in near_old.proxies[:2]:
                proxy.stall()
            cut = now()
            await site.switched(0, 1)
            switched = now()
            assert site.named_by(2) == "old"
            await asyncio.sleep(QUARANTINE + CONFIRMED_FOR + 1.5)
            # B acquires locks of the new master; how soon depends on how busy the machine is.
            await until(lambda: holders.count("b", switched) >= 10, 30)
        assert holders.count("a", cut + CONFIRMED_FOR) == 0
        assert "1 of 3 Sentinels confirm" in (await attempt(a)).detail


@pytest.mark.full
async def test_an_old_master_that_only_clients_reach_has_no_vote(site: Site) -> None:
    """All Sentinels see it fail and name another master; the old master is not told."""
    async with program(site) as (a, near_old), program(site, B) as (b, _):
        async with competing({"a": a, "b": b}) as holders:
            site.cut_off_old(between=[near_old])
            await site.switched(0, 1, 2)
            switched = now()
            await asyncio.sleep(QUARANTINE + CONFIRMED_FOR + 1.5)
            # Both acquire locks of the new master; the first one may hold all of them for a ttl.
            await until(
                lambda: all(holders.count(who, switched + QUARANTINE) > 0 for who in ("a", "b")), 30
            )
        with contextlib.closing(site.servers["old"].client()) as client:
            assert client.role()[0] == "master"


@pytest.mark.parametrize("kind", ["redis", "valkey"], scope="module")
@pytest.mark.full
async def test_a_planned_failover_costs_the_quarantine_and_the_bound(site: Site) -> None:
    """The failover is seen at once; the promoted master votes when its quarantine is over."""
    async with program(site) as (a, near), program(site, B) as (b, _):
        async with competing({"a": a, "b": b}) as holders:
            await asyncio.sleep(0.3)
            await near.manager.sentinels[0].execute_command("SENTINEL FAILOVER mine")
            began = now()
            await site.switched(0, 1, 2)
            switched = now()

            async def is_quarantined() -> bool:
                vote = await attempt(a)
                return vote.answer is Answer.QUARANTINED and "it votes again in" in vote.detail

            await until(is_quarantined)  # as soon as it is connected
            async with a.lock("late", ttl=MAX_TTL, retry=QUICK_RETRY):
                late = now()
            assert late > began + QUARANTINE + CONFIRMED_FOR
            assert late < switched + QUARANTINE + CONFIRMED_FOR + 5
            await asyncio.sleep(0.5)
        since = began + QUARANTINE + CONFIRMED_FOR
        assert holders.count("a", since) + holders.count("b", since) > 0


async def test_a_url_names_a_master_behind_sentinels(site: Site) -> None:
    """A failover, logins of the Sentinels and of the master, and a Sentinel that is down."""
    for number, sentinel in enumerate(site.sentinels):
        where = redis.asyncio.Redis(port=sentinel.port)
        await where.acl_setuser("watch", enabled=True, passwords=[f"+{SECRET}"], commands=["+@all"])
        await where.aclose()
        assert site.named_by(number) == "old"
    for server in site.servers.values():
        async with redis.asyncio.Redis(port=server.port) as where:
            await where.execute_command(
                "ACL", "SETUSER", "app", "on", f">{SECRET}", "~*", "&*", "+@all"
            )
    hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in site.sentinels)
    url = f"redis+sentinel://app:{SECRET_IN_URL}@{hosts}/{SERVICE}"
    url += f"?sentinel_username=watch&sentinel_password={SECRET_IN_URL}"
    async with Redlock([url], max_ttl=MAX_TTL, master_timeout=300) as redlock:
        lock = redlock.lock("r", ttl=MAX_TTL, wait=60_000, retry=QUICK_RETRY)
        async with lock:
            assert "app" in await users_at(site.servers["old"].port)
            assert "watch" in await users_at(site.sentinels[0].port)
        await until(lambda: can_fail_over(site), within=60)
        await site.switched(0, 1, 2)

        async def holds_at_the_new_master() -> bool:
            async with lock:
                return "app" in await users_at(site.servers["new"].port)

        await until(holds_at_the_new_master, within=60)
        site.sentinels[2].server.kill()
        async with lock:
            assert "app" in await users_at(site.servers["new"].port)


async def users_at(port: int) -> set[str]:
    """Return the users of the connections to a server."""
    async with redis.asyncio.Redis(port=port, decode_responses=True) as client:
        return {each["user"] for each in await client.client_list()}


async def can_fail_over(site: Site) -> bool:
    """Start a failover; return whether the Sentinel has begun it."""
    async with redis.asyncio.Redis(port=site.sentinels[0].port) as sentinel:
        with contextlib.suppress(redis.ResponseError):  # it has no good replica yet
            await sentinel.execute_command("SENTINEL", "FAILOVER", SERVICE)
            return True
    return False


@pytest.mark.full
async def test_a_wrong_login_in_a_url_is_told_without_it(site: Site) -> None:
    hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in site.sentinels)
    wrong = f"sentinel_password={SECRET_IN_URL}"
    for url, where in (
        (f"redis+sentinel://{hosts}/{SERVICE}?sentinel_username=x&{wrong}", "0 of 3 Sentinels"),
        (f"redis+sentinel://x:{SECRET_IN_URL}@{hosts}/{SERVICE}", "username-password"),
        (f"redis+sentinel://{hosts}/another", "knows no master of that name"),
    ):
        async with Redlock([url], max_ttl=MAX_TTL, master_timeout=300) as redlock:
            with pytest.raises(LockNotAcquiredError) as caught:
                await redlock.lock("r", ttl=MAX_TTL, wait=2_000).acquire()
            text = str(caught.value) + repr(caught.value.votes) + repr(redlock.statistics())
        assert where in text
        assert SECRET not in text
        assert SECRET_IN_URL not in text


@pytest.mark.full
async def test_the_command_line_takes_such_a_url(site: Site) -> None:
    """`doctor` examines the master that a majority of the Sentinels names."""
    hosts = [f"127.0.0.1:{sentinel.port}" for sentinel in site.sentinels]
    url = f"redis+sentinel://{','.join(hosts)}/{SERVICE}"
    lock = ["run", "--max-ttl", "1s", "--ttl", "1s", "job", "--", "echo", "done"]
    code, out, _ = await redlock_command(url, *lock)
    assert (code, out) == (0, "done\n")
    code, found, facts = await doctor(url)
    assert (code, found) == (0, {"single": "there is one master"})
    assert facts["votes"]
    assert facts["master"] == f"{SERVICE} (by Sentinel {hosts[0]})"
    assert facts["role"] == "master"

    _, found, _ = await doctor(f"redis+sentinel://{hosts[0]},{hosts[1]}/{SERVICE}")
    assert "know of 3, but 2 were named" in found["sentinels"]
    _, found, facts = await doctor(f"redis+sentinel://{','.join(hosts)}/another")
    assert set(found) == {"single", "unconfirmed", "no-majority"}
    assert "knows no master of that name" in found["unconfirmed"]
    assert facts["role"] is None
    _, found, _ = await doctor(url.replace("redis+", "rediss+"))
    assert set(found) == {"single", "tls", "no-majority"}
    assert found["tls"].endswith("the URL wants TLS, and the port answers without it")
    site.sentinels[2].server.kill()
    _, found, _ = await doctor(url)
    assert set(found) == {"single", "sentinel"}
    assert f"{hosts[2]} (Connection refused at {hosts[2]})" in found["sentinel"]
    site.sentinels[1].server.kill()
    _, found, _ = await doctor(url)
    assert set(found) == {"single", "unconfirmed", "no-majority"}


async def redlock_command(masters: str, *arguments: str) -> tuple[int | None, str, str]:
    """Run `redlock`; return its exit code, and what it wrote to stdout and stderr."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "redlock_aio", *arguments),
        env={**os.environ, "REDLOCK_MASTERS": masters},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(120):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode, out.decode(), err.decode()


async def doctor(masters: str) -> tuple[int | None, dict[str, str], dict[str, Any]]:
    """Return the exit code of `redlock doctor`, its findings, and the facts about the master."""
    slow = ["--ignore", "slow", "--ignore", "too-slow"]  # this machine may be busy
    options = ["--json", "--max-ttl", "1s", "--timeout", "20s"]
    code, out, _ = await redlock_command(masters, "doctor", *options, *slow)
    *found, last = map(json.loads, out.splitlines())
    (facts,) = last["masters"]
    return code, {each["finding"]: each["message"] for each in found}, facts
