"""
Run the shipped scripts for fake masters, in the Lua that Redis has.

The scripts are Lua 5.1, run by `lupa`. Commands, replies and return values pass between
Lua and Python here, and are converted as Redis converts them:

    Redis          in a script             here
    bulk string    a string                bytes
    integer        a number; the           int
                   fraction is cut off
    nothing        false                   None
    status         a table with `ok`       Status
    error          a table with `err`      Error
    array          a table, which ends     list
                   at the first nil

There is one Lua for all masters of the process. A script is compiled once, and gets
its keys, its arguments and the master with each call; nothing else is kept. The most
frequent values (bytes, numbers, OK) pass without a table, because a table takes longer.
"""

import functools
import threading
from collections.abc import Callable, Sequence
from hashlib import sha1
from importlib import resources
from typing import Any, TypeAlias

Execute: TypeAlias = Callable[..., object]
"""Execute a command of a script: its name and its arguments, all bytes."""

LOWEST = -(2**63)
"""The integer for a number of a script that is out of range, or is NaN."""


class Error(Exception):
    """An error reply."""


class Status(bytes):
    """A status reply, such as OK."""

    __slots__ = ()


OK = Status(b"OK")


class Lua:
    """The Lua in which the scripts run."""

    def __init__(self) -> None:
        try:
            from lupa import lua51
        except ImportError as error:
            raise ImportError(
                "a FakeMaster runs the masters' Lua scripts by lupa:"
                " pip install '.[testing]' in the clone of redlock_aio"
            ) from error
        # Keys, tokens and values are bytes. A tuple becomes several values on the way to Lua.
        runtime = lua51.LuaRuntime(encoding=None, unpack_returned_tuples=True)
        sandbox = resources.files("redlock_aio.testing").joinpath("sandbox.lua").read_bytes()
        self._load, self._run = runtime.execute(sandbox, self._executed)
        self._table: Callable[[object], object] = runtime.table_from
        self._scripts: dict[bytes, object] = {}
        self._hashes: dict[bytes, bytes] = {}
        self._execute: Execute = _nothing_runs
        self._lock = threading.Lock()  # two threads may have masters in event loops of their own

    def load(self, text: bytes) -> bytes:
        """
        Compile a script if it is new; return the hash by which it is called.

        Raises:
            Error: The text is no valid Lua.
        """
        sha = self._hashes.get(text)
        if sha is None:
            script, problem = self._load(text)
            if script is None:
                problem = problem.decode(errors="replace")
                raise Error(f"ERR Error compiling script (new function): {problem}")
            sha = sha1(text, usedforsecurity=False).hexdigest().encode()
            self._hashes[text] = sha
            self._scripts[sha] = script
        return sha

    def run(self, sha: bytes, execute: Execute, keys: int, words: Sequence[bytes]) -> object:
        """
        Run a script that was loaded; return its reply.

        Args:
            execute: Executes its commands.

            keys: The number of *words* that are keys; the others are arguments.

        Raises:
            Error: The script returned an error, or failed.
        """
        with self._lock:
            self._execute = execute
            try:
                reply = self._run(self._scripts[sha], keys, *words)
            finally:
                self._execute = _nothing_runs
        if reply is True:
            return OK
        return [*map(_element, reply[2:])] if type(reply) is tuple else _taken(reply)

    def _executed(self, *words: bytes | float) -> object:
        """Execute a command of the script that runs; return the reply as the script gets it."""
        try:
            for word in words:
                if type(word) is not bytes:
                    words = tuple(map(_word, words))
                    break
            return self._given(self._execute(*words))
        except Error as error:
            return self._table({b"err": str(error).encode()})

    def _given(self, reply: object) -> object:
        """Return the *reply* to a command as a script gets it."""
        if type(reply) is bytes or reply is None:
            return reply
        if reply is OK:
            return True
        if isinstance(reply, Status):
            return self._table({b"ok": bytes(reply)})
        if isinstance(reply, list):
            return True, len(reply), *reply
        return reply


def _nothing_runs(*_: bytes) -> object:
    raise RuntimeError("no script runs")


def _taken(reply: Any) -> object:
    """Convert the return value of a script to the reply of the master."""
    if type(reply) is bytes:
        return reply
    if reply is None or reply is False:
        return None
    if isinstance(reply, int | float):
        return int(reply) if -LOWEST > reply >= LOWEST else LOWEST
    if (text := reply[b"ok"]) is not None:
        return Status(text)
    if (text := reply[b"err"]) is not None:
        raise Error(text.decode(errors="replace"))
    items: list[object] = []
    while (item := reply[len(items) + 1]) is not None:
        items.append(_element(item))
    return items


def _element(item: Any) -> object:
    """Convert an element of an array; an error there is a part of the reply."""
    try:
        return _taken(item)
    except Error as error:
        return error


def _word(argument: object) -> bytes:
    """Convert an *argument* of a script's command to bytes, as a master does."""
    if isinstance(argument, bytes):
        return argument
    if isinstance(argument, int | float) and not isinstance(argument, bool):
        return b"%.17g" % argument
    raise Error("ERR Lua redis lib command arguments must be strings or integers")


@functools.cache
def lua() -> Lua:
    """
    Return the Lua of this process.

    Raises:
        ImportError: `lupa` is not installed.
    """
    return Lua()
