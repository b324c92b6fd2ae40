"""
The masters on which a benchmark runs: five processes or five containers.

As processes they are Valkey, or with ``--server redis`` the `redis-server` of the PATH; in
containers they are Redis. Each has results in a file of its own.
"""

import argparse
import contextlib
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import measuring
from evidence.containers import ContainerServer
from measuring import Server

from redlock_aio.testing import embedded_masters


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose the masters."""
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--containers", action="store_true", help="masters in containers (Redis)")
    kinds.add_argument(
        "--server", choices=("valkey", "redis"), default="valkey", help="masters as processes"
    )


def where(options: argparse.Namespace) -> str:
    """Return how the chosen masters run, for a report."""
    return "in containers" if options.containers else "as processes"


def results(options: argparse.Namespace, name: str) -> Path:
    """Return the file for the results *name* with the chosen masters."""
    kind = "-containers" if options.containers else "-redis" if options.server == "redis" else ""
    return measuring.HERE / f"{name}{kind}.md"


def drawn(options: argparse.Namespace) -> bool:
    """Return whether the results with the chosen masters are those that pages show as pictures."""
    return not options.containers and options.server == "valkey"


@contextlib.contextmanager
def running(options: argparse.Namespace) -> Iterator[Sequence[Server]]:
    """Run five masters for the body."""
    with contextlib.ExitStack() as stack:
        if options.containers:
            yield [stack.enter_context(ContainerServer(f"m{number}")) for number in range(5)]
        else:
            servers = stack.enter_context(embedded_masters(5, binary_of(options.server)))
            yield cast("Sequence[Server]", servers)


def binary_of(server: str) -> str | None:
    """Return the program of this kind of server; ``None`` stands for the default, Valkey."""
    if server == "valkey":
        return None
    found = shutil.which("redis-server")
    if found is None:
        sys.exit("--server redis: there is no redis-server in the PATH")
    return found
