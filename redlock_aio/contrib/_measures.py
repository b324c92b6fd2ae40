"""
The measurements of locks that `redlock_aio.contrib` exports, and the labels of each.

Counters and histograms follow from events, and gauges from `Redlock.statistics`. The number of
series is bounded: the value of a label is one of an enumeration, or the name of a master as it
was given, without a password. Only *resource_label*, a function of the user, may add more.

Counters have their series from the start, in all modes, so that the first increase is seen. With
*resource_label* those of a resource and a mode begin with the first event of both. So a loss is
seen, because the lock was acquired before. Which resources there will be, nobody knows earlier.
Histograms have those of readers and of permits only from the first one on. Each combination of
labels is about 20 series there, which a program without readers must not export for nothing.

The number of a permit is no label: there may be 1,000 of them. Nor is the mode one of the gauges:
to count leases by mode, each acquisition and each release would have to count, or each scrape to
walk over all leases while another thread changes them.
"""

import weakref
from collections.abc import Callable, Iterable
from itertools import product
from typing import Literal, NamedTuple, Protocol, get_args

from redlock_aio import LossCause, QuorumUnavailableError, Statistics
from redlock_aio.events import (
    Acquired,
    Cancelled,
    Event,
    Extended,
    Lost,
    MajorityLost,
    MasterLost,
    Missed,
    Mode,
    Released,
)

BUCKETS = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0,
    1800.0,
)  # fmt: skip
"""The upper bounds of all histograms in seconds."""

OUTCOMES = ("acquired", "held_by_others", "unavailable", "cancelled")
"""The outcomes of an acquisition; "unavailable" means that too few masters answered."""

MODES: tuple[Mode, ...] = get_args(Mode)
"""The modes of events."""

ResourceLabel = Callable[[tuple[str, ...]], str]


class Instrument(NamedTuple):
    """
    A counter, a histogram or a gauge.

    Attributes:
        name: With dots, as OpenTelemetry has it.

        unit: In UCUM, as OpenTelemetry has it.

        known: The values of its labels that are exported from the start, before any event.

        of_locks: Whether *resource_label* adds a label.
    """

    name: str
    kind: Literal["counter", "histogram", "gauge"]
    unit: str
    text: str
    labels: tuple[str, ...] = ()
    known: tuple[tuple[str, ...], ...] = ()
    of_locks: bool = True


class Measurement(NamedTuple):
    """A value of an instrument, with the values of its labels in order."""

    instrument: Instrument
    value: float
    labels: tuple[str, ...] = ()


ACQUISITIONS = Instrument(
    "redlock.acquisitions", "counter", "{acquisition}", "Acquisitions that have ended, by outcome.",
    ("outcome", "mode"), tuple(product(OUTCOMES, MODES)),
)  # fmt: skip
WAIT_DURATION = Instrument(
    "redlock.wait.duration", "histogram", "s", "Time from the call of an acquisition to its end.",
    ("outcome", "mode"), tuple(product(OUTCOMES, ["exclusive"])),
)  # fmt: skip
HOLD_DURATION = Instrument(
    "redlock.hold.duration", "histogram", "s", "Time for which a lease was held.",
    ("mode",), (("exclusive",),),
)  # fmt: skip
EXTENSION_MARGIN = Instrument(
    "redlock.extension_margin", "histogram", "s", "Validity that was left at an extension.",
    ("mode",), (("exclusive",),),
)  # fmt: skip
LOSSES = Instrument(
    "redlock.losses", "counter", "{lease}",
    "Leases that ended before their holders released them, by cause.",
    ("cause", "mode"), tuple(product([cause.value for cause in LossCause], MODES)),
)  # fmt: skip
VOTE_LOSSES = Instrument(
    "redlock.master.vote_losses", "counter", "{loss}",
    "Times that a master was found without a vote, by cause.",
    ("master", "cause"), of_locks=False,
)  # fmt: skip
MAJORITY_LOSSES = Instrument(
    "redlock.majority_losses", "counter", "{loss}",
    "Times that no majority of the masters voted any more.", known=((),), of_locks=False,
)  # fmt: skip
HAS_VOTE = Instrument(
    "redlock.master.has_vote", "gauge", "{vote}", "1 if the master votes, 0 if it does not.",
    ("master",), of_locks=False,
)  # fmt: skip
UNCONFIRMED_RELEASES = Instrument(
    "redlock.master.unconfirmed_releases", "gauge", "{release}",
    "Releases that the master has not confirmed yet.", ("master",), of_locks=False,
)  # fmt: skip
LEASES = Instrument(
    "redlock.leases", "gauge", "{lease}", "Leases that are held.", of_locks=False
)  # fmt: skip
WAITERS = Instrument(
    "redlock.waiters", "gauge", "{task}", "Tasks that wait for a lock.", of_locks=False
)  # fmt: skip

FROM_EVENTS = (
    ACQUISITIONS, WAIT_DURATION, HOLD_DURATION, EXTENSION_MARGIN, LOSSES, VOTE_LOSSES,
    MAJORITY_LOSSES,
)  # fmt: skip
GAUGES = (HAS_VOTE, UNCONFIRMED_RELEASES, LEASES, WAITERS)


def outcome(event: Acquired | Missed | Cancelled) -> str:
    """Return the outcome of an acquisition, one of `OUTCOMES`."""
    match event:
        case Acquired():
            return "acquired"
        case Cancelled():
            return "cancelled"
        case Missed(error=QuorumUnavailableError()):
            return "unavailable"
        case Missed():
            return "held_by_others"


def measured(event: Event) -> list[Measurement]:
    """Return what *event* adds to counters and histograms."""
    found: list[Measurement] = []
    match event:
        case Acquired(waited_ms=ms) | Missed(waited_ms=ms) | Cancelled(waited_ms=ms):
            labels = (outcome(event), event.mode)
            found += (
                Measurement(ACQUISITIONS, 1, labels),
                Measurement(WAIT_DURATION, ms / 1000, labels),
            )
        case Extended(margin_ms=ms, mode=mode):
            found.append(Measurement(EXTENSION_MARGIN, ms / 1000, (mode,)))
        case Released(held_ms=ms, mode=mode) | Lost(held_ms=ms, mode=mode):
            found.append(Measurement(HOLD_DURATION, ms / 1000, (mode,)))
            if isinstance(event, Lost):
                found.append(Measurement(LOSSES, 1, (event.cause.value, mode)))
        case MasterLost(master=master, cause=cause):
            found.append(Measurement(VOTE_LOSSES, 1, (master, cause.value)))
        case MajorityLost():
            found.append(Measurement(MAJORITY_LOSSES, 1))
        case _:
            pass
    return found


def known_of(counter: Instrument, mode: str) -> list[tuple[str, ...]]:
    """Return the labels of a counter of locks in one mode, without that of the resource."""
    return [labels for labels in counter.known if labels[-1] == mode]


def resource_of(event: Event, label: ResourceLabel) -> str:
    """Return the value of the label "resource" for an event of a lock."""
    # Half of a surrogate pair, as from `os.fsdecode`, has no UTF-8: the collector would fail, and
    # export nothing, until the program ends.
    text = str(label(getattr(event, "resources", ())))
    return text.encode("utf-8", "backslashreplace").decode()


def checked(resource_label: ResourceLabel | None) -> ResourceLabel | None:
    """
    Return *resource_label*.

    Raises:
        TypeError: It is no function.
    """
    if resource_label is not None and not callable(resource_label):
        kind = type(resource_label).__name__
        raise TypeError(f"resource_label must be a function or None, not a {kind}")
    return resource_label


class HasStatistics(Protocol):
    """A manager: `Redlock`, or another object with its statistics."""

    def statistics(self) -> Statistics:
        """Return the present numbers; any thread may call it."""


class Managers:
    """
    The managers whose gauges are exported.

    A manager that the program has dropped is dropped here, too.
    """

    def __init__(self) -> None:
        self._managers: tuple[weakref.ref[HasStatistics], ...] = ()

    def add(self, redlock: HasStatistics) -> None:
        """
        Add *redlock*, once.

        Raises:
            TypeError: It is no manager.
        """
        if isinstance(redlock, type) or not callable(getattr(redlock, "statistics", None)):
            raise TypeError(f"redlock must be a Redlock, not {redlock!r:.80}")
        # Replaced and not changed: another thread may iterate over it.
        others = [ref for ref in self._managers if ref() not in (None, redlock)]
        self._managers = (*others, weakref.ref(redlock))

    def gauges(self) -> list[Measurement]:
        """
        Return the values of all gauges, summed over the managers that are open.

        A master has a vote if no manager has recorded the opposite.
        """
        known = [manager for ref in self._managers if (manager := ref()) is not None]
        opened = [now for manager in known if (now := manager.statistics()).is_open]
        votes: dict[str, bool] = {}
        unconfirmed: dict[str, int] = {}
        for master in (master for now in opened for master in now.masters):
            votes[master.name] = master.votes and votes.get(master.name, True)
            unconfirmed[master.name] = master.debts + unconfirmed.get(master.name, 0)
        return [
            *(Measurement(HAS_VOTE, int(vote), (name,)) for name, vote in votes.items()),
            *(Measurement(UNCONFIRMED_RELEASES, n, (name,)) for name, n in unconfirmed.items()),
            Measurement(LEASES, sum(now.leases for now in opened)),
            Measurement(WAITERS, sum(now.waiters for now in opened)),
        ]

    def values(self, instrument: Instrument) -> Iterable[Measurement]:
        """Return the values of one gauge."""
        return [each for each in self.gauges() if each.instrument is instrument]
