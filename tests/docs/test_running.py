"""The numbers on the page about running masters follow from the rules, or are measured."""

import asyncio
import contextlib
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from redlock_aio import Redlock
from redlock_aio._protocol import confirmation
from redlock_aio._rules import fencing, quorum, timing
from redlock_aio._rules.lease_state import LeaseState
from redlock_aio._transport import master as transport
from redlock_aio.testing import EmbeddedMaster

from .test_deployments import COMMANDS, CONTAINER, NAMES_KEPT, SET, settings, size, until
from .test_readme import rows, section

PAGE = (Path(__file__).parents[2] / "docs/how-to/running.md").read_text()

MONTH = 30 * 24 * 3600
AWAY = 0.001
TTLS = (1_000, 5_000, 10_000, 30_000, 60_000)
MAX_TTLS = (5_000, 10_000, 30_000, 60_000, 600_000)

Clients = tuple[EmbeddedMaster, redis.Redis]

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "`fencing=True`": {"fencing": True},
    "`fair=True`": {"fair": True},
    "both": {"fencing": True, "fair": True},
}


def quarantine(max_ttl: int = timing.MAX_TTL) -> float:
    return timing.forgetting(max_ttl, factor=timing.DRIFT_FACTOR)


def floor(seconds: float) -> float:
    """Return *seconds* with one digit, rounded down."""
    return math.floor(seconds * 10) / 10


def ceiling(seconds: float) -> float:
    """Return *seconds* with one digit, rounded up."""
    return math.ceil(round(seconds * 10, 6)) / 10


# The tables that follow from the rules.


def without_majority(masters: int) -> float:
    """Return the seconds a month for which too many masters are away."""
    needed = quorum.majority(masters)
    return MONTH * sum(
        math.comb(masters, up) * (1 - AWAY) ** up * AWAY ** (masters - up) for up in range(needed)
    )


def short(seconds: float) -> str:
    if seconds > 60:
        return f"{seconds / 60:.0f} minutes a month"
    return f"{seconds:.0f} seconds a month" if seconds > 1 else f"{seconds:.2f} seconds a month"


def test_the_table_of_numbers_of_masters() -> None:
    text = section(PAGE, "How many, and where")
    assert f"{AWAY * 100:.1f} % of the time" in text
    assert f"a month of {MONTH / 86_400:.0f} days" in text
    assert rows(text) == [
        [str(n), str(needed := quorum.majority(n)), str(n - needed), short(without_majority(n))]
        for n in range(1, 6)
    ]


def blocked_for(ttl: int) -> float:
    """Return the seconds for which the loop may stand still just before an extension is due."""
    state = LeaseState(timing.deadline(0, ttl, factor=timing.DRIFT_FACTOR), ttl, 0.01, True)
    state.schedule_renewal(0.0, chance=0.0)
    latest = state.due
    state.begin_extension(latest, ttl)
    return state.due - latest


def seconds(ms: int, *, default: int) -> str:
    text = f"{ms // 1000} s" if ms < 120_000 else f"{ms // 60_000} minutes"
    return f"{text} (default)" if ms == default else text


def test_the_table_of_ttls() -> None:
    expected = []
    for ttl in TTLS:
        validity = timing.deadline(0, ttl, factor=timing.DRIFT_FACTOR)
        after = f"{ttl / 3000:.1f} s"
        row = [f"{validity:.3f} s", after, f"{floor(blocked_for(ttl)):.1f} s", f"{ttl // 1000} s"]
        expected.append([seconds(ttl, default=timing.TTL), *row])
    assert rows(section(PAGE, "`ttl`")) == expected


def test_the_table_of_longest_ttls() -> None:
    text = section(PAGE, "`max_ttl`")
    assert rows(text) == [
        [
            seconds(ttl, default=timing.MAX_TTL),
            f"{ceiling(quarantine(ttl))} s",
            f"{ceiling(quarantine(ttl) + confirmation.CONFIRMED_FOR)} s",
        ]
        for ttl in MAX_TTLS
    ]
    assert "a restart costs less than a fifth" in text
    assert quarantine(10_000) < quarantine() / 5


# The numbers in the sentences.


def facts() -> Iterator[str]:
    """Yield all numbers with a unit that the page may contain outside of computed tables."""
    validity = timing.deadline(0, timing.TTL, factor=timing.DRIFT_FACTOR)
    yield f"{timing.TTL // 1000} s"  # a lock after its program has died
    yield f"{timing.MAX_TTL // 1000} s"
    yield f"{ceiling(quarantine())} s"
    yield f"{math.ceil(quarantine())} s"
    yield f"{floor(blocked_for(timing.TTL))} s"
    yield f"{validity:.1f} s"
    ready, available = CONTAINER["readinessProbe"]["initialDelaySeconds"], SET["minReadySeconds"]
    yield f"{ready} s"
    yield f"{available} s"
    yield f"{ready + available} s"
    yield f"{round(5 * (ready + available) / 60)} minutes"
    yield f"{math.floor(ready + available - quarantine())} s"
    yield f"{math.ceil(NAMES_KEPT + transport.LONGEST_DIAL + transport.LONGEST_DELAY)} s"
    yield f"{NAMES_KEPT} s"
    yield f"{transport.LONGEST_DIAL:.0f} s"
    yield f"{int(5 * quarantine() / 60)} minutes"
    yield f"{timing.SHORTEST_TIMEOUT} ms"
    yield f"{timing.LONGEST_TIMEOUT // 1000} s"
    yield f"{fencing.KEPT // 86_400_000} days"
    yield f"{size(settings(COMMANDS['compose'])['maxmemory']) >> 20} MB"
    yield f"{example(0)} MB"
    yield f"{example(2_000_000)} MB"


COMPUTED = ("How many, and where", "`ttl`", "`max_ttl`")
"""The sections with a table that has a test of its own."""


def test_each_number_with_a_unit_is_computed() -> None:
    text = PAGE
    for title in COMPUTED:
        table = [line for line in section(PAGE, title).splitlines() if line.startswith("|")]
        text = text.replace("\n".join(table[2:]), "")
    text = text.replace(f"{AWAY * 100:.1f} %", "").replace(f"{MONTH // 86_400} days", "")
    found = re.findall(r"\d[\d.,]* (?:ms|s|MB|days|minutes|%)(?!\w)", text)
    assert sorted(set(found)) == sorted(set(facts()))


def test_the_pause_between_two_services_is_longer_than_the_quarantine() -> None:
    (pause,) = re.findall(r"^ +sleep (\d+)$", PAGE, re.MULTILINE)
    assert int(pause) > quarantine()


def test_a_learned_timeout_fits_masters_that_are_half_a_second_away() -> None:
    trip = timing.RoundTrip(500)
    assert "more than half a second away" in section(PAGE, "`master_timeout`")
    assert 2 * trip._mean == timing.LONGEST_TIMEOUT


# What is measured on a server.


def bytes_of() -> dict[str, int]:
    """Return the bytes that the page plans for each thing."""
    table = section(PAGE, "How big a master must be").rpartition("Calculate")[2]
    return {what: int(number.replace(",", "")) for what, number in rows(table)}


def example(resources: int) -> int:
    """Return the MB of the page's example: 10,000 locks, 1,000 programs, and *resources*."""
    lock, _, resource, connection = bytes_of().values()
    return (10_000 * lock + 1_000 * connection + resources * resource) // 1_000_000


def test_the_example_of_memory_is_the_sum() -> None:
    most = size(settings(COMMANDS["compose"])["maxmemory"])
    assert example(0) * 1_000_000 < most < example(2_000_000) * 1_000_000
    text = section(PAGE, "How big a master must be")
    assert "A thousand programs that hold ten thousand locks" in text
    assert "two million different resources" in text


@pytest.fixture
def server() -> Iterator[Clients]:
    options = ["--appendonly", "yes"]
    with EmbeddedMaster(unix=True, options=options) as master, master.client() as client:
        if "valkey_version" not in client.info("server"):
            pytest.skip("the numbers of the page are those of Valkey 9")
        yield master, client


def manager(master: EmbeddedMaster) -> Redlock:
    """Return a manager that repeats nothing on a busy machine, because no master is too slow."""
    return Redlock([master.url], key_prefix="lock:", name="worker-1:9", master_timeout=5_000)


def monitored(client: redis.Redis, monitor: Any) -> list[dict[str, Any]]:
    """Return the commands of a lock that the server has executed."""
    client.echo("the end")
    seen = []
    while (command := monitor.next_command())["command"] != "ECHO the end":
        if not re.match("PING|INFO|GET redlock_aio:mar", command["command"]):
            seen.append(command)
    return seen


def table_of_pairs() -> dict[str, list[int]]:
    text = section(PAGE, "How big a master must be").partition("Calculate")[0]
    return {row[0]: [int(cell) for cell in row[1:]] for row in rows(text)}


@pytest.mark.integration
async def test_the_commands_and_bytes_of_a_pair(server: Clients) -> None:
    master, client = server
    pairs, found = 50, []
    async with manager(master) as redlock:
        for options in KINDS.values():
            requests, commands, written = await cost(redlock, client, options, pairs)
            found.append((round(requests / pairs), round(commands / pairs), written / pairs))
        client.execute_command("ACL", "SETUSER", "default", "-delifeq")
        with contextlib.suppress(redis.ConnectionError):
            client.client_kill_filter(_type="normal", skipme=True)
        without = []
        for options in KINDS.values():
            _, commands, _ = await cost(redlock, client, options, pairs)
            without.append(round(commands / pairs))
    requests_row, commands_row, sizes = table_of_pairs().values()
    assert [each[0] for each in found] == requests_row
    assert [each[1] for each in found] == commands_row
    for (*_, measured), planned in zip(found, sizes, strict=True):
        assert planned - 10 < measured <= planned + 5
    assert [b - a for a, b in zip(commands_row, without, strict=True)] == [2, 2, 0, 0]
    assert "two commands more in the first two columns" in PAGE


async def cost(
    redlock: Redlock, client: redis.Redis, options: dict[str, Any], pairs: int
) -> tuple[int, int, int]:
    """Return the requests, the commands, and the bytes in the append-only file."""
    async with redlock.lock("invoice:9999999", **options):
        pass  # loads what is loaded once
    assert len("lock:invoice:9999999") == 20
    before = length_of_file(client)
    with client.monitor() as monitor:
        for number in range(pairs):
            async with redlock.lock(f"invoice:{number:07}", **options):
                pass
        await redlock.inspect("invoice:9999999")  # the releases before it have been executed
        after = length_of_file(client)
        seen = monitored(client, monitor)
    requests = [it for it in seen if it["client_type"] != "lua"]
    return len(requests), len(seen), after - before


def length_of_file(client: redis.Redis) -> int:
    """Return the bytes of the append-only file, with those that a busy disk delays."""
    info = client.info("persistence")
    return int(info["aof_current_size"]) + int(info["aof_buffer_length"])


def used(client: redis.Redis) -> int:
    return int(client.info("memory")["used_memory"])


def check_planned(what: str, measured: float) -> None:
    """Check that the page plans for no less than was measured, and not for far more."""
    planned = bytes_of()[what]
    assert planned / 10 < measured <= planned, f"{what}: {measured:.0f} bytes"


@pytest.mark.integration
async def test_the_memory_of_locks_and_connections(server: Clients) -> None:
    master, client = server
    number, held = 500, []
    async with manager(master) as redlock:
        async with redlock.lock("invoice:9999999", ttl=60_000, fair=True, fencing=True):
            key = "lock:invoice:9999999"
            counter = str(client.get(f"redlock_aio:fence:{{{key}}}"))
            one_key = int(client.memory_usage(key) or 0)
            before = used(client)
            for index in range(number):
                lock = redlock.lock(f"invoice:{index:07}", ttl=60_000)
                held.append(await lock.acquire())
            await until(lambda: client.info("stats")["tracking_total_keys"] >= number)
            check_planned("each lock that is held", (used(client) - before) / number)
            assert 0 < one_key < bytes_of()["each lock that is held"]
            before = used(client)
            lock = redlock.lock("invoice:9999999", fair=True, fencing=True)
            waiters = [asyncio.create_task(lock.acquire()) for _ in range(number)]
            queue = f"redlock_aio:queue:{{{key}}}"
            await until(lambda: client.zcard(queue) == 2 * number)  # a place and a time each
            await asyncio.sleep(0.3)  # each asks once more when it hears of wake-ups
            check_planned("each waiter of a fair lock", (used(client) - before) / number)
            for waiter in waiters:
                waiter.cancel()
            await asyncio.wait(waiters)
        await asyncio.gather(*[lease.release() for lease in held])
    counters = "each resource that was locked with fencing in the last 7 days"
    for many in (0, 10_000):  # the first round makes the buffers as large as they get
        before = used(client)
        with client.pipeline(transaction=False) as pipeline:
            for index in range(10_000):
                pipeline.set(f"redlock_aio:fence:{{{many + index:020}}}", counter, px=10**6)
            pipeline.execute()
    check_planned(counters, (used(client) - before) / 10_000)
    await check_connections(master, client)


async def check_connections(master: EmbeddedMaster, client: redis.Redis) -> None:
    before, managers = used(client), [Redlock([master.url]) for _ in range(50)]
    for each in managers:
        async with each.lock("a"):
            pass
    check_planned("each connection", (used(client) - before) / len(managers))
    for each in managers:
        await each.aclose()
    assert client.config_get("maxclients") == {"maxclients": "10000"}
    assert "accepts 10,000 connections" in PAGE
