"""Each loss of a master's vote names its cause."""

import asyncio
from collections.abc import Callable

import pytest

from redlock_aio import Answer, NoVoteCause, Redlock
from redlock_aio._rules import quarantine
from redlock_aio._rules.quarantine import Reason
from redlock_aio.events import MasterLost
from redlock_aio.testing import FakeMaster

from .diary import Diary
from .kit import MAX_TTL, now
from .sentinels import FakeSentinel, FakeService

Act = Callable[[FakeMaster, FakeMaster], object]


def first_of(diary: Diary) -> tuple[NoVoteCause, Answer]:
    """Return the cause and the answer in the last event of the first master."""
    lost = [e for e in diary.events if isinstance(e, MasterLost) and e.master == "m0"][-1]
    assert lost.reason.startswith(lost.votes[0].answer.value)
    return lost.cause, lost.votes[0].answer


def kill(master: FakeMaster, _other: FakeMaster) -> None:
    master.kill()


def become_a_replica(master: FakeMaster, _other: FakeMaster) -> None:
    master.role = "slave"
    master.cut()


def become_the_other(master: FakeMaster, other: FakeMaster) -> None:
    master.run_id = other.run_id
    master.cut()


def forget_the_run_id(master: FakeMaster, _other: FakeMaster) -> None:
    master.run_id = ""
    master.cut()


def join_a_cluster(master: FakeMaster, _other: FakeMaster) -> None:
    info = master._do_info()
    assert isinstance(info, bytes)
    vars(master)["_do_info"] = lambda: info + b"cluster_enabled:1\r\n"
    master.cut()


def forbid_info(master: FakeMaster, _other: FakeMaster) -> None:
    master.forbid = {"INFO"}
    master.cut()


def forbid_the_marker(master: FakeMaster, _other: FakeMaster) -> None:
    master.forbid = {"GETRANGE"}
    master.cut()


def restart(master: FakeMaster, _other: FakeMaster) -> None:
    master.restart()


def flush(master: FakeMaster, _other: FakeMaster) -> None:
    master.flush()


CASES: dict[Act, tuple[NoVoteCause, Answer]] = {
    kill: (NoVoteCause.DISCONNECTED, Answer.UNREACHABLE),
    become_a_replica: (NoVoteCause.NOT_A_MASTER, Answer.ERROR),
    become_the_other: (NoVoteCause.SAME_SERVER, Answer.ERROR),
    forget_the_run_id: (NoVoteCause.UNSUPPORTED, Answer.ERROR),
    join_a_cluster: (NoVoteCause.UNSUPPORTED, Answer.ERROR),
    forbid_info: (NoVoteCause.FORBIDDEN, Answer.ERROR),
    forbid_the_marker: (NoVoteCause.FORBIDDEN, Answer.ERROR),
    restart: (NoVoteCause.RESTARTED, Answer.QUARANTINED),
    flush: (NoVoteCause.FLUSHED, Answer.QUARANTINED),
}


@pytest.mark.spread(0)
@pytest.mark.parametrize("act", CASES)
async def test_a_master_that_loses_its_vote(
    masters: list[FakeMaster], diary: Diary, act: Act
) -> None:
    async with Redlock(masters, max_ttl=MAX_TTL, listener=diary):
        await asyncio.sleep(0.1)
        act(masters[0], masters[1])
        await asyncio.sleep(3)
        assert first_of(diary) == CASES[act]
        if act is become_the_other:
            masters[0].run_id = "0" * 40


async def test_a_master_that_hangs_is_silent(masters: list[FakeMaster], diary: Diary) -> None:
    async with Redlock(masters, restart_guard="off", listener=diary) as redlock:
        masters[0].hang()
        await redlock.check()
        await asyncio.sleep(3)
        assert first_of(diary) == (NoVoteCause.SILENT, Answer.UNREACHABLE)
        masters[0].resume()
        await asyncio.sleep(1)


async def test_a_server_whose_uptime_is_not_plausible(
    masters: list[FakeMaster], diary: Diary
) -> None:
    masters[0].uptime = -5
    async with Redlock(masters, max_ttl=MAX_TTL, listener=diary):
        await asyncio.sleep(1)
        assert first_of(diary) == (NoVoteCause.BAD_UPTIME, Answer.QUARANTINED)


async def test_a_young_server_while_another_is_away(young: list[FakeMaster], diary: Diary) -> None:
    young[1].kill()
    async with Redlock(young, max_ttl=MAX_TTL, listener=diary):
        await asyncio.sleep(2)
        assert first_of(diary) == (NoVoteCause.UNPROVEN, Answer.QUARANTINED)


async def test_a_new_set_votes_before_the_time_that_is_told_as_the_latest(
    young: list[FakeMaster], caplog: pytest.LogCaptureFixture
) -> None:
    young[1].kill()
    async with Redlock(young, max_ttl=MAX_TTL) as redlock:
        waiting = asyncio.create_task(redlock.lock("r").acquire())
        await asyncio.sleep(2)
        [line] = [text for text in caplog.messages if "waiting for a majority" in text]
        assert line.count("all masters are new; it votes again in ") == 4
        assert line.count(" s at the latest") == 4
        young[1].restart()
        young[1].uptime = 3
        began = now()
        await (await waiting).release()
        assert now() - began < 2


async def test_a_server_that_another_program_has_marked(
    masters: list[FakeMaster], diary: Diary
) -> None:
    async with Redlock(masters, max_ttl=MAX_TTL):
        await asyncio.sleep(0.1)
        masters[0].flush()
        await asyncio.sleep(1)
        async with Redlock(masters, max_ttl=MAX_TTL, listener=diary):
            await asyncio.sleep(1)
            assert first_of(diary) == (NoVoteCause.MARKED, Answer.QUARANTINED)


async def test_a_program_with_other_masters(masters: list[FakeMaster], diary: Diary) -> None:
    async with Redlock(masters[:3], max_ttl=MAX_TTL):
        await asyncio.sleep(1)
        async with Redlock([masters[0], *masters[3:]], max_ttl=MAX_TTL, listener=diary):
            await asyncio.sleep(1)
            assert first_of(diary) == (NoVoteCause.SET_CONFLICT, Answer.QUARANTINED)


async def test_a_master_that_no_sentinel_confirms(diary: Diary) -> None:
    sentinels = [FakeSentinel(f"s{i}") for i in range(3)]
    service = FakeService(sentinels, {"old": FakeMaster("old")})
    async with Redlock([service], max_ttl=MAX_TTL, listener=diary):
        await asyncio.sleep(0.1)
        for sentinel in sentinels[:2]:
            sentinel.names = None
        await asyncio.sleep(5)
        lost = [event for event in diary.events if isinstance(event, MasterLost)]
        assert lost[-1].cause is NoVoteCause.UNCONFIRMED


async def test_a_master_that_the_sentinels_replace(diary: Diary) -> None:
    sentinels = [FakeSentinel(f"s{i}") for i in range(3)]
    servers = {host: FakeMaster(host) for host in ("old", "new")}
    async with Redlock([FakeService(sentinels, servers)], max_ttl=MAX_TTL, listener=diary):
        await asyncio.sleep(0.1)
        for sentinel in sentinels:
            sentinel.switch("new", 1)
        await asyncio.sleep(1)
        causes = [event.cause for event in diary.events if isinstance(event, MasterLost)]
        assert causes[-2:] == [NoVoteCause.FAILOVER, NoVoteCause.PROMOTED]


@pytest.mark.parametrize("reason", Reason)
def test_each_reason_of_a_quarantine_has_a_cause(reason: Reason) -> None:
    assert isinstance(quarantine.cause(reason), NoVoteCause)


def test_each_value_is_the_name_as_a_word() -> None:
    assert [cause.value for cause in NoVoteCause] == [cause.name.lower() for cause in NoVoteCause]
