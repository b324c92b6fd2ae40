"""The manager: its masters and options, its loop and process, its begin and its end."""

import asyncio
import contextlib
import copy
import os
import pickle
import threading
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

import pytest
import redis
from redis.asyncio import Redis, RedisCluster

from redlock_aio import LossCause, Redlock, RedlockError, Retry, Vote, errors
from redlock_aio._rules.quorum import Answer
from redlock_aio.testing import FakeMaster, VirtualTimeLoop

from .kit import (
    Masters,
    commands_received,
    gets_lock,
    hang,
    keys,
    kill,
    now,
    occupy,
    refused,
    resume,
    slow,
)

SECRET = "pass-word"
URL = "redis://a"


async def use(redlock: Redlock) -> None:
    async with redlock.lock("r"):
        pass


async def use_and_close(redlock: Redlock) -> None:
    async with redlock:
        await use(redlock)


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(coroutine)


# Masters and options


@pytest.mark.parametrize(
    ("masters", "kind", "match"),
    [
        ([], ValueError, "at least one"),
        (5, TypeError, "masters must be a URL or a redis.asyncio.Redis client, not an int"),
        (b"redis://a", TypeError, "masters must be a URL .*, not a bytes"),
        ("", ValueError, "masters is empty"),
        ("redis://a,redis://b", ValueError, "masters holds two URLs; give a list"),
        (RedisCluster(host="localhost"), TypeError, "masters can't be a Redis Cluster"),
        ([5], TypeError, r"masters\[0\] must be a URL or a redis.asyncio.Redis client"),
        (
            [RedisCluster(host="localhost")],
            TypeError,
            r"masters\[0\] can't be a Redis Cluster: Redlock\.of_cluster\(\) takes it alone",
        ),
        ([URL, None], TypeError, r"masters\[1\]"),
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
        ([URL, "redis://a:6379"], ValueError, "a:6379 is named twice"),
        (["unix:///s", "unix:///s"], ValueError, "/s is named twice"),
    ],
)
def test_bad_masters_are_refused(masters: Any, kind: type[Exception], match: str) -> None:
    with pytest.raises(kind, match=match) as caught:
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
async def test_a_master_is_named_by_its_address(master: str | Redis, name: str) -> None:
    redlock = Redlock([master])
    assert [known.name for known in redlock.statistics().masters] == [name]
    assert SECRET not in repr(redlock._opener.settings.diallers) + repr(redlock)


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"master_timeout": 0}, ValueError),
        ({"master_timeout": 0.05}, TypeError),
        ({"drift_factor": 2.0}, ValueError),
        ({"retry": 5}, TypeError),
        ({"key_prefix": b"x"}, TypeError),
        ({"key_prefix": "x\n"}, ValueError),
        ({"key_prefix": "redlock_aio:"}, ValueError),
    ],
)
def test_bad_options_are_refused_by_name(options: dict[str, Any], kind: type[Exception]) -> None:
    with pytest.raises(kind, match=next(iter(options))):
        Redlock([URL], **options)


@pytest.mark.parametrize(
    ("options", "kind"),
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
def test_bad_lock_options_are_refused_by_name(
    options: dict[str, Any], kind: type[Exception]
) -> None:
    with pytest.raises(kind, match=next(iter(options))):
        Redlock([URL]).lock("r", **options)


@pytest.mark.parametrize(
    ("prefix", "resource", "kind", "match"),
    [
        ("", "", ValueError, "1 to 512 bytes, not 0"),
        ("", "é" * 257, ValueError, "1 to 512 bytes, not 514"),
        ("", "a\nb", ValueError, "control characters"),
        ("", "a\x00", ValueError, "control characters"),
        ("", "a\x85", ValueError, "control characters"),
        ("", "\ud800", ValueError, "valid Unicode"),
        ("", "redlock_aio:x", ValueError, "starts with 'redlock_aio:'"),
        ("redlock_aio", ":x", ValueError, "starts with 'redlock_aio:'"),
        ("", b"r", TypeError, "resource must be a str, not a bytes"),
        ("", None, TypeError, "resource must be a str"),
    ],
)
def test_bad_resources_are_refused(
    prefix: str, resource: Any, kind: type[Exception], match: str
) -> None:
    with pytest.raises(kind, match=match):
        Redlock([URL], key_prefix=prefix).lock(resource)


@pytest.mark.parametrize(
    ("ttl", "kind"),
    [(10_000, "an int"), (0.5, "a float"), (timedelta(seconds=1), "a datetime.timedelta")],
)
def test_a_ttl_without_its_name_is_no_resource(ttl: Any, kind: str) -> None:
    match = f"^resource must be a str, not {kind}: options have names, as in ttl=10_000$"
    with pytest.raises(TypeError, match=match):
        Redlock([URL]).lock("r", ttl)


@pytest.mark.parametrize("resource", ["x" * 512, "ключ", "it's {x} y", "a\u00a0b", "🔒"])
@pytest.mark.promise("S10")
async def test_any_text_can_be_a_resource(
    redlock: Redlock, masters: Masters, resource: str
) -> None:
    async with redlock.lock(resource):
        assert list(masters[0].keys) == [resource]


@pytest.mark.parametrize("max_ttl", [5_000, timedelta(seconds=5)])
def test_the_default_ttl_is_at_most_max_ttl(max_ttl: int | timedelta) -> None:
    redlock = Redlock([URL], max_ttl=max_ttl)
    for lock in (redlock.lock("r"), redlock.lock("r", ttl=None), redlock.lock("r", "q")):
        assert repr(lock).endswith("ttl 5000 ms>")
    assert repr(Redlock([URL]).lock("r")) == "<Lock 'r', ttl 10000 ms>"
    with pytest.raises(ValueError, match="at most max_ttl, which is 5000 ms, not 10000 ms"):
        redlock.lock("r", ttl=10_000)


def test_times_can_be_timedeltas() -> None:
    redlock = Redlock([URL], master_timeout=timedelta(milliseconds=20))
    lock = redlock.lock("r", ttl=timedelta(seconds=3), wait=timedelta(0))
    assert repr(lock) == "<Lock 'r', ttl 3000 ms>"


async def test_its_retry_is_the_default_of_its_locks(masters: Masters) -> None:
    occupy(masters)
    async with Redlock(masters, retry=Retry(attempts=3)) as redlock:
        assert "in 3 rounds" in str(await refused(redlock, wait=None))
        assert "in 2 rounds" in str(await refused(redlock, wait=None, retry=Retry(attempts=2)))


# Its loop and process


def test_it_can_be_made_before_there_is_a_loop() -> None:
    redlock = Redlock([FakeMaster()])
    assert repr(redlock) == "<Redlock 1 masters, not used yet>"
    for _ in range(2):  # one object serves several runs
        run(use_and_close(redlock))
        assert repr(redlock) == "<Redlock 1 masters, closed>"


async def test_another_event_loop_is_refused(redlock: Redlock) -> None:
    await use(redlock)
    raised: list[BaseException] = []

    def work() -> None:
        for call in (use(redlock), redlock.aclose()):
            try:
                run(call)
            except RedlockError as error:
                raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert ["in use by another event loop" in str(error) for error in raised] == [True] * 2


async def check_refused_in_a_child(call: Callable[[], Coroutine[Any, Any, None]], why: str) -> None:
    """Fork within the running loop, and expect the *call* in the child to be refused for *why*."""
    child = os.fork()
    if not child:
        code = 1
        try:
            await call()
        except RedlockError as error:
            code = 0 if why in str(error) else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)  # noqa: ASYNC222 - it ends at once
    assert os.waitstatus_to_exitcode(status) == 0


async def test_a_forked_child_is_refused(redlock: Redlock, masters: Masters) -> None:
    await use(redlock)
    before = commands_received(masters)

    async def in_a_loop_of_its_own() -> None:
        run(use(redlock))

    await check_refused_in_a_child(in_a_loop_of_its_own, "parent process")
    assert commands_received(masters) == before
    await use(redlock)


@pytest.mark.parametrize("call", ["lock", "try_acquire", "inspect", "aclose", "async with"])
async def test_a_child_that_goes_on_in_the_coroutine_is_told_whose_the_manager_is(
    redlock: Redlock, masters: Masters, call: str
) -> None:
    """No event loop runs there any more: to say only that would blame the wrong thing."""

    async def calls() -> None:
        match call:
            case "lock":
                await use(redlock)
            case "try_acquire":
                await redlock.lock("r").try_acquire()
            case "inspect":
                await redlock.inspect("r")
            case "aclose":
                await redlock.aclose()
            case _:
                await use_and_close(redlock)

    await use(redlock)
    before = commands_received(masters)
    await check_refused_in_a_child(calls, "in use by the parent process")
    assert commands_received(masters) == before
    await use(redlock)


async def test_a_new_manager_in_such_a_child_needs_an_event_loop(masters: Masters) -> None:
    await check_refused_in_a_child(
        lambda: use(Redlock(masters)), "a forked child has to start its own"
    )


async def test_a_forked_child_leaves_the_block_of_its_parent_by_its_own_error(
    redlock: Redlock,
) -> None:
    """`sys.exit(3)` has to end it with this status, and the manager stays open in the parent."""
    async with redlock:
        lease = await redlock.lock("r").acquire()
        child = os.fork()
        if not child:
            code = 1
            try:
                async with contextlib.AsyncExitStack() as stack:
                    stack.push_async_exit(redlock)  # ends the block, as the child would by itself
                    raise SystemExit(3)
            except SystemExit as error:
                told = "in use by the parent process" in error.__notes__[0]
                code = error.code if told and isinstance(error.code, int) else 2
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)  # noqa: ASYNC222 - it ends at once
        assert os.waitstatus_to_exitcode(status) == 3
        await lease.extend()
        await lease.release()


# Its begin and its end


async def test_it_opens_without_reachable_masters(masters: Masters) -> None:
    kill(masters)
    async with Redlock(masters) as redlock:
        assert now() < 0.1
        assert repr(redlock) == "<Redlock 5 masters, 0 up, 0 leases>"
        await refused(redlock)
        assert await redlock.lock("r").try_acquire() is None


async def test_a_first_call_that_gives_up_does_not_end_the_connecting(masters: Masters) -> None:
    slow(masters, 0.02)
    redlock = Redlock(masters, master_timeout=500)
    await refused(redlock, wait=1)
    assert await gets_lock(redlock)
    await redlock.aclose()


async def test_a_closed_manager_can_be_opened_again(masters: Masters) -> None:
    redlock = Redlock(masters)
    await use_and_close(redlock)
    with pytest.raises(RedlockError, match="closed"):
        await use(redlock)
    await redlock.aclose()
    await use_and_close(redlock)


async def test_one_that_is_opened_before_it_is_closed_keeps_what_it_learns_of_round_trips(
    masters: Masters,
) -> None:
    slow(masters, 0.08)
    redlock = Redlock(masters)
    await use(redlock)
    hang(masters[4:])
    closing = asyncio.create_task(redlock.aclose())
    await asyncio.sleep(0)
    async with redlock:
        await closing
        kill(masters[4:])
        await asyncio.sleep(5)
        assert redlock.master_timeout >= 160
        assert await gets_lock(redlock)


async def test_closing_waits_for_releases_underway(masters: Masters) -> None:
    redlock = Redlock(masters)
    lease = await redlock.lock("r").acquire()
    task = asyncio.create_task(lease.release())
    await asyncio.sleep(0)
    task.cancel()
    await redlock.aclose()
    assert keys(masters) == [{}] * 5


async def test_closing_does_not_wait_for_hung_masters(masters: Masters) -> None:
    redlock = Redlock(masters)
    await use(redlock)
    masters[0].hang()
    began = now()
    await redlock.aclose()
    assert now() - began == pytest.approx(0.05, abs=0.002)


async def test_waiters_for_a_connection_get_an_error_when_it_is_closed(masters: Masters) -> None:
    hang(masters)
    redlock = Redlock(masters)
    lock = redlock.lock("r")
    calls = (lock.acquire(), lock.acquire(), lock.try_acquire())
    tasks = [asyncio.create_task(call) for call in calls]
    await asyncio.sleep(0.1)
    await redlock.aclose()
    for task in tasks:
        with pytest.raises(RedlockError, match="closed"):
            await task


@pytest.mark.spread(1)
@pytest.mark.parametrize("hung", [0, 3, 5])
@pytest.mark.parametrize("after", [0.0001, 0.0004, 0.0008, 0.0011])
@pytest.mark.promise("S3")
async def test_closing_ends_attempts_underway(masters: Masters, hung: int, after: float) -> None:
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


async def test_it_can_be_opened_after_a_first_use_was_closed(masters: Masters) -> None:
    redlock = Redlock(masters)
    waiting = asyncio.create_task(redlock.lock("r").try_acquire())
    opening = asyncio.create_task(redlock.__aenter__())
    await asyncio.sleep(0)
    await redlock.aclose()
    for task in (waiting, opening):
        with pytest.raises(RedlockError, match="closed"):
            await task
    async with redlock:
        assert await gets_lock(redlock)


# Errors


def pickled(error: RedlockError) -> RedlockError:
    again: RedlockError = pickle.loads(pickle.dumps(error))
    return again


@pytest.mark.parametrize("name", sorted({*errors.__all__} - {"ErrorCode"}))
def test_every_error_is_a_redlock_error(name: str) -> None:
    assert issubclass(getattr(errors, name), RedlockError)


def test_errors_can_be_pickled() -> None:
    votes = [Vote("m", Answer.HELD, "by x")]
    error = errors.QuorumUnavailableError(["r"], attempts=2, elapsed=3, votes=votes)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (type(error), str(error))
    for cause in LossCause:
        lost = errors.LockLostError(["r"], cause, "why", votes)
        again = pickle.loads(pickle.dumps(lost))
        assert (
            str(again)
            == str(lost)
            == (f"'r' lost: {cause.text}: why (m: held by another, by x) [{lost.code}]")
        )
        assert (again.cause, again.votes) == (cause, tuple(votes))
        assert again.cause is cause


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, pickled])
def test_a_copy_of_an_error_has_its_notes(again: Callable[[RedlockError], RedlockError]) -> None:
    """As with every other exception: a loss that the body's own error hides is only a note."""
    vote = Vote("m", Answer.HELD)
    found: list[RedlockError] = [
        errors.LockNotAcquiredError(["r"], attempts=1, elapsed=2, votes=[vote], permits=3),
        errors.QuorumUnavailableError(["r"], attempts=1, elapsed=2, votes=[vote]),
        errors.LockLostError(["r"], LossCause.FORCED),
        errors.LockNotHeldError(["r"], "why", "released"),
    ]
    for error in found:
        error.add_note("the outer lock was lost")
        copied = again(error)
        assert vars(copied) == vars(error)
        assert copied.__notes__ == ["the outer lock was lost"]
        assert repr(copied) == repr(error)


async def test_the_last_block_that_ends_closes_the_manager(masters: list[FakeMaster]) -> None:
    """Such as of two apps in one process, each with a lifespan."""
    redlock = Redlock(masters)
    lease = await redlock.lock("first use").acquire()
    async with redlock:
        async with redlock:
            async with redlock:
                pass
            lease.ensure_valid()
        lease.ensure_valid()
        entering = asyncio.create_task(redlock.__aenter__())
        entering.cancel()
        await asyncio.wait([entering])
        assert await redlock.is_locked("first use")
        await lease.release()
    with pytest.raises(RedlockError, match="closed"):
        await redlock.is_locked("first use")
    async with redlock, redlock:
        await redlock.aclose()  # at once, whoever is in it
        assert repr(redlock) == "<Redlock 5 masters, closed>"


async def test_a_block_whose_begin_is_cancelled_closes_no_other(masters: list[FakeMaster]) -> None:
    hang(masters)
    redlock = Redlock(masters)
    first, second = (asyncio.create_task(redlock.__aenter__()) for _ in range(2))
    await asyncio.sleep(0.01)
    second.cancel()
    await asyncio.sleep(0.01)
    resume(masters)
    assert await first is redlock
    async with redlock.lock("r"):
        pass
    await redlock.__aexit__(None, None, None)
    assert repr(redlock) == "<Redlock 5 masters, closed>"


async def test_an_entry_that_is_cancelled_late_closes_no_later_session(
    masters: list[FakeMaster],
) -> None:
    slow(masters, 0.05)
    redlock = Redlock(masters)
    first = asyncio.create_task(redlock.__aenter__())
    await asyncio.sleep(0.01)
    closing = asyncio.create_task(redlock.aclose())
    await asyncio.sleep(0)
    second = asyncio.create_task(redlock.__aenter__())
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first, closing, second])
    assert second.result() is redlock
    async with redlock.lock("r"):
        pass
    await redlock.aclose()
