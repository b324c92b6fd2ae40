"""What ``redlock doctor`` asks real masters, and what it finds there."""

import asyncio
import contextlib
import gc
import itertools
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis

from redlock_aio import Redlock, requirements
from redlock_aio.cli.doctor import all_masters, command, examination, sentinels, tls
from redlock_aio.cli.doctor.examination import Questions, addresses, examine_all
from redlock_aio.cli.doctor.facts import Expectations, MasterFacts
from redlock_aio.cli.doctor.findings import Finding, Kind
from redlock_aio.cli.frame import GuardMode
from redlock_aio.testing import EmbeddedMaster
from redlock_aio.testing._embedded import free_port
from redlock_aio.testing._processes import start

from .clocked import ClockedMaster, compiled
from .helpers import TIMEOUT, RealMaster, call, until, urls
from .proxy import Proxy
from .servers import binary_of, process
from .speaker import healthy, speaker
from .tls import Certificates, tls_options

pytestmark = pytest.mark.integration

PREFIX = "app:"

ALONE = {Kind.ONE_HOST, Kind.SINGLE}
"""What is found about each set of servers on one machine, or with one server."""

PATIENCE = 60.0
"""Seconds in which a healthy master replies to everything, on the slowest machine."""

NO_KEY = b"%1\r\n*0\r\n:1\r\n"
"""A map whose key is a list, for which redis-py raises none of its own errors."""

UNREADABLE = "redis-py can't read its reply: "


async def examined(
    where: Sequence[str],
    *,
    patience: float = PATIENCE,
    shared: bool = True,
    guard: GuardMode = "auto",
    max_ttl: int = 60_000,
) -> tuple[list[MasterFacts], list[Finding]]:
    """Return the facts about the masters at some URLs, and what is found about them."""
    names = [url.rpartition("@")[2].removeprefix("redis://") for url in where]
    permissions = requirements.permissions(fencing=True, shared=shared)
    questions = Questions(key_prefix=PREFIX, permissions=permissions, patience=patience)
    masters = await examine_all(list(zip(names, where, strict=True)), questions)
    tolerance = requirements.clock_tolerance(max_ttl=max_ttl)
    wanted = Expectations(master_timeout=None, max_ttl=max_ttl, guard=guard, tolerance=tolerance)
    command.complete(masters, wanted)
    return masters, all_masters.judge(masters, wanted)


def kinds(found: Sequence[Finding]) -> set[Kind]:
    """Return the kinds of the findings that do not follow from the one machine."""
    # A busy machine may delay a reply by a second.
    return {finding.kind for finding in found} - ALONE - {Kind.SLOW, Kind.TOO_SLOW}


def message(found: Sequence[Finding], kind: Kind) -> str:
    """Return the message of the one finding of this kind."""
    (finding,) = [finding for finding in found if finding.kind is kind]
    return finding.message


@contextlib.contextmanager
def running(kind: str, *options: str) -> Iterator[EmbeddedMaster]:
    with process(kind, *options) as master:
        yield master


SHORT = 1_000
"""A `max_ttl` in ms whose quarantine is soon over, on masters that another test has restarted."""


async def have_run_for_a_while(masters: list[RealMaster]) -> None:
    """Wait until the quarantine of masters that have just been restarted is over."""
    await until(
        lambda: all(call(each, "INFO", "server")["uptime_in_seconds"] > 4 for each in masters), 60
    )


async def test_healthy_masters_are_fit_and_stay_as_they_were(masters: list[RealMaster]) -> None:
    await have_run_for_a_while(masters)
    for master in masters:
        call(master, "SET", f"{PREFIX}kept", "value")
        call(master, "SCRIPT", "FLUSH")
    facts, found = await examined(urls(masters), max_ttl=SHORT)
    assert kinds(found) == set()
    assert "this machine" in message(found, Kind.ONE_HOST)
    for each, master in zip(facts, masters, strict=True):
        assert each.eligibility is not None
        assert each.eligibility.votes
        assert each.offset is not None
        assert abs(each.offset) < 5
        assert len(each.trips.ms) > 1
        assert (each.missing, each.refusal, each.failure, each.unfinished) == ([], "", "", "")
        assert each.settings == {"appendfsync": "everysec", "no-appendfsync-on-rewrite": "no"}
        assert call(master, "KEYS", "*") == [f"{PREFIX}kept"]
        assert call(master, "INFO", "memory")["number_of_cached_scripts"] == 0


async def test_masters_that_hang_or_are_down_cost_only_their_own_time(
    masters: list[RealMaster],
) -> None:
    masters[0].pause()
    masters[1].pause()
    masters[2].kill()
    began = time.monotonic()
    facts, found = await examined(urls(masters), patience=3.0)
    assert time.monotonic() - began < 20
    assert [bool(each.failure) for each in facts] == [True] * 3 + [False] * 2
    assert facts[0].failure == "no answer in 3 s"
    assert all(each.trips.ms for each in facts[3:])
    assert {Kind.UNREACHABLE, Kind.NO_MAJORITY} <= kinds(found)
    assert message(found, Kind.NO_MAJORITY).endswith(" of 5 can vote, 3 must")


async def test_a_host_that_does_not_exist_is_named() -> None:
    (facts,), found = await examined(["redis://no-such-host.invalid:1"], patience=20.0)
    assert "no-such-host.invalid can't be looked up" in facts.failure or "no answer" in (
        facts.failure
    )
    assert Kind.UNREACHABLE in kinds(found)
    with pytest.raises(OSError, match=r"^\.\.a can't be looked up: "):  # no possible name
        await addresses("..a", 1)


@pytest.mark.parametrize(
    ("host", "address"),
    [("127.0.0.1", "127.0.0.1"), ("0:0:0:0:0:0:0:1", "::1"), ("fe80::1%lo", "fe80::1")],
)
async def test_an_address_has_one_form(host: str, address: str) -> None:
    assert await addresses(host, 1) == (address,)


@pytest.mark.full
async def test_options_in_the_url_do_not_matter(masters: list[RealMaster]) -> None:
    await have_run_for_a_while(masters)
    where = f"{masters[0].url}?decode_responses=true&protocol=3"
    facts, found = await examined([where], max_ttl=SHORT)
    assert kinds(found) == set()
    assert (facts[0].failure, facts[0].unfinished, facts[0].missing) == ("", "", [])


async def test_one_server_behind_two_names(masters: list[RealMaster]) -> None:
    where = urls(masters)[:3]
    where[2] = where[0].replace("127.0.0.1", "localhost")
    _, found = await examined(where)
    assert Kind.SAME_SERVER in kinds(found)


class Balancer(Proxy):
    """Connects its clients to one server after the other."""

    def __init__(self, masters: Sequence[RealMaster]) -> None:
        super().__init__(masters[0].url)
        self._ports = itertools.cycle(urlsplit(master.url).port or 0 for master in masters)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._port = next(self._ports)
        await super()._join(reader, writer)


async def test_one_name_that_leads_to_several_servers(masters: list[RealMaster]) -> None:
    async with Balancer(masters) as balancer:
        (facts,), found = await examined([balancer.url])
    assert Kind.SEVERAL_SERVERS in kinds(found)
    ids = {call(master, "INFO", "server")["run_id"] for master in masters}
    assert {facts.run_id, *facts.others} <= ids
    async with Balancer(masters[:1]) as proxy:
        (facts,), found = await examined([proxy.url])
    assert Kind.SEVERAL_SERVERS not in kinds(found)
    assert facts.unfinished == facts.failure == ""


async def _two_addresses(*_: object) -> list[str]:
    return ["127.0.0.1", "127.0.0.2"]


async def _says_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        await reader.read()
    writer.close()


async def _says_its_id(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"$11\r\nrun_id:abcd\r\n")
    await _says_nothing(reader, writer)


@pytest.mark.parametrize("hangs", [False, True])
async def test_each_address_of_a_name_is_compared(
    kind: str, hangs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(kind) as master:
        monkeypatch.setattr(examination, "look_up", _two_addresses)
        monkeypatch.setattr(examination, "OTHERS_PATIENCE", PATIENCE)
        url, patience = f"redis://localhost:{master.port}", 4.0 if hangs else PATIENCE
        other = _says_nothing if hangs else _says_its_id
        async with await asyncio.start_server(other, "127.0.0.2", master.port):
            (facts,), found = await examined([url], patience=patience)
    assert facts.others == (set() if hangs else {"abcd"})
    assert facts.unfinished == facts.failure == ""
    assert kinds(found) == (set() if hangs else {Kind.SEVERAL_SERVERS})


async def test_each_address_is_compared_though_a_certificate_has_the_name_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates, port = Certificates(tmp_path, "localhost"), free_port()
    secure = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    secure.load_cert_chain(*certificates.server)
    monkeypatch.setattr(examination, "look_up", _two_addresses)
    with running("redis", *tls_options(certificates, port)):
        async with await asyncio.start_server(_says_its_id, "127.0.0.2", port, ssl=secure):
            (facts,), found = await examined([certificates.url(port)])
    assert facts.others == {"abcd"}
    assert Kind.SEVERAL_SERVERS in kinds(found)


async def test_the_other_connections_do_not_read_the_certificates_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop stands still meanwhile, and other masters would seem to be slow."""
    read, make = 0, ssl.create_default_context

    def counted() -> ssl.SSLContext:
        nonlocal read
        read += 1
        return make()

    monkeypatch.setattr(ssl, "create_default_context", counted)
    certificates, port = Certificates(tmp_path), free_port()
    with running("redis", *tls_options(certificates, port)):
        (facts,), _ = await examined([certificates.url(port)])
    assert facts.unfinished == facts.failure == ""
    assert read == 1


async def test_a_server_that_takes_one_connection_only_is_fit(kind: str) -> None:
    with running(kind, "--maxclients", "1") as master:
        (facts,), found = await examined([master.url])
    assert facts.unfinished == facts.failure == ""
    assert kinds(found) == set()


@pytest.mark.full
async def test_a_restarted_master_other_masters_and_another_max_ttl(
    masters: list[RealMaster],
) -> None:
    # The age of each counts: one that another test has restarted has no vote between older ones,
    # and one that started less than a second before a declaration may be any of the masters in it.
    for each in masters:
        each.restart()
    await have_run_for_a_while(masters)
    options = {"key_prefix": PREFIX, "max_ttl": 120_000}
    async with Redlock(urls(masters[:3]), **options) as redlock, redlock.lock("r"):  # type: ignore[arg-type]
        await until(lambda: all(each.votes for each in redlock.statistics().masters))
    facts, found = await examined(urls(masters[:3]))
    assert kinds(found) == {Kind.MAX_TTL}
    assert [declared.same for each in facts for declared in each.sets] == [True] * 3
    _, found = await examined(urls(masters[:3]), max_ttl=120_000)
    assert kinds(found) == set()
    _, found = await examined(urls([masters[0], *masters[3:]]), max_ttl=120_000)
    assert Kind.OTHER_MASTERS in kinds(found)
    _, found = await examined(urls(masters[:4]), max_ttl=120_000)
    assert Kind.CHANGED_MASTERS in kinds(found)
    masters[0].restart()
    facts, found = await examined(urls(masters[:3]), max_ttl=120_000)
    assert kinds(found) == {Kind.QUARANTINE}
    assert [each.eligibility and each.eligibility.votes for each in facts] == [None, True, True]


async def test_eviction_and_persistence(kind: str) -> None:
    memory = ("--maxmemory", "500mb", "--maxmemory-policy", "allkeys-lru")
    with running(kind, *memory) as master:
        assert kinds((await examined([master.url]))[1]) == {Kind.EVICTION}
        found = kinds((await examined([master.url], guard="fsync-always"))[1])
        assert found == {Kind.EVICTION, Kind.FORGETS}
        call(master, "CONFIG", "SET", "appendonly", "yes")
        facts, found_now = await examined([master.url], guard="fsync-always")
        assert facts[0].settings["appendfsync"] == "everysec"
        assert message(found_now, Kind.FORGETS).endswith("appendfsync is everysec")
        call(master, "CONFIG", "SET", "appendfsync", "always")
        assert kinds((await examined([master.url], guard="fsync-always"))[1]) == {Kind.EVICTION}
        call(master, "CONFIG", "SET", "no-appendfsync-on-rewrite", "yes")
        _, found_now = await examined([master.url], guard="fsync-always")
        assert message(found_now, Kind.FORGETS).endswith("no-appendfsync-on-rewrite is yes")


async def test_a_master_without_memory_refuses_to_write(kind: str) -> None:
    with running(kind, "--maxmemory", "1") as master:
        facts, found = await examined([master.url])
        assert facts[0].refusal.startswith("OOM")
        assert kinds(found) == {Kind.REFUSES, Kind.NO_MAJORITY}


async def test_a_master_that_runs_a_script_without_an_end(kind: str) -> None:
    with running(kind, "--lua-time-limit", "10") as master:

        def block() -> None:
            with contextlib.suppress(redis.ResponseError):  # the script is killed
                call(master, "EVAL", "while true do end", "0")

        def is_busy() -> bool:
            try:
                call(master, "PING")
            except redis.ResponseError as error:
                return str(error).startswith("BUSY")
            return False

        blocked = threading.Thread(target=block)
        blocked.start()
        try:
            await until(is_busy, 60)
            facts, found = await examined([master.url])
        finally:
            call(master, "SCRIPT", "KILL")
            blocked.join()
    assert facts[0].refusal.startswith("BUSY")
    assert kinds(found) == {Kind.REFUSES, Kind.NO_MAJORITY}


async def test_a_server_that_does_not_describe_itself() -> None:
    async with speaker(lambda command: b"-ERR closed for %b\r\n" % command[0]) as where:
        facts, found = await examined([f"redis://{where}"])
    assert facts[0].failure == "INFO is answered with: closed for INFO"
    assert {Kind.UNREACHABLE, Kind.NO_MAJORITY} <= kinds(found)


@pytest.mark.parametrize("odd", [b"INFO", b"AUTH default word"])
async def test_a_reply_that_redis_py_cannot_read_is_the_failure_of_its_master(odd: bytes) -> None:
    def answer(command: list[bytes]) -> bytes:
        return NO_KEY if b" ".join(command) == odd else healthy()(command)

    async with speaker(answer) as where:
        (facts,), _ = await examined([f"redis://:word@{where}"])
    assert facts.failure.startswith(UNREADABLE)


async def test_a_reply_that_redis_py_cannot_read_tells_nothing_of_other_servers() -> None:
    examined_by = []

    def answer(command: list[bytes]) -> bytes:
        if command[0] == b"INFO":
            examined_by.append(command)
        return NO_KEY if len(examined_by) > 3 else healthy()(command)

    async with speaker(answer) as where:
        (facts,), _ = await examined([f"redis://{where}"])
    assert facts.others == set()
    assert facts.unfinished == facts.failure == ""


async def test_a_reply_of_a_sentinel_that_redis_py_cannot_read_is_its_failure() -> None:
    async with speaker(lambda _: NO_KEY) as where:
        (facts,), _ = await examined([f"redis+sentinel://{where}/orders"], patience=4)
    assert UNREADABLE in facts.failure


async def test_a_server_that_refuses_each_connection_is_quoted() -> None:
    """As Redis in protected mode does, and a Valkey."""

    async def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"-DENIED Redis is running in protected mode because it is enabled.\r\n")
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        facts, found = await examined([f"redis://127.0.0.1:{port}"])
    assert "DENIED Redis is running in protected mode" in facts[0].failure
    assert {Kind.UNREACHABLE, Kind.NO_MAJORITY} == kinds(found)


@pytest.mark.full
async def test_replicas(kind: str) -> None:
    with (
        running(kind, "--min-replicas-to-write", "1") as master,
        running(kind, "--replicaof", "127.0.0.1", str(master.port)) as replica,
    ):
        await until(lambda: call(replica, "INFO", "replication")["master_link_status"] == "up", 60)
        await until(
            lambda: call(master, "INFO", "replication").get("min_slaves_good_slaves") == 1, 60
        )
        _, found = await examined([master.url])
        assert kinds(found) == {Kind.REPLICAS, Kind.MIN_REPLICAS}
        _, found = await examined([replica.url])
        assert message(found, Kind.ROLE) == "it is not a master but a slave"
        assert kinds(found) == {Kind.ROLE, Kind.NO_MAJORITY}
        replica.kill()
        await until(lambda: call(master, "INFO", "replication")["connected_slaves"] == 0, 60)
        facts, found = await examined([master.url])
        assert facts[0].refusal.startswith("NOREPLICAS")
        assert kinds(found) == {Kind.REFUSES, Kind.NO_MAJORITY}


@pytest.mark.full
async def test_a_node_of_a_cluster(kind: str) -> None:
    bus = str(free_port())
    with running(kind, "--cluster-enabled", "yes", "--cluster-port", bus) as master:
        facts, found = await examined([master.url])
        assert facts[0].refusal.startswith("CLUSTERDOWN")
        assert kinds(found) == {Kind.CLUSTER, Kind.NO_MAJORITY}
        call(master, "CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        await until(lambda: "cluster_state:ok" in str(call(master, "CLUSTER", "INFO")))
        assert kinds((await examined([master.url]))[1]) == {Kind.CLUSTER, Kind.NO_MAJORITY}


@pytest.mark.parametrize("name", ["SET", "EVALSHA", "INFO"])
async def test_a_command_that_was_renamed_is_not_a_matter_of_permissions(
    kind: str, name: str
) -> None:
    with running(kind, "--rename-command", name, "hidden") as master:
        facts, found = await examined([master.url])
    assert message(found, Kind.COMMANDS) == f"it does not know {name}"
    assert facts[0].missing == []
    assert kinds(found) == {Kind.COMMANDS, Kind.NO_MAJORITY}


async def test_a_server_without_hello_has_no_vote_though_it_answers_everything_else(
    kind: str,
) -> None:
    with running(kind, "--rename-command", "HELLO", "hidden") as master:
        _, found = await examined([master.url])
        assert message(found, Kind.COMMANDS) == "it does not know HELLO 3"
        assert kinds(found) == {Kind.COMMANDS, Kind.NO_MAJORITY}
        async with Redlock([master.url]) as redlock:
            (vote,) = redlock.statistics().masters
            assert not vote.votes
            assert "unknown command 'HELLO'" in vote.reason


async def test_a_certificate_that_is_not_accepted_has_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    ours, others = Certificates(tmp_path), Certificates(tmp_path / "other")
    port = free_port()
    with running("redis", *tls_options(ours, port)):
        (facts,), found = await examined([others.url(port)])
    assert "CERTIFICATE_VERIFY_FAILED" in facts.failure
    (finding,) = [each for each in found if each.kind is Kind.UNREACHABLE]
    assert "ssl_ca_certs, ssl_certfile and ssl_keyfile" in finding.kind.advice


@pytest.mark.parametrize("kind", ["sentinel", "cluster"])
async def test_a_sentinel_or_node_whose_certificate_is_not_accepted_is_told_from_a_silent_one(
    tmp_path: Path, kind: str
) -> None:
    (tmp_path / "other").mkdir()
    ours, others = Certificates(tmp_path), Certificates(tmp_path / "other")
    ports = free_port(), free_port()
    url = others.url(ports[0]).replace("rediss:", f"rediss+{kind}:")
    if kind == "sentinel":
        url = url.replace("?", "/mine?")
    url = url.replace(f":{ports[0]}", f":{ports[0]},localhost:{ports[1]}")
    with running("redis", *tls_options(ours, ports[0])):
        _, found = await examined(requirements.each_master([url])[:1])
    unconfirmed = message(found, Kind.UNCONFIRMED)
    assert f"localhost:{ports[0]} ([SSL: CERTIFICATE_VERIFY_FAILED]" in unconfirmed
    assert f"localhost:{ports[1]} (Connection refused at " in unconfirmed


async def test_a_port_that_resets_the_connection_leaves_no_error_for_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # It hides errors that nobody has awaited, unless the collector finalizes their futures first.
    monkeypatch.delattr(asyncio.StreamReaderProtocol, "__del__")

    def reset(server: socket.socket) -> None:
        connection, _ = server.accept()
        connection.recv(1)  # what is left unread makes it a reset
        connection.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"rediss://127.0.0.1:{server.getsockname()[1]}"
        told, _ = await asyncio.gather(
            tls.mismatch(url, PATIENCE), asyncio.to_thread(reset, server)
        )
    assert told == ""
    gc.collect()  # then the loop reports the error: see `nothing_is_left`


async def test_tls_at_one_end_only_is_told_from_a_server_that_hangs(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    with contextlib.ExitStack() as stack:
        ports = free_port(), free_port()
        plain = stack.enter_context(running("redis", *tls_options(certificates, ports[0])))
        # It refuses a client without a certificate during the handshake; later in TLS 1.3.
        options = [*tls_options(certificates, ports[1], mutual=True), "--tls-protocols", "TLSv1.2"]
        mutual = running("redis", *options)
        stack.enter_context(mutual)
        (one, other, hidden), found = await examined(
            [certificates.url(plain.port), *(f"redis://localhost:{port}" for port in ports)],
            patience=12.0,
        )
        assert one.tls == "the URL wants TLS, and the port answers without it"
        assert other.tls == hidden.tls == "the URL is without TLS, and the port speaks TLS"
        assert kinds(found) == {Kind.TLS, Kind.NO_MAJORITY}
        (right,), _ = await examined([certificates.url(ports[0])])
        assert (right.tls, right.failure) == ("", "")
        plain.pause()
        hung, found = await examined(
            [certificates.url(plain.port), f"redis://localhost:{ports[0]}"], patience=4.0
        )
        plain.resume()
    assert [each.failure for each in hung] == ["no answer in 4 s"] * 2
    assert kinds(found) == {Kind.UNREACHABLE, Kind.EVEN, Kind.NO_MAJORITY}


async def test_a_sentinel(kind: str, tmp_path: Path) -> None:
    port = free_port()
    config = tmp_path / "sentinel.conf"
    config.write_text(f"port {port}\nbind 127.0.0.1\n")
    sentinel = start([binary_of(kind), str(config), "--sentinel"], stdout=subprocess.DEVNULL)
    try:
        with redis.Redis(port=port) as client:

            def answers() -> bool:
                with contextlib.suppress(redis.ConnectionError):
                    return bool(client.ping())
                return False

            await until(answers, 60)
        facts, found = await examined([f"redis://127.0.0.1:{port}"])
        assert (facts[0].failure, facts[0].unfinished) == ("", "")
        assert message(found, Kind.ROLE) == "it is a Sentinel"
    finally:
        sentinel.kill()
        sentinel.wait()


async def test_a_wrong_clock(kind: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    library = compiled(tmp_path_factory.mktemp("clock"))
    with contextlib.ExitStack() as stack:
        masters = [stack.enter_context(ClockedMaster(kind, library)) for _ in range(3)]
        masters[1].set_clock(30.0)
        _, found = await examined(urls(masters))
        assert " ms ahead of the median; fencing allows 6700 ms" in message(found, Kind.CLOCK)


PERMISSIONS = requirements.permissions(fencing=True, shared=True)
ALL = (
    *(f"+{command}" for command in PERMISSIONS.commands),
    *(f"~{pattern}" for pattern in (f"{PREFIX}*", *PERMISSIONS.keys)),
    *(f"&{pattern}" for pattern in PERMISSIONS.channels),
)


@pytest.fixture(scope="module")
def server(kind: str) -> Iterator[EmbeddedMaster]:
    with process(kind) as master:
        yield master


def user(master: EmbeddedMaster, allowed: Sequence[str]) -> str:
    """Return the URL of a user that has only these permissions."""
    call(master, "ACL", "SETUSER", "app", "reset", "on", ">secret", "-@all", *allowed)
    return f"redis://app:secret@127.0.0.1:{master.port}"


async def test_the_permissions_of_the_documentation_are_enough(server: EmbeddedMaster) -> None:
    facts, found = await examined([user(server, ALL)])
    assert facts[0].missing == []
    assert kinds(found) == set()
    _, found = await examined([user(server, ALL)], guard="off")
    assert kinds(found) == {Kind.FORGETS}


@pytest.mark.parametrize("missing", ALL)
async def test_each_missing_permission_is_named(server: EmbeddedMaster, missing: str) -> None:
    facts, found = await examined([user(server, [name for name in ALL if name != missing])])
    assert facts[0].missing == [missing]
    optional = {f"+{name}" for name in PERMISSIONS.optional}
    wanted = Kind.WAKING if missing in optional else Kind.PERMISSION
    assert message(found, wanted) == f"its user lacks {missing}"


async def test_a_user_that_may_only_read_a_key_lacks_it(server: EmbeddedMaster) -> None:
    if call(server, "INFO", "server")["redis_version"].startswith("6."):
        pytest.skip("this server has no permissions for reading only")
    rest = [name for name in ALL if name != f"~{PREFIX}*"]
    facts, _ = await examined([user(server, [*rest, f"%R~{PREFIX}*"])])
    assert facts[0].missing == [f"~{PREFIX}*"]


async def test_a_password_that_the_server_does_not_want_is_accepted_as_programs_do(
    kind: str,
) -> None:
    with running(kind) as master:
        where = f"redis://:needless@127.0.0.1:{master.port}"
        async with Redlock([where]) as redlock:
            await redlock.check()
        _, found = await examined([where])
        assert Kind.UNREACHABLE not in kinds(found)
        # So is one of a Sentinel, or of a node of a Cluster.
        assert await sentinels.ask_one(where, [["PING"]], TIMEOUT / 1000) == ([b"PONG"], True)


async def test_a_wrong_password_is_reported_without_it(server: EmbeddedMaster) -> None:
    user(server, ALL)
    where = f"redis://app:wr0ng-secret@127.0.0.1:{server.port}"
    (facts,), found = await examined([where])
    assert facts.failure
    assert "wr0ng" not in repr(facts) + repr(found)
    assert Kind.UNREACHABLE in kinds(found)
