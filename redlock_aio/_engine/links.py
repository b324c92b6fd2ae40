"""The interface of a master as rounds use it."""

from collections.abc import Callable, Sequence
from typing import Protocol

from redlock_aio._protocol.request import NoReply, Sender


class Link(Protocol):
    """The interface of a master as rounds use it: a `Master`, or a fake without a connection."""

    @property
    def name(self) -> str: ...

    can_free: bool

    @property
    def votes(self) -> bool: ...
    @property
    def quarantine(self) -> str: ...
    @property
    def received(self) -> int: ...
    @property
    def send(self) -> Callable[[bytes, Sequence[Sender]], NoReply | None]: ...
    def overdue(self) -> NoReply: ...
    def add_debt(self, payload: bytes, ttl: int) -> None: ...
