"""Fencing tokens that do not rise, and lost updates, are found."""

import pytest

from .kit import Script

# ------------------------------------------------------------------------------- tokens


def test_a_token_that_is_used_twice_is_found(script: Script) -> None:
    script.section("w0/0", 10, 20, token=5)
    script.section("w1/0", 30, 40, token=6)
    script.section("w2/0", 50, 60, token=5)
    verdict = script.check()
    assert verdict.broken == ("tokens",)
    assert len(verdict.checks["tokens"].broken) == 1


def test_a_token_that_two_concurrent_requests_got_is_found(script: Script) -> None:
    script.acquire("w0/0", 1, 10, token=5, until=20)
    script.acquire("w1/0", 1, 30, token=5)
    assert script.check().broken == ("tokens",)


def test_tokens_out_of_the_order_of_time_are_found(script: Script) -> None:
    script.section("w0/0", 10, 20, token=6)
    script.section("w1/0", 30, 40, token=5)
    verdict = script.check()
    assert verdict.broken == ("tokens",)
    (text,) = verdict.checks["tokens"].broken
    assert text.index("token 5") < text.index("after") < text.index("token 6")


def test_a_token_below_one_that_is_long_over_is_found(script: Script) -> None:
    for number, token in enumerate((1, 9, 2)):
        script.section(f"w{number}/0", 10 + 20 * number, 20 + 20 * number, token=token)
    assert script.check().broken == ("tokens",)


def test_each_token_below_one_that_is_over_is_found(script: Script) -> None:
    for number, token in enumerate((9, 1, 2)):
        script.section(f"w{number}/0", 10 + 20 * number, 20 + 20 * number, token=token)
    assert len(script.check().checks["tokens"].broken) == 2


def test_tokens_of_concurrent_requests_have_no_order(script: Script) -> None:
    script.acquire("w0/0", 1, 10, token=6, until=20)
    script.acquire("w1/0", 10, 30, token=5)
    assert script.check().holds, "the second one was asked for before the first one was granted"


def test_tokens_of_different_keys_have_no_order(script: Script) -> None:
    script.section("w0/0", 10, 20, token=6, key="a")
    script.section("w1/0", 30, 40, token=5, key="b")
    script.section("w1/0", 50, 60, token=6, key="b")
    assert script.check().holds


def test_an_adopted_lease_has_the_token_of_its_exporter(script: Script) -> None:
    lease = script.acquire("w0/0", 9, 10, token=5)
    second = script.adopt("w1/0", 20, 30, exporter=lease, token=5)
    script.adopt("w2/0", 40, 50, exporter=second, token=5)
    assert script.check().holds


def test_an_adopted_lease_with_a_lower_token_is_found(script: Script) -> None:
    lease = script.acquire("w0/0", 9, 10, token=5)
    script.adopt("w1/0", 20, 30, exporter=lease, token=4)
    assert script.check().broken == ("tokens",)


def test_leases_without_tokens_are_not_counted(script: Script) -> None:
    script.section("w0/0", 10, 20)
    verdict = script.check()
    assert verdict.holds
    assert verdict.checks["tokens"].checked == 0
    assert "tokens: not tried" in verdict.as_text()


def test_a_fenced_lease_without_a_token_is_found(script: Script) -> None:
    script.section("w0/0", 10, 20, token=5)
    lease = script.acquire("w1/0", 29, 30, fencing=True, until=40)
    script.adopt("w2/0", 31, 32, exporter=lease, until=40)
    verdict = script.check()
    assert verdict.broken == ("tokens",)
    assert verdict.checks["tokens"].checked == 2
    (text,) = verdict.checks["tokens"].broken
    assert text.startswith(lease), "nobody could have a token from it"
    assert text.endswith(" has none")


def test_an_adopted_lease_that_has_lost_its_token_is_found(script: Script) -> None:
    lease = script.acquire("w0/0", 9, 10, token=5, until=50)
    script.adopt("w1/0", 20, 30, exporter=lease, until=50)
    assert script.check().broken == ("tokens",)


# ------------------------------------------------------------------------------ updates


def test_a_value_that_was_written_twice_is_a_lost_update(script: Script) -> None:
    for began, client, value in ((10, "w0/0", 1), (30, "w1/0", 2), (50, "w2/0", 2)):
        script.section(client, began, began + 10)
        script.increment(client, began + 1, began + 2, value=value)
    verdict = script.check()
    assert verdict.broken == ("updates",)
    assert not verdict.late_updates


def test_a_counter_that_goes_back_is_a_lost_update(script: Script) -> None:
    for began, client, value in ((10, "w0/0", 2), (30, "w1/0", 1)):
        script.section(client, began, began + 10)
        script.increment(client, began + 1, began + 2, value=value)
    assert script.check().broken == ("updates",)


def test_a_lost_update_of_another_key_is_none(script: Script) -> None:
    for client, key in (("w0/0", "a"), ("w1/0", "b")):
        lease = script.acquire(client, 9, 10, key=key)
        script.add(client, "add", 11, 12, asked={"key": key}, result={"value": 1})
        script.release(client, 13, 14, lease=lease)
    assert script.check().holds


def test_updates_that_are_concurrent_have_no_order(script: Script) -> None:
    script.section("w0/0", 10, 20)
    script.increment("w0/0", 11, 15, value=2)
    script.increment("w0/1", 15, 16, value=1)
    verdict = script.check()
    assert verdict.holds
    assert not verdict.late_updates


def test_a_value_that_a_killed_client_may_have_written_is_none(script: Script) -> None:
    script.acquire("w0/0", 9, 10, until=2_000)
    script.increment("w0/0", 11, None)
    script.section("w1/0", 2_000, 2_010)
    script.increment("w1/0", 2_001, 2_002, value=1)
    script.section("w2/0", 2_020, 2_030)
    script.increment("w2/0", 2_021, 2_022, value=2)
    assert script.check().holds


@pytest.mark.parametrize(
    ("client", "next_at", "late"), [("w0/0", 5_000, 1), ("w0/0", 3_000, 0), ("w0/1", 5_000, 0)]
)
def test_an_update_that_was_cancelled_in_a_stall_is_late_until_the_next_acquisition(
    script: Script, client: str, next_at: int, late: int
) -> None:
    """The loop was blocked from 20 on; when it ran again, it sent the value, then cancelled."""
    script.acquire("w0/0", 9, 10, until=1_000)
    script.increment("w0/0", 20, None)
    script.acquire(client, next_at, next_at + 1, until=next_at + 2)
    for began, value in ((4_500, 1), (4_600, 2), (4_980, 1)):
        script.section("w1/0", began, began + 10)
        script.increment("w1/0", began + 1, began + 2, value=value)
    verdict = script.check()
    assert len(verdict.late_updates) == late
    assert len(verdict.checks["updates"].broken) == 1 - late


def test_an_update_lost_to_a_late_one_is_counted_apart(script: Script) -> None:
    script.acquire("w0/0", 9, 10, until=50)
    script.increment("w0/0", 20, 81, value=1)  # its process was stopped from 20 to 80
    for began, client, value in ((60, "w1/0", 1), (90, "w2/0", 2)):
        script.section(client, began, began + 10)
        script.increment(client, began + 1, began + 2, value=value)
    verdict = script.check()
    assert verdict.holds
    assert len(verdict.late_updates) == 1
    assert "w0/0" in verdict.late_updates[0]
    assert verdict.is_as_expected
    script.meta["expected"] = "fails"
    assert script.check().is_as_expected, "a control fails so"


def test_a_late_update_excuses_no_loss_at_another_time(script: Script) -> None:
    script.acquire("w0/0", 9, 10, until=50)
    script.increment("w0/0", 20, 81, value=1)
    for began, client, value in ((100, "w1/0", 2), (120, "w2/0", 2)):
        script.section(client, began, began + 10)
        script.increment(client, began + 1, began + 2, value=value)
    verdict = script.check()
    assert verdict.broken == ("updates",)
    assert not verdict.late_updates


def test_a_late_update_that_set_the_counter_back_hides_no_later_loss(script: Script) -> None:
    script.acquire("w0/0", 1, 2, until=50)
    script.increment("w0/0", 3, 205, value=2)  # it was stopped until 204
    values = (1, 2, 3, 4, 3, 4, 5, 4)  # the late one comes before the second 3
    for number, value in enumerate(values):
        began, client = 60 + 40 * number, f"w{number % 2 + 1}/0"
        script.section(client, began, began + 10)
        script.increment(client, began + 1, began + 2, value=value)
    verdict = script.check()
    assert len(verdict.late_updates) == 3  # itself, and the second 3 and 4
    (text,) = verdict.checks["updates"].broken
    assert "0.260" in text
    assert "0.340" in text


@pytest.mark.parametrize(("value", "late", "broken"), [(50, 0, 1), (1, 2, 0), (0, 2, 0)])
def test_a_late_update_with_a_higher_value_explains_nothing(
    script: Script, value: int, late: int, broken: int
) -> None:
    script.increment("w0/0", 75, 76, value=value)  # without any lease
    for began, client in ((60, "w1/0"), (90, "w2/0")):
        script.section(client, began, began + 10)
        script.increment(client, began + 1, began + 2, value=1)
    verdict = script.check()
    assert len(verdict.late_updates) == late
    assert len(verdict.checks["updates"].broken) == broken


@pytest.mark.parametrize("client", ["w0/1", "w1/0"])
def test_the_lease_of_another_client_protects_no_update(script: Script, client: str) -> None:
    script.section("w0/0", 10, 100)
    script.increment("w0/0", 20, 30, value=1)
    script.increment(client, 25, 40, value=1)
    assert script.check().late_updates
