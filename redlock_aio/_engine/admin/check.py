"""
The check whether a majority of the masters votes; no key is read or changed.

A `MajorityCheck` is an ordinary round: a master votes in it under the same conditions as for
a lock. It has to be connected, not quarantined, and to answer within the master timeout.
"""

from typing import ClassVar

from redlock_aio._engine.readiness import majority_is_known
from redlock_aio._engine.round import Round
from redlock_aio._engine.session import Session
from redlock_aio._protocol import commands
from redlock_aio._protocol.request import QuarantineRule
from redlock_aio._rules.quorum import WON
from redlock_aio.errors import unavailable


class MajorityCheck(Round):
    """
    A PING to each master that has a vote.

    The task that awaits it is woken by the first majority. Without one it is woken when all
    masters have been counted, so that the error has the vote of each.
    """

    __slots__ = ()
    in_quarantine = QuarantineRule.REFUSE
    yes: ClassVar[object] = b"PONG"

    def on_reply(self, master: int, reply: object, /) -> None:
        """Count a reply; wake the task if a majority votes, or if every master is counted."""
        super().on_reply(master, reply)
        if self.verdict is WON or self.complete:
            super().settled()

    def settled(self) -> None:
        """Do nothing: `on_reply` wakes the task."""


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
    asked = MajorityCheck(masters.links, commands.PING)
    left = timeout - (masters.clock() - began) * 1000
    await masters.ask(asked, max(left, 1))
    masters.check_open()
    if asked.verdict is not WON:
        raise unavailable(None, asked.votes(), masters.clock() - began)
