"""Helpers of unit tests: kinds of locks, virtual time, faults and contents of masters."""

import asyncio
import itertools
import math
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from types import FrameType
from typing import Any, TypeVar

import hiredis
import pytest

from redlock_aio import Lease, LockNotAcquiredError, Redlock, Retry, Vote
from redlock_aio._engine.session import Session
from redlock_aio._protocol import commands
from redlock_aio._protocol.commands import MARKER, queue_keys
from redlock_aio._protocol.primitives import FencingCounter
from redlock_aio._protocol.scripts import Script
from redlock_aio._rules import timing
from redlock_aio._rules.lock_value import SHARED
from redlock_aio.testing import FakeMaster, VirtualTimeLoop
from redlock_aio.testing._fake_commands import EPOCH
from redlock_aio.testing._fake_pushes import PushReceiver

T = TypeVar("T")
Kind = dict[str, Any]
Masters = list[FakeMaster]

LATENCY = 0.001
"""The round trip to a fake master, in seconds."""

NEVER = Retry(min_delay=3_600_000, max_delay=3_600_000)
"""Retries that come too late for any test: a waiter with this policy needs a wake-up."""

MAX_TTL = 10_000
QUARANTINE = timing.forgetting(MAX_TTL, factor=timing.DRIFT_FACTOR)
"""The length of a quarantine with `guarded`, in seconds."""

KINDS: list[Kind] = [{}, {"fencing": True}, {"fair": True}, {"fair": True, "fencing": True}]
NAMES_OF_KINDS = ["plain", "fenced", "fair", "fair and fenced"]
MARKS: list[Any] = [(), pytest.mark.full, pytest.mark.full, ()]
"""The marks of the four kinds: the short run has a plain lock, and one that is all at once."""
KIND = pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=marks) for kind, marks in zip(KINDS, MARKS, strict=True)],
    ids=NAMES_OF_KINDS,
)
KEYS = pytest.mark.parametrize("names", [("r",), ("q", "r")], ids=["one key", "two keys"])

KINDS_AND_KEYS = pytest.mark.parametrize(
    ("names", "options"),
    [
        pytest.param(names, kind, marks=marks)
        for names in [("r",), ("q", "r")]
        for kind, marks in zip(KINDS, MARKS, strict=True)
    ],
    ids=[f"{kind}, {keys}" for keys in ["one key", "two keys"] for kind in NAMES_OF_KINDS],
)
"""Each kind of lock, on one key and on two."""


# The inside of a manager


def session(redlock: Redlock) -> Session:
    """Return the session of *redlock* in this loop: the one way from a manager to the engine."""
    return redlock._opener.session()


# Time and tasks


def loop() -> VirtualTimeLoop:
    """Return the running loop."""
    running = asyncio.get_running_loop()
    assert isinstance(running, VirtualTimeLoop)
    return running


def now() -> float:
    """Return the running loop's time, in seconds."""
    return asyncio.get_running_loop().time()


def cancelling() -> int:
    """Return the number of cancellations that the current task has not handled."""
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


async def in_coroutine(awaitable: Awaitable[T]) -> T:
    """Await *awaitable*: a task needs a coroutine, which `cancelled_at` does not return."""
    return await awaitable


def interrupted(call: Callable[[], object], place: int, act: Callable[[], object]) -> bool:
    """Call *call*, and *act* before byte code number *place* of it; return whether it has one."""
    codes = itertools.count()
    acted = False

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal acted
        frame.f_trace_opcodes = True
        if event == "opcode" and not acted and next(codes) == place:
            acted = True
            act()
        return trace

    before = sys.gettrace()
    # Python 3.12 traces byte codes only if a frame has asked for it before `settrace`.
    sys._getframe().f_trace_opcodes = True
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return acted


# Faults of masters


def hang(masters: Iterable[FakeMaster]) -> None:
    """Make *masters* hang: they reply to nothing until they resume."""
    for master in masters:
        master.hang()


def resume(masters: Iterable[FakeMaster]) -> None:
    """Resume hung *masters*; they execute the requests that have arrived meanwhile."""
    for master in masters:
        master.resume()


def kill(masters: Iterable[FakeMaster]) -> None:
    """Stop *masters*: connections to them break and cannot be made."""
    for master in masters:
        master.kill()


def restart(masters: Iterable[FakeMaster]) -> None:
    """Restart *masters* without their keys."""
    for master in masters:
        master.restart()


def slow(masters: Iterable[FakeMaster], latency: float) -> None:
    """Give *masters* a round trip of *latency* seconds."""
    for master in masters:
        master.latency = latency


def fail(masters: Iterable[FakeMaster], error: str = "OOM command not allowed") -> None:
    """Make *masters* refuse commands with *error*; "" ends that."""
    for master in masters:
        master.error = error


async def until(true: Callable[[], bool]) -> None:
    """Wait until *true* returns True, for at most a minute."""
    for _ in range(12_000):
        if true():
            return
        await asyncio.sleep(0.005)
    raise AssertionError


async def settle(masters: Iterable[FakeMaster], seconds: float = 3) -> None:
    """Resume *masters* and wait until they have executed all requests sent to them."""
    resume(masters)
    await asyncio.sleep(seconds)


def guarded(masters: Masters, **options: Any) -> Redlock:
    """Return a manager with a restart guard, and with quarantines of `QUARANTINE` seconds."""
    return Redlock(masters, max_ttl=MAX_TTL, **options)


# Other clients and the keys of locks


def occupy(masters: Iterable[FakeMaster], name: str = "r", ttl: int | None = None) -> None:
    """Lock *name* on *masters* for another client, for *ttl* ms or until the key is deleted."""
    for master in masters:
        master.set(name, "theirs", ttl)


def delete(masters: Iterable[FakeMaster], name: str = "r") -> None:
    """Delete the key *name* on *masters*."""
    for master in masters:
        master.delete(name)


def before(master: FakeMaster, script: Script, act: Callable[[], object]) -> None:
    """Make *master* call *act* each time before it runs *script*."""
    execute = master.execute

    def acting(command: list[bytes], listener: PushReceiver | None = None) -> object:
        if script.sha in command:
            act()
        return execute(command, listener)

    # The instance is changed, not the class.
    vars(master)["execute"] = acting


def execute(master: FakeMaster, payload: bytes) -> object:
    """Run a packed command on *master*, as another client does; return its reply."""
    reader = hiredis.Reader()
    reader.feed(payload)
    return master.execute(reader.gets())


# Contents of masters, and the commands that they received


def keys(masters: Iterable[FakeMaster]) -> list[dict[str, str]]:
    """Return the locks and counters of each master; queues are left out."""
    return [master.keys for master in masters]


def locks(masters: Iterable[FakeMaster]) -> dict[str, str]:
    """Return the locks and the permits that any master has, by key."""
    found = {key: value for master in masters for key, value in master.keys.items()}
    return {
        key: value
        for key, value in found.items()
        if not key.startswith("redlock_aio:") or key.startswith("redlock_aio:permit:")
    }


def locks_of_each(masters: Iterable[FakeMaster]) -> list[dict[str, str]]:
    """Return the locks of each master, by key."""
    return [locks([master]) for master in masters]


def values(masters: Iterable[FakeMaster], name: str = "r") -> list[str | None]:
    """Return the value of the key *name* on each master."""
    return [master.keys.get(name) for master in masters]


def has_lock(masters: Iterable[FakeMaster], lease: Lease) -> list[bool]:
    """Return for each master whether its key `r` holds the token of *lease*."""
    return [value == lease.token for value in values(masters)]


def kept_until(master: FakeMaster, name: str, lease: Lease) -> float:
    """Return the instant at which *master* ends *lease*; minus infinity if it has it no more."""
    value, until = master._keys.get(name.encode(), (b"", -math.inf))
    token = lease.token.encode()
    if not lease.shared:
        return until if value == token else -math.inf
    shares, _ = master._keys.get(commands.shares_key(name.encode()), ({}, 0.0))
    assert isinstance(shares, dict)
    if value != SHARED or token not in shares:
        return -math.inf
    return min(until, shares[token] / 1000 - EPOCH - master.clock_offset)


def remaining_keys(masters: Iterable[FakeMaster], *, counters: bool = True) -> list[bytes]:
    """Return all keys of locks and queues that are left, and fencing counters if requested."""
    permanent = [MARKER, commands.DECLARED_SETS] + ([] if counters else [b"redlock_aio:fence:"])
    found = [(key, until) for master in masters for key, (_, until) in master._keys.items()]
    return [key for key, until in found if now() < until and not key.startswith(tuple(permanent))]


def queued(master: FakeMaster) -> list[bytes]:
    """Return the members of the fair queue of `r`, in order."""
    (queue,) = queue_keys(b"r")
    value = master._keys.get(queue, ({}, 0))[0]
    assert isinstance(value, dict)
    members = [member for member in value if not member.startswith(b"~")]
    return sorted(members, key=lambda member: value[member])


def commands_received(masters: Iterable[FakeMaster]) -> list[int]:
    """Return how many commands each master has received."""
    return [len(master.commands) for master in masters]


def runs_of(master: FakeMaster, script: Script) -> list[list[bytes]]:
    """Return the commands that asked *master* to run *script*."""
    return [command for command in master.commands if command[:2] == [b"EVALSHA", script.sha]]


def ran(master: FakeMaster, script: Script) -> int:
    """Return how often *master* was asked to run *script*."""
    return sum(script.sha in command for command in master.commands)


# Clients


async def acquired_at(redlock: Redlock, *names: str, hold: float = 0.0, **options: Any) -> float:
    """Acquire the lock, hold it for *hold* seconds, and return when it was acquired."""
    async with redlock.lock(*(names or ("r",)), **{"retry": NEVER} | options):
        acquired = now()
        if hold:
            await asyncio.sleep(hold)
        return acquired


async def fair_acquired_at(redlock: Redlock, *, ttl: int = 10_000, hold: float = 0.0) -> float:
    """Acquire the fair lock on `r` with the manager's retries; otherwise as `acquired_at`."""
    return await acquired_at(redlock, fair=True, retry=None, ttl=ttl, hold=hold)


def waiting_fair(redlock: Redlock, **options: Any) -> asyncio.Task[float]:
    """Return a task that runs `fair_acquired_at`."""
    return asyncio.create_task(fair_acquired_at(redlock, **options))


async def refused(redlock: Redlock, *names: str, **options: Any) -> LockNotAcquiredError:
    """Return the error of an acquisition that fails; without a *wait* it does not wait."""
    with pytest.raises(LockNotAcquiredError) as caught:
        await redlock.lock(*(names or ("r",)), **{"wait": 0} | options).acquire()
    return caught.value


async def gets_lock(redlock: Redlock, name: str = "r") -> bool:
    """Acquire the lock and release it; return whether it was free."""
    lease = await redlock.lock(name, wait=0, ttl=500).try_acquire()
    if lease is not None:
        await lease.release()
    return lease is not None


async def votes(redlock: Redlock, name: str = "probe") -> tuple[Vote, ...]:
    """Return all votes of one attempt, and release the lock."""
    try:
        async with redlock.lock(name, wait=0, ttl=500) as lease:
            await asyncio.sleep(0.02)  # wait for the votes of slower masters
            return lease.votes
    except LockNotAcquiredError as error:
        return error.votes


async def answers(redlock: Redlock, name: str = "probe") -> str:
    """Return the first letter of each master's answer to one attempt."""
    return "".join(vote.answer.name[0] for vote in await votes(redlock, name))


async def check_no_keys(masters: Sequence[FakeMaster]) -> None:
    """Wait a moment, and check that no master has a lock or a counter."""
    await settle(masters, 1)
    assert keys(masters) == [{}] * len(masters)


async def check_freed(masters: Sequence[FakeMaster]) -> None:
    """Check that no master has a lock once it has executed all requests sent to it."""
    await settle(masters, 0.5)
    assert locks_of_each(masters) == [{}] * len(masters)


async def check_nothing_stays(managers: Iterable[Redlock], masters: Sequence[FakeMaster]) -> None:
    """Check that no lock is left except those of other clients, and no waiter."""
    await settle(masters, 0.2)
    assert not [value for value in locks(masters).values() if "their" not in value]
    for manager in managers:
        assert all(line.idle for line in session(manager).local_queues.by_key.values())


# Fencing counters

LEAD = 2**53
"""A lead with which masters accept any proposal of a token."""


def fence(name: str = "r") -> str:
    """Return the key of the counter of a resource."""
    return FencingCounter((name.encode(),), LEAD).keys[0].decode()


def counter(master: FakeMaster, name: str = "r") -> int:
    """Return the value of a counter, without the mark of a holder that lifted it."""
    return int(master.keys[fence(name)].partition(".")[0])


def count_up(master: FakeMaster, by: int = 1, name: str = "r") -> int:
    """Raise a counter as a grant to another client does; return its new value."""
    value = counter(master, name) + by
    master.set(fence(name), f"{value:016}")
    return value


def count_other_holder(masters: Sequence[FakeMaster], name: str = "r") -> int:
    """Raise the counters of free masters, as another holder's lock does; return its token."""
    free = [master for master in masters if name not in master.keys]
    if 2 * len(free) <= len(masters):
        return 0
    token = max(counter(master, name) for master in free) + 1
    for master in free:
        master.set(fence(name), f"{token:016}")
    return token
