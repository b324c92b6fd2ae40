"""The tables of the fault matrix, as Markdown and as lines for a terminal."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from .cell import cannot
from .checker import NEEDLESS
from .contestants import contestants
from .controls import CONTROLS
from .faults import ROWS, Row
from .ours import COLUMNS, WAYS as WAYS_OF_USE
from .provenance import judged_by, said
from .results import Entry, Results

HEAD = """\
What each kind of lock does while masters, networks and clients fail. Each cell is one run: five
masters, or fewer where the row says so, and three client processes are started, the clients acquire
locks and write to a store under them, and the fault happens. Then a checker reads what each client
saw.
[The checker](evidence/checker.py) imports nothing of the library."""

LEGEND = """What a cell says:

- **holds**: no promise that this kind of lock makes was broken. No two leases of a key
  were valid at once, but those of readers, and of a semaphore no permit twice and no more than
  there are. None was valid again after its end, no update under a valid lease was lost, no reader
  saw a change under its lease, and no key was left when all had expired. With fencing, each token
  was higher than those before it, of the same permit, and an order explains the reads and writes
  through the fence. No gap was longer than what is promised under the fault. Fair waiters were
  served in order, and none was passed over again and again. A body that the library cancels wrote
  nothing after the end of its lease, and a lock that has to be kept was kept.
- **not promised**: the row breaks an assumption of the library, and two leases were valid at once.
- **needless**: the leases that were lost though their client ran and reached the same majority
  of the masters during the whole ttl before, and nobody released them by force. A lease may be
  lost at any time, so this breaks no promise: one that only three of five masters have granted is
  lost if one of these three fails.
- The time is the longest gap: for so long a client that reached a majority wanted a lock that
  nobody held. A master that has lost its keys, or whose clock was set, is not reached until it
  votes again, nor is the one behind Sentinels during the split: the *longest pause* below counts
  these times, too. A gap that is longer than the row permits is **progress**.
- **late**: the updates that were lost to a write after the end of its lease. Only a fence can
  refuse it."""

WAYS = """The last five columns are ways to use a lock: a body that writes until it is *cancelled*,
inner blocks of a *reentrant* lock, a lock that is *kept* for 600 ms (`hold_at_least`),
`redlock_aio.sync` in threads, and programs under `redlock run` (*command*). In the last one the gap
has the start of the programs in it."""

DETAILS = """*intervals* (times for which a lease of a key, or of a permit, was valid), *permits*
(leases of a permit), *updates*, *reads* (pairs of
them under one lease of a reader), *tokens* and *register* (reads and writes through the fence) are
how many of them were checked. The *longest
pause* is the longest time without an acquisition of a key, also while no client reached a
majority. *gap at most* is the limit of the longest gap: what is promised under the fault, and four
times the longest delay of a client's event loop. A cell that says *not judged* there was run before
gaps, order, starvation, writes and keeping were judged. *order* is the number of waits whose order
was checked, *writes* that of the writes of bodies that are cancelled. *rounds* is how many turns
each of the others had, on average, in the longest wait by that measure of a client that reached the
same majority all along. Only of fair locks something is promised of that."""

CONTROLS_TEXT = """The controls show that the faults happen, and that the checks see what goes
wrong. Those without protection must fail."""


def report(results: Results, *, containers: bool = False) -> str:
    """Return the page with the results of masters that ran as processes, or in containers."""
    entries, controls = results.of(control=False), results.of(control=True)
    title = "# Faults, with masters in containers" if containers else "# Faults"
    option = " --containers" if containers else ""
    ways = [WAYS] if {each.column for each in entries} & {each.name for each in WAYS_OF_USE} else []
    parts = [title, HEAD, *_where(results, option), LEGEND, *ways, matrix(entries)]
    if controls:
        parts += ["## Controls", CONTROLS_TEXT, control_table(controls)]
    parts += ["## Details", DETAILS, details([*entries, *controls])]
    return "\n\n".join(parts) + "\n"


def _where(results: Results, option: str) -> list[str]:
    facts = [each.facts for each in results if each.facts]
    if not facts:
        return []
    parts = []
    for machine in dict.fromkeys(each["machine"] for each in facts):
        mine = [each for each in facts if each["machine"] == machine]
        servers = ", ".join(sorted({each["server"] for each in mine}))
        dates = sorted({each["date"] for each in mine})
        when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
        versions = sorted({f"{k} {v}" for each in mine for k, v in each["versions"].items()})
        parts.append(f"{machine}; {servers}; {', '.join(versions)}; {when}")
    seeds = sorted({each["seed"] for each in facts})
    (ttl, _), *_ = Counter(each["ttl"] for each in facts).most_common()
    others = " and ".join(f"{each:,}" for each in sorted({each["ttl"] for each in facts} - {ttl}))
    setting = (
        f"Each client process has {facts[0]['tasks']} tasks. The ttl and `max_ttl` are {ttl:,} ms"
        f"{f', or {others} ms, as the cells need' if others else ''}. With 1 s a master that has"
        " lost its keys votes again 2 to 4 s later, before others lose theirs after 5 s; with the"
        " default `max_ttl` it takes a minute."
        f" All ran on one machine: {' · '.join(parts)}."
    )
    if sentence := said(facts):
        setting += f" {sentence}{judged_by(each.checker for each in results)}"
    number = " or ".join(map(str, seeds))
    again = f"`python -m benchmarks.evidence.matrix{option} --seed {number}`"
    return [setting, f"{again} runs all cells again, with `--rows` and `--columns` some of them."]


def matrix(entries: Sequence[Entry]) -> str:
    """Return the table with a row for each fault and a column for each kind of lock."""
    columns = in_order({each.column for each in entries}, [each.name for each in COLUMNS])
    cells, kinds = {(each.row, each.column): each for each in entries}, contestants()
    rows: list[list[str]] = []
    notes: list[str] = []
    for row in ROWS:
        if any(key[0] == row.name for key in cells):
            texts = [
                text(cells.get((row.name, column)))
                if column not in kinds or not cannot(kinds[column], row)
                else "does not apply"
                for column in columns
            ]
            mark = ""
            if row.assumption:
                mark = f" ({len(notes) + 1})"
                notes.append(
                    f"{mark[1:]} Not promised: the library assumes that {row.assumption}. Else two"
                    " may hold a lock for some time, and only a fence keeps its data."
                )
            what = done(row, cells.values())
            rows.append([f"**{row.name}**{mark}. {what}", *texts])
    return "\n\n".join([table(["fault", *columns], rows), *notes])


def done(row: Row, entries: Iterable[Entry]) -> str:
    """Return what a row did. It may have changed since; each sentence is that of a run."""
    runs = (each.facts for each in entries if each.row == row.name)
    return " Or: ".join(dict.fromkeys(str(facts.get("what", row.what)) for facts in runs))


def in_order(names: Iterable[str], first: Sequence[str]) -> list[str]:
    """Return *names* in the order of *first*, and then the others in alphabetical order."""
    names = set(names)
    return [name for name in first if name in names] + sorted(names - set(first))


def text(entry: Entry | None) -> str:
    """Return the short verdict on a cell."""
    if entry is None:
        return "not run yet"
    if entry.skipped:
        return f"not run: {entry.skipped}"
    if entry.wrong:
        return "the run failed"
    late = f"{entry.late_updates} late" if entry.late_updates else ""
    if entry.expected == "fails" and entry.holds and late:
        parts = [f"**updates: {late}**"]
    else:
        why = "not promised: " if entry.is_not_promised else ""
        parts = ["holds" if entry.holds else f"{why}**{broken(entry.broken)}**"]
        parts += [f"{entry.needless} needless", f"{entry.gap:.2f} s"]
        parts += [late] if late else []
    link = f" ([history]({entry.history}))" if entry.history else ""
    return " · ".join(parts) + link


def broken(counts: Mapping[str, int]) -> str:
    """Return the promises that were broken, and how often; empty if none was."""
    names = {name: number for name, number in counts.items() if name != NEEDLESS}
    return ", ".join(f"{name.replace('_', ' ')}: {number:,}" for name, number in names.items())


def control_table(entries: Sequence[Entry]) -> str:
    """Return the table of the controls."""
    by_name = {each.control: each for each in entries}
    rows = []
    for control in CONTROLS:
        entry = by_name.get(control.name)
        if entry is not None:
            verdict = "as expected" if entry.is_as_expected else "**NOT as expected**"
            rows.append(
                [f"**{control.name}**. {control.what}", control.expected, text(entry), verdict]
            )
    return table(["control", "must", "shows", ""], rows)


def details(entries: Sequence[Entry]) -> str:
    """Return the table with the figures of each cell."""
    head = [
        "fault", "lock", "acquired", "per s", "intervals", "permits", "updates", "reads", "tokens",
        "register", "order", "writes", "late", "lost leases", "needless", "longest gap",
        "gap at most", "longest pause", "rounds", "keys left", "seed",
    ]  # fmt: skip
    names = [row.name for row in ROWS]
    columns = [each.name for each in COLUMNS]

    def place(entry: Entry) -> tuple[bool, int, int]:
        row = names.index(entry.row) if entry.row in names else len(names)
        column = columns.index(entry.column) if entry.column in columns else len(columns)
        return bool(entry.control), row, column

    rows = []
    for each in sorted(entries, key=place):
        if each.facts:
            checks = (
                "exclusion", "permits", "updates", "reads", "tokens", "register", "order", "writes",
            )  # fmt: skip
            limit = each.facts.get("longest_gap")
            counts = [_count(each, name) for name in checks]
            rows.append([
                each.control or each.row, each.column, f"{each.acquired:,}",
                f"{each.acquired / each.seconds:.0f}" if each.seconds else "", *counts,
                str(each.late_updates), str(each.losses), str(each.needless), f"{each.gap:.2f} s",
                "not judged" if limit is None else f"{limit:.2f} s", f"{each.pause:.2f} s",
                str(each.facts.get("rounds", "")),
                str(each.broken.get("keys_left", 0)), str(each.facts["seed"]),
            ])  # fmt: skip
    return table(head, rows)


def _count(entry: Entry, name: str) -> str:
    """Return how much was checked of a promise, and how often it was broken."""
    checked, times = entry.checked.get(name, 0), entry.broken.get(name, 0)
    return f"{checked:,}, **{times} broken**" if times else f"{checked:,}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    rule = ["---"] * len(head)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *rows))


def line(entry: Entry) -> str:
    """Return the verdict on a cell as a line for a terminal."""
    name = f"control {entry.control}" if entry.control else entry.row
    verdict = text(entry).replace("**", "")
    if entry.wrong:
        verdict = f"the run failed: {'; '.join(entry.wrong)[:2000]}"
    expected = "" if entry.is_as_expected else "  <-- not as expected"
    return f"{name:32} {entry.column:16} {verdict}{expected}"


def listing() -> str:
    """Return the rows, columns and controls with what they do."""
    lines = ["rows:", *(f"  {row.name}: {row.what}" for row in ROWS)]
    lines += ["columns:", *(f"  {name}" for name in contestants())]
    lines += ["controls:", *(f"  {each.name}: {each.what}" for each in CONTROLS)]
    return "\n".join(lines)
