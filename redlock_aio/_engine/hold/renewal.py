"""
The two rounds about a lease that is held: its extension, and the check of its key.

Each round evaluates only its own replies, and reports to a callback of the watchdog.
Extensions of several leases are sent in one command (`RenewalBatch`); each is still a
round of its own, with a quorum of its own.
"""

import random
from collections.abc import Callable, Iterator, Sequence

from redlock_aio._engine.hold.held_lease import HeldLease
from redlock_aio._engine.masters import KEPT, MasterSet, Query, Round, is_underway, votes
from redlock_aio._protocol import commands, replies
from redlock_aio._protocol.commands import NEVER, Extension, is_revocation
from redlock_aio._protocol.replies import OTHERS
from redlock_aio._protocol.request import NoReply, QuarantineRule, Request
from redlock_aio._rules import timing
from redlock_aio._rules.causes import Loss, LossCause
from redlock_aio._rules.quorum import LOST, NOT_YET, OK, WON, Answer, Outcome, Vote

COUNT_REFUSALS = QuarantineRule.COUNT_REFUSALS

REPEATS = 3
"""The number of repetitions of a restoration on a master where another client has the key."""

REPEAT_AFTER = 0.01
"""The mean delay in seconds before a restoration is repeated on a master."""

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

    Not a `Query`: a revocation ends the lease only after its reply is counted, so that the loss
    names the vote of that master too, and whatever the verdict of the round is.
    """

    __slots__ = ("_cause", "_on_lost", "hold")

    def __init__(
        self,
        masters: MasterSet,
        hold: HeldLease,
        on_lost: Callable[[HeldLease, Loss], None],
    ) -> None:
        super().__init__(masters, hold.claim.key.look(hold.claim.token), KEPT)
        self._on_lost = on_lost
        self.hold = hold
        self._cause = LossCause.KEY_GONE

    def is_refusal(self, reply: object) -> bool:
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
            self.hold.kept |= kept << master
            reply = OK if kept else OTHERS if foreign else 0
        elif replies.is_of_another_type(reply):
            reply = OTHERS
        elif replies.has_no_script(reply):
            # The master has read nothing, so it will not push changes either. Check again,
            # behind the scripts that are being sent.
            self.hold.recheck_soon()
        # Before the reply is counted: it may be the one that completes the verdict, and
        # `on_verdict` names this cause.
        if revoked:
            self._cause = LossCause.FORCED
        super().on_reply(master, reply)
        # After the count: the loss names the votes so far, and this master's must be among them.
        # If `on_verdict` has lost the lease just now, this changes nothing.
        if revoked:
            self._revoked(master)

    def _revoked(self, master: int) -> None:
        """
        Lose the lease if *master*, which keeps a revocation now, had the key of the lease.

        One such master is enough, even if the others can't be reached or this reply is
        late: `force_release` lets others in on all of them after a moment, whether the
        holder has seen a majority of revocations by then or not.
        """
        # It had the key if it has granted it, or was slow or down then and got it since. Of another
        # master this is not known: a forced release of an earlier holder may have come late there.
        # Then the others decide, unless too few of them can be reached.
        if self._had(master) or self.verdict is LOST:
            self._on_lost(self.hold, Loss(LossCause.FORCED, votes=self.votes_so_far()))

    def _had(self, master: int) -> bool:
        """Return whether *master* is known to have had the key at any time."""
        vote = replies.classify(self.hold.claim.replies[master])
        return bool(self.hold.kept >> master & 1) or vote.answer is Answer.GRANTED

    def on_verdict(self) -> None:
        if self.verdict is WON:
            for master, reply in enumerate(self.replies):
                self._restore(master, reply)
        elif self._cause is LossCause.FORCED or self.refused_by_a_majority(self.hold.claim.unsent):
            self._on_lost(self.hold, Loss(self._cause, votes=self.votes_so_far()))

    def declined(self, master: int, reply: object) -> None:
        # Before the verdict nothing is restored: see `Renewal.declined`.
        if self.verdict is WON:
            self._restore(master, reply)

    def _restore(self, master: int, reply: object) -> None:
        """
        Set the key on a master that has never had it.

        Such a master refused the lock, which another client had there for a moment; or was away;
        or was not asked, because a waiter wins with the first masters that wake it. Until the first
        extension, which comes after a third of the ttl, one more master that fails would cost the
        lease. A master that has had the key may have lost it to a forced release, so that one gets
        it by an extension only.
        """
        if reply == 0 and not self._had(master):
            Restoration(self.masters, self.hold, tries=REPEATS).send_to(master)


class Renewal(Round):
    """
    One extension of one lease, sent alone or with others in a `RenewalBatch`.

    Not a `Query`: 10,000 leases need thousands of them a second, each with several policies;
    and it counts a late grant, which no other round does.
    """

    __slots__ = (
        "_on_result", "alone", "before", "began", "epoch", "extension", "hold", "ttl"
    )  # fmt: skip

    def __init__(
        self,
        masters: MasterSet,
        hold: HeldLease,
        ttl: int,
        now: float,
        on_result: "Callable[[Renewal], object]",
    ) -> None:
        super().__init__(masters, b"", KEPT)
        self.extension: Extension = hold.claim.extension(ttl)
        self._on_result = on_result
        self.hold: HeldLease = hold
        self.ttl: int = ttl
        self.began: float = now
        # The lease is told before the command leaves. If this ttl ends earlier than what was
        # promised, the deadline moves back now: any master may execute the command at any time
        # from now on. Then grants of the extensions before it do not count any more, see
        # `LeaseState.extended`.
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
        # Last: another thread may read the votes of the last extension at any time
        # (`ensure_valid`), and must find this one complete, or the one before.
        hold.extension = self

    def send_alone(self) -> None:
        """
        Send it in a command of its own.

        It ends at the deadline at the latest: an extension that is granted after it revives
        nothing.
        """
        self.payload: bytes = commands.extend(self.extension)
        self.masters.send_and_watch(self, (self.hold.deadline - self.began) * 1000)

    def on_verdict(self) -> None:
        """
        Report the verdict, then wake the task that waits in `Lease.extend`.

        In this order: the task must find the new deadline, or the loss, when it resumes.
        """
        self._on_result(self)
        self.wake()

    def is_refusal(self, reply: object) -> bool:
        return reply.__class__ is int and reply != 0

    def declined(self, master: int, reply: object) -> None:
        """Restore the key on a master whose refusal arrives after the extension succeeded."""
        if isinstance(reply, int) and reply in {0, OTHERS}:
            self.hold.recheck_soon()  # the lock may have been released by force
        # Before the verdict nothing is restored: the extension may fail and the lease end, and the
        # key would block others. `restore_missing` does it for the refusals that came before WON.
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
        if not is_underway(self.replies[master]):
            return
        if reply == OK:
            # The round had failed. A task in `Lease.extend` was woken then, and looks at all its
            # rounds again before it gives up. `apply_result` moves the deadline, unless the lease
            # has ended meanwhile or a later extension promised less.
            if self.recount(master):
                self._on_result(self)
        elif reply.__class__ is int:
            self.replies[master] = reply
            self.declined(master, reply)
        else:
            # Above all the end of the connection: a repetition does not follow this one any more.
            self.replies[master] = reply

    def restore_missing(self) -> None:
        if self.against:
            for master, reply in enumerate(self.replies):
                if _may_lack_key(reply):
                    self._restore(master)

    def _restore(self, master: int) -> None:
        # A quarantined master's reply does not show whether it has the key: no repetition.
        tries = REPEATS if self.replies[master].__class__ is int else 0
        Restoration(self.masters, self.hold, tries=tries).send_to(master)

    @property
    def has_errors(self) -> bool:
        """
        Whether a master has replied with an error.

        The key of another lease in the same command may have caused it, for instance if the
        access list of the master does not permit that key any more.
        """
        return any(isinstance(reply, Exception) for reply in self.replies)

    def why_refused(self) -> Loss:
        beyond = [reply for reply in self.replies if isinstance(reply, int) and reply > 0]
        cause = LossCause.OVERTAKEN if beyond else LossCause.KEY_GONE
        # The masters have decided it: who has not answered yet had no part in it, and as a vote
        # that timed out would read as a fault of the network.
        return Loss(cause, votes=self.votes_so_far())

    def votes(self) -> tuple[Vote, ...]:
        """Return the vote of each master; until it has replied, its vote on an earlier one."""
        return votes(self.masters.links, self.last_replies(), self.policy.classify)

    def last_replies(self) -> list[object]:
        # Read once: `Lease.ensure_valid` calls this in any thread, and when the next extension
        # begins meanwhile, this one may no longer refer to the one before.
        before, replies = self.before, self.replies
        if before is None or self.complete:
            return replies
        both = zip(replies, before.last_replies(), strict=True)
        return [earlier if reply is NOT_YET else reply for reply, earlier in both]


class RenewalBatch(Round):
    """
    One command that extends several leases: one reply for 64 rounds, which a `Query` can't have.

    Its own tally says only which masters have answered.
    """

    __slots__ = ("_renewals",)

    def __init__(self, masters: MasterSet, renewals: Sequence[Renewal]) -> None:
        super().__init__(masters, commands.extend(*[renewal.extension for renewal in renewals]))
        self._renewals = renewals

    def on_reply(self, master: int, reply: object, /) -> None:
        super().on_reply(master, OK)
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
            masters.send_and_watch(RenewalBatch(masters, group))
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


class Restoration:
    """
    The request to restore the key of a held lease on one master.

    The master counts from the next extension on: until then it keeps the key, while a
    majority of others has it. If its counter is beyond the fencing token, it keeps the key
    from now on, so that no other client can raise the counter, and counts only after a
    `lift`.

    Args:
        ceiling: The value to which a majority has lifted its counters; see `lift`.

        tries: The number of repetitions if another client has the key there.
    """

    __slots__ = ("_ceiling", "_hold", "_masters", "_tries")

    def __init__(
        self, masters: MasterSet, hold: HeldLease, ceiling: int = 0, tries: int = 0
    ) -> None:
        self._masters = masters
        self._hold = hold
        self._ceiling = ceiling
        self._tries = tries

    def send_to(self, master: int) -> None:
        masters, hold = self._masters, self._hold
        now = masters.clock()
        if not hold.valid(now):
            return
        # Not for the full ttl: if the holder ends before its next extension, this master is free
        # about when the others are.
        left = timing.remaining(hold.deadline, now)
        # `send` of a link writes at once, the rounds of this turn of the loop are written at its
        # end. Without this line the restoration would overtake them.
        masters.flush()  # behind all earlier requests
        request = Request(hold.claim.restoration(max(left, 1), self._ceiling), self._on_reply)
        if masters.links[master].send(request.payload, (request,)) is None:
            hold.claim.unsent &= ~(1 << master)

    def _on_reply(self, master: int, reply: object) -> None:
        """
        Repeat it if another client has the key; lift the counters if the master's is higher.

        1. An extension changes the key on all masters, which wakes the waiters.
        2. They try at once, and get the key on the masters where it is free, just before
           this request arrives there.
        3. They fail, and give the key back a moment later.

        Without a repetition this race could go the same way at each extension, and the
        master would never count.
        """
        if reply == OK:
            self._hold.kept |= 1 << master
        elif isinstance(reply, int) and reply > 0:
            if not self._ceiling:
                lift(self._masters, self._hold, master, reply)
        elif self._tries and (reply is None or isinstance(reply, int)):
            self._tries -= 1
            # At random, so that it is not in step with the retries of other clients.
            delay = REPEAT_AFTER * (0.5 + random.random())  # noqa: S311 - no secret
            self._masters.loop.call_later(delay, self.send_to, master)


def lift(masters: MasterSet, hold: HeldLease, master: int, ceiling: int) -> None:
    """
    Lift the counters of a majority to *ceiling*, so that *master* can count again.

    A failed attempt of another client may have raised the counter of *master* beyond the
    fencing token. Without this only the other masters would count until the lease ends.
    When a majority has lifted its counters, no other acquisition can get a fencing token up
    to that value. Therefore the key is restored on *master*, although its counter is higher.
    """
    claim = hold.claim
    counter = claim.counter
    if counter is None or ceiling >= NEVER or not hold.valid(masters.clock()):
        return

    def restore(verdict: Outcome) -> None:
        # The lease may have ended since the lift was sent; `send_to` tests that. After any other
        # verdict a client could still get a token up to the ceiling, and this master would count
        # for a lease whose token is lower.
        if verdict is WON:
            Restoration(masters, hold, ceiling).send_to(master)

    payload = counter.lift(claim.token, claim.fence, ceiling)
    # What a quarantined master has lifted does not count: it may forget it again.
    masters.send(Query(masters, payload, in_quarantine=COUNT_REFUSALS, then=restore))


def keep(masters: MasterSet, hold: HeldLease, left: int) -> Query:
    """
    Keep the key of a lease that was released for *left* ms more, for *hold_at_least*.

    If a master hung, or the connection ended before the reply, it may still execute the
    request later, and would keep the key for the full time from then on. After an error, or
    if its counter is beyond the fencing token, the key keeps the ttl of the lease. Such a
    master gets a release when the time is over. One that has granted the request in time
    needs none, also if it lacked the script at first: the key ends by itself.
    """
    claim, links, until = hold.claim, masters.links, hold.keep_until
    lives = max(hold.longest_ttl, left)

    def release(master: int) -> None:
        if not masters.closed:
            links[master].add_debt(claim.release(), lives)

    def count(master: int, reply: object) -> object:
        # 0 or -1: the key is gone, or is that of another holder.
        gone = isinstance(reply, int) and reply <= 0
        never_sent = claim.unsent >> master & 1
        first = asked.replies[master] is NOT_YET  # else it had timed out, or the link had ended
        if first and reply != OK and not never_sent and not gone:
            masters.loop.call_later(max(until - masters.clock(), 0.0), release, master)
        return reply

    asked = Query(
        masters,
        commands.extend(claim.extension(left)),
        in_quarantine=COUNT_REFUSALS,
        count=count,
        repeat=True,
        classify=replies.classify_kept,
    )
    masters.send(asked)
    return asked
