"""All interleavings of attempts for one resource and for two: tokens rise; see `joint_model`."""

from dataclasses import replace

import pytest

from redlock_aio._protocol import commands
from redlock_aio._protocol.primitives import FencingCounter, JointMutex, Mutex
from redlock_aio._protocol.scripts import ACQUIRE_ALL
from redlock_aio.testing._fake_lua import lua

from . import joint_model, rules
from .joint_model import Joint
from .rules import SHIPPED, Rules
from .search import Searched, search

A, B, BOTH = (0,), (1,), (0, 1)
EQUAL = ((1, 1),) * 3
DIFFER = ((1, 2), (2, 1), (1, 3))
MOST = 160_000
LONG = 8_000
"""Settings with more states belong to the full run."""

pytestmark = [pytest.mark.promise("S7"), pytest.mark.timeout(600)]

SETTINGS: dict[str, tuple[Joint, int]] = {
    "both and one": (Joint(DIFFER, (BOTH, A)), 5_000),
    "both twice": (Joint(DIFFER, (BOTH, BOTH)), 3_000),
    "both, and each": (Joint(EQUAL, (BOTH, A, B)), 150_000),
    "extended, both and one": (Joint(DIFFER, (BOTH, A), extended=True), 4_000),
    "extended, both twice": (Joint(DIFFER, (BOTH, BOTH), extended=True), 4_000),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.full] if least > LONG else [])
        for name, (_, least) in SETTINGS.items()
    ],
)
def test_tokens_rise_for_each_resource(searched: Searched, name: str) -> None:
    model, least = SETTINGS[name]
    found = searched(model, MOST)
    assert not found.broken, str(found)
    assert found.states >= least
    assert found.complete


def _value_only(counter: FencingCounter, token: bytes, ttl: int, _fence: int) -> bytes:
    names = [Mutex(name) for name in counter._keys[1 : 1 + len(counter.keys)]]
    key = JointMutex(names) if len(names) > 1 else names[0]
    return commands.extend(key.extension(token, ttl))


DEFECTS: dict[str, tuple[Rules, bool, str]] = {
    "inexact acks": (rules.INEXACT_ACKS, False, "P2"),
    "at least": (rules.AT_LEAST, False, "P1"),
    "value-only extension": (replace(SHIPPED, extend=_value_only), True, "P4"),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_found(name: str) -> None:
    wrong, extended, breaks = DEFECTS[name]
    found = search(Joint(DIFFER, (BOTH, A), wrong, extended=extended), MOST)
    assert found.broken.startswith(breaks), str(found)


def test_a_script_that_repeats_a_token_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    joint_model._reply.cache_clear()
    counts_on = b"(ours == 0 and 1 or 0)"
    assert ACQUIRE_ALL.text.count(counts_on) == 1
    monkeypatch.setattr(ACQUIRE_ALL, "sha", lua().load(ACQUIRE_ALL.text.replace(counts_on, b"0")))
    try:
        found = search(Joint(EQUAL, (BOTH, BOTH)), MOST)
        assert found.broken.startswith("P1"), str(found)
    finally:
        joint_model._reply.cache_clear()
