"""
The check whether a majority of the masters votes; no key is read or changed.

The check is an ordinary round: a master votes in it under the same conditions as for a lock.
It has to be connected, not quarantined, and to answer within the master timeout.
"""

from redlock_aio._engine.masters import Query
from redlock_aio._engine.session import Session, majority_is_known
from redlock_aio._protocol import commands
from redlock_aio._protocol.request import QuarantineRule
from redlock_aio._rules.quorum import GRANTED, WON
from redlock_aio.errors import unavailable


async def check(session: Session, timeout: int) -> None:  # noqa: ASYNC109 - also of each reply
    """
    Check that a majority of the masters votes, within *timeout* ms.

    Raises:
        QuorumUnavailableError: No majority has answered in time.

        RedlockError: The session was closed.

    Cancellation:
        Nothing was asked that changes anything.
    """
    masters = session.masters
    began = masters.clock()
    masters.check_open()
    await majority_is_known(session.links, timeout)
    masters.check_open()
    asked = Query(
        masters.links,
        commands.PING,
        in_quarantine=QuarantineRule.REFUSE,
        count=lambda _, reply: GRANTED if reply == b"PONG" else reply,
        # Without a majority all masters are awaited, so that the error has the vote of each.
        enough=lambda round: round.verdict is WON or round.complete,
    )
    left = timeout - (masters.clock() - began) * 1000
    await masters.ask(asked, max(left, 1))
    masters.check_open()
    if asked.verdict is not WON:
        raise unavailable(None, asked.votes(), masters.clock() - began)
