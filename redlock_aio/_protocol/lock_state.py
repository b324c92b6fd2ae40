"""
The state of a lock, computed from the reply of each master.

A lock is held while a majority keeps one value. A master that does not answer, or
has no vote, may keep any value, or none. Hence the third verdict: unknown.
Nothing here waits, reads a clock or opens a socket.
"""

import json
from collections import Counter as Count
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from redlock_aio._protocol import commands, primitives, replies
from redlock_aio._protocol.commands import queue_keys
from redlock_aio._protocol.request import NoReply, pack
from redlock_aio._protocol.scripts import INSPECT
from redlock_aio._rules import fencing, lock_value
from redlock_aio._rules.lock_value import Holder
from redlock_aio._rules.quorum import NOT_YET, Answer, Vote, majority

ENDLESS = 2**53
"""More ms than any ttl."""

MOST_READERS = 100
"""The most readers that a master names; the script `inspect` has the same number."""

MOST_SHOWN = 10
"""The most readers that a text names."""


@dataclass(frozen=True, slots=True)
class Reader:
    """
    One of the holders that share a lock.

    Attributes:
        holder: Who reads.

        remaining: For how many ms more, if nothing is extended.
    """

    holder: Holder
    remaining: int

    def __str__(self) -> str:
        return f"{self.holder}, {left_text(self.remaining)}"


@dataclass(frozen=True, slots=True)
class MasterView:
    """
    The state of a lock on one master.

    Attributes:
        master: The master's address, without credentials.

        answer: ``HELD`` or ``FREE``, ``QUARANTINED`` if its vote does not count, or why
            it gave no reply.

        detail: More about that, for people; never a credential or a token.

        holder: The holder of the lock there; ``None`` if nobody holds it. It is also
            reported for a master in quarantine.

        remaining: For how many ms more, if nothing is extended; ``None`` if nobody
            holds it, or it does not end.

        fencing_counter: The highest fencing token that it has counted; ``None`` if it
            has counted none.

        waiters: How many wait in its queue, with ``fair=True`` or to read.

        waiting_writers: How many of these want it for themselves.

        shared: Whether readers share it there. The *holder* is ``None`` then.

        readers: These readers; of more than 100 those that last longest.
    """

    master: str
    answer: Answer
    detail: str = ""
    holder: Holder | None = None
    remaining: int | None = None
    fencing_counter: int | None = None
    waiters: int = 0
    waiting_writers: int = 0
    shared: bool = False
    readers: tuple[Reader, ...] = ()

    def __str__(self) -> str:
        text = str(self.vote)
        if not self.kept_by:
            return harmless(text)
        who = _named(self.readers) if self.shared else str(self.holder)
        if self.answer is Answer.QUARANTINED:
            return harmless(f"{text}; keeps it for {who}, which does not count")
        if self.shared:
            return harmless(f"{self.master}: read by {who}")
        return harmless(f"{self.master}: held by {who}, {left_text(self.remaining)}")

    @property
    def kept_by(self) -> str:
        """For whom the lock is kept there: a fingerprint, or "readers"; empty if it is free."""
        if self.shared:
            return "readers"
        return "" if self.holder is None else self.holder.fingerprint

    @property
    def counts(self) -> bool:
        """Whether the master's reply counts: it has a vote, and has answered."""
        return self.answer in (Answer.HELD, Answer.FREE)

    @property
    def vote(self) -> Vote:
        """The answer as a vote."""
        return Vote(self.master, self.answer, self.detail)


@dataclass(frozen=True, slots=True)
class LockState:
    """
    The state of a lock on all masters, as `Redlock.inspect` and `Redlock.watch` return it.

    It is a snapshot. While a client acquires or releases the lock, some masters are
    ahead of others, and the votes look `split` or `orphaned` for that moment. Votes
    that stay like that need attention.

    ``print(state)`` shows it in a few lines.

    Attributes:
        resource: The name that is locked.

        holder: The holder on a majority of the masters; ``None`` if there is none, or if
            readers share it.

        remaining: In how many ms a majority no longer keeps it, if nothing is
            extended; ``None`` if nobody holds it, or it does not end.

        fencing_counter: The highest fencing token that a master has counted; ``None``
            if none has.

        waiters: How many wait with ``fair=True`` or to read, on the master where most do.
            The masters do not know of other waiters.

        views: The state of the lock on each master.

        waiting_writers: How many of the waiters want it for themselves.

        shared: Whether a majority of the masters keeps it for readers.

        readers: The readers that a majority keeps it for, the one that lasts longest first;
            of more than 100 not all.
    """

    resource: str
    holder: Holder | None
    remaining: int | None
    fencing_counter: int | None
    waiters: int
    views: tuple[MasterView, ...]
    waiting_writers: int = 0
    shared: bool = False
    readers: tuple[Reader, ...] = ()

    @property
    def locked(self) -> bool:
        """Whether a majority of the masters keeps it for one holder, or readers; see `certain`."""
        return self.holder is not None or self.shared

    @property
    def facts(self) -> tuple[object, ...]:
        """What makes a state another one than before: who has the lock, and how sure that is."""
        readers = frozenset(reader.holder.fingerprint for reader in self.readers)
        if any(len(view.readers) >= MOST_READERS for view in self.views):
            readers = frozenset()  # of very many, others are named each time
        return self._whose, readers, self.locked, self.certain, self.split

    @property
    def certain(self) -> bool:
        """Whether the masters that have not answered, or have no vote, can't change `locked`."""
        return is_kept(self._kept, self._unknown, len(self.views)) is not None

    @property
    def split(self) -> bool:
        """Whether several holders have it on some masters, and none on a majority."""
        return not self.locked and len(set(self._kept)) > 1

    @property
    def orphaned(self) -> tuple[MasterView, ...]:
        """The masters that keep it for a holder without a majority."""
        return tuple(view for view in self.views if view.kept_by not in {"", self._whose})

    @property
    def _whose(self) -> str:
        if self.shared:
            return "readers"
        return "" if self.holder is None else self.holder.fingerprint

    @property
    def _kept(self) -> list[str]:
        return [view.kept_by for view in self.views if view.counts and view.kept_by]

    @property
    def _unknown(self) -> int:
        return sum(not view.counts for view in self.views)

    def __str__(self) -> str:
        return "\n".join(
            [f"{self.resource!r} {self._verdict()}", *(f"  {view}" for view in self.views)]
        )

    def _verdict(self) -> str:
        more = [f"{self.waiters} wait"] if self.waiters else []
        if self.waiters and self.waiting_writers < self.waiters:
            more = [f"{self.waiters} wait, {self.waiting_writers} of them to write"]
        if self.fencing_counter is not None:
            more.append(f"fencing counter {self.fencing_counter}")
        on = f"on {self._kept.count(self._whose)} of {len(self.views)} masters"
        if self.shared:
            more_than = any(len(its.readers) >= MOST_READERS for its in self.views)
            text = f"is read by {len(self.readers) or 'nobody any more'}{'+' * more_than} {on}"
            if self.readers:
                more.insert(0, _named(self.readers))
        elif self.holder is not None:
            text = f"is held by {self.holder} {on}"
            more.insert(0, left_text(self.remaining))
            if self.holder.metadata:
                more.append(json.dumps(self.holder.metadata, ensure_ascii=False))
        elif not self.certain:
            text = "may be held: too few masters have answered to tell"
        elif self.split:
            text = "is held by nobody: the votes are split"
        else:
            text = "is held by a minority only" if self._kept else "is held by nobody"
        return harmless(", ".join([text, *more]))


@dataclass(frozen=True, slots=True)
class FoundLocks:
    """
    The locks and semaphores that `Redlock.find_locks` has found.

    Attributes:
        states: The state of each lock that any master keeps, in the order of their names.

        complete: Whether none is missing: enough masters with a vote were scanned to
            their ends, and have shown the states of the locks, and there was no more than the
            limit.

        votes: ``HELD`` or ``FREE`` for each master that was scanned, which says whether it
            has keys of such locks or permits; else why it was not, or why it has not shown the
            state of a lock that is missing for that reason.

        semaphores: How many permits are held of each semaphore of which any master keeps one, by
            name, in their order. `Semaphore.inspect` shows who holds them.
    """

    states: tuple[LockState, ...]
    complete: bool
    votes: tuple[Vote, ...]
    semaphores: Mapping[str, int] = field(default_factory=dict, hash=False)


class KeyState(NamedTuple):
    """
    The reply of a master to `inspect`, parsed.

    Attributes:
        left: The remaining ms of the key, `ENDLESS` if it does not end.
    """

    value: bytes | None
    left: int
    counter: int | None
    waiters: int
    writers: int
    """How many of the waiters want the lock for themselves."""
    shares: tuple[tuple[bytes, int], ...]
    """The value of each reader, with its remaining ms; at most 100."""


class MasterReply(NamedTuple):
    """The reply of one master, its age in ms, and why the master has no vote (empty if it has)."""

    master: str
    reply: object
    age: int = 0
    quarantine: str = ""


def inspect(key: bytes) -> bytes:
    """Return the command that reads the lock *key*, its counter, its queue and its shares."""
    counters = primitives.FencingCounter((key,), 0).keys
    keys = (key, *counters, *queue_keys(key), commands.shares_key(key))
    return pack(b"EVALSHA", INSPECT.sha, b"4", *keys)


def key_state(reply: object) -> KeyState | None:
    """Parse the reply to `inspect`; ``None`` if it is malformed."""
    if not isinstance(reply, list) or len(reply) < 5:
        return None
    value, left, counter, waiters, writers, *shares = reply
    if {type(left), type(waiters), type(writers)} != {int} or not isinstance(value, bytes | None):
        return None
    digits = counter.partition(fencing.MARK)[0] if isinstance(counter, bytes) else b""
    count = int(digits) if is_number(digits) else None
    readers = tuple(
        (token, ms)
        for token, ms in zip(shares[::2], shares[1::2], strict=False)
        if isinstance(token, bytes) and isinstance(ms, int)
    )
    ends = left if left >= 0 else ENDLESS
    return KeyState(value, ends, count or None, max(waiters, 0), max(writers, 0), readers)


def objection(reply: object) -> str:
    """
    Return why the key in a *reply* to `inspect` can't be a lock; empty if it can.

    It is empty as well if the key does not exist, or the reply has none. A lock is a
    string of at most 2 KiB that ends by itself. A value with a token of this library is
    a lock even if another client has removed its ttl.
    """
    if replies.is_of_another_type(reply):
        return replies.classify(reply).detail.removeprefix("WRONGTYPE ")
    state = key_state(reply)
    if state is None or state.value is None:
        return ""
    if len(state.value) > lock_value.LONGEST:
        return f"the key holds more than {lock_value.LONGEST:,} bytes, so it is no lock"
    if state.value == lock_value.SHARED:
        return ""
    if state.left == ENDLESS and not lock_value.TOKEN.match(state.value):
        return "the key has no ttl, and every lock has one"
    return ""


def is_number(text: bytes) -> bool:
    return text.isdigit() and len(text) <= 20 and int(text) <= commands.NEVER


def is_kept(kept: Sequence[Hashable], unknown: int, masters: int) -> bool | None:
    """
    Return whether a majority of *masters* keeps one value; ``None`` if it is not known.

    Args:
        kept: The values on the masters whose replies count.

        unknown: The number of masters that may keep any value.
    """
    most = max(Count(kept).values(), default=0)
    if most >= majority(masters):
        return True
    return None if most + unknown >= majority(masters) else False


def view(of_master: MasterReply) -> MasterView:
    """Return the state of the lock on one master, without its token."""
    state = key_state(of_master.reply)
    if state is None:
        vote = no_reply_vote(of_master)
        return MasterView(vote.master, vote.answer, vote.detail)
    answer = Answer.FREE if state.value is None else Answer.HELD
    ends = state.value is not None and state.left < ENDLESS
    shared = state.value == lock_value.SHARED
    return MasterView(
        of_master.master,
        Answer.QUARANTINED if of_master.quarantine else answer,
        of_master.quarantine,
        None if state.value is None or shared else lock_value.holder(state.value),
        max(state.left - of_master.age, 0) if ends else None,
        state.counter,
        state.waiters,
        state.writers,
        shared,
        tuple(
            Reader(lock_value.holder(token), max(left - of_master.age, 0))
            for token, left in reversed(state.shares)
        ),
    )


def no_reply_vote(of_master: MasterReply) -> Vote:
    """Return why a master has not given the reply that was asked for."""
    reply = of_master.reply
    if not (isinstance(reply, NoReply | Exception) or reply is NOT_YET):
        reply = Exception(f"a malformed reply: a {type(reply).__name__}")
    return replies.vote(of_master.master, reply, replies.classify)


def lock_state(resource: str, replies: Sequence[MasterReply]) -> LockState:
    views = tuple(map(view, replies))
    kept: dict[bytes, list[MasterView]] = {}
    for one, its in zip(replies, views, strict=True):
        state = key_state(one.reply)
        if its.counts and state is not None and state.value is not None:
            kept.setdefault(state.value, []).append(its)
    needed = majority(len(views))
    keep = next((those for those in kept.values() if len(those) >= needed), None)
    return LockState(
        resource,
        None if keep is None else keep[0].holder,
        None if keep is None else remaining([its.remaining for its in keep], needed),
        max((its.fencing_counter for its in views if its.fencing_counter), default=None),
        max((its.waiters for its in views), default=0),
        views,
        max((its.waiting_writers for its in views), default=0),
        keep is not None and keep[0].shared,
        () if keep is None else _readers(keep, needed),
    )


def _readers(views: Sequence[MasterView], needed: int) -> tuple[Reader, ...]:
    """Return the readers that so many of *views* name, with the time for which these keep it."""
    found: dict[str, list[Reader]] = {}
    for reader in [reader for its in views for reader in its.readers]:
        found.setdefault(reader.holder.fingerprint, []).append(reader)
    kept = [
        Reader(those[0].holder, sorted(each.remaining for each in those)[-needed])
        for those in found.values()
        if len(those) >= needed
    ]
    return tuple(sorted(kept, key=lambda reader: -reader.remaining))


def remaining(left: Sequence[int | None], needed: int) -> int | None:
    """Return the ms until fewer than *needed* masters keep the lock; ``None`` for never."""
    lasting = sorted((ENDLESS if ms is None else ms for ms in left), reverse=True)
    return lasting[needed - 1] if lasting[needed - 1] < ENDLESS else None


def _named(readers: Sequence[Reader]) -> str:
    more = len(readers) - MOST_SHOWN
    texts = [*map(str, readers[:MOST_SHOWN]), *([f"{more} more"] if more > 0 else [])]
    return "; ".join(texts) or "readers"


def left_text(ms: int | None) -> str:
    return "without an end" if ms is None else f"{ms} ms left"


def harmless(text: str) -> str:
    """Return *text* on one line: other programs write names and metadata."""
    return "".join(c if c.isprintable() else " " for c in text)
