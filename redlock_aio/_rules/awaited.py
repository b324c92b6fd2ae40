"""
What a fair waiter awaits from one master, and until when.

Nothing here waits or reads a clock: instants are seconds on the clock of leases.
"""

import math

MOST_REPEATS = 3
"""The most repetitions in a row after NOSCRIPT or a refusal by a master's clock."""


class Awaited:
    """
    The replies that one master owes to a waiter, from its first request on.

    Args:
        due: The instant at which the waiter gives up the first reply.

        received: The number of chunks that the connection has received by now.

    Attributes:
        due: The instant at which to ask the master again, or to count it as silent; infinite if
            there is nothing to do without a reply or a push.

        requests: The number of unanswered requests, including those that are void by now.

        repeats: The number of repetitions in a row.
    """

    __slots__ = ("_received", "due", "repeats", "requests")

    def __init__(self, due: float, received: int) -> None:
        self.due = due
        self.requests = 1
        self._received = received
        self.repeats = 0

    def __repr__(self) -> str:
        return f"<Awaited, {self.requests} requests, due at {self.due}>"

    def ask(self, due: float, received: int) -> None:
        """Record one more request, whose reply is awaited until *due*."""
        self.due = due
        self.requests += 1
        self._received = received

    def prolong(self, due: float, received: int) -> bool:
        """Await the reply until *due* if the connection is alive; return whether it is."""
        if received == self._received:  # nothing has arrived since the wait began
            return False
        self.due = due
        self._received = received
        return True

    def settle(self) -> None:
        """Record a reply that needs no repetition."""
        self.due = math.inf
        self.repeats = 0

    def may_repeat(self) -> bool:
        """Count one more repetition in a row; return False if there were enough of them."""
        if self.repeats == MOST_REPEATS:
            return False
        self.repeats += 1
        return True
