"""Uses of metrics and traces of `redlock_aio.contrib`, which the type checkers read."""

from prometheus_client import CollectorRegistry

from redlock_aio import Redlock
from redlock_aio.contrib.opentelemetry import Telemetry
from redlock_aio.contrib.prometheus import Metrics
from redlock_aio.events import Listener


def kind(names: tuple[str, ...]) -> str:
    return names[0].partition(":")[0]


metrics = Metrics(registry=CollectorRegistry(), resource_label=kind, buckets=[0.1, 1.0])
telemetry = Telemetry(resource_label=lambda names: names[0])
listeners: list[Listener] = [metrics, telemetry]
redlock = Redlock(["redis://a"], listener=metrics)
metrics.watch(redlock)
telemetry.watch(redlock)
Metrics(registry=None, resource_label="kind")  # type: ignore[arg-type]
Telemetry().watch(["redis://a"])  # type: ignore[arg-type]
