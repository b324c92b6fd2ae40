"""The rows and the tables of the locks of other libraries."""

from pathlib import Path
from typing import Any

import pytest
from evidence import peers_matrix
from evidence.ours import OURS
from evidence.peers_go import Redsync
from evidence.peers_matrix import everybody, parse, plan, rows_of
from evidence.peers_rows import ONE_MASTER_NOTES, ONE_MASTER_ROWS, QUORUM_NOTES, QUORUM_ROWS
from evidence.peers_tables import ON_FIVE, ON_ONE, report, words
from evidence.results import NOBODY, Entry, Results

FACTS = {
    "machine": "a machine", "server": "valkey 9", "date": "2026-01-01", "versions": {"redis": "8"},
    "seed": 7, "tasks": 6, "workers": 3, "ttl": 1000,
}  # fmt: skip


def entry(row: str = "no fault", column: str = "pottery", **facts: Any) -> Entry:
    made: dict[str, Any] = {"acquired": 9, "gap": 0.26, "facts": FACTS}
    return Entry(row, column, **made | facts)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, "no update lost; gap 0.3 s, pause 0.0 s; 9 acquired"),
        (
            {"broken": {"updates": 2, "exclusion": 1}},
            (
                "**2 updates lost**; **1 pair of leases valid at once**; gap 0.3 s, pause 0.0 s;"
                " 9 acquired"
            ),
        ),
        (
            {"broken": {"expiry": 1}},
            "**1 lease valid again after the end**; gap 0.3 s, pause 0.0 s; 9 acquired",
        ),
        (
            {"broken": {"updates": 2}, "late_updates": 1},
            "**3 updates lost**, 1 by late writes; gap 0.3 s, pause 0.0 s; 9 acquired",
        ),
        (
            {"late_updates": 1},
            "**1 update lost**, all by late writes; gap 0.3 s, pause 0.0 s; 9 acquired",
        ),
        (
            {"losses": 3, "broken": {"losses": 2, "keys_left": 4}},
            (
                "no update lost; 3 leases lost (2 needless); 4 keys left; gap 0.3 s, pause 0.0 s;"
                " 9 acquired"
            ),
        ),
        (
            {"wrong": ["w0 did not end", "w2 did not end"]},
            "no update lost; **2 clients did not end**; gap 0.3 s, pause 0.0 s; 9 acquired",
        ),
        (
            {"facts": FACTS | {"long": 0.1}},
            "no update lost; gap 0.3 s, pause 0.0 s; 9 acquired; 1 in 10 long",
        ),
        (
            {"broken": {"updates": 1}, "history": "h/one.tar.xz"},
            "**1 update lost**; gap 0.3 s, pause 0.0 s; 9 acquired ([history](h/one.tar.xz))",
        ),
        ({"facts": {}, "wrong": ["no server"]}, "not run: no server"),
        (
            {"wrong": [NOBODY], "acquired": 0},
            "no update lost; **nobody acquired a lock**; gap 0.3 s, pause 0.0 s; 0 acquired",
        ),
        (
            {"wrong": ["w0 ended with 1: a\n  b"]},
            (
                "no update lost; a client failed: w0 ended with 1: a b; gap 0.3 s, pause 0.0 s;"
                " 9 acquired"
            ),
        ),
        ({"skipped": "there is no ip in the PATH"}, "not run: there is no ip in the PATH"),
    ],
)
def test_a_cell_says_in_words_what_happened(facts: dict[str, Any], expected: str) -> None:
    assert words(entry(**facts)) == expected


def test_each_library_has_a_column_in_the_table_of_its_masters() -> None:
    for name, contestant in everybody().items():
        assert name in (ON_ONE if contestant.masters == 1 else ON_FIVE)


def test_each_note_belongs_to_a_row() -> None:
    assert set(QUORUM_NOTES) <= {row.name for row in QUORUM_ROWS}
    assert set(ONE_MASTER_NOTES) <= {row.name for row in ONE_MASTER_ROWS}


def test_no_row_tries_a_feature_that_no_peer_has() -> None:
    assert len(QUORUM_ROWS) == 16  # a row that has another name would be missing here
    assert not any(row.ability or "sentinels" in row.needs for row in QUORUM_ROWS)


def test_a_lock_on_one_master_is_tried_with_the_rows_of_one() -> None:
    cells = [cell for cell, _ in plan(parse(["--columns", "redis-py", "plain", "--seed", "5"]))]
    by_column = {name: [c.row for c in cells if c.contestant.name == name] for name in everybody()}
    assert by_column["redis-py"] == list(ONE_MASTER_ROWS)
    assert by_column["plain"] == list(QUORUM_ROWS) == list(rows_of(everybody()["plain"]))
    assert {cell.seed for cell in cells} == {5}


def test_a_client_without_an_event_loop_has_none_that_is_blocked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    redsync = Redsync()
    monkeypatch.setattr(peers_matrix, "everybody", lambda: {"redsync": redsync, "plain": OURS[0]})
    reasons = {
        (cell.contestant.name, cell.row.name): why
        for cell, why in plan(parse(["--rows", "loop stalled", "no fault"]))
    }
    assert reasons == {
        ("redsync", "no fault"): "",
        ("redsync", "loop stalled"): "it has no event loop",
        ("plain", "no fault"): "",
        ("plain", "loop stalled"): "",
    }


def test_a_report_describes_a_row_as_it_was_run(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.json")
    results.add(entry("flushed", facts=FACTS | {"what": "All is deleted."}))
    results.add(entry("flushed", "aioredlock", facts=FACTS | {"what": "A bit is deleted."}))
    assert "**flushed** (1). All is deleted. Or: A bit is deleted. |" in report(results)


def test_a_report_has_a_row_for_each_fault_and_the_versions_of_each_column(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.json")
    results.add(entry())
    results.add(entry("flushed", broken={"updates": 2}))
    results.add(entry("flushed", "redis-py"))
    text = report(results)
    five, one = text.split("## Locks on one master")
    assert "| fault | pottery<br>redis 8 |" in five
    assert "| fault | redis-py<br>redis 8 |" in one
    assert "| **flushed** (1). " in five
    assert "**2 updates lost**" in five
    assert "**2 updates lost**" not in one
    assert "--seed 7`" in text
