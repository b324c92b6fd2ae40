"""Passwords and tokens are not in votes, errors, logs or reprs."""

import logging
import re
from collections.abc import AsyncIterator
from urllib.parse import quote

import pytest
from redis.asyncio import Redis
from redis.credentials import UsernamePasswordCredentialProvider

from redlock_aio import Answer, LockNotAcquiredError, QuorumUnavailableError, Redlock
from tests.unit import kit

from .helpers import TIMEOUT, detail, until
from .servers import process
from .speaker import old_redis, speaker

pytestmark = [pytest.mark.integration, pytest.mark.promise("S10")]

PASSWORD = "Tr0ub4dor&3-and-more"


@pytest.fixture
async def old() -> AsyncIterator[str]:
    """Return the address of a server that is too old: it knows no HELLO."""
    async with speaker(old_redis) as where:
        yield where


async def everything_shown(redlock: Redlock, caplog: pytest.LogCaptureFixture) -> str:
    """Return all texts that a user could see of a failed attempt."""
    with caplog.at_level(logging.DEBUG):
        with pytest.raises(QuorumUnavailableError) as caught:
            await redlock.lock("r", wait=0).acquire()
        await until(lambda: "ERROR" in detail(redlock, 0))
    error = caught.value
    return " ".join((
        str(error), repr(error), repr(error.votes), repr(error.args), repr(redlock),
        repr(kit.session(redlock).links), repr(redlock._opener.settings.diallers),
        repr(redlock.__dict__), caplog.text,
    ))  # fmt: skip


@pytest.mark.spread(0)
@pytest.mark.parametrize(
    ("login", "expected"),
    [
        (":{}@", "password|WRONGPASS"), ("nobody:{}@", "password|WRONGPASS"),
        ("default:{}@", "password|WRONGPASS"), ("", "NOAUTH|[Aa]uthentication"),
    ],
)  # fmt: skip
async def test_a_vote_tells_a_wrong_password_from_a_missing_one_without_showing_it(
    kind: str, login: str, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    with process(kind, "--requirepass", "right") as master:
        url = f"redis://{login.format(PASSWORD)}127.0.0.1:{master.port}"
        async with Redlock([url]) as redlock:
            assert PASSWORD not in await everything_shown(redlock, caplog)
            with pytest.raises(QuorumUnavailableError) as caught:
                await redlock.lock("r", wait=0).acquire()
            vote = caught.value.votes[0]
            assert vote.answer is Answer.ERROR
            assert re.search(expected, vote.detail, re.IGNORECASE)
            assert (
                "newer" not in vote.detail
            )  # a server that requires a password is not taken for an old one


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    "password",
    [PASSWORD, "x y/z@%:#?&", "long" * 40, 'quo"te`s', "tab\tand\r\nline", "ünïcödé"],
    ids=["short", "signs", "long", "quotes", "lines", "unicode"],
)
@pytest.mark.parametrize("by", ["url", "client", "provider"])
async def test_a_password_that_a_server_repeats_is_not_shown(
    old: str, password: str, by: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A Redis without HELLO repeats its arguments, one of which is the password."""
    host, _, port = old.partition(":")
    client = Redis(host=host, port=int(port), username="app", password=password)
    if by == "provider":
        provider = UsernamePasswordCredentialProvider("app", password)
        client = Redis(host=host, port=int(port), credential_provider=provider)
    url = f"redis://app:{quote(password, safe='')}@{old}"
    async with client, Redlock([url if by == "url" else client]) as redlock:
        shown = await everything_shown(redlock, caplog)
    assert "must be Redis 6 or newer" in shown
    readable = re.sub(r"\s", " ", shown)
    for piece in (password, password[:12], password.replace("\r\n", "  ").replace("\t", " ")):
        assert piece not in shown
        assert piece not in readable


@pytest.mark.spread(0)
@pytest.mark.parametrize("length", [1, 60, 100, 120])
async def test_a_token_that_a_server_repeats_is_not_shown(
    kind: str, length: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that denies SET prints its arguments up to a length: the key, then the token."""
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
    """The token is in `Lease.token` only."""
    with process(kind) as master:
        async with Redlock([master.url], master_timeout=TIMEOUT, restart_guard="off") as redlock:
            await until(lambda: redlock.statistics().masters[0].up)
            lease = await redlock.lock("r").acquire()
            session = kit.session(redlock)
            shown = " ".join(map(repr, (
                lease, lease._hold, lease._hold.claim, lease.votes, redlock, redlock._opener,
                session, session.masters, session.watchdog, session.links,
                session.links[0]._connection,
            )))  # fmt: skip
            assert lease.token not in shown
            await lease.release()
