"""The order in which the full run gives its tests to workers: see `conftest.dealt`."""

from dataclasses import dataclass
from typing import Any

import pytest

from .conftest import dealt


@dataclass(frozen=True)
class Item:
    """A test, as far as its place among the others depends on it."""

    nodeid: str
    long: bool = False

    def get_closest_marker(self, name: str) -> bool:
        return self.long and name == "long"


ITEMS: list[Any] = [
    *(Item(f"tests/cli/{number}") for number in range(9)),
    *(Item(f"tests/evidence/{number}", long=number < 3) for number in range(20)),
    *(Item(f"tests/integration/{number}") for number in range(31)),
    *(Item(f"tests/{folder}/{number}") for folder in ("proofs", "unit") for number in range(44)),
]


@pytest.mark.parametrize("workers", range(1, 7))
def test_each_test_is_dealt_once(workers: int) -> None:
    given = dealt(ITEMS, workers)
    assert len(given) == len(ITEMS)
    assert set(given) == set(ITEMS)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_each_worker_begins_with_tests_that_wait_and_ends_with_busy_ones(workers: int) -> None:
    given, share = dealt(ITEMS, workers), len(ITEMS) // workers
    for number in range(workers):
        its: list[Any] = given[number * share : (number + 1) * share]
        # xdist divides evenly, so the first or last may be of the next worker's.
        waits = [item.long or "integration" in item.nodeid for item in its[2:-2]]
        busy = ["unit" in item.nodeid or "proofs" in item.nodeid for item in its[2:-2]]
        assert waits == sorted(waits, reverse=True)
        assert busy == sorted(busy)
        assert any(waits)
        assert any(busy)
