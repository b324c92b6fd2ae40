"""
The command that ``redlock run`` runs: its process group, its signals, its end.

    start ──► running ──► ended ──► gone   ended: the command itself; gone: its group, too
                │  ▲
         Ctrl-Z ▼  │ fg
              stopped                      `redlock` stops, too, or the shell would wait for it

The command is the leader of a process group of its own, so that all processes that it starts
can be signalled together, and none of the processes beside ``redlock``.
"""

import asyncio
import contextlib
import errno
import math
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from redlock_aio.cli.exits import SIGNALLED, Exit, Failure
from redlock_aio.cli.group import ProcessGroup
from redlock_aio.cli.terminal import Terminal

TO_GROUP = ("SIGTSTP", "SIGCONT")
"""Signals that are forwarded to the whole group, besides those that end programs."""

TO_COMMAND = ("SIGUSR1", "SIGUSR2", "SIGWINCH")
"""
Signals that are forwarded to the command alone: by default the first two kill.

SIGWINCH ends some servers, such as that of Apache in a container; they handle it in one process.
"""

SHORTEST_POLL, LONGEST_POLL = 0.01, 0.25
"""Seconds between two looks whether a group has ended whose leader has."""

BLIND = 600.0
"""
Seconds after the end of its leader for which a group counts where there is no ``/proc``.

A zombie that nobody reaps looks there like a process that works.
"""

SHELL = "/bin/sh"
"""Runs a script whose first line does not name an interpreter."""

MOST_FIRST_LINE = 4096
"""How many bytes of the first line of a program show whether it is text."""

LATER = 1.0
"""Seconds after which a command tries again to read from a terminal that others have."""


class Child:
    """
    A command in a process group of its own.

    Args:
        words: The command and its arguments.

        environment: Its environment.

        before: Called in the new process, before the command begins.

        may_go_on: Called after a stop: returns whether the command may continue.

        on_stop: Called before ``redlock`` stops, because the command has.

    Raises:
        Failure: The command can't be executed.

    Attributes:
        ended: Done when the command has ended.

        leader_only: Whether the end of the command itself is enough for `gone`.

        is_gone: Whether its group is empty as well; its number may be another's then.
    """

    def __init__(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        *,
        before: Callable[[], None],
        may_go_on: Callable[[], bool],
        on_stop: Callable[[], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._may_go_on = may_go_on
        self._on_stop = on_stop
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._code = -int(signal.SIGKILL)  # the last signal that it gets, if it can't be ended
        self._interrupted = False
        self._was_terminated = False
        self._had_terminal = False
        self.leader_only: bool = False
        self.is_gone: bool = False
        self._terminal = Terminal()
        at_once = self._terminal.at_both_ends and self._terminal.is_ours

        def prepare() -> None:
            before()
            if at_once:  # before the command can read from it, or an interrupt come
                self._terminal.give(os.getpid())

        # The program that has started this one may have blocked it: then nobody would notice
        # the end of the command.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
        self._loop.add_signal_handler(signal.SIGCHLD, self._on_change)
        try:
            self._process = start(words, environment, prepare)
        except BaseException:
            self._loop.remove_signal_handler(signal.SIGCHLD)
            if at_once:  # the new process may have taken it, and has ended
                self._terminal.give(os.getpgrp())
            self._terminal.close()
            raise
        self._processes = ProcessGroup(self._process.pid)
        self._on_change()

    def __repr__(self) -> str:
        return f"<Child {self.group}, {'ended' if self.ended.done() else 'running'}>"

    @property
    def group(self) -> int:
        """Its process group, which is the id of its first process as well."""
        return self._process.pid

    @property
    def status(self) -> int:
        """Its exit code as shells report it: 128 and the signal if one has ended it."""
        return self._code if self._code >= 0 else SIGNALLED - self._code

    def forward(self, number: int) -> None:
        """
        Send a signal that ``redlock`` has got on to the command, unless its group is empty.

        Without the lock it is not continued: that is left to `terminate`.
        """
        if self.is_gone or (number == signal.SIGCONT and not self._may_go_on()):
            return
        if number == signal.SIGINT and self._terminal.is_ours:
            self._interrupted = True
        if signal.Signals(number).name in TO_COMMAND:
            if not self.ended.done():
                with contextlib.suppress(PermissionError):  # it has become another user
                    os.kill(self.group, number)
            return
        self.signal(number)
        if number == signal.SIGTSTP and self.ended.done():
            self._on_stopped(number)  # the stop of the leader would have told it

    def signal(self, number: int) -> bool:
        """Send a signal to the command and its group; return whether any process is left there."""
        if self.is_gone:
            return False
        left = False
        # A program of another user, such as sudo. macOS: also one that has just ended.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.group, number)
            left = True
        # The command may have joined another group. Its id is not another's: it was not reaped.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if not self.ended.done() and os.getpgid(self.group) != self.group:
                os.kill(self.group, number)
                left = True
        return left

    def terminate(self) -> None:
        """Send SIGTERM to the whole group; a stopped process would not see it, so also SIGCONT."""
        self._was_terminated = True
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)

    async def gone(self) -> None:
        """
        Wait until no process of its group works any more, or as `leader_only` says.

        Cancellation:
            The group goes on.
        """
        await asyncio.wait([self.ended])
        ends = math.inf if self._processes.tells_states else time.monotonic() + BLIND
        pause = SHORTEST_POLL
        while not (self.leader_only or self._processes.is_empty()) and time.monotonic() < ends:
            await asyncio.sleep(pause)  # other processes of the group are not our children
            pause = min(pause * 1.5, LONGEST_POLL)
        self.is_gone = True

    def close(self) -> bool:
        """
        Return whether an interrupt from the keyboard has ended the command; free the terminal.

        If the command had the terminal, it alone got the interrupt, so it is passed on to the
        other processes of this group.

        A command that still runs, because something unforeseen has happened, is killed.
        """
        self.signal(signal.SIGKILL)
        self._loop.remove_signal_handler(signal.SIGCHLD)
        self._take_terminal_back()
        self._terminal.close()
        if self._code != -signal.SIGINT:
            return False
        if self._had_terminal:
            _to_the_others(signal.SIGINT)
        return self._had_terminal or self._interrupted

    def _take_terminal_back(self) -> None:
        """Give the terminal back to the group of this process: keys reach it from now on."""
        self._had_terminal = self._had_terminal or self._terminal.belongs_to(self.group)
        # A script that handles SIGTERM has an exit code, but an editor in it was killed.
        restore = self._was_terminated or self._code < 0
        self._terminal.take_back(self.group, restore=restore)

    def _on_change(self) -> None:
        """Called when a process has ended or stopped, perhaps an orphan if this is process 1."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid != self.group:
                continue
            if os.WIFSTOPPED(status):
                self._on_stopped(os.WSTOPSIG(status))
            elif not self.ended.done():
                self._code = self._process.returncode = os.waitstatus_to_exitcode(status)
                self._take_terminal_back()
                self.ended.set_result(None)

    def _on_stopped(self, number: int) -> None:
        """
        Stop as the command has: the shell that has started ``redlock`` waits for that.

        The command is continued only if the lock is still held then. A command that was
        stopped because it is not in the foreground gets there, if ``redlock`` is.
        """
        if number == signal.SIGSTOP and self._terminal.belongs_to(self.group):
            number = signal.SIGTSTP  # a shell or editor suspends itself; nobody reads the keys now
        if number not in {signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}:
            return  # SIGSTOP: meant for the command alone
        if not self._may_go_on():
            return  # `redlock` has to end the group, in which others may go on without the lock
        wants_terminal = number != signal.SIGTSTP
        had_it = self._terminal.belongs_to(self.group)
        if not (wants_terminal and (had_it or self._terminal.is_ours)):
            self._terminal.take_back(self.group)
            self._on_stop()
            # Not SIGTTIN: another `redlock` among them would stop alone, and not its command.
            _to_the_others(signal.SIGTSTP)
            _stop(number)
        if (had_it or wants_terminal) and self._terminal.is_ours:
            self._terminal.give(self.group)
        if wants_terminal and not self._terminal.belongs_to(self.group):
            self._loop.call_later(LATER, self._go_on)  # at once, it would stop at once again
        else:
            self._go_on()

    def _go_on(self) -> None:
        if self._may_go_on():
            self.signal(signal.SIGCONT)


def start(
    words: Sequence[str], environment: Mapping[str, str], before: Callable[[], None]
) -> subprocess.Popen[bytes]:
    """
    Start a command in a process group of its own, with the files of this process.

    A script whose first line names no interpreter is run by the shell, as all programs do that
    call execvp.

    Raises:
        Failure: It can't be executed.
    """
    path = shutil.which(words[0])

    def popen(words: list[str]) -> subprocess.Popen[bytes]:
        # *before* makes system calls only: it can't wait for a lock that another thread had.
        return subprocess.Popen(  # noqa: S603 - what the user wants to run
            words,
            env=environment,
            process_group=0,
            close_fds=False,
            preexec_fn=before,  # noqa: PLW1509 - see above
        )

    try:
        try:
            return popen(list(words))
        except OSError as error:
            if error.errno != errno.ENOEXEC or path is None or not is_text(path):
                raise
            return popen([SHELL, path, *words[1:]])
    except FileNotFoundError:
        if path is None:
            raise Failure(Exit.NOT_FOUND, f"there is no command {words[0]!r}") from None
        raise Failure(
            Exit.CANNOT_RUN, f"{words[0]!r} can't be executed: its interpreter does not exist"
        ) from None
    except (OSError, ValueError) as error:
        raise Failure(Exit.CANNOT_RUN, f"{words[0]!r} can't be executed: {error}") from None


def is_text(path: str) -> bool:
    """Return whether a file may be a script: a program for another processor is none."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - a name may be no text
            return b"\0" not in file.readline(MOST_FIRST_LINE)
    except OSError:
        return False


def _stop(number: int) -> None:
    """
    Stop this process by the default action of *number*; return when it continues.

    The system does not stop a process of an orphaned group, which nobody would continue.
    Then this returns at once. The signal goes to this thread, because otherwise another
    thread might get it, and this one might run on for a moment.
    """
    before = signal.signal(number, signal.SIG_DFL)
    signal.pthread_kill(threading.get_ident(), number)
    signal.signal(number, before)


def _to_the_others(number: int) -> None:
    """Send a signal to the group of this process, but not to this process itself."""
    before = signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(os.getpgrp(), number)
    signal.signal(number, before)
