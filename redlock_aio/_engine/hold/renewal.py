"""
The two rounds about a lease that is held: its extension, and the check of its key.

Each round evaluates only its own replies, and reports to a callback of the watchdog.
Extensions of several leases are sent in one command (`RenewalBatch`); each is still a
round of its own, with a quorum of its own.
"""

from collections.abc import Callable, Iterator, Sequence

from redlock_aio._engine.hold.held_lease import HeldLease
from redlock_aio._engine.hold.restoration import Restoration
from redlock_aio._engine.masters import Link, MasterSet, Round
from redlock_aio._protocol import commands, replies
from redlock_aio._protocol.commands import Extension
from redlock_aio._protocol.replies import OTHERS
from redlock_aio._protocol.request import NoReply
from redlock_aio._protocol.revocation import is_revocation
from redlock_aio._rules.causes import Loss, LossCause
from redlock_aio._rules.quorum import GRANTED, WON, Answer, Vote

REPEATS = 3
"""The number of repetitions of a restoration on a master where another client has the key."""

MOST_KEYS = 64
"""
How many keys one command extends at most: a master executes nothing else meanwhile.

A lease takes a master 4 to 7 us, one with a fencing token (two keys) 7 to 13 us (Redis 7.0 and
Valkey 9.1 on two busy cores). So a command takes less than 0.5 ms, and less than 1 ms on a
machine that is half as fast.
"""


class KeyCheck(Round):
    """
    One check whether the masters still have the key of a lease.

    Args:
        on_lost: Called with the lease and its loss if it is lost.
    """

    __slots__ = ("_cause", "_on_lost", "hold")

    def __init__(
        self, masters: MasterSet, hold: HeldLease, on_lost: Callable[[HeldLease, Loss], None]
    ) -> None:
        super().__init__(masters.links, hold.claim.key.look())
        self._on_lost = on_lost
        self.hold = hold
        self._cause = LossCause.KEY_GONE

    def is_refusal(self, reply: object) -> bool:
        """Return whether *reply* shows that another client has one of the keys."""
        values = reply if isinstance(reply, list) else [reply]
        ours = self.hold.claim.token
        foreign = any(isinstance(value, bytes) and value != ours for value in values)
        return foreign or replies.is_of_another_type(reply)

    def on_reply(self, master: int, reply: object, /) -> None:
        """Count the lease's own value as a grant, any other value or none as a refusal."""
        ours = self.hold.claim
        revoked = False
        if (values := replies.looked(reply, len(ours.key.each))) is not None:
            revoked = any(value and is_revocation(value) for value in values)
            foreign = any(value and value != ours.token for value in values)
            kept = ours.key.is_kept(reply, ours.token)
            reply = GRANTED if kept else OTHERS if foreign else 0
        elif replies.is_of_another_type(reply):
            reply = OTHERS
        elif replies.has_no_script(reply):
            # The master has read nothing, so it will not push changes either. Check again,
            # behind the scripts that are being sent.
            self.hold.recheck_soon()
        if revoked:
            self._cause = LossCause.FORCED
        super().on_reply(master, reply)
        if revoked:
            self._revoked(master)

    def classify(self, reply: object) -> NoReply:
        """Return the vote in *reply*: whether the lease still has its key there."""
        return replies.read_kept(reply)

    def _revoked(self, master: int) -> None:
        """
        Lose the lease if *master*, which keeps a revocation now, had granted it.

        One such master is enough, even if the others can't be reached or this reply is
        late: `force_release` lets others in on all of them after a moment, whether the
        holder has seen a majority of revocations by then or not.
        """
        vote = replies.read(self.hold.claim.replies[master])
        if vote.answer is Answer.GRANTED:
            self._on_lost(self.hold, Loss(LossCause.FORCED, votes=self.votes_so_far()))

    def settled(self) -> None:
        """Lose the lease if the refusals prove that no majority has its key."""
        if self.refused_by_a_majority(self.hold.claim.unsent):
            self._on_lost(self.hold, Loss(self._cause, votes=self.votes_so_far()))


class Renewal(Round):
    """
    One extension of one lease, sent alone or with others in a `RenewalBatch`.

    Args:
        ttl: The new ttl in ms, from *now* on.

        on_result: Called with this round when its verdict is final.
    """

    __slots__ = (
        "_masters", "_on_result", "alone", "before", "began", "epoch", "extension", "hold", "ttl"
    )  # fmt: skip

    def __init__(
        self,
        masters: MasterSet,
        hold: HeldLease,
        ttl: int,
        now: float,
        on_result: "Callable[[Renewal], object]",
    ) -> None:
        super().__init__(masters.links, b"")
        self.extension: Extension = hold.claim.extension(ttl)
        """What the command says about this lease."""
        self._masters = masters
        self._on_result = on_result
        self.hold: HeldLease = hold
        self.ttl: int = ttl
        self.began: float = now
        self.epoch: int = hold.begin_extension(now, ttl)
        self.alone: bool = False
        """Whether it must not share a command, because the one before it got an error."""
        self.before: Renewal | None = None
        if isinstance(last := hold.extension, Renewal):
            self.alone = last.has_errors
            # Keep the last one that has all replies, else the first one; not a chain of all.
            if last.complete or last.before is None:
                last.before, self.before = None, last
            else:
                self.before = last.before
        hold.extension = self

    def send_alone(self) -> None:
        """
        Send it in a command of its own.

        It ends at the deadline at the latest: an extension that is granted after it revives
        nothing.
        """
        self.payload: bytes = commands.extend(self.extension)
        self._masters.send_and_watch(self, (self.hold.deadline - self.began) * 1000)

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

    def late(self, master: int, reply: object) -> None:
        """
        Count a reply that arrives after the master timeout.

        The timeout says when to try again, not how long an extension may take: any reply
        before the deadline counts, from when the request was sent. Masters that are too busy to
        answer in time would otherwise execute extensions that nobody counts, and get each of
        them again four times as often, until all leases are lost.
        """
        before = self.replies[master]
        if not isinstance(before, NoReply) or before.answer is not Answer.TIMED_OUT:
            return
        if reply == GRANTED:
            if self.recount(master):
                self._on_result(self)
        elif reply.__class__ is int:
            self.replies[master] = reply
            self.declined(master, reply)

    def restore_missing(self) -> None:
        """Restore the key on each master that may lack it by its reply so far."""
        if self.against:
            for master, reply in enumerate(self.replies):
                if _may_lack_key(reply):
                    self._restore(master)

    def _restore(self, master: int) -> None:
        # A quarantined master's reply does not show whether it has the key: no repetition.
        tries = REPEATS if self.replies[master].__class__ is int else 0
        Restoration(self._masters, self.hold, tries=tries).send_to(master)

    @property
    def has_errors(self) -> bool:
        """
        Whether a master has replied with an error.

        The key of another lease in the same command may have caused it, for instance if the
        access list of the master does not permit that key any more.
        """
        return any(isinstance(reply, Exception) for reply in self.replies)

    def why_refused(self) -> Loss:
        """Return the loss that the refusals prove."""
        beyond = [reply for reply in self.replies if isinstance(reply, int) and reply > 0]
        cause = LossCause.OVERTAKEN if beyond else LossCause.KEY_GONE
        return Loss(cause, votes=self.votes())

    def classify(self, reply: object) -> NoReply:
        """Return the vote in *reply*: whether the lease still has its key there."""
        return replies.read_kept(reply)

    def votes(self) -> tuple[Vote, ...]:
        """Return the vote of each master; until it has replied, its vote on an earlier one."""
        # Read once: `Lease.ensure_valid` calls this in any thread, and when the next extension
        # begins meanwhile, this one may no longer refer to the one before.
        before = self.before
        votes = super().votes()
        if before is None or self.complete:
            return votes
        earlier, missing = before.votes(), self.missing
        return tuple(earlier[i] if i in missing else vote for i, vote in enumerate(votes))


class RenewalBatch(Round):
    """
    One command that extends several leases.

    Its own tally says only which masters have answered.

    Args:
        renewals: The extensions; each gets its own replies, as if it had been sent alone.
    """

    __slots__ = ("_renewals",)

    def __init__(self, links: Sequence[Link], renewals: Sequence[Renewal]) -> None:
        super().__init__(links, commands.extend(*[renewal.extension for renewal in renewals]))
        self._renewals = renewals

    def on_reply(self, master: int, reply: object, /) -> None:
        """Pass on to each extension the reply for it."""
        super().on_reply(master, GRANTED)
        parts = replies.for_each(reply, len(self._renewals))
        for renewal, part in zip(self._renewals, parts, strict=True):
            renewal.on_reply(master, part)

    def counted(self, reply: object, no_reply: NoReply) -> object:
        """Return the refusals in *reply*, and *no_reply* for each other lease."""
        parts = replies.for_each(reply, len(self._renewals))
        return [
            part if renewal.is_refusal(part) else no_reply
            for renewal, part in zip(self._renewals, parts, strict=True)
        ]


def send_together(masters: MasterSet, renewals: Sequence[Renewal]) -> None:
    """Send *renewals*, in as few commands as `MOST_KEYS` permits."""
    for group in _grouped(renewals, MOST_KEYS):
        if len(group) > 1:
            masters.send_and_watch(RenewalBatch(masters.links, group))
        else:
            group[0].send_alone()


def _grouped(renewals: Sequence[Renewal], most: int) -> Iterator[list[Renewal]]:
    """Divide *renewals* into groups of one, or of at most *most* keys."""
    group: list[Renewal] = []
    keys = 0
    for renewal in renewals:
        if renewal.alone:
            yield [renewal]
            continue
        keys += renewal.extension.keys
        if group and keys > most:
            yield group
            group, keys = [], renewal.extension.keys
        group.append(renewal)
    if group:
        yield group


def _may_lack_key(reply: object) -> bool:
    """
    Return whether the master with this *reply* may lack the key.

    The reply of a quarantined master is replaced by a `NoReply`, because it does not count;
    a master whose counter is beyond the fencing token does not look for the key.
    """
    if isinstance(reply, NoReply):
        return reply.answer is Answer.QUARANTINED
    return reply.__class__ is int
