"""The figures of the section "Simulation by numbers" are those of the results."""

from pathlib import Path

import pytest
from evidence.simulation import log
from evidence.simulation.defects import PAGE as DEFECTS
from evidence.simulation.plan import FAULTS, KINDS


@pytest.fixture
def section(root: Path) -> str:
    page = (root / "docs/explanation/testing.md").read_text()
    return page.partition("\n## Simulation by numbers\n")[2].partition("\n## ")[0]


@pytest.fixture
def chunks(root: Path) -> list[log.Chunk]:
    return log.read(root / "benchmarks" / log.LOG)


def test_the_seeds(section: str, chunks: list[log.Chunk]) -> None:
    assert log.summary(chunks) in section
    assert sum(each.seeds for each in chunks) >= 100_000
    assert not any(each.failed for each in chunks)


def test_the_results_are_those_of_the_log(root: Path, chunks: list[log.Chunk]) -> None:
    assert (root / "benchmarks" / log.PAGE).read_text() == log.report(chunks)


def test_each_seed_was_run_once(chunks: list[log.Chunk]) -> None:
    seeds = sum(each.seeds for each in chunks)
    first, last = min(each.first for each in chunks), max(each.last for each in chunks)
    assert (seeds, log.missing(chunks, first, last)) == (last - first + 1, [])


def test_the_faults_of_the_log_are_those_that_there_are(chunks: list[log.Chunk]) -> None:
    assert {name for each in chunks for name in each.faults} == set(log.WHAT)
    assert len(FAULTS) > 12
    assert len(KINDS) >= 10


def test_the_defects(root: Path, section: str) -> None:
    page = (root / "benchmarks" / DEFECTS).read_text()
    rows = [line for line in page.splitlines() if line.startswith("|")]
    assert len(rows) - 2 >= 10
    assert "\n".join(rows) in section
