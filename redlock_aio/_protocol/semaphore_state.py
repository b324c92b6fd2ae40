"""
The state of a semaphore, computed from the reply of each master.

Each permit is a lock of its own, and is held while a majority keeps one value for it. So the
rules are those of `lock_state`, once for each number.
Nothing here waits, reads a clock or opens a socket.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from redlock_aio._protocol import commands
from redlock_aio._protocol.lock_state import (
    ENDLESS,
    MOST_SHOWN,
    MasterReply,
    harmless,
    is_kept,
    left_text,
    no_reply_vote,
    remaining,
)
from redlock_aio._protocol.primitives import Permits
from redlock_aio._protocol.request import pack
from redlock_aio._protocol.scripts import INSPECT_PERMITS
from redlock_aio._rules import lock_value
from redlock_aio._rules.lock_value import Holder
from redlock_aio._rules.quorum import Answer, Vote, majority
from redlock_aio._rules.validation import MOST_PERMITS


@dataclass(frozen=True, slots=True)
class SemaphoreView:
    """
    The permits of a semaphore on one master.

    Attributes:
        master: The master's address, without credentials.

        answer: ``HELD`` if it keeps any permit, ``FREE`` if none, ``QUARANTINED`` if its vote
            does not count, or why it gave no reply.

        detail: More about that, for people; never a credential or a token.

        holders: The holder of each permit that it keeps, by the permit's number. They are also
            reported for a master in quarantine.

        remaining: For how many ms more it keeps each of these, if nothing is extended;
            ``None`` for one that does not end.

        waiters: How many wait for any permit in its queues.
    """

    master: str
    answer: Answer
    detail: str = ""
    holders: Mapping[int, Holder] = field(default_factory=dict, hash=False)
    remaining: Mapping[int, int | None] = field(default_factory=dict, hash=False)
    waiters: int = 0

    def __str__(self) -> str:
        text = str(self.vote)
        if self.counts:
            return harmless(f"{self.master}: {_held(len(self.holders))}")
        if self.holders:
            text += f"; {_held(len(self.holders))}, which does not count"
        return harmless(text)

    @property
    def counts(self) -> bool:
        """Whether the master's reply counts: it has a vote, and has answered."""
        return self.answer in (Answer.HELD, Answer.FREE)

    @property
    def vote(self) -> Vote:
        """The answer as a vote."""
        return Vote(self.master, self.answer, self.detail)


@dataclass(frozen=True, slots=True)
class SemaphoreState:
    """
    The state of a semaphore on all masters, as `Semaphore.inspect` returns it.

    It is a snapshot. While clients acquire or release permits, some masters are ahead of others.

    ``print(state)`` shows it in a few lines.

    Attributes:
        resource: The name of the semaphore.

        permits: How many permits the `Semaphore` has that was asked; the masters do not know.

        holders: The holder of each permit that a majority of the masters keeps, by the permit's
            number. Numbers of *permits* or more belong to programs that use a larger number.

        remaining: In how many ms a majority no longer keeps each of these, if nothing is
            extended; ``None`` for one that does not end.

        waiters: How many wait for any permit, on the master where most do.

        views: The permits on each master.
    """

    resource: str
    permits: int
    holders: Mapping[int, Holder] = field(hash=False)
    remaining: Mapping[int, int | None] = field(hash=False)
    waiters: int
    views: tuple[SemaphoreView, ...]

    @property
    def claimed(self) -> int:
        """How many permits are held, of any number."""
        return len(self.holders)

    @property
    def available(self) -> int:
        """How many of the *permits* nobody holds; see `certain`."""
        return self.permits - sum(number < self.permits for number in self.holders)

    @property
    def certain(self) -> bool:
        """Whether the masters that have not answered, or have no vote, can't change *holders*."""
        unknown, masters = sum(not view.counts for view in self.views), len(self.views)
        numbers = {number for view in self.views if view.counts for number in view.holders}
        kept = [self._kept(number) for number in numbers]
        return all(is_kept(values, unknown, masters) is not None for values in ([], *kept))

    @property
    def facts(self) -> tuple[object, ...]:
        """What makes a state another one than before: who has which permit, and how sure it is."""
        who = {number: holder.fingerprint for number, holder in self.holders.items()}
        return frozenset(who.items()), self.certain

    def _kept(self, number: int) -> list[str]:
        return [
            view.holders[number].fingerprint
            for view in self.views
            if view.counts and number in view.holders
        ]

    def __str__(self) -> str:
        numbers = sorted(self.holders)
        lines = [f"{self.resource!r} {self._verdict()}"]
        lines += [f"  permit {number}: {self._holder(number)}" for number in numbers[:MOST_SHOWN]]
        if len(numbers) > MOST_SHOWN:
            lines.append(f"  {len(numbers) - MOST_SHOWN} more permits")
        return "\n".join([*map(harmless, lines), *(f"  {view}" for view in self.views)])

    def _holder(self, number: int) -> str:
        return f"held by {self.holders[number]}, {left_text(self.remaining[number])}"

    def _verdict(self) -> str:
        below = self.permits - self.available
        parts = [f"has {below} of {self.permits} permits held"]
        if not self.certain:
            parts = [f"{parts[0]} or more: too few masters have answered to tell"]
        if self.claimed > below:
            parts.append(f"{self.claimed - below} more beyond them, by programs that say more")
        if self.waiters:
            parts.append(f"{self.waiters} wait")
        return ", ".join(parts)


def inspect(permits: Permits) -> bytes:
    """Return the command that reads the holder of each permit, and counts who waits for any."""
    keys = commands.permit_keys(permits.permit(0))
    numbers = [b"%d" % number for number in (permits.number, MOST_PERMITS)]
    return pack(b"EVALSHA", INSPECT_PERMITS.sha, b"%d" % len(keys), *keys, *numbers)


def permit_values(reply: object) -> dict[int, tuple[bytes, int]] | None:
    """Return the value of each permit with its ms, in the reply; ``None`` if it is malformed."""
    if not isinstance(reply, list) or not reply or not isinstance(reply[0], int):
        return None
    found: dict[int, tuple[bytes, int]] = {}
    for number, value, left in zip(reply[1::3], reply[2::3], reply[3::3], strict=False):
        if type(number) is not int or type(left) is not int or not isinstance(value, bytes):
            return None
        found[number] = value, left if left >= 0 else ENDLESS
    return found


def view(of_master: MasterReply) -> SemaphoreView:
    """Return the permits on one master, without their tokens."""
    reply, quarantine = of_master.reply, of_master.quarantine
    values = permit_values(reply)
    if values is None or not isinstance(reply, list):
        vote = no_reply_vote(of_master)
        return SemaphoreView(vote.master, vote.answer, vote.detail)
    answer = Answer.HELD if values else Answer.FREE
    return SemaphoreView(
        of_master.master,
        Answer.QUARANTINED if quarantine else answer,
        quarantine,
        {number: lock_value.holder(value) for number, (value, _) in values.items()},
        {
            number: max(left - of_master.age, 0) if left < ENDLESS else None
            for number, (_, left) in values.items()
        },
        max(reply[0], 0),
    )


def semaphore_state(resource: str, permits: int, given: Sequence[MasterReply]) -> SemaphoreState:
    views, needed = tuple(map(view, given)), majority(len(given))
    kept: dict[tuple[int, bytes], list[int | None]] = {}
    for one, its in zip(given, views, strict=True):
        values = permit_values(one.reply) if its.counts else None
        for number, (value, _) in (values or {}).items():
            kept.setdefault((number, value), []).append(its.remaining[number])
    held = {number: (value, left) for (number, value), left in kept.items() if len(left) >= needed}
    return SemaphoreState(
        resource,
        permits,
        {number: lock_value.holder(held[number][0]) for number in sorted(held)},
        {number: remaining(held[number][1], needed) for number in sorted(held)},
        max((its.waiters for its in views), default=0),
        views,
    )


def _held(count: int) -> str:
    return f"{count} permit{'s' * (count != 1)} held"
