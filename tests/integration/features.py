"""What each kind of lock does on one real server, and the permissions that it needs there."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator

import pytest

from redlock_aio import (
    Answer,
    Holder,
    LockNotAcquiredError,
    QuorumUnavailableError,
    Redlock,
    Vote,
    requirements,
)
from redlock_aio._engine.fenced import agree
from redlock_aio._engine.hold.renewal import Restoration
from redlock_aio._protocol.primitives import FencingCounter
from redlock_aio.testing import EmbeddedMaster
from tests.unit import kit

from .helpers import TIMEOUT, call, gone, leftovers, put, queued, until, waiting

PLAIN, FENCING = requirements.permissions(), requirements.permissions(fencing=True)
BOTH = requirements.permissions(fencing=True, fair=True)

NEEDED = PLAIN.commands
"""
Commands that plain locks need in the server's access list, with the keys of `GUARD`.

HELLO and AUTH need no permission. SELECT is needed for another database than 0.
"""

WISHED = PLAIN.optional
"""Commands without which locks work as well; a waiter is then not notified and retries."""

FAIR = tuple(command for command in BOTH.commands if command not in NEEDED)
"""Commands that ``fair=True`` needs in addition, with the keys and channels of `OWN`."""

GUARD = tuple(f"~{pattern}" for pattern in PLAIN.keys)
"""Keys of the restart guard; `OWN` allows them too."""

OWN = (*(f"~{pattern}" for pattern in BOTH.keys), *(f"&{name}" for name in BOTH.channels))

COUNTERS = tuple(f"~{pattern}" for pattern in FENCING.keys if pattern not in PLAIN.keys)
"""Keys of the counters, which ``fencing=True`` needs in addition."""

SHORT, LONG = 0.5, 5.0
"""Seconds for an operation that lacks a permission, and for one on a busy machine."""


@contextlib.contextmanager
def allowed(master: EmbeddedMaster, *commands: str, own: tuple[str, ...] = GUARD) -> Iterator[str]:
    """
    Yield the URL of a user with these permissions only, with *own* keys and channels.

    Redis 6.0 knows no permissions for channels.
    """
    rules = ["on", ">secret", "resetkeys", "~app:*", "resetchannels", *own, "-@all"]
    if str(call(master, "INFO", "server")["redis_version"]).startswith("6.0"):
        rules = [rule for rule in rules if rule != "resetchannels" and rule[0] != "&"]
    call(master, "ACL", "DELUSER", "app")
    call(master, "ACL", "SETUSER", "app", *rules, *(f"+{command}" for command in commands))
    call(master, "ACL", "LOG", "RESET")
    call(master, "FLUSHALL")
    call(master, "SCRIPT", "FLUSH")
    yield f"redis://app:secret@127.0.0.1:{master.port}"
    call(master, "ACL", "DELUSER", "app")


def check_refused(master: EmbeddedMaster) -> None:
    """Check that the server refused no command, except those that are tried once."""
    refused = {entry["object"] for entry in map(as_dict, call(master, "ACL", "LOG"))}
    assert refused <= {"client|setinfo", "client|setname", "delifeq"}


def as_dict(entry: object) -> dict[str, str]:
    """Read an entry of ``ACL LOG`` in either protocol."""
    if isinstance(entry, dict):
        return {str(key): str(value) for key, value in entry.items()}
    assert isinstance(entry, list)
    return dict(zip(map(str, entry[::2]), map(str, entry[1::2]), strict=True))


async def works(
    url: str,
    master: EmbeddedMaster,
    patience: float = SHORT,
    names: tuple[str, ...] = ("app:r",),
    *,
    fencing: bool = False,
) -> bool:
    """Acquire, restore, extend, fail to acquire and release; return whether all worked."""
    redlock = Redlock([url], master_timeout=TIMEOUT, fencing=fencing)
    try:
        async with redlock.lock(*names, ttl=5_000, wait=0) as lease:
            session = kit.session(redlock)
            await redlock.check(wait=5_000)
            if fencing:
                counter = FencingCounter([name.encode() for name in names], 0)
                token, claim = lease.fencing_token, lease._hold.claim
                agreed = await agree(session.masters, counter, claim, [token])
                if not agreed or claim.fence != token:
                    return False
            call(master, "DEL", names[-1])
            Restoration(session.masters, lease._hold).send_to(0)
            await until(lambda: call(master, "GET", names[-1]) == lease.token, within=patience)
            call(master, "SCRIPT", "FLUSH")
            votes: list[Vote] = []
            for _ in range(2):  # the first finds its script missing and is not repeated
                renewal = session.watchdog.renew(lease._hold, 60_000, session.masters.clock())
                await until(lambda round=renewal: round.complete)  # type: ignore[misc]
                votes += renewal.votes()
            if votes[-1].answer is not Answer.GRANTED:
                return False
            holders: list[Holder | None] = []

            async def names_the_holder() -> bool:
                with pytest.raises(LockNotAcquiredError) as refused:
                    await redlock.lock(*names, wait=0).acquire()
                holders.append(refused.value.holder)
                return holders[-1] is not None

            # A late reply does not count.
            await until(names_the_holder, within=patience)
            if holders[-1] is None or holders[-1].fingerprint != lease.fingerprint:
                return False
        drained = session.links[0].drained()
        if drained is None or isinstance(await drained, Exception):
            return False
        return all(gone([master], name) for name in names)
    except (AssertionError, QuorumUnavailableError):
        return False
    finally:
        await redlock.aclose()


async def several_works(url: str, master: EmbeddedMaster, patience: float) -> bool:
    return await works(url, master, patience, names=("app:a", "app:b"))


async def fenced_works(url: str, master: EmbeddedMaster, patience: float = SHORT) -> bool:
    return await works(url, master, patience, fencing=True)


async def fair_works(url: str, master: EmbeddedMaster, patience: float = SHORT) -> bool:
    """Wait behind a foreign key and waiters, one dead; give up, acquire; return if all worked."""
    put([master], "app:r", 60_000)
    redlock = Redlock([url], master_timeout=TIMEOUT)
    try:
        async with redlock, waiting(redlock, "app:r", fair=True) as first:
            await until(lambda: queued([master], "app:r") == [1], within=patience)
            connection = kit.session(redlock).links[0]._connection
            async with waiting(redlock, "app:r", fair=True) as second:
                await until(lambda: queued([master], "app:r") == [2], within=patience)
                # A member whose deadline is over; the next request removes it.
                call(master, "ZADD", "redlock_aio:queue:{app:r}", 1, "dead/1", 4e15, "~dead/1")
                with pytest.raises(LockNotAcquiredError):
                    await redlock.lock("app:r", fair=True, wait=100).acquire()
                await until(lambda: queued([master], "app:r") == [2], within=patience)
                if not call(master, "PUBSUB", "CHANNELS"):
                    return False
                call(master, "DEL", "app:r")
                await asyncio.wait([first], timeout=patience)
                await first.result().release()
                await asyncio.wait([second], timeout=patience)
                await second.result().release()
                await until(lambda: not leftovers([master]), within=2 + patience)
            if kit.session(redlock).links[0]._connection is not connection:
                return False  # the refusal has cost it
        return gone([master], "app:r")
    except (AssertionError, QuorumUnavailableError, asyncio.InvalidStateError):
        return False
    finally:
        await redlock.aclose()


async def admin_works(url: str, master: EmbeddedMaster, patience: float = SHORT) -> bool:
    """Inspect a lock with a holder and a waiter, and release it by force; return success."""
    put([master], "app:r", 60_000)
    redlock = Redlock([url], master_timeout=TIMEOUT)
    async with redlock, waiting(redlock, "app:r", fair=True) as waiter:
        await until(lambda: queued([master], "app:r") == [1], within=patience)
        state = await redlock.inspect("app:r")
        if (state.locked, state.waiters) != (True, 1) or not state.remaining:
            return False
        if not await redlock.force_release("app:r"):
            return False
        lease = await asyncio.wait_for(waiter, patience)
        freed = await redlock.force_release("app:r")
        return freed and not lease.valid and gone([master], "app:r")


Works = Callable[[str, EmbeddedMaster, float], Awaitable[bool]]

ENOUGH: list[tuple[tuple[str, ...], tuple[str, ...], tuple[Works, ...]]] = [
    (NEEDED, GUARD, (works, several_works)),
    (NEEDED, (*GUARD, *COUNTERS), (works, fenced_works)),
    ((*NEEDED, *FAIR), OWN, (works, fair_works, admin_works, fenced_works)),
]
"""Sets of permissions: the commands, the keys and channels, and the features that need them."""
