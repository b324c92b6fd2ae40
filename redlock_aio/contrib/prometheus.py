"""
Metrics of locks for Prometheus.

    metrics = Metrics()
    redlock = Redlock(MASTERS, listener=metrics)
    metrics.watch(redlock)

Counters and histograms follow from the events of the manager. The gauges are read from
`Redlock.statistics` when Prometheus asks for them, in any thread.
"""

from collections.abc import Iterator, Sequence

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from redlock_aio.contrib._measures import (
    BUCKETS,
    FROM_EVENTS,
    GAUGES,
    HasStatistics,
    Instrument,
    Managers,
    ResourceLabel,
    checked,
    known_of,
    measured,
    resource_of,
)
from redlock_aio.events import Event

__all__ = ("Metrics",)


class Metrics:
    """
    A listener that counts events, and a collector of the numbers for Prometheus.

    One object serves any number of managers; it is their sum that is exported.

    Args:
        registry: Where it is registered as a collector; ``None`` for nowhere (default: the
            registry that ``prometheus_client`` exports).

        resource_label: A function of the names that a lock locks together. What it returns is
            the value of a label ``resource`` (default: no such label). It should have few
            values, such as the part of a name before its number.

        buckets: The upper bounds of the histograms, in seconds.

    Raises:
        TypeError: *resource_label* is no function.

        ValueError: The registry has these metrics already, or *buckets* are not sorted.
    """

    def __init__(
        self,
        *,
        registry: CollectorRegistry | None = REGISTRY,
        resource_label: ResourceLabel | None = None,
        buckets: Sequence[float] = BUCKETS,
    ) -> None:
        self._resource_label = checked(resource_label)
        self._managers = Managers()
        self._metrics: dict[Instrument, Counter | Histogram] = {}
        self._begun: set[tuple[str, str]] = set()  # modes and resources
        for each in FROM_EVENTS:
            with_resource = each.of_locks and resource_label is not None
            labels = (*each.labels, "resource") if with_resource else each.labels
            if each.kind == "counter":
                self._metrics[each] = Counter(_name(each), each.text, labels, registry=None)
            else:
                self._metrics[each] = Histogram(
                    _name(each), each.text, labels, registry=None, buckets=buckets
                )
            if labels and not with_resource:
                # Prometheus sees no increase from nothing to 1, so the series begin at 0.
                for values in each.known:
                    self._metrics[each].labels(*values)
        if registry is not None:
            registry.register(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self._metrics) + len(GAUGES)} instruments>"

    def __call__(self, event: Event, /) -> None:
        """Count *event*; a manager calls it as its listener."""
        for each in measured(event):
            metric, labels = self._metrics[each.instrument], each.labels
            if each.instrument.of_locks and self._resource_label is not None:
                resource = resource_of(event, self._resource_label)
                self._begin_at_0(labels[-1], resource)
                labels = (*labels, resource)
            if labels:
                metric = metric.labels(*labels)
            if isinstance(metric, Counter):
                metric.inc(each.value)
            else:
                metric.observe(each.value)

    def _begin_at_0(self, mode: str, resource: str) -> None:
        """Export the counters of a resource from its first event on, also those of losses."""
        if (mode, resource) in self._begun:
            return
        self._begun.add((mode, resource))
        for each, metric in self._metrics.items():
            if each.kind == "counter" and each.of_locks:
                for values in known_of(each, mode):
                    metric.labels(*values, resource)

    def watch(self, redlock: HasStatistics) -> None:
        """
        Export the gauges of *redlock* too, for as long as the program keeps it.

        A manager that is not open adds nothing. A master that several managers use has a vote
        if it has one for all of them.

        Raises:
            TypeError: *redlock* is no manager.
        """
        self._managers.add(redlock)

    def collect(self) -> Iterator[Metric]:
        """Return all metrics, for a registry of ``prometheus_client``; any thread may call it."""
        for metric in self._metrics.values():
            yield from metric.collect()
        families = {
            each: GaugeMetricFamily(_name(each), each.text, labels=each.labels) for each in GAUGES
        }
        for instrument, value, labels in self._managers.gauges():
            families[instrument].add_metric(labels, value)
        yield from families.values()

    def describe(self) -> Iterator[Metric]:
        """Return all metrics, so that a registry refuses a second one of the same name."""
        return self.collect()


def _name(instrument: Instrument) -> str:
    """Return the name of *instrument* as Prometheus has it; a counter adds ``_total``."""
    return instrument.name.replace(".", "_") + ("_seconds" if instrument.unit == "s" else "")
