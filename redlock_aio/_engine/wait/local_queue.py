"""
The local queue: the tasks of one process that want the same resource.

One task has the turn: it sends requests to the masters, or holds the lock. The others
wait for the turn. A process that passes a lock from task to task keeps all other
processes out, because its next attempt travels right behind its own release. After a
tenure it therefore pauses, and other processes can go first.

Nothing here sends a request to a master or reads a clock.
"""

import asyncio
import math
from collections.abc import Callable
from typing import Protocol

from redlock_aio._engine.masters import Round
from redlock_aio._protocol import replies
from redlock_aio._protocol.primitives import (
    FencingCounter,
    JointMutex,
    LockKey,
    Mutex,
    Permits,
    Share,
)
from redlock_aio._rules.absence import CROWDED_TENURE, Absence
from redlock_aio._rules.blockers import Blockers
from redlock_aio._rules.retry import LONGEST_SPREAD, STEADY

TENURE = 0.02
"""Seconds for which a process may pass the lock from task to task before others may try."""

LONGEST_TENURE = 1.0
"""The greatest tenure in seconds: each pause that no other process uses doubles it, up to this."""

ALONE = 40
"""
The shortest tenure in round trips while no other process has been seen. A pause costs one round
trip: a process that is alone with a resource loses 2.5 %, however far the masters are.
"""

SEEN = 3
"""The pauses without an acquisition by others after which a process counts as alone again."""

YIELD_TIME = 0.0005
"""Seconds of a pause beyond two rounds: the time until tasks of other processes run."""

RECHECKED = 0.01
"""Seconds in which all readers of a process check their keys once."""

IDLE_QUEUES = 256
"""The number of queues at which idle ones are dropped for the first time."""


class Party(Protocol):
    """
    One that hears of changes of the key: a lease, or a task that waits.

    The lease checks its key then: a `HeldLease`. A task that waits asks for the lock: a
    `Watch`, a `FairWaiter`, or the `Pause` of an adoption.
    """

    @property
    def member(self) -> bytes:
        """Its name in the masters' queues; empty without a queue."""

    def changed(self, master: int) -> None:
        """Called when others may have changed the key on the master with this number."""

    def on_local_release(self) -> None:
        """
        Called when a lease of this process was released.

        Masters do not push that: the connection that changes a key gets no push for it (NOLOOP).
        """


class LocalPlace:
    """
    The place of one task in a local queue.

    Attributes:
        has_turn: Whether its turn has come.
    """

    __slots__ = ("_bell", "has_turn")

    def __init__(self) -> None:
        self.has_turn: bool = False
        self._bell: asyncio.Future[None] | None = None

    async def wait(self, loop: asyncio.AbstractEventLoop, seconds: float = math.inf) -> None:
        """
        Wait until the turn has come, for at most *seconds*.

        Cancellation:
            The turn may have come: `LocalQueue.leave` passes it on.
        """
        if self.has_turn:
            return
        # Not `asyncio.wait`, which resumes the task one turn of the loop later: its request would
        # miss the batch in which the lease before it is released.
        self._bell = bell = loop.create_future()
        timer = loop.call_later(seconds, _ring, bell) if seconds < math.inf else None
        try:
            await bell
        finally:
            if timer is not None:
                timer.cancel()

    def give_turn(self) -> bool:
        """Give the turn to the task, and wake it; return False if it was cancelled."""
        if self._bell is not None:
            if self._bell.cancelled():
                return False
            _ring(self._bell)
        self.has_turn = True
        return True


def _ring(bell: asyncio.Future[None]) -> None:
    if not bell.done():
        bell.set_result(None)


class LocalQueue:
    """
    The holder of a resource in this process, the task that has the turn, and its waiters.

    Attributes:
        contending: Whether a task has the turn and no lease yet. Of the tasks in the queue only
            this one asks the masters.

        readers: The leases of this process that share the resource. Nobody has the turn for
            them: they wait in the masters' queues, as guests.

        known: The last attempt that a task with the turn has made in vain, what blocked it, and
            how many seconds it took; ``None`` if there is none since the last lease, or nobody has
            the turn.

        watcher: The task whose turn it is, while it waits for a push of a master.

        onlookers: Those that want to know who holds the resource, and not to hold it; see
            `admin.watch`. They don't count as waiters.

        guests: Those that wait for a push without a turn: in the masters' queues (fair), with
            limited attempts, for a lock of several resources, or for the end of a turn that
            comes too late.

        since: The start of the tenure: since then the lock has only been passed on within this
            process, and no other process could go first. On the clock of leases.

        open_at: The end of the last pause for other processes, on the clock of leases. Until
            then a task whose turn comes does not ask.

        round_trip: The duration of the last acquisition in seconds, which measures the pause.

        spread: The seconds over which attempts are spread after split votes.

        absence: How long this process stays away; ``None`` if it never waited for others.
    """

    __slots__ = (
        "_others", "_queue", "_rechecked_at", "_tenure", "_tried_by", "absence", "contending",
        "counter", "guests", "holder", "known", "onlookers", "open_at", "readers", "round_trip",
        "since", "spread", "watcher",
    )  # fmt: skip

    def __init__(self) -> None:
        self.absence: Absence | None = None
        self.contending: bool = False
        self.counter: FencingCounter | None = None
        self.holder: Party | None = None
        self.readers: dict[Party, None] | None = None
        self.onlookers: dict[Party, None] | None = None
        self.known: tuple[Round, Blockers, float] | None = None
        self.watcher: Party | None = None
        self.guests: dict[Party, None] | None = None
        # A dict keeps the order, and removes a task in constant time.
        # Made when the first task waits: most of many resources never have a second task.
        self._queue: dict[LocalPlace, None] | None = None
        self.since: float = 0.0
        self.open_at: float = 0.0
        self._tried_by = 0.0  # until when others try that were woken by the last release
        self.round_trip: float = 0.0
        self.spread: float = 0.0
        self._tenure = TENURE
        self._rechecked_at = -math.inf
        self._others = 0  # more than 0 if other processes used one of the last `SEEN` pauses

    def __repr__(self) -> str:
        return f"<LocalQueue, {'taken' if self.taken else 'free'}, {len(self._queue or ())} wait>"

    @property
    def taken(self) -> bool:
        return self.contending or self.holder is not None

    @property
    def idle(self) -> bool:
        held = self.contending or self.holder is not None or self.readers
        return not (held or self.guests or self.onlookers)

    @property
    def waiters(self) -> list[object]:
        """One object for each waiting task; a joint queue shares its objects with its queues."""
        watching = [] if self.watcher is None else [self.watcher]
        return [*(self._queue or ()), *watching, *(self.guests or ())]

    def counter_of(self, key: LockKey, lead: int) -> FencingCounter:
        if self.counter is None:
            self.counter = key.counter(lead)
        return self.counter

    # Turns.

    def join(self, place: LocalPlace) -> None:
        if self._queue is None:
            self._queue = {}
        self._queue[place] = None

    def leave(self, place: LocalPlace) -> None:
        """Remove *place* from the queue; a turn that has come is passed on."""
        if self._queue is not None:
            self._queue.pop(place, None)
        # `_next` may have given the turn to a task that was cancelled before it ran again.
        if place.has_turn:
            self.give_up()

    def take_turn(self) -> bool:
        if self.contending or self.holder is not None:
            return False
        self.contending = True
        return True

    def give_up(self) -> None:
        """End a turn without a lease."""
        self.contending = False
        self._next()
        if not self.contending:
            self.known = None  # else the next one has the turn, and knows no more at first

    def on_acquired(self, holder: Party, began: float, now: float) -> None:
        """End a turn with a lease, whose attempt had *began* then."""
        self.contending, self.known = False, None
        self.set_holder(holder)
        if began > self._tried_by:
            self.since = now  # other processes could go first: a new tenure begins
            if self.absence is not None:
                self.absence.on_acquired()
        self.round_trip = now - began

    def set_holder(self, holder: Party) -> None:
        """Set the lease that has the lock; a lease before it is made to check its key."""
        before, self.holder = self.holder, holder
        if before is not None and before is not holder:
            before.changed(0)  # the masters have granted the lock to another lease since
        if self.readers:
            for reader in self.readers:
                reader.changed(0)  # likewise
        if self.onlookers:
            self._tell_onlookers()

    def add_reader(self, reader: Party) -> None:
        """Add a lease that shares the resource; a lease that has it alone checks its key."""
        if self.readers is None:
            self.readers = {}
        self.readers[reader] = None
        if self.holder is not None:
            self.holder.changed(0)
        self._tell_onlookers()

    def recheck_a_reader(self) -> None:
        """
        Let one reader check its key, after a change that this process has made.

        The readers of a process have one connection to each master. By its own change, that
        connection ends the tracking of the key that the check of another reader began (NOLOOP):
        nobody here would hear of a forced release. The check begins it anew, for all of them.
        """
        for reader in self.readers or ():
            reader.changed(0)
            return

    def recheck_readers(self, now: float) -> None:
        """
        Let all readers check their keys, after one of them has found its share gone.

        If they checked one after the other, as each of them ends, the last of many would still
        read when a forced release lets others in. Those that end in this wave begin no other.
        """
        if now > self._rechecked_at + RECHECKED:
            self._rechecked_at = now
            for reader in self.readers or ():
                reader.changed(0)

    def on_lease_ended(self, holder: Party, now: float) -> None:
        """Called when a lease has ended; its release, if there is one, was sent before."""
        if self.readers and holder in self.readers:
            del self.readers[holder]
            self.recheck_a_reader()
        if self.onlookers:
            self._tell_onlookers()
        if self.holder is holder:
            self.holder = None
            # By this instant other processes that the release woke have tried. A process whose
            # attempt is being refused at this moment needs one round to get the refusal, and
            # another one to find the lock free: its next request then leaves half a round
            # before the next one of this process.
            self._tried_by = tried_by = now + 2 * self.round_trip + YIELD_TIME
            kept = now - self.since
            tenure = self._tenure
            if self.absence is not None and self.absence.on_lease_ended(now):
                tenure = min(tenure, CROWDED_TENURE)
            if kept >= tenure and (self._others or kept >= ALONE * self.round_trip):
                self.open_at = tried_by
        # The release was sent before: what a waiter asks now follows it on each connection.
        if self.guests or self.watcher is not None:
            self.notify_released()  # the watcher as well: the lease may have been won out of turn
        if self._queue:
            self._next()

    def _next(self) -> None:
        queue = self._queue
        while queue and not self.taken:
            place = next(iter(queue))
            del queue[place]
            # At once, and not when that task runs: another one could take the turn before.
            self.contending = place.give_turn()

    # Notifications.

    def subscribe(self, party: Party, *, mine: bool) -> None:
        """Notify *party* of changes until `unsubscribe`; *mine*: it has the turn."""
        if mine:
            self.watcher = party
        else:
            self.guests = self.guests or {}
            self.guests[party] = None

    def unsubscribe(self, party: Party) -> None:
        if self.watcher is party:
            self.watcher = None
        elif self.guests is not None:
            self.guests.pop(party, None)

    def add_onlooker(self, party: Party) -> None:
        """Notify *party* of changes until `remove_onlooker`."""
        self.onlookers = self.onlookers or {}
        self.onlookers[party] = None

    def remove_onlooker(self, party: Party) -> None:
        if self.onlookers is not None:
            self.onlookers.pop(party, None)

    def _tell_onlookers(self) -> None:
        for party in self.onlookers or ():
            party.on_local_release()

    def changed(self, master: int) -> None:
        self._tell_onlookers()
        if self.holder is not None:
            self.holder.changed(master)
        for reader in self.readers or ():
            reader.changed(master)
        self.notify_released(master)

    def notify_released(self, master: int | None = None) -> None:
        """
        Notify the watcher and the guests that the lock may be free.

        Tasks that wait for the turn are not notified: they follow the watcher.

        Args:
            master: The master on which it may be free; all of them if left out.
        """
        self._tell_onlookers()
        for party in (self.watcher, *(self.guests or ())):
            if party is not None and master is None:
                party.on_local_release()
            elif party is not None:
                party.changed(master)

    # Pauses for other processes.

    def yield_delay(self, now: float) -> float:
        return max(self.open_at - now, 0.0)

    def on_yield_result(self, by_others: bool) -> None:
        """Adapt the tenure after a pause: reset it if others acquired the lock, else double it."""
        # One unused pause proves little: contenders may have split their votes, or may have
        # acquired and released the lock before the attempt of this process.
        self._others = SEEN if by_others else max(self._others - 1, 0)
        # Other processes could go first: the next lease of this process begins a new tenure,
        # even if the timer of the pause fired a little early.
        self._tried_by = 0.0
        self._tenure = TENURE if by_others else min(2 * self._tenure, LONGEST_TENURE)

    def adapt_jitter(self, split: bool, took: float) -> None:
        """Adapt the jitter after a failed attempt: double it after a split vote, else shrink it."""
        if split:
            self.spread = min(max(2 * self.spread, 4 * took), LONGEST_SPREAD)
        else:
            self.spread *= STEADY


class JointQueue(LocalQueue):
    """
    The local queue of several resources that are locked together.

    The queue of each single resource reports its changes to the waiters of this queue. A lease
    is the holder here and in each of those queues. A task that waits here takes no turn
    there: no task waits for one turn while it has another.
    """

    __slots__ = ("_find", "_keys")

    def __init__(self, keys: JointMutex, find: Callable[[Mutex], LocalQueue]) -> None:
        super().__init__()
        self._keys = keys
        self._find = find

    def set_holder(self, holder: Party) -> None:
        super().set_holder(holder)
        for key in self._keys:
            self._find(key).set_holder(holder)

    def on_lease_ended(self, holder: Party, now: float) -> None:
        super().on_lease_ended(holder, now)
        for key in self._keys:
            self._find(key).on_lease_ended(holder, now)

    def subscribe(self, party: Party, *, mine: bool) -> None:
        super().subscribe(party, mine=mine)
        for key in self._keys:
            self._find(key).subscribe(party, mine=False)

    def unsubscribe(self, party: Party) -> None:
        super().unsubscribe(party)
        for key in self._keys:
            self._find(key).unsubscribe(party)


class LocalQueues:
    """
    The local queues of one session, and the pushes of the masters for them.

    Attributes:
        owner_waiters: Callbacks of waiting tasks with an owner; called with each lease that
            an owner has acquired.
    """

    __slots__ = ("_most_queues", "by_key", "owner_waiters")

    def __init__(self) -> None:
        self.by_key: dict[bytes | LockKey | Permits, LocalQueue] = {}
        self.owner_waiters: dict[Callable[[object], None], None] = {}
        self._most_queues = IDLE_QUEUES

    def __repr__(self) -> str:
        return f"<LocalQueues of {len(self.by_key)} keys, {self.waiters} wait>"

    @property
    def waiters(self) -> int:
        queues = list(self.by_key.values())  # copied in one step, see `Session.statistics`
        return len({waiter for queue in queues for waiter in queue.waiters})

    def of(self, key: LockKey | Permits) -> LocalQueue:
        queues = self.by_key
        queue = queues.get(key)
        if queue is None:
            if isinstance(key, Share):  # it has the queue of its key
                return self.of(key.lock)
            if len(queues) >= self._most_queues:
                self.by_key = queues = {k: queue for k, queue in queues.items() if not queue.idle}
                self._most_queues = 2 * len(queues) + IDLE_QUEUES
            queues[key] = queue = (
                JointQueue(key, self.of) if isinstance(key, JointMutex) else LocalQueue()
            )
        return queue

    def held(self, key: Mutex) -> list[Party]:
        """Return the leases of this process on *key*: of one that has it alone, and of readers."""
        queue = self.by_key.get(key)
        if queue is None:
            return []
        return [*(() if queue.holder is None else (queue.holder,)), *(queue.readers or ())]

    def on_push(self, master: int, push: object) -> None:
        changed = replies.changed(push)
        if changed is None:
            # A flush, or a new connection: what changed before it was tracked is not known.
            for queue in list(self.by_key.values()):
                if queue.watcher is not None or queue.guests or queue.onlookers:
                    queue.notify_released(master)
            return
        for key in changed:
            if key in self.by_key:
                self.by_key[key].changed(master)

    def notify_released(self, key: LockKey, master: int | None = None) -> None:
        """
        Notify the waiters of this process that grants without a lease are being released.

        Masters do not push that: the connection that changes a key gets no push (NOLOOP).

        Args:
            master: The master that has executed the release; if left out, the release was
                sent to all of them.
        """
        for each in key.each:
            queue = self.by_key.get(each)
            if queue is not None:
                queue.notify_released(master)
                queue.recheck_a_reader()

    def close(self) -> None:
        """Wake all waiting tasks, which then find the session closed."""
        for queue in self.by_key.values():
            queue.notify_released()
