"""A real Redis Cluster: three primaries with a replica each; see `evidence.clusters`."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from evidence.clusters import Cluster, why_no_cluster
from evidence.servers import Place

from .servers import binary_of


@contextlib.contextmanager
def cluster(kind: str, **settings: Any) -> Iterator[Cluster]:
    """Run a cluster of this kind of server, or skip the test if there is none; see `Cluster`."""
    binary = binary_of(kind)
    if reason := why_no_cluster(binary):
        pytest.skip(reason)
    with Cluster(Place(binary, Path()), **settings) as made:
        yield made
