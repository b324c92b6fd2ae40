"""The run of the demonstration: its masters, their faults, and what has happened so far."""

import contextlib
import math
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Protocol

from redlock_aio.demo.workers import (
    AWAY,
    LATEST,
    QUARANTINED,
    VOTES,
    WORKERS,
    Plan,
    Record,
    postponed,
    running,
    written,
)
from redlock_aio.testing import EmbeddedMaster, embedded_masters

MASTERS = 5

FRAME = 0.1
"""Seconds between two frames."""

LONGEST_START = 30.0
"""The most seconds for the worker processes to begin, and for a master to vote again."""


@dataclass(frozen=True)
class MasterState:
    """
    One master at one moment.

    Attributes:
        word: One of ``"starts"``, ``"up"``, ``"killed"``, ``"paused"``, ``"quarantined"`` and
            ``"connects"``.

        seconds: How long the quarantine still lasts; 0 if there is none.
    """

    word: str
    seconds: float = 0.0


@dataclass(frozen=True)
class Count:
    """
    One counter at one moment.

    Attributes:
        turns: How many turns the workers have taken.

        counted: The value of the counter. Without lost updates it equals *turns*.
    """

    turns: int
    counted: int

    @property
    def lost(self) -> int:
        """How many updates were lost."""
        return max(self.turns - self.counted, 0)  # a turn counts just after its write


@dataclass(frozen=True)
class Scene:
    """
    Everything that a screen shows, at one moment.

    Attributes:
        seconds: The time since the begin.

        progress: How much of the faults is over, from 0 to 1.

        over: Whether the run has ended.

        news: The latest event.

        masters: The states of the masters.

        holder: The number of the worker that holds the lock, from 1 on; 0 if nobody does.

        latest: Who took the latest turns under the lock, the newest first.

        turns: The turns that each worker has taken under the lock.

        longest: The longest wait for the lock, in seconds.

        losses: How many leases were lost.

        locked: The counter that is incremented under the lock.

        bare: The counter that is incremented without a lock.
    """

    seconds: float
    progress: float
    over: bool
    news: str
    masters: Sequence[MasterState]
    holder: int
    latest: Sequence[int]
    turns: Sequence[int]
    longest: float
    losses: int
    locked: Count
    bare: Count


class Screen(Protocol):
    """Shows the run to somebody."""

    def tell(self, scene: Scene) -> None:
        """Show that something has happened, which is the scene's `news`."""

    def show(self, scene: Scene) -> None:
        """Show the present scene; called `FRAME` after the last one."""


class Stage:
    """
    What runs, and what is to be seen of it.

    Args:
        length: About how long the run takes, in seconds.

        screen: Shows the run.
    """

    def __init__(self, length: float, screen: Screen) -> None:
        context = multiprocessing.get_context("spawn")
        self._context = context
        self._length = length
        self._screen = screen
        self._began = time.monotonic()
        self._faults_began = math.inf
        self._record = Record(context, MASTERS)
        self._ttl = int(100 * length)
        self._masters: Sequence[EmbeddedMaster] = ()
        self._processes: Sequence[SpawnProcess] = ()
        self._plan: Plan | None = None
        self._quarantine_ends = -math.inf
        self._news = ""
        self._over = False

    def play(self) -> Scene:
        """
        Run the demonstration; return the last scene.

        Raises:
            OSError: A server can't be started.

            RuntimeError: A worker process has failed, or a master does not vote again.
        """
        self._tell(f"{MASTERS} masters start on this machine")
        with contextlib.ExitStack() as stack:
            with postponed():
                temporary = tempfile.TemporaryDirectory(prefix="redlock_aio-demo-")
                folder = stack.enter_context(temporary)
                masters = stack.enter_context(embedded_masters(MASTERS, unix=True))
            self._masters = masters
            self._plan = plan = Plan(
                tuple(master.url for master in masters),
                Path(folder, "locked"),
                Path(folder, "bare"),
                self._ttl,
            )
            for counter in (plan.locked, plan.bare):
                counter.write_bytes(written(0))
            self._tell(
                f"{WORKERS} workers begin; each increments one counter under the lock,"
                " and another one without it"
            )
            with running(plan, self._record, self._context) as processes:
                self._processes = processes
                self._go_on_until(lambda: all(self._record.ready), "the processes do not begin")
                self._faults()
            self._check()
            self._over = True
            return self.scene()

    def scene(self) -> Scene:
        """Return what is to be seen now."""
        record = self._record
        # The turns first: what is written meanwhile is then no lost update.
        turns, bare_turns = list(record.turns), sum(record.bare_turns)
        locked, bare = (self._counter(name) for name in ("locked", "bare"))
        now = time.monotonic()
        newest = range(locked, max(locked - LATEST // 2, 0), -1)
        return Scene(
            seconds=now - self._began,
            progress=min(max((now - self._faults_began) / self._length, 0.0), 1.0),
            over=self._over,
            news=self._news,
            masters=[self._state_of(number) for number in range(MASTERS)],
            holder=record.holder.value,
            latest=[record.latest[turn % LATEST] for turn in newest],
            turns=turns,
            longest=max(record.longest),
            losses=sum(record.losses),
            locked=Count(sum(turns), locked),
            bare=Count(bare_turns, bare),
        )

    def _counter(self, name: str) -> int:
        return 0 if self._plan is None else int(getattr(self._plan, name).read_bytes())

    def _state_of(self, number: int) -> MasterState:
        if not self._masters:
            return MasterState("starts")
        state = self._masters[number].state
        if state != "running":
            return MasterState("killed" if state == "stopped" else "paused")
        seen = {of_process[number] for of_process in self._record.seen}
        if self._over or seen == {VOTES}:
            return MasterState("up")
        if QUARANTINED in seen and AWAY not in seen:
            return MasterState("quarantined", max(self._quarantine_ends - time.monotonic(), 0.0))
        return MasterState("connects")

    def _faults(self) -> None:
        """Kill a master and pause another one, so that for a while only three of five vote."""
        second, fourth = self._masters[1], self._masters[3]
        quarantine = 1.01 * self._ttl / 1000 + 1
        self._faults_began = time.monotonic()
        self._go_on(0.1)
        second.kill()
        self._tell("master 2 is KILLED: four of five are still a majority")
        self._go_on(0.15)
        with postponed():
            second.start()
        self._quarantine_ends = time.monotonic() + quarantine
        self._tell(
            f"master 2 is BACK without its keys: QUARANTINED for {quarantine:.1f} s, the longest"
            " ttl and 1 s, so that it grants no lock whose lease may still be valid"
        )
        self._go_on(0.1)
        fourth.pause()
        self._tell(
            "master 4 is PAUSED: it receives requests and answers none;"
            " three of five are still a majority"
        )
        self._go_on_until(
            lambda: self._state_of(1).word == "up", "master 2 does not vote again", least=quarantine
        )
        self._tell("master 2 VOTES AGAIN")
        self._go_on(0.15)
        fourth.resume()
        self._tell(
            "master 4 is RESUMED, and executes late what it received: every request and its release"
        )
        self._go_on(0.2)
        self._tell("all masters vote; the workers take their last turns")
        self._go_on(0.1)

    def _tell(self, news: str) -> None:
        self._news = news
        self._screen.tell(self.scene())

    def _go_on(self, share: float) -> None:
        """Let the run go on for a *share* of its length."""
        ends = time.monotonic() + share * self._length
        while (left := ends - time.monotonic()) > 0:
            time.sleep(min(FRAME, left))
            self._check()
            self._screen.show(self.scene())

    def _go_on_until(
        self, condition: Callable[[], bool], otherwise: str, least: float = 0.0
    ) -> None:
        """Let the run go on until *condition* holds; the time should be *least* seconds."""
        ends = time.monotonic() + least + LONGEST_START
        while not condition():
            if time.monotonic() > ends:
                raise RuntimeError(f"{otherwise} after {least + LONGEST_START:.0f} s")
            time.sleep(FRAME)
            self._check()
            self._screen.show(self.scene())

    def _check(self) -> None:
        if any(process.exitcode for process in self._processes):
            raise RuntimeError("a worker process has failed")
