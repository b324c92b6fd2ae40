"""The names of connections, which operators see in CLIENT LIST."""

import os
import socket

import pytest
from redis.asyncio import Redis

from redlock_aio import Redlock
from redlock_aio._protocol.commands import set_name
from redlock_aio._transport.address import Address, address, chosen_name
from redlock_aio.testing import FakeMaster
from redlock_aio.testing._fake_lua import Error

from .kit import Masters
from .sentinels import FakeSentinel, FakeService


class Nameless(FakeMaster):
    """A master whose access list forbids to name a connection."""

    def _do_client(self, *arguments: bytes) -> object:
        if arguments[0] == b"SETNAME":
            raise Error("NOPERM this user has no permissions to run the 'client|setname' command")
        return super()._do_client(*arguments)


def names(master: FakeMaster) -> list[str]:
    """Return the names that were given to connections to *master*."""
    return [words[2].decode() for words in master.commands if words[1:2] == [b"SETNAME"]]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("billing", "billing"),
        ("billing 2 ü", "billing?2??"),
        (None, f"{socket.gethostname()}:{os.getpid()}"),
    ],
    ids=["name", "other characters", "none"],
)
async def test_a_connection_has_the_name_of_its_manager(
    masters: Masters, name: str | None, shown: str
) -> None:
    async with Redlock(masters, name=name) as redlock:
        for _ in range(3):
            async with redlock.lock("r"):
                pass
        assert [names(master) for master in masters] == [[shown]] * 5


async def test_the_name_costs_no_round_trip(masters: Masters) -> None:
    """It is sent with the commands of the examination, before the marker is read."""
    async with Redlock(masters) as redlock, redlock.lock("r"):
        verbs = [command[:2] for command in masters[0].commands]
        marker = [b"GETRANGE", b"redlock_aio:marker"]
        assert [b"CLIENT", b"SETNAME"] in verbs[: verbs.index(marker)]


async def test_connections_to_sentinels_have_the_name_too() -> None:
    sentinels, master = [FakeSentinel(f"s{number}") for number in range(3)], FakeMaster("old")
    service = FakeService(sentinels, {"old": master})
    async with Redlock([service], name="billing") as redlock, redlock.lock("r"):
        pass
    assert [names(server) for server in (*sentinels, master)] == [["billing"]] * 4


@pytest.mark.parametrize("guard", ["auto", "off"])
async def test_a_master_that_forbids_the_name_votes(guard: str) -> None:
    masters = [Nameless(f"m{number}") for number in range(3)]
    async with Redlock(masters, restart_guard=guard) as redlock:  # type: ignore[arg-type]
        async with redlock.lock("r") as lease:
            pass
        assert all(master.votes for master in redlock.statistics().masters)
    assert [vote.answer.name for vote in lease.votes] == ["GRANTED"] * 3


async def test_the_name_that_the_user_chose_is_kept_from_redis_py() -> None:
    """redis-py would refuse the connection where the server refuses the name."""
    named = Redis(host="a", client_name="me")
    for master in (named, "redis://a?client_name=me"):
        dialler = address(master, name="masters[0]")
        assert isinstance(dialler, Address)
        assert chosen_name(dialler) == "me"
        assert dialler._make().client_name is None
    assert not chosen_name(address("redis://a", name="masters[0]"))
    assert not chosen_name(FakeMaster())


def test_a_character_that_no_name_may_have_is_replaced() -> None:
    assert set_name("a b\n\x7fé~!").endswith(b"\r\n$8\r\na?b???~!\r\n")
