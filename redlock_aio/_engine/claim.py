"""
What one token may hold on the masters.

    an attempt ──► Claim, which the lease keeps ──► MasterSet.take_back, and debts until
                                                    each master has confirmed the release

Each attempt has a token of its own: if two attempts shared a token, a late release of the first
would delete the lock that the second has won.
"""

from collections.abc import Sequence

from redlock_aio._protocol.commands import Extension
from redlock_aio._protocol.primitives import FencingCounter, LockKey
from redlock_aio._rules.validation import quoted

EXPIRY_SLACK = 0.001
"""Seconds to add to a ttl: a master expires a key in the millisecond after its ttl."""


class Claim:
    """
    What one token may hold on the masters.

    An attempt, a waiter or an adoption makes it; the lease keeps it until its end.

    Args:
        token: The value that the masters keep: a random part, and a stamp that names the holder.

        ttl: The ttl in ms with which the lock was requested.

        member: The name of the waiter in the masters' queues; empty without a queue.

        unsent: A bit for each master to which no request for the lock was ever sent.

    Attributes:
        fence: The fencing token; 0 until there is one.

        replies: The reply of each master to the request, as the round counts them.

        until: The end of the validity; 0 if the lock was not won, or won too late.
    """

    __slots__ = (
        "began", "counter", "fence", "key", "member", "replies", "token", "ttl", "unsent", "until",
    )  # fmt: skip

    def __init__(
        self,
        key: LockKey,
        token: bytes,
        ttl: int,
        counter: FencingCounter | None = None,
        member: bytes = b"",
        unsent: int = 0,
    ) -> None:
        self.key: LockKey = key
        self.token: bytes = token
        self.ttl: int = ttl
        self.counter: FencingCounter | None = counter
        self.member: bytes = member
        self.unsent: int = unsent
        self.fence: int = 0
        self.replies: Sequence[object] = ()
        self.began: float = 0.0
        self.until: float = 0.0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {quoted(self.key.each)}>"

    def begin(self, replies: Sequence[object], now: float) -> None:
        """Begin with a round that asks for it, has these *replies*, and leaves after *now*."""
        # The list itself, not a copy: a master that answers after the verdict is still counted in
        # it.
        self.replies = replies
        # Now, and the request leaves in a later turn of the loop: the validity must not begin after
        # the ttl does on any master.
        self.began = now

    def release(self) -> bytes:
        if not self.member:
            return self.key.release(self.token)
        return self.key.leave(self.token, self.member)

    def leave(self) -> bytes:
        """Return the command that leaves the queue and keeps the lock; empty without a queue."""
        if not self.member:
            return b""
        return self.key.leave(self.token, self.member, keep_key=True)

    def extension(self, ttl: int) -> Extension:
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
