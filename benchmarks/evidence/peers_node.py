"""Where node-redlock is, which has a client process of its own: `worker.mjs`."""

import contextlib
import json
import shutil
import subprocess
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from .locks import Contestant, Locks, Setting

HERE = Path(__file__).parent / "node"


def is_installed() -> bool:
    """Return whether there is Node with the packages of `package.json`."""
    return shutil.which("node") is not None and (HERE / "node_modules" / "redlock").exists()


class NodeRedlock(Contestant):
    """redlock for Node with ioredis."""

    name = "node-redlock"
    abilities = frozenset(("check", "auto_extend"))
    distribution = "redlock (npm)"
    command: tuple[str, ...] = ("node", str(HERE / "worker.mjs"))

    def versions(self) -> dict[str, str]:
        """Return the versions of the installed packages, and of Node."""
        node = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True)  # noqa: S607 - the one of the PATH
        found = {"node": node.stdout.strip()}
        for package in ("redlock", "ioredis"):
            facts = json.loads((HERE / "node_modules" / package / "package.json").read_text())
            found[package] = facts["version"]
        return found

    @contextlib.asynccontextmanager
    async def open(self, urls: Sequence[str], setting: Setting) -> AsyncIterator[Locks]:
        """Fail: its clients are processes of Node."""
        raise NotImplementedError(f"{urls}, {setting}")
        yield  # a generator, as the decorator needs
