"""The numbers that `Redlock.statistics` returns."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MasterStatistics:
    """
    One master in `Statistics`.

    Attributes:
        name: As in `Vote.master`; without a password.

        up: Whether it is connected.

        votes: Whether it has a vote: it is up, and it is not quarantined.

        reason: Why it has no vote; empty if it has one.

        pending: How many commands it has not answered yet.

        debts: How many releases it has not confirmed; they are repeated until it does.
    """

    name: str
    up: bool
    votes: bool
    reason: str
    pending: int
    debts: int


@dataclass(frozen=True, slots=True)
class Statistics:
    """
    The activity of a manager at one moment; see `Redlock.statistics`.

    Attributes:
        masters: Its masters, in the order in which they were given.

        rounds: How many requests to all masters are underway, of all kinds.

        leases: How many leases are held.

        waiters: How many tasks wait for a lock, in the queue of this process, in the
            masters' queues, for a change of the lock or for a majority of the masters. A task
            whose attempt is underway at that moment is a round and not a waiter.

        is_open: Whether the manager is open. If it is not, all masters are down.
    """

    masters: tuple[MasterStatistics, ...]
    rounds: int
    leases: int
    waiters: int
    is_open: bool

    @property
    def debts(self) -> int:
        """The number of releases that are not confirmed, summed over all masters."""
        return sum(master.debts for master in self.masters)
