"""
Mistakes of users, and their errors.

One table: the code, the error that it raises, and words that must be in it. The page
`docs/troubleshooting/used-wrongly.md` shows the same rows to users.
"""

import asyncio
import copy
import logging
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from redis.asyncio import Redis

from redlock_aio import (
    LockLostError,
    LockNotAcquiredError,
    QuorumUnavailableError,
    Redlock,
    RedlockError,
    sync,
)
from redlock_aio.testing import FakeMaster

from .kit import loop, refused

PAGE = Path(__file__).parents[2] / "docs" / "troubleshooting" / "used-wrongly.md"

# The code, its error, and words of it. Each code runs as the body of an async function.
MISTAKES: list[tuple[str, type[Exception], str]] = [
    ('redlock.lock("r", ttl=10)', ValueError, "times are milliseconds"),
    ("Redlock(masters, max_ttl=30)", ValueError, "times are milliseconds"),
    ('redlock.lock("r", ttl=0.5)', TypeError, "milliseconds"),
    ('Redlock(["redis://host:redis"])', ValueError, "port that is not a number"),
    ('Redlock(["redis://host:0"])', ValueError, "port that is not a number"),
    ('Redlock(["redis://a,redis://b"])', ValueError, "two URLs"),
    ('Redlock(["redis://a redis://b"])', ValueError, "two URLs"),
    ('Redlock(["redis://a:6379,b:6379"])', ValueError, "port that is not a number"),
    ('Redlock(["redis://a,b"])', ValueError, "one URL for each master"),
    ('Redlock("redis://a,redis://b")', ValueError, "give a list"),
    ('Redlock([""])', ValueError, "is empty"),
    ('Redlock(["redis://host?tmeout=5"])', ValueError, "'tmeout' that is unknown"),
    ('Redlock(["redis://host?ssl_ca_certs=ca"])', ValueError, "for rediss:// URLs"),
    ('Redlock(["redis://host/cache"])', ValueError, "no database number"),
    ('Redlock(["redis://:p@ss/word@host"])', ValueError, "write '/'"),
    ("Redlock(masters, retry_count=3)", TypeError, "use retry=Retry(...)"),
    ('redlock.lock("r", timeout=10)', TypeError, "use ttl="),
    ('redlock.lock("r", timeout=10)', TypeError, "wait="),
    ('redlock.lock("r", blocking_timeout=5)', TypeError, "use wait="),
    ('redlock.lock("r", blocking=False)', TypeError, "use wait=0"),
    ('redlock.lock("r", expire=10)', TypeError, "use ttl="),
    ('redlock.lock("r", auto_release_time=10)', TypeError, "use ttl="),
    ('redlock.lock("r", lock_timeout=10)', TypeError, "use ttl="),
    ('redlock.lock("r", sleep=0.1)', TypeError, "use retry="),
    ('redlock.lock("r", nonsense=1)', TypeError, "lock() has no option 'nonsense'"),
    ('redlock.locked("r", timeout=10)', TypeError, "use ttl="),
    ('await redlock.lock("r").release()', AttributeError, "use the lease"),
    ('await redlock.lock("r").extend(10)', AttributeError, "use the lease"),
    ('redlock.lock("r").owned', AttributeError, "use the lease"),
    (
        'async with redlock.lock("r"):\n    await redlock.lock("r").acquire()',
        RedlockError,
        "reentrant=True acquires it again",
    ),
    (
        'async with redlock.lock("r"):\n    await redlock.lock("r", wait=500).acquire()',
        LockNotAcquiredError,
        "this task itself holds 'r'; reentrant=True acquires it again",
    ),
    (
        'async with redlock.lock("r"):\n    await redlock.lock("r", wait=0, fair=True).acquire()',
        LockNotAcquiredError,
        "this task itself holds 'r'; reentrant=True acquires it again",
    ),
    ('redlock.lock("r").locked()', AttributeError, "await redlock.is_locked(name)"),
    ('redlock.lock(["a", "b"])', TypeError, "write lock(*names)"),
    (
        "@redlock.locked\nasync def f(): ...",
        TypeError,
        "write @redlock.locked('invoice:{invoice_id}')",
    ),
    (
        'async with redlock.lock("r", ttl=500):\n    time.sleep(0.7)\n    await asyncio.sleep(0.1)',
        LockLostError,
        "the event loop did not run for 0.6 s",
    ),
    ('if redlock.locked("r"): ...', TypeError, "await redlock.is_locked(name)"),
    ('await redlock.lock("r")', TypeError, "use 'async with lock as lease'"),
    ('with redlock.lock("r"): ...', TypeError, "use 'async with'"),
    ('with await redlock.lock("r").acquire(): ...', TypeError, "use 'async with'"),
    ("with redlock: ...", TypeError, "use 'async with'"),
    ("with Redlock(masters): ...", TypeError, "redlock_aio.sync.Redlock for threads"),
    (
        'async with redlock.lock("r") as lease:\n    while not lease.lost: ...',
        TypeError,
        "use 'lease.lost.is_set()', or 'lease.valid'",
    ),
]


async def written(code: str, **names: Any) -> None:
    """Run *code* as the body of an async function."""
    body = "\n".join(f"    {line}" for line in code.splitlines())
    names |= {"Redlock": Redlock, "asyncio": asyncio, "time": SimpleNamespace(sleep=loop().stall)}
    exec(f"async def main():\n{body}", names)
    await names["main"]()


@pytest.mark.parametrize(("code", "kind", "words"), MISTAKES)
async def test_the_error_of_a_mistake_names_the_correction(
    redlock: Redlock, masters: list[FakeMaster], code: str, kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=re.escape(words)) as caught:
        await written(code, redlock=redlock, masters=masters)
    assert type(caught.value) is kind


def rows() -> list[tuple[str, str, str]]:
    """Return the rows of the page's table: the code, the error, its words."""
    found = re.findall(r"^\| `(.+?)` \| `(\w+)`: (.+?) \|", PAGE.read_text(), re.MULTILINE)
    return [(code.replace("`, `", "\n"), kind, says) for code, kind, says in found]


def test_the_page_shows_rows_of_the_table() -> None:
    known = {(code, kind.__name__, words) for code, kind, words in MISTAKES}
    assert len(rows()) > 10
    assert not [row for row in rows() if row not in known]


async def test_a_single_master_need_not_be_in_a_list(masters: list[FakeMaster]) -> None:
    assert repr(Redlock("redis://a")) == "<Redlock 1 masters, not used yet>"
    assert repr(Redlock(Redis(host="a"))) == "<Redlock 1 masters, not used yet>"
    async with Redlock(masters[0], restart_guard="off") as redlock, redlock.lock("r"):
        assert list(masters[0]._keys) == [b"r"]


async def test_a_lease_without_a_fencing_token_has_no_such_attribute(redlock: Redlock) -> None:
    async with redlock.lock("r") as lease, redlock.lock("s", fencing=True) as fenced:
        assert not hasattr(lease, "fencing_token")
        assert getattr(lease, "fencing_token", None) is None
        with pytest.raises(RedlockError, match="this lease has no fencing token: its lock needs"):
            _ = lease.fencing_token
        assert hasattr(fenced, "fencing_token")


@pytest.mark.parametrize("listener", [None, print], ids=["", "with a listener"])
@pytest.mark.parametrize(
    "use",
    [
        lambda it: it.lock("r").acquire(),
        lambda it: it.lock("r").try_acquire(),
        lambda it: it.lock("r").__aenter__(),
        lambda it: it.__aenter__(),
        lambda it: it.inspect("r"),
        lambda it: it.check(),
        lambda it: it.locked("r")(nothing)(),
    ],
    ids=["acquire", "try_acquire", "enter the lock", "enter", "inspect", "check", "locked"],
)
def test_without_a_loop_of_asyncio_the_error_says_what_is_needed(
    use: Callable[[Redlock], Any], listener: Any
) -> None:
    """As under trio, which runs a coroutine by `send`."""
    coroutine = use(Redlock("redis://a", listener=listener))
    with pytest.raises(RedlockError, match=r"no event loop of asyncio runs here: .* trio has none"):
        coroutine.send(None)


async def nothing() -> None: ...


@pytest.mark.parametrize("loses", [False, True])
async def test_the_event_of_a_loss_has_no_truth_value(redlock: Redlock, loses: bool) -> None:
    lease = await redlock.lock("r", on_lost="flag").acquire()
    if loses:
        await redlock.force_release("r")
    else:
        await lease.release()
    assert lease.lost.is_set() == loses
    with pytest.raises(TypeError, match=r"lease.lost is an event, which is neither true nor false"):
        bool(lease.lost)


def test_a_lock_shows_what_it_was_made_of_and_nothing_of_the_engine(redlock: Redlock) -> None:
    given = {"job": 3, "hosts": ["a"]}
    lock = redlock.lock("r", "s", owner="request 7", metadata=given)
    given["job"] = 4
    assert (lock.resources, lock.owner) == (("r", "s"), "request 7")
    assert lock.metadata == {"job": 3, "hosts": ["a"]}
    lock.metadata["job"] = 5
    assert lock.metadata["job"] == 3, "others can't change it"
    assert (redlock.lock("r").owner, redlock.lock("r").metadata) == (None, None)
    assert [name for name in dir(lock) if not name.startswith("_")] == [
        "acquire", "metadata", "owner", "resources", "retry", "try_acquire",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["nonsense", "__len__", "_missing"])
def test_a_lock_has_no_other_attributes_than_before(redlock: Redlock, name: str) -> None:
    lock = redlock.lock("r")
    assert not hasattr(lock, name)
    with pytest.raises(AttributeError) as caught:
        getattr(lock, name)
    assert "lease" not in str(caught.value)
    assert (caught.value.name, caught.value.obj) == (name, lock)


@pytest.mark.parametrize("count", range(1, 8))
def test_an_even_number_of_masters_is_warned_of_once(
    count: int, caplog: pytest.LogCaptureFixture
) -> None:
    Redlock([FakeMaster() for _ in range(count)])
    texts = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    if count % 2:
        assert not texts
    else:
        assert len(texts) == 1
        assert f"survive the loss of {count // 2 - 1}, as {count - 1} do" in texts[0]


@pytest.mark.parametrize("options", [{}, {"fair": True}, {"wait": 0}])
@pytest.mark.parametrize(
    "words",
    [
        "NOPERM No permissions to access a key",
        "ERR ACL failure in script: User app has no permissions to run the 'get' command",
    ],
)
async def test_the_error_of_a_missing_permission_names_the_lock_and_the_page(
    masters: list[FakeMaster], words: str, options: dict[str, Any]
) -> None:
    async with Redlock(masters, restart_guard="off", key_prefix="lock:") as redlock:
        async with redlock.lock("r"):
            pass
        for master in masters:
            master.error = words
        error = await refused(redlock, **({"wait": 300} | options))
    assert type(error) is QuorumUnavailableError
    assert words in str(error)
    # Not "a permission for the key": it may be that of its counter or its queue.
    assert "lacks a permission that a lock with the key 'lock:r' needs" in error.hint
    assert error.hint.endswith("see the page reference/acl of the documentation")


async def test_a_hint_is_pickled(redlock: Redlock) -> None:
    async with redlock.lock("r"):
        error = await refused(redlock)
        assert (await asyncio.create_task(refused(redlock))).hint == ""  # of another task
    back = pickle.loads(pickle.dumps(error))
    assert error.hint
    assert (back.hint, str(back)) == (error.hint, str(error))


async def test_what_belongs_to_one_process_is_not_pickled_or_copied(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    of_threads = sync.Redlock(masters)
    async with redlock.lock("r") as lease:
        for each, said in (
            (redlock, "a Redlock"),
            (redlock.lock("r"), "a Lock"),
            (redlock.election("r"), "an Election"),
            (lease, "a Lease"),
            (of_threads, "a Redlock"),
            (of_threads.lock("r"), "a Lock"),
            (of_threads.election("r"), "an Election"),
        ):
            for copied in (pickle.dumps, copy.copy, copy.deepcopy):
                with pytest.raises(TypeError, match=f"^{said} can't be pickled"):
                    copied(each)
