"""
Trials: many clients while masters and clients fail, with limits of time; and checks of the limits.

A run that fails prints the command that repeats its faults by their seed. How the machine schedules
the processes differs from run to run.
"""

import contextlib
import os
import secrets
import shutil
import sys
from pathlib import Path

import pytest
from evidence import cell as cells, networks
from evidence.cell import AT_ONCE, keys_left
from evidence.checker import Verdict, check
from evidence.history import History, read
from evidence.servers import Place, Server, wait_for_copy
from evidence.trials import (
    ALL_KILLED,
    ALL_OF_PERMITS_KILLED,
    CANCELLATIONS,
    COME_AND_GO,
    IN_ORDER,
    IN_ORDER_OF_PERMITS,
    KILLED,
    MINORITY_DEAD,
    NOBODY_WAITS,
    PARTITIONS,
    STOPPED,
    SUSPENDED,
    TRIALS,
    Trial,
)

from redlock_aio.testing import server_binary

from .kit import Script

FULL = pytest.mark.full
SHORT = (CANCELLATIONS[1], "plain")
"""The trial with cancelled turns that each run of the tests has."""

CANCELLED = (
    *((CANCELLATIONS[0], column) for column in CANCELLATIONS[0].columns),
    *((trial, "semaphore") for trial in CANCELLATIONS[1:]),
    *zip(CANCELLATIONS[1:], ("plain", "read-write", "fair"), strict=True),
)
"""Trials with cancelled turns: all kinds of lock without a fault, and two with each fault."""

ALSO_ON_REDIS = tuple(zip(CANCELLATIONS, ("plain", "fair", "several", "read-write"), strict=True))
"""Of the trials with cancelled turns each one; a third kind with each fault."""

CUT_OFF = tuple(
    (trial, trial.columns[number % len(trial.columns)]) for number, trial in enumerate(PARTITIONS)
)
"""Each partition with one kind of lock; ``python -m benchmarks.evidence.trials`` has all cells."""


def binary_of(kind: str) -> str:
    found = server_binary() if kind == "valkey" else shutil.which("redis-server")
    if found is None:
        pytest.skip("no redis-server in the PATH")
    return found


def run(
    trial: Trial, column: str, folder: Path, kind: str = "valkey", seconds: float = 0.0
) -> tuple[Verdict, History]:
    """Run a trial; fail if the run failed, or a promise was broken that had to be kept."""
    if trial.row.needs and (why := networks.why_not()):
        pytest.skip(f"no partitions: {why}")
    folder.mkdir(exist_ok=True)
    cell = trial.cell(column, secrets.randbelow(10**6), binary_of(kind), seconds)
    wrong = cells.run(cell, folder)
    verdict = check(folder)
    sys.stdout.write(f"{verdict.facts['command']}\n{verdict.as_text()}\n")
    assert not wrong
    assert verdict.is_as_expected
    assert verdict.acquired
    return verdict, read(folder)


def cases(*trials: Trial) -> list[tuple[Trial, str]]:
    return [(trial, column) for trial in trials for column in trial.columns]


def named(value: object) -> str | None:
    return value.row.name if isinstance(value, Trial) else None


# --------------------------------------------------------------------------- real runs


@pytest.mark.full
@pytest.mark.integration
@pytest.mark.timeout(600)
@pytest.mark.promise("S1")
@pytest.mark.promise("S3")
@pytest.mark.promise("S6")
@pytest.mark.parametrize("kind", ["valkey", pytest.param("redis", marks=FULL)])
def test_no_update_is_lost_while_a_minority_of_masters_comes_and_goes(
    tmp_path: Path, kind: str
) -> None:
    seconds = 10.0 if "REDLOCK_AIO_FULL" in os.environ else 6.0
    verdict, history = run(COME_AND_GO, "plain", tmp_path, kind, seconds)
    assert verdict.rate > 3
    assert history.faults
    assert verdict.checks["updates"].checked > 0


@pytest.mark.full
@pytest.mark.integration
@pytest.mark.timeout(600)
@pytest.mark.promise("S3")
@pytest.mark.parametrize(
    ("trial", "column", "kind"),
    [
        *(
            pytest.param(trial, column, "valkey", marks=() if (trial, column) == SHORT else FULL)
            for trial, column in CANCELLED
        ),
        *(pytest.param(trial, column, "redis", marks=FULL) for trial, column in ALSO_ON_REDIS),
    ],
    ids=named,
)
def test_nothing_is_left_of_turns_that_are_cancelled(
    tmp_path: Path, trial: Trial, column: str, kind: str
) -> None:
    """No key is left on a master; no lease, task, file or warning in a process."""
    _, history = run(trial, column, tmp_path, kind)
    acquired = [one for one in history.operations if one.what == "acquire"]
    cancelled = [one for one in acquired if one.end == "info"]
    assert len(cancelled) > 500
    assert len(acquired) > 1_000


@pytest.mark.full
@pytest.mark.long
@pytest.mark.integration
@pytest.mark.timeout(600)
@pytest.mark.promise("S1")
@pytest.mark.promise("S6")
@pytest.mark.parametrize(("trial", "column"), cases(*KILLED), ids=named)
def test_no_update_is_lost_while_clients_are_killed_and_masters_come_and_go(
    tmp_path: Path, trial: Trial, column: str
) -> None:
    _, history = run(trial, column, tmp_path)
    assert any(fault.name.endswith(" killed") for fault in history.faults)


@pytest.mark.full
@pytest.mark.integration
@pytest.mark.promise("S3")
@pytest.mark.parametrize(("trial", "column"), cases(ALL_KILLED, ALL_OF_PERMITS_KILLED), ids=named)
def test_the_keys_of_killed_clients_expire(tmp_path: Path, trial: Trial, column: str) -> None:
    _, history = run(trial, column, tmp_path)
    released = {one.lease for one in history.operations if one.what == "release"}
    open_leases = [
        one
        for one in history.operations
        if one.what == "acquire" and one.end == "ok" and one.lease not in released
    ]
    assert open_leases, "no client was killed while it held a lock"


@pytest.mark.full
@pytest.mark.integration
def test_fair_waiters_are_served_in_order_and_get_equally_many_turns(tmp_path: Path) -> None:
    verdict, _ = run(IN_ORDER, "fair", tmp_path)
    assert verdict.checks["order"].checked > 100


@pytest.mark.full
@pytest.mark.integration
def test_waiters_for_permits_are_passed_only_by_those_that_have_waited_half_as_long(
    tmp_path: Path,
) -> None:
    """No permit is left unused for half a heartbeat meanwhile."""
    verdict, _ = run(IN_ORDER_OF_PERMITS, "semaphore", tmp_path)
    for name in ("order", "permits", "tokens"):
        assert verdict.checks[name].checked > 50
    assert verdict.checks["progress"].checked == 2


@pytest.mark.full
@pytest.mark.integration
@pytest.mark.promise("S1")
def test_no_more_hold_permits_than_there_are_if_all_are_won_by_first_requests(
    tmp_path: Path,
) -> None:
    verdict, _ = run(NOBODY_WAITS, "semaphore", tmp_path)
    for name in ("permits", "tokens"):
        assert verdict.checks[name].checked > 50


@pytest.mark.full
@pytest.mark.integration
def test_overtakings_are_found_among_waiters_that_do_not_queue(tmp_path: Path) -> None:
    cell = IN_ORDER.cell("plain", 1, server_binary())
    assert not cells.run(cell, tmp_path)
    assert check(tmp_path).broken == ("order",)


@pytest.mark.full
@pytest.mark.integration
@pytest.mark.promise("S6")
@pytest.mark.parametrize("column", MINORITY_DEAD.columns)
def test_fair_waiters_make_progress_while_a_minority_is_dead(tmp_path: Path, column: str) -> None:
    verdict = None
    for number in range(3):  # dead masters would stall each run; a busy machine does now and then
        folder = tmp_path / str(number)
        folder.mkdir()
        assert not cells.run(MINORITY_DEAD.cell(column, number, server_binary()), folder)
        verdict = check(folder)
        assert not set(verdict.broken) - {"progress"}
        if verdict.holds:
            return
    pytest.fail(verdict.as_text() if verdict else "nothing ran")


@pytest.mark.full
@pytest.mark.integration
@pytest.mark.promise("S1")
@pytest.mark.promise("S2")
@pytest.mark.parametrize(("trial", "column"), cases(STOPPED, SUSPENDED), ids=named)
def test_a_holder_stopped_past_its_ttl_is_told_of_its_loss(
    tmp_path: Path, trial: Trial, column: str
) -> None:
    verdict, _ = run(trial, column, tmp_path)
    assert verdict.checks["notices"].checked, "no holder was stopped: nothing was tested"


@pytest.mark.full
@pytest.mark.long
@pytest.mark.integration
@pytest.mark.timeout(300)
@pytest.mark.promise("S1")
@pytest.mark.promise("S7")
@pytest.mark.promise("S8")
@pytest.mark.parametrize(("trial", "column"), CUT_OFF, ids=named)
def test_clients_that_reach_a_majority_make_progress_while_one_is_cut_off(
    tmp_path: Path, trial: Trial, column: str
) -> None:
    verdict, history = run(trial, column, tmp_path)
    (healed,) = [fault.ended_at for fault in history.faults if fault.name == "cut"]
    after = [
        one
        for one in history.operations
        if one.process == "w0" and one.what == "acquire" and one.end == "ok"
        and one.ended_at > healed
    ]  # fmt: skip
    assert after, "the client that was cut off acquires no lock after the partition"
    assert verdict.checks["progress"].checked


# ----------------------------------------------------------------- what is left on masters


@pytest.mark.integration
def test_an_entry_that_stays_in_a_queue_is_found(tmp_path: Path) -> None:
    with Server(Place(server_binary(), tmp_path), "m0") as server:
        assert keys_left([server], 0.1) == {}
        with contextlib.closing(server.client()) as client:
            client.zadd("redlock_aio:queue:{main}", {"0123456789abcdef/1": 1.0})
        assert keys_left([server], 0.1) == {"redlock_aio:queue:{main}": [0]}


@pytest.mark.integration
def test_a_key_of_a_former_master_is_not_left_on_a_master(tmp_path: Path) -> None:
    place = Place(server_binary(), tmp_path)
    with (
        Server(place, "old", *AT_ONCE) as old,
        Server(place, "new", *AT_ONCE) as new,
        contextlib.closing(old.client()) as client,
    ):
        client.replicaof("127.0.0.1", str(new.port))
        wait_for_copy(old)
        client.config_set("replica-read-only", "no")
        client.zadd("redlock_aio:queue:{main}", {"0123456789abcdef/1": 1.0})
        assert keys_left([old, new], 0.1) == {}
        client.replicaof("NO", "ONE")
        assert keys_left([old, new], 0.1) == {"redlock_aio:queue:{main}": [0]}


# ------------------------------------------------------------------------- order of waiters


@pytest.mark.parametrize(
    ("asked", "ended", "end", "found"),
    [
        pytest.param(1000, 1200, "ok", 1, id="overtaken"),
        pytest.param(1002, 1200, "ok", 0, id="at about the same time"),
        pytest.param(1000, 1090, "ok", 0, id="before"),
        pytest.param(1000, None, "info", 0, id="killed"),
        pytest.param(1000, 1200, "fail", 1, id="gave up after"),
        pytest.param(1000, 1090, "fail", 0, id="gave up before"),
    ],
)
def test_an_overtaking_is_found(
    script: Script, asked: float, ended: float | None, end: str, found: int
) -> None:
    script.meta["overtaken_within"] = 0.05
    script.acquire("w0/0", asked, ended, end=end, until=1)
    script.acquire("w1/0", 1051, 1100, until=1)
    order = script.check().checks["order"]
    assert len(order.broken) == found
    assert order.checked == (1 if ended is None else 2)


def test_one_that_gave_up_overtook_nobody(script: Script) -> None:
    script.meta["overtaken_within"] = 0.05
    script.acquire("w0/0", 1000, 1200, until=1)
    script.acquire("w1/0", 1051, 1100, end="fail")
    assert not script.check().checks["order"].broken


def test_a_waiter_is_compared_with_the_latest_that_was_served_before(script: Script) -> None:
    script.meta["overtaken_within"] = 0.05
    script.acquire("w0/0", 1090, 1110, until=1)
    script.acquire("w1/0", 1050, 1120, until=1)
    script.acquire("w2/0", 1020, 1200, until=1)
    (text,) = script.check().checks["order"].broken
    assert "w2/0" in text.partition(" by ")[0]
    assert "w0/0" in text.partition(" by ")[2]


@pytest.mark.parametrize(
    ("fewest", "long", "rest", "found"),
    [
        (8, 0.0, 0.0, 0), (6, 0.0, 0.0, 0), (5, 0.0, 0.0, 1), (5, 0.01, 0.0, 1), (5, 0.03, 0.0, 0),
        (5, 0.0, 0.06, 1), (5, 0.0, 1.0, 0),
    ],
)  # fmt: skip
def test_uneven_turns_are_found(
    script: Script, fewest: int, long: float, rest: float, found: int
) -> None:
    """Not where many bodies are longer than the ttl, or clients rest for longer than they wait."""
    script.meta |= {"overtaken_within": 1.0, "long": long, "rest": rest}
    for number in range(10):
        script.acquire("w0/0", 10 * number, 10 * number + 5, until=1)
        if number < fewest:
            script.acquire("w1/0", 10 * number + 5, 10 * number + 10, until=1)
    assert len(script.check().checks["order"].broken) == found


def test_the_turns_of_one_that_only_waits_count_as_none(script: Script) -> None:
    script.meta["overtaken_within"] = 1.0
    for number in range(10):
        script.acquire("w0/0", 10 * number, 10 * number + 5, until=1)
        script.acquire("w1/0", 10 * number + 5, 10 * number + 10, end="fail")
    assert len(script.check().checks["order"].broken) == 1


def test_nothing_is_said_of_the_order_of_waiters_that_need_not_be_fair(script: Script) -> None:
    script.acquire("w0/0", 1000, 1200, until=1)
    script.acquire("w1/0", 1051, 1100, until=1)
    verdict = script.check()
    assert verdict.holds
    assert verdict.checks["order"].checked == 0


# ------------------------------------------------------------------------ notices of losses


@pytest.mark.parametrize(
    ("told", "found"), [(3_100, 0), (7_900, 0), (8_100, 1), (None, 1)],
)  # fmt: skip
def test_a_holder_that_is_not_told_in_time_is_found(
    script: Script, told: float | None, found: int
) -> None:
    """It was stopped from 1000 to 3000, and its lease expired meanwhile."""
    script.meta["lost_within"] = 5.0
    lease = script.acquire("w0/0", 900, 950, until=1_950)
    script.fault("stall", 1_000, 3_000, client="w0")
    if told is not None:
        script.lost("w0/0", told, lease=lease)
    script.section("w1/0", 9_000, 9_100)
    notices = script.check().checks["notices"]
    assert (notices.checked, len(notices.broken)) == (1, found)


@pytest.mark.parametrize("end", ["ok", "fail"])
def test_a_release_that_finds_the_lease_over_tells_so(script: Script, end: str) -> None:
    script.meta["lost_within"] = 5.0
    lease = script.acquire("w0/0", 900, 950, until=1_950)
    script.fault("stall", 1_000, 3_000, client="w0")
    script.release("w0/0", 3_001, 3_002, lease=lease, end=end, why="LeaseNotHeldError: over")
    assert len(script.check().checks["notices"].broken) == (end == "ok")


@pytest.mark.parametrize(
    ("stall", "released"),
    [((1_000, 1_500), 2_500), ((1_000, 3_000), 1_001)],
    ids=["shorter than the ttl", "released before it was stopped"],
)
def test_a_lease_that_did_not_expire_in_a_stop_needs_no_notice(
    script: Script, stall: tuple[float, float], released: float
) -> None:
    script.meta["lost_within"] = 5.0
    lease = script.acquire("w0/0", 900, 950, until=1_950)
    script.acquire("w1/0", 900, 950, key="other", until=1_950)  # of another process
    script.fault("stall", *stall, client="w0")
    script.release("w0/0", released, released + 1, lease=lease)
    assert script.check().checks["notices"].checked == 0


# -------------------------------------------------------------------------------- limits


def test_each_limit_of_a_trial_is_one_that_the_checker_knows() -> None:
    mine = {name for trial in TRIALS for name in trial.limits}
    assert mine == {"longest_gap", "overtaken_within", "lost_within"}
    assert mine < set(cells.BUSY)


def test_no_two_cells_have_one_name() -> None:
    names = [
        trial.cell(column, 1, "valkey-server").name for trial in TRIALS for column in trial.columns
    ]
    assert len(names) == len(set(names))
