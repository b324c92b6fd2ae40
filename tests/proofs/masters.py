"""
A master that is nothing but its keys and the shipped scripts.

What it does with a command is done by the translation of the scripts in
`redlock_aio.testing`, which other tests compare with real servers, call by call. So
the proofs have no master of their own that could be wrong in another way than Redis.
"""

from collections.abc import Sequence

from redlock_aio.testing._fake_data import NEVER, Data, Value
from redlock_aio.testing._fake_scripts import SCRIPTS


class Nobody:
    """Nobody is told of changes."""

    def was_read(self, key: bytes, until: float) -> None:
        """Do nothing."""

    def was_changed(self, key: bytes) -> None:
        """Do nothing."""

    def publish(self, channel: bytes, message: bytes) -> int:  # noqa: ARG002 - the names are asked for
        """Tell nobody."""
        return 0


class Keys(Data):
    """
    The keys of one master, by a clock that is told instead of asked.

    Attributes:
        time: What it is now by the master's clock, in seconds.
    """

    def __init__(self) -> None:
        super().__init__(Nobody())
        self.time = 0.0

    def find(self, key: bytes) -> tuple[Value | None, float]:
        found = self.keys.get(key)
        if found is None:
            return None, NEVER
        if self.time >= found[1]:
            del self.keys[key]
            return None, NEVER
        return found

    def get(self, key: bytes) -> bytes | None:
        value = self.find(key)[0]
        assert not isinstance(value, dict)
        return value

    def set(self, key: bytes, value: bytes, ttl: int | None = None) -> None:
        self.keys[key] = (value, NEVER if ttl is None else self.time + ttl / 1000)

    def pttl(self, key: bytes) -> int:
        value, until = self.find(key)
        if value is None:
            return -2
        return -1 if until == NEVER else round((until - self.time) * 1000)

    def pexpire(self, key: bytes, ttl: int) -> int:
        value, _ = self.find(key)
        if value is None:
            return 0
        self.keys[key] = (value, self.time + ttl / 1000)
        return 1


def words(payload: bytes) -> list[bytes]:
    """Return the words of one packed command; none of ours contains a line break."""
    return payload.split(b"\r\n")[2::2]


def run(data: Keys, now: int, command: Sequence[bytes]) -> object:
    """Run a packed script's words on *data* at *now*, in us of the master's clock."""
    keys = int(command[2])
    return SCRIPTS[command[1]](data, now, command[3 : 3 + keys], command[3 + keys :])
