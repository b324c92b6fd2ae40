"""How long a process stays away from a lock that several processes want."""

import pytest

from redlock_aio._rules.absence import (
    ADAPTION,
    ALLOWANCE,
    LONGEST_ABSENCE,
    LONGEST_LEASE,
    MOST_OTHERS,
    Absence,
)

TURN = 0.006
OWN = b"host:-1"


def value(process: int, turn: int = 0, metadata: str = "") -> bytes:
    """Return the value of a lease of a process."""
    return f"{turn:028}@host:{process}{metadata}".encode()


def wait_for(absence: Absence, *others: int, turn: float = TURN) -> None:
    """Wait for these processes, which have the lock one after the other, and acquire it."""
    for process in others:
        absence.on_lost(value(process), turn)
    absence.on_acquired()


def absent(absence: Absence) -> float:
    """Return for how long the process is absent after a lease, without the allowance."""
    absence.on_lease_ended(1.0)
    return absence.left(1.0) / ALLOWANCE


@pytest.mark.parametrize("others", [0, 1])
def test_neither_of_two_processes_is_ever_absent(others: int) -> None:
    absence = Absence(OWN)
    for _ in range(50):
        wait_for(absence, *range(others))
    assert absent(absence) == 0
    assert absence.on_lease_ended(1.0) is False


@pytest.mark.parametrize("others", [2, 3, 20])
def test_a_process_leaves_the_lock_to_all_others_but_one(others: int) -> None:
    absence = Absence(OWN)
    wait_for(absence, *range(others))
    assert absent(absence) == pytest.approx((others - 1) * TURN)
    assert absence.on_lease_ended(1.0) is True


def test_others_are_remembered_if_few_of_them_are_found_in_each_wait() -> None:
    absence = Absence(OWN)
    for process in range(0, 20, 2):
        wait_for(absence, process, process + 1)
    assert absent(absence) == pytest.approx(19 * TURN)


def test_a_process_that_passes_the_lock_to_its_own_tasks_is_one_process() -> None:
    absence = Absence(OWN)
    for turn in range(100):
        absence.on_lost(value(1, turn, f'{{"task":{turn}}}'), TURN)
        absence.on_lost(None, TURN)  # a split vote names no holder
    absence.on_acquired()
    assert absent(absence) == 0


def test_a_turn_is_all_that_a_process_does_with_the_lock() -> None:
    """It lasts from the lease of one process to that of the next one."""
    absence = Absence(OWN)
    for process in range(3):
        for turn in range(4):
            absence.on_lost(value(process, turn), TURN)
    absence.on_acquired()
    assert absent(absence) == pytest.approx(2 * 4 * TURN)


def test_a_turn_that_had_begun_before_the_wait_is_not_measured() -> None:
    absence = Absence(OWN)
    absence.on_lost(value(1), TURN / 100)
    absence.on_lost(value(2), TURN)
    absence.on_lost(value(3), TURN)
    absence.on_acquired()
    assert absent(absence) == pytest.approx(2 * TURN)


def test_a_lease_of_another_task_of_this_process_is_no_turn_of_another_process() -> None:
    """That task did not wait for its turn: it made one attempt, or a limited number of them."""
    absence = Absence(OWN)
    wait_for(absence, 1, -1, 1, -1)
    assert absent(absence) == 0
    assert absence.on_lease_ended(1.0) is False


def test_the_values_of_another_library_count_as_one_process() -> None:
    """They do not tell its processes apart, and it may have only one."""
    absence = Absence(OWN)
    for turn in range(100):
        absence.on_lost(b"theirs %d" % turn, TURN)
    absence.on_acquired()
    assert absent(absence) == 0


def test_a_process_that_has_not_had_the_lock_is_not_absent() -> None:
    absence = Absence(OWN)
    wait_for(absence, *range(100))
    assert absence.left(0.0) == 0


def test_the_absence_counts_from_the_end_of_the_lease() -> None:
    absence = Absence(OWN)
    wait_for(absence, *range(4))
    whole = absent(absence) * ALLOWANCE
    assert absence.left(1.0 + whole / 2) == pytest.approx(whole / 2)
    assert absence.left(1.0 + whole) == 0


def test_an_absence_is_bounded_however_many_others_there_are() -> None:
    absence = Absence(OWN)
    wait_for(absence, *range(2 * MOST_OTHERS), turn=0.01)
    absence.on_lease_ended(1.0)
    assert absence.left(1.0) == pytest.approx(LONGEST_ABSENCE)


def test_so_many_others_are_remembered() -> None:
    absence = Absence(OWN)
    wait_for(absence, *range(2 * MOST_OTHERS), turn=0.0001)
    assert absent(absence) == pytest.approx((MOST_OTHERS - 1) * 0.0001)


def test_a_long_lease_of_another_process_counts_little() -> None:
    absence = Absence(OWN)
    wait_for(absence, 1, 2, 3, turn=60.0)
    assert absent(absence) == pytest.approx(2 * LONGEST_LEASE)


def test_the_length_of_a_turn_is_a_mean() -> None:
    absence = Absence(OWN)
    wait_for(absence, 1, 2, 3, turn=0.004)
    wait_for(absence, 1, 2, 3, turn=0.008)
    assert absent(absence) == pytest.approx(2 * (0.004 + ADAPTION * 0.004))


def test_a_process_that_nobody_keeps_waiting_forgets_the_others_one_by_one() -> None:
    absence = Absence(OWN)
    wait_for(absence, *range(20))
    for others in range(19, 1, -1):
        wait_for(absence)
        assert absent(absence) == pytest.approx((others - 1) * TURN)
    wait_for(absence)
    assert absent(absence) == 0
    wait_for(absence)  # nobody is left


def test_a_process_that_waits_for_one_other_only_forgets_the_rest() -> None:
    """Of 20 processes 18 have lost interest, and the last two still want the lock."""
    absence = Absence(OWN)
    wait_for(absence, *range(19))
    waits, before = 0, 1.0
    while before:
        wait_for(absence, 18)
        waits, before, last = waits + 1, absent(absence), before
        assert before < last
    assert waits <= 8  # each of them may be as long as an absence


def test_those_that_were_found_last_are_forgotten_last() -> None:
    absence = Absence(OWN)
    wait_for(absence, 1, 2, 3)
    wait_for(absence, 1)  # now 2 was found the longest time ago
    wait_for(absence)
    wait_for(absence, 3)
    assert absent(absence) == pytest.approx(TURN)
    wait_for(absence, 2)
    assert absent(absence) == pytest.approx(2 * TURN)
