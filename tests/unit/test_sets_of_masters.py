"""Programs that name different sets of masters: those in conflict with others are refused."""

import asyncio
import gc
import logging
import random
from typing import Any

import pytest

from redlock_aio import (
    Lease,
    QuorumUnavailableError,
    Redlock,
)
from redlock_aio._protocol import declaration
from redlock_aio._rules import membership, timing
from redlock_aio._transport.declarations import LIVES, PATIENCE
from redlock_aio.testing import FakeMaster, VirtualTimeLoop, cancelled_at

from .kit import answers, in_coroutine, now

pytestmark = [pytest.mark.promise("S1")]

MAX_TTL = 4_000
LASTS = timing.forgetting(MAX_TTL, factor=timing.DRIFT_FACTOR)
OVER = LASTS * LIVES + 1.3
"""Seconds after which a program that was refused votes, when the others have ended."""


class Named:
    """A fake master under an address that is not its usual one."""

    secrets = ()

    def __init__(self, master: FakeMaster, address: str) -> None:
        self._master = master
        self._address = address

    def __str__(self) -> str:
        return self._address

    async def dial(self) -> tuple[asyncio.Transport, object]:
        return await self._master.dial()


Set = list[FakeMaster] | list[Named]


@pytest.fixture
async def m() -> dict[str, FakeMaster]:
    """Masters by their names."""
    return {name: FakeMaster(name) for name in "abcdefg"}


@pytest.fixture(autouse=True)
def everything_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "redlock_aio")


def of(m: dict[str, FakeMaster], letters: str) -> list[FakeMaster]:
    return [m[letter] for letter in letters]


def program(masters: Any, **options: Any) -> Redlock:
    return Redlock(masters, max_ttl=MAX_TTL, **options)


async def works(redlock: Redlock) -> bool:
    """Return whether a lock can be had soon; others may have it for a moment."""
    try:
        async with redlock.lock("works", wait=400, ttl=500):
            return True
    except QuorumUnavailableError:
        return False


def refusal(redlock: Redlock) -> str:
    """Return why no master votes, empty if they do."""
    session = redlock._opener.current
    assert session is not None
    guard = session.links[0]._sentry
    assert guard is not None
    return guard._guard.declarations.refusal


async def until_it_works(redlock: Redlock) -> None:
    for _ in range(1_000):
        if await works(redlock):
            return
        await asyncio.sleep(0.02)
    pytest.fail("it never gets a lock")


def declared(master: FakeMaster, *, known: bool = False) -> list[str]:
    """Return the sets that a master keeps, if wanted only those of which all servers are known."""
    value, _ = master._data.find(declaration.KEY)
    assert value is None or isinstance(value, bytes)
    found = [membership.parse(line.split(b" ", 3)[3]) for line in (value or b"").splitlines()]
    sets = [masters for masters in found if masters is not None]
    return [
        "".join(place.address for place in masters)
        for masters in sets
        if not known or all(place.run_ids for place in masters)
    ]


# Who is refused.


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("abc", "abd"),
        ("abd", "abc"),
        ("abc", "a"),
        ("abc", "abcde"),
        ("abcde", "abc"),
        ("abcde", "abcdf"),
        ("abc", "ade"),
        ("abc", "cde"),
        ("a", "abc"),
    ],
)
async def test_a_set_that_may_have_its_own_majority_is_refused(
    m: dict[str, FakeMaster], first: str, second: str
) -> None:
    async with program(of(m, first)) as right, program(of(m, second)) as wrong:
        await asyncio.sleep(2)
        assert not await works(wrong)
        assert await answers(wrong) == "Q" * len(second)
        assert await answers(right) == "G" * len(first)
        assert not any(second in declared(master) for master in of(m, first))


@pytest.mark.parametrize(
    ("first", "second"),
    [("abc", "ab"), ("ab", "abc"), ("abc", "abcd"), ("abcd", "abc"), ("a", "ab"), ("abc", "defg")],
)
async def test_sets_whose_majorities_meet_and_those_that_share_nothing_are_not(
    m: dict[str, FakeMaster], first: str, second: str
) -> None:
    async with program(of(m, first)) as one, program(of(m, second)) as other:
        for _ in range(5):
            assert await answers(one) == "G" * len(first)
            assert await answers(other) == "G" * len(second)
            await asyncio.sleep(LASTS / 3)


async def test_a_refusal_names_both_sets_and_what_to_do(
    m: dict[str, FakeMaster], caplog: pytest.LogCaptureFixture
) -> None:
    async with program(of(m, "abc")), program(of(m, "abd")) as wrong:
        await asyncio.sleep(0.1)
        with pytest.raises(QuorumUnavailableError) as refused:
            await wrong.lock("r", wait=0).acquire()
        said = (
            "programs with the masters a, b, c use these locks, this one names a, b, d, and has"
            " no vote until 8 s after the last of them ended"
        )
        assert [vote.detail for vote in refused.value.votes] == [said] * 3
        assert refused.value.hint == membership.ADVICE
        assert "key_prefix" in str(refused.value)
        await asyncio.sleep(60)
        assert [text for text in caplog.messages if said in text] == [
            f"{said}; {membership.ADVICE}"
        ], "once, not at each look"


async def test_a_refused_program_votes_when_the_others_leases_are_over(
    m: dict[str, FakeMaster], caplog: pytest.LogCaptureFixture
) -> None:
    right = program(of(m, "abc"))
    async with right, program(of(m, "abd")) as wrong:
        assert not await works(wrong)
        await asyncio.sleep(20)
        assert not await works(wrong)
        lease = await right.lock("r", ttl=MAX_TTL, auto_extend=False).acquire()
        assert lease.valid
        for master in m.values():
            await asyncio.sleep(0)
            assert master.pttl("r") in (-2, MAX_TTL, MAX_TTL - 1)
        ended = now()
        await right.aclose()
        await until_it_works(wrong)
        assert ended + LASTS <= now() <= ended + OVER
        await asyncio.sleep(1.3)
        assert await answers(wrong) == "GGG"
        assert sum("votes again" in text for text in caplog.messages) == 3


async def test_a_fair_waiter_waits_on_while_it_is_refused(m: dict[str, FakeMaster]) -> None:
    right = program(of(m, "abc"))
    async with right, program(of(m, "abd")) as wrong:
        waiting = asyncio.create_task(wrong.lock("r", fair=True, ttl=1000).acquire())
        plain = asyncio.create_task(wrong.lock("q", ttl=1000).acquire())
        await asyncio.sleep(30)
        assert not waiting.done()
        assert not plain.done()
        await right.aclose()
        await asyncio.sleep(OVER)
        for lease in (waiting.result(), plain.result()):
            assert lease.valid
            await lease.release()


@pytest.mark.parametrize("prefixes", [("", "app:"), ("one:", "two:")])
async def test_applications_with_prefixes_of_their_own_share_masters(
    m: dict[str, FakeMaster], prefixes: tuple[str, str]
) -> None:
    one, other = (
        program(of(m, letters), key_prefix=prefix)
        for letters, prefix in zip(("abc", "abd"), prefixes, strict=True)
    )
    async with one, other:
        await asyncio.sleep(LASTS)
        assert await answers(one) == await answers(other) == "GGG"


async def test_without_a_guard_nothing_is_checked_or_written(m: dict[str, FakeMaster]) -> None:
    one, other = (program(of(m, letters), restart_guard="off") for letters in ("abc", "abd"))
    async with one, other:
        assert await answers(one) == await answers(other) == "GGG"
    assert not any(declared(master) for master in m.values())


# Two programs that begin at the same time.


@pytest.mark.parametrize("latency", ["equal", "near", "far", "mixed"])
@pytest.mark.parametrize("apart", [0, 0.0004, 0.001, 0.0016, 0.002, 0.003, 0.005, 0.01])
async def test_of_two_programs_that_begin_together_never_do_both_vote(
    m: dict[str, FakeMaster], apart: float, latency: str
) -> None:
    """Neither finds the other's set when it looks; each has its own majority of the masters."""
    holders: list[str] = []
    both = 0

    async def use(letters: str, delay: float) -> None:
        nonlocal both
        await asyncio.sleep(delay)
        async with program(of(m, letters)) as redlock:
            while now() < 0.3:
                lease = await redlock.lock("r", wait=0, ttl=1000, on_lost="flag").try_acquire()
                if lease is None:
                    await asyncio.sleep(0.001)
                    continue
                both += bool(holders)
                holders.append(letters)
                await asyncio.sleep(0.003)
                holders.remove(letters)
                await lease.release()
                await asyncio.sleep(0.004)

    async def attempts(letters: str, delay: float) -> None:
        while now() < 0.3:
            try:
                await use(letters, delay)
            except QuorumUnavailableError:
                await asyncio.sleep(0.005)
            delay = 0

    if latency != "equal":
        for master, name in zip(m.values(), "abcde", strict=False):
            near = name in {"near": "ab", "far": "cd", "mixed": "ac"}[latency]
            master.latency = 0.0005 if near else 0.006
    await asyncio.gather(attempts("abc", 0), attempts("abd", apart))
    assert both == 0


async def test_two_programs_that_refuse_each_other_do_not_do_so_for_long(
    m: dict[str, FakeMaster],
) -> None:
    m["a"].latency, m["b"].latency = 0.001, 0.006

    class Slow(Named):
        async def dial(self) -> tuple[asyncio.Transport, object]:
            await asyncio.sleep(0.01)
            return await super().dial()

    one = program([m["a"], Slow(m["b"], "b"), m["c"]])
    other = program([Slow(m["a"], "a"), m["b"], m["d"]])
    await asyncio.gather(one.__aenter__(), other.__aenter__())
    for _ in range(60):
        await asyncio.sleep(0.1)
        if await works(one) or await works(other):
            break
    assert now() < 6
    assert await works(one) != await works(other)
    await one.aclose()
    await other.aclose()


# What never looks like another set.


async def test_a_set_may_be_named_by_other_addresses(m: dict[str, FakeMaster]) -> None:
    elsewhere = [Named(master, f"10.0.0.1:{name}") for name, master in m.items()][:5]
    async with program(of(m, "abcde")) as one, program(elsewhere) as other:
        for _ in range(5):
            assert await answers(one) == await answers(other) == "GGGGG"
            await asyncio.sleep(LASTS / 3)


@pytest.mark.parametrize("restarts", [2, pytest.param(6, marks=pytest.mark.full)])
async def test_restarts_and_programs_that_notice_them_late_are_no_other_set(
    m: dict[str, FakeMaster], restarts: int
) -> None:
    """Some programs name the masters otherwise, and new ones start all the time."""
    names = "abc"
    programs: list[Redlock] = []
    slow: list[Any] = []

    class Late(Named):
        """It takes long until it is connected again."""

        delay = 0.0

        async def dial(self) -> tuple[asyncio.Transport, object]:
            await asyncio.sleep(self.delay)
            return await super().dial()

    for number in range(6):
        kind = (lambda a: m[a], lambda a: Late(m[a], f"10.0.0.1:{a}"))[number % 2]
        masters: list[Any] = [kind(name) for name in names]
        slow += [each for each in masters if isinstance(each, Late)]
        programs.append(await program(masters).__aenter__())
    await asyncio.sleep(LASTS + 1)
    for each in slow:
        each.delay = random.uniform(0, 0.9)
    for number in range(restarts):
        m[names[number % 3]].restart()
        for later in range(4):
            await asyncio.sleep(random.uniform(0, LASTS / 2))
            programs.append(await program(of(m, names)).__aenter__())
            for redlock in programs:
                assert not refusal(redlock), (number, later)
                assert await works(redlock)
        await asyncio.sleep(LASTS)
    for redlock in programs:
        await redlock.aclose()


async def test_a_restart_under_another_address_when_nobody_is_left_is_no_other_set(
    m: dict[str, FakeMaster],
) -> None:
    """Who named the masters in another way has crashed, and can't say that they are the same."""
    async with program(of(m, "abc")) as right:
        assert await works(right)
    await asyncio.sleep(1)
    m["c"].restart()
    async with program([Named(m[name], f"ip-{name}") for name in "abc"]) as newcomer:
        assert await answers(newcomer) == "GGQ"
        await asyncio.sleep(OVER)
        assert await answers(newcomer) == "GGG"


async def test_a_swap_for_a_server_that_has_just_started_is_refused_before_that_votes(
    m: dict[str, FakeMaster],
) -> None:
    """Until then both of the others are needed, which no other program can have meanwhile."""
    async with program(of(m, "abc")) as right:
        assert await works(right)
        m["d"].restart()
        async with program(of(m, "abd")) as wrong:
            assert await answers(wrong) == "GGQ"
            until = now() + OVER
            while now() < until:
                assert (await answers(wrong)).count("G") < 3
                assert await works(right) or not refusal(wrong)
                await asyncio.sleep(0.05)
            assert refusal(wrong)
            assert await works(right)


async def test_a_replacement_under_the_old_address_is_no_other_set(
    m: dict[str, FakeMaster],
) -> None:
    async with program(of(m, "abc")) as one:
        await asyncio.sleep(LASTS)
        m["c"].kill()
        instead = Named(FakeMaster("new"), "c")
        async with program([m["a"], m["b"], instead]) as other:
            for _ in range(4):
                assert await works(one)
                assert await works(other)
                await asyncio.sleep(LASTS / 3)


# Masters that forget.


@pytest.mark.parametrize("flushed", ["a", "ab", "abcd"])
@pytest.mark.parametrize("restarted", [True, False])
async def test_an_old_set_stays_the_older_one_on_masters_that_have_forgotten_it(
    m: dict[str, FakeMaster], flushed: str, restarted: bool
) -> None:
    async with program(of(m, "abc")) as right, program(of(m, "abd")) as wrong:
        await asyncio.sleep(LASTS + 3)
        for letter in flushed:
            if restarted:
                m[letter].restart()
            else:
                m[letter].flush()
        for _ in range(20):
            await asyncio.sleep(0.5)
            assert not refusal(right)
            assert not await works(wrong)
        assert await answers(right) == "GGG"


async def test_a_newcomer_that_reaches_a_flushed_master_first_is_refused_all_the_same(
    m: dict[str, FakeMaster],
) -> None:
    """It declares its set there before the program with the old one is connected again."""

    class Later(Named):
        delay = 0.0

        async def dial(self) -> tuple[asyncio.Transport, object]:
            await asyncio.sleep(self.delay)
            return await super().dial()

    a = Later(m["a"], "a")
    async with program([a, m["b"], m["c"]]) as right:
        await asyncio.sleep(LASTS + 3)
        a.delay = 0.1
        m["a"].flush()
        await asyncio.sleep(0.01)
        assert not declared(m["a"])
        slow_b = Later(m["b"], "b")
        slow_b.delay = 0.3
        async with program([m["a"], slow_b, m["d"]]) as wrong:
            assert declared(m["a"])
            for _ in range(150):
                await asyncio.sleep(0.01)
                assert not refusal(right), "its set is the older one there, too"
            for _ in range(20):
                assert not refusal(right)
                assert not await works(wrong)
                await asyncio.sleep(0.5)
            assert await answers(right) == "GGG"


# Masters that are away.


async def test_a_master_that_comes_up_later_makes_the_refusal(m: dict[str, FakeMaster]) -> None:
    """While it is not known which server it is, only the masters in common vote."""
    m["d"].kill()
    async with program(of(m, "abd")) as wrong:
        await asyncio.sleep(LASTS + 2)
        async with program(of(m, "abc")) as right:
            await asyncio.sleep(1)
            assert await answers(wrong) == "GGU"
            assert await answers(right) == "GGG"
            m["d"].restart(uptime=99_999)
            held = await right.lock("r", ttl=1000, on_lost="flag").acquire()
            m["a"].latency = 0.02
            m["b"].latency = 0.03
            for _ in range(600):
                assert await wrong.lock("r", wait=0, ttl=1000).try_acquire() is None
                assert "G" not in (await answers(wrong))[2]
                await asyncio.sleep(0.01)
            assert held.valid
            await held.release()
            assert await answers(wrong) == "QQQ"
            assert await answers(right) == "GGG"


async def test_a_master_that_comes_up_waits_for_what_the_others_say(
    m: dict[str, FakeMaster],
) -> None:
    """They tell of a set that was declared there after they had been looked at."""
    m["d"].kill()
    async with program(of(m, "abd")) as wrong:
        await asyncio.sleep(LASTS / 4 + 0.05)
        async with program(of(m, "abc")):
            m["a"].latency = m["b"].latency = 0.3
            m["d"].restart(uptime=99_999)
            session = wrong._opener.current
            assert session is not None
            for _ in range(1_000):
                assert not session.links[2].votes
                await asyncio.sleep(0.005)
            assert refusal(wrong)


async def test_a_set_that_is_refused_at_first_sight_is_never_declared(
    m: dict[str, FakeMaster],
) -> None:
    """But for what is known of it at first, which is in conflict with nobody."""
    async with program(of(m, "abc")), program(of(m, "ab")):
        await asyncio.sleep(0.1)
        task = asyncio.create_task(asyncio.sleep(4))
        async with program(of(m, "abd")):
            while not task.done():
                for letter in "abd":
                    assert "abd" not in declared(m[letter], known=True)
                await asyncio.sleep(0.0005)


async def test_a_majority_in_common_that_is_unreachable_for_a_while(
    m: dict[str, FakeMaster],
) -> None:
    """Neither can know of the other then; when both reach it, one of them is refused."""
    m["a"].kill()
    async with program(of(m, "abc")) as one, program(of(m, "ade")) as other:
        await asyncio.sleep(1)
        assert await works(one)
        assert await works(other)
        m["a"].restart()
        await asyncio.sleep(LASTS)
        assert await works(one) != await works(other)


async def test_a_hung_master_does_not_hold_up_the_vote_of_another_for_long(
    m: dict[str, FakeMaster],
) -> None:
    m["c"].kill()
    async with program(of(m, "abc")) as redlock:
        await asyncio.sleep(LASTS)
        m["c"].restart(uptime=99_999)
        m["b"].hang()
        began = now()
        await until_it_works(redlock)
        # It may have been about to be dialled, and the dial waits for half a second.
        assert now() < began + 0.5 + PATIENCE + 0.5
        m["b"].resume()


async def test_a_master_that_is_known_to_be_down_holds_up_nobody(m: dict[str, FakeMaster]) -> None:
    m["b"].kill()
    async with program(of(m, "abc")) as redlock:
        assert now() < 0.2
        assert await works(redlock)


# Programs that never end.


async def test_a_mistaken_program_that_tries_again_for_minutes_hinders_nobody(
    m: dict[str, FakeMaster],
) -> None:
    right = program(of(m, "abc"))
    async with right, program(of(m, "bcd")) as wrong:
        await asyncio.sleep(120)
        assert not await works(wrong)
        assert declared(m["b"]) == ["abc"]
        await right.aclose()
        async with program(of(m, "ab")) as step:
            assert await works(step)
            newcomers = [await program(of(m, "abc")).__aenter__() for _ in range(3)]
            for newcomer in newcomers:
                assert await works(newcomer)
                await newcomer.aclose()


async def test_a_program_is_refused_by_one_that_has_crashed_until_its_leases_are_over(
    m: dict[str, FakeMaster],
) -> None:
    crashed = program(of(m, "abc"))
    await crashed.__aenter__()
    await asyncio.sleep(3)
    lease = await crashed.lock("r", ttl=MAX_TTL, auto_extend=False, on_lost="flag").acquire()
    await crashed.aclose()
    for letter in "abc":  # it could not release
        m[letter].set("r", "somebody", MAX_TTL)
    del lease
    ended = now()
    async with program(of(m, "abd")) as next_one:
        await until_it_works(next_one)
        assert ended + MAX_TTL / 1000 < now() < ended + OVER


# What goes wrong on the way.


async def test_a_server_that_forgets_its_scripts_is_asked_again(m: dict[str, FakeMaster]) -> None:
    async with program(of(m, "abc")) as right:
        for _ in range(3):
            for master in m.values():
                master.execute([b"SCRIPT", b"FLUSH"])
            await asyncio.sleep(LASTS)
        async with program(of(m, "abd")) as wrong:
            assert not await works(wrong)
        assert await answers(right) == "GGG"


async def test_a_server_that_is_out_of_memory_goes_on_as_before(m: dict[str, FakeMaster]) -> None:
    async with program(of(m, "abc")) as redlock:
        lease = await redlock.lock("r", ttl=1000, on_lost="flag").acquire()
        m["a"].error = "OOM command not allowed when used memory > 'maxmemory'."
        await asyncio.sleep(3 * LASTS)
        m["a"].error = ""
        assert lease.valid
        await lease.release()
        assert await answers(redlock) == "GGG"


async def test_what_a_stranger_writes_there_is_ignored(m: dict[str, FakeMaster]) -> None:
    for master in m.values():
        master._data.set(declaration.KEY, b"1 1700000000000 99999999 [[]]\nnonsense")
    m["a"].delete(declaration.KEY.decode())
    m["a"]._data.zadd(declaration.KEY, 1.0, b"x")
    async with program(of(m, "abc")) as right, program(of(m, "abd")) as wrong:
        assert await answers(right) == "GGG"
        assert not await works(wrong)


@pytest.mark.parametrize("when", ["waiting", "answered"])
async def test_opening_and_closing_can_be_cancelled_anywhere(
    m: dict[str, FakeMaster], when: Any
) -> None:
    m["b"].latency = 0.004
    async with program(of(m, "abc")) as right:
        await asyncio.sleep(1)
        for letters in ("abc", "abd"):
            for nth in range(1, 200):
                redlock = program(of(m, letters))

                async def use(redlock: Redlock = redlock) -> None:
                    async with redlock:
                        await asyncio.sleep(0.005)

                task = asyncio.create_task(in_coroutine(cancelled_at(nth, use(), when=when)))
                await asyncio.wait([task])
                if not task.cancelled():
                    break
            else:
                pytest.fail("it never runs to its end")
        assert await answers(right) == "GGG"


async def test_a_lease_of_a_program_that_comes_to_be_refused_ends_in_time(
    m: dict[str, FakeMaster],
) -> None:
    """It is lost at its deadline, as in any outage, and its body is cancelled."""
    m["d"].kill()
    async with program(of(m, "abd")) as wrong, program(of(m, "abc")):
        lost: Lease = await wrong.lock("r", ttl=1000, on_lost="flag").acquire()
        await asyncio.sleep(2)
        assert lost.valid
        m["d"].restart(uptime=99_999)
        await asyncio.sleep(2)
        assert not lost.valid


def test_it_ends_with_its_loop() -> None:
    """A manager whose loop was closed declares its set anew in the next one."""
    redlock = None
    for _ in range(2):
        loop = VirtualTimeLoop()
        try:

            async def use() -> None:
                nonlocal redlock
                redlock = redlock or program([FakeMaster("a")])
                async with redlock.lock("r", ttl=500):
                    pass

            loop.run_until_complete(use())
            for task in asyncio.all_tasks(loop):
                task.cancel()
            loop.run_until_complete(asyncio.sleep(1))
        finally:
            loop.close()
        gc.collect()
