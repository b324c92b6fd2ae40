"""
The tasks of one process that want the same resource.

They stand in line: one of them talks to the masters, or holds the lock, and the
others wait for it to pass on the turn. A process that passes a lock from task to
task keeps all other processes out, because its next attempt travels right behind
its own release; so after a while it lets them go first.

Nothing here talks to a master or reads a clock.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from redlock_aio._protocol.primitives import Counter, Key, Keys

TENURE = 0.02
"""For how many seconds a process may pass the lock on from task to task before others may try."""

LONGEST_TENURE = 1.0
"""The same if nobody has used such a chance: it is doubled each time, up to this."""

ALONE = 40
"""
The same in round trips, at least, until other processes have been seen: a pause costs one
round trip, so a process that is alone with a resource loses 2.5 % however far the masters are.
"""

SEEN = 3
"""After how many pauses in which nobody took the lock a process counts as alone again."""

YIELD_TIME = 0.0005
"""How many seconds others get to try, beside two rounds: the time for which tasks are not run."""

STEADY = 0.75
"""By which factor the spread of attempts shrinks with each that is not split."""

LONGEST_SPREAD = 0.1
"""Seconds over which attempts are spread at most."""


class Party(Protocol):
    """A lease or a waiter that is told when the key may have changed on a master."""

    def changed(self, master: int) -> None:
        """Called when others may have changed the key on the master with this number."""

    def on_local_release(self) -> None:
        """
        Called when a lease of this process was released.

        No master tells: the connection that changes a key gets no push for it (NOLOOP).
        """


class Line:
    """
    Who in this process has the lock, tries to get it, or waits for a turn to try.

    Attributes:
        contending: Whether somebody has the turn and no lease yet.

        counter: What is said about the resource's counter, once it was needed.

        holder: The lease of this process, if it has one.

        watcher: Whoever has the turn and waits for the masters.

        guests: Those who wait out of turn: in the masters' queues, or for few attempts.

        since: Since when the lock has only been passed on in this process, on
            the clock of leases.

        open_at: From when on whoever comes may ask the masters, if nobody is there.

        round_trip: How long its last acquisition took, in seconds.

        spread: Over how many seconds to spread attempts, so that contenders who
            were woken together do not split the votes again.
    """

    __slots__ = (
        "_others", "_queue", "_tenure", "_tried_by", "contending", "counter", "guests", "holder",
        "open_at", "round_trip", "since", "spread", "watcher",
    )  # fmt: skip

    def __init__(self) -> None:
        self.contending: bool = False
        self.counter: Counter | None = None
        self.holder: Party | None = None
        self.watcher: Party | None = None
        self.guests: dict[Party, None] | None = None
        # A dict keeps the order, and forgets those who leave at no cost.
        self._queue: dict[asyncio.Future[bool], None] | None = None
        self.since: float = 0.0
        self.open_at: float = 0.0
        self._tried_by = 0.0
        self.round_trip: float = 0.0
        self.spread: float = 0.0
        self._tenure = TENURE
        # More than 0 if others have taken the lock lately when they could go first.
        self._others = 0

    def __repr__(self) -> str:
        return f"<Line, {'taken' if self.taken else 'free'}, {len(self._queue or ())} wait>"

    @property
    def taken(self) -> bool:
        """Whether somebody has the lock or the turn."""
        return self.contending or self.holder is not None

    @property
    def idle(self) -> bool:
        """Whether nobody has anything to do with it."""
        return not (self.taken or self.guests)

    @property
    def waiters(self) -> list[object]:
        """The tasks that wait here, each as an object of its own that another line may have too."""
        watching = [] if self.watcher is None else [self.watcher]
        return [*(self._queue or ()), *watching, *(self.guests or ())]

    def counter_of(self, key: Key | Keys, lead: int) -> Counter:
        """Return the commands for fencing tokens of *key*; *lead* as in `Counter`."""
        if self.counter is None:
            self.counter = key.counter(lead)
        return self.counter

    def join(self, place: asyncio.Future[bool]) -> None:
        """Wait behind all others; *place* is done with ``True`` when the turn comes."""
        if self._queue is None:
            self._queue = {}
        self._queue[place] = None

    def leave(self, place: asyncio.Future[bool]) -> None:
        """Stop waiting; a turn that has come is passed on."""
        if self._queue is not None:
            self._queue.pop(place, None)
        if place.done() and not place.cancelled() and place.result():
            self.give_up()

    def take_turn(self) -> bool:
        """Take the turn if nobody has it or the lock; return whether it was taken."""
        if self.contending or self.holder is not None:
            return False
        self.contending = True
        return True

    def give_up(self) -> None:
        """End a turn that has come to nothing."""
        self.contending = False
        self._next()

    def on_acquired(self, holder: Party, began: float, now: float) -> None:
        """
        End a turn with a lease.

        Args:
            began: When the attempt was made that has won it.
        """
        self.contending = False
        self.set_holder(holder)
        if began > self._tried_by:
            self.since = now  # others have had it, or could have
        self.round_trip = now - began

    def set_holder(self, holder: Party) -> None:
        """Set the lease that has the lock, and make the one before it check its key."""
        before, self.holder = self.holder, holder
        if before is not None and before is not holder:
            before.changed(0)  # the masters have granted the lock to another one since

    def on_lease_ended(self, holder: Party, now: float) -> None:
        """Called when a lease has ended, whose release is on its way."""
        if self.holder is holder:
            self.holder = None
            # By then others have tried, if this release woke them. A process that is just
            # being refused needs one round to learn that, and another one to see that the
            # lock is free: its next request then leaves half a round before ours.
            self._tried_by = tried_by = now + 2 * self.round_trip + YIELD_TIME
            kept = now - self.since
            if kept >= self._tenure and (self._others or kept >= ALONE * self.round_trip):
                self.open_at = tried_by
        if self.guests or self.watcher is not None:
            self.notify_released()  # a watcher, too: the lease may have been had out of turn
        self._next()

    def _next(self) -> None:
        queue = self._queue
        while queue and not self.taken:
            place = next(iter(queue))
            del queue[place]
            if not place.done():
                self.contending = True
                place.set_result(True)

    def subscribe(self, party: Party, *, mine: bool) -> None:
        """Tell *party* of changes until `unsubscribe`; *mine* tells whether it has the turn."""
        if mine:
            self.watcher = party
        else:
            self.guests = self.guests or {}
            self.guests[party] = None

    def unsubscribe(self, party: Party) -> None:
        """End what `subscribe` began."""
        if self.watcher is party:
            self.watcher = None
        elif self.guests is not None:
            self.guests.pop(party, None)

    def changed(self, master: int) -> None:
        """Called when others may have changed the key on one master."""
        if self.holder is not None:
            self.holder.changed(master)
        self.notify_released(master)

    def notify_released(self, master: int | None = None) -> None:
        """
        Have those who wait for masters look again; the line follows them.

        Args:
            master: Where; everywhere if left out.
        """
        for party in (self.watcher, *(self.guests or ())):
            if party is not None and master is None:
                party.on_local_release()
            elif party is not None:
                party.changed(master)

    # Letting others go first.

    def yield_delay(self, now: float) -> float:
        """Return for how many seconds from *now* other processes are to go first, 0 for none."""
        return max(self.open_at - now, 0.0)

    def on_yield_result(self, by_others: bool) -> None:
        """Adapt the tenure after a pause: reset it if others took the lock, else double it."""
        # One pause that nobody used proves little: contenders may have split their votes,
        # or taken the lock and released it before we looked.
        self._others = SEEN if by_others else max(self._others - 1, 0)
        # They had their chance: whatever is won from now on begins a new tenure, also
        # if a timer that fires a little early ended the pause.
        self._tried_by = 0.0
        self._tenure = TENURE if by_others else min(2 * self._tenure, LONGEST_TENURE)

    def adapt_jitter(self, split: bool, took: float) -> None:
        """
        Adapt the jitter after a failed attempt: double it after a split vote, else shrink it.

        Args:
            split: Whether nobody had a majority.

            took: How many seconds it took.
        """
        if split:
            self.spread = min(max(2 * self.spread, 4 * took), LONGEST_SPREAD)
        else:
            self.spread *= STEADY


class JointLine(Line):
    """
    The tasks that want the same several resources together.

    What happens to one of these is heard in its own line. Only the lock itself is
    there and here; who waits here takes no turn there, so that nobody waits for a
    turn while he has one.

    Args:
        keys: What they want.

        find: Returns the line of one of them.
    """

    __slots__ = ("_find", "_keys")

    def __init__(self, keys: Keys, find: Callable[[Key], Line]) -> None:
        super().__init__()
        self._keys = keys
        self._find = find

    def set_holder(self, holder: Party) -> None:
        """Set the lease that has all of them."""
        super().set_holder(holder)
        for key in self._keys:
            self._find(key).set_holder(holder)

    def on_lease_ended(self, holder: Party, now: float) -> None:
        """Called when a lease has ended, whose release is on its way."""
        super().on_lease_ended(holder, now)
        for key in self._keys:
            self._find(key).on_lease_ended(holder, now)

    def subscribe(self, party: Party, *, mine: bool) -> None:
        """Tell *party* of changes of any of them until `unsubscribe`."""
        super().subscribe(party, mine=mine)
        for key in self._keys:
            self._find(key).subscribe(party, mine=False)

    def unsubscribe(self, party: Party) -> None:
        """End what `subscribe` began."""
        super().unsubscribe(party)
        for key in self._keys:
            self._find(key).unsubscribe(party)
