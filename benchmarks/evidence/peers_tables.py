"""The tables of the peers, as Markdown: what happened under each fault, in plain words."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from .faults import Row
from .job import LONG
from .peers_rows import ONE_MASTER_NOTES, ONE_MASTER_ROWS, QUORUM_NOTES, QUORUM_ROWS
from .provenance import judged_by, said
from .results import NOBODY, Entry, Results
from .tables import done, table

ON_FIVE, ON_ONE = (
    ("node-redlock", "redsync", "pottery", "aioredlock", "plain"),
    ("redis-py", "python-redis-lock"),
)

HEAD = """# Faults, and the locks of other libraries

What the locks of other libraries do under faults, each used as its documentation shows. One
run is one cell: masters and three client processes are started, each with several tasks that
acquire one of three locks, read a number from a server that nothing happens to, work for 1 to
20 ms, write the number plus one, and release the lock, while the fault happens. One in 20 extends
its lease explicitly, where the library can. One in 250 of these critical sections is long: 1.2 to
2.2 ttls where the library extends the lock, 0.3 to 0.7 ttls where it does not. In cells with "1 in
10 long" it is every tenth. Then [a checker](evidence/checker.py), which knows none of the
libraries, reads what each client saw. Where an update was lost, or two leases were valid at once,
the cell links to the raw history.

A run is a sample of seconds: that nothing happened in it proves nothing. Faults outside of what a
library promises are marked, and say nothing against it: they show what a user has to prevent in
another way."""

LEGEND = """What a cell says:

- **updates lost**: a number was written twice or set back, so what the lock protects was damaged.
  "by late writes" are those where a write came after the lease's end, which a library can only
  prevent by a fencing token or by telling the holder in time.
- **leases valid at once**: two clients were promised one lock for the same time. A promise is
  what the library tells its user: the `expiration` of node-redlock, what pottery's `locked()`
  returns, `Until` of redsync, the time up to which aioredlock calls a lock valid (the ttl without
  its drift). redis-py and python-redis-lock name no time; there it is the key's ttl, counted from
  before the command that set it, which the key outlives unless it is deleted.
- **leases valid again after the end**: a holder was promised its lock for longer, although the
  last promise was over, or another client had been granted the lock since.
- **leases lost**: the holder was notified that its lease is lost, or an extension or release said
  so. With node-redlock and aioredlock only notifications count: their extensions and releases
  fail without such a reason. *Needless* are the losses of leases whose client ran and reached the
  same majority of the masters (or the one) during the whole ttl before.
- **gap**: for so long a client that reached a majority of the masters (or the one) wanted a lock
  that nobody held. A master that has restarted, was flushed, or whose clock was set counts as out
  of reach for 4 s (in *clock set* until the end), with each library: so long redlock_aio may give
  it no vote, the others use it at once.
- **pause**: the longest time without an acquisition of one of the locks, for whatever reason.
- **keys left**: keys of locks that were still there 4 s after the end of the run, at a ttl of 1 s.
- **did not end**: a client process waited for ever, and was killed a minute after the run."""

FEATURES = """## What they promise

| | masters | extends | notifies its holder of a loss | waits by | fencing | fair |
|---|---|---|---|---|---|---|
| node-redlock: `using` | 5 | yes | an `AbortSignal` | polling | | |
| redsync: `NewMutex` | 5 | | | polling | | |
| pottery: `AIORedlock` | 5 | | | polling | | |
| aioredlock: `lock` | 5 | yes | `lock.valid`, if it looks | polling | | |
| redlock_aio: `plain` | 5 | yes | an event, or it is cancelled | pushes, polling | (1) | (1) |
| redis-py: `Lock` | 1 | | | polling | | |
| python-redis-lock: `auto_renewal` | 1 | in a thread | | BLPOP | | |

(1) It has both, as options that this column does not use.

An empty place is a feature that the library does not have. So the bodies outlast a ttl now and
then only with a lock that extends by itself. Handing a lease over, releasing by force and locking
several names under fencing tokens are not tried: hardly another library has them. Sentinels,
forked clients, and clients that are away while masters restart are tried with redlock_aio only. A
Go program has no event loop that could be blocked."""

SEEN = """## What lies behind it

- **A write after the lease's end** (holder stopped, loop stalled): the holder was stopped between
  acquiring and writing. No lock without fencing tokens prevents it, not that of redlock_aio
  either. How many updates one such write costs is chance: it sets the number back, and all that
  followed are lost, unless another client has read the higher number and writes it afterwards.
  [results-faults.md](results-faults.md) has columns with fencing tokens, where it is refused.
- **node-redlock** keeps the votes of an attempt that failed until its last retry, and its script
  refuses them to itself. With six waiters for a lock the votes stay split for seconds, also
  without a fault. Its `expiration` counts from the first attempt, so that a lock that took longer
  than the ttl to acquire has expired at once: the signal says so to the routine, which has begun.
- **redsync**, **pottery** and **redis-py** do not extend a lock by themselves, and notify nobody
  of a loss. A holder whose key was deleted goes on.
- **aioredlock** waits for a reply of each master, and neither it nor its client gives up: one that
  hangs or can't be reached delays each acquisition until it answers, or the connection ends. Its
  extension gets a lock back that had expired, also if others have had it meanwhile: under *master
  paused* a holder had read a number before that, and wrote it back afterwards.
- **python-redis-lock**: the thread that extends a lock ends by an exception when the key is gone.
  The holder is not notified."""

SETTINGS = """## Settings

The ttl is 1 s. Everything else is as the documentation recommends, or the default that it names:

- **node-redlock**: `using`, with the settings of its README: 10 retries, 200 ms and up to 200 ms
  apart, extended 500 ms before the end, a drift of 1 %. The clients have no options, as there.
- **redsync**: `Lock`, `Extend` and `Unlock`, up to 32 attempts 50 to 250 ms apart, its defaults.
  Its README has no options for go-redis. Its timeouts are 200 ms, it repeats no command, and
  `ContextTimeoutEnabled` makes it heed the 50 ms within which `Lock` wants a reply. With its
  defaults one master that hangs would hold up a release for four times 3 s.
- **pottery**: one `AIORedlock` for each acquisition, `acquire` with the timeout of 5 s that all
  have. It retries within 200 ms. Its README has no options for the clients; `socket_timeout` is
  200 ms.
- **aioredlock**: one manager for each process, three attempts 0.1 to 0.3 s apart, which are
  repeated up to the 5 s that all wait. Neither it nor aioredis 1.3 has a timeout for replies.
- **redis-py**: `client.lock(name, timeout=1, blocking_timeout=5)`, a poll each 0.1 s.
- **python-redis-lock**: `Lock(client, name, expire=1, auto_renewal=True)`, which waits without a
  limit, each acquisition in a thread of its own.
- redis-py's clients for the latter two have their defaults: a socket timeout of 5 s, no retry.
- **redlock_aio**: `redlock.lock(name, ttl=1000)` with its defaults, which extend the lease.

Before it writes, a holder asks the client whether its lease is still valid: the signal of
node-redlock, `Until` of redsync, `lock.valid` of aioredlock, `lease.ensure_valid()` of
redlock_aio. Where the client would have to ask the masters for it (`locked()` of pottery,
`owned()` of redis-py), the holder writes without a question.

These 200 ms are between 50 ms and 1 s, the limits of the timeout that redlock_aio learns."""


def report(results: Results) -> str:
    """Return the page with the results."""
    entries = results.of(control=False)
    parts = [
        HEAD,
        *_where(entries),
        LEGEND,
        "## Locks on a majority of five masters",
        matrix(entries, QUORUM_ROWS, ON_FIVE, QUORUM_NOTES),
        "## Locks on one master",
        matrix(entries, ONE_MASTER_ROWS, ON_ONE, ONE_MASTER_NOTES),
        SEEN,
        FEATURES,
        SETTINGS,
    ]
    return "\n\n".join(parts) + "\n"


def _where(entries: Sequence[Entry]) -> list[str]:
    """Return the versions, the machine, the date and the commands."""
    facts = [each.facts for each in entries if each.facts]
    if not facts:
        return []
    machines = " and ".join(dict.fromkeys(each["machine"] for each in facts))
    servers = ", ".join(dict.fromkeys(each["server"] for each in facts))
    dates = " and ".join(dict.fromkeys(each["date"] for each in facts))
    seeds = " or ".join(dict.fromkeys(str(each["seed"]) for each in facts))
    tasks, ttl = facts[0]["tasks"], facts[0]["ttl"]
    sentence = said(facts)
    return [
        f"{tasks} tasks in each process, a ttl of {ttl} ms, {servers}. {machines}. {dates}.",
        *([sentence + judged_by(each.checker for each in entries)] if sentence else []),
        (
            f"`python -m benchmarks.evidence.peers_matrix --seed {seeds}` runs all cells again,"
            " with `--rows` and `--columns` some of them."
        ),
    ]


def matrix(
    entries: Iterable[Entry], rows: Sequence[Row], names: Sequence[str], notes: Mapping[str, str]
) -> str:
    """Return the table with a row for each fault, a column for each library, and its notes."""
    cells = {(each.row, each.column): each for each in entries if each.column in names}
    columns = [name for name in names if any(column == name for _, column in cells)]
    numbers = {note: number for number, note in enumerate(dict.fromkeys(notes.values()), 1)}
    lines = []
    for row in rows:
        if any((row.name, column) in cells for column in columns):
            mark = f" ({numbers[notes[row.name]]})" if row.name in notes else ""
            texts = [
                words(cells[row.name, column]) if (row.name, column) in cells else ""
                for column in columns
            ]
            what = done(row, cells.values())
            lines.append([f"**{row.name}**{mark}. {what}", *texts])
    head = [_title(column, cells.values()) for column in columns]
    notes_text = [f"({number}) {note}" for note, number in numbers.items()]
    return "\n\n".join([table(["fault", *head], lines), *notes_text])


def _title(column: str, entries: Iterable[Entry]) -> str:
    """Return the name of a column with the versions of its packages."""
    for each in entries:
        if each.column == column and each.facts:
            versions = [f"{name} {number}" for name, number in each.facts["versions"].items()]
            name = "redlock_aio, plain" if column == "plain" else column
            return f"{name}<br>{', '.join(versions)}"
    return column


def words(entry: Entry) -> str:
    """Return what happened in a cell."""
    if entry.skipped:
        return f"not run: {entry.skipped}"
    if entry.wrong and not entry.facts:
        return f"not run: {'; '.join(entry.wrong)[:300]}"
    lost, late = entry.broken.get("updates", 0) + entry.late_updates, entry.late_updates
    parts = []
    if lost:
        by_late = f", {'all' if late == lost else late} by late writes" if late else ""
        parts.append(f"**{_many(lost, 'update')} lost**{by_late}")
    if pairs := entry.broken.get("exclusion", 0):
        parts.append(f"**{_many(pairs, 'pair')} of leases valid at once**")
    if again := entry.broken.get("expiry", 0):
        parts.append(f"**{_many(again, 'lease')} valid again after the end**")
    if not parts:
        parts.append("no update lost")
    if entry.losses:
        needless = f" ({entry.needless} needless)" if entry.needless else ""
        parts.append(f"{_many(entry.losses, 'lease')} lost{needless}")
    if keys := entry.broken.get("keys_left", 0):
        parts.append(f"{_many(keys, 'key')} left")
    parts += _failed(entry.wrong)
    parts.append(f"gap {entry.gap:.1f} s, pause {entry.pause:.1f} s")
    parts.append(f"{entry.acquired:,} acquired")
    if (share := entry.facts.get("long", 0.0)) > LONG:
        parts.append(f"1 in {1 / share:.0f} long")
    link = f" ([history]({entry.history}))" if entry.history else ""
    return "; ".join(parts) + link


def _failed(wrong: Sequence[str]) -> Iterator[str]:
    """Yield what went wrong in client processes."""
    if hanging := sum("did not end" in each for each in wrong):
        yield f"**{_many(hanging, 'client')} did not end**"
    elif wrong == [NOBODY]:
        yield f"**{NOBODY}**"
    elif wrong:
        yield f"a client failed: {' '.join(wrong[0].split())[-200:]}"


def _many(number: int, what: str) -> str:
    return f"{number} {what}" + ("s" if number != 1 else "")
