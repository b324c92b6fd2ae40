"""
The kinds of locks, as commands: one key, several at once, a share of one, and fencing counters.

`Resources` makes the kind of lock that belongs to the names which a user gives.

One key is set and restored by the SET command that other libraries use too. Several keys
are set and restored by scripts that change all of them or none. The scripts that extend,
release and look are the same for both. A share of a key is held beside those of other
readers; its scripts keep a set of them.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar, Literal, TypeAlias

from redlock_aio._protocol import commands, scripts
from redlock_aio._protocol.commands import Extension, QueueEntry, hash_tagged
from redlock_aio._protocol.request import bulk, pack
from redlock_aio._protocol.scripts import (
    ACQUIRE,
    ACQUIRE_ALL,
    DROP_PERMITS,
    ENQUEUE_PERMIT,
    ENQUEUE_SHARED,
    LEAVE_PERMIT,
    LEAVE_SHARED,
    LIFT,
    RAISE,
    RELEASE,
    RESTORE_FENCED,
    TAKE_PERMIT,
)
from redlock_aio._protocol.tags import PLACEHOLDER
from redlock_aio._rules.fencing import KEPT, SHORTEST_LEAD
from redlock_aio._rules.validation import MOST_RESOURCES, described, text

RESERVED = b"redlock_aio:"
"""The prefix of this library's keys on the masters other than the locks."""

Mode: TypeAlias = Literal["exclusive", "shared", "permit"]
"""How a lease has its resource: see `redlock_aio.events`, which gives it to listeners."""

MOST_NAMES = 1_000
"""The number of names that are cached with their keys, so that each is checked once."""


class FencingCounter:
    """
    The commands about the fencing counter of one resource, or of several.

    The counters of resources that are locked together get the same value, one beyond the
    highest of them. One token is then higher than every earlier token of each resource.

    Args:
        lead: The most us by which a proposal may differ from a master's clock.
    """

    __slots__ = ("_head", "_keys", "_lead", "keys")

    def __init__(self, keys: Sequence[bytes], lead: int) -> None:
        self.keys: tuple[bytes, ...] = tuple(
            b"redlock_aio:fence:" + hash_tagged(key) for key in keys
        )
        self._keys = (b"%d" % (2 * len(keys)), *keys, *self.keys)
        self._lead = max(lead, SHORTEST_LEAD)
        # The part that all acquisitions have in common is packed once.
        script = ACQUIRE_ALL if len(keys) > 1 else ACQUIRE
        self._head = b"*%d\r\n%b" % (
            9 + 2 * len(keys), bulk(b"EVALSHA", script.sha, *self._keys),
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"<FencingCounter {self.keys!r}>"

    @property
    def lead(self) -> int:
        return self._lead

    def acquire(self, token: bytes, ttl: int, proposal: int, patience: int) -> bytes:
        """
        Return the command that grants the lock to *token*, if nobody has it.

        Args:
            proposal: The least value for the counter: the masters' time in us.

            patience: The us after the proposal from which the command is refused as too late.
        """
        digits = b"%d" % ttl
        lead = self._lead
        # The master compares whole seconds only, so the limit is 1 s earlier here.
        late = (patience if patience < lead else lead) - 1_000_000  # noqa: FURB136 - faster
        return _ACQUIRE % (
            self._head, len(token), token, len(digits), digits, proposal,
            max(proposal - lead, 0), min(proposal + late, _LAST_TIME), _KEPT,
        )  # fmt: skip

    def raise_to(self, value: int, token: bytes) -> bytes:
        """Return the command that raises the counter to *value*, if the lock has *token*."""
        return pack(b"EVALSHA", RAISE.sha, *self._keys, token, b"%016d" % value, _KEPT)

    def extension(self, token: bytes, ttl: int, fence: int) -> Extension:
        """
        Return the part of `commands.extend` that sets the ttl of the lock to *ttl* ms.

        Args:
            fence: The fencing token; a master whose counter is beyond it refuses,
                unless `lift` or `restore` has marked the counter with it.
        """
        keys, own = self._keys[1:], b"%016d" % fence
        return commands.extension(keys, len(self.keys), token, ttl, own)

    def lift(self, token: bytes, fence: int, ceiling: int) -> bytes:
        """Return the command that raises the counters to *ceiling* and marks them with *fence*."""
        own, least = b"%016d" % fence, b"%016d" % ceiling
        return pack(b"EVALSHA", LIFT.sha, *self._keys, token, own, least, _KEPT)

    def restore(self, token: bytes, ttl: int, fence: int, ceiling: int = 0) -> bytes:
        """
        Return the command that sets the lock for *ttl* ms again where it is free.

        Args:
            ceiling: The value to which a majority has lifted its counters; 0 if none has.
        """
        own, most = b"%016d" % fence, b"%016d" % max(fence, ceiling)
        lives = b"%d" % ttl
        return pack(b"EVALSHA", RESTORE_FENCED.sha, *self._keys, token, lives, own, most, _KEPT)

    def proposed(self, proposal: int) -> tuple[bytes, ...]:
        """Return the arguments of `commands.enqueue` that request a fencing token."""
        return b"%d" % proposal, b"%d" % self._lead, _KEPT


_KEPT = b"%d" % KEPT

_LAST_TIME = 10**16 - 1

_ACQUIRE = (
    b"%b$%d\r\n%b\r\n$%d\r\n%b\r\n$16\r\n%016d\r\n$16\r\n%016d\r\n$16\r\n%016d\r\n$9\r\n%b\r\n"
)

Setting: TypeAlias = "Callable[[Mutex, bytes, int], bytes]"
"""A function that packs the command that sets a key to a token for a ttl in ms."""

FreeCommand: TypeAlias = "Callable[[Mutex, bytes], bytes]"
"""A function that packs the command that deletes a key if its value is a token."""


class _Locked:
    __slots__ = ()
    is_share: ClassVar[bool] = False
    mode: ClassVar[Mode] = "exclusive"

    @property
    def member_mark(self) -> bytes:
        """The end of the name of each member of its queues."""
        return b""

    @property
    def each(self) -> tuple["Mutex", ...]:
        """Every single key of it."""
        raise NotImplementedError

    def look(self, _token: bytes) -> bytes:
        """Return the command whose reply `is_kept` and `is_free` read."""
        return commands.look(*self.each)

    def enqueue(
        self,
        token: bytes,
        ttl: int,
        entry: QueueEntry,
        counter: "FencingCounter | None" = None,
        proposal: int = 0,
    ) -> bytes:
        """Return `commands.enqueue`, with *proposal* for the value of *counter*."""
        keys = with_queues(self)
        if counter is None:
            return commands.enqueue(keys, token, ttl, entry)
        keys += counter.keys
        return commands.enqueue(keys, token, ttl, entry, counter.proposed(proposal))

    def leave(
        self,
        token: bytes,
        member: bytes,
        *,
        keep_place: bool = False,
        keep_key: bool = False,
    ) -> bytes:
        keys = with_queues(self)
        return commands.leave(keys, token, member, keep_place=keep_place, keep_key=keep_key)

    def is_kept(self, reply: object, token: bytes) -> bool:
        return reply == [token] * len(self.each)

    def is_free(self, reply: object) -> bool:
        return reply == [None] * len(self.each)

    def counter(self, lead: int) -> FencingCounter:
        return FencingCounter(self.each, lead)


class Mutex(bytes, _Locked):
    """One key; its commands are packed in `commands`."""

    __slots__ = ()
    acquire: ClassVar[Setting] = commands.acquire
    free: ClassVar["FreeCommand | None"] = commands.free
    """The release by DELIFEQ, which some servers have; ``None`` if it takes more than that."""
    release: ClassVar[FreeCommand] = commands.release
    restore: ClassVar[Setting] = commands.acquire

    def extension(self, token: bytes, ttl: int) -> Extension:
        return commands.extension((self,), 1, token, ttl)

    @property
    def each(self) -> tuple["Mutex", ...]:
        return (self,)


class JointMutex(tuple[Mutex, ...], _Locked):
    """Several keys that are locked together; they are sorted, whatever order the caller uses."""

    __slots__ = ()
    free: ClassVar[None] = None

    @property
    def each(self) -> tuple[Mutex, ...]:
        return self

    def acquire(self, token: bytes, ttl: int) -> bytes:
        return self._packed(ACQUIRE_ALL, token, b"%d" % ttl)

    def extension(self, token: bytes, ttl: int) -> Extension:
        return commands.extension(self, len(self), token, ttl)

    def restore(self, token: bytes, ttl: int) -> bytes:
        """Return the command that extends all keys, and restores those that are gone."""
        return commands.extend(self.extension(token, ttl), again=True)

    def release(self, token: bytes) -> bytes:
        return self._packed(RELEASE, token)

    def _packed(self, script: scripts.Script, *arguments: bytes) -> bytes:
        return pack(b"EVALSHA", script.sha, b"%d" % len(self), *self, *arguments)


@dataclass(frozen=True, slots=True)
class Share:
    """
    A share of a key: many readers hold it at once, and nobody has the key for itself meanwhile.

    It is no `bytes`, so that it does not equal its key.
    """

    lock: Mutex
    is_share: ClassVar[bool] = True
    mode: ClassVar[Mode] = "shared"
    member_mark: ClassVar[bytes] = commands.READS
    free: ClassVar[None] = None

    def __repr__(self) -> str:
        return f"Share({bytes(self.lock)!r})"

    @property
    def each(self) -> tuple[Mutex, ...]:
        return (self.lock,)

    def look(self, token: bytes) -> bytes:
        return commands.look_shared(self.lock, commands.shares_key(self.lock), token)

    def is_kept(self, reply: object, token: bytes) -> bool:
        return reply == [token]

    def is_free(self, reply: object) -> bool:
        """Return whether nobody else has the key for itself."""
        return reply == [None]

    def counter(self, _lead: int) -> FencingCounter:
        raise TypeError("a share has no fencing token")

    def enqueue(
        self,
        token: bytes,
        ttl: int,
        entry: QueueEntry,
        _counter: FencingCounter | None = None,
        _proposal: int = 0,
    ) -> bytes:
        return commands.enqueue(with_queues(self), token, ttl, entry, script=ENQUEUE_SHARED)

    def leave(
        self, token: bytes, member: bytes, *, keep_place: bool = False, keep_key: bool = False
    ) -> bytes:
        """Return the command that ends the share; *keep_key* is for locks without readers."""
        del keep_key
        keys = with_queues(self)
        return commands.leave(keys, token, member, keep_place=keep_place, script=LEAVE_SHARED)

    def release(self, token: bytes) -> bytes:
        return self.leave(token, commands.NO_MEMBER)

    def extension(self, token: bytes, ttl: int) -> Extension:
        return commands.extension(with_queues(self)[::2], 0, token, ttl)

    def restore(self, token: bytes, ttl: int) -> bytes:
        """Return the command that extends the share, or sets it again."""
        return commands.extend(self.extension(token, ttl), again=True)


_share = functools.lru_cache(MOST_NAMES)(Share)  # one for all leases of its key


class Permit(Mutex):
    """
    One permit of a semaphore: a lock with a number, whose waiters may come from other permits.

    Attributes:
        number: From 0 on.

        of: All permits of the semaphore.
    """

    # No slots, which a `bytes` can't have: see `_permit` for how many there are.
    free: ClassVar["FreeCommand | None"] = None  # its release hands it over
    mode: ClassVar[Mode] = "permit"
    number: int
    of: "Permits"

    @property
    def member_mark(self) -> bytes:
        return b"p%d" % self.of.number

    def enqueue(
        self,
        token: bytes,
        ttl: int,
        entry: QueueEntry,
        counter: FencingCounter | None = None,
        proposal: int = 0,
    ) -> bytes:
        keys = commands.permit_keys(self)
        more: tuple[bytes, ...] = (b"%d" % self.of.number,)
        if counter is not None:
            keys, more = (*keys, *counter.keys), (*more, *counter.proposed(proposal))
        return commands.enqueue(keys, token, ttl, entry, more, script=ENQUEUE_PERMIT)

    def leave(
        self, token: bytes, member: bytes, *, keep_place: bool = False, keep_key: bool = False
    ) -> bytes:
        return commands.leave(
            commands.permit_keys(self),
            token,
            member,
            keep_place=keep_place,
            keep_key=keep_key,
            script=LEAVE_PERMIT,
        )

    def release(self, token: bytes) -> bytes:
        return self.leave(token, commands.NO_MEMBER)


@dataclass(frozen=True, slots=True)
class Permits:
    """
    All permits of a semaphore, of which a holder has one.

    Args:
        name: The key that belongs to the resource. It is used by no semaphore: locks of the same
            name are independent.

        number: How many permits there are.
    """

    name: Mutex
    number: int
    is_share: ClassVar[bool] = False
    mode: ClassVar[Mode] = "permit"
    each: ClassVar[tuple[Mutex, ...]] = ()
    """None: no lock of this process has its keys."""

    def permit(self, number: int) -> Permit:
        return _permit(self, number)

    def numbered(self, key: bytes) -> Permit | None:
        """Return the permit with this *key*, if it is one of these."""
        head, _, number = key.rpartition(b"#")
        if head != self._head or not number.isdigit() or int(number) >= self.number:
            return None
        return self.permit(int(number))

    def take(
        self,
        token: bytes,
        ttl: int,
        order: tuple[int, int],
        not_after: int,
        lead: int | None = None,
        proposal: int = 0,
    ) -> bytes:
        """
        Return the command that grants *token* any permit, if nobody waits for one.

        Args:
            order: The number of the permit to try first, and how far it is to the next.

            not_after: As in `QueueEntry`.

            lead: That of the fencing counters, with *proposal*; ``None`` without fencing tokens.
        """
        head = _take_head(self, lead)
        numbers = [b"%d" % number for number in (ttl, self.number, *order, not_after)]
        if lead is None:
            return head + bulk(token, *numbers)
        fence = self.permit(0).counter(lead).proposed(proposal)
        return head + bulk(token, *numbers, *fence)

    def drop(self, token: bytes, keep: int | None = None) -> bytes:
        """Return the command that frees each permit that *token* has, but the one with *keep*."""
        keys = commands.permit_keys(self.permit(0))
        kept = b"" if keep is None else b"%d" % keep
        head = (b"EVALSHA", DROP_PERMITS.sha, b"%d" % len(keys), *keys, token)
        return pack(*head, b"%d" % self.number, kept, commands.channels(keys[0]))

    @property
    def _head(self) -> bytes:
        return commands.PERMIT + hash_tagged(self.name)


@functools.lru_cache(MOST_NAMES)
def _permit(permits: Permits, number: int) -> Permit:
    key = Permit(b"%b%b#%d" % (commands.PERMIT, hash_tagged(permits.name), number))
    key.number, key.of = number, permits
    return key


@functools.lru_cache(MOST_NAMES)
def _take_head(permits: Permits, lead: int | None) -> bytes:
    """Return the part of `Permits.take` that all acquisitions have in common."""
    first = permits.permit(0)
    keys = commands.permit_keys(first)
    fenced = () if lead is None else first.counter(lead).keys
    arguments = 6 if lead is None else 9
    names = bulk(b"EVALSHA", TAKE_PERMIT.sha, b"%d" % (len(keys) + len(fenced)), *keys, *fenced)
    return b"*%d\r\n%b" % (3 + len(keys) + len(fenced) + arguments, names)


LockKey: TypeAlias = Mutex | JointMutex | Share
"""What one lease holds on the masters."""


@functools.lru_cache(MOST_NAMES)
def with_queues(key: _Locked | Share) -> tuple[bytes, ...]:
    """Return the keys of a lock and of its queues, for a share that of the set of shares too."""
    names = (*key.each, *commands.queue_keys(*key.each))
    return (*names, commands.shares_key(key.lock)) if isinstance(key, Share) else names


class Resources:
    """
    The keys of resources.

    Args:
        tagged: Whether the masters are of a Cluster: their keys begin with a tag.
    """

    __slots__ = ("known", "prefix")

    def __init__(self, prefix: str, *, tagged: bool = False) -> None:
        self.prefix = b"" if prefix == "" else text(prefix, name="key_prefix")
        if tagged:
            self.prefix = PLACEHOLDER + self.prefix
        self.known: dict[tuple[str, ...], Mutex | JointMutex] = {}

    def key(self, resource: str) -> Mutex:
        if isinstance(resource, list | tuple | set | frozenset):
            kind = type(resource).__name__
            raise TypeError(f"resource must be a str, not a {kind}: write lock(*names) for several")
        name = text(resource, name="resource")
        key = Mutex(self.prefix + name)
        if key.startswith(RESERVED):
            raise ValueError(
                f"resource must not make a key that starts with {RESERVED.decode()!r}: such keys"
                " belong to this library"
            )
        return key

    def name_of(self, key: bytes) -> str | None:
        """Return the resource with this *key*; ``None`` if no resource can have it."""
        if key.startswith(self.prefix) and not key.startswith(RESERVED):
            try:
                name = key.removeprefix(self.prefix).decode()
                text(name, name="resource")
            except ValueError:  # also of `decode`
                return None
            return name
        return None

    def keys(self, resources: tuple[str, ...]) -> Mutex | JointMutex:
        key = self.key(resources[0]) if len(resources) == 1 else self._joint(resources)
        if len(self.known) >= MOST_NAMES:
            self.known.clear()
        self.known[resources] = key
        return key

    def share(self, key: Mutex | JointMutex) -> Share:
        if len(key.each) > 1:
            raise ValueError(f"shared=True takes one resource, not {len(key.each)}")
        return _share(key.each[0])

    def permits(self, key: Mutex | JointMutex, number: int) -> Permits:
        if len(key.each) > 1:
            raise ValueError(f"permits={number} takes one resource, not {len(key.each)}")
        return Permits(key.each[0], int(number))

    def _joint(self, resources: tuple[str, ...]) -> JointMutex:
        if not 1 < len(resources) <= MOST_RESOURCES:
            wanted = f"at most {MOST_RESOURCES} resources" if resources else "at least one resource"
            raise TypeError(f"lock() wants {wanted}, not {len(resources)}")
        for number in resources[1:]:
            # As in other libraries: lock("r", 10_000).
            if isinstance(number, int | float | timedelta):
                raise TypeError(
                    f"resource must be a str, not {described(number)}: options have names, as in"
                    " ttl=10_000"
                )
        keys = [self.key(resource) for resource in resources]
        if len(set(keys)) < len(keys):
            twice = next(name for name in resources if resources.count(name) > 1)
            raise ValueError(f"resources must differ: {twice!r} is named twice")
        return JointMutex(sorted(keys))
