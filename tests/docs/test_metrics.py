"""The names of metrics and spans: those of a scrape, of the SDK, of the pages and the dashboard."""

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.parser import text_string_to_metric_families

from redlock_aio import (
    Answer,
    Holder,
    LockNotAcquiredError,
    LossCause,
    MasterStatistics,
    NoVoteCause,
    QuorumUnavailableError,
    Statistics,
    Vote,
)
from redlock_aio.contrib import _measures, opentelemetry, prometheus
from redlock_aio.events import (
    Acquired,
    Cancelled,
    Event,
    Extended,
    Lost,
    MajorityLost,
    MasterLost,
    Missed,
    Released,
)

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/metrics.md").read_text()
OBSERVE = (ROOT / "docs/how-to/observe.md").read_text()
DASHBOARD: dict[str, Any] = json.loads((ROOT / "examples/grafana_dashboard.json").read_text())
OF_PROMETHEUS = {"job", "instance", "le"}
"""Labels that Prometheus adds, and that of the buckets of a histogram."""

VOTES = (Vote("m", Answer.HELD),)
WHY: dict[str, Any] = {"attempts": 1, "elapsed": 3, "votes": VOTES}
EVENTS: list[Event] = [
    Acquired(("r",), "f00", 3, 17),
    Missed(("r",), 3, LockNotAcquiredError(("r",), holder=Holder("f01"), **WHY)),
    Missed(("r",), 3, QuorumUnavailableError(("r",), **WHY)),
    Cancelled(("r",), 3),
    Extended(("r",), "f00", 5000, 886),
    Released(("r",), "f00", 12),
    Acquired(("r",), "f02", 3, None, "permit", 4),
    Lost(("r",), "f02", "gone", 12, LossCause.KEY_GONE, VOTES),
    MasterLost("m:1", "away", NoVoteCause.SILENT, VOTES),
    MajorityLost(VOTES),
]
"""Events of all kinds that are measured or traced."""


class Manager:
    """An object with the statistics of a manager with one master."""

    def statistics(self) -> Statistics:
        masters = (MasterStatistics("m:1", True, True, "", 0, 1),)
        return Statistics(masters, rounds=0, leases=1, waiters=2, is_open=True)


class Exported(NamedTuple):
    """A metric as it is exported."""

    kind: str
    labels: frozenset[str]
    text: str


@pytest.fixture(scope="module")
def scrape() -> dict[str, Exported]:
    """Return each metric of a scrape by HTTP, by the name that a query uses."""
    registry, manager = CollectorRegistry(), Manager()
    metrics = prometheus.Metrics(registry=registry)
    metrics.watch(manager)
    for event in EVENTS:
        metrics(event)
    server, thread = start_http_server(0, "127.0.0.1", registry)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics") as answer:
            text = answer.read().decode()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    found: dict[str, Exported] = {}
    for family in text_string_to_metric_families(text):
        samples = [each for each in family.samples if not each.name.endswith("_created")]
        labels = frozenset(label for sample in samples for label in sample.labels) - {"le"}
        name = family.name + ("_total" if family.type == "counter" else "")
        if not family.name.endswith("_created"):
            found[name] = Exported(family.type, labels, family.documentation)
    return found


@pytest.fixture(scope="module")
def telemetry() -> tuple[dict[str, Exported], dict[str, set[str]]]:
    """Return each metric, and the attributes of each span, as the SDK exports them."""
    reader, spans, traces = InMemoryMetricReader(), InMemorySpanExporter(), TracerProvider()
    traces.add_span_processor(SimpleSpanProcessor(spans))
    manager, meters = Manager(), MeterProvider([reader])
    listener = opentelemetry.Telemetry(tracer_provider=traces, meter_provider=meters)
    listener.watch(manager)
    for event in EVENTS:
        listener(event)
    data = reader.get_metrics_data()
    assert data is not None
    metrics = {
        metric.name: Exported(
            type(metric.data).__name__.lower(),
            frozenset(name for point in metric.data.data_points for name in point.attributes or {}),
            f"{metric.description} {metric.unit}",
        )
        for scope in data.resource_metrics[0].scope_metrics
        for metric in scope.metrics
    }
    attributes: defaultdict[str, set[str]] = defaultdict(set)
    for span in spans.get_finished_spans():
        attributes[span.name] |= set(span.attributes or {})
    meters.shutdown()
    traces.shutdown()
    return metrics, attributes


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the first table under *heading* on the page, without its head."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def names(cell: str) -> set[str]:
    """Return the names in a cell."""
    return set(re.findall(r"`([^`]+)`", cell))


def test_the_page_lists_the_metrics_of_prometheus(scrape: dict[str, Exported]) -> None:
    listed = {
        row[0].strip("`"): Exported(row[2], frozenset(names(row[3])), row[4])
        for row in rows("Metrics")
    }
    assert listed == scrape


def test_the_page_lists_the_metrics_of_opentelemetry(
    telemetry: tuple[dict[str, Exported], dict[str, set[str]]],
) -> None:
    kinds = {"counter": {"sum"}, "histogram": {"histogram"}, "gauge": {"sum", "gauge"}}
    listed = {row[1].strip("`"): row for row in rows("Metrics")}
    exported, _ = telemetry
    assert set(listed) == set(exported)
    for name, (_, _, kind, labels, text) in listed.items():
        seen = exported[name]
        assert seen.kind in kinds[kind]
        wanted = {f"redlock.{label}" for label in names(labels)}
        if "redlock.master" in wanted:
            wanted = wanted - {"redlock.master"} | {"server.address", "server.port"}
        assert seen.labels == wanted
        assert seen.text.startswith(text)


def test_names_of_opentelemetry_become_those_of_prometheus() -> None:
    """Prometheus writes the unit and `_total` behind a name; an annotation is no unit."""
    for row in rows("Metrics"):
        own, other, kind = row[0].strip("`"), row[1].strip("`"), row[2]
        unit = "_seconds" if kind == "histogram" else ""
        assert own == other.replace(".", "_") + unit + ("_total" if kind == "counter" else "")


def test_the_page_lists_the_spans(
    telemetry: tuple[dict[str, Exported], dict[str, set[str]]],
) -> None:
    listed = {row[0].strip("`"): names(row[2]) for row in rows("Spans")}
    assert listed == telemetry[1]


def test_the_page_lists_the_values_of_labels() -> None:
    listed = {row[0].strip("`"): names(row[1]) for row in rows("Labels")}
    assert listed["outcome"] == set(_measures.OUTCOMES)
    assert listed["mode"] == set(_measures.MODES)
    assert set(listed) == {"outcome", "mode", "cause", "master", "resource"}


def selected(query: str) -> set[str]:
    """Return the names of metrics in a query."""
    return set(re.findall(r"\bredlock_\w+", query))


def labels_in(query: str) -> set[str]:
    """Return the names of labels in a query."""
    matched = re.findall(r"(\w+)\s*=~?", " ".join(re.findall(r"\{([^}]*)\}", query)))
    grouped = re.findall(r"\w+", " ".join(re.findall(r"\bby \(([^)]*)\)", query)))
    return {*matched, *grouped}


def check(query: str, scrape: dict[str, Exported]) -> set[str]:
    """Check the metrics and labels of a query; return the metrics."""
    found = {re.sub(r"_bucket$", "", name) for name in selected(query)}
    assert found, query
    assert found <= set(scrape), query
    for name in found:
        assert labels_in(query) <= scrape[name].labels | OF_PROMETHEUS, query
    assert query.count("(") == query.count(")"), query
    return found


def test_the_dashboard_shows_what_is_exported_and_nothing_else(
    scrape: dict[str, Exported],
) -> None:
    shown = set()
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            shown |= check(target["expr"], scrape)
            legend = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert legend <= labels_in(target["expr"]), panel["title"]
    assert shown == set(scrape)
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            assert selected(variable["query"]["query"]) <= set(scrape)


@pytest.mark.parametrize("label", [None, "+".join], ids=["plain", "resource"])
def test_the_dashboard_finds_each_job(label: _measures.ResourceLabel | None) -> None:
    """Also one without any lock yet, and one whose worker processes export no gauges."""
    (job,) = [each for each in DASHBOARD["templating"]["list"] if each["name"] == "job"]
    (name,) = selected(job["query"]["query"])
    assert name.endswith("_total"), "a counter"
    begun = {
        sample.name
        for metric in prometheus.Metrics(registry=None, resource_label=label).collect()
        for sample in metric.samples
    }
    assert name in begun
    assert job["allValue"] == ".*", "without it, All is nothing if no job is found"


def test_the_dashboard_can_be_imported() -> None:
    panels, variables = DASHBOARD["panels"], DASHBOARD["templating"]["list"]
    assert len({panel["id"] for panel in panels}) == len(panels) == 10
    assert DASHBOARD["schemaVersion"] >= 39
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD))) - {"__rate_interval", "__all"}
    assert used == {variable["name"] for variable in variables}
    cells = [
        (x, y)
        for at in (panel["gridPos"] for panel in panels)
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(set(cells)) == len(cells), "no panel covers another"
    assert max(x for x, _ in cells) == 23


WORKERS = """
import os
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from redlock_aio import Redlock
from redlock_aio.contrib.prometheus import Metrics
from redlock_aio.events import Acquired

metrics, redlock = Metrics(), Redlock(["redis://a"])
metrics.watch(redlock)
for _ in range(2):  # workers of an app that was loaded before the fork
    if not os.fork():
        metrics(Acquired(("r",), "f00", 3, None))
        os._exit(0)
    os.wait()
registry = CollectorRegistry()
MultiProcessCollector(registry)
print(generate_latest(registry).decode())
"""


def test_worker_processes_are_summed_up_and_have_no_gauges(tmp_path: Path) -> None:
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    command = [sys.executable, "-c", WORKERS]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(done.stdout)
        for sample in family.samples
    }
    assert samples["redlock_acquisitions_total", "exclusive", "acquired"] == 2
    assert samples["redlock_wait_duration_seconds_count", "exclusive", "acquired"] == 2
    assert samples["redlock_majority_losses_total",] == 0
    gauges = {each.name.replace(".", "_") for each in _measures.GAUGES}
    assert not gauges & {name for name, *_ in samples}


def test_the_alerts_use_exported_metrics(scrape: dict[str, Exported]) -> None:
    """Whether they fire is tested in test_alerts.py."""
    rules = yaml.safe_load((ROOT / "examples/prometheus_rules.yaml").read_text())
    used = selected(" ".join(rule["expr"] for rule in rules["groups"][0]["rules"]))
    assert {re.sub(r"_bucket$", "", name) for name in used} <= set(scrape)


def relabelled(labels: dict[str, str]) -> dict[str, str]:
    """Return *labels* as Prometheus has them with the relabelling of the page."""
    block = OBSERVE.partition("```yaml\nmetric_relabel_configs:")[2].partition("```")[0]
    for rule in yaml.safe_load(block):
        if rule.get("action", "replace") == "replace":
            joined = rule["separator"].join(labels.get(each, "") for each in rule["source_labels"])
            if found := re.fullmatch(rule["regex"], joined):
                labels = labels | {rule["target_label"]: found[1]}
            continue
        found_in = {name: re.fullmatch(rule["regex"], name) for name in labels}
        if rule["action"] == "labelmap":
            labels = labels | {found[1]: labels[name] for name, found in found_in.items() if found}
        else:
            assert rule["action"] == "labeldrop"
            labels = {name: labels[name] for name, found in found_in.items() if not found}
    return labels


def test_labels_of_opentelemetry_become_those_of_the_rules(
    scrape: dict[str, Exported], telemetry: tuple[dict[str, Exported], dict[str, set[str]]]
) -> None:
    own = {row[1].strip("`"): row[0].strip("`") for row in rows("Metrics")}
    for name, metric in telemetry[0].items():
        labels = {each.replace(".", "_"): "x" for each in metric.labels}
        seen = relabelled(labels).keys() - {"server_address", "server_port"}
        assert seen == scrape[own[name]].labels
    assert relabelled({"redlock_resource": "r"}) == {"resource": "r"}


@pytest.mark.parametrize(
    ("address", "master"),
    [
        ({"server_address": "10.0.0.1", "server_port": "6379"}, "10.0.0.1:6379"),
        ({"server_address": "::1", "server_port": "6379"}, "::1:6379"),
        ({"server_address": "/run/redis.sock"}, "/run/redis.sock"),
        ({"master": "10.0.0.1:6379"}, "10.0.0.1:6379"),
        ({}, None),
    ],
)
def test_a_master_of_opentelemetry_has_one_label(
    address: dict[str, str], master: str | None
) -> None:
    """Series that have the label already, or none of these labels, stay as they are."""
    assert relabelled(address).get("master") == master
