"""One master's history: up, down, back, and what it owes us."""

import asyncio
import contextlib
import logging
from typing import Any

import pytest

from redlock_aio import Answer, QuorumUnavailableError, Redlock
from redlock_aio._transport import connection as connection_module, debts, master as module
from redlock_aio.testing import FakeMaster, VirtualTimeLoop

RESTARTED = "it restarted 0 s ago and may have forgotten locks"


async def answers_with_details(redlock: Redlock) -> list[tuple[Answer, str]]:
    lock = redlock.lock("probe", wait=0)
    try:
        async with lock as lease:
            await asyncio.sleep(0.1)
            return [(vote.answer, vote.detail) for vote in lease.votes]
    except QuorumUnavailableError as error:
        return [(vote.answer, vote.detail) for vote in error.votes]


async def test_a_dead_master_votes_at_once_and_comes_back(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    masters[0].kill()
    await asyncio.sleep(5)
    assert (await answers_with_details(redlock))[0] == (Answer.UNREACHABLE, "connection refused")

    masters[0].restart()
    await asyncio.sleep(module.LONGEST_DELAY + 0.01)
    assert (await answers_with_details(redlock))[0] == (Answer.GRANTED, "")


async def test_a_hung_master_is_given_up_and_comes_back(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    masters[0].hang()
    assert (await answers_with_details(redlock))[0][0] is Answer.TIMED_OUT
    await asyncio.sleep(2)
    assert (await answers_with_details(redlock))[0][0] is Answer.UNREACHABLE
    masters[0].resume()
    await asyncio.sleep(2)
    assert (await answers_with_details(redlock))[0] == (Answer.GRANTED, "")


async def test_dialling_slows_down_and_never_stops(
    redlock: Redlock, masters: list[FakeMaster], monkeypatch: pytest.MonkeyPatch
) -> None:
    dials = 0
    dial = FakeMaster.dial

    async def counted(master: FakeMaster) -> tuple[asyncio.Transport, object]:
        nonlocal dials
        dials += master is masters[0]
        return await dial(master)

    monkeypatch.setattr(FakeMaster, "dial", counted)
    masters[0].kill()
    await asyncio.sleep(1)
    assert 4 <= dials <= 12
    dials = 0
    await asyncio.sleep(100)
    assert 200 <= dials <= 400
    assert "4 up" in repr(redlock)


@pytest.mark.promise("S3")
@pytest.mark.parametrize("fault", ["cut", "hang"])
async def test_a_release_that_was_not_confirmed_is_repeated(
    redlock: Redlock, masters: list[FakeMaster], fault: str
) -> None:
    lease = await redlock.lock("r", ttl=60_000).acquire()
    if fault == "hang":
        masters[0].hang()
    await asyncio.gather(lease.release(), asyncio.sleep(0))
    if fault == "cut":
        masters[0].set("r", lease.token, ttl=60_000)
        lease = await redlock.lock("other").acquire()
        masters[0].cut()
        await lease.release()
    await asyncio.sleep(30)
    masters[0].resume()
    await asyncio.sleep(2)
    assert set(masters[0].keys) <= {"r"}
    assert "other" not in masters[0].keys
    assert (fault == "hang") == (masters[0].keys == {})


@pytest.mark.promise("S3")
async def test_a_set_that_is_executed_late_does_not_outlive_its_release(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    masters[0].hang()
    async with redlock.lock("r", ttl=60_000):
        pass
    await asyncio.sleep(30)  # the connection is given up; its SET lies in the server's buffer
    masters[0].resume()
    assert [command[0] for command in masters[0].commands[-2:]] == [b"SET", b"DELIFEQ"]
    await asyncio.sleep(1)
    assert masters[0].keys == {}
    assert "0 debts" in repr(redlock._opener.session().links[0])


@pytest.mark.promise("S3")
async def test_a_release_that_is_answered_with_an_error_is_repeated(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    lease = await redlock.lock("r", ttl=60_000).acquire()
    masters[0].error = "BUSY Redis is busy running a script"
    await lease.release()
    await asyncio.sleep(1)
    assert list(masters[0].keys) == ["r"]
    masters[0].error = ""
    await asyncio.sleep(0.3)
    assert masters[0].keys == {}


@pytest.mark.promise("S3")
async def test_a_release_that_is_answered_late_with_an_error_is_repeated(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    lease = await redlock.lock("r", ttl=60_000).acquire()
    masters[0].hang()
    await lease.release()
    await asyncio.sleep(0.2)
    masters[0].error = "BUSY Redis is busy running a script"
    masters[0].resume()
    await asyncio.sleep(0.1)
    masters[0].error = ""
    await asyncio.sleep(0.3)
    assert masters[0].keys == {}
    assert "0 debts" in repr(redlock._opener.session().links[0])


async def test_a_release_is_repeated_as_often_after_many_reconnections_as_before(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    lease = await redlock.lock("r", ttl=60_000).acquire()
    masters[0].error = "BUSY Redis is busy running a script"
    await lease.release()
    for _ in range(20):
        await asyncio.sleep(0.03)
        masters[0].cut()
    await asyncio.sleep(1)
    masters[0].commands.clear()
    await asyncio.sleep(10)
    releases = [command for command in masters[0].commands if command[0] == b"EVALSHA"]
    assert len(releases) == pytest.approx(10 / debts.DEBT_INTERVAL, abs=2)


async def test_a_debt_is_forgotten_when_its_key_has_ended_by_itself(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    lease = await redlock.lock("r", ttl=1000).acquire()
    masters[0].error = "NOPERM this user has no permissions"
    await lease.release()
    await asyncio.sleep(0.5)
    assert "1 debts" in repr(redlock._opener.session().links[0])
    await asyncio.sleep(1)
    assert "0 debts" in repr(redlock._opener.session().links[0])


async def test_a_debt_of_a_master_that_is_away_is_not_forgotten(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    lease = await redlock.lock("r", ttl=1000).acquire()
    masters[0].hang()
    await lease.release()
    await asyncio.sleep(3600)
    assert "1 debts" in repr(redlock._opener.session().links[0])
    masters[0].resume()
    await asyncio.sleep(2)
    assert "0 debts" in repr(redlock._opener.session().links[0])


@pytest.mark.parametrize("keep", [0, 500])
async def test_what_a_master_never_heard_it_does_not_owe(
    redlock: Redlock, masters: list[FakeMaster], keep: int
) -> None:
    masters[0].kill()
    await asyncio.sleep(1)
    async with redlock.lock("r", hold_at_least=keep):
        pass
    await asyncio.sleep(keep / 1000)
    assert "0 debts" in repr(redlock._opener.session().links[0])


@pytest.mark.promise("S3")
@pytest.mark.parametrize("kind", ["plain", "fencing", "fair"])
async def test_a_release_is_neither_sent_nor_owed_where_its_set_never_left(
    redlock: Redlock,
    masters: list[FakeMaster],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    """Debts of commands that were refused would push out those of keys that are there."""
    limit = 30
    monkeypatch.setattr(connection_module, "MAX_PENDING", limit)
    monkeypatch.setattr(debts, "MAX_DEBTS", limit)
    held = [await redlock.lock(f"held{i}", ttl=60_000).acquire() for i in range(10)]
    hung = redlock._opener.session().links[0]
    masters[0].hang()
    for i in range(40):
        lock = redlock.lock(f"r{i}", ttl=60_000, fencing=kind == "fencing", fair=kind == "fair")
        async with lock:
            pass
        if i == 10:
            for lease in held:
                await lease.release()
    # All but the releases of the ten leases stay below the bound.
    assert limit <= hung.pending <= limit + 10
    await asyncio.sleep(2)
    assert not hung.up
    assert 10 <= len(hung.debts) <= limit
    masters[0].resume()
    await asyncio.sleep(1)
    assert masters[0].keys == {}
    assert "0 debts" in repr(hung)


async def test_debts_are_bounded_and_an_operator_is_told_what_stays(
    redlock: Redlock,
    masters: list[FakeMaster],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(debts, "MAX_DEBTS", 10)
    for _ in range(2):
        caplog.clear()
        leases = [await redlock.lock(f"r{i}", ttl=60_000).acquire() for i in range(20)]
        masters[0].hang()
        for lease in leases:
            await lease.release()
        await asyncio.sleep(2)
        assert "10 debts" in repr(redlock._opener.session().links[0])
        masters[0].resume()
        await asyncio.sleep(1)
        assert "0 debts" in repr(redlock._opener.session().links[0])
        (said,) = (r.getMessage() for r in caplog.records if "releases" in r.getMessage())
        assert said == (
            "m0: it has not confirmed 10 releases, and more follow; the keys of the oldest stay"
            " there for their ttl"
        )


async def test_hundreds_of_debts_leave_in_one_write(
    redlock: Redlock, masters: list[FakeMaster], monkeypatch: pytest.MonkeyPatch
) -> None:
    leases = [await redlock.lock(f"r{i}", ttl=60_000).acquire() for i in range(500)]
    masters[0].cut()
    await asyncio.gather(*(lease.release() for lease in leases))
    assert "500 debts" in repr(redlock._opener.session().links[0])
    writes: list[int] = []
    receive = FakeMaster.receive

    def counted(master: FakeMaster, transport: Any, data: bytes) -> None:
        if master is masters[0]:
            writes.append(len(data))
        receive(master, transport, data)

    monkeypatch.setattr(FakeMaster, "receive", counted)
    await asyncio.sleep(1)
    assert "0 debts" in repr(redlock._opener.session().links[0])
    assert masters[0].keys == {}
    assert len(writes) < 10


async def test_two_names_of_one_server_have_one_vote(masters: list[FakeMaster]) -> None:
    masters[1].run_id = masters[0].run_id
    async with Redlock(masters[:2]) as redlock:
        said = await answers_with_details(redlock)
        assert sorted(answer.value for answer, _ in said) == ["error", "timed out"] or (
            Answer.ERROR in [answer for answer, _ in said]
        )
        assert any("the same server as m" in detail for _, detail in said)


async def test_a_replica_has_no_vote(masters: list[FakeMaster]) -> None:
    masters[2].role = "slave"
    async with Redlock(masters) as redlock:
        assert (await answers_with_details(redlock))[2] == (
            Answer.ERROR,
            "not a master but a slave",
        )


async def test_a_master_that_became_a_replica_loses_its_vote(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    masters[2].error = "READONLY You can't write against a read only replica."
    masters[2].role = "slave"
    await answers_with_details(redlock)
    await asyncio.sleep(1)
    assert (await answers_with_details(redlock))[2] == (Answer.ERROR, "not a master but a slave")


async def test_a_server_that_may_evict_is_warned_of_once(
    masters: list[FakeMaster], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(
        FakeMaster,
        "_do_info",
        lambda _: b"role:master\r\nrun_id:x\r\nmaxmemory:9\r\nmaxmemory_policy:allkeys-lru\r\n",
    )
    with caplog.at_level(logging.WARNING, "redlock_aio"):
        async with Redlock(masters[:1]):
            masters[0].cut()
            await asyncio.sleep(1)
    said = [record.getMessage() for record in caplog.records if "maxm" in record.getMessage()]
    assert len(said) == 1
    assert said[0].startswith("m0: its maxmemory-policy allkeys-lru may drop locks")


async def test_an_operator_is_told_once_that_a_master_is_away_and_when_it_is_back(
    masters: list[FakeMaster], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "redlock_aio"):
        async with Redlock(masters):
            assert not caplog.records
            masters[1].kill()
            await asyncio.sleep(60)
            masters[1].restart()
            await asyncio.sleep(70)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "m1: unreachable, connection reset by peer"),
        ("WARNING", "m1: unreachable, connection refused"),
        ("INFO", "m1: connected again"),
        (
            "WARNING",
            f"m1: quarantined, {RESTARTED}; it votes again in 62 s",
        ),
        ("INFO", "m1: votes again"),
    ]


async def test_an_operator_is_told_once_of_a_server_that_is_not_accepted(
    masters: list[FakeMaster], caplog: pytest.LogCaptureFixture
) -> None:
    async with Redlock(masters, restart_guard="off"):
        masters[1].role = "slave"
        masters[1].cut()
        await asyncio.sleep(60)
    assert [record.getMessage() for record in caplog.records] == [
        "m1: unreachable, connection reset by peer",
        "m1: error, not a master but a slave",
    ]


@pytest.mark.parametrize("close", [True, False])
def test_a_cancellation_that_is_lost_while_dialling_ends_it_all_the_same(
    monkeypatch: pytest.MonkeyPatch, *, close: bool
) -> None:
    dial = FakeMaster.dial

    async def lossy(master: FakeMaster) -> tuple[asyncio.Transport, object]:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0.5)
        return await dial(master)

    async def main() -> None:
        redlock = Redlock([FakeMaster(), FakeMaster()])
        with pytest.raises(QuorumUnavailableError):
            await redlock.lock("r", wait=100).acquire()
        if close:
            await redlock.aclose()

    monkeypatch.setattr(FakeMaster, "dial", lossy)
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main())


async def test_a_fake_that_dies_while_it_hangs_lets_nobody_in() -> None:
    master = FakeMaster()
    master.hang()
    dialling = asyncio.create_task(master.dial())
    await asyncio.sleep(0.1)
    master.kill()
    with pytest.raises(ConnectionRefusedError):
        await dialling
