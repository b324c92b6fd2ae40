"""
The nodes of a Redis Cluster, as each of them lists them, and the owners of slots.

Every node is asked with ``CLUSTER NODES``: from Redis 6 to Valkey 9 it is the one command whose
reply has all nodes, replicas too, with the configuration epoch of each owner of slots.

Nothing here asks a node or reads a clock.
"""

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from redlock_aio._protocol.replies import harmless
from redlock_aio._protocol.request import pack

NODES = pack(b"CLUSTER", b"NODES")

COVERAGE = pack(b"CONFIG", b"GET", b"cluster-require-full-coverage")
"""May be refused."""

_DIGITS = 20

_TIMES = re.compile(r" \d+ \d+ (?=\d+ (?:dis)?connected)")
"""In a line the times of the last PING and its answer, which say nothing of owners."""

LONGEST_HOST = 255
"""The most characters of a host: a longer text can be none."""

LONGEST_KEPT = 1_000
"""
The most characters of a line that is kept with what it says: that of a node with some 60 ranges.

Nodes may send any text. Lines of this length that name slots take 130 MB in all.
"""


@dataclass(frozen=True, slots=True)
class Owner:
    """
    The node that owns a slot.

    Two are equal if node and epoch are, wherever the node is.

    Attributes:
        node: Its id, which stays the same when it restarts.

        epoch: Its configuration epoch. Each change of the owner of a slot raises it.
    """

    node: str
    epoch: int
    host: str = field(compare=False)
    port: int = field(compare=False)

    def __str__(self) -> str:
        return f"{place(self.host, self.port)} (epoch {self.epoch})"


class Node(NamedTuple):
    """
    One node in a list of nodes.

    Attributes:
        host: Its IP address, or name; empty if it is not known.

        hostname: The name that it announces (Redis 7.0); empty without one.

        is_primary: Whether it is no replica.

        slots: The first and the last slot of each range that it owns.

        is_asked: Whether it has made this list itself.

        knows_itself: Whether its own list has its address.
    """

    id: str
    host: str
    port: int
    hostname: str
    is_primary: bool
    epoch: int
    slots: tuple[tuple[int, int], ...]
    is_asked: bool
    knows_itself: bool = False


class NodeList(NamedTuple):
    """
    The reply of one node.

    Attributes:
        by: The id of the node that has replied.

        asked_at: The instant of the question, in seconds on the clock of leases.
    """

    by: str
    nodes: tuple[Node, ...]
    asked_at: float

    def owner(self, slot: int) -> Owner | None:
        """Return the owner of *slot*; ``None`` if there is none, or its address is not known."""
        for node in self.nodes:
            for first, last in node.slots:
                if first <= slot <= last:
                    return Owner(node.id, node.epoch, node.host, node.port) if node.host else None
        return None


def is_host(text: str) -> bool:
    """Return whether *text* can be a host; it is shown in votes, and in the log."""
    return 0 < len(text) <= LONGEST_HOST and text.isprintable() and " " not in text


def place(host: str, port: int | str) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def read_nodes(reply: object, asked_at: float, *, at: str, prefers_names: bool) -> NodeList | str:
    """
    Parse a reply to `NODES`; return why it can't be used otherwise.

    Args:
        at: The host at which the node was asked. It may not know its own address.

        prefers_names: Whether to use the names that nodes announce, for TLS.
    """
    if isinstance(reply, Exception):
        return harmless(str(reply))
    if not isinstance(reply, bytes):
        return "gives a malformed reply"
    found = []
    for line in _TIMES.sub(" 0 0 ", reply.decode("utf-8", "replace")).splitlines():
        read = _node if len(line) <= LONGEST_KEPT else _node.__wrapped__
        # Only the line of the node that was asked depends on where that was.
        node = read(line, at if "myself" in line else "", prefers_names)
        if node == "":
            continue
        if not isinstance(node, Node):
            return "gives a malformed reply"
        found.append(node)
    asked = [node.id for node in found if node.is_asked]
    return NodeList(asked[0], tuple(found), asked_at) if len(asked) == 1 else "does not name itself"


# Each node of N lists all N, and is asked twice a second: 300 nodes send 180,000 lines a second.
# Without the times in them, nearly all have been read before.
@functools.lru_cache(maxsize=4 * 1024)
def _node(line: str, at: str, prefers_names: bool) -> Node | str | None:
    """Return the node of one line; an empty text for one that is no member yet."""
    words = line.split(" ")
    if len(words) < 8:
        return None
    id_, where, flags_, _, _, _, epoch, _, *ranges = words
    flags = flags_.split(",")
    if "handshake" in flags:
        return ""
    address, _, names = where.partition(",")
    hostname = names.partition(",")[0]
    hostname = hostname if "=" not in hostname and hostname != "?" else ""
    host, colon, port = address.partition("@")[0].rpartition(":")
    if not id_ or not colon or not _is_number(port) or not _is_number(epoch):
        return None
    asked = "myself" in flags
    knows = asked and host != ""
    if "noaddr" in flags:
        host = ""
    elif asked:
        host = host or at
    name = hostname if prefers_names and hostname else host
    name = name if is_host(name) else ""
    slots = _slots(ranges)
    if slots is None:
        return None
    primary = "slave" not in flags
    return Node(id_, name, int(port), hostname, primary, int(epoch), slots, asked, knows)


def _slots(ranges: Iterable[str]) -> tuple[tuple[int, int], ...] | None:
    found = []
    for words in ranges:
        if words.startswith("["):  # a slot that is being moved; its owner has not changed
            continue
        first, _, last = words.partition("-")
        last = last or first
        if not (_is_number(first) and _is_number(last)):
            return None
        found.append((int(first), int(last)))
    return tuple(found)


def _is_number(digits: str) -> bool:
    return digits.isascii() and digits.isdigit() and len(digits) < _DIGITS


def members(lists: Iterable[NodeList]) -> dict[str, Node]:
    """
    Return all nodes by their ids: those in any of the *lists*.

    A node that only itself lists was removed, and counts no more. The lists are those that
    count now. So a node that joins counts as soon as one node knows it, and one that is
    removed until none does.
    """
    found: dict[str, Node] = {}
    every = list(lists)
    for each in every:
        for node in each.nodes:
            if node.id != each.by or len(every) == 1:
                found.setdefault(node.id, node)
    # A node that announces an address knows best. One that does not is where others reach it; the
    # host at which it was asked may be a name that leads to any node.
    for each in every:
        for node in each.nodes:
            known = found.get(node.id)
            if node.id == each.by and known is not None and (node.knows_itself or not known.host):
                found[node.id] = node
    return found


def free_primaries(nodes: Mapping[str, Node], taken: Iterable[int]) -> list[Node]:
    """Return the primaries with slots, but with none of those in *taken*, by their slots."""
    busy = list(taken)
    return sorted(
        (
            node
            for node in nodes.values()
            if node.is_primary
            and node.slots
            and not any(first <= slot <= last for first, last in node.slots for slot in busy)
        ),
        key=lambda node: node.slots,
    )
