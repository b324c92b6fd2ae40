"""Requests about one lock that readers share, as clients send them, and a model of one master."""

import random
from collections.abc import Awaitable, Callable

from redlock_aio._protocol import commands
from redlock_aio._protocol.primitives import Mutex, Share
from redlock_aio._protocol.request import pack
from redlock_aio._protocol.scripts import ENQUEUE, ENQUEUE_SHARED, LEAVE, LEAVE_SHARED
from redlock_aio._rules.lock_value import SHARED

DOC = Mutex(b"doc")
SHARE = Share(DOC)
(QUEUE,) = commands.queue_keys(DOC)
SET = commands.shares_key(DOC)
TTL = 8_000
LIVES = 60_000
AT_ANY_TIME = 2**53


def reader(token: bytes) -> bytes:
    """Return the member by which the client with this token waits to read."""
    return token + b"/1r"


def writer(token: bytes) -> bytes:
    return token + b"/1"


def read(token: bytes, ttl: int = TTL, place: int = 1, *, first: bool = True, **how: int) -> bytes:
    """
    Return the request for a share.

    Args:
        place: The priority of its member in the queue.

        first: Whether it is the client's first request, which need not enter the queue.

        how: `lives`, `most` and `not_after` of `commands.QueueEntry`.
    """
    head = (b"EVALSHA", ENQUEUE_SHARED.sha, b"3", DOC, QUEUE, SET, token)
    return _enter(*head, ttl=ttl, member=reader(token), place=place, first=first, **how)


def write(token: bytes, ttl: int = TTL, place: int = 1, *, first: bool = True, **how: int) -> bytes:
    """Return the request of a client that wants the lock for itself; see `read`."""
    head = (b"EVALSHA", ENQUEUE.sha, b"2", DOC, QUEUE, token)
    return _enter(*head, ttl=ttl, member=writer(token), place=place, first=first, **how)


def _enter(
    *head: bytes,
    ttl: int,
    member: bytes,
    place: int,
    first: bool,
    lives: int = LIVES,
    most: int = 1_000,
    not_after: int = AT_ANY_TIME,
) -> bytes:
    numbers = [b"%d" % number for number in (place, lives, most, not_after)]
    return pack(*head, b"%d" % ttl, member, *numbers, b"first" if first else b"")


def stop_reading(token: bytes, how: bytes = b"go") -> bytes:
    head = (b"EVALSHA", LEAVE_SHARED.sha, b"3", DOC, QUEUE, SET)
    return pack(*head, token, reader(token), how, commands.CHANNEL)


def stop_writing(token: bytes, how: bytes = b"go") -> bytes:
    head = (b"EVALSHA", LEAVE.sha, b"2", DOC, QUEUE)
    return pack(*head, token, writer(token), how, commands.CHANNEL)


def extend(token: bytes, ttl: int = TTL, *, again: bool = False) -> bytes:
    return commands.extend(SHARE.extension(token, ttl), again=again)


class Model:
    """
    The shares and the queue of one lock, by the rules that its scripts keep.

    R1: the lock is SHARED while a share lasts, and does not end before it. R2: a share counts
    only until its own deadline. R3: when the lock begins to be shared, no old share counts. R4:
    each change of the shares removes those whose deadlines are over.

    Args:
        ask: Returns the master's reply to a request.

        now: Returns the ms of the master's clock.

        slow: By how many ms the two may differ.
    """

    def __init__(
        self, ask: Callable[[bytes], object], now: Callable[[], float], slow: float = 0
    ) -> None:
        self._ask, self._now, self._slow = ask, now, slow
        self.shares: dict[bytes, float] = {}
        self.queue: dict[bytes, tuple[int, float]] = {}
        """The place and the deadline of each member that waits, or was granted in its turn."""
        self.granted = 0
        self.refused = 0

    def value(self) -> object:
        return self._ask(pack(b"GET", DOC))

    def lasts(self, token: bytes) -> bool:
        return self.shares.get(token, 0) >= self._now()

    def _before(self, member: bytes, place: int) -> list[bytes]:
        """Return the members before this one, without those that are dead."""
        queue = self.queue
        for each in [each for each, (_, until) in queue.items() if until < self._now()]:
            del queue[each]
        return [each for each in queue if (queue[each][0], each) < (place, member)]

    def enter(self, token: bytes, ttl: int, place: int, *, reads: bool, first: bool) -> None:
        """Send a request for the lock, and check who gets it."""
        value, member = self.value(), (reader if reads else writer)(token)
        before = self._before(member, place)
        gates = [each for each in before if not (reads and each.endswith(b"r"))]
        if reads:
            mine = value == SHARED and self.lasts(token)
            open_ = value in {None, SHARED}
            bare = first and open_ and not mine and all(each.endswith(b"r") for each in self.queue)
        else:
            mine, open_ = value == token, value is None
            bare = first and open_ and not self.queue
        granted = mine or (open_ and not gates)
        reply = self._ask((read if reads else write)(token, ttl, place, first=first))
        assert isinstance(reply, list)
        assert (len(reply) == 2) == bare
        if not bare:
            assert reply[0] == (0 if granted else 2 if gates else 1)
            lives = min(LIVES, ttl) if granted else LIVES
            self.queue[member] = place, self._now() + lives + granted / 2
        if not bare and not granted:
            self.refused += 1
            return
        self.granted += 1
        if not reads:
            assert not any(map(self.lasts, self.shares)), "a writer beside readers"
            self.shares.clear()
            return
        if value is None:
            self.shares.clear()  # R3
        self._join(token, ttl)

    def _join(self, token: bytes, ttl: float) -> None:
        self.shares[token] = self._now() + ttl
        self._settled()

    def _settled(self) -> None:
        """Check the elements of the set after a change of the shares (R4)."""
        self.shares = {token: end for token, end in self.shares.items() if end >= self._now()}
        pairs = self._ask(pack(b"ZRANGE", SET, b"0", b"-1", b"WITHSCORES"))
        assert isinstance(pairs, list)
        if pairs and isinstance(pairs[0], list):  # RESP3
            pairs = [item for pair in pairs for item in pair]
        found = dict(zip(pairs[::2], map(float, pairs[1::2]), strict=True))
        assert found.keys() == self.shares.keys()
        assert all(abs(found[each] - self.shares[each]) <= self._slow for each in found)

    def leave(self, token: bytes, *, reads: bool, how: bytes) -> None:
        value, member = self.value(), (reader if reads else writer)(token)
        somebody_waits = self._ask(pack(b"ZRANGE", QUEUE, b"0", b"0"))
        reply = self._ask((stop_reading if reads else stop_writing)(token, how))
        if not reads:
            had = value == token
        elif had := value == SHARED and self.lasts(token):
            self.shares.pop(token)
        foreign = value not in {None, SHARED if reads else token}
        assert isinstance(reply, list) if foreign else reply == (b"OK" if had else 0)
        if how == b"go":
            self.queue.pop(member, None)
        elif reads and member in self.queue and self.queue[member][1] % 1:
            place, until = self.queue[member]
            self.queue[member] = place, until + 0.5
        if reads and value == SHARED:
            self._settled()
            assert (self.value() is None) == (not self.shares)
            if self.shares:  # The lock ends with the readers that are left, soon if others wait.
                last = max(self.shares.values()) - self._now()
                most = 1.125 if somebody_waits else 2
                assert self._left(DOC) <= most * last + 1 + self._slow

    def extend(self, token: bytes, ttl: int, *, again: bool) -> None:
        value, lasts = self.value(), self.lasts(token)
        reply = self._ask(extend(token, ttl, again=again))
        if value not in {None, SHARED}:
            assert reply == -1
        elif again or (value == SHARED and lasts):
            assert reply == b"OK"
            if value is None:
                self.shares.clear()
            left = self.shares.get(token, 0) - self._now()
            self._join(token, max(ttl, left) if again else ttl)
        else:
            assert reply == 0

    def _left(self, key: bytes) -> int:
        left = self._ask(pack(b"PTTL", key))
        assert isinstance(left, int)
        return left

    def check(self, tokens: list[bytes]) -> None:
        """Check what each reader finds, and that the lock outlasts every share (R1, R2)."""
        if self.value() != SHARED:
            self.shares.clear()  # what is left in the set counts no more
        for token in tokens:
            reply = self._ask(SHARE.look(token))
            assert (reply == [token]) == self.lasts(token), token
        lasting = [end for end in self.shares.values() if end >= self._now()]
        if lasting:
            assert self.value() == SHARED
            assert self._left(DOC) >= max(lasting) - self._now() - self._slow
            assert abs(self._left(DOC) - self._left(SET)) <= self._slow


async def walk(
    model: Model,
    seed: int,
    steps: int,
    ttls: list[int],
    sleep: Callable[[float], Awaitable[None]] | None = None,
) -> None:
    """
    Check the rules after each of so many random requests.

    Args:
        sleep: Lets time pass, by multiples of 10 ms. The ttls are others, so that nothing is
            asked in the very ms in which a share ends.
    """
    rng = random.Random(seed)
    tokens = [b"a", b"b", b"c", b"d", b"e"]
    members = [*map(reader, tokens), *(writer(token.upper()) for token in tokens)]
    places = {member: rng.randrange(9) for member in members}
    kinds = ["read"] * 5 + ["write"] * 2 + ["leave"] * 5 + ["extend"] * 4
    kinds += ["again", "delete"] + ["sleep"] * 4 * (sleep is not None)
    for _ in range(steps):
        kind, token, ttl = rng.choice(kinds), rng.choice(tokens), rng.choice(ttls)
        reads = kind not in {"write", "leave"} or (kind == "leave" and rng.random() < 0.6)
        token = token if reads else token.upper()
        if kind in {"read", "write"}:
            place = places[(reader if reads else writer)(token)]
            model.enter(token, ttl, place, reads=reads, first=rng.random() < 0.6)
        elif kind == "leave":
            model.leave(token, reads=reads, how=rng.choice([b"go", b"go", b"stay"]))
        elif kind in {"extend", "again"}:
            model.extend(token, ttl, again=kind == "again")
        elif kind == "delete":
            model._ask(pack(b"DEL", DOC))
            model.shares.clear()
        elif sleep is not None:
            await sleep(rng.choice([0.01, 0.1, 0.5, 2.0]))
        model.check(tokens)
    assert model.granted > steps / 50
    assert model.refused > steps / 50
