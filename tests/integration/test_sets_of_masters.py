"""Programs in processes of their own that name different sets of real masters."""

import asyncio
import contextlib
import itertools
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from redlock_aio import QuorumUnavailableError, Redlock
from redlock_aio._rules import timing
from redlock_aio._rules.membership import LIVES
from redlock_aio.testing import EmbeddedMaster

from .helpers import call, until, up
from .servers import process

pytestmark = [pytest.mark.integration, pytest.mark.promise("S1")]

MAX_TTL = 1_000
QUARANTINE = timing.forgetting(MAX_TTL, factor=timing.DRIFT_FACTOR)

PROGRAM = """
import asyncio, pathlib, sys, time
from redlock_aio import Redlock

async def main(path, *masters):
    diary = pathlib.Path(path)
    async with Redlock(masters, max_ttl=1_000, master_timeout=200) as redlock:
        while True:
            async with redlock.lock("busy", ttl=300) as lease:
                began = time.monotonic()
                await asyncio.sleep(0.002)
                lease.ensure_valid()
                with diary.open("a") as file:
                    file.write(f"{began} {time.monotonic()}\\n")
            await asyncio.sleep(0.002)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture
def servers(kind: str) -> Iterator[list[EmbeddedMaster]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(process(kind)) for _ in range(6)]


def named(masters: list[EmbeddedMaster]) -> list[str]:
    return [master.url for master in masters]


class Program:
    """A process that locks, and records the times in which it held the lock."""

    def __init__(self, record: Path) -> None:
        self.record = record
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, masters: list[EmbeddedMaster]) -> None:
        command = (sys.executable, "-P", "-c", PROGRAM, str(self.record), *named(masters))
        self._process = await asyncio.create_subprocess_exec(
            *command, stderr=asyncio.subprocess.DEVNULL
        )

    async def stop(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    def held(self) -> list[tuple[float, float]]:
        lines = self.record.read_text().splitlines() if self.record.exists() else []
        return [(float(line.split()[0]), float(line.split()[1])) for line in lines]

    async def works(self) -> None:
        """Wait until it acquires the lock again."""
        before = len(self.held())
        await until(lambda: len(self.held()) > before, within=20)


@pytest.fixture
async def programs(tmp_path: Path) -> AsyncIterator[list[Program]]:
    started = [Program(tmp_path / f"{number}") for number in range(3)]
    yield started
    for program in started:
        await program.stop()


def in_turns(programs: list[Program]) -> bool:
    """Return whether no two programs held the lock at the same time."""
    held = sorted(each for program in programs for each in program.held())
    return all(one[1] <= other[0] for one, other in itertools.pairwise(held))


@pytest.mark.full
async def test_a_swap_needs_the_masters_of_those_that_were_first(
    servers: list[EmbeddedMaster], programs: list[Program]
) -> None:
    a, b, c, d, _, _ = servers
    await programs[0].start([a, b, c])
    await programs[0].works()
    await programs[1].start([a, b, d])
    await programs[1].works()
    async with Redlock(named([a, b, d]), max_ttl=MAX_TTL, master_timeout=500) as swapped:
        await until(lambda: up(swapped) == 3, within=30)
        await asyncio.sleep(QUARANTINE)
        assert [master.votes for master in swapped.statistics().masters] == [True, True, False]
        async with Redlock(named([d, a]), max_ttl=MAX_TTL, master_timeout=500) as wrong:
            with pytest.raises(QuorumUnavailableError) as refused:
                await wrong.lock("r", wait=0).acquire()
            for master in (a, b, c, d):
                assert f"127.0.0.1:{master.port}" in str(refused.value)
            assert "the page how-to/replace-a-master of the documentation" in refused.value.hint
        for program in programs[:2]:
            await program.works()
            await program.stop()
        assert in_turns(programs[:2])
        await until(lambda: swapped.statistics().masters[2].votes, within=30)
    await asyncio.sleep(QUARANTINE * LIVES)
    for master in (a, b, c, d):
        assert call(master, "PTTL", "redlock_aio:masters:") < QUARANTINE * 1000


@pytest.mark.full
async def test_three_sets_in_a_cycle_never_give_a_lock_to_two(
    servers: list[EmbeddedMaster], programs: list[Program]
) -> None:
    x, y, z, p, q, w = servers
    for program, masters in zip(programs, ([x, y, p], [y, z, q], [z, x, w]), strict=True):
        await program.start(masters)
    await until(lambda: any(program.held() for program in programs), within=30)
    await asyncio.sleep(5 * QUARANTINE)
    for program in programs:
        await program.stop()
    assert in_turns(programs)
