"""The simulation: one seed is one story, what it sees, and what its command writes and ends."""

import asyncio
import functools
import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from evidence.simulation import __main__ as command, log, run as simulation
from evidence.simulation.defects import find, planted
from evidence.simulation.log import LOG, PAGE, Chunk, missing, report
from evidence.simulation.network import Clock, Loop
from evidence.simulation.plan import FAULTS, KINDS, WIDER, Action, Fault, Plan, draw
from evidence.simulation.run import Outcome, run
from evidence.simulation.shrink import shrink

import redlock_aio

ROOT = Path(__file__).parents[2]
FULL = "REDLOCK_AIO_FULL" in os.environ
PATIENCE = 240.0

pytestmark = [pytest.mark.promise(f"S{number}") for number in (1, 2, 3, 4, 7)]
pytestmark.append(pytest.mark.timeout(1_800))


def action(program: int, kind: str = "plain", **facts: Any) -> Action:
    options: dict[str, Any] = {"rest": 0, "ttl": 300, "wait": None, "hold": 10}
    return Action(program, 0, kind, facts.pop("names", ("a",)), **options | facts)


def plan(*actions: Action, faults: tuple[Fault, ...] = (), masters: int = 3) -> Plan:
    programs = 1 + max(each.program for each in actions)
    return Plan(0, (1.0,) * masters, (0.0,) * masters, programs, actions, faults)


def texts(outcome: Outcome, who: str) -> list[str]:
    return [what for _, name, what in outcome.lines if name.startswith(who)]


def start(*words: object, seed: str = "0") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.evidence.simulation", *map(str, words)],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


# What a seed is.


def test_seeds_cover_all_kinds_and_all_faults() -> None:
    plans = [draw(seed) for seed in range(300)]
    assert {each.kind for one in plans for each in one.actions} == set(KINDS)
    assert {each.name for one in plans for each in one.faults} == set(FAULTS)
    assert {len(one.latencies) for one in plans} == {1, 3, 5}
    assert draw(7) == draw(7) != draw(8)


def test_later_seeds_have_more_ways_to_use_a_lock() -> None:
    published = [draw(seed) for seed in range(300)]
    plans = [draw(seed) for seed in range(WIDER, WIDER + 300)]
    more = [each for one in plans for each in one.actions]
    less = [each for one in published for each in one.actions]
    assert {len(one.latencies) for one in plans} == {1, 2, 3, 4, 5}
    assert {each.again for each in more} == {0, 1, 2}
    assert {(each.block, each.apart) for each in more} == {
        (True, True), (True, False), (False, False),
    }  # fmt: skip
    assert any(each.stopped is not None for each in more)
    assert {(each.again, each.apart, each.stopped) for each in less} == {(0, False, None)}


def test_a_seed_has_the_same_story_in_each_process() -> None:
    running = [start("--seed", 10, seed=seed) for seed in ("0", "4711")]
    stories = [process.communicate(timeout=PATIENCE)[0] for process in running]
    assert stories[0] == stories[1]
    assert "no promise was broken" in stories[0]
    assert "HOLDS until" in stories[0]


@pytest.mark.spread(0)
@pytest.mark.parametrize("begin", [0, WIDER])
@pytest.mark.parametrize("first", range(0, 100 if FULL else 20, 10))
def test_the_promises_hold_among_all_faults(begin: int, first: int) -> None:
    for seed in range(begin + first, begin + first + 10):
        outcome = run(draw(seed))
        assert not outcome.broken, outcome.story()
        assert random.random() >= 0  # the seed of the library's delays harms nobody


# What a program and its faults are.


def test_a_program_that_stands_still_lets_the_others_go_on() -> None:
    both = plan(
        action(0, hold=150, ttl=300),
        action(1, rest=100, hold=10),
        faults=(Fault(100, "stands still", (0,), 1_000),),
    )
    outcome = run(both)
    assert not outcome.broken, outcome.story()
    lost, *_ = (at for at, who, what in outcome.lines if who == "p0/0" and "LockLost" in what)
    (other,) = (at for at, who, what in outcome.lines if who == "p1/0" and "HOLDS" in what)
    assert other < lost, "it is held by the other before the first one can know"


def test_a_lock_of_a_program_that_dies_is_free_after_its_ttl() -> None:
    outcome = run(
        plan(
            action(0, hold=5_000, ttl=1_000),
            action(1, rest=100),
            faults=(Fault(500, "dies", (0,), 0),),
        )
    )
    assert not outcome.broken, outcome.story()
    (got,) = (at for at, who, what in outcome.lines if who == "p1/0" and "HOLDS" in what)
    assert 1.3 < got < 1.7  # the last extension was at about 0.4 s
    assert "released" not in texts(outcome, "p0")


def test_a_sleeping_machine_counts_no_timers_and_ages_its_leases() -> None:
    clock = Clock()
    loop = Loop(clock)
    done: list[float] = []
    loop.call_later(1.0, lambda: done.append(clock.now))
    clock.run(lambda: False, 0.5)
    loop.asleep += 10.0
    loop.still_until = 10.5
    assert clock.run(lambda: bool(done), 20.0)
    assert done == [pytest.approx(11.0)]
    assert loop.boottime() - loop.time() == 10.0
    loop.close()


def test_one_loop_stands_still_and_another_runs() -> None:
    clock = Clock()
    first, second = Loop(clock), Loop(clock)
    ran: list[str] = []

    async def work(name: str) -> None:
        for _ in range(3):
            await asyncio.sleep(0.1)
            ran.append(f"{name} {clock.now:.1f}")

    first.still_until = 1.0
    tasks = [first.create_task(work("a")), second.create_task(work("b"))]
    assert clock.run(lambda: all(task.done() for task in tasks), 5.0)
    assert ran == ["b 0.1", "b 0.2", "b 0.3", "a 1.1", "a 1.2", "a 1.3"]
    first.close()
    second.close()


@pytest.mark.parametrize(
    ("name", "found"),
    [("hangs", "timed out"), ("restarts", "quarantined"), ("refuses", "OOM"),
     ("is mute", "timed out"), ("loses replies", "timed out")],
)  # fmt: skip
def test_what_happens_to_two_masters_of_three_stops_all(name: str, found: str) -> None:
    faults = (Fault(100, name, (0, 1), 900 if name != "restarts" else 1),)
    outcome = run(plan(action(0, rest=200, wait=300), faults=faults))
    assert not outcome.broken, outcome.story()
    said = texts(outcome, "p0/0")
    assert "QuorumUnavailableError" in said[-1]
    assert found in said[-1]
    assert outcome.faults[name] == 1


def test_a_key_that_is_left_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from evidence.simulation.run import Program

    close = Program.close

    async def close_and_leave(program: Program) -> None:
        await close(program)
        program.world.masters[0].set("a", "forgotten")

    monkeypatch.setattr(Program, "close", close_and_leave)
    assert run(plan(action(0))).promises == ("keys_left",)


def test_the_place_of_a_waiter_whose_replies_were_lost_is_told() -> None:
    outcome = run(
        replace(
            plan(
                action(0, "permit", names=("s",), ttl=1_000, hold=1_438),
                action(0, "permit", names=("s",)),
                faults=(Fault(1_291, "loses replies", (0,), 255),),
                masters=1,
            ),
            seed=1103,
        )
    )
    assert not outcome.broken, outcome.story()


def test_a_body_acquires_its_lock_again() -> None:
    outcome = run(plan(action(0, hold=60, again=2), action(1, rest=20, apart=True)))
    assert not outcome.broken, outcome.story()
    said = [what.partition(" until")[0] for _, _, what in outcome.lines if "HOLDS" in what][:4]
    assert said == ["HOLDS", "HOLDS it again", "HOLDS it again", "HOLDS"]


def test_a_task_is_cancelled_at_a_moment() -> None:
    outcome = run(plan(action(0, hold=500, stopped=100)))
    assert not outcome.broken, outcome.story()
    (at,) = (at for at, who, what in outcome.lines if who == "p0/0" and what == "was cancelled")
    assert 0.1 <= at < 0.2


def test_a_task_that_goes_on_after_its_cancellation_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from evidence.simulation.run import Section

    run_section = Section.run

    async def go_on(section: Section) -> None:
        try:
            await run_section(section)
        except asyncio.CancelledError:
            await asyncio.sleep(section.action.rest)

    monkeypatch.setattr(Section, "run", go_on)
    one = action(0, rest=2, hold=500, stopped=100)
    assert run(plan(one)).promises == ("progress",)
    assert run(plan(replace(one, rest=0))).promises == ("errors",)


# What it sees.

SEEN = ("majority-minority", "validity-from-answers", "release-any", "hold-at-least-ignored")


@pytest.mark.spread(0)
@pytest.mark.parametrize("name", SEEN)
def test_a_planted_defect_is_seen(name: str) -> None:
    (mutant,) = planted([name])
    found = find(mutant, 300)
    assert found.seed is not None, f"{found.seeds} seeds do not see it"
    assert found.broken


def test_a_restart_guard_that_is_off_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    unguarded = functools.partial(redlock_aio.Redlock, restart_guard="off")
    monkeypatch.setattr(simulation, "Redlock", unguarded)
    broken = (seed for seed in range(50) if "exclusion" in run(draw(seed)).promises)
    first = next(broken)
    page = (ROOT / "docs/explanation/testing.md").read_text()
    assert f"With the restart guard switched off, the first seed that fails is {first}:" in page


def test_a_plan_is_made_smaller_for_as_long_as_it_fails() -> None:
    whole = next(
        one
        for one in map(draw, range(1_000))
        if len(one.faults) > 3
        and any(each.name == "restarts" for each in one.faults)
        and sum(each.kind == "fenced" for each in one.actions) > 2
    )
    tried = []

    def fails(smaller: Plan) -> bool:
        tried.append(smaller)
        fenced = [each for each in smaller.actions if each.kind == "fenced"]
        return bool(fenced) and any(each.name == "restarts" for each in smaller.faults)

    small = shrink(whole, fails)
    (only,), (fault,) = small.actions, small.faults
    assert (only.kind, only.cancelled, only.rest, only.wait) == ("fenced", None, 0, None)
    assert (fault.name, len(fault.targets)) == ("restarts", 1)
    assert small.programs == 1
    assert not small.jitter
    assert all(set(each.targets) <= set(range(len(small.latencies))) for each in small.faults)
    assert len(tried) < 500


def test_a_plan_that_does_not_fail_smaller_stays() -> None:
    whole = draw(3)
    assert shrink(whole, lambda smaller: smaller == whole) == whole


# The command and its log.


def test_the_log_goes_on_where_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--jobs", "1", "--chunk", "2", "--output", str(tmp_path)]
    assert command.main(["--seeds", "0-2", *words]) == 0
    with (tmp_path / LOG).open("a") as file:
        file.write('{"first": 3, "la')  # it was ended in the midst of a line
    assert command.main(["--seeds", "0-3", *words]) == 0
    lines = [json.loads(line) for line in (tmp_path / LOG).read_text().splitlines()]
    assert [(line["first"], line["last"]) for line in lines] == [(0, 1), (2, 2), (3, 3)]
    assert all(line["hours"] > 0 and line["facts"]["commit"] for line in lines)
    assert "**4 seeds, none broke a promise**" in (tmp_path / PAGE).read_text()
    capsys.readouterr()
    assert command.main(["--seeds", "0-3", *words]) == 0
    assert "has all of these seeds" in capsys.readouterr().out


def test_a_seed_that_fails_is_logged_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = Chunk(0, 0, 0.1, 1, {"hangs": 1}, {"0": ["exclusion"]}, 0.1)
    monkeypatch.setattr(command, "simulated", lambda *_: iter([failing]))

    def broken(one: Plan) -> Outcome:
        return Outcome(one, [("exclusion", "two held it")])

    monkeypatch.setattr(command, "run", broken)
    assert command.main(["--seeds", "0-9", "--output", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert "seed 0 failed: exclusion" in said
    assert "Made smaller" in said
    assert "The last one that failed is seed 0: exclusion" in (tmp_path / PAGE).read_text()


def test_seeds_that_are_missing() -> None:
    chunks = [Chunk(10, 19), Chunk(0, 4), Chunk(30, 99)]
    assert missing(chunks, 0, 49) == [(5, 9), (20, 29)]
    assert missing(chunks, 40, 120) == [(100, 120)]
    assert missing([], 3, 4) == [(3, 4)]
    assert missing(chunks, 0, 4) == []


def test_chunks_add_up() -> None:
    first, second = Chunk(0, 24, 0.5, 3, {"hangs": 2}, {}, 1.0), Chunk(25, 49, 0.25, 4, {}, {}, 1.0)
    second.faults, second.failed = {"hangs": 1, "dies": 1}, {"30": ["tokens"]}
    first.join(second)
    assert (first.seeds, first.hours, first.sections) == (50, 0.75, 7)
    assert first.faults == {"dies": 1, "hangs": 3}
    page = report([first])
    assert "**50 seeds, 1 broke a promise**" in page
    assert "| hangs | a master | answers nothing" in page
    assert log.WHAT.keys() >= FAULTS.keys()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "one of --seed, --seeds and --minutes says what to run"),
        (["--seeds", "9-3"], "seeds are FROM-TO, such as 0-99999, not '9-3'"),
        (["--minutes", "0"], "--minutes is a positive number, not '0'"),
        (["--seeds", "0-3", "--jobs", "many"], "--jobs is a positive number, not 'many'"),
    ],
)
def test_a_wrong_command_says_what_is_wanted(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.parse(words)
    assert says in capsys.readouterr().err


@pytest.mark.spread(0)
@pytest.mark.skipif(sys.platform != "linux", reason="it looks into /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_processes(number: signal.Signals, tmp_path: Path) -> None:
    process = start("--seeds", "0-99999", "--chunk", 1, "--jobs", 2, "--output", tmp_path)
    ends = time.monotonic() + PATIENCE
    while not (tmp_path / LOG).exists():
        assert time.monotonic() < ends, "it has begun"
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert children
    process.send_signal(number)
    said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode in {128 + number, -number}, said
    assert "Traceback" not in said
    while left := [child for child in children if Path(f"/proc/{child}").exists()]:
        assert time.monotonic() < ends + PATIENCE, left  # one of `multiprocessing` ends after it
        time.sleep(0.05)
    lines = (tmp_path / LOG).read_text().splitlines()
    assert all(json.loads(line) for line in lines), "each line is whole"
