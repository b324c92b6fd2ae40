"""
The name of a master, and how a connection to it is made.

redis-py makes the connections: it knows URLs, TLS, AUTH, HELLO, SELECT, credential
providers and Sentinel. Its retries, health checks, timeouts and pools are not used:
the default of a constructor turns one dead master into seconds of waiting, and a
repeated ``SET NX`` conflicts with itself.

An `Address` is the only place that turns a master into text, and the text holds
no credential.
"""

import asyncio
import contextlib
import errno
import functools
import os
import re
import socket
import ssl
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

from redis.asyncio import Redis, RedisCluster
from redis.asyncio.connection import (
    AbstractConnection,
    Connection,
    ConnectionPool,
    SSLConnection,
)
from redis.asyncio.retry import Retry as RedisRetry
from redis.asyncio.sentinel import (
    Sentinel,
    SentinelConnectionPool,
    SentinelManagedSSLConnection,
)
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    InvalidResponse,
    NoPermissionError,
    ResponseError,
)

from redlock_aio._protocol import replies
from redlock_aio._protocol.cluster_nodes import place
from redlock_aio._protocol.tags import chosen_tags, default_tags
from redlock_aio._rules import urls
from redlock_aio._rules.causes import NoVoteCause
from redlock_aio._rules.quorum import Answer
from redlock_aio._rules.standing import Bar
from redlock_aio._rules.urls import ClusterUrl, MasterUrl
from redlock_aio._rules.validation import described
from redlock_aio._transport.connection import MasterError
from redlock_aio._transport.resolver import is_numeric, look_up

MASTERS, MOST_MASTERS = 3, 21
"""How many primaries of a Redis Cluster are masters by default, and at most."""

_WRONG_OPTION = re.compile(r"unexpected keyword argument '(\w+)'|^Invalid value for '(\w+)' in ")

_CALL_FAILED = re.compile(
    r"(?:Error |\[Errno )(\d+)(?:\]| connecting to \S+\.) Connect call failed \('([^']+)', (\d+)"
)
"""What asyncio says of an address that can't be connected, one by one or all together."""

_CONNECTING = re.compile(r"Error -?\d+ connecting to \S+\. (.+?)\.?", re.DOTALL)
"""What redis-py writes around a message of the system."""

# Settings of a client that are not taken over: those for its parser, retries, timeouts
# and reports, with the ones that newer versions of redis-py have added.
_NOT_TAKEN = frozenset({
    "decode_responses", "encoder_class", "encoding", "encoding_errors", "event_dispatcher",
    "health_check_interval", "himport_registry", "legacy_responses", "maint_notifications_config",
    "maint_notifications_pool_handler", "maintenance_notification_hash", "maintenance_state",
    "oss_cluster_maint_notifications_handler", "orig_host_address", "orig_socket_connect_timeout",
    "orig_socket_timeout", "parser_class", "protocol", "retry", "retry_on_error",
    "retry_on_timeout", "socket_connect_timeout", "socket_timeout",
})  # fmt: skip


def keepalive_options() -> dict[int, int]:
    """
    Return when the system sends a probe: after 30 s without data, up to 3 of them, 5 s apart.

    Networks forget a silent connection, often after 4 minutes, and say nothing. Without probes the
    next lock would be asked of masters that none of its requests reaches.
    """
    # macOS has another name for the first one; elsewhere that may be in other units.
    idle = "TCP_KEEPALIVE" if sys.platform == "darwin" else "TCP_KEEPIDLE"
    options = {idle: 30, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
    return {getattr(socket, k): value for k, value in options.items() if hasattr(socket, k)}


_CERTIFICATE_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_CERTIFICATES = (*_CERTIFICATE_FILES, "ssl_ca_path")
"""The settings that name a file, or a folder, with certificates."""


UNUSABLE_FOR = 5.0
"""
Seconds for which files that can't be used are not read again, unless one of them changes.

Reading them takes about 40 ms, in which the event loop stands still.
"""


class UnconfirmedError(ConnectionError):
    """
    No server was dialled, because too few Sentinels, or nodes of a Cluster, confirm one.

    Args:
        permanent: Whether a person has to change something first, such as a password.
    """

    def __init__(self, text: str, *, permanent: bool = False) -> None:
        super().__init__(text)
        self.permanent = permanent


FROM_SERVER = (MasterError, ResponseError, AuthenticationError, AuthorizationError)
"""The errors of a connection attempt that a server has caused by its replies."""


class Dialler(Protocol):
    """Makes connections to one master: an `Address`, or a fake master."""

    @property
    def secrets(self) -> tuple[str, ...]:
        """The credentials, which no text about this master may contain."""

    async def dial(self) -> tuple[asyncio.Transport, object]:
        """Return a transport that is ready for commands, and an object to keep alive with it."""


@runtime_checkable
class ServiceDialler(Protocol):
    """Makes connections to one master that Sentinels name: a `SentinelAddress`, or a fake one."""

    @property
    def service(self) -> str:
        """The name of the master on the Sentinels."""

    @property
    def sentinels(self) -> Sequence[Dialler]:
        """The diallers of the Sentinels."""

    @property
    def secrets(self) -> tuple[str, ...]:
        """The credentials, which no text about this master may contain."""

    async def dial_to(self, host: str, port: int) -> tuple[asyncio.Transport, object]:
        """Connect to the server at this address; otherwise as `Dialler.dial`."""


class ClusterDialler(Protocol):
    """Makes connections to the nodes of one Redis Cluster: a `ClusterAddress`, or a fake one."""

    @property
    def seeds(self) -> Sequence[tuple[str, int]]:
        """The host and port of each node that the user named."""

    @property
    def prefers_names(self) -> bool:
        """Whether nodes are dialled by the names that they announce, because TLS checks them."""

    @property
    def secrets(self) -> tuple[str, ...]:
        """The credentials, which no text about a node may contain."""

    async def dial_to(self, host: str, port: int) -> tuple[asyncio.Transport, object]:
        """Connect to the node at this address; otherwise as `Dialler.dial`."""


class ClusterMaster:
    """
    One master of a Redis Cluster: the primary that owns the slot of its tag.

    Args:
        of: How many masters there are.
    """

    def __init__(self, cluster: ClusterDialler, tag: bytes, *, of: int) -> None:
        self.cluster: ClusterDialler = cluster
        self.tag: bytes = tag
        self.of: int = of

    def __str__(self) -> str:
        return f"{self.tag.decode()} (by Cluster {self.cluster})"

    def __repr__(self) -> str:
        return f"<ClusterMaster {self}>"

    @property
    def secrets(self) -> tuple[str, ...]:
        return self.cluster.secrets


class NodeAddress:
    """One node of a Redis Cluster."""

    def __init__(self, cluster: ClusterDialler, host: str, port: int) -> None:
        self._cluster = cluster
        self._where = host, port

    def __str__(self) -> str:
        return place(*self._where)

    def __repr__(self) -> str:
        return f"<NodeAddress {self}>"

    @property
    def secrets(self) -> tuple[str, ...]:
        return self._cluster.secrets

    async def dial(self) -> tuple[asyncio.Transport, object]:
        return await self._cluster.dial_to(*self._where)


AnyDialler = Dialler | ServiceDialler | ClusterMaster


class _Tls:
    """
    The certificates and options of TLS connections, shared by all addresses with the same ones.

    Attributes:
        context: That of redis-py, which reads the files when it is used first.
    """

    def __init__(self, context: Any) -> None:
        self.context: Any = context
        self._unusable = ""
        """Why they can't be used, until a file changes, or for some time."""
        self._unusable_until = 0.0

    def read(self, settings: Mapping[str, object]) -> None:
        """Read the files if that was not done; raise an error if they can't be used."""
        now = time.monotonic()
        # After that they are read though no file has changed: this process may have had too many
        # open files, or no right to read one.
        if now > self._unusable_until:
            self._unusable = ""
        if not self._unusable:
            try:
                self.context.get()
            except Exception as error:  # noqa: BLE001 - those of files, of ssl, and of passwords
                why = _which_file(error, settings) or str(error) or type(error).__name__
                self._unusable = f"the TLS options can't be used: {why}"
                self._unusable_until = now + UNUSABLE_FOR
        if self._unusable:
            raise ConnectionError(self._unusable)


@dataclass(frozen=True, slots=True)
class _TlsOptions:
    """All that tells one context from another, and one that has it."""

    values: tuple[object, ...] = field(repr=False)
    """One may be the password of a key."""
    files: tuple[object, ...]
    context: Any = field(compare=False)


@functools.lru_cache(maxsize=16)
def _shared_tls(options: _TlsOptions) -> _Tls:
    return _Tls(options.context)


def _tls_like(context: Any, files: tuple[object, ...]) -> _Tls:
    """
    Return what all addresses use that have the options of *context* and these *files*.

    Five masters would else read all authorities five times, for 0.2 s in all.
    """
    # Where redis-py has lost one, it says so when the context is used.
    values = [getattr(context, name, None) for name in context.__slots__ if name != "context"]
    frozen = tuple(tuple(value) if isinstance(value, list) else value for value in values)
    try:
        return _shared_tls(_TlsOptions(frozen, files, context))
    except TypeError:  # an option has no hash, such as a set of flags
        return _Tls(context)


class _Settings:
    """The connection settings of a user's client or URL."""

    def __init__(self, pool: ConnectionPool, source: object, *, by: str = "") -> None:
        taken = {k: v for k, v in pool.connection_kwargs.items() if k not in _NOT_TAKEN}
        if issubclass(pool.connection_class, Connection) and taken.get("socket_keepalive") is None:
            # By default, as newer versions of redis-py do.
            taken["socket_keepalive"] = True
            options = taken.get("socket_keepalive_options") or keepalive_options()
            taken["socket_keepalive_options"] = options
        self._source = source
        self._by = by
        self._class = _handing_over(looking_up(pool.connection_class))
        # redis-py would wait for the reply, and give up where CLIENT SETNAME is forbidden.
        self.client_name = str(taken.pop("client_name", None) or "")
        # By default, redis-py 8 ends a connection after 5 s, and would cut longer attempts short.
        none = {"socket_timeout": None, "socket_connect_timeout": None}
        self._kwargs = {**taken, **none, "protocol": 3, "retry": RedisRetry(NoBackoff(), 0)}
        self._name = _name(pool)
        self._was_connected = False
        # A class of the user's own may have other certificates for each connection.
        self._keeps_tls = pool.connection_class in (SSLConnection, SentinelManagedSSLConnection)
        self._hung: dict[str, str] = {}
        """By name the address that has used up an attempt to connect."""
        self._tls: _Tls | None = None
        self._tls_files: object = None
        self.secrets = tuple(
            str(taken[key]) for key in ("password", "ssl_password") if taken.get(key)
        )
        made = self._make()  # an unknown setting raises here, not at the first lock
        self.looks_up: tuple[str, int] | None = _looked_up(made)
        """The host name and port that `dial` looks up; ``None`` for an IP address or a socket."""

    def __str__(self) -> str:
        return self._name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name}>"

    def _make(self, **where: object) -> Any:
        connection = self._class(**{**self._kwargs, **where})
        connection.hung = self._hung
        if self._keeps_tls:
            # redis-py reads the certificates of all authorities for each connection, and the event
            # loop stands still meanwhile, for 30 to 50 ms. A master that is down is dialled twice
            # a second. Asked before the files are read: if they change meanwhile, they are read
            # once more.
            files = _states(self._kwargs.get(name) for name in _CERTIFICATES)
            if self._tls is None or files != self._tls_files:
                self._tls, self._tls_files = _tls_like(connection.ssl_context, files), files
            connection.ssl_context = self._tls.context
        return connection

    async def _opened(self, connection: Any) -> tuple[asyncio.Transport, object]:
        try:
            if self._tls is not None:
                self._tls.read(self._kwargs)
            await connection.connect()
            transport, keep = connection.hand_over()
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and connection.address is not None:
                self._hung[connection.host] = connection.address
            await connection.drop()
            if not self._was_connected and (hint := self._hint(error)):
                error.add_note(hint)  # `why_not_connected` adds it to the text
            if isinstance(error, asyncio.CancelledError) and not _is_cancelling():
                # A credential provider has awaited a task that somebody else cancelled. This task
                # goes on: its end would be that of the whole manager.
                raise ConnectionError("the login was cancelled") from error
            raise
        self._was_connected = True
        return transport, keep

    def _hint(self, error: BaseException) -> str | None:
        """Return a hint if the error suggests that only the URL or only the port uses TLS."""
        if issubclass(self._class, SSLConnection):
            # A Redis without TLS waits for the end of a line, until the timeout.
            late = isinstance(error, asyncio.CancelledError | TimeoutError)
            if late or "WRONG_VERSION_NUMBER" in str(error):
                return f"does it speak TLS? if not, write redis{self._by}://"
        elif "path" not in self._kwargs and re.search("Error while reading|closed by", str(error)):
            return f"does it speak TLS? if so, write rediss{self._by}://"
        return None


class Address(_Settings):
    """One master, or one Sentinel, that the user named."""

    async def dial(self) -> tuple[asyncio.Transport, object]:
        return await self._opened(self._make())

    async def dial_any(self, addresses: Sequence[str]) -> tuple[asyncio.Transport, object]:
        """Connect to the first that can be reached of these *addresses*; otherwise as `dial`."""
        connection = self._make()
        connection.addresses = addresses
        return await self._opened(connection)


class SentinelAddress(_Settings):
    """
    One master that Sentinels name.

    redis-py would ask the Sentinels one after the other, and trust the first answer. So
    `sentinels.Sentinels` asks them instead, and passes the confirmed address to `dial_to`.
    """

    def __init__(
        self,
        pool: SentinelConnectionPool,
        source: object,
        sentinels: Sequence[Address],
        *,
        by: str = "",
    ) -> None:
        super().__init__(pool, source, by=by)
        self.service = str(pool.service_name)
        self.sentinels: Sequence[Dialler] = sentinels
        self._name = f"{self.service} (by Sentinel {sentinels[0]})"
        self.secrets += tuple(text for sentinel in self.sentinels for text in sentinel.secrets)

    async def dial_to(self, host: str, port: int) -> tuple[asyncio.Transport, object]:
        connection = self._make()
        connection.connection_pool = _Found(host, port)
        return await self._opened(connection)


class ClusterAddress(_Settings):
    """The nodes of a Redis Cluster; the settings are the same for all of them."""

    def __init__(
        self,
        pool: ConnectionPool,
        source: object,
        seeds: Sequence[tuple[str, int]],
        *,
        by: str = "",
    ) -> None:
        super().__init__(pool, source, by=by)
        self.seeds: Sequence[tuple[str, int]] = tuple(seeds)
        self._name = place(*self.seeds[0])
        context = getattr(self._make(), "ssl_context", None)
        self.prefers_names: bool = bool(getattr(context, "check_hostname", False))

    async def dial_to(self, host: str, port: int) -> tuple[asyncio.Transport, object]:
        return await self._opened(self._make(host=host, port=port))


def chosen_name(dialler: AnyDialler | ClusterDialler) -> str:
    """Return the *client_name* of the user's client or URL; empty if there is none."""
    if isinstance(dialler, ClusterMaster):
        return chosen_name(dialler.cluster)
    return dialler.client_name if isinstance(dialler, _Settings) else ""


def _is_cancelling() -> bool:
    """Return whether the running task is being cancelled, also by its own timeout."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class _Found:
    """Replaces redis-py's Sentinel pool: its master address is fixed."""

    is_master = True
    check_connection = False

    def __init__(self, host: str, port: int) -> None:
        self._where = host, port

    async def get_master_address(self) -> tuple[str, int]:
        return self._where


def _states(named: Iterable[object]) -> tuple[object, ...]:
    """Return what changes with the files that are *named*, and with those of the system."""
    system = ssl.get_default_verify_paths()
    states = list[object]()
    for path in (*named, system.cafile, system.capath):
        state = None
        # It is missing, or no path: redis-py says so when it reads it.
        with contextlib.suppress(OSError, TypeError, ValueError):
            found = Path(path).stat()  # type: ignore[arg-type]
            state = (found.st_ino, found.st_size, found.st_mtime_ns)
        states.append(state)
    return (system, *states)


def _which_file(error: Exception, settings: Mapping[str, object]) -> str:
    """Return which file of the *settings* has led to the *error*; Python's text names none."""
    for name in _CERTIFICATE_FILES:  # OpenSSL accepts a folder that does not exist
        path = settings.get(name) or os.devnull
        try:
            with Path(str(path)).open("rb"):
                pass
        except ValueError:  # a null byte in the path
            continue
        except OSError as found:
            if isinstance(error, OSError) and found.errno == error.errno:
                return f"{found.strerror} ({name}={path})"
    return ""


def _looked_up(connection: Any) -> tuple[str, int] | None:
    host = getattr(connection, "host", None)
    return (host, int(connection.port)) if isinstance(host, str) and not is_numeric(host) else None


def _from_behind(address: str | None, addresses: Sequence[str]) -> Sequence[str]:
    """Return *addresses*, beginning with the one behind *address* if they have that."""
    at = addresses.index(address) + 1 if address in addresses else 0
    return [*addresses[at:], *addresses[:at]]


def looking_up(kind: type[AbstractConnection]) -> Any:
    """Return a subclass of *kind* that uses `resolver`; TLS still checks the host name."""

    class LookingUp(kind):  # type: ignore[valid-type, misc]
        addresses: Sequence[str] = ()
        hung: Mapping[str, str] = MappingProxyType({})
        address: str | None = None

        async def _connect(self) -> None:
            name = _looked_up(self)
            if name is None:
                await super()._connect()
                return
            failed: OSError | None = None
            found = self.addresses or await look_up(*name)
            # An address that swallows packets, such as that of a dead host, or all of a broken
            # IPv6, uses up the attempt. So the next attempt begins with the one behind it.
            for address in _from_behind(self.hung.get(name[0]), found):
                self.address = address
                try:
                    await super()._connect()
                except OSError as error:
                    failed = failed or error
                else:
                    return
            raise failed or OSError(f"{name[0]} has no address")

        def _connection_arguments(self) -> Any:
            """Replace the host by its address; TLS still sends and checks the host name."""
            arguments = dict(super()._connection_arguments())
            if self.address is not None:
                if arguments.get("ssl") is not None:
                    arguments.setdefault("server_hostname", arguments["host"])
                arguments["host"] = self.address
            return arguments

    return LookingUp


def _handing_over(kind: type[AbstractConnection]) -> Any:
    """Return a subclass of *kind* that gives its transport away; it uses few private names."""

    class HandingOver(kind):  # type: ignore[valid-type, misc]
        _reader: asyncio.StreamReader | None
        _writer: asyncio.StreamWriter | None
        _left: asyncio.StreamWriter | None = None

        def hand_over(self) -> tuple[asyncio.Transport, object]:
            writer, self._writer, self._reader = self._writer, None, None
            if writer is None:
                raise ConnectionError("the connection has ended")
            transport: asyncio.Transport = writer.transport  # type: ignore[assignment]
            return transport, writer

        async def disconnect(self, *args: Any, **kwargs: Any) -> None:
            self._left = self._writer or self._left
            await super().disconnect(*args, **kwargs)

        async def drop(self) -> None:
            """End the connection and await its end: asyncio logs an error that is not awaited."""
            writer, self._writer, self._reader = self._writer or self._left, None, None
            if writer is not None:
                writer.transport.abort()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()

    return HandingOver


def _name(pool: ConnectionPool) -> str:
    settings = pool.connection_kwargs
    if path := settings.get("path"):
        # A path need not be UTF-8, but each log, label and span that shows the name must be.
        name = str(path).encode("utf-8", "backslashreplace").decode()
    else:
        name = place(str(settings.get("host", "localhost")), settings.get("port", 6379))
    database = settings.get("db") or 0
    return f"{name}/{database}" if database else name


def address(master: object, *, name: str) -> AnyDialler:
    """
    Return the dialler of *master*.

    Args:
        master: A URL, a `redis.asyncio.Redis` client, or a dialler.
    """
    if isinstance(master, str):
        return _from_url(master, name=name)
    if isinstance(master, Redis):
        pool = master.connection_pool
        if getattr(pool, "is_master", True) is False:
            raise ValueError(f"{name} must be a master, not a Sentinel client for replicas")
        if set("/@") & set(str(pool.connection_kwargs.get("host", ""))):
            raise ValueError(f"{name} has a host that is no host name; Redis.from_url() takes URLs")
        if isinstance(pool, SentinelConnectionPool):
            clients = pool.sentinel_manager.sentinels
            sentinels = [Address(client.connection_pool, client) for client in clients]
            _check_sentinels(sentinels, name=name)
            return SentinelAddress(pool, master, sentinels)
        return Address(pool, master)
    if hasattr(master, "dial") and hasattr(master, "secrets"):
        dialler: Dialler = master
        return dialler
    if isinstance(master, ServiceDialler | ClusterMaster):
        return master
    if isinstance(master, RedisCluster):
        raise TypeError(
            f"{name} can't be a Redis Cluster: Redlock.of_cluster() takes it alone, and makes"
            " several of its primaries the masters"
        )
    raise TypeError(
        f"{name} must be a URL or a redis.asyncio.Redis client, not {described(master)}"
    )


def addresses(
    masters: str | Redis | AnyDialler | Iterable[str | Redis | AnyDialler],
) -> list[AnyDialler]:
    if not isinstance(masters, Iterable) or isinstance(masters, str | bytes):
        masters, alone = [masters], "masters"
    else:
        masters, alone = list(masters), "masters[0]"
    if len(masters) == 1 and isinstance(masters[0], str) and urls.is_of_cluster(masters[0]):
        return list(masters_of(masters[0], name=alone))
    if len(masters) == 1 and alone == "masters":
        return [address(masters[0], name=alone)]
    for i, master in enumerate(masters):
        if isinstance(master, str) and urls.is_of_cluster(master):
            urls.check(master, name=f"masters[{i}]")
            raise ValueError(
                f"masters[{i}] is a Redis Cluster beside other masters: it is named alone, and"
                " several of its primaries are the masters, see Redlock.of_cluster()"
            )
    diallers = [address(master, name=f"masters[{i}]") for i, master in enumerate(masters)]
    if not diallers:
        raise ValueError("masters must name at least one master")
    names = [str(dialler) for dialler in diallers]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"masters must be different servers, but {name} is named twice")
    clusters = {d.cluster if isinstance(d, ClusterMaster) else None for d in diallers}
    if len(clusters) > 1:
        raise ValueError("masters must be of one Redis Cluster, or of none")
    return diallers


def masters_of(
    cluster: str | RedisCluster | ClusterDialler,
    masters: int | None = None,
    tags: Sequence[str] | None = None,
    *,
    name: str = "cluster",
) -> tuple[ClusterMaster, ...]:
    """
    Return the masters that are primaries of a Redis Cluster.

    Args:
        cluster: A URL, a `redis.asyncio.RedisCluster` client, or a dialler.

        masters: How many; ``None`` for the number in the URL, or 3.

        tags: Their tags, without braces; ``None`` for the fixed ones.
    """
    if isinstance(cluster, str):
        urls.check_cluster(cluster, name=name)
        of_url = urls.locate_cluster(cluster)
        masters = of_url.masters if masters is None else masters
        tags = of_url.tags if tags is None else tags
    if masters is None:
        masters = MASTERS if tags is None else len(tags)
    number = masters
    check_number(number)
    made = default_tags(number) if tags is None else chosen_tags(tags, number)
    dialler: ClusterDialler
    if isinstance(cluster, str):
        dialler = _cluster_from_url(cluster, urls.locate_cluster(cluster), name=name)
    elif isinstance(cluster, RedisCluster):
        dialler = _cluster_of(cluster)
    elif hasattr(cluster, "dial_to") and hasattr(cluster, "seeds"):
        dialler = cluster
    else:
        raise TypeError(
            f"{name} must be a URL or a redis.asyncio.RedisCluster client, not {described(cluster)}"
        )
    return tuple([ClusterMaster(dialler, tag, of=number) for tag in made])


def check_number(masters: object) -> None:
    if not isinstance(masters, int) or isinstance(masters, bool):
        raise TypeError(f"masters must be an int, not {described(masters)}")
    if not 1 <= masters <= MOST_MASTERS or masters % 2 == 0:
        raise ValueError(
            f"masters must be an odd number from 1 to {MOST_MASTERS}, not {masters}: an even number"
            " survives the loss of no more than the odd one below it"
        )


def _cluster_of(client: RedisCluster) -> ClusterAddress:
    settings = dict(client.connection_kwargs)
    kind = settings.pop("connection_class", Connection)
    for unused in ("max_connections", "response_callbacks", "host", "port"):
        settings.pop(unused, None)
    seeds = [(str(n.host), int(n.port)) for n in client.nodes_manager.startup_nodes.values()]
    return ClusterAddress(ConnectionPool(connection_class=kind, **settings), client, seeds)


def _cluster_from_url(url: str, named: ClusterUrl, *, name: str) -> ClusterAddress:
    found = None
    try:
        pool = ConnectionPool.from_url(named.server)
        return ClusterAddress(pool, pool, named.seeds, by=named.by)
    except Exception as error:  # noqa: BLE001 - as in `_from_url`
        found = _WRONG_OPTION.search(str(error))
    raise ValueError(f"{name} {urls.wrong_option(url, found and (found[1] or found[2]))}")


def _check_sentinels(sentinels: Sequence[Address], *, name: str) -> None:
    names = [str(sentinel) for sentinel in sentinels]
    if not names:
        raise ValueError(f"{name} names no Sentinel")
    if twice := [named for named in names if names.count(named) > 1]:
        raise ValueError(f"{name} names the Sentinel {twice[0]} twice")


def _from_url(url: str, *, name: str) -> AnyDialler:
    urls.check(url, name=name)
    named = urls.locate(url)
    found, sentinels = None, list[Address]()
    try:
        if not named.service:
            return Address(ConnectionPool.from_url(named.server), None)
        sentinels = [
            Address(ConnectionPool.from_url(each), None, by=urls.BY_SENTINELS)
            for each in named.sentinels
        ]
        pool = _pool_of(named)
        dialler = SentinelAddress(pool, pool, sentinels, by=urls.BY_SENTINELS)
    except Exception as error:  # noqa: BLE001 - TypeError, ValueError, RedisError, as an option has it
        found = _WRONG_OPTION.search(str(error))
    else:
        _check_sentinels(sentinels, name=name)
        return dialler
    # Raised outside the `except`: the error of redis-py may hold a password, and must not
    # become the context of this one.
    raise ValueError(f"{name} {urls.wrong_option(url, found and (found[1] or found[2]))}")


def _pool_of(named: MasterUrl) -> SentinelConnectionPool:
    pool = ConnectionPool.from_url(named.at("localhost", 6379))
    settings = {k: v for k, v in pool.connection_kwargs.items() if k not in {"host", "port"}}
    uses_tls = issubclass(pool.connection_class, SSLConnection)
    # This manager of redis-py asks no Sentinel: `SentinelAddress.dial_to` gets the address.
    return SentinelConnectionPool(named.service, Sentinel([]), ssl=uses_tls, **settings)


def why_not_connected(
    error: Exception, secrets: tuple[str, ...], patience: float | None, *, at: str = ""
) -> Bar:
    """
    Return why no connection to a master was made; the text holds no secret.

    Args:
        patience: The timeout of the connection attempt in seconds, if that is over; ``None`` if
            it is not. A credential provider may have had a timeout of its own.

        at: The address that was dialled, if the name of the master does not have it.
    """
    text = replies.harmless(_without_address(str(error)), secrets)
    cause = _cause_of(error, text)
    late = patience is not None and isinstance(error, TimeoutError) and not text
    hint = "; ".join(["", *getattr(error.__cause__ if late else error, "__notes__", ())])
    if late:
        text = f"no connection in {patience:g} s"
    elif not text:  # as that of most timeouts, also those of a credential provider
        text = type(error).__name__
    elif _is_unknown(text) and ("HELLO" in text or text.startswith("NOPROTO")):
        text = f"the server must be Redis {replies.OLDEST_SERVER} or newer, or any Valkey: {text}"
    elif _is_unknown(text):
        text = f"the server lacks a command that a master needs: {text}"
    elif isinstance(error, InvalidResponse):
        text = f"it does not speak the protocol: {text}"
    elif isinstance(error, AuthenticationError):
        # Without a password servers explain the command HELLO, which nobody has typed.
        missing = text.startswith("HELLO must be called")
        why = "the server wants a password, and none was given" if missing else text
        text = f"authentication failed: {why}"
    if not isinstance(error, FROM_SERVER):
        permanent = isinstance(error, UnconfirmedError) and error.permanent
        # Without a confirmation nothing was dialled.
        if at and at not in text and cause is not NoVoteCause.UNCONFIRMED:
            text = f"{text} at {at}"
        # Each attempt may have a longer timeout, which is no new reason.
        topic = (cause, at, hint) if late else ()
        return Bar(cause, text + hint, answer=Answer.UNREACHABLE, permanent=permanent, topic=topic)
    if isinstance(error, AuthenticationError):
        # A password that was given stays wrong. Without one it is missing, or comes from a
        # credential provider, which may return another one the next time.
        permanent = bool(secrets) or "invalid" not in text
    else:
        known = isinstance(error, MasterError) and error.permanent
        permanent = known or cause is NoVoteCause.FORBIDDEN
    return Bar(cause, text + hint, answer=Answer.ERROR, permanent=permanent)


def _without_address(text: str) -> str:
    """
    Return what the system says, without the address that redis-py and asyncio repeat.

    The vote begins with the name of the master. Each IP address stays once: a host name, or
    Sentinels, may have led to another one than somebody thinks.
    """
    if calls := _CALL_FAILED.findall(text):
        reasons: dict[str, list[str]] = {}
        for number, host, port in calls:
            reasons.setdefault(_described(int(number)), []).append(place(host, port))
        return "; ".join(f"{why} at {', '.join(where)}" for why, where in reasons.items())
    found = _CONNECTING.fullmatch(text)
    return found[1] if found else text


def _described(number: int) -> str:
    """Return the text of an error number, or its name: Windows has none for those of sockets."""
    text = os.strerror(number)
    return errno.errorcode.get(number, text) if text.startswith("Unknown error") else text


def _cause_of(error: Exception, text: str) -> NoVoteCause:
    if isinstance(error, UnconfirmedError):
        return NoVoteCause.UNCONFIRMED
    if not isinstance(error, FROM_SERVER):
        return NoVoteCause.NO_CONNECTION
    if _is_unknown(text):
        return NoVoteCause.UNSUPPORTED
    if isinstance(error, AuthenticationError) or text.startswith("NOAUTH"):
        return NoVoteCause.LOGIN_REFUSED
    if isinstance(error, NoPermissionError) or "NOPERM" in text:
        return NoVoteCause.FORBIDDEN
    return error.cause if isinstance(error, MasterError) else NoVoteCause.SERVER_ERROR


def _is_unknown(text: str) -> bool:
    """Return whether the server does not know a command, or the protocol that HELLO names."""
    return "unknown command" in text.lower() or text.startswith("NOPROTO")
