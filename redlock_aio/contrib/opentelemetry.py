"""
Traces and metrics of locks for OpenTelemetry.

    telemetry = Telemetry()
    redlock = Redlock(MASTERS, listener=telemetry)
    telemetry.watch(redlock)

Each acquisition is a span ``redlock.acquire``, and each lease a span ``redlock.hold``. Their
parent is the span in which the lock was acquired. Counters and histograms follow from the
events of the manager, and the gauges from `Redlock.statistics`.
"""

import functools
import re
import time
from collections.abc import Callable, Iterable
from typing import Any

from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation, get_meter
from opentelemetry.trace import Link, Span, Status, StatusCode, TracerProvider, get_tracer

import redlock_aio
from redlock_aio.contrib._measures import (
    BUCKETS,
    FROM_EVENTS,
    GAUGES,
    HAS_VOTE,
    HasStatistics,
    Instrument,
    Managers,
    Measurement,
    ResourceLabel,
    checked,
    known_of,
    measured,
    outcome,
    resource_of,
)
from redlock_aio.events import Acquired, Cancelled, Event, Lost, Missed, Released

__all__ = ("Telemetry",)

PREFIX = "redlock."
"""Begins the name of each attribute that is not one of the semantic conventions."""

ACQUIRE, HOLD = "redlock.acquire", "redlock.hold"
"""The names of the spans."""

_MS = 1_000_000
"""Nanoseconds in a millisecond."""

_ADDRESS = re.compile(r"(?P<host>\[[^]]*\]|[^/: ]+):(?P<port>[0-9]+)(?:/(?P<database>[0-9]+))?")
"""The name of a master that is a server; that of a socket begins with a slash."""

Attributes = dict[str, str | int | tuple[str, ...]]
OfMetric = dict[str, str | int]


class Telemetry:
    """
    A listener that makes spans and metrics of the events of managers.

    One object serves any number of managers; the metrics are their sum. An exporter must not
    block the event loop: export spans with a ``BatchSpanProcessor``.

    Args:
        tracer_provider: Makes the spans (default: the global one).

        meter_provider: Makes the metrics (default: the global one).

        resource_label: A function of the names that a lock locks together. What it returns is
            the value of an attribute ``redlock.resource`` of metrics (default: no such
            attribute). It should have few values, such as the part of a name before its
            number. Spans have all names in any case.

    Raises:
        TypeError: *resource_label* is no function.
    """

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        resource_label: ResourceLabel | None = None,
    ) -> None:
        self._resource_label = checked(resource_label)
        self._managers = Managers()
        self._begun: set[tuple[str, str]] = set()  # modes and resources
        # The span of each lease with its begin. A fingerprint alone may occur twice.
        self._holds: dict[tuple[tuple[str, ...], str], tuple[Span, int]] = {}
        version = redlock_aio.__version__
        self._tracer = get_tracer("redlock_aio", version, tracer_provider)
        meter = get_meter("redlock_aio", version, meter_provider)
        self._record: dict[Instrument, Callable[[float, OfMetric], None]] = {}
        for each in FROM_EVENTS:
            if each.kind == "counter":
                add = meter.create_counter(each.name, each.unit, each.text).add
                self._record[each] = add
                if not (each.of_locks and resource_label):
                    self._begin_at_0(each, each.known)
            else:
                self._record[each] = meter.create_histogram(
                    each.name, each.unit, each.text, explicit_bucket_boundaries_advisory=BUCKETS
                ).record
        for each in GAUGES:
            # Numbers of things can be summed over processes; a vote can't.
            create: Any = meter.create_observable_up_down_counter
            if each is HAS_VOTE:
                create = meter.create_observable_gauge
            create(each.name, [self._observer(each)], each.unit, each.text)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}, {len(self._holds)} leases are held>"

    def __call__(self, event: Event, /) -> None:
        """Record *event*; a manager calls it as its listener."""
        try:
            self._measure(event)
        finally:  # the span of a lease must end, whatever becomes of the metrics
            self._trace(event)

    def watch(self, redlock: HasStatistics) -> None:
        """
        Export the gauges of *redlock* too, for as long as the program keeps it.

        A manager that is not open adds nothing. A master that several managers use has a vote
        if it has one for all of them.

        Raises:
            TypeError: *redlock* is no manager.
        """
        self._managers.add(redlock)

    # Metrics.

    def _measure(self, event: Event) -> None:
        for each in measured(event):
            attributes = _attributes(each)
            if each.instrument.of_locks and self._resource_label is not None:
                resource = resource_of(event, self._resource_label)
                self._begin_resource(each.labels[-1], resource)
                attributes[f"{PREFIX}resource"] = resource
            self._record[each.instrument](each.value, attributes)

    def _begin_at_0(
        self, counter: Instrument, known: Iterable[tuple[str, ...]], **resource: str
    ) -> None:
        """Export *counter* before it is increased: backends see no increase from nothing to 1."""
        more: OfMetric = {PREFIX + name: value for name, value in resource.items()}
        for labels in known:
            self._record[counter](0, _attributes(Measurement(counter, 0, labels)) | more)

    def _begin_resource(self, mode: str, resource: str) -> None:
        """Export the counters of a resource from its first event on, also those of losses."""
        if (mode, resource) in self._begun:
            return
        self._begun.add((mode, resource))
        for each in FROM_EVENTS:
            if each.kind == "counter" and each.of_locks:
                self._begin_at_0(each, known_of(each, mode), resource=resource)

    def _observer(self, gauge: Instrument) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_options: CallbackOptions) -> Iterable[Observation]:
            values = self._managers.values(gauge)
            return [Observation(each.value, _attributes(each)) for each in values]

        return observe

    # Spans.

    def _trace(self, event: Event) -> None:
        match event:
            case Acquired() | Missed() | Cancelled():
                self._trace_acquisition(event)
            case Released() | Lost():
                self._end_hold(event)
            case _:
                pass

    def _trace_acquisition(self, event: Acquired | Missed | Cancelled) -> None:
        """Make the span of an acquisition that has ended, and begin the span of its lease."""
        now = time.time_ns()
        attributes: Attributes = {
            f"{PREFIX}resources": event.resources,
            f"{PREFIX}mode": event.mode,
        }
        lease: Attributes = {}
        if isinstance(event, Acquired):
            lease[f"{PREFIX}fingerprint"] = event.fingerprint
            if event.fencing_token is not None:
                lease[f"{PREFIX}fencing_token"] = event.fencing_token
            if event.permit is not None:
                lease[f"{PREFIX}permit"] = event.permit
        elif isinstance(event, Missed):
            lease[f"{PREFIX}attempts"] = event.error.attempts
            if event.error.holder is not None:
                lease[f"{PREFIX}holder"] = str(event.error.holder)
        span = self._tracer.start_span(
            ACQUIRE,
            attributes={**attributes, **lease, f"{PREFIX}outcome": outcome(event)},
            start_time=now - round(event.waited_ms * _MS),
        )
        if isinstance(event, Missed) and outcome(event) == "unavailable":
            _fail(span, type(event.error), str(event.error))
        span.end(now)
        if isinstance(event, Acquired):
            hold = self._tracer.start_span(
                HOLD,
                attributes={**attributes, **lease},
                links=[Link(span.get_span_context())],
                start_time=now,
            )
            self._holds[event.resources, event.fingerprint] = hold, now

    def _end_hold(self, event: Released | Lost) -> None:
        span, began = self._holds.pop((event.resources, event.fingerprint), (None, 0))
        if span is None:
            return  # its begin could not be traced
        if isinstance(event, Lost):
            span.set_attribute(f"{PREFIX}cause", event.cause.value)
            votes = f" ({'; '.join(map(str, event.votes))})" if event.votes else ""
            _fail(span, redlock_aio.LockLostError, event.reason + votes)
        ended, now = began + round(event.held_ms * _MS), time.time_ns()
        # If the wall clock was set back meanwhile, now is before its begin.
        span.end(min(ended, now) if now >= began else ended)


def _attributes(measurement: Measurement) -> OfMetric:
    found: OfMetric = {}
    for label, value in zip(measurement.instrument.labels, measurement.labels, strict=True):
        found |= _address(value) if label == "master" else {PREFIX + label: value}
    return found


@functools.cache  # there are as many as masters
def _address(master: str) -> OfMetric:
    """
    Return the name of a master as the semantic conventions have an address.

    A socket and a master that Sentinels name have no port: the path, or the whole name, is
    the address.
    """
    parts = _ADDRESS.fullmatch(master)
    if parts is None:
        return {"server.address": master}
    found: OfMetric = {
        "server.address": parts["host"].strip("[]"),
        "server.port": int(parts["port"]),
    }
    return found | ({"db.namespace": parts["database"]} if parts["database"] else {})


def _fail(span: Span, error: type[Exception], text: str) -> None:
    """Mark *span* as failed, as the semantic conventions for errors say."""
    span.set_attribute("error.type", f"{error.__module__}.{error.__qualname__}")
    span.set_status(Status(StatusCode.ERROR, text))
