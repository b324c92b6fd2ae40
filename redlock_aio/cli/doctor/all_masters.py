"""The findings about the masters as a set: what they have in common, and where they differ."""

import ipaddress
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from statistics import median

from redlock_aio import requirements
from redlock_aio.cli.doctor import one_master
from redlock_aio.cli.doctor.facts import Expectations, MasterFacts
from redlock_aio.cli.doctor.findings import Finding, Kind, about

DISABLING = {
    Kind.UNREACHABLE, Kind.TLS, Kind.UNCONFIRMED, Kind.VERSION, Kind.ROLE, Kind.REFUSES,
    Kind.COMMANDS, Kind.PERMISSION, Kind.QUARANTINE, Kind.TOO_SLOW,
}  # fmt: skip
"""The findings about a master that mean that it has no vote now."""

SUBNETS = {4: 24, 6: 64}
"""The prefix lengths of what may be one network segment."""


def judge(masters: Sequence[MasterFacts], wanted: Expectations) -> list[Finding]:
    """Return all findings, the serious ones first."""
    learned = requirements.learned_timeout([facts.round_trips for facts in masters])
    wanted = replace(wanted, learned_timeout=learned)
    single = [finding for facts in masters for finding in one_master.judge(facts, wanted)]
    found = [
        *_number(masters),
        *_same_servers(masters),
        *_primaries(masters),
        *_majority(masters, single, wanted),
        *_declared(masters, wanted),
        *_moved(masters, wanted),
        *_clocks(masters, wanted),
        *_domains(masters),
        *_versions(masters),
    ]
    return sorted([*single, *found], key=lambda finding: -finding.kind.severity)


def without_vote(found: Iterable[Finding]) -> set[str]:
    """Return the names of the masters that have no vote; one that is too slow may have one."""
    kinds = DISABLING - {Kind.TOO_SLOW}
    return {name for finding in found if finding.kind in kinds for name in finding.masters}


def majority(masters: Sequence[MasterFacts]) -> int:
    """Return how many masters are a majority."""
    return len(masters) // 2 + 1


def too_many(masters: Sequence[MasterFacts]) -> int:
    """Return how many masters at one place, at least two, leave no majority if it fails."""
    return max(len(masters) - majority(masters) + 1, 2)


def _number(masters: Sequence[MasterFacts]) -> Iterator[Finding]:
    number = len(masters)
    if number == 1:
        yield about(Kind.SINGLE, [], "there is one master")
    elif number % 2 == 0:
        spare = number - majority(masters)
        yield about(
            Kind.EVEN, [], f"there are {number} masters, of which {spare or 'none'} may fail"
        )


def _same_servers(masters: Sequence[MasterFacts]) -> Iterator[Finding]:
    for run_id, names in _grouped(masters, lambda facts: [facts.run_id] if facts.run_id else []):
        if len(names) > 1:
            text = f"they are one server, with the run_id {run_id}"
            yield about(Kind.SAME_SERVER, names, text + _where_to(masters, names))


def _where_to(masters: Sequence[MasterFacts], names: Sequence[str]) -> str:
    """Return where the slot of a tag may be moved that shares its node with another one."""
    moved = next((facts.cluster for facts in masters if facts.name == names[-1]), None)
    if moved is None:
        return ""
    taken = [facts.cluster.slot for facts in masters if facts.cluster is not None]
    for address, ranges in moved.slots.items():
        if not any(first <= slot <= last for first, last in ranges for slot in taken):
            return f"; move slot {moved.slot} to {address}, which has no tag's slot"
    return ""


def _primaries(masters: Sequence[MasterFacts]) -> Iterator[Finding]:
    known = [len(f.cluster.slots) for f in masters if f.cluster is not None and f.cluster.slots]
    if known and max(known) < len(masters):
        text = f"there are {len(masters)} masters, and {max(known)} primaries with slots"
        yield about(Kind.PRIMARIES, [], text)


def _majority(
    masters: Sequence[MasterFacts], single: Iterable[Finding], wanted: Expectations
) -> Iterator[Finding]:
    disabled = {finding.masters[0] for finding in single if finding.kind in DISABLING}
    disabled |= {
        facts.name
        for facts in masters
        if facts.eligibility is not None and math.isinf(facts.eligibility.seconds)
    }
    young = {
        facts.name: facts.eligibility.seconds
        for facts in masters
        if facts.eligibility is not None and facts.eligibility.votes is None
    }
    # A young master without a marker votes at once only if all masters are like it.
    if young and wanted.guard not in one_master.RELYING:
        disabled |= set(young)
        message = (
            "no marker, and not all masters are known to be new;"
            f" it has a vote in {math.ceil(max(young.values()))} s at the latest"
        )
        yield about(Kind.QUARANTINE, list(young), message)
    # A server with two names has one vote.
    able = len({facts.run_id or facts.name for facts in masters if facts.name not in disabled})
    if able < majority(masters):
        yield about(
            Kind.NO_MAJORITY, [], f"{able} of {len(masters)} can vote, {majority(masters)} must"
        )


def _declared(masters: Sequence[MasterFacts], wanted: Expectations) -> Iterator[Finding]:
    if wanted.guard in one_master.RELYING:
        return  # such programs neither declare their masters nor read those of others
    for kind, conflicts in ((Kind.OTHER_MASTERS, True), (Kind.CHANGED_MASTERS, False)):
        seen: dict[tuple[str, ...], list[str]] = defaultdict(list)
        for facts in masters:
            for declared in facts.sets:
                if not declared.same and declared.conflicts is conflicts:
                    seen[declared.masters].append(facts.name)
        for others, names in seen.items():
            shown = ", ".join(others)
            yield about(kind, names, f"programs there have the masters {shown}")


def _moved(masters: Sequence[MasterFacts], wanted: Expectations) -> Iterator[Finding]:
    if wanted.guard in one_master.RELYING:
        return
    for address, names in _grouped(masters, lambda facts: [*facts.moved]):
        yield about(
            Kind.MOVED_ADDRESS, names, f"programs there use two servers by the address {address}"
        )


def _clocks(masters: Sequence[MasterFacts], wanted: Expectations) -> Iterator[Finding]:
    offsets = {facts.name: facts.offset for facts in masters if facts.offset is not None}
    if len(offsets) < 2:
        return
    middle = median(offsets.values())
    for name, offset in offsets.items():
        ms = round((offset - middle) * 1000)
        way = "ahead of" if ms > 0 else "behind"
        message = (
            f"its clock is {abs(ms)} ms {way} the median; fencing allows {wanted.tolerance} ms"
        )
        if abs(ms) > wanted.tolerance:
            yield about(Kind.CLOCK, [name], message)
        elif abs(ms) > wanted.tolerance / 2:
            yield about(Kind.CLOCK_NEAR, [name], message)


def _domains(masters: Sequence[MasterFacts]) -> Iterator[Finding]:
    shared = _grouped(masters, _hosts_of)
    on_one_host = set[str]()
    reported = set[tuple[str, ...]]()
    for host, names in shared:
        if len(names) > 1 and tuple(names) not in reported:
            reported.add(tuple(names))
            kind = Kind.ONE_HOST if len(names) >= too_many(masters) else Kind.SHARED_HOST
            on_one_host |= set(names) if kind is Kind.ONE_HOST else set()
            yield about(kind, names, f"they are on one host: {host}")
    for kind, groups, what in (
        (Kind.SUBNET, _grouped(masters, _subnets_of), "subnet"),
        (Kind.ZONE, _grouped(masters, _zones_of), "availability zone"),
    ):
        for place, names in groups:
            if len(names) >= too_many(masters) and not on_one_host >= set(names):
                yield about(kind, names, f"they are in one {what}: {place}")


HERE = "this machine"
"""The host of masters that have an address of the loopback interface, or a Unix socket."""


def _hosts_of(facts: MasterFacts) -> list[str]:
    # A Unix socket, too, is on the host of this program.
    hosts = facts.hosts or (["127.0.0.1"] if facts.name.startswith("/") else [])
    return [HERE if ipaddress.ip_address(h).is_loopback else h for h in hosts]


def _subnets_of(facts: MasterFacts) -> list[str]:
    found = []
    for host in facts.hosts:
        address = ipaddress.ip_address(host)
        if not address.is_loopback:
            network = ipaddress.ip_network((host, SUBNETS[address.version]), strict=False)
            found.append(str(network))
    return list(dict.fromkeys(found))


def _zones_of(facts: MasterFacts) -> list[str]:
    zone = facts.info.get("availability_zone", "")
    return [zone] if zone else []


def _versions(masters: Sequence[MasterFacts]) -> Iterator[Finding]:
    versions = sorted({facts.version for facts in masters if facts.is_known})
    if len(versions) > 1:
        yield about(Kind.VERSIONS, [], f"the versions are {', '.join(versions)}")


def _grouped(
    masters: Sequence[MasterFacts], places_of: Callable[[MasterFacts], list[str]]
) -> list[tuple[str, list[str]]]:
    """Return the names of the masters at each place."""
    groups: dict[str, list[str]] = defaultdict(list)
    for facts in masters:
        for place in dict.fromkeys(places_of(facts)):
            groups[place].append(facts.name)
    return list(groups.items())
