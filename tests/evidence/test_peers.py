"""The locks of other libraries behind the interface of the evidence, on real masters."""

import asyncio
import dataclasses
import json
import logging
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from evidence import peers_base
from evidence.checker import check
from evidence.job import Job
from evidence.locks import MS, Contestant, Locks, Setting
from evidence.peers_go import Redsync, is_built
from evidence.peers_node import NodeRedlock, is_installed
from evidence.peers_one_master import PythonRedisLock, RedisPy
from evidence.peers_quorum import Aioredlock, Pottery
from evidence.recorder import now

from redlock_aio.testing import EmbeddedMaster, embedded_masters

TTL = 1_000
WAIT = 20_000
SETTING = Setting(max_ttl=TTL)


def installed(contestant: Contestant, module: str) -> Any:
    missing = find_spec(module) is None
    mark = pytest.mark.skipif(missing, reason="the extra `peers` is not installed")
    return pytest.param(contestant, marks=mark, id=contestant.name)


ALL = [
    installed(RedisPy(), "redis"),
    installed(PythonRedisLock(), "redis_lock"),
    installed(Pottery(), "pottery"),
    installed(Aioredlock(), "aioredlock"),
]
NOTING = [each for each in ALL if each.id in {"redis-py", "aioredlock"}]
"""Those whose first request acquires, and whose promise counts from it."""

EXTENDING = [each for each in ALL if each.id in {"python-redis-lock", "aioredlock"}]


@pytest.fixture
def masters() -> Iterator[list[EmbeddedMaster]]:
    with embedded_masters() as masters:
        yield masters


def urls(masters: list[EmbeddedMaster]) -> list[str]:
    return [master.url for master in masters]


# aioredis is older than the warnings that Python gives it now.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

# ----------------------------------------------------------------------- the libraries


@pytest.mark.integration
@pytest.mark.parametrize("peer", ALL)
async def test_a_peer_excludes_others(peer: Contestant, masters: list[EmbeddedMaster]) -> None:
    inside, most, turns = 0, 0, 0

    async def work(locks: Locks) -> None:
        nonlocal inside, most, turns
        for _ in range(3):
            held = await locks.acquire(["r"], TTL, WAIT, auto_extend=False)
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.01)
            inside -= 1
            turns += 1
            await held.release()

    async with (
        peer.open(urls(masters), SETTING) as one,
        peer.open(urls(masters), SETTING) as other,
        asyncio.TaskGroup() as tasks,
    ):
        for locks in (one, one, other):
            tasks.create_task(work(locks))
    assert (most, turns) == (1, 9)


@pytest.mark.integration
@pytest.mark.parametrize("peer", ALL)
async def test_a_peer_leaves_no_key(peer: Contestant, masters: list[EmbeddedMaster]) -> None:
    async with peer.open(urls(masters), SETTING) as locks:
        held = await locks.acquire(["r"], TTL, WAIT, auto_extend=True)
        assert sum(bool(list(master.client().scan_iter("*r"))) for master in masters) in {1, 5}
        await held.release()
        names = [key for master in masters for key in master.client().scan_iter("*r")]
    assert [name for name in names if not name.startswith("lock-signal:")] == []


@pytest.mark.integration
@pytest.mark.parametrize("peer", NOTING)
async def test_a_promise_counts_from_the_request(
    peer: Contestant, masters: list[EmbeddedMaster]
) -> None:
    async with peer.open(urls(masters), SETTING) as locks:
        # Connected, so that the next request is sent at once.
        await (await locks.acquire(["warm"], TTL, WAIT, auto_extend=False)).release()
        for master in masters:
            master.pause()
        acquiring = asyncio.create_task(locks.acquire(["r"], TTL, WAIT, auto_extend=False))
        await asyncio.sleep(0.3)
        resumed_at = now()
        for master in masters:
            master.resume()
        held = await acquiring
        assert held.until <= resumed_at + TTL * MS
        assert held.until >= resumed_at - 300 * MS
        await held.release()


@pytest.mark.integration
@pytest.mark.parametrize("peer", ALL)
async def test_a_promise_is_not_longer_than_the_key_lives(
    peer: Contestant, masters: list[EmbeddedMaster]
) -> None:
    used = masters[: peer.masters]
    async with peer.open(urls(masters), SETTING) as locks:
        held = await locks.acquire(["r"], TTL, WAIT, auto_extend=False)
        await asyncio.sleep(0.2)
        until = held.until
        left = [max(master.client().pttl(key) for key in _keys(master)) for master in used]
        assert until <= now() + (sorted(left)[len(left) // 2] + 1) * MS
        await held.extend(TTL)
        assert held.until > until
        await held.release()


def _keys(master: EmbeddedMaster) -> list[str]:
    return list(master.client().scan_iter("*r")) or ["none"]


@pytest.mark.integration
@pytest.mark.parametrize("peer", EXTENDING)
async def test_a_peer_extends_by_itself(peer: Contestant, masters: list[EmbeddedMaster]) -> None:
    async with peer.open(urls(masters), SETTING) as locks:
        held = await locks.acquire(["r"], TTL, WAIT, auto_extend=True)
        first, ends = held.until, time.monotonic() + 20
        while held.until == first and time.monotonic() < ends:  # noqa: ASYNC110 - tells nobody
            await asyncio.sleep(0.05)
        assert held.until > first
        await held.release()


def test_errors_of_masters_are_reported_again_after_a_run() -> None:
    report = threading.excepthook
    with peers_base.quiet():
        assert not logging.getLogger("pottery").isEnabledFor(logging.CRITICAL)
    assert logging.getLogger("pottery").isEnabledFor(logging.CRITICAL)
    assert threading.excepthook is report


def start(
    peer: Contestant,
    masters: list[EmbeddedMaster],
    folder: Path,
    *,
    seconds: float,
    clients: int = 2,
    **facts: Any,
) -> list[subprocess.Popen[bytes]]:
    """Start client processes that work for some seconds; the last of the masters is the store."""
    *five, store = masters
    (folder / "until").write_text(str(now() + int(seconds * 1000) * MS))
    job = Job(str(folder), peer.name, tuple(urls(five)), store.url, seed=1, keys=("red",))
    dataclasses.replace(job, **{"tasks": 2, **facts}).write(folder / "job.json")
    environment = dict(os.environ) | {"BOOTTIME_OFFSET": str(now() - time.monotonic_ns())}
    return [
        subprocess.Popen([*peer.command, str(folder / "job.json"), f"w{number}"], env=environment)
        for number in range(clients)
    ]


@pytest.mark.integration
@pytest.mark.parametrize(
    "peer",
    [
        pytest.param(
            NodeRedlock(),
            id="Node",
            marks=pytest.mark.skipif(
                not is_installed(), reason="Node or the packages of worker.mjs are missing"
            ),
        ),
        pytest.param(
            Redsync(),
            id="Go",
            marks=pytest.mark.skipif(not is_built(), reason="worker.go is not built"),
        ),
    ],
)
def test_a_process_in_another_language_writes_a_history(peer: Contestant, tmp_path: Path) -> None:
    assert all(version[0].isdigit() or version[0] == "v" for version in peer.versions().values())
    with embedded_masters(6) as masters:
        processes = start(peer, masters, tmp_path, seconds=4, extend=0.5)
        assert [process.wait(60) for process in processes] == [0, 0]
    (tmp_path / "meta.json").write_text(json.dumps({"masters": 5}))
    verdict = check(tmp_path)
    assert verdict.acquired > 1
    assert verdict.checks["updates"].checked > 1
    assert verdict.holds
    assert ("extend" in verdict.operations) == ("extend" in peer.abilities)


def wait_for(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.01)


@pytest.mark.integration
@pytest.mark.skipif(not is_built(), reason="worker.go is not built")
@pytest.mark.parametrize(("gone", "hanging", "lost"), [(3, 0, True), (2, 1, False)])
def test_redsync_has_lost_a_lock_if_a_majority_says_so(
    tmp_path: Path, gone: int, hanging: int, lost: bool
) -> None:
    with embedded_masters(6) as masters:
        # Without contention, each of the masters has the key.
        processes = start(
            Redsync(),
            masters,
            tmp_path,
            seconds=3,
            tasks=1,
            body=(0.5, 0.5),
            long=0.0,
            extend=0.0,
            clients=1,
        )
        history = tmp_path / "w0.jsonl"
        wait_for(lambda: history.exists() and '"held"' in history.read_text())
        for master in masters[:gone]:
            master.client().delete("red")
        for master in masters[gone : gone + hanging]:
            master.pause()
        wait_for(lambda: '"how":"fail"' in history.read_text())
        for master in masters[gone : gone + hanging]:
            master.resume()
        assert [process.wait(60) for process in processes] == [0]
    assert ('"NotHeld: ' in history.read_text()) == lost
