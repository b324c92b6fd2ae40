"""Where redsync is, which has a client process of its own: `worker.go`."""

import contextlib
import json
import subprocess
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from .locks import Contestant, Locks, Setting

WORKER = Path(__file__).parent / "go" / "worker"


def is_built() -> bool:
    """Return whether `go build -o worker` has built `worker.go`."""
    return WORKER.exists()


class Redsync(Contestant):
    """redsync for Go with go-redis."""

    name = "redsync"
    abilities = frozenset(("check", "extend"))
    distribution = "redsync (Go)"
    event_loop = False
    command: tuple[str, ...] = (str(WORKER),)

    def versions(self) -> dict[str, str]:
        """Return the versions of what the worker was built with."""
        done = subprocess.run([WORKER, "--versions"], capture_output=True, text=True, check=True)  # noqa: S603 - our own program
        found: dict[str, str] = json.loads(done.stdout)
        return found

    @contextlib.asynccontextmanager
    async def open(self, urls: Sequence[str], setting: Setting) -> AsyncIterator[Locks]:
        """Fail: its clients are processes of Go."""
        raise NotImplementedError(f"{urls}, {setting}")
        yield  # a generator, as the decorator needs
