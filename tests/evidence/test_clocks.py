"""Processes with clocks of their own, servers with small disks, and what a run shows of both."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from evidence import networks
from evidence.clocks import IDS, UNCHANGED, Clock, compiled, own_rate, why_no_clocks
from evidence.controls import CONTROLS
from evidence.crew import Crew
from evidence.faults import ROWS
from evidence.job import Job
from evidence.matrix import make, parse, run
from evidence.servers import Place, Server, why_no_disks

from redlock_aio.testing import server_binary

SHOW = """
import asyncio, sys, time
for line in sys.stdin:
    began = time.clock_gettime_ns(107)
    if line == "sleep\\n":
        time.sleep(0.2)
        print(time.clock_gettime_ns(107) - began, flush=True)
    elif line == "loop\\n":
        loop = asyncio.new_event_loop()
        print(round((loop.time() - time.monotonic()) * 1e9), flush=True)
        loop.close()
    else:
        print(time.time_ns(), *map(time.clock_gettime_ns, (1, 7, 107)), flush=True)
"""

SLACK = 0.25
"""Seconds that a process may take to answer."""


class Shown:
    """A process with clocks of its own, which says what they show."""

    def __init__(self, folder: Path) -> None:
        self.clock = Clock(folder / "clock")
        self.process = subprocess.Popen(
            [sys.executable, "-c", SHOW],
            env=self.clock.environment(compiled(folder)),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ask(self, what: str = "") -> list[int]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        return list(map(int, self.process.stdout.readline().split()))

    def ahead(self) -> list[float]:
        """
        Return by how many seconds each clock, and the unchanged one, is ahead.

        An answer that took longer than `SLACK` says too little, and is asked for again.
        """
        numbers = (*IDS.values(), IDS["boottime"])
        while True:
            before = [time.clock_gettime_ns(number) for number in numbers]
            answer = self.ask()
            if time.clock_gettime_ns(numbers[-1]) - before[-1] < SLACK * 1e9:
                return [(one - other) / 1e9 for one, other in zip(answer, before, strict=True)]


@pytest.fixture
def shown(tmp_path: Path) -> Iterator[Shown]:
    if why := why_no_clocks():
        pytest.skip(why)
    made = Shown(tmp_path)
    made.ask()
    with made.process:
        yield made
        made.process.kill()


def near(*seconds: float) -> object:
    return pytest.approx(seconds, abs=SLACK)


@pytest.mark.integration
def test_a_process_is_shown_other_times(shown: Shown) -> None:
    assert shown.ahead() == near(0, 0, 0, 0)
    shown.clock.set(3600)
    assert shown.ahead() == near(3600, 0, 0, 0)
    shown.clock.stand_still(2, "monotonic")
    assert shown.ahead() == near(3600, -2, 0, 0)
    shown.clock.stand_still(5, "monotonic", "boottime")
    assert shown.ahead() == near(3600, -7, -5, 0)
    shown.clock.set(-3)
    assert shown.ahead() == near(-3, -7, -5, 0)
    assert shown.ask("loop") == [pytest.approx(0, abs=1e9 * SLACK)]
    assert UNCHANGED not in IDS.values()


@pytest.mark.integration
def test_all_clocks_of_a_process_run_at_another_rate_and_none_jumps(shown: Shown) -> None:
    shown.clock.set(10)
    began = time.monotonic()
    shown.clock.run_at(1.0)
    time.sleep(1)
    fast = shown.ahead()
    most = time.monotonic() - began + SLACK
    gained = [each - first for each, first in zip(fast[:3], (10, 0, 0), strict=True)]
    assert 0.95 <= min(gained) <= max(gained) <= most
    assert fast[3] == pytest.approx(0, abs=SLACK)
    # A wait for an instant of the fast clock lasts half as long, and longer on a busy machine.
    slept = min(shown.ask("sleep")[0] for _ in range(5))
    assert 0.1e9 <= slept < 0.19e9
    shown.clock.run_at(0.0)
    after = shown.ahead()
    time.sleep(0.5)
    assert shown.ahead() == near(*after)
    assert after[1] > 1.05
    # The time of day is set, and goes on at the other rate.
    shown.clock.run_at(1.0)
    time.sleep(0.5)
    began = time.monotonic()
    shown.clock.set(0)
    time.sleep(0.5)
    assert 0.45 <= shown.ahead()[0] < time.monotonic() - began + 0.4


def test_a_process_knows_by_how_much_its_clocks_run_too_fast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(tmp_path / "clock")
    assert own_rate() == 0
    monkeypatch.setenv("CLOCK_SHIM", str(tmp_path / "clock"))
    assert own_rate() == 0
    for rate in (0.01, -0.02, 0.03):
        clock.run_at(rate)
        assert own_rate() == rate


def test_a_process_without_clocks_of_its_own_has_none_to_change(tmp_path: Path) -> None:
    crew = Crew(Job(str(tmp_path), "plain", (), "", seed=1))
    with pytest.raises(RuntimeError, match="w0 has the machine's clocks"):
        crew.clock("w0")


@pytest.mark.integration
@pytest.mark.parametrize("keeps", [("--appendonly", "yes"), ("--save", "1 1")])
def test_a_server_whose_disk_is_full_refuses_writes(tmp_path: Path, keeps: tuple[str, str]) -> None:
    if why := why_no_disks():
        pytest.skip(why)
    place = Place(server_binary(), tmp_path)
    with (
        Server(place, "m0", *keeps, disk=True) as server,
        contextlib.closing(server.client()) as client,
    ):
        client.set("before", "1")
        server.fill_disk()
        with pytest.raises(redis.ResponseError, match="MISCONF"):
            client.set("k", "1")
        assert client.get("before") == "1"
        server.free_disk()
        client.set("k", "1")
        assert not Path(f"{tmp_path}/disk").exists(), "nobody else sees the disk"


@pytest.mark.integration
def test_a_disk_that_keeps_nothing_is_never_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a run in which the fault does not happen fails."""
    if why := why_no_disks():
        pytest.skip(why)
    monkeypatch.setattr("evidence.servers.NOTICED", 0.3)
    with (
        Server(Place(server_binary(), tmp_path), "m0", disk=True) as server,
        pytest.raises(OSError, match="m0 accepts writes after"),
    ):
        server.fill_disk()


@pytest.mark.integration
def test_a_server_starts_from_its_snapshot_until_that_is_forgotten(tmp_path: Path) -> None:
    with Server(Place(server_binary(), tmp_path), "m0") as server:
        with contextlib.closing(server.client()) as client:
            client.set("k", "1")
        server.save()
        for expected in ("1", None):
            server.restart()
            with contextlib.closing(server.client()) as client:
                assert client.get("k") == expected
            server.forget()


@pytest.mark.full
@pytest.mark.long
@pytest.mark.integration
@pytest.mark.timeout(300)
@pytest.mark.parametrize("control", ["clock rates differ by far", "client suspended, not counted"])
def test_the_clocks_are_what_lets_two_hold_a_lock(tmp_path: Path, control: str) -> None:
    """The rows whose clocks are right hold; the matrix has them, and these controls."""
    needs = next(each.row.needs for each in CONTROLS if each.name == control)
    if why := why_no_clocks() or ("network" in needs and networks.why_not()):
        pytest.skip(str(why))
    options = parse(["--controls", control, "--seed", "5", "--output", str(tmp_path)])
    cell = next(
        make(options, each.row, each.column, each) for each in CONTROLS if each.name == control
    )
    entry = run(control, cell, tmp_path, None)
    assert entry.is_as_expected, entry
    assert "exclusion" in entry.broken


def test_rows_about_clocks_and_disks_say_what_they_need() -> None:
    needs = {row.name: row.needs for row in ROWS}
    assert needs["clock rates differ"] == {"clocks"}
    assert needs["client suspended"] == {"clocks", "network"}
    assert needs["full disk"] == {"disks"}
