"""What one waiter in the masters' queues holds, and what it asks."""

from typing import Protocol

from redlock_aio._engine.rounds import Fleet
from redlock_aio._engine.waiting import Attempt
from redlock_aio._rules import protocol


class Asking(Protocol):
    """Whoever asks."""

    def answered(self, master: int, number: int, sent: float, reply: object) -> None:
        """Take the answer to a question."""

    def changed(self, master: int) -> None:
        """Hear that the lock may be free on a master."""


class Claim(Attempt):
    """
    What a waiter holds of a lock, under one token.

    The token is new after every time that it has given back what it had.
    """

    __slots__ = ("_keys", "_member")

    def __init__(
        self, fleet: Fleet, keys: tuple[bytes, bytes, bytes], member: bytes, ttl: int
    ) -> None:
        super().__init__(fleet, keys[0], ttl)
        self._keys = keys
        self._member = member
        self.unsent = (1 << len(fleet.links)) - 1

    def release(self) -> bytes:
        """Return the command that takes it back, and leaves the queue."""
        return protocol.leave(self._keys, self.token, self._member, stay=False)

    def give_back(self) -> bytes:
        """Return the command that takes it back, and keeps the place in the queue."""
        return protocol.leave(self._keys, self.token, self._member, stay=True)


class Question:
    """One request of one waiter to one master."""

    __slots__ = ("_number", "_sent", "_waiter", "debt_ttl", "payload")

    def __init__(self, waiter: Asking, payload: bytes, number: int, sent: float) -> None:
        self._waiter = waiter
        self._number = number
        self._sent = sent
        self.payload = payload
        self.debt_ttl = 0

    def answered(self, master: int, reply: object, /) -> None:
        """Hand the reply on."""
        self._waiter.answered(master, self._number, self._sent, reply)


class Glance:
    """Whether the lock is still held, by those whom a waiter comes after."""

    __slots__ = ("_waiter", "debt_ttl", "payload")

    def __init__(self, waiter: Asking, payload: bytes) -> None:
        self._waiter = waiter
        self.payload = payload
        self.debt_ttl = 0

    def answered(self, master: int, reply: object, /) -> None:
        """Ask at once if it is not."""
        if reply is None:
            self._waiter.changed(master)
