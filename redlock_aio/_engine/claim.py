"""What one token may hold on the masters, and the commands for it."""

from redlock_aio._protocol import commands
from redlock_aio._protocol.commands import Extension
from redlock_aio._protocol.primitives import FencingCounter, JointMutex, Mutex


class Claim:
    """
    What one token may hold on the masters.

    An attempt, a waiter or an adoption makes it; the lease keeps it until its end.

    Args:
        key: The key or keys of the lock.

        token: The value that the masters keep: a random part, and a stamp that names the holder.

        ttl: The ttl in ms with which the lock was requested.

        counter: The commands for a fencing token; ``None`` without fencing.

        member: The name of the waiter in the masters' queues; empty without a queue.

        unsent: A bit for each master to which no request for the lock was ever sent.

    Attributes:
        fence: The fencing token; 0 until there is one.

        replies: The reply of each master to the request, as the round counts them.

        began: The instant of the request.

        until: The end of the validity; 0 if the lock was not won, or won too late.
    """

    __slots__ = (
        "began", "counter", "fence", "key", "member", "replies", "token", "ttl", "unsent", "until",
    )  # fmt: skip

    def __init__(
        self,
        key: Mutex | JointMutex,
        token: bytes,
        ttl: int,
        counter: FencingCounter | None = None,
        member: bytes = b"",
        unsent: int = 0,
    ) -> None:
        self.key: Mutex | JointMutex = key
        self.token: bytes = token
        self.ttl: int = ttl
        self.counter: FencingCounter | None = counter
        self.member: bytes = member
        self.unsent: int = unsent
        self.fence: int = 0
        self.replies: list[object] = []
        self.began: float = 0.0
        self.until: float = 0.0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {', '.join(map(repr, self.key.each))}>"

    @property
    def can_free(self) -> bool:
        """Whether a release only has to delete one key."""
        return not self.member and self.key.can_free

    def release(self) -> bytes:
        """Return the command that releases the lock, and leaves the queue."""
        return release_of(self.key, self.token, self.member)

    def leave(self) -> bytes:
        """Return the command that leaves the queue and keeps the lock; empty without a queue."""
        if not self.member:
            return b""
        names = with_queues(self.key)
        return commands.leave(names, self.token, self.member, keep_place=False, keep_key=True)

    def extension(self, ttl: int) -> Extension:
        """Return the part of `commands.extend` that sets the ttl to *ttl* ms."""
        if self.counter is None:
            return self.key.extension(self.token, ttl)
        return self.counter.extension(self.token, ttl, self.fence)

    def restoration(self, ttl: int, ceiling: int = 0) -> bytes:
        """
        Return the command that sets the lock again for *ttl* ms, where its key is gone.

        Args:
            ceiling: The value to which a majority has lifted its counters; see
                `FencingCounter.lift`.
        """
        if self.counter is None:
            return self.key.restore(self.token, ttl)
        return self.counter.restore(self.token, ttl, self.fence, ceiling)


def release_of(key: Mutex | JointMutex, token: bytes, member: bytes) -> bytes:
    """Return the command that releases the lock if it has *token*, and leaves the queue."""
    if not member:
        return key.release(token)
    return commands.leave(with_queues(key), token, member, keep_place=False)


def with_queues(key: Mutex | JointMutex) -> tuple[bytes, ...]:
    """Return the names of the keys of the lock, and of their queues."""
    return (*key.each, *commands.queue_keys(*key.each))
