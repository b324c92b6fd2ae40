"""What ``redlock doctor`` can find: each kind with its severity, its meaning and its advice."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass


class Severity(enum.IntEnum):
    """How much a finding matters; the exit code is 1 if one is serious."""

    NOTE = 1
    WARNING = 2
    SERIOUS = 3


class Kind(enum.Enum):
    """
    A kind of finding.

    The value is its name. `severity`, `meaning` and `advice` are what the reference shows.
    """

    UNREACHABLE = "unreachable"
    TLS = "tls"
    UNCONFIRMED = "unconfirmed"
    INCOMPLETE = "incomplete"
    VERSION = "version"
    ROLE = "role"
    SAME_SERVER = "same-server"
    SEVERAL_SERVERS = "several-servers"
    REFUSES = "refuses"
    COMMANDS = "commands"
    PERMISSION = "permission"
    SENTINELS = "sentinels"
    WAKING = "waking"
    NO_TRACKING = "no-tracking"
    SENTINEL = "sentinel"
    EVICTION = "eviction"
    FORGETS = "forgets"
    FSYNC = "fsync"
    QUARANTINE = "quarantine"
    NO_MAJORITY = "no-majority"
    MAX_TTL = "max-ttl"
    OTHER_MASTERS = "other-masters"
    CHANGED_MASTERS = "changed-masters"
    MOVED_ADDRESS = "moved-address"
    CLOCK = "clock"
    CLOCK_NEAR = "clock-near"
    TOO_SLOW = "too-slow"
    SLOW = "slow"
    EVEN = "even"
    SINGLE = "single"
    ONE_HOST = "one-host"
    SHARED_HOST = "shared-host"
    SUBNET = "subnet"
    ZONE = "zone"
    REPLICAS = "replicas"
    MIN_REPLICAS = "min-replicas"
    CLUSTER = "cluster"
    NODE = "node"
    PRIMARIES = "primaries"
    COVERAGE = "coverage"
    NODE_TIMEOUT = "node-timeout"
    VERSIONS = "versions"

    @property
    def severity(self) -> Severity:
        """How much it matters."""
        return _KINDS[self][0]

    @property
    def meaning(self) -> str:
        """What it means for locks."""
        return _KINDS[self][1]

    @property
    def advice(self) -> str:
        """What to do."""
        return _KINDS[self][2]


_NOTE, _WARNING, _SERIOUS = Severity

_KINDS = {
    Kind.UNREACHABLE: (
        _SERIOUS,
        (
            "The master could not be reached in time, refused the login, or does not answer INFO,"
            " or a certificate was not accepted. It has no vote."
        ),
        (
            "Start it, wait until it has loaded its data (LOADING), raise its maxclients, or"
            " correct its address, its password, its database, the network between, or with TLS"
            " the certificates: ssl_ca_certs, ssl_certfile and ssl_keyfile in its URL, and the"
            " server's own, which must not have expired and must name the host of the URL."
        ),
    ),
    Kind.TLS: (
        _SERIOUS,
        "Only one of URL and port uses TLS. So the master can't be reached, and has no vote.",
        (
            "Write rediss:// (valkeys://, rediss+sentinel://) for a port with TLS, and redis:// for"
            " one without, or correct the port."
        ),
    ),
    Kind.UNCONFIRMED: (
        _SERIOUS,
        (
            "Too few of the Sentinels, or of the nodes of the Cluster, agree on the master: it has"
            " no vote. The message has the answer of each of the others."
        ),
        (
            "Start them, or correct their addresses, their login, with TLS the certificates, or the"
            " name of the master."
        ),
    ),
    Kind.SENTINELS: (
        _SERIOUS,
        (
            "A majority of the Sentinels that are named may be a minority of all that exist. It may"
            " confirm a master that the others have replaced."
        ),
        "Name all Sentinels of the master, each once, in all programs.",
    ),
    Kind.SENTINEL: (
        _WARNING,
        (
            "A Sentinel does not answer, or names another master. The others are a majority; if too"
            " few of them are left, the master has no vote."
        ),
        "Start the Sentinel, or correct its address, or the network between the Sentinels.",
    ),
    Kind.INCOMPLETE: (
        _SERIOUS,
        "The master did not answer all questions in time. What is not known was not judged.",
        "Look for what keeps the server busy (SLOWLOG, LATENCY DOCTOR), and examine it again.",
    ),
    Kind.VERSION: (
        _SERIOUS,
        "The server is too old for RESP3, or is not Redis or Valkey. It has no vote.",
        "Install Redis 6 or newer, or any Valkey.",
    ),
    Kind.ROLE: (
        _SERIOUS,
        "The server is a replica or a Sentinel. Only a master has a vote.",
        "Name a master. One that Sentinel manages is named through Sentinel.",
    ),
    Kind.SAME_SERVER: (
        _SERIOUS,
        "Two names lead to one server. It has one vote, and its failure costs two masters.",
        "Name each server once.",
    ),
    Kind.SEVERAL_SERVERS: (
        _SERIOUS,
        (
            "One name leads to several servers: that of a balancer, of a Service of Kubernetes with"
            " several pods, or one with several addresses. Programs that reach different ones do"
            " not exclude each other."
        ),
        "Name each server by an address of its own.",
    ),
    Kind.REFUSES: (
        _SERIOUS,
        "The master refuses to write now, for the reason in the message. It grants no lock.",
        (
            "Remove the reason: free its memory or disk, repair its persistence, wait until it has"
            " loaded, end its script (SCRIPT KILL), give it its replicas back, or set"
            " min-replicas-to-write 0."
        ),
    ),
    Kind.COMMANDS: (
        _SERIOUS,
        (
            "The server does not know a command without which the locks do not work. It was renamed"
            " or disabled, or the server is not Redis or Valkey. No permission helps."
        ),
        "Remove rename-command from its configuration, or use another server or service.",
    ),
    Kind.PERMISSION: (
        _SERIOUS,
        "The user lacks a permission (ACL) without which the locks do not work.",
        (
            "Grant what the message names, with ACL SETUSER. Options say which locks you use:"
            " --fencing, --fair, --shared, --semaphores."
        ),
    ),
    Kind.WAKING: (
        _WARNING,
        (
            "The user lacks a permission without which waiters are woken late, and losses are"
            " noticed late."
        ),
        "Grant what the message names, with ACL SETUSER.",
    ),
    Kind.NO_TRACKING: (
        _WARNING,
        (
            "The server does not know a command without which waiters are woken late, and losses"
            " are noticed late. Some managed services leave it out. No permission helps."
        ),
        "Locks work. If that is too late, remove rename-command, or use another server or service.",
    ),
    Kind.EVICTION: (
        _SERIOUS,
        "The server deletes keys when its memory is full. It may delete a lock that is held.",
        "Set maxmemory-policy noeviction, by CONFIG SET and in its configuration file.",
    ),
    Kind.FORGETS: (
        _SERIOUS,
        (
            "The master does not write each lock to its disk, and this restart guard does not"
            " notice a restart. So after a restart the master may grant a lock that is held."
        ),
        (
            "Use the restart guard auto, or configure appendonly yes, appendfsync always and"
            " no-appendfsync-on-rewrite no."
        ),
    ),
    Kind.FSYNC: (
        _WARNING,
        "The restart guard relies on appendfsync always, and the user may not read that setting.",
        "Look in the server's configuration, or grant CONFIG GET.",
    ),
    Kind.QUARANTINE: (
        _WARNING,
        "The master may have forgotten locks, so it has no vote for a while.",
        "Wait for the time in the message. Restart one master at a time.",
    ),
    Kind.NO_MAJORITY: (
        _SERIOUS,
        "Fewer than a majority of the masters can vote now. Nobody gets a lock.",
        "Repair the masters that can't be reached or used, or wait for the end of the quarantine.",
    ),
    Kind.MAX_TTL: (
        _WARNING,
        (
            "Programs on these masters have, or had, different max_ttl. The longest one decides the"
            " quarantine."
        ),
        "Give all programs, and --max-ttl here, the same value.",
    ),
    Kind.OTHER_MASTERS: (
        _SERIOUS,
        (
            "Programs with other masters use the same locks, and would not exclude each other."
            " So the one that came second loses votes."
        ),
        "Name the same masters in all programs. Independent applications need a key_prefix each.",
    ),
    Kind.CHANGED_MASTERS: (
        _NOTE,
        "Programs with almost the same masters use the same locks. They exclude each other.",
        "Finish the replacement of the master in all programs, before you begin the next one.",
    ),
    Kind.MOVED_ADDRESS: (
        _SERIOUS,
        (
            "One address leads programs to different servers, which all are in use. Only the"
            " programs with the first one get its vote."
        ),
        "Restart the programs that still use the old server, or stop that server.",
    ),
    Kind.CLOCK: (
        _SERIOUS,
        (
            "The clock of the master differs so much from the others' that it may refuse locks with"
            " fencing, and serve fair waiters in a wrong order."
        ),
        "Synchronise its clock, for example by chrony.",
    ),
    Kind.CLOCK_NEAR: (
        _WARNING,
        "The clock of the master differs from the others' by over half of what fencing allows.",
        "Synchronise its clock, for example by chrony.",
    ),
    Kind.TOO_SLOW: (
        _SERIOUS,
        "Half of the replies take longer than the master timeout, so most often it has no vote.",
        "Use a longer --master-timeout in all programs, or a master that is nearer.",
    ),
    Kind.SLOW: (
        _WARNING,
        "One reply in a hundred or more takes longer than the master timeout, and is no vote.",
        "Look for what makes the server or the network slow, or use a longer master timeout.",
    ),
    Kind.EVEN: (
        _WARNING,
        "An even number of masters survives no more failures than one master less.",
        "Use three, five or seven masters.",
    ),
    Kind.SINGLE: (
        _WARNING,
        "With one master nobody gets a lock while it is down, and its failure ends all leases.",
        "Use three or five masters.",
    ),
    Kind.ONE_HOST: (
        _SERIOUS,
        "So many masters are on one host that its failure ends all leases.",
        "Put each master on a host of its own.",
    ),
    Kind.SHARED_HOST: (
        _WARNING,
        "Several masters are on one host, and fail together.",
        "Put each master on a host of its own.",
    ),
    Kind.SUBNET: (
        _NOTE,
        (
            "So many masters are in one subnet (/24, /64) that its failure would end all leases. It"
            " may be one rack or one switch."
        ),
        "Make sure that no single failure reaches so many of them.",
    ),
    Kind.ZONE: (
        _WARNING,
        "So many masters are in one availability zone that its failure ends all leases.",
        "Spread the masters over three zones.",
    ),
    Kind.REPLICAS: (
        _WARNING,
        (
            "The master has replicas. If one is promoted, a program that names this server by a URL"
            " does not learn of it."
        ),
        (
            "Name the master through Sentinel in all programs, or remove the replicas: locks need"
            " none."
        ),
    ),
    Kind.MIN_REPLICAS: (
        _NOTE,
        (
            "min-replicas-to-write is set. The master refuses all writes, and so has no vote, while"
            " its replicas are away."
        ),
        "Set min-replicas-to-write 0, unless other programs need it: these locks do not.",
    ),
    Kind.CLUSTER: (
        _SERIOUS,
        (
            "The server is a node of a Redis Cluster. A failover, or a slot that moves, loses"
            " locks there without a restart, so nobody notices."
        ),
        (
            "Name the Cluster by Redlock.of_cluster() or redis+cluster://, or use a server without"
            " cluster-enabled."
        ),
    ),
    Kind.NODE: (
        _WARNING,
        (
            "A node of the Cluster does not answer, or names another owner of the slot. The others"
            " are a majority; if too many of them fail, no master has a vote."
        ),
        "Start the node, or remove it from the Cluster (CLUSTER FORGET), or repair the network.",
    ),
    Kind.PRIMARIES: (
        _SERIOUS,
        "The Cluster has fewer primaries than masters are wanted, so that some have no vote.",
        "Add primaries, or use fewer masters, in all programs.",
    ),
    Kind.COVERAGE: (
        _WARNING,
        (
            "cluster-require-full-coverage is yes. While one primary is down, all of them refuse"
            " locks, until its replica has taken over."
        ),
        "Set cluster-require-full-coverage no on all nodes.",
    ),
    Kind.NODE_TIMEOUT: (
        _NOTE,
        (
            "After the failure of a primary its replica takes over when cluster-node-timeout is"
            " over, and has no vote for a quarantine after that."
        ),
        "A shorter cluster-node-timeout, such as 5000, ends that sooner.",
    ),
    Kind.VERSIONS: (
        _NOTE,
        "The masters have different versions. That is safe.",
        "Use one version, so that all of them behave and perform alike.",
    ),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """
    A fact about the masters that matters for locks.

    Attributes:
        kind: Which one.

        masters: The names of the masters that it is about; all of them if it is empty.

        message: The fact.
    """

    kind: Kind
    masters: tuple[str, ...]
    message: str


def about(kind: Kind, masters: Sequence[str], message: str) -> Finding:
    """Return a finding about some masters."""
    return Finding(kind, tuple(masters), message)
