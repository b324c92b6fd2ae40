"""The fewest permissions with which everything works, found by leaving one out at a time."""

import contextlib
import logging
from collections.abc import Iterator

import pytest

from redlock_aio import Answer, QuorumUnavailableError, Redlock
from redlock_aio.testing import EmbeddedMaster

from .helpers import call, gone, until, up
from .servers import process

pytestmark = pytest.mark.integration

NEEDED = ("evalsha", "script|load", "get", "set", "del", "pexpire", "info", "ping")
"""
What a user of the server's access list has to be allowed, and nothing else:

    ACL SETUSER redlock on >PASSWORD resetkeys ~KEYS resetchannels -@all
        +evalsha +script|load +get +set +del +pexpire +info +ping

HELLO and AUTH need no permission. SELECT is needed for another database than 0.
"""


@pytest.fixture(scope="module")
def server(kind: str) -> Iterator[EmbeddedMaster]:
    with process(kind) as master:
        yield master


@contextlib.contextmanager
def allowed(master: EmbeddedMaster, *commands: str) -> Iterator[str]:
    """Give the URL of a user who may do this and no more."""
    rules = ["on", ">secret", "resetkeys", "~app:*", "resetchannels", "-@all"]
    call(master, "ACL", "DELUSER", "app")
    call(master, "ACL", "SETUSER", "app", *rules, *(f"+{command}" for command in commands))
    call(master, "ACL", "LOG", "RESET")
    call(master, "FLUSHALL")
    call(master, "SCRIPT", "FLUSH")
    yield f"redis://app:secret@127.0.0.1:{master.port}"
    call(master, "ACL", "DELUSER", "app")


async def everything_works(url: str, master: EmbeddedMaster) -> bool:
    """Acquire, extend, forget the scripts, release, fail and close; return whether all went."""
    redlock = Redlock([url], master_timeout=500)
    try:
        async with redlock.lock("app:r", ttl=5_000, wait=0) as lease:
            call(master, "SCRIPT", "FLUSH")
            renewal = None
            for _ in range(2):  # the first finds its script forgotten and is not repeated
                renewal = redlock._watchdog._renew(lease._hold, 60_000, redlock._fleet.clock())
                await until(lambda round=renewal: round.complete)  # type: ignore[misc]
            if renewal is None or renewal.votes()[0].answer is not Answer.GRANTED:
                return False
            if await redlock.lock("app:r").try_acquire() is not None:
                return False
        if not gone([master], "app:r"):
            return False
        heard = redlock._masters[0].heard()
        return heard is not None and not isinstance(await heard, Exception)
    except QuorumUnavailableError:
        return False
    finally:
        await redlock.aclose()


@pytest.mark.promise("S10")
async def test_these_permissions_are_enough(
    server: EmbeddedMaster, caplog: pytest.LogCaptureFixture
) -> None:
    """And nothing is even tried that is not allowed, but for what redis-py says of itself."""
    with allowed(server, *NEEDED) as url, caplog.at_level(logging.INFO):
        assert await everything_works(url, server)
        assert not caplog.text
        refused = {entry["object"] for entry in map(as_dict, call(server, "ACL", "LOG"))}
        assert refused <= {"client|setinfo"}


@pytest.mark.parametrize("missing", NEEDED)
async def test_each_of_these_permissions_is_needed(server: EmbeddedMaster, missing: str) -> None:
    """Without it something does not work, so that the list has nothing in excess."""
    with allowed(server, *(command for command in NEEDED if command != missing)) as url:
        assert not await everything_works(url, server)


@pytest.mark.promise("S10")
async def test_other_keys_are_out_of_reach(server: EmbeddedMaster) -> None:
    """A resource outside of the user's keys is that master's vote."""
    with allowed(server, *NEEDED) as url:
        async with Redlock([url], master_timeout=500) as redlock:
            await until(lambda: up(redlock) == 1)
            with pytest.raises(QuorumUnavailableError, match="NOPERM"):
                await redlock.lock("theirs:r", wait=0).acquire()


async def test_a_missing_permission_is_named_in_the_vote(server: EmbeddedMaster) -> None:
    """So that an operator knows what to allow."""
    with allowed(server, *(command for command in NEEDED if command != "info")) as url:
        async with Redlock([url], master_timeout=500) as redlock:
            with pytest.raises(QuorumUnavailableError, match="'info'"):
                await redlock.lock("app:r", wait=0).acquire()


def as_dict(entry: object) -> dict[str, str]:
    """Read an entry of ``ACL LOG`` in either protocol."""
    if isinstance(entry, dict):
        return {str(key): str(value) for key, value in entry.items()}
    assert isinstance(entry, list)
    return dict(zip(map(str, entry[::2]), map(str, entry[1::2]), strict=True))
