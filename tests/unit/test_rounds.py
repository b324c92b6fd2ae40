"""Rounds: the time and order of requests, and the replies for which a round waits."""

import asyncio
import time
from collections.abc import Sequence

import pytest

from redlock_aio import Answer
from redlock_aio._engine.claim import Claim
from redlock_aio._engine.clock import clock_of
from redlock_aio._engine.masters import ACQUIRE, MasterSet, Round
from redlock_aio._protocol import commands, replies, request
from redlock_aio._protocol.primitives import Mutex
from redlock_aio._protocol.request import TIMED_OUT, NoReply, Sender
from redlock_aio._rules.quorum import LOST, OPEN, WON
from redlock_aio._rules.timing import RoundTrips
from redlock_aio.cli.guardian_process import clock as guardian_clock
from redlock_aio.testing import VirtualTimeLoop

CLAIM = Claim(Mutex(b"key"), b"token", 9)
DOWN = NoReply(Answer.UNREACHABLE, "down")


class Link:
    """A master that records its requests."""

    can_free = False
    no_vote = None
    quarantine = ""
    votes = True
    received = 0
    reports = True

    def __init__(self, name: str) -> None:
        self.name = name
        self.down = False
        self.writes: list[bytes] = []
        self.senders: list[Sender] = []
        self.owed: list[tuple[bytes, int]] = []
        self.late = 0

    def send(self, payload: bytes, senders: Sequence[Sender], /) -> NoReply | None:
        if self.down:
            return DOWN
        self.writes.append(payload)
        self.senders.extend(senders)
        return None

    def known_as(self, key: bytes, /) -> bytes:
        return key

    def overdue(self) -> NoReply:
        self.late += 1
        return TIMED_OUT

    def add_debt(self, payload: bytes, ttl: int) -> None:
        self.owed.append((payload, ttl))


@pytest.fixture
async def links() -> list[Link]:
    return [Link(f"m{i}") for i in range(3)]


@pytest.fixture
async def master_set(links: list[Link]) -> MasterSet:
    return MasterSet(links, asyncio.get_running_loop(), trips=RoundTrips(3, 50))


def ask(master_set: MasterSet, payload: bytes, at_most: float | None = None) -> Round:
    round = Round(master_set, payload)
    master_set.send(round, at_most)
    return round


async def test_rounds_of_one_turn_leave_in_one_write(
    master_set: MasterSet, links: list[Link]
) -> None:
    rounds = [ask(master_set, b"a"), ask(master_set, b"b")]
    rounds.append(master_set.release_by(CLAIM, b"c", 9))
    assert links[0].writes == []
    await asyncio.sleep(0)
    assert [link.writes for link in links] == [[b"abc"]] * 3
    assert links[0].senders == rounds
    ask(master_set, b"d")
    await asyncio.sleep(0)
    assert [link.writes for link in links] == [[b"abc", b"d"]] * 3


async def test_a_master_that_is_down_votes_at_once(
    master_set: MasterSet, links: list[Link]
) -> None:
    links[0].down = links[1].down = True
    round = ask(master_set, b"a")
    await asyncio.sleep(0)
    assert round.verdict is LOST
    assert [vote.answer for vote in round.votes()[:2]] == [Answer.UNREACHABLE] * 2


@pytest.mark.parametrize("beside", [False, True])
async def test_a_master_that_does_not_reply_is_counted_as_timed_out(
    master_set: MasterSet, links: list[Link], *, beside: bool
) -> None:
    if beside:  # a request to one master in the same batch
        master_set.send_to(2, request.Request(b"q"))
    round = ask(master_set, b"a")
    await asyncio.sleep(0.049)
    round.on_reply(1, b"OK")
    assert round.verdict is OPEN
    await asyncio.sleep(0.002)
    assert round.verdict is LOST
    assert round.replies == [TIMED_OUT, b"OK", TIMED_OUT]
    assert [link.late for link in links] == [1, 0, 1]
    round.on_reply(0, b"OK")
    assert round.verdict is LOST


async def test_a_decided_round_accepts_replies_until_the_timeout(
    master_set: MasterSet, links: list[Link]
) -> None:
    round = ask(master_set, b"a")
    await asyncio.sleep(0)
    round.on_reply(0, b"OK")
    round.on_reply(1, b"OK")
    assert round.verdict is WON
    await asyncio.sleep(0.1)
    assert round.complete
    assert links[2].late == 1


async def test_a_round_may_have_a_shorter_timeout(master_set: MasterSet) -> None:
    short, usual = ask(master_set, b"a", at_most=10), ask(master_set, b"b", at_most=70)
    await asyncio.sleep(0.011)
    assert (short.verdict, usual.verdict) == (LOST, OPEN)
    await asyncio.sleep(0.04)
    assert usual.verdict is LOST


async def test_beyond_the_bound_only_releases_are_sent(
    master_set: MasterSet, links: list[Link], monkeypatch: pytest.MonkeyPatch
) -> None:
    def send(_payload: bytes, senders: Sequence[Sender], /) -> NoReply | None:
        if len(senders) > 1 or (len(links[0].senders) >= 2 and not senders[0].debt_ttl):
            return request.OVERRUN
        links[0].senders.extend(senders)
        return None

    monkeypatch.setattr(links[0], "send", send)
    rounds = [ask(master_set, b"a"), ask(master_set, b"b"), ask(master_set, b"c")]
    release = master_set.release_by(CLAIM, b"r", 9)
    await asyncio.sleep(0)
    assert links[0].senders == [rounds[0], rounds[1], release]
    assert rounds[2].replies[0] is request.OVERRUN
    assert not links[0].owed
    assert links[1].senders == [*rounds, release]


@pytest.mark.promise("S3")
async def test_only_a_release_that_may_be_needed_is_repeated_on_a_master(
    master_set: MasterSet, links: list[Link]
) -> None:
    """A repeated request for a lock would set a key that nobody releases."""
    claim = Claim(Mutex(b"key"), b"token", 9)
    asked = Round(master_set, b"set", ACQUIRE, claim)
    asked.not_sent(0, DOWN)
    release = master_set.release_by(claim, b"release", 9)
    for master in (1, 2):
        asked.on_reply(master, DOWN)
    for master in range(3):
        release.on_reply(master, DOWN)
    assert [link.owed for link in links] == [[], [(b"release", 9)], [(b"release", 9)]]


@pytest.mark.promise("S3")
@pytest.mark.parametrize("why", [DOWN, request.OVERRUN])
async def test_a_release_that_is_not_sent_is_repeated_on_a_master(
    master_set: MasterSet, links: list[Link], why: NoReply
) -> None:
    release = master_set.release_by(Claim(Mutex(b"key"), b"token", 9), b"release", 9)
    release.not_sent(0, why)
    assert links[0].owed == [(b"release", 9)]


@pytest.mark.promise("S3")
async def test_a_command_that_one_master_lacks_is_not_used_until_it_is_known_there(
    master_set: MasterSet, links: list[Link]
) -> None:
    for link in links:
        link.can_free = True
    master_set.on_push(replies.EVERYTHING_CHANGED)
    instead = master_set.take_back(CLAIM, 9).instead(1)
    assert instead is not None
    assert instead.payload == CLAIM.release()
    assert master_set.take_back(CLAIM, 9).payload == CLAIM.release()
    master_set.on_push(replies.EVERYTHING_CHANGED)
    assert master_set.take_back(CLAIM, 9).payload == CLAIM.release()
    links[1].can_free = True
    master_set.on_push(replies.EVERYTHING_CHANGED)
    assert master_set.take_back(CLAIM, 9).payload == commands.free(b"key", b"token")


async def test_closing_sends_the_rounds_of_this_turn(
    master_set: MasterSet, links: list[Link]
) -> None:
    ask(master_set, b"a")
    master_set.close()
    assert links[0].writes == [b"a"]
    assert master_set.closed
    await asyncio.sleep(0)
    assert links[0].writes == [b"a"]
    assert repr(master_set) == "<MasterSet of 3, 0 rounds underway>"


async def test_leases_live_by_the_clock_of_a_loop_that_has_one() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop.suspend(5)
    assert clock_of(loop)() == loop.time() + 5


def test_leases_live_by_the_clock_of_the_machine_otherwise() -> None:
    clock = clock_of(object())  # type: ignore[arg-type]
    first = clock()
    assert clock() >= first


@pytest.mark.parametrize(
    ("system", "clock"),
    [
        ("linux", "CLOCK_BOOTTIME"),
        ("freebsd13", "CLOCK_BOOTTIME"),
        ("darwin", "CLOCK_MONOTONIC_RAW"),
    ],
)
def test_the_clock_of_leases_and_of_guardians_counts_a_suspension(
    monkeypatch: pytest.MonkeyPatch, system: str, clock: str
) -> None:
    """On macOS `time.monotonic` does not count it, and there is no CLOCK_BOOTTIME."""
    monkeypatch.setattr("sys.platform", system)
    monkeypatch.setattr(time, "clock_gettime", lambda number: number)
    assert clock_of(object())() == guardian_clock() == getattr(time, clock)  # type: ignore[arg-type]
    monkeypatch.delattr(time, clock)
    assert clock_of(object()) is time.monotonic  # type: ignore[arg-type]


def test_the_clock_of_leases_does_not_stand_still_on_windows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`time.monotonic` does before Python 3.13, for longer than the drift of a second."""
    monkeypatch.setattr("sys.platform", "win32")
    assert clock_of(object()) is time.perf_counter  # type: ignore[arg-type]


async def test_a_malformed_reply_is_a_vote(master_set: MasterSet) -> None:
    round = Round(master_set, b"")
    round.on_reply(0, [b"?"])
    assert str(round.votes()[0]) == "m0: error, a malformed reply: a list"
    assert round.votes()[0].answer is Answer.ERROR
