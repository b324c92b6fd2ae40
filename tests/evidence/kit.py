"""Histories written by hand. All times are in ms since an arbitrary instant."""

import itertools
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from evidence import cell as cells
from evidence.checker import Verdict, check
from evidence.controls import CONTROLS
from evidence.matrix import make, parse

MS = 1_000_000
ORIGIN = 5_000_000_000_000
"""In ns: far from 0, as on a machine that has run for some time."""

FOREVER = 10_000
"""A validity longer than each history."""


def instant(ms: float) -> int:
    return ORIGIN + round(ms * MS)


def verdicts(name: str, folder: Path) -> Iterator[Verdict]:
    """Yield what runs of a naive design show: a busy machine may miss its defect in one of them."""
    (control,) = (each for each in CONTROLS if each.column == name)
    for seed in range(1, 5):
        run = folder / str(seed)
        run.mkdir()
        options = parse(["--controls", control.name, "--seed", str(seed)])
        assert not cells.run(make(options, control.row, control.column, control), run)
        yield check(run)


class Script:
    """
    Writes the history of a run, operation by operation.

    Each operation gets its time as two numbers: when it was invoked, and when it ended (None
    if its end was not recorded).
    """

    def __init__(self, folder: Path, **meta: object) -> None:
        self.folder = folder
        self.meta: dict[str, object] = {"masters": 5, "expected": "holds"} | meta
        self.events: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self._numbers = itertools.count()

    def add(
        self,
        client: str,
        what: str,
        *time: float | None,
        end: str = "ok",
        asked: dict[str, Any],
        result: dict[str, Any] | None = None,
    ) -> None:
        """Add an operation."""
        event = {"client": client, "op": next(self._numbers), "what": what}
        mine = self.events[client.partition("/")[0]]
        began, ended = time
        assert began is not None
        mine.append(event | {"at": instant(began), "how": "invoke"} | asked)
        if ended is not None:
            mine.append(event | {"at": instant(ended), "how": end} | (result or {}))

    def acquire(
        self,
        client: str,
        *time: float | None,
        key: str = "k",
        until: float = FOREVER,
        token: int | None = None,
        end: str = "ok",
        fencing: bool | None = None,
        observed: bool = True,
        shared: bool = False,
        permit: int | None = None,
        permits: int = 0,
        guarded: bool = False,
        keeps: int = 0,
    ) -> str:
        """Add an acquisition of *key* or of several with commas; return the name of its lease."""
        lease = f"lease-{next(self._numbers)}"
        fencing = token is not None if fencing is None else fencing
        asked = {"keys": key.split(","), "ttl": 1_000, "wait": 500, "fair": False,
                 "fencing": fencing, "observed": observed}  # fmt: skip
        if shared:  # older histories have no such fact
            asked["shared"] = True
        if guarded:
            asked["guarded"] = True
        if keeps:
            asked["keeps"] = keeps
        result: dict[str, Any] = {"lease": lease, "until": instant(until), "token": token}
        if permits:
            asked["permits"] = permits
        if permit is not None:
            result["permit"] = permit
        if end != "ok":
            result = {"why": "LockNotAcquiredError"}
        self.add(client, "acquire", *time, end=end, asked=asked, result=result)
        return lease

    def release(
        self, client: str, *time: float | None, lease: str, end: str = "ok", why: str = ""
    ) -> None:
        asked = {"lease": lease}
        self.add(client, "release", *time, end=end, asked=asked, result=asked | {"why": why})

    def extend(
        self,
        client: str,
        *time: float | None,
        lease: str,
        until: float = FOREVER,
        ttl: int = 1_000,
        end: str = "ok",
        why: str = "",
    ) -> None:
        result = {"lease": lease, "until": instant(until)} if end == "ok" else {"why": why}
        asked = {"lease": lease, "ttl": ttl}
        self.add(client, "extend", *time, end=end, asked=asked, result=result)

    def observe(self, client: str, what: str, at: float, **facts: object) -> None:
        """Add a "held" or a "lost"."""
        event = {"client": client, "op": next(self._numbers), "what": what, "how": "ok"}
        self.events[client.partition("/")[0]].append(event | {"at": instant(at)} | facts)

    def held(self, client: str, at: float, *, lease: str, until: float) -> None:
        self.observe(client, "held", at, lease=lease, until=instant(until))

    def lost(self, client: str, at: float, *, lease: str) -> None:
        self.observe(client, "lost", at, lease=lease, why="KEY_GONE")

    def adopt(
        self,
        client: str,
        *time: float | None,
        exporter: str,
        until: float = FOREVER,
        token: int | None = None,
        end: str = "ok",
        permit: int | None = None,
        permits: int = 0,
    ) -> str:
        lease = f"lease-{next(self._numbers)}"
        asked: dict[str, Any] = {"from": exporter, "keys": ["k"], "ttl": 1_000}
        result: dict[str, Any] = {
            "lease": lease, "from": exporter, "until": instant(until), "token": token,
        }  # fmt: skip
        if permits:
            asked |= {"permits": permits, "permit": permit}
            result["permit"] = permit
        self.add(client, "adopt", *time, end=end, asked=asked, result=result if end == "ok" else {})
        return lease

    def force_release(
        self,
        client: str,
        *time: float | None,
        end: str = "ok",
        key: str = "k",
        permit: int | None = None,
    ) -> None:
        asked: dict[str, Any] = {"keys": [key]}
        if permit is not None:
            asked |= {"permits": permit + 1, "permit": permit}
        self.add(client, "force_release", *time, end=end, asked=asked)

    def increment(
        self,
        client: str,
        *time: float | None,
        value: int | None = None,
        end: str = "ok",
        lease: str = "",
    ) -> None:
        """Add an addition to the counter of "k", which wrote *value*."""
        result = {"value": value} if end == "ok" else {}
        asked = {"key": "k"} | ({"lease": lease} if lease else {})
        self.add(client, "add", *time, end=end, asked=asked, result=result)

    def section(
        self,
        client: str,
        began: float,
        ended: float,
        *,
        key: str = "k",
        token: int | None = None,
        until: float = FOREVER,
        **facts: Any,
    ) -> str:
        """Add an acquisition that took 1 ms, and the release of its lease."""
        lease = self.acquire(client, began - 1, began, key=key, token=token, until=until, **facts)
        self.release(client, ended, ended + 1, lease=lease)
        return lease

    def write(
        self,
        client: str,
        *time: float | None,
        value: int,
        token: int | None,
        end: str = "ok",
        key: str = "k",
    ) -> None:
        asked = {"key": key, "value": value, "token": token, "lease": "unused"}
        self.add(client, "write", *time, end=end, asked=asked, result={"why": "StaleTokenError"})

    def read(
        self,
        client: str,
        *time: float | None,
        value: int | None,
        token: int | None,
        key: str = "k",
        lease: str = "",
        end: str = "ok",
    ) -> None:
        result = {"value": value, "token": token} if end == "ok" else {}
        asked = {"key": key} | ({"lease": lease} if lease else {})
        self.add(client, "read", *time, end=end, asked=asked, result=result)

    def reach(self, process: str, at: float, *masters: int) -> None:
        event = {"at": instant(at), "what": "reach", "client": process, "masters": list(masters)}
        self.events["faults"].append(event)

    def fault(self, name: str, *time: float | None, client: str = "") -> None:
        event = {"what": "fault", "name": name, "detail": "", "client": client}
        for at, how in zip(time, ("begin", "end"), strict=True):
            if at is not None:
                self.events["faults"].append(event | {"at": instant(at), "how": how})

    def save(self) -> Path:
        """Write the files."""
        self.folder.mkdir(exist_ok=True)
        for name, events in self.events.items():
            lines = (json.dumps(event) + "\n" for event in events)
            (self.folder / f"{name}.jsonl").write_text("".join(lines))
        (self.folder / "meta.json").write_text(json.dumps(self.meta))
        return self.folder

    def check(self, *, longest_gap: float | None = None) -> Verdict:
        """Write the files and check them."""
        return check(self.save(), longest_gap=longest_gap)
