"""A real Redis Cluster: three primaries with a replica each; see `evidence.clusters`."""

import contextlib
import functools
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from evidence.clusters import Cluster
from evidence.servers import Place

from .servers import binary_of

OLDEST = 7
"""Older servers lack ADDSLOTSRANGE and an option for the port of the bus."""


@functools.cache
def why_no_cluster(binary: str) -> str:
    """Return why the server can't be a node of the tests' clusters; empty if it can."""
    said = subprocess.run([binary, "--version"], capture_output=True, text=True, check=False).stdout
    version = re.search(r"v=(\d+)", said)
    if version is None or int(version[1]) < OLDEST:
        return f"{binary} is no server of version {OLDEST} or later: {said.strip()!r}"
    return ""


@contextlib.contextmanager
def cluster(kind: str, **settings: Any) -> Iterator[Cluster]:
    """Run a cluster of this kind of server, or skip the test if there is none; see `Cluster`."""
    binary = binary_of(kind)
    if reason := why_no_cluster(binary):
        pytest.skip(reason)
    with Cluster(Place(binary, Path()), **settings) as made:
        yield made
