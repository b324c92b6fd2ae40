"""A read-write lock: two locks on one resource, for asyncio and for threads."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, Never, TypeVar, Unpack

from redlock_aio._api.faces import ReadArguments, WriteArguments
from redlock_aio._rules import mistakes

L = TypeVar("L")


class ReadWriteLock(Generic[L]):
    """
    A read-write lock on one resource: many may read at once, or one may write.

    Made by `Redlock.rw_lock`. It is never held itself: `read` and `write` return locks. Readers
    that ask later wait behind a waiting writer, so that they can't keep it out.

    Any lock of `Redlock.lock` without *shared* is a writer. Without *fair* it enters no queue,
    so readers may keep it out.
    """

    __slots__ = ("_lock", "_options", "_resource")

    def __init__(self, lock: Callable[..., L], resource: str, options: Mapping[str, Any]) -> None:
        self._lock = lock
        self._resource = resource
        self._options = {**options}
        self._check("rw_lock()", options, ReadArguments.__optional_keys__ | {"on_lost"})
        self.write()  # raises the errors of the options now; those of a reader are the same

    def __repr__(self) -> str:
        return f"<ReadWriteLock {self._resource!r}>"

    @property
    def resource(self) -> str:
        """The name that it locks."""
        return self._resource

    def read(self, **options: Unpack[ReadArguments]) -> L:
        """
        Return the lock of a reader, as ``redlock.lock(resource, shared=True)`` does.

        Readers get no fencing token.

        Args:
            options: Those of the lock, instead of those of `Redlock.rw_lock`: *ttl*, *wait*,
                *auto_extend*, *max_hold*, *reentrant*, *owner* and *metadata*.

        Raises:
            TypeError: An option is of another type, or does not exist.

            ValueError: An option is invalid.
        """
        self._check("read()", options, ReadArguments.__optional_keys__)
        return self._lock(self._resource, **{**self._options, **options}, shared=True)

    def write(self, **options: Unpack[WriteArguments]) -> L:
        """
        Return the lock of a writer, as ``redlock.lock(resource, fair=True)`` does.

        Args:
            options: As for `read`, and *fencing* and *hold_at_least*.

        Raises:
            TypeError: An option is of another type, or does not exist.

            ValueError: An option is invalid.
        """
        self._check("write()", options, WriteArguments.__optional_keys__)
        return self._lock(self._resource, **{**self._options, **options}, fair=True)

    @staticmethod
    def _check(called: str, options: Mapping[str, Any], known: frozenset[str]) -> None:
        if unknown := [name for name in options if name not in known]:
            raise mistakes.unknown_options(unknown, called=called)

    if not TYPE_CHECKING:  # with these methods, type checkers would accept their uses

        def __enter__(self) -> Never:
            """Raise an error: it is never held itself."""
            raise TypeError("a ReadWriteLock can't be entered: use its read() or its write()")

        __aenter__ = __enter__
        __exit__ = __aexit__ = __enter__  # `with` looks for both before it calls the first
