"""Passwords and tokens are in no text: not in votes, errors, logs or reprs."""

import logging
import re
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis
from redis.credentials import UsernamePasswordCredentialProvider

from redlock_aio import Answer, LockNotAcquiredError, QuorumUnavailableError, Redlock

from .helpers import TIMEOUT, detail, until
from .servers import process
from .speaker import old_redis, speaker

pytestmark = [pytest.mark.integration, pytest.mark.promise("S10")]

PASSWORD = "Tr0ub4dor&3-and-more"


@pytest.fixture
async def old() -> AsyncIterator[str]:
    """Where a Redis is that is too old."""
    async with speaker(old_redis) as where:
        yield where


async def everything_said(redlock: Redlock, caplog: pytest.LogCaptureFixture) -> str:
    """Return all texts that a user could see of an attempt that fails."""
    with caplog.at_level(logging.DEBUG):
        with pytest.raises(QuorumUnavailableError) as caught:
            await redlock.lock("r", wait=0).acquire()
        await until(lambda: "ERROR" in detail(redlock, 0))
    error = caught.value
    return " ".join((
        str(error), repr(error), repr(error.votes), repr(error.args), repr(redlock),
        repr(redlock._opener.session().links), repr(redlock._opener.settings.diallers),
        repr(redlock.__dict__), caplog.text,
    ))  # fmt: skip


@pytest.mark.parametrize("login", [":{}", "nobody:{}", "default:{}"])
async def test_a_wrong_password_is_the_masters_vote_and_is_not_told(
    kind: str, login: str, caplog: pytest.LogCaptureFixture
) -> None:
    """72: the vote says what is wrong, and nothing says what was sent."""
    with process(kind, "--requirepass", "right") as master:
        url = f"redis://{login.format(PASSWORD)}@127.0.0.1:{master.port}"
        async with Redlock([url]) as redlock:
            said = await everything_said(redlock, caplog)
            assert PASSWORD not in said
            with pytest.raises(QuorumUnavailableError) as caught:
                await redlock.lock("r", wait=0).acquire()
            vote = caught.value.votes[0]
            assert vote.answer is Answer.ERROR
            assert re.search("password|WRONGPASS", vote.detail, re.IGNORECASE)


async def test_a_password_that_is_missing_is_called_by_its_name(kind: str) -> None:
    """72: a server that wants one is no old server."""
    with process(kind, "--requirepass", PASSWORD) as master:
        async with Redlock([master.url]) as redlock:
            with pytest.raises(QuorumUnavailableError) as caught:
                await redlock.lock("r", wait=0).acquire()
            vote = caught.value.votes[0]
            assert vote.answer is Answer.ERROR
            assert re.search("NOAUTH|[Aa]uthentication", vote.detail)
            assert "newer" not in vote.detail


async def test_an_old_redis_is_told_from_others(old: str, caplog: pytest.LogCaptureFixture) -> None:
    """The vote says which version it must be, once the server has said that it knows no HELLO."""
    async with Redlock([f"redis://{old}"]) as redlock:
        said = await everything_said(redlock, caplog)
    assert "must be Redis 6 or newer" in said


@pytest.mark.parametrize(
    "password",
    [PASSWORD, "x y/z@%:#?&", "long" * 40, 'quo"te`s', "tab\tand\r\nline", "ünïcödé"],
    ids=["short", "signs", "long", "quotes", "lines", "unicode"],
)
@pytest.mark.parametrize("by", ["url", "client", "provider"])
async def test_a_password_that_a_server_repeats_is_not_told(
    old: str, password: str, by: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A Redis that knows no HELLO repeats its arguments, and the password is one of them."""
    from urllib.parse import quote

    host, _, port = old.partition(":")
    client = Redis(host=host, port=int(port), username="app", password=password)
    if by == "provider":
        provider = UsernamePasswordCredentialProvider("app", password)
        client = Redis(host=host, port=int(port), credential_provider=provider)
    url = f"redis://app:{quote(password, safe='')}@{old}"
    async with client, Redlock([url if by == "url" else client]) as redlock:
        said = await everything_said(redlock, caplog)
    assert "must be Redis 6 or newer" in said
    readable = re.sub(r"\s", " ", said)
    for piece in (password, password[:12], password.replace("\r\n", "  ").replace("\t", " ")):
        assert piece not in said
        assert piece not in readable


@pytest.mark.parametrize("length", [1, 60, 100, 120])
async def test_a_token_that_a_server_repeats_is_not_told(
    kind: str, length: int, caplog: pytest.LogCaptureFixture
) -> None:
    """One that does not let us SET prints the arguments up to a length: the key, then the token."""
    with process(kind, "--rename-command", "SET", "") as master:
        async with Redlock([master.url], master_timeout=TIMEOUT, restart_guard="off") as redlock:
            await until(lambda: redlock.statistics().masters[0].up)
            caplog.set_level(logging.DEBUG)
            with pytest.raises(LockNotAcquiredError) as caught:
                await redlock.lock("-" * length, wait=0).acquire()
    assert caught.value.votes[0].answer is Answer.ERROR
    assert "unknown command" in str(caught.value)
    assert not re.search(r"[0-9a-f]{6}", caught.value.votes[0].detail + caplog.text)


async def test_the_token_is_in_no_text_about_a_lease(kind: str) -> None:
    """Only in `Lease.token`, which somebody has to ask for."""
    with process(kind) as master:
        async with Redlock([master.url], master_timeout=TIMEOUT, restart_guard="off") as redlock:
            await until(lambda: redlock.statistics().masters[0].up)
            lease = await redlock.lock("r").acquire()
            session = redlock._opener.session()
            said = " ".join(map(repr, (
                lease, lease._hold, lease._hold.attempt, lease.votes, redlock, redlock._opener,
                session, session.masters, session.watchdog, session.links,
                session.links[0]._connection,
            )))  # fmt: skip
            assert lease.token not in said
            await lease.release()
