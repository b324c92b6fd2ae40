"""Rules of one line each that no other test checks: names, budgets and states of keys."""

import asyncio
import math
from typing import Any
from unittest.mock import Mock

import pytest

from redlock_aio._engine.emitter import Emitter
from redlock_aio._engine.wait.wakeup import WaitBudget, hold_back
from redlock_aio._protocol import lock_state, replies
from redlock_aio._protocol.commands import hash_tag
from redlock_aio._rules.blockers import Blockers
from redlock_aio._rules.server_info import ServerInfo
from redlock_aio.events import Event, Waiting

from .kit import now


@pytest.mark.parametrize(
    ("key", "tag"),
    [
        (b"r", b"r"),
        (b"a{b}c", b"b"),
        (b"a{b}{c}", b"b"),
        (b"a{{b}}c", b"{b"),
        (b"a{b", b"a{b"),
        (b"a}b{", b"a}b{"),
        (b"a{}b", b"a{}b"),
        (b"a{}{b}", b"a{}{b}"),
    ],
)
def test_the_hash_tag_of_a_key_is_that_of_a_redis_cluster(key: bytes, tag: bytes) -> None:
    assert hash_tag(key) == tag


def test_a_lock_that_expires_in_this_millisecond_has_a_ttl() -> None:
    """PTTL replies 0 in the last millisecond, and -1 for a key without a ttl."""
    lefts = []
    for reply in (1, 0, -1):
        state = lock_state.key_state([b"a token", reply, None, 0, 0])
        assert state is not None
        lefts.append(state.left)
    assert lefts == [1, 0, lock_state.ENDLESS]
    held = [replies.held([b"a token", reply]) for reply in (1, 0, -1)]
    assert held == [(b"a token", left) for left in (0.001, 0.0, math.inf)]


def test_the_last_attempt_is_due_when_only_its_time_is_left() -> None:
    budget = WaitBudget(lambda: 101.0, 5000, began=100.0)
    assert budget.left() == pytest.approx(4000)
    assert budget.until_last_attempt(500) == pytest.approx(3500)


async def test_an_emitter_says_how_much_it_waits_for() -> None:
    events: list[Event] = []
    emitter = Emitter(events.append)
    emitter.loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert repr(emitter) == "<Emitter, 0 acquiring, 0 events underway>"
    emitter.begin_acquiring(task, ("r",), "exclusive")
    assert repr(emitter) == "<Emitter, 1 acquiring, 0 events underway>"
    emitter.end_acquiring(task)
    emitter.emit_soon(Waiting(("r",)))
    assert repr(emitter) == "<Emitter, 0 acquiring, 1 events underway>"
    await asyncio.sleep(0)
    assert repr(emitter) == "<Emitter, 0 acquiring, 0 events underway>"
    assert events == [Waiting(("r",))]


@pytest.mark.parametrize(("left", "expected"), [(10_000, 0.25), (100, 0.1), (-1, 0)])
async def test_a_pause_ends_with_the_wait(left: float, expected: float) -> None:
    queue: Any = Mock(spread=0)
    budget: Any = Mock(left=lambda: left)
    began = now()
    await hold_back(Mock(), queue, budget, 0.25)
    assert now() - began == pytest.approx(expected)


@pytest.mark.parametrize(
    ("info", "forgets"), [(b"aof_enabled:0", True), (b"aof_enabled:1", False), (b"", False)]
)
def test_only_a_server_that_says_so_has_no_append_only_file(info: bytes, forgets: bool) -> None:
    assert bool(ServerInfo.parse(info).forgets) is forgets


def test_a_key_that_is_no_lock_counts_until_it_changes() -> None:
    view = Blockers(3)
    view.can_not_be(0, "no lock")
    assert not view.is_hopeless
    for master, change in [(1, view.may_be_free), (1, lambda master: view.held(master, b"a", 9.0))]:
        view.can_not_be(master, "no lock")
        assert view.is_hopeless
        change(master)
        assert not view.is_hopeless


def test_only_masters_with_the_value_of_the_holder_report_its_end() -> None:
    view = Blockers(5)
    for master, value in enumerate([b"a", b"a", b"b", b"a"]):
        view.held(master, value, 9.0)
    assert (view.holder, view.held_by_holder) == (b"a", [0, 1, 3])
    view.may_be_free(1)
    assert (view.holder, view.held_by_holder) == (b"a", [0, 3])
