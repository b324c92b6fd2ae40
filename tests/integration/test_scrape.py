"""A scrape by HTTP of the metrics of a program with real masters, while it locks."""

import asyncio
import urllib.request

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.parser import text_string_to_metric_families

from redlock_aio import Redlock
from redlock_aio.contrib.prometheus import Metrics

from .helpers import RealMaster


def scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        return str(answer.read().decode())


async def test_a_thread_serves_the_metrics_while_the_program_locks(
    masters: list[RealMaster],
) -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry=registry)
    urls = [master.url for master in masters]
    urls[0] = urls[0].replace("://", "://somebody:the-password@")  # which the master refuses
    server, thread = start_http_server(0, "127.0.0.1", registry)
    enough = asyncio.Event()
    texts: list[str] = []
    try:
        async with Redlock(urls, restart_guard="off", listener=metrics) as redlock:
            metrics.watch(redlock)

            async def work() -> None:
                while not enough.is_set():
                    async with redlock.lock("r", ttl=10_000):
                        pass

            tasks = [asyncio.create_task(work()) for _ in range(3)]
            texts += [await asyncio.to_thread(scrape, server.server_port) for _ in range(5)]
            enough.set()
            await asyncio.gather(*tasks)
            texts += [await asyncio.to_thread(scrape, server.server_port)]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    seen = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(texts[-1])
        for sample in family.samples
    }
    acquired = seen["redlock_acquisitions_total", "exclusive", "acquired"]
    assert acquired == seen["redlock_hold_duration_seconds_count", "exclusive"] >= 3
    assert seen["redlock_leases",] == seen["redlock_waiters",] == 0
    names = [master.url.partition("://")[2].partition("/")[0] for master in masters]
    votes = [seen["redlock_master_has_vote", name] for name in names]
    assert votes == [0, 1, 1, 1, 1]
    lost = [key[1:] for key in seen if key[0] == "redlock_master_vote_losses_total"]
    assert [sorted(labels) for labels in lost] == [[names[0], "login_refused"]]
    assert not [text for text in texts if "the-password" in text or "somebody" in text]
