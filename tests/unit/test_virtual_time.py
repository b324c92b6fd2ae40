"""The loop in virtual time, where something of real time comes in: an alarm, a thread."""

import asyncio
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from types import FrameType

import pytest

from redlock_aio.testing import VirtualTimeLoop


class Overtime(BaseException):
    """What the handler of an alarm raises, as that of pytest-timeout."""


def on_alarm(_number: int, _frame: FrameType | None) -> None:
    raise Overtime


@pytest.fixture
def alarm() -> Iterator[int]:
    number = getattr(signal, "SIGALRM", None)
    if number is None:
        pytest.skip(f"there are no alarms on {sys.platform}")
    before = signal.signal(number, on_alarm)
    yield number
    signal.signal(number, before)


async def raised_in_a_callback(alarm: int) -> None:
    asyncio.get_running_loop().call_later(1, signal.raise_signal, alarm)
    await asyncio.sleep(10)


async def raised_in_a_task(alarm: int) -> None:
    async def other() -> None:
        await asyncio.sleep(1)
        signal.raise_signal(alarm)

    task = asyncio.create_task(other())
    await asyncio.sleep(10)
    task.exception()


@pytest.mark.parametrize("work", [raised_in_a_callback, raised_in_a_task])
def test_an_error_of_an_alarm_ends_a_loop_wherever_it_is_raised(
    work: Callable[[int], Coroutine[object, object, None]], alarm: int
) -> None:
    """Else a test that waits for ever would not be ended by pytest-timeout."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        with pytest.raises(Overtime):
            runner.run(work(alarm))
        assert 1 <= runner.get_loop().time() < 10
        assert signal.getsignal(alarm) is on_alarm
        runner.run(asyncio.sleep(10))  # as a fixture that is closed then


def test_an_error_of_an_alarm_that_the_test_itself_gets_is_raised_once(alarm: int) -> None:
    async def get_it() -> None:
        with pytest.raises(Overtime):
            signal.raise_signal(alarm)

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(get_it())
        runner.run(asyncio.sleep(10))


def test_a_handler_that_is_set_in_the_loop_stays(alarm: int) -> None:
    async def set_it() -> None:
        signal.signal(alarm, signal.SIG_IGN)

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(set_it())
        assert signal.getsignal(alarm) is signal.SIG_IGN


def test_a_stall_moves_both_clocks_and_a_suspended_machine_only_one() -> None:
    async def move() -> tuple[float, float, bool]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        due = asyncio.create_task(asyncio.sleep(60))
        await asyncio.sleep(1)
        loop.suspend(100)
        await asyncio.sleep(1)
        assert not due.done()  # its timer does not count the time of the suspension
        loop.stall(100)
        assert not due.done()  # no task has run
        await asyncio.sleep(0.001)
        return loop.time(), loop.boottime(), due.done()

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        moved, boottime, done = runner.run(move())
    assert moved == pytest.approx(102.001)
    assert boottime == pytest.approx(202.001)
    assert done


def test_a_loop_in_which_nothing_can_happen_any_more_is_a_deadlock() -> None:
    """In a real loop the test would hang."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        with pytest.raises(RuntimeError, match="deadlock: nothing is ready and no timer is set"):
            runner.run(asyncio.Event().wait())
        runner.run(asyncio.sleep(1))


def test_a_loop_waits_for_its_threads_to_end() -> None:
    ended = threading.Event()

    def work() -> None:
        time.sleep(0.1)
        ended.set()

    async def start() -> None:
        asyncio.get_running_loop().run_in_executor(None, work)

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(start())
    assert ended.is_set()


def test_a_loop_in_another_thread_leaves_the_alarm_alone(alarm: int) -> None:
    async def look() -> None:
        assert signal.getsignal(alarm) is on_alarm

    def run() -> None:
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            runner.run(look())
            done.append(True)

    done: list[bool] = []
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert done
