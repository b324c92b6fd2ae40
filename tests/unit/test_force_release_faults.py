"""Forced releases while masters or links fail: there are never two holders."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import pytest

from redlock_aio import LockLostError, NoVoteCause, QuorumUnavailableError, Redlock, Retry
from redlock_aio._protocol.request import Sender
from redlock_aio._transport.connection import Connection
from redlock_aio._transport.master import Master
from redlock_aio._transport.route import Route
from redlock_aio.testing import FakeMaster

from . import kit
from .kit import delete, hang, kill, now, occupy, resume, values
from .links import FarLink

TRANSIT = 0.0012
"""Seconds after which the first round has replies, and the next one is underway."""


@pytest.fixture
async def forcer(masters: list[FakeMaster]) -> AsyncIterator[Redlock]:
    async with Redlock(masters, restart_guard="off", name="forcer") as redlock:
        yield redlock


@pytest.fixture
async def rival(masters: list[FakeMaster]) -> AsyncIterator[Redlock]:
    async with Redlock(masters, restart_guard="off", name="rival") as redlock:
        yield redlock


class CutLink:
    """A link to a master that can't connect, or only from *back_at* on."""

    secrets = ()

    def __init__(self, link: Master, back_at: float = 1e9) -> None:
        self._dial = link._route.dial
        self._back_at = back_at

    def __str__(self) -> str:
        return "nowhere"

    async def dial(self) -> tuple[asyncio.Transport, object]:
        await asyncio.sleep(max(self._back_at - now(), 0))
        return await self._dial()


def cut_off(redlock: Redlock, *numbers: int, back_at: float = 1e9) -> None:
    """Disconnect a manager from these masters until *back_at*."""
    for number in numbers:
        link = kit.session(redlock).links[number]
        connection = link._connection
        assert connection is not None
        link._route = Route(CutLink(link, back_at), "")
        connection.condemn(NoVoteCause.CLOSED, "the test has cut it off")


def drop_requests(redlock: Redlock, masters: list[FakeMaster], *numbers: int) -> None:
    """Drop the requests that a manager has just sent to these masters."""
    for number in numbers:
        connection = kit.session(redlock).links[number]._connection
        assert connection is not None
        inbox = masters[number]._inbox[asyncio.get_running_loop()]
        for sent in [sent for sent in inbox if sent[1] is connection._transport]:
            inbox.remove(sent)


def delay_requests(link: Master, seconds: float) -> None:
    """Make each request to a master arrive *seconds* later."""
    connection = link._connection
    assert connection is not None
    real = connection.send

    def send(payload: bytes, senders: Sequence[Sender]) -> None:
        asyncio.get_running_loop().call_later(seconds, real, payload, list(senders))

    link.send = send


class LateReplies:
    """Delivers the replies of a master *delay* seconds later."""

    def __init__(self, link: Master) -> None:
        connection = link._connection
        assert connection is not None
        assert connection._transport is not None
        self._real: Connection = connection
        self.delay = 0.0
        setattr(connection._transport, "_protocol", self)  # noqa: B010 - it is no protocol

    def data_received(self, data: bytes) -> None:
        asyncio.get_running_loop().call_later(self.delay, self._real.data_received, data)

    def connection_lost(self, error: Exception | None) -> None:
        self._real.connection_lost(error)


class Holders:
    """The holders of the lock; checks that there is at most one at a time."""

    def __init__(self) -> None:
        self.inside: list[str] = []
        self.most = 0
        self._tasks: list[asyncio.Task[None]] = []

    def send(self, redlock: Redlock, name: str, **options: object) -> None:
        """Start a task that holds the lock until it is lost."""
        self._tasks.append(asyncio.create_task(self._stay(redlock, name, options)))

    async def _stay(self, redlock: Redlock, name: str, options: dict[str, object]) -> None:
        with contextlib.suppress(LockLostError):
            async with redlock.lock("r", **options):  # type: ignore[arg-type]
                self.inside.append(name)
                self.most = max(self.most, len(self.inside))
                try:
                    await asyncio.sleep(30)
                finally:
                    self.inside.remove(name)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)


@pytest.fixture
async def holders() -> AsyncIterator[Holders]:
    holders = Holders()
    yield holders
    await holders.close()
    assert holders.most == 1, "two at once"


@pytest.mark.promise("S1")
async def test_one_master_that_granted_the_lock_is_enough_to_notify_the_holder(
    redlock: Redlock, forcer: Redlock, rival: Redlock, holders: Holders
) -> None:
    """The holder can't reach two masters, the other clients not a third: no majority refuses."""
    holders.send(redlock, "holder")
    await asyncio.sleep(1)
    cut_off(redlock, 1, 2)
    cut_off(forcer, 0)
    cut_off(rival, 0)
    holders.send(rival, "rival")
    await asyncio.sleep(0.5)
    assert await forcer.force_release("r")
    await asyncio.sleep(1)
    assert holders.inside == ["rival"]


async def test_masters_that_go_after_the_revocation_do_not_hold_up_its_end(
    forcer: Redlock, masters: list[FakeMaster]
) -> None:
    """They are known not to answer; the others have the timeout for that."""
    occupy(masters, ttl=60_000)
    forcing = asyncio.create_task(forcer.force_release("r"))
    await asyncio.sleep(0.1)
    kill(masters[:3])
    with pytest.raises(QuorumUnavailableError) as caught:
        await forcing
    assert caught.value.elapsed < 220 + 5  # the grace, and three round trips
    await asyncio.sleep(0.01)
    assert values(masters[3:]) == [None] * 2


@pytest.mark.promise("S1")
@pytest.mark.parametrize("links", [5, 3])
@pytest.mark.parametrize("delay", [0.03, 0.08])
async def test_a_late_reply_to_a_look_still_ends_the_lease(
    redlock: Redlock, forcer: Redlock, rival: Redlock, holders: Holders, delay: float, links: int
) -> None:
    holders.send(redlock, "holder")
    await asyncio.sleep(1)
    late = [LateReplies(link) for link in kit.session(redlock).links]
    holders.send(rival, "rival")
    forcing = asyncio.create_task(forcer.force_release("r"))
    for link in late[:links]:
        link.delay = delay
    await asyncio.sleep(0.18)
    for link in late:
        link.delay = 0
    assert await forcing
    await asyncio.sleep(2)
    assert holders.inside == ["rival"]


@pytest.mark.promise("S1")
@pytest.mark.parametrize("channels", [False, True])
async def test_a_fair_waiter_does_not_combine_grants_from_before_and_after(
    masters: list[FakeMaster], holders: Holders, channels: bool
) -> None:
    """No master fails. Without the permission for channels the waiter is not notified."""
    for master in masters:
        master.forbid |= set() if channels else {"SUBSCRIBE"}
    occupy(masters[:3], ttl=3_600_000)
    async with contextlib.AsyncExitStack() as stack:
        waiter, forcer, rival = [
            await stack.enter_async_context(Redlock(masters, restart_guard="off")) for _ in range(3)
        ]
        for link in (*kit.session(waiter).links[1:3], kit.session(rival).links[0]):
            delay_requests(link, 0.005)
        holders.send(waiter, "waiter", fair=True)
        await asyncio.sleep(1.2)
        holders.send(rival, "rival")
        await asyncio.sleep(0.02)
        assert values(masters)[3] == values(masters)[4] != "theirs"
        assert await forcer.force_release("r")
        await asyncio.sleep(2)
        assert len(holders.inside) == 1
        await holders.close()


@pytest.mark.promise("S1")
async def test_a_master_that_has_not_confirmed_the_revocation_is_not_freed_early(
    redlock: Redlock, forcer: Redlock, rival: Redlock, masters: list[FakeMaster], holders: Holders
) -> None:
    """Two masters hang when the revocation is sent, and later execute all requests at once."""
    occupy(masters[:3], ttl=3_600_000)
    for link in kit.session(redlock).links[1:3]:
        delay_requests(link, 0.02)
    holders.send(redlock, "waiter", fair=True)
    await asyncio.sleep(0.3)
    holders.send(rival, "rival", retry=Retry(min_delay=1, max_delay=5))
    await asyncio.sleep(0.1)
    assert values(masters)[3] == values(masters)[4] != "theirs"
    forcing = asyncio.create_task(forcer.force_release("r"))
    await asyncio.sleep(TRANSIT)
    hang(masters[3:])
    for _ in range(2_000):
        await asyncio.sleep(0 if holders.inside else 0.0005)
    await asyncio.sleep(0.003)
    resume(masters[3:])
    await forcing
    await asyncio.sleep(1)
    assert len(holders.inside) == 1


async def test_a_late_revocation_leaves_the_next_holder_alone(
    redlock: Redlock, forcer: Redlock, masters: list[FakeMaster], holders: Holders
) -> None:
    occupy(masters[:2], ttl=3_600_000)
    masters[2].set("r", "another's", 3_600_000)
    holders.send(redlock, "waiter", fair=True)
    await asyncio.sleep(0.3)
    forcing = asyncio.create_task(forcer.force_release("r"))
    await asyncio.sleep(TRANSIT)
    drop_requests(forcer, masters, 3, 4)
    cut_off(forcer, 3, 4, back_at=now() + 5)
    assert await forcing
    await asyncio.sleep(1)
    assert holders.inside == ["waiter"]
    mine = values(masters)[0]
    await asyncio.sleep(7)
    assert holders.inside == ["waiter"]
    assert values(masters) == [mine] * 5


@pytest.mark.promise("S1")
@pytest.mark.parametrize("names", [("a",), ("a", "b")])
async def test_a_manager_has_no_two_valid_leases_on_a_key(
    masters: list[FakeMaster], names: tuple[str, ...]
) -> None:
    """An acquisition proves, without any push, that an older lease on the key is over."""
    for master in masters:
        master.forbid.add("CLIENT")
    async with Redlock(masters, restart_guard="off") as redlock:
        old = await redlock.lock(*names, on_lost="flag").acquire()
        await asyncio.sleep(0.2)
        delete(masters, "a")
        new = await redlock.lock("a", on_lost="flag").try_acquire()
        assert new is not None
        await asyncio.sleep(0.01)
        assert (old.valid, new.valid) == (False, True)
        await new.release()


async def test_a_far_holder_leaves_first_if_the_timeout_of_the_caller_is_long_enough(
    masters: list[FakeMaster], rival: Redlock
) -> None:
    async with (
        Redlock([FarLink(master) for master in masters], restart_guard="off") as far,
        Redlock(masters, restart_guard="off", master_timeout=650) as forcer,
    ):
        async with far.lock("s"):
            pass
        assert (
            kit.session(rival).masters.master_timeout
            < 100
            < kit.session(far).masters.master_timeout
            < 650
        )
        lease = await far.lock("r", ttl=30_000).acquire()
        await asyncio.sleep(3)
        forcing = asyncio.create_task(forcer.force_release("r"))
        await asyncio.sleep(0.01)
        async with rival.lock("r"):
            assert not lease.valid
        assert await forcing
