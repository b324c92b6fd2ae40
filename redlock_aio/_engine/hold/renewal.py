"""
The two rounds about a lease that is held: its extension, and the check of its key.

Both judge nothing beyond their own replies. They report to callbacks that the watchdog
gives them.
"""

from collections.abc import Callable

from redlock_aio._engine.hold.held_lease import KEY_GONE, OVERTAKEN, HeldLease
from redlock_aio._engine.hold.restoration import Restoration
from redlock_aio._engine.masters import Fleet
from redlock_aio._engine.round import Round
from redlock_aio._protocol import replies
from redlock_aio._protocol.replies import OTHERS
from redlock_aio._protocol.request import Silence
from redlock_aio._protocol.revocation import BY_FORCE, is_revocation
from redlock_aio._rules.quorum import GRANTED, WON, Answer

REPEATS = 3
"""How often a key is set again after an extension, where somebody else has it at that moment."""


class KeyCheck(Round):
    """
    The question whether the masters still have the key of a lease.

    Args:
        on_lost: Called with the lease and the reason if it is lost.
    """

    __slots__ = ("_on_lost", "hold", "why")

    def __init__(
        self, fleet: Fleet, hold: HeldLease, on_lost: Callable[[HeldLease, str], None]
    ) -> None:
        super().__init__(fleet.links, hold.attempt.key.look())
        self._on_lost = on_lost
        self.hold = hold
        self.why = KEY_GONE

    def is_refusal(self, reply: object) -> bool:
        """Return whether *reply* says that somebody else has the lock, or one of several."""
        values = reply if isinstance(reply, list) else [reply]
        ours = self.hold.attempt.token
        foreign = any(isinstance(value, bytes) and value != ours for value in values)
        return foreign or replies.is_of_another_type(reply)

    def answered(self, master: int, reply: object, /) -> None:
        """Count our own value as a grant, any other value or none as a refusal."""
        ours = self.hold.attempt
        if (values := replies.looked(reply, len(ours.key.each))) is not None:
            if any(value and is_revocation(value) for value in values):
                self._revoked(master)
            reply = GRANTED if ours.key.is_kept(reply, ours.token) else 0
        elif replies.is_of_another_type(reply):
            reply = 0
        elif replies.has_no_script(reply):
            # The master has read nothing, so it will not push changes either. Check again,
            # behind the scripts that are on their way.
            self.hold.recheck_soon()
        super().answered(master, reply)

    def _revoked(self, master: int) -> None:
        """
        Lose the lease if *master* had granted it, and keeps a revocation now.

        One such master is enough, even if the others can't be reached or this reply is
        late: `force_release` lets others in on all of them after a moment, whether the
        holder has seen a majority of revocations by then or not.
        """
        self.why = BY_FORCE
        vote = replies.read(self.hold.attempt.replies[master])
        if vote.answer is Answer.GRANTED:
            self._on_lost(self.hold, BY_FORCE)

    def settled(self) -> None:
        """Lose the lease if no majority can have its key."""
        if self.refused_by_a_majority(self.hold.attempt.unsent):
            self._on_lost(self.hold, self.why)


class Renewal(Round):
    """
    One extension of one lease.

    Args:
        ttl: To how many ms from *now*.

        on_result: Called with this round when its verdict is final.
    """

    __slots__ = ("_fleet", "_on_result", "began", "epoch", "hold", "ttl")

    def __init__(
        self,
        fleet: Fleet,
        hold: HeldLease,
        ttl: int,
        now: float,
        on_result: "Callable[[Renewal], object]",
    ) -> None:
        super().__init__(fleet.links, hold.attempt.extension(ttl))
        self._fleet = fleet
        self._on_result = on_result
        self.hold: HeldLease = hold
        self.ttl: int = ttl
        self.began: float = now
        self.epoch: int = hold.begin_extension(now, ttl)

    def settled(self) -> None:
        """
        Report the verdict, then wake the task that waits in `Lease.extend`.

        In this order: the task must find the new deadline, or the loss, when it resumes.
        """
        self._on_result(self)
        super().settled()

    def is_refusal(self, reply: object) -> bool:
        """Return whether *reply* says that somebody else has, or has had, the lock."""
        return reply.__class__ is int and reply != 0

    def declined(self, master: int, reply: object) -> None:
        """Set the key again on a master that refuses after the extension has held."""
        if isinstance(reply, int) and reply in {0, OTHERS}:
            self.hold.recheck_soon()  # it may have been released by force
        if self.verdict is WON and _may_lack_key(reply):
            self._restore(master)

    def restore_missing(self) -> None:
        """Set the key again on each master that has answered so far and may be without it."""
        for master, reply in enumerate(self.replies):
            if _may_lack_key(reply):
                self._restore(master)

    def _restore(self, master: int) -> None:
        # A quarantined master may still have the key, its reply does not tell: no repetition.
        tries = REPEATS if self.replies[master].__class__ is int else 0
        Restoration(self._fleet, self.hold, tries=tries).send_to(master)

    def why_refused(self) -> str:
        """Return the reason that the refusals give."""
        beyond = [reply for reply in self.replies if isinstance(reply, int) and reply > 0]
        return OVERTAKEN if beyond else KEY_GONE


def _may_lack_key(reply: object) -> bool:
    """
    Return whether the master that has answered *reply* may be without the key.

    One that is quarantined does not say so, because its answer does not count; one whose
    counter is beyond the fencing token does not look.
    """
    if isinstance(reply, Silence):
        return reply.answer is Answer.QUARANTINED
    return reply.__class__ is int
