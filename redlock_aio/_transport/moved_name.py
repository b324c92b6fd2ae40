"""
Notices that the host name of a connected master leads to another server.

A name may move while the old server, and the connections to it, live on: a pod is replaced
while its node is cut off from the control plane, a failover by DNS, a floating address. A
program that connects now reaches the new server. Programs that stay with the old one would
count its votes for the same master, and both could get a majority for one lock.

Two look-ups in a row have to lack the address of the connection, because a name server may
return a part of the addresses each time. And another server has to answer at the new
address: a master that works is not given up for one that does not, nor is a connection for
another way to the same server, as load balancers and proxies give it.
"""

import asyncio
import ipaddress
import random
from collections.abc import Sequence

from redlock_aio._protocol import commands
from redlock_aio._protocol.request import ignore
from redlock_aio._rules import quarantine
from redlock_aio._transport.address import Address
from redlock_aio._transport.connection import Connection, info_of
from redlock_aio._transport.resolver import look_up

MISSES = 2
"""The look-ups in a row that lack the address of the connection, before another is tried."""

UNGUARDED_INTERVAL = 15.0
"""Seconds between two look-ups without a restart guard: as with the default *max_ttl*."""

SHORTEST_INTERVAL = 1.0
"""The shortest interval in seconds: others use the name servers as well."""


def interval(seconds: float | None) -> float:
    """
    Return the longest delay between two look-ups of a name, in seconds.

    A name that has moved is noticed after two of them. That is half of the quarantine, so
    that each program has left the old server before the new one votes, if that is empty.

    Args:
        seconds: The quarantine in seconds; ``None`` without a restart guard.
    """
    if seconds is None:
        return UNGUARDED_INTERVAL
    return max(seconds / quarantine.LOOKS, SHORTEST_INTERVAL)


async def moved(
    dialler: Address, connection: Connection, run_id: str, *, every: float, within: float
) -> str:
    """
    Wait until another server answers where the name of a master leads; return what to report.

    Args:
        connection: The connection to the master; it is not used.
    """
    old, misses = connection.peer, 0
    task = asyncio.current_task()
    # If redis-py or another library swallows a cancellation, this condition still ends
    # the task; otherwise it would keep the manager from closing.
    while old and dialler.looks_up and task is not None and not task.cancelling():
        # Programs that started together do not ask the name server at the same instants.
        await asyncio.sleep(every * random.uniform(0.75, 1))  # noqa: S311 - no secret
        try:
            found = await look_up(*dialler.looks_up)
        except (OSError, UnicodeError, RuntimeError):
            misses = 0  # it proves nothing: the name server may be down
            continue
        misses = 0 if _has(found, old) else misses + 1
        if misses >= MISSES:
            new = await _other_server(dialler, found, run_id, within)
            if new:
                return f"its name leads to {new} now, no longer to {old}"
    return ""


async def _other_server(
    dialler: Address, addresses: Sequence[str], run_id: str, within: float
) -> str:
    try:
        async with asyncio.timeout(within):
            transport, keep = await dialler.dial_any(addresses)
            loop = asyncio.get_running_loop()
            # With this class, a child that is forked meanwhile does not use the connection.
            connection = Connection(0, loop, condemn_after=within, on_push=ignore, on_lost=ignore)
            connection.use(transport, keep)
            try:
                (asked,) = connection.ask(commands.INFO)
                info = info_of(await asked.reply)
                return "" if info.run_id == run_id else connection.peer
            finally:
                connection.close()
    except Exception:  # noqa: BLE001 - whatever failed: no other server has answered
        return ""


def _has(addresses: Sequence[str], address: str) -> bool:
    return _plain(address) in map(_plain, addresses)


def _plain(address: str) -> str:
    """Return an IP address without the scope, and as IPv4 if it is one that IPv6 carries."""
    try:
        plain = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:  # no IP address: a socket of another kind
        return address
    return str(getattr(plain, "ipv4_mapped", None) or plain)
