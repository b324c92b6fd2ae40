"""
Asking the masters who holds a lock; nothing is changed by it.

All of them are heard out when somebody wants to see what each of them says. Whether
the lock is held at all is known as soon as a majority keeps one value, or can't.
"""

from collections.abc import Sequence

from redlock_aio._engine.links import Link
from redlock_aio._engine.masters import Fleet
from redlock_aio._engine.round import Round
from redlock_aio._protocol import commands, lock_state, replies
from redlock_aio._protocol.lock_state import LockState, Said
from redlock_aio._protocol.request import Silence, Trust
from redlock_aio._rules.quorum import NOT_YET, Answer, Vote
from redlock_aio.errors import QuorumUnavailableError


class Query(Round):
    """A script that changes nothing, sent once more to a master that has forgotten the scripts."""

    __slots__ = ("_again",)
    trust = Trust.FULL

    def __init__(self, links: Sequence[Link], payload: bytes) -> None:
        super().__init__(links, payload)
        self._again = 0  # a bit for each master that was asked twice

    def heard(self, master: int, reply: object) -> object:
        """Return what to count as the *reply* of *master*; `NOT_YET` if it was asked again."""
        if not replies.has_no_script(reply) or self._again >> master & 1:
            return reply
        self._again |= 1 << master
        # Behind the scripts, which are on their way.
        silence = self._links[master].send(self.payload, [self])
        return NOT_YET if silence is None else silence


class Inspection(Query):
    """The question what each master knows of a lock; whoever waits is woken when all have said."""

    __slots__ = ("_at", "_fleet", "began", "quarantines")

    def __init__(self, fleet: Fleet, key: bytes) -> None:
        super().__init__(fleet.links, lock_state.inspect(key))
        self.began = fleet.clock()
        self.quarantines = [""] * len(fleet.links)
        """Why those masters had no vote when they answered."""
        self._at = [0.0] * len(fleet.links)
        self._fleet = fleet

    def answered(self, master: int, reply: object, /) -> None:
        """Keep the *reply* of a master, and when and with which vote it came."""
        if self.replies[master] is not NOT_YET or (reply := self.heard(master, reply)) is NOT_YET:
            return
        self._at[master] = self._fleet.clock()
        self.quarantines[master] = self._links[master].quarantine
        super().answered(master, reply)
        if self.complete:
            super().settled()

    def settled(self) -> None:
        """Go on: all are waited for."""

    def said(self) -> list[Said]:
        """Return what each master has said, and how long ago."""
        now = self._fleet.clock()
        return [
            Said(link.name, reply, round((now - at) * 1000), quarantine)
            for link, reply, at, quarantine in zip(
                self._links, self.replies, self._at, self.quarantines, strict=True
            )
        ]


class Probe(Query):
    """The question whether anybody holds a lock; whoever waits is woken when that is certain."""

    __slots__ = ("_kept", "_silences", "held")

    def __init__(self, fleet: Fleet, key: bytes) -> None:
        super().__init__(fleet.links, commands.look(key))
        self.held: bool | None = None
        """Whether a majority keeps one value; ``None`` while nobody can tell."""
        self._kept: list[bytes] = []
        self._silences = 0

    def answered(self, master: int, reply: object, /) -> None:
        """Count what a master keeps, if its word counts."""
        if self.replies[master] is not NOT_YET or (reply := self.heard(master, reply)) is NOT_YET:
            return
        link = self._links[master]
        if link.quarantine:
            reply = Silence(Answer.QUARANTINED, link.quarantine)
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
        """Go on: what a round is won or lost by does not matter here."""

    def votes(self) -> tuple[Vote, ...]:
        """Return what each master has said so far."""
        return tuple(
            _vote(link, reply) for link, reply in zip(self._links, self.replies, strict=True)
        )


def _vote(link: Link, reply: object) -> Vote:
    if (values := replies.looked(reply)) is not None:
        return Vote(link.name, Answer.FREE if values[0] is None else Answer.HELD)
    silence = replies.read(reply)
    return Vote(link.name, silence.answer, silence.detail)


async def hear(fleet: Fleet, round: Inspection | Probe) -> None:
    """
    Put a question to all masters and wait until enough have answered.

    Raises:
        RedlockError: The manager was closed meanwhile.

    Cancellation:
        Nothing was asked that changes anything.
    """
    await fleet.ask(round)
    fleet.check_open()


async def inspect(fleet: Fleet, resource: str, key: bytes) -> LockState:
    """
    Return what each master knows of the lock with this *key*.

    Raises:
        RedlockError: The manager was closed meanwhile.

    Cancellation:
        Nothing was asked that changes anything.
    """
    asked = Inspection(fleet, key)
    await hear(fleet, asked)
    return lock_state.lock_state(resource, asked.said())


async def is_locked(fleet: Fleet, resource: str, key: bytes) -> bool:
    """
    Return whether a majority of the masters keeps one value under *key*.

    Raises:
        QuorumUnavailableError: Too few masters have answered to tell.

        RedlockError: The manager was closed meanwhile.

    Cancellation:
        Nothing was asked that changes anything.
    """
    began = fleet.clock()
    asked = Probe(fleet, key)
    await hear(fleet, asked)
    if asked.held is None:
        raise unavailable(resource, asked.votes(), fleet.clock() - began)
    return asked.held


def unavailable(resource: str, votes: Sequence[Vote], took: float) -> QuorumUnavailableError:
    """Return the error that says that nobody knows, after so many seconds."""
    elapsed = int(took * 1000 + 0.5)
    return QuorumUnavailableError([resource], attempts=0, elapsed=elapsed, votes=votes)
