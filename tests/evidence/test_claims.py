"""What the README may say about speed: what each of the runs shows, and nothing else."""

import copy
from typing import Any

import claims
import pytest
from claims import ALONE, CPU, FAIL_FAST, NODE, OTHERS, REDSYNC, RUEIDISLOCK, Run
from contenders import FAIR, PLAIN, POTTERY, REDIS_PY


def run_of(**ratios: float) -> Run:
    """Return a run in which all others are by that much worse in these figures; else equal."""

    def figures(by: float, *names: str) -> dict[str, Any]:
        return dict.fromkeys(names, 10.0 * by)

    cpu, p50, wait = (ratios.get(name, 1.0) for name in ("cpu", "p50", "wait"))
    ours = figures(1.0, "cpu", "p50")
    theirs = figures(cpu, "cpu") | figures(p50, "p50")
    pairs = {PLAIN: ours, **{name: dict(theirs) for name in OTHERS}}
    waiters = {FAIR: figures(1.0, "wait"), **{name: figures(wait, "wait") for name in OTHERS}}
    return {
        "pairs": {"1": pairs, "100": copy.deepcopy(pairs)},
        "waiters": {"100": waiters},
    }


PAIR = "a pair of acquire and release on five servers costs the client"


def test_what_holds_in_each_run_is_said() -> None:
    runs = [run_of(cpu=5.9, p50=1.1, wait=2.0) for _ in range(10)]
    assert claims.sentence(runs) == (
        f"Each of ten runs on one machine shows this: {PAIR} less CPU time than with any of the six"
        " others. That is at most a fifth of redis-py's. Alone it takes less time than with any of"
        " the six others. With `fair=True` the longest of 100 waiters waits less than with any of"
        " the six others."
    )


def test_what_fails_in_one_run_of_ten_is_not_said() -> None:
    runs = [run_of(cpu=3.0) for _ in range(10)]
    runs[6]["pairs"]["100"][REDSYNC]["cpu"] = 9.9
    said = claims.sentence(runs)
    assert CPU.better(runs, REDSYNC) == 9
    assert said == (
        f"Each of ten runs on one machine shows this: {PAIR} less CPU time than with"
        " redis-py's Lock and rueidislock (Go) on one, pottery's AIORedlock and node-redlock on"
        " five, and redsync (Go) on five with failFast. That is at most a third of redis-py's."
    )


def test_two_settings_of_one_library_are_named_once() -> None:
    assert claims.listed([NODE, REDSYNC, FAIL_FAST]) == "node-redlock and redsync (Go) on five"
    assert claims.listed([FAIL_FAST]) == FAIL_FAST


def test_the_share_is_that_of_the_worst_run() -> None:
    runs = [run_of(cpu=6.5), run_of(cpu=4.99), run_of(cpu=7.0)]
    assert "Each of three runs" in claims.sentence(runs)
    assert "That is at most a quarter of redis-py's." in claims.sentence(runs)
    assert "of redis-py's" not in claims.sentence([run_of(cpu=1.9)])
    assert "at most a tenth of redis-py's" in claims.sentence([run_of(cpu=30.0)])


def test_who_is_better_in_each_run_is_said_too() -> None:
    runs = [run_of(cpu=2.5, p50=0.5) for _ in range(10)]
    for run in runs:
        run["pairs"]["100"][RUEIDISLOCK]["cpu"] = 1.0
    said = claims.sentence(runs)
    assert (
        f", and more than with {RUEIDISLOCK}. That is at most a half of redis-py's. Alone" in said
    )
    assert said.endswith("Alone it takes more time than with any of the six others.")
    del runs[3]["pairs"]["100"][RUEIDISLOCK]
    assert "and more than with" not in claims.sentence(runs)


def test_runs_without_a_claim_have_no_sentence() -> None:
    with pytest.raises(ValueError, match="no claim about speed holds in each of the 2 runs"):
        claims.sentence([run_of(cpu=2.0), run_of(cpu=0.5)])


def test_more_is_better_where_it_is_a_rate() -> None:
    (rate,) = (each for each in claims.STATEMENTS if each.text == "more pairs/s, 100 tasks")
    run: Run = {"pairs": {"100": {PLAIN: {"rate": 30.0}, NODE: {"rate": 10.0}}}}
    assert rate.ratios([run], NODE) == [3.0]
    assert (rate.better([run], NODE), rate.worse([run], NODE)) == (1, 0)


def test_who_made_no_pair_is_not_compared() -> None:
    run = run_of(p50=2.0)
    run["pairs"]["1"][NODE]["p50"] = None
    del run["pairs"]["1"][POTTERY]
    assert ALONE.ratios([run], NODE) == ALONE.ratios([run], POTTERY) == []
    assert ALONE.ratios([run], REDIS_PY) == [2.0]
