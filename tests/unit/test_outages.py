"""Waits without a majority: their log lines, and waits that end at once."""

import asyncio
import contextlib
import errno
import logging
import os
import pickle
import re
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.exceptions import AuthenticationError, NoPermissionError, ResponseError

from redlock_aio import Answer, NoVoteCause, QuorumUnavailableError, Redlock, Retry, Vote
from redlock_aio._engine.outages import AGAIN
from redlock_aio._protocol import replies
from redlock_aio._protocol.request import NoReply
from redlock_aio._rules.quorum import is_final
from redlock_aio._transport.address import UnconfirmedError, why_not_connected as why
from redlock_aio._transport.connection import MasterError, info_of
from redlock_aio.testing import FakeMaster

from .kit import delete, hang, kill, now, occupy, refused, restart, resume, slow

WAYS = pytest.mark.parametrize(
    ("names", "options"),
    [
        (("r",), {"fencing": True}),
        (("r",), {"fair": True}),
        (("q", "r"), {}),
        (("q", "r"), {"fair": True, "fencing": True}),
    ],
    ids=["fenced", "fair", "two keys", "two keys, fair and fenced"],
)


@pytest.fixture(autouse=True)
def all_levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "redlock_aio")


@contextlib.asynccontextmanager
async def waiting(
    redlock: Redlock, *names: str, tasks: int = 1, **options: Any
) -> AsyncIterator[list[asyncio.Task[Any]]]:
    """Start tasks that wait without a limit; at the end, cancel them and release their leases."""
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
    """Return the lines about outages; those about single masters are left out."""
    records = [record for record in caplog.records if "majority" in record.getMessage()]
    assert all(record.name == "redlock_aio" for record in caplog.records)
    for record in records:
        over = record.getMessage().startswith("a majority of the masters answers again")
        assert record.levelno == (logging.INFO if over else logging.WARNING)
    return [record.getMessage() for record in records]


# The log


@WAYS
@pytest.mark.spread(0)
async def test_an_outage_is_logged_once_for_each_reason_and_so_is_its_end(
    redlock: Redlock,
    masters: list[FakeMaster],
    caplog: pytest.LogCaptureFixture,
    names: tuple[str, ...],
    options: dict[str, bool],
) -> None:
    kill(masters[:3])
    await asyncio.sleep(0.1)
    async with waiting(redlock, *names, tasks=10, **options):
        await asyncio.sleep(10)
        [first] = outages(caplog)
        for _ in range(3):
            for error in ("OOM command not allowed", ""):
                for master in masters[3:]:
                    master.error = error
                await asyncio.sleep(3)
        restart(masters[:3])
        await asyncio.sleep(5)
    assert first.startswith(", ".join(map(repr, names)) + ": waiting for a majority")
    assert all(f"m{number}: unreachable" in first for number in range(3))
    assert all(f"m{number}: " in first for number in (3, 4))
    assert "OOM" not in first
    second, end = outages(caplog)[1:]
    assert "m3: error, OOM command not allowed" in second
    assert end.startswith("a majority of the masters answers again, after 2")


async def test_the_log_says_how_long_the_locks_that_are_left_still_live(
    redlock: Redlock, masters: list[FakeMaster], caplog: pytest.LogCaptureFixture
) -> None:
    await asyncio.sleep(100)
    kill(masters[:3])
    occupy(masters[3:], ttl=3_000)
    async with waiting(redlock, "r"):
        await asyncio.sleep(1)
    (line,) = outages(caplog)
    left = [int(ms) for ms in re.findall("held by another, ([0-9]+) ms left", line)]
    assert len(left) == 2
    assert all(2_000 < ms <= 3_000 for ms in left)


@pytest.mark.full
async def test_many_resources_and_waits_that_come_and_go_do_not_flood_the_log(
    redlock: Redlock, masters: list[FakeMaster], caplog: pytest.LogCaptureFixture
) -> None:
    hang(masters[:3])
    for turn in range(4):
        async with contextlib.AsyncExitStack() as stack:
            for number in range(5):
                await stack.enter_async_context(waiting(redlock, f"r{number}"))
            await asyncio.sleep(AGAIN / 10)
            if turn == 2:  # the outage ends, and another one begins
                resume(masters[:3])
                await asyncio.sleep(1)
                hang(masters[:3])
    first, second = outages(caplog)
    assert "waiting for a majority" in first
    assert "answers again" in second


async def test_a_reason_that_comes_back_after_a_while_is_logged_again(
    redlock: Redlock, masters: list[FakeMaster], caplog: pytest.LogCaptureFixture
) -> None:
    """A time without waiters does not count as a part of the next outage."""
    for pause in (AGAIN, 3600):
        kill(masters[:3])
        async with waiting(redlock, "r"):
            await asyncio.sleep(3)
            if pause == AGAIN:
                restart(masters[:3])
                await asyncio.sleep(3)
        restart(masters[:3])
        await asyncio.sleep(pause)
    kill(masters[:3])
    async with waiting(redlock, "r"):
        await asyncio.sleep(3)
        restart(masters[:3])
        await asyncio.sleep(3)
    lines = outages(caplog)
    assert ["again, after" in line for line in lines] == [False, True, False, False, True]
    assert 3 <= float(lines[-1].partition("again, after ")[2].removesuffix(" s")) < 6


@pytest.mark.full
async def test_an_outage_goes_on_while_masters_answer_and_refuse_to_write(
    redlock: Redlock, masters: list[FakeMaster], caplog: pytest.LogCaptureFixture
) -> None:
    """
    Each PING is answered then, and lets tasks pass, but none of them gets a lock.

    They wait for the PING if the masters are further away than a pause is long.
    """
    slow(masters, 0.02)
    for master in masters[:3]:
        master.error = "OOM command not allowed"
    async with waiting(redlock, "r", retry=Retry(min_delay=5, max_delay=5)):
        await asyncio.sleep(30)
        for master in masters[:3]:
            master.error = ""
        await asyncio.sleep(5)
    begin, end = outages(caplog)
    assert "m0: error, OOM command not allowed" in begin
    assert end.startswith("a majority of the masters answers again, after 30.")


@pytest.mark.parametrize("fair", [False, True])
async def test_contention_is_no_outage(
    redlock: Redlock, masters: list[FakeMaster], caplog: pytest.LogCaptureFixture, *, fair: bool
) -> None:
    masters[0].kill()
    masters[1].hang()
    async with redlock.lock("r", ttl=60_000), waiting(redlock, "r", tasks=5, fair=fair):
        await asyncio.sleep(30)
    assert not outages(caplog)


async def test_masters_that_have_not_answered_yet_are_no_outage(
    redlock: Redlock, there: Redlock, masters: list[FakeMaster], caplog: pytest.LogCaptureFixture
) -> None:
    """An attempt fails by two masters that are down and one that refuses; two are farther away."""
    kill(masters[:2])
    slow(masters[3:], 0.02)
    async with there.lock("r", ttl=60_000):
        await asyncio.sleep(0.1)
        async with waiting(redlock, "r", retry=Retry(min_delay=5, max_delay=5)):
            await asyncio.sleep(1)
    assert not outages(caplog)


# Waits that end at once


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


@WAYS
@CAUSES
@pytest.mark.spread(0)
async def test_a_wait_ends_when_a_majority_refuses_for_good(
    redlock: Redlock,
    masters: list[FakeMaster],
    names: tuple[str, ...],
    options: Any,
    cause: Any,
) -> None:
    """A refusal by a minority ends no wait: a third master is down, and may come back."""
    cause(masters[:2])
    masters[2].kill()
    await asyncio.sleep(0.1)
    async with waiting(redlock, *names, **options) as [waiter]:
        await asyncio.sleep(10)
        assert not waiter.done()
        masters[2].restart()
        await asyncio.sleep(3)
        assert waiter.exception() is None
    cause(masters[:3])
    for wait in (None, 60_000):
        began = now()
        error = await refused(redlock, *names, wait=wait, **options)
        assert now() - began < 0.1
        assert type(error) is QuorumUnavailableError
        assert "the masters refuse permanently" in str(error)
        assert [vote.permanent for vote in error.votes[:3]] == [True] * 3
        assert str(pickle.loads(pickle.dumps(error))) == str(error)


@WAYS
@pytest.mark.parametrize(
    ("faults", "because"),
    [
        ("NOPERM this user has no permissions", "the masters refuse permanently, so waiting"),
        ("OOM command not allowed", "too few masters answered"),
    ],
    ids=["refused for good", "too few answers"],
)
async def test_no_holder_is_named_as_the_reason_if_masters_fail(
    redlock: Redlock,
    other: Redlock,
    masters: list[FakeMaster],
    names: tuple[str, ...],
    options: Any,
    faults: str,
    because: str,
) -> None:
    """A fair waiter still knows who held the lock when the masters answered."""
    async with other.lock(*names, ttl=60_000):
        waiter = asyncio.create_task(redlock.lock(*names, wait=5_000, **options).acquire())
        await asyncio.sleep(2)
        for master in masters:
            master.error = faults
        await asyncio.wait([waiter])
        error = waiter.exception()
        for master in masters:
            master.error = ""
    assert type(error) is QuorumUnavailableError
    assert because in str(error)
    assert "now by" not in str(error)


@WAYS
async def test_a_wait_ends_when_masters_that_were_down_refuse_for_good(
    redlock: Redlock,
    masters: list[FakeMaster],
    names: tuple[str, ...],
    options: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refuse(_master: FakeMaster) -> Any:
        raise MasterError(NoVoteCause.UNSUPPORTED, "a node of a Redis Cluster", permanent=True)

    masters[0].kill()
    masters[1].kill()
    masters[2].kill()
    async with waiting(redlock, *names, **options) as [waiter]:
        await asyncio.sleep(10)
        assert not waiter.done()
        monkeypatch.setattr(FakeMaster, "dial", refuse)
        await asyncio.sleep(2)  # they are dialled twice a second, and a task looks once
        error = waiter.exception()
        assert isinstance(error, QuorumUnavailableError)
        assert [vote.permanent for vote in error.votes[:3]] == [True] * 3


async def test_waiters_in_the_local_queue_give_up_in_turn(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    occupy(masters, ttl=60_000)
    async with waiting(redlock, "r", tasks=5) as waiters:
        await asyncio.sleep(1)
        delete(masters)
        fill(masters)
        await asyncio.sleep(1)
        assert all(isinstance(waiter.exception(), QuorumUnavailableError) for waiter in waiters)
    assert await redlock.lock("r").try_acquire() is None


@pytest.mark.parametrize(
    ("error", "secrets", "permanent"),
    [
        (AuthenticationError("invalid username-password pair"), ("secret",), True),
        (AuthenticationError("invalid username-password pair"), (), False),
        (AuthenticationError("Authentication required."), (), True),
        (NoPermissionError("this user has no permissions to run the 'hello' command"), (), True),
        (
            MasterError(
                NoVoteCause.SERVER_ERROR,
                "NOPERM this user has no permissions to run the 'info' command",
            ),
            (),
            True,
        ),
        (MasterError(NoVoteCause.NOT_A_MASTER, "not a master"), (), False),
        (
            MasterError(NoVoteCause.UNSUPPORTED, "a node of a Redis Cluster", permanent=True),
            (),
            True,
        ),
        (ConnectionRefusedError("refused"), (), False),
        (TimeoutError(), (), False),
    ],
)
def test_failures_to_connect_that_are_permanent(
    error: Exception, secrets: tuple[str, ...], permanent: bool
) -> None:
    """A credential provider may return another password later."""
    assert why(error, secrets, 1.0).permanent is permanent


@pytest.mark.parametrize(
    ("error", "patience", "detail"),
    [
        (TimeoutError(), 1.0, "no connection in 1 s"),
        (TimeoutError(), None, "TimeoutError"),  # that of a credential provider
        (TimeoutError(110, "timed out"), 1.0, "[Errno 110] timed out"),
        (ConnectionError(), 1.0, "ConnectionError"),
    ],
)
def test_a_timeout_is_described_unless_it_has_a_text(
    error: Exception, patience: float | None, detail: str
) -> None:
    bar = why(error, (), patience)
    assert (bar.answer, bar.text, bar.permanent) == (Answer.UNREACHABLE, detail, False)


BOTH_REFUSED = (
    "Error Multiple exceptions: [Errno 111] Connect call failed ('::1', 1, 0, 0), [Errno 111]"
    " Connect call failed ('127.0.0.1', 1) connecting to localhost:1."
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "Error 111 connecting to a:1. Connect call failed ('10.0.0.1', 1).",
            "Connection refused at 10.0.0.1:1",
        ),
        (BOTH_REFUSED, "Connection refused at [::1]:1, 127.0.0.1:1"),
        ("Error -2 connecting to a:1. Name or service not known.", "Name or service not known"),
        ("Error 2 connecting to /tmp/s. No such file or directory.", "No such file or directory"),
        ("Error connecting to a:1.", "Error connecting to a:1."),
        ("[Errno 111] something else", "[Errno 111] something else"),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="the numbers of Linux")
def test_an_address_is_told_once(text: str, shown: str) -> None:
    assert why(ConnectionError(text), (), 1.0).text == shown


def test_an_error_number_without_a_text_is_told_by_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on Windows, whose texts are for the numbers of its C library."""
    monkeypatch.setattr(os, "strerror", lambda _number: "Unknown error")
    monkeypatch.setitem(errno.errorcode, 10061, "ECONNREFUSED")
    for number, shown in ((10061, "ECONNREFUSED"), (10999, "Unknown error")):
        text = f"Error {number} connecting to a:1. Connect call failed ('10.0.0.1', 1)."
        assert why(ConnectionError(text), (), 1.0).text == f"{shown} at 10.0.0.1:1"


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (TimeoutError(), NoVoteCause.NO_CONNECTION),
        (OSError("no route"), NoVoteCause.NO_CONNECTION),
        (UnconfirmedError("1 of 3"), NoVoteCause.UNCONFIRMED),
        (AuthenticationError("invalid password"), NoVoteCause.LOGIN_REFUSED),
        (MasterError(NoVoteCause.SERVER_ERROR, "NOAUTH required"), NoVoteCause.LOGIN_REFUSED),
        (NoPermissionError("no permissions"), NoVoteCause.FORBIDDEN),
        (MasterError(NoVoteCause.SERVER_ERROR, "NOPERM no permissions"), NoVoteCause.FORBIDDEN),
        (MasterError(NoVoteCause.NOT_A_MASTER, "a replica"), NoVoteCause.NOT_A_MASTER),
        (MasterError(NoVoteCause.SAME_SERVER, "the same"), NoVoteCause.SAME_SERVER),
        (ResponseError("unknown command 'HELLO'"), NoVoteCause.UNSUPPORTED),
        (ResponseError("MISCONF"), NoVoteCause.SERVER_ERROR),
    ],
)
def test_a_failure_to_connect_has_a_cause(error: Exception, cause: NoVoteCause) -> None:
    assert why(error, (), 1.0).cause is cause


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        ("unknown command `HELLO`", "the server must be Redis 6 or newer, or any Valkey: "),
        ("NOPROTO unsupported protocol version", "the server must be Redis 6 or newer"),
        ("ERR unknown command 'SCRIPT'", "the server lacks a command that a master needs: "),
    ],
)
def test_only_a_server_without_the_protocol_is_called_too_old(reply: str, text: str) -> None:
    """A new one may lack a command, because it was renamed or because a service refuses it."""
    bar = why(ResponseError(reply), (), 1.0)
    assert bar.text.startswith(text)
    assert bar.text.endswith(reply)


@pytest.mark.parametrize(
    ("reply", "error", "text"),
    [
        (NoReply(Answer.UNREACHABLE, "cut"), ConnectionError, "^cut$"),
        (Exception("BUSY"), MasterError, "^BUSY$"),
        (7, MasterError, "^INFO is answered with a int$"),
        (b"role:slave\r\nrun_id:x\r\n", MasterError, "^not a master but a slave$"),
    ],
)
def test_a_server_whose_info_is_missing_or_wrong_has_no_vote(
    reply: object, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        info_of(reply)


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
def test_replies_that_are_permanent(text: str, permanent: bool) -> None:
    assert replies.classify(Exception(text)).permanent is permanent


@pytest.mark.parametrize(
    ("masters", "permanent", "final"),
    [(0, 0, False),
     (1, 0, False), (1, 1, True), (2, 1, True), (3, 1, False), (3, 2, True), (4, 1, False),
     (4, 2, True), (5, 2, False), (5, 3, True)],
)  # fmt: skip
def test_a_wait_is_over_when_no_majority_is_left(masters: int, permanent: int, final: bool) -> None:
    votes = [Vote(f"m{i}", Answer.ERROR, permanent=i < permanent) for i in range(masters)]
    assert is_final(votes) is final


def test_whether_a_vote_is_permanent_is_no_part_of_its_value() -> None:
    vote = Vote("m0", Answer.ERROR, "x")
    permanent = Vote("m0", Answer.ERROR, "x", permanent=True)
    assert vote == permanent
    assert repr(vote) == repr(permanent)
    assert (vote.permanent, permanent.permanent) == (False, True)
