"""Listeners that raise, stop the program or use locks; refused listeners; and the log."""

import asyncio
import contextlib
import functools
import logging
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from redlock_aio import (
    Answer,
    Lease,
    Lock,
    LockLostError,
    LockNotAcquiredError,
    LossCause,
    NoVoteCause,
    QuorumUnavailableError,
    Redlock,
    Vote,
)
from redlock_aio.events import (
    Acquired,
    Cancelled,
    Event,
    Extended,
    Listener,
    Lost,
    MajorityBack,
    MajorityLost,
    MasterBack,
    MasterLost,
    Missed,
    Released,
    Waiting,
    log_to,
)
from redlock_aio.testing import FakeMaster, VirtualTimeLoop

from .diary import Diary
from .kit import delete, hang, keys, kill, now, restart, settle

EVENTS = {
    Acquired, Missed, Cancelled, Waiting, Extended, Lost, Released, MasterLost, MasterBack,
    MajorityLost, MajorityBack,
}  # fmt: skip


async def story(listener: Listener | None) -> tuple[list[object], list[str]]:
    """Cause every kind of event; return the observations of the program, and the tokens."""
    masters = [FakeMaster(f"m{i}") for i in range(5)]
    seen: list[object] = []
    tokens: list[str] = []

    def see(*what: object) -> None:
        seen.append((round(now() - began, 6), *what))

    async def wait(lock: Lock) -> None:
        async with lock as lease:
            tokens.append(lease.token)
            see("got", lease.validity, lease.votes)
        see("left")

    began = now()
    async with Redlock(masters, restart_guard="off", listener=listener) as redlock:
        plain, fair = (redlock.lock("r", ttl=1000, fair=fair) for fair in (False, True))
        lock = redlock.lock("r", ttl=1000, fencing=True)
        for each in (plain, fair, lock):
            async with each as lease:
                tokens.append(lease.token)
                see(lease.votes, lease.valid)
                waiters = [asyncio.create_task(wait(each)) for _ in range(2)]
                await asyncio.sleep(0.01)
                see(await each.try_acquire())
                try:
                    await redlock.lock("r", wait=100).acquire()
                except LockNotAcquiredError as error:
                    see(error.attempts, error.votes)
                await lease.extend(3000)
                waiters[0].cancel()
            await asyncio.wait(waiters)
        kill(masters[:3])
        await asyncio.sleep(1)
        restart(masters[:3])
        await asyncio.sleep(1)
        for end in (delete, hang):
            try:
                async with lock as lease:
                    tokens.append(lease.token)
                    await asyncio.sleep(0.2)
                    end(masters[:3])
                    await asyncio.sleep(2)
            except LockLostError as error:
                see(str(error))
            await settle(masters)
        see(repr(redlock))
    see(keys(masters))
    return seen, tokens


@pytest.mark.spread(0)
@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError, RecursionError])
def test_a_listener_that_fails_changes_nothing(
    error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    def fail(event: Event, /) -> None:
        diary(event)
        raise error("the listener's own text")

    observed = []
    diary = Diary()
    for listener in (None, Diary(), fail):
        random.seed(0)
        caplog.clear()
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            observed.append(runner.run(story(listener))[0])
    assert observed[0] == observed[1] == observed[2]
    assert {type(event) for event in diary.events} == EVENTS
    diary.check()
    failed = [record for record in caplog.records if "listener" in record.getMessage()]
    assert [record.getMessage() for record in failed] == [
        f"the listener raised an error at {type(event).__name__}" for event in diary.events
    ]
    for record in failed:
        assert (record.name, record.levelname) == ("redlock_aio", "ERROR")
        assert record.exc_info is not None
        assert record.exc_info[0] is error


@pytest.mark.parametrize("way", ["acquire", "try_acquire", "__aenter__"])
async def test_a_program_that_stops_in_its_listener_keeps_no_lock(
    masters: list[FakeMaster], diary: Diary, way: str
) -> None:
    def stop(event: Event) -> None:
        diary(event)
        if isinstance(event, Acquired):
            raise KeyboardInterrupt

    async with Redlock(masters, restart_guard="off", listener=stop) as redlock:
        lock = redlock.lock("r")
        with pytest.raises(KeyboardInterrupt):
            await getattr(lock, way)()
        assert redlock.statistics().leases == 0
        assert not lock._entered
        diary.check()
        await asyncio.sleep(0.01)
        assert keys(masters) == [{}] * 5
        task = asyncio.current_task()
        assert task is not None
        assert not task.cancelling()


async def test_the_event_of_an_adoption_comes_in_its_task(
    masters: list[FakeMaster], redlock: Redlock
) -> None:
    """A span of the lease gets the parent that the task has, whatever else happens meanwhile."""
    tasks: list[object] = []

    def listener(event: Event) -> None:
        if isinstance(event, Acquired):
            tasks.append(asyncio.current_task())

    async with Redlock(masters, restart_guard="off", listener=listener) as adopter:
        exported = (await redlock.lock("r").acquire()).export()
        adopted = await adopter.adopt(exported)
        assert tasks == [asyncio.current_task()]
        await adopted.release()


async def test_a_program_that_stops_in_its_listener_adopts_no_lock(
    masters: list[FakeMaster], redlock: Redlock, diary: Diary
) -> None:
    def stop(event: Event) -> None:
        diary(event)
        if isinstance(event, Acquired):
            raise KeyboardInterrupt

    async with Redlock(masters, restart_guard="off", listener=stop) as adopter:
        exported = (await redlock.lock("r").acquire()).export()
        with pytest.raises(KeyboardInterrupt):
            await adopter.adopt(exported)
        assert adopter.statistics().leases == 0
        await asyncio.sleep(0.01)
        assert keys(masters) == [{}] * 5
    diary.check()


def test_a_program_that_stops_between_replies_can_go_on() -> None:
    events: list[Event] = []

    def stop(event: Event) -> None:
        events.append(event)
        if isinstance(event, Extended):
            raise SystemExit

    async def work() -> None:
        masters = [FakeMaster() for _ in range(3)]
        async with (
            Redlock(masters, restart_guard="off", listener=stop) as redlock,
            redlock.lock("r", ttl=1000) as lease,
        ):
            await asyncio.sleep(5)
            async with asyncio.timeout(1):
                await lease.extend()  # the round whose replies were being counted
            assert lease.valid

    loop = VirtualTimeLoop()
    try:
        task = loop.create_task(work())
        stops = 0
        while not task.done():
            try:
                loop.run_until_complete(task)
            except SystemExit:
                stops += 1
        task.result()
    finally:
        loop.close()
    assert stops == sum(isinstance(event, Extended) for event in events) > 10
    assert isinstance(events[-1], Released)


async def test_an_event_that_the_listener_causes_is_emitted_after_the_current_one(
    masters: list[FakeMaster],
) -> None:
    seen: list[tuple[str, type[Event], str]] = []
    first: Lease

    def act(event: Event) -> None:
        assert isinstance(event, Acquired | Released)
        seen.append(("begins", type(event), event.resources[0]))
        if isinstance(event, Acquired) and event.resources == ("second",):
            # The block ends at once, because its body has failed.
            with contextlib.suppress(StopIteration):
                first.__aexit__(KeyError, KeyError(), None).send(None)
        seen.append(("ends", type(event), event.resources[0]))

    async with Redlock(masters, restart_guard="off", listener=act) as redlock:
        first = await redlock.lock("first").acquire()
        await (await redlock.lock("second").acquire()).release()
    assert seen == [
        (part, event, name)
        for event in (Acquired, Released)
        for name in ("first", "second")
        for part in ("begins", "ends")
    ]


async def test_a_listener_may_start_tasks_that_lock(
    masters: list[FakeMaster], diary: Diary
) -> None:
    tasks: list[asyncio.Task[None]] = []

    async def note() -> None:
        async with manager.lock("notes", ttl=1000):
            await asyncio.sleep(0.001)

    def act(event: Event) -> None:
        diary(event)
        if getattr(event, "resources", None) != ("notes",):
            tasks.append(asyncio.create_task(note()))

    manager = Redlock(masters, restart_guard="off", listener=act)
    async with manager:
        with pytest.raises(LockLostError):
            async with manager.lock("r", ttl=1000):
                masters[0].kill()
                await asyncio.sleep(1)
                delete(masters[1:])
                await asyncio.sleep(1)
        await asyncio.gather(*tasks)
    diary.check()
    assert len(tasks) >= 5


# Valid and invalid listeners


async def coroutine_function(event: Event) -> None:
    raise NotImplementedError


async def generator(event: Event) -> AsyncIterator[Event]:
    yield event


class Asynchronous:
    async def __call__(self, event: Event) -> None:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        (5, "an? int"),
        ("print", "a str"),
        (coroutine_function, "a coroutine function"),
        (generator, "a coroutine function"),
        (functools.partial(coroutine_function), "a coroutine function"),
        (Asynchronous(), "a coroutine function"),
        (Asynchronous().__call__, "a coroutine function"),
    ],
)
def test_only_a_plain_function_can_listen(wrong: Any, kind: str) -> None:
    with pytest.raises(TypeError, match=f"^listener must be a plain function, not {kind}$"):
        Redlock(["redis://a"], listener=wrong)


def test_all_plain_callables_can_listen() -> None:
    listeners: list[Any] = [print, [].append, Diary(), Diary, lambda _: 0, functools.partial(print)]
    for listener in listeners:
        assert Redlock(["redis://a"], listener=listener)._opener.emitter is not None
    assert Redlock(["redis://a"], listener=None)._opener.emitter is None


# The log


def test_the_log_has_a_line_for_each_event_of_a_lock(caplog: pytest.LogCaptureFixture) -> None:
    error = QuorumUnavailableError(("a", "b"), attempts=1, elapsed=3, votes=())
    votes = (Vote("m", Answer.GRANTED),)
    lines: list[tuple[Event, str, str]] = [
        (Waiting(("a", "b")), "DEBUG", "'a', 'b': waiting"),
        (Cancelled(("a", "b"), 3), "DEBUG", "'a', 'b': cancelled after 3 ms"),
        (Acquired(("a", "b"), "f00", 3, None), "DEBUG", "'a', 'b' (f00) acquired in 3 ms"),
        (
            Acquired(("a",), "f00", 3, 17),
            "DEBUG",
            "'a' (f00) acquired in 3 ms with fencing token 17",
        ),
        (
            Extended(("a",), "f00", 5000, 886),
            "DEBUG",
            "'a' (f00) extended to 5000 ms with 886 ms left",
        ),
        (Released(("a",), "f00", 12), "DEBUG", "'a' (f00) released after 12 ms"),
        (
            Lost(("a",), "f00", "gone", 12, LossCause.KEY_GONE, votes),
            "WARNING",
            "'a' (f00) lost after 12 ms: gone (m: granted)",
        ),
        (
            Missed(("a", "b"), 3, error),
            "INFO",
            "'a', 'b' not acquired in 1 round, 3 ms: too few masters answered () [too-few-masters]",
        ),
        (
            Acquired(("a",), "f00", 3, None, "permit", 4),
            "DEBUG",
            "permit 4 of 'a' (f00) acquired in 3 ms",
        ),
        (MajorityLost(votes), "WARNING", "no majority of the masters votes (m: granted)"),
        (MajorityBack(12), "WARNING", "a majority of the masters votes again, after 12 ms"),
    ]
    write = log_to()
    caplog.set_level(logging.DEBUG, "redlock_aio")
    for event, _, _ in lines:
        write(event)
    write(MasterLost("m0", "away", NoVoteCause.SILENT, ()))
    write(MasterBack("m0"))
    wanted = [("redlock_aio", level, text) for _, level, text in lines]
    assert [(r.name, r.levelname, r.getMessage()) for r in caplog.records] == wanted


class Unformatted(str):
    """An object that must not be formatted."""

    __slots__ = ()

    def __repr__(self) -> str:
        pytest.fail("it was formatted")

    __str__ = __repr__


class UnformattedError(LockNotAcquiredError):
    __str__ = Unformatted.__repr__


@pytest.mark.parametrize(
    ("level", "lines"), [(logging.INFO, 2), (logging.WARNING, 1), (logging.ERROR, 0)]
)
def test_a_line_that_the_logger_drops_is_not_formatted(level: int, lines: int) -> None:
    written: list[logging.LogRecord] = []
    logger = logging.getLogger(f"mine.{level}")
    logger.setLevel(level)
    logger.propagate = False
    logger.addHandler(handler := logging.Handler())
    handler.emit = written.append  # type: ignore[assignment, method-assign]
    names = (Unformatted("r"),)
    missed = UnformattedError(names, attempts=1, elapsed=3, votes=())
    write = log_to(logger)
    write(Waiting(names))
    write(Acquired(names, "f00", 3, 4))
    write(Extended(names, "f00", 3, 4))
    write(Released(names, "f00", 3))
    write(Missed(names, 3, missed))  # formatted only when it is written
    write(Lost(("r",) if lines else names, "f00", "gone", 3, LossCause.KEY_GONE))
    assert len(written) == lines
    assert all(record.args for record in written)


@pytest.mark.parametrize("wrong", ["redlock_aio", logging, 5, print])
def test_a_log_needs_a_logger(wrong: Any) -> None:
    with pytest.raises(TypeError, match="logger must be a Logger, not a"):
        log_to(wrong)


@pytest.mark.promise("S10")
async def test_no_event_and_no_line_has_a_token(
    diary: Diary, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "redlock_aio")
    write = log_to()

    def listener(event: Event, /) -> None:
        diary(event)
        write(event)
        raise ValueError("its log is searched too")

    _, tokens = await story(listener)
    assert {type(event) for event in diary.events} == EVENTS
    texts = repr(diary.events) + caplog.text + "".join(map(str, diary.of(Missed)))
    assert len(tokens) >= 8
    assert not [token for token in tokens if token in texts or token[:10] in texts]


def test_events_are_values() -> None:
    event = Released(("r",), "f00", 3)
    assert event == Released(("r",), "f00", 3)
    with pytest.raises(AttributeError):
        event.held_ms = 4  # type: ignore[misc]
    assert not hasattr(event, "__dict__")
