"""`redlock_aio.contrib.prometheus`: what is counted, under which labels, and who is affected."""

import asyncio
import gc
import os
import weakref
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from redis.asyncio import Redis

from redlock_aio import (
    LockLostError,
    LockNotAcquiredError,
    LossCause,
    MasterStatistics,
    QuorumUnavailableError,
    Redlock,
    Statistics,
)
from redlock_aio.contrib import _measures
from redlock_aio.contrib.prometheus import Metrics
from redlock_aio.testing import FakeMaster

from .kit import delete, hang, keys, kill, settle

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]
EXCLUSIVE, SHARED, PERMIT = (("mode", mode) for mode in ("exclusive", "shared", "permit"))
"""The labels of all modes, as a scrape has them."""


def scraped(registry: CollectorRegistry) -> Samples:
    """Return each sample of a scrape, by its name and labels."""
    text = generate_latest(registry).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def value(registry: CollectorRegistry, name: str, **labels: str) -> float:
    return scraped(registry)[name, tuple(sorted(labels.items()))]


async def story(redlock: Redlock, masters: list[FakeMaster]) -> None:
    """Cause each outcome of an acquisition, extensions, a release, a loss, and outages."""
    async with redlock.lock("invoice:1", ttl=1000):
        with pytest.raises(LockNotAcquiredError):
            await redlock.lock("invoice:1", wait=50).acquire()
        waiter = asyncio.create_task(redlock.lock("invoice:1").acquire())
        await asyncio.sleep(1.1)
        waiter.cancel()
        await asyncio.wait([waiter])
    with pytest.raises(LockLostError):
        async with redlock.lock("report:1", ttl=1000):
            delete(masters, "report:1")
            await asyncio.sleep(2)
    kill(masters[:2])
    await asyncio.sleep(0.1)
    hang(masters[2:])
    assert await redlock.lock("report:2").try_acquire() is None


async def test_each_event_is_counted(masters: list[FakeMaster]) -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry=registry)
    assert repr(metrics) == "<Metrics of 11 instruments>"
    async with Redlock(masters, restart_guard="off", listener=metrics) as redlock:
        before = scraped(registry)
        await story(redlock, masters)
        seen = scraped(registry)
        await settle(masters)
    count = "redlock_acquisitions_total"
    for outcome, wanted in zip(_measures.OUTCOMES, (2, 1, 1, 1), strict=True):
        labels = (EXCLUSIVE, ("outcome", outcome))
        assert before[count, labels] == 0, "an increase from nothing is none"
        assert seen[count, labels] == seen["redlock_wait_duration_seconds_count", labels] == wanted
        assert before[count, (SHARED, labels[1])] == seen[count, (SHARED, labels[1])] == 0
    cancelled = (EXCLUSIVE, ("outcome", "cancelled"))
    assert seen["redlock_wait_duration_seconds_sum", cancelled] == pytest.approx(1.1)
    buckets = [(*cancelled, ("le", bound)) for bound in ("1.0", "2.0")]
    bucket = "redlock_wait_duration_seconds_bucket"
    assert [seen[bucket, tuple(sorted(each))] for each in buckets] == [0, 1]
    assert seen["redlock_hold_duration_seconds_count", (EXCLUSIVE,)] == 2
    assert seen["redlock_extension_margin_seconds_count", (EXCLUSIVE,)] >= 3
    margin = seen["redlock_extension_margin_seconds_sum", (EXCLUSIVE,)]
    assert 0.5 < margin / seen["redlock_extension_margin_seconds_count", (EXCLUSIVE,)] < 0.7
    losses = {labels: n for (name, labels), n in seen.items() if name == "redlock_losses_total"}
    gone = LossCause.KEY_GONE
    assert losses == {
        (("cause", cause.value), mode): int((cause, mode) == (gone, EXCLUSIVE))
        for cause in LossCause
        for mode in (EXCLUSIVE, SHARED, PERMIT)
    }
    down = (("cause", "disconnected"), ("master", "m0"))
    assert seen["redlock_master_vote_losses_total", down] == 1
    assert seen["redlock_majority_losses_total", ()] == 0


async def test_readers_are_counted_apart_from_writers(masters: list[FakeMaster]) -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry=registry)
    begun = {name for name, labels in scraped(registry) if SHARED in labels}
    assert begun == {"redlock_acquisitions_total", "redlock_losses_total"}, "no histogram"
    async with Redlock(masters, restart_guard="off", listener=metrics) as redlock:
        docs = redlock.rw_lock("r", ttl=1000)
        for side, times in ((docs.read, 3), (docs.write, 2)):
            for _ in range(times):
                async with side():
                    await asyncio.sleep(0.5)
        with pytest.raises(LockLostError):
            async with docs.read(max_hold=100):
                await asyncio.sleep(1)
    for mode, acquired, extended in (("shared", 4, 3), ("exclusive", 2, 2)):
        count = "redlock_acquisitions_total"
        assert value(registry, count, mode=mode, outcome="acquired") == acquired
        wait = "redlock_wait_duration_seconds_count"
        assert value(registry, wait, mode=mode, outcome="acquired") == acquired
        assert value(registry, "redlock_hold_duration_seconds_count", mode=mode) == acquired
        assert value(registry, "redlock_extension_margin_seconds_count", mode=mode) >= extended
        lost = value(registry, "redlock_losses_total", mode=mode, cause="max_hold")
        assert lost == int(mode == "shared")


async def test_permits_are_counted_apart_from_locks(masters: list[FakeMaster]) -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry=registry)
    begun = {name for name, labels in scraped(registry) if PERMIT in labels}
    assert begun == {"redlock_acquisitions_total", "redlock_losses_total"}, "no histogram"
    async with Redlock(masters, restart_guard="off", listener=metrics) as redlock:
        semaphore = redlock.semaphore("r", permits=2, ttl=1000)
        async with redlock.lock("r"), semaphore, semaphore:
            await asyncio.sleep(0.5)
            assert await semaphore.try_acquire() is None
    count = "redlock_acquisitions_total"
    assert value(registry, count, mode="permit", outcome="acquired") == 2
    assert value(registry, count, mode="permit", outcome="held_by_others") == 1
    assert value(registry, count, mode="exclusive", outcome="acquired") == 1
    for name in ("redlock_hold_duration_seconds", "redlock_extension_margin_seconds"):
        assert value(registry, f"{name}_count", mode="permit") >= 2
    assert not any(label == "permit" for _, labels in scraped(registry) for label, _ in labels)


async def test_gauges_are_those_of_the_managers_that_are_open(masters: list[FakeMaster]) -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry=registry)
    first, second = (Redlock(masters[i:], restart_guard="off", listener=metrics) for i in (0, 1))
    for redlock in (first, second, first):
        metrics.watch(redlock)
    idle: Samples = {("redlock_leases", ()): 0, ("redlock_waiters", ()): 0}
    assert {each: n for each, n in scraped(registry).items() if each in idle} == idle
    assert not [name for name, _ in scraped(registry) if name == "redlock_master_has_vote"]
    async with first, second, first.lock("r"), second.lock("s"):
        waiter = asyncio.create_task(second.lock("r").acquire())
        await asyncio.sleep(0.1)
        assert value(registry, "redlock_leases") == 2
        assert value(registry, "redlock_waiters") == 1
        waiter.cancel()
        masters[1].kill()
        await asyncio.sleep(0.1)
        votes = [value(registry, "redlock_master_has_vote", master=f"m{i}") for i in range(5)]
        assert votes == [1, 0, 1, 1, 1]
    masters[1].restart()
    async with first:
        lease = await first.lock("r").acquire()
        masters[0].kill()
        await lease.release()
        debts = "redlock_master_unconfirmed_releases"
        assert [value(registry, debts, master=f"m{i}") for i in (0, 1)] == [1, 0]
    gone = weakref.ref(first)
    del first, second, redlock
    gc.collect()
    assert gone() is None, "a manager that the program drops is not kept for its metrics"


class VotesOf:
    """A manager for whom one master has a vote or not."""

    def __init__(self, *, votes: bool) -> None:
        self.votes = votes

    def statistics(self) -> Statistics:
        master = MasterStatistics("m", True, self.votes, "", 0, 2)
        return Statistics((master,), rounds=0, leases=3, waiters=4, is_open=True)


@pytest.mark.parametrize("first", [False, True])
def test_a_master_has_a_vote_if_it_has_one_for_all_managers(*, first: bool) -> None:
    registry = CollectorRegistry()
    metrics, managers = Metrics(registry=registry), [VotesOf(votes=v) for v in (first, not first)]
    for manager in managers:
        metrics.watch(manager)
    assert value(registry, "redlock_master_has_vote", master="m") == 0
    assert value(registry, "redlock_master_unconfirmed_releases", master="m") == 4
    assert value(registry, "redlock_leases") == 6
    assert value(registry, "redlock_waiters") == 8


async def test_names_of_resources_are_labels_only_if_asked_for(masters: list[FakeMaster]) -> None:
    plain, grouped = CollectorRegistry(), CollectorRegistry()
    listeners = (
        Metrics(registry=plain),
        Metrics(registry=grouped, resource_label=lambda names: names[0].partition(":")[0]),
    )

    def listener(event: Any) -> None:
        for each in listeners:
            each(event)

    async with Redlock(masters, restart_guard="off", listener=listener) as redlock:
        await story(redlock, masters)
        await settle(masters)
    labels = {label for _, labels in scraped(plain) for label in labels}
    assert "resource" not in {name for name, _ in labels}
    assert not [text for _, text in labels if "invoice" in text or "report" in text]
    acquired = [
        value(
            grouped,
            "redlock_acquisitions_total",
            mode="exclusive",
            outcome="acquired",
            resource=kind,
        )
        for kind in ("invoice", "report")
    ]
    assert acquired == [1, 1]
    gone = {"cause": "key_gone", "mode": "exclusive", "resource": "report"}
    assert value(grouped, "redlock_losses_total", **gone) == 1


async def test_the_first_loss_of_a_resource_is_an_increase(masters: list[FakeMaster]) -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry=registry, resource_label="+".join)
    async with Redlock(masters, restart_guard="off", listener=metrics) as redlock:
        assert not [labels for _, labels in scraped(registry) if "resource" in dict(labels)]
        with pytest.raises(LockLostError):
            async with redlock.lock("r", ttl=1000):
                before = scraped(registry)
                delete(masters, "r")
                await asyncio.sleep(2)
    counters = [
        dict(labels) for name, labels in before if name.endswith("_total") and len(labels) == 3
    ]
    assert len(counters) == len(LossCause) + len(_measures.OUTCOMES)
    assert {(each["mode"], each["resource"]) for each in counters} == {("exclusive", "r")}
    lost = ("redlock_losses_total", (("cause", "key_gone"), EXCLUSIVE, ("resource", "r")))
    assert (before[lost], scraped(registry)[lost]) == (0, 1)


async def test_a_broken_exporter_touches_no_lock(
    masters: list[FakeMaster], caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_names: tuple[str, ...]) -> str:
        raise asyncio.CancelledError

    metrics = Metrics(registry=None, resource_label=broken)
    async with Redlock(masters, restart_guard="off", listener=metrics) as redlock:
        await story(redlock, masters)
        await settle(masters)
    assert keys(masters) == [{}] * 5
    assert {record.name for record in caplog.records} == {"redlock_aio"}
    assert "the listener raised an error at Acquired" in caplog.text


async def test_a_label_without_utf_8_breaks_no_collection(masters: list[FakeMaster]) -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry=registry, resource_label=lambda names: f"{names[0]}\udce9")
    redlock = Redlock(masters, restart_guard="off", listener=metrics)
    async with redlock, redlock.lock("r"):
        pass
    labels = {"mode": "exclusive", "outcome": "acquired", "resource": "r\\udce9"}
    assert value(registry, "redlock_acquisitions_total", **labels) == 1


async def test_a_socket_whose_path_is_not_utf_8_breaks_no_collection() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry=registry)
    client = Redis(unix_socket_path=os.fsdecode(b"/nowhere/r\xe9dis.sock"))
    async with Redlock(client, listener=metrics) as redlock:
        metrics.watch(redlock)
        with pytest.raises(QuorumUnavailableError):
            await redlock.lock("r", wait=0).acquire()
        lines = generate_latest(registry).decode().splitlines()
    assert 'redlock_master_has_vote{master="/nowhere/r\\\\udce9dis.sock"} 0.0' in lines
    assert [line for line in lines if line.startswith("redlock_master_vote_losses_total{")]


def test_a_registry_takes_these_metrics_once() -> None:
    registry = CollectorRegistry()
    Metrics(registry=registry)
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        Metrics(registry=registry)
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        Counter("redlock_losses", "another one", registry=registry)
    Metrics(registry=None)


@pytest.mark.parametrize("wrong", [5, "resource", True])
def test_a_label_needs_a_function(wrong: Any) -> None:
    text = f"^resource_label must be a function or None, not a {type(wrong).__name__}$"
    with pytest.raises(TypeError, match=text):
        Metrics(registry=None, resource_label=wrong)


@pytest.mark.parametrize("wrong", [None, "redis://a", Redlock])
def test_only_a_manager_is_watched(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"^redlock must be a Redlock, not "):
        Metrics(registry=None).watch(wrong)
