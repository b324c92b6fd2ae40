"""
What programs on Windows and macOS get, by an interpreter without what these do not have.

It stays one of Linux otherwise: nothing here shows that sockets and processes work there.
"""

import socket
import subprocess
import sys

import pytest

from redlock_aio._transport.address import keepalive_options

WINDOWS = """
import functools, os, signal, socket, sys, time
import asyncio, multiprocessing.resource_tracker, selectors, subprocess, tempfile  # as they are

socket.socketpair = functools.partial(socket.socketpair, socket.AF_UNIX)  # for event loops
# Those of Windows have other modules behind them, which Linux does not have.
sys.modules |= dict.fromkeys(("fcntl", "grp", "pwd", "resource", "termios", "tty"))
for module, names in {
    os: "fork getpgrp killpg pread pwrite register_at_fork set_blocking setsid tcgetpgrp tcsetpgrp",
    signal: "SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGQUIT SIGSTOP SIGTSTP SIGTTIN SIGTTOU SIGUSR1"
    " SIGUSR2 SIGWINCH SIGXFSZ pthread_kill pthread_sigmask",
    socket: "AF_UNIX TCP_USER_TIMEOUT",
    time: "CLOCK_BOOTTIME CLOCK_MONOTONIC CLOCK_MONOTONIC_RAW clock_gettime",
}.items():
    for name in names.split():
        vars(module).pop(name, None)

def refuse(*_args):
    raise NotImplementedError

asyncio.SelectorEventLoop.add_signal_handler = refuse
"""

IMPORTS = """
import importlib, pathlib, sys
root = pathlib.Path(sys.argv[1])
for path in sorted(root.glob("*redlock_aio/**/*.py")):
    name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
    if name not in sys.argv[2:]:
        importlib.import_module(name)
print("imported")
"""

POSIX_ONLY = [
    f"redlock_aio.cli.{name}"
    for name in (
        "child", "group", "guardian", "guardian_process", "impatience", "supervision", "terminal",
    )
]  # fmt: skip
"""The modules of `redlock run`, which are imported after it was refused."""

A_LOCK = """
from redlock_aio import Redlock, sync
from redlock_aio.testing import FakeMaster, VirtualTimeLoop

async def main(masters):
    async with Redlock(masters) as redlock, redlock.lock("r", ttl=1_000, fair=True) as lease:
        await asyncio.sleep(3)
        assert lease.valid

with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
    runner.run(main([FakeMaster(f"m{number}") for number in range(3)]))
with sync.Redlock([FakeMaster("m")]) as redlock, redlock.lock("r") as lease:
    assert lease.valid
print("held")
"""

REFUSED = """
import importlib

class Named:
    name = "nt"

    def __getattr__(self, name):
        return getattr(os, name)

# Only for the modules that ask, because others import then what Linux does not have.
for module in ("redlock_aio.cli.run", "redlock_aio.testing._embedded"):
    importlib.import_module(module).os = Named()
for call in sys.argv[1:]:
    module, *arguments = call.split()
    print(int(importlib.import_module(module).main(arguments)))
"""


def on_windows(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-X", "utf8", "-c", WINDOWS + program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.full
def test_all_modules_but_those_of_redlock_run_are_imported_on_windows(
    pytestconfig: pytest.Config,
) -> None:
    done = on_windows(IMPORTS, str(pytestconfig.rootpath), *POSIX_ONLY)
    assert (done.stdout, done.stderr) == ("imported\n", "")


@pytest.mark.full
def test_programs_on_windows_have_locks_and_masters_in_memory() -> None:
    done = on_windows(A_LOCK)
    assert (done.stdout, done.stderr) == ("held\n", "")


SERVERS = (
    "servers can be started on Linux and macOS only: use FakeMaster, or run this in WSL or in a"
    " container"
)
SAID = {
    "redlock_aio.demo --plain": (2, f"the demo can't run: {SERVERS}"),
    "redlock_aio.testing._serving 1": (2, f"the masters can't run: {SERVERS}"),
    "redlock_aio.cli.app masters 1": (70, f"redlock: the masters can't run: {SERVERS}"),
    "redlock_aio.cli.app run key -- dir": (126, "redlock: 'redlock run' needs a POSIX system"),
}
"""The exit codes and messages of what Windows can't run."""


@pytest.mark.full
def test_what_windows_can_not_run_says_so() -> None:
    done = on_windows(REFUSED, *SAID)
    codes = [int(line) for line in done.stdout.splitlines() if line.isdigit()]
    assert (codes, done.stderr.splitlines()) == (
        [code for code, _ in SAID.values()],
        [message for _, message in SAID.values()],
    )


@pytest.mark.parametrize(
    ("system", "idle", "other"),
    [("darwin", "TCP_KEEPALIVE", "TCP_KEEPIDLE"), ("win32", "TCP_KEEPIDLE", "TCP_KEEPALIVE")],
)
def test_a_silent_connection_is_kept_alive_by_the_option_of_the_system(
    monkeypatch: pytest.MonkeyPatch, system: str, idle: str, other: str
) -> None:
    """With none, macOS would send the first probe after two hours."""
    monkeypatch.setattr("sys.platform", system)
    monkeypatch.setattr(socket, idle, 1016, raising=False)
    assert keepalive_options()[1016] == 30
    monkeypatch.delattr(socket, idle)
    monkeypatch.setattr(socket, other, 1017, raising=False)
    assert keepalive_options().keys().isdisjoint({1016, 1017})
