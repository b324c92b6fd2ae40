"""What is judged in each cell of the matrix: the longest gap, the order, and who is passed over."""

import json
from pathlib import Path
from typing import Any

import pytest
from evidence.cell import BUSY, leaves_nothing, promised
from evidence.crew import Crew
from evidence.faults import GONE, PROMPT, ROWS, STANDS_STILL
from evidence.job import Job
from evidence.matrix import make, parse, plan
from evidence.ours import COLUMNS
from evidence.recorder import FAULTS
from evidence.results import PUBLISHED, Entry
from evidence.tables import details

from .kit import Script, instant

# ------------------------------------------------------------------------ limits of a row


def test_each_row_has_a_longest_gap_and_no_limit_is_as_long_as_a_run() -> None:
    for row in ROWS:
        assert row.longest_gap is not None, row.name
        assert row.longest_gap < row.seconds, row.name
    # S8: 4 s; 7 s if a waiter dies while it leaves.
    assert (STANDS_STILL, GONE) == (4.0, 7.0)
    assert PROMPT < STANDS_STILL


@pytest.mark.parametrize("name", ["results-faults", "results-faults-containers"])
def test_the_published_gaps_are_as_short_as_what_is_promised(name: str) -> None:
    rows = {row.name: row for row in ROWS}
    cells = json.loads((PUBLISHED / f"{name}.json").read_text())["cells"]
    judged = [each for each in cells if not each["control"] and not each["skipped"]]
    assert len(judged) > 20
    for each in judged:
        limit = rows[each["row"]].longest_gap or 0
        if each["column"] == "command":  # and four times as long as a program takes to start
            assert each["facts"]["longest_gap"] > limit
            limit = each["facts"]["longest_gap"]
        assert each["gap"] <= limit, (each["row"], each["column"])


def test_each_cell_has_a_limit_of_progress_and_fair_ones_of_their_order() -> None:
    fair = {each.name for each in COLUMNS if each.fair}
    assert fair == {"fair", "fair and fenced", "read-write", "semaphore"}
    for name, cell, _ in plan(parse([])):
        limits = cell.limits
        assert set(limits) <= set(BUSY)
        assert limits["longest_gap"] == cell.row.longest_gap, name
        same_clocks = not cell.row.assumption and "clocks" not in cell.row.needs
        ordered = cell.contestant.fair and same_clocks
        assert ("overtaken_within" in limits) is ordered, (cell.row.name, cell.contestant.name)
        assert {"cancelled_within", "kept_within"} < set(limits)


def test_a_fault_of_clocks_leaves_no_order_to_judge() -> None:
    options = parse([])
    (row,) = (row for row in ROWS if row.name == "clock set")
    cell = make(options, row, "fair")
    assert cell.limits == promised(row, cell.contestant)
    assert "overtaken_within" not in cell.limits


def test_only_keys_that_are_kept_by_a_clock_that_is_set_may_be_left() -> None:
    pairs = [
        (row.name, kind.name) for row in ROWS for kind in COLUMNS if not leaves_nothing(row, kind)
    ]
    assert pairs == [("clock set", "kept")]


def test_the_limits_get_longer_by_delays_that_are_not_the_fault_itself(tmp_path: Path) -> None:
    crew = Crew(Job(str(tmp_path), "plain", (), "", seed=1))
    lines = [f"{instant(100)} {30 * 10**6}", f"{instant(1_500)} {1_700 * 10**6}"]
    (tmp_path / "w0.late").write_text("\n".join(lines) + "\n")
    (tmp_path / "w1.late").write_text("")
    assert crew.late() == 1.7
    begin = {"what": "fault", "name": "stall", "client": "w0", "how": "begin"}
    end = begin | {"how": "end", "at": instant(3_250)}
    faults = tmp_path / f"{FAULTS}.jsonl"

    def record(*events: dict[str, Any]) -> None:
        faults.write_text("".join(json.dumps(event) + "\n" for event in events))

    record(begin | {"at": instant(1_600)}, end)
    assert crew.late() == 0.03
    record(begin | {"at": instant(3_210)}, end)
    assert crew.late() == 1.7
    record(begin | {"at": instant(1_600), "client": "w1"}, end | {"client": "w1"})
    assert crew.late() == 1.7


def test_a_stall_that_never_ends_is_the_fault_itself(tmp_path: Path) -> None:
    crew = Crew(Job(str(tmp_path), "plain", (), "", seed=1))
    event = {"what": "fault", "name": "stall", "client": "w0", "how": "begin", "at": instant(0)}
    (tmp_path / f"{FAULTS}.jsonl").write_text(json.dumps(event) + "\n")
    (tmp_path / "w0.late").write_text(f"{instant(10)} {10**9}\n")
    assert crew.late() == 0


def test_the_details_say_how_long_a_gap_may_be() -> None:
    facts = {"seed": 1, "longest_gap": 2.25, "rounds": 3.5}
    judged = Entry("no fault", "fair", facts=facts, checked={"order": 12, "writes": 0})
    old = Entry("flushed", "fair", facts={"seed": 1})
    head, _, *rows = ([cell.strip() for cell in row.split("|")] for row in
                      details([judged, old]).splitlines())  # fmt: skip
    shown = [dict(zip(head, row, strict=True)) for row in rows]
    assert [row["gap at most"] for row in shown] == ["2.25 s", "not judged"]
    assert [row["rounds"] for row in shown] == ["3.5", ""]
    assert [row["order"] for row in shown] == ["12", "0"]


# ------------------------------------------------------------------------------- order


@pytest.mark.parametrize(
    ("reached", "found"),
    [
        pytest.param({}, 1, id="all"),
        pytest.param({1020: (0, 1, 2)}, 1, id="the same majority"),
        pytest.param({1020: (0, 1)}, 0, id="no majority"),
        pytest.param({1020: (0, 1, 2), 1040: (2, 3, 4)}, 0, id="another majority"),
        pytest.param({900: (0,), 990: (0, 1, 2)}, 1, id="before it came"),
        pytest.param({1201: (0,)}, 1, id="after it was served"),
    ],
)
def test_only_a_waiter_that_reached_one_majority_all_along_keeps_its_place(
    script: Script, reached: dict[float, tuple[int, ...]], found: int
) -> None:
    script.meta["overtaken_within"] = 0.05
    script.reach("w0", 0, 0, 1, 2, 3, 4)
    for at, masters in reached.items():
        script.reach("w0", at, *masters)
    script.acquire("w0/0", 1000, 1200, until=1)
    script.acquire("w1/0", 1051, 1100, until=1)
    assert len(script.check().checks["order"].broken) == found


def test_one_that_reaches_nobody_may_not_overtake_others(script: Script) -> None:
    script.meta["overtaken_within"] = 0.05
    script.reach("w1", 0)
    script.acquire("w0/0", 1000, 1200, until=1)
    script.acquire("w1/0", 1051, 1100, until=1)
    assert len(script.check().checks["order"].broken) == 1


def test_a_waiter_that_stood_still_may_be_overtaken(script: Script) -> None:
    script.meta["overtaken_within"] = 0.05
    script.fault("stall", 1_010, 1_020, client="w0")
    script.acquire("w0/0", 1000, 1200, until=1)
    script.acquire("w1/0", 1051, 1100, until=1)
    assert not script.check().checks["order"].broken


@pytest.mark.parametrize(("ends", "found"), [("released", 1), ("lost", 0), ("left", 0)])
def test_only_a_permit_that_is_released_goes_to_those_that_have_waited_for_long(
    script: Script, ends: str, found: int
) -> None:
    script.meta["overtaken_within"] = 0.12
    lease = script.acquire("w2/0", 1, 2, permits=2, permit=0, until=1_500)
    script.acquire("w2/1", 1, 3, permits=2, permit=1, until=9_000)
    if ends == "released":
        script.release("w2/0", 1_400, 1_401, lease=lease)
    elif ends == "lost":
        script.release("w2/0", 1_400, 1_401, lease=lease, end="fail", why="LockNotHeldError")
    script.acquire("w0/0", 1_000, 1_900, permits=2, end="fail")
    script.acquire("w1/0", 1_450, 1_505, permits=2, permit=0, until=1_506)
    assert len(script.check().checks["order"].broken) == found


@pytest.mark.parametrize(
    ("asked", "served", "permit", "found"),
    [(1_100, 1_450, 1, 0), (1_470, 1_490, 1, 1), (1_100, 1_390, 1, 1), (1_100, 1_506, 1, 1)],
    ids=["offered", "later", "before the release", "after"],
)
def test_a_permit_that_was_offered_to_an_older_waiter_goes_to_whoever_comes(
    script: Script, asked: float, served: float, permit: int, found: int
) -> None:
    script.meta["overtaken_within"] = 0.12
    lease = script.acquire("w2/0", 1, 2, permits=2, permit=0, until=1_500)
    script.release("w2/0", 1_400, 1_401, lease=lease)
    script.acquire("w3/0", asked, served, permits=2, permit=permit, until=served + 1)
    script.acquire("w0/0", 1_000, 1_900, permits=2, end="fail")
    script.acquire("w1/0", 1_450, 1_505, permits=2, permit=0, until=1_506)
    broken = script.check().checks["order"].broken
    assert sum("w1/0" in text.partition(" by ")[2] for text in broken) == found


@pytest.mark.parametrize(("served", "found"), [(1_505, 1), (1_601, 0)])
def test_a_permit_that_nobody_took_for_long_was_not_handed_over(
    script: Script, served: float, found: int
) -> None:
    """The waiter that was called for it has died; it goes to whoever asks when its entry ends."""
    script.meta["overtaken_within"] = 0.2
    lease = script.acquire("w2/0", 1, 2, permits=2, permit=0, until=1_500)
    script.release("w2/0", 1_400, 1_401, lease=lease)
    script.acquire("w0/0", 500, 1_900, permits=2, end="fail")
    script.acquire("w1/0", 1_450, served, permits=2, permit=0, until=served + 1)
    assert len(script.check().checks["order"].broken) == found


@pytest.mark.parametrize(
    ("freed", "how", "served", "found"),
    [
        (1_400, "release", 1_510, 0),
        (1_400, "release", 1_545, 1),
        (1_480, "release", 1_510, 0),
        (1_495, "release", 1_543, 0),
        (1_506, "release", 1_510, 1),
        (1_480, "release", 1_545, 1),
        (1_480, "lost", 1_510, 0),
        (1_480, "lost", 1_541, 1),
        (1_495, "lost", 1_510, 1),
        (1_485, "expires", 1_510, 0),
        (1_495, "expires", 1_510, 1),
    ],
    ids=[
        "free for long, called with it",
        "free for long, not called",
        "called for it",
        "called for it later",
        "released later",
        "heard too late",
        "lost before",
        "lost before, not called",
        "lost later",
        "expired before",
        "expires later",
    ],
)
def test_a_waiter_that_is_called_for_one_permit_is_not_passed_for_another(
    script: Script, freed: float, how: str, served: float, found: int
) -> None:
    script.meta["overtaken_within"] = 0.05
    first = script.acquire("w2/0", 1, 2, permits=2, permit=0, until=1_500)
    until = freed if how == "expires" else 1_600
    other = script.acquire("w2/1", 1, 3, permits=2, permit=1, until=until)
    script.release("w2/0", 1_490, 1_491, lease=first)
    if how == "release":
        script.release("w2/1", freed, freed + 1, lease=other)
    elif how == "lost":
        script.release("w2/1", freed, freed + 1, lease=other, end="fail", why="LockNotHeldError")
    script.acquire("w0/0", 1_000, served, permits=2, permit=1, until=served + 1)
    script.acquire("w1/0", 1_450, 1_505, permits=2, permit=0, until=1_506)
    assert len(script.check().checks["order"].broken) == found


def test_a_permit_that_was_released_by_force_as_it_was_acquired_was_free(script: Script) -> None:
    """Nothing is promised of the lease that had it."""
    script.meta["overtaken_within"] = 0.05
    first = script.acquire("w2/0", 1, 2, permits=2, permit=0, until=1_500)
    script.acquire("w2/1", 1, 3, permits=2, permit=1, until=9_000)
    script.force_release("w3/0", 2, 4, permit=1)
    script.release("w2/0", 1_490, 1_491, lease=first)
    script.acquire("w0/0", 1_000, 1_510, permits=2, permit=1, until=1_511)
    script.acquire("w1/0", 1_450, 1_505, permits=2, permit=0, until=1_506)
    assert not script.check().checks["order"].broken


def test_a_waiter_for_a_permit_that_lost_its_place_hides_no_other(script: Script) -> None:
    script.meta["overtaken_within"] = 0.05
    script.reach("w0", 0)
    script.acquire("w0/0", 900, 1_900, permits=2, end="fail")
    script.acquire("w3/0", 1_000, 1_900, permits=2, end="fail")
    script.acquire("w1/0", 1_450, 1_500, permits=2, permit=0, until=1_501)
    (text,) = script.check().checks["order"].broken
    assert "w3/0" in text.partition(" by ")[0]


@pytest.mark.parametrize(
    ("came", "went", "reached", "found"),
    [(0, 20, True, 1), (15, 20, True, 0), (0, 5, True, 0), (0, 20, False, 0)],
    ids=["all along", "came later", "went earlier", "cut off"],
)
def test_only_clients_that_were_there_all_along_have_as_many_turns_as_others(
    script: Script, came: int, went: int, reached: bool, found: int
) -> None:
    script.meta["overtaken_within"] = 100.0
    script.reach("w1", 0, 0, 1, 2, 3, 4)
    if not reached:
        script.reach("w1", 500, 0)
    for number in range(20):
        script.acquire("w0/0", 200 * number, 200 * number + 50, until=1)
        if number in {came, went - 1}:
            script.acquire("w1/0", 200 * number + 50, 200 * number + 100, until=1)
    assert len(script.check().checks["order"].broken) == found


@pytest.mark.parametrize(
    ("shared", "fewest", "found"),
    [(False, 23, 1), (False, 24, 0), (True, 18, 0), (True, 17, 1)],
)
def test_turns_with_readers_may_differ_by_chance_as_well(
    script: Script, shared: bool, fewest: int, found: int
) -> None:
    """The most are 32: 0.8 of them, less 2 and the root, are 23.6 and 17.9."""
    script.meta["overtaken_within"] = 100.0
    script.reach("w1", 0, 0, 1, 2, 3, 4)
    for number in range(32):
        at = 200 * number
        script.acquire("w0/0", at, at + 50, until=1, shared=shared)
        if number < fewest - 1 or number == 31:
            script.acquire("w1/0", at + 50, at + 100, until=1)
    assert len(script.check().checks["order"].broken) == found


def test_turns_of_a_semaphore_are_not_compared(script: Script) -> None:
    """One client works for long each time; the other permit goes round among the others."""
    script.meta["overtaken_within"] = 100.0
    for number in range(20):
        script.acquire("w0/0", 200 * number, 200 * number + 50, until=1, permits=2, permit=0)
    for number in (0, 19):
        at = 200 * number + 50
        script.acquire("w1/0", at, at + 50, until=1, permits=2, permit=1)
    assert not script.check().checks["order"].broken


# -------------------------------------------------------------------------- starvation


def passed_over(script: Script, turns: int, *, waits: int = 1, rivals: int = 1) -> None:
    """Let a client wait in vain while each of its rivals has so many turns that it asked later."""
    each = 20 * turns / waits
    for number in range(waits):
        script.acquire("w0/0", each * number, each * (number + 1) - 1, end="fail")
    for number in range(turns):
        for rival in range(rivals):
            at = 20 * number + 5 * rival
            script.acquire(f"w{1 + rival}/0", at + 1, at + 2, until=1)


@pytest.mark.parametrize(("turns", "found"), [(8, 0), (9, 1), (30, 1)])
@pytest.mark.parametrize("rivals", [1, 3])
def test_a_fair_waiter_that_is_passed_over_again_and_again_is_found(
    script: Script, turns: int, rivals: int, found: int
) -> None:
    script.meta["overtaken_within"] = 0.0
    passed_over(script, turns, rivals=rivals)
    starvation = script.check().checks["starvation"]
    assert len(starvation.broken) == found
    assert starvation.checked == 1 + turns * rivals


def test_one_that_asks_again_at_once_is_starved_though_no_wait_was_overtaken(
    script: Script,
) -> None:
    """Each of its attempts fails at once, so nobody overtakes it: only this check sees that."""
    script.meta["overtaken_within"] = 0.01
    passed_over(script, 40, waits=80)
    checks = script.check().checks
    assert not [text for text in checks["order"].broken if " by " in text]
    (text,) = checks["starvation"].broken
    assert "w0/0 had no turn from 0.000000 to 0.799000, and 1 others had 39" in text


def test_one_that_is_served_now_and_then_is_not_starved(script: Script) -> None:
    script.meta["overtaken_within"] = 0.0
    passed_over(script, 8)
    script.acquire("w0/0", 160, 161, until=1)
    for number in range(8):
        script.acquire("w1/0", 170 + 5 * number, 171 + 5 * number, until=1)
    script.acquire("w0/0", 162, 215, end="fail")
    assert not script.check().checks["starvation"].broken


def test_one_that_did_not_want_the_lock_or_could_not_get_it_is_not_starved(
    script: Script,
) -> None:
    script.meta["overtaken_within"] = 0.0
    passed_over(script, 16)
    script.reach("w0", 0, 0, 1, 2, 3, 4)
    script.reach("w0", 200, 0)
    assert not script.check().checks["starvation"].broken


@pytest.mark.parametrize(("pause", "found"), [(90, 1), (110, 0)])
def test_one_that_rests_for_a_while_does_not_want_the_lock(
    script: Script, pause: float, found: int
) -> None:
    script.meta["overtaken_within"] = 0.0
    script.acquire("w0/0", 0, 100, end="fail")
    script.acquire("w0/0", 100 + pause, 240 + pause, end="fail")
    for number in range(30):
        script.acquire("w1/0", 20 * number + 1, 20 * number + 2, until=1)
    assert len(script.check().checks["starvation"].broken) == found


@pytest.mark.parametrize(("cut_off", "found"), [(False, 1), (True, 0)])
def test_one_that_loses_its_place_begins_anew(script: Script, cut_off: bool, found: int) -> None:
    script.meta["overtaken_within"] = 0.0
    script.reach("w0", 0, 0, 1, 2, 3, 4)
    if cut_off:
        script.reach("w0", 110, 0)
        script.reach("w0", 190, 0, 1, 2, 3, 4)
    for began in (0, 100, 200):
        script.acquire("w0/0", began, began + 99, end="fail")
    for number in range(15):
        script.acquire("w1/0", 20 * number + 1, 20 * number + 2, until=1)
    assert len(script.check().checks["starvation"].broken) == found


def test_turns_are_only_counted_of_locks_that_are_not_fair(script: Script) -> None:
    passed_over(script, 30, rivals=2)
    verdict = script.check()
    assert verdict.holds
    assert verdict.checks["starvation"].checked == 0
    assert verdict.rounds == 30
    assert "most turns of each other while one waited: 30.0" in verdict.as_text()
