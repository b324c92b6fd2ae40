"""
Questions to all masters: the state of a lock, and whether a majority votes.

No key is changed. `inspect` waits for all masters, because the caller wants the view of each.
`is_locked` returns as soon as a majority is known to keep one value, or can no longer keep
one. `check` reads no key: it asks under the conditions of a lock, so a master votes in it
only if it is connected, not quarantined, and answers within the master timeout.
"""

from redlock_aio._engine.masters import MasterSet, Query, Round
from redlock_aio._engine.session import Session, majority_is_known
from redlock_aio._protocol import commands, lock_state, replies, semaphore_state
from redlock_aio._protocol.lock_state import LockState, MasterReply
from redlock_aio._protocol.primitives import Permits
from redlock_aio._protocol.request import NoReply, QuarantineRule
from redlock_aio._protocol.semaphore_state import SemaphoreState
from redlock_aio._rules.quorum import OK, WON, Answer
from redlock_aio.errors import unavailable


class Inspection:
    """
    The state of a lock or a semaphore on each master, which is known when all have answered.

    Args:
        payload: The command that reads it.
    """

    __slots__ = ("_at", "_masters", "_round", "began", "quarantines")

    def __init__(self, masters: MasterSet, payload: bytes) -> None:
        self._masters = masters
        self.began = masters.clock()
        self._at = at = [0.0] * len(masters.links)
        self.quarantines: list[str] = [""] * len(masters.links)
        """The reason why each master had no vote when it answered; empty if it had one."""
        quarantines = self.quarantines

        def note(master: int, reply: object) -> object:
            at[master] = masters.clock()
            quarantines[master] = masters.links[master].quarantine
            return reply

        self._round = Query(masters, payload, count=note, enough=_is_complete, repeat=True)

    async def run(self) -> None:
        await self._masters.ask(self._round)
        self._masters.check_open()

    @property
    def replies(self) -> list[object]:
        return self._round.replies

    def master_replies(self) -> list[MasterReply]:
        now = self._masters.clock()
        return [
            MasterReply(link.name, reply, round((now - at) * 1000), quarantine)
            for link, reply, at, quarantine in zip(
                self._masters.links, self.replies, self._at, self.quarantines, strict=True
            )
        ]


def _is_complete(round: Round) -> bool:
    return round.complete


async def inspect(masters: MasterSet, resource: str, key: bytes) -> LockState:
    asked = Inspection(masters, lock_state.inspect(key))
    await asked.run()
    return lock_state.lock_state(resource, asked.master_replies())


async def inspect_permits(masters: MasterSet, resource: str, permits: Permits) -> SemaphoreState:
    asked = Inspection(masters, semaphore_state.inspect(permits))
    await asked.run()
    return semaphore_state.semaphore_state(resource, permits.number, asked.master_replies())


async def is_locked(masters: MasterSet, resource: str, key: bytes) -> bool:
    """Return whether a majority of the masters keeps one value under *key*."""
    began, links = masters.clock(), masters.links

    def count(master: int, reply: object) -> object:
        quarantine = links[master].quarantine
        return NoReply(Answer.QUARANTINED, quarantine) if quarantine else reply

    def enough(round: Round) -> bool:
        return round.complete or _is_kept(round) is not None

    asked = Query(
        masters,
        commands.look(key),
        count=count,
        enough=enough,
        repeat=True,
        classify=replies.classify_looked,
    )
    await masters.ask(asked)
    masters.check_open()
    held = _is_kept(asked)
    if held is None:
        raise unavailable(resource, asked.votes(), masters.clock() - began)
    return held


def _is_kept(round: Round) -> bool | None:
    """Return whether a majority keeps one value; ``None`` while that is uncertain."""
    looked = [replies.looked(reply) for reply in round.replies]
    kept = [values[0] for values in looked if values is not None and values[0] is not None]
    return lock_state.is_kept(kept, looked.count(None), len(looked))


async def check(session: Session, timeout: int) -> None:  # noqa: ASYNC109 - also of each reply
    """Check that a majority of the masters votes, within *timeout* ms."""
    masters = session.masters
    began = masters.clock()
    masters.check_open()
    await majority_is_known(session.links, timeout)
    masters.check_open()
    session.checked = True
    asked = Query(
        masters,
        commands.PING,
        in_quarantine=QuarantineRule.REFUSE,
        count=lambda _, reply: OK if reply == b"PONG" else reply,
        # Without a majority all masters are awaited, so that the error has the vote of each.
        enough=lambda round: round.verdict is WON or round.complete,
    )
    left = timeout - (masters.clock() - began) * 1000
    await masters.ask(asked, max(left, 1))
    masters.check_open()
    if asked.verdict is not WON:
        raise unavailable(None, asked.votes(), masters.clock() - began)
