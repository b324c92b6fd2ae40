"""The commands that only look: who holds a lock, and which locks are held."""

import asyncio
import math
import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from redlock_aio import (
    Answer,
    FoundLocks,
    Holder,
    LockState,
    MasterView,
    Reader,
    Redlock,
    SemaphoreState,
    SemaphoreView,
)
from redlock_aio.cli import durations
from redlock_aio.cli.exits import Exit
from redlock_aio.cli.frame import Duration, Frame, Number, command, wrong_options

INTERVAL = 1_000
"""The default ms between two looks of ``redlock watch``."""

Key = Annotated[str, typer.Argument(metavar="KEY", help="The name that is locked.")]
OfPermits = Annotated[
    int | None,
    Number(
        "--permits",
        least=1,
        most=1_000,
        help="Show the semaphore of this name, which has so many permits.",
    ),
]
Prefix = Annotated[
    str, typer.Argument(metavar="PREFIX", help="How the names begin (default: all names).")
]
Limit = Annotated[
    int,
    Number("--limit", least=1, help="The most locks, and semaphores, to show (default 1000)."),
]
Interval = Annotated[
    int | None, Duration("--interval", help="How long to wait between two looks (default 1s).")
]
For = Annotated[int | None, Duration("--for", help="End after this time (default: go on).")]


def add_to(app: typer.Typer) -> None:
    """Add the commands to *app*."""
    command(app, name="inspect", guard="off", example="redlock inspect invoice:42")(inspect)
    command(app, name="list", guard="off", example="redlock list invoice:")(list_locks)
    command(app, name="watch", guard="off", example="redlock watch invoice:42 --interval 500ms")(
        watch
    )


async def inspect(frame: Frame, key: Key, permits: OfPermits = None) -> int:
    """
    Show who holds a lock, as each master reports it.

    With --permits it shows who holds the permits of a semaphore.

    Nothing is written on the masters. So a master that has just restarted counts as any other,
    unless you pass the programs' --restart-guard.
    """
    async with frame.connected(frame.patient()) as redlock:
        with wrong_options():
            state = await state_of(redlock, key, permits)
    frame.out.result(facts_of(state), text_of(frame, state))
    return verdict(state)


async def state_of(redlock: Redlock, key: str, permits: int | None) -> LockState | SemaphoreState:
    """Return the state of a lock, or with *permits* of a semaphore."""
    if permits is None:
        return await redlock.inspect(key)
    return await redlock.semaphore(key, permits=permits).inspect()


async def list_locks(frame: Frame, prefix: Prefix = "", limit: Limit = 1_000) -> int:
    """
    List the locks and semaphores whose names begin with PREFIX.

    Each master is scanned in small steps, by SCAN. Nothing is written on the masters.
    """
    async with frame.connected(frame.patient()) as redlock:
        with wrong_options():
            found = await redlock.find_locks(prefix, limit=limit)
    if frame.out.as_json:
        for state in found.states:
            frame.out.result(facts_of(state), "")
        for name, claimed in found.semaphores.items():
            frame.out.result({"resource": name, "claimed": claimed}, "")
    else:
        rows = [row_of(state) for state in found.states]
        rows += [
            [name, f"{claimed} permit{'s' * (claimed != 1)}", "", "", ""]
            for name, claimed in found.semaphores.items()
        ]
        frame.out.table(["KEY", "HOLDER", "LEFT", "WAITING", "MASTERS"], rows)
    return complete(frame, found)


def complete(frame: Frame, found: FoundLocks) -> Exit:
    """Return the exit code for a listing, after a message if it is not complete."""
    if found.complete:
        return Exit.DONE
    away = [vote for vote in found.votes if vote.answer not in {Answer.HELD, Answer.FREE}]
    if len(away) > len(found.votes) // 2:  # a lock may be on none of the others
        reasons = "; ".join(map(str, away))
        frame.out.note(f"too few masters answered, locks may be missing ({reasons})")
        return Exit.UNAVAILABLE
    # Of more names or keys than are looked at, it is not known which are locks.
    shown = len(found.states) + len(found.semaphores)
    frame.out.note(f"there may be more locks than the {shown} that are shown")
    return Exit.DONE


async def watch(
    frame: Frame,
    key: Key,
    interval: Interval = None,
    for_: For = None,
    permits: OfPermits = None,
) -> int:
    """
    Show who holds a lock, live.

    With --permits it shows who holds the permits of a semaphore.

    In a terminal the state is updated in place. Otherwise there is a line for each change.
    """
    pause = (INTERVAL if interval is None else max(interval, 10)) / 1000
    ends = math.inf if for_ is None else time.monotonic() + for_ / 1000
    async with frame.connected() as redlock:
        with wrong_options():
            state = await state_of(redlock, key, permits)
        live = frame.out.in_terminal and not frame.out.as_json and not _is_dumb_terminal()
        view = Picture(frame) if live else Changes(frame)
        with view:
            while True:
                view.show(state)
                left = ends - time.monotonic()
                if left <= 0:
                    return verdict(state)
                await asyncio.sleep(min(pause, left))
                state = await state_of(redlock, key, permits)


def _is_dumb_terminal() -> bool:
    from rich.console import Console  # as elsewhere here: see `drawing`

    return Console().is_dumb_terminal


class Changes:
    """Writes a line for each change of the holder, of the readers, or of permits."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._before: object = None

    def __enter__(self) -> None:
        """Begin; there is nothing to prepare."""

    def __exit__(self, *_: object) -> None:
        """End; there is nothing to clean up."""

    def show(self, state: LockState | SemaphoreState) -> None:
        """Write the state, if somebody else holds the lock now."""
        if state.facts != self._before:
            self._before = state.facts
            lines = text_of(self._frame, state).splitlines()
            own = lines[: len(lines) - len(state.views)]  # without those about single masters
            line = "; ".join(text.strip() for text in own)
            facts = {"time": round(time.time(), 3), **facts_of(state)}
            self._frame.out.result(facts, f"{time.strftime('%H:%M:%S')} {line}")


class Picture:
    """Shows the state in a terminal, and updates it in place."""

    def __init__(self, frame: Frame) -> None:
        from rich.live import Live

        self._frame = frame
        self._live = Live(auto_refresh=False)

    def __enter__(self) -> None:
        self._live.start()
        self._live.console.show_cursor(True)  # Ctrl-Z would leave the shell without one

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, state: LockState | SemaphoreState) -> None:
        """Replace what is shown: the state, and the masters that differ from it."""
        from rich.text import Text

        lines = text_of(self._frame, state).splitlines()
        own = lines[: len(lines) - len(state.views)]
        others = [f"  {self._frame.out.printable(str(view))}" for view in differing(state)]
        text = "\n".join([f"{time.strftime('%H:%M:%S')} {own[0]}", *own[1:], *others])
        self._live.update(Text(text), refresh=True)


def differing(state: LockState | SemaphoreState) -> Sequence[MasterView | SemaphoreView]:
    """Return the masters that have not answered, or have other holders than the majority."""
    if isinstance(state, SemaphoreState):
        return [view for view in state.views if not view.counts or differs(view, state)]
    whose = "readers" if state.shared else state.holder.fingerprint if state.holder else ""
    return [view for view in state.views if not view.counts or view.kept_by != whose]


def differs(view: SemaphoreView, state: SemaphoreState) -> bool:
    """Return whether a master has other holders of permits than the majority."""
    theirs, ours = (
        {number: holder.fingerprint for number, holder in permits.items()}
        for permits in (view.holders, state.holders)
    )
    return theirs != ours


def text_of(frame: Frame, state: LockState | SemaphoreState) -> str:
    """Return the state of a lock or semaphore for people."""
    return "\n".join(map(frame.out.printable, str(state).splitlines()))


def row_of(state: LockState) -> list[str]:
    """Return the row of a lock in a table."""
    held = sum(bool(view.kept_by) and view.counts for view in state.views)
    if state.shared:
        count = len(state.readers)
        holder, left = f"{count} reader{'s' * (count != 1)}", state.remaining
    elif state.holder is not None:
        holder, left = str(state.holder), state.remaining
    else:
        holder = "nobody" if state.certain else "not certain"
        ends = [view.remaining for view in state.views if view.kept_by]
        left = None if None in ends else max((end or 0 for end in ends), default=0)
    shown = "no end" if left is None else durations.shown(left)
    return [state.resource, holder, shown, str(state.waiters), f"{held}/{len(state.views)}"]


def verdict(state: LockState | SemaphoreState) -> Exit:
    """Return the exit code for the state of a lock or semaphore."""
    if not state.certain:
        return Exit.UNAVAILABLE
    held = state.claimed > 0 if isinstance(state, SemaphoreState) else state.locked
    return Exit.DONE if held else Exit.NO


def facts_of(state: LockState | SemaphoreState) -> dict[str, Any]:
    """Return the state of a lock or semaphore for JSON."""
    if isinstance(state, SemaphoreState):
        return facts_of_semaphore(state)
    return {
        "resource": state.resource,
        "locked": state.locked,
        "certain": state.certain,
        "split": state.split,
        "holder": facts_of_holder(state.holder),
        "shared": state.shared,
        "readers": [facts_of_reader(reader) for reader in state.readers],
        "remaining_ms": state.remaining,
        "fencing_counter": state.fencing_counter,
        "waiters": state.waiters,
        "waiting_writers": state.waiting_writers,
        "masters": [facts_of_view(view) for view in state.views],
    }


def facts_of_semaphore(state: SemaphoreState) -> dict[str, Any]:
    """Return the state of a semaphore for JSON."""
    return {
        "resource": state.resource,
        "permits": state.permits,
        "claimed": state.claimed,
        "available": state.available,
        "certain": state.certain,
        "holders": facts_of_permits(state),
        "waiters": state.waiters,
        "masters": [
            {
                "master": view.master,
                "answer": view.answer.name.lower(),
                "detail": view.detail,
                "holders": facts_of_permits(view),
                "waiters": view.waiters,
            }
            for view in state.views
        ],
    }


def facts_of_permits(state: SemaphoreState | SemaphoreView) -> list[dict[str, Any]]:
    """Return the holders of permits for JSON."""
    return [
        {
            "permit": number,
            "holder": facts_of_holder(holder),
            "remaining_ms": state.remaining[number],
        }
        for number, holder in state.holders.items()
    ]


def facts_of_holder(holder: Holder | None) -> dict[str, Any] | None:
    """Return a holder for JSON."""
    if holder is None:
        return None
    return {
        "fingerprint": holder.fingerprint,
        "name": holder.name,
        "metadata": dict(holder.metadata),
    }


def facts_of_reader(reader: Reader) -> dict[str, Any]:
    """Return a reader for JSON."""
    return {"holder": facts_of_holder(reader.holder), "remaining_ms": reader.remaining}


def facts_of_view(view: MasterView) -> dict[str, Any]:
    """Return the state of a lock on one master for JSON."""
    return {
        "master": view.master,
        "answer": view.answer.name.lower(),
        "detail": view.detail,
        "holder": facts_of_holder(view.holder),
        "shared": view.shared,
        "readers": [facts_of_reader(reader) for reader in view.readers],
        "remaining_ms": view.remaining,
        "fencing_counter": view.fencing_counter,
        "waiters": view.waiters,
        "waiting_writers": view.waiting_writers,
    }
