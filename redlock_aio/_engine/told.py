"""
Locks, leases and the watchdog of a manager that has a listener.

They do what the others do, and tell it. So a manager without a listener pays
nothing for it.
"""

from collections.abc import Callable, Coroutine
from types import CoroutineType, TracebackType
from typing import Any, ClassVar, NamedTuple, TypeVar

from redlock_aio._engine.attempts import Attempt
from redlock_aio._engine.hold import HeldLease
from redlock_aio._engine.lease import Lease
from redlock_aio._engine.lock import Lock
from redlock_aio._engine.refusals import is_overload, single_refusal
from redlock_aio._engine.renewal import Renewal
from redlock_aio._engine.rounds import Fleet
from redlock_aio._engine.telling import Teller, milliseconds
from redlock_aio._engine.watchdog import Watchdog
from redlock_aio._rules import holders, timing
from redlock_aio._rules.arguments import plain_function
from redlock_aio._rules.lifetime import HELD, RELEASED
from redlock_aio.errors import LockNotAcquiredError
from redlock_aio.events import Acquired, Extended, Listener, Lost, Missed, Released

T = TypeVar("T", bound=Lease | None)


class ToldWatchdog(Watchdog):
    """A watchdog that tells of extensions, and of how leases end."""

    __slots__ = ("_ended", "_since")

    def __init__(self, fleet: Fleet, *, max_ttl: int) -> None:
        super().__init__(fleet, max_ttl=max_ttl)
        self._since: dict[HeldLease, float] = {}  # those that are held
        self._ended: dict[
            HeldLease, float
        ] = {}  # those whose holder waits for the masters' answers

    def add(self, hold: HeldLease, now: float) -> None:
        """Remember since when it is held."""
        super().add(hold, now)
        self._since[hold] = now

    def apply_result(self, renewal: Renewal) -> bool:
        """Tell of an extension that holds."""
        hold = renewal.hold
        deadline, now = hold.deadline, self.fleet.clock()
        holds = super().apply_result(renewal)
        if holds:
            self.fleet.teller.tell_soon(
                Extended(
                    hold.resources,
                    holders.fingerprint(hold.attempt.token),
                    renewal.ttl,
                    timing.remaining(deadline, now),
                )
            )
        return holds

    def lose(self, hold: HeldLease, reason: str) -> None:
        """Tell of the loss."""
        super().lose(hold, reason)
        since = self._since.pop(hold, None)
        if since is not None:
            held = self.fleet.clock() - since
            self.fleet.teller.tell_soon(self._end_of(hold, held))

    def release(self, hold: HeldLease) -> bool:
        """Note how long it was held; what becomes of it is told by `let_go`."""
        if hold.state is HELD:
            self._ended[hold] = self.fleet.clock() - self._since.pop(hold)
        return super().release(hold)

    def hand_over(self, hold: HeldLease) -> None:
        """Tell that it ended here, as its holder wanted."""
        held = self.fleet.clock() - self._since.pop(hold)
        super().hand_over(hold)
        self.fleet.teller.tell_soon(self._end_of(hold, held))

    def let_go(self, hold: HeldLease) -> None:
        """Tell how *hold* has ended, before its holder goes on after a release."""
        held = self._ended.pop(hold, None)
        if held is not None:
            self.fleet.teller.tell(self._end_of(hold, held))
        else:
            self.fleet.teller.tell_all()  # that it is lost may not have been told yet

    @staticmethod
    def _end_of(hold: HeldLease, held: float) -> Released | Lost:
        who, held_ms = holders.fingerprint(hold.attempt.token), milliseconds(held)
        if hold.state is RELEASED:
            return Released(hold.resources, who, held_ms)
        return Lost(hold.resources, who, hold.reason, held_ms)


class ToldLease(Lease):
    """A lease that tells that it was released, or that a release came too late."""

    __slots__ = ()

    async def release(self) -> None:
        """
        Release it; see `Lease.release`.

        Cancellation:
            As there; it counts as released.
        """
        first = not self._let_go and self._watchdog.origin.is_here()
        try:
            await super().release()
        finally:
            if first:  # else who was first still hears what became of it
                self._tell()

    async def _exit(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        first = not self._let_go
        try:
            await super()._exit(kind, error, trace)
        finally:
            if first:
                self._tell()

    def _tell(self) -> None:
        if isinstance(self._watchdog, ToldWatchdog):
            self._watchdog.let_go(self._hold)


class ToldLock(Lock):
    """A lock that tells how each acquisition goes."""

    __slots__ = ()
    _lease_kind: ClassVar[type[Lease]] = ToldLease

    async def acquire(self) -> Lease:
        """
        Acquire it; see `Lock.acquire`.

        Cancellation:
            As there.
        """
        return await self._telling(super().acquire)

    async def try_acquire(self) -> Lease | None:
        """
        Try once; see `Lock.try_acquire`.

        Cancellation:
            As there.
        """
        try:
            return await self._telling(super().try_acquire)
        except LockNotAcquiredError as error:
            if is_overload(error.votes):
                raise
            return None

    def __aenter__(self) -> "CoroutineType[Any, Any, Lease]":
        """
        Acquire it and guard the body; see `Lock.__aenter__`.

        Cancellation:
            As there.
        """
        return self._telling(super().__aenter__, entering=True)  # type: ignore[return-value]

    def _refused(self, why: Attempt | LockNotAcquiredError) -> Lease | None:
        """Say why there is no lease, though the caller hears only that there is none."""
        if isinstance(why, Attempt):
            why = single_refusal(self.resources, why, self._engine._fleet.clock())
        try:
            raise why
        finally:
            del why  # it knows this frame: that would keep both, and the attempt, alive

    async def _telling(
        self, obtain: Callable[[], Coroutine[object, object, T]], *, entering: bool = False
    ) -> T:
        """
        Obtain a lease, and tell how that went.

        Cancellation:
            As for *obtain*: once there is a lease nothing is awaited.
        """
        engine = self._engine
        engine._is_ready()  # only then is there a clock
        clock, teller = engine._fleet.clock, engine._fleet.teller
        began = clock()
        teller.begins(self.resources)
        try:
            lease = await obtain()
        except LockNotAcquiredError as error:
            teller.tell(Missed(self.resources, milliseconds(clock() - began), error))
            raise
        finally:
            teller.ends()
        # Whoever takes again what he holds has not acquired anything.
        if lease is not None and lease._hold.count == 1:
            waited = milliseconds(clock() - began)
            fence = lease._hold.attempt.fence or None
            try:
                teller.tell(Acquired(lease.resources, lease.fingerprint, waited, fence))
            except BaseException as stop:
                # The program is to stop, and nobody gets the lease: a body that has
                # failed is not held up by its release either.
                leaving = self if entering else lease
                await leaving.__aexit__(type(stop), stop, stop.__traceback__)
                raise
        return lease


class Kinds(NamedTuple):
    """What a manager makes its parts of."""

    teller: Teller
    lock: type[Lock]
    watchdog: type[Watchdog]


def kinds(listener: Listener | None) -> Kinds:
    """Return what a manager with this *listener* makes its parts of."""
    if listener is None:
        return Kinds(Teller(), Lock, Watchdog)
    return Kinds(Teller(plain_function(listener, name="listener")), ToldLock, ToldWatchdog)
