"""A lease that is valid again after its end is found, also if nobody held the lock beside it."""

import pytest

from .kit import Script


def test_an_extension_after_the_end_of_a_lease_is_found_with_another_holder_in_between(
    script: Script,
) -> None:
    lease = script.acquire("w0/0", 9, 10, until=50)
    script.section("w1/0", 55, 60, until=70)
    script.extend("w0/0", 80, 90, lease=lease, until=1_070)
    verdict = script.check()
    assert verdict.broken == ("expiry",)
    (text,) = verdict.checks["expiry"].broken
    assert text.startswith(lease)
    assert text.endswith(" was promised at 0.081000, but it was over at 0.041000")


def test_an_extension_after_the_end_of_a_lease_is_found_if_nobody_came_in_between(
    script: Script,
) -> None:
    lease = script.acquire("w0/0", 9, 10, until=50)
    script.extend("w0/0", 51, 60, lease=lease, until=1_051)
    assert script.check().broken == ("expiry",)


@pytest.mark.parametrize("until", [300, 1_050])
def test_an_extension_that_was_asked_for_in_time_may_be_known_a_moment_late(
    script: Script, until: float
) -> None:
    """The masters may have granted it in time: its client says so in a later turn of its loop."""
    lease = script.acquire("w0/0", 9, 10, until=50)
    script.extend("w0/0", 49, 60, lease=lease, until=until)
    script.held("w0/0", 61, lease=lease, until=until)
    assert script.check().holds


def test_an_extension_that_comes_later_than_a_turn_of_the_loop_is_found(script: Script) -> None:
    lease = script.acquire("w0/0", 9, 10, until=50)
    script.extend("w0/0", 40, 550, lease=lease, until=1_040)
    assert script.check().holds
    script.held("w0/0", 1_041, lease=lease, until=1_042)
    assert script.check().holds
    script.held("w0/0", 1_543, lease=lease, until=2_040)
    assert script.check().broken == ("expiry",)


@pytest.mark.parametrize(
    ("stalled", "broken"),
    [("w0", False), ("w1", True)],
)
def test_a_client_that_was_stopped_knows_its_extension_late(
    script: Script, stalled: str, broken: bool
) -> None:
    script.reach("w0", 0, 0, 1, 2)
    lease = script.acquire("w0/0", 9, 10, until=50)
    script.fault("stall", 45, 800, client=stalled)
    script.extend("w0/0", 40, 810, lease=lease, until=1_030)
    assert script.check().broken == (("expiry",) if broken else ())


def test_a_client_that_was_stopped_may_not_extend_a_lease_that_is_over(script: Script) -> None:
    lease = script.acquire("w0/0", 9, 10, until=50)
    script.fault("stall", 20, 800, client="w0")
    script.extend("w0/0", 801, 810, lease=lease, until=1_801)
    assert script.check().broken == ("expiry",)


def test_an_extension_that_is_known_when_it_is_over_again_is_no_promise(script: Script) -> None:
    """Its client was stopped meanwhile: it can't act on it."""
    lease = script.acquire("w0/0", 9, 10, until=50)
    script.fault("stall", 45, 2_000, client="w0")
    script.section("w1/0", 1_100, 1_200)
    script.extend("w0/0", 40, 2_001, lease=lease, until=2_000.5)
    assert script.check().holds


def test_a_chain_of_promises_is_not_over(script: Script) -> None:
    lease = script.acquire("w0/0", 9, 10, until=1_009)
    for number in range(10):
        at = 300.0 * (number + 1)
        script.held("w0/0", at, lease=lease, until=at + 999)
    script.release("w0/0", 3_500, 3_510, lease=lease)
    verdict = script.check()
    assert verdict.holds
    assert verdict.checks["expiry"].checked == 10


def test_without_a_record_of_each_extension_nobody_knows_when_a_lease_was_over(
    script: Script,
) -> None:
    lease = script.acquire("w0/0", 9, 10, until=50, observed=False)
    script.held("w0/0", 1_500, lease=lease, until=2_000)
    assert script.check().holds
    script.section("w1/0", 1_400, 1_450)
    assert script.check().broken == ("expiry",)


def test_a_promise_after_a_later_lease_is_found_without_such_a_record(script: Script) -> None:
    lease = script.acquire("w0/0", 9, 10, until=50, key="a,b", observed=False)
    script.section("w1/0", 60, 70, key="b")
    script.section("w2/0", 80, 90, key="a")
    script.held("w0/0", 65, lease=lease, until=66)
    script.held("w0/0", 100, lease=lease, until=200)
    verdict = script.check()
    assert verdict.broken == ("exclusion", "expiry")
    (text,) = verdict.checks["expiry"].broken
    assert "was promised at 0.056000, but lease-2 was granted at 0.051000" in text


def test_a_lease_that_was_over_when_its_client_got_to_know_it_came_at_no_known_time(
    script: Script,
) -> None:
    """Its client was stopped: it may have had the lock before the other one was granted."""
    script.acquire("w1/0", 1, 110, until=90)
    lease = script.acquire("w0/0", 99, 100, until=1_000)
    script.held("w0/0", 120, lease=lease, until=1_000)
    assert script.check().holds


@pytest.mark.parametrize("end", ["released", "lost", "handed over"])
def test_a_promise_that_is_known_only_after_the_end_of_a_lease_is_found(
    script: Script, end: str
) -> None:
    script.reach("w0", 0, 0)
    lease = script.acquire("w0/0", 9, 10)
    match end:
        case "released":
            script.release("w0/0", 20, 21, lease=lease)
        case "lost":
            script.lost("w0/0", 20, lease=lease)
        case "handed over":
            script.adopt("w1/0", 19, 20, exporter=lease, end="fail")
    assert script.check().holds
    script.held("w0/0", 30, lease=lease, until=500)
    verdict = script.check()
    assert verdict.broken == ("expiry",)
    assert "but it had ended at" in verdict.checks["expiry"].broken[0]


def test_an_adoption_of_a_lease_that_is_over_is_found(script: Script) -> None:
    lease = script.acquire("w0/0", 9, 10, until=50)
    script.adopt("w1/0", 45, 60, exporter=lease, until=1_040)
    assert script.check().holds
    late = script.acquire("w0/0", 2_009, 2_010, until=2_050)
    script.adopt("w1/0", 2_060, 2_070, exporter=late, until=3_060)
    verdict = script.check()
    assert verdict.broken == ("expiry",)
    assert verdict.checks["expiry"].broken[0].startswith(late)


def test_a_release_by_force_ends_no_chain_of_promises(script: Script) -> None:
    """It may have failed: then its holder goes on, and extends the lease."""
    lease = script.acquire("w0/0", 9, 10, until=1_000)
    script.force_release("admin/0", 20, 30, end="info")
    script.held("w0/0", 700, lease=lease, until=1_700)
    script.held("w0/0", 1_400, lease=lease, until=2_400)
    script.held("w0/0", 2_100, lease=lease, until=3_000)
    assert script.check().holds


def test_a_holder_that_is_notified_of_a_release_by_force_a_moment_late_breaks_nothing(
    script: Script,
) -> None:
    lease = script.acquire("w0/0", 9, 10, until=50)
    script.force_release("admin/0", 20, 30)
    script.section("w1/0", 40, 50)
    script.held("w0/0", 60, lease=lease, until=1_060)
    script.lost("w0/0", 70, lease=lease)
    assert script.check().holds
