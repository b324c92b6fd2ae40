"""Leases of one key that were valid at the same time are found, and no others."""

import pytest
from evidence.history import read
from evidence.leases import Around

from .kit import Script, instant


def test_two_valid_leases_of_one_key_are_found(script: Script) -> None:
    script.section("w0/0", 10, 50)
    script.section("w1/0", 49, 60)
    verdict = script.check()
    assert verdict.broken == ("exclusion",)
    (text,) = verdict.checks["exclusion"].broken
    assert "'k': from 0.040000 to 0.041000" in text
    assert "w0/0" in text
    assert "w1/0" in text


def test_an_overlap_is_found_behind_a_shorter_lease(script: Script) -> None:
    script.section("w0/0", 10, 50)
    script.section("w1/0", 20, 21)
    script.section("w2/0", 30, 40)
    assert len(script.check().checks["exclusion"].broken) == 2


def test_leases_that_touch_do_not_overlap(script: Script) -> None:
    script.section("w0/0", 10, 50)
    script.section("w1/0", 50, 60)
    lease = script.acquire("w0/0", 61, 70, until=80)
    script.acquire("w1/0", 75, 80, until=90)
    assert script.check().holds
    script.held("w0/0", 79, lease=lease, until=80.001)
    assert script.check().broken == ("exclusion",)


def test_leases_of_different_keys_do_not_overlap(script: Script) -> None:
    script.section("w0/0", 10, 50, key="a")
    script.section("w1/0", 10, 50, key="b")
    assert script.check().holds


def test_leases_of_several_keys_overlap_if_they_have_one_in_common(script: Script) -> None:
    script.section("w0/0", 10, 50, key="a,b")
    script.section("w1/0", 20, 40, key="b,c")
    verdict = script.check()
    assert [text[:3] for text in verdict.checks["exclusion"].broken] == ["'b'"]


@pytest.mark.parametrize("until", [60, 59])
def test_a_killed_holder_has_its_lease_until_the_promise_is_over(
    script: Script, until: float
) -> None:
    script.acquire("w0/0", 9, 10, until=until)
    script.section("w1/0", 60, 70)
    assert script.check().holds


def test_a_lease_given_to_another_before_a_killed_holder_s_is_over_is_found(script: Script) -> None:
    script.acquire("w0/0", 9, 10, until=61)
    script.section("w1/0", 60, 70)
    assert script.check().broken == ("exclusion",)


def test_a_validity_that_overlaps_only_by_an_extension_is_found(script: Script) -> None:
    lease = script.acquire("w0/0", 9, 10, until=50)
    script.extend("w0/0", 30, 40, lease=lease, until=80)
    script.section("w1/0", 60, 70)
    assert script.check().broken == ("exclusion",)


@pytest.mark.parametrize(("at", "holds"), [(149, False), (150, True)])
@pytest.mark.parametrize("end", ["fail", "info"])
def test_a_shorter_extension_that_does_not_succeed_ends_the_promise_after_its_ttl(
    script: Script, end: str, at: float, holds: bool
) -> None:
    """The holder stands still from its request on, and nobody knows what it believes meanwhile."""
    lease = script.acquire("w0/0", 9, 10, until=1_000)
    script.extend("w0/0", 50, 300, lease=lease, ttl=100, end=end, why="LockLostError")
    script.section("w1/0", at, 200)
    assert script.check().holds is holds


def test_what_is_found_valid_after_a_shorter_extension_is_a_promise_again(script: Script) -> None:
    lease = script.acquire("w0/0", 9, 10, until=1_000)
    script.extend("w0/0", 50, 60, lease=lease, ttl=100, end="info", why="cancelled")
    script.held("w0/0", 160, lease=lease, until=1_000)
    script.section("w1/0", 200, 210)
    assert script.check().broken == ("exclusion",)


def test_a_validity_that_overlaps_only_by_a_check_is_found(script: Script) -> None:
    lease = script.acquire("w0/0", 9, 10, until=50)
    script.held("w0/0", 45, lease=lease, until=80)
    script.section("w1/0", 60, 70)
    assert script.check().broken == ("exclusion",)


@pytest.mark.parametrize("end", ["fail", "info"])
def test_an_extension_that_nobody_confirmed_is_no_promise(script: Script, end: str) -> None:
    lease = script.acquire("w0/0", 9, 10, until=50)
    script.extend("w0/0", 30, 40, lease=lease, end=end, why="too few votes")
    script.section("w1/0", 60, 70)
    assert script.check().holds


def test_an_extension_that_failed_leaves_the_promise_before(script: Script) -> None:
    lease = script.acquire("w0/0", 9, 10, until=50)
    script.extend("w0/0", 20, 30, lease=lease, end="fail", why="too few votes")
    script.section("w1/0", 45, 70)
    assert script.check().broken == ("exclusion",)


def test_an_extension_counts_from_its_end_on(script: Script) -> None:
    lease = script.acquire("w0/0", 9, 10, until=50)
    script.extend("w0/0", 30, 70, lease=lease, until=90)
    script.section("w1/0", 55, 60)
    assert script.check().broken == ("expiry",), "nothing was promised from 50 to 70"


def test_a_later_promise_takes_the_place_of_a_longer_one(script: Script) -> None:
    lease = script.acquire("w0/0", 9, 10, until=90)
    script.extend("w0/0", 30, 40, lease=lease, until=50)
    script.section("w1/0", 55, 60)
    assert script.check().holds


@pytest.mark.parametrize(
    ("end", "ended"), [("ok", 50), ("fail", 50), ("info", 50), ("without one", None)]
)
def test_a_lease_ends_where_its_release_begins(
    script: Script, end: str, ended: float | None
) -> None:
    lease = script.acquire("w0/0", 9, 10)
    script.release("w0/0", 30, ended, lease=lease, end=end)
    script.section("w1/0", 35, 40)
    assert script.check().holds


def test_a_lease_ends_where_its_holder_is_notified_of_its_loss(script: Script) -> None:
    script.reach("w0", 0, 0)
    lease = script.acquire("w0/0", 9, 10)
    script.section("w1/0", 31, 40)
    script.lost("w0/0", 30, lease=lease)
    assert script.check().holds


def test_a_holder_that_is_notified_too_late_is_found(script: Script) -> None:
    script.reach("w0", 0, 0)
    lease = script.acquire("w0/0", 9, 10)
    script.section("w1/0", 29, 40)
    script.lost("w0/0", 30, lease=lease)
    assert script.check().broken == ("exclusion",)


def test_an_extension_that_finds_the_lease_lost_ends_it(script: Script) -> None:
    script.reach("w0", 0, 0)
    lease = script.acquire("w0/0", 9, 10)
    script.extend("w0/0", 20, 30, lease=lease, end="fail", why="LockLostError")
    script.section("w1/0", 31, 40)
    assert script.check().holds


def test_a_lease_that_is_valid_again_after_its_release_is_found(script: Script) -> None:
    lease = script.section("w0/0", 10, 20)
    script.section("w1/0", 25, 40)
    assert script.check().holds
    script.held("w0/0", 30, lease=lease, until=50)
    assert script.check().broken == ("exclusion", "expiry")


def test_an_adopted_lease_continues_that_of_its_exporter(script: Script) -> None:
    lease = script.acquire("w0/0", 9, 10, token=7)
    new = script.adopt("w1/0", 20, 30, exporter=lease, token=7)
    script.release("w1/0", 50, 51, lease=new)
    script.section("w2/0", 52, 60, token=8)
    verdict = script.check()
    assert verdict.holds
    assert verdict.checks["tokens"].checked == 2


def test_an_adoption_beside_its_exporter_is_found(script: Script) -> None:
    lease = script.acquire("w0/0", 9, 10, until=FAR)
    script.adopt("w1/0", 20, 30, exporter=lease, until=FAR)
    script.held("w0/0", 29, lease=lease, until=FAR)
    assert script.check().holds
    script.held("w0/0", 31, lease=lease, until=FAR)
    assert script.check().broken == ("exclusion", "expiry")


FAR = 5_000


def test_two_adoptions_of_one_lease_are_found(script: Script) -> None:
    lease = script.acquire("w0/0", 9, 10)
    script.adopt("w1/0", 20, 30, exporter=lease)
    script.adopt("w2/0", 21, 31, exporter=lease)
    assert script.check().broken == ("exclusion",)


def test_an_adopted_lease_beside_that_of_a_third_one_is_found(script: Script) -> None:
    lease = script.acquire("w0/0", 9, 10)
    script.adopt("w1/0", 20, 30, exporter=lease)
    script.section("w2/0", 40, 50)
    assert script.check().broken == ("exclusion",)


@pytest.mark.parametrize("end", ["fail", "info"])
def test_an_adoption_that_fails_ends_the_lease_of_its_exporter(script: Script, end: str) -> None:
    lease = script.acquire("w0/0", 9, 10)
    script.adopt("w1/0", 20, 40, exporter=lease, end=end)
    script.section("w2/0", 30, 50)
    assert script.check().holds


def test_a_lease_is_over_when_its_key_is_released_by_force(script: Script) -> None:
    lease = script.acquire("w0/0", 9, 10)
    script.force_release("admin/0", 20, 30)
    script.held("w0/0", 25, lease=lease, until=FAR)
    script.section("w1/0", 31, 40)
    assert script.check().holds


def test_a_release_by_force_that_failed_ends_no_lease(script: Script) -> None:
    script.acquire("w0/0", 9, 10)
    script.force_release("admin/0", 20, 30, end="fail")
    script.section("w1/0", 31, 40)
    assert script.check().broken == ("exclusion",)


def test_a_lease_is_over_when_two_of_its_keys_are_released_by_force(script: Script) -> None:
    script.acquire("w0/0", 9, 20, key="a,b")
    script.force_release("admin/0", 10, 25, key="a")
    script.force_release("admin/1", 16, 30, key="b")
    script.section("w1/0", 31, 40, key="b,c")
    assert script.check().holds


def test_a_release_by_force_that_came_before_excuses_nothing(script: Script) -> None:
    script.force_release("admin/0", 1, 8)
    script.section("w0/0", 10, 50)
    script.section("w1/0", 30, 40)
    assert script.check().broken == ("exclusion",)


def test_a_release_by_force_that_lasts_longer_makes_no_earlier_one_count(script: Script) -> None:
    script.force_release("admin/0", 0, 30)
    script.force_release("admin/1", 1, 8)
    script.save()
    around = Around(read(script.folder).operations)
    assert [one.client for one in around.within(instant(10), instant(50))] == ["admin/0"]
    assert [one.client for one in around.within(instant(8), instant(50))] == ["admin/0", "admin/1"]


def test_a_holder_that_goes_on_long_after_a_release_by_force_is_found(script: Script) -> None:
    lease = script.acquire("w0/0", 9, 10, until=FAR)
    script.force_release("admin/0", 20, 30)
    script.section("w1/0", 31, FAR)
    script.held("w0/0", 1_500, lease=lease, until=FAR)
    assert script.check().broken == ("exclusion", "expiry")


def test_an_acquisition_without_an_end_is_no_lease(script: Script) -> None:
    script.acquire("w0/0", 9, None)
    script.section("w1/0", 10, 50)
    assert script.check().holds
