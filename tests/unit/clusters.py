"""A Redis Cluster in memory: nodes that share out the slots, and one client's links to them."""

import asyncio
from collections.abc import Sequence

from redlock_aio._protocol.commands import hash_tag
from redlock_aio._protocol.tags import SLOTS, default_tags, slot
from redlock_aio.testing import FakeMaster
from redlock_aio.testing._fake_keys import Command
from redlock_aio.testing._fake_lua import Error
from redlock_aio.testing._fake_pushes import Push, PushReceiver

from .sentinels import CutLink

PORT = 7000
TAGS = default_tags(3)
KEYED = {
    b"SET", b"GET", b"GETRANGE", b"DELIFEQ", b"PTTL", b"SSUBSCRIBE", b"SUNSUBSCRIBE",
}  # fmt: skip


class FakeNode(FakeMaster):
    """
    One node in memory.

    Attributes:
        view: Who owns each third of the slots, as this node knows it: the host, and the epoch.

        known: The hosts of the nodes that it knows, and itself.

        coverage: What it has for cluster-require-full-coverage.

        published: The verb of each message that it was given, and whom it reached.
    """

    def __init__(self, host: str, site: "FakeSite") -> None:
        super().__init__(host)
        self.host = host
        self.site = site
        self.view: dict[int, tuple[str, int]] = {}
        self.known: list[str] = []
        self.coverage = b"no"
        self.asked = 0
        self.published: list[tuple[str, int]] = []
        self._shards: dict[bytes, dict[PushReceiver, None]] = {}

    @property
    def id(self) -> str:
        return f"{self.host:0<40}"

    def _do_info(self) -> object:
        info = super()._do_info()
        assert isinstance(info, bytes)
        return info + b"cluster_enabled:1\r\n"

    def _do_cluster(self, verb: bytes) -> object:
        assert verb == b"NODES"
        self.asked += 1
        return "".join(map(self._line, self.known)).encode()

    def _line(self, host: str) -> str:
        owned = [k for k, (owner, _) in self.view.items() if owner == host]
        epoch = max([self.view[k][1] for k in owned], default=0)
        flags = ("myself," if host == self.host else "") + ("master" if owned else "slave")
        where = "" if host == self.host else host  # a node need not know its own address
        ranges = "".join(f" {k * SLOTS // 3}-{(k + 1) * SLOTS // 3 - 1}" for k in owned)
        names = f",{host}.example" if self.site.named else ""
        return (
            f"{host:0<40} {where}:{PORT}@1{PORT}{names} {flags} - 0 0 {epoch} connected{ranges}\n"
        )

    def _do_config(self, verb: bytes, name: bytes) -> object:
        assert (verb, name) == (b"GET", b"cluster-require-full-coverage")
        return [name, self.coverage]

    def _handler(self, name: bytes) -> Command:
        if name in {b"SSUBSCRIBE", b"SUNSUBSCRIBE", b"SPUBLISH"} and not self.site.sharded:
            raise Error(f"ERR unknown command '{name.decode()}'")
        return super()._handler(name)

    def _do_ssubscribe(self, channel: bytes) -> object:
        self._shards.setdefault(channel, {})[self._pushes.speaker] = None
        return Push([b"ssubscribe", channel, 1])

    def _do_sunsubscribe(self, channel: bytes) -> object:
        self._shards.get(channel, {}).pop(self._pushes.speaker, None)
        return Push([b"sunsubscribe", channel, 0])

    def _do_spublish(self, channel: bytes, message: bytes) -> object:
        listeners = [each for each in self._shards.get(channel, ()) if not each.gone]
        for listener in listeners:
            listener.on_push(Push([b"smessage", channel, message]))
        self.published.append(("SPUBLISH", len(listeners)))
        return len(listeners)

    def _do_publish(self, channel: bytes, message: bytes) -> object:
        reached = self._data.publish(channel, message)
        self.published.append(("PUBLISH", reached))
        return reached

    def lose_channels(self) -> None:
        """End the subscriptions to channels whose slots this node does not own any more."""
        for channel, listeners in self._shards.items():
            if self.view[slot(hash_tag(channel)) * 3 // SLOTS][0] != self.host:
                for listener in [each for each in listeners if not each.gone]:
                    listener.on_push(Push([b"sunsubscribe", channel, 0]))
                listeners.clear()

    def _execute(self, called: bytes, *arguments: bytes) -> object:
        if called == b"EVALSHA":
            keys = arguments[2 : 2 + int(arguments[1])]
        else:
            keys = arguments[:1] if called in KEYED else ()
        slots = {slot(hash_tag(key)) for key in keys}
        assert len(slots) <= 1, f"{called!r} with keys of several slots: {keys!r}"
        for its in slots:
            owner, _ = self.view[its * 3 // SLOTS]
            if owner != self.host:
                raise Error(f"MOVED {its} {owner}:{PORT}")
        return super()._execute(called, *arguments)


class FakeSite:
    """
    A Cluster of three primaries a, b, c and their replicas r, s, t, which agree at first.

    Args:
        more: The hosts of more primaries, which own no slot.

        hosts: Those of the primaries, and then of their replicas.
    """

    named = False
    """Whether the nodes announce names."""
    sharded = True
    """Whether the nodes know SSUBSCRIBE and SPUBLISH, as they do since Redis 7.0."""

    def __init__(self, more: str = "", hosts: str = "abcrst") -> None:
        self.nodes = {host: FakeNode(host, self) for host in hosts + more}
        for node in self.nodes.values():
            node.view = {number: (host, number + 1) for number, host in enumerate(hosts[:3])}
            node.known = list(self.nodes)
        for host in hosts[3:]:
            self[host].role = "slave"
        self.epoch = 6

    def __getitem__(self, host: str) -> FakeNode:
        return self.nodes[host]

    def link(self, *seeds: str) -> "FakeCluster":
        """Return the Cluster for one program."""
        return FakeCluster(self, seeds or ("a",))

    def promote(self, host: str, number: int, *, told: str = "abcdrst", loses: bool = True) -> None:
        """
        Give the slots of a third to *host*, with the marker, and without the locks if it *loses*.

        Args:
            told: The nodes that learn of it.
        """
        self.epoch += 1
        new, old = self[host], self[self[host].view[number][0]]
        if old is not new:
            for key, value in old._keys.items():
                if TAGS[number] in key and (b"redlock_aio:" in key or not loses):
                    new._keys[key] = value
        if new.role != "master":
            new.role, new.replica_before = "master", True
            new.replid = f"{self.epoch:040x}"
        for each in self.nodes.keys() & set(told):
            self[each].view[number] = (host, self.epoch)
            self[each].lose_channels()

    def received(self) -> list[bytes]:
        """Return all words of all commands that the nodes have received."""
        return [w for node in self.nodes.values() for command in node.commands for w in command]


class FakeCluster:
    """The nodes, with the links of one client to them."""

    secrets = ("s3cret",)

    def __init__(self, site: FakeSite, seeds: Sequence[str]) -> None:
        self.site = site
        self.seeds = [(host, PORT) for host in seeds]
        self.prefers_names = False
        self.links: dict[str, CutLink] = {}
        self.dialled: list[str] = []

    def __str__(self) -> str:
        return f"{self.seeds[0][0]}:{PORT}"

    def __getitem__(self, host: str) -> CutLink:
        if host not in self.links:
            self.links[host] = CutLink(self.site[host])
        return self.links[host]

    async def dial_to(self, host: str, port: int) -> tuple[asyncio.Transport, object]:
        assert port == PORT
        self.dialled.append(host)
        return await self[host.removesuffix(".example")].dial()
