"""The rules of the restart guard as tables: the masters that may have lost locks."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from redlock_aio._rules import quarantine, timing
from redlock_aio._rules.quarantine import (
    MEMBER,
    MOST_BYTES,
    QUARANTINED,
    UNDECIDED,
    Marker,
    MasterStatus,
    Reason,
    Seen,
    Verdict,
)
from redlock_aio._rules.server_info import ServerInfo

pytestmark = [pytest.mark.promise("S1")]

NOW, CLOCK, LASTS = 1000.0, 1_700_000_000_000_000, 60.0
ME = "b" * 40
NOTHING = Seen()
OTHER = "a" * 40


def info(
    uptime: int | None = 10, *, time: int | None = CLOCK, promoted: bool = False
) -> ServerInfo:
    return ServerInfo("7", ME, "master", "", uptime=uptime, time=time, promoted=promoted)


def member(run_id: str = ME, at: int = 5, lasts: float = LASTS, since: int = 0) -> Marker:
    return Marker(run_id, rejoining=False, number=at, quarantine_ms=int(lasts * 1000), since=since)


def rejoining(left: float, run_id: str = ME, lasts: float = LASTS) -> Marker:
    at = CLOCK + int(left * 1_000_000)
    since = at - int(lasts * 1_000_000)
    return Marker(run_id, rejoining=True, number=at, quarantine_ms=int(lasts * 1000), since=since)


def new_member(ago: float) -> Marker:
    """Return a member's marker, written *ago* seconds before now."""
    return member(at=CLOCK + int(ago * 1_000_000))


def judge(
    server: ServerInfo, marker: Marker | None, seen: Seen = NOTHING, *, strict: bool = False
) -> Verdict:
    return quarantine.judge(server, marker, seen, NOW, quarantine=LASTS, strict=strict)


MINUTE_AGO = CLOCK - 60_000_000
OLD, YOUNG = info(60), info(10)
THERE_BEFORE = Seen(ME, NOW - 1, marker=5)
THERE_LONG_AGO = Seen(ME, NOW - 999, marker=5)
ANOTHER_BEFORE = Seen(OTHER, NOW - 59, marker=5)
LONG_AGO = Seen(OTHER, NOW - 60, marker=5)
OUT = Seen(ME, NOW - 1, rejoining(99).number, NOW + 7, Reason.FLUSHED)
SERVED = Seen(ME, NOW - 1, rejoining(99).number, NOW - 0.01, Reason.FLUSHED)


@pytest.mark.parametrize(
    ("server", "marker", "seen", "state", "seconds", "reason"),
    [
        # Another server was at this address within the time: its uptime does not matter.
        (OLD, None, ANOTHER_BEFORE, QUARANTINED, 60, Reason.RESTARTED),
        (OLD, member(), ANOTHER_BEFORE, QUARANTINED, 60, Reason.RESTARTED),
        (OLD, member(), LONG_AGO, MEMBER, 0, Reason.NONE),
        (OLD, None, LONG_AGO, MEMBER, 0, Reason.NONE),
        # What is known of it is the reason only.
        (info(60, promoted=True), None, ANOTHER_BEFORE, QUARANTINED, 60, Reason.PROMOTED),
        (info(59, promoted=True), None, ANOTHER_BEFORE, QUARANTINED, 60, Reason.RESTARTED),
        (OLD.in_slot(3), None, ANOTHER_BEFORE, QUARANTINED, 60, Reason.MOVED),
        (info(58).in_slot(3), None, ANOTHER_BEFORE, QUARANTINED, 60, Reason.RESTARTED),
        (info(0).in_slot(3), None, ANOTHER_BEFORE, QUARANTINED, 60, Reason.RESTARTED),
        # The marker is gone, or was written by a program that had not seen the former one.
        (OLD, None, THERE_BEFORE, QUARANTINED, 60, Reason.FLUSHED),
        (OLD, member(OTHER), THERE_BEFORE, QUARANTINED, 60, Reason.FLUSHED),
        (OLD, new_member(-4), THERE_BEFORE, QUARANTINED, 56, Reason.FLUSHED),
        (OLD, new_member(-4), THERE_LONG_AGO, QUARANTINED, 56, Reason.FLUSHED),
        (OLD, new_member(-59.5), THERE_LONG_AGO, QUARANTINED, 0.5, Reason.FLUSHED),
        (OLD, new_member(-60), THERE_LONG_AGO, MEMBER, 0, Reason.NONE),
        (OLD, new_member(9), THERE_LONG_AGO, QUARANTINED, 60, Reason.FLUSHED),
        (OLD, member(at=0), THERE_LONG_AGO, QUARANTINED, 60, Reason.FLUSHED),
        (info(60, time=None), new_member(-60), THERE_LONG_AGO, QUARANTINED, 60, Reason.FLUSHED),
        (OLD, None, THERE_LONG_AGO, QUARANTINED, 60, Reason.FLUSHED),
        (OLD, member(), THERE_BEFORE, MEMBER, 0, Reason.NONE),
        (OLD, rejoining(9), THERE_BEFORE, QUARANTINED, 9, Reason.MARKED),
        # Impossible uptimes.
        (info(-3598), None, NOTHING, QUARANTINED, 60, Reason.ABSURD),
        (info(None), None, NOTHING, QUARANTINED, 60, Reason.ABSURD),
        (info(10**9 + 1), None, NOTHING, QUARANTINED, 60, Reason.ABSURD),
        (info(-1), member(OTHER), NOTHING, QUARANTINED, 60, Reason.ABSURD),
        (info(-1), rejoining(-1), NOTHING, QUARANTINED, 60, Reason.ABSURD),
        (info(-1), member(), NOTHING, MEMBER, 0, Reason.NONE),
        # Its own marker.
        (YOUNG, member(), NOTHING, MEMBER, 0, Reason.NONE),
        (YOUNG, rejoining(1), NOTHING, QUARANTINED, 50, Reason.RESTARTED),
        (YOUNG, rejoining(55), NOTHING, QUARANTINED, 55, Reason.RESTARTED),
        (OLD, rejoining(20), NOTHING, QUARANTINED, 20, Reason.MARKED),
        (OLD, rejoining(0.5), NOTHING, QUARANTINED, 0.5, Reason.MARKED),
        (info(59), rejoining(-9), NOTHING, QUARANTINED, 1, Reason.RESTARTED),
        (OLD, rejoining(999), NOTHING, QUARANTINED, 60, Reason.MARKED),
        (OLD, rejoining(0), NOTHING, MEMBER, 0, Reason.NONE),
        (info(99, time=None), rejoining(0), NOTHING, QUARANTINED, 60, Reason.MARKED),
        (OLD, Marker(ME, rejoining=True, number=0), NOTHING, QUARANTINED, 60, Reason.MARKED),
        # A quarantine that this process began lasts exactly to its end.
        (OLD, rejoining(99), OUT, QUARANTINED, 7, Reason.FLUSHED),
        (OLD, member(), Seen(ME, NOW - 1, None, NOW + 0.5, Reason.FLUSHED), QUARANTINED, 0.5,
         Reason.FLUSHED),
        (OLD, rejoining(40), OUT, QUARANTINED, 40, Reason.MARKED),  # another one has begun later
        (info(0), rejoining(99), SERVED, MEMBER, 0, Reason.NONE),
        (YOUNG, None, Seen(ME, NOW - 1, None, NOW + 55, Reason.FLUSHED), QUARANTINED, 55,
         Reason.FLUSHED),
        (OLD, member(), Seen(ME, NOW - 1, None, NOW + 7, Reason.FLUSHED), QUARANTINED, 7,
         Reason.FLUSHED),
        # Another server's marker: restored from a disk, or a replica that was promoted.
        (YOUNG, member(OTHER), NOTHING, QUARANTINED, 50, Reason.RESTARTED),
        (info(59), member(OTHER), NOTHING, QUARANTINED, 1, Reason.RESTARTED),
        (YOUNG, rejoining(-9, OTHER), NOTHING, QUARANTINED, 50, Reason.RESTARTED),
        (OLD, member(OTHER), NOTHING, MEMBER, 0, Reason.NONE),
        (info(99, promoted=True), member(OTHER), NOTHING, QUARANTINED, 60, Reason.PROMOTED),
        (info(99, promoted=True), member(), NOTHING, MEMBER, 0, Reason.NONE),
        (info(99, promoted=True), None, NOTHING, QUARANTINED, 60, Reason.PROMOTED),
        (info(10, promoted=True), None, NOTHING, QUARANTINED, 60, Reason.PROMOTED),
        (OLD.in_epoch(1), None, NOTHING, QUARANTINED, 60, Reason.PROMOTED),
        (OLD.in_epoch(0), None, NOTHING, MEMBER, 0, Reason.NONE),
        # No marker.
        (OLD, None, NOTHING, MEMBER, 0, Reason.NONE),
        (info(59), None, NOTHING, UNDECIDED, 1, Reason.UNPROVEN),
        (YOUNG, None, NOTHING, UNDECIDED, 50, Reason.UNPROVEN),
        # The owner of a slot, however long the server has been running.
        (OLD.in_slot(3), member(f"{ME}.3"), NOTHING, MEMBER, 0, Reason.NONE),
        (OLD.in_slot(3), member(f"{ME}.2"), NOTHING, QUARANTINED, 60, Reason.MOVED),
        (OLD.in_slot(3), None, NOTHING, UNDECIDED, 60, Reason.UNPROVEN),
    ],
)  # fmt: skip
def test_the_standing_of_a_master(
    server: ServerInfo,
    marker: Marker | None,
    seen: Seen,
    state: MasterStatus,
    seconds: float,
    reason: Reason,
) -> None:
    verdict = judge(server, marker, seen)

    assert (verdict.state, verdict.reason) == (state, reason)
    assert verdict.seconds == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("server", "marker", "seen", "written", "careful"),
    [
        (OLD, None, ANOTHER_BEFORE, rejoining(60), False),
        (OLD, new_member(-4), THERE_BEFORE, rejoining(56), False),
        (info(-1), None, NOTHING, rejoining(60), False),
        (info(-1), rejoining(3), NOTHING, None, False),
        (info(99, promoted=True), None, NOTHING, rejoining(60), True),
        (info(99, promoted=True), member(OTHER), NOTHING, rejoining(60), False),
        (YOUNG, member(), NOTHING, None, False),
        (YOUNG, rejoining(1), NOTHING, None, False),
        (OLD, rejoining(0), NOTHING, member(at=CLOCK, since=MINUTE_AGO), False),
        (YOUNG, member(OTHER), NOTHING, rejoining(50), False),
        # The number is kept, so two programs that write at once write the same marker.
        (OLD, member(OTHER), NOTHING, member(since=MINUTE_AGO), False),
        (OLD, None, NOTHING, member(at=CLOCK, since=MINUTE_AGO), True),
        (info(60, time=None), None, NOTHING, member(at=0), True),
        (
            info(-1, time=None),
            None,
            NOTHING,
            Marker(ME, True, 0, 60_000),
            False,
        ),
        # Written by a program with a shorter quarantine, or by a version that did not write it.
        (OLD, member(lasts=2), NOTHING, member(), False),
        (OLD, member(lasts=0), NOTHING, member(), False),
        (OLD, member(lasts=99), NOTHING, None, False),
        (OLD, member(lasts=2, since=MINUTE_AGO), NOTHING, member(since=MINUTE_AGO), False),
        (OLD, member(lasts=2, since=CLOCK - 9_000_000), NOTHING, rejoining(51), False),
        (OLD, member(lasts=2, since=CLOCK - 59_500_000), NOTHING, rejoining(0.5), False),
        (OLD, rejoining(1, lasts=2), NOTHING, rejoining(59), False),
        (OLD, Marker(ME, rejoining=True, number=CLOCK + 9_000_000), NOTHING, rejoining(9), False),
        # Another program has overwritten the marker.
        (OLD, member(at=4), Seen(ME, NOW - 1, 5, NOW + 7, Reason.FLUSHED), rejoining(7), False),
        (OLD, member(at=5), Seen(ME, NOW - 1, 5, NOW + 7, Reason.FLUSHED), None, False),
        (YOUNG, None, NOTHING, None, False),
    ],
)
def test_the_marker_that_is_written(
    server: ServerInfo, marker: Marker | None, seen: Seen, written: Marker | None, careful: bool
) -> None:
    verdict = judge(server, marker, seen)

    assert (verdict.write, verdict.careful) == (written, careful)


def test_a_strict_guard_quarantines_young_masters() -> None:
    verdict = judge(YOUNG, None, strict=True)

    assert verdict == Verdict(QUARANTINED, 50, Reason.RESTARTED, rejoining(50), careful=True)
    assert judge(OLD, None, strict=True).state is MEMBER
    owner = judge(OLD.in_slot(3), None, strict=True)
    assert (owner.seconds, owner.reason, owner.careful) == (60, Reason.MOVED, True)


def test_the_loss_of_a_marker_of_a_former_run_begins_no_other_quarantine() -> None:
    """Nothing was granted since the restart: a program marks a server before it uses it."""
    marker = member(OTHER)
    first = judge(YOUNG, marker)
    seen = quarantine.remember(NOTHING, YOUNG, marker, first, NOW)
    again = judge(YOUNG, None, seen)
    assert (again.seconds, again.reason) == (first.seconds, first.reason) == (50, Reason.RESTARTED)


def test_an_undecided_master_is_examined_again_soon_and_then_less_often() -> None:
    pauses = [quarantine.pause(UNDECIDED, 9.0, LASTS, looks) for looks in range(1, 9)]
    assert pauses == [0.02, 0.03, 0.05, 0.1, 0.15, 0.15, 0.5, 0.5]
    assert quarantine.pause(UNDECIDED, 0.2, LASTS, 7) == 0.2
    assert quarantine.pause(UNDECIDED, -1.0, LASTS, 7) == 0.0


def test_other_masters_are_examined_four_times_in_a_quarantine_and_at_its_end() -> None:
    assert quarantine.pause(MEMBER, 0.0, LASTS, 0) == 15.0
    assert quarantine.pause(QUARANTINED, 50.0, LASTS, 0) == 15.0
    assert quarantine.pause(QUARANTINED, 9.0, LASTS, 0) == pytest.approx(9.0, abs=0.01)
    assert quarantine.pause(QUARANTINED, -9.0, LASTS, 0) == 0.0


def test_only_a_quarantine_that_is_certain_is_remembered() -> None:
    def until(verdict: Verdict) -> float:
        return quarantine.remember(NOTHING, YOUNG, None, verdict, NOW).until

    assert until(judge(YOUNG, member(OTHER))) == NOW + 50
    assert until(judge(YOUNG, None, strict=True)) == -math.inf
    assert until(judge(YOUNG, None)) == until(Verdict(MEMBER)) == -math.inf


@pytest.mark.parametrize(
    ("server", "marker", "seconds"),
    [
        (OLD, member(since=MINUTE_AGO), 60),
        (OLD, member(), math.inf),
        (OLD, None, math.inf),
        (info(60, time=None), member(since=MINUTE_AGO), math.inf),
    ],
)
def test_the_seconds_in_which_a_master_has_forgotten_nothing(
    server: ServerInfo, marker: Marker | None, seconds: float
) -> None:
    assert quarantine.since_forgot(server, marker) == seconds


PROMOTED = ServerInfo("7", ME, "master", "", promoted=True, fed=50, replid="0123abcd")
FORGOT = ServerInfo("7", ME, "master", "", promoted=True, fed=50)


@pytest.mark.parametrize(
    ("server", "name", "same"),
    [
        (OLD, ME, True),
        (OLD, OTHER, False),
        (OLD, f"{ME}-0123abcd", False),
        (OLD.in_epoch(3), f"{ME}.3", True),
        (OLD.in_epoch(3), f"{ME}.4", False),
        (PROMOTED, ME, False),
        (PROMOTED, f"{ME}+50-0123abcd", True),
        (PROMOTED, f"{ME}+51-0123abcd", False),
        (PROMOTED, f"{ME}+50-0123abce", False),
        (PROMOTED, f"{ME}+50", False),
        # The server has forgotten its promotion since.
        (FORGOT, f"{ME}+50-0123abcd", True),
        (FORGOT, f"{ME}+51-0123abcd", False),
        (FORGOT, f"{OTHER}+50-0123abcd", False),
        (FORGOT, ME, False),
        (FORGOT.in_epoch(3), f"{ME}+50-0123abcd.3", True),
        (FORGOT.in_epoch(3), f"{ME}+50-0123abcd.4", False),
    ],
)
def test_a_promotion_is_part_of_the_identity_of_a_server(
    server: ServerInfo, name: str, *, same: bool
) -> None:
    assert server.is_named(name) is same
    assert (judge(server, member(name)).state is MEMBER) is (same or not server.promoted)


@pytest.mark.parametrize(
    ("marker", "since", "state", "seconds"),
    [
        (member(), CLOCK - 5, QUARANTINED, 60),
        (member(since=CLOCK - 9), CLOCK - 5, QUARANTINED, 60),
        (None, CLOCK - 5, QUARANTINED, 60),
        (rejoining(20), CLOCK - 39_000_000, QUARANTINED, 60),
        (member(), quarantine.NEVER, QUARANTINED, 60),
        # Another program has found the promoted server, and begun a quarantine.
        (rejoining(20), CLOCK - 41_000_000, QUARANTINED, 20),
        (member(since=CLOCK - 4), CLOCK - 5, MEMBER, 0),
    ],
)
def test_a_server_that_was_a_replica_since_its_marker_was_written_has_no_vote(
    marker: Marker | None, since: int, state: MasterStatus, seconds: float
) -> None:
    seen = quarantine.seen_as_replica(NOTHING, ME, since)
    verdict = judge(OLD, marker, seen)
    assert verdict.state is state
    assert verdict.seconds == pytest.approx(seconds)
    # It is remembered while another server is used, and not beyond the examination.
    another = replace(OLD, run_id=OTHER)
    assert quarantine.remember(seen, another, None, verdict, NOW).replica == seen.replica
    assert quarantine.remember(seen, OLD, marker, verdict, NOW).replica is None
    unknown = quarantine.seen_as_replica(NOTHING, ME, None)
    assert judge(OLD, marker, unknown).seconds == 60


uptimes = st.none() | st.integers(-5, 130) | st.just(10**12)
markers = st.none() | st.builds(
    Marker, st.sampled_from([ME, OTHER, ""]), st.booleans(), st.integers(0, 2 * CLOCK)
)
memories = st.builds(
    Seen,
    st.sampled_from([ME, OTHER, ""]),
    st.floats(NOW - 99, NOW),
    st.none() | st.just(5),
    st.just(-math.inf) | st.floats(NOW - 99, NOW + LASTS),
)


@given(uptimes, st.sampled_from([None, CLOCK]), markers, memories, st.booleans(), st.booleans())
def test_no_quarantine_is_longer_than_a_forgotten_lease_may_live(
    uptime: int | None,
    time: int | None,
    marker: Marker | None,
    seen: Seen,
    promoted: bool,
    strict: bool,
) -> None:
    server = info(uptime, time=time, promoted=promoted)
    verdict = judge(server, marker, seen, strict=strict)

    assert 0 <= verdict.seconds <= LASTS
    assert (verdict.seconds == 0) == (verdict.state is MEMBER)
    # A second examination of the written marker has the same result.
    kept = quarantine.remember(seen, server, marker, verdict, NOW)
    if verdict.write is not None:
        again = judge(server, verdict.write, kept, strict=strict)
        assert again.state is verdict.state
        assert again.write is None
        assert again.seconds >= verdict.seconds - 1e-6


LONGEST = Marker("r" * (MOST_BYTES - len(" member 5 60000 7")), False, 5, 60_000, 7)


@pytest.mark.parametrize("marker", [member(), rejoining(9), member(at=0), LONGEST])
def test_a_marker_is_read_as_it_was_written(marker: Marker) -> None:
    assert Marker.parse(bytes(marker)) == marker


HUGE = b" ".join([ME.encode(), b"member 5 60000 5", b"x" * MOST_BYTES])


@pytest.mark.parametrize("value", [b"", b"member", b"\xff\xfe", b"a b c d", b"x" * 99, HUGE])
def test_a_malformed_marker_belongs_to_no_server(value: bytes) -> None:
    assert Marker.parse(value) == Marker("", rejoining=False, number=0)
    assert judge(YOUNG, Marker.parse(value)).state is QUARANTINED


def test_a_marker_without_all_numbers_is_parsed() -> None:
    assert Marker.parse(None) is None
    assert Marker.parse(ME.encode() + b" member") == member(at=0, lasts=0)
    assert Marker.parse(f"{ME} member 5 {10**20} -1 more".encode()) == member(lasts=0)
    assert Marker.parse(ME.encode() + b" rejoining soon") == Marker(ME, rejoining=True, number=0)


@pytest.mark.parametrize("max_ttl", [timing.SHORTEST_TTL, timing.MAX_TTL, timing.LONGEST])
def test_a_marker_carries_the_quarantine_of_any_max_ttl(max_ttl: int) -> None:
    lasts = timing.forgetting(max_ttl, factor=0.5)
    for verdict in (quarantine.founding(YOUNG, lasts), quarantine.not_new(YOUNG, lasts)):
        assert verdict.write is not None
        assert verdict.careful
        assert Marker.parse(bytes(verdict.write)) == verdict.write


def test_the_reason_and_the_time_left_are_in_whole_seconds() -> None:
    text = quarantine.bar(Reason.RESTARTED, ago=12.9, until=50.1).describe(2.0)
    assert text == "it restarted 12 s ago and may have forgotten locks; it votes again in 49 s"
    text = quarantine.bar(Reason.UNPROVEN, ago=3, until=57.0).describe(0.0)
    assert text.endswith("all masters are new; it votes again in 57 s at the latest")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("uptime_in_seconds:12", {"uptime": 12}),
        ("uptime_in_seconds:-3598", {"uptime": -3598}),
        ("uptime_in_seconds:soon", {"uptime": None}),
        ("uptime_in_seconds:" + "9" * 19, {"uptime": 10**19 - 1}),
        ("uptime_in_seconds:" + "9" * 20, {"uptime": None}),
        ("config_file:C:\\redis.conf\r\nuptime_in_seconds:12", {"uptime": 12}),
        ("server_time_usec:1700", {"time": 1700}),
        ("master_replid2:" + "0" * 40, {"promoted": False}),
        ("master_replid2:" + "0" * 39 + "a", {"promoted": True}),
        ("total_net_repl_input_bytes:0", {"promoted": False, "identity": "x"}),
        ("total_net_repl_input_bytes:50", {"promoted": True, "identity": "x+50"}),
        ("total_net_repl_input_bytes:-5", {"promoted": False, "fed": -5}),
        ("master_replid:0123456789", {"replid": "", "identity": "x"}),
        ("master_replid:0123456789\r\nmaster_replid2:1", {"identity": "x-01234567"}),
        ("maxmemory_policy:allkeys-lru", {"evicts": "allkeys-lru"}),
        ("maxmemory:9\r\nmaxmemory_policy:allkeys-lru", {"evicts": "allkeys-lru"}),
        ("maxmemory:0\r\nmaxmemory_policy:allkeys-lru", {"evicts": ""}),
        ("maxmemory:9\r\nmaxmemory_policy:noeviction", {"evicts": ""}),
        ("cluster_enabled:1", {"clustered": True}),
        ("connected_slaves:1", {"replicated": True}),
        ("aof_enabled:0", {"appends": False}),
        ("aof_enabled:1", {"appends": True}),
        ("", {"uptime": None, "time": None, "promoted": False, "appends": None}),
        ("", {"evicts": "", "clustered": False, "replicated": False}),
    ],
)
def test_the_facts_in_info(line: str, expected: dict[str, object]) -> None:
    server = ServerInfo.parse(f"run_id:x\r\n{line}\r\n".encode())

    assert {name: getattr(server, name) for name in expected} == expected
