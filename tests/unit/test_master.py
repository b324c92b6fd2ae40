"""One master: up, down and back; and its debts, the releases that it has not confirmed."""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable
from typing import Any

import pytest

from redlock_aio import Answer, QuorumUnavailableError, Redlock, RedlockError, Vote
from redlock_aio._engine.session import CHECK_INTERVAL
from redlock_aio._protocol.scripts import SCRIPTS
from redlock_aio._transport import connection as connection_module, debts, master as module
from redlock_aio._transport.connection import Connection
from redlock_aio._transport.sets import DeclaredSets
from redlock_aio.events import Event, MasterLost
from redlock_aio.testing import FakeMaster, VirtualTimeLoop
from redlock_aio.testing._fake_lua import Error
from redlock_aio.testing._fake_pushes import PushReceiver

from .kit import LATENCY, now, session, votes

BUSY = "BUSY Redis is busy running a script"


def owed(redlock: Redlock) -> int:
    """Return the number of debts of the first master."""
    return redlock.statistics().masters[0].debts


# Up and down.


@pytest.mark.parametrize(
    ("fault", "repair", "first", "reason"),
    [
        ("kill", "restart", Answer.UNREACHABLE, "connection refused"),
        ("hang", "resume", Answer.TIMED_OUT, "no connection in"),
    ],
)
async def test_a_master_that_is_away_votes_at_once_and_comes_back(
    redlock: Redlock, masters: list[FakeMaster], fault: str, repair: str, first: Answer, reason: str
) -> None:
    getattr(masters[0], fault)()
    async with redlock.lock("r") as lease:
        await asyncio.sleep(0.1)
        assert lease.votes[0].answer is first
    await asyncio.sleep(5)
    vote = (await votes(redlock))[0]
    assert vote.answer is Answer.UNREACHABLE
    assert vote.detail.startswith(reason)
    getattr(masters[0], repair)()
    await asyncio.sleep(module.LONGEST_DELAY + 0.1)
    assert (await votes(redlock))[0] == Vote("m0", Answer.GRANTED)


async def test_reasons_that_alternate_are_logged_once_a_minute(
    masters: list[FakeMaster], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As of a server that refuses a certificate, and may end the connection before it says so."""
    texts = itertools.cycle(["the certificate is refused", "Connection reset by peer"])
    dial, events = FakeMaster.dial, list[Event]()

    async def refused(master: FakeMaster) -> tuple[asyncio.Transport, object]:
        if master is masters[0]:
            raise ConnectionError(next(texts))
        return await dial(master)

    caplog.set_level(logging.INFO, "redlock_aio")
    async with Redlock(masters, restart_guard="off", listener=events.append):
        monkeypatch.setattr(FakeMaster, "dial", refused)
        masters[0].cut()
        await asyncio.sleep(50)
        assert len(caplog.messages) == 3, "how the connection ended, and two reasons"
        await asyncio.sleep(40)
        assert len(caplog.messages) == 5
        assert [type(event) for event in events] == [MasterLost]
        monkeypatch.setattr(FakeMaster, "dial", dial)
        await asyncio.sleep(2)
        assert caplog.messages[-1] == "m0: connected again"
        monkeypatch.setattr(FakeMaster, "dial", refused)
        masters[0].cut()
        await asyncio.sleep(5)
        assert len(caplog.messages) == 9, "another outage: each of its reasons is told"


async def test_dialling_slows_down_and_never_stops(
    masters: list[FakeMaster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins anew with the next outage."""
    dialled, dial = list[float](), FakeMaster.dial

    async def counted(master: FakeMaster) -> tuple[asyncio.Transport, object]:
        if master is masters[0]:
            dialled.append(now())
        return await dial(master)

    monkeypatch.setattr(FakeMaster, "dial", counted)
    masters[0].kill()
    async with Redlock(masters) as redlock:
        await asyncio.sleep(1)
        assert 4 <= len(dialled) <= 12
        assert dialled[1] - dialled[0] <= 2 * module.FIRST_DELAY
        dialled.clear()
        await asyncio.sleep(100)
        assert 200 <= len(dialled) <= 400
        assert "4 up" in repr(redlock)
        masters[0].restart()
        await asyncio.sleep(1)
        dialled.clear()
        masters[0].cut()
        await asyncio.sleep(module.FIRST_DELAY)
        assert len(dialled) == 1


async def test_the_timeout_of_a_connection_attempt_doubles_up_to_its_longest(
    redlock: Redlock,
    masters: list[FakeMaster],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is pause enough: the next attempt follows at once, also if earlier ones were refused."""
    dialled, dial = list[float](), FakeMaster.dial

    async def timed(master: FakeMaster) -> tuple[asyncio.Transport, object]:
        dialled.append(now())
        return await dial(master)

    masters[0].kill()
    await asyncio.sleep(10)
    monkeypatch.setattr(FakeMaster, "dial", timed)
    masters[0].restart()
    masters[0].hang()
    seconds: dict[str, None] = {}
    for _ in range(300):
        await asyncio.sleep(0.1)
        seconds[redlock.statistics().masters[0].reason] = None
    first, *later = seconds
    assert first == "connection refused"
    assert later == [f"no connection in {longest} s" for longest in (1, 2, 4)]
    assert caplog.messages[2:] == ["m0: unreachable, no connection in 1 s"], "one reason"
    _, _, *took = [late - early for early, late in itertools.pairwise(dialled)]
    assert len(took) > 4
    assert 4 < min(took) < max(took) < 4 + module.FIRST_DELAY


@pytest.mark.parametrize("restart_guard", ["auto", "off"])
async def test_a_server_gets_the_scripts_once(
    masters: list[FakeMaster], restart_guard: Any
) -> None:
    """They are long, and after an outage of the network all programs connect again at once."""

    def loads() -> int:
        return sum(command[:2] == [b"SCRIPT", b"LOAD"] for command in masters[0].commands)

    async with Redlock(masters, restart_guard=restart_guard) as redlock:
        assert (await votes(redlock))[0] == Vote("m0", Answer.GRANTED)
        assert loads() == len(SCRIPTS)
        for _ in range(3):
            masters[0].cut()
            await asyncio.sleep(module.LONGEST_DELAY)
            assert (await votes(redlock))[0] == Vote("m0", Answer.GRANTED)
        assert loads() == len(SCRIPTS)
        masters[0].restart()
        await asyncio.sleep(module.LONGEST_DELAY)
        vote = (await votes(redlock))[0]
        assert vote.answer is (Answer.GRANTED if restart_guard == "off" else Answer.QUARANTINED)
        assert loads() == 2 * len(SCRIPTS)


async def test_a_server_that_has_lost_the_scripts_meanwhile_gets_them_again(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    await votes(redlock)
    for master in masters:
        master.cut()
        master.execute([b"SCRIPT", b"FLUSH"])
    await asyncio.sleep(module.LONGEST_DELAY)
    async with redlock.lock("r", fair=True, wait=0) as lease:
        assert [vote.answer for vote in lease.votes] == [Answer.GRANTED] * 5


async def test_another_server_that_refuses_the_scripts_has_no_vote(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    await votes(redlock)
    masters[0].restart()
    masters[0].forbid = {"SCRIPT"}
    await asyncio.sleep(module.LONGEST_DELAY)
    vote = (await votes(redlock))[0]
    assert vote.answer is Answer.ERROR
    assert "script|load" in vote.detail
    masters[0].forbid = set()
    await asyncio.sleep(module.LONGEST_DELAY + 0.1)
    assert (await votes(redlock))[0] == Vote("m0", Answer.GRANTED)


async def test_a_server_that_forbids_the_scripts_it_has_lost_says_so(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    """As long as it had them, nothing had to be loaded."""
    await votes(redlock)
    masters[0].cut()
    masters[0].execute([b"SCRIPT", b"FLUSH"])
    masters[0].forbid = {"SCRIPT"}
    await asyncio.sleep(module.LONGEST_DELAY)
    async with redlock.lock("r", wait=0) as lease:
        await lease.extend()
        await asyncio.sleep(1)
    vote = (await votes(redlock))[0]
    assert vote.answer is Answer.ERROR
    assert "script|load" in vote.detail
    masters[0].forbid = set()
    await asyncio.sleep(module.LONGEST_DELAY + 0.1)
    assert (await votes(redlock))[0] == Vote("m0", Answer.GRANTED)


def lose_scripts(master: FakeMaster) -> None:
    """Cut the connections to a server that has forgotten its scripts."""
    master.cut()
    master.execute([b"SCRIPT", b"FLUSH"])


AWAITS: dict[str, tuple[Any, Callable[[FakeMaster], object], type, str]] = {
    "the first reply": ("off", FakeMaster.cut, Connection, "use"),
    "scripts for another server": ("off", FakeMaster.restart, Connection, "load"),
    "sets that are read again": ("auto", lose_scripts, DeclaredSets, "_read"),
}
"""
What the examination of a connection awaits: with which restart guard, after which fault it comes
to that, and the function that sends it.
"""


def reached(
    monkeypatch: pytest.MonkeyPatch, place: str, act: Callable[[], object], *, late: bool
) -> asyncio.Future[None]:
    """
    Call *act* once when an await of the examination is reached; the future is done then.

    Args:
        late: Call it when the reply is there, before the task that awaits it is scheduled.
    """
    _, _, kind, name = AWAITS[place]
    send, there = getattr(kind, name), asyncio.get_running_loop().create_future()

    def do(*_: object) -> None:
        act()
        there.set_result(None)

    def sent(*arguments: Any) -> Any:
        reply = send(*arguments)
        monkeypatch.setattr(kind, name, send)
        if late:
            (reply if isinstance(reply, asyncio.Future) else reply.reply).add_done_callback(do)
        else:
            do()
        return reply

    monkeypatch.setattr(kind, name, sent)
    return there


@pytest.mark.parametrize(
    ("place", "end"),
    [
        *itertools.product(AWAITS, ["close", "cancel", "cut", "hang"]),
        *itertools.product(list(AWAITS)[1:], ["cancel late", "cut late"]),
    ],
)
async def test_an_examination_that_ends_at_an_await_leaves_nothing(
    masters: list[FakeMaster], monkeypatch: pytest.MonkeyPatch, place: str, end: str
) -> None:
    master, (guard, fault, *_) = masters[0], AWAITS[place]
    redlock = Redlock(masters, restart_guard=guard)
    await redlock.__aenter__()
    assert (await votes(redlock))[0] == Vote("m0", Answer.GRANTED)
    task, late = session(redlock).links[0]._task, end.endswith("late")
    act = master.hang if not late else task.cancel if "cancel" in end else master.cut
    there = reached(monkeypatch, place, act, late=late)
    fault(master)
    await there
    began = now()
    match end:
        case "cut":
            master.cut()
        case "hang":
            await asyncio.sleep(module.SHORTEST_DIAL)
            vote = (await votes(redlock))[0]
            assert vote == Vote("m0", Answer.UNREACHABLE, "no connection in 1 s")
        case "cancel" | "cancel late":
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
            patience = redlock.master_timeout / 1000 + CHECK_INTERVAL
            assert now() - began <= patience, "it waits for the tasks that may have locks"
            with pytest.raises(RedlockError, match="cancelled"):
                await redlock.inspect("r")
    if end == "close" or "cancel" in end:
        began = now()
        await redlock.aclose()
        assert now() - began == pytest.approx(LATENCY), "it waits for the other masters only"
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert not any(each._connections for each in masters)
        await redlock.__aenter__()
    master.resume()
    await asyncio.sleep(2 * module.LONGEST_DELAY)
    assert (await votes(redlock))[0] == Vote("m0", Answer.GRANTED)
    assert len(master._connections) == 1
    await redlock.aclose()


async def test_two_names_of_one_server_have_one_vote(masters: list[FakeMaster]) -> None:
    masters[1].run_id = masters[0].run_id
    async with Redlock(masters[:2]) as redlock:
        details = [vote.detail for vote in await votes(redlock) if vote.answer is Answer.ERROR]
    assert len(details) == 1
    assert details[0].startswith("the same server as m")


@pytest.mark.parametrize("before", [True, False])
async def test_a_replica_has_no_vote_also_if_it_was_the_master(
    masters: list[FakeMaster], *, before: bool
) -> None:
    masters[2].role = "master" if before else "slave"
    async with Redlock(masters) as redlock:
        if before:
            masters[2].error = "READONLY You can't write against a read only replica."
            masters[2].role = "slave"
            await votes(redlock)
            await asyncio.sleep(1)
        assert (await votes(redlock))[2] == Vote("m2", Answer.ERROR, "not a master but a slave")


async def test_a_server_that_may_evict_keys_is_warned_of_once(
    masters: list[FakeMaster], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    info = b"role:master\r\nrun_id:x\r\nmaxmemory:9\r\nmaxmemory_policy:allkeys-lru\r\n"
    monkeypatch.setattr(FakeMaster, "_do_info", lambda _: info)
    async with Redlock(masters[:1]):
        masters[0].cut()
        await asyncio.sleep(1)
    assert caplog.text.count("m0: its maxmemory-policy allkeys-lru may drop locks") == 1


ALONE = "it is the only master, and it has replicas"


@pytest.mark.parametrize("guard", ["auto", "off"])
async def test_the_only_master_is_warned_of_once_when_it_has_replicas(
    masters: list[FakeMaster], caplog: pytest.LogCaptureFixture, guard: Any
) -> None:
    masters[0].replicas = 1
    async with Redlock(masters[:1], restart_guard=guard) as redlock:
        masters[0].cut()
        await asyncio.sleep(1)
        for replicas in (0, 2):
            masters[0].replicas = replicas
            await asyncio.sleep(100)
        async with redlock.lock("r"):
            pass
    assert caplog.text.count(f"m0: {ALONE}") == 1


async def test_a_replica_that_comes_later_is_noticed(
    masters: list[FakeMaster], caplog: pytest.LogCaptureFixture
) -> None:
    async with Redlock(masters[:1]):
        assert ALONE not in caplog.text
        masters[0].replicas = 1
        await asyncio.sleep(100)
        assert caplog.text.count(ALONE) == 1


async def test_one_of_several_masters_may_have_replicas(
    masters: list[FakeMaster], caplog: pytest.LogCaptureFixture
) -> None:
    for master in masters:
        master.replicas = 1
    async with Redlock(masters):
        await asyncio.sleep(100)
    assert not caplog.records


async def test_the_log_tells_once_that_a_master_is_away_and_when_it_is_back(
    masters: list[FakeMaster], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "redlock_aio")
    async with Redlock(masters):
        assert not caplog.records
        masters[1].kill()
        await asyncio.sleep(60)
        masters[1].restart()
        await asyncio.sleep(70)
    restarted = "quarantined, it restarted 0 s ago and may have forgotten locks"
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "m1: unreachable, connection reset by peer"),
        ("WARNING", "m1: unreachable, connection refused"),
        ("INFO", "m1: connected again"),
        ("WARNING", f"m1: {restarted}; it votes again in 62 s"),
        ("INFO", "m1: votes again"),
    ]


async def test_the_log_tells_once_that_a_server_is_not_accepted(
    masters: list[FakeMaster], caplog: pytest.LogCaptureFixture
) -> None:
    async with Redlock(masters, restart_guard="off"):
        masters[1].role = "slave"
        masters[1].cut()
        await asyncio.sleep(60)
    assert caplog.messages == [
        "m1: unreachable, connection reset by peer",
        "m1: error, not a master but a slave",
    ]


@pytest.mark.parametrize("close", [True, False])
def test_a_cancellation_that_is_lost_in_a_dial_still_ends_the_task(
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


async def test_a_fake_that_is_killed_while_it_hangs_refuses_connections() -> None:
    master = FakeMaster()
    master.hang()
    dialling = asyncio.create_task(master.dial())
    await asyncio.sleep(0.1)
    master.kill()
    with pytest.raises(ConnectionRefusedError):
        await dialling


# Debts.


@pytest.mark.promise("S3")
@pytest.mark.parametrize("fault", ["hang", "cut"])
async def test_a_release_that_is_not_confirmed_is_repeated(
    redlock: Redlock, masters: list[FakeMaster], fault: str
) -> None:
    lease = await redlock.lock("r", ttl=60_000).acquire()
    getattr(masters[0], fault)()
    await lease.release()
    assert masters[0].keys
    assert owed(redlock) == (fault == "cut")
    await asyncio.sleep(30)
    masters[0].resume()
    await asyncio.sleep(2)
    assert masters[0].keys == {}
    assert owed(redlock) == 0


@pytest.mark.promise("S3")
async def test_a_set_that_is_executed_late_does_not_outlive_its_release(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    masters[0].hang()
    async with redlock.lock("r", ttl=60_000):
        pass
    await asyncio.sleep(30)  # the connection is closed; its SET is in the server's buffer
    masters[0].resume()
    assert [command[0] for command in masters[0].commands[-2:]] == [b"SET", b"DELIFEQ"]
    await asyncio.sleep(1)
    assert masters[0].keys == {}
    assert owed(redlock) == 0


@pytest.mark.promise("S3")
@pytest.mark.parametrize("late", [False, True])
async def test_a_release_that_is_answered_with_an_error_is_repeated(
    redlock: Redlock, masters: list[FakeMaster], *, late: bool
) -> None:
    lease = await redlock.lock("r", ttl=60_000).acquire()
    if late:
        masters[0].hang()
    else:
        masters[0].error = BUSY
    await lease.release()
    await asyncio.sleep(0.2)
    masters[0].error = BUSY
    masters[0].resume()
    await asyncio.sleep(0.1)
    assert list(masters[0].keys) == ["r"]
    masters[0].error = ""
    await asyncio.sleep(0.3)
    assert masters[0].keys == {}
    assert owed(redlock) == 0


async def test_many_reconnections_do_not_change_how_often_a_release_is_repeated(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    lease = await redlock.lock("r", ttl=60_000).acquire()
    masters[0].error = BUSY
    await lease.release()
    for _ in range(20):
        await asyncio.sleep(0.03)
        masters[0].cut()
    await asyncio.sleep(1)
    masters[0].commands.clear()
    await asyncio.sleep(10)
    releases = [command for command in masters[0].commands if command[0] == b"EVALSHA"]
    assert len(releases) == pytest.approx(10 / debts.DEBT_INTERVAL, abs=2)


async def test_a_master_that_refuses_many_releases_gets_one_of_them_at_a_time(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    leases = [await redlock.lock(f"r{number}", ttl=60_000).acquire() for number in range(50)]
    masters[0].error = BUSY
    for lease in leases:
        await lease.release()
    await asyncio.sleep(1)
    masters[0].commands.clear()
    await asyncio.sleep(10)
    repeated = [command[3] for command in masters[0].commands if command[0] == b"EVALSHA"]
    assert len(repeated) == pytest.approx(10 / debts.DEBT_INTERVAL, abs=2)
    assert len(set(repeated)) > 40, "each in its turn"
    masters[0].error = ""
    await asyncio.sleep(debts.DEBT_INTERVAL + 0.002)
    assert masters[0].keys == {}
    assert owed(redlock) == 0


async def test_a_release_that_stays_refused_does_not_keep_others_from_being_repeated(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    odd, lease = [await redlock.lock(name, ttl=60_000).acquire() for name in ("odd", "r")]
    execute = masters[0].execute

    def executing(command: list[bytes], listener: PushReceiver | None = None) -> object:
        return Error("ERR odd") if b"odd" in command else execute(command, listener)

    vars(masters[0])["execute"] = executing
    masters[0].error = BUSY
    await odd.release()
    await lease.release()
    await asyncio.sleep(1)
    masters[0].error = ""
    await asyncio.sleep(2 * debts.DEBT_INTERVAL + 0.002)
    assert list(masters[0].keys) == ["odd"]


@pytest.mark.parametrize("away", [False, True])
async def test_a_debt_ends_when_its_key_has_expired_on_a_connected_master(
    redlock: Redlock, masters: list[FakeMaster], *, away: bool
) -> None:
    """While the master is down its SET may not have been executed yet."""
    lease = await redlock.lock("r", ttl=1000).acquire()
    if away:
        masters[0].hang()
    masters[0].error = "NOPERM this user has no permissions"
    await lease.release()
    await asyncio.sleep(0.5)
    assert owed(redlock) == 1 or away
    await asyncio.sleep(600 if away else 1)
    assert owed(redlock) == away
    masters[0].error = ""
    masters[0].resume()
    await asyncio.sleep(2)
    assert owed(redlock) == 0


@pytest.mark.promise("S3")
async def test_a_master_without_the_command_of_releases_is_told_once(
    redlock: Redlock, masters: list[FakeMaster], caplog: pytest.LogCaptureFixture
) -> None:
    """Everything else works, and each name is held there for all of its ttl."""
    without = {b"DELIFEQ"}
    for master in masters:

        def run(
            command: list[bytes],
            listener: PushReceiver | None = None,
            real: Callable[..., object] = master.execute,
        ) -> object:
            if command[0] in without:
                name = command[0].decode()
                return Error(f"ERR unknown command '{name}', with args beginning with: 'secret' ")
            return real(command, listener)

        vars(master)["execute"] = run
        master.cut()
    for _ in range(2):
        async with redlock.lock("r", ttl=500):
            pass
        await asyncio.sleep(1)
    # An older server lacks DELIFEQ, and nothing is lost by that.
    assert not [text for text in caplog.messages if "command" in text]
    without.add(b"EVALSHA")
    for _ in range(3):
        async with redlock.lock("r", ttl=500, wait=2_000):
            pass
        await asyncio.sleep(1)
    assert sorted(text for text in caplog.messages if "command" in text) == [
        f"{master}: it lacks the command by which locks are released, so keys stay for their ttl:"
        " ERR unknown command 'EVALSHA'"
        for master in masters
    ]


@pytest.mark.parametrize("keep", [0, 500])
async def test_a_master_that_never_received_the_set_owes_no_release(
    redlock: Redlock, masters: list[FakeMaster], keep: int
) -> None:
    masters[0].kill()
    await asyncio.sleep(1)
    async with redlock.lock("r", hold_at_least=keep):
        pass
    await asyncio.sleep(keep / 1000)
    assert owed(redlock) == 0


@pytest.mark.promise("S3")
@pytest.mark.parametrize("kind", [{}, {"fencing": True}, {"fair": True}], ids=str)
async def test_a_release_is_neither_sent_nor_owed_where_its_set_was_not_sent(
    redlock: Redlock,
    masters: list[FakeMaster],
    monkeypatch: pytest.MonkeyPatch,
    kind: dict[str, Any],
) -> None:
    """Debts for commands that were not sent would displace those of existing keys."""
    limit = 30
    monkeypatch.setattr(connection_module, "MAX_PENDING", limit)
    monkeypatch.setattr(debts, "MAX_DEBTS", limit)
    held = [await redlock.lock(f"held{i}", ttl=60_000).acquire() for i in range(10)]
    masters[0].hang()
    for i in range(40):
        async with redlock.lock(f"r{i}", ttl=60_000, **kind):
            pass
        if i == 10:
            for lease in held:
                await lease.release()
    # All requests except the releases of the ten leases stay below the bound.
    assert limit <= redlock.statistics().masters[0].pending <= limit + 10
    await asyncio.sleep(2)
    assert not redlock.statistics().masters[0].up
    assert 10 <= owed(redlock) <= limit
    masters[0].resume()
    await asyncio.sleep(1)
    assert masters[0].keys == {}
    assert owed(redlock) == 0


async def test_debts_are_bounded_and_the_log_tells_which_keys_stay(
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
        assert owed(redlock) == 10
        masters[0].resume()
        await asyncio.sleep(1)
        assert owed(redlock) == 0
        (text,) = (text for text in caplog.messages if "releases" in text)
        assert text == (
            "m0: it has not confirmed 10 releases, and more follow; the keys of the oldest stay"
            " there for their ttl"
        )


async def test_hundreds_of_debts_leave_in_one_write(
    redlock: Redlock, masters: list[FakeMaster], monkeypatch: pytest.MonkeyPatch
) -> None:
    leases = [await redlock.lock(f"r{i}", ttl=60_000).acquire() for i in range(200)]
    masters[0].cut()
    await asyncio.gather(*(lease.release() for lease in leases))
    assert owed(redlock) == len(leases)
    writes: list[int] = []
    receive = FakeMaster.receive

    def counted(master: FakeMaster, transport: Any, data: bytes) -> None:
        if master is masters[0]:
            writes.append(len(data))
        receive(master, transport, data)

    monkeypatch.setattr(FakeMaster, "receive", counted)
    await asyncio.sleep(1)
    assert owed(redlock) == 0
    assert masters[0].keys == {}
    assert len(writes) < 10
