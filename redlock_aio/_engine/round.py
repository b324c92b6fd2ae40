"""
One request to all masters, and the tally of their replies.

    MasterSet.ask ─┬─ send(payload) ── master A ──► reply ─┐
                   ├─ send(payload) ── master B ...        ├─► Round.on_reply ─► Tally ─► outcome
                   └─ ...                                  ┘

A round is settled as soon as its outcome is certain. Masters that have not answered by
then can still do so, and count as timed out after the master timeout. A round costs one
object and one future, whatever the number of masters.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from redlock_aio._engine.claim import Claim
from redlock_aio._protocol import replies
from redlock_aio._protocol.request import NoReply, QuarantineRule, Sender
from redlock_aio._rules.quorum import NOT_YET, Outcome, Tally, Vote


class Link(Protocol):
    """The interface of a master as rounds use it: a `Master`, or a fake without a connection."""

    @property
    def name(self) -> str: ...

    can_free: bool

    @property
    def votes(self) -> bool: ...
    @property
    def quarantine(self) -> str: ...
    @property
    def received(self) -> int: ...
    @property
    def send(self) -> Callable[[bytes, Sequence[Sender]], NoReply | None]: ...
    def overdue(self) -> NoReply: ...
    def add_debt(self, payload: bytes, ttl: int) -> None: ...


class Round(Tally, Sender):
    """
    One request to all masters, and their replies so far.

    Args:
        links: The masters.

        payload: The packed command.
    """

    __slots__ = ("_links", "payload", "waiter")
    in_quarantine = QuarantineRule.COUNT_REFUSALS

    def __init__(self, links: Sequence[Link], payload: bytes) -> None:
        # Not `super()`: through four base classes it costs as much as the rest of making a release.
        Tally.__init__(self, len(links))
        self._links = links
        self.payload: bytes = payload
        self.waiter: asyncio.Future[None] | None = None

    def not_sent(self, master: int, no_reply: NoReply) -> None:
        """Count *no_reply* as the reply of a master to which the request could not be sent."""
        self.on_reply(master, no_reply)

    def settled(self) -> None:
        """Called when the verdict is known; wakes the task that awaits the round."""
        waiter = self.waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def expire(self) -> None:
        """Count the masters that have not replied as timed out."""
        for number in self.missing:
            self.on_reply(number, self._links[number].overdue())

    def votes(self) -> tuple[Vote, ...]:
        """Return the vote of each master so far."""
        return votes(self._links, self.replies, self.classify)

    def votes_so_far(self) -> tuple[Vote, ...]:
        """Return the votes of the masters that have been counted; none for the others."""
        missing = self.missing
        return tuple(vote for i, vote in enumerate(self.votes()) if i not in missing)

    def classify(self, reply: object) -> NoReply:
        """Return the vote in *reply*, with a detail that holds no secret."""
        return replies.read(reply)

    def refused_by_a_majority(self, never: int = 0) -> bool:
        """
        Return whether refusals by the masters themselves prove that no majority has granted.

        Args:
            never: A bit for each master that can't have granted the request in any case.
        """
        no = sum(
            reply.__class__ is int or reply.__class__ is list or never >> i & 1
            for i, reply in enumerate(self.replies)
        )
        return no * 2 >= len(self.replies)


def votes(
    links: Sequence[Link],
    answers: Iterable[object],
    classify: Callable[[object], NoReply] = replies.read,
) -> tuple[Vote, ...]:
    """Return the vote of each master, read by *classify* from its reply in *answers*."""
    return tuple(
        Vote(link.name, read.answer, read.detail, permanent=read.permanent)
        for link, read in zip(links, map(classify, answers), strict=True)
    )


class Query(Round):
    """
    A round whose policy is given as values, for requests that are not on the hot path.

    Args:
        in_quarantine: What is done with the request at a quarantined master.

        count: Called with the number of a master and each of its replies, late ones too;
            returns the reply to count. `GRANTED` makes a majority.

        enough: Called with the round after each reply; the task that awaits the round is
            woken when it is true. By default that is when the verdict is final.

        then: Called with the verdict when it is final, before that task is woken.

        repeat: Whether a script is sent once more to a master that lacks it, behind the
            scripts. Only for requests that may be executed late.
    """

    __slots__ = ("_count", "_enough", "_repeated", "_then", "in_quarantine")

    def __init__(  # noqa: PLR0913 - the policy
        self,
        links: Sequence[Link],
        payload: bytes,
        *,
        in_quarantine: QuarantineRule = QuarantineRule.COUNT,
        count: Callable[[int, object], object] | None = None,
        enough: "Callable[[Round], bool] | None" = None,
        then: Callable[[Outcome], object] | None = None,
        repeat: bool = False,
    ) -> None:
        super().__init__(links, payload)
        self.in_quarantine: QuarantineRule = in_quarantine
        self._count = count
        self._enough = enough
        self._then = then
        self._repeated = 0 if repeat else -1  # a bit for each master that gets it no more

    def on_reply(self, master: int, reply: object, /) -> None:
        """Count a reply as *count* says, or repeat the request."""
        again = not self._repeated >> master & 1 and self.replies[master] is NOT_YET
        if again and replies.has_no_script(reply):
            self._repeated |= 1 << master
            # The connection has sent the scripts again before this.
            no_reply = self._links[master].send(self.payload, [self])
            if no_reply is None:
                return
            reply = no_reply
        if self._count is not None:
            reply = self._count(master, reply)
        super().on_reply(master, reply)
        if self._enough is not None and self._enough(self):
            super().settled()

    def settled(self) -> None:
        """Called when the verdict is final."""
        if self._then is not None:
            self._then(self.verdict)
        if self._enough is None:
            super().settled()


class Release(Round):
    """
    The request to release a lock, repeated as a debt until each master has confirmed it.

    Args:
        ttl: The longest time in ms for which the key may live without the release.

        claim: What may have set the key; ``None`` if every master may have it.
    """

    __slots__ = ("_claim", "debt_ttl")
    in_quarantine = QuarantineRule.COUNT_IF_FOUND

    def __init__(
        self, links: Sequence[Link], payload: bytes, ttl: int, claim: Claim | None = None
    ) -> None:
        Round.__init__(self, links, payload)
        self.debt_ttl: int = ttl
        self._claim = claim

    @property
    def debt(self) -> bytes:
        """The command that is repeated until a master has confirmed it."""
        return self.payload

    @property
    def needless(self) -> int:
        """A bit for each master without the key, because the request was never sent to it."""
        # Read when it is asked for: the request may leave in the same turn of the loop as this.
        return 0 if self._claim is None else self._claim.unsent

    def classify(self, reply: object) -> NoReply:
        """Return the vote in *reply*: whether the lease still had its key there."""
        return replies.read_kept(reply)

    def not_sent(self, master: int, no_reply: NoReply) -> None:
        """Count the master, and add a debt if it may have the key."""
        super().not_sent(master, no_reply)
        if not replies.is_unsettled(no_reply):  # otherwise `declined` has added the debt
            self._add_debt(master)

    def declined(self, master: int, reply: object) -> None:
        """Add a debt after an error, or if the connection ended before the reply."""
        if replies.is_unsettled(reply):
            self._add_debt(master)

    late = declined  # a late reply is not counted, but the key is still on the master

    def _add_debt(self, master: int) -> None:
        if not self.needless >> master & 1:
            self._links[master].add_debt(self.debt, self.debt_ttl)
