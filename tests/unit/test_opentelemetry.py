"""`redlock_aio.contrib.opentelemetry`: spans and metrics in the SDK's in-memory exporters."""

import asyncio
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NoOpTracerProvider, StatusCode

from redlock_aio import LockLostError, LossCause, NoVoteCause, Redlock, sync
from redlock_aio.contrib import _measures
from redlock_aio.contrib.opentelemetry import Telemetry
from redlock_aio.events import MasterLost
from redlock_aio.testing import FakeMaster

from .kit import delete, hang, keys, settle
from .test_prometheus import story

Points = dict[tuple[str, frozenset[tuple[str, Any]]], Any]
Attributes = Mapping[str, Any]
EXCLUSIVE, SHARED, PERMIT = (("redlock.mode", mode) for mode in ("exclusive", "shared", "permit"))
ACQUIRED = {"redlock.mode": "exclusive", "redlock.outcome": "acquired"}


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def traces(exporter: InMemorySpanExporter) -> Iterator[TracerProvider]:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield provider
    provider.shutdown()


@pytest.fixture
def reader() -> InMemoryMetricReader:
    return InMemoryMetricReader()


@pytest.fixture
def meters(reader: InMemoryMetricReader) -> Iterator[MeterProvider]:
    provider = MeterProvider([reader])
    yield provider
    provider.shutdown()


def points(reader: InMemoryMetricReader) -> Points:
    """Return each point by the name of its metric and its attributes."""
    data = reader.get_metrics_data()
    assert data is not None
    return {
        (metric.name, frozenset((point.attributes or {}).items())): point
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    }


def number(reader: InMemoryMetricReader, name: str, attributes: Attributes) -> float:
    return float(points(reader)[name, frozenset(attributes.items())].value)


def of(span: ReadableSpan, *names: str) -> list[Any]:
    """Return the attributes of *span* with these *names* after the prefix; ``None`` if absent."""
    return [(span.attributes or {}).get(f"redlock.{name}") for name in names]


def milliseconds(span: ReadableSpan) -> int:
    assert span.start_time is not None
    assert span.end_time is not None
    return round((span.end_time - span.start_time) / 1_000_000)


# Spans


async def test_a_lease_is_two_spans_of_the_same_parent(
    masters: list[FakeMaster], exporter: InMemorySpanExporter, traces: TracerProvider
) -> None:
    telemetry = Telemetry(tracer_provider=traces, meter_provider=NoOpMeterProvider())
    async with Redlock(masters, restart_guard="off", listener=telemetry) as redlock:
        with traces.get_tracer("app").start_as_current_span("request"):
            async with redlock.lock("r", fencing=True) as lease:
                assert repr(telemetry) == "<Telemetry, 1 leases are held>"
    assert repr(telemetry) == "<Telemetry, 0 leases are held>"
    acquire, hold, request = sorted(exporter.get_finished_spans(), key=lambda span: span.name)
    assert [acquire.name, hold.name] == ["redlock.acquire", "redlock.hold"]
    for span in (acquire, hold):
        assert span.parent == request.context
        assert span.status.status_code is StatusCode.UNSET
        facts = of(span, "resources", "fingerprint", "fencing_token")
        assert facts == [("r",), lease.fingerprint, lease.fencing_token]
        assert span.instrumentation_scope is not None
        assert span.instrumentation_scope.name == "redlock_aio"
    assert of(acquire, "outcome") == ["acquired"]
    assert [link.context for link in hold.links] == [acquire.context]
    assert acquire.end_time == hold.start_time
    text = acquire.to_json() + hold.to_json()
    assert lease.token not in text


async def test_spans_and_metrics_tell_readers_from_writers(
    masters: list[FakeMaster],
    exporter: InMemorySpanExporter,
    traces: TracerProvider,
    reader: InMemoryMetricReader,
    meters: MeterProvider,
) -> None:
    telemetry = Telemetry(tracer_provider=traces, meter_provider=meters)
    async with Redlock(masters, restart_guard="off", listener=telemetry) as redlock:
        docs = redlock.rw_lock("r")
        async with docs.read():
            assert await asyncio.create_task(docs.write().try_acquire()) is None
        async with docs.write():
            pass
    modes = [(span.name, *of(span, "mode", "outcome")) for span in exporter.get_finished_spans()]
    assert modes == [
        ("redlock.acquire", "shared", "acquired"),
        ("redlock.acquire", "exclusive", "held_by_others"),
        ("redlock.hold", "shared", None),
        ("redlock.acquire", "exclusive", "acquired"),
        ("redlock.hold", "exclusive", None),
    ]
    for mode in ("shared", "exclusive"):
        assert number(reader, "redlock.acquisitions", {**ACQUIRED, "redlock.mode": mode}) == 1


async def test_spans_have_the_number_of_the_permit(
    masters: list[FakeMaster], exporter: InMemorySpanExporter, traces: TracerProvider
) -> None:
    telemetry = Telemetry(tracer_provider=traces)
    async with Redlock(masters, restart_guard="off", listener=telemetry) as redlock:
        async with redlock.semaphore("r", permits=3) as lease:
            pass
        async with redlock.lock("r"):
            pass
    spans = [(span.name, *of(span, "mode", "permit")) for span in exporter.get_finished_spans()]
    assert spans == [
        ("redlock.acquire", "permit", lease.permit),
        ("redlock.hold", "permit", lease.permit),
        ("redlock.acquire", "exclusive", None),
        ("redlock.hold", "exclusive", None),
    ]


def test_a_lease_of_a_thread_is_below_the_span_of_the_thread(
    masters: list[FakeMaster], exporter: InMemorySpanExporter, traces: TracerProvider
) -> None:
    """The listener runs in the thread of the event loop, with the context of the caller."""
    telemetry = Telemetry(tracer_provider=traces, meter_provider=NoOpMeterProvider())
    with (
        sync.Redlock(masters, restart_guard="off", listener=telemetry) as redlock,
        traces.get_tracer("app").start_as_current_span("request"),
        redlock.lock("r"),
    ):
        pass
    acquire, hold, request = sorted(exporter.get_finished_spans(), key=lambda span: span.name)
    assert acquire.parent == hold.parent == request.context


async def test_spans_last_as_long_as_the_wait_and_the_hold(
    masters: list[FakeMaster],
    other: Redlock,
    exporter: InMemorySpanExporter,
    traces: TracerProvider,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began = asyncio.get_running_loop().time()
    monkeypatch.setattr(
        "redlock_aio.contrib.opentelemetry.time.time_ns",
        lambda: int((asyncio.get_running_loop().time() - began) * 1e9) + 10**18,
    )
    telemetry = Telemetry(tracer_provider=traces, meter_provider=NoOpMeterProvider())
    async with Redlock(masters, restart_guard="off", listener=telemetry) as redlock:
        lease = await other.lock("r").acquire()

        async def release_later() -> None:
            await asyncio.sleep(0.7)
            await lease.release()

        releasing = asyncio.create_task(release_later())
        async with redlock.lock("r"):
            await asyncio.sleep(2)
        await releasing
    acquire, hold = exporter.get_finished_spans()
    assert 700 <= milliseconds(acquire) < 720
    assert milliseconds(hold) == 2000


async def test_no_span_ends_before_it_begins_although_the_wall_clock_is_set_back(
    masters: list[FakeMaster],
    exporter: InMemorySpanExporter,
    traces: TracerProvider,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [10**18]
    monkeypatch.setattr("redlock_aio.contrib.opentelemetry.time.time_ns", lambda: clock[0])
    telemetry = Telemetry(tracer_provider=traces, meter_provider=NoOpMeterProvider())
    redlock = Redlock(masters, restart_guard="off", listener=telemetry)
    async with redlock, redlock.lock("r"):
        await asyncio.sleep(2)
        clock[0] -= 3_600 * 10**9
    _, hold = exporter.get_finished_spans()
    assert milliseconds(hold) == 2000


async def test_spans_say_how_an_acquisition_ended(
    masters: list[FakeMaster], exporter: InMemorySpanExporter, traces: TracerProvider
) -> None:
    telemetry = Telemetry(tracer_provider=traces, meter_provider=NoOpMeterProvider())
    async with Redlock(masters, restart_guard="off", listener=telemetry, name="me") as redlock:
        await story(redlock, masters)
        await settle(masters)
    spans = exporter.get_finished_spans()
    ended = {of(span, "outcome")[0]: span for span in spans if span.name == "redlock.acquire"}
    assert set(ended) == set(_measures.OUTCOMES)
    unset = {name for name, span in ended.items() if span.status.status_code is StatusCode.UNSET}
    assert unset == set(_measures.OUTCOMES) - {"unavailable"}
    failed = ended["unavailable"]
    assert failed.status.status_code is StatusCode.ERROR
    assert (failed.attributes or {})["error.type"] == "redlock_aio.QuorumUnavailableError"
    assert "'report:2' not acquired in 1 round" in (failed.status.description or "")
    attempts, holder = of(ended["held_by_others"], "attempts", "holder")
    assert attempts == 0  # this process has the lock
    assert holder.startswith("me (")


async def test_a_loss_fails_the_span_of_the_lease(
    masters: list[FakeMaster], exporter: InMemorySpanExporter, traces: TracerProvider
) -> None:
    telemetry = Telemetry(tracer_provider=traces, meter_provider=NoOpMeterProvider())
    async with Redlock(masters, restart_guard="off", listener=telemetry) as redlock:
        with pytest.raises(LockLostError) as caught:
            async with redlock.lock("r", ttl=1000):
                delete(masters)
                await asyncio.sleep(2)
    _, hold = exporter.get_finished_spans()
    assert hold.status.status_code is StatusCode.ERROR
    assert (hold.attributes or {})["error.type"] == "redlock_aio.LockLostError"
    assert of(hold, "cause") == [LossCause.KEY_GONE.value]
    assert str(caught.value) == f"'r' lost: {hold.status.description} [key-gone]"


# Metrics


async def test_events_are_counted(
    masters: list[FakeMaster], reader: InMemoryMetricReader, meters: MeterProvider
) -> None:
    telemetry = Telemetry(tracer_provider=NoOpTracerProvider(), meter_provider=meters)
    async with Redlock(masters, restart_guard="off", listener=telemetry) as redlock:
        assert number(reader, "redlock.majority_losses", {}) == 0
        await story(redlock, masters)
        seen = points(reader)
        await settle(masters)
    for outcome, wanted in zip(_measures.OUTCOMES, (2, 1, 1, 1), strict=True):
        labels = frozenset({EXCLUSIVE, ("redlock.outcome", outcome)})
        assert seen["redlock.acquisitions", labels].value == wanted
        assert seen["redlock.wait.duration", labels].count == wanted
    labels = frozenset({EXCLUSIVE, ("redlock.outcome", "cancelled")})
    cancelled = seen["redlock.wait.duration", labels]
    assert cancelled.sum == pytest.approx(1.1)
    assert tuple(cancelled.explicit_bounds) == _measures.BUCKETS
    assert seen["redlock.hold.duration", frozenset({EXCLUSIVE})].count == 2
    assert seen["redlock.extension_margin", frozenset({EXCLUSIVE})].min > 0.5
    for cause in LossCause:
        counts = [
            seen["redlock.losses", frozenset({mode, ("redlock.cause", cause.value)})].value
            for mode in (EXCLUSIVE, SHARED, PERMIT)
        ]
        assert counts == [int(cause is LossCause.KEY_GONE), 0, 0]
    down = {"redlock.cause": "disconnected", "server.address": "m0"}
    assert seen["redlock.master.vote_losses", frozenset(down.items())].value == 1
    assert not [labels for _, labels in seen if "invoice" in str(labels)]


async def test_gauges_follow_the_managers(
    masters: list[FakeMaster], reader: InMemoryMetricReader, meters: MeterProvider
) -> None:
    telemetry = Telemetry(tracer_provider=NoOpTracerProvider(), meter_provider=meters)
    redlock = Redlock(masters, restart_guard="off", listener=telemetry)
    telemetry.watch(redlock)
    assert "redlock.master.has_vote" not in {name for name, _ in points(reader)}
    async with redlock, redlock.lock("r"):
        waiter = asyncio.create_task(redlock.lock("r").acquire())
        await asyncio.sleep(0.1)
        assert number(reader, "redlock.leases", {}) == 1
        assert number(reader, "redlock.waiters", {}) == 1
        waiter.cancel()
        masters[1].kill()
        await asyncio.sleep(0.1)
        votes = [
            number(reader, "redlock.master.has_vote", {"server.address": f"m{i}"}) for i in (0, 1)
        ]
        assert votes == [1, 0]


async def test_names_of_resources_are_attributes_of_metrics_only_if_asked_for(
    masters: list[FakeMaster], reader: InMemoryMetricReader, meters: MeterProvider
) -> None:
    telemetry = Telemetry(
        tracer_provider=NoOpTracerProvider(), meter_provider=meters, resource_label="+".join
    )
    redlock = Redlock(masters, restart_guard="off", listener=telemetry)
    async with redlock, redlock.lock("a", "b"):
        pass
    acquired = {**ACQUIRED, "redlock.resource": "a+b"}
    assert number(reader, "redlock.acquisitions", acquired) == 1
    lost = [labels for name, labels in points(reader) if name == "redlock.losses"]
    gone = {"redlock.cause": "key_gone", "redlock.mode": "exclusive", "redlock.resource": "a+b"}
    assert number(reader, "redlock.losses", gone) == 0, "so the first loss is an increase"
    assert len(lost) == len(LossCause), "of the modes that are used"


# Exporters that fail


class BrokenExporter(SpanExporter):
    """An exporter that fails in each way that it can."""

    def export(self, spans: Sequence[ReadableSpan]) -> Any:  # noqa: ARG002
        raise asyncio.CancelledError

    def shutdown(self) -> None:
        pass


class BrokenProvider(NoOpTracerProvider):
    """Makes tracers that fail."""

    def get_tracer(self, *_arguments: Any, **_options: Any) -> trace.Tracer:
        return BrokenTracer()


class BrokenTracer(trace.NoOpTracer):
    """A tracer that fails."""

    def start_span(self, *_arguments: Any, **_options: Any) -> trace.Span:
        raise RecursionError("no span")


def with_broken_exporter() -> TracerProvider:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(BrokenExporter()))
    return provider


@pytest.mark.parametrize("make", [BrokenProvider, with_broken_exporter])
async def test_a_broken_exporter_touches_no_lock(
    masters: list[FakeMaster], reader: InMemoryMetricReader, meters: MeterProvider, make: Any
) -> None:
    telemetry = Telemetry(tracer_provider=make(), meter_provider=meters)
    async with Redlock(masters, restart_guard="off", listener=telemetry) as redlock:
        await story(redlock, masters)
        await settle(masters)
    assert keys(masters) == [{}] * 5
    assert number(reader, "redlock.acquisitions", ACQUIRED) == 2
    assert repr(telemetry) == "<Telemetry, 0 leases are held>"


async def test_broken_metrics_keep_no_span_open(
    masters: list[FakeMaster], exporter: InMemorySpanExporter, traces: TracerProvider
) -> None:
    def broken(_names: tuple[str, ...]) -> str:
        raise ValueError("no label")

    telemetry = Telemetry(
        tracer_provider=traces, meter_provider=NoOpMeterProvider(), resource_label=broken
    )
    async with Redlock(masters, restart_guard="off", listener=telemetry) as redlock:
        with contextlib.suppress(LockLostError):
            async with redlock.lock("r", ttl=1000):
                hang(masters[:3])
                await asyncio.sleep(2)
        await settle(masters)
    assert [span.name for span in exporter.get_finished_spans()] == [
        "redlock.acquire",
        "redlock.hold",
    ]


@pytest.mark.parametrize("wrong", [5, "resource"])
def test_a_label_needs_a_function(wrong: Any) -> None:
    text = f"^resource_label must be a function or None, not a {type(wrong).__name__}$"
    with pytest.raises(TypeError, match=text):
        Telemetry(resource_label=wrong)


@pytest.mark.parametrize(
    ("master", "attributes"),
    [
        ("10.0.0.1:6379", {"server.address": "10.0.0.1", "server.port": 6379}),
        ("h:1/3", {"server.address": "h", "server.port": 1, "db.namespace": "3"}),
        ("[fd00::1]:7", {"server.address": "fd00::1", "server.port": 7}),
        ("/run/redis.sock", {"server.address": "/run/redis.sock"}),
        ("/run/a:1/2", {"server.address": "/run/a:1/2"}),
        ("mine (by Sentinel s1:26379)", {"server.address": "mine (by Sentinel s1:26379)"}),
    ],
)
def test_a_master_has_the_attributes_of_the_conventions(
    master: str, attributes: dict[str, object], reader: InMemoryMetricReader, meters: MeterProvider
) -> None:
    telemetry = Telemetry(tracer_provider=NoOpTracerProvider(), meter_provider=meters)
    telemetry(MasterLost(master, "away", NoVoteCause.SILENT, ()))
    wanted = frozenset({**attributes, "redlock.cause": "silent"}.items())
    assert points(reader)["redlock.master.vote_losses", wanted].value == 1


async def test_short_holds_and_waits_are_summed_exactly(
    masters: list[FakeMaster], reader: InMemoryMetricReader, meters: MeterProvider
) -> None:
    telemetry = Telemetry(tracer_provider=NoOpTracerProvider(), meter_provider=meters)
    async with Redlock(masters, restart_guard="off", listener=telemetry) as redlock:
        for _ in range(100):
            async with redlock.lock("r"):
                await asyncio.sleep(0.0003)
    assert points(reader)["redlock.hold.duration", frozenset({EXCLUSIVE})].sum >= 100 * 0.0003
