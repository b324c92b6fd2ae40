"""The nodes of a Cluster, as they list them."""

import math
import tracemalloc

import pytest

from redlock_aio._protocol import cluster_nodes
from redlock_aio._protocol.cluster_nodes import (
    Node,
    NodeList,
    Owner,
    free_primaries,
    members,
    read_nodes,
)
from redlock_aio._protocol.confirmation import CONFIRMED_FOR, Confirmation, Statement

REDIS_7 = b"""\
aa 10.0.0.1:7000@17000,one.example myself,master - 0 0 1 connected 0-5460 [93->-bb]
bb 10.0.0.2:7001@17001,two.example master - 0 169 8 connected 5461-10922 16383
cc 10.0.0.3:7000@17000, slave bb 0 169 8 connected
dd 10.0.0.4:7000@17000,,tls-port=0,shard-id=77 master,fail? - 0 169 3 disconnected 10923-16382
ee :0@0 master,noaddr - 0 169 0 disconnected
ff 10.0.0.6:7000@17000 handshake - 0 0 0 connected
"""
REDIS_6 = b"aa :7000@17000 myself,master - 0 0 1 connected 0-16383\n"
IPV6 = b"""\
aa ::1:7000@17000 myself,slave bb 0 0 1 connected
bb fe80::1%eth0:7000@1 master - 0 0 2 c 0-5
"""


def read(reply: object, *, at: str = "h", names: bool = False) -> NodeList | str:
    return read_nodes(reply, 5.0, at=at, prefers_names=names)


def listed(reply: bytes, **options: bool) -> NodeList:
    found = read(reply, **options)  # type: ignore[arg-type]
    assert isinstance(found, NodeList)
    return found


def test_the_nodes_of_a_list() -> None:
    found = listed(REDIS_7)
    assert (found.by, found.asked_at) == ("aa", 5.0)
    assert [(n.id, n.host, n.port, n.is_primary, n.epoch) for n in found.nodes] == [
        ("aa", "10.0.0.1", 7000, True, 1),
        ("bb", "10.0.0.2", 7001, True, 8),
        ("cc", "10.0.0.3", 7000, False, 8),
        ("dd", "10.0.0.4", 7000, True, 3),
        ("ee", "", 0, True, 0),  # it counts, though it can't be asked
    ]


@pytest.mark.parametrize(
    ("slot", "owner"),
    [
        (0, "10.0.0.1:7000 (epoch 1)"), (93, "10.0.0.1:7000 (epoch 1)"),
        (5461, "10.0.0.2:7001 (epoch 8)"), (16383, "10.0.0.2:7001 (epoch 8)"),
        (16382, "10.0.0.4:7000 (epoch 3)"),
    ],
)  # fmt: skip
def test_the_owner_of_a_slot(slot: int, owner: str) -> None:
    assert str(listed(REDIS_7).owner(slot)) == owner


@pytest.mark.parametrize("names", ["", ",", ",?", ",shard-id=77", ",,tls-port=0,shard-id=77"])
def test_without_a_name_a_node_is_found_by_its_address(names: str) -> None:
    line = f"aa 10.0.0.1:7000@17000{names} myself,master - 0 0 1 connected 0-16383\n"
    assert [(n.host, n.hostname) for n in listed(line.encode(), names=True).nodes] == [
        ("10.0.0.1", "")
    ]


def test_no_owner() -> None:
    assert listed(IPV6).owner(6) is None
    assert listed(b"ee :0@0 master,noaddr - 0 1 9 c 0-5\n" + REDIS_6).owner(0) is None


def test_owners_are_equal_wherever_they_are() -> None:
    assert Owner("a", 1, "h", 1) == Owner("a", 1, "other", 2)
    assert Owner("a", 1, "h", 1) != Owner("a", 2, "h", 1)
    assert len({Owner("a", 1, "h", 1), Owner("a", 1, "other", 2)}) == 1


def test_names_are_used_where_tls_checks_them() -> None:
    hosts = [node.host for node in listed(REDIS_7, names=True).nodes]
    assert hosts == ["one.example", "two.example", "10.0.0.3", "10.0.0.4", ""]


def test_a_node_that_does_not_know_its_address_is_where_it_was_asked() -> None:
    assert str(listed(REDIS_6).owner(7)) == "h:7000 (epoch 1)"


@pytest.mark.parametrize("host", ["a\x1b[31m", "a\tb", "h" * 256])
def test_a_host_that_can_be_none_is_not_known(host: str) -> None:
    """The text of a vote, and a line of the log, would have it."""
    found = listed(IPV6.replace(b"fe80::1%eth0", host.encode()))
    assert [node.host for node in found.nodes] == ["::1", ""]
    assert found.owner(5) is None


def test_a_line_is_read_once_whatever_the_times_of_the_pings_are() -> None:
    """In a Cluster of hundreds of nodes to read all lines again would keep a program busy."""

    def line(node: int, time: int) -> bytes:
        flags = b"myself,master" if node == 7 else b"slave"
        facts = node, node + 1, flags, time, time, node, node
        return b"id%d 10.0.0.9:%d@1 %s - %d %d %d connected %d 99\n" % facts

    def reply(time: int) -> bytes:
        return b"".join(line(node, time) for node in range(300))

    first = listed(reply(1_700_000_000_000))
    before = cluster_nodes._node.cache_info()
    again = listed(reply(1_700_000_000_500))
    after = cluster_nodes._node.cache_info()
    assert again == first
    assert again.nodes[8].slots == ((8, 8), (99, 99))
    assert after.misses == before.misses
    assert after.hits == before.hits + 300


def test_the_own_line_of_a_node_is_read_for_each_address() -> None:
    for host in ("one", "two"):
        found = read(REDIS_6, at=host)
        assert isinstance(found, NodeList)
        assert found.nodes[0].host == host


def test_a_line_of_any_length_is_not_kept() -> None:
    """Else a node that invents lines would take the program's memory."""
    before = cluster_nodes._node.cache_info()
    slots = b" ".join(b"%d" % slot for slot in range(5_000))
    found = listed(b"aa 10.0.0.1:7000@17000 myself,master - 0 0 1 connected " + slots + b"\n")
    assert len(found.nodes[0].slots) == 5_000
    assert cluster_nodes._node.cache_info() == before


def test_the_lines_that_are_kept_take_a_bounded_memory() -> None:
    """A node may invent lines of any slots, and each slot takes more memory than its digits."""
    lines = 50

    def reply(node: int) -> bytes:
        start = b"%020d 10.0.0.1:7000@17000 myself,master - 0 0 1 connected" % node
        return start + b" 5" * ((cluster_nodes.LONGEST_KEPT - len(start)) // 2)

    cluster_nodes._node.cache_clear()
    tracemalloc.start()
    try:
        for node in range(lines):
            listed(reply(node))
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    most = cluster_nodes._node.cache_info().maxsize
    assert cluster_nodes._node.cache_info().currsize == lines
    assert most is not None
    assert taken / lines * most < 150e6


def test_ipv6() -> None:
    assert str(listed(IPV6).owner(1)) == "[fe80::1%eth0]:7000 (epoch 2)"


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (b"", "does not name itself"),
        (REDIS_6.replace(b"myself,", b""), "does not name itself"),
        (REDIS_6 + REDIS_6, "does not name itself"),
        (b"aa bb", "gives a malformed reply"),
        (REDIS_6.replace(b":7000", b""), "gives a malformed reply"),
        (REDIS_6.replace(b":7000", b":x"), "gives a malformed reply"),
        (REDIS_6.replace(b"0 1 connected", b"0 -1 connected"), "gives a malformed reply"),
        (REDIS_6.replace(b"0-16383", b"0-x"), "gives a malformed reply"),
        (7, "gives a malformed reply"),
        (Exception("ERR This instance has cluster support disabled"), "ERR This instance has"),
    ],
)
def test_what_is_no_list(reply: object, reason: str) -> None:
    found = read(reply)
    assert isinstance(found, str)
    assert found.startswith(reason)


def nodes(by: str, *ids: str) -> NodeList:
    each = [
        Node(i, f"h{i}", 1, "", is_primary=True, epoch=1, slots=(), is_asked=i == by) for i in ids
    ]
    return NodeList(by, tuple(each), 0.0)


@pytest.mark.parametrize(
    ("lists", "expected"),
    [
        ([nodes("a", *"abc")], "abc"),
        ([nodes("a", "a")], "a"),
        ([nodes("a", *"ab"), nodes("b", *"ab")], "ab"),
        ([nodes("a", *"ab"), nodes("b", *"abc")], "abc"),  # one knows of c
        ([nodes("a", *"ab"), nodes("b", *"ab"), nodes("c", "c")], "ab"),  # c was reset
        ([nodes("a", *"ab"), nodes("b", *"ab"), nodes("c", *"abc")], "ab"),  # c was forgotten
        ([nodes("a", *"abc"), nodes("b", *"ab"), nodes("c", "c")], "abc"),  # a has not yet
    ],
)
def test_the_members(lists: list[NodeList], expected: str) -> None:
    assert "".join(sorted(members(lists))) == expected


def test_a_node_is_where_it_says_and_else_where_others_reach_it() -> None:
    """The name at which it was asked may be that of all nodes."""
    line = b"bb 10.0.0.2:7001@17001 myself,master - 0 0 8 connected\n"
    others = b"aa 10.0.0.9:7000@17000 master - 0 1 1 connected 0-16383\n"
    itself = REDIS_6 + line.replace(b"myself,", b"")
    assert members([listed(itself), listed(others + line)])["aa"].host == "10.0.0.9"
    assert members([listed(others + line), listed(itself)])["aa"].host == "10.0.0.9"
    assert members([listed(itself)])["aa"].host == "h"
    knows = itself.replace(b" :7000", b" 10.0.0.1:7000")
    assert members([listed(others + line), listed(knows)])["aa"].host == "10.0.0.1"


def test_free_primaries() -> None:
    found = members([listed(REDIS_7)])
    assert [node.id for node in free_primaries(found, [0, 6000])] == ["dd"]
    assert [node.id for node in free_primaries(found, [])] == ["aa", "bb", "dd"]


# Voters.

OWNER, NEXT = Owner("a", 1, "h", 1), Owner("r", 7, "h", 1)


def confirmation(voters: str, said: dict[str, tuple[Owner, float]]) -> Confirmation:
    made = Confirmation(kind="nodes confirm")
    made.set_voters({voter: f"h{voter}" for voter in voters})
    for voter, (owner, at) in said.items():
        made.on_answer(voter, Statement(owner, "", asked_at=at))
    return made


def test_without_voters_nobody_is_confirmed() -> None:
    made = Confirmation(kind="nodes confirm")
    assert made.current(0.0) is None
    assert made.until(OWNER) == -math.inf


def test_a_node_that_joins_raises_the_majority() -> None:
    made = confirmation("abcd", {"a": (OWNER, 1.0), "b": (OWNER, 2.0), "c": (OWNER, 3.0)})
    assert made.until(OWNER) == 1 + CONFIRMED_FOR
    made.set_voters({voter: voter for voter in "abcdef"})
    assert made.until(OWNER) == -math.inf
    made.on_answer("e", Statement(OWNER, "", asked_at=4.0))
    assert made.until(OWNER) == 1 + CONFIRMED_FOR


def test_the_answer_of_a_node_that_left_does_not_count() -> None:
    made = confirmation("abcde", dict.fromkeys("cde", (OWNER, 1.0)))
    assert made.current(1.0) == OWNER
    made.set_voters({voter: voter for voter in "abcd"})
    assert made.current(1.0) is None
    made.set_voters({voter: voter for voter in "abcde"})
    assert made.current(1.0) is None  # it has to be asked again


@pytest.mark.parametrize("number", range(1, 30))
def test_majorities_meet_while_one_node_joins_or_leaves(number: int) -> None:
    """The fewest nodes that confirm one owner with n voters, and another one with n + 1."""
    ids = [f"{n:02}" for n in range(number + 1)]
    for first in (ids[:-1], ids):
        made = Confirmation(kind="nodes confirm")
        made.set_voters({id_: id_ for id_ in first})
        count = 0
        while made.current(0.0) is None:
            made.on_answer(first[count], Statement(OWNER, "", asked_at=0.0))
            count += 1
        other = ids if first == ids[:-1] else ids[:-1]
        rest = len(set(other) - set(first[:count]))
        assert rest < len(other) // 2 + 1


def test_it_says_who_does_not_confirm() -> None:
    made = confirmation("abc", {"a": (OWNER, 1.0), "b": (NEXT, 1.0)})
    assert made.describe(OWNER, 1.0) == (
        "1 of 3 nodes confirm h:1 (epoch 1), 2 must: hb names h:1 (epoch 7), hc (not asked yet)"
    )
