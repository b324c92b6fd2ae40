"""The client processes of a run: what went wrong in them, and which of them hold leases."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from evidence.crew import Crew
from evidence.job import Job


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder, with the crews that `crew` makes in it; they are stopped at the end."""
    yield tmp_path
    for each in crews:
        each.stop()
    crews.clear()


crews: list[Crew] = []


def crew(folder: Path, program: str) -> Crew:
    """Return a crew whose processes run *program*, a Python program."""
    made = Crew(Job(str(folder), "plain", (), "", 1), command=(sys.executable, "-c", program))
    crews.append(made)
    return made


def ended(made: Crew, name: str) -> None:
    made._processes[name].wait(30)


def test_a_client_that_was_killed_did_nothing_wrong(folder: Path) -> None:
    made = crew(folder, "import time; time.sleep(60)")
    made.kill(made.start_one())
    assert made.wait() == []


def test_a_client_that_failed_before_it_was_killed_is_found(folder: Path) -> None:
    made = crew(folder, "raise RuntimeError('a defect')")
    name = made.start_one()
    ended(made, name)
    made.kill(name)
    (text,) = made.wait()
    assert text.startswith("w0 ended with 1: ")
    assert "a defect" in text


def test_a_client_that_ended_early_without_an_error_is_found(folder: Path) -> None:
    made = crew(folder, "")
    name = made.start_one()
    ended(made, name)
    made.kill(name)
    assert made.wait() == ["w0 ended with 0: "]


def test_a_client_that_wrote_an_error_is_found_though_it_succeeded(folder: Path) -> None:
    made = crew(folder, "import sys; sys.stderr.write('a task failed')")
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
    folder: Path, events: list[str], number: int
) -> None:
    lines = ["a part of a line"]
    for event in events:
        client, what, how = event.split()
        lines.append(json.dumps({"client": f"w0/{client}", "what": what, "how": how}))
    (folder / "w0.jsonl").write_text("\n".join([*lines, '{"client": "w0/7", "wh']))
    assert crew(folder, "").held_by("w0") == number


def test_a_process_without_a_history_holds_nothing(folder: Path) -> None:
    assert crew(folder, "").held_by("w5") == 0
