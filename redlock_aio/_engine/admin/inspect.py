"""
The state of a lock, read from the masters without changing it.

`inspect` waits for all masters, because the caller wants the view of each. `is_locked`
returns as soon as a majority is known to keep one value, or can no longer keep one.
"""

from collections.abc import Sequence

from redlock_aio._engine.links import Link
from redlock_aio._engine.masters import MasterSet
from redlock_aio._engine.round import Round
from redlock_aio._protocol import commands, lock_state, replies
from redlock_aio._protocol.lock_state import LockState, MasterReply
from redlock_aio._protocol.request import NoReply, QuarantineRule
from redlock_aio._rules.quorum import NOT_YET, Answer, Vote
from redlock_aio.errors import unavailable


class Query(Round):
    """A round with a read-only script, sent once more to a master that replies NOSCRIPT."""

    __slots__ = ("_again",)
    in_quarantine = QuarantineRule.COUNT

    def __init__(self, links: Sequence[Link], payload: bytes) -> None:
        super().__init__(links, payload)
        self._again = 0  # a bit for each master that got the request twice

    def _unless_resent(self, master: int, reply: object) -> object:
        """Return the *reply* to count for *master*; `NOT_YET` if the script was sent again."""
        if not replies.has_no_script(reply) or self._again >> master & 1:
            return reply
        self._again |= 1 << master
        # This request follows the scripts, which the connection sends again.
        no_reply = self._links[master].send(self.payload, [self])
        return NOT_YET if no_reply is None else no_reply


class Inspection(Query):
    """The request for the state of a lock on each master; awaited until all have answered."""

    __slots__ = ("_at", "_masters", "began", "quarantines")

    def __init__(self, masters: MasterSet, key: bytes) -> None:
        super().__init__(masters.links, lock_state.inspect(key))
        self.began = masters.clock()
        self.quarantines = [""] * len(masters.links)
        """The reason why each master had no vote when it answered; empty if it had one."""
        self._at = [0.0] * len(masters.links)
        self._masters = masters

    def on_reply(self, master: int, reply: object, /) -> None:
        """Store the *reply* of a master, its time, and whether the master had a vote then."""
        if (
            self.replies[master] is not NOT_YET
            or (reply := self._unless_resent(master, reply)) is NOT_YET
        ):
            return
        self._at[master] = self._masters.clock()
        self.quarantines[master] = self._links[master].quarantine
        super().on_reply(master, reply)
        if self.complete:
            super().settled()

    def settled(self) -> None:
        """Do nothing: all masters are awaited, so the verdict wakes no task."""

    def master_replies(self) -> list[MasterReply]:
        """Return the reply of each master, and its age."""
        now = self._masters.clock()
        return [
            MasterReply(link.name, reply, round((now - at) * 1000), quarantine)
            for link, reply, at, quarantine in zip(
                self._links, self.replies, self._at, self.quarantines, strict=True
            )
        ]


class Probe(Query):
    """The request that determines whether a lock is held; awaited until that is certain."""

    __slots__ = ("_kept", "_no_replies", "held")

    def __init__(self, masters: MasterSet, key: bytes) -> None:
        super().__init__(masters.links, commands.look(key))
        self.held: bool | None = None
        """The result: whether a majority keeps one value; ``None`` while that is uncertain."""
        self._kept: list[bytes] = []
        self._no_replies = 0

    def on_reply(self, master: int, reply: object, /) -> None:
        """Count the value that a master keeps, unless the master is quarantined."""
        if (
            self.replies[master] is not NOT_YET
            or (reply := self._unless_resent(master, reply)) is NOT_YET
        ):
            return
        link = self._links[master]
        if link.quarantine:
            reply = NoReply(Answer.QUARANTINED, link.quarantine)
        super().on_reply(master, reply)
        values = replies.looked(reply)
        if values is None:
            self._no_replies += 1
        elif values[0] is not None:
            self._kept.append(values[0])
        unknown = self._no_replies + len(self.missing)
        self.held = lock_state.is_kept(self._kept, unknown, len(self.replies))
        if self.held is not None or self.complete:
            super().settled()

    def settled(self) -> None:
        """Do nothing: the task is woken when the result is certain, not by the verdict."""

    def votes(self) -> tuple[Vote, ...]:
        """Return the vote of each master so far."""
        return tuple(
            _vote(link, reply) for link, reply in zip(self._links, self.replies, strict=True)
        )


def _vote(link: Link, reply: object) -> Vote:
    if (values := replies.looked(reply)) is not None:
        return Vote(link.name, Answer.FREE if values[0] is None else Answer.HELD)
    no_reply = replies.read(reply)
    return Vote(link.name, no_reply.answer, no_reply.detail)


async def ask_all(masters: MasterSet, round: Inspection | Probe) -> None:
    """
    Send *round* to all masters, and wait until enough have answered.

    Raises:
        RedlockError: The manager was closed meanwhile.

    Cancellation:
        Nothing was changed on any master.
    """
    await masters.ask(round)
    masters.check_open()


async def inspect(masters: MasterSet, resource: str, key: bytes) -> LockState:
    """
    Return the state of the lock with this *key* on each master.

    Raises:
        RedlockError: The manager was closed meanwhile.

    Cancellation:
        Nothing was changed on any master.
    """
    asked = Inspection(masters, key)
    await ask_all(masters, asked)
    return lock_state.lock_state(resource, asked.master_replies())


async def is_locked(masters: MasterSet, resource: str, key: bytes) -> bool:
    """
    Return whether a majority of the masters keeps one value under *key*.

    Raises:
        QuorumUnavailableError: Too few masters have answered to tell.

        RedlockError: The manager was closed meanwhile.

    Cancellation:
        Nothing was changed on any master.
    """
    began = masters.clock()
    asked = Probe(masters, key)
    await ask_all(masters, asked)
    if asked.held is None:
        raise unavailable(resource, asked.votes(), masters.clock() - began)
    return asked.held
