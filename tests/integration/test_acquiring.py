"""Who gets a lock, and what is on the masters then."""

import asyncio
import itertools

import pytest

from redlock_aio import (
    Answer,
    LockNotAcquiredError,
    QuorumUnavailableError,
    Redlock,
    Retry,
)

from .helpers import (
    RealMaster,
    Stopwatch,
    call,
    connected,
    gone,
    pttls,
    put,
    until,
    urls,
    values,
)

pytestmark = pytest.mark.integration

QUICK = Retry(min_delay=5, max_delay=5, attempts=3)


async def test_one_token_is_on_all_masters_until_the_release(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    """1: with about the ttl to live; the release removes all of them."""
    async with redlock.lock("r", ttl=10_000) as lease:
        await until(lambda: values(masters, "r") == [lease.token] * 5)
        assert all(8_000 < left <= 10_000 for left in pttls(masters, "r"))
        assert lease.resources == ("r",)
    await until(lambda: gone(masters, "r"))


@pytest.mark.promise("S1")
@pytest.mark.parametrize("ttl", [None, 60_000])
async def test_a_minority_of_foreign_values_hinders_nobody_and_stays(
    redlock: Redlock, masters: list[RealMaster], ttl: int | None
) -> None:
    """2: its value and its ttl, even without an end, are left alone by all we do."""
    put(masters[:2], "r", ttl)
    async with redlock.lock("r", ttl=5_000) as lease:
        await lease.extend()
        await until(lambda: all(vote.answer is not Answer.TIMED_OUT for vote in lease.votes))
        assert [vote.answer for vote in lease.votes] == [Answer.HELD] * 2 + [Answer.GRANTED] * 3
    await until(lambda: gone(masters[2:], "r"))
    assert values(masters[:2], "r") == ["somebody else"] * 2
    assert all(left == -1 if ttl is None else left > 30_000 for left in pttls(masters[:2], "r"))


async def test_a_majority_of_foreign_values_is_reported_as_held(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    """3: attempts are counted, every vote is named, and nothing of ours stays."""
    put(masters[1:4], "r")
    with pytest.raises(LockNotAcquiredError) as caught:
        await redlock.lock("r", retry=QUICK).acquire()
    error = caught.value
    assert not isinstance(error, QuorumUnavailableError)
    assert error.attempts == 3
    assert [vote.answer for vote in error.votes[1:4]] == [Answer.HELD] * 3
    assert all(url.split("//")[1] in str(error) for url in urls(masters))
    await until(lambda: values(masters, "r") == [None, *["somebody else"] * 3, None])


async def test_every_mix_of_taken_masters_is_judged_by_the_majority(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    """4: with three free masters of five or more it is acquired, never with two."""
    for number, taken in enumerate(itertools.product([False, True], repeat=5)):
        name = f"r{number}"
        theirs = [master for master, is_taken in zip(masters, taken, strict=True) if is_taken]
        put(theirs, name)
        lease = await redlock.lock(name).try_acquire()
        assert (lease is not None) == (sum(taken) <= 2), taken
        if lease is not None:
            await lease.release()
        want = ["somebody else" if is_taken else None for is_taken in taken]
        await until(lambda name=name, want=want: values(masters, name) == want)  # type: ignore[misc]


async def test_dead_masters_are_told_from_held_locks(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    """5: all attempts fail, and the error names for each master why it was not reached."""
    for master in masters:
        master.kill()
    with pytest.raises(QuorumUnavailableError) as caught:
        await redlock.lock("r", retry=QUICK).acquire()
    assert caught.value.attempts == 3
    assert [vote.answer for vote in caught.value.votes] == [Answer.UNREACHABLE] * 5
    assert all(vote.detail for vote in caught.value.votes)


@pytest.mark.parametrize(
    "states",
    list(itertools.combinations_with_replacement(["free", "held", "refusing", "dead"], 3)),
    ids="-".join,
)
async def test_three_masters_in_every_mix_of_states(
    masters: list[RealMaster], states: tuple[str, ...]
) -> None:
    """6: only two that are free make a lock; the error's class tells held from unknown."""
    three = masters[:3]
    async with connected(three) as redlock:
        for master, state in zip(three, states, strict=True):
            if state == "held":
                put([master], "r")
            elif state == "refusing":
                call(master, "CONFIG", "SET", "maxmemory", "1")
            elif state == "dead":
                master.kill()
        try:
            lock = redlock.lock("r", wait=0)
            if states.count("free") >= 2:
                await (await lock.acquire()).release()
                return
            errors: list[LockNotAcquiredError] = []

            async def all_have_answered() -> bool:
                with pytest.raises(LockNotAcquiredError) as caught:
                    await lock.acquire()
                errors.append(caught.value)
                # Two that can't grant it decide the round: the third is not waited for.
                late = "not answered when the round was decided"
                return all(vote.detail != late for vote in caught.value.votes)

            await until(all_have_answered, within=20)
        finally:
            for master, state in zip(three, states, strict=True):
                if state == "refusing":
                    call(master, "CONFIG", "SET", "maxmemory", "0")
    answered = states.count("free") + states.count("held")
    assert isinstance(errors[-1], QuorumUnavailableError) == (answered < 2)
    said = {"held": Answer.HELD, "refusing": Answer.ERROR, "dead": Answer.UNREACHABLE}
    for state, vote in zip(states, errors[-1].votes, strict=True):
        assert vote.answer is said.get(state, Answer.GRANTED)


async def test_one_vote_for_and_one_against_of_two_settle_at_once(
    masters: list[RealMaster],
) -> None:
    """7, N1: half is no majority, and nobody waits for a third opinion."""
    put(masters[1:2], "r")
    async with connected(masters[:2], master_timeout=10_000) as redlock:
        watch = Stopwatch()
        with pytest.raises(LockNotAcquiredError):
            await redlock.lock("r", wait=0).acquire()
        assert watch.ms < 5_000
        await until(lambda: values(masters[:2], "r") == [None, "somebody else"])


async def test_a_dead_half_of_two_is_an_error_and_no_hang(masters: list[RealMaster]) -> None:
    """7: as it is for a half that refuses."""
    async with connected(masters[:2], master_timeout=10_000) as redlock:
        masters[0].kill()
        await until(lambda: redlock.statistics().masters[0].up is False)
        with pytest.raises(QuorumUnavailableError):
            await redlock.lock("r", wait=0).acquire()
        await until(lambda: gone(masters[1:2], "r"))


@pytest.mark.promise("S1")
@pytest.mark.parametrize("half", [1, 2])
async def test_half_of_an_even_number_is_no_majority(masters: list[RealMaster], half: int) -> None:
    """4, 7: though all who answered have granted it, the others could grant it to somebody else."""
    even = masters[: 2 * half]
    async with connected(even, master_timeout=200) as redlock:
        for master in even[:half]:
            master.pause()
        with pytest.raises(QuorumUnavailableError):
            await redlock.lock("r", ttl=60_000, wait=0).acquire()
        for master in even[:half]:
            master.resume()
        await until(lambda: gone(even, "r"))


async def test_an_acquisition_that_came_too_late_for_its_ttl_fails(
    masters: list[RealMaster],
) -> None:
    """10, N3: a majority that answers after the ttl has granted nothing, and is cleaned."""
    async with connected(masters, master_timeout=5_000) as redlock:
        for master in masters[:3]:
            master.pause()
        waiting = asyncio.create_task(redlock.lock("r", ttl=300, wait=0).acquire())
        watch = Stopwatch()
        await until(lambda: watch.ms > 600)
        for master in masters[:3]:
            master.resume()
        with pytest.raises(LockNotAcquiredError, match="too late"):
            await waiting
        await until(lambda: gone(masters, "r"))


@pytest.mark.promise("S3")
async def test_what_a_failed_attempt_took_is_free_at_once(
    redlock: Redlock, other: Redlock, masters: list[RealMaster]
) -> None:
    """11: another gets a lock whose attempt has just failed, with the first attempt."""
    put(masters[:3], "r")
    assert await redlock.lock("r", ttl=60_000).try_acquire() is None
    for master in masters[:3]:
        call(master, "DEL", "r")
    lease = None
    watch = Stopwatch()
    while lease is None and watch.ms < 2_000:
        lease = await other.lock("r").try_acquire()
    assert lease is not None
    await lease.release()


@pytest.mark.parametrize("ttl", [0, -1, 2, True, 1.5, 10**30])
async def test_a_ttl_that_no_master_can_have_is_refused(
    redlock: Redlock, masters: list[RealMaster], ttl: int
) -> None:
    """18: before anything is sent."""
    with pytest.raises((TypeError, ValueError), match="ttl"):
        await redlock.lock("r", ttl=ttl, wait=0).acquire()
    assert gone(masters, "r")


async def test_no_masters_and_a_master_named_twice_are_refused(masters: list[RealMaster]) -> None:
    """19: when the manager is made."""
    with pytest.raises(ValueError, match="at least one"):
        Redlock([])
    with pytest.raises(ValueError, match="twice"):
        Redlock([*urls(masters), masters[0].url])


async def test_locks_on_two_resources_know_nothing_of_each_other(redlock: Redlock) -> None:
    """20: they are held at the same time."""
    async with redlock.lock("a") as first, redlock.lock("b", wait=0) as second:
        assert first.valid
        assert second.valid
        assert first.token != second.token


async def test_a_prefix_keeps_names_apart(masters: list[RealMaster]) -> None:
    """21: the key is the prefix and the name, and another prefix is another lock."""
    async with (
        connected(masters, key_prefix="one:") as first,
        connected(masters, key_prefix="two:") as second,
        first.lock("r", wait=0),
        second.lock("r", wait=0),
    ):
        await until(lambda: all(values(masters, "one:r")) and all(values(masters, "two:r")))
        assert gone(masters, "r")


@pytest.mark.promise("S1")
async def test_ten_contenders_with_one_attempt_have_at_most_one_winner(
    masters: list[RealMaster],
) -> None:
    """14: of managers of their own; and in the end somebody gets it."""
    async with connected(masters) as a, connected(masters) as b, connected(masters) as c:
        won = 0
        for number in range(20):
            tries = [m.lock(f"r{number}").try_acquire() for m in (a, b, c) for _ in range(3)]
            leases = [lease for lease in await asyncio.gather(*tries) if lease is not None]
            assert len(leases) <= 1
            for lease in leases:
                won += 1
                await lease.release()
        assert won > 0


@pytest.mark.promise("S1")
async def test_many_who_race_for_a_majority_are_never_two_at_a_time(
    masters: list[RealMaster],
) -> None:
    """15: over many rounds, and all of them get through."""
    inside = 0
    async with connected(masters) as a, connected(masters) as b, connected(masters) as c:

        async def racer(manager: Redlock) -> None:
            nonlocal inside
            for _ in range(8):
                async with manager.lock("r"):
                    inside += 1
                    assert inside == 1
                    await asyncio.sleep(0)
                    inside -= 1

        await asyncio.gather(*(racer(manager) for manager in (a, b, c) for _ in range(2)))
    await until(lambda: gone(masters, "r"))


async def test_the_validity_is_never_longer_than_any_key_lives(
    redlock: Redlock, masters: list[RealMaster]
) -> None:
    """64, P4: not even than the key that was set first."""
    async with redlock.lock("r", ttl=2_000, auto_extend=False) as lease:
        await until(lambda: all(values(masters, "r")))
        before = lease.remaining
        assert lease.validity <= 2_000 * 0.99 - 2
        # Read before the keys are, the lease may say more by the time that passed since.
        after = pttls(masters, "r")
        assert lease.remaining < min(after)
        assert before <= lease.validity
