"""The verdict, and the command that prints it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from evidence.checker import PROMISES, main
from evidence.history import HistoryError

from .kit import Script

ROOT = Path(__file__).parents[2]


@pytest.fixture
def good(script: Script) -> Script:
    """A history with all kinds of operations, that breaks nothing."""
    script.meta |= {"keys_left": {}, "longest_gap": 1.0}
    for number in range(20):
        at, client = 100.0 * number, f"w{number % 3}/0"
        lease = script.acquire(client, at, at + 5, token=number + 1, until=at + 1_000)
        script.increment(client, at + 6, at + 7, value=number + 1)
        script.write(client, at + 8, at + 9, value=number, token=number + 1)
        script.read(client, at + 10, at + 11, value=number, token=number + 1)
        script.extend(client, at + 12, at + 13, lease=lease, until=at + 1_012)
        script.held(client, at + 14, lease=lease, until=at + 1_012)
        script.release(client, at + 50, at + 55, lease=lease)
        script.acquire("w3/0", at + 1, at + 99, end="fail")
    return script


def test_a_good_history_is_checked_for_everything(good: Script) -> None:
    verdict = good.check()
    assert verdict.holds
    assert set(verdict.checks) == set(PROMISES)
    assert {name: check.checked for name, check in verdict.checks.items()} == {
        "exclusion": 20, "permits": 0, "expiry": 40, "updates": 20, "reads": 0, "tokens": 20,
        "register": 40, "writes": 0, "keeping": 0,
        "progress": 1, "losses": 20, "order": 0, "starvation": 0, "notices": 0, "keys_left": 1,
    }  # fmt: skip
    assert verdict.operations["acquire"] == {"fail": 20, "ok": 20}
    assert verdict.acquired == 20
    assert verdict.rate == pytest.approx(20 / 1.999)
    assert verdict.as_text().splitlines()[0].endswith(": no promise was broken")


def test_the_verdict_is_json_with_a_few_examples(script: Script) -> None:
    for number in range(30):
        script.section(f"w{number}/0", 10 + number, 100)
    shown = json.loads(script.check().as_json())
    assert shown["checks"]["exclusion"]["times"] == 29
    assert len(shown["checks"]["exclusion"]["broken"]) == 10
    assert not shown["holds"]
    assert not shown["as_expected"]
    assert shown["facts"]["masters"] == 5


def test_the_text_names_the_broken_promise_and_examples(script: Script) -> None:
    for number in range(30):
        script.section(f"w{number}/0", 10 + number, 100)
    text = script.check().as_text()
    assert "BROKEN: exclusion (NOT AS EXPECTED)" in text
    assert "exclusion: two leases of one key were valid at the same time, 29 of 30" in text
    assert text.count(" both ") == 3


@pytest.mark.parametrize(
    ("expected", "broken", "code", "text"),
    [
        ("holds", False, 0, "no promise was broken\n"),
        ("holds", True, 1, "BROKEN: exclusion (NOT AS EXPECTED)\n"),
        ("fails", True, 0, "BROKEN: exclusion (as expected of a control)\n"),
        ("fails", False, 1, "no promise was broken (NOT AS EXPECTED)\n"),
    ],
)
def test_the_exit_code_says_whether_a_history_is_as_expected(
    good: Script,
    capsys: pytest.CaptureFixture[str],
    expected: str,
    broken: bool,
    code: int,
    text: str,
) -> None:
    good.meta["expected"] = expected
    if broken:
        good.acquire("w9/0", 20, 30, until=40)
    assert main([str(good.save())]) == code
    assert text in capsys.readouterr().out


def test_a_control_does_not_fail_by_a_key_that_was_left(good: Script) -> None:
    good.meta |= {"expected": "fails", "keys_left": {"k": [0]}}
    assert good.check().broken == ("keys_left",)
    assert not good.check().is_as_expected


def test_a_fault_that_the_assumptions_exclude_may_give_two_leases_at_once(script: Script) -> None:
    script.meta["expected"] = "may overlap"
    lease = script.acquire("w0/0", 9, 10, until=1_000)
    script.section("w1/0", 20, 40)
    script.held("w0/0", 30, lease=lease, until=1_000)
    assert script.check().broken == ("exclusion", "expiry")
    assert script.check().is_as_expected
    script.acquire("w2/0", 2_000, 2_010, fencing=True)
    assert not script.check().is_as_expected


def test_each_folder_has_its_verdict(
    good: Script, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = Script(tmp_path / "bad")
    bad.section("w0/0", 10, 50)
    bad.section("w1/0", 20, 40)
    assert main(["--json", str(bad.save()), str(good.save())]) == 1
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["holds"] for one in shown] == [False, True]


def test_a_limit_of_the_gap_is_an_option(good: Script) -> None:
    good.acquire("w4/0", 2_000, 2_600, end="fail")
    assert main([str(good.save())]) == 0
    assert main(["--gap", "0.5", str(good.save())]) == 1


def test_a_folder_without_a_history_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path)]) == 2
    assert "there are no operations" in capsys.readouterr().err


@pytest.mark.parametrize("what", ["held", "extend", "release", "lost", "adopt"])
def test_an_unknown_lease_is_an_error(script: Script, what: str) -> None:
    if what == "adopt":
        script.adopt("w0/0", 1, 2, exporter="nothing")
    elif what in {"extend", "release"}:
        getattr(script, what)("w0/0", 1, 2, lease="nothing")
    else:
        script.observe("w0/0", what, 1, lease="nothing", until=1, why="")
    with pytest.raises(HistoryError, match="'nothing' is unknown"):
        script.check()


def test_a_lease_that_was_returned_twice_is_an_error(script: Script) -> None:
    script.section("w0/0", 10, 20)
    script.events["w1"] = [one | {"client": "w1/0"} for one in script.events["w0"]]
    with pytest.raises(HistoryError, match="is not a new one"):
        script.check()


def test_nothing_of_the_library_is_needed(good: Script) -> None:
    program = """
import sys
class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("redlock_aio", "redis", "hiredis", "anyio"):
            raise ImportError(name)
sys.meta_path.insert(0, Nothing())
from benchmarks.evidence.checker import main
sys.exit(main(sys.argv[1:]))
"""
    command = [sys.executable, "-c", program, str(good.save())]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "no promise was broken" in done.stdout
