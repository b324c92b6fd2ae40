"""What ``redlock doctor`` has learned about each master, as values that can be judged."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from redlock_aio.cli.bench import Sample
from redlock_aio.cli.frame import GuardMode
from redlock_aio.requirements import (
    LONGEST_TIMEOUT,
    ClusterAnswers,
    DeclaredSet,
    Eligibility,
    KnownMaster,
    SentinelAnswers,
)


@dataclass(kw_only=True)
class MasterFacts:
    """
    What is known about one master; what is not known has its default.

    Attributes:
        name: Its name without credentials.

        service: Its name on its Sentinels, or its tag in a Cluster; empty if there is none.

        hosts: The IP addresses of its host; empty for a Unix socket.

        failure: Why it could not be reached, or does not describe itself; else empty.

        tls: Which of URL and port alone uses TLS; empty if that is not known.

        sentinels: What its Sentinels have answered; ``None`` if the URL names none.

        cluster: What the nodes of its Cluster have answered; ``None`` if it is of none.

        unfinished: What it was not asked any more, because its time was over.

        info: The fields of its ``INFO``; empty if it was not read.

        marker: The value of its marker.

        declared: The value of the key with the declared sets of masters.

        eligibility: Whether it has a vote; ``None`` if that is not known.

        sets: The declared sets of masters there.

        moved: The addresses that lead programs to different servers.

        ahead: The bounds in seconds by which its clock is ahead of this machine's.

        round_trips: How many ms its replies took, in the order of their measurement.

        missing: The permissions that are missing, as ``ACL SETUSER`` takes them.

        unknown: The commands that the server does not know, written as permissions.

        refusal: The error with which it refuses to write; empty if it does not.

        settings: Some of its settings; empty if they may not be read.

        others: The `run_id` of each other server that further connections have reached.
    """

    name: str
    service: str = ""
    hosts: tuple[str, ...] = ()
    failure: str = ""
    tls: str = ""
    sentinels: SentinelAnswers | None = None
    cluster: ClusterAnswers | None = None
    unfinished: str = ""
    info: dict[str, str] = field(default_factory=dict)
    raw_info: bytes = b""
    marker: bytes | None = None
    declared: bytes | None = None
    eligibility: Eligibility | None = None
    sets: Sequence[DeclaredSet] = ()
    moved: Sequence[str] = ()
    ahead: tuple[float, float] = (-math.inf, math.inf)
    round_trips: Sequence[float] = ()
    missing: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    refusal: str = ""
    settings: dict[str, str] = field(default_factory=dict)
    others: set[str] = field(default_factory=set)

    @property
    def is_known(self) -> bool:
        """Whether the server was reached and has described itself."""
        return bool(self.info)

    @property
    def run_id(self) -> str:
        """The id of the server's present run; empty if it is not known."""
        return self.info.get("run_id", "")

    @property
    def version(self) -> str:
        """The name and version of the server."""
        if self.info.get("server_name") == "valkey":
            return f"Valkey {self.info.get('valkey_version', '?')}"
        return f"Redis {self.info.get('redis_version', '?')}"

    @property
    def is_sentinel(self) -> bool:
        """Whether it is a Sentinel, in the words of Redis or of Valkey."""
        return "sentinel" in {self.info.get("redis_mode"), self.info.get("server_mode")}

    @property
    def offset(self) -> float | None:
        """The seconds by which its clock is ahead of this machine's; ``None`` if not known."""
        least, most = self.ahead
        return None if math.isinf(least) or math.isinf(most) else (least + most) / 2

    @property
    def trips(self) -> Sample:
        """How long its replies took."""
        return Sample(sorted(self.round_trips))

    @property
    def known(self) -> KnownMaster:
        """The master as it is compared with declared sets."""
        uptime = self.info.get("uptime_in_seconds", "")
        age = int(uptime) if uptime.isdecimal() else None
        tag = "" if self.cluster is None or not self.run_id else self.service
        return KnownMaster(self.service or self.name, self.run_id + tag, age)

    @property
    def epoch(self) -> int | None:
        """The number of the last failover; ``None`` if no Sentinels or nodes name the master."""
        answers = self.sentinels or self.cluster
        return None if answers is None else answers.epoch

    def on_time(self, time: float, sent: float, now: float) -> None:
        """Narrow the bounds of its clock, which showed *time* between *sent* and *now*."""
        least, most = self.ahead
        self.ahead = max(least, time - now), min(most, time - sent)


@dataclass(frozen=True, kw_only=True)
class Expectations:
    """
    How programs use the masters.

    Attributes:
        master_timeout: In ms; ``None`` if it is learned.

        learned_timeout: What they learn from the round trips to all masters, in ms.

        max_ttl: In ms.

        guard: The restart guard.

        tolerance: The ms by which a clock may differ, see `requirements.clock_tolerance`.
    """

    master_timeout: int | None
    max_ttl: int
    guard: GuardMode
    tolerance: int
    learned_timeout: int = LONGEST_TIMEOUT
