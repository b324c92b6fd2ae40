"""
The two rounds about a lease that is held: its extension, and the check of its key.

Each round evaluates only its own replies, and reports to a callback of the watchdog.
"""

from collections.abc import Callable

from redlock_aio._engine.hold.held_lease import KEY_GONE, OVERTAKEN, HeldLease
from redlock_aio._engine.hold.restoration import Restoration
from redlock_aio._engine.masters import MasterSet
from redlock_aio._engine.round import Round
from redlock_aio._protocol import replies
from redlock_aio._protocol.replies import OTHERS
from redlock_aio._protocol.request import NoReply
from redlock_aio._protocol.revocation import BY_FORCE, is_revocation
from redlock_aio._rules.quorum import GRANTED, WON, Answer

REPEATS = 3
"""The number of repetitions of a restoration on a master where another client has the key."""


class KeyCheck(Round):
    """
    One check whether the masters still have the key of a lease.

    Args:
        on_lost: Called with the lease and the reason if it is lost.
    """

    __slots__ = ("_on_lost", "hold", "why")

    def __init__(
        self, masters: MasterSet, hold: HeldLease, on_lost: Callable[[HeldLease, str], None]
    ) -> None:
        super().__init__(masters.links, hold.attempt.key.look())
        self._on_lost = on_lost
        self.hold = hold
        self.why = KEY_GONE

    def is_refusal(self, reply: object) -> bool:
        """Return whether *reply* shows that another client has one of the keys."""
        values = reply if isinstance(reply, list) else [reply]
        ours = self.hold.attempt.token
        foreign = any(isinstance(value, bytes) and value != ours for value in values)
        return foreign or replies.is_of_another_type(reply)

    def on_reply(self, master: int, reply: object, /) -> None:
        """Count the lease's own value as a grant, any other value or none as a refusal."""
        ours = self.hold.attempt
        if (values := replies.looked(reply, len(ours.key.each))) is not None:
            if any(value and is_revocation(value) for value in values):
                self._revoked(master)
            reply = GRANTED if ours.key.is_kept(reply, ours.token) else 0
        elif replies.is_of_another_type(reply):
            reply = 0
        elif replies.has_no_script(reply):
            # The master has read nothing, so it will not push changes either. Check again,
            # behind the scripts that are being sent.
            self.hold.recheck_soon()
        super().on_reply(master, reply)

    def _revoked(self, master: int) -> None:
        """
        Lose the lease if *master*, which keeps a revocation now, had granted it.

        One such master is enough, even if the others can't be reached or this reply is
        late: `force_release` lets others in on all of them after a moment, whether the
        holder has seen a majority of revocations by then or not.
        """
        self.why = BY_FORCE
        vote = replies.read(self.hold.attempt.replies[master])
        if vote.answer is Answer.GRANTED:
            self._on_lost(self.hold, BY_FORCE)

    def settled(self) -> None:
        """Lose the lease if the refusals prove that no majority has its key."""
        if self.refused_by_a_majority(self.hold.attempt.unsent):
            self._on_lost(self.hold, self.why)


class Renewal(Round):
    """
    One extension of one lease.

    Args:
        ttl: The new ttl in ms, from *now* on.

        on_result: Called with this round when its verdict is final.
    """

    __slots__ = ("_masters", "_on_result", "began", "epoch", "hold", "ttl")

    def __init__(
        self,
        masters: MasterSet,
        hold: HeldLease,
        ttl: int,
        now: float,
        on_result: "Callable[[Renewal], object]",
    ) -> None:
        super().__init__(masters.links, hold.attempt.extension(ttl))
        self._masters = masters
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
        """Return whether *reply* shows that another client has, or has had, the lock."""
        return reply.__class__ is int and reply != 0

    def declined(self, master: int, reply: object) -> None:
        """Restore the key on a master whose refusal arrives after the extension succeeded."""
        if isinstance(reply, int) and reply in {0, OTHERS}:
            self.hold.recheck_soon()  # the lock may have been released by force
        if self.verdict is WON and _may_lack_key(reply):
            self._restore(master)

    def restore_missing(self) -> None:
        """Restore the key on each master that may lack it by its reply so far."""
        for master, reply in enumerate(self.replies):
            if _may_lack_key(reply):
                self._restore(master)

    def _restore(self, master: int) -> None:
        # A quarantined master's reply does not show whether it has the key: no repetition.
        tries = REPEATS if self.replies[master].__class__ is int else 0
        Restoration(self._masters, self.hold, tries=tries).send_to(master)

    def why_refused(self) -> str:
        """Return the reason for the refusals."""
        beyond = [reply for reply in self.replies if isinstance(reply, int) and reply > 0]
        return OVERTAKEN if beyond else KEY_GONE


def _may_lack_key(reply: object) -> bool:
    """
    Return whether the master with this *reply* may lack the key.

    The reply of a quarantined master is replaced by a `NoReply`, because it does not count;
    a master whose counter is beyond the fencing token does not look for the key.
    """
    if isinstance(reply, NoReply):
        return reply.answer is Answer.QUARANTINED
    return reply.__class__ is int
