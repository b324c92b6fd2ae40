"""``redlock doctor``: are these masters fit to hold locks?"""

import collections
import time
from collections.abc import Container, Sequence
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redlock_aio import requirements
from redlock_aio.cli import durations
from redlock_aio.cli.doctor import all_masters
from redlock_aio.cli.doctor.examination import Questions, examine_all
from redlock_aio.cli.doctor.facts import Expectations, MasterFacts
from redlock_aio.cli.doctor.findings import Finding, Kind, Severity
from redlock_aio.cli.exits import Exit, Failure
from redlock_aio.cli.frame import Duration, Frame, command
from redlock_aio.requirements import Eligibility

if TYPE_CHECKING:
    from rich.text import Text

PATIENCE = 10_000
"""The default of ``--timeout`` in ms."""

SHORTEST = 100
"""The shortest ``--timeout`` in ms."""

Fencing = Annotated[
    bool, typer.Option("--fencing", help="Examine also what locks with fencing need.")
]
Fair = Annotated[
    bool,
    typer.Option("--fair", help="Examine also what fair locks, inspect and release --force need."),
]
Shared = Annotated[
    bool, typer.Option("--shared", help="Examine also what readers need, as with --shared of run.")
]
Semaphores = Annotated[
    bool,
    typer.Option("--semaphores", help="Examine also what semaphores need, as those of permits=."),
]
Timeout = Annotated[int, Duration("--timeout", help="The most time for each master (default 10s).")]
Ignore = Annotated[
    list[Kind] | None,
    typer.Option("--ignore", metavar="FINDING", help="Leave out this finding; can be repeated."),
]


def add_to(app: typer.Typer) -> None:
    """Add the command to *app*."""
    command(app, name="doctor", guard="auto", example="redlock doctor --fencing")(doctor)


async def doctor(  # noqa: PLR0913, PLR0917 - the options of the command
    frame: Frame,
    fencing: Fencing = False,
    fair: Fair = False,
    shared: Shared = False,
    semaphores: Semaphores = False,
    timeout: Timeout = PATIENCE,  # noqa: ASYNC109 - for each master, and an option
    ignore: Ignore = None,
) -> int:
    """
    Examine whether the masters are fit to hold locks.

    Each finding says what to do. The exit code is 1 if one is serious. Nothing is changed on
    the masters, and a master that does not answer takes up to its own --timeout.
    """
    if timeout < SHORTEST:
        raise Failure(Exit.USAGE, f"--timeout must be at least {SHORTEST}ms, not {timeout}ms")
    names = [master.name for master in frame.redlock().statistics().masters]
    questions = Questions(
        key_prefix=frame.key_prefix,
        permissions=requirements.permissions(
            fencing=fencing,
            fair=fair,
            shared=shared,
            semaphores=semaphores,
            cluster=any(requirements.parse_url(url).tag for url in frame.each_master),
        ),
        patience=timeout / 1000,
    )
    masters = await examine_all(list(zip(names, frame.each_master, strict=True)), questions)
    wanted = Expectations(
        master_timeout=frame.master_timeout,
        max_ttl=frame.max_ttl,
        guard=frame.guard,
        tolerance=requirements.clock_tolerance(max_ttl=frame.max_ttl),
    )
    complete(masters, wanted)
    judged = all_masters.judge(masters, wanted)
    found = [finding for finding in judged if finding.kind not in (ignore or [])]
    show(frame, masters, found, without_vote=all_masters.without_vote(judged))
    serious = any(finding.kind.severity is Severity.SERIOUS for finding in found)
    return Exit.NO if serious else Exit.DONE


def complete(masters: Sequence[MasterFacts], wanted: Expectations) -> None:
    """Add the judgement of the library about markers and declared sets to the facts."""
    known = [facts.known for facts in masters]
    for facts in masters:
        if not facts.is_known:
            continue
        now = time.time() + (facts.offset or 0.0)
        facts.eligibility = requirements.eligibility(
            facts.raw_info,
            facts.marker,
            max_ttl=wanted.max_ttl,
            strict=wanted.guard == "strict",
            time=now if facts.offset is not None else None,
            epoch=facts.epoch,
            of_slot=facts.cluster is not None,
        )
        facts.sets = requirements.declared_sets(facts.declared, known, time=now)
        facts.moved = requirements.moved_addresses(facts.declared, time=now)
    if all(facts.eligibility is not None and facts.eligibility.votes is None for facts in masters):
        for facts in masters:  # a new set of masters: no lock can be forgotten
            facts.eligibility = Eligibility(votes=True, reason="", seconds=0.0, max_ttl=None)


def show(
    frame: Frame,
    masters: Sequence[MasterFacts],
    found: Sequence[Finding],
    *,
    without_vote: Container[str],
) -> None:
    """
    Write what is known about the masters, the findings, and how many there are.

    Args:
        without_vote: The names of the masters that have none, also by a finding that is ignored.
    """
    rows = [facts_of(facts, masters) for facts in masters]
    for row in rows:
        if row["votes"] and row["master"] in without_vote:
            row["votes"] = False
    number = collections.Counter(finding.kind.severity for finding in found)
    counts = {
        "serious": number[Severity.SERIOUS],
        "warnings": number[Severity.WARNING],
        "notes": number[Severity.NOTE],
    }
    if not frame.out.as_json:
        cells = [[_cell(column, row[column]) for column in COLUMNS] for row in rows]
        titles = [column.partition("_")[0].upper() for column in COLUMNS]
        frame.out.table(titles, cells, {"yes": "green", "no": "bold red"})
    for finding in found:
        frame.out.result(json_of(finding), text_of(frame, finding))
    from rich.text import Text  # see `redlock_aio.cli.drawing`

    total = Text(f"\nmasters: {len(masters)}")
    for (name, count), severity in zip(counts.items(), reversed(Severity), strict=True):
        word = name.removesuffix("s") if count == 1 and name != "serious" else name
        total.append(", ").append(f"{count} {word}", STYLES[severity] if count else "")
    frame.out.result({"masters": rows, **counts}, total)


STYLES = {Severity.SERIOUS: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}
"""The style of each severity in a terminal."""


COLUMNS = ("master", "server", "uptime_s", "p50_ms", "p99_ms", "clock_ms", "votes")
"""The fields of a master in the table."""


def facts_of(facts: MasterFacts, masters: Sequence[MasterFacts]) -> dict[str, Any]:
    """Return what is known about a master, for JSON."""
    offsets = [each.offset for each in masters if each.offset is not None]
    trips = facts.trips if facts.trips.ms else None
    uptime = facts.known.uptime
    ahead = None if facts.offset is None else round((facts.offset - median(offsets)) * 1000)
    return {
        "master": facts.name,
        "server": facts.version if facts.is_known else None,
        "role": facts.info.get("role"),
        "uptime_s": uptime,
        "hosts": list(facts.hosts),
        "p50_ms": None if trips is None else round(trips.quantile(0.5), 3),
        "p99_ms": None if trips is None else round(trips.quantile(0.99), 3),
        "clock_ms": ahead,
        "votes": None if facts.eligibility is None else facts.eligibility.votes,
    }


def _cell(column: str, value: Any) -> str:
    """Return what the table has for the *value* of a field: with its unit."""
    if value is None:
        return "?"
    if isinstance(value, bool):
        return "yes" if value else "no"
    match column:
        case "uptime_s":
            return durations.shown(value * 1000) if value else "0 s"
        case "p50_ms" | "p99_ms":
            return f"{value:.1f} ms" if value >= 1 else f"{value:.2f} ms"
        case "clock_ms":
            sign = "+" if value > 0 else "-" if value else ""
            return f"{sign}{durations.shown(abs(value))}"
    return str(value)


def json_of(finding: Finding) -> dict[str, Any]:
    """Return a finding for JSON."""
    kind = finding.kind
    return {
        "finding": kind.value,
        "severity": kind.severity.name.lower(),
        "masters": list(finding.masters),
        "message": finding.message,
        "meaning": kind.meaning,
        "advice": kind.advice,
    }


def text_of(frame: Frame, finding: Finding) -> "Text":
    """Return a finding for people, on three lines, and for masters on a laptop one more."""
    from rich.text import Text

    kind = finding.kind
    where = f"{', '.join(finding.masters)}: " if finding.masters else ""
    text = Text.assemble(
        "\n",
        (kind.severity.name, STYLES[kind.severity]),
        (f" {kind.value}", "bold"),
        f": {frame.out.printable(f'{where}{finding.message}')}",
        f"\n    {kind.meaning}\n    To do: {kind.advice}",
    )
    if kind is Kind.ONE_HOST and finding.message.endswith(all_masters.HERE):
        text.append(f"\n    For a trial on a laptop: redlock doctor --ignore {kind.value}")
    return text
