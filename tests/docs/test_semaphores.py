"""What the pages say about semaphores: their output, their numbers, so many calls in a second."""

import asyncio
import re
from pathlib import Path
from statistics import median

from redlock_aio import Answer, Holder, Redlock, SemaphoreState, SemaphoreView
from redlock_aio._rules.validation import MOST_PERMITS
from redlock_aio.testing import FakeMaster, VirtualTimeLoop

from .test_examples import OUTPUT

DOCS = Path(__file__).parents[2] / "docs"
HOW_TO = (DOCS / "how-to" / "limit-calls.md").read_text()
LUA = Path(__file__).parents[2] / "redlock_aio" / "_protocol" / "lua"


def outputs(page: str) -> list[str]:
    """Return the blocks of a page that are not code."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    return [block for language, block in blocks if not language]


def test_the_output_in_the_tutorial_is_that_of_its_program() -> None:
    (shown,) = outputs((DOCS / "tutorial" / "sharing.md").read_text())
    assert re.fullmatch(OUTPUT["sharing.py"], shown)


def test_the_state_in_the_how_to_is_the_text_of_one() -> None:
    web_1, web_2 = Holder("ff3e1323", "web-1"), Holder("134f0716", "web-2")
    holders = {
        0: web_1, 1: web_2, 2: Holder("cfef7f60", "web-1"), 4: Holder("f2b04bd2", "web-2"),
    }  # fmt: skip
    left = {0: 9889, 1: 9889, 2: 9890, 4: 9895}
    views = tuple(
        SemaphoreView(f"10.0.0.{number}:6379", Answer.HELD, "", holders, dict(left), 1)
        for number in (1, 2, 3)
    )
    state = SemaphoreState("weather", 3, holders, dict(left), 1, views)
    assert outputs(HOW_TO) == [f"{state}\n"]


def test_the_numbers_on_the_pages_are_those_of_the_code() -> None:
    assert f"above {MOST_PERMITS:,} |" in HOW_TO
    permits = (LUA / "permits.lua").read_text()
    assert "now - since > 2 * (now - place)" in permits
    assert "**more than twice as long**" in (DOCS / "explanation" / "sharing.md").read_text()
    (lives,) = re.findall(r"INDEX_LIVES = (\d+)", permits)
    keys = (DOCS / "reference" / "keys.md").read_text()
    assert f"| {int(lives) // 1000} s, renewed while somebody waits |" in keys


def begun(*, at_once: bool) -> list[float]:
    """Return when 60 calls begin, of which ten may begin in a second."""

    async def main() -> list[float]:
        masters, times = [FakeMaster() for _ in range(3)], list[float]()
        loop = asyncio.get_running_loop()

        async def call(redlock: Redlock) -> None:
            api = redlock.semaphore("api", permits=15)
            rate = redlock.semaphore("rate", permits=10, hold_at_least=1_000)
            async with api:
                if at_once:
                    async with rate:
                        times.append(loop.time())
                else:
                    async with rate:
                        times.append(loop.time())
                        await asyncio.sleep(0.3)

        async with Redlock(masters) as one, Redlock(masters) as other, asyncio.TaskGroup() as tasks:
            for redlock in (one, other) * 30:
                tasks.create_task(call(redlock))
        return times

    loop = VirtualTimeLoop()
    try:
        return loop.run_until_complete(main())
    finally:
        loop.close()


def test_so_many_calls_begin_in_a_second() -> None:
    """Also where a call ends before the second does, or its block ends before it."""
    for at_once in (False, True):
        times = begun(at_once=at_once)
        assert len(times) == 60
        assert times == sorted(times)
        windows = [late - early for early, late in zip(times, times[10:], strict=False)]
        assert min(windows) >= 1
        assert median(windows) < 1.1, "and hardly fewer"
