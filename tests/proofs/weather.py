"""What goes wrong in a simulation."""

import math
from dataclasses import dataclass

from redlock_aio._rules import timing

FACTOR = timing.DRIFT_FACTOR


@dataclass(frozen=True)
class Weather:
    """
    What goes wrong, and how often; times are in seconds.

    Attributes:
        ttl: In milliseconds.

        work: How long a lease is held, on average.

        think: How long a client does something else then.

        slow: Which share of the messages is late, and by how much on average.

        crash: How often each master forgets everything, on average.

        ends: How often a lock ends on a master before its time.

        pause: Which share of the holders stands still for longer than the ttl.

        skew: By how much a master's clock may be off.

        error: By how much a client may be wrong about the masters' time.

        ahead: By how much the counters are ahead of the time, so that it says nothing.
    """

    masters: int = 3
    clients: int = 4
    ttl: int = 200
    work: float = 0.003
    think: float = 0.01
    loss: float = 0.0
    duplicates: float = 0.0
    slow: float = 0.0
    late: float = 0.06
    crash: float = math.inf
    ends: float = math.inf
    pause: float = 0.0
    skew: float = 0.001
    error: float = 0.0
    ahead: float = 0.0

    @property
    def absence(self) -> float:
        """For how many seconds a master that has forgotten everything stays away."""
        return timing.forgetting(self.ttl, factor=FACTOR)
