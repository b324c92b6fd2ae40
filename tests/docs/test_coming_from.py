"""The page for users of other locks names calls that exist."""

import ast
import inspect
import re
from pathlib import Path

import pytest

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
