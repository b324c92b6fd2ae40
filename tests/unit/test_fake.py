"""The fake master in virtual time: how its pushes travel, and when it has none."""

import asyncio

import hiredis
import pytest

from redlock_aio._protocol import commands, scripts
from redlock_aio._protocol.commands import CACHING, TRACKING
from redlock_aio._protocol.scripts import pack
from redlock_aio.testing import FakeMaster

LATENCY = 0.5


def get(key: bytes) -> bytes:
    """Return the command that reads a key."""
    return pack(b"GET", key)


LOOK = CACHING + get(b"k")
GONE = [b"invalidate", [b"k"]]
DESK = commands.CHANNEL + b"me"


class Ear(asyncio.Protocol):
    """One connection, which notes what comes in and when."""

    def __init__(self) -> None:
        self.pushes: list[tuple[float, object]] = []
        self.replies: list[object] = []
        self.order: list[object] = []
        self._reader = hiredis.Reader()

    async def dial(self, master: FakeMaster) -> asyncio.Transport:
        self.transport, _ = await master.dial()
        self.transport.set_protocol(self)
        return self.transport

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (said := self._reader.gets()) is not False:
            if isinstance(said, hiredis.PushNotification):
                self.pushes.append((asyncio.get_running_loop().time(), list(said)))
            else:
                self.replies.append(said)
            self.order.append(said)

    @property
    def heard(self) -> list[object]:
        return [push for _, push in self.pushes]


@pytest.fixture
async def master() -> FakeMaster:
    return FakeMaster(latency=LATENCY)


@pytest.fixture
async def ear(master: FakeMaster) -> Ear:
    """A connection that tracks, on which all is said that has been said so far."""
    ear = Ear()
    (await ear.dial(master)).write(TRACKING)
    await asyncio.sleep(LATENCY)
    return ear


def time() -> float:
    return asyncio.get_running_loop().time()


def timers() -> int:
    """Count what is still to come."""
    scheduled: list[asyncio.TimerHandle] = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
    return sum(not timer.cancelled() for timer in scheduled)


async def look(ear: Ear) -> None:
    ear.transport.write(LOOK)
    await asyncio.sleep(LATENCY)


async def test_a_push_is_half_a_latency_underway(master: FakeMaster, ear: Ear) -> None:
    await look(ear)
    changed = time()
    master.set("k", "v")
    await asyncio.sleep(LATENCY)
    assert ear.pushes == [(changed + LATENCY / 2, GONE)]


async def test_a_push_comes_before_the_reply_to_what_is_executed_later(
    master: FakeMaster, ear: Ear
) -> None:
    await look(ear)
    ear.order.clear()
    ear.transport.write(commands.PING)
    await asyncio.sleep(LATENCY / 4)
    master.set("k", "v")  # it arrives a quarter later
    ear.transport.write(get(b"k"))
    await asyncio.sleep(LATENCY)
    assert ear.order == [GONE, b"PONG", b"v"]


async def test_what_my_own_command_has_published_comes_behind_its_reply(ear: Ear) -> None:
    ear.order.clear()
    ear.transport.write(
        commands.subscription(b"me", begins=True) + pack(b"PUBLISH", DESK, b"x") + commands.PING
    )
    await asyncio.sleep(LATENCY)
    assert ear.order == [[b"subscribe", DESK, 1], 1, [b"message", DESK, b"x"], b"PONG"]


async def test_a_master_that_hangs_says_nothing_until_it_is_resumed(
    master: FakeMaster, ear: Ear
) -> None:
    await look(ear)
    master.hang()
    master.set("k", "v")
    await asyncio.sleep(10)
    assert not ear.heard
    resumed = time()
    master.resume()
    await asyncio.sleep(LATENCY)
    assert ear.pushes == [(resumed + LATENCY / 2, GONE)]


async def test_a_key_that_ends_while_the_master_hangs_is_told_of_when_it_is_resumed(
    master: FakeMaster, ear: Ear
) -> None:
    master.set("k", "v", 1000)
    await look(ear)
    master.hang()
    await asyncio.sleep(10)
    assert not ear.heard
    master.resume()
    await asyncio.sleep(LATENCY)
    assert ear.heard == [GONE]


async def test_a_master_that_hangs_notices_nothing(master: FakeMaster, ear: Ear) -> None:
    """So the first to access the key notices that it has ended, and needs not be told."""
    master.set("k", "v", 1000)
    await look(ear)
    master.hang()
    ear.transport.write(LOOK)
    await asyncio.sleep(10)
    master.resume()
    await asyncio.sleep(LATENCY)
    assert ear.replies[-1] is None
    assert not ear.heard


async def test_a_key_that_lives_on_is_still_watched_when_the_master_is_resumed(
    master: FakeMaster, ear: Ear
) -> None:
    master.set("k", "v", 5000)
    await look(ear)
    master.hang()
    master.resume()
    await asyncio.sleep(4)
    assert not ear.heard
    await asyncio.sleep(1 + LATENCY)
    assert ear.heard == [GONE]


async def test_the_end_of_a_key_is_noticed_a_tenth_of_a_second_later(
    master: FakeMaster, ear: Ear
) -> None:
    ends = time() + 3
    master.set("k", "v", 3000)
    await look(ear)
    await asyncio.sleep(4)
    [(heard_at, push)] = ear.pushes
    assert push == GONE
    assert heard_at == pytest.approx(ends + 0.1 + LATENCY / 2)


async def test_the_end_of_a_key_is_noticed_by_whoever_accesses_it(
    master: FakeMaster, ear: Ear
) -> None:
    master.set("k", "v", 3000)
    await look(ear)
    await asyncio.sleep(2.55)
    accessed = time()
    master.execute([b"GET", b"k"])
    await asyncio.sleep(LATENCY)
    assert ear.pushes == [(accessed + LATENCY / 2, GONE)]


async def test_an_end_that_has_been_put_off_is_told_of_when_it_comes(
    master: FakeMaster, ear: Ear
) -> None:
    master.set("k", "v", 3000)
    await look(ear)
    master._keys[b"k"] = (b"v", time() + 60)
    await asyncio.sleep(59)
    assert not ear.heard
    await asyncio.sleep(2)
    assert ear.heard == [GONE]


async def test_no_timer_is_set_for_what_nobody_wants_to_know(master: FakeMaster, ear: Ear) -> None:
    await asyncio.sleep(1)
    before = timers()
    master.set("k", "v", 60_000)
    master.set("endless", "v")
    ear.transport.write(get(b"k") + CACHING + get(b"endless"))
    await asyncio.sleep(LATENCY)
    assert timers() == before
    for _ in range(3):
        await look(ear)
    assert timers() == before + 1
    master.delete("k")
    await asyncio.sleep(LATENCY)
    assert timers() == before


@pytest.mark.parametrize("how", ["close", "cut", "kill"])
async def test_all_is_forgotten_of_a_connection_that_has_ended(
    master: FakeMaster, ear: Ear, how: str
) -> None:
    before = timers()
    master.set("k", "v", 60_000)
    ear.transport.write(commands.subscription(b"me", begins=True))
    await look(ear)
    ear.heard.clear()
    if how == "close":
        ear.transport.write(
            TRACKING + LOOK + commands.subscription(b"me", begins=True)
        )  # is executed yet
        ear.transport.close()
    else:
        getattr(master, how)()
    await asyncio.sleep(LATENCY)
    assert timers() == before
    assert master.execute([b"PUBLISH", DESK, b"x"]) == 0
    assert not master._pushes.remembered
    master.delete("k")
    master.flush()
    assert timers() == before, "nothing is underway to it"
    await asyncio.sleep(LATENCY)
    assert ear.heard == [[b"subscribe", DESK, 1]]


async def test_a_new_connection_tracks_nothing(master: FakeMaster, ear: Ear) -> None:
    ear.transport.close()
    new = Ear()
    await new.dial(master)
    await look(new)
    master.set("k", "v")
    await asyncio.sleep(LATENCY)
    assert "CACHING" in str(new.replies[0])
    assert not new.heard


async def test_all_who_track_hear_that_all_keys_are_gone(master: FakeMaster, ear: Ear) -> None:
    other = Ear()
    await other.dial(master)
    master.set("k", "v")
    await look(ear)
    master.flush()
    master.set("k", "w")
    await asyncio.sleep(LATENCY)
    assert ear.heard == [[b"invalidate", None]]
    assert not other.heard
    assert master.keys == {"k": "w"}


@pytest.mark.parametrize("command", ["CLIENT TRACKING ON OPTIN NOLOOP", "SUBSCRIBE x", "GET k"])
async def test_what_is_forbidden_is_refused(master: FakeMaster, ear: Ear, command: str) -> None:
    words = command.encode().split()
    master.forbid = {command.split(maxsplit=1)[0]}
    ear.replies.clear()
    ear.transport.write(pack(*words) + commands.PING)
    await asyncio.sleep(LATENCY)
    assert str(ear.replies[0]).startswith("NOPERM ")
    assert ear.replies[1:] == [b"PONG"]
    master.forbid.clear()
    assert "NOPERM" not in str(master.execute(words))


async def test_the_clock_can_be_set_and_no_key_ends_earlier(master: FakeMaster) -> None:
    def clock() -> float:
        answer = master.execute([b"TIME"])
        assert isinstance(answer, list)
        seconds, us = answer
        assert len(us) <= 6
        return int(seconds) + int(us) / 1_000_000

    began = clock()
    await asyncio.sleep(1.25)
    assert clock() - began == pytest.approx(1.25, abs=1e-5)
    master.set("k", "v", 1000)
    master.clock_offset = -3600
    assert clock() - began == pytest.approx(1.25 - 3600, abs=1e-5)
    assert master.pttl("k") == 1000


async def test_the_queues_are_not_among_the_keys(master: FakeMaster) -> None:
    master.execute([b"SCRIPT", b"LOAD", scripts.ENQUEUE.text])
    keys = (b"k", *commands.queue_keys(b"k"))
    request = commands.enqueue(
        keys,
        b"t",
        1000,
        commands.QueueEntry(member=b"me/1", priority=1, lives=500, most=3, not_after=2**52),
    )
    reader = hiredis.Reader()
    reader.feed(request)
    granted = master.execute(reader.gets())
    assert isinstance(granted, list)
    assert granted[:2] == [0, 1000]
    assert master.keys == {"k": "t"}
