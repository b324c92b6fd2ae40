"""The findings about one master, from its facts alone."""

import math
from collections.abc import Iterator

from redlock_aio import requirements
from redlock_aio.cli import durations
from redlock_aio.cli.doctor.facts import Expectations, MasterFacts
from redlock_aio.cli.doctor.findings import Finding, Kind

SHARE_OF_TTL = 4
"""A cluster-node-timeout counts as long from this share of *max_ttl* on."""

RELYING = ("fsync-always", "off")
"""The restart guards that do not notice a restart."""


def judge(facts: MasterFacts, wanted: Expectations) -> Iterator[Finding]:
    """Yield the findings about one master."""
    for kind, message in _found(facts, wanted):
        yield Finding(kind, (facts.name,), message)


def _found(facts: MasterFacts, wanted: Expectations) -> Iterator[tuple[Kind, str]]:
    yield from _sentinels(facts)
    yield from _nodes(facts, wanted)
    if facts.tls:
        yield Kind.TLS, facts.tls
    elif (answers := facts.sentinels or facts.cluster) is not None and not answers.host:
        yield Kind.UNCONFIRMED, answers.text
    elif facts.failure:
        yield Kind.UNREACHABLE, facts.failure
    elif facts.unfinished:
        yield Kind.INCOMPLETE, f"it was not asked any more about: {facts.unfinished}"
    if facts.refusal and not _is_explained(facts):
        yield Kind.REFUSES, f"it refuses to write: {facts.refusal}"
    yield from _commands(facts)
    if facts.others:
        found = ", ".join([facts.run_id, *sorted(facts.others)])
        yield Kind.SEVERAL_SERVERS, f"its name leads to several servers, with the run_ids {found}"
    if facts.is_known:
        yield from _server(facts)
        yield from _memory(facts, wanted)
        yield from _replicas(facts)
    yield from _vote(facts, wanted)
    yield from _speed(facts, wanted)


def _sentinels(facts: MasterFacts) -> Iterator[tuple[Kind, str]]:
    answers = facts.sentinels
    if answers is None:
        return
    if answers.host and not answers.complete:
        yield Kind.SENTINEL, answers.text
    if answers.caution:
        yield Kind.SENTINELS, answers.caution


def _nodes(facts: MasterFacts, wanted: Expectations) -> Iterator[tuple[Kind, str]]:
    answers = facts.cluster
    if answers is None:
        return
    if answers.host and not answers.complete:
        yield Kind.NODE, answers.text
    if facts.settings.get("cluster-require-full-coverage") == "yes":
        yield Kind.COVERAGE, "its cluster-require-full-coverage is yes"
    timeout = facts.settings.get("cluster-node-timeout", "")
    if timeout.isdecimal() and int(timeout) * SHARE_OF_TTL >= wanted.max_ttl:
        shown = durations.shown(int(timeout))
        yield Kind.NODE_TIMEOUT, f"its cluster-node-timeout is {shown}"


def _is_explained(facts: MasterFacts) -> bool:
    """Return whether another finding tells why the server refuses to write."""
    reasons = set[str]()
    if facts.info.get("role", "master") != "master":
        reasons |= {"READONLY", "MASTERDOWN"}
    if facts.cluster is None and facts.info.get("cluster_enabled") == "1":
        reasons |= {"CLUSTERDOWN", "MOVED"}
    return facts.refusal.partition(" ")[0] in reasons


def _commands(facts: MasterFacts) -> Iterator[tuple[Kind, str]]:
    optional = {f"+{command}" for command in requirements.permissions().optional}
    unknown = {name: name[1:].replace("|", " ").upper() for name in facts.unknown}
    for kind, what, names in (
        (Kind.COMMANDS, "it does not know", [t for n, t in unknown.items() if n not in optional]),
        (Kind.NO_TRACKING, "it does not know", [t for n, t in unknown.items() if n in optional]),
        (Kind.PERMISSION, "its user lacks", [n for n in facts.missing if n not in optional]),
        (Kind.WAKING, "its user lacks", [n for n in facts.missing if n in optional]),
    ):
        if names:
            between = " " if what == "its user lacks" else ", "
            yield kind, f"{what} {between.join(names)}"


def _server(facts: MasterFacts) -> Iterator[tuple[Kind, str]]:
    info = facts.info
    version = info.get("redis_version", "")
    major = version.partition(".")[0]
    if not major.isdecimal() or int(major) < requirements.OLDEST_VERSION:
        yield Kind.VERSION, f"its version is {version or 'not known'}"
    elif not info.get("run_id"):
        yield Kind.VERSION, "its INFO names no run_id"
    role = info.get("role", "unknown")
    if facts.is_sentinel:
        yield Kind.ROLE, "it is a Sentinel"
    elif role != "master":
        yield Kind.ROLE, f"it is not a master but a {role}"
    if facts.cluster is None and info.get("cluster_enabled") == "1":
        yield Kind.CLUSTER, "it is a node of a Cluster"


def _memory(facts: MasterFacts, wanted: Expectations) -> Iterator[tuple[Kind, str]]:
    info = facts.info
    policy = info.get("maxmemory_policy", "noeviction")
    if info.get("maxmemory") != "0" and policy != "noeviction":
        yield Kind.EVICTION, f"its maxmemory-policy is {policy}"
    if wanted.guard not in RELYING:
        return
    if info.get("aof_enabled") != "1":
        yield Kind.FORGETS, f"restart_guard is {wanted.guard!r}, and it has no append-only file"
        return
    fsync = facts.settings.get("appendfsync")
    if fsync is None:
        yield Kind.FSYNC, f"restart_guard is {wanted.guard!r}, and its appendfsync is not known"
    elif fsync != "always":
        yield Kind.FORGETS, f"restart_guard is {wanted.guard!r}, and its appendfsync is {fsync}"
    elif facts.settings.get("no-appendfsync-on-rewrite") == "yes":
        # A server with this setting does not sync while a child process saves or rewrites.
        text = f"restart_guard is {wanted.guard!r}, and its no-appendfsync-on-rewrite is yes"
        yield Kind.FORGETS, text


def _replicas(facts: MasterFacts) -> Iterator[tuple[Kind, str]]:
    info = facts.info
    replicas = info.get("connected_slaves", "0")
    # Programs learn of a promotion from the Sentinels, or from the nodes of a Cluster.
    if info.get("role") == "master" and replicas != "0" and facts.epoch is None:
        yield Kind.REPLICAS, f"it has {replicas} replica{'' if replicas == '1' else 's'}"
    good = info.get("min_slaves_good_slaves")
    # The field is there only if the setting is not 0.
    if good is not None and not facts.refusal.startswith("NOREPLICAS"):
        yield Kind.MIN_REPLICAS, f"min-replicas-to-write is set, and {good} are good enough now"


def _vote(facts: MasterFacts, wanted: Expectations) -> Iterator[tuple[Kind, str]]:
    eligibility = facts.eligibility
    if eligibility is None or wanted.guard in RELYING:
        return
    if eligibility.votes is False and math.isfinite(eligibility.seconds):
        yield Kind.QUARANTINE, eligibility.reason
    if eligibility.max_ttl not in {None, wanted.max_ttl}:
        others, own = durations.shown(eligibility.max_ttl or 0), durations.shown(wanted.max_ttl)
        yield Kind.MAX_TTL, f"programs there have or had a max_ttl of {others}, here it is {own}"


def _speed(facts: MasterFacts, wanted: Expectations) -> Iterator[tuple[Kind, str]]:
    trips = facts.trips
    if not trips.ms:
        return
    timeout, limit = wanted.learned_timeout, "master_timeout, as programs learn it, is"
    if wanted.master_timeout is not None:
        timeout, limit = wanted.master_timeout, "master_timeout is"
    limit = f"{limit} {timeout} ms"
    p50, p99 = (trips.quantile(share) for share in (0.5, 0.99))
    if p50 > timeout:
        yield Kind.TOO_SLOW, f"half of its replies took {math.ceil(p50)} ms or more; {limit}"
    elif p99 > timeout:
        yield Kind.SLOW, f"1 % of its replies took {math.ceil(p99)} ms or more; {limit}"
