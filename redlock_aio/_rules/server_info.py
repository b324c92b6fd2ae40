"""The facts in a server's ``INFO`` that matter to a lock."""

import re
from dataclasses import dataclass, replace

from redlock_aio._rules.causes import NoVoteCause

REPLID_DIGITS = 8

_REPLID = re.compile(rf"-[0-9a-f]{{{REPLID_DIGITS}}}(?=(\.\d+)?$)")


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """
    The facts in a server's ``INFO`` that matter to a lock.

    Attributes:
        uptime: The seconds for which the server has been running, by its own clock; ``None``
            if the reply lacks it.

        time: Its clock, in microseconds; ``None`` if the reply lacks it.

        promoted: Whether it was a replica before, or was restored as one.

        fed: The bytes that it has received as a replica since it started; 0 if the reply
            lacks them, as on Redis 6.

        replid: The first digits of its replication id, if it was promoted within about the
            last hour; else empty.

        epoch: The number of the failover by which Sentinels made it a master, or the
            configuration epoch of a node of a Cluster; ``None`` if nobody names it.

        of_slot: Whether it is used as the owner of a slot of a Cluster, which it may have got
            from another server at any time.

        appends: Whether it keeps an append-only file; ``None`` if the reply lacks it.

        clustered: Whether it is a node of a Cluster, even if it is the only one.

        replicated: Whether a replica is connected to it.
    """

    version: str
    run_id: str
    role: str
    evicts: str
    uptime: int | None = None
    time: int | None = None
    promoted: bool = False
    appends: bool | None = None
    clustered: bool = False
    replicated: bool = False
    fed: int = 0
    replid: str = ""
    epoch: int | None = None
    of_slot: bool = False

    @classmethod
    def parse(cls, text: bytes) -> "ServerInfo":
        lines = text.decode("utf-8", "replace").splitlines()
        fields = dict(line.split(":", 1) for line in lines if ":" in line)
        policy = fields.get("maxmemory_policy", "noeviction")
        # A service that hides the limit has one.
        limited = fields.get("maxmemory") != "0"
        appends = fields.get("aof_enabled")
        fed = _number(fields.get("total_net_repl_input_bytes", "")) or 0
        # Set by REPLICAOF NO ONE, and cleared when no replica was connected for
        # repl-backlog-ttl, an hour by default; the server then takes a new master_replid.
        promoted = bool(fields.get("master_replid2", "").strip("0"))
        return cls(
            version=fields.get("redis_version", "unknown"),
            run_id=fields.get("run_id", ""),
            role=fields.get("role", "unknown"),
            evicts=policy if limited and policy != "noeviction" else "",
            uptime=_number(fields.get("uptime_in_seconds", "")),
            time=_number(fields.get("server_time_usec", "")),
            promoted=promoted or fed > 0,
            appends=None if appends is None else appends != "0",
            clustered=fields.get("cluster_enabled") == "1",
            replicated=fields.get("connected_slaves", "0") != "0",
            fed=fed,
            replid=fields.get("master_replid", "")[:REPLID_DIGITS] if promoted else "",
        )

    @property
    def identity(self) -> str:
        """
        A name of this server that no other has, and that it loses when it is made a replica.

        A replica drops its keys for those of its master. When it is promoted again, its run_id
        is the same, and its own former marker may have come back from the other server. So the
        promotion is a part of the name: the replication id that is new with each promotion, and
        the bytes that were received as a replica, which a server still knows when it has
        forgotten its promotions.
        """
        fed = f"+{self.fed}" if self.fed else ""
        replid = f"-{self.replid}" if self.replid else ""
        epoch = "" if self.epoch is None else f".{self.epoch}"
        return f"{self.run_id}{fed}{replid}{epoch}"

    def is_named(self, name: str) -> bool:
        """
        Return whether *name* is its `identity`, or was until it forgot its promotion.

        A server that forgets its promotion (see `parse`) has still received the same number of
        bytes as a replica. Without this, each would be quarantined an hour after it was promoted.
        """
        if name == self.identity:
            return True
        if not self.fed or self.replid:
            return False
        return _REPLID.sub("", name, count=1) == self.identity

    def in_epoch(self, epoch: int) -> "ServerInfo":
        """
        Return a copy whose identity is different in each *epoch* of its Sentinels.

        A server that Sentinel made a master again may lack the locks of the master in
        between, like one that has restarted. An epoch above 0 proves that there was a
        failover, even if the server itself does not know of it.
        """
        return replace(self, epoch=epoch, promoted=self.promoted or epoch > 0)

    def in_slot(self, epoch: int) -> "ServerInfo":
        """
        Return a copy whose identity is different in each *epoch* of the owner of a slot.

        A node that lost the slot and got it back has a later epoch. Unlike that of Sentinels,
        an epoch above 0 proves nothing: those of a new Cluster are 1, 2, 3 and so on.
        """
        return replace(self, epoch=epoch, of_slot=True)

    @property
    def objection(self) -> tuple[NoVoteCause, str] | None:
        """The cause for which this server can't vote, and its text; ``None`` if it can."""
        if self.of_slot and not self.clustered:
            return NoVoteCause.UNSUPPORTED, "no node of a Redis Cluster (cluster_enabled is 0)"
        if self.clustered and not self.of_slot:
            # A failover, or a slot that moves, deletes keys while run_id and marker stay.
            return NoVoteCause.UNSUPPORTED, (
                "a node of a Redis Cluster (cluster_enabled is 1), which may lose locks without"
                " a restart; Redlock.of_cluster() makes several of its primaries the masters"
            )
        if self.role != "master":
            return NoVoteCause.NOT_A_MASTER, f"not a master but a {self.role}"
        if not self.run_id:
            text = "INFO names no run_id, so it can't be told from the other masters"
            return NoVoteCause.UNSUPPORTED, text
        return None

    @property
    def caution(self) -> str:
        """A warning about a setting by which the server may drop locks; else empty."""
        if not self.evicts:
            return ""
        return (
            f"its maxmemory-policy {self.evicts} may drop locks when memory runs out;"
            " only noeviction is safe"
        )

    @property
    def caution_alone(self) -> str:
        """A warning if it is the only master and not behind Sentinel; else empty."""
        if not self.replicated:
            return ""
        return (
            "it is the only master, and it has replicas: a failover ends all leases, and a program"
            " learns of it only if its connection ends or its name moves; use three servers without"
            " replicas, or name it through Sentinel"
        )

    @property
    def forgets(self) -> str:
        """The reason why the server can't keep its locks over a restart; empty if it may."""
        if self.appends is not False:
            return ""
        return (
            "restart_guard is 'fsync-always', but the server has no append-only file (aof_enabled"
            " is 0); it needs appendonly yes and appendfsync always"
        )


def _number(digits: str) -> int | None:
    sign, digits = (-1, digits[1:]) if digits[:1] == "-" else (1, digits)
    return (
        sign * int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 20 else None
    )
