"""Commands that look at masters which hang: for how long they wait, in virtual time."""

import re
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from redlock_aio import Redlock
from redlock_aio.cli import look, release
from redlock_aio.cli.exits import Exit
from redlock_aio.cli.frame import MAJORITY, MINORITY, Common, Frame
from redlock_aio.cli.output import Output
from redlock_aio.cli.redaction import Redaction
from redlock_aio.errors import QuorumUnavailableError
from redlock_aio.testing import FakeMaster

from .kit import LATENCY, hang, kill, now, occupy, restart, slow

KEY = "r"

Look = Callable[[Frame], Coroutine[Any, Any, int]]

LOOKS: dict[str, Look] = {
    "inspect": lambda frame: look.inspect(frame, KEY),
    "permits": lambda frame: look.inspect(frame, KEY, permits=3),
    "list": look.list_locks,
    "watch": lambda frame: look.watch(frame, KEY, for_=0),
}


@pytest.fixture
def frame(masters: list[FakeMaster], monkeypatch: pytest.MonkeyPatch) -> Frame:
    """Return the frame of a command that has the masters in memory."""
    monkeypatch.setattr(Frame, "masters", masters)
    return Frame(Common(), Output(Redaction([])), "off")


@pytest.mark.parametrize("given", [None, 5_000])
@pytest.mark.parametrize("name", LOOKS)
async def test_masters_that_all_hang_cost_three_seconds_or_one_timeout(
    masters: list[FakeMaster], frame: Frame, name: str, given: int | None
) -> None:
    hang(masters)
    frame = Frame(Common(master_timeout=given), frame.out, "off")
    began = now()
    assert await LOOKS[name](frame) == Exit.UNAVAILABLE
    # The others have a timeout of 1 s, so an attempt to connect may take ten.
    most = given or (1_000 if name == "watch" else MAJORITY)
    assert now() - began == pytest.approx(most / 1000, abs=0.05)


@pytest.mark.parametrize("name", LOOKS)
async def test_one_master_that_hangs_costs_a_second_and_hides_no_other(
    masters: list[FakeMaster], frame: Frame, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    occupy(masters, KEY)
    hang(masters[4:])
    began = now()
    assert await LOOKS[name](frame) == (Exit.NO if name == "permits" else Exit.DONE)
    assert now() - began == pytest.approx(MINORITY / 1000, abs=0.05)
    shown = capsys.readouterr().out
    if name == "inspect":
        assert re.findall(r"m\d: (\w+)", shown) == [*["held"] * 4, "unreachable"]
    elif name == "list":
        assert shown.endswith("\t4/5\n")


async def test_a_minority_that_answers_is_shown(
    masters: list[FakeMaster], frame: Frame, capsys: pytest.CaptureFixture[str]
) -> None:
    occupy(masters, KEY)
    hang(masters[:3])
    assert await look.inspect(frame, KEY) == Exit.UNAVAILABLE
    shown = re.findall(r"m\d: (.*?)(?:,| by)", capsys.readouterr().out)
    assert shown == [*["unreachable"] * 3, *["held"] * 2]


@pytest.mark.parametrize("hung", [0, 1])
@pytest.mark.parametrize("fault", [kill, restart])
async def test_a_minority_that_is_farther_away_than_a_majority_without_votes_is_shown(
    masters: list[FakeMaster],
    frame: Frame,
    capsys: pytest.CaptureFixture[str],
    fault: Callable[[list[FakeMaster]], None],
    hung: int,
) -> None:
    async with Redlock(masters):
        pass  # now a restart is noticed
    occupy(masters, KEY)
    fault(masters[:3])
    slow(masters[3:], 0.05)
    hang(masters[3 : 3 + hung])
    began = now()
    frame = Frame(Common(), frame.out, "auto")
    assert await look.inspect(frame, KEY) == Exit.UNAVAILABLE
    waited = hung * MINORITY / 1000
    assert waited <= now() - began <= waited + 0.8, "a restart is examined for 0.6 s"
    shown = capsys.readouterr().out.splitlines()[4:]
    assert all(line.endswith("unreachable, connecting") for line in shown[:hung])
    assert all(re.search("held by|keeps it", line) for line in shown[hung:])


@pytest.mark.parametrize("name", ["inspect", "list"])
async def test_a_master_that_answers_within_the_timeout_counts(
    masters: list[FakeMaster], frame: Frame, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    occupy(masters, KEY)
    for master in masters:
        master.latency = 0.45
    assert await LOOKS[name](frame) == Exit.DONE
    assert re.search("held by .* on 5 of 5 masters|\t5/5\n", capsys.readouterr().out)


async def test_masters_on_the_other_side_of_the_world_are_waited_for(
    masters: list[FakeMaster], frame: Frame, capsys: pytest.CaptureFixture[str]
) -> None:
    """One is as far away again, and connects after a majority has."""
    for master in masters:
        master.latency = 0.4
    masters[4].latency = 0.6
    assert await look.inspect(frame, KEY) == Exit.NO
    assert "unreachable" not in capsys.readouterr().out


async def test_a_look_that_finds_all_masters_waits_for_nothing(frame: Frame) -> None:
    began = now()
    assert await look.inspect(frame, KEY) == Exit.NO
    assert now() - began == pytest.approx(0, abs=20 * LATENCY)


async def test_a_release_from_masters_that_hang(masters: list[FakeMaster], frame: Frame) -> None:
    hang(masters)
    began = now()
    with pytest.raises(QuorumUnavailableError, match="no connection in 1 s"):
        await release.release(frame, KEY, force=True)
    assert now() - began == pytest.approx(1, abs=0.05)
