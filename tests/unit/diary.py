"""A listener that records events."""

from redlock_aio.events import Acquired, Event, Extended, Lost, Released

from .kit import now

OfLease = Acquired | Extended | Lost | Released


class Diary:
    """
    A listener that records each event and its time.

    Attributes:
        events: The events, in the order in which they came.

        times: The loop's time at each event, in seconds.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.times: list[float] = []

    def __call__(self, event: Event, /) -> None:
        self.events.append(event)
        self.times.append(now())

    def of(self, *kinds: type[Event]) -> list[Event]:
        """Return the events of these *kinds*."""
        return [event for event in self.events if isinstance(event, kinds)]

    def leases(self) -> dict[str, list[OfLease]]:
        """Return the events of each lease, by its fingerprint."""
        found: dict[str, list[OfLease]] = {}
        for event in self.events:
            if isinstance(event, OfLease):
                found.setdefault(event.fingerprint, []).append(event)
        return found

    def check(self) -> None:
        """Check that each lease that has ended has one begin, one end and one mode."""
        for events in self.leases().values():
            assert isinstance(events[0], Acquired)
            assert isinstance(events[-1], Released | Lost)
            assert all(isinstance(event, Extended) for event in events[1:-1])
            assert len({event.mode for event in events}) == 1
