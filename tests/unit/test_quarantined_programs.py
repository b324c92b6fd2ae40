"""Programs whose masters are in quarantine: their errors, waiters, releases and cancellation."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Literal

import pytest

from redlock_aio import Answer, QuorumUnavailableError, Redlock, Vote
from redlock_aio._protocol.commands import MARKER
from redlock_aio._protocol.request import NoReply, QuarantineRule, Request
from redlock_aio._protocol.scripts import MARK
from redlock_aio._transport.master import SAME_WORDS
from redlock_aio.testing import FakeMaster, VirtualTimeLoop

from . import kit
from .cancelling import When, every_place
from .kit import MAX_TTL, QUARANTINE, answers, guarded, hang, now, ran, restart, votes

pytestmark = [pytest.mark.promise("S1")]


@pytest.fixture
async def redlock(masters: list[FakeMaster]) -> AsyncIterator[Redlock]:
    async with guarded(masters) as redlock:
        yield redlock


# Errors and log lines.


async def test_the_error_tells_the_reason_and_the_time_left(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    restart(masters[:3])
    await asyncio.sleep(1.1)
    assert repr(redlock) == "<Redlock 5 masters, 5 up, 3 quarantined, 0 leases>"
    with pytest.raises(QuorumUnavailableError) as caught:
        await redlock.lock("r", wait=0).acquire()
    assert caught.value.votes[0] == Vote(
        "m0",
        Answer.QUARANTINED,
        "it restarted 1 s ago and may have forgotten locks; it votes again in 11 s",
    )
    assert str(caught.value.votes[0]) in str(caught.value)


async def test_the_reason_is_formatted_once_in_a_while_and_not_for_each_request(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    restart(masters[:1])
    await asyncio.sleep(1)
    refused = [Request(b"", in_quarantine=QuarantineRule.REFUSE)]
    replies: list[NoReply | None] = []
    for _ in range(3):
        replies.append(kit.session(redlock).links[0].send(b"", refused))
        await asyncio.sleep(0.6 * SAME_WORDS)
    assert replies[0] is replies[1]
    assert replies[1] is not replies[2]


@pytest.mark.parametrize("guard", ["off", "fsync-always"])
async def test_without_a_guard_no_marker_is_read_or_written(
    masters: list[FakeMaster],
    caplog: pytest.LogCaptureFixture,
    guard: Literal["off", "fsync-always"],
) -> None:
    """With "fsync-always", a server that does not persist each write is logged once."""
    async with Redlock(masters, restart_guard=guard) as redlock:
        masters[0].restart()
        await asyncio.sleep(0.6)
        assert await answers(redlock) == "G" * 5
    # The probe for DELIFEQ uses a value that no key has.
    commands = [c for master in masters for c in master.commands if c[0] != b"DELIFEQ"]
    assert MARKER not in {word for command in commands for word in command}
    warned = "m0: restart_guard is 'fsync-always', but the server has no append-only file"
    assert caplog.text.count(warned) == (guard == "fsync-always")


@pytest.mark.parametrize("guard", ["auto", "off"])
async def test_a_ttl_longer_than_max_ttl_is_refused(
    masters: list[FakeMaster], guard: Literal["auto", "off"]
) -> None:
    async with guarded(masters, restart_guard=guard) as redlock:
        with pytest.raises(ValueError, match="ttl must be at most max_ttl, which is 10000 ms"):
            redlock.lock("r", ttl=MAX_TTL + 1)
        async with redlock.lock("r", ttl=MAX_TTL) as lease:
            with pytest.raises(ValueError, match="not 10001 ms"):
                await lease.extend(MAX_TTL + 1)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (
            {"restart_guard": "on"},
            ValueError("restart_guard must be 'auto', 'strict', 'fsync-always' or 'off', not 'on'"),
        ),
        ({"max_ttl": 0}, ValueError("max_ttl must be positive")),
        ({"max_ttl": 1.0}, TypeError("max_ttl must be an int")),
    ],
)
def test_options_of_the_guard_are_checked(options: dict[str, Any], error: Exception) -> None:
    with pytest.raises(type(error), match=f"^{error}"):
        Redlock(["redis://a"], **options)


async def test_an_error_names_the_commands_that_the_guard_needs(masters: list[FakeMaster]) -> None:
    masters[0].forbid.add("GETRANGE")
    async with guarded(masters) as redlock:
        vote = (await votes(redlock))[0]
    assert vote.answer is Answer.ERROR
    assert vote.detail.startswith(
        "the restart guard must GETRANGE and SET the key redlock_aio:marker, or be off"
        ' (restart_guard="off"): NOPERM'
    )


# Waiters, releases and faults during a quarantine.


@pytest.mark.promise("S9")
@pytest.mark.parametrize("fair", [False, True])
async def test_a_waiter_gets_the_lock_when_the_quarantine_ends(
    redlock: Redlock, masters: list[FakeMaster], *, fair: bool
) -> None:
    restart(masters[:3])
    restarted = now()
    lease = await redlock.lock("r", fair=fair).acquire()
    assert QUARANTINE <= now() - restarted < QUARANTINE + 0.1
    await lease.release()


async def test_a_waiter_sends_few_attempts_and_none_to_quarantined_masters(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    restart(masters[:3])
    await asyncio.sleep(1)
    for master in masters:
        master.commands.clear()
    with pytest.raises(QuorumUnavailableError):
        await redlock.lock("r", wait=2000).acquire()
    assert ran(masters[4], MARK) < 60
    assert not ran(masters[0], MARK)


@pytest.mark.promise("S3")
@pytest.mark.parametrize("alone", [True, False])
async def test_a_quarantined_master_gets_releases_also_beside_an_acquisition(
    redlock: Redlock, masters: list[FakeMaster], *, alone: bool
) -> None:
    lease = await redlock.lock("r").acquire()
    masters[0].restart()
    await asyncio.sleep(0.6)
    masters[0].set("r", lease.token)  # the key is there, as after a restoration by an extension
    if alone:
        await lease.release()
    else:
        other, _ = await asyncio.gather(redlock.lock("other").acquire(), lease.release())
        assert [bool(master.keys) for master in masters] == [False, *[True] * 4]
        await other.release()
    await asyncio.sleep(0.01)
    assert not masters[0].keys


async def test_a_lease_released_on_masters_that_forgot_it_was_not_lost(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    async with redlock.lock("r"):
        restart(masters[:3])
        await asyncio.sleep(1)


async def test_a_quarantined_master_without_delifeq_gets_the_release_script(
    masters: list[FakeMaster],
) -> None:
    masters[0].forbid.add("DELIFEQ")
    async with guarded(masters) as redlock:
        masters[0].kill()
        masters[1].cut()
        await asyncio.sleep(1)
        masters[0].restart()
        await asyncio.sleep(3)
        assert await answers(redlock) == "QGGGG"
        masters[0].commands.clear()
        async with redlock.lock("r"):
            pass
        assert not [command for command in masters[0].commands if command[0] == b"DELIFEQ"]


@pytest.mark.promise("S6")
async def test_a_minority_that_hangs_does_not_delay_the_first_lock(
    masters: list[FakeMaster],
) -> None:
    hang(masters[:2])
    async with guarded(masters) as redlock, redlock.lock("r", wait=0):
        assert now() < 0.06


async def test_masters_that_come_and_go_do_not_delay_a_single_attempt(
    young: list[FakeMaster],
) -> None:
    masters = young[:3]
    masters[2].kill()

    async def flap() -> None:
        while True:
            await asyncio.sleep(0.3)
            for master in masters[:2]:
                master.cut()

    flapping = asyncio.create_task(flap())
    async with asyncio.timeout(5):
        redlock = Redlock(masters)
        assert await redlock.lock("r").try_acquire() is None
    flapping.cancel()
    await redlock.aclose()


@pytest.mark.promise("S3")
@pytest.mark.spread(0)
@pytest.mark.parametrize("when", ["waiting", "answered"])
@pytest.mark.parametrize("hung", [0, 1, 3])
async def test_a_cancelled_first_use_of_a_new_set_leaves_no_key(
    young: list[FakeMaster], hung: int, when: When
) -> None:
    async def first_use() -> None:
        restart(young)
        hang(young[:hung])
        with contextlib.suppress(*[QuorumUnavailableError] * bool(hung)):
            async with guarded(young) as redlock, redlock.lock("r", wait=100):
                pass

    await every_place(young, when, hung, first_use)


def test_closing_during_the_first_examination_ends_all_tasks() -> None:
    async def close_after(seconds: float) -> None:
        masters = [FakeMaster(f"m{i}") for i in range(3)]
        for master in masters:
            master.uptime = 0
        redlock = guarded(masters)
        kit.session(redlock)
        await asyncio.sleep(seconds)
        await redlock.aclose()
        assert len(asyncio.all_tasks()) == 1

    for place in range(1, 40):
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            runner.run(close_after(place * 0.0005))
