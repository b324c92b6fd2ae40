"""
Reading the state of a lock from the masters, without changing it.

`inspect` waits for all masters, because the caller wants the view of each. `is_locked`
returns as soon as a majority is known to keep one value, or can no longer keep one.
"""

from collections.abc import Sequence

from redlock_aio._engine.links import Link
from redlock_aio._engine.masters import MasterSet
from redlock_aio._engine.round import Round
from redlock_aio._protocol import commands, lock_state, replies
from redlock_aio._protocol.lock_state import LockState, Said
from redlock_aio._protocol.request import NoReply, Trust
from redlock_aio._rules.quorum import NOT_YET, Answer, Vote
from redlock_aio.errors import unavailable


class Query(Round):
    """A round with a read-only script, sent once more to a master that replies NOSCRIPT."""

    __slots__ = ("_again",)
    trust = Trust.FULL

    def __init__(self, links: Sequence[Link], payload: bytes) -> None:
        super().__init__(links, payload)
        self._again = 0  # a bit for each master that was asked twice

    def heard(self, master: int, reply: object) -> object:
        """Return the *reply* to count for *master*; `NOT_YET` if the script was sent again."""
        if not replies.has_no_script(reply) or self._again >> master & 1:
            return reply
        self._again |= 1 << master
        # Follows the scripts, which the connection sends again.
        silence = self._links[master].send(self.payload, [self])
        return NOT_YET if silence is None else silence


class Inspection(Query):
    """The request for the state of a lock on each master; awaited until all have answered."""

    __slots__ = ("_at", "_fleet", "began", "quarantines")

    def __init__(self, fleet: MasterSet, key: bytes) -> None:
        super().__init__(fleet.links, lock_state.inspect(key))
        self.began = fleet.clock()
        self.quarantines = [""] * len(fleet.links)
        """Why each master had no vote when it answered; empty if it had one."""
        self._at = [0.0] * len(fleet.links)
        self._fleet = fleet

    def answered(self, master: int, reply: object, /) -> None:
        """Store the *reply* of a master, when it came, and whether the master had a vote then."""
        if self.replies[master] is not NOT_YET or (reply := self.heard(master, reply)) is NOT_YET:
            return
        self._at[master] = self._fleet.clock()
        self.quarantines[master] = self._links[master].quarantine
        super().answered(master, reply)
        if self.complete:
            super().settled()

    def settled(self) -> None:
        """Wake no task yet: the verdict does not matter, all masters are awaited."""

    def said(self) -> list[Said]:
        """Return the reply of each master, and its age."""
        now = self._fleet.clock()
        return [
            Said(link.name, reply, round((now - at) * 1000), quarantine)
            for link, reply, at, quarantine in zip(
                self._links, self.replies, self._at, self.quarantines, strict=True
            )
        ]


class Probe(Query):
    """The question whether a lock is held; awaited until the answer is certain."""

    __slots__ = ("_kept", "_silences", "held")

    def __init__(self, fleet: MasterSet, key: bytes) -> None:
        super().__init__(fleet.links, commands.look(key))
        self.held: bool | None = None
        """Whether a majority keeps one value; ``None`` while that is uncertain."""
        self._kept: list[bytes] = []
        self._silences = 0

    def answered(self, master: int, reply: object, /) -> None:
        """Count the value that a master keeps, unless the master is quarantined."""
        if self.replies[master] is not NOT_YET or (reply := self.heard(master, reply)) is NOT_YET:
            return
        link = self._links[master]
        if link.quarantine:
            reply = NoReply(Answer.QUARANTINED, link.quarantine)
        super().answered(master, reply)
        values = replies.looked(reply)
        if values is None:
            self._silences += 1
        elif values[0] is not None:
            self._kept.append(values[0])
        unknown = self._silences + len(self.missing)
        self.held = lock_state.is_kept(self._kept, unknown, len(self.replies))
        if self.held is not None or self.complete:
            super().settled()

    def settled(self) -> None:
        """Wake no task yet: the verdict of the tally does not matter here."""

    def votes(self) -> tuple[Vote, ...]:
        """Return the vote of each master so far."""
        return tuple(
            _vote(link, reply) for link, reply in zip(self._links, self.replies, strict=True)
        )


def _vote(link: Link, reply: object) -> Vote:
    if (values := replies.looked(reply)) is not None:
        return Vote(link.name, Answer.FREE if values[0] is None else Answer.HELD)
    silence = replies.read(reply)
    return Vote(link.name, silence.answer, silence.detail)


async def hear(fleet: MasterSet, round: Inspection | Probe) -> None:
    """
    Send *round* to all masters, and wait until enough have answered.

    Raises:
        RedlockError: The manager was closed meanwhile.

    Cancellation:
        Nothing was changed on any master.
    """
    await fleet.ask(round)
    fleet.check_open()


async def inspect(fleet: MasterSet, resource: str, key: bytes) -> LockState:
    """
    Return the state of the lock with this *key* on each master.

    Raises:
        RedlockError: The manager was closed meanwhile.

    Cancellation:
        Nothing was changed on any master.
    """
    asked = Inspection(fleet, key)
    await hear(fleet, asked)
    return lock_state.lock_state(resource, asked.said())


async def is_locked(fleet: MasterSet, resource: str, key: bytes) -> bool:
    """
    Return whether a majority of the masters keeps one value under *key*.

    Raises:
        QuorumUnavailableError: Too few masters have answered to tell.

        RedlockError: The manager was closed meanwhile.

    Cancellation:
        Nothing was changed on any master.
    """
    began = fleet.clock()
    asked = Probe(fleet, key)
    await hear(fleet, asked)
    if asked.held is None:
        raise unavailable(resource, asked.votes(), fleet.clock() - began)
    return asked.held
