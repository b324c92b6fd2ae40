"""A block that another task leaves than the one that has entered it: fixtures and generators."""

import asyncio
import contextlib
import gc
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from typing import Annotated, Any

import pytest
from fastapi import Depends, FastAPI
from fastapi.responses import StreamingResponse
from httpx import ASGITransport, AsyncClient

from redlock_aio import Lease, LockLostError, LockNotHeldError, Redlock, RedlockError
from redlock_aio.testing import FakeMaster

from .kit import hang, resume

OURS = "not by the task that entered the block"


async def fixture(redlock: Redlock, **options: Any) -> AsyncGenerator[Lease, None]:
    """What a fixture is that holds a lock."""
    async with redlock.lock("r", ttl=1_000, **options) as lease:
        yield lease


def in_a_task(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Do it as a runner of fixtures does: in a task of its own."""
    return asyncio.create_task(work)


async def step(generator: AsyncGenerator[Lease, None]) -> Lease | None:
    return await anext(generator, None)


async def free(masters: list[FakeMaster]) -> bool:
    await asyncio.sleep(0.01)
    return not any(master.keys for master in masters)


async def lose(masters: list[FakeMaster], lease: Lease) -> None:
    hang(masters)
    await lease.lost.wait()
    resume(masters)


@pytest.mark.promise("S3")
async def test_a_fixture_that_another_task_ends_is_released_and_told_so(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    generator = fixture(redlock)
    lease = await in_a_task(step(generator))
    await asyncio.sleep(2)
    assert lease.valid
    with pytest.raises(RedlockError, match=OURS) as caught:
        await in_a_task(step(generator))
    assert type(caught.value) is RedlockError
    assert "'r'" in str(caught.value)
    assert "on_lost='flag'" in str(caught.value)
    assert await free(masters)
    with pytest.raises(LockNotHeldError):
        await lease.release()


async def test_what_the_page_says_works_in_any_task(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    generator = fixture(redlock, on_lost="flag")
    lease = await in_a_task(step(generator))
    assert lease.valid
    assert await in_a_task(step(generator)) is None
    assert await free(masters)
    lease = await in_a_task(redlock.lock("r").acquire())
    await asyncio.sleep(20)
    assert lease.valid
    await in_a_task(lease.release())
    assert await free(masters)


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.promise("S2")
async def test_a_task_is_not_cancelled_any_more_when_another_one_has_left_its_block(
    redlock: Redlock, masters: list[FakeMaster], *, ended: bool
) -> None:
    generator = fixture(redlock)
    cancelled = 0

    async def enter_and_go_on() -> None:
        nonlocal cancelled
        leases.append(await anext(generator))
        while not ended:
            try:
                await asyncio.sleep(1)
            except asyncio.CancelledError:
                cancelled += 1

    leases: list[Lease] = []
    task = in_a_task(enter_and_go_on())
    await asyncio.sleep(0.1)
    await lose(masters, leases[0])
    with pytest.raises(LockLostError):
        await in_a_task(step(generator))
    before = cancelled
    assert bool(before) is not ended
    await asyncio.sleep(60)
    assert cancelled == before
    ended = True
    await task


async def test_the_task_that_entered_goes_on_undisturbed_if_the_lock_was_not_lost(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    stack = contextlib.AsyncExitStack()

    async def enter_and_go_on() -> str:
        lease = await stack.enter_async_context(redlock.lock("r"))
        await asyncio.sleep(1)
        async with redlock.lock("s"), asyncio.timeout(9):
            await asyncio.sleep(1)
        return "done" if not lease.valid else "still valid"

    task = in_a_task(enter_and_go_on())
    await asyncio.sleep(0.5)
    with pytest.raises(RedlockError, match=OURS):
        await stack.aclose()
    assert await free(masters)
    assert await task == "done"
    assert await free(masters)


@pytest.mark.parametrize("error", [KeyError("mine"), asyncio.CancelledError("mine")])
async def test_the_body_s_own_error_comes_out_with_a_note(
    redlock: Redlock, masters: list[FakeMaster], error: BaseException
) -> None:
    generator = fixture(redlock)
    await in_a_task(step(generator))
    with pytest.raises(type(error)) as caught:
        await generator.athrow(error)
    assert caught.value is error
    assert any(OURS in note for note in error.__notes__)
    assert await free(masters)


async def test_a_generator_that_nobody_ends_is_ended_by_the_loop_and_told_so(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    reported: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: reported.append(context))
    try:
        await in_a_task(step(fixture(redlock)))
        gc.collect()
        assert await free(masters)
        gc.collect()
    finally:
        loop.set_exception_handler(before)
    assert len(reported) == 1
    assert OURS in str(reported[0]["exception"])


async def test_of_several_blocks_each_task_leaves_its_own(redlock: Redlock) -> None:
    """A task that has entered none leaves that of a task that has ended, else nobody's."""
    lock = redlock.lock("r", reentrant=True, owner="o", on_lost="flag")
    held: list[Lease] = []

    async def hold(leave: asyncio.Event) -> None:
        async with lock as lease:
            held.append(lease)
            await leave.wait()

    events = [asyncio.Event(), asyncio.Event()]
    tasks = [in_a_task(hold(event)) for event in events]
    await asyncio.sleep(0.1)
    with pytest.raises(LockNotHeldError, match="this task has not entered"):
        await lock.__aexit__(None, None, None)
    await in_a_task(lock.__aenter__())
    assert held[0].hold_count == 3
    await lock.__aexit__(None, None, None)
    for task, event in zip(tasks, events, strict=True):
        event.set()
        await task
    assert not any(lease.valid for lease in held)
    with pytest.raises(LockNotHeldError):
        await lock.__aexit__(None, None, None)


@pytest.mark.parametrize("on_lost", ["cancel", "flag"])
@pytest.mark.parametrize("path", ["/plain", "/stream", "/fails"])
async def test_a_dependency_of_fastapi_holds_the_lock_for_its_request(
    redlock: Redlock, masters: list[FakeMaster], on_lost: Any, path: str
) -> None:
    app = FastAPI()

    async def locked() -> AsyncIterator[Lease]:
        async with redlock.lock("r", on_lost=on_lost) as lease:
            yield lease

    Locked = Annotated[Lease, Depends(locked)]  # noqa: N806 - a type

    @app.get("/plain")
    async def plain(lease: Locked) -> bool:
        return lease.valid

    @app.get("/stream")
    async def stream(lease: Locked) -> StreamingResponse:
        async def parts() -> AsyncIterator[str]:
            for _ in range(3):
                await asyncio.sleep(1)
                yield str(lease.valid).lower()

        return StreamingResponse(parts())

    @app.get("/fails")
    async def fails(lease: Locked) -> bool:
        raise KeyError(lease.valid)

    async with AsyncClient(transport=ASGITransport(app), base_url="http://a") as client:
        if path == "/fails":
            with pytest.raises(KeyError):
                await client.get(path)
        else:
            answer = await client.get(path)
            assert answer.status_code == 200
            assert set(answer.text.replace("true", "t")) == {"t"}
    assert await free(masters)
