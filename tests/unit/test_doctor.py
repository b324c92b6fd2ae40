"""What ``redlock doctor`` finds, from facts about the masters."""

import dataclasses
import math
from typing import Any

import pytest

from redlock_aio.cli.doctor import all_masters, command, one_master
from redlock_aio.cli.doctor.facts import Expectations, MasterFacts
from redlock_aio.cli.doctor.findings import Finding, Kind, Severity
from redlock_aio.requirements import ClusterAnswers, DeclaredSet, Eligibility, SentinelAnswers

INFO = {
    "redis_version": "7.2.4",
    "server_name": "valkey",
    "valkey_version": "8.1.0",
    "redis_mode": "standalone",
    "role": "master",
    "uptime_in_seconds": "1000",
    "maxmemory": "0",
    "maxmemory_policy": "noeviction",
    "connected_slaves": "0",
    "aof_enabled": "0",
    "cluster_enabled": "0",
}

EXPECTED = Expectations(master_timeout=None, max_ttl=60_000, guard="auto", tolerance=6_700)

VOTES = Eligibility(votes=True, reason="", seconds=0.0, max_ttl=60_000)


def master(number: int = 1, info: dict[str, str] | None = None, **more: Any) -> MasterFacts:
    """Return the facts about a master without a finding."""
    own = {**INFO, "run_id": f"run{number}", **(info or {})}
    known: dict[str, Any] = {
        "name": f"m{number}",
        "hosts": (f"10.0.{number}.1",),
        "info": own,
        "eligibility": VOTES,
        "ahead": (-0.001, 0.001),
        "round_trips": [1.0] * 100,
    }
    return MasterFacts(**known | more)


def masters(number: int = 3) -> list[MasterFacts]:
    return [master(each) for each in range(1, number + 1)]


def kinds(found: list[Finding]) -> set[Kind]:
    return {finding.kind for finding in found}


def wanted(**changes: Any) -> Expectations:
    return dataclasses.replace(EXPECTED, **changes)


@pytest.mark.parametrize("number", [3, 5, 7])
def test_masters_that_are_fit_have_no_finding(number: int) -> None:
    assert all_masters.judge(masters(number), EXPECTED) == []


def answered(host: str, text: str, *, complete: bool = True, caution: str = "") -> SentinelAnswers:
    """Return what Sentinels may have answered."""
    return SentinelAnswers(host, 1, 0 if host else None, bool(host) and complete, text, caution)


def test_a_replica_behind_sentinels_is_no_finding() -> None:
    facts = master(info={"connected_slaves": "1"}, sentinels=answered("h", "3 of 3"))
    assert list(one_master.judge(facts, EXPECTED)) == []


def test_a_refusal_that_the_role_does_not_explain_is_a_finding() -> None:
    facts = master(info={"role": "slave"}, refusal="MISCONF Errors writing", eligibility=None)
    assert kinds(list(one_master.judge(facts, EXPECTED))) == {Kind.ROLE, Kind.REFUSES}


def in_cluster(number: int = 1, primaries: int = 3, **more: Any) -> MasterFacts:
    """Return the facts about a master of a Cluster, whose tag is in the slot of its number."""
    slots = {f"10.0.{n}.1:7000": ((n, n),) for n in range(1, primaries + 1)}
    given: dict[str, Any] = {
        "host": "h", "port": 1, "epoch": 1, "complete": True, "text": "6 of 6", "nodes": (),
        "slot": number, "slots": slots,
    }  # fmt: skip
    answers = ClusterAnswers(**given | more.pop("answers", {}))
    info = {"cluster_enabled": "1", "connected_slaves": "1", **more.pop("info", {})}
    return master(number, info=info, cluster=answers, service=f"{{000{number}}}", **more)


def test_masters_of_a_cluster_that_are_fit_have_no_finding() -> None:
    facts = [
        in_cluster(n, settings={"cluster-require-full-coverage": "no", "cluster-node-timeout": "5"})
        for n in (1, 2, 3)
    ]
    assert all_masters.judge(facts, EXPECTED) == []
    assert facts[0].known.run_id == "run1{0001}"
    assert facts[0].known.name == "{0001}"
    assert facts[0].epoch == 1


def test_tags_that_share_a_node_are_told_where_to_go() -> None:
    facts = [in_cluster(n, 4, info={"run_id": "run1"} if n == 2 else {}) for n in (1, 2, 3)]
    (finding,) = [f for f in all_masters.judge(facts, EXPECTED) if f.kind is Kind.SAME_SERVER]
    assert finding.message.endswith("; move slot 2 to 10.0.4.1:7000, which has no tag's slot")


PAGED = ([1.0] * 49 + [80.0]) * 2

ONE: list[tuple[Kind, MasterFacts, Expectations, str]] = [
    (Kind.UNREACHABLE, MasterFacts(name="m1", failure="no answer in 1 s"), EXPECTED, "no answer"),
    (Kind.INCOMPLETE, master(unfinished="settings"), EXPECTED, "settings"),
    (Kind.VERSION, master(info={"redis_version": "5.0.14"}), EXPECTED, "5.0.14"),
    (Kind.VERSION, master(info={"redis_version": ""}), EXPECTED, "not known"),
    (Kind.VERSION, master(info={"run_id": ""}), EXPECTED, "no run_id"),
    (
        Kind.ROLE,
        master(info={"role": "slave"}, eligibility=None),
        EXPECTED,
        "not a master but a slave",
    ),
    (Kind.ROLE, master(info={"redis_mode": "sentinel"}, eligibility=None), EXPECTED, "a Sentinel"),
    (Kind.ROLE, master(info={"server_mode": "sentinel"}, eligibility=None), EXPECTED, "a Sentinel"),
    (
        Kind.SEVERAL_SERVERS,
        master(info={"run_id": "aa"}, others={"cc", "bb"}),
        EXPECTED,
        "its name leads to several servers, with the run_ids aa, bb, cc",
    ),
    (Kind.REFUSES, master(refusal="MISCONF Errors writing"), EXPECTED, "MISCONF Errors writing"),
    # One fault is one finding, though the server refuses to write for it, too.
    (
        Kind.ROLE,
        master(info={"role": "slave"}, refusal="READONLY You can't write", eligibility=None),
        EXPECTED,
        "a slave",
    ),
    (
        Kind.ROLE,
        master(info={"role": "slave"}, refusal="MASTERDOWN Link is down", eligibility=None),
        EXPECTED,
        "a slave",
    ),
    (
        Kind.CLUSTER,
        master(info={"cluster_enabled": "1"}, refusal="CLUSTERDOWN Hash slot not served"),
        EXPECTED,
        "a Cluster",
    ),
    (
        Kind.CLUSTER,
        master(info={"cluster_enabled": "1"}, refusal="MOVED 1 a:1"),
        EXPECTED,
        "a Cluster",
    ),
    (
        Kind.UNCONFIRMED,
        MasterFacts(name="m1", cluster=in_cluster(answers={"host": "", "text": "2 of 6"}).cluster),
        EXPECTED,
        "2 of 6",
    ),
    (
        Kind.NODE,
        in_cluster(answers={"complete": False, "text": "5 of 6"}),
        EXPECTED,
        "5 of 6",
    ),
    (
        Kind.COVERAGE,
        in_cluster(settings={"cluster-require-full-coverage": "yes"}),
        EXPECTED,
        "is yes",
    ),
    (
        Kind.NODE_TIMEOUT,
        in_cluster(settings={"cluster-node-timeout": "15000"}),
        EXPECTED,
        "its cluster-node-timeout is 15 s",
    ),
    (Kind.REFUSES, in_cluster(refusal="CLUSTERDOWN x"), EXPECTED, "CLUSTERDOWN x"),
    (
        Kind.REFUSES,
        master(info={"min_slaves_good_slaves": "0"}, refusal="NOREPLICAS Not enough"),
        EXPECTED,
        "NOREPLICAS Not enough",
    ),
    (Kind.COMMANDS, master(unknown=["+set", "+script|load"]), EXPECTED, "know SET, SCRIPT LOAD"),
    (
        Kind.NO_TRACKING,
        master(unknown=["+client|tracking"]),
        EXPECTED,
        "it does not know CLIENT TRACKING",
    ),
    (
        Kind.TLS,
        MasterFacts(name="m1", failure="no answer", tls="the URL wants TLS"),
        EXPECTED,
        "the URL wants TLS",
    ),
    (
        Kind.UNCONFIRMED,
        MasterFacts(name="m1", failure="0 of 3", sentinels=answered("", "0 of 3 confirm")),
        EXPECTED,
        "0 of 3 confirm",
    ),
    (
        Kind.TLS,
        MasterFacts(name="m1", failure="0", sentinels=answered("", "0 of 3"), tls="Sentinel s1: x"),
        EXPECTED,
        "Sentinel s1: x",
    ),
    (
        Kind.SENTINEL,
        master(sentinels=answered("h", "2 of 3: s3 (no answer)", complete=False)),
        EXPECTED,
        "s3 (no answer)",
    ),
    (
        Kind.SENTINELS,
        master(sentinels=answered("h", "3 of 3", caution="its Sentinels know of 5")),
        EXPECTED,
        "know of 5",
    ),
    (Kind.PERMISSION, master(missing=["+zadd", "~app:*"]), EXPECTED, "lacks +zadd ~app:*"),
    (Kind.WAKING, master(missing=["+client|tracking"]), EXPECTED, "lacks +client|tracking"),
    (
        Kind.EVICTION,
        master(info={"maxmemory": "1000", "maxmemory_policy": "volatile-ttl"}),
        EXPECTED,
        "volatile-ttl",
    ),
    (Kind.FORGETS, master(), wanted(guard="off"), "no append-only file"),
    (Kind.FORGETS, master(), wanted(guard="fsync-always"), "'fsync-always'"),
    (
        Kind.FORGETS,
        master(info={"aof_enabled": "1"}, settings={"appendfsync": "everysec"}),
        wanted(guard="fsync-always"),
        "appendfsync is everysec",
    ),
    (
        Kind.FORGETS,
        master(
            info={"aof_enabled": "1"},
            settings={"appendfsync": "always", "no-appendfsync-on-rewrite": "yes"},
        ),
        wanted(guard="fsync-always"),
        "no-appendfsync-on-rewrite is yes",
    ),
    (
        Kind.FSYNC,
        master(info={"aof_enabled": "1"}),
        wanted(guard="fsync-always"),
        "appendfsync is not known",
    ),
    (
        Kind.QUARANTINE,
        master(eligibility=Eligibility(False, "it restarted 3 s ago", 58.6, 60_000)),
        EXPECTED,
        "it restarted 3 s ago",
    ),
    (
        Kind.MAX_TTL,
        master(eligibility=dataclasses.replace(VOTES, max_ttl=120_000)),
        EXPECTED,
        "a max_ttl of 2 min, here it is 1 min",
    ),
    (Kind.TOO_SLOW, master(round_trips=[30.0] * 10), wanted(master_timeout=20), "30 ms or more"),
    (Kind.TOO_SLOW, master(round_trips=[1_100.0] * 10), EXPECTED, "learn it, is 1000 ms"),
    (Kind.SLOW, master(round_trips=PAGED), wanted(master_timeout=50), "80 ms or more"),
    (Kind.REPLICAS, master(info={"connected_slaves": "2"}), EXPECTED, "it has 2 replicas"),
    (Kind.REPLICAS, master(info={"connected_slaves": "1"}), EXPECTED, "it has 1 replica"),
    (
        Kind.MIN_REPLICAS,
        master(info={"min_slaves_good_slaves": "0"}),
        EXPECTED,
        "0 are good enough",
    ),
    (Kind.CLUSTER, master(info={"cluster_enabled": "1"}), EXPECTED, "a node of a Cluster"),
]


@pytest.mark.parametrize(("kind", "facts", "use", "message"), ONE, ids=range(len(ONE)))
def test_a_finding_about_one_master(
    kind: Kind, facts: MasterFacts, use: Expectations, message: str
) -> None:
    (found,) = one_master.judge(facts, use)
    assert (found.kind, found.masters) == (kind, ("m1",))
    assert message in found.message


@pytest.mark.parametrize(
    ("facts", "use"),
    [
        (master(info={"maxmemory_policy": "allkeys-lru"}), EXPECTED),  # no limit, so no eviction
        (master(info={"maxmemory": "1000"}), EXPECTED),
        (
            master(
                info={"aof_enabled": "1"},
                settings={"appendfsync": "always", "no-appendfsync-on-rewrite": "no"},
            ),
            wanted(guard="fsync-always"),
        ),
        (
            master(
                info={"aof_enabled": "1"},
                settings={"appendfsync": "always"},
                eligibility=Eligibility(False, "it restarted", 9.0, 1),
            ),
            wanted(guard="off"),  # which reads no marker
        ),
        (master(eligibility=Eligibility(False, "a replica", math.inf, None)), EXPECTED),
        (master(round_trips=PAGED), wanted(master_timeout=80)),
        (master(round_trips=PAGED), EXPECTED),
        (master(info={"role": "master", "redis_version": "6.0.0"}), EXPECTED),
    ],
)
def test_what_is_no_finding(facts: MasterFacts, use: Expectations) -> None:
    assert list(one_master.judge(facts, use)) == []


REFUSED = Eligibility(False, "not a master but a slave", math.inf, None)


def young(number: int) -> MasterFacts:
    return master(number, eligibility=Eligibility(None, "it started 5 s ago", 56.6, None))


AWAY = [MasterFacts(name=f"m{number}", failure="no answer") for number in range(1, 6)]
ELSEWHERE = DeclaredSet(("x", "y", "z"), 10, same=False, conflicts=True)
NEARLY = DeclaredSet(("m1", "m2", "z"), 10, same=False, conflicts=False)
SAME = DeclaredSet(("m1", "m2", "m3"), 10, same=True, conflicts=False)


def with_clock(number: int, ahead: float) -> MasterFacts:
    return master(number, ahead=(ahead - 0.001, ahead + 0.001))


ALL: list[tuple[Kind, list[MasterFacts], tuple[str, ...], str]] = [
    (
        Kind.PRIMARIES,
        [in_cluster(number, 2) for number in (1, 2, 3)],
        (),
        "3 masters, and 2 primaries with slots",
    ),
    (Kind.SINGLE, masters(1), (), "one master"),
    (Kind.EVEN, masters(4), (), "4 masters, of which 1 may fail"),
    (Kind.EVEN, masters(2), (), "2 masters, of which none may fail"),
    (
        Kind.SAME_SERVER,
        [*masters(2), master(3, info={"run_id": "run1"})],
        ("m1", "m3"),
        "one server, with the run_id run1",
    ),
    (Kind.NO_MAJORITY, [*AWAY[:3], master(4), master(5)], (), "2 of 5 can vote, 3 must"),
    (
        Kind.NO_MAJORITY,  # one server has one vote
        [AWAY[0], master(2), master(3, info={"run_id": "run2"})],
        (),
        "1 of 3 can vote, 2 must",
    ),
    (Kind.QUARANTINE, [*masters(2), young(3)], ("m3",), "it has a vote in 57 s at the latest"),
    (Kind.NO_MAJORITY, [AWAY[0], young(2), young(3)], (), "0 of 3 can vote, 2 must"),
    (
        Kind.NO_MAJORITY,
        [master(1, eligibility=REFUSED), master(2, eligibility=REFUSED), master(3)],
        (),
        "1 of 3 can vote, 2 must",
    ),
    (
        Kind.OTHER_MASTERS,
        [master(1, sets=[SAME, ELSEWHERE]), master(2, sets=[ELSEWHERE]), master(3)],
        ("m1", "m2"),
        "programs there have the masters x, y, z",
    ),
    (
        Kind.CHANGED_MASTERS,
        [master(1, sets=[NEARLY]), *masters(3)[1:]],
        ("m1",),
        "programs there have the masters m1, m2, z",
    ),
    (
        Kind.MOVED_ADDRESS,
        [master(1, moved=["m3"]), master(2, moved=["m3"]), master(3)],
        ("m1", "m2"),
        "programs there use two servers by the address m3",
    ),
    (
        Kind.CLOCK,
        [with_clock(1, 100.0), with_clock(2, 100.1), with_clock(3, 92.0)],
        ("m3",),
        "its clock is 8000 ms behind the median; fencing allows 6700 ms",
    ),
    (
        Kind.CLOCK_NEAR,
        [*masters(2), with_clock(3, 4.0)],
        ("m3",),
        "its clock is 4000 ms ahead of the median",
    ),
    (
        Kind.ONE_HOST,
        [master(1, hosts=("127.0.0.1",)), master(2, hosts=("::1",)), master(3)],
        ("m1", "m2"),
        "on one host: this machine",
    ),
    (
        Kind.ONE_HOST,
        [master(1, name="/run/a", hosts=()), master(2, name="/run/b", hosts=()), master(3)],
        ("/run/a", "/run/b"),
        "on one host: this machine",
    ),
    (
        Kind.ONE_HOST,  # the other two are no majority of four
        [master(1, hosts=("10.0.2.1",)), *masters(4)[1:]],
        ("m1", "m2"),
        "on one host: 10.0.2.1",
    ),
    (
        Kind.ZONE,
        [*(master(number, info={"availability_zone": "a"}) for number in (1, 2)), *masters(4)[2:]],
        ("m1", "m2"),
        "in one availability zone: a",
    ),
    (
        Kind.TOO_SLOW,  # a minority raises the learned timeout to four times the others' only
        [*masters(2), master(3, round_trips=[300.0] * 10)],
        ("m3",),
        "half of its replies took 300 ms or more; master_timeout, as programs learn it, is 200 ms",
    ),
    (
        Kind.SLOW,
        [*masters(2), master(3, round_trips=PAGED)],
        ("m3",),
        "master_timeout, as programs learn it, is 50 ms",
    ),
    (
        Kind.SHARED_HOST,
        [master(1, hosts=("10.0.2.1", "10.0.9.1")), *masters(5)[1:]],
        ("m1", "m2"),
        "on one host: 10.0.2.1",
    ),
    (
        Kind.SUBNET,
        [master(1, hosts=("10.0.2.9",)), *masters(3)[1:]],
        ("m1", "m2"),
        "in one subnet: 10.0.2.0/24",
    ),
    (
        Kind.SUBNET,
        [master(1, hosts=("fd00::1",)), master(2, hosts=("fd00::2",)), master(3)],
        ("m1", "m2"),
        "in one subnet: fd00::/64",
    ),
    (
        Kind.ZONE,
        [master(number, info={"availability_zone": "eu-1a"}) for number in (1, 2, 3)],
        ("m1", "m2", "m3"),
        "in one availability zone: eu-1a",
    ),
    (
        Kind.VERSIONS,
        [*masters(2), master(3, info={"server_name": "redis", "redis_version": "7.0.15"})],
        (),
        "the versions are Redis 7.0.15, Valkey 8.1.0",
    ),
]


@pytest.mark.parametrize(("kind", "facts", "names", "message"), ALL, ids=range(len(ALL)))
def test_a_finding_about_several_masters(
    kind: Kind, facts: list[MasterFacts], names: tuple[str, ...], message: str
) -> None:
    (finding,) = [each for each in all_masters.judge(facts, EXPECTED) if each.kind is kind]
    assert finding.masters == names
    assert message in finding.message


def test_what_a_minority_shares_but_a_host_is_no_finding() -> None:
    near = [master(1, hosts=("10.0.2.9",), info={"availability_zone": "a"}),
            master(2, info={"availability_zone": "a"})]  # fmt: skip
    assert all_masters.judge([*near, *masters(5)[2:]], EXPECTED) == []


def test_every_kind_has_a_case() -> None:
    assert {kind for kind, *_ in (*ONE, *ALL)} == set(Kind)


def test_the_serious_findings_come_first() -> None:
    found = all_masters.judge([*masters(3), AWAY[3]], EXPECTED)
    severities = [finding.kind.severity for finding in found]
    assert severities == sorted(severities, reverse=True)
    assert severities[0] is Severity.SERIOUS


def test_without_the_guard_neither_markers_nor_sets_matter() -> None:
    facts = [master(1, sets=[ELSEWHERE]), young(2), *masters(3)[2:]]
    for each in facts:
        each.info["aof_enabled"] = "1"
        each.settings["appendfsync"] = "always"
    assert all_masters.judge(facts, wanted(guard="off")) == []


def test_masters_of_a_new_set_vote() -> None:
    facts = [master(number, info={"uptime_in_seconds": "5"}) for number in (1, 2, 3)]
    for each in facts:
        each.raw_info = "\r\n".join(f"{key}:{value}" for key, value in each.info.items()).encode()
    command.complete(facts, EXPECTED)
    assert all(each.eligibility is not None and each.eligibility.votes for each in facts)
    facts[0].marker = b"run1 member 1 61600 0"
    command.complete(facts, EXPECTED)
    votes = [each.eligibility.votes for each in facts if each.eligibility is not None]
    assert votes == [True, None, None]
    assert Kind.NO_MAJORITY in kinds(all_masters.judge(facts, EXPECTED))


def test_a_master_that_is_away_is_not_described() -> None:
    row = command.facts_of(AWAY[0], [AWAY[0], *masters(2)])
    assert (row["server"], row["p50_ms"], row["clock_ms"], row["votes"]) == (None,) * 4


def test_the_bounds_of_a_clock_become_narrower() -> None:
    facts = MasterFacts(name="m")
    assert facts.offset is None
    facts.on_time(105.0, 100.0, 102.0)
    facts.on_time(105.5, 100.0, 101.0)
    assert facts.ahead == (4.5, 5.0)
    assert facts.offset == 4.75
