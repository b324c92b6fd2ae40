"""What `Redlock` accepts, to whom it belongs, and how it ends."""

import asyncio
import os
import pickle
import threading
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any

import pytest
import redis
from redis.asyncio import Redis

from redlock_aio import (
    LockNotAcquiredError,
    Redlock,
    RedlockError,
    Retry,
    Vote,
    errors,
)
from redlock_aio._rules.quorum import Answer
from redlock_aio.testing import FakeMaster, VirtualTimeLoop

from .kit import hang, keys, kill, now, occupy, resume, slow

SECRET = "pass-word"


@pytest.mark.parametrize(
    ("masters", "error", "said"),
    [
        ([], ValueError, "at least one"),
        ("redis://a", TypeError, "a list of masters, not a single str"),
        (5, TypeError, "a list of masters"),
        ([5], TypeError, r"masters\[0\] must be a URL or a redis.asyncio.Redis client"),
        (["redis://a", None], TypeError, r"masters\[1\]"),
        ([redis.Redis()], TypeError, "not a redis.client.Redis"),
        (["http://a"], ValueError, "not a http:// URL"),
        (["a:6379"], ValueError, r"masters\[0\] .* not a text without '://'"),
        (["redis://"], ValueError, "names no host"),
        (["unix://"], ValueError, "names no path"),
        (["redis://a:port"], ValueError, r"masters\[0\] has a port that is not a number"),
        (["redis://a:0"], ValueError, "from 1 to 65535"),
        ([f"redis://a:{'9' * 5000}"], ValueError, "from 1 to 65535"),
        ([Redis(host=f"redis://:{SECRET}@a")], ValueError, "a host that is no host name"),
        ([f"redis://u:{SECRET}/x@a"], ValueError, "%2F"),
        ([f"redis://u:{SECRET}#x@a"], ValueError, "%23"),
        ([f"redis://u:[{SECRET}]@a"], ValueError, "%5B"),
        ([f"redis://u:{SECRET}@a?db=x"], ValueError, "a value of another kind"),
        ([f"redis://u:{SECRET}@a?nonsense=1"], ValueError, "nonsense"),
        ([f"redis://u:{SECRET}@[::1"], ValueError, "can't be read as a URL"),
        (["redis://a", "redis://a:6379"], ValueError, "a:6379 is there twice"),
        (["unix:///s", "unix:///s"], ValueError, "/s is there twice"),
    ],
)
def test_masters_that_make_no_sense_are_refused(
    masters: Any, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said) as caught:
        Redlock(masters)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("master", "name"),
    [
        (f"redis://user:{SECRET}@host", "host:6379"),
        (f"redis://:{SECRET}@host:1/3", "host:1/3"),
        (f"rediss://user:{SECRET}@[::1]:2", "[::1]:2"),
        (f"unix://user:{SECRET}@/run/redis.sock", "/run/redis.sock"),
        ("unix:///run/redis.sock?db=2", "/run/redis.sock/2"),
        (Redis(host="h", port=7, password=SECRET), "h:7"),
        (Redis.from_url(f"redis://:{SECRET}@h:8/1"), "h:8/1"),
    ],
)
@pytest.mark.promise("S10")
async def test_a_master_is_called_by_its_place_and_never_by_its_password(
    master: str | Redis, name: str
) -> None:
    redlock = Redlock([master])
    assert [str(dialler) for dialler in redlock._opener.settings.diallers] == [name]
    assert SECRET not in repr(redlock._opener.settings.diallers) + repr(redlock)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"master_timeout": 0}, ValueError),
        ({"master_timeout": 0.05}, TypeError),
        ({"drift_factor": 2.0}, ValueError),
        ({"retry": 5}, TypeError),
        ({"key_prefix": b"x"}, TypeError),
        ({"key_prefix": "x\n"}, ValueError),
    ],
)
def test_options_that_make_no_sense_are_refused_by_name(
    options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error, match=next(iter(options))):
        Redlock(["redis://a"], **options)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"ttl": 0}, ValueError),
        ({"ttl": 2}, ValueError),
        ({"ttl": -5}, ValueError),
        ({"ttl": 1e4}, TypeError),
        ({"ttl": True}, TypeError),
        ({"ttl": "10"}, TypeError),
        ({"ttl": timedelta(0)}, ValueError),
        ({"wait": -1}, ValueError),
        ({"wait": 0.5}, TypeError),
        ({"max_hold": 0}, ValueError),
        ({"auto_extend": 1}, TypeError),
        ({"retry": 3}, TypeError),
        ({"on_lost": "raise"}, ValueError),
    ],
)
def test_lock_options_that_make_no_sense_are_refused_by_name(
    options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error, match=next(iter(options))):
        Redlock(["redis://a"]).lock("r", **options)


@pytest.mark.parametrize(
    ("resource", "error", "said"),
    [
        ("", ValueError, "1 to 512 bytes, not 0"),
        ("é" * 257, ValueError, "1 to 512 bytes, not 514"),
        ("a\nb", ValueError, "control characters"),
        ("a\x00", ValueError, "control characters"),
        ("a\x85", ValueError, "control characters"),
        ("\ud800", ValueError, "valid Unicode"),
        ("redlock_aio:x", ValueError, "starts with 'redlock_aio:'"),
        (b"r", TypeError, "resource must be a str, not a bytes"),
        (None, TypeError, "resource must be a str"),
    ],
)
def test_resources_that_no_lock_can_have_are_refused(
    resource: Any, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        Redlock(["redis://a"]).lock(resource)


def test_a_prefix_makes_no_key_that_is_our_own() -> None:
    with pytest.raises(ValueError, match="starts with 'redlock_aio:'"):
        Redlock(["redis://a"], key_prefix="redlock_aio").lock(":x")


@pytest.mark.parametrize("resource", ["x" * 512, "ключ", "it's {x} y", "a\u00a0b", "🔒"])
@pytest.mark.promise("S10")
async def test_any_text_can_be_a_resource(
    redlock: Redlock, masters: list[FakeMaster], resource: str
) -> None:
    async with redlock.lock(resource):
        assert list(masters[0].keys) == [resource]


@pytest.mark.parametrize("max_ttl", [5_000, timedelta(seconds=5)])
def test_the_default_ttl_is_not_longer_than_the_longest(max_ttl: int | timedelta) -> None:
    redlock = Redlock(["redis://a"], max_ttl=max_ttl)
    for lock in (redlock.lock("r"), redlock.lock("r", ttl=None), redlock.lock("r", "q")):
        assert repr(lock).endswith("ttl 5000 ms>")
    assert repr(Redlock(["redis://a"]).lock("r")) == "<Lock 'r', ttl 10000 ms>"
    with pytest.raises(ValueError, match="at most max_ttl, which is 5000 ms, not 10000 ms"):
        redlock.lock("r", ttl=10_000)


def test_times_can_be_timedeltas() -> None:
    redlock = Redlock(["redis://a"], master_timeout=timedelta(milliseconds=20))
    lock = redlock.lock("r", ttl=timedelta(seconds=3), wait=timedelta(0))
    assert repr(lock) == "<Lock 'r', ttl 3000 ms>"


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(coroutine)


def in_a_thread(work: Coroutine[Any, Any, None]) -> BaseException | None:
    caught: list[BaseException] = []

    def target() -> None:
        try:
            run(work)
        except BaseException as error:  # noqa: BLE001 - it is what is asked for
            caught.append(error)

    thread = threading.Thread(target=target)
    thread.start()
    thread.join()
    return caught[0] if caught else None


async def use(redlock: Redlock) -> None:
    async with redlock.lock("r"):
        pass


def test_it_can_be_made_before_there_is_a_loop() -> None:
    redlock = Redlock([FakeMaster()])
    assert repr(redlock) == "<Redlock 1 masters, not used yet>"

    async def main() -> None:
        await use(redlock)
        await redlock.aclose()

    run(main())
    assert repr(redlock) == "<Redlock 1 masters, closed>"


async def test_another_event_loop_is_told_so(redlock: Redlock) -> None:
    error = in_a_thread(use(redlock))
    assert isinstance(error, RedlockError)
    assert "in use by another event loop" in str(error)
    error = in_a_thread(redlock.aclose())
    assert isinstance(error, RedlockError)


async def test_a_forked_child_is_told_so(redlock: Redlock, masters: list[FakeMaster]) -> None:
    await use(redlock)
    before = len(masters[0].commands)
    child = os.fork()
    if not child:
        code = 1
        try:
            run(use(redlock))
        except RedlockError as error:
            code = 0 if "parent process" in str(error) else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)  # noqa: ASYNC222 - it ends at once
    assert os.waitstatus_to_exitcode(status) == 0
    assert len(masters[0].commands) == before
    await use(redlock)


async def test_after_closing_it_is_closed_until_it_is_opened_again(
    masters: list[FakeMaster],
) -> None:
    redlock = Redlock(masters)
    async with redlock:
        await use(redlock)
    with pytest.raises(RedlockError, match="closed"):
        await redlock.lock("r").acquire()
    await redlock.aclose()
    async with redlock:
        await use(redlock)


def test_one_object_serves_several_runs_one_after_the_other() -> None:
    redlock = Redlock([FakeMaster()])

    async def main() -> None:
        async with redlock:
            await use(redlock)

    run(main())
    run(main())


def test_a_loop_that_ends_without_closing_leaves_no_warning() -> None:
    run(use(Redlock([FakeMaster(), FakeMaster()])))


async def test_closing_waits_until_what_was_sent_is_heard(masters: list[FakeMaster]) -> None:
    redlock = Redlock(masters)
    lease = await redlock.lock("r").acquire()
    task = asyncio.create_task(lease.release())
    await asyncio.sleep(0)
    task.cancel()
    await redlock.aclose()
    assert keys(masters) == [{}] * 5


async def test_whoever_waits_for_a_lock_is_told_of_the_closing(masters: list[FakeMaster]) -> None:
    redlock = Redlock(masters)
    lease = await redlock.lock("r").acquire()
    waiting = asyncio.create_task(redlock.lock("r").acquire())
    await asyncio.sleep(1)
    await redlock.aclose()
    with pytest.raises(RedlockError, match="closed"):
        await waiting
    assert lease.lost.is_set()


async def test_whoever_waits_for_the_first_connection_is_told_of_the_closing(
    masters: list[FakeMaster],
) -> None:
    hang(masters)
    redlock = Redlock(masters)
    waiting = [
        asyncio.create_task(redlock.lock("r").acquire()),
        asyncio.create_task(redlock.lock("r").try_acquire()),
    ]
    await asyncio.sleep(0.1)
    await redlock.aclose()
    for task in waiting:
        with pytest.raises(RedlockError, match="closed"):
            await task


@pytest.mark.parametrize("hung", [0, 3, 5])
@pytest.mark.parametrize("after", [0.0001, 0.0004, 0.0008, 0.0011])
@pytest.mark.promise("S3")
async def test_an_attempt_that_is_underway_when_it_closes_comes_to_nothing(
    masters: list[FakeMaster], hung: int, after: float
) -> None:
    redlock = Redlock(masters)
    await use(redlock)
    hang(masters[:hung])
    attempts = [
        asyncio.create_task(redlock.lock("r").acquire()),
        asyncio.create_task(redlock.lock("s").try_acquire()),
    ]
    await asyncio.sleep(after)
    await redlock.aclose()
    for attempt in attempts:
        await asyncio.wait([attempt], timeout=1)
        assert attempt.done()
        assert attempt.exception() or (lease := attempt.result()) is None or lease.lost.is_set()
    resume(masters)
    await asyncio.sleep(1)
    assert keys(masters) == [{}] * 5


async def test_a_program_that_ends_without_closing_lets_its_tasks_release() -> None:
    masters = [FakeMaster() for _ in range(3)]

    async def hold(redlock: Redlock, name: str) -> None:
        async with redlock.lock(name):
            await asyncio.sleep(9)

    async def main() -> None:
        redlock = Redlock(masters)
        tasks.extend(asyncio.create_task(hold(redlock, f"r{i}")) for i in range(5))
        await asyncio.sleep(0.1)
        assert len(masters[0].keys) == 5

    async def look() -> None:
        kept.extend(master.keys for master in masters)

    tasks: list[asyncio.Task[None]] = []
    kept: list[object] = []
    assert in_a_thread(main()) is None
    assert in_a_thread(look()) is None
    assert kept == [{}] * 3


async def test_one_caller_s_impatience_is_nobody_else_s(masters: list[FakeMaster]) -> None:
    slow(masters, 0.02)
    redlock = Redlock(masters, master_timeout=500)
    with pytest.raises(LockNotAcquiredError):
        await redlock.lock("r", wait=1).acquire()
    lease = await redlock.lock("r").try_acquire()
    assert lease is not None
    await lease.release()
    await redlock.aclose()


async def test_a_first_use_that_is_closed_does_not_spoil_the_next(
    masters: list[FakeMaster],
) -> None:
    redlock = Redlock(masters)
    waiting = asyncio.create_task(redlock.lock("r").try_acquire())
    opening = asyncio.create_task(redlock.__aenter__())
    await asyncio.sleep(0)
    await redlock.aclose()
    for task in (waiting, opening):
        with pytest.raises(RedlockError, match="closed"):
            await task
    async with redlock:
        lease = await redlock.lock("r").try_acquire()
        assert lease is not None
        await lease.release()


async def test_closing_does_not_wait_for_the_hung(masters: list[FakeMaster]) -> None:
    redlock = Redlock(masters)
    await use(redlock)
    masters[0].hang()
    began = now()
    await redlock.aclose()
    assert now() - began == pytest.approx(0.05, abs=0.002)


async def test_without_masters_that_answer_opening_ends_all_the_same() -> None:
    masters = [FakeMaster() for _ in range(3)]
    kill(masters)
    async with Redlock(masters) as redlock:
        assert now() < 0.1
        assert repr(redlock) == "<Redlock 3 masters, 0 up, 0 leases>"
        with pytest.raises(LockNotAcquiredError):
            await redlock.lock("r", wait=0).acquire()
        assert await redlock.lock("r").try_acquire() is None


async def test_retry_of_the_manager_is_what_a_lock_uses(masters: list[FakeMaster]) -> None:
    occupy(masters)
    async with Redlock(masters, retry=Retry(attempts=3)) as redlock:
        with pytest.raises(LockNotAcquiredError, match="in 3 rounds"):
            await redlock.lock("r").acquire()
        with pytest.raises(LockNotAcquiredError, match="in 2 rounds"):
            await redlock.lock("r", retry=Retry(attempts=2)).acquire()


@pytest.mark.parametrize("name", errors.__all__)
def test_every_error_is_one_of_ours(name: str) -> None:
    assert issubclass(getattr(errors, name), RedlockError)


def test_errors_can_be_sent_to_another_process() -> None:
    votes = [Vote("m", Answer.HELD, "by x")]
    error = errors.QuorumUnavailableError(["r"], attempts=2, elapsed=3, votes=votes)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (type(error), str(error))
    lost = pickle.loads(pickle.dumps(errors.LockLostError(["r"], "why")))
    assert str(lost) == "'r' lost: why"
