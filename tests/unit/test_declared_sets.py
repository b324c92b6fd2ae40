"""Programs with different sets of masters: the one that came second restricts itself."""

import asyncio
import contextlib
import itertools
import logging
import math
import random
from collections.abc import AsyncIterator, Callable
from typing import Any, Literal

import pytest

from redlock_aio import Answer, QuorumUnavailableError, Redlock
from redlock_aio._protocol import commands
from redlock_aio._protocol.commands import MARKER
from redlock_aio._protocol.scripts import DECLARE
from redlock_aio._rules import membership, timing
from redlock_aio._rules.membership import LIVES
from redlock_aio._transport.sets import DUE, NO_MAJORITY, PATIENCE, UNDECLARED
from redlock_aio.events import Event, MajorityLost
from redlock_aio.testing import FakeMaster, cancelled_at
from redlock_aio.testing._fake_lua import Error
from redlock_aio.testing._fake_pushes import PushReceiver

from .kit import answers, gets_lock, in_coroutine, now, ran, votes

MAX_TTL = 4_000
QUARANTINE = timing.forgetting(MAX_TTL, factor=timing.DRIFT_FACTOR)
"""The length of a quarantine in seconds."""
OVER = QUARANTINE * LIVES + 1.3
"""Seconds after which a refused program gets votes when the other programs have ended."""
LONG_UP = 99_999
"""The uptime in seconds of a server that was unreachable, but has not restarted."""

pytestmark = [pytest.mark.promise("S1")]


class Address:
    """A fake master under another address, which takes *delay* seconds to connect."""

    secrets = ()

    def __init__(self, master: FakeMaster, address: str, delay: float = 0.0) -> None:
        self.leads_to = master
        self._address = address
        self.delay = delay

    def __str__(self) -> str:
        return self._address

    async def dial(self) -> tuple[asyncio.Transport, object]:
        await asyncio.sleep(self.delay)
        return await self.leads_to.dial()


@pytest.fixture
async def m() -> dict[str, FakeMaster]:
    """Masters by their names."""
    return {name: FakeMaster(name) for name in "abcdefg"}


@pytest.fixture
async def right(m: dict[str, FakeMaster]) -> AsyncIterator[Redlock]:
    """A program with the masters a, b, c."""
    async with program(of(m, "abc")) as right:
        yield right


@pytest.fixture(autouse=True)
def everything_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "redlock_aio")


def of(m: dict[str, FakeMaster], letters: str) -> list[FakeMaster]:
    return [m[letter] for letter in letters]


def program(masters: Any, max_ttl: int = MAX_TTL, **options: Any) -> Redlock:
    return Redlock(masters, max_ttl=max_ttl, **options)


async def works(redlock: Redlock) -> bool:
    """Return whether a lock can be acquired soon; other programs may hold it for a moment."""
    try:
        async with redlock.lock("works", wait=400, ttl=500):
            return True
    except QuorumUnavailableError:
        return False


async def until_it_works(redlock: Redlock) -> None:
    for _ in range(1_000):
        if await works(redlock):
            return
        await asyncio.sleep(0.02)
    pytest.fail("it never gets a lock")


async def until_they_vote(redlock: Redlock, *numbers: int) -> None:
    for _ in range(1_000):
        masters = redlock.statistics().masters
        if all(masters[number].votes for number in numbers):
            return
        await asyncio.sleep(0.01)
    pytest.fail("they never vote")


def refuse_lines(master: FakeMaster, why: Callable[[], str]) -> None:
    """Let a master answer writes of lines by this error, while there is one; they can be read."""
    execute = master.execute

    def refusing(command: list[bytes], listener: PushReceiver | None = None) -> object:
        if (error := why()) and DECLARE.sha in command and len(command) > 4:
            return Error(error)
        return execute(command, listener)

    vars(master)["execute"] = refusing


def is_refused(redlock: Redlock) -> bool:
    return any("no votes until" in master.reason for master in redlock.statistics().masters)


def declared(master: FakeMaster) -> list[str]:
    """Return the sets declared on a master."""
    value, _ = master._data.find(commands.DECLARED_SETS)
    assert value is None or isinstance(value, bytes)
    found = [membership.parse(line.split(b" ", 3)[3]) for line in (value or b"").splitlines()]
    return ["".join(line[0]) for line in found if line is not None and not line[1]]


class Contest:
    """Programs that want one lock all the time; it counts how often two have it."""

    def __init__(self) -> None:
        self.both = 0
        self.turns: dict[Redlock, list[float]] = {}
        self._inside: list[Redlock] = []
        self._tasks: list[asyncio.Task[None]] = []

    def enter(self, *programs: Redlock) -> None:
        for redlock in programs:
            self.turns[redlock] = []
            self._tasks.append(asyncio.create_task(self._contend(redlock)))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def longest_gap(self, redlock: Redlock, begin: float) -> float:
        turns = [begin, *(turn for turn in self.turns[redlock] if turn > begin), now()]
        return max(later - turn for turn, later in itertools.pairwise(turns))

    async def _contend(self, redlock: Redlock) -> None:
        # They hold it, or pause, for about as long as they wait: often enough that two who may
        # both have it do, and so seldom that minutes of it take a second.
        while True:
            lease = await redlock.lock("r", wait=0, ttl=1000, on_lost="flag").try_acquire()
            if lease is None:
                await asyncio.sleep(random.uniform(0.005, 0.02))
                continue
            self.both += bool(self._inside)
            self._inside.append(redlock)
            self.turns[redlock].append(now())
            await asyncio.sleep(random.uniform(0.005, 0.05))
            self._inside.remove(redlock)
            await lease.release()
            await asyncio.sleep(random.uniform(0.005, 0.1))


@pytest.fixture
async def contest() -> AsyncIterator[Contest]:
    contest = Contest()
    yield contest
    await contest.stop()


# The masters that have no vote for the program that came second.


@pytest.mark.spread(0)
@pytest.mark.parametrize(
    ("first", "second", "votes_of_second"),
    [
        ("abc", "abd", "GGQ"),
        ("abc", "abcde", "GGGGQ"),  # each majority without e has two of a, b, c
        ("abc", "a", "Q"),
        pytest.param("abc", "cde", "QQQ", marks=pytest.mark.full),
    ],
)
async def test_of_two_sets_the_second_one_needs_masters_of_the_first(
    m: dict[str, FakeMaster], contest: Contest, first: str, second: str, votes_of_second: str
) -> None:
    async with program(of(m, first)) as right, program(of(m, second)) as later:
        await asyncio.sleep(0.1)
        assert await answers(later) == votes_of_second
        contest.enter(right, later)
        await asyncio.sleep(3 * QUARANTINE)
        assert await answers(right) == "G" * len(first)
        assert await answers(later) == votes_of_second
        await contest.stop()
        assert contest.both == 0
        assert bool(contest.turns[later]) == ("G" in votes_of_second)
        assert contest.longest_gap(right, 0) < 1
        if "G" not in votes_of_second:
            assert not any(second in declared(master) for master in of(m, first))


@pytest.mark.full
async def test_three_sets_in_a_cycle_never_give_a_lock_to_two(contest: Contest) -> None:
    """Each shares one master with each other one, and all begin at the same time."""
    x, y, z, p, q, w = (FakeMaster(name) for name in "xyzpqw")
    async with contextlib.AsyncExitStack() as stack:
        for masters in ([x, y, p], [y, z, q], [z, x, w]):
            contest.enter(await stack.enter_async_context(program(masters)))
        await asyncio.sleep(3 * QUARANTINE)
        await contest.stop()
    assert contest.both == 0
    assert any(contest.turns.values())


@pytest.mark.full
async def test_one_program_with_other_names_that_is_cut_off_costs_the_others_one_vote(
    m: dict[str, FakeMaster], contest: Contest, caplog: pytest.LogCaptureFixture
) -> None:
    """It does not reach c, which has restarted, so nobody can tell that it means that one."""
    there = Address(m["c"], "ip-c")
    worker = program([Address(m["a"], "ip-a"), Address(m["b"], "ip-b"), there])
    async with worker, program(of(m, "abc")) as fleet:
        contest.enter(worker, fleet)
        await asyncio.sleep(1)
        there.delay = math.inf
        m["c"].restart()
        async with program(of(m, "abc")) as newcomer:
            contest.enter(newcomer)
            begin = now()
            await asyncio.sleep(6 * QUARANTINE)
            for redlock in (fleet, newcomer, worker):
                assert contest.longest_gap(redlock, begin) < 1, "as in any restart of one master"
            assert await answers(newcomer) == await answers(fleet) == "GGQ"
            await contest.stop()
            await worker.aclose()
            ends = now() + OVER
            while now() < ends:
                assert await works(fleet)
                assert await works(newcomer)
                await asyncio.sleep(0.02)
            assert await answers(newcomer) == await answers(fleet) == "GGG"
    assert contest.both == 0
    reason = "programs with the masters ip-a, ip-b, ip-c were here first, and it is none of these"
    assert {text.partition(":")[0] for text in caplog.messages if reason in text} == {"c"}


@pytest.mark.full
@pytest.mark.parametrize(
    "uptime", [0.0, pytest.param(99_999.0, marks=pytest.mark.full)], ids=["new", "running"]
)
async def test_a_name_that_leads_some_programs_to_another_server_has_one_vote(
    m: dict[str, FakeMaster], contest: Contest, uptime: float
) -> None:
    """The old server lives on, with those programs that have reached it before the name moved."""
    async with program([m["a"], m["b"], Address(m["c"], "name")]) as old:
        await asyncio.sleep(QUARANTINE / 3)
        m["d"].restart(uptime=uptime)
        async with program([m["a"], m["b"], Address(m["d"], "name")]) as new:
            contest.enter(old, new)
            begin = now()
            for _ in range(8):
                assert await answers(new) == "GGQ"
                assert await answers(old) == "GGG"
                await asyncio.sleep(QUARANTINE / 3)
            async with program([m["a"], m["b"], Address(m["d"], "name")]) as newer:
                contest.enter(newer)
                await asyncio.sleep(QUARANTINE)
            await contest.stop()
            assert contest.both == 0
            assert contest.longest_gap(old, begin) < 1
            assert contest.longest_gap(new, begin) < 1
            await old.aclose()
            await asyncio.sleep(QUARANTINE - 0.1)
            assert await answers(new) == "GGQ"
            await asyncio.sleep(1.6)
            assert await answers(new) == "GGG"


@pytest.mark.parametrize("cut", ["c", "abc"], ids=["one", "all"])
async def test_a_server_that_a_program_has_left_counts_as_long_as_its_leases(
    m: dict[str, FakeMaster], cut: str
) -> None:
    """
    They were granted after its line was written last, and until the connection ended.

    A program that has lost all masters writes the line when it is connected to one again.
    """
    max_ttl = 20 * MAX_TTL  # far longer than the time from one examination to the next
    lasts = timing.forgetting(max_ttl, factor=timing.DRIFT_FACTOR)
    async with program([m["d"]], max_ttl) as alone:
        await until_it_works(alone)
    await asyncio.sleep(lasts * LIVES + 1.3)  # it has a marker now, and no line that counts
    left = Address(m["c"], "name")
    async with program([m["a"], m["b"], left], max_ttl) as old:
        await until_it_works(old)
        await asyncio.sleep(lasts * DUE)
        left.delay = math.inf
        for letter in cut:
            m[letter].latency = 0.1  # what is written when another connection ends is lost
        m["c"].cut()
        await asyncio.sleep(0.01)
        gone = now()
        for letter in cut:
            m[letter].cut()
            m[letter].latency = 0.001
        async with program([m["a"], m["b"], Address(m["d"], "name")], max_ttl) as new:
            await asyncio.sleep(gone + lasts - 0.1 - now())
            assert await answers(new) == "GGQ"
            await asyncio.sleep(1.6)
            assert await answers(new) == "GGG"
            assert await answers(old) == "GGU"


@pytest.mark.parametrize("moved", [True, False], ids=["name", "set"])
async def test_who_was_second_does_not_come_first_on_a_master_that_restarts(
    m: dict[str, FakeMaster], *, moved: bool
) -> None:
    """It has connected there again before those that were first; they lose no other vote."""
    a = Address(m["a"], "a")
    other = Address(m["d"], "c") if moved else m["d"]
    async with program([a, m["b"], m["c"]]) as right, program([m["a"], m["b"], other]) as second:
        await asyncio.sleep(QUARANTINE + 1)
        assert (await answers(right), await answers(second)) == ("GGG", "GGQ")
        a.delay = 0.3
        m["a"].restart()
        for _ in range(30):
            await asyncio.sleep(QUARANTINE / 20)
            assert (await answers(right))[1:] == "GG"
        assert (await answers(right), await answers(second)) == ("GGG", "GGQ")


@pytest.mark.seeds(2, full=40)
async def test_one_new_set_under_two_names_refuses_nobody(
    m: dict[str, FakeMaster], seed: int
) -> None:
    """Both begin at the same time, and at first neither knows which servers the other means."""
    random.seed(seed)
    addresses = [
        [Address(m[name], f"{prefix}{name}", random.uniform(0, 0.02)) for name in "abc"]
        for prefix in ("", "ip-")
    ]
    one, other = (program(masters) for masters in addresses)
    async with contextlib.AsyncExitStack() as stack:
        await asyncio.gather(*(stack.enter_async_context(each) for each in (one, other)))
        for _ in range(100):
            await asyncio.sleep(0.01)
            assert not is_refused(one)
            assert not is_refused(other)
        await asyncio.sleep(1.5)
        assert await answers(one) == await answers(other) == "GGG"


async def test_an_evicted_list_costs_the_programs_that_were_first_nothing(
    m: dict[str, FakeMaster], right: Redlock, caplog: pytest.LogCaptureFixture
) -> None:
    assert await works(right)
    for letter in "abc":
        m[letter].delete(commands.DECLARED_SETS.decode())
    async with program(of(m, "ade")) as wrong, program(of(m, "abf")) as later:
        for _ in range(40):
            assert await answers(right) == "GGG"
            await asyncio.sleep(QUARANTINE / 20)
        assert await answers(wrong) == "QQQ"
        assert await answers(later) == "GGQ"
    told = [text for text in caplog.messages if "was deleted or evicted" in text]
    assert sorted(told) == [
        f"{letter}: the key with the sets of masters was deleted or evicted; a master must have"
        " the maxmemory-policy noeviction"
        for letter in "abc"
    ]


@pytest.mark.parametrize(
    ("first", "second", "options"),
    [
        ("abc", "ab", {}),
        ("abcd", "abc", {}),
        ("abc", "defg", {}),
        ("abc", "abd", {"key_prefix": "app:"}),
        ("abc", "abd", {"restart_guard": "off"}),
    ],
)
async def test_other_programs_are_not_refused(
    m: dict[str, FakeMaster], first: str, second: str, options: dict[str, Any]
) -> None:
    """All majorities overlap, no master or no key is shared, or the guard is off."""
    async with program(of(m, first)) as one, program(of(m, second), **options) as other:
        for _ in range(5):
            assert await answers(one) == "G" * len(first)
            assert await answers(other) == "G" * len(second)
            await asyncio.sleep(QUARANTINE / 3)
    assert not declared(m["d"]) or "restart_guard" not in options


@pytest.mark.usefixtures("right")
async def test_a_refusal_names_both_sets_and_what_to_do(
    m: dict[str, FakeMaster], caplog: pytest.LogCaptureFixture
) -> None:
    async with program(of(m, "ade")) as wrong:
        await asyncio.sleep(0.1)
        with pytest.raises(QuorumUnavailableError) as refused:
            await wrong.lock("r", wait=0).acquire()
        reason = (
            "programs with the masters a, b, c were here first; of a, d, e they have a, and 2 are"
            " needed: no votes until 9 s after the last of them ended"
        )
        assert [vote.detail for vote in refused.value.votes] == [reason] * 3
        assert refused.value.hint == membership.ADVICE
        assert "key_prefix" in str(refused.value)
        await asyncio.sleep(60)
        logged = [text for text in caplog.messages if reason in text]
        assert logged == [f"{reason}; {membership.ADVICE}"], "once, not at each look"


async def test_a_refused_program_votes_when_the_others_leases_are_over(
    m: dict[str, FakeMaster], caplog: pytest.LogCaptureFixture
) -> None:
    right = program(of(m, "abc"))
    async with right, program(of(m, "ade")) as wrong:
        assert not await works(wrong)
        await asyncio.sleep(20)
        assert not await works(wrong)
        lease = await right.lock("r", ttl=MAX_TTL, auto_extend=False).acquire()
        assert lease.valid
        ended = now()
        await right.aclose()
        await until_it_works(wrong)
        assert ended + QUARANTINE <= now() <= ended + OVER
        await asyncio.sleep(1.3)
        assert await answers(wrong) == "GGG"
        assert sum("votes again" in text for text in caplog.messages) == 3


@pytest.mark.parametrize("fair", [True, False])
async def test_a_waiter_continues_to_wait_while_its_program_is_refused(
    m: dict[str, FakeMaster], right: Redlock, *, fair: bool
) -> None:
    async with program(of(m, "ade")) as wrong:
        waiter = asyncio.create_task(wrong.lock("r", fair=fair, ttl=1000).acquire())
        await asyncio.sleep(30)
        assert not waiter.done()
        await right.aclose()
        await asyncio.sleep(OVER)
        assert waiter.result().valid
        await waiter.result().release()


# Two programs that begin at the same time.


@pytest.mark.spread(0)
@pytest.mark.parametrize("latency", ["equal", "near", "far", "mixed"])
@pytest.mark.parametrize("apart", [0, 0.0004, 0.001, 0.0016, 0.002, 0.003, 0.005, 0.01])
async def test_of_two_programs_that_begin_together_never_do_both_vote(
    m: dict[str, FakeMaster], apart: float, latency: str
) -> None:
    """Neither finds the other's set when it reads; each has its own majority of the masters."""
    holders: list[Redlock] = []
    both = 0

    async def use(redlock: Redlock) -> None:
        nonlocal both
        while now() < 0.3:
            lease = await redlock.lock("r", wait=0, ttl=1000, on_lost="flag").try_acquire()
            if lease is None:
                await asyncio.sleep(0.001)
                continue
            both += bool(holders)
            holders.append(redlock)
            await asyncio.sleep(0.003)
            holders.remove(redlock)
            await lease.release()
            await asyncio.sleep(0.004)

    async def contend(letters: str, delay: float) -> None:
        await asyncio.sleep(delay)
        while now() < 0.3:
            with contextlib.suppress(QuorumUnavailableError):
                async with program(of(m, letters)) as redlock:
                    await use(redlock)
            await asyncio.sleep(0.005)

    if latency != "equal":
        for name in "abcde":
            near = name in {"near": "ab", "far": "cd", "mixed": "ac"}[latency]
            m[name].latency = 0.0005 if near else 0.006
    await asyncio.gather(contend("abc", 0), contend("abd", apart))
    assert both == 0


async def test_two_programs_that_refuse_each_other_do_not_do_so_for_long(
    m: dict[str, FakeMaster],
) -> None:
    m["a"].latency, m["b"].latency = 0.001, 0.006
    async with (
        program([m["a"], Address(m["b"], "b", 0.01), m["c"]]) as one,
        program([Address(m["a"], "a", 0.01), m["b"], m["d"]]) as other,
    ):
        for _ in range(60):
            await asyncio.sleep(0.1)
            if await works(one) or await works(other):
                break
        assert now() < 6
        assert await works(one) or await works(other)


# One set under several addresses, and restarts of its servers.


@pytest.mark.full
@pytest.mark.parametrize("restarts", [2, 6])
async def test_restarts_that_some_programs_notice_late_make_no_other_set(
    m: dict[str, FakeMaster], restarts: int
) -> None:
    """Some programs use other addresses and connect slowly, and new ones start all the time."""
    names = "abc"
    programs: list[Redlock] = []
    slow: list[Address] = []
    for number in range(6):
        elsewhere = [Address(m[name], f"10.0.0.1:{name}") for name in names]
        slow += elsewhere
        masters = of(m, names) if number % 2 else elsewhere
        programs.append(await program(masters).__aenter__())
    await asyncio.sleep(QUARANTINE + 1)
    for each in slow:
        each.delay = random.uniform(0, 0.9)
    for number in range(restarts):
        m[names[number % 3]].restart()
        for later in range(4):
            await asyncio.sleep(random.uniform(0, QUARANTINE / 2))
            programs.append(await program(of(m, names)).__aenter__())
            for redlock in programs:
                assert not is_refused(redlock), (number, later)
                assert await works(redlock)
        await asyncio.sleep(QUARANTINE)
    for redlock in programs:
        await redlock.aclose()


async def test_a_restart_and_other_addresses_make_no_other_set(
    m: dict[str, FakeMaster], right: Redlock
) -> None:
    """The program with the former addresses has ended, and declares nothing any more."""
    assert await works(right)
    await right.aclose()
    await asyncio.sleep(1)
    m["c"].restart()
    async with program([Address(m[name], f"ip-{name}") for name in "abc"]) as newcomer:
        assert await answers(newcomer) == "GGQ"
        await asyncio.sleep(OVER)
        assert await answers(newcomer) == "GGG"


async def test_a_swap_for_a_server_that_has_just_started_never_gives_it_a_vote(
    m: dict[str, FakeMaster], right: Redlock
) -> None:
    """Both other masters are needed, which no other program can have meanwhile."""
    assert await works(right)
    m["d"].restart()
    async with program(of(m, "abd")) as wrong:
        until = now() + OVER
        while now() < until:
            assert await answers(wrong) == "GGQ"
            assert await answers(right) == "GGG"
            await asyncio.sleep(0.05)


# Masters that forget.


@pytest.mark.spread(1)
@pytest.mark.parametrize("fault", ["restart", "flush"])
@pytest.mark.parametrize("forgetful", ["a", "abcd"])
@pytest.mark.parametrize("second", ["ade", "abd"])
async def test_an_old_set_stays_the_older_one_on_masters_that_have_lost_it(
    m: dict[str, FakeMaster], right: Redlock, forgetful: str, fault: str, second: str
) -> None:
    async with program(of(m, second)) as wrong:
        await asyncio.sleep(QUARANTINE + 3)
        for master in of(m, forgetful):
            getattr(master, fault)()
        for _ in range(20):
            await asyncio.sleep(0.5)
            assert not is_refused(right)
            assert not await works(wrong) or second == "abd"
        assert await answers(right) == "GGG"


async def test_a_newcomer_that_reaches_a_flushed_master_first_is_still_the_second(
    m: dict[str, FakeMaster],
) -> None:
    """It declares its set there before the program with the old set has connected again."""
    a = Address(m["a"], "a")
    async with program([a, m["b"], m["c"]]) as right:
        await asyncio.sleep(QUARANTINE + 3)
        a.delay = 0.1
        m["a"].flush()
        await asyncio.sleep(0.01)
        assert not declared(m["a"])
        async with program([m["a"], Address(m["b"], "b", 0.3), m["d"]]) as wrong:
            assert declared(m["a"])
            for _ in range(150):
                await asyncio.sleep(0.01)
                assert not is_refused(right), "its set is the older one there, too"
            for _ in range(20):
                assert not is_refused(right)
                await asyncio.sleep(0.5)
            assert await answers(wrong) == "GGQ"
            assert await answers(right) == "GGG"


async def test_a_server_that_forgets_its_scripts_is_asked_again(
    m: dict[str, FakeMaster], right: Redlock
) -> None:
    for _ in range(3):
        for master in m.values():
            master.execute([b"SCRIPT", b"FLUSH"])
        await asyncio.sleep(QUARANTINE)
    async with program(of(m, "ade")) as wrong:
        assert not await works(wrong)
    assert await answers(right) == "GGG"


async def test_a_server_that_forgets_its_scripts_when_it_is_reached_votes_at_once(
    m: dict[str, FakeMaster],
) -> None:
    execute, forgotten = m["a"].execute, list[bytes]()

    def forgetting(command: list[bytes], listener: PushReceiver | None = None) -> object:
        reply = execute(command, listener)
        if DECLARE.sha in command and not forgotten:
            forgotten.extend(command)
            execute([b"SCRIPT", b"FLUSH"])
        return reply

    vars(m["a"])["execute"] = forgetting
    async with program(of(m, "abc")) as redlock:
        assert await answers(redlock) == "GGG"
    assert forgotten


async def test_a_refused_program_writes_nothing_on_a_server_without_the_scripts(
    m: dict[str, FakeMaster], right: Redlock
) -> None:
    """It can't read there at first what others wrote, and must not write before it has."""
    assert await answers(right) == "GGG"
    name = Address(m["f"], "c")
    async with program([name, *of(m, "de")]) as wrong:
        assert await answers(wrong) == "GGG"
        m["c"].execute([b"SCRIPT", b"FLUSH"])
        name.leads_to = m["c"]
        m["f"].cut()
        await asyncio.sleep(1)
        assert is_refused(wrong)
        assert declared(m["c"]) == ["abc"]


async def test_only_the_master_that_was_reached_again_is_asked_if_the_set_has_not_changed(
    m: dict[str, FakeMaster], right: Redlock
) -> None:
    assert await works(right)
    before = [ran(master, DECLARE) for master in of(m, "abc")]
    m["a"].cut()
    await asyncio.sleep(0.1)
    asked = [ran(master, DECLARE) for master in of(m, "abc")]
    assert [now - then for now, then in zip(asked, before, strict=True)] == [2, 1, 1], (
        "that the server may be left, and nothing when it is back"
    )


async def test_a_set_is_not_declared_again_before_that_is_due(
    m: dict[str, FakeMaster], right: Redlock
) -> None:
    assert await works(right)
    before, info = ran(m["a"], DECLARE), m["a"].commands.count([b"INFO"])
    for _ in range(3):
        await asyncio.sleep(QUARANTINE * DUE / 4)
        m["a"].set(MARKER.decode(), m["a"].marker or "")
    await asyncio.sleep(0.01)
    assert ran(m["a"], DECLARE) == before
    assert m["a"].commands.count([b"INFO"]) == info + 3, "the master was examined each time"
    await asyncio.sleep(QUARANTINE / 2)
    assert ran(m["a"], DECLARE) > before


async def test_a_master_where_the_set_can_be_read_but_not_declared_has_no_vote(
    m: dict[str, FakeMaster],
) -> None:
    error = "ERR The user executing the script can't access at least one of the keys"
    refuse_lines(m["a"], lambda: error)
    async with program(of(m, "abc")) as redlock:
        vote, *others = await votes(redlock)
    assert [other.answer for other in others] == [Answer.GRANTED] * 2
    assert vote.answer is Answer.ERROR
    assert vote.detail.startswith("the restart guard must run scripts on the key")


@pytest.mark.parametrize("what", ["writes", "all"])
async def test_a_master_that_can_not_save_the_set_has_no_vote_until_it_can(
    m: dict[str, FakeMaster], what: Literal["writes", "all"]
) -> None:
    """Without the line there, a program that comes later would not learn of this one."""
    execute, error = m["a"].execute, "MISCONF Redis is configured to save RDB snapshots, but can't"

    def refusing(command: list[bytes], listener: PushReceiver | None = None) -> object:
        if error and DECLARE.sha in command and (len(command) > 4 or what == "all"):
            return Error(error)
        return execute(command, listener)

    async with program(of(m, "abcde")):
        pass  # the masters are known as members
    await asyncio.sleep(OVER)
    vars(m["a"])["execute"] = refusing
    async with program(of(m, "abc")) as first:
        for _ in range(30):
            vote = (await votes(first))[0]
            assert vote.detail.endswith(f"{UNDECLARED}: {error}")
            assert await answers(first) == "QGG"
            assert declared(m["a"]) == []
            await asyncio.sleep(0.1)
        error = ""
        await asyncio.sleep(1.5)
        assert await answers(first) == "GGG"
        assert declared(m["a"]) == ["abc"]
        async with program(of(m, "ade")) as second:
            assert is_refused(second)
        error = "MISCONF again"
        m["a"].cut()
        await asyncio.sleep(1)
        assert await answers(first) == ("GGG" if what == "writes" else "QGG"), "its line is there"


@pytest.mark.usefixtures("right")
async def test_a_master_that_could_not_save_a_new_server_is_told_of_it_later(
    m: dict[str, FakeMaster],
) -> None:
    error = "OOM command not allowed"

    def know_the_new_server(letters: str) -> list[bool]:
        values = [master._data.find(commands.DECLARED_SETS)[0] for master in of(m, letters)]
        return [m["b"].run_id in str(value) for value in values]

    refuse_lines(m["a"], lambda: error)
    m["b"].restart()
    await asyncio.sleep(QUARANTINE * DUE / 4)
    assert know_the_new_server("ac") == [False, True]
    error = ""
    m["a"].set(MARKER.decode(), m["a"].marker or "")  # so that it is looked at
    await asyncio.sleep(QUARANTINE * DUE / 4)
    assert know_the_new_server("ac") == [True, True]


async def test_the_vote_says_what_a_server_says_that_can_not_save_the_set(
    m: dict[str, FakeMaster],
) -> None:
    """Also if the set could not be written before, because another one was there."""
    error = "OOM command not allowed"
    async with program(of(m, "abc")) as first:
        await asyncio.sleep(QUARANTINE + 3)
        async with program(of(m, "ade")) as second:
            assert is_refused(second)
            refuse_lines(m["a"], lambda: error)
            await first.aclose()
            await asyncio.sleep(5 * QUARANTINE)
            assert not second.statistics().masters[0].votes
            assert second.statistics().masters[0].reason.endswith(f"{UNDECLARED}: {error}")
            error = "MISCONF it can't save"
            await asyncio.sleep(3)
            assert second.statistics().masters[0].reason.endswith(f"{UNDECLARED}: {error}")
            error = ""
            await asyncio.sleep(3)
            assert second.statistics().masters[0].votes


# Programs that are not connected to a majority of their masters, or come to it late.


@pytest.mark.spread(0)
@pytest.mark.parametrize(
    ("wrong", "dead"),
    [
        ("axy", "xy"),  # two of three names are misspelt
        ("abxyz", "xyz"),
        ("aaa", ""),  # three names of one server
        pytest.param("aabbb", "", marks=pytest.mark.full),
    ],
)
async def test_a_program_that_can_get_no_lock_takes_no_vote_from_others(
    m: dict[str, FakeMaster], wrong: str, dead: str
) -> None:
    m |= {name: FakeMaster(name) for name in "xyz"}
    for name in dead:
        m[name].kill()
    masters = [Address(m[name], f"{name}{number}") for number, name in enumerate(wrong)]
    async with program(masters) as hopeless:
        assert not await works(hopeless)
        await asyncio.sleep(2)
        assert NO_MAJORITY in [vote.detail for vote in await votes(hopeless)]
        async with program(of(m, "abc")) as right:
            for _ in range(30):
                assert await answers(right) == "GGG"
                assert declared(m["a"]) == ["abc"]
                await asyncio.sleep(QUARANTINE / 10)
            assert not await works(hopeless)
            for name in dead:
                m[name]._alive = True
            await asyncio.sleep(2)
            assert await answers(right) == "GGG", "it came first"


async def test_a_program_votes_as_soon_as_a_majority_is_connected(m: dict[str, FakeMaster]) -> None:
    m["b"].latency = 0.05
    m["c"].hang()
    begin = now()
    async with program(of(m, "abc")) as redlock:
        await until_they_vote(redlock, 0, 1)
        assert now() - begin < 0.5, "without a second look at a"


async def test_masters_vote_that_came_long_before_a_majority(m: dict[str, FakeMaster]) -> None:
    for name in "cde":
        m[name].kill()
    async with program(of(m, "abcde")) as redlock:
        await asyncio.sleep(3)
        assert await answers(redlock) == "QQUUU"
        assert {vote.detail for vote in (await votes(redlock))[:2]} == {NO_MAJORITY}
        assert declared(m["a"]) == []
        m["c"]._alive = True
        await asyncio.sleep(1.5)
        assert await answers(redlock) == "GGGUU"
        for name in "abc":
            assert declared(m[name]) == ["abcde"]


@pytest.mark.parametrize("empty", ["restarted", "evicted"])
async def test_a_program_that_is_left_with_one_master_keeps_others_from_its_lock(
    m: dict[str, FakeMaster], empty: Literal["restarted", "evicted"]
) -> None:
    """Its lease is valid, and the master has lost its list; who comes later has to read it."""
    masters = [Address(m[name], name) for name in "abc"]
    async with program([m["d"], m["e"]]):
        pass  # they are not new
    await asyncio.sleep(OVER)
    async with program(masters) as right:
        await until_it_works(right)
        lease = await right.lock("r", ttl=MAX_TTL, on_lost="flag").acquire()
        for name, address in zip("bc", masters[1:], strict=True):
            address.delay = math.inf
            m[name].cut()
        if empty == "restarted":
            m["a"].restart()
        else:
            m["a"].cut()
            m["a"].delete(commands.DECLARED_SETS.decode())
        await asyncio.sleep(0.2)
        async with program(of(m, "ade")) as wrong:
            while lease.valid:
                assert not await gets_lock(wrong)
                await asyncio.sleep(0.1)
            assert is_refused(wrong)


async def test_a_name_whose_connection_has_ended_does_not_count(m: dict[str, FakeMaster]) -> None:
    """Three names of one server, which restarts while the first of them waits for a majority."""
    masters = [Address(m["a"], name, delay) for name, delay in [("x", 0), ("y", 0.2), ("z", 0.2)]]
    asyncio.get_running_loop().call_later(0.1, m["a"].restart)
    async with program(masters):
        await asyncio.sleep(3)
        assert declared(m["a"]) == []


@pytest.mark.parametrize("delay", [PATIENCE / 2, PATIENCE + 0.2])
async def test_a_program_gets_its_first_lock_however_late_its_majority_is(
    m: dict[str, FakeMaster], delay: float
) -> None:
    """The first attempt has to wait for the master that was there before the majority."""
    async with program(of(m, "abc")):
        pass  # they are not new
    m["c"].kill()
    begin = now()
    told: list[Event] = []
    masters = [m["a"], Address(m["b"], "b", delay), m["c"]]
    async with program(masters, listener=told.append) as redlock:
        assert await gets_lock(redlock)
        assert now() < begin + delay + 0.1
    assert not any(isinstance(event, MajorityLost) for event in told)


async def test_a_program_that_is_closed_does_not_wait_for_a_majority(
    m: dict[str, FakeMaster],
) -> None:
    for name in "bc":
        m[name].kill()
    async with program(of(m, "abc")):
        await asyncio.sleep(PATIENCE / 5)
        begin = now()
    assert now() - begin < PATIENCE / 5
    await asyncio.sleep(PATIENCE)
    assert declared(m["a"]) == []


async def test_a_server_whose_connection_ended_before_a_majority_is_written_on_the_others(
    m: dict[str, FakeMaster],
) -> None:
    for name in "bc":
        m[name].kill()
    async with program(of(m, "abc"), max_ttl=20 * MAX_TTL) as redlock:
        await asyncio.sleep(PATIENCE / 2)
        m["a"]._alive = False
        m["a"].cut()
        for name in "bc":
            m[name]._alive = True
        await until_it_works(redlock)
        before = ran(m["b"], DECLARE)
        m["a"]._alive = True
        await until_they_vote(redlock, 0)
        assert ran(m["b"], DECLARE) == before + 1


# Masters that are down or hang.


@pytest.mark.full
async def test_a_master_that_comes_up_later_has_no_vote_for_the_second_set(
    m: dict[str, FakeMaster], contest: Contest
) -> None:
    m["d"].kill()
    async with program(of(m, "abc")) as right, program(of(m, "abd")) as wrong:
        contest.enter(right, wrong)
        await asyncio.sleep(QUARANTINE + 2)
        assert await answers(wrong) == "GGU"
        m["d"].restart(uptime=LONG_UP)
        for _ in range(300):
            assert not wrong.statistics().masters[2].votes
            await asyncio.sleep(0.01)
        await contest.stop()
        assert contest.both == 0
        assert await answers(wrong) == "GGQ"
        assert await answers(right) == "GGG"


@pytest.mark.promise("S6")
async def test_a_hung_master_does_not_hold_up_the_vote_of_another_for_long(
    m: dict[str, FakeMaster],
) -> None:
    m["c"].kill()
    async with program(of(m, "abc")) as redlock:
        assert now() < 0.2, "one that is down holds up nobody"
        assert await works(redlock)
        await asyncio.sleep(QUARANTINE)
        m["c"].restart(uptime=LONG_UP)
        m["b"].hang()
        began = now()
        await until_it_works(redlock)
        # A dial of it may have been about to begin, and waits for half a second.
        assert now() < began + 0.5 + PATIENCE + 0.5
        m["b"].resume()


# Other faults.


@pytest.mark.full
async def test_a_mistaken_program_that_retries_for_minutes_hinders_no_other(
    m: dict[str, FakeMaster], right: Redlock
) -> None:
    async with program(of(m, "bde")) as refused, program(of(m, "bcd")) as restricted:
        await asyncio.sleep(120)
        assert not await works(refused)
        assert await answers(restricted) == "GGQ"
        assert declared(m["b"]) == ["abc", "bcd"], "who is refused leaves nothing"
        for _ in range(3):
            async with program(of(m, "abc")) as newcomer:
                assert await answers(newcomer) == await answers(right) == "GGG"


async def test_a_server_that_is_out_of_memory_keeps_its_vote(
    m: dict[str, FakeMaster], right: Redlock
) -> None:
    async with right.lock("r", ttl=1000) as lease:
        m["a"].error = "OOM command not allowed when used memory > 'maxmemory'."
        await asyncio.sleep(3 * QUARANTINE)
        m["a"].error = ""
        assert lease.valid
    assert await answers(right) == "GGG"


async def test_foreign_values_under_the_key_are_ignored(m: dict[str, FakeMaster]) -> None:
    for master in m.values():
        master._data.set(commands.DECLARED_SETS, b"1 1700000000000 99999999 [[]]\nnonsense")
    m["a"].delete(commands.DECLARED_SETS.decode())
    m["a"]._data.zadd(commands.DECLARED_SETS, 1.0, b"x")
    async with program(of(m, "abc")) as right, program(of(m, "ade")) as wrong:
        assert await answers(right) == "GGG"
        assert not await works(wrong)


@pytest.mark.parametrize("when", ["waiting", "answered"])
async def test_opening_and_closing_can_be_cancelled_anywhere(
    m: dict[str, FakeMaster], right: Redlock, when: Literal["waiting", "answered"]
) -> None:
    async def use(letters: str) -> None:
        async with program(of(m, letters)):
            await asyncio.sleep(0.005)

    m["b"].latency = 0.004
    await asyncio.sleep(1)
    for letters in ("abc", "abd"):
        for nth in range(1, 200):
            step = cancelled_at(nth, use(letters), when=when)
            task = asyncio.create_task(in_coroutine(step))
            await asyncio.wait([task])
            if not task.cancelled():
                break
        else:
            pytest.fail("it never runs to its end")
    assert await answers(right) == "GGG"
