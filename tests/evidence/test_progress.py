"""Gaps, leases that were lost without need, and keys that were left behind."""

import pytest

from .kit import Script, instant

TTL = 1_000
"""That of all leases of a script, in ms."""


def wanting(script: Script, began: float, ended: float, *, key: str = "k") -> None:
    """Add an acquisition that fails."""
    script.acquire("w1/0", began, ended, key=key, end="fail")


# -------------------------------------------------------------------------------- gaps


def test_a_gap_is_found(script: Script) -> None:
    script.section("w0/0", 10, 100)
    wanting(script, 50, 3_100)
    verdict = script.check(longest_gap=2.9)
    assert verdict.broken == ("progress",)
    assert verdict.gaps == {"k": 3.0}
    assert script.check(longest_gap=3.1).holds
    assert script.check().worst_gap == 3.0
    script.meta["longest_gap"] = 2.9
    assert script.check().broken == ("progress",)


def test_a_gap_goes_on_where_a_client_asks_again_at_once(script: Script) -> None:
    for began in range(0, 3_000, 500):
        wanting(script, began, began + 450)
    assert script.check().worst_gap == 2.95


def test_a_time_in_which_nobody_wants_the_lock_is_no_gap(script: Script) -> None:
    wanting(script, 0, 1_000)
    wanting(script, 3_000, 3_500)
    assert script.check().worst_gap == 1.0


def test_a_time_in_which_the_lock_is_held_is_no_gap(script: Script) -> None:
    wanting(script, 0, 3_000)
    script.section("w0/0", 1_000, 2_500)
    assert script.check().worst_gap == 1.0


def test_an_acquisition_ends_a_gap_though_its_lease_was_over_at_once(script: Script) -> None:
    wanting(script, 0, 3_000)
    script.acquire("w0/0", 1_000, 2_000, until=2_000)
    assert script.check().worst_gap == 2.0


def test_a_lease_that_a_client_tries_to_adopt_in_vain_is_not_free(script: Script) -> None:
    lease = script.acquire("w0/0", 0, 10, until=1_000)
    wanting(script, 100, 2_000)
    script.adopt("w2/0", 200, 1_100, exporter=lease, end="fail")
    assert script.check().worst_gap == 0.9


def test_a_lock_of_another_key_ends_no_gap(script: Script) -> None:
    wanting(script, 0, 3_000)
    script.section("w0/0", 1_000, 2_000, key="other")
    assert script.check().worst_gap == 3.0


def test_a_lock_of_several_keys_has_to_wait_for_each(script: Script) -> None:
    wanting(script, 0, 3_000, key="a,b")
    script.section("w0/0", 1, 1_000, key="a")
    script.section("w0/1", 900, 2_500, key="b")
    assert script.check().gaps["a,b"] == 0.5


@pytest.mark.parametrize(("masters", "gap"), [((0, 1, 2), 3.0), ((0, 1), 1.0)])
def test_a_process_that_reaches_no_majority_has_no_gap(
    script: Script, masters: tuple[int, ...], gap: float
) -> None:
    script.reach("w1", 0, 0, 1, 2, 3, 4)
    script.reach("w1", 1_000, *masters)
    script.reach("w1", 2_500, 2, 3, 4)
    wanting(script, 0, 3_000)
    assert script.check().worst_gap == gap


def test_a_process_that_was_cut_off_does_not_hide_the_gap_of_another(script: Script) -> None:
    script.reach("w2", 0)
    script.acquire("w2/0", 0, 3_000, end="fail")
    wanting(script, 0, 2_000)
    assert script.check().worst_gap == 2.0


def test_a_process_that_was_stopped_has_no_gap(script: Script) -> None:
    script.fault("stall", 500, 2_900, client="w1")
    wanting(script, 0, 3_000)
    assert script.check().worst_gap == 0.5


def test_a_client_that_never_got_an_answer_wanted_the_lock_to_the_end(script: Script) -> None:
    script.section("w0/0", 10, 20)
    script.acquire("w1/0", 15, None)
    script.section("w0/0", 30, 40, key="other")
    script.meta["ended"] = script.check().operations and 5_000_000_000_000 + 4_020_000_000
    assert script.check().worst_gap == 4.0


# ------------------------------------------------------------------------------ pauses


def test_the_longest_pause_counts_from_the_beginning_and_to_the_end(script: Script) -> None:
    script.meta |= {"began": instant(0), "ended": instant(10_000)}
    for at in (1_000, 4_500, 8_000):
        script.acquire("w0/0", at - 1, at, key="red")
    assert script.check().pause == 3.5
    script.acquire("w0/0", 5_999, 6_000, key="blue")
    assert script.check().pause == 6.0


def test_a_key_that_nobody_acquired_has_the_longest_pause(script: Script) -> None:
    script.meta |= {"began": instant(0), "ended": instant(10_000)}
    script.section("w0/0", 5_000, 5_001)
    assert script.check().pause == 5.0
    wanting(script, 1, 2, key="green")
    assert script.check().pause == 10.0


# ------------------------------------------------------------------------------ losses


def needless(script: Script) -> list[str]:
    return script.check().checks["losses"].broken


def test_a_lease_that_was_lost_without_need_is_counted(script: Script) -> None:
    lease = script.acquire("w0/0", 9, 10)
    script.lost("w0/0", 2_000, lease=lease)
    verdict = script.check()
    assert verdict.losses == 1
    (text,) = verdict.checks["losses"].broken
    assert "KEY_GONE" in text
    assert verdict.holds
    assert "losses: a lease was lost without need, 1 of 1" in verdict.as_text()


def test_a_loss_that_an_extension_finds_is_found_once(script: Script) -> None:
    lease = script.acquire("w0/0", 9, 10)
    script.lost("w0/0", 2_000, lease=lease)
    script.extend("w0/0", 1_990, 2_001, lease=lease, end="fail", why="LockLostError: gone")
    assert len(needless(script)) == script.check().losses == 1


@pytest.mark.parametrize("why", [
    "LockNotHeldError: another has it", "LockNotOwnedError", "ReleaseUnlockedLock: no",
    "NotAcquired: it already expired",
])  # fmt: skip
@pytest.mark.parametrize(
    ("invoked", "until", "number"),
    [(1_990, 2_000, 1), (2_000, 2_000, 1), (2_001, 2_000, 0), (10, 10, 0)],
)
def test_a_loss_that_only_the_release_finds_is_found_while_the_lease_was_promised(
    script: Script, why: str, invoked: float, until: float, number: int
) -> None:
    lease = script.acquire("w0/0", 9, 10, until=until)
    script.release("w0/0", invoked, 2_010, lease=lease, end="fail", why=why)
    assert len(needless(script)) == script.check().losses == number


def test_an_extension_that_is_refused_when_the_lease_begins_finds_a_loss(script: Script) -> None:
    lease = script.acquire("w0/0", 9, 10)
    script.extend("w0/0", 10, 11, lease=lease, end="fail", why="LockNotHeldError")
    assert script.check().losses == 1


def test_an_extension_that_is_refused_ends_the_lease(script: Script) -> None:
    lease = script.acquire("w0/0", 9, 10)
    script.extend("w0/0", 20, 30, lease=lease, end="fail", why="LockNotHeldError")
    script.section("w1/0", 31, 40)
    assert script.check().holds


def test_a_refusal_within_a_later_promise_is_a_loss(script: Script) -> None:
    lease = script.acquire("w0/0", 9, 10, until=50)
    script.held("w0/0", 100, lease=lease, until=300)
    script.release("w0/0", 200, 201, lease=lease, end="fail", why="LockNotHeldError")
    assert script.check().losses == 1


def test_a_release_that_fails_after_a_release_by_force_is_no_loss_without_need(
    script: Script,
) -> None:
    lease = script.acquire("w0/0", 9, 10)
    script.force_release("w1/0", 1_500, 1_600)
    script.release("w0/0", 1_500, 2_000, lease=lease, end="fail", why="LockNotHeldError")
    assert not needless(script)


def test_what_happened_after_the_first_loss_explains_nothing(script: Script) -> None:
    script.reach("w0", 0, 0, 1, 2, 3, 4)
    script.reach("w0", 2_100)
    lease = script.acquire("w0/0", 9, 10)
    script.lost("w0/0", 2_000, lease=lease)
    script.release("w0/0", 2_200, 2_300, lease=lease, end="fail", why="LockLostError: gone")
    assert needless(script)


def test_a_release_that_failed_for_another_reason_is_no_loss(script: Script) -> None:
    lease = script.acquire("w0/0", 9, 10)
    script.release("w0/0", 20, 30, lease=lease, end="fail", why="TooFew: connection lost, not held")
    assert script.check().losses == 0


@pytest.mark.parametrize(
    ("changes", "needed"),
    [
        (((500, 0, 1, 2),), False),
        (((1_500, 0, 1),), True),
        (((500, 0, 1), (1_000, 0, 1, 2)), False),
        (((500, 0, 1), (1_001, 0, 1, 2)), True),
        (((1_300, 0, 1), (1_400, 0, 1, 2)), True),
        (((500, 0, 1, 2), (1_500, 2, 3, 4)), True),
        (((2_001, 0),), False),
    ],
)
def test_a_loss_needs_a_majority_that_was_not_reached_during_the_ttl_before(
    script: Script, changes: tuple[tuple[int, ...], ...], needed: bool
) -> None:
    script.reach("w0", 0, 0, 1, 2, 3, 4)
    script.reach("w1", 0)
    for at, *masters in changes:
        script.reach("w0", at, *masters)
    lease = script.acquire("w0/0", 9, 10)
    script.lost("w0/0", 2_000, lease=lease)
    assert (not needless(script)) == needed


@pytest.mark.parametrize(
    ("began", "ended", "client", "needed"),
    [
        (1_500, 1_900, "w0", True),
        (1_500, None, "w0/0", True),
        (500, 1_001, "w0", True),
        (500, 1_000, "w0", False),
        (1_500, 1_900, "w1", False),
    ],
)
def test_a_stall_of_its_process_explains_a_loss(
    script: Script, began: float, ended: float | None, client: str, needed: bool
) -> None:
    script.fault("stall", began, ended, client=client)
    lease = script.acquire("w0/0", 9, 10)
    script.lost("w0/0", 2_000, lease=lease)
    assert (not needless(script)) == needed


def test_another_fault_explains_no_loss(script: Script) -> None:
    script.fault("paused", 1_500, 1_900, client="w0")
    lease = script.acquire("w0/0", 9, 10)
    script.lost("w0/0", 2_000, lease=lease)
    assert needless(script)


@pytest.mark.parametrize(("time", "needed"), [
    ((1_500, 1_600), True), ((900, 1_100), True), ((15, 900), False), ((1, 5), False),
])  # fmt: skip
def test_a_release_by_force_explains_a_loss(
    script: Script, time: tuple[float, float], needed: bool
) -> None:
    script.force_release("w1/0", *time)
    lease = script.acquire("w0/0", 9, 10)
    script.lost("w0/0", 2_000, lease=lease)
    assert (not needless(script)) == needed


def test_an_adoption_explains_the_loss_of_the_exporter(script: Script) -> None:
    lease = script.acquire("w0/0", 9, 10)
    script.adopt("w1/0", 100, 110, exporter=lease)
    script.lost("w0/0", 2_000, lease=lease)
    assert not needless(script)


# ----------------------------------------------------------------------------- keys left


def test_a_key_that_was_left_behind_is_found(script: Script) -> None:
    script.section("w0/0", 10, 20)
    script.meta["keys_left"] = {"k": []}
    verdict = script.check()
    assert verdict.holds
    assert verdict.checks["keys_left"].checked == 1
    script.meta["keys_left"] = {"k": [0, 3]}
    verdict = script.check()
    assert verdict.broken == ("keys_left",)
    assert verdict.checks["keys_left"].broken == ["'k' on [0, 3]"]
