"""
The requirements on a master, and the meaning of what the library has written there.

For tools that check masters before locks depend on them. Nothing here sends a command: the
caller reads ``INFO`` and two keys, and passes the replies.
"""

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from redlock_aio._protocol.cluster_nodes import NodeList, members, place, read_nodes
from redlock_aio._protocol.commands import DECLARED_SETS as _DECLARED, MARKER as _MARKER
from redlock_aio._protocol.confirmation import (
    CONFIRMED_FOR as _CONFIRMED_FOR,
    Confirmation,
    questions as _questions,
    read_answer,
    statement_of,
)
from redlock_aio._protocol.replies import OLDEST_SERVER as _OLDEST
from redlock_aio._protocol.tags import slot as cluster_slot
from redlock_aio._rules import membership, quarantine, timing, urls
from redlock_aio._rules.fencing import LEAD_SHARE as _SHARE, SHORTEST_LEAD as _SHORTEST
from redlock_aio._rules.membership import Addresses, Known, Place
from redlock_aio._rules.quarantine import Marker, Seen
from redlock_aio._rules.server_info import ServerInfo
from redlock_aio._rules.timing import LONGEST_TIMEOUT as _LONGEST, RoundTrips
from redlock_aio._rules.urls import MasterUrl
from redlock_aio._transport.address import masters_of

__all__ = (
    "DECLARED_KEY",
    "LONGEST_TIMEOUT",
    "MARKER_KEY",
    "OLDEST_VERSION",
    "ClusterAnswers",
    "DeclaredSet",
    "Eligibility",
    "KnownMaster",
    "MasterUrl",
    "Permissions",
    "SentinelAnswers",
    "clock_tolerance",
    "cluster_answers",
    "cluster_question",
    "declared_sets",
    "each_master",
    "eligibility",
    "learned_timeout",
    "moved_addresses",
    "parse_url",
    "permissions",
    "sentinel_answers",
    "sentinel_questions",
    "split_urls",
)

OLDEST_VERSION: int = _OLDEST
"""The oldest major version of Redis that the library works with; any Valkey will do."""

LONGEST_TIMEOUT: int = _LONGEST
"""The longest *master_timeout* in ms that a manager learns by itself."""

MARKER_KEY: str = _MARKER.decode()
"""The key of the restart guard's marker."""

DECLARED_KEY: str = _DECLARED.decode()
"""The key of the declared sets of masters, to which the *key_prefix* is appended."""

MasterUrl.__module__ = __name__  # for its repr, and for pickle

_PLAIN = (
    "evalsha", "script|load", "get", "getrange", "set", "del", "pexpire", "pttl", "time", "info",
    "ping", "client|tracking", "client|caching",
)  # fmt: skip
_WAKING = ("client|tracking", "client|caching")
_FAIR = (
    "publish", "subscribe", "unsubscribe", "zadd", "zrem", "zrank", "zrange", "zrangebyscore",
)  # fmt: skip
_SHARED = ("zscore",)
_SEMAPHORES = ("zcard",)
_LINE = re.compile(rb"(\d{1,20}) (\d{1,20}) (\d{1,20}) ([^\n]+)\n")
_LONGEST_ENTRY = 10**12
_LONGEST_VALUE = 262_144


@dataclass(frozen=True, slots=True)
class Permissions:
    """
    The permissions (ACL) that the user of a master needs; see `permissions`.

    Attributes:
        commands: The commands, as ``ACL SETUSER`` names them.

        optional: The commands among these without which waiters are woken later, and losses
            are noticed later; locks work nevertheless.

        keys: The patterns of keys beside those of the locks, without the ``~``.

        channels: The patterns of channels, without the ``&``.
    """

    commands: tuple[str, ...]
    optional: tuple[str, ...]
    keys: tuple[str, ...]
    channels: tuple[str, ...]


def permissions(
    *,
    fencing: bool = False,
    fair: bool = False,
    shared: bool = False,
    semaphores: bool = False,
    cluster: bool = False,
) -> Permissions:
    """
    Return the permissions that locks need.

    Args:
        fencing: Whether some locks have ``fencing=True``.

        fair: Whether some locks have ``fair=True``, or are inspected or released by force.

        shared: Whether some locks have ``shared=True``. These need also what *fair* does.

        semaphores: Whether there are semaphores (``permits=``). These need also what *fair* does.

        cluster: Whether the masters are primaries of a Redis Cluster. The patterns for the keys
            of locks begin with the tags then.
    """
    fair = fair or shared or semaphores
    if fair:
        keys, channels = ["redlock_aio:*"], ["redlock_aio:wake:*"]
    else:
        marker = f"{MARKER_KEY}*" if cluster else MARKER_KEY
        keys, channels = [marker, f"{DECLARED_KEY}*"], list[str]()
        keys += ["redlock_aio:fence:*"] if fencing else []
    commands = [*_PLAIN, *(_FAIR if fair else ()), *(_SHARED if shared else ())]
    commands += [name for name in _SEMAPHORES if semaphores and name not in commands]
    commands += ["cluster|nodes"] if cluster else []
    return Permissions(tuple(commands), _WAKING, tuple(keys), tuple(channels))


def split_urls(text: str) -> list[str]:
    """
    Return the URLs of masters in a text that has commas between them, such as a variable.

    A comma separates two URLs only if a scheme and ``://`` follow it. So the commas between the
    Sentinels of one master stay: ``redis+sentinel://s1,s2,s3/mymaster,redis://a`` are two URLs.
    White space and empty parts between URLs are dropped. What is no URL is not reported here.
    """
    return urls.split(text)


def each_master(masters: Sequence[str]) -> list[str]:
    """
    Return one URL for each master: that of a Redis Cluster, alone, is one for each tag.

    Raises:
        ValueError: `Redlock` would not accept the URL of the Cluster either.
    """
    if len(masters) != 1 or not urls.is_of_cluster(masters[0]):
        return [*masters]
    of_cluster = masters_of(masters[0], name="masters[0]")
    tags = [master.tag.decode().strip("{}") for master in of_cluster]
    return [urls.with_tag(masters[0], tag) for tag in tags]


def parse_url(url: str) -> MasterUrl:
    """
    Return the servers that the URL of a master names, as URLs that redis-py can read.

    Raises:
        ValueError: `Redlock` would not accept *url* either; the text shows no part of a password.
    """
    urls.check(url, name="url")
    return urls.locate(url)


def clock_tolerance(*, max_ttl: int = timing.MAX_TTL, drift_factor: float = 0.01) -> int:
    """
    Return the ms by which a master's clock may differ from the median of all masters' clocks.

    A master beyond that may refuse locks with ``fencing=True``. It is an eighth of the
    quarantine after a restart, at least 2 s, less 1 s for the rounding of an acquisition.
    """
    lead = timing.forgetting(max_ttl, factor=drift_factor) * _SHARE
    return math.floor(max(lead, _SHORTEST / 1_000_000) * 1000) - 1000


def learned_timeout(round_trips: Sequence[Sequence[float]]) -> int:
    """
    Return the *master_timeout* in ms that a manager learns from the round trips to its masters.

    A minority that is far slower than the others raises it only so far, see `Redlock`.

    Args:
        round_trips: Those to each master in ms, in the order of their measurement; none for a
            master that was not reached.
    """
    trips = RoundTrips(len(round_trips))
    for number, measured in enumerate(round_trips):
        for ms in measured[:1]:
            trips.begin(number, ms)
        for ms in measured[1:]:
            trips.learn(number, ms)
    return trips.timeout


@dataclass(frozen=True, slots=True)
class Eligibility:
    """
    Whether a master has a vote, as `eligibility` finds it.

    Attributes:
        votes: Whether it has a vote; ``None`` if that depends on the other masters: it has
            started a short time ago and has no marker, so it has a vote only if all of
            them are new.

        reason: Why it has no vote; empty if it has one.

        seconds: The longest time in seconds until it has a vote; infinite if it has none
            until a person changes something.

        max_ttl: The longest *max_ttl* in ms of the programs that have used the master;
            ``None`` if it has no marker, or one without that.
    """

    votes: bool | None
    reason: str
    seconds: float
    max_ttl: int | None


def eligibility(  # noqa: PLR0913 - facts about the master, and options of the program
    info: bytes,
    marker: bytes | None,
    *,
    max_ttl: int = timing.MAX_TTL,
    drift_factor: float = 0.01,
    strict: bool = False,
    time: float | None = None,
    epoch: int | None = None,
    of_slot: bool = False,
) -> Eligibility:
    """
    Return whether a master has a vote for a program that starts now with the restart guard.

    Args:
        info: The master's reply to ``INFO``.

        marker: The value of `MARKER_KEY`; ``None`` or empty if there is none.

        max_ttl: As for `Redlock`, in ms.

        drift_factor: As for `Redlock`.

        strict: Whether the restart guard is ``"strict"``.

        time: The master's clock in seconds, if ``INFO`` does not tell it, as on Redis 6.0.

        epoch: `SentinelAnswers.epoch` or `ClusterAnswers.epoch`, if the program names the master
            by its Sentinels, or by nodes.

        of_slot: Whether it is the master of a Redis Cluster.
    """
    facts, found = ServerInfo.parse(info), Marker.parse(marker or None)
    if facts.time is None and time is not None:
        facts = replace(facts, time=math.floor(time * 1_000_000))
    length = timing.forgetting(max_ttl, factor=drift_factor)
    longest = None
    if found is not None and found.quarantine_ms:
        longest = round((found.quarantine_ms / 1000 - 1) / (1 + drift_factor) * 1000)
        length = max(length, found.quarantine_ms / 1000)
    if epoch is not None:
        facts = facts.in_slot(epoch) if of_slot else facts.in_epoch(epoch)
        length += _CONFIRMED_FOR  # for so long an old master may have granted locks
    if facts.objection is not None:
        _, text = facts.objection
        return Eligibility(False, text, math.inf, longest)
    verdict = quarantine.judge(facts, found, Seen(), 0.0, quarantine=length, strict=strict)
    if verdict.state is quarantine.MEMBER:
        return Eligibility(True, "", 0.0, longest)
    bar = quarantine.bar(verdict.reason, ago=facts.uptime or 0, until=verdict.seconds)
    reason = bar.describe(0.0)
    votes = None if verdict.state is quarantine.UNDECIDED else False
    return Eligibility(votes, reason, verdict.seconds, longest)


@dataclass(frozen=True, slots=True)
class SentinelAnswers:
    """
    What the Sentinels of a master have answered; see `sentinel_answers`.

    Attributes:
        host: The host of the server that a majority of them names; empty if there is none.

        port: Its port.

        epoch: The number of its last failover; ``None`` if there is no such server.

        complete: Whether all of them name this server.

        text: How many of them name it, and the answer of each of the others.

        caution: Why they are not all Sentinels of the master, each named once; empty if they
            are, as far as they know.
    """

    host: str
    port: int
    epoch: int | None
    complete: bool
    text: str
    caution: str


def sentinel_questions(service: str) -> tuple[tuple[str, ...], ...]:
    """Return the commands that each Sentinel of a master is asked; *service* is its name there."""
    return _questions(service)


def sentinel_answers(replies: Mapping[str, Sequence[object] | str]) -> SentinelAnswers:
    """
    Return what the Sentinels of a master agree on, as programs judge it.

    Args:
        replies: The replies of each Sentinel to `sentinel_questions`, in bytes, where an error is
            an exception; or a text that says why it has not answered. The keys are the names
            of all Sentinels, without credentials.
    """
    said = Confirmation(list(replies))
    named: list[object] = []
    for number, reply in enumerate(replies.values()):
        if isinstance(reply, str):
            said.failed(number, reply)
            named.append(None)
        else:
            said.on_answer(number, answer := read_answer(reply, 0.0))
            named.append(answer.configuration)
    found = said.current(0.0)
    text = said.describe(found, 0.0)
    if found is None:
        return SentinelAnswers("", 0, None, complete=False, text=text, caution=said.caution)
    complete = set(named) == {found}
    return SentinelAnswers(found.host, found.port, found.epoch, complete, text, said.caution)


@dataclass(frozen=True, slots=True)
class ClusterAnswers:
    """
    What the nodes of a Redis Cluster have answered about one master; see `cluster_answers`.

    Attributes:
        host: The host of the node that a majority of them names as the owner of the slot; empty
            if there is none.

        port: Its port.

        epoch: Its configuration epoch; ``None`` if there is no such node.

        complete: Whether all of them name this node.

        text: How many of them name it, and the answer of each of the others.

        nodes: The host and port of each node, as far as they are known.

        slot: The slot of the master's tag.

        slots: The first and last slot of each range of each primary, by its address.
    """

    host: str
    port: int
    epoch: int | None
    complete: bool
    text: str
    nodes: tuple[tuple[str, int], ...]
    slot: int
    slots: Mapping[str, tuple[tuple[int, int], ...]]


def cluster_question() -> tuple[str, ...]:
    """Return the command that each node of a Redis Cluster is asked."""
    return ("CLUSTER", "NODES")


def cluster_answers(
    tag: str, replies: Mapping[tuple[str, int], object], *, tls: bool = False
) -> ClusterAnswers:
    """
    Return what the nodes of a Redis Cluster agree on, as programs judge it.

    Args:
        tag: That of the master, with braces.

        replies: The reply of each node to `cluster_question`, in bytes, where an error is an
            exception; or a text that says why it has not answered. The keys are the addresses
            at which they were asked.

        tls: Whether nodes are found by the names that they announce.
    """
    slot, said = cluster_slot(tag.encode()), Confirmation(kind="nodes confirm")
    lists, reasons = list[NodeList](), dict[tuple[str, int], str]()
    for (host, port), reply in replies.items():
        found = reply
        if not isinstance(reply, str):
            found = read_nodes(reply, 0.0, at=host, prefers_names=tls)
        if isinstance(found, NodeList):
            lists.append(found)
        else:
            reasons[host, port] = str(found)
    nodes = members(lists) if lists else {}
    names = {id_: place(node.host, node.port) for id_, node in nodes.items()}
    said.set_voters(names or {place(*where): place(*where) for where in replies})
    for where, reason in reasons.items():
        for voter in [i for i, n in nodes.items() if (n.host, n.port) == where] or (
            [] if nodes else [place(*where)]
        ):
            said.failed(voter, reason)
    named: dict[str, object] = {}  # one that was asked at two addresses has one vote
    for each in lists:
        answer = statement_of(each, slot)
        named[each.by] = answer.configuration
        if each.by in nodes:
            said.on_answer(each.by, answer)
    current = said.current(0.0)
    return ClusterAnswers(
        "" if current is None else current.host,
        0 if current is None else current.port,
        None if current is None else current.epoch,
        complete=current is not None and all(named.get(id_) == current for id_ in nodes),
        text=said.describe(current, 0.0),
        nodes=tuple([(node.host, node.port) for node in nodes.values() if node.host]),
        slot=slot,
        slots={names[i]: node.slots for i, node in nodes.items() if node.is_primary and node.slots},
    )


@dataclass(frozen=True, slots=True)
class KnownMaster:
    """
    A master as a program knows it, to be compared with `declared_sets`.

    Attributes:
        name: Its name without credentials, as in `Vote.master`; behind Sentinels, its service;
            in a Redis Cluster, its tag with braces.

        run_id: The ``run_id`` in its ``INFO``, in a Redis Cluster with the tag behind it; empty if
            it was not reached.

        uptime: The ``uptime_in_seconds`` there; ``None`` if it was not reached.
    """

    name: str
    run_id: str = ""
    uptime: int | None = None


@dataclass(frozen=True, slots=True)
class DeclaredSet:
    """
    A set of masters that a program has declared on a master; see `declared_sets`.

    Attributes:
        masters: The names of the masters, without credentials.

        ago: How many ms ago the set was declared last, by the clock of the master.

        same: Whether it is the set with which it was compared.

        conflicts: Whether a majority of one set may share no master with a majority of the
            other, so that the program that came second loses votes.
    """

    masters: tuple[str, ...]
    ago: int
    same: bool
    conflicts: bool


def declared_sets(
    value: bytes | None, masters: Sequence[KnownMaster], *, time: float
) -> list[DeclaredSet]:
    """
    Return the sets of masters that count on a master, compared with a set of one's own.

    Args:
        value: The value of the key `DECLARED_KEY` with the *key_prefix*; ``None`` if there
            is none.

        masters: The set of one's own.

        time: The clock of the master that has the value, in seconds.
    """
    if value is None or len(value) > _LONGEST_VALUE:  # not written by the library
        return []
    ours = tuple(Place(master.name, master.run_id) for master in masters)
    lines = list(_lines(value, time))
    known = Known(
        first={Place(names[0], run_id): math.inf for names, run_id, _ in lines if run_id},
        servers={Place(names[0], run_id): math.inf for names, run_id, _ in lines if run_id},
    )
    return [
        DeclaredSet(
            names,
            ago,
            same=membership.is_same(ours, names, known),
            conflicts=membership.conflicts(ours, names, known),
        )
        for names, run_id, (_, ago) in lines
        if not run_id
    ]


def moved_addresses(value: bytes | None, *, time: float) -> list[str]:
    """
    Return the addresses that lead programs to different servers, all of which are in use.

    Each of two such servers was written on the master after the other one had come there, so
    neither is merely the other one's successor after a restart.

    Args:
        value: As for `declared_sets`.

        time: As for `declared_sets`.
    """
    if value is None or len(value) > _LONGEST_VALUE:
        return []
    servers = [(names[0], *times) for names, run_id, times in _lines(value, time) if run_id]
    return sorted(
        {
            one
            for (one, came, ago), (other, later, last) in itertools.combinations(servers, 2)
            if one == other and ago < later and last < came
        }
    )


def _lines(value: bytes, time: float) -> Iterator[tuple[Addresses, str, tuple[int, int]]]:
    """Yield the lines that count, each with the ms since it came and since it was written last."""
    now = math.floor(time * 1000)
    for begun, at, lives, text in _entries(value):
        line = membership.parse(text)
        # The same test as in the script that reads this key for the library.
        if line is not None and abs(now - at) < lives and begun < now + 1000:
            yield *line, (max(now - begun, 0), max(now - at, 0))


def _entries(value: bytes) -> Iterable[tuple[int, int, int, bytes]]:
    for begun, at, lives, text in _LINE.findall(value):
        if int(lives) < _LONGEST_ENTRY:
            yield int(begun), int(at), int(lives), text
