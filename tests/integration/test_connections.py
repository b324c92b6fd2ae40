"""All the ways to name a master, and those masters that must not vote."""

import asyncio
import contextlib
import gc
import logging
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import BlockingConnectionPool, Redis, Sentinel
from redis.credentials import CredentialProvider, UsernamePasswordCredentialProvider

from redlock_aio import Answer, QuorumUnavailableError, Redlock
from redlock_aio.testing import EmbeddedMaster

from .helpers import TIMEOUT, RealMaster, call, detail, gone, put, until, up, urls, values
from .servers import binary_of, process, quiet_port

pytestmark = pytest.mark.integration

PASSWORD = "pass word/with@odd:signs%"
QUOTED = "pass%20word%2Fwith%40odd%3Asigns%25"


@pytest.fixture
def guarded(kind: str) -> Iterator[EmbeddedMaster]:
    """A master with a password, and a user who has another."""
    user = ("--user", "app", "on", ">secret", "~*", "+@all")
    with process(kind, "--requirepass", PASSWORD, *user) as master:
        yield master


async def lock_once(redlock: Redlock, resource: str = "r") -> None:
    """Show that the manager works on all of its masters."""
    await until(lambda: up(redlock) == len(redlock._opener.session().links))
    async with redlock.lock(resource, wait=2_000) as lease:
        await lease.extend()
        await until(lambda: all(vote.answer is Answer.GRANTED for vote in lease.votes))


async def test_tcp_with_a_password(guarded: EmbeddedMaster) -> None:
    """72: in the URL, quoted where a URL has to."""
    async with Redlock([f"redis://:{QUOTED}@127.0.0.1:{guarded.port}"]) as redlock:
        await lock_once(redlock)


async def test_tcp_with_a_user(guarded: EmbeddedMaster) -> None:
    """72: of the server's access list."""
    async with Redlock([f"redis://app:secret@127.0.0.1:{guarded.port}"]) as redlock:
        await lock_once(redlock)


async def test_another_database(masters: list[RealMaster]) -> None:
    """72: the key is there and nowhere else."""
    async with Redlock(
        [f"{url}/3" for url in urls(masters)], master_timeout=TIMEOUT, restart_guard="off"
    ) as redlock:
        await until(lambda: up(redlock) == 5)
        async with redlock.lock("r"):
            assert gone(masters, "r")
            for master in masters[:1]:
                async with Redis.from_url(f"{master.url}/3") as client:
                    await until(lambda client=client: client.exists("r"))  # type: ignore[misc]


async def test_a_unix_socket(kind: str) -> None:
    """72: and its database and password in the query."""
    with process(kind, "--requirepass", PASSWORD) as master:
        path = master._socket
        async with Redlock([f"unix://:{QUOTED}@{path}?db=1"]) as redlock:
            assert "/socket/1" in str(redlock._opener.session().links[0].name)
            await lock_once(redlock)


@pytest.mark.parametrize("decoding", [False, True])
async def test_clients_of_redis_py(masters: list[RealMaster], decoding: bool) -> None:
    """72, 61: whatever they do with the replies, and however many time-outs they have."""
    async with contextlib.AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(
                Redis.from_url(url, decode_responses=decoding, socket_timeout=3, protocol=2)
            )
            for url in urls(masters)
        ]
        async with Redlock(clients, master_timeout=TIMEOUT, restart_guard="off") as redlock:
            await lock_once(redlock)


async def test_a_client_with_a_pool_of_its_own(guarded: EmbeddedMaster) -> None:
    """72: only the settings of its connections are used."""
    pool = BlockingConnectionPool(
        host="127.0.0.1", port=guarded.port, password=PASSWORD, max_connections=1, client_name="me"
    )
    async with Redis(connection_pool=pool) as client, Redlock([client]) as redlock:
        await lock_once(redlock)
    await pool.aclose()


class Rotating(CredentialProvider):
    """Hands out a password that changes, as cloud providers do."""

    def __init__(self, password: str) -> None:
        self.password = password
        self.asked = 0

    def get_credentials(self) -> tuple[str, str]:
        self.asked += 1
        return "default", self.password


async def test_a_credential_provider_is_asked_at_each_connection(guarded: EmbeddedMaster) -> None:
    """72: so that a password may change while we run."""
    provider = Rotating(PASSWORD)
    client = Redis(host="127.0.0.1", port=guarded.port, credential_provider=provider)
    async with client, Redlock([client]) as redlock:
        await lock_once(redlock)
        admin = Redis(host="127.0.0.1", port=guarded.port, password=PASSWORD)
        async with admin:
            await admin.config_set("requirepass", "another")
            provider.password = "another"
            await admin.client_kill_filter(_type="normal", skipme=True)
        await until(lambda: provider.asked > 1)
        await lock_once(redlock)


async def test_a_provider_with_a_user(guarded: EmbeddedMaster) -> None:
    """72: as redis-py has it."""
    credentials = UsernamePasswordCredentialProvider("app", "secret")
    client = Redis(host="127.0.0.1", port=guarded.port, credential_provider=credentials)
    async with client, Redlock([client]) as redlock:
        await lock_once(redlock)


def certificates(folder: Path) -> dict[str, str]:
    """Make an authority and a certificate for this machine."""
    import trustme

    authority = trustme.CA()
    server = authority.issue_cert("localhost", "127.0.0.1")
    paths = {name: str(folder / f"{name}.pem") for name in ("authority", "key", "certificate")}
    authority.cert_pem.write_to_path(paths["authority"])
    server.private_key_pem.write_to_path(paths["key"])
    server.cert_chain_pems[0].write_to_path(paths["certificate"])
    return paths


@pytest.fixture
def tls(kind: str, tmp_path: Path) -> Iterator[tuple[EmbeddedMaster, str]]:
    """A master that speaks TLS on one port, and the path of who vouches for it."""
    paths = certificates(tmp_path)
    port = quiet_port()
    master = process(
        kind, "--tls-port", str(port), "--tls-auth-clients", "no",
        *("--tls-cert-file", paths["certificate"], "--tls-key-file", paths["key"]),
        *("--tls-ca-cert-file", paths["authority"]),
    )  # fmt: skip
    try:
        master.start()
    except RuntimeError:
        master.stop()
        pytest.skip(f"this {kind} is built without TLS")
    with master:
        master.tls_port = port  # type: ignore[attr-defined]
        yield master, paths["authority"]


@pytest.fixture
def tls_url(tls: tuple[EmbeddedMaster, str]) -> str:
    """Where the master that speaks TLS is."""
    master, authority = tls
    return f"rediss://localhost:{master.tls_port}?ssl_ca_certs={authority}"  # type: ignore[attr-defined]


async def test_tls(tls_url: str) -> None:
    """72: the certificate is checked against the authority that is named."""
    async with Redlock([tls_url], master_timeout=TIMEOUT, restart_guard="off") as redlock:
        await lock_once(redlock)


async def test_a_certificate_that_nobody_vouches_for_is_refused(tls_url: str) -> None:
    """72: as the master's vote."""
    async with Redlock([tls_url.partition("?")[0]]) as redlock:
        with pytest.raises(QuorumUnavailableError, match="certificate"):
            await redlock.lock("r", wait=0).acquire()


@pytest.mark.parametrize("wrong", ["redis", "rediss"])
async def test_a_url_for_the_other_kind_of_port_is_asked_about(
    wrong: str, tls: tuple[EmbeddedMaster, str]
) -> None:
    """A rediss:// URL for a plain port, and a redis:// URL for one with TLS."""
    master, _ = tls
    port = master.tls_port if wrong == "redis" else master.port  # type: ignore[attr-defined]
    instead = {"redis": "if so, write rediss://", "rediss": "if not, write redis://"}[wrong]
    async with Redlock([f"{wrong}://localhost:{port}"]) as redlock:
        with pytest.raises(QuorumUnavailableError) as caught:
            await redlock.lock("r", wait=2_000).acquire()
    (vote,) = caught.value.votes
    assert vote.answer is Answer.UNREACHABLE
    assert f"does it speak TLS? {instead}" in vote.detail


def test_a_hung_tls_master_does_not_keep_its_connection_open(
    tls_url: str, tls: tuple[EmbeddedMaster, str]
) -> None:
    """Closing does not wait for a farewell; what is open when the loop ends would warn."""
    master, _ = tls

    async def main() -> None:
        async with Redlock([tls_url], master_timeout=200, restart_guard="off") as redlock:
            lease = await redlock.lock("r", wait=2_000).acquire()
            master.pause()
        assert not lease.valid

    asyncio.run(main())
    gc.collect()
    master.resume()


@pytest.fixture
async def sentinel(kind: str, tmp_path: Path) -> AsyncIterator[tuple[Sentinel, EmbeddedMaster]]:
    """A Sentinel that knows one master."""
    port = quiet_port()
    config = tmp_path / "sentinel.conf"
    with process(kind) as master:
        config.write_text(f"port {port}\nsentinel monitor mine 127.0.0.1 {master.port} 1\n")
        with started(binary_of(kind), str(config), "--sentinel"):
            manager = Sentinel([("127.0.0.1", port)])
            await until(lambda: accepts(port))
            yield manager, master
            for client in manager.sentinels:
                await client.aclose()


@contextlib.contextmanager
def started(*command: str) -> Iterator[None]:
    """Run a server for the body."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        try:
            yield
        finally:
            server.kill()


def accepts(port: int) -> bool:
    """Return whether somebody listens there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def test_a_master_that_a_sentinel_knows(
    sentinel: tuple[Sentinel, EmbeddedMaster],
) -> None:
    """72: it is found through the Sentinel, and called by the service's name."""
    manager, master = sentinel
    client: Redis = manager.master_for("mine", protocol=2)
    async with client, Redlock([client], master_timeout=TIMEOUT, restart_guard="off") as redlock:
        await lock_once(redlock)
        master.cut()
        await lock_once(redlock)
        assert "mine" in redlock._opener.session().links[0].name


NEEDED = "+hello +client +sentinel|get-master-addr-by-name +sentinel|master"


@pytest.mark.parametrize(
    "permissions",
    [
        NEEDED + " +subscribe &+switch-master +sentinel|myid",
        NEEDED,
    ],
    ids=["all", "needed"],
)
async def test_what_a_sentinel_must_allow(
    sentinel: tuple[Sentinel, EmbeddedMaster], permissions: str
) -> None:
    """The permissions of docs/how-to/sentinel.md suffice, the first set without an error."""
    manager, _ = sentinel
    [first] = manager.sentinels
    user = ["u", "on", ">s3cret", "resetchannels", "-@all", *permissions.split()]
    await first.execute_command("ACL", "SETUSER", *user)
    where = first.connection_pool.connection_kwargs
    limited = Sentinel(
        [(where["host"], where["port"])], sentinel_kwargs={"username": "u", "password": "s3cret"}
    )
    client: Redis = limited.master_for("mine")
    async with client, Redlock([client], master_timeout=TIMEOUT, restart_guard="off") as redlock:
        await lock_once(redlock)
        log = str(await first.execute_command("ACL", "LOG"))
        for command in ("subscribe", "sentinel|myid"):
            assert (f"'{command}'" in log) is (f"+{command}" not in permissions), log
    for each in limited.sentinels:
        await each.aclose()


async def test_a_sentinel_client_for_replicas_is_refused(
    sentinel: tuple[Sentinel, EmbeddedMaster],
) -> None:
    """Replicas have no vote, so they are refused when the manager is made."""
    manager, _ = sentinel
    async with manager.slave_for("mine") as client:
        with pytest.raises(ValueError, match="replicas"):
            Redlock([client])


async def test_a_replica_has_no_vote_and_says_why(masters: list[RealMaster], kind: str) -> None:
    """S1: what a replica grants its master may never hear of."""
    replica = process(kind, "--replicaof", f"127.0.0.1 {masters[0].url.rpartition(':')[2]}")
    with replica:
        async with Redlock(
            [*urls(masters[:2]), replica.url], master_timeout=TIMEOUT, restart_guard="off"
        ) as redlock:
            await until(lambda: "not a master" in detail(redlock, 2))
            assert "ERROR" in detail(redlock, 2)
            async with redlock.lock("r", wait=2_000) as lease:
                assert lease.votes[2].answer is Answer.ERROR


@pytest.mark.promise("S1")
async def test_one_server_under_two_names_has_one_vote(masters: list[RealMaster]) -> None:
    """19: localhost and 127.0.0.1, TCP and a Unix socket; the vote that is not counted says why."""
    first: Any = masters[0]
    port = first.url.rpartition(":")[2]
    names = [first.url, f"redis://localhost:{port}", f"unix://{first._socket}"]
    async with Redlock(names, master_timeout=TIMEOUT, restart_guard="off") as redlock:
        await until(lambda: sum("same server" in detail(redlock, n) for n in range(3)) == 2)
        with pytest.raises(QuorumUnavailableError, match="same server as"):
            await redlock.lock("r", wait=0).acquire()
    await until(lambda: gone(masters, "r"))


async def test_a_policy_that_drops_keys_is_told_in_the_log(
    masters: list[RealMaster], caplog: pytest.LogCaptureFixture
) -> None:
    """Once, and the master votes all the same; without a limit no policy drops anything."""
    call(masters[1], "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    call(masters[0], "CONFIG", "SET", "maxmemory", "1gb")
    call(masters[0], "CONFIG", "SET", "maxmemory-policy", "volatile-ttl")
    try:
        with caplog.at_level(logging.INFO, logger="redlock_aio"):
            async with Redlock(
                urls(masters[:3]), master_timeout=TIMEOUT, restart_guard="off"
            ) as redlock:
                await lock_once(redlock)
                masters[0].cut()
                await until(lambda: "connected again" in caplog.text)
    finally:
        call(masters[0], "CONFIG", "SET", "maxmemory", "0")
        for master in masters[:2]:
            call(master, "CONFIG", "SET", "maxmemory-policy", "noeviction")
    assert caplog.text.count("maxmemory-policy") == 1
    assert "volatile-ttl" in caplog.text


async def test_a_master_that_is_there_later_votes_from_then_on(kind: str) -> None:
    """The manager needs nobody to be there when it is made."""
    master = process(kind)
    async with Redlock([master.url], master_timeout=TIMEOUT, restart_guard="off") as redlock:
        with pytest.raises(QuorumUnavailableError, match="unreachable"):
            await redlock.lock("r", wait=0).acquire()
        with master:
            await lock_once(redlock)


async def test_a_foreign_lock_of_the_classic_kind_excludes_us(
    masters: list[RealMaster],
) -> None:
    """S1: the key is the resource, as other Redlock libraries have it."""
    put(masters[:3], "their:lock", 60_000)
    async with Redlock(urls(masters), master_timeout=TIMEOUT, restart_guard="off") as redlock:
        assert await redlock.lock("their:lock").try_acquire() is None
        await until(lambda: values(masters, "their:lock")[3:] == [None, None])
