"""A log whose handlers or filters raise errors: what is logged goes on."""

import asyncio
import logging
from collections.abc import Callable, Iterator

import pytest

from redlock_aio import Redlock
from redlock_aio._log import log
from redlock_aio.events import log_to
from redlock_aio.testing import FakeMaster

from .kit import kill, restart


class Failing(logging.Handler):
    """A handler and a filter that raise, and never call `handleError`."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = f"the handler's own text at {record.funcName}"
        raise ValueError(text)


@pytest.fixture(autouse=True)
def failing() -> Iterator[None]:
    handler, logger = Failing(), logging.getLogger("redlock_aio")
    logger.addHandler(handler)
    yield
    logger.removeHandler(handler)


async def test_masters_come_back_although_the_log_raises(
    masters: list[FakeMaster], capsys: pytest.CaptureFixture[str]
) -> None:
    async with Redlock(masters, restart_guard="off") as redlock:
        kill(masters)
        await asyncio.sleep(5)
        restart(masters)
        async with redlock.lock("r", wait=5_000):
            pass
    assert "the handler's own text" in capsys.readouterr().err


async def test_a_waiter_survives_an_outage_although_the_log_raises(
    masters: list[FakeMaster],
) -> None:
    async with Redlock(masters, restart_guard="off") as redlock:
        kill(masters)
        await asyncio.sleep(0.1)
        waiter = asyncio.create_task(redlock.lock("r").acquire())
        await asyncio.sleep(5)
        restart(masters)
        await (await waiter).release()


async def test_a_listener_that_logs_fails_no_task_although_the_log_raises(
    masters: list[FakeMaster], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "redlock_aio")
    async with (
        Redlock(masters, restart_guard="off", listener=log_to()) as redlock,
        redlock.lock("r", wait=0) as lease,
    ):
        await lease.extend()


@pytest.mark.parametrize("shown", [True, False])
def test_an_error_of_the_log_is_shown_as_the_standard_library_shows_it(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    shown: bool,
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", shown)
    log.warning("a line")
    assert ("the handler's own text" in capsys.readouterr().err) is shown


def write(log_line: Callable[[str], None]) -> None:
    log_line("a line")


def test_a_line_names_the_function_that_wrote_it(capsys: pytest.CaptureFixture[str]) -> None:
    write(log.warning)
    write(log.exception)
    assert capsys.readouterr().err.count("text at write") == 2
