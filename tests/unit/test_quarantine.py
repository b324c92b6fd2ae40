"""Masters that restart or are flushed do not vote while a lease that they lost may be valid."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from redlock_aio import Answer, Lease, LockLostError, QuorumUnavailableError, Redlock, Retry
from redlock_aio._protocol.commands import MARKER
from redlock_aio._protocol.replies import EVERYTHING_CHANGED
from redlock_aio._protocol.scripts import DECLARE, MARK
from redlock_aio._rules.quarantine import REREADS, Verdict, founding
from redlock_aio._transport.guard import MarkerWrite, Sentry
from redlock_aio.testing import FakeMaster
from redlock_aio.testing._fake_lua import Error
from redlock_aio.testing._fake_pushes import PushReceiver

from . import kit
from .kit import (
    KIND,
    LATENCY,
    MAX_TTL,
    QUARANTINE,
    Kind,
    acquired_at,
    answers,
    before,
    check_freed,
    fail,
    gets_lock,
    guarded,
    has_lock,
    now,
    occupy,
    restart,
    session,
    votes,
)

pytestmark = [pytest.mark.promise("S1")]


@pytest.fixture
async def redlock(masters: list[FakeMaster]) -> AsyncIterator[Redlock]:
    async with guarded(masters) as redlock:
        yield redlock


def states(masters: list[FakeMaster]) -> list[str]:
    return [(master.marker or "- none").split()[1] for master in masters]


async def newcomer_gets_lock(masters: list[FakeMaster]) -> bool:
    """Return whether a new program acquires the lock at once."""
    async with guarded(masters) as newcomer:
        return await gets_lock(newcomer)


def intercept(
    master: FakeMaster, verb: bytes, act: Callable[[], object], *, after: bool = False
) -> None:
    """
    Call *act* before or after *verb* accesses the marker; its result replaces the reply.

    SET stands for the script that writes the marker.
    """
    execute = master.execute

    def intercepted(command: list[bytes], listener: PushReceiver | None = None) -> object:
        writes = verb == b"SET" and MARK.sha in command
        if command[:2] != [verb, MARKER] and not writes:
            return execute(command, listener)
        reply = execute(command, listener) if after else None
        return act() or reply or execute(command, listener)

    vars(master)["execute"] = intercepted


# A new set of masters.


@pytest.mark.spread(0)
@pytest.mark.parametrize("managers", [3, 1])
@pytest.mark.parametrize("slower", [0, 0.002])
@pytest.mark.parametrize("apart", [0, 0.0005, 0.001, 0.0015, 0.002, 0.003, 0.01, 0.02, 0.04])
async def test_a_new_set_is_usable_at_once_also_while_others_mark_it(
    young: list[FakeMaster], managers: int, apart: float, slower: float
) -> None:
    for number, master in enumerate(young):
        master.latency += number * slower

    async def first_use(number: int) -> None:
        await asyncio.sleep(number * apart)
        redlock = guarded(young, master_timeout=15)
        async with redlock, redlock.lock(f"r{number}", wait=0):
            pass

    await asyncio.gather(*(first_use(number) for number in range(managers)))
    assert now() < 0.3
    assert states(young) == ["member"] * 5


async def test_a_new_set_may_have_a_server_that_has_been_up_for_long(
    young: list[FakeMaster],
) -> None:
    young[2].uptime = 1e6
    async with guarded(young) as redlock, redlock.lock("r", wait=0):
        assert now() < 2


async def test_a_strict_guard_makes_no_exception_for_a_new_set(young: list[FakeMaster]) -> None:
    async with guarded(young, restart_guard="strict") as redlock:
        assert await answers(redlock) == "Q" * 5
        assert states(young) == ["rejoining"] * 5
        await asyncio.sleep(QUARANTINE + 0.01)
        assert await answers(redlock) == "G" * 5


@pytest.mark.parametrize("comes", [True, False], ids=["it comes up", "it stays away"])
async def test_a_new_set_waits_for_a_missing_master_until_the_others_are_old(
    young: list[FakeMaster], *, comes: bool
) -> None:
    young[4].kill()
    async with guarded(young) as redlock:
        assert await answers(redlock) == "QQQQU"
        await asyncio.sleep(1)
        assert states(young[:4]) == ["none"] * 4
        if comes:
            young[4].restart()
            await asyncio.sleep(1)
            assert await answers(redlock) == "G" * 5
        else:
            await asyncio.sleep(QUARANTINE - 2)
            assert await answers(redlock) == "QQQQU"
            await asyncio.sleep(2)
            assert await answers(redlock) == "GGGGU"


async def test_a_set_is_not_new_if_one_master_is_rejoining(young: list[FakeMaster]) -> None:
    """Another program marks one master as rejoining while this one marks all as members."""
    intercept(young[3], b"SET", lambda: mark(young[3], "rejoining", 10**18))
    async with guarded(young) as redlock:
        assert await answers(redlock) == "Q" * 5
        assert states(young) == ["rejoining"] * 5


@pytest.mark.promise("S6")
@pytest.mark.parametrize("fault", ["full", "hung"])
async def test_a_new_master_that_can_not_be_marked_does_not_delay_the_others(
    young: list[FakeMaster], fault: str
) -> None:
    full = Error("OOM command not allowed when used memory > 'maxmemory'.")
    intercept(young[0], b"SET", young[0].hang if fault == "hung" else lambda: full)
    async with guarded(young) as redlock:
        async with redlock.lock("r"):
            assert now() < 5
        assert states(young)[1:] == ["member"] * 4
        del vars(young[0])["execute"]
        young[0].resume()
        await asyncio.sleep(QUARANTINE + 1)
        assert await answers(redlock) == "G" * 5


async def until_all_but_the_last_are_marked(masters: list[FakeMaster]) -> None:
    """Wait until a new set is being founded; the last master is slow."""
    marked = ["member"] * (len(masters) - 1)
    while states(masters) != [*marked, "none"]:  # noqa: ASYNC110 - no event tells
        await asyncio.sleep(0.001)


@pytest.mark.spread(0)
@pytest.mark.parametrize("how", ["flush", "restart"])
@pytest.mark.parametrize("number", [0, 1])
async def test_a_marker_that_was_lost_while_a_set_is_founded_gives_no_vote(
    young: list[FakeMaster], number: int, how: str
) -> None:
    """
    The last of three new masters is slow, and the others have written their markers.

    Another program has a lock on these, and one of them forgets it. Its marker was read before,
    over a connection that has ended.
    """
    masters = young[:3]
    masters[2].latency = 0.2
    async with guarded(masters) as redlock:
        await until_all_but_the_last_are_marked(masters)
        occupy(masters[:2], ttl=int(QUARANTINE * 900))
        await asyncio.sleep(0.01)
        masters[number].flush() if how == "flush" else masters[number].restart()
        masters[2].latency = 0.001
        held = now() + QUARANTINE * 0.85
        while now() < held:
            assert await redlock.lock("r").try_acquire() is None
            await asyncio.sleep(0.001 if now() < 2 else 0.1)
        await asyncio.sleep(QUARANTINE)
        assert await answers(redlock) == "GGG"


@pytest.mark.parametrize("back", ["before", "after"])
@pytest.mark.parametrize("reply", ["read", "lost"])
@pytest.mark.spread(1)
async def test_an_own_marker_is_no_proof_before_the_set_is_judged(
    young: list[FakeMaster], back: str, reply: str
) -> None:
    """
    Of five masters that have restarted, another program has marked the last one as rejoining.

    This program marks the others as members, and its connections to them end before it has read
    that, and perhaps before it has the replies to its writes: they are back before or after the set
    is judged.
    """
    young[4].latency = 0.2
    for master in young[:4]:
        master.latency = 0.001 if reply == "read" else 0.03
    async with guarded(young) as redlock:
        await until_all_but_the_last_are_marked(young)
        mark(young[4], "rejoining", int(young[4]._clock()))
        for master in young[:4]:
            master.cut()
            master.latency = 0.001 if back == "before" else 0.3
        until = now() + QUARANTINE * 0.9
        while now() < until:
            assert await redlock.lock("r").try_acquire() is None
            await asyncio.sleep(0.01 if now() < 2 else 0.1)
        for master in young:
            master.latency = 0.001
        await asyncio.sleep(QUARANTINE)
        assert await answers(redlock) == "G" * 5


@pytest.mark.spread(0)
@pytest.mark.parametrize(
    "slowest",
    [0.13, 0.2, 0.26, *(pytest.param(late, marks=pytest.mark.full) for late in (0.16, 0.23, 0.3))],
)
@pytest.mark.parametrize("latency", [0.02, 0.05, 0.08])
async def test_a_read_that_is_underway_when_a_set_is_found_old_gives_no_vote(
    young: list[FakeMaster], latency: float, slowest: float
) -> None:
    """
    Of five masters that have restarted, another program has marked the last one as rejoining.

    This program marks the others as members. A read of such a marker is underway when it learns
    that, and replaces the marker.
    """
    young[4].latency = slowest
    async with guarded(young) as redlock:
        await until_all_but_the_last_are_marked(young)
        mark(young[4], "rejoining", int(young[4]._clock()))
        for master in young[:4]:
            master.latency = latency
        until = now() + 1
        while now() < until:
            assert not any(master.votes for master in session(redlock).links)
            await asyncio.sleep(0.001)
        assert states(young) == ["rejoining"] * 5
        assert await redlock.lock("r").try_acquire() is None
        young[4].latency = LATENCY
        await asyncio.sleep(QUARANTINE)
        assert await answers(redlock) == "G" * 5


async def test_markers_of_a_new_set_are_judged_also_if_one_could_not_be_sent(
    young: list[FakeMaster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection to the last master has just ended; the one before it is rejoining."""
    intercept(young[3], b"SET", lambda: mark(young[3], "rejoining", int(young[3]._clock())))
    ask_for, unsent = Sentry.ask_for, [4]

    def ask_unless_ended(sentry: Sentry, verdict: Verdict, *, over: object) -> MarkerWrite | None:
        if verdict.write is not None and unsent == [sentry._number]:
            unsent.clear()
            return None
        return ask_for(sentry, verdict, over=over)

    monkeypatch.setattr(Sentry, "ask_for", ask_unless_ended)
    async with guarded(young) as redlock:
        while now() < 1:
            assert not any(master.votes for master in session(redlock).links)
            await asyncio.sleep(0.001)
        assert not unsent
        assert states(young) == ["rejoining"] * 5


@pytest.mark.promise("S6")
async def test_after_the_quick_reads_it_is_known_that_masters_do_not_vote(
    young: list[FakeMaster],
) -> None:
    """While one of a new set is away, an attempt without a wait waits no longer than for these."""
    young[4].kill()
    async with guarded(young) as redlock:
        assert await redlock.lock("r", wait=0).try_acquire() is None
        assert sum(REREADS) < now() < sum(REREADS) + 0.1


@pytest.mark.spread(0)
@pytest.mark.parametrize("number", [0, 1])
async def test_a_set_that_is_founded_in_two_parts_hides_no_flush(
    young: list[FakeMaster], number: int
) -> None:
    """
    A connection ends while a set is founded, so that its master is marked later than the others.

    The push of a flush is on its way by then: a marker that is written there once more would be
    the same as the one that is lost.
    """
    masters = young[:3]
    masters[2].latency = 0.2
    async with guarded(masters) as redlock:
        await until_all_but_the_last_are_marked(masters)
        occupy(masters[:2], ttl=int(QUARANTINE * 900))
        masters[number].latency = 0.15
        masters[number].flush()
        await asyncio.sleep(0.03)
        masters[2].latency = 0.02
        masters[2].cut()
        held = now() + QUARANTINE * 0.85
        while now() < held:
            assert await redlock.lock("r").try_acquire() is None
            await asyncio.sleep(0.01 if now() < 4 else 0.1)
        masters[number].latency = 0.001
        await asyncio.sleep(QUARANTINE)
        assert await answers(redlock) == "GGG"


@pytest.mark.spread(0)
@pytest.mark.parametrize("others", ["young", "up for long"])
async def test_a_master_that_was_not_reached_before_its_restart_is_not_new(
    young: list[FakeMaster], others: str
) -> None:
    """
    A program begins with a new set, but can't reach one of its masters; another program can.

    That one uses the set, and has a lock on the master that restarts, and on one more.
    """
    masters = young[:3]
    masters[1].kill()
    for master in masters[::2]:
        master.uptime = 0.0 if others == "young" else 1e6
    async with guarded(masters) as redlock:
        await asyncio.sleep(1)
        if others == "young":
            for master in masters[::2]:
                mark(master, "member", int(master._clock()))
        await asyncio.sleep(QUARANTINE)
        occupy(masters[:1], ttl=int(QUARANTINE * 900))
        held = now() + QUARANTINE * 0.85
        masters[1].restart()
        while now() < held:
            assert await redlock.lock("r").try_acquire() is None
            await asyncio.sleep(0.01 if now() < held - QUARANTINE / 2 else 0.1)
        await asyncio.sleep(QUARANTINE)
        assert await answers(redlock) == "GGG"


async def test_a_master_that_hangs_during_its_examination_is_dialled_again(
    masters: list[FakeMaster],
) -> None:
    intercept(masters[0], b"GETRANGE", masters[0].hang)
    async with guarded(masters) as redlock:
        # A master that comes behind it waits for 0.5 s until this one has confirmed its server.
        await asyncio.sleep(1)
        assert await answers(redlock) == "UGGGG"
        await asyncio.sleep(3)
        del vars(masters[0])["execute"]
        masters[0].resume()
        await asyncio.sleep(2)
        assert await answers(redlock) == "G" * 5


# Restarts.


@pytest.mark.promise("S4")
async def test_a_majority_that_restarted_empty_grants_nothing_before_the_deadline(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    """Masters that have lost the lease neither end nor extend it."""
    lease = await redlock.lock("r", ttl=MAX_TTL).acquire()
    deadline = now() + lease.remaining / 1000
    restart(masters[:3])
    restarted = now()
    while now() < deadline - 0.5:
        await asyncio.sleep(0.5)
        assert not await newcomer_gets_lock(masters)
        assert lease.valid
        assert not lease.lost.is_set()
    await asyncio.sleep(1)
    assert lease.lost.is_set()
    async with guarded(masters) as newcomer:
        assert (await votes(newcomer))[0].answer is Answer.QUARANTINED
        await asyncio.sleep(restarted + QUARANTINE + 1.1 - now())
        assert await answers(newcomer, "r") == "G" * 5
        assert await answers(redlock, "r") == "G" * 5


@pytest.mark.promise("S1")
@pytest.mark.parametrize("number", [1, 2, 3])
async def test_masters_that_refuse_their_markers_after_a_restart_stay_in_quarantine(
    masters: list[FakeMaster], number: int
) -> None:
    """Such as with ``min-replicas-to-write``, until a replica is connected."""
    masters = masters[:number]
    async with guarded(masters) as redlock, guarded(masters) as other:
        lease = await redlock.lock("r", ttl=MAX_TTL).acquire()
        deadline = now() + lease.remaining / 1000
        fail(masters, "NOREPLICAS Not enough good replicas to write.")
        restart(masters)
        await asyncio.sleep(1)
        fail(masters, "")
        while now() < deadline - 0.5:
            assert lease.valid
            assert await other.lock("r").try_acquire() is None
            await asyncio.sleep(0.1)
        await asyncio.sleep(QUARANTINE)
        assert await answers(other, "r") == "G" * number


@pytest.mark.spread(1)
@pytest.mark.promise("S1")
@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize(
    "refused",
    [
        pytest.param(0.05, marks=pytest.mark.full),
        0.3,
        1.4,
        pytest.param(3.7, marks=pytest.mark.full),
    ],
)
async def test_a_program_whose_markers_were_refused_founds_no_new_set(
    masters: list[FakeMaster], number: int, refused: float
) -> None:
    """It may have begun after the restart, and knows nothing of the leases from before it."""
    masters = masters[:number]
    async with guarded(masters) as redlock:
        lease = await redlock.lock("r", ttl=MAX_TTL, auto_extend=False).acquire()
        deadline = now() + lease.remaining / 1000
        fail(masters, "NOREPLICAS Not enough good replicas to write.")
        restart(masters)
        await asyncio.sleep(0.2)
        async with guarded(masters) as newcomer:
            await asyncio.sleep(refused)
            fail(masters, "")
            accepts = now()
            while now() < deadline - 0.5:
                assert lease.valid
                assert await newcomer.lock("r").try_acquire() is None
                # This process would replace a newcomer's marker within a round trip.
                await asyncio.sleep(0.0005 if now() < accepts + 0.7 else 0.1)
            await asyncio.sleep(QUARANTINE)
            assert await answers(newcomer, "r") == "G" * number


async def test_a_marker_that_was_refused_is_written_soon(masters: list[FakeMaster]) -> None:
    """A program that begins before that would take the masters for a new set."""
    async with guarded(masters) as redlock:
        assert await answers(redlock) == "G" * 5
        fail(masters, "MISCONF Errors writing to the AOF file: No space left on device")
        restart(masters)
        await asyncio.sleep(3)
        fail(masters, "")
        await asyncio.sleep(0.55)
        assert states(masters) == ["rejoining"] * 5


def mark(master: FakeMaster, state: str, at: int, run_id: str = "") -> None:
    master.set(MARKER.decode(), f"{run_id or master.run_id} {state} {at}")


def flush_and_mark(master: FakeMaster) -> None:
    """Flush *master*; a new program writes its marker before this one does."""
    master.flush()
    mark(master, "member", int(master._clock()))


def flush_after_reading(master: FakeMaster) -> None:
    """Flush *master* between the read of the marker and the next command."""
    once = [master.flush]
    intercept(master, b"GETRANGE", lambda: once.pop()() if once else None, after=True)
    master.cut()


@pytest.mark.parametrize(
    "change",
    [
        lambda master: master.restart(uptime=10**6),
        lambda master: mark(master, "rejoining", 10 * int(master._clock())),
        flush_and_mark,
        flush_after_reading,
    ],
    ids=["restart", "marked by another program", "flush and mark", "flush after reading"],
)
async def test_a_member_that_may_have_forgotten_locks_loses_its_vote(
    redlock: Redlock, masters: list[FakeMaster], change: Callable[[FakeMaster], None]
) -> None:
    change(masters[0])
    await asyncio.sleep(0.6)
    assert await answers(redlock) == "QGGGG"
    assert states(masters) == ["rejoining"] + ["member"] * 4
    async with guarded(masters) as newcomer:
        assert await answers(newcomer) == "QGGGG"
    await asyncio.sleep(QUARANTINE)
    assert await answers(redlock) == "G" * 5


@pytest.mark.spread(0)
@pytest.mark.parametrize("marked", [False, True], ids=["no marker", "another server's marker"])
@pytest.mark.parametrize(
    ("uptime", "replica", "quarantined"),
    [
        (3, False, True),
        (3, True, True),
        (10 * QUARANTINE, True, True),
        (10 * QUARANTINE, False, False),
    ],
)
async def test_a_newcomer_quarantines_restarted_and_promoted_servers_once(
    masters: list[FakeMaster], uptime: float, *, marked: bool, replica: bool, quarantined: bool
) -> None:
    """A promoted server may have missed the last writes: the locks, and the marker."""
    assert await newcomer_gets_lock(masters)
    await asyncio.sleep(uptime)  # the program has ended when the new server starts
    masters[1].restart(uptime=uptime)
    masters[1].replica_before = replica
    if marked:
        mark(masters[1], "member", 1, "f" * 40)
    async with guarded(masters) as redlock:
        if quarantined:
            await asyncio.sleep(0.6)
            assert await answers(redlock) == "GQGGG"
            assert states(masters)[1] == "rejoining"
            await asyncio.sleep(QUARANTINE - (0 if replica else uptime) - 1.6)
            assert await answers(redlock) == "GQGGG"
            await asyncio.sleep(2)
        assert await answers(redlock) == "G" * 5
    assert states(masters) == ["member"] * 5
    assert await newcomer_gets_lock(masters)


@pytest.mark.usefixtures("redlock")
async def test_masters_that_restart_one_after_the_other_are_no_new_set(
    masters: list[FakeMaster],
) -> None:
    for master in masters:
        master.restart()
        await asyncio.sleep(0.6)
    assert states(masters) == ["rejoining"] * 5
    assert not await newcomer_gets_lock(masters)
    await asyncio.sleep(QUARANTINE - 3.5)
    assert not await newcomer_gets_lock(masters)
    await asyncio.sleep(4.5)
    assert await newcomer_gets_lock(masters)


async def test_markers_and_servers_are_remembered_while_the_manager_is_closed(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    await asyncio.sleep(QUARANTINE / 4 - 0.2)
    await redlock.aclose()
    await asyncio.sleep(QUARANTINE - 1)
    masters[0].restart(uptime=10**6)
    masters[1].flush()
    await redlock.__aenter__()
    assert await answers(redlock) == "QQGGG"


@pytest.mark.parametrize("fault", ["restart", "cut"])
async def test_a_restart_in_quarantine_begins_another_and_a_cut_does_not(
    redlock: Redlock, masters: list[FakeMaster], fault: str
) -> None:
    masters[0].restart()
    await asyncio.sleep(QUARANTINE - 1)
    getattr(masters[0], fault)()
    masters[1].cut()
    await asyncio.sleep(0.6)
    assert await answers(redlock) == "QGGGG"
    await asyncio.sleep(1)
    assert await answers(redlock) == ("QGGGG" if fault == "restart" else "GGGGG")
    await asyncio.sleep(QUARANTINE - 0.5)
    assert await answers(redlock) == "G" * 5


# Masters that were replicas, and are masters again.


def promote(master: FakeMaster, number: int, *, forgotten: bool = False) -> None:
    """Make *master* a master again; it has *forgotten* that after an hour without a replica."""
    master.role = "master"
    master.replica_before = not forgotten
    master.replid = f"{number:040x}"


def demote(master: FakeMaster, *, lost: str = "r") -> None:
    """Make *master* a replica of one that has its marker, but lacks the key *lost*."""
    master.role = "slave"
    master.fed += 300
    master._keys.pop(lost.encode(), None)


def hide_promotions(master: FakeMaster) -> None:
    """Leave all that tells of a promotion out of the master's INFO, as some services do."""
    info = master._do_info

    def hidden() -> object:
        reply = info()
        assert isinstance(reply, bytes)
        lines = reply.decode().splitlines()
        told = ("master_replid", "total_net_repl")
        return "\r\n".join([line for line in lines if not line.startswith(told)]).encode()

    vars(master)["_do_info"] = hidden


@pytest.mark.parametrize("forgotten", [False, True], ids=["just now", "an hour ago"])
@pytest.mark.parametrize("times", [1, 2], ids=["once", "twice"])
async def test_a_master_that_was_a_replica_while_nobody_looked_has_no_vote(
    masters: list[FakeMaster], times: int, *, forgotten: bool
) -> None:
    """Its run_id is the same, and so is the marker that came back from the other server."""
    assert await newcomer_gets_lock(masters)
    for number in range(times):
        demote(masters[0])
        promote(masters[0], number + 7, forgotten=forgotten)
        async with guarded(masters) as newcomer:
            assert await answers(newcomer) == "QGGGG"
            await asyncio.sleep(QUARANTINE + 0.1)
            assert await answers(newcomer) == "G" * 5
    assert states(masters) == ["member"] * 5


async def test_a_live_connection_is_examined_again_when_a_replica_was_promoted(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    demote(masters[0])
    promote(masters[0], 7)
    await asyncio.sleep(QUARANTINE / 4 + 0.1)
    assert await answers(redlock) == "QGGGG"


async def test_a_live_connection_to_a_replica_that_accepts_writes_gives_no_vote(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    demote(masters[0])
    await asyncio.sleep(QUARANTINE / 4 + 0.1)
    assert await answers(redlock) == "EGGGG"


async def test_the_hour_after_a_promotion_costs_no_second_quarantine(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    """The server forgets the promotion, and takes a new replication id."""
    demote(masters[0])
    promote(masters[0], 7)
    masters[0].cut()
    await asyncio.sleep(QUARANTINE + 1)
    assert await answers(redlock) == "G" * 5
    promote(masters[0], 8, forgotten=True)
    for _ in range(10):
        await asyncio.sleep(QUARANTINE / 8)
        assert await answers(redlock) == "G" * 5
        assert await newcomer_gets_lock(masters)
    async with guarded(masters) as newcomer:
        assert await answers(newcomer) == "G" * 5


@pytest.mark.spread(1)
@pytest.mark.parametrize("away", [0.1, 3 * QUARANTINE], ids=["a moment", "for long"])
@pytest.mark.parametrize("seen", ["by INFO", "by READONLY"])
async def test_a_server_that_was_seen_as_a_replica_has_no_vote_whatever_it_says(
    redlock: Redlock, masters: list[FakeMaster], away: float, seen: str
) -> None:
    hide_promotions(masters[0])
    if seen == "by INFO":
        demote(masters[0])
        masters[0].cut()
        await asyncio.sleep(1)
        assert await answers(redlock) == "EGGGG"
    else:
        masters[0].error = "READONLY You can't write against a read only replica."
        assert await answers(redlock) == "EGGGG"
        masters[0].error = ""
        masters[0].hang()
    await asyncio.sleep(away)
    promote(masters[0], 7)
    masters[0].resume()
    await asyncio.sleep(1.5)
    assert await answers(redlock) == "QGGGG"
    assert states(masters)[0] == "rejoining"
    async with guarded(masters) as newcomer:
        assert await answers(newcomer) == "QGGGG"
        await asyncio.sleep(QUARANTINE)
        assert await answers(newcomer) == "G" * 5
    assert await answers(redlock) == "G" * 5


@pytest.mark.promise("S1")
async def test_a_replica_that_is_a_master_again_when_it_is_dialled_has_no_vote(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    """One look at it behind a flush is all that tells of the keys that it has dropped."""
    hide_promotions(masters[0])
    info = vars(masters[0])["_do_info"]

    def promoted_behind() -> object:
        reply = info()
        promote(masters[0], 7)
        return reply

    demote(masters[0])
    vars(masters[0])["_do_info"] = promoted_behind
    masters[0]._pushes.flushed()
    await asyncio.sleep(0.5)
    assert masters[0].role == "master"
    assert await answers(redlock) == "QGGGG"
    await asyncio.sleep(QUARANTINE)
    assert await answers(redlock) == "G" * 5


# Markers that others change all the time.


async def rewrite_marker(master: FakeMaster, until: float) -> None:
    """Write the same marker every 2 ms until the master's clock shows *until*."""
    while master._clock() < until:
        assert master.marker is not None
        master.set(MARKER.decode(), master.marker)
        await asyncio.sleep(0.002)


async def test_changes_of_the_marker_do_not_delay_the_end_of_a_quarantine(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    masters[0].restart()
    await asyncio.sleep(QUARANTINE - 1)
    assert masters[0].marker is not None
    votes_at = int(masters[0].marker.split()[2])
    await rewrite_marker(masters[0], votes_at - 5_000)
    assert await answers(redlock) == "QGGGG"
    await asyncio.sleep(0.005)
    assert await answers(redlock) == "G" * 5


async def test_a_member_is_examined_at_once_however_often_its_marker_changes(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    await rewrite_marker(masters[0], masters[0]._clock() + 200_000)
    assert await answers(redlock) == "G" * 5
    masters[0].delete(MARKER.decode())
    await asyncio.sleep(0.005)
    assert await answers(redlock) == "QGGGG"


# Flushes.


@pytest.mark.parametrize("flushed", [1, pytest.param(3, marks=pytest.mark.full), 5])
async def test_a_flush_ends_the_vote_of_masters_and_no_lease(
    redlock: Redlock, masters: list[FakeMaster], flushed: int
) -> None:
    lease = await redlock.lock("r", ttl=MAX_TTL, auto_extend=False).acquire()
    await asyncio.sleep(0.5)  # the key is tracked now
    for master in masters[:flushed]:
        master.flush()
    await asyncio.sleep(0.05)
    assert states(masters) == ["rejoining"] * flushed + ["member"] * (5 - flushed)
    for _ in range(8):
        assert lease.valid
        assert not await newcomer_gets_lock(masters)
        await asyncio.sleep(1)
    await lease.release()
    await asyncio.sleep(QUARANTINE)
    assert await answers(redlock, "r") == "G" * 5


async def test_a_flush_of_another_database_costs_no_vote(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    async with redlock.lock("r"):
        for master in masters:
            master._pushes.flushed()
        await asyncio.sleep(0.01)
        assert await answers(redlock) == "G" * 5


async def test_no_reply_counts_that_was_underway_at_a_flush(masters: list[FakeMaster]) -> None:
    async with guarded(masters[:1]) as redlock:
        task = asyncio.create_task(redlock.lock("r", wait=0).acquire())
        await asyncio.sleep(0)
        masters[0].flush()  # pushed before the reply: the lock may be among the flushed keys
        with pytest.raises(QuorumUnavailableError) as caught:
            await task
        assert str(caught.value.votes[0]) == "m0: unreachable, its keys were flushed"


async def test_a_master_whose_connection_ends_right_behind_a_reply_comes_back(
    masters: list[FakeMaster],
) -> None:
    """The reply and the push arrive together: the task resumes when the connection has ended."""
    async with guarded(masters[:3]) as redlock:
        flushes = [masters[0].flush]
        before(masters[0], DECLARE, lambda: flushes and flushes.pop()())
        await asyncio.sleep(QUARANTINE / 2)
        assert not flushes
        assert redlock.statistics().masters[0].up


@pytest.mark.promise("S2")
@pytest.mark.full
async def test_flushes_of_another_database_end_no_connection_and_no_lease(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    """A hundred a second on each master; each costs replies that are underway a round trip."""
    before = [link._connection for link in kit.session(redlock).links]
    lease = await redlock.lock("r", ttl=1000).acquire()
    for _ in range(500):
        for master in masters:
            master._pushes.flushed()
        assert await gets_lock(redlock, "other")
        await asyncio.sleep(0.01)
    assert lease.valid
    assert has_lock(masters, lease) == [True] * 5
    await lease.release()
    assert [link._connection for link in kit.session(redlock).links] == before


async def test_a_program_can_connect_while_another_database_is_flushed(
    masters: list[FakeMaster],
) -> None:
    async def flushes() -> None:
        while True:
            for master in masters:
                master._pushes.flushed()
            await asyncio.sleep(0.0007)

    noise = asyncio.create_task(flushes())
    async with guarded(masters) as redlock:
        assert await answers(redlock) == "G" * 5
    noise.cancel()


def underway(redlock: Redlock) -> asyncio.Task[Lease]:
    return asyncio.create_task(redlock.lock("r", wait=0).acquire())


async def test_a_reply_behind_a_flush_of_another_database_counts_after_the_marker(
    masters: list[FakeMaster],
) -> None:
    async with guarded(masters[:1]) as redlock:
        task = underway(redlock)
        await asyncio.sleep(0)
        masters[0]._pushes.flushed()
        begun = now()
        lease = await task
        assert now() - begun == pytest.approx(1.5 * LATENCY)  # half a round trip later
        await lease.release()


async def test_a_grant_does_not_count_after_a_flush_that_another_program_has_hidden(
    masters: list[FakeMaster],
) -> None:
    async with guarded(masters[:1]) as redlock:
        await asyncio.sleep(1)
        task = underway(redlock)
        await asyncio.sleep(0)
        flush_and_mark(masters[0])
        with pytest.raises(QuorumUnavailableError, match="its keys were flushed"):
            await task


async def test_a_grant_behind_a_flush_does_not_count_if_the_marker_can_not_be_read(
    masters: list[FakeMaster],
) -> None:
    async with guarded(masters[:1]) as redlock:
        task = underway(redlock)
        await asyncio.sleep(0)
        masters[0].flush()
        masters[0].forbid.add("GETRANGE")
        with pytest.raises(QuorumUnavailableError, match="its keys were flushed"):
            await task


async def test_a_marker_that_can_not_be_read_for_a_moment_does_not_end_a_wait(
    masters: list[FakeMaster],
) -> None:
    execute, busy = masters[0].execute, [Error("BUSY Redis is busy running a script")]

    def executing(command: list[bytes], listener: PushReceiver | None = None) -> object:
        return busy[0] if busy and command[0] == b"GETRANGE" else execute(command, listener)

    vars(masters[0])["execute"] = executing
    async with guarded(masters[:1]) as redlock:
        waiting = asyncio.create_task(redlock.lock("r", wait=5_000).acquire())
        await asyncio.sleep(1)
        busy.clear()
        await (await waiting).release()


async def test_a_waiter_is_woken_also_after_a_flush_of_another_database(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    """The server tracks no key of this program any more."""
    async with guarded(masters) as other:
        lease = await other.lock("r").acquire()
        retry = Retry(min_delay=5_000, max_delay=5_000)
        waiting = asyncio.create_task(redlock.lock("r", wait=60_000, retry=retry).acquire())
        await asyncio.sleep(0.1)
        for master in masters:
            master._pushes.flushed()
        await asyncio.sleep(0.1)
        released = now()
        await lease.release()
        async with await waiting:
            assert now() - released < 0.1


async def test_a_grant_of_a_promoted_replica_does_not_count_although_its_marker_is_back(
    masters: list[FakeMaster],
) -> None:
    """The server dropped its keys for another one's, which is pushed like a flush."""
    async with guarded(masters[:1]) as redlock:
        task = underway(redlock)
        await asyncio.sleep(0)
        demote(masters[0])
        masters[0]._pushes.flushed()
        promote(masters[0], 7)
        with pytest.raises(QuorumUnavailableError, match="its keys were flushed"):
            await task
        await asyncio.sleep(0.5)
        assert await answers(redlock) == "Q"


@pytest.mark.promise("S6")
async def test_a_master_that_hangs_behind_a_flush_holds_nobody_up(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    for master in masters[:2]:
        master._pushes.flushed()
        master.hang()
    begun = now()
    async with redlock.lock("r", wait=0) as lease:
        assert now() - begun < 2 * LATENCY
        await asyncio.sleep(0.5)
        for master in masters[:2]:
            master.resume()
        await asyncio.sleep(0.1)
        assert has_lock(masters, lease) == [True] * 5
    assert await answers(redlock) == "G" * 5


async def test_a_flush_between_the_two_reads_of_a_proof_ends_the_connection(
    redlock: Redlock,
) -> None:
    """What INFO said may be out of date when the marker is read."""
    link = kit.session(redlock).links[0]
    before, sentry = link._connection, link._sentry
    assert sentry is not None
    sentry.on_push(0, EVERYTHING_CHANGED)
    sentry.on_push(0, EVERYTHING_CHANGED)  # no command is answered yet: they cover both
    assert link._connection is before
    assert sentry._proof is not None
    sentry._proof.on_reply(0, b"run_id:x")
    sentry.on_push(0, EVERYTHING_CHANGED)
    assert link._connection is None
    await asyncio.sleep(0.5)
    assert await answers(redlock) == "G" * 5


@pytest.mark.parametrize("moment", ["before the read", "behind the read"])
async def test_a_flush_at_the_end_of_a_quarantine_begins_another(
    redlock: Redlock, masters: list[FakeMaster], moment: str
) -> None:
    masters[0].restart()
    await asyncio.sleep(0.6)
    assert await answers(redlock) == "QGGGG"
    await asyncio.sleep(QUARANTINE - 0.7)
    once = [masters[0].flush]

    def flush() -> object:
        if masters[0].marker and now() > QUARANTINE and once:
            once.pop()()
        return None

    intercept(masters[0], b"GETRANGE", flush, after=moment == "behind the read")
    await asyncio.sleep(1)
    assert not once
    assert await answers(redlock) == "QGGGG"
    await asyncio.sleep(QUARANTINE)
    assert await answers(redlock) == "G" * 5


async def test_a_flush_behind_the_last_read_of_a_quarantine_begins_another(
    masters: list[FakeMaster], caplog: pytest.LogCaptureFixture
) -> None:
    """The push arrives together with the marker, before the task that has asked for it resumes."""
    caplog.set_level("INFO", "redlock_aio")
    master = masters[0]
    async with guarded([master]) as redlock:
        master.restart()
        await asyncio.sleep(0.6)
        flushed: list[float] = []

        def flush() -> object:
            value = master.marker
            if value and " member " in value and not flushed:
                flushed.append(now())
                master.flush()
                return value.encode()
            return None

        intercept(master, b"GETRANGE", flush, after=True)
        async with redlock.lock("r", wait=3 * MAX_TTL, retry=Retry(min_delay=1, max_delay=2)):
            assert now() > flushed[0] + QUARANTINE
        assert caplog.text.count("votes again\n") == 1


async def test_a_flush_between_reading_and_writing_the_marker_is_not_hidden(
    masters: list[FakeMaster],
) -> None:
    """A program with a longer max_ttl writes the marker again."""
    async with guarded(masters):
        pass
    once = [masters[0].flush]
    intercept(masters[0], b"SET", lambda: once.pop()() if once else None)
    async with Redlock(masters, max_ttl=2 * MAX_TTL) as redlock:
        await asyncio.sleep(0.6)
        assert not once
        assert await answers(redlock) == "QGGGG"
        assert states(masters) == ["rejoining"] + ["member"] * 4
        async with guarded(masters) as newcomer:
            assert await answers(newcomer) == "QGGGG"


async def test_the_marker_is_written_again_after_the_scripts_were_flushed(
    masters: list[FakeMaster],
) -> None:
    async with guarded(masters):
        pass
    once = [masters[0]._scripts.clear]
    intercept(masters[0], b"SET", lambda: once.pop()() if once else None)
    async with Redlock(masters, max_ttl=2 * MAX_TTL) as redlock:
        await asyncio.sleep(0.1)
        assert not once
        assert await answers(redlock) == "G" * 5
        assert {master.marker.split()[3] for master in masters if master.marker} == {"21200"}


# Servers without client tracking.


def without_tracking(masters: list[FakeMaster]) -> None:
    """Make *masters* refuse CLIENT TRACKING as some services do."""

    def refuse(verb: bytes, *_: bytes) -> object:
        raise Error(f"ERR unknown subcommand '{verb.decode()}'. Try CLIENT HELP.")

    for master in masters:
        vars(master)["_do_client"] = refuse


@pytest.fixture
def untracked(masters: list[FakeMaster]) -> list[FakeMaster]:
    without_tracking(masters)
    return masters


@KIND
@pytest.mark.parametrize("hide", [False, True], ids=["no marker", "a new marker"])
@pytest.mark.spread(1)
async def test_without_tracking_no_grant_counts_after_a_flush(
    untracked: list[FakeMaster], kind: Kind, *, hide: bool
) -> None:
    """A program that does not know the old marker may have written another one since."""
    masters = untracked
    async with guarded(masters) as holder, guarded(masters) as redlock:
        lease = await holder.lock("r", ttl=MAX_TTL, auto_extend=False, **kind).acquire()
        await asyncio.sleep(1)
        for master in masters[:3]:
            (flush_and_mark if hide else FakeMaster.flush)(master)
        while lease.valid:
            assert await redlock.lock("r", wait=0, ttl=500, **kind).try_acquire() is None
            await asyncio.sleep(0.25)
        await asyncio.sleep(QUARANTINE)
        assert await answers(redlock) == "G" * 5


async def test_without_tracking_an_extension_needs_the_marker(untracked: list[FakeMaster]) -> None:
    async with guarded(untracked[:1]) as redlock:
        lease = await redlock.lock("r", ttl=MAX_TTL, auto_extend=False).acquire()
        value = untracked[0].keys["r"]
        untracked[0].flush()
        untracked[0].set("r", value, MAX_TTL)  # restored by its holder, say
        with pytest.raises(LockLostError):
            await lease.extend()


@KIND
async def test_without_tracking_locks_work(untracked: list[FakeMaster], kind: Kind) -> None:
    async with guarded(untracked) as one, guarded(untracked) as two:
        held = await asyncio.gather(
            *(acquired_at(redlock, hold=0.1, retry=None, **kind) for redlock in (one, two) * 2)
        )
        assert max(held) - min(held) >= 0.3
    await check_freed(untracked)


@pytest.mark.parametrize("tracked", [True, False])
async def test_only_without_tracking_a_grant_is_sent_with_a_read_of_the_marker(
    masters: list[FakeMaster], *, tracked: bool
) -> None:
    if not tracked:
        without_tracking(masters)
    async with guarded(masters) as redlock:
        before = len(masters[0].commands)
        async with redlock.lock("r", auto_extend=False):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.01)
        sent = [command[0] for command in masters[0].commands[before:]]
        assert sent == ([b"SET", b"DELIFEQ"] if tracked else [b"SET", b"GETRANGE", b"DELIFEQ"])


async def test_without_tracking_a_longer_max_ttl_in_the_marker_costs_no_vote(
    untracked: list[FakeMaster],
) -> None:
    async with guarded(untracked) as redlock:
        async with Redlock(untracked, max_ttl=2 * MAX_TTL):
            pass
        for _ in range(100):
            assert await answers(redlock) == "G" * 5
            await asyncio.sleep(0.01)
        sentry = kit.session(redlock).links[0]._sentry
        assert sentry is not None
        assert sentry.quarantine == pytest.approx(2 * (QUARANTINE - 1) + 1)


@pytest.mark.promise("S6")
async def test_without_tracking_a_master_that_hangs_holds_nobody_up(
    untracked: list[FakeMaster],
) -> None:
    async with guarded(untracked) as redlock:
        for master in untracked[:2]:
            master.hang()
        begun = now()
        async with redlock.lock("r", wait=0):
            assert now() - begun < 2 * LATENCY
        for master in untracked[:2]:
            master.resume()
        await check_freed(untracked)


async def test_the_log_says_that_the_service_has_no_tracking(
    untracked: list[FakeMaster], caplog: pytest.LogCaptureFixture
) -> None:
    async with guarded(untracked):
        assert caplog.text.count("the service has no client tracking") == 5
        assert "forbids" not in caplog.text


async def test_an_eviction_policy_that_is_set_while_programs_run_is_warned_about(
    redlock: Redlock, masters: list[FakeMaster], caplog: pytest.LogCaptureFixture
) -> None:
    info = masters[0]._do_info

    def evicting() -> object:
        reply = info()
        assert isinstance(reply, bytes)
        return reply + b"maxmemory:1\r\nmaxmemory_policy:volatile-lru\r\n"

    vars(masters[0])["_do_info"] = evicting
    await asyncio.sleep(QUARANTINE)
    assert caplog.text.count("its maxmemory-policy volatile-lru may drop locks") == 1
    assert await answers(redlock) == "G" * 5
    del vars(masters[0])["_do_info"]
    await asyncio.sleep(QUARANTINE)
    vars(masters[0])["_do_info"] = evicting
    await asyncio.sleep(QUARANTINE)
    assert caplog.text.count("its maxmemory-policy volatile-lru may drop locks") == 2


async def test_no_marker_is_written_through_a_connection_that_has_ended(redlock: Redlock) -> None:
    link = kit.session(redlock).links[0]
    assert link._sentry is not None
    assert link._connection is not None
    link._connection.abandon()
    assert link._sentry.ask_for(founding(link._sentry.info, QUARANTINE), over=b"") is None


@pytest.mark.parametrize("ago", [QUARANTINE / 2, 9 * QUARANTINE])
async def test_a_flush_while_a_program_was_away_costs_it_no_more_than_its_quarantine(
    masters: list[FakeMaster], ago: float
) -> None:
    """A returning manager must not stop all programs because of an old flush."""
    async with guarded(masters) as away:
        assert await answers(away) == "G" * 5
    await asyncio.sleep(9 * QUARANTINE)
    for master in masters:
        master.flush()
    flushed = now()
    async with guarded(masters):
        pass  # this manager has not seen the old markers, and writes new ones
    await asyncio.sleep(flushed + ago - now())
    async with away:
        left = flushed + QUARANTINE - now()
        assert await answers(away) == ("Q" if left > 0 else "G") * 5
        await asyncio.sleep(max(left, 0) + 0.1)
        assert await answers(away) == "G" * 5
    assert states(masters) == ["member"] * 5


@pytest.mark.parametrize("change", ["flushed", "restarted behind a proxy"])
async def test_without_pushes_the_marker_is_read_periodically_and_that_is_logged(
    masters: list[FakeMaster], caplog: pytest.LogCaptureFixture, change: str
) -> None:
    for master in masters:
        master.forbid.add("CLIENT")
    async with guarded(masters) as redlock:
        assert caplog.text.count("it forbids client tracking") == 5
        if change == "flushed":
            masters[0].flush()
        else:
            masters[0].run_id = "9" * 40
        await asyncio.sleep(QUARANTINE / 4 + 0.1)
        assert await answers(redlock) == "QGGGG"
