"""``redlock run`` ends its command while the lock is still held, in virtual time."""

import asyncio
import json
import math
import random
import signal
from collections.abc import Callable
from typing import Any

import pytest

from redlock_aio import Lease, Redlock
from redlock_aio.cli import supervision
from redlock_aio.cli.exits import Exit, Failure
from redlock_aio.cli.frame import Common, Frame
from redlock_aio.cli.impatience import Impatience
from redlock_aio.cli.output import Output
from redlock_aio.cli.redaction import Redaction
from redlock_aio.cli.run import fitting
from redlock_aio.cli.supervision import Limits, Observed, Supervision

from .kit import Masters, hang, kill, loop, now, resume

pytestmark = pytest.mark.promise("S1")

TTL, GRACE = 30_000, 5_000


class Command:
    """A command in memory: it needs some seconds to end after SIGTERM."""

    group = 77

    def __init__(self, cleans_up: float = 0.0) -> None:
        self.cleans_up = cleans_up
        self.code = 143
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.left = asyncio.Event()  # set when the group is empty
        self.got: list[tuple[int, float]] = []
        self.leader_only = False
        self.is_gone = False
        self.ended_at = math.inf

    @property
    def status(self) -> int:
        return self.code

    def begun(self, *_: object, **__: object) -> "Command":
        """Begin, as the constructor of a child does."""
        return self

    def exit(self, code: int, *, others: bool = False) -> None:
        """End with *code*; perhaps others of its group go on."""
        if not self.ended.done():
            self.code = code
            self.ended_at = now()
            self.ended.set_result(None)
        if not others:
            self.left.set()

    def terminate(self) -> None:
        self.got.append((signal.SIGTERM, now()))
        loop().call_later(self.cleans_up, self.exit, 143)

    def signal(self, number: int) -> bool:
        self.got.append((number, now()))
        if number == signal.SIGKILL:
            self.exit(137)
        return True

    async def gone(self) -> None:
        await asyncio.wait([self.ended])
        if not self.leader_only:
            await self.left.wait()
        self.is_gone = True

    def close(self) -> bool:
        return False


class Watcher:
    """A guardian in memory, which only listens."""

    has_acted = False
    began = 0.0

    def __init__(self, *_: object) -> None:
        self.term_at = self.last_at = math.inf
        self.told = 0

    def watch(self) -> None:
        """Do nothing."""

    def look(self) -> bool:
        return True

    def tell(self, term: float, last: float, number: int = signal.SIGKILL) -> None:
        assert number == signal.SIGKILL
        self.term_at, self.last_at = now() + term, now() + last
        self.told += 1

    def dismiss(self) -> None:
        """Do nothing."""


class Run:
    """A command under a lease of the fake masters."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cleans_up: float) -> None:
        self.command = Command(cleans_up)
        self.guardian = Watcher()
        self.observed = Observed()
        self.lease: Any = None
        self.deadline = math.inf
        monkeypatch.setattr(supervision, "Child", self.command.begun)
        monkeypatch.setattr(supervision, "Guardian", lambda *_: self.guardian)

    async def code(self, lease: Lease, limits: Limits) -> int:
        """Return the exit code."""
        self.lease = lease
        frame = Frame(Common(), Output(Redaction([]), as_json=True), "off")
        return await Supervision(frame, lease, self.observed, limits).run(["x"], {})

    def note_deadline(self) -> None:
        """Note until when the lease is valid without another extension."""
        self.deadline = now() + self.lease.remaining / 1000


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], Run]:
    """Return what makes a command; it takes the seconds that the command needs after SIGTERM."""
    return lambda cleans_up: Run(monkeypatch, cleans_up)


def facts(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Return the last message."""
    last: dict[str, Any] = json.loads(capsys.readouterr().err.splitlines()[-1])
    return last


async def supervised(
    masters: Masters, run: Run, script: Callable[[], Any], limits: Limits, ttl: int = TTL
) -> int:
    """Return the exit code of a run during which *script* happens."""
    async with Redlock(masters, restart_guard="off", listener=run.observed.on_event) as redlock:
        keep = limits.hold_at_least
        lease = await redlock.lock("r", ttl=ttl, on_lost="flag", hold_at_least=keep).acquire()

        async def scripted() -> None:
            try:
                await script()
            except BaseException:
                run.command.exit(99)  # an assertion has failed: the run need not go on
                raise

        task = asyncio.create_task(scripted())
        code = await run.code(lease, limits)
        await task
        return code


@pytest.mark.parametrize("cleans_up", [0.0, 3.0, math.inf])
async def test_the_end_begins_a_grace_before_the_validity_is_over(
    masters: Masters,
    run: Callable[[float], Run],
    cleans_up: float,
    capsys: pytest.CaptureFixture[str],
) -> None:
    trial = run(min(cleans_up, 1e6))

    async def script() -> None:
        await asyncio.sleep(20)
        hang(masters[:3])
        trial.note_deadline()

    assert await supervised(masters, trial, script, Limits(GRACE)) == Exit.LOST
    (first, term_at), *rest = trial.command.got
    assert first == signal.SIGTERM
    assert 0 <= trial.deadline - term_at - GRACE / 1000 - supervision.SPARE / 1000 < 0.01
    if cleans_up == math.inf:
        [(number, killed_at)] = rest
        assert number == signal.SIGKILL
        assert 0.09 < trial.deadline - killed_at < 0.11
    else:
        assert rest == []
    shown = facts(capsys)
    assert (shown["error"], shown["exit_code"]) == ("lost", 79)
    assert shown["command_exit_code"] == (137 if cleans_up == math.inf else 143)
    assert shown["cause"] == "not_extended"


@pytest.mark.seeds(2, full=25)
async def test_no_next_holder_begins_before_the_command_is_gone(
    masters: Masters, run: Callable[[float], Run], seed: int
) -> None:
    """However the masters fail: some hang and come back at any instants."""
    chance = random.Random(seed)
    trial = run(chance.choice([0.0, 1.0, 4.0, 1e6]))
    began: list[float] = []

    async def script() -> None:
        for _ in range(6):
            failing = chance.sample(masters, chance.randint(1, 5))
            hang(failing)
            await asyncio.sleep(chance.uniform(0, 12))
            resume(failing)
            await asyncio.sleep(chance.choice([0, 0.001, 0.5]))

    async def next_holder() -> None:
        other = Redlock(masters, restart_guard="off")
        async with other, other.lock("r", ttl=TTL):
            began.append(now())

    waiting = asyncio.create_task(next_holder())
    loop().call_later(60, trial.command.exit, 0)
    await supervised(masters, trial, script, Limits(2_500), ttl=10_000)
    await waiting
    assert trial.command.ended_at <= began[0]


async def test_an_extension_calls_the_sigkill_off(
    masters: Masters, run: Callable[[float], Run], capsys: pytest.CaptureFixture[str]
) -> None:
    trial = run(20.0)

    async def script() -> None:
        await asyncio.sleep(20)
        hang(masters[:3])
        while not trial.command.got:  # noqa: ASYNC110 - SIGTERM
            await asyncio.sleep(0.1)
        await asyncio.sleep(1)
        resume(masters[:3])
        await asyncio.sleep(10)
        assert trial.lease.valid
        assert trial.guardian.last_at > now() + 10  # it knows of the extension

    assert await supervised(masters, trial, script, Limits(GRACE)) == Exit.LOST
    assert [number for number, _ in trial.command.got] == [signal.SIGTERM]
    assert facts(capsys)["command_exit_code"] == 143


@pytest.mark.parametrize("away", [2, 3, 5])
@pytest.mark.parametrize("fault", [hang, kill])
async def test_a_release_that_no_majority_confirms_is_told(
    masters: Masters,
    run: Callable[[float], Run],
    fault: Callable[[Masters], None],
    away: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    trial = run(0.0)

    async def script() -> None:
        await asyncio.sleep(1)
        fault(masters[:away])
        await asyncio.sleep(0.1)
        trial.command.exit(3)

    assert await supervised(masters, trial, script, Limits(GRACE)) == 3
    shown = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    told = [message for message in shown if "confirmed the release" in message["message"]]
    text = "no majority of the masters has confirmed the release of the lock"
    assert [message["message"] for message in told] == [f"{text}; it may stay for up to 30 s"] * (
        away > 2
    )
    for message in told:
        # Those that refuse are known to be away before others can have answered.
        assert [vote["answer"] for vote in message["masters"]] == [
            *["timed_out" if fault is hang else "unreachable"] * away,
            *["granted" if fault is hang else "timed_out"] * (5 - away),
        ]


async def test_that_a_lock_may_stay_is_told_with_the_patience_for_last_messages(
    masters: Masters, run: Callable[[float], Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    class NotedPatience(Impatience):
        """Notes for how long each message would be awaited."""

        def write(self, line: str) -> None:
            awaited.append((self._ends is not None, json.loads(line)["message"]))

    monkeypatch.setattr(supervision, "Impatience", NotedPatience)
    awaited: list[tuple[bool, str]] = []
    trial = run(0.0)

    async def script() -> None:
        hang(masters[:3])
        trial.command.exit(0)

    assert await supervised(masters, trial, script, Limits(GRACE)) == 0
    [(is_last, told)] = awaited
    assert is_last, "after the moment for messages of a command that runs, nobody would wait"
    assert "it may stay" in told


@pytest.mark.parametrize(
    ("hold_at_least", "told"), [(1_000, "30 s"), (600_000, "9 min 50 s")], ids=["short", "long"]
)
async def test_a_lock_that_may_stay_is_told_with_the_time_for_which_it_is_held_at_least(
    masters: Masters,
    run: Callable[[float], Run],
    hold_at_least: int,
    told: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    trial = run(0.0)

    async def script() -> None:
        await asyncio.sleep(9.5)
        hang(masters[:3])
        trial.command.exit(0)
        await asyncio.sleep(60)
        resume(masters[:3])  # they execute what they were sent
        await asyncio.sleep(0.1)
        keeps: list[Any] = [master.execute([b"PTTL", b"r"]) for master in masters]
        assert (max(keeps) > 500_000) == (hold_at_least > TTL)

    assert await supervised(masters, trial, script, Limits(GRACE, None, False, hold_at_least)) == 0
    assert facts(capsys)["message"].endswith(f"it may stay for up to {told}")


async def test_until_sigterm_an_extension_changes_nothing(
    masters: Masters, run: Callable[[float], Run]
) -> None:
    trial = run(0.0)

    async def script() -> None:
        await asyncio.sleep(20)
        hang(masters[:3])
        trial.note_deadline()
        await asyncio.sleep(trial.deadline - now() - GRACE / 1000 - 0.5)
        resume(masters[:3])
        await asyncio.sleep(60)
        trial.command.exit(3)

    assert await supervised(masters, trial, script, Limits(GRACE)) == 3
    assert trial.command.got == []


async def test_the_lease_is_held_until_the_group_is_empty(
    masters: Masters, run: Callable[[float], Run]
) -> None:
    trial = run(0.0)

    async def script() -> None:
        await asyncio.sleep(1)
        trial.command.exit(5, others=True)
        await asyncio.sleep(100)
        assert trial.lease.valid
        assert trial.lease.remaining > TTL / 2  # extended as before
        trial.command.left.set()

    assert await supervised(masters, trial, script, Limits(GRACE)) == 5
    assert trial.command.got == []


async def test_the_end_of_the_leader_may_be_enough(
    masters: Masters, run: Callable[[float], Run]
) -> None:
    trial = run(0.0)

    async def script() -> None:
        trial.command.exit(5, others=True)

    began = now()
    assert await supervised(masters, trial, script, Limits(GRACE, leader_only=True)) == 5
    assert now() - began < 1


@pytest.mark.parametrize(("cleans_up", "status"), [(1.0, 143), (1e6, 137)])
async def test_a_command_has_a_timeout(
    masters: Masters,
    run: Callable[[float], Run],
    cleans_up: float,
    status: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    trial, began = run(cleans_up), now()

    async def script() -> None:
        """Do nothing."""

    limits = Limits(GRACE, timeout=90_000)
    assert await supervised(masters, trial, script, limits) == Exit.TIMED_OUT
    assert 90 <= trial.command.got[0][1] - began < 90.1
    if status == 137:
        assert 4.99 < trial.command.got[1][1] - trial.command.got[0][1] < 5.01
    shown = facts(capsys)
    assert (shown["error"], shown["command_exit_code"]) == ("timed_out", status)


async def test_the_guardian_acts_only_after_redlock(
    masters: Masters, run: Callable[[float], Run]
) -> None:
    trial = run(0.0)

    async def script() -> None:
        await asyncio.sleep(0.1)
        due = now() + (trial.lease.remaining - GRACE - supervision.SPARE) / 1000
        assert 0.1 < trial.guardian.term_at - due < 0.3  # a moment behind SIGTERM of this process
        for _ in range(1000):
            await asyncio.sleep(0.1)
            # Not before SIGTERM of this process is due, and before the validity is over.
            assert trial.guardian.term_at < math.inf
            assert trial.guardian.term_at > now() + 10
            left = trial.lease.remaining / 1000
            assert trial.guardian.last_at <= now() + left + 0.02
        trial.command.exit(0)

    assert await supervised(masters, trial, script, Limits(GRACE)) == 0
    assert trial.guardian.told < 20  # told when the lease was extended, and not at each look


async def test_a_stop_during_a_look_is_told_by_what_the_guardian_did(
    masters: Masters,
    run: Callable[[float], Run],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The word of the guardian comes after the look at its pipe, and before that at the lease."""
    trial, stops = run(0.0), False

    def look() -> bool:
        nonlocal stops
        if stops:
            stops = False
            loop().stall(60)
            trial.command.exit(137)
            monkeypatch.setattr(trial.guardian, "look", hear)
        return True

    def hear() -> bool:
        trial.guardian.has_acted = True
        return True

    monkeypatch.setattr(trial.guardian, "look", look)

    async def script() -> None:
        nonlocal stops
        await asyncio.sleep(5)
        stops = True

    assert await supervised(masters, trial, script, Limits(GRACE)) == Exit.LOST
    assert "did not run in time; the guardian has sent SIGTERM" in capsys.readouterr().err


async def test_after_a_stop_an_extension_gets_a_chance(
    masters: Masters, run: Callable[[float], Run]
) -> None:
    trial = run(0.0)

    async def script() -> None:
        await asyncio.sleep(5)
        loop().stall(trial.lease.remaining / 1000 - 2)  # less than the grace is left
        await asyncio.sleep(60)
        trial.command.exit(0)

    assert await supervised(masters, trial, script, Limits(GRACE)) == 0
    assert trial.command.got == []


async def test_if_the_command_begins_late_an_extension_gets_a_chance(
    masters: Masters, run: Callable[[float], Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = run(0.0)

    def begin_late(*_: object, **__: object) -> Command:
        loop().stall(TTL / 1000 - 2)  # as on a busy machine; less than the grace is left
        return trial.command

    monkeypatch.setattr(supervision, "Child", begin_late)

    async def script() -> None:
        await asyncio.sleep(60)
        trial.command.exit(0)

    assert await supervised(masters, trial, script, Limits(GRACE)) == 0
    assert trial.command.got == []


async def test_after_a_suspension_beyond_the_validity_sigkill_follows_at_once(
    masters: Masters, run: Callable[[float], Run]
) -> None:
    trial, resumed = run(1e6), math.inf

    async def script() -> None:
        nonlocal resumed
        await asyncio.sleep(5)
        loop().suspend(60)
        resumed = now()

    assert await supervised(masters, trial, script, Limits(GRACE)) == Exit.LOST
    assert [number for number, _ in trial.command.got] == [signal.SIGTERM, signal.SIGKILL]
    assert trial.command.got[-1][1] - resumed <= supervision.LOOK


def test_a_grace_must_leave_half_of_the_ttl() -> None:
    assert fitting(None, 30_000) == 5_000
    assert fitting(None, 2_000) == 500
    assert fitting(15_000, 30_000) == 15_000
    assert fitting(0, 50) == 0
    with pytest.raises(Failure) as caught:
        fitting(15_001, 30_000)
    assert caught.value.code == Exit.USAGE
    wanted = "--grace must be at most 15000 ms, half of the ttl of 30000 ms, not 15001 ms"
    assert str(caught.value) == wanted
