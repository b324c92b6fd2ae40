"""Asks the nodes of a Redis Cluster, each for a limited time, and all at once."""

import asyncio

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
    all_answered = await _ask({_where(url): url for url in master.nodes}, replies, patience)
    said = requirements.cluster_answers(master.tag, replies, tls=secure)
    more = {where: master.at(*where) for where in said.nodes if where not in replies}
    if more:
        # The names that the user wrote may lead to nodes that the list has by their addresses.
        all_answered = await _ask(more, replies, patience) and all_answered
        said = requirements.cluster_answers(master.tag, replies, tls=secure)
    if said.nodes or all_answered:
        return said, ""
    wrong = await tls.mismatch(master.nodes[0], patience / 2)
    return said, f"node {sentinels.name_of(master.nodes[0])}: {wrong}" if wrong else ""


async def _ask(
    urls: dict[tuple[str, int], str], replies: dict[tuple[str, int], object], patience: float
) -> bool:
    """Add what each node replies, or why it does not; return whether all have answered."""
    question = [requirements.cluster_question()]
    found = await asyncio.gather(
        *[sentinels.ask_one(url, question, patience) for url in urls.values()]
    )
    for where, (said, _) in zip(urls, found, strict=True):
        replies[where] = said if isinstance(said, str) else said[0]
    return all(has_answered for _, has_answered in found)


def _where(url: str) -> tuple[str, int]:
    settings = ConnectionPool.from_url(url).connection_kwargs
    return str(settings["host"]), int(settings.get("port", 6379))
