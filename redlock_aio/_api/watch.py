"""The states of a lock, one after the other, for those that only look."""

from typing import Self

from redlock_aio._engine.admin.watch import next_state
from redlock_aio._engine.session import Opener
from redlock_aio._protocol.lock_state import LockState
from redlock_aio._protocol.primitives import Mutex
from redlock_aio._rules.mistakes import OnlyForAsyncio


class LockWatch(OnlyForAsyncio):
    """The states of a lock, made by `Redlock.watch`; ``async for state in watch:``."""

    __slots__ = ("_before", "_key", "_opener", "_resource")

    def __init__(self, opener: Opener, resource: str, key: Mutex) -> None:
        self._opener = opener
        self._resource = resource
        self._key = key
        self._before: LockState | None = None

    def __repr__(self) -> str:
        return f"<LockWatch {self._resource!r}>"

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> LockState:
        """
        Return the present state at first; then wait for one with another holder or other readers.

        Raises:
            RedlockError: The manager is closed, or belongs to another event loop or process.

        Cancellation:
            Nothing was asked that changes anything. The next call goes on.
        """
        session = await self._opener.ready_session()
        self._before = state = await next_state(session, self._resource, self._key, self._before)
        return state
