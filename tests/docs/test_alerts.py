"""
What alerts and the dashboard make of the metrics of programs, in virtual time.

The alerts are those of examples/prometheus_rules.yaml: when they fire, and when not.
"""

import asyncio
import contextlib
import functools
import json
import math
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from redlock_aio import LockLostError, LockNotAcquiredError, Redlock, Retry
from redlock_aio.contrib.prometheus import Metrics
from redlock_aio.testing import FakeMaster, VirtualTimeLoop

from .promql import GONE, Labels, Rules, values

ROOT = Path(__file__).parents[2]
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((ROOT / "examples/prometheus_rules.yaml").read_text())["groups"]
    for rule in group["rules"]
]
INTERVAL = 15
"""Seconds between two scrapes."""

CALM = 120
"""Seconds after which the fault of a story begins; no alert may fire before."""

END = 780
"""Seconds of a story."""

RARELY = Retry(min_delay=5000, max_delay=9000)
"""So the fake masters are not asked all the time."""


def now() -> float:
    return asyncio.get_running_loop().time()


async def at(moment: float) -> None:
    """Wait until a moment of the story."""
    await asyncio.sleep(moment - now())


class Prometheus:
    """Scrapes programs and looks at the rules."""

    def __init__(self) -> None:
        self.rules = Rules(RULES)
        self.targets: dict[tuple[str, str], Metrics | None] = {}

    async def run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL - now() % INTERVAL)
            for (job, instance), metrics in self.targets.items():
                found = list(metrics.collect()) if metrics else []
                self.rules.series.scrape(now(), found, job=job, instance=instance)
            self.rules.look(now())

    @contextlib.asynccontextmanager
    async def program(
        self,
        masters: list[FakeMaster],
        *,
        job: str = "app",
        instance: str = "1",
        wait: int | None = None,
        hold: float = 3,
        **options: Any,
    ) -> AsyncIterator[Redlock]:
        """
        Run a program that acquires a lock a few seconds after each scrape.

        So a scrape sees no lease and no waiter as long as all is well.
        """
        metrics = Metrics(registry=None, **options)

        async def work(redlock: Redlock) -> None:
            while True:
                await asyncio.sleep(INTERVAL - (now() - 7) % INTERVAL)
                with contextlib.suppress(LockNotAcquiredError, LockLostError):
                    async with redlock.lock(f"{instance}:work", ttl=6000, wait=wait):
                        await asyncio.sleep(hold)

        async with Redlock(masters, listener=metrics, retry=RARELY) as redlock:
            metrics.watch(redlock)
            self.targets[job, instance] = metrics
            working = asyncio.create_task(work(redlock))
            try:
                yield redlock
            finally:
                working.cancel()
                await asyncio.wait([working])


Story = Callable[[Prometheus, list[FakeMaster]], Awaitable[None]]


async def daily_life(prometheus: Prometheus, masters: list[FakeMaster]) -> None:
    """Nobody need be told of any of this."""
    web = prometheus.program(masters, job="web")
    async with prometheus.program(masters, instance="2") as other, web as waiting:
        for _ in range(2):  # the second one is the same process, as Prometheus sees it
            async with prometheus.program(masters) as redlock:
                lease = await redlock.lock("long", ttl=6000).acquire()
                calls = [each.lock("long").acquire() for each in (other, waiting)]
                waiters = [asyncio.create_task(call) for call in calls]
                masters[1].kill()
                await asyncio.sleep(20)
                masters[1].restart()  # it is quarantined for a minute
                await asyncio.sleep(40)
                metrics, prometheus.targets["app", "2"] = prometheus.targets["app", "2"], None
                await asyncio.sleep(60)
                prometheus.targets["app", "2"] = metrics
                assert await other.lock("long", wait=100).try_acquire() is None
                await asyncio.sleep(60)
                for waiter in waiters:
                    waiter.cancel()
                await asyncio.wait(waiters)
            assert not lease.valid
            await asyncio.sleep(60)


async def a_leader_for_long(prometheus: Prometheus, masters: list[FakeMaster]) -> None:
    """Nothing is acquired while one task holds the lock, and another one stands by."""
    async with prometheus.program(masters, hold=END) as redlock:
        await at(CALM)
        standing_by = asyncio.create_task(redlock.lock("1:work").acquire())
        await at(END)
        standing_by.cancel()
        await asyncio.wait([standing_by])


async def one_master_dies(prometheus: Prometheus, masters: list[FakeMaster]) -> None:
    """One of two programs has no vote of it."""
    others = [FakeMaster(str(master)) for master in masters]
    async with prometheus.program(masters), prometheus.program(others, instance="2"):
        await at(CALM)
        masters[4].kill()
        await at(END)


async def a_majority_dies(prometheus: Prometheus, masters: list[FakeMaster]) -> None:
    async with prometheus.program(masters):
        await at(CALM)
        for master in masters[2:]:
            master.kill()
        await at(END)


async def half_of_them_die(prometheus: Prometheus, masters: list[FakeMaster]) -> None:
    """One of two programs has two votes of four, which is no majority."""
    others = [FakeMaster(str(master)) for master in masters]
    async with prometheus.program(masters[:4]), prometheus.program(others[:4], instance="2"):
        await at(CALM)
        for master in masters[2:]:
            master.kill()
        await at(END)


async def a_majority_dies_for_those_who_wait_a_second(
    prometheus: Prometheus, masters: list[FakeMaster]
) -> None:
    async with prometheus.program(masters, wait=1000):
        await at(CALM)
        for master in masters[2:]:
            master.hang()
        await at(END)


async def the_only_master_dies(prometheus: Prometheus, masters: list[FakeMaster]) -> None:
    async with prometheus.program(masters[:1]):
        await at(CALM)
        masters[0].kill()
        await at(END)


async def a_program_is_started_in_an_outage(
    prometheus: Prometheus, masters: list[FakeMaster]
) -> None:
    """Its counters have counted the outage before Prometheus sees them for the first time."""
    for master in masters:
        master.kill()
    await at(CALM)
    async with prometheus.program(masters):
        await at(END)


async def masters_are_full(prometheus: Prometheus, masters: list[FakeMaster]) -> None:
    """Some wait for ever, others for a second."""
    patient = prometheus.program(masters)
    async with patient, prometheus.program(masters, instance="2", wait=1000):
        await at(CALM)
        for master in masters[2:]:
            master.error = "OOM command not allowed when used memory > 'maxmemory'."
        await at(END)


async def keys_are_deleted(
    prometheus: Prometheus, masters: list[FakeMaster], **options: Any
) -> None:
    async with prometheus.program(masters, hold=8, **options):
        await at(CALM + 8)
        for master in masters:
            master.delete("1:work")
        await at(END)


async def keys_of_a_resource_are_deleted(prometheus: Prometheus, masters: list[FakeMaster]) -> None:
    """The series of the loss do not exist before anything of that resource was locked."""
    await keys_are_deleted(prometheus, masters, resource_label=lambda names: names[0])


async def a_loop_stalls(prometheus: Prometheus, masters: list[FakeMaster]) -> None:
    """Two extensions of some hundred come just in time."""
    async with prometheus.program(masters, hold=5.9):
        for moment in (CALM + 8, CALM + 68):
            await at(moment)
            loop = asyncio.get_running_loop()
            assert isinstance(loop, VirtualTimeLoop)
            loop.stall(4.6)
        await at(END)


STORIES: dict[str, Story] = {
    story.__name__: story
    for story in (
        daily_life, a_leader_for_long, one_master_dies, half_of_them_die, a_majority_dies,
        a_majority_dies_for_those_who_wait_a_second, the_only_master_dies,
        a_program_is_started_in_an_outage, masters_are_full, keys_are_deleted,
        keys_of_a_resource_are_deleted, a_loop_stalls,
    )
}  # fmt: skip


@functools.cache
def played(name: str) -> Rules:
    """Play a story; return what Prometheus has seen of it."""

    async def play() -> Rules:
        prometheus = Prometheus()
        running = asyncio.create_task(prometheus.run())
        await STORIES[name](prometheus, [FakeMaster(f"m{i}") for i in range(5)])
        running.cancel()
        return prometheus.rules

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(play())


OUTAGE = {"MajorityLost": (0, 5), "NoMajority": (1, math.inf), "NothingAcquired": (7, math.inf)}
"""When the alerts of an outage begin and end, in minutes from its beginning."""


def silent(*masters: str) -> dict[str, tuple[float, float]]:
    return {f"MasterWithoutVote {master}": (2, math.inf) for master in masters}


@pytest.mark.spread(0)
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a_majority_dies", OUTAGE | silent("m2", "m3", "m4")),
        ("daily_life", {}),
        ("a_leader_for_long", {}),
        ("one_master_dies", silent("m4")),
        (
            "half_of_them_die",
            {"MajorityLost": (0, 5), "NoMajority": (1, math.inf), **silent("m2", "m3")},
        ),
        (
            "a_majority_dies_for_those_who_wait_a_second",
            {
                "MajorityLost": (0, 5),
                "NoMajority": (1, math.inf),
                "LocksUnavailable": (0, math.inf),
                **silent("m2", "m3", "m4"),
            },
        ),
        ("the_only_master_dies", OUTAGE | silent("m0")),
        (
            "a_program_is_started_in_an_outage",
            {
                "NoMajority": (1, math.inf),
                "NothingAcquired": (2, math.inf),
                **silent("m0", "m1", "m2", "m3", "m4"),
            },
        ),
        (
            "masters_are_full",
            {"LocksUnavailable": (0, math.inf), "NothingAcquired": (7, math.inf)},
        ),
        ("keys_are_deleted", {"LeaseLost key_gone": (0, 5)}),
        ("keys_of_a_resource_are_deleted", {"LeaseLost key_gone": (0, 5)}),
        ("a_loop_stalls", {"ExtensionsNearlyLate": (0, math.inf)}),
    ],
)
def test_alerts_fire_from_and_until(name: str, expected: dict[str, tuple[float, float]]) -> None:
    rules = played(name)
    assert {dict(labels).get("job") for _, labels in rules.fired} <= {"app"}
    seen = {
        " ".join([alert, *(value for label, value in labels if label != "job")]): (
            (moments[0] - CALM) / 60,
            math.inf if moments[-1] == rules.looked[-1] else (moments[-1] - CALM) / 60,
        )
        for (alert, labels), moments in rules.fired.items()
    }
    assert seen.keys() == expected.keys()
    for alert, (began, ended) in seen.items():
        first, last = expected[alert]
        assert first <= began < first + 1, alert
        assert ended == last or last - 0.5 < ended < last + 1, alert


@pytest.mark.full
def test_each_alert_is_in_a_story() -> None:
    fired = {alert for name in STORIES for alert, _ in played(name).fired}
    assert fired == {rule["alert"] for rule in RULES}


def shown(panel: str, story: str, at: float) -> list[dict[Labels, float]]:
    """Return what a panel of the dashboard shows at a moment of a story, by its targets."""
    panels = json.loads((ROOT / "examples/grafana_dashboard.json").read_text())["panels"]
    (found,) = [each for each in panels if each["title"] == panel]
    return [
        values(
            each["expr"].replace("$job", ".*").replace("$__rate_interval", "1m"),
            played(story).series,
            at,
        )
        for each in found["targets"]
    ]


def test_the_dashboard_shows_the_first_vote_that_a_master_loses() -> None:
    """Its series begins at 1, so its increase is 0."""
    labels = frozenset({"master": "m4", "cause": "disconnected"}.items())
    panel = "Votes lost, by master and cause"
    for at, wanted in ((CALM, []), (CALM + 15, [1]), (CALM + 45, [1]), (CALM + 300, [0])):
        (votes,) = shown(panel, "one_master_dies", at)
        assert [value for each, value in votes.items() if each == labels] == wanted


@pytest.mark.parametrize(
    ("panel", "wanted"),
    [
        ("Masters that vote", [{"master=m3": 1, "master=m4": 0}]),
        ("Leases lost, by cause", [{"cause=closed": 0, "cause=key_gone": 0}]),
        ("Acquisitions per second, by outcome", [{"outcome=acquired": 8 / 60}]),
        (
            "Time from the call to the lock",
            [{"mode=exclusive": each / 1000} for each in (0.5, 0.95, 0.99)],
        ),
        ("Validity left at extensions", [{"mode=exclusive": each} for each in (2.03, 3.5)]),
        ("Time for which leases are held", [{"mode=exclusive": each} for each in (3.5, 4.97)]),
        ("Leases and waiting tasks", [{"": 0}, {"": 0}]),
        ("Releases that masters have not confirmed", [{"master=m3": 0, "master=m4": 0}]),
        ("Majorities lost", [{"": 0}]),
    ],
)
def test_panels_show_what_happens(panel: str, wanted: list[dict[str, float]]) -> None:
    targets = shown(panel, "one_master_dies", CALM + 300)
    for target, expected in zip(targets, wanted, strict=True):
        seen = {",".join(map("=".join, sorted(each))): value for each, value in target.items()}
        assert {name: seen[name] for name in expected} == pytest.approx(expected)


def values_of(rules: Rules) -> list[dict[str, str]]:
    """Return what was scraped of the series that rules name, as promtool reads it."""
    found = []
    for name in set(re.findall(r"redlock_\w+", " ".join(rule["expr"] for rule in RULES))):
        for labels, samples in rules.series.of[name].items():
            steps = ["_"] * (END // INTERVAL + 1)
            for moment, value in samples:
                steps[round(moment / INTERVAL)] = "stale" if value == GONE else f"{value:g}"
            listed = ",".join(f'{label}="{value}"' for label, value in sorted(labels))
            found.append({"series": f"{name}{{{listed}}}", "values": " ".join(steps)})
    return found


def told(name: str) -> dict[str, Any]:
    """Return a story as a test of promtool: what was scraped, and which alerts fired when."""
    rules = played(name)
    fired = [
        {
            "eval_time": f"{round(moment / INTERVAL) * INTERVAL}s",
            "alertname": rule["alert"],
            "exp_alerts": [
                {"exp_labels": dict(labels)}
                for (alert, labels), moments in rules.fired.items()
                if alert == rule["alert"] and moment in moments
            ],
        }
        for moment in rules.looked[::3]
        for rule in RULES
    ]
    series = values_of(rules)
    return {
        "name": name,
        "interval": f"{INTERVAL}s",
        "input_series": series,
        "alert_rule_test": fired,
    }


def test_prometheus_agrees(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    test = {
        "rule_files": [str(ROOT / "examples/prometheus_rules.yaml")],
        "evaluation_interval": f"{INTERVAL}s",
        "tests": [told(name) for name in STORIES],
    }
    path = tmp_path / "test.json"
    path.write_text(json.dumps(test))  # JSON is YAML, and written faster
    command = [promtool, "test", "rules", str(path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
