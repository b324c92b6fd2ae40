"""What the tests of several resources that are locked together share."""

import asyncio
from typing import Any

import pytest

from redlock_aio import Redlock, Retry
from redlock_aio.testing import FakeMaster

LATENCY = 0.001
NEVER = Retry(min_delay=3_600_000, max_delay=3_600_000)
"""Nobody who waits with it tries again by itself: only being woken explains that."""

Kind = dict[str, Any]
KINDS: list[Kind] = [{}, {"fencing": True}, {"fair": True}, {"fair": True, "fencing": True}]
KIND = pytest.mark.parametrize("kind", KINDS, ids=["plain", "fenced", "fair", "fair and fenced"])


def now() -> float:
    return asyncio.get_running_loop().time()


def locks(masters: list[FakeMaster]) -> dict[str, str]:
    """Return all locks that any master has."""
    found = {key: value for master in masters for key, value in master.keys.items()}
    return {key: value for key, value in found.items() if not key.startswith("redlock_aio:")}


async def got(redlock: Redlock, *names: str, **options: Any) -> float:
    """Return when the lock was had."""
    async with redlock.lock(*names, **{"retry": NEVER} | options):
        return now()


async def check_nothing_stays(managers: list[Redlock], masters: list[FakeMaster]) -> None:
    """See that no key of a lock is left but those of strangers, and nobody in a line."""
    for master in masters:
        master.resume()
    await asyncio.sleep(0.2)
    assert not [value for value in locks(masters).values() if "their" not in value]
    for manager in managers:
        assert all(line.idle for line in manager._opener.session().masters.lines.values())
