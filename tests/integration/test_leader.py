"""The recipe for leader election: who leads after each failure."""

import asyncio
import signal
from pathlib import Path

import pytest

from .helpers import RealMaster
from .recipes import EXAMPLES, Place, Program, running

pytestmark = [pytest.mark.full, pytest.mark.integration, pytest.mark.usefixtures("members")]


@pytest.fixture(scope="session")
def kind() -> str:
    return "valkey"  # what a recipe does depends on no kind of server


async def leads(host: Program, name: str) -> int:
    """Wait until *host* leads, and return the number of its term."""
    before = len(host.output)
    await host.says(f"{name} leads, term", host.output.count(f"{name} leads, term") + 1)
    return int(host.output[before:].rpartition("term ")[2])


@pytest.mark.parametrize("failure", ["stopped", "killed", "frozen"])
async def test_another_host_leads_after_a_failure(
    masters: list[RealMaster], tmp_path: Path, failure: str
) -> None:
    """Its term has a higher number. Stopping releases the lock; else its ttl has to be over."""
    command = str(EXAMPLES / "leader.py")
    at = Place(masters, tmp_path)
    ttl = "60000" if failure == "stopped" else "2000"
    async with running(command, HOST_NAME="one", TTL_MS=ttl, TURNS="100000", at=at) as one:
        term = await leads(one, "one")
        async with running(command, HOST_NAME="two", TTL_MS=ttl, TURNS="100000", at=at) as two:
            if failure == "stopped":
                assert await one.ends(signal.SIGTERM) == 0
                assert one.output.endswith("one is stopped\n")
            else:
                one.send(signal.SIGKILL if failure == "killed" else signal.SIGSTOP)
            async with asyncio.timeout(30 if failure == "stopped" else None):
                assert await leads(two, "two") > term
            if failure == "frozen":
                one.send(signal.SIGCONT)
                await one.says("one leads no more: 'leader' lost")
                two.send(signal.SIGKILL)
                assert await leads(one, "one") > term + 1


async def test_a_leader_that_is_cut_off_leads_no_more(
    masters: list[RealMaster], tmp_path: Path
) -> None:
    """A minority of masters may fail. Without a majority nobody leads, and later somebody does."""
    command, at = str(EXAMPLES / "leader.py"), Place(masters, tmp_path)
    async with running(command, HOST_NAME="one", TTL_MS="3000", TURNS="100000", at=at) as one:
        term = await leads(one, "one")
        for master in masters[:2]:
            master.pause()
        await one.says("one leads", 60)  # for longer than the ttl
        masters[2].pause()
        await one.says("one leads no more: 'leader' lost")
        for master in masters[:3]:
            master.resume()
        assert await leads(one, "one") > term
