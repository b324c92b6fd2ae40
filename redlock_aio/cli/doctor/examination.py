"""
Asks the masters, each for a limited time, and all at once; nothing on them is changed.

    Sentinels ──► look up ──► connect ──► INFO ──► marker, declared sets ──► TIME, again and again
             other connections ◄─ permissions ◄─ settings ◄─┘

A master that does not answer costs its own time only: what was asked before is judged.
"""

import asyncio
import contextlib
import ipaddress
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import AuthenticationError, RedisError, ResponseError

from redlock_aio import requirements
from redlock_aio._transport.address import looking_up
from redlock_aio._transport.resolver import look_up
from redlock_aio.cli.doctor import nodes as of_cluster, probes, sentinels, tls
from redlock_aio.cli.doctor.facts import MasterFacts
from redlock_aio.requirements import Permissions

MOST_DECLARED = 262_144
"""The most bytes of the declared sets of masters; a longer value is not of this library."""

SAMPLES = 200
"""The most replies whose time is measured."""

MEASURING = 1.0
"""The most seconds for which they are measured."""

OTHERS = 4
"""How many connections besides the first one may find another server under the same name."""

OTHERS_PATIENCE = 1.0
"""The most seconds for all of these, and at most a quarter of those for the master."""

CLOSING = 1.0
"""The most seconds for which the ends of the connections are awaited."""


@dataclass(frozen=True, kw_only=True)
class Questions:
    """
    What all masters are asked.

    Attributes:
        key_prefix: That of the locks.

        permissions: Those that the locks need.

        patience: The most seconds for each master.
    """

    key_prefix: str
    permissions: Permissions
    patience: float


async def examine_all(
    masters: Sequence[tuple[str, str]], questions: Questions
) -> list[MasterFacts]:
    """
    Return the facts about each master.

    Args:
        masters: The name and the URL of each.

    Cancellation:
        Nothing was changed on any master.
    """
    found = [MasterFacts(name=name) for name, _ in masters]
    examinations = [Examination(facts, questions) for facts in found]
    tasks = [
        asyncio.create_task(examination.run(url))
        for examination, (_, url) in zip(examinations, masters, strict=True)
    ]
    try:
        await asyncio.wait(tasks, timeout=questions.patience)
    finally:
        for task in tasks:
            task.cancel()
    for examination in examinations:
        examination.conclude()
    await asyncio.wait(tasks, timeout=CLOSING)
    for task in tasks:
        if task.done() and not task.cancelled():
            task.result()  # an error in this program is not a finding
    return found


class Examination:
    """
    The examination of one master.

    Args:
        facts: Where to write what is found.
    """

    def __init__(self, facts: MasterFacts, questions: Questions) -> None:
        self._facts = facts
        self._questions = questions
        self._connection: Any = None
        self._pool: Any = None
        self._server = ""
        self._steps = {
            "INFO": self._info,
            "its marker": self._marker,
            "latency and clock": self._times,
            "settings": self._settings,
            "permissions": self._permissions,  # after it the connection only subscribes
            "other connections": self._others,
        }
        self._left = list(self._steps)

    def __repr__(self) -> str:
        return f"<Examination of {self._facts.name}>"

    async def run(self, url: str) -> None:
        """
        Ask the master everything, until it is cancelled because its time is over.

        Cancellation:
            The connection is closed.
        """
        try:
            await self._connect(url)
            for name, step in self._steps.items():
                await step()
                self._left.remove(name)
                if self._facts.is_sentinel:
                    self._left.clear()  # it knows none of the other commands
                    break
        except (OSError, RedisError) as error:
            # The first reply says more than how the connection ended.
            self._facts.failure = self._facts.failure or str(error) or type(error).__name__
            refused = isinstance(error, AuthenticationError | ResponseError)
            if not (self._facts.is_known or self._facts.tls or refused):
                await self._compare_protocols()
        finally:
            if self._connection is not None:
                with contextlib.suppress(OSError, RedisError):
                    await self._connection.disconnect(nowait=True)

    def conclude(self) -> None:
        """Write down what the master was not asked in time."""
        facts = self._facts
        answers = facts.sentinels or facts.cluster
        if facts.failure or facts.tls or not self._left or (answers and not answers.host):
            return
        if facts.is_known:
            facts.unfinished = ", ".join(self._left)
        else:
            facts.failure = f"no answer in {self._questions.patience:g} s"

    async def _connect(self, url: str) -> None:
        """
        Connect to the master, whose Sentinels, or nodes of its Cluster, are asked first.

        Raises:
            OSError, RedisError: The server could not be reached, or refused the login.
        """
        named, patience = requirements.parse_url(url), self._questions.patience
        self._server, self._facts.service = named.server, named.service
        if named.service:
            answers, self._facts.tls = await sentinels.asked(named, patience / 4)
            self._facts.sentinels = answers
            if not answers.host:
                raise ConnectionError(answers.text)
            self._server = named.at(answers.host, answers.port)
        elif named.tag:
            self._facts.service = named.tag
            nodes, self._facts.tls = await of_cluster.asked(named, patience / 8)
            self._facts.cluster = nodes
            if not nodes.host:
                raise ConnectionError(nodes.text)
            self._server = named.at(nodes.host, nodes.port)
        connecting = asyncio.create_task(self._dial())
        try:
            done, _ = await asyncio.wait([connecting], timeout=patience / 2)
            if not done:
                await self._compare_protocols()
            if self._facts.tls:
                raise ConnectionError(self._facts.tls)
            await connecting
        finally:
            connecting.cancel()
            await asyncio.gather(connecting, return_exceptions=True)

    async def _compare_protocols(self) -> None:
        """Find out whether only the URL or only the port uses TLS."""
        if self._server:
            self._facts.tls = await tls.mismatch(self._server, self._questions.patience / 4)

    async def _dial(self) -> None:
        self._pool = sentinels.pool_of(self._server)
        settings = self._pool.connection_kwargs
        if host := settings.get("host"):
            self._facts.hosts = await addresses(str(host), int(settings.get("port", 6379)))
        self._connection = self._new_connection()
        with sentinels.readable_replies():
            await self._connection.connect()

    def _new_connection(self) -> Any:
        connection = self._pool.make_connection()
        # Without CLIENT SETINFO, whose reply redis-py ignores: it may be why no other one comes.
        connection.lib_name = connection.lib_version = connection.driver_info = None
        # To read the certificates stops the event loop, and other masters are being measured.
        if hasattr(self._connection, "ssl_context"):
            connection.ssl_context = self._connection.ssl_context
        return connection

    async def _ask(self, *words: str) -> object:
        await self._connection.send_command(*words)
        try:
            with sentinels.readable_replies():
                reply: object = await self._connection.read_response()
        except probes.ERRORS as error:
            self._facts.refusal = self._facts.refusal or probes.refusal(error)
            return error
        return reply

    @property
    def _tag(self) -> str:
        """The tag of the master of a Cluster; empty for others."""
        return "" if self._facts.cluster is None else self._facts.service

    @property
    def _key_prefix(self) -> str:
        """What all keys of locks on this master begin with."""
        return self._tag + self._questions.key_prefix

    async def _info(self) -> None:
        reply = await self._ask("INFO")
        if isinstance(reply, bytes):
            self._facts.info = _fields(reply)
            self._facts.raw_info = reply
        probe = probes.PermissionProbe("+info", ("INFO",))
        explained = self._facts.refusal or probe.is_denied(reply) or probe.is_unknown(reply)
        if not (self._facts.is_known or explained):
            self._facts.failure = f"INFO is answered with: {reply!s:.100}"

    async def _marker(self) -> None:
        self._facts.marker = _text(
            await self._ask("GETRANGE", f"{requirements.MARKER_KEY}{self._tag}", "0", "4096")
        )
        key = f"{requirements.DECLARED_KEY}{self._key_prefix}"
        reply = await self._ask("GETRANGE", key, "0", str(MOST_DECLARED))
        self._facts.declared = _text(reply)

    async def _times(self) -> None:
        """Measure the round trips of TIME, which narrow the bounds of the clock as well."""
        taken: list[float] = []
        ends = time.monotonic() + MEASURING
        while len(taken) < SAMPLES and time.monotonic() < ends:
            sent, began = time.time(), time.perf_counter()
            reply = await self._ask("TIME")
            took = time.perf_counter() - began
            match reply:
                case [bytes(seconds), bytes(micros)]:
                    self._facts.on_time(int(seconds) + int(micros) / 1e6, sent, sent + took)
                    taken.append(took * 1000)
                    self._facts.round_trips = taken
                case _:
                    return

    async def _permissions(self) -> None:
        name = f"redlock-doctor:{secrets.token_hex(8)}"
        questions = self._questions
        self._facts.missing, self._facts.unknown = await probes.missing(
            self._ask, questions.permissions, self._key_prefix, name, tag=self._tag
        )

    async def _others(self) -> None:
        """
        Find out whether further connections reach other servers, as those of a balancer.

        Programs that find several addresses for a name may use different ones, too.
        """
        hosts = self._facts.hosts[:OTHERS] if len(self._facts.hosts) > 1 else ()
        # All are open at once: a balancer may choose the server with the fewest connections.
        connections = [self._new_connection() for _ in range(OTHERS)]
        self._pool.connection_class = looking_up(self._pool.connection_class)
        for host in hosts:
            connections.append(self._new_connection())
            connections[-1].addresses = [host]
        asked = [asyncio.create_task(_run_id(connection)) for connection in connections]
        try:
            # The master has answered all else: a hung address must not use up its time.
            patience = min(OTHERS_PATIENCE, self._questions.patience / 4)
            await asyncio.wait(asked, timeout=patience)
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
            for connection in connections:
                with contextlib.suppress(OSError, RedisError):
                    await connection.disconnect(nowait=True)
        found = {task.result() for task in asked if not task.cancelled()}
        self._facts.others = found - {"", self._facts.run_id}

    async def _settings(self) -> None:
        wanted = ["*appendfsync*"]  # two settings
        if self._tag:
            wanted += ["cluster-require-full-coverage", "cluster-node-timeout"]
        for pattern in wanted:
            reply = await self._ask("CONFIG", "GET", pattern)
            if isinstance(reply, list):
                words = [w.decode("utf-8", "replace") for w in reply if isinstance(w, bytes)]
                self._facts.settings |= dict(zip(words[::2], words[1::2], strict=False))


async def _run_id(connection: Any) -> str:
    """Return the `run_id` of the server to which *connection* leads; empty if it is not known."""
    try:
        with sentinels.readable_replies():
            await connection.connect()
            await connection.send_command("INFO", "server")
            reply = await connection.read_response()
    except (OSError, RedisError):
        return ""  # such as maxclients: one connection is enough for programs
    return _fields(reply).get("run_id", "") if isinstance(reply, bytes) else ""


def _fields(info: bytes) -> dict[str, str]:
    lines = info.decode("utf-8", "replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def _text(reply: object) -> bytes | None:
    return reply if isinstance(reply, bytes) and reply else None


async def addresses(host: str, port: int) -> tuple[str, ...]:
    """
    Return the IP addresses of *host*, each written in one form only, and without a scope.

    Raises:
        OSError: It has none.
    """
    try:
        found = await look_up(host, port)
    except (OSError, UnicodeError) as error:
        raise OSError(f"{host} can't be looked up: {error}") from None
    parsed = [ipaddress.ip_address(address.partition("%")[0]) for address in found]
    return tuple(dict.fromkeys(map(str, parsed)))
