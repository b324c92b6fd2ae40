"""
Processes that end with the process that has started them.

A server that is started for a test must not outlive it, also if the test's process is killed and
cannot stop it any more. Linux can send a process a signal when its parent ends (PR_SET_PDEATHSIG).
On other systems these are usual processes.

The signal is not set between fork and exec by `preexec_fn`: in a program with threads that may
deadlock. A small program sets it for itself, and then becomes the wanted one.
"""

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeAlias

LAUNCHER = """\
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # 1 is PR_SET_PDEATHSIG
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent has ended already, so its signal would not come")
for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and that is inherited
    signal.signal(number, signal.SIG_DFL)
os.execv(sys.argv[2], sys.argv[3:])
"""

Process: TypeAlias = subprocess.Popen[bytes]
_Request: TypeAlias = tuple[Future[Process], list[str], dict[str, Any]]


def start(command: Sequence[str], **options: Any) -> Process:
    """
    Start a process that the system kills when this one has ended, however it ends.

    That is so on Linux, for the process itself and not for those that it starts. A program that
    runs as another user because of its file's mode (set-user-ID) is not killed.

    Args:
        command: The program, which is looked up in the PATH, and its arguments.

        options: As for `subprocess.Popen`, in binary mode.

    Raises:
        OSError: The program is missing.
    """
    program = shutil.which(command[0])
    # A frozen program, such as one of PyInstaller, is no interpreter. Without a program, `Popen`
    # raises the error that says so.
    is_python = sys.executable and not getattr(sys, "frozen", False)
    if sys.platform != "linux" or not is_python or program is None:
        return subprocess.Popen(command, **options)  # noqa: S603 - the caller names it
    launcher = [sys.executable, "-ISc", LAUNCHER, str(os.getpid())]
    whole = [*launcher, str(Path(program).absolute()), *command]
    # The system sends the signal when the *thread* ends that has started the process. The first
    # thread of a process lasts as long as it; of the others only one that is made for this does.
    if threading.get_native_id() == os.getpid():
        return subprocess.Popen(whole, **options)  # noqa: S603 - as above
    started = Future[Process]()
    _starter().put((started, whole, options))
    return started.result()


_lock = threading.Lock()
_requests: SimpleQueue[_Request] | None = None


def _starter() -> SimpleQueue[_Request]:
    """Return the queue of the thread that starts processes for other threads."""
    global _requests  # noqa: PLW0603 - one thread for all
    with _lock:
        if _requests is None:
            _requests = SimpleQueue()
            threading.Thread(
                target=_serve, args=(_requests,), name="redlock_aio-processes", daemon=True
            ).start()
        return _requests


def _serve(requests: SimpleQueue[_Request]) -> None:
    while True:
        started, command, options = requests.get()
        try:
            process: Any = subprocess.Popen(command, **options)  # noqa: S603 - as above
        except BaseException as error:  # noqa: BLE001 - it belongs to the caller
            started.set_exception(error)
        else:
            started.set_result(process)


def _forget() -> None:
    """Forget the thread in a forked child, which does not have it."""
    global _lock, _requests
    _lock, _requests = threading.Lock(), None


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forget)
