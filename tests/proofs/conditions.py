"""The load and the faults of a simulation."""

import math
from dataclasses import dataclass

from redlock_aio._rules import timing

FACTOR = timing.DRIFT_FACTOR


@dataclass(frozen=True)
class Conditions:
    """
    The load and the faults of a simulation; times are in seconds unless noted.

    Attributes:
        masters: The number of masters.

        clients: The number of clients.

        ttl: The ttl of each lock, in milliseconds.

        work: The mean time for which a lease is held.

        think: The mean pause of a client after a release.

        loss: The share of the messages that are lost.

        duplicates: The share of the messages that are delivered twice.

        slow: The share of the messages that are late.

        late: The mean delay of a late message.

        crash: The mean time between two losses of all keys of a master.

        ends: The mean time between two early ends of the lock on a master.

        pause: The share of the holders that stall, for twice the ttl on average.

        skew: The greatest error of a master's clock.

        error: The greatest error of a client's estimate of the masters' time.

        ahead: The lead of the masters' counters over their time, so that tokens can't be times.
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
    def quarantine(self) -> float:
        """The seconds for which a master that has lost its keys grants nothing."""
        return timing.forgetting(self.ttl, factor=FACTOR)
