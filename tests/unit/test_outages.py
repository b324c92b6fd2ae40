"""Nobody waits in silence without a majority, and nobody waits for what no waiting mends."""

import asyncio
import contextlib
import logging
import pickle
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.exceptions import AuthenticationError, NoPermissionError

from redlock_aio import (
    Answer,
    LockNotAcquiredError,
    QuorumUnavailableError,
    Redlock,
    Vote,
)
from redlock_aio._engine.outages import AGAIN
from redlock_aio._protocol import replies
from redlock_aio._rules.quorum import is_final
from redlock_aio._transport.handshake import MasterError, why
from redlock_aio.testing import FakeMaster

from .kit import delete, hang, kill, now, occupy, restart, resume

WAYS = pytest.mark.parametrize(
    ("names", "options"),
    [
        (("r",), {}),
        (("r",), {"fencing": True}),
        (("r",), {"fair": True}),
        (("q", "r"), {}),
        (("q", "r"), {"fair": True, "fencing": True}),
    ],
    ids=lambda value: "+".join(value) or "plain",
)


@contextlib.asynccontextmanager
async def waiting(
    redlock: Redlock, *names: str, tasks: int = 1, **options: Any
) -> AsyncIterator[list[asyncio.Task[Any]]]:
    """Have tasks that wait for ever; end them and what they get."""
    lock = redlock.lock(*names, **options)
    waiters = [asyncio.create_task(lock.acquire()) for _ in range(tasks)]
    try:
        yield waiters
    finally:
        for waiter in waiters:
            waiter.cancel()
        await asyncio.wait(waiters)
        for waiter in waiters:
            if not waiter.cancelled() and waiter.exception() is None:
                await waiter.result().release()


def outages(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what was logged of outages; what masters say of themselves is something else."""
    said = [record.getMessage() for record in caplog.records]
    assert all(record.name == "redlock_aio" for record in caplog.records)
    return [line for line in said if "majority" in line]


# What is logged.


@WAYS
async def test_an_outage_is_logged_once_with_every_vote_and_so_is_its_end(
    redlock: Redlock,
    masters: list[FakeMaster],
    caplog: pytest.LogCaptureFixture,
    names: tuple[str, ...],
    options: dict[str, bool],
) -> None:
    kill(masters[:3])
    await asyncio.sleep(0.1)
    async with waiting(redlock, *names, tasks=20, **options):
        await asyncio.sleep(30)
        [line] = outages(caplog)
        assert line.startswith(", ".join(map(repr, names)) + ": waiting for a majority")
        assert all(f"m{number}: unreachable" in line for number in range(3))
        assert all(f"m{number}: " in line for number in (3, 4))
        restart(masters[:3])
        await asyncio.sleep(5)
    assert len(outages(caplog)) == 2
    assert outages(caplog)[1].startswith("a majority of the masters answers again, after 3")
    assert {record.levelno for record in caplog.records if "majority" in record.getMessage()} == {
        logging.WARNING
    }


@WAYS
async def test_a_new_reason_is_logged_and_one_that_comes_back_is_not(
    redlock: Redlock,
    masters: list[FakeMaster],
    caplog: pytest.LogCaptureFixture,
    names: tuple[str, ...],
    options: dict[str, bool],
) -> None:
    kill(masters[:3])
    await asyncio.sleep(0.1)
    async with waiting(redlock, *names, **options):
        await asyncio.sleep(3)
        for _ in range(3):
            for master in masters[3:]:
                master.error = "OOM command not allowed"
            await asyncio.sleep(3)
            for master in masters[3:]:
                master.error = ""
            await asyncio.sleep(3)
    first, second = outages(caplog)
    assert "OOM" not in first
    assert "m3: error, OOM command not allowed" in second


async def test_many_resources_and_waits_that_come_and_go_do_not_flood_the_log(
    redlock: Redlock, masters: list[FakeMaster], caplog: pytest.LogCaptureFixture
) -> None:
    hang(masters[:3])
    for turn in range(5):
        async with contextlib.AsyncExitStack() as stack:
            for number in range(10):
                await stack.enter_async_context(waiting(redlock, f"r{number}"))
            await asyncio.sleep(AGAIN / 10)
            if turn == 2:  # it ends, and begins again: those who have met it say so once
                resume(masters[:3])
                await asyncio.sleep(1)
                hang(masters[:3])
    first, second = outages(caplog)
    assert "waiting for a majority" in first
    assert "answers again" in second


async def test_a_reason_that_comes_back_after_a_while_is_logged_again(
    redlock: Redlock, masters: list[FakeMaster], caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        kill(masters[:3])
        async with waiting(redlock, "r"):
            await asyncio.sleep(3)
            restart(masters[:3])
            await asyncio.sleep(3)
        await asyncio.sleep(AGAIN)
    assert len(outages(caplog)) == 4


async def test_an_outage_whose_waiters_all_gave_up_does_not_make_the_next_one_longer(
    redlock: Redlock, masters: list[FakeMaster], caplog: pytest.LogCaptureFixture
) -> None:
    kill(masters[:3])
    async with waiting(redlock, "r"):
        await asyncio.sleep(3)
    restart(masters[:3])
    await asyncio.sleep(3600)
    kill(masters[:3])
    async with waiting(redlock, "r"):
        await asyncio.sleep(3)
        restart(masters[:3])
        await asyncio.sleep(3)
    seconds = float(outages(caplog)[-1].partition("again, after ")[2].removesuffix(" s"))
    assert 3 <= seconds < 6


@pytest.mark.parametrize("fair", [False, True])
async def test_contention_is_no_outage(
    redlock: Redlock, masters: list[FakeMaster], caplog: pytest.LogCaptureFixture, *, fair: bool
) -> None:
    masters[0].kill()
    masters[1].hang()
    async with redlock.lock("r", ttl=60_000), waiting(redlock, "r", tasks=5, fair=fair):
        await asyncio.sleep(30)
    assert not outages(caplog)


# What is raised at once.


def take_permissions(masters: list[FakeMaster]) -> None:
    for master in masters:
        master.forbid |= {"SET", "EVALSHA"}


def move(masters: list[FakeMaster]) -> None:
    for master in masters:
        master.error = "MOVED 3999 127.0.0.1:6381"


def fill(masters: list[FakeMaster]) -> None:
    for master in masters:
        master._data.zadd(b"r", 1, b"theirs")


CAUSES = pytest.mark.parametrize("cause", [take_permissions, move, fill], ids=lambda c: c.__name__)


@pytest.mark.spread(2)
@WAYS
@CAUSES
@pytest.mark.parametrize("wait", [None, 60_000])
async def test_what_no_waiting_mends_is_raised_at_once(
    redlock: Redlock,
    masters: list[FakeMaster],
    names: tuple[str, ...],
    options: Any,
    cause: Any,
    wait: int | None,
) -> None:
    cause(masters[:3])
    began = now()
    with pytest.raises(QuorumUnavailableError, match="no waiting mends") as refused:
        await redlock.lock(*names, wait=wait, **options).acquire()
    assert now() - began < 0.1
    assert [vote.permanent for vote in refused.value.votes[:3]] == [True] * 3
    back = pickle.loads(pickle.dumps(refused.value))
    assert str(back) == str(refused.value)


@pytest.mark.spread(1)
@WAYS
@CAUSES
async def test_a_minority_that_refuses_for_good_ends_no_wait(
    redlock: Redlock,
    masters: list[FakeMaster],
    names: tuple[str, ...],
    options: dict[str, bool],
    cause: Any,
) -> None:
    """Of the others one is away, and comes back."""
    cause(masters[:2])
    masters[2].kill()
    await asyncio.sleep(0.1)
    async with waiting(redlock, *names, **options) as [waiter]:
        await asyncio.sleep(10)
        assert not waiter.done()
        masters[2].restart()
        await asyncio.sleep(3)
        assert waiter.done()
        assert waiter.exception() is None


async def test_a_wait_ends_when_a_majority_comes_to_refuse_for_good(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    """Also for those who wait in the line of this process: each finds out in its turn."""
    occupy(masters, ttl=60_000)
    async with waiting(redlock, "r", tasks=5) as waiters:
        await asyncio.sleep(1)
        delete(masters)
        fill(masters)
        await asyncio.sleep(1)
        assert all(isinstance(waiter.exception(), QuorumUnavailableError) for waiter in waiters)


async def test_try_acquire_says_no_as_ever(redlock: Redlock, masters: list[FakeMaster]) -> None:
    fill(masters)
    assert await redlock.lock("r").try_acquire() is None


# What is permanent.


@pytest.mark.parametrize(
    ("error", "secrets", "permanent"),
    [
        (AuthenticationError("invalid username-password pair"), ("secret",), True),
        (AuthenticationError("invalid username-password pair"), (), False),
        (AuthenticationError("Authentication required."), (), True),
        (NoPermissionError("this user has no permissions to run the 'hello' command"), (), True),
        (MasterError("NOPERM this user has no permissions to run the 'info' command"), (), True),
        (MasterError("not a master"), (), False),
        (ConnectionRefusedError("refused"), (), False),
        (TimeoutError(), (), False),
    ],
)
def test_which_failures_to_connect_no_waiting_mends(
    error: Exception, secrets: tuple[str, ...], permanent: bool
) -> None:
    """A credential provider, whose secret is not known, may have another password later."""
    assert why(error, secrets, 1.0).permanent is permanent


@pytest.mark.parametrize(
    ("text", "permanent"),
    [
        ("NOPERM no permissions", True),
        ("WRONGPASS invalid", True),
        ("NOAUTH Authentication required.", True),
        ("MOVED 1 a:1", True),
        ("WRONGTYPE Operation against a key", True),
        ("OOM command not allowed", False),
        ("LOADING", False),
        ("READONLY", False),
        ("BUSY", False),
        ("CLUSTERDOWN", False),
        ("NOSCRIPT", False),
    ],
)
def test_which_answers_no_waiting_mends(text: str, permanent: bool) -> None:
    assert replies.read(Exception(text)).permanent is permanent


@pytest.mark.parametrize(
    ("masters", "permanent", "final"),
    [(0, 0, False),
     (1, 0, False), (1, 1, True), (2, 1, True), (3, 1, False), (3, 2, True), (4, 1, False),
     (4, 2, True), (5, 2, False), (5, 3, True)],
)  # fmt: skip
def test_a_wait_is_over_when_no_majority_is_left(masters: int, permanent: int, final: bool) -> None:
    votes = [Vote(f"m{i}", Answer.ERROR, permanent=i < permanent) for i in range(masters)]
    assert is_final(votes) is final


def test_a_vote_is_what_it_was() -> None:
    """Whether it is permanent is no part of how it is made, compared or shown."""
    vote = Vote("m0", Answer.ERROR, "x")
    assert vote == Vote("m0", Answer.ERROR, "x", permanent=True)
    assert repr(vote) == repr(Vote("m0", Answer.ERROR, "x", permanent=True))
    assert not vote.permanent
    assert issubclass(QuorumUnavailableError, LockNotAcquiredError)
