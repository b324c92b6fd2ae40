"""
The routes to the masters of a Redis Cluster: the primaries that own the slots of their tags.

    node 1 ──┐                         ┌─► ClusterRoute {0001} ─► its owner ─► Master
    node 2 ──┼─► ClusterNodes, the list┼─► ClusterRoute {8209} ─► ...
    node 3 ──┘   of all nodes          └─► ClusterRoute {8239} ─► ...

Each node is asked once for all masters of a manager: who owns which slot, in which epoch, and
which nodes there are. See `route` for what follows from that.
"""

import asyncio
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import cast

from redlock_aio._log import log
from redlock_aio._protocol import cluster_nodes, commands, confirmation, tags
from redlock_aio._protocol.cluster_nodes import COVERAGE, Node, NodeList, Owner, place
from redlock_aio._protocol.confirmation import Confirmation
from redlock_aio._protocol.request import NoReply
from redlock_aio._rules.causes import NoVoteCause
from redlock_aio._rules.quorum import is_permanent
from redlock_aio._rules.server_info import ServerInfo
from redlock_aio._transport.address import (
    AnyDialler,
    ClusterDialler,
    ClusterMaster,
    Dialler,
    NodeAddress,
    ServiceDialler,
    chosen_name,
)
from redlock_aio._transport.connection import MasterError
from redlock_aio._transport.route import ConfirmedRoute, Poll, Route
from redlock_aio._transport.sentinels import Sentinels

NO_CLUSTER = "cluster support disabled"
"""What a server says that is no node of a Cluster."""

APART = "knows no other node"
"""What is said of the servers that were named, if they were never joined to one Cluster."""

FOREIGN = "is a node of another Cluster"
"""What is said of a server whose list has none of the nodes that are known."""

FORGOTTEN_AFTER = 60.0
"""Seconds without an answer of any member after which a Cluster may have been made anew."""

Places = dict[tuple[str, int], Poll]


class ClusterNodes:
    """
    The nodes of one Cluster, for the masters of one manager; asks them until `close`.

    Args:
        client_name: The name of the connections, unless the user chose one.
    """

    def __init__(
        self, cluster: ClusterDialler, clock: Callable[[], float], *, client_name: str
    ) -> None:
        self.cluster = cluster
        self.nodes: dict[str, Node] = {}
        """All nodes by their ids: the voters of each confirmation."""
        self._clock = clock
        self._naming = commands.set_name(chosen_name(cluster) or client_name)
        self.routes: list[ClusterRoute] = []
        self._lists: dict[str, NodeList] = {}
        self._heard_at = -math.inf
        """The instant of the newest question that a member has answered."""
        self._members: dict[str, tuple[Node, ...]] = {}
        self._failures: dict[tuple[str, int], str] = {}
        self._foreign: set[tuple[str, int]] = set()
        """The addresses whose last list was that of another Cluster, also while they are away."""
        self._named: dict[str, str] = {}
        self._warned = False
        self._closed = False
        self._polls: Places = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<ClusterNodes of {self.cluster}, {len(self.nodes)} nodes>"

    def join(self, route: "ClusterRoute") -> None:
        """Ask the nodes for *route* too."""
        self.routes.append(route)
        route.confirmed.set_voters(self._names(), complete=bool(self.nodes))
        for voter, found in self._lists.items():
            if voter in self.nodes:
                route.learn(found)
        if not self._polls:
            self._poll()

    def leave(self, route: "ClusterRoute") -> None:
        """Ask the nodes no more, if *route* was the last one."""
        if route in self.routes:
            self.routes.remove(route)
        if not self.routes:
            self._closed = True
            for poll in self._polls.values():
                poll.close()

    def abandon(self) -> None:
        """End the connections after the event loop was closed."""
        for poll in self._polls.values():
            poll.abandon()

    async def ended(self) -> None:
        """Wait until all tasks have ended, if the last route has left; they end anyway."""
        if self._closed and self._tasks:
            await asyncio.wait(self._tasks)

    def ask_now(self) -> None:
        """Ask all nodes at once: the owner of a slot has probably changed."""
        for poll in self._polls.values():
            poll.ask_now()

    @property
    def is_no_cluster(self) -> bool:
        """Whether each server that was named says that it is no node of a Cluster."""
        said = self._failures
        return not self.nodes and all(
            NO_CLUSTER in said.get(where, "") for where in self.cluster.seeds
        )

    def owner_of(self, slot: int) -> Node | None:
        """Return the node that owns *slot*, by the list that has this node as its own."""
        for node in self.nodes.values():
            if node.is_primary and any(first <= slot <= last for first, last in node.slots):
                return node
        return None

    def _names(self) -> dict[str, str]:
        """Return the voters: all nodes, or the servers that were named until these are known."""
        if not self.nodes:
            return {place(*where): place(*where) for where in self.cluster.seeds}
        return {id_: _name(node) for id_, node in self.nodes.items()}

    def _poll(self) -> None:
        """Begin to ask nodes that are new, and end to ask those that are no members any more."""
        wanted = dict.fromkeys(self.cluster.seeds)
        wanted |= {(node.host, node.port): None for node in self.nodes.values() if node.host}
        for where in [where for where in self._polls if where not in wanted]:
            self._polls.pop(where).close()
            self._failures.pop(where, None)
            self._foreign.discard(where)
        for where in wanted:
            if where in self._polls or self._closed:
                continue
            self._polls[where] = poll = Poll(
                NodeAddress(self.cluster, *where),
                self._clock,
                first=[self._naming, COVERAGE],
                questions=[cluster_nodes.NODES],
                on_answer=functools.partial(self._answered, where),
                on_failure=functools.partial(self._failed, where),
                on_first=self._look_at_coverage,
            )
            self._tasks.add(poll.task)
            poll.task.add_done_callback(self._tasks.discard)

    def _answered(self, where: tuple[str, int], replies: list[object], asked_at: float) -> None:
        found = cluster_nodes.read_nodes(
            replies[0], asked_at, at=where[0], prefers_names=self.cluster.prefers_names
        )
        if isinstance(found, str):
            self._failed(where, found, is_permanent(found))
            return
        if self._is_foreign(found):
            self._foreign.add(where)
            # Of a Cluster that was made anew all addresses that were named lead to the new one,
            # and no former member answers. While members are only out of reach, others that
            # reach them may hold locks there.
            if (
                where not in self.cluster.seeds
                or not self._foreign.issuperset(self.cluster.seeds)
                or self._clock() < self._heard_at + FORGOTTEN_AFTER
            ):
                self._failed(where, FOREIGN, False)
                return
        self._foreign.discard(where)
        self._failures.pop(where, None)
        known = self._lists.get(found.by)
        if known is not None and known.asked_at > asked_at:
            return  # a node that has two addresses has answered a later question meanwhile
        self._lists[found.by] = found
        self._take_members()
        if not self.nodes:
            self._failed(where, APART, False)
            return
        if found.by in self.nodes:
            self._heard_at = max(self._heard_at, asked_at)
            for route in self.routes:
                route.learn(found)
        self._conclude()

    def _is_foreign(self, found: NodeList) -> bool:
        """
        Return whether a list is that of another Cluster.

        A node that was removed may have been added to another Cluster, and an address of one that
        has gone may lead there. With its list, the nodes of both would be the voters, and keep
        each other in the set: a majority of the larger Cluster would confirm its own primaries
        to this program, while others hold locks on those of the smaller one.
        """
        others = {node.id for node in found.nodes if node.id != found.by}
        # Without its sender: a Cluster may grow from one node. And with slots: one that was
        # removed may have been the first to answer, and knows no Cluster to compare with.
        known = {id_: node for id_, node in self.nodes.items() if id_ != found.by}
        if not any(node.slots for node in known.values()) or not others.isdisjoint(known):
            return False
        # A node that was removed lists only itself, and owns no slot: it does not count anyway. One
        # with slots is a Cluster of its own.
        alone = found.by not in self.nodes and found.nodes[0].slots
        return bool(others or alone)

    def _failed(self, where: tuple[str, int], reason: str, permanent: bool) -> None:
        self._failures[where] = reason
        self._take_members()
        voters = [node.id for node in self.nodes.values() if (node.host, node.port) == where]
        if not self.nodes:
            voters = [place(*where)] if where in self.cluster.seeds else []
        for route in self.routes:
            for voter in voters:
                route.confirmed.failed(voter, reason, permanent=permanent)
        self._conclude()

    def _conclude(self) -> None:
        # Another Cluster at an address that the user has named: it is unknown which one is meant.
        # A program that began with the other address would lock there. It counts until the address
        # leads to a known node again: while it leads nowhere, nothing has become clear.
        foreign = [place(*it) for it in self.cluster.seeds if it in self._foreign]
        contradiction = ""
        if foreign:
            contradiction = f"{foreign[0]} {FOREIGN}; all addresses that are named must lead to one"
        for route in [*self.routes]:
            route.confirmed.contradiction = contradiction
            route.conclude()

    def _take_members(self) -> None:
        """Find the members in all lists that count now."""
        oldest = self._clock() - confirmation.CONFIRMED_FOR
        lists = {by: found for by, found in self._lists.items() if found.asked_at >= oldest}
        if not lists:
            return  # nothing is confirmed until a node answers; its list counts then
        nodes = {by: found.nodes for by, found in lists.items()}
        # Most answers tell nothing new, and to compare them is cheaper than to merge them.
        if nodes == self._members:
            return
        self._lists, self._members = lists, nodes
        former, self.nodes = self.nodes, cluster_nodes.members(lists.values())
        names = self._names()
        if names != self._named:
            self._named = names
            for route in self.routes:
                route.confirmed.set_voters(names, complete=bool(self.nodes))
                for found in lists.values():
                    if found.by in self.nodes and found.by not in former:
                        route.learn(found)
        self._poll()

    def _look_at_coverage(self, replies: list[object]) -> None:
        """Warn once if the failure of one primary stops all."""
        reply = replies[1]  # a map, and in some services a list
        values = reply.values() if isinstance(reply, dict) else reply
        if self._warned or not isinstance(values, Iterable) or b"yes" not in values:
            return
        self._warned = True
        log.warning(
            "%s",
            f"Cluster {self.cluster}: cluster-require-full-coverage is yes, so all masters refuse"
            " locks while one primary is down, until its replica has taken over; it should be no,"
            " on all nodes",
        )


def _name(node: Node) -> str:
    return place(node.host, node.port) if node.host else f"node {node.id[:8]} without an address"


class ClusterRoute(ConfirmedRoute):
    """
    The route to one master of a Cluster.

    Args:
        nodes: Those of the Cluster.

        changed: As for `ConfirmedRoute`.
    """

    def __init__(
        self,
        dialler: ClusterMaster,
        clock: Callable[[], float],
        nodes: ClusterNodes,
        *,
        client_name: str,
        changed: Callable[[], None],
    ) -> None:
        self.confirmed = Confirmation(kind="nodes confirm")
        super().__init__(dialler, clock, self.confirmed, client_name=client_name, changed=changed)
        self.tag = dialler.tag
        self.questions = [cluster_nodes.NODES]
        self._slot = tags.slot(dialler.tag)
        self._master = dialler
        self._nodes = nodes
        nodes.join(self)

    def learn(self, found: NodeList) -> None:
        self.confirmed.on_answer(found.by, confirmation.statement_of(found, self._slot))

    async def dial(self) -> tuple[asyncio.Transport, object]:
        # A connection has just ended, or could not be made. What the nodes know now is asked for
        # at once; a failover would otherwise be noticed half a second later.
        self._nodes.ask_now()
        return await super().dial()

    async def _dial_to(self, host: str, port: int) -> tuple[asyncio.Transport, object]:
        node = self._nodes.nodes.get(getattr(self._dialled, "node", ""))
        if node is not None and node.host:
            host, port = node.host, node.port
            self.at = place(host, port)
        return await self._nodes.cluster.dial_to(host, port)

    def check(self, replies: Sequence[object]) -> None:
        if isinstance(replies[0], NoReply):
            raise ConnectionError(replies[0].detail)
        found = cluster_nodes.read_nodes(replies[0], 0.0, at="", prefers_names=False)
        owner = self._dialled
        if not isinstance(owner, Owner):
            raise ConnectionError("no server was dialled")
        if isinstance(found, str):
            text = f"its list of nodes can't be used: {found}"
            raise MasterError(NoVoteCause.SERVER_ERROR, text)
        if found.by != owner.node:
            # An address of one that has gone, which another node has got, maybe of another Cluster.
            text = f"another node answers at the address of {owner}"
            raise MasterError(NoVoteCause.FAILOVER, text)

    def _unconfirmed(self) -> Exception:
        if self._nodes.is_no_cluster:
            text = "no node of a Redis Cluster (cluster_enabled is 0); Redlock() takes such servers"
            return MasterError(NoVoteCause.UNSUPPORTED, text, permanent=True)
        return super()._unconfirmed()

    def identified(self, info: ServerInfo) -> ServerInfo:
        return info.in_slot(self._dialled.epoch) if self._dialled is not None else info

    def same_server(self, other: str) -> str:
        node, tag = self._nodes.owner_of(self._slot), self.tag.decode()
        where = "?" if node is None else place(node.host, node.port)
        of = self._master.of
        slots = [route.slot for route in self._nodes.routes]
        free = cluster_nodes.free_primaries(self._nodes.nodes, slots)
        text = f"{tag} and {other} are both on the node {where}, so only one of them votes"
        if free:
            to = place(free[0].host, free[0].port)
            return f"{text}: move slot {self._slot} to {to}, a primary without a master's tag"
        primaries = sum(1 for node in self._nodes.nodes.values() if node.is_primary and node.slots)
        fewer = max(primaries - 1 + primaries % 2, 1)
        return (
            f"{text}: the Cluster has {primaries} primaries, and masters={of} needs as many;"
            f" add some, or use masters={fewer}"
        )

    @property
    def slot(self) -> int:
        return self._slot

    def _replaced_by(self, current: str) -> str:
        return f"the nodes of the Cluster name {current} as the owner of slot {self._slot}"

    def close(self) -> None:
        self._nodes.leave(self)

    def abandon(self) -> None:
        self._nodes.abandon()

    async def ended(self) -> None:
        await self._nodes.ended()


def route_to(
    dialler: AnyDialler,
    clock: Callable[[], float],
    clusters: dict[ClusterDialler, ClusterNodes],
    *,
    client_name: str,
    changed: Callable[[], None],
) -> Route:
    """
    Return the route to the master of *dialler*.

    Args:
        clusters: The Clusters of this manager, which are added to it.

        client_name: The name of the connections for which the user chose none.

        changed: As for `ConfirmedRoute`.
    """
    if hasattr(dialler, "dial"):  # first, because the next question takes far longer
        return Route(cast("Dialler", dialler), client_name)
    if isinstance(dialler, ServiceDialler):
        return Sentinels(dialler, clock, client_name=client_name, changed=changed)
    cluster = dialler.cluster
    if cluster not in clusters:
        clusters[cluster] = ClusterNodes(cluster, clock, client_name=client_name)
    nodes = clusters[cluster]
    return ClusterRoute(dialler, clock, nodes, client_name=client_name, changed=changed)
