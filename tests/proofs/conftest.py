"""
The long searches that the record has, with the inputs of today, are left out of the full run.

These are tests that are marked `full` and use `searched` or `recorded`. Others with these fixtures
are recorded, too, and run always.
"""

from collections.abc import Callable
from typing import Any

import pytest

from .record import SEARCHED, Searches, Sources, load
from .search import Found, Model, Searched, search


class Recorded:
    """The recorded searches that are good today: none of a module whose inputs have changed."""

    def __init__(self) -> None:
        self._sources = Sources()
        self._record = load()
        self._inputs: dict[str, str] = {}

    def inputs(self, item: pytest.Item) -> str:
        """Return the hash of the inputs of a test, as they were when it was collected."""
        module = item.path.stem
        if module not in self._inputs:
            self._inputs[module] = self._sources.inputs(module)
        return self._inputs[module]

    def states(self, item: pytest.Item) -> int | None:
        """Return how many states a test has searched with these inputs; ``None`` if it has not."""
        recorded = self._record.get(item.path.stem, Searches(""))
        return recorded.states.get(item.name) if recorded.inputs == self.inputs(item) else None


RECORDED = pytest.StashKey[Recorded]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip the long searches that have passed with the inputs of today."""
    record = config.stash[RECORDED] = Recorded()
    runs_all = config.getoption("--prove") or any("::" in argument for argument in config.args)
    reason = "this search has passed with the same inputs; --prove runs it again"
    for item in items:
        if "recorded" not in getattr(item, "fixturenames", ()):
            continue
        known = record.states(item)
        if known is not None and item.get_closest_marker("full") and not runs_all:
            item.add_marker(pytest.mark.skip(reason))


@pytest.fixture
def recorded(
    request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> Callable[[int], None]:
    """Return what notes how many states a test has searched, for the record if it passes."""
    known = request.config.stash[RECORDED]

    def note(states: int) -> None:
        record_property(SEARCHED, f"{known.inputs(request.node)} {states}")
        before = known.states(request.node)
        assert before in {None, states}, f"{before} states before, {states} now"

    return note


@pytest.fixture
def searched(recorded: Callable[[int], None]) -> Searched:
    """Return `search`; what it finds is recorded if the test passes."""

    def run(model: Model[Any], limit: int) -> Found[Any]:
        found = search(model, limit)
        recorded(found.states)
        return found

    return run
