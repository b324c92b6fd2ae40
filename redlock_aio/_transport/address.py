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
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

from redis.asyncio import Redis, RedisCluster
from redis.asyncio.connection import AbstractConnection, ConnectionPool, SSLConnection
from redis.asyncio.retry import Retry as RedisRetry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    NoPermissionError,
    ResponseError,
)

from redlock_aio._protocol import replies
from redlock_aio._rules import urls
from redlock_aio._rules.causes import NoVoteCause
from redlock_aio._rules.quorum import Answer
from redlock_aio._rules.standing import Bar
from redlock_aio._rules.urls import MasterUrl
from redlock_aio._transport.connection import MasterError
from redlock_aio._transport.resolver import is_numeric, look_up

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


class UnconfirmedError(ConnectionError):
    """No server was dialled, because too few Sentinels confirm one."""


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


AnyDialler = Dialler | ServiceDialler


class _Settings:
    """The connection settings of a user's client or URL."""

    def __init__(self, pool: ConnectionPool, source: object, *, by: str = "") -> None:
        taken = {k: v for k, v in pool.connection_kwargs.items() if k not in _NOT_TAKEN}
        self._source = source
        self._by = by
        self._class = _handing_over(_looking_up(pool.connection_class))
        # redis-py would wait for the reply, and give up where CLIENT SETNAME is forbidden.
        self.client_name = str(taken.pop("client_name", None) or "")
        self._kwargs = {**taken, "protocol": 3, "retry": RedisRetry(NoBackoff(), 0)}
        self._name = _name(pool)
        self._was_connected = False
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

    def _make(self) -> Any:
        return self._class(**self._kwargs)

    async def _opened(self, connection: Any) -> tuple[asyncio.Transport, object]:
        try:
            await connection.connect()
            transport, keep = connection.hand_over()
        except BaseException as error:
            await connection.drop()
            if not self._was_connected and (hint := self._hint(error)):
                error.add_note(hint)  # `why_not_connected` adds it to the text
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


def chosen_name(dialler: AnyDialler) -> str:
    """Return the *client_name* of the user's client or URL; empty if there is none."""
    return dialler.client_name if isinstance(dialler, _Settings) else ""


class _Found:
    """Replaces redis-py's Sentinel pool: its master address is fixed."""

    is_master = True
    check_connection = False

    def __init__(self, host: str, port: int) -> None:
        self._where = host, port

    async def get_master_address(self) -> tuple[str, int]:
        return self._where


def _looked_up(connection: Any) -> tuple[str, int] | None:
    host = getattr(connection, "host", None)
    return (host, int(connection.port)) if isinstance(host, str) and not is_numeric(host) else None


def _looking_up(kind: type[AbstractConnection]) -> Any:
    """Return a subclass of *kind* that uses `resolver`; TLS still checks the host name."""

    class LookingUp(kind):  # type: ignore[valid-type, misc]
        addresses: Sequence[str] = ()
        _address: str | None = None

        async def _connect(self) -> None:
            name = _looked_up(self)
            if name is None:
                await super()._connect()
                return
            failed: OSError | None = None
            for address in self.addresses or await look_up(*name):
                self._address = address
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
            if self._address is not None:
                if arguments.get("ssl") is not None:
                    arguments.setdefault("server_hostname", arguments["host"])
                arguments["host"] = self._address
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
        name = str(path)
    else:
        host = str(settings.get("host", "localhost"))
        name = f"[{host}]" if ":" in host else host
        name += f":{settings.get('port', 6379)}"
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
    if isinstance(master, ServiceDialler):
        return master
    if hasattr(master, "dial") and hasattr(master, "secrets"):
        dialler: Dialler = master
        return dialler
    kind = f"{type(master).__module__}.{type(master).__qualname__}"
    if isinstance(master, RedisCluster):
        raise TypeError(
            f"{name} can't be a Redis Cluster: it may lose locks at a failover without a sign of"
            " it; name servers of their own, or masters behind Sentinel"
        )
    raise TypeError(f"{name} must be a URL or a redis.asyncio.Redis client, not a {kind}")


def addresses(
    masters: str | Redis | AnyDialler | Iterable[str | Redis | AnyDialler],
) -> list[AnyDialler]:
    if not isinstance(masters, Iterable) or isinstance(masters, str | bytes):
        return [address(masters, name="masters")]
    diallers = [address(master, name=f"masters[{i}]") for i, master in enumerate(masters)]
    if not diallers:
        raise ValueError("masters must name at least one master")
    names = [str(dialler) for dialler in diallers]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"masters must be different servers, but {name} is named twice")
    return diallers


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


def why_not_connected(error: Exception, secrets: tuple[str, ...], patience: float) -> Bar:
    """
    Return why no connection to a master was made; the text holds no secret.

    Args:
        patience: The timeout of the connection attempt in seconds.
    """
    text = replies.harmless(_without_address(str(error)), secrets)
    cause = _cause_of(error, text)
    late = isinstance(error, TimeoutError) and not text
    hint = "; ".join(["", *getattr(error.__cause__ if late else error, "__notes__", ())])
    if late:
        text = f"no connection in {patience:g} s"
    elif _is_too_old(text):
        text = f"the server must be Redis {replies.OLDEST_SERVER} or newer, or any Valkey: {text}"
    elif isinstance(error, AuthenticationError):
        text = f"authentication failed: {text}"
    if not isinstance(error, FROM_SERVER):
        return Bar(cause, text + hint, answer=Answer.UNREACHABLE)
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
            place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            reasons.setdefault(os.strerror(int(number)), []).append(place)
        return "; ".join(f"{why} at {', '.join(where)}" for why, where in reasons.items())
    found = _CONNECTING.fullmatch(text)
    return found[1] if found else text


def _cause_of(error: Exception, text: str) -> NoVoteCause:
    if isinstance(error, UnconfirmedError):
        return NoVoteCause.UNCONFIRMED
    if not isinstance(error, FROM_SERVER):
        return NoVoteCause.NO_CONNECTION
    if _is_too_old(text):
        return NoVoteCause.UNSUPPORTED
    if isinstance(error, AuthenticationError) or text.startswith("NOAUTH"):
        return NoVoteCause.LOGIN_REFUSED
    if isinstance(error, NoPermissionError) or "NOPERM" in text:
        return NoVoteCause.FORBIDDEN
    return error.cause if isinstance(error, MasterError) else NoVoteCause.SERVER_ERROR


def _is_too_old(text: str) -> bool:
    return "unknown command" in text.lower() or text.startswith("NOPROTO")
