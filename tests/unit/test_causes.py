"""Each loss of a lease names its cause, with the votes that showed it."""

import asyncio
import dataclasses
import pickle
import sys
from collections.abc import Awaitable, Callable

import pytest

from redlock_aio import Answer, Lease, LockLostError, LockNotHeldError, LossCause, Redlock
from redlock_aio._engine.hold.renewal import Renewal
from redlock_aio._protocol.lease_export import exported as text_of, imported
from redlock_aio._protocol.scripts import EXTEND
from redlock_aio._rules.causes import Loss
from redlock_aio.events import Lost
from redlock_aio.testing import FakeMaster, VirtualTimeLoop

from .diary import Diary
from .kit import (
    LATENCY,
    count_up,
    delete,
    fail,
    hang,
    interrupted,
    kill,
    loop,
    occupy,
    ran,
    resume,
    slow,
)

Story = Callable[[list[FakeMaster], Redlock, Lease], Awaitable[None]]

G, F, H = Answer.GRANTED, Answer.FREE, Answer.HELD
TIMED_OUT, AWAY, ERROR = Answer.TIMED_OUT, Answer.UNREACHABLE, Answer.ERROR


async def masters_hang(masters: list[FakeMaster], _redlock: Redlock, _lease: Lease) -> None:
    hang(masters[:3])
    await asyncio.sleep(2)


async def masters_die(masters: list[FakeMaster], _redlock: Redlock, _lease: Lease) -> None:
    kill(masters[:3])
    await asyncio.sleep(2)


async def masters_refuse(masters: list[FakeMaster], _redlock: Redlock, _lease: Lease) -> None:
    fail(masters[:3])
    await asyncio.sleep(2)


async def loop_stalls(_masters: list[FakeMaster], _redlock: Redlock, _lease: Lease) -> None:
    loop().stall(2)
    await asyncio.sleep(0.1)


async def holder_looks_after_a_stall(
    _masters: list[FakeMaster], _redlock: Redlock, lease: Lease
) -> None:
    loop().stall(2)
    lease.ensure_valid()


async def holder_extends_after_a_stall(
    masters: list[FakeMaster], _redlock: Redlock, lease: Lease
) -> None:
    """The lease is lost before the watchdog runs, and nothing is sent: others may have the lock."""
    before = ran(masters[0], EXTEND)
    loop().stall(2)
    try:
        await lease.extend()
    finally:
        assert ran(masters[0], EXTEND) == before
        assert lease.lost.is_set()


async def loop_stalls_at_an_extension(
    _masters: list[FakeMaster], _redlock: Redlock, lease: Lease
) -> None:
    extending = asyncio.create_task(lease.extend())
    await asyncio.sleep(0.0005)
    loop().stall(2)  # the replies arrive meanwhile, and are read too late
    await extending


async def refusals_are_read_before_the_timer_runs(
    _masters: list[FakeMaster], _redlock: Redlock, lease: Lease
) -> None:
    loop().stall(2)
    lease._session.watchdog.lose(lease._hold, Loss(LossCause.KEY_GONE))
    await asyncio.sleep(0.1)


async def key_is_deleted_before_a_stall_is_over(
    _masters: list[FakeMaster], _redlock: Redlock, lease: Lease
) -> None:
    """The key can't have expired yet: the stall ends before the deadline."""
    loop().stall(lease._hold.deadline - loop().time() - 0.001)
    lease._session.watchdog.lose(lease._hold, Loss(LossCause.KEY_GONE))
    await asyncio.sleep(0.1)


async def loop_stalls_before_the_release_leaves(
    _masters: list[FakeMaster], _redlock: Redlock, _lease: Lease
) -> None:
    loop().call_soon(loop().stall, 2)  # in the turn in which the block ends


async def masters_die_before_a_stall(
    masters: list[FakeMaster], _redlock: Redlock, _lease: Lease
) -> None:
    kill(masters[:3])
    await asyncio.sleep(0.5)
    loop().stall(2)
    await asyncio.sleep(0.1)


async def hold_is_over(_masters: list[FakeMaster], _redlock: Redlock, _lease: Lease) -> None:
    await asyncio.sleep(5)


async def key_is_deleted(masters: list[FakeMaster], _redlock: Redlock, _lease: Lease) -> None:
    await asyncio.sleep(0.2)
    delete(masters[:3])
    await asyncio.sleep(0.1)


async def key_becomes_a_list(masters: list[FakeMaster], _redlock: Redlock, _lease: Lease) -> None:
    await asyncio.sleep(0.2)
    delete(masters[:3])
    for master in masters[:3]:
        master._data.zadd(b"r", 1, b"theirs")
    await asyncio.sleep(0.1)


async def extension_finds_no_key(
    masters: list[FakeMaster], _redlock: Redlock, lease: Lease
) -> None:
    delete(masters[:3])
    for master in masters[3:]:
        master.latency = 0.01  # they answer when it is decided
    await lease.extend()


async def others_take_the_key(masters: list[FakeMaster], _redlock: Redlock, lease: Lease) -> None:
    delete(masters[:3])
    occupy(masters[:3])
    await lease.extend()


async def key_is_gone_at_the_end(
    masters: list[FakeMaster], _redlock: Redlock, _lease: Lease
) -> None:
    delete(masters[:2])
    occupy([masters[2]])


async def forced_here(_masters: list[FakeMaster], redlock: Redlock, _lease: Lease) -> None:
    await redlock.force_release("r")
    await asyncio.sleep(1)


async def forced_elsewhere(masters: list[FakeMaster], _redlock: Redlock, _lease: Lease) -> None:
    async with Redlock(masters, restart_guard="off") as operator:
        await asyncio.sleep(0.2)
        await operator.force_release("r")
        await asyncio.sleep(1)


async def manager_closes(_masters: list[FakeMaster], redlock: Redlock, _lease: Lease) -> None:
    await redlock.aclose()
    await asyncio.sleep(1)


CASES: dict[Story, tuple[LossCause, list[Answer]]] = {
    masters_hang: (LossCause.NOT_EXTENDED, [TIMED_OUT] * 3),
    masters_die: (LossCause.NOT_EXTENDED, [AWAY] * 3),
    masters_refuse: (LossCause.NOT_EXTENDED, [ERROR] * 3),
    loop_stalls: (LossCause.LOOP_STALLED, []),
    holder_looks_after_a_stall: (LossCause.LOOP_STALLED, []),
    holder_extends_after_a_stall: (LossCause.LOOP_STALLED, []),
    loop_stalls_at_an_extension: (LossCause.LOOP_STALLED, []),
    refusals_are_read_before_the_timer_runs: (LossCause.LOOP_STALLED, []),
    key_is_deleted_before_a_stall_is_over: (LossCause.KEY_GONE, []),
    loop_stalls_before_the_release_leaves: (LossCause.LOOP_STALLED, []),
    masters_die_before_a_stall: (LossCause.LOOP_STALLED, [AWAY] * 3),
    hold_is_over: (LossCause.MAX_HOLD, []),
    key_is_deleted: (LossCause.KEY_GONE, [F] * 3),
    key_becomes_a_list: (LossCause.KEY_GONE, [H] * 3),
    extension_finds_no_key: (LossCause.KEY_GONE, [F] * 3),
    others_take_the_key: (LossCause.KEY_GONE, [H] * 3),
    key_is_gone_at_the_end: (LossCause.KEY_GONE, [H] * 3),
    forced_here: (LossCause.FORCED, []),
    forced_elsewhere: (LossCause.FORCED, [H]),
    manager_closes: (LossCause.CLOSED, []),
}
"""The cause of each loss, and the votes of the first masters; the others may be late."""


@pytest.mark.parametrize("story", CASES)
async def test_the_error_and_the_event_name_the_cause_and_the_votes(
    masters: list[FakeMaster], diary: Diary, story: Story
) -> None:
    cause, answers = CASES[story]
    max_hold = 500 if story is hold_is_over else None
    async with Redlock(masters, restart_guard="off", listener=diary) as redlock:
        with pytest.raises(LockLostError) as caught:
            async with redlock.lock("r", ttl=1000, max_hold=max_hold) as lease:
                await story(masters, redlock, lease)
        error = caught.value
        assert error.cause is cause
        # A lease is lost with the first answers that prove it: then the others have not answered.
        proven = cause in {LossCause.KEY_GONE, LossCause.FORCED}
        assert len(answers) <= len(error.votes) <= 5
        assert proven or len(error.votes) == (5 if answers else 0)
        assert not (proven and "not answered" in str(error))
        found = [vote.answer for vote in error.votes]
        assert found[: len(answers)] == answers
        assert set(found[len(answers) :]) <= {G, TIMED_OUT}
        assert error.reason.startswith(cause.text)
        listed = f" ({'; '.join(map(str, error.votes))})" if answers else ""
        assert str(error) == f"'r' lost: {error.reason}{listed} [{error.code}]"
        (lost,) = diary.of(Lost)
        assert isinstance(lost, Lost)
        assert (lost.cause, lost.reason, lost.votes) == (cause, error.reason, error.votes)
        again = pickle.loads(pickle.dumps(error))
        assert (again.cause, again.votes, str(again)) == (cause, error.votes, str(error))
        assert pickle.loads(pickle.dumps(lost)) == lost
        resume(masters)
        await asyncio.sleep(3)


async def test_a_later_holder_is_a_cause(redlock: Redlock, masters: list[FakeMaster]) -> None:
    with pytest.raises(LockLostError) as caught:
        async with redlock.lock("r", ttl=1000, fencing=True) as lease:
            for master in masters[:3]:
                count_up(master)  # as the grant to another client does
            await lease.extend()
    assert caught.value.cause is LossCause.OVERTAKEN
    assert [vote.answer for vote in caught.value.votes[:3]] == [H] * 3


async def test_an_extension_that_succeeds_is_not_blamed_later(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    with pytest.raises(LockLostError) as caught:
        async with redlock.lock("r", ttl=1000) as lease:
            hang(masters[:3])
            await asyncio.sleep(0.6)  # an extension has failed
            resume(masters)
            await asyncio.sleep(0.3)
            await lease.extend()
            loop().stall(2)
    assert (caught.value.cause, caught.value.votes) == (LossCause.LOOP_STALLED, ())


async def test_a_lease_that_is_not_to_be_extended_has_no_votes(redlock: Redlock) -> None:
    with pytest.raises(LockLostError) as caught:
        async with redlock.lock("r", ttl=1000, auto_extend=False):
            await asyncio.sleep(2)
    assert (caught.value.cause, caught.value.votes) == (LossCause.NOT_EXTENDED, ())


async def test_a_release_that_comes_when_the_key_has_expired_accuses_nobody(
    masters: list[FakeMaster], diary: Diary
) -> None:
    """Nobody has deleted it: the release was sent in time, and was underway for too long."""
    cause = LossCause.NOT_EXTENDED
    async with Redlock(
        masters, restart_guard="off", master_timeout=1_000, listener=diary
    ) as redlock:
        lock = redlock.lock("r", ttl=1000, auto_extend=False)
        with pytest.raises(LockLostError) as caught:
            async with lock as lease:
                slow(masters, 0.2)
                await asyncio.sleep(0.95)
                assert lease.valid
        assert (caught.value.cause, caught.value.votes) == (cause, ())
        slow(masters, LATENCY)
        lease = await lock.acquire()
        slow(masters, 0.2)
        await asyncio.sleep(0.95)
        with pytest.raises(LockNotHeldError) as released:
            await lease.release()
        assert released.value.code == "not-extended"
        await asyncio.sleep(0.5)
    assert [event.cause for event in diary.events if isinstance(event, Lost)] == [cause] * 2


async def test_an_extension_underway_at_the_deadline_shows_who_has_not_answered(
    masters: list[FakeMaster],
) -> None:
    async with Redlock(masters, restart_guard="off", master_timeout=5_000) as redlock:
        with pytest.raises(LockLostError) as caught:
            async with redlock.lock("r", ttl=1000):
                hang(masters[:3])
                await asyncio.sleep(2)
        assert caught.value.cause is LossCause.NOT_EXTENDED
        assert [vote.answer for vote in caught.value.votes] == [TIMED_OUT] * 3 + [G] * 2
        assert caught.value.votes[0].detail == "not answered when the round was decided"
        resume(masters)
        await asyncio.sleep(1)


async def test_until_the_last_extension_has_a_reply_the_vote_on_the_one_before_counts(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    with pytest.raises(LockLostError) as caught:
        async with redlock.lock("r", ttl=1000) as lease:
            hang(masters[:3])
            await asyncio.sleep(0.98)
            assert lease.valid
            await lease.extend()
    assert [str(vote) for vote in caught.value.votes[:3]] == [f"m{i}: timed out" for i in range(3)]
    resume(masters)
    await asyncio.sleep(1)


async def test_another_thread_may_ask_for_the_votes_at_any_moment() -> None:
    """`Lease.ensure_valid` does, while the loop completes an extension and begins the next one."""
    master = FakeMaster("a")
    async with Redlock([master], restart_guard="off") as redlock:
        lease = await redlock.lock("r", ttl=1000).acquire()
        master.hang()
        await asyncio.sleep(0.6)
        extending = asyncio.create_task(lease.extend())
        await asyncio.sleep(0)
        last = lease._hold.extension
        assert isinstance(last, Renewal)
        failed, more, place = last.before, True, 0
        assert failed is not None
        while more:
            last.before = failed
            loss = lease._hold.why_expired
            more = interrupted(loss, place, lambda: setattr(last, "before", None))
            place += 1
        assert place > 50
        master.resume()
        await extending
        await lease.release()


async def test_many_extensions_underway_at_the_deadline_end_with_the_lease() -> None:
    """The votes of each one are found without a look at all that were sent before it."""
    master = FakeMaster("a")
    async with Redlock([master], restart_guard="off", master_timeout=5_000) as redlock:
        lease = await redlock.lock("r", ttl=1000).acquire()
        master.hang()
        ends = [asyncio.create_task(lease.extend()) for _ in range(sys.getrecursionlimit() + 100)]
        await asyncio.wait(ends)
        (error,) = {str(end.exception()) for end in ends}
        vote = "a: timed out, not answered when the round was decided"
        assert error == f"'r' lost: {LossCause.NOT_EXTENDED.text} ({vote}) [not-extended]"
        master.resume()
        await asyncio.sleep(1)


@pytest.mark.parametrize("when", ["late", "hung", "ahead", "gone"])
async def test_an_adoption_names_the_cause(
    redlock: Redlock, there: Redlock, masters: list[FakeMaster], when: str
) -> None:
    lease = await redlock.lock("r", ttl=1000, fencing=True).acquire()
    ahead = lease.fencing_token + 9_000_000
    exported = lease.export()
    match when:
        case "late":
            await asyncio.sleep(2)
            cause, votes = LossCause.ADOPTED_LATE, 0
        case "hung":
            hang(masters[:3])
            cause, votes = LossCause.NOT_ADOPTED, 5
        case "ahead":
            exported = text_of(dataclasses.replace(imported(exported), fence=ahead))
            cause, votes = LossCause.FENCING_AHEAD, 5
        case _:
            delete(masters[:3])
            cause, votes = LossCause.KEY_GONE, 5
    with pytest.raises(LockLostError) as caught:
        await there.adopt(exported)
    assert (caught.value.cause, len(caught.value.votes)) == (cause, votes)
    resume(masters)
    await asyncio.sleep(1)


@pytest.mark.parametrize("cause", [LossCause.CANCELLED, LossCause.LOOP_CLOSED])
def test_the_end_of_the_program_and_of_its_loop_are_causes(cause: LossCause) -> None:
    async def acquire() -> tuple[Redlock, Lease]:
        redlock = Redlock([FakeMaster("a")], restart_guard="off")
        return redlock, await redlock.lock("r").acquire()

    if cause is LossCause.CANCELLED:  # at the end of a runner
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            redlock, lease = runner.run(acquire())
    else:
        closed = VirtualTimeLoop()
        redlock, lease = closed.run_until_complete(acquire())
        for task in asyncio.all_tasks(closed):  # asyncio would report these tasks
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        closed.close()
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(redlock.aclose())
    with pytest.raises(LockLostError) as caught:
        lease.ensure_valid()
    assert (caught.value.cause, caught.value.votes) == (cause, ())


async def test_a_lease_that_was_given_up_is_not_lost(redlock: Redlock) -> None:
    released, exported = [await redlock.lock(name).acquire() for name in ("a", "b")]
    await released.release()
    exported.export()
    for lease, text in ((released, "it has been released"), (exported, "it was handed over")):
        with pytest.raises(LockNotHeldError, match=text):
            lease.ensure_valid()
        assert not lease.lost.is_set()


def test_a_wrong_cause_is_named() -> None:
    with pytest.raises(TypeError, match=r"^cause must be a LossCause, not a str$"):
        LockLostError(["r"], "key_gone")  # type: ignore[arg-type]


def test_each_value_is_the_name_as_a_word() -> None:
    assert [cause.value for cause in LossCause] == [cause.name.lower() for cause in LossCause]
    assert all(LossCause(cause.value) is cause and cause.text for cause in LossCause)
