"""What a master must be and allow, as tools for operators get it."""

import json
import math

import pytest
from redis.exceptions import NoPermissionError, ResponseError

from redlock_aio import requirements
from redlock_aio._protocol import commands
from redlock_aio._protocol.primitives import FencingCounter
from redlock_aio._rules import timing
from redlock_aio._rules.fencing import LEAD_SHARE
from redlock_aio.requirements import DeclaredSet, KnownMaster

NOW = 1_700_000_000


def info(uptime: int = 1_000, run_id: str = "a" * 40) -> bytes:
    """Return the reply of a master to INFO."""
    lines = [
        "redis_version:7.2.4", f"run_id:{run_id}", "role:master", f"uptime_in_seconds:{uptime}",
        f"server_time_usec:{NOW * 1_000_000}",
    ]  # fmt: skip
    return "\r\n".join(lines).encode()


def test_the_keys_are_those_of_the_library() -> None:
    assert requirements.MARKER_KEY.encode() == commands.MARKER
    assert requirements.DECLARED_KEY.encode() == commands.DECLARED_SETS


def test_a_master_that_has_run_for_long_votes() -> None:
    found = requirements.eligibility(info(), None)
    assert (found.votes, found.reason, found.seconds, found.max_ttl) == (True, "", 0.0, None)


def test_a_young_master_without_a_marker_depends_on_the_others() -> None:
    found = requirements.eligibility(info(uptime=20), None)
    assert (found.votes, round(found.seconds, 1)) == (None, 41.6)
    assert requirements.eligibility(info(uptime=20), None, strict=True).votes is False
    assert requirements.eligibility(info(uptime=20), b"").votes is None


def test_a_master_with_the_marker_of_a_former_run_has_restarted() -> None:
    marker = f"{'b' * 40} member 1 61600 1".encode()
    found = requirements.eligibility(info(uptime=20), marker)
    assert found.votes is False
    assert "it restarted 20 s ago and may have forgotten locks; it votes again in 42 s" in (
        found.reason
    )
    assert found.max_ttl == 60_000
    found = requirements.eligibility(info(uptime=0), marker)
    assert found.reason.startswith("it restarted 0 s ago and may have forgotten locks")
    assert requirements.eligibility(info(uptime=62), marker).votes


def test_a_replica_has_no_vote_until_a_person_changes_it() -> None:
    found = requirements.eligibility(info().replace(b"role:master", b"role:slave"), None)
    assert (found.votes, found.reason) == (False, "not a master but a slave")
    assert found.seconds == math.inf


def test_a_node_of_a_cluster_has_no_vote() -> None:
    found = requirements.eligibility(info() + b"\r\ncluster_enabled:1\r\n", None)
    assert (found.votes, found.seconds) == (False, math.inf)
    assert found.reason.startswith("a node of a Redis Cluster")


def test_a_clock_that_info_does_not_tell() -> None:
    untold = info().replace(b"server_time_usec", b"another_field")
    marker = f"{'a' * 40} rejoining {(NOW + 5) * 1_000_000} 61600 1".encode()
    assert requirements.eligibility(untold, marker).seconds == 61.6
    assert requirements.eligibility(untold, marker, time=NOW).seconds == 5.0
    assert requirements.eligibility(info(), marker, time=NOW - 20).seconds == 5.0


def test_a_failover_of_sentinel_is_a_restart() -> None:
    def votes(epoch: int, uptime: int = 1_000) -> bool | None:
        marker = f"{'a' * 40}.3 member 1 61600 1".encode()
        return requirements.eligibility(info(uptime), marker, epoch=epoch).votes

    assert votes(3) is True
    assert votes(3, uptime=20) is True  # the same run: the marker is younger
    assert votes(4) is False
    marker = f"{'b' * 40}.0 member 1 61600 1".encode()
    assert requirements.eligibility(info(62), marker, epoch=0).votes is False  # 2 s longer
    assert requirements.eligibility(info(64), marker, epoch=0).votes is True


def test_the_questions_are_those_of_programs() -> None:
    kinds = ("GET-MASTER-ADDR-BY-NAME", "mine"), ("MASTER", "mine"), ("MYID",)
    assert requirements.sentinel_questions("mine") == tuple(("SENTINEL", *kind) for kind in kinds)
    assert requirements.cluster_question() == ("CLUSTER", "NODES")


def replies(host: str = "10.0.0.1", epoch: int = 2, known: int = 3, own: str = "a") -> list[object]:
    """Return the replies of a Sentinel to the questions, as RESP2 has them."""
    details = [b"config-epoch", b"%d" % epoch, b"num-other-sentinels", b"%d" % (known - 1)]
    return [[host.encode(), b"6380"], details, own.encode()]


def test_a_majority_of_the_sentinels_names_the_master() -> None:
    all_three = {f"s{n}": replies(own=f"{n}") for n in range(3)}
    found = requirements.sentinel_answers(all_three)
    assert (found.host, found.port, found.epoch) == ("10.0.0.1", 6380, 2)
    assert (found.complete, found.caution) == (True, "")

    found = requirements.sentinel_answers({**all_three, "s2": "no answer"})
    assert (found.host, found.complete) == ("10.0.0.1", False)
    assert found.text.endswith("2 must: s2 (no answer)")

    found = requirements.sentinel_answers({**all_three, "s2": replies("10.0.0.2", 1, own="2")})
    assert (found.host, found.complete) == ("10.0.0.1", False)
    assert "s2 names 10.0.0.2:6380 (epoch 1)" in found.text


def test_sentinels_that_do_not_agree_name_no_master() -> None:
    three: dict[str, list[object] | str] = {
        "s0": replies(own="0"),
        "s1": replies(epoch=3, own="1"),
        "s2": [None, ResponseError("No such master"), b"2"],
    }
    found = requirements.sentinel_answers(three)
    assert (found.host, found.epoch, found.complete) == ("", None, False)
    assert "s2 (knows no master of that name)" in found.text
    denied = NoPermissionError("no permissions")
    found = requirements.sentinel_answers({"s0": [denied, denied, denied]})
    assert "s0 (no permissions)" in found.text


def test_sentinels_that_were_not_named_and_that_were_named_twice() -> None:
    found = requirements.sentinel_answers({f"s{n}": replies(known=5, own=f"{n}") for n in range(3)})
    assert found.caution.startswith("its Sentinels know of 5, but 3 were named")
    found = requirements.sentinel_answers({f"s{n}": replies(own=f"{n // 2}") for n in range(3)})
    assert "lead to the same Sentinel" in found.caution


@pytest.mark.parametrize("max_ttl", [50, 1_000, 10_000, 60_000, 123_457, 86_400_000])
def test_the_marker_tells_the_longest_max_ttl(max_ttl: int) -> None:
    lasts = math.ceil(timing.forgetting(max_ttl, factor=0.01) * 1000)
    marker = f"{'a' * 40} member 1 {lasts} 1".encode()
    assert requirements.eligibility(info(), marker).max_ttl == max_ttl


def test_the_longest_quarantine_counts() -> None:
    marker = f"{'b' * 40} member 1 121000 1".encode()
    assert requirements.eligibility(info(uptime=100), marker, max_ttl=1_000).votes is False


@pytest.mark.parametrize(("max_ttl", "ms"), [(60_000, 6_700), (1_000, 1_000)])
def test_the_clock_tolerance_is_what_an_acquisition_allows(max_ttl: int, ms: int) -> None:
    tolerance = requirements.clock_tolerance(max_ttl=max_ttl)
    assert tolerance == ms
    lead = int(timing.forgetting(max_ttl, factor=0.01) * LEAD_SHARE * 1_000_000)
    assert FencingCounter([b"k"], lead).lead == (tolerance + 1_000) * 1_000


@pytest.mark.parametrize(
    ("round_trips", "timeout"),
    [
        ([], 50),
        ([[], [], []], 50),
        ([[1.0] * 10] * 3, 50),
        ([[100.0] * 100] * 3, 200),
        ([[100.0] * 100] * 2 + [[]], 200),
        ([[1.0] * 10] * 2 + [[300.0] * 10], 200),  # four times what the others need at least
        ([[2_000.0] * 10] * 3, 1_000),
        ([[10.0, 300.0]] * 3, 50),  # once only
        ([[10.0, 300.0, 300.0]] * 3, 342),
    ],
)
def test_the_timeout_is_learned_as_by_a_manager(
    round_trips: list[list[float]], timeout: int
) -> None:
    assert requirements.learned_timeout(round_trips) == timeout


def test_more_kinds_of_locks_need_more_permissions() -> None:
    plain, fencing, fair, shared, semaphores = (
        requirements.permissions(),
        requirements.permissions(fencing=True),
        requirements.permissions(fencing=True, fair=True),
        requirements.permissions(shared=True),
        requirements.permissions(semaphores=True),
    )
    assert set(fencing.keys) - set(plain.keys) == {"redlock_aio:fence:*"}
    assert set(fair.commands) > set(plain.commands)
    assert (plain.channels, fair.channels) == ((), ("redlock_aio:wake:*",))
    assert set(shared.commands) > set(fair.commands)
    assert (shared.keys, shared.channels) == (fair.keys, fair.channels)
    assert set(semaphores.commands) - set(fair.commands) == {"zcard"}
    assert (semaphores.keys, semaphores.channels) == (fair.keys, fair.channels)
    both = requirements.permissions(shared=True, semaphores=True).commands
    assert sorted(both) == sorted({*semaphores.commands, *shared.commands})
    assert set(plain.optional) < set(plain.commands)


OURS = [KnownMaster(name, name * 40, 1_000) for name in "abc"]


def line(value: object, ago: int = 1_000, lasts: int = 90_000, came: int = 6_000) -> bytes:
    """Return a line in the form in which a script writes it."""
    at = NOW * 1_000 - ago
    text = json.dumps(value, separators=(",", ":"))
    return f"{NOW * 1_000 - came} {at} {lasts} {text}\n".encode()


def entry(*places: list[str], ago: int = 1_000, lasts: int = 90_000) -> bytes:
    """Return a declared set and its servers."""
    servers = b"".join([line({name: run_id}, ago, lasts) for name, run_id in places])
    return line([name for name, _ in places], ago, lasts) + servers


def sets(value: bytes | None, masters: list[KnownMaster] = OURS) -> list[DeclaredSet]:
    return requirements.declared_sets(value, masters, time=NOW)


def test_the_same_set_and_no_set() -> None:
    assert sets(None) == sets(b"nonsense") == []
    same = entry(*([name, name * 40] for name in "abc"))
    assert sets(same) == [DeclaredSet(("a", "b", "c"), 1_000, same=True, conflicts=False)]
    renamed = entry(*([name, name.lower() * 40] for name in "ABC"))
    assert sets(renamed)[0].same


def test_sets_whose_majorities_may_miss_each_other_conflict() -> None:
    one_more = entry(*([name, name * 40] for name in "abcd"))
    two_others = entry(*([name, name * 40] for name in "cde"))
    found = sets(one_more + two_others)
    assert [(each.same, each.conflicts) for each in found] == [(False, False), (False, True)]
    assert found[1].masters == ("c", "d", "e")


def test_a_master_that_was_not_reached_may_be_any_other() -> None:
    unknown = [OURS[0], KnownMaster("b"), KnownMaster("c")]
    others = entry(*([name, name * 40] for name in "ade"))
    assert not sets(others, unknown)[0].conflicts
    assert sets(others)[0].conflicts


@pytest.mark.parametrize(
    "value",
    [line(["x"], ago=90_000), line(["x"], lasts=10**12), line([]), b"1 2 3 [1]\n",
     line(["x"], ago=-95_000), b"9" * 5_000 + b" 1 1 []\n", line(["x"]) + b"x" * 262_144],
)  # fmt: skip
def test_what_does_not_count(value: bytes) -> None:
    assert sets(value) == []


def test_a_line_counts_that_came_just_now() -> None:
    assert [bool(sets(line(["x"], came=-ahead))) for ahead in (0, 999, 1_000)] == [
        True,
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("servers", "expected"),
    [
        ([], []),
        ([("a", "1", 9_000, 1_000)], []),
        ([("a", "1", 9_000, 1_000), ("b", "2", 8_000, 1_000)], []),
        ([("a", "1", 9_000, 5_000), ("a", "2", 5_000, 1_000)], []),  # a restart
        ([("a", "1", 9_000, 2_000), ("a", "2", 5_000, 1_000)], ["a"]),
        ([("a", "2", 5_000, 1_000), ("a", "1", 9_000, 2_000), ("b", "3", 9, 1)], ["a"]),
    ],
)
def test_an_address_leads_to_two_servers_if_both_were_seen_after_the_other_came(
    servers: list[tuple[str, str, int, int]], expected: list[str]
) -> None:
    value = b"".join([line({name: run_id}, ago, came=came) for name, run_id, came, ago in servers])
    assert requirements.moved_addresses(value, time=NOW) == expected
    assert requirements.moved_addresses(None, time=NOW) == []


NODES = """\
aa 10.0.0.1:7000@17000,one.example {}master - 0 0 1 connected 0-5460
bb 10.0.0.2:7000@17000,two.example {}master - 0 169 8 connected 5461-16383
cc 10.0.0.3:7000@17000,three.example {}slave bb 0 169 8 connected
"""
EMPTY = "dd 10.0.0.4:7000@17000,four.example master - 0 0 0 connected\n"
"""A primary without a slot."""


def listed(by: int) -> bytes:
    return NODES.format(*("myself," if by == number else "" for number in range(3))).encode()


def test_the_masters_of_a_cluster_have_a_url_each() -> None:
    url = "rediss+cluster://me:s3cret@a,b:2?masters=3&client_name=x"
    urls = requirements.each_master([url])
    assert urls[0] == "rediss+cluster://me:s3cret@a,b:2?client_name=x&masters=1&tags=0001"
    assert [each[-4:] for each in urls] == ["0001", "8209", "8239"]
    named = requirements.parse_url(urls[0])
    assert named.tag == "{0001}"
    assert named.nodes == (
        "rediss://me:s3cret@a:6379?client_name=x", "rediss://me:s3cret@b:2?client_name=x",
    )  # fmt: skip
    assert named.at("::1", 5) == "rediss://me:s3cret@[::1]:5?client_name=x"
    assert "s3cret" not in repr(named)
    assert requirements.parse_url(url).tag == ""
    with pytest.raises(ValueError, match=r"^url must be a redis://"):
        requirements.parse_url("http://a")
    plain = ["redis://a", "redis+sentinel://s/m"]
    assert requirements.each_master(plain) == plain


def test_what_nodes_agree_on() -> None:
    replies: dict[tuple[str, int], object] = {("seed", 7000): listed(0)}
    said = requirements.cluster_answers("{0001}", replies)
    assert (said.host, said.epoch, said.complete) == ("", None, False)
    assert said.text.startswith("0 of 3 nodes confirm the master, 2 must: 10.0.0.1:7000 names")
    assert said.nodes == (("10.0.0.1", 7000), ("10.0.0.2", 7000), ("10.0.0.3", 7000))
    replies |= {("10.0.0.2", 7000): listed(1), ("10.0.0.3", 7000): "no answer"}
    said = requirements.cluster_answers("{0001}", replies)
    assert (said.host, said.port, said.epoch, said.complete) == ("10.0.0.1", 7000, 1, False)
    assert said.text.endswith("2 must: 10.0.0.3:7000 (no answer)")
    replies["10.0.0.3", 7000] = listed(2)
    said = requirements.cluster_answers("{8239}", replies, tls=True)
    assert (said.host, said.epoch, said.complete) == ("two.example", 8, True)
    assert sorted(said.slots.values()) == [((0, 5460),), ((5461, 16383),)]
    assert said.slot == 13651
    # Its name, as the user wrote it, leads to a node that the list has by its address.
    del replies["seed", 7000]
    replies |= {("10.0.0.1", 7000): listed(0), ("one.example", 7000): listed(0)}
    assert requirements.cluster_answers("{8239}", replies).complete
    replies["10.0.0.3", 7000] = "no answer"
    assert not requirements.cluster_answers("{8239}", replies).complete


def test_a_primary_without_a_slot_is_a_node_and_has_no_ranges() -> None:
    said = requirements.cluster_answers("{0001}", {("10.0.0.1", 7000): listed(0) + EMPTY.encode()})
    assert ("10.0.0.4", 7000) in said.nodes
    assert sorted(said.slots) == ["10.0.0.1:7000", "10.0.0.2:7000"]


def test_nodes_that_answer_nothing_of_use() -> None:
    error = Exception("ERR This instance has cluster support disabled")
    said = requirements.cluster_answers("{0001}", {("h", 1): error, ("i", 2): "no answer"})
    assert said.host == ""
    assert "h:1 (ERR This instance has cluster support disabled), i:2 (no answer)" in said.text


def test_an_owner_of_a_slot_is_eligible_by_its_marker_alone() -> None:
    info = b"run_id:me\r\nrole:master\r\nuptime_in_seconds:999999\r\ncluster_enabled:1\r\n"
    info += b"server_time_usec:1000000\r\n"
    assert requirements.eligibility(info, None).votes is False
    assert requirements.eligibility(info, None, epoch=3, of_slot=True).votes is None
    mine, before = b"me.3 member 5 70000 0", b"me.2 member 5 70000 0"
    assert requirements.eligibility(info, mine, epoch=3, of_slot=True).votes is True
    assert requirements.eligibility(info, before, epoch=3, of_slot=True).votes is False
    alone = info.replace(b"cluster_enabled:1", b"cluster_enabled:0")
    found = requirements.eligibility(alone, mine, epoch=3, of_slot=True)
    assert (found.votes, found.seconds) == (False, math.inf)
    assert found.reason == "no node of a Redis Cluster (cluster_enabled is 0)"


def test_a_cluster_needs_one_permission_more() -> None:
    needed = requirements.permissions(cluster=True)
    assert "cluster|nodes" in needed.commands
    assert "redlock_aio:marker*" in needed.keys
