"""The two ways back from the loss of a majority, as the page about replacing masters has them."""

import asyncio
import re
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from redlock_aio import Redlock
from redlock_aio.testing import FakeMaster, VirtualTimeLoop


@pytest.fixture
def seconds(root: Path) -> list[int]:
    """Return the times that the page gives for both ways."""
    page = (root / "docs" / "how-to" / "replace-a-master.md").read_text()
    text = page.partition("\n## If a majority is gone for good")[2].partition("\n## ")[0]
    return [int(number) for number in re.findall(r"(\d+) s", text)]


def run(coroutine: Coroutine[Any, Any, float]) -> float:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(coroutine)


async def lost(masters: list[FakeMaster]) -> None:
    """Kill the first three, when all have been used."""
    for master in masters[:3]:
        master.kill()
    await asyncio.sleep(600)


async def acquired(redlock: Redlock) -> float:
    """Return the seconds until a lock is acquired."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with redlock.lock("r"):
        return loop.time() - began


async def at_the_old_addresses() -> float:
    masters = [FakeMaster(name) for name in "abcde"]
    async with Redlock(masters) as redlock:
        await acquired(redlock)
        await lost(masters)
        for master in masters[:3]:
            master.restart()
        return await acquired(redlock)


async def with_another_list() -> float:
    masters = [FakeMaster(name) for name in "abcde"]
    new = [*masters[3:], *map(FakeMaster, "fgh")]
    async with Redlock(masters) as redlock:
        await acquired(redlock)
        await lost(masters)
        with pytest.raises(TimeoutError):
            async with Redlock(new) as other, asyncio.timeout(600):
                await acquired(other)
    async with Redlock(new) as redlock:
        return await acquired(redlock)


def test_empty_servers_at_the_old_addresses_vote_after_a_quarantine(seconds: list[int]) -> None:
    assert seconds[0] - 1 < run(at_the_old_addresses()) < seconds[0] + 1


@pytest.mark.full
def test_another_list_waits_for_the_end_of_the_old_programs(seconds: list[int]) -> None:
    assert seconds[0] < run(with_another_list()) <= seconds[1]
