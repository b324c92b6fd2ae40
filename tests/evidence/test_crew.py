"""The client processes of a run: what went wrong in them, and which of them hold leases."""

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
from evidence.crew import Crew
from evidence.job import Job
from evidence.ours import Extensions, OurLease

from redlock_aio import Lease
from redlock_aio.events import Acquired, Extended

Make = Callable[[str], Crew]


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Make]:
    """Return a function that makes a crew whose processes run a Python program."""
    with contextlib.ExitStack() as stack:

        def make(program: str) -> Crew:
            job = Job(str(tmp_path), "plain", (), "", 1)
            made = Crew(job, command=(sys.executable, "-c", program))
            stack.callback(made.stop)
            return made

        yield make


def test_a_client_that_was_killed_did_nothing_wrong(crew: Make) -> None:
    made = crew("import time; time.sleep(60)")
    made.kill(made.start_one())
    assert made.wait() == []


def test_a_client_runs_until_it_ends(crew: Make) -> None:
    made = crew("")
    name = made.start_one()
    made.wait()
    assert not made.runs(name)
    other = crew("import time; time.sleep(60)")
    assert other.runs(other.start_one())


@pytest.mark.parametrize(
    ("program", "code", "says"),
    [("raise RuntimeError('a defect')", 1, "a defect"), ("", 0, "")],
    ids=["failed", "ended early"],
)
def test_a_client_that_had_ended_before_it_was_killed_is_found(
    crew: Make, program: str, code: int, says: str
) -> None:
    made = crew(program)
    name = made.start_one()
    made.wait()
    made.kill(name)
    (text,) = made.wait()
    assert text.startswith(f"w0 ended with {code}: ")
    assert says in text


def test_a_client_that_wrote_an_error_is_found_though_it_succeeded(crew: Make) -> None:
    made = crew("import sys; sys.stderr.write('a task failed')")
    made.start_one()
    assert made.wait() == ["w0 ended with 0: a task failed"]


@pytest.mark.parametrize(
    ("events", "number"),
    [
        ([], 0),
        (["0 acquire invoke"], 0),
        (["0 acquire invoke", "0 acquire ok"], 1),
        (["0 acquire ok", "1 adopt ok"], 2),
        (["0 acquire ok", "0 release invoke"], 0),
        (["0 acquire ok", "1 release invoke"], 1),
        (["0 acquire ok", "0 lost ok"], 0),
        (["0 acquire ok", "0 acquire invoke"], 0),  # it has exported the lease
        (["0 acquire ok", "0 extend ok"], 1),
        (["0 acquire fail"], 0),
    ],
)
def test_a_process_holds_the_leases_that_the_end_of_its_history_says(
    crew: Make, tmp_path: Path, events: list[str], number: int
) -> None:
    lines = ["a part of a line"]
    for event in events:
        client, what, how = event.split()
        lines.append(json.dumps({"client": f"w0/{client}", "what": what, "how": how}))
    (tmp_path / "w0.jsonl").write_text("\n".join([*lines, '{"client": "w0/7", "wh']))
    assert crew("").held_by("w0") == number


FORKING = """
import os, sys, time
sys.path[:0] = {path!r}
from evidence import worker
from evidence.job import Job

async def run(self):
    if os.fork() == 0:
        time.sleep(0.2)
        os.rename("{folder}/holds", "{folder}/released")
        os._exit(0)

worker.Worker.run = run
worker.main(Job("{folder}", "plain", (), "unix:///nowhere", 1), "w0")
"""


def test_a_client_outlives_its_forked_children(crew: Make, tmp_path: Path) -> None:
    """They would be killed with what they hold when the last client has ended."""
    (tmp_path / "holds").touch()
    made = crew(FORKING.format(path=sys.path, folder=tmp_path))
    made.start_one()
    assert made.wait() == []
    assert (tmp_path / "released").exists()


def test_a_process_without_a_history_holds_nothing(crew: Make) -> None:
    assert crew("").held_by("w5") == 0


def test_each_extension_of_a_lease_is_noticed() -> None:
    """Also those by the library itself: else nobody knows until when it was promised."""
    extensions = Extensions()
    leases = [
        extensions.add(OurLease(Mock(spec=Lease, fingerprint=name), fencing=False))
        for name in ("aa", "bb")
    ]
    noticed: list[str] = []
    for lease in leases:
        lease.on_extended = partial(noticed.append, lease.lease.fingerprint)
    extensions(Extended(("r",), "bb", 1_000, 300))
    extensions(Extended(("r",), "cc", 1_000, 300))
    extensions(Acquired(("r",), "aa", 0, None))
    assert noticed == ["bb"]
