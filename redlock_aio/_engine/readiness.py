"""The waits for connections and votes before the first requests of a session."""

import asyncio
import math
from collections.abc import Sequence

from redlock_aio._rules.quorum import majority
from redlock_aio._rules.roundtrips import RoundTrips
from redlock_aio._transport.master import Master


async def readiness(masters: Sequence[Master], wait: int | None, trips: RoundTrips) -> bool:
    """
    Wait until it is known which masters vote, for at most *wait* ms unless that is 0.

    Once a majority is up, the other masters get one master timeout more: a minority that
    hangs does not delay the first lock. If no master hangs, but it is not known yet whether
    the masters are a new set, the wait continues until that is known.

    Returns:
        Whether enough is known; if not, a caller with a longer limit waits on.

    Cancellation:
        The connecting continues.
    """
    loop = asyncio.get_running_loop()
    ends = loop.time() + wait / 1000 if wait else math.inf
    grace = math.inf
    needed = majority(len(masters))
    while trying := [master for master in masters if not master.tried.done()]:
        votes = sum(master.votes for master in masters)
        if votes + len(trying) < needed:
            break  # no majority is possible now
        up = sum(master.up for master in masters)
        dialling = [master.reached for master in trying if not master.up]
        if up < needed or not (dialling or votes >= needed):
            grace = math.inf
        elif grace == math.inf:
            grace = loop.time() + trips.timeout / 1000
        left = min(ends, grace) - loop.time()
        if left <= 0:
            return up >= needed
        await asyncio.wait(
            {master.tried for master in trying}
            | {reached for reached in dialling if not reached.done()},
            timeout=None if left == math.inf else left,
            return_when=asyncio.FIRST_COMPLETED,
        )
    return True


async def majority_is_known(masters: Sequence[Master], wait: int) -> None:
    """
    Wait until a majority votes, or can't vote for now, for at most *wait* ms.

    Unlike `readiness` it gives a minority no extra time.

    Cancellation:
        The connecting continues.
    """
    loop = asyncio.get_running_loop()
    ends = loop.time() + wait / 1000
    needed = majority(len(masters))
    while trying := [master.tried for master in masters if not master.tried.done()]:
        votes, left = sum(master.votes for master in masters), ends - loop.time()
        if votes >= needed or votes + len(trying) < needed or left <= 0:
            break
        await asyncio.wait(trying, timeout=left, return_when=asyncio.FIRST_COMPLETED)
