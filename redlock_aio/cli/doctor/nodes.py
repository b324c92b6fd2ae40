"""Asks the nodes of a Redis Cluster, each for a limited time, and all at once."""

import asyncio
from collections.abc import Iterable

from redis.asyncio.connection import ConnectionPool

from redlock_aio import requirements
from redlock_aio.cli.doctor import sentinels, tls
from redlock_aio.requirements import ClusterAnswers, MasterUrl


async def asked(master: MasterUrl, patience: float) -> tuple[ClusterAnswers, str]:
    """
    Return what the nodes agree on about one master, and what is wrong with the scheme of its URL.

    Args:
        patience: The most seconds for each node; there are two turns, and the scheme may take
            half of that again.

    Cancellation:
        The connections are closed.
    """
    secure = master.nodes[0].startswith("rediss")
    replies: dict[tuple[str, int], object] = {}
    await _ask({_where(url): url for url in master.nodes}, replies, patience)
    said = requirements.cluster_answers(master.tag, replies, tls=secure)
    more = {where: master.at(*where) for where in said.nodes if where not in replies}
    if more:
        # The names that the user wrote may lead to nodes that the list has by their addresses.
        await _ask(more, replies, patience)
        said = requirements.cluster_answers(master.tag, replies, tls=secure)
    if said.nodes or not any(isinstance(reply, sentinels.Silent) for reply in replies.values()):
        return said, ""
    wrong = await tls.mismatch(master.nodes[0], patience / 2)
    return said, f"node {sentinels.name_of(master.nodes[0])}: {wrong}" if wrong else ""


async def _ask(
    urls: dict[tuple[str, int], str], replies: dict[tuple[str, int], object], patience: float
) -> None:
    found: Iterable[object] = await asyncio.gather(*[_one(url, patience) for url in urls.values()])
    replies.update(zip(urls, found, strict=True))


async def _one(url: str, patience: float) -> object:
    answered = await sentinels.ask_one(url, [requirements.cluster_question()], patience)
    return answered if isinstance(answered, str) else answered[0]


def _where(url: str) -> tuple[str, int]:
    settings = ConnectionPool.from_url(url).connection_kwargs
    return str(settings["host"]), int(settings.get("port", 6379))
