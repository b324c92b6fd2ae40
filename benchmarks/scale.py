"""
Up to 200 waiters for one lock, in up to 40 processes: what happens when many more come.

Each waiter acquires the lock, works for 1 ms under it, and acquires it again at once, as in
`contention.py`. Each process has 5 of them. The benchmark claims that no two turns overlap,
and that with ``fair=True`` the waiter with the fewest turns has at most `MOST_APART` fewer than
the one with the most. The rate falls with the number of processes, because all of them and the
masters share the cores of one machine.

    python benchmarks/scale.py [--quick] [--containers | --server redis]

The table goes to `results-scale.md`, its figures to `results-scale.svg`.
"""

import logging
from collections.abc import Iterator, Sequence

import masters
import measuring
from contenders import FAIR, PLAIN, REDIS_PY
from contention import OURS, Setting, Taken, contend
from measuring import bar
from picture import Lines, draw_lines

CONTENDERS = (PLAIN, FAIR, REDIS_PY)
WAITERS = 5
SETTINGS = [Setting(processes, WAITERS * processes) for processes in (1, 5, 10, 20, 40)]
FOR_QUICK = [Setting(1, WAITERS), Setting(2, 2 * WAITERS)]

MOST_APART = 2
"""The most turns that a fair waiter may have beyond another one: one of them is underway."""


async def measure(urls: Sequence[str], settings: Sequence[Setting], seconds: float) -> list[Taken]:
    return [
        await contend(urls, contestant, setting, seconds)
        for contestant in CONTENDERS
        for setting in settings
    ]


def rows(found: Sequence[Taken]) -> Iterator[list[str]]:
    for each in found:
        ours = each.contestant in OURS
        apart = max(each.counts) - min(each.counts)
        bars = [bar("no overlaps", passed=not each.overlaps)]
        if each.contestant == FAIR:
            bars.append(bar(f"within {MOST_APART} turns", passed=apart <= MOST_APART))
        yield [
            f"**{each.contestant}**" if ours else each.contestant,
            f"{each.setting.processes} x {WAITERS}",
            f"{each.setting.waiters}",
            f"{each.rate:,.0f}",
            f"{min(each.counts):,}",
            f"{max(each.counts):,}",
            f"{each.longest_wait:,.0f} ms",
            f"{each.overlaps}",
            ", ".join(bars if ours else ()),
        ]


def report(found: Sequence[Taken], seconds: float, where: str, url: str) -> str:
    head = [
        "one lock, 1 ms of work in each turn", "processes x waiters in each", "waiters", "turns/s",
        "fewest turns", "most turns", "longest wait", "overlaps", "bars",
    ]  # fmt: skip
    machine = measuring.machine(url, "redlock_aio", "redis", "hiredis")
    return "\n\n".join(
        [
            "# Many more waiters",
            f"Five masters {where}, and all clients, on one machine: {machine}.",
            measuring.command(),
            f"Each setting was measured for {seconds:g} s.",
            measuring.table(head, rows(found)),
        ]
    )


def panels(found: Sequence[Taken]) -> list[Lines]:
    def values(attribute: str) -> dict[str, list[float]]:
        return {
            contestant: [getattr(e, attribute) for e in found if e.contestant == contestant]
            for contestant in CONTENDERS
        }

    return [
        Lines("Turns of 1 ms in a second", values("rate")),
        Lines("Longest wait of any waiter, in ms", values("longest_wait"), logarithmic=True),
    ]


def main() -> None:
    parser = measuring.arguments(__doc__)
    masters.add_options(parser)
    options = parser.parse_args()
    logging.getLogger("redlock_aio").setLevel(logging.ERROR)
    settings, seconds = (FOR_QUICK, 0.5) if options.quick else (SETTINGS, 3.0)
    with masters.running(options) as servers:
        urls = [server.url for server in servers]
        found = measuring.run(measure(urls, settings, seconds))
        text = report(found, seconds, masters.where(options), urls[0])
    print(text)
    if not options.quick:
        masters.results(options, "results-scale").write_text(f"{text}\n")
        if masters.drawn(options):
            places = [f"{each.waiters}\n({each.processes})" for each in settings]
            axis = "waiters (and their processes) for one lock"
            path = measuring.HERE / "results-scale.svg"
            draw_lines(places, axis, panels(found), OURS, path)


if __name__ == "__main__":
    main()
