"""All ways to name a master, and masters that must not vote."""

import asyncio
import contextlib
import errno
import gc
import inspect
import logging
import re
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
from evidence.servers import SERVICE, SentinelServer
from redis.asyncio import BlockingConnectionPool, Redis, Sentinel
from redis.asyncio.connection import SSLConnection
from redis.credentials import CredentialProvider, UsernamePasswordCredentialProvider

from redlock_aio import Answer, QuorumUnavailableError, Redlock
from redlock_aio._transport import address
from redlock_aio._transport.address import Address, ClusterAddress, addresses
from redlock_aio.testing import EmbeddedMaster
from redlock_aio.testing._embedded import free_port
from redlock_aio.testing._processes import start
from tests.unit import kit

from .helpers import TIMEOUT, RealMaster, call, connected, detail, gone, until, up, urls
from .servers import binary_of, process
from .tls import Certificates, tls_options

pytestmark = pytest.mark.integration

PASSWORD = "pass word/with@odd:signs%"
QUOTED = "pass%20word%2Fwith%40odd%3Asigns%25"


@pytest.fixture
def guarded(kind: str) -> Iterator[EmbeddedMaster]:
    """Run a master with a password, and a user with another password."""
    user = ("--user", "app", "on", ">secret", "~*", "+@all")
    with process(kind, "--requirepass", PASSWORD, *user) as master:
        yield master


async def lock_once(redlock: Redlock, resource: str = "r") -> None:
    """Acquire and release once, on all masters of the manager."""
    await until(lambda: up(redlock) == len(kit.session(redlock).links))
    async with redlock.lock(resource, wait=2_000) as lease:
        await lease.extend()
        await until(lambda: all(vote.answer is Answer.GRANTED for vote in lease.votes))


def by_password(guarded: EmbeddedMaster) -> Any:
    return f"redis://:{QUOTED}@127.0.0.1:{guarded.port}"


def by_user(guarded: EmbeddedMaster) -> Any:
    return f"redis://app:secret@127.0.0.1:{guarded.port}"


def by_socket(guarded: EmbeddedMaster) -> Any:
    return f"unix://:{QUOTED}@{guarded._socket}?db=1"


def by_provider(guarded: EmbeddedMaster) -> Any:
    credentials = UsernamePasswordCredentialProvider("app", "secret")
    return Redis(host="127.0.0.1", port=guarded.port, credential_provider=credentials)


def by_pool(guarded: EmbeddedMaster) -> Any:
    """Return a client with a pool; only the settings of its connections are used."""
    pool = BlockingConnectionPool(
        host="127.0.0.1", port=guarded.port, password=PASSWORD, max_connections=1, client_name="me"
    )
    return Redis.from_pool(pool)


@pytest.mark.parametrize("way", [by_password, by_user, by_socket, by_provider, by_pool])
async def test_credentials_are_sent(
    guarded: EmbeddedMaster, way: Callable[[EmbeddedMaster], Any]
) -> None:
    named = way(guarded)
    async with contextlib.AsyncExitStack() as stack:
        if isinstance(named, Redis):
            await stack.enter_async_context(named)
        redlock = await stack.enter_async_context(Redlock([named]))
        assert ("/socket/1" in kit.session(redlock).links[0].name) is (way is by_socket)
        await lock_once(redlock)


@pytest.mark.parametrize("way", [by_user, by_pool])
@pytest.mark.parametrize("allowed", [True, False])
async def test_a_connection_has_a_name_unless_that_is_forbidden(
    guarded: EmbeddedMaster, way: Callable[[EmbeddedMaster], Any], allowed: bool
) -> None:
    """It is that of the client, else that of the manager; without one the master votes, too."""
    with contextlib.closing(redis.Redis(port=guarded.port, password=PASSWORD)) as admin:
        for user in ("app", "default"):
            rule = "+client|setname" if allowed else "-client|setname"
            admin.execute_command("ACL", "SETUSER", user, rule)
        async with Redlock([way(guarded)], name="billing", restart_guard="off") as redlock:
            await lock_once(redlock)
            names = {client["name"] for client in admin.client_list()}
        expected = "billing" if way is by_user else "me"
        assert (expected in names) is allowed


async def test_another_database(masters: list[RealMaster]) -> None:
    """The key is in the database of the URL, and in no other."""
    async with Redlock(
        [f"{url}/3" for url in urls(masters)], master_timeout=TIMEOUT, restart_guard="off"
    ) as redlock:
        await until(lambda: up(redlock) == 5)
        async with redlock.lock("r"):
            assert gone(masters, "r")
            with contextlib.closing(redis.Redis.from_url(f"{masters[0].url}/3")) as client:
                await until(lambda: bool(client.exists("r")))


@pytest.mark.parametrize("decoding", [False, True])
async def test_clients_of_redis_py(masters: list[RealMaster], decoding: bool) -> None:
    """Their options for decoding and timeouts make no difference."""
    async with contextlib.AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(
                Redis.from_url(url, decode_responses=decoding, socket_timeout=3, protocol=2)
            )
            for url in urls(masters)
        ]
        async with Redlock(clients, master_timeout=TIMEOUT, restart_guard="off") as redlock:
            await lock_once(redlock)


@pytest.mark.parametrize("url", ["redis://h", "rediss://h?socket_timeout=3", "unix:///run/s"])
def test_an_attempt_to_connect_has_no_timeout_of_redis_py(url: str) -> None:
    """By default it has some since version 8; one attempt may take longer."""
    (dialler,) = addresses([url])
    assert isinstance(dialler, Address)
    connection = dialler._make()
    assert (connection.socket_timeout, connection.socket_connect_timeout) == (None, None)


@pytest.mark.skipif(sys.platform != "linux", reason="the options of Linux")
@pytest.mark.parametrize(("wanted", "own"), [(None, None), (None, 60), (False, None)])
async def test_a_silent_connection_is_kept_alive_unless_the_user_forbids_it(
    masters: list[RealMaster], wanted: bool | None, own: int | None
) -> None:
    """A network that forgets it would let the next lock fail; older clients default to ``None``."""
    where = {"host": "127.0.0.1", "port": urlsplit(masters[0].url).port}
    times = None if own is None else {socket.TCP_KEEPIDLE: own}
    client = Redis(**where, socket_keepalive=wanted, socket_keepalive_options=times)  # type: ignore[arg-type]
    (dialler,) = addresses([client])
    assert isinstance(dialler, Address)
    transport, _ = await dialler.dial()
    raw = transport.get_extra_info("socket")
    idle = raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
    kept = bool(raw.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))
    transport.abort()
    assert kept == (wanted is None)
    if kept:
        assert idle == (own or 30)


class Rotating(CredentialProvider):
    """A credential provider whose password changes, as cloud providers have it."""

    def __init__(self, password: str) -> None:
        self.password = password
        self.asked = 0

    def get_credentials(self) -> tuple[str, str]:
        self.asked += 1
        return "default", self.password


class Failing(CredentialProvider):
    """A credential provider whose token service is away."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.asked = 0

    def get_credentials(self) -> tuple[str, str]:
        self.asked += 1
        raise self.error


class Sharing(CredentialProvider):
    """A credential provider that awaits a task of others, which is cancelled the first time."""

    def __init__(self) -> None:
        self.asked = 0

    async def get_credentials_async(self) -> tuple[str, str]:
        self.asked += 1
        fetching = asyncio.create_task(asyncio.sleep(0))
        if self.asked == 1:
            fetching.cancel()
        await fetching
        return "app", "secret"


@pytest.mark.skipif(
    not hasattr(CredentialProvider, "get_credentials_async"),
    reason="this redis-py asks providers without an await",
)
async def test_a_login_that_others_cancel_is_tried_again(
    guarded: EmbeddedMaster, caplog: pytest.LogCaptureFixture
) -> None:
    """It is no cancellation of the task that keeps the connection, which would end the manager."""
    sharing = Redis(host="127.0.0.1", port=guarded.port, credential_provider=Sharing())
    async with sharing, Redlock([sharing], restart_guard="off") as redlock:
        await lock_once(redlock)
    assert "unreachable, the login was cancelled" in caplog.text


@pytest.mark.parametrize("error", [TimeoutError(), LookupError()], ids=["timeout", "other"])
async def test_a_credential_provider_that_fails_is_told_and_asked_less_and_less_often(
    guarded: EmbeddedMaster, error: Exception
) -> None:
    """Also if it fails with a timeout of its own: that of the attempt to connect is not over."""
    provider = Failing(error)
    client = Redis(host="127.0.0.1", port=guarded.port, credential_provider=provider)
    async with client, Redlock([client], restart_guard="off") as redlock:
        with pytest.raises(QuorumUnavailableError, match=type(error).__name__):
            await redlock.lock("r", wait=0).acquire()
        await until(lambda: provider.asked > 6)
        before = provider.asked
        await asyncio.sleep(1)
        assert provider.asked - before < 6


async def test_a_credential_provider_is_asked_at_each_connection(guarded: EmbeddedMaster) -> None:
    """A password may therefore change while the program runs."""
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


@dataclass(frozen=True, slots=True)
class Tls:
    """A master with a TLS port, and the certificates for it."""

    master: EmbeddedMaster
    port: int
    certificates: Certificates

    @property
    def url(self) -> str:
        return self.certificates.url(self.port)


@contextlib.contextmanager
def with_tls(folder: Path, *names: str, mutual: bool = False) -> Iterator[Tls]:
    certificates, port = Certificates(folder, *names), free_port()
    master = process("redis", *tls_options(certificates, port, mutual=mutual))
    try:
        master.start()
    except RuntimeError:
        master.stop()
        pytest.skip("this server is built without TLS")
    with master:
        yield Tls(master, port, certificates)


@pytest.fixture
def tls(tmp_path: Path) -> Iterator[Tls]:
    with with_tls(tmp_path) as tls:
        yield tls


async def test_a_server_that_demands_a_certificate_gets_it(tmp_path: Path) -> None:
    """Without one the vote says what is missing."""
    with with_tls(tmp_path, mutual=True) as tls:
        named = tls.certificates.url(tls.port, with_own=True)
        async with Redlock([named], master_timeout=TIMEOUT, restart_guard="off") as redlock:
            await lock_once(redlock)
        async with Redlock([tls.url], restart_guard="off") as redlock:
            # The server ends the connection at once. What the client has sent meanwhile resets it,
            # and the alert may be lost with it: with redis-py 5.2 in every second attempt.
            await until(lambda: "CERTIFICATE_REQUIRED" in detail(redlock, 0), within=60)


@pytest.mark.spread(0)
@pytest.mark.parametrize(
    ("scheme", "options", "why"),
    [
        ("rediss", "", "Connection refused"),
        ("rediss+cluster", "", "Connection refused"),
        ("rediss", "?ssl_ca_certs=missing.pem", r"directory \(ssl_ca_certs=missing\.pem\)"),
        ("rediss", "?ssl_certfile=c.pem&ssl_keyfile=other.key&ssl_ca_certs=no.pem", "used.*KEY"),
        pytest.param(
            *("rediss", "?ssl_ca_path=no&ssl_certfile=no.pem", r"directory \(ssl_certfile=no\.pem"),
            marks=pytest.mark.skipif(
                "ssl_ca_path" not in inspect.signature(SSLConnection.__init__).parameters,
                reason="this redis-py takes no folder with authorities",
            ),
        ),
        ("rediss", "?ssl_ca_certs=a%00b", "TLS options can't be used: embedded null byte"),
    ],
    ids=["away", "Cluster away", "missing file", "wrong key", "missing folder too", "null byte"],
)
async def test_masters_that_stay_away_cost_one_reading_of_the_certificates(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, scheme: str, options: str, why: str
) -> None:
    """Those of all authorities take tens of milliseconds, in which the event loop stands still."""
    masters = 1 if "cluster" in scheme else 3
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    shutil.copy(Certificates(tmp_path).client[0], "c.pem")
    shutil.copy(Certificates(tmp_path / "other").client[1], "other.key")
    made, dialled = list[ssl.SSLContext](), list[object]()
    make, dial = ssl.create_default_context, Address._opened

    def counted() -> ssl.SSLContext:
        made.append(make())
        return made[-1]

    async def dialling(self: Any, connection: object) -> tuple[asyncio.Transport, object]:
        dialled.append(connection)
        return await dial(self, connection)

    monkeypatch.setattr(ssl, "create_default_context", counted)
    for kind in (Address, ClusterAddress):
        monkeypatch.setattr(kind, "_opened", dialling)
    address._shared_tls.cache_clear()
    urls = [f"{scheme}://localhost:{free_port()}{options}" for _ in range(masters)]
    async with Redlock(urls, restart_guard="off") as redlock:
        with pytest.raises(QuorumUnavailableError, match=why):
            await redlock.lock("r", wait=0).acquire()
        await until(lambda: len(dialled) > 3 * masters)
    assert len(made) == 1


def test_addresses_share_certificates_if_all_their_options_are_alike(tmp_path: Path) -> None:
    authority = Certificates(tmp_path).authority
    urls = ["", "?ssl_ciphers=ECDHE", f"?ssl_ca_certs={authority}", "?ssl_cert_reqs=none"]
    made = [
        [address.address(f"rediss://h{n}:1{url}", name="m")._make().ssl_context for n in (1, 2)]  # type: ignore[union-attr]
        for url in urls
    ]
    for number, (one, other) in enumerate(made):
        assert one is other
        assert one.ca_certs == (str(authority) if number == 2 else None)
        assert one.cert_reqs == (ssl.CERT_NONE if number == 3 else ssl.CERT_REQUIRED)
    assert len({id(context) for pair in made for context in pair}) == len(urls)


def test_an_option_without_a_hash_is_no_obstacle() -> None:
    client = Redis(host="h", ssl=True, ssl_ca_data=bytearray(b"an authority"))  # type: ignore[arg-type]
    made: Any = address.address(client, name="m")
    assert made._make().ssl_context is made._make().ssl_context
    assert made._make().ssl_context.ca_data == b"an authority"


async def test_an_option_that_redis_py_loses_is_named_by_the_vote(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """redis-py 5 loses an `ssl_cert_reqs` that is no text."""
    kind = type(SSLConnection().ssl_context)
    begin = kind.__init__

    def lose(context: Any, **options: Any) -> None:
        begin(context, **options)
        del context.cert_reqs

    monkeypatch.setattr(kind, "__init__", lose)
    async with Redlock([f"rediss://localhost:{free_port()}"]) as redlock:
        why = detail(redlock, 0)
    assert why.startswith("UNREACHABLE the TLS options can't be used: ")
    assert "'cert_reqs'" in why


def test_the_repr_of_tls_options_has_no_password() -> None:
    assert "secret" not in repr(address._TlsOptions(("secret",), (), None))


async def test_a_certificate_that_is_renewed_is_used_by_the_next_connection(
    tmp_path: Path,
) -> None:
    (tmp_path / "other").mkdir()
    refused = Certificates(tmp_path / "other").client
    with with_tls(tmp_path, mutual=True) as tls:
        used = [tmp_path / "used.pem", tmp_path / "used.key"]
        for source, target in zip(refused, used, strict=True):
            shutil.copy(source, target)
        url = f"{tls.url}&ssl_certfile={used[0]}&ssl_keyfile={used[1]}"
        async with Redlock([url], master_timeout=TIMEOUT, restart_guard="off") as redlock:
            with pytest.raises(QuorumUnavailableError):
                await redlock.lock("r", wait=0).acquire()
            for source, target in zip(tls.certificates.client, used, strict=True):
                shutil.copy(source, target)
            await lock_once(redlock)


async def test_certificates_that_can_not_be_read_for_a_moment_are_read_again(
    monkeypatch: pytest.MonkeyPatch, tls: Tls
) -> None:
    """The files stay as they are."""
    address._shared_tls.cache_clear()

    def refused() -> ssl.SSLContext:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(address, "UNUSABLE_FOR", 0.1)
    with monkeypatch.context() as patched:
        patched.setattr(ssl, "create_default_context", refused)
        async with Redlock([tls.url], master_timeout=TIMEOUT, restart_guard="off") as redlock:
            with pytest.raises(QuorumUnavailableError, match="Too many open files"):
                await redlock.lock("r", wait=0).acquire()
            patched.undo()
            await lock_once(redlock)


async def test_a_certificate_is_checked(tls: Tls) -> None:
    async with Redlock([tls.url], master_timeout=TIMEOUT, restart_guard="off") as redlock:
        await lock_once(redlock)
    async with Redlock([f"rediss://localhost:{tls.port}"]) as redlock:
        with pytest.raises(QuorumUnavailableError, match="certificate"):
            await redlock.lock("r", wait=0).acquire()


@pytest.mark.parametrize("names", [True, False], ids=["names", "addresses"])
async def test_sentinels_announce_the_names_of_certificates(tmp_path: Path, *, names: bool) -> None:
    port, config = free_port(), tmp_path / "sentinel.conf"
    with with_tls(tmp_path, "localhost") as tls, contextlib.ExitStack() as stack:
        certificate, key = tls.certificates.server
        lines = [
            *("port 0", f"tls-port {port}", "tls-auth-clients no", "tls-replication yes"),
            *(f"tls-cert-file {certificate}", f"tls-key-file {key}"),
            f"tls-ca-cert-file {tls.certificates.authority}",
            "sentinel resolve-hostnames yes",
            f"sentinel announce-hostnames {'yes' if names else 'no'}",
        ]
        watched = "localhost", tls.port
        sentinel = SentinelServer(binary_of("redis"), config, "", watched, lines)
        stack.callback(sentinel.kill)
        sentinel.start()
        url = tls.certificates.url(port).replace("rediss:", "rediss+sentinel:")
        # redis-py 5 checks the certificate for no host unless it is told so.
        url = url.replace("?", f"/{SERVICE}?ssl_check_hostname=true&")
        async with Redlock([url], master_timeout=TIMEOUT, restart_guard="off") as redlock:
            if names:
                await lock_once(redlock)
            else:
                where = rf"is not valid for '127\.0\.0\.1'.* at 127\.0\.0\.1:{tls.port}"
                await until(lambda: bool(re.search(where, detail(redlock, 0))))


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ("redis", "if so, write rediss://"),
        pytest.param("rediss", "if not, write redis://", marks=pytest.mark.full),
    ],
)
async def test_the_vote_of_a_port_with_or_without_tls_has_a_hint(
    wrong: str, hint: str, tls: Tls
) -> None:
    port = tls.port if wrong == "redis" else tls.master.port
    async with Redlock([f"{wrong}://localhost:{port}"]) as redlock:
        with pytest.raises(QuorumUnavailableError) as caught:
            await redlock.lock("r", wait=2_000).acquire()
    (vote,) = caught.value.votes
    assert vote.answer is Answer.UNREACHABLE
    assert f"does it speak TLS? {hint}" in vote.detail


async def test_a_master_that_was_connected_before_gets_no_hint(masters: list[RealMaster]) -> None:
    """It speaks what the URL says; a proxy or a server that starts may end connections."""

    def end(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    dialler: Any = address.address(masters[0].url, name="m")
    transport, _ = await dialler.dial()
    transport.abort()
    async with await asyncio.start_server(end, "127.0.0.1", 0) as server:
        dialler._kwargs["port"] = server.sockets[0].getsockname()[1]
        with pytest.raises(Exception, match=r"Error while reading|closed by") as raised:
            await dialler.dial()
    assert not hasattr(raised.value, "__notes__")


def test_a_hung_tls_master_does_not_keep_its_connection_open(tls: Tls) -> None:
    """Closing waits for no close_notify; a transport open at the loop's end would warn."""

    async def main() -> None:
        async with Redlock([tls.url], master_timeout=200, restart_guard="off") as redlock:
            lease = await redlock.lock("r", wait=2_000).acquire()
            tls.master.pause()
        assert not lease.valid

    asyncio.run(main())
    gc.collect()
    tls.master.resume()


@contextlib.contextmanager
def started(*command: str) -> Iterator[None]:
    """Run a server for the body."""
    with start(command, stdout=subprocess.DEVNULL) as server:
        try:
            yield
        finally:
            server.kill()


def accepts(port: int) -> bool:
    """Return whether a server listens at *port*."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
async def sentinel(kind: str, tmp_path: Path) -> AsyncIterator[tuple[Sentinel, EmbeddedMaster]]:
    """Run a Sentinel that monitors one master."""
    port = free_port()
    config = tmp_path / "sentinel.conf"
    with process(kind) as master:
        config.write_text(f"port {port}\nsentinel monitor mine 127.0.0.1 {master.port} 1\n")
        with started(binary_of(kind), str(config), "--sentinel"):
            manager = Sentinel([("127.0.0.1", port)])
            await until(lambda: accepts(port))
            yield manager, master
            for client in manager.sentinels:
                await client.aclose()


async def test_a_master_that_a_sentinel_monitors(
    sentinel: tuple[Sentinel, EmbeddedMaster],
) -> None:
    """The Sentinel names its address; votes name the service."""
    manager, master = sentinel
    client: Redis = manager.master_for("mine", protocol=2)
    async with client, Redlock([client], master_timeout=TIMEOUT, restart_guard="off") as redlock:
        await lock_once(redlock)
        master.cut()
        await lock_once(redlock)
        assert "mine" in kit.session(redlock).links[0].name
    async with manager.slave_for("mine") as replicas:
        with pytest.raises(ValueError, match="replicas"):
            Redlock([replicas])


NEEDED = "+hello +client +sentinel|get-master-addr-by-name +sentinel|master"
WISHED = " +subscribe &+switch-master +sentinel|myid"


@pytest.mark.parametrize("permissions", [NEEDED + WISHED, NEEDED], ids=["all", "needed"])
async def test_what_a_sentinel_must_allow(
    sentinel: tuple[Sentinel, EmbeddedMaster], permissions: str
) -> None:
    """The permissions of docs/how-to/sentinel.md suffice; with all of them there is no error."""
    [first] = sentinel[0].sentinels
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


async def test_a_replica_has_no_vote_and_its_vote_has_the_reason(
    masters: list[RealMaster], kind: str
) -> None:
    """A lock on a replica may never reach its master."""
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
    """Localhost and 127.0.0.1, TCP and a Unix socket; the vote that does not count has a reason."""
    first: Any = masters[0]
    port = first.url.rpartition(":")[2]
    names = [first.url, f"redis://localhost:{port}", f"unix://{first._socket}"]
    async with Redlock(names, master_timeout=TIMEOUT, restart_guard="off") as redlock:
        await until(lambda: sum("same server" in detail(redlock, n) for n in range(3)) == 2)
        with pytest.raises(QuorumUnavailableError, match="same server as"):
            await redlock.lock("r", wait=0).acquire()
    await until(lambda: gone(masters, "r"))


async def test_a_policy_that_drops_keys_is_logged_once(
    masters: list[RealMaster], caplog: pytest.LogCaptureFixture
) -> None:
    """The master votes nevertheless; without a memory limit no policy drops keys."""
    call(masters[1], "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    call(masters[0], "CONFIG", "SET", "maxmemory", "1gb", "maxmemory-policy", "volatile-ttl")
    try:
        with caplog.at_level(logging.INFO, logger="redlock_aio"):
            async with connected(masters[:3]) as redlock:
                await lock_once(redlock)
                masters[0].cut()
                await until(lambda: "connected again" in caplog.text)
    finally:
        for master in masters[:2]:
            call(master, "CONFIG", "SET", "maxmemory", "0", "maxmemory-policy", "noeviction")
    assert caplog.text.count("maxmemory-policy") == 1
    assert "volatile-ttl" in caplog.text


@pytest.mark.parametrize("greeting", [b"HTTP/1.1 400 Bad Request\r\n", b"SSH-2.0-Server\r\n"])
async def test_the_vote_of_another_kind_of_server_says_so(greeting: bytes) -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with Redlock([f"redis://127.0.0.1:{port}"]) as redlock:
            found = detail(redlock, 0)
    assert found.startswith("UNREACHABLE it does not speak the protocol: ")
