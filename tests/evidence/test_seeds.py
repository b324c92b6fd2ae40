"""More seeds of the cells of the matrix: which is next, what the log keeps, what the page says."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from evidence import matrix, provenance, rejudge, seeds
from evidence.cell import Cell, facts
from evidence.contestants import contestants
from evidence.faults import ROWS
from evidence.job import Job
from evidence.ours import COLUMNS
from evidence.results import Entry
from evidence.seeds import FEWEST, MANY, Run, Sum, following, main, rate_seen, report

MEASURED = {"commit": "aaaa", "clean": True, "load": 0.5, "library": "1234", "judge": "5678"}
FACTS: dict[str, object] = {
    "machine": "a machine",
    "server": "valkey 9",
    "date": "2026-01-01",
    "versions": {},
    **MEASURED,
}


def run(row: str = "no fault", column: str = "plain", seed: int = 1, **facts: object) -> Run:
    made = Run(row, column, seed, sections=400, seconds=12.0, gap=0.1, checker="cc", facts=FACTS)
    return replace(made, **facts)  # type: ignore[arg-type]


def cell(row: str = "no fault", column: str = "plain") -> Cell:
    return Cell(next(x for x in ROWS if x.name == row), contestants()[column], seed=0, binary="")


@pytest.mark.parametrize("runs", [1, 2, 30, 1_000])
def test_a_rate_is_seen_if_5_percent_of_luck_is_left(runs: int) -> None:
    rate = rate_seen(runs)
    assert (1 - rate) ** runs == pytest.approx(0.05)
    # The rule of three is this, where there are many.
    assert runs < 30 or rate == pytest.approx(3 / runs, rel=0.06)


def test_without_runs_nothing_would_have_been_seen() -> None:
    assert rate_seen(0) == 1.0


def test_the_cell_with_the_fewest_runs_is_next_and_then_that_with_the_fewest_sections() -> None:
    cells = [cell(), cell("flushed"), cell("flushed", "fair")]
    runs = [run(), run("flushed", sections=20), run("flushed", "fair", sections=10), run()]
    first = following(cells, runs)
    assert (first.row.name, first.contestant.name) == ("flushed", "fair")
    runs.append(run("flushed", "fair", sections=30))
    second = following(cells, runs)
    assert (second.row.name, second.contestant.name) == ("flushed", "plain")


def test_each_run_of_a_cell_has_a_seed_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = iter([7, 8, 9])
    monkeypatch.setattr("evidence.seeds.secrets.randbelow", lambda _: next(drawn))
    assert following([cell()], [run(seed=7), run("flushed", seed=9), run(seed=8)]).seed == 9


def test_one_of_six_runs_is_as_busy_as_the_matrix_and_the_line_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn = iter(seeds.RESTS)
    monkeypatch.setattr("evidence.seeds.secrets.choice", lambda _: next(drawn))
    cells = [following([cell()], []) for _ in seeds.RESTS]
    assert [each.job for each in cells] == [{"rest": 0.0}, *[{"rest": 1.0}] * 5]
    jobs = [Job("", "plain", (), "", each.seed, **each.job) for each in cells]  # type: ignore[arg-type]
    lines = [
        Run.of(Entry("no fault", "plain", facts=facts(one, job, "valkey 9")))
        for one, job in zip(cells, jobs, strict=True)
    ]
    assert [line.facts["rest"] for line in lines] == [0.0, *[1.0] * 5]


@pytest.mark.parametrize(
    ("sections", "wrong", "runs", "first"),
    [
        (FEWEST // 2, [], 2, False),
        (FEWEST // 2 - 1, [], 2, True),
        (FEWEST // 9, [], 9, True),
        (FEWEST, ["it failed"], MANY - 1, True),
        (FEWEST, ["it failed"], MANY, False),
    ],
)
def test_a_cell_with_few_sections_comes_before_those_with_fewer_runs(
    sections: int, wrong: list[str], runs: int, first: bool
) -> None:
    had = [run("flushed", sections=sections, wrong=wrong) for _ in range(runs)]
    it = following([cell(), cell("flushed")], [*had, run(sections=9_000)])
    assert it.row.name == ("flushed" if first else "no fault")
    assert it.seconds == 0.0, "as long as the row needs"


def test_runs_that_failed_say_nothing_and_others_add_up() -> None:
    runs = [run(), run(broken={"losses": 3}), run(broken={"exclusion": 1}), run(wrong=["x"])]
    found = Sum.of([*runs, run(broken={"exclusion": 1}, expected="may overlap")])
    assert found == Sum(runs=4, sections=1_600, bad=1)
    assert found.seen == rate_seen(4)


def test_the_page_has_the_runs_the_sections_and_the_rate_of_each_cell() -> None:
    runs = [run(seed=each) for each in range(30)]
    page = report([*runs, run(column="fair", sections=50)])
    assert "In 31 runs of 2 cells, with 12,050 sections, none of them broke a promise." in page
    assert "a defect that shows in 9.2 % of all runs would have been seen" in page
    assert "only one that shows in 95 % of its runs. Cells with fewer than 200 sections: 1." in page
    assert "Each of these cells was run at least 1 time." in page
    assert "| **no fault** | 30 · 12,000 · 9.5 % | 1 · 50 *few* · 95 % |" in page
    assert "At commit aaaa, library 1234; the machine's load average was 0.5 before." in page
    assert "commit cc" in page
    assert "Runs that broke" not in page


def test_the_page_asks_each_run_for_its_cell_only_a_few_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is written after each run: once a cell, it would cost more than the run in the end."""
    asked = []

    def cell(one: Run) -> tuple[str, str]:
        asked.append(one)
        return one.row, one.column

    monkeypatch.setattr(Run, "cell", property(cell))
    runs = [run(row.name, column.name) for row in ROWS for column in COLUMNS]
    assert f"In {len(runs)} runs of {len(runs)} cells" in report(runs)
    assert len(runs) <= len(asked) <= 5 * len(runs)


def test_the_page_lists_what_went_wrong() -> None:
    bad = run(seed=5, broken={"exclusion": 2, "losses": 1}, history="histories/x.tar.xz")
    page = report([run(), bad, run("flushed", seed=6, wrong=["w1 did not end"])])
    assert "1 of them broke a promise" in page
    assert "| **no fault** | 2 · 800 · **1 broke a promise** |" in page
    assert "| **flushed** | not run yet |" in page
    assert "- no fault, plain, seed 5: exclusion: 2 ([history](histories/x.tar.xz))" in page
    assert "- flushed, plain, seed 6: the run failed: w1 did not end" in page


def entry(broken: dict[str, int], history: str = "") -> Entry:
    facts = {**FACTS, "seed": 1, "row": "no fault", "what": "not kept"}
    return Entry(
        "no fault", "plain", broken=broken, acquired=400, seconds=12.0, facts=facts, checker="cc",
        history=history,
    )  # fmt: skip


def test_the_log_grows_until_the_time_is_over_and_a_torn_line_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seeds, "earlier", lambda: [run(seed=1)])
    monkeypatch.setattr(seeds, "possible", lambda _: [cell()])
    times = iter(range(100))
    monkeypatch.setattr("evidence.seeds.time.monotonic", lambda: 20.0 * next(times))
    monkeypatch.setattr(matrix, "run", lambda *_: entry({}))
    log = tmp_path / "results-seeds.jsonl"
    assert main(["--minutes", "1", "--output", str(tmp_path)]) == 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["sections"] for line in lines] == [400, 400]
    assert set(provenance.FACTS) <= set(lines[0]["facts"])
    assert "what" not in lines[0]["facts"]
    with log.open("a") as file:
        file.write('{"row": "no fa')
    assert main(["--minutes", "1", "--output", str(tmp_path)]) == 0
    assert len([json.loads(line) for line in log.read_text().splitlines()]) == 4
    assert "In 5 runs of 1 cells" in (tmp_path / "results-seeds.md").read_text()


@pytest.mark.parametrize(
    ("broken", "kept"), [({"exclusion": 1}, True), ({"losses": 1}, False), ({}, False)]
)
def test_the_history_of_a_run_that_broke_a_promise_is_kept_under_a_name_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: dict[str, int], kept: bool
) -> None:
    """And it does not take the place of one that the matrix has kept."""

    def performed(_: str, cell: Cell, output: Path, keep: Path | None) -> Entry:
        assert keep == tmp_path / "all"
        (output / "histories").mkdir()
        (output / "histories" / f"{cell.name}.tar.xz").write_text("a history")
        return entry(broken, f"histories/{cell.name}.tar.xz")

    monkeypatch.setattr(matrix, "run", performed)
    found = seeds.perform(replace(cell(), seed=5), tmp_path, tmp_path / "all")
    name = "histories/seeds-no-fault-plain-5.tar.xz"
    assert found.history == (name if kept else "")
    assert [str(x.relative_to(tmp_path)) for x in tmp_path.rglob("*.xz")] == [name] * kept
    assert found.seed == 5


def test_a_run_that_broke_a_promise_or_failed_ends_the_command_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seeds, "earlier", list)
    monkeypatch.setattr(seeds, "possible", lambda _: [cell()])
    monkeypatch.setattr(seeds, "perform", lambda *_: run(wrong=["it failed"]))
    times = iter(range(100))
    monkeypatch.setattr("evidence.seeds.time.monotonic", lambda: 40.0 * next(times))
    assert main(["--minutes", "1", "--output", str(tmp_path)]) == 1


def test_all_cells_of_the_matrix_that_can_be_run_here_are_tried() -> None:
    cells = seeds.possible(seeds.parse([]))
    planned = matrix.plan(matrix.parse(["--controls", "--seed", "1"]))
    wanted = [(x.row.name, x.contestant.name) for _, x, why_not in planned if not why_not]
    assert [(x.row.name, x.contestant.name) for x in cells] == wanted
    assert {x.contestant.name for x in cells} == {x.name for x in COLUMNS}


def test_the_published_matrix_is_the_first_run_of_its_cells() -> None:
    runs = seeds.earlier()
    assert len({run.cell for run in runs}) == len(runs) > 100
    assert all(run.sections and run.seconds for run in runs)
    assert asdict(runs[0])["seed"] == runs[0].seed >= 0


@pytest.mark.integration
@pytest.mark.full
@pytest.mark.long
def test_a_run_of_a_cell(tmp_path: Path) -> None:
    words = ["--minutes", "0.001", "--rows", "no fault", "--columns", "fenced"]
    keep = tmp_path / "all"
    assert main([*words, "--keep", str(keep), "--output", str(tmp_path)]) == 0
    (line,) = (tmp_path / "results-seeds.jsonl").read_text().splitlines()
    found = Run(**json.loads(line))
    assert found.sections > 0
    assert set(found.facts) == set(seeds.FACTS)
    assert found.is_as_expected
    assert rejudge.main([str(keep / "histories")]) == 0
