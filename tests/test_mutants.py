"""The mutants apply to the code as it is, and the tool that draws, tries and covers them works."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.mutants import cover, draw, report, table
from tests.mutants.reach import Reach
from tests.mutants.run import DIES, HANGS, IMPORT, KILLED, STALE, SURVIVES, UNREACHED, Result
from tests.mutants.table import Mutant

ROOT = table.ROOT

# Mutants that are in git


@pytest.mark.parametrize(
    "path", [table.PLANTED, table.CHECKED, table.EQUIVALENT], ids=lambda path: path.stem
)
def test_each_row_applies_to_the_code(path: Path) -> None:
    stale = []
    for mutant in table.read(path):
        try:
            text = (ROOT / mutant.file).read_text()
            changed = mutant.apply(text)
        except (FileNotFoundError, table.StaleError) as error:
            stale.append(f"{mutant.id}: {error}")
            continue
        assert changed != text, mutant.id
        assert draw.LANGUAGES[Path(mutant.file).suffix][1](changed), mutant.id
    assert not stale, "the code has changed: find the new text and place, or delete the row"


def test_no_two_rows_are_the_same() -> None:
    rows = [*table.read(table.PLANTED), *table.read(table.CHECKED), *table.read(table.EQUIVALENT)]
    assert len({mutant.id for mutant in rows}) == len({mutant.digest for mutant in rows})
    assert len({mutant.id for mutant in rows}) == len(rows)


def test_a_mutant_is_found_in_its_function_only() -> None:
    text = "def f():\n    return 1\n\n\nclass A:\n    def f(self):\n        return 1\n\n    x = 1\n"
    mutant = Mutant(id="m", file="", inside="A.f", old="return 1", new="return 2")
    assert mutant.apply(text) == text.replace("        return 1", "        return 2")
    assert list(mutant.lines(text)) == [7]
    with pytest.raises(table.StaleError):
        Mutant(id="m", file="", inside="A.f", old="x = 1", new="x = 2").span(text)
    with pytest.raises(table.StaleError):
        Mutant(id="m", file="", inside="g", old="return 1", new="return 2").span(text)


def test_each_function_of_a_property_is_found() -> None:
    text = (
        "class A:\n    @property\n    def x(self):\n        return 1\n\n"
        "    @x.setter\n    def x(self, x):\n        y = 2\n"
    )
    assert "y = 3" in Mutant(id="m", file="", inside="A.x", old="y = 2", new="y = 3").apply(text)


# Mutants that are drawn

SOURCE = '''\
"""A module."""


class Gate:
    """A gate."""

    def __repr__(self) -> str:
        return f"<{1 + 1}>"

    def open(self, key, *, force=True) -> bool:
        """Open it if 1 < 2."""
        self.tries = self.tries + 1
        if self.key == key and not self.broken:
            self.bell.ring()
            return True
        raise ValueError(f"{key or 0}")


async def wait(gate, patience: int = 3) -> None:
    while gate.tries <= min(patience, 100):
        await gate.opened(force=False)
'''

SCRIPT = """\
local held = redis.call("GET", KEYS[1]) -- 1 key
if held and tonumber(held) <= 1 then
  return nil
end
redis.call("DEL", KEYS[1])
return held
"""


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A package with one module and one script."""
    (tmp_path / "redlock_aio/_rules").mkdir(parents=True)
    (tmp_path / "redlock_aio/cli").mkdir()
    for name, text in [("_rules/gate.py", SOURCE), ("free.lua", SCRIPT), ("cli/x.py", SOURCE)]:
        (tmp_path / "redlock_aio" / name).write_text(text)
    return tmp_path


def drawn(house: Path, *only: str) -> set[tuple[str, str]]:
    """Return all that may be drawn of a line, by many draws."""
    draws = [draw.draw(house, seed=seed, count=99, only=only) for seed in range(60)]
    return {(mutant.old, mutant.new) for mutants in draws for mutant in mutants}


def test_what_may_be_drawn_of_a_module(house: Path) -> None:
    line, loop = (
        "if self.key == key and not self.broken:",
        "while gate.tries <= min(patience, 100):",
    )
    count, wait = "self.tries = self.tries + 1", "await gate.opened(force=False)"
    assert drawn(house, "_rules/") == {
        (count, "self.tries = self.tries - 1"),
        (count, "self.tries = self.tries + 2"),
        (count, "pass"),
        (line, "if self.key != key and not self.broken:"),
        (line, "if self.key == key or not self.broken:"),
        (line, "if self.key == key and self.broken:"),
        (line, "if True:"),
        (line, "if False:"),
        ("self.bell.ring()", "pass"),
        ("return True", "return None"),
        ("return True", "return False"),
        (loop, "while gate.tries < min(patience, 100):"),
        (loop, "while gate.tries <= max(patience, 100):"),
        (loop, "while gate.tries <= min(patience, 200):"),
        (wait, "await gate.opened(force=True)"),
        (wait, "pass"),
    }


def test_what_may_be_drawn_of_a_script(house: Path) -> None:
    line = "if held and tonumber(held) <= 1 then"
    assert drawn(house, "free.lua") == {
        (line, "if held or tonumber(held) <= 1 then"),
        (line, "if held and tonumber(held) < 1 then"),
        (line, "if held and tonumber(held) <= 2 then"),
        (line, "if true then"),
        (line, "if false then"),
        ('redis.call("DEL", KEYS[1])', ""),
        ("return held", "return nil"),
    }


def test_a_draw_changes_no_line_twice_and_is_repeated_by_its_seed(house: Path) -> None:
    mutants = draw.draw(house, seed=1, count=99)
    assert mutants == draw.draw(house, seed=1, count=99)
    assert mutants != draw.draw(house, seed=2, count=99)
    assert [mutant.id for mutant in mutants] == [
        *[f"_rules/gate.py:{line}" for line in (12, 13, 14, 15, 20, 21)],
        *[f"free.lua:{line}" for line in (2, 5, 6)],
    ]  # nothing of `cli`, most of which the map does not see
    assert len(draw.draw(house, seed=1, count=4)) == 4


def test_a_draw_may_take_as_many_of_each_function(house: Path) -> None:
    for most in (1, 2):
        mutants = draw.draw(house, seed=1, count=99, per_function=most)
        inside = Counter(mutant.inside for mutant in mutants)
        assert inside == {"Gate.open": most, "wait": most, "": most}


def test_a_draw_leaves_out_what_no_test_can_notice(
    house: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (house / "equivalent.toml").write_text(
        '[[mutant]]\nid = "x"\nfile = "redlock_aio/_rules/gate.py"\ninside = "Gate.open"\n'
        'old = "self.bell.ring()"\nnew = "pass"\nequivalent = "Nobody listens."\n'
    )
    monkeypatch.setattr(draw, "EQUIVALENT", house / "equivalent.toml")
    assert ("self.bell.ring()", "pass") not in drawn(house, "_rules/")


def test_mutants_are_drawn_from_all_of_the_package() -> None:
    mutants = draw.draw(ROOT, seed=0, count=200)
    rooms = Counter(mutant.id.partition("/")[0].partition(":")[0] for mutant in mutants)
    assert rooms.keys() >= {"_api", "_engine", "_protocol", "_rules", "_transport", "sync"}
    assert rooms["_engine"] > rooms["_api"] > rooms["requirements.py"]


# What catches them


def caught(name: str, *killers: str, status: str = KILLED) -> Result:
    return Result(name, name, status=status, killers=list(killers))


def test_a_cover_catches_all_with_few_tests() -> None:
    catch = {"a": {"x", "y"}, "b": {"x"}, "c": {"x", "z"}, "d": {"y", "z"}, "e": {"z"}}
    assert cover.cover(catch) == {"x": ["a", "b"], "z": ["d", "e"]}
    assert cover.cover({}) == {}


def test_a_test_that_later_ones_make_needless_goes() -> None:
    catch = {"1": "gx", "2": "gx", "3": "gy", "4": "gy", "5": "x", "6": "y"}
    assert list(cover.cover(catch)) == ["x", "y"]


def test_a_cover_in_words() -> None:
    results = [
        caught("a", "t.py::one[1]", "t.py::one[2]", "t.py::two"),
        caught("b", "t.py::one[2]"),
        caught("c", "t.py::one[1]", "t.py::three", status=HANGS),
        caught("d", IMPORT),
        caught("e", status=SURVIVES),
    ]
    tests = ["t.py::one[1]", "t.py::one[2]", "t.py::two", "t.py::three", "t.py::four"]
    text = "\n".join(cover.lines(results, tests, {"b": "S1"}))
    assert text == (
        "1 of 4 test functions catch all 3 mutants:\n"
        "+ t.py::one  3 alone  S1\n"
        "1 mutants are caught by one function only:\n"
        "! b by t.py::one\n"
        "2 catch only what those catch, too:\n"
        "- t.py::three\n"
        "- t.py::two\n"
        "1 catch none of these mutants:\n"
        "0 t.py::four\n"
        "No mutant breaks S2, S3, S4, S5, S6, S7, S8, S9, S10: keep the tests of these by hand."
    )


def test_a_report_counts_each_kind_and_names_what_is_not_caught() -> None:
    planted = [Mutant(id="p", file="a.py", old="1", new="2", defect="Wrong.")]
    checker = [Mutant(id="c", file="b.py", old="1", new="2", equivalent="No difference.")]
    results = {
        planted[0].digest: caught("p", "t.py::one"),
        checker[0].digest: Result("c", checker[0].digest, "1 -> 2", SURVIVES, untried=3),
        "d": Result("a.py:7", "d", "x -> y", UNREACHED),
    }
    text = report.write(planted, checker, results)
    assert "| planted | 1 | 1 | 0 | 0 |\n| the checker | 1 | 0 | 1 | 0 |\n" in text
    assert "| drawn | 1 | 0 | 0 | 1 |" in text
    assert text.endswith(
        "- `c` all tests passed (3 were not tried, for lack of time): No difference.\n  `1 -> 2`\n"
        "- `a.py:7` no test runs the line: **open**\n  `x -> y`\n"
    )


def test_a_loss_of_power_is_named() -> None:
    before = {name: caught(name, "t.py::one") for name in "abc"}
    after = {"a": caught("a", "t.py::two"), "b": caught("b", status=SURVIVES)}
    assert report.compare(before, after) == [
        "b: was killed by t.py::one, survives",
        "c: was killed by t.py::one, is not run",
    ]


# Trials


def test_a_planted_mutant_is_tried_with_the_test_it_names_first() -> None:
    """Also with one that the map does not have, such as of tests/integration."""
    file = "redlock_aio/_rules/quorum.py"
    reach = Reach(
        "",
        seconds={"t.py::one": 1.0, "t.py::two[1]": 2.0, "t.py::three": 2.0},
        breadth={"t.py::one": 1, "t.py::two[1]": 9, "t.py::three": 9},
        scripts={file: [0, 1, 2]},
    )

    def tests(name: str, budget: float = 9.0) -> tuple[list[str], int]:
        return reach.tests(Mutant(id="m", file=file, old="1", new="2", test=name), budget)

    assert tests("") == (["t.py::one", "t.py::two[1]", "t.py::three"], 0)
    assert tests("t.py::two") == (["t.py::two[1]", "t.py::one", "t.py::three"], 0)
    assert tests("i.py::far") == (["i.py::far", "t.py::one", "t.py::two[1]", "t.py::three"], 0)
    assert tests("i.py::far", budget=2.0) == (["i.py::far", "t.py::one"], 2)


TRIALS = """
import json, sys
from dataclasses import asdict, replace
from pathlib import Path
from tests.mutants import run, table
from tests.mutants.reach import Reach
from tests.mutants.table import Mutant

run.STALL, run.STALLS = 15.0, 2
file, inside, old = "redlock_aio/_rules/quorum.py", "majority", "return masters // 2 + 1"
changes = {
    "wrong": "return masters // 2",
    "hangs": "while masters: pass",
    "dies": "import os; os._exit(3)",
    "broken": "return (",  # the fixtures of all tests import it
    "same": "return masters // 2 + 1 + 0",
}
mutants = [Mutant(id=k, file=file, inside=inside, old=old, new=v) for k, v in changes.items()]
mutants.append(Mutant(id="stale", file=file, inside=inside, old="x = 1", new="x = 2"))
# In a process that its test starts, which the map does not have.
mutants += [
    replace(mutant, test=f"{mutant.test}[KeyboardInterrupt-close()]")
    for mutant in table.read(table.PLANTED) if mutant.id == "exit-ended-by-a-signal"
]
out = Path(sys.argv[1])
reach = Reach.load(out / "map")
for every in (False, True):
    tried = [mutant for mutant in mutants if every or mutant.id != "hangs"]
    for result in run.trials(tried, reach, jobs=3, budget=60, every=every):
        run.append(out / f"{every}", result)
"""


@pytest.mark.full
def test_trials(tmp_path: Path) -> None:
    """Of a few mutants with one file of tests, in a process that has not imported the package."""
    pytest.importorskip("coverage")
    (tmp_path / "trials.py").write_text(TRIALS)
    maps = ["-m", "tests.mutants", "map", "--map", tmp_path / "map"]
    for arguments in (
        [*maps, "--tests", "tests/unit/test_quorum.py"],
        [tmp_path / "trials.py", tmp_path],
    ):
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    first, every = (
        {row["id"]: row for row in map(json.loads, (tmp_path / name).read_text().splitlines())}
        for name in ("False", "True")
    )
    status = {
        "wrong": KILLED,
        "dies": DIES,
        "broken": DIES,
        "same": SURVIVES,
        "stale": STALE,
        "exit-ended-by-a-signal": KILLED,
    }
    assert {name: row["status"] for name, row in first.items()} == status
    assert {name: row["status"] for name, row in every.items()} == {**status, "hangs": HANGS}
    for rows in (first, every):
        assert rows["broken"]["killers"] == [IMPORT]
        assert rows["same"]["killers"] == []
    assert first["wrong"]["killers"] == every["wrong"]["killers"][:1]
    assert len(first["dies"]["killers"]) == 1
    assert len(every["wrong"]["killers"]) > 5
    # Each test that hangs or ends the process is recorded, and the next ones follow.
    assert len(every["hangs"]["killers"]) == len(every["dies"]["killers"]) == 2
    assert every["hangs"]["untried"] > 0
