"""
Networks that can fail: each process in a network namespace of its own, and a router between them.

    w0 ── veth ──┐          ┌── veth ── m0
    w1 ── veth ──┤  router  ├── veth ── m1
    w2 ── veth ──┘  (nft)   └── veth ── m2

The router drops the packets of chosen pairs, in chosen directions. A dropped packet is not
refused: connections stay open, but requests or replies do not arrive. The link of a node can be
taken down, which its own kernel notices. Traffic goes only between these namespaces.

An endpoint leads to a node, and can be moved to another one while the first one lives on:

- A host name, `NAME`. A program that looks it up again finds the other node.
- An address that no node has, that of `BALANCER`, as a load balancer shows it: the router sends
  new connections to the other node, and those that exist stay with the first one.
"""

import contextlib
import ctypes
import itertools
import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Self

PORT = 7000
"""The port of each server: their addresses differ."""

NAME = "endpoint.test"
"""The host name that `Network.lead` moves."""

BALANCER = "vip"
"""The node without a program whose address `Network.balance` moves."""

CONFIGURED = Path("/etc/netns")
"""`ip netns exec` mounts the files of a folder here, named as the namespace, over those of /etc."""

CLONE_NEWNET = 0x40000000
"""What `setns` calls a network namespace."""

_numbers = itertools.count()


def why_not() -> str:
    """Return why no network can be made here; empty if one can."""
    for tool in ("ip", "nft"):
        if shutil.which(tool) is None:
            return f"there is no {tool} in the PATH"
    try:
        with Network(["probe"]):
            return ""
    except OSError as error:
        return str(error)


class Network:
    """
    The namespaces of one run, and what is wrong between them.

    Args:
        nodes: Their names, of at most five letters.
    """

    def __init__(self, nodes: Iterable[str]) -> None:
        self._stem = f"ev{os.getpid()}x{next(_numbers)}"
        self._nodes = {name: number for number, name in enumerate(nodes, 1)}

    def __repr__(self) -> str:
        return f"<Network {self._stem}, {len(self._nodes)} nodes>"

    def address(self, node: str) -> str:
        """Return the IP address of a node."""
        return f"10.98.{self._nodes[node]}.2"

    def url(self, node: str) -> str:
        """Return the URL of the server on a node."""
        return f"redis://{self.address(node)}:{PORT}"

    def within(self, node: str) -> list[str]:
        """Return the words before a command that is to run on a node."""
        return ["ip", "netns", "exec", self._space(node)]

    def enter(self, node: str) -> None:
        """Let this thread, and those that it starts from now on, make connections as a node."""
        with Path("/run/netns", self._space(node)).open("rb") as space:
            if ctypes.CDLL(None, use_errno=True).setns(space.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"this thread can't enter {node}")

    def __enter__(self) -> Self:
        """
        Make the namespaces and their links.

        Raises:
            OSError: A command failed, most often because a permission is missing.
        """
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _make(self) -> None:
        router = self._space()
        run("ip", "netns", "add", router)
        run(*self._in_router("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"))
        for node in self._nodes:
            self._link(node)
        rules = (
            "add table ip cut; add set ip cut pairs { type ipv4_addr . ipv4_addr; };"
            " add chain ip cut between { type filter hook forward priority 0; policy accept; };"
            " add rule ip cut between ip saddr . ip daddr @pairs drop"
        )
        run(*self._in_router("nft", rules))

    def add(self, node: str) -> None:
        """
        Add a node.

        Raises:
            OSError: A command failed.
        """
        self._nodes[node] = len(self._nodes) + 1
        self._link(node)

    def _link(self, node: str) -> None:
        router, name, gate = self._space(), self._space(node), f"10.98.{self._nodes[node]}.1"
        run("ip", "netns", "add", name)
        run(
            *("ip", "link", "add", node, "netns", router, "type", "veth"),
            *("peer", "name", "eth0", "netns", name),
        )
        run(*("ip", "-n", router, "address", "add", f"{gate}/30", "dev", node))
        run(*("ip", "-n", router, "link", "set", node, "up"))
        run(*("ip", "-n", name, "link", "set", "lo", "up"))
        run(*("ip", "-n", name, "address", "add", f"{self.address(node)}/30", "dev", "eth0"))
        self._route(node)

    def __contains__(self, node: str) -> bool:
        return node in self._nodes

    def __exit__(self, *_: object) -> None:
        for name in (*map(self._space, self._nodes), self._space()):
            # `_make` may have failed before it had made all of them.
            with contextlib.suppress(OSError):
                run("ip", "netns", "delete", name)
            shutil.rmtree(CONFIGURED / name, ignore_errors=True)

    def cut(self, senders: Iterable[str], receivers: Sequence[str]) -> None:
        """Drop what *senders* send to *receivers*; the other direction stays as it is."""
        self._change("add", senders, receivers)

    def mend(self, senders: Iterable[str], receivers: Sequence[str]) -> None:
        """Stop dropping what *senders* send to *receivers*, all of which was cut before."""
        self._change("delete", senders, receivers)

    def _change(self, how: str, senders: Iterable[str], receivers: Sequence[str]) -> None:
        pairs = [
            f"{self.address(one)} . {self.address(other)}" for one in senders for other in receivers
        ]
        run(*self._in_router("nft", f"{how} element ip cut pairs {{ {', '.join(pairs)} }}"))

    def separate(self, ones: Sequence[str], others: Sequence[str]) -> None:
        """Drop all packets between *ones* and *others*."""
        self.cut(ones, others)
        self.cut(others, ones)

    def heal(self) -> None:
        """Stop dropping packets; links that are down stay down."""
        run(*self._in_router("nft", "flush set ip cut pairs"))

    def lead(self, node: str) -> None:
        """
        Let `NAME` lead to *node*, for whoever looks it up from now on.

        Raises:
            OSError: Nothing can be written in `CONFIGURED`.
        """
        line = f"{self.address(node):15} {NAME}\n".encode()
        for each in self._nodes:
            # In place, and always as long: a program has the file mounted, and may read it now.
            hosts = CONFIGURED / self._space(each) / "hosts"
            hosts.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(hosts, os.O_WRONLY | os.O_CREAT, 0o644)
            try:
                os.pwrite(file, line, 0)
            finally:
                os.close(file)

    def balance(self, node: str) -> None:
        """Lead new connections to the address of `BALANCER` to *node*; the others stay."""
        rules = (
            "add table ip balancer; flush table ip balancer;"
            " add chain ip balancer to { type nat hook prerouting priority dstnat; };"
            f" add rule ip balancer to ip daddr {self.address(BALANCER)}"
            f" dnat to {self.address(node)}"
        )
        run(*self._in_router("nft", rules))

    def link_down(self, node: str) -> None:
        """Disable the link of a node, as if its cable had been pulled."""
        run("ip", "-n", self._space(node), "link", "set", "eth0", "down")

    def link_up(self, node: str) -> None:
        """Put the link of a node up again."""
        self._route(node)

    def _route(self, node: str) -> None:
        name = self._space(node)
        run("ip", "-n", name, "link", "set", "eth0", "up")
        # The route goes away with the link.
        gate = f"10.98.{self._nodes[node]}.1"
        run("ip", "-n", name, "route", "replace", "default", "via", gate)

    def _space(self, node: str = "") -> str:
        return f"{self._stem}{node}"

    def _in_router(self, *command: str) -> list[str]:
        return ["ip", "netns", "exec", self._space(), *command]


def run(*command: str) -> None:
    """Run a command; raise `OSError` with its error output if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
