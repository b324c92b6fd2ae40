"""
Real partitions: each worker in a network namespace of its own, the masters in another.

    worker 0 ── veth ──┐
    worker 1 ── veth ──┼── the masters' namespace, where packets are dropped (nft)
    worker 2 ── veth ──┘

A dropped packet is not refused: connections stay open, but requests or replies do not arrive.
Traffic goes only between these namespaces.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import redis

from redlock_aio.testing import EmbeddedMaster

HOST = "10.99.0.1"
"""The address of all masters, which differ by their ports."""

FIRST_PORT = 7001
"""Ports that are free on the host say nothing here: two masters could get the same one."""


class PartitionedMaster(EmbeddedMaster):
    """A master in the namespace of a `Network`; tests connect to it by its Unix socket."""

    @property
    def url(self) -> str:
        """The URL that the workers use."""
        return f"redis://{HOST}:{self.port}"

    def client(self) -> redis.Redis:
        """Return a plain client that no partition affects."""
        return redis.Redis(unix_socket_path=self._socket, decode_responses=True)


class Network:
    """The namespaces of one test, and the partitions between them."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._hub = f"rla{os.getpid()}"

    def __repr__(self) -> str:
        return f"<Network {self._hub}, {self._workers} workers>"

    def worker(self, number: int) -> str:
        """Return the name of a worker's namespace."""
        return f"{self._hub}w{number}"

    def within(self, number: int) -> list[str]:
        """Return the words before a command that is to run in a worker's namespace."""
        return ["ip", "netns", "exec", self.worker(number)]

    def make(self) -> None:
        """
        Make the namespaces and their links.

        Raises:
            OSError: A command failed, most often because a permission is missing.
        """
        run("ip", "netns", "add", self._hub)
        self._in_hub("ip", "link", "set", "lo", "up")
        self._in_hub("ip", "address", "add", f"{HOST}/32", "dev", "lo")
        for number in range(self._workers):
            name, link = self.worker(number), f"w{number}"
            run("ip", "netns", "add", name)
            run(
                *("ip", "link", "add", link, "netns", self._hub),
                *("type", "veth", "peer", "name", "eth0", "netns", name),
            )
            self._in_hub("ip", "address", "add", f"10.99.{number + 1}.1/30", "dev", link)
            self._in_hub("ip", "link", "set", link, "up")
            inside = self.within(number)
            run(*inside, "ip", "link", "set", "lo", "up")
            run(*inside, "ip", "address", "add", f"10.99.{number + 1}.2/30", "dev", "eth0")
            run(*inside, "ip", "link", "set", "eth0", "up")
            run(*inside, "ip", "route", "add", "default", "via", f"10.99.{number + 1}.1")
        self._in_hub("nft", "add", "table", "ip", "cut")
        for chain, hook in (("requests", "input"), ("replies", "output")):
            rule = f"{{ type filter hook {hook} priority 0; policy accept; }}"
            self._in_hub("nft", "add", "chain", "ip", "cut", chain, rule)

    def remove(self) -> None:
        """Remove the namespaces that exist."""
        for name in (*map(self.worker, range(self._workers)), self._hub):
            # `make` may have failed before it had made all of them.
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)

    def cut(self, number: int, ports: Sequence[int], *, requests: bool, replies: bool) -> None:
        """Drop a worker's requests to the masters at *ports*, or their replies, or both."""
        address = f"10.99.{number + 1}.2"
        for port in ports:
            if requests:
                self._drop("requests", "saddr", address, "dport", port)
            if replies:
                self._drop("replies", "daddr", address, "sport", port)

    def _drop(self, chain: str, side: str, address: str, end: str, port: int) -> None:
        rule = ("ip", side, address, "tcp", end, str(port), "drop")
        self._in_hub("nft", "add", "rule", "ip", "cut", chain, *rule)

    def heal(self) -> None:
        """Remove all partitions: every packet passes again."""
        self._in_hub("nft", "flush", "table", "ip", "cut")

    def _in_hub(self, *command: str) -> None:
        run("ip", "netns", "exec", self._hub, *command)

    @contextlib.contextmanager
    def masters(self, binary: str, number: int = 5) -> Iterator[list[PartitionedMaster]]:
        """Run *number* masters in the namespace where packets are dropped."""
        with contextlib.ExitStack() as stack:
            made = []
            for port in range(FIRST_PORT, FIRST_PORT + number):
                master = PartitionedMaster(
                    binary, options=["--bind", "0.0.0.0", "--protected-mode", "no"]
                )
                master.port = port
                starter = Path(master._folder) / "start"
                starter.write_text(f'#!/bin/sh\nexec ip netns exec {self._hub} {binary} "$@"\n')
                starter.chmod(0o700)
                master._binary = str(starter)
                made.append(stack.enter_context(master))
            yield made


def run(*command: str) -> None:
    """Run a command; raise `OSError` with its error output if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


@contextlib.contextmanager
def network(workers: int) -> Iterator[Network]:
    """Make a network, or skip the test where none can be made."""
    for tool in ("ip", "nft"):
        if shutil.which(tool) is None:
            pytest.skip(f"no partitions: there is no {tool} in the PATH")
    made = Network(workers)
    try:
        try:
            made.make()
        except OSError as error:
            pytest.skip(f"no partitions: {error}")
        yield made
    finally:
        made.remove()
