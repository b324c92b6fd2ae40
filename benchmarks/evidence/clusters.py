"""
A Redis Cluster of real nodes, and what its operator and its faults do to it.

    n0  n1  n2      primaries, each with a third of the slots
    n3  n4  n5      their replicas

It is made with the commands of an operator (CLUSTER MEET, ADDSLOTSRANGE, REPLICATE), without a
tool. A node keeps its `nodes.conf` when it is killed, as the protocol assumes of it.

All methods block; a test calls those that wait in a thread of their own.
"""

import contextlib
import functools
import math
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Self

import redis
from redis.crc import key_slot

from redlock_aio.testing import EmbeddedMaster
from redlock_aio.testing._embedded import free_port

from .servers import Place, Server

SLOTS = 16_384

NODE_TIMEOUT = 2_000
"""
Milliseconds without a reply after which a node counts as failed. On a busy machine one that runs
may need a second.
"""

WITHIN = 30.0
"""Seconds in which a change of the cluster has to be known to all of its nodes."""


OLDEST = 7
"""Older servers lack ADDSLOTSRANGE and an option for the port of the bus."""


@functools.cache
def why_no_cluster(binary: str) -> str:
    """Return why the server can't be a node of a cluster here; empty if it can."""
    said = subprocess.run(  # noqa: S603 - the server of this machine
        [binary, "--version"], capture_output=True, text=True, check=False
    ).stdout
    version = re.search(r"v=(\d+)", said)
    if version is None or int(version[1]) < OLDEST:
        return f"{binary} is no server of version {OLDEST} or later: {said.strip()!r}"
    return ""


@dataclass(frozen=True, slots=True)
class View:
    """What one node says of another, or of itself, in CLUSTER NODES."""

    id: str
    flags: frozenset[str]
    primary: str
    epoch: int
    slots: tuple[range, ...]

    @classmethod
    def read(cls, line: str) -> Self:
        """Read a line of the reply."""
        node, _, flags, primary, _, _, epoch, _, *slots = line.split()
        # A slot that is on its way is in brackets besides; it belongs to its old owner so far.
        spans = [span.split("-") for span in slots if not span.startswith("[")]
        owned = tuple(range(int(span[0]), int(span[-1]) + 1) for span in spans)
        return cls(node, frozenset(flags.split(",")), primary, int(epoch), owned)

    def owns(self, slot: int) -> bool:
        """Return whether the slot is one of its own."""
        return any(slot in span for span in self.slots)


class Node(Server):
    """A node of a cluster."""

    def __init__(self, place: Place, name: str, *options: str) -> None:
        # By default the port of the bus is 10,000 higher, in the range that clients get.
        self.bus = free_port()
        self.address = place.network.address(name) if place.network else "127.0.0.1"
        super().__init__(
            place,
            name,
            *("--cluster-enabled", "yes", "--cluster-port", str(self.bus)),
            *("--cluster-announce-ip", self.address),
            *("--cluster-replica-validity-factor", "0", "--cluster-allow-replica-migration", "no"),
            *("--repl-diskless-sync-delay", "0", *options),
        )
        self._id = ""

    @property
    def id(self) -> str:
        """Its name in the cluster, which it keeps when it restarts."""
        self._id = self._id or self.call("CLUSTER", "MYID")
        return self._id

    def call(self, *command: object) -> Any:
        """Return the reply to a command, on a connection that no partition affects."""
        with contextlib.closing(self.client()) as client:
            return client.execute_command(*command)

    def views(self) -> dict[str, View]:
        """Return what it says of each node, by their ids; nothing if it does not answer."""
        if self.state != "running":
            return {}
        with contextlib.suppress(redis.ConnectionError, redis.TimeoutError):
            lines = self.call("CLUSTER", "NODES").splitlines()
            return {view.id: view for view in map(View.read, lines)}
        return {}

    def facts(self, section: str) -> dict[str, Any]:
        """Return a section of its INFO."""
        found: dict[str, Any] = self.call("INFO", section)
        return found

    @property
    def is_primary(self) -> bool:
        """Whether it regards itself as a primary."""
        return bool(self.call("ROLE")[0] == "master")

    @property
    def epoch(self) -> int:
        """Its configuration epoch, as it says itself; a replica has that of its primary."""
        return self.views()[self.id].epoch

    @property
    def accepts_writes(self) -> bool:
        """Whether it regards the cluster as able to answer."""
        return "cluster_state:ok" in str(self.call("CLUSTER", "INFO"))


class Cluster:
    """
    A Redis Cluster that is up when the context is entered.

    Args:
        place: Where its nodes run.

        primaries: How many there are.

        replicas: Whether each has a replica.

        full_coverage: `cluster-require-full-coverage`; the server's default is yes.

        options: More options of each server.

    Attributes:
        nodes: All nodes that were ever in it, the first primaries first.
    """

    def __init__(
        self,
        place: Place,
        *,
        primaries: int = 3,
        replicas: bool = True,
        full_coverage: bool = False,
        node_timeout: int = NODE_TIMEOUT,
        options: Sequence[str] = (),
    ) -> None:
        self._place = place
        self._primaries = primaries
        self._node_timeout = node_timeout / 1000
        self._elected_at = -math.inf
        self._options = (
            *("--cluster-node-timeout", str(node_timeout)),
            *("--cluster-require-full-coverage", "yes" if full_coverage else "no", *options),
        )
        number = primaries * 2 if replicas else primaries
        self.nodes = [self._new(f"n{each}") for each in range(number)]

    def __repr__(self) -> str:
        return f"<Cluster {', '.join(f'{node.name} {node.state}' for node in self.nodes)}>"

    def _new(self, name: str) -> Node:
        return Node(self._place, name, *self._options)

    def __enter__(self) -> Self:
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes:
            node.stop()

    @property
    def url(self) -> str:
        """The URL of one node that runs, by which a client finds the others."""
        return next(node.url for node in self.nodes if node.state == "running")

    @property
    def urls(self) -> list[str]:
        """The URLs of all nodes."""
        return [node.url for node in self.nodes]

    # ---------------------------------------------------------------------- start

    def _make(self) -> None:
        with ThreadPoolExecutor(len(self.nodes)) as threads:
            list(threads.map(EmbeddedMaster.start, self.nodes))
        primaries = self.nodes[: self._primaries]
        for number, node in enumerate(self.nodes):
            # Each has an epoch of its own before it meets another: nothing has to be settled.
            node.call("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for number, node in enumerate(primaries):
            first = SLOTS * number // self._primaries
            last = SLOTS * (number + 1) // self._primaries - 1
            node.call("CLUSTER", "ADDSLOTSRANGE", first, last)
        # Each meets each: gossip alone would take seconds.
        for number, node in enumerate(self.nodes):
            for other in self.nodes[:number]:
                node.call("CLUSTER", "MEET", other.address, other.port, other.bus)
        self.wait_until(self._all_know_each_other, "the nodes know each other")
        for node, primary in zip(self.nodes[self._primaries :], primaries, strict=False):
            node.call("CLUSTER", "REPLICATE", primary.id)
        self.wait_until(self.is_up, "the cluster is up")

    def _all_know_each_other(self) -> bool:
        everybody = {node.id for node in self.running}
        return all(
            everybody == set(views)
            and not any("handshake" in view.flags for view in views.values())
            for views in (node.views() for node in self.running)
        )

    def is_up(self) -> bool:
        """Return whether all running nodes agree on the owners, answer, and are in sync."""
        return (
            len({frozenset(self.owners_by(node).items()) for node in self.running}) == 1
            and all(node.accepts_writes for node in self.running)
            and all(map(_is_in_sync, self.running))
        )

    def wait_until(self, condition: Callable[[], bool], what: str, within: float = WITHIN) -> None:
        """Wait until *condition* is true; raise an `OSError` with *what* if it never is."""
        ends = time.monotonic() + within
        while not condition():
            if time.monotonic() > ends:
                owners = {node.name: list(self.owners_by(node).values()) for node in self.running}
                raise OSError(f"{self!r}: it did not happen that {what}; the owners by {owners}")
            time.sleep(0.01)

    # ----------------------------------------------------------------- what it is

    @property
    def running(self) -> list[Node]:
        """The nodes that run, and are not paused."""
        return [node for node in self.nodes if node.state == "running"]

    def owners_by(self, node: Node) -> dict[range, tuple[str, int]]:
        """Return the owners of all slots by the word of one node, with their epochs."""
        return {
            span: (view.id, view.epoch)
            for view in node.views().values()
            for span in view.slots
            if "master" in view.flags
        }

    def owner(self, slot: int, by: Node | None = None) -> Node:
        """Return the owner of a slot by the word of *by*, or of the newest of those that run."""
        owners: list[View] = []

        def is_named() -> bool:
            for node in [by] if by else self.running:
                owners.extend(view for view in node.views().values() if view.owns(slot))
            return bool(owners)

        # On a busy machine a node may not answer in time: it is asked again.
        self.wait_until(is_named, f"a node names the owner of slot {slot}")
        return self.node(max(owners, key=lambda view: view.epoch).id)

    def node(self, identity: str) -> Node:
        """Return the node of this id."""
        return next(node for node in self.nodes if node.id == identity)

    def replica(self, primary: Node) -> Node:
        """Return a replica of a primary that runs."""
        for node in self.running:
            if node.views()[node.id].primary == primary.id:
                return node
        raise LookupError(f"{primary.name} has no replica")

    def all_name(self, owner: Node, slot: int) -> bool:
        """Return whether all running nodes name the owner of a slot."""
        return all(
            owner.id in views and views[owner.id].owns(slot)
            for views in (node.views() for node in self.running)
        )

    # -------------------------------------------------------------------- changes

    def fail_over(self, primary: Node, how: str = "") -> Node:
        """
        Make a replica the primary, and return it when all running nodes know it.

        Args:
            how: "" for the usual handover by the primary; "FORCE" without it, by the votes of
                the others; "TAKEOVER" without anybody.
        """
        new = self.replica(primary)
        slot = self._slots_of(primary)[0][0]
        if how != "TAKEOVER":
            # No primary votes twice for the same one's replicas within two timeouts.
            again = self._elected_at + 2 * self._node_timeout + 0.1
            time.sleep(max(0.0, again - time.monotonic()))
        new.call("CLUSTER", "FAILOVER", *([how] if how else []))
        self.wait_until(lambda: new.is_primary, f"{new.name} is promoted")
        self._elected_at = time.monotonic()
        self.wait_until(lambda: self.all_name(new, slot), f"all name {new.name}")
        return new

    def take_over(self, *primaries: Node) -> list[Node]:
        """Make replicas of all these primaries take over at once; return them as `fail_over`."""
        new = [self.replica(primary) for primary in primaries]
        slots = [self._slots_of(primary)[0][0] for primary in primaries]
        for node in new:
            node.call("CLUSTER", "FAILOVER", "TAKEOVER")
        for node, slot in zip(new, slots, strict=True):
            self.wait_until(
                lambda node=node, slot=slot: node.is_primary and self.all_name(node, slot),  # type: ignore[misc]
                f"all name {node.name}",
            )
        return new

    def lose(self, primary: Node) -> None:
        """Empty the replica of a primary, as if nothing had been replicated to it yet."""
        replica = self.replica(primary)
        replica.call("CONFIG", "SET", "replica-read-only", "no")
        replica.flush()
        replica.call("CONFIG", "SET", "replica-read-only", "yes")

    def wait_for_promotion(self, primary: Node, slot: int) -> Node:
        """Wait until another node owns the slot of a primary that does not run; return it."""
        others = [node for node in self.running if node is not primary]

        def is_replaced() -> bool:
            return all(self.owner(slot, node) is not primary for node in others)

        self.wait_until(is_replaced, f"{primary.name} is replaced")
        self._elected_at = time.monotonic()
        return self.owner(slot, others[0])

    def _slots_of(self, primary: Node) -> tuple[range, ...]:
        views = next(views for node in self.running if primary.id in (views := node.views()))
        return views[primary.id].slots

    def begin_move(self, slot: int, to: Node) -> Node:
        """Open a slot for its move, before any key has moved; return its owner."""
        owner = self.owner(slot)
        to.call("CLUSTER", "SETSLOT", slot, "IMPORTING", owner.id)
        owner.call("CLUSTER", "SETSLOT", slot, "MIGRATING", to.id)
        return owner

    def move_keys(self, slot: int, to: Node) -> int:
        """Move the keys of a slot that is open; return how many there were."""
        owner = self.owner(slot)
        moved = 0
        while keys := owner.call("CLUSTER", "GETKEYSINSLOT", slot, 100):
            owner.call("MIGRATE", to.address, to.port, "", 0, 5_000, "KEYS", *keys)
            moved += len(keys)
        return moved

    def end_move(self, slot: int, to: Node) -> None:
        """Give an open slot to its new owner; return when all running nodes name that."""
        owner = self.owner(slot)
        for node in (to, owner):
            node.call("CLUSTER", "SETSLOT", slot, "NODE", to.id)
        self.wait_until(lambda: self.all_name(to, slot), f"all name {to.name}")

    def move(self, slot: int, to: Node) -> None:
        """Move a slot with its keys, as `redis-cli --cluster reshard` does."""
        self.begin_move(slot, to)
        # A key may come while the last ones move: after each round one looks again.
        self.move_keys(slot, to)
        self.end_move(slot, to)

    def take(self, slot: int, to: Node) -> None:
        """Give a slot to another node without its keys, which the old owner then deletes."""
        to.call("CLUSTER", "SETSLOT", slot, "IMPORTING", self.owner(slot).id)
        to.call("CLUSTER", "SETSLOT", slot, "NODE", to.id)
        self.wait_until(lambda: self.all_name(to, slot), f"all name {to.name}")

    def add(self, *, replica_of: Node | None = None) -> Node:
        """Add a node, as a primary without slots or as a replica; return when all know it."""
        node = self._new(f"n{len(self.nodes)}")
        known = self.running
        self.nodes.append(node)
        node.start()
        for other in known:
            node.call("CLUSTER", "MEET", other.address, other.port, other.bus)
        self.wait_until(self._all_know_each_other, f"{node.name} is known")
        if replica_of is not None:
            node.call("CLUSTER", "REPLICATE", replica_of.id)
        self.wait_until(self.is_up, f"{node.name} belongs to the cluster")
        return node

    def forget(self, node: Node) -> None:
        """Remove a node without slots: it is killed, and all others forget it."""
        identity = node.id
        node.kill()
        for other in self.running:
            other.call("CLUSTER", "FORGET", identity)
        self.wait_until(
            lambda: not any(identity in other.views() for other in self.running),
            f"{node.name} is forgotten",
        )

    def require_full_coverage(self, required: str) -> None:
        """Set `cluster-require-full-coverage` of all running nodes to "yes" or "no"."""
        for node in self.running:
            node.call("CONFIG", "SET", "cluster-require-full-coverage", required)


def _is_in_sync(node: Node) -> bool:
    # A primary has no such link.
    return str(node.facts("replication").get("master_link_status", "up")) == "up"


def standard_tags(masters: int) -> list[str]:
    """Return the tags of so many masters, as each client finds them: a fixed rule."""
    numbers = {slot_of(f"{{{n:04d}}}"): n for n in range(9_999, -1, -1)}
    middles = [SLOTS * (2 * k + 1) // (2 * masters) for k in range(masters)]
    nearest = (min(numbers, key=lambda s, m=m: (abs(s - m), s)) for m in middles)  # type: ignore[misc]
    return [f"{{{numbers[slot]:04d}}}" for slot in nearest]


def slot_of(key: str) -> int:
    """Return the slot of a key."""
    return int(key_slot(key.encode()))


def tags(nodes: Iterable[Node]) -> Iterator[str]:
    """Yield for each node a hash tag, without its braces, of which it owns the slot."""
    for node in nodes:
        view = node.views()[node.id]
        yield next(tag for n in range(10_000) if view.owns(slot_of(tag := f"{n:04d}")))
