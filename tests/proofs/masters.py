"""
A master that consists of its keys and the shipped scripts.

Runs the shipped code: the Lua files that real masters run, by `redlock_aio.testing`, and the
commands of its fake master, which other tests compare with real servers.

Models itself: the clock, which is set and does not run. There are no pushes.
"""

from collections.abc import Sequence

from redlock_aio._protocol.scripts import SCRIPTS, Script
from redlock_aio.testing._fake_data import Data
from redlock_aio.testing._fake_keys import Command, KeyCommands
from redlock_aio.testing._fake_lua import lua

for script in SCRIPTS:
    lua().load(script.text)


class Nobody:
    """An observer that ignores all changes."""

    def was_read(self, key: bytes, until: float) -> None:
        """Do nothing."""

    def was_changed(self, key: bytes) -> None:
        """Do nothing."""

    def publish(self, channel: bytes, message: bytes) -> int:  # noqa: ARG002 - the names are asked for
        """Do nothing."""
        return 0


def changed(changes: dict[bytes, bytes], *scripts: Script) -> tuple[tuple[bytes, bytes], ...]:
    """
    Load the *scripts* with all *changes*, each from a text that a script has once.

    Returns:
        The hash of each shipped script, with that of the one that runs in its place.
    """
    pairs = []
    for script in scripts:
        text = script.text
        for right, wrong in changes.items():
            assert text.count(right) == 1, (script, right)
            text = text.replace(right, wrong)
        pairs.append((script.sha, lua().load(text)))
    return tuple(pairs)


class MasterKeys(KeyCommands):
    """
    The keys of one master.

    Args:
        time: The time of the master's clock, in seconds; can be set.
    """

    def __init__(self, time: float = 0.0) -> None:
        super().__init__(Data(Nobody(), lambda: self.time))
        self.time = time
        self.data = self._data
        self._handlers: dict[bytes, Command] = {}

    def _clock(self) -> int:
        return int(self.time * 1_000_000)

    def _called(self, name: bytes, *arguments: bytes) -> object:
        """Execute a command of a script; its method is looked up once."""
        handler = self._handlers.get(name)
        if handler is None:
            handler = self._handlers[name] = self._handler(name)
        return handler(*arguments)

    def run(self, command: Sequence[bytes]) -> object:
        """Run a script by the words of its command; return the reply."""
        return self._lua.run(command[1], self._called, int(command[2]), command[3:])


def words(payload: bytes) -> list[bytes]:
    """Return the words of one packed command; no command of this library has a line break."""
    return payload.split(b"\r\n")[2::2]
