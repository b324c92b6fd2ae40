"""The page for users of other locks names calls that exist."""

import ast
import inspect
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio as aioredis

from redlock_aio import (
    Election,
    Holder,
    Lease,
    Lock,
    LockNotAcquiredError,
    Redlock,
    Semaphore,
    Term,
)
from redlock_aio.testing import embedded_masters

KINDS = {
    "redlock": Redlock, "lock": Lock, "lease": Lease, "holder": Holder, "election": Election,
    "term": Term, "semaphore": Semaphore,
}  # fmt: skip

THERE = {
    "Redisson": "lock() tryLock(wait,lease) unlock() forceUnlock() isLocked() getHoldCount()"
    " isHeldByCurrentThread() lockWatchdogTimeout wake-up execute",
    "RheaKV": "tryLock(ctx) watchdog getFencingToken() losers",
    "DisGo": "order wake-up spin watchdog",
    "Semaphores": "trySetPermits(5) acquire(leaseTime,unit) updateLeaseTime(permitId,...)"
    " availablePermits() AcquireAsync() GetCurrentCountAsync() InterProcessSemaphoreV2("
    " returnLease(lease) getParticipantNodes() RedlockSemaphore( onLockLost AsyncSemaphore(",
    "Elections": "LeaderLatch( takeLeadership(client) hasLeadership() autoRequeue() Campaign("
    " Proclaim( Resign( Observe( Rev() OnStartedLeading(ctx) OnStoppedLeading() OnNewLeader("
    " ReleaseOnCancel",
}
"""The calls of other libraries for which the page must have a row."""


@pytest.fixture
def page(root: Path) -> str:
    return (root / "docs" / "how-to" / "migrating.md").read_text()


def rows(page: str) -> list[list[str]]:
    lines = [line for line in page.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if row[0] not in ("there", "---")]


@pytest.mark.parametrize("system", THERE)
def test_each_call_of_another_library_has_its_row(page: str, system: str) -> None:
    _, _, rest = page.partition(f"\n## {system}")
    there = [row[0].replace(" ", "") for row in rows(rest.partition("\n## ")[0])]
    for name in THERE[system].split():
        assert any(name in cell for cell in there), f"{system}: {name}"


@asynccontextmanager
async def lock_of(library: str, urls: list[str]) -> AsyncIterator[Any]:
    """Yield a lock of another library, whose methods may be coroutines or not."""
    if library == "pottery":
        clients = {aioredis.Redis.from_url(url) for url in urls}
        kind = pytest.importorskip("pottery").AIORedlock
        yield kind(key="invoice:42", masters=clients, auto_release_time=60)
        for client in clients:
            await client.aclose()
        return
    with redis.Redis.from_url(urls[0]) as client:
        if library == "redis-py":
            yield client.lock("invoice:42", timeout=60)
        else:
            yield pytest.importorskip("redis_lock").Lock(client, "invoice:42", expire=60)


async def done(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result


@pytest.mark.integration
@pytest.mark.parametrize("library", ["redis-py", "python-redis-lock", "pottery"])
async def test_programs_of_both_kinds_exclude_each_other(page: str, library: str) -> None:
    text = page.partition("\n## While programs of both kinds run")[2].partition("\n## ")[0]
    (row,) = [row for row in rows(text) if row[0].startswith(library)]
    prefix = re.search(r'key_prefix="(.*?)"', row[1])
    with embedded_masters(1 if row[2] == "that one server" else 3) as servers:
        urls = [server.url for server in servers]
        async with (
            Redlock(urls, key_prefix=prefix[1] if prefix else "") as redlock,
            lock_of(library, urls) as there,
        ):
            async with redlock.lock("invoice:42"):
                assert not await done(there.acquire(blocking=False))
            assert await done(there.acquire(blocking=False))
            assert await redlock.lock("invoice:42").try_acquire() is None
            await done(there.release())
            async with redlock.lock("invoice:42"):
                pass


def test_every_row_names_its_counterpart(page: str) -> None:
    for row in rows(page):
        assert "`" in row[1] or row[1] in ("nothing to do", "cancel the task"), row


def test_every_name_and_option_on_the_page_exists(page: str) -> None:
    code = re.findall(r"`([^`]+)`", " ".join(row[1] + " " + row[-1] for row in rows(page)))
    assert len(code) > 40
    checked = 0
    for snippet in code:
        for name, attribute in re.findall(rf"\b({'|'.join(KINDS)})\.(\w+)", snippet):
            assert hasattr(KINDS[name], attribute) or attribute in _fields(KINDS[name]), snippet
            checked += 1
        for call in re.findall(r"redlock\.election\(.*?\)(?=[`:.,]|$)", snippet):
            assert _options(call) <= {*inspect.signature(Redlock.election).parameters}, snippet
        for call in re.findall(r"redlock\.semaphore\(.*?\)(?=[`:.,]|$)", snippet):
            assert _options(call) <= {*inspect.signature(Redlock.semaphore).parameters}, snippet
        for call in re.findall(r"redlock\.(?:lock|locked)\(.*?\)(?=[`:.,]|$)", snippet):
            options = _options(call)
            known = {*inspect.signature(Redlock.lock).parameters, "skip_if_locked"}
            assert options <= known, snippet
    assert checked > 30
    assert "holder" in inspect.signature(LockNotAcquiredError.__init__).parameters


def _fields(kind: type) -> set[str]:
    return set(getattr(kind, "__dataclass_fields__", ()))


def _options(call: str) -> set[str]:
    (expression,) = ast.parse(call).body
    assert isinstance(expression, ast.Expr)
    assert isinstance(expression.value, ast.Call)
    return {keyword.arg for keyword in expression.value.keywords if keyword.arg is not None}
