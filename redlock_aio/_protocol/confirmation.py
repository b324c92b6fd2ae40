"""
Decide by a majority of the Sentinels, or of the nodes of a Cluster, who is the master.

A master that was replaced does not know that while it is cut off or paused, and answers its
clients as before. Therefore a master behind Sentinel votes only while a majority of the named
Sentinels has confirmed it within the last `CONFIRMED_FOR` seconds, called c here:

    a Sentinel's answer       counts until c after the question was sent
    a master is confirmed     while the answers of a majority of the Sentinels count
    a promoted master votes   c later than one that has restarted

Why that is enough: client A uses the old master, client B the new one. Both have the
answers of a majority, so one Sentinel has answered both. Its configuration epoch never goes
back: it named the old master to A before it named the new one to B. Hence A's
confirmation, and the last command that A sends under it, ends no later than c after B
learned of the new master. A lease from then lives for *max_ttl* at most, and B waits for
*max_ttl* besides c. A single Sentinel is not enough: on the old master's side of a
partition it confirms the old master for ever.

In a Redis Cluster all of its nodes, primaries and replicas, take the place of the Sentinels:
the owner of a slot and its epoch are what each of them confirms. A node keeps both on its
disk, and changes the owner only for one with a higher epoch. The primaries alone would not
do, because a failover changes which nodes these are: of {A, B, C} and then {R, B, C} the
majorities {A, B} and {R, C} have no node in common. Nodes that join or leave change the
voters: see `Confirmation.set_voters`.

The epoch belongs to the confirmation. If the same address is confirmed again in the
same epoch, no other server was the confirmed master in between, whatever happened to
the Sentinels: it votes at once. In a later epoch another server was the master in
between, and this one may lack the locks that were granted there.

Nothing here asks a server or reads a clock; instants are seconds on the clock of
leases.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from redlock_aio._protocol.cluster_nodes import NodeList, Owner, is_host, place
from redlock_aio._protocol.replies import harmless
from redlock_aio._protocol.request import pack
from redlock_aio._rules.quorum import is_permanent, majority

CONFIRMED_FOR = 2.0
"""Seconds for which an answer counts, from the moment of the question."""

ASK_INTERVAL = 0.5
"""
Seconds between two questions to one of them: an answer that is lost, or a loop that does
not run for a second, does not cost the confirmation.
"""

BY_SENTINELS = "Sentinels confirm"

NOT_ASKED = "not asked yet"
"""The reason of a voter that has not answered, and of whose failure nothing is known either."""

SUBSCRIBE = pack(b"SUBSCRIBE", b"+switch-master")


def questions(service: str) -> tuple[tuple[str, ...], ...]:
    """
    Return the commands that ask a Sentinel for its present configuration of *service*, as words.

    The question for the address comes first. A Sentinel that leads a failover raises the
    epoch no later than it names the promoted server, so a new address never comes with an
    old epoch.
    """
    return (
        ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service),
        ("SENTINEL", "MASTER", service),
        ("SENTINEL", "MYID"),
    )


def is_switch(push: object, service: str) -> bool:
    if not isinstance(push, list) or len(push) != 3 or push[:2] != [b"message", b"+switch-master"]:
        return False
    return isinstance(push[2], bytes) and push[2].split(b" ")[0] == service.encode()


@dataclass(frozen=True, slots=True)
class Configuration:
    """
    The server that a Sentinel names as the master.

    Attributes:
        epoch: The configuration epoch, raised with each failover.
    """

    host: str
    port: int
    epoch: int

    def __str__(self) -> str:
        return f"{place(self.host, self.port)} (epoch {self.epoch})"


@dataclass(frozen=True, slots=True)
class Statement:
    """
    The answer of one Sentinel, or of one node of a Cluster.

    Attributes:
        configuration: The master that it names.

        reason: Why it names none, or why there is no newer answer.

        by: The identity of the Sentinel (MYID), empty if it is not known.

        known: The number of Sentinels that it knows, including itself; 0 if that is not known.

        permanent: Whether a person has to change something before it answers, such as a password.
    """

    configuration: Configuration | Owner | None = None
    reason: str = NOT_ASKED
    by: str = ""
    known: int = 0
    asked_at: float = -math.inf
    permanent: bool = False


def statement_of(found: NodeList, slot: int) -> Statement:
    """Return what a node of a Cluster says about the owner of *slot*."""
    owner = found.owner(slot)
    reason = "" if owner else f"names no owner of slot {slot}"
    return Statement(owner, reason, asked_at=found.asked_at)


def read_answer(replies: Sequence[object], asked_at: float) -> Statement:
    address, details, sentinel = replies
    if address is None:
        return Statement(reason="knows no master of that name", asked_at=asked_at)
    for reply in (address, details):
        if isinstance(reply, Exception):
            text = harmless(str(reply))
            return Statement(reason=text, permanent=is_permanent(text), asked_at=asked_at)
    facts = _facts(details)
    others = _number(facts.get(b"num-other-sentinels"))
    return Statement(
        configuration := _configuration(address, facts.get(b"config-epoch")),
        reason="" if configuration else "gives a malformed reply",
        by=sentinel.decode("ascii", "replace") if isinstance(sentinel, bytes) else "",
        known=0 if others is None else others + 1,
        asked_at=asked_at,
    )


def _configuration(address: object, epoch: object) -> Configuration | None:
    if not isinstance(address, list) or len(address) != 2:
        return None
    host, port, number = address[0], _number(address[1]), _number(epoch)
    text = host.decode("utf-8", "replace") if isinstance(host, bytes) else ""
    if not is_host(text) or port is None or not 0 < port < 1 << 16 or number is None:
        return None
    return Configuration(text, port, number)


def _facts(details: object) -> Mapping[object, object]:
    if isinstance(details, list):  # a flat list of pairs, as in RESP2
        pairs = zip(details[::2], details[1::2], strict=False)
        return {name: value for name, value in pairs if isinstance(name, bytes)}
    return details if isinstance(details, dict) else {}


def _number(value: object) -> int | None:
    digits = value if isinstance(value, bytes) else b""
    return int(digits) if digits.isdigit() and len(digits) < 20 else None


class Confirmation:
    """
    The newest answers of the voters: of the Sentinels that were named, or the nodes of a Cluster.

    Args:
        names: Those of the Sentinels. Their numbers are the keys below; nodes have their ids.

        kind: What the voters do, for messages.
    """

    def __init__(self, names: Sequence[str] = (), *, kind: str = BY_SENTINELS) -> None:
        self._kind = kind
        self._complete = True
        self.contradiction: str = ""
        """Why nothing is confirmed, whatever the voters answer; empty if there is no reason."""
        self._names: dict[int | str, str] = dict(enumerate(names))
        self._answers: dict[int | str, Statement] = {voter: Statement() for voter in self._names}

    def __repr__(self) -> str:
        answers = ", ".join(str(a.configuration or a.reason) for a in self._answers.values())
        return f"<Confirmation {answers}>"

    @property
    def _needed(self) -> int:
        return majority(len(self._names))

    def set_voters(self, names: Mapping[str, str], *, complete: bool = True) -> None:
        """
        Set the voters: all nodes of the Cluster that a node has listed within `CONFIRMED_FOR`.

        Two programs may have different ones, while nodes join or leave. If one set has one
        node more than the other, each majority of one still shares a node with each majority
        of the other: of n and n + 1 nodes they have n + 2 votes at least.

        Args:
            complete: Whether these are all nodes, and not a few servers that were named.
        """
        self._complete = complete
        self._names = dict(names.items())
        self._answers = {voter: self._answers.get(voter, Statement()) for voter in names}

    def on_answer(self, voter: int | str, answer: Statement) -> None:
        self._answers[voter] = answer

    def failed(self, voter: int | str, reason: str, *, permanent: bool = False) -> None:
        """Store why a voter does not answer; its last answer counts as long as before."""
        before = self._answers[voter]
        self._answers[voter] = replace(before, reason=reason, permanent=permanent)

    @property
    def is_hopeless(self) -> bool:
        """Whether so many voters refuse permanently that the others are no majority."""
        answers = self._answers.values()
        if any(answer.reason == NOT_ASKED for answer in answers):
            return False
        # Of a Cluster only a few servers are named at first, and one that answers names the others.
        needed = self._needed if self._complete else 1
        return sum(not answer.permanent for answer in answers) < needed

    def until(self, configuration: Configuration | Owner) -> float:
        """Return the end of the confirmation of *configuration*; minus infinity if it has none."""
        if self.contradiction:
            return -math.inf
        newest: dict[int | str, float] = {}
        for voter, answer in self._answers.items():
            if answer.configuration == configuration:
                # A Sentinel that was named twice counts once.
                voter_ = answer.by or voter
                newest[voter_] = max(newest.get(voter_, -math.inf), answer.asked_at)
        instants = sorted(newest.values(), reverse=True)
        if len(instants) < self._needed:
            return -math.inf
        return instants[self._needed - 1] + CONFIRMED_FOR

    def current(self, now: float) -> Configuration | Owner | None:
        """Return the configuration that is confirmed *now*; ``None`` if none is."""
        for configuration in {answer.configuration for answer in self._answers.values()}:
            if configuration is not None and now <= self.until(configuration):
                return configuration  # two majorities share a voter: no other one can be
        return None

    def describe(self, configuration: Configuration | Owner | None, now: float) -> str:
        if self.contradiction:
            return self.contradiction
        missing, seen = list[str](), dict[object, int | str]()
        # Any thread may ask for statistics, and the voters may be replaced meanwhile.
        for voter, answer in self._answers.items():
            name, is_old = self._names.get(voter, voter), now > answer.asked_at + CONFIRMED_FOR
            twin = name
            if answer.by and not is_old:
                twin = seen.setdefault((answer.by, answer.configuration), name)
            if twin != name:
                missing.append(f"{name} (has the same MYID as {twin})")
            elif is_old or configuration is None or answer.configuration != configuration:
                missing.append(f"{name} {self._why_not(answer, now)}")
        count, total = len(self._names) - len(missing), len(self._names)
        what = "the master" if configuration is None else str(configuration)
        text = f": {', '.join(missing)}" if missing else ""
        return f"{count} of {total} {self._kind} {what}, {self._needed} must{text}"

    @staticmethod
    def _why_not(answer: Statement, now: float) -> str:
        if answer.reason:
            return f"({answer.reason})"
        if now > answer.asked_at + CONFIRMED_FOR:
            return f"(no answer for {CONFIRMED_FOR:g} s)"
        return f"names {answer.configuration}"

    @property
    def caution(self) -> str:
        """A warning if the named Sentinels are not all that exist, or not distinct; else empty."""
        known = max((answer.known for answer in self._answers.values()), default=0)
        if known > len(self._names):
            return (
                f"its Sentinels know of {known}, but {len(self._names)} were named;"
                " name all of them, in every program"
            )
        ids = [answer.by for answer in self._answers.values() if answer.by]
        if len(set(ids)) < len(ids):
            return "two of the addresses of its Sentinels lead to the same Sentinel"
        return ""
