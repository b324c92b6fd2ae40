"""
A command under a lease, from its begin to the release of the lock.

                         deadline - grace                      deadline
    ───── extensions are tried ────┼── SIGTERM ··· SIGKILL ──────┤ others may get the lock
                                   └─ extended after all: no SIGKILL

The command begins under the lease, and the lease is held until all processes of its group have
ended. If it is not extended in time, the group is ended *before* the validity is over, so that
it is gone when others get the lock. The guardian does the same if this process does not run.
"""

import asyncio
import contextlib
import enum
import math
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from redlock_aio import Answer, Lease, LockNotHeldError, LossCause, Vote
from redlock_aio.cli import durations
from redlock_aio.cli.child import TO_COMMAND, TO_GROUP, Child
from redlock_aio.cli.exits import Exit
from redlock_aio.cli.frame import Frame, facts_of_votes, handling
from redlock_aio.cli.guardian import Guardian
from redlock_aio.cli.guardian_process import clock as boot_clock
from redlock_aio.cli.impatience import Impatience
from redlock_aio.events import Event, Lost, MajorityBack, MajorityLost, Released

SPARE, SPARE_SHARE = 100, 0.05
"""
How many ms before the end of the validity SIGKILL is sent, at most this share of the ttl.

A timer may be late, and a process takes a moment to die.
"""

LOOK = 0.5
"""The most seconds between two looks: timers do not count a suspension, the lease does."""

LATE = 0.05
"""Seconds by which a look must be late for this process to have been stopped or suspended."""

BEHIND, BEHIND_SHARE = 0.2, 0.25
"""By how many seconds, at most this share of the grace, the guardian's SIGTERM follows ours."""

KILLED = 2.0
"""The most seconds that the end after SIGKILL is awaited; some system calls delay it."""

STAY = 2.0
"""Seconds after the command's end after which a message names who keeps the lock."""

PRECISION = 0.01
"""Seconds by which an instant must have changed for the guardian to be told of it."""

RELEASED = {Answer.GRANTED, Answer.FREE, Answer.HELD}
"""The votes on a release of masters that have the lock for this ``redlock`` no more."""

YOUNG = 1.0
"""Seconds for which a guardian must have lived to be replaced: others would end as soon."""


class Observed:
    """What the manager has told about the lock and the masters."""

    def __init__(self) -> None:
        self.lost: Lost | None = None
        self.released: Released | None = None
        self.away: tuple[Vote, ...] = ()
        """The votes while no majority of the masters has one."""

    def __repr__(self) -> str:
        return f"<Observed, {'lost' if self.lost else 'held'}>"

    def on_event(self, event: Event) -> None:
        """Called with each event of the manager."""
        match event:
            case Lost():
                self.lost = event
            case Released():
                self.released = event
            case MajorityLost():
                self.away = event.votes
            case MajorityBack():
                self.away = ()
            case _:
                pass


@dataclass(frozen=True, slots=True)
class Limits:
    """
    How long a command may run.

    Attributes:
        grace: How many ms before the end of the validity, or after a sudden loss or the
            timeout, SIGTERM is sent; SIGKILL follows then.

        timeout: After how many ms it is ended though the lock is held; ``None`` is never.

        leader_only: Whether its end counts, and not that of the other processes of its group.

        hold_at_least: For how many ms from its acquisition the masters keep the lock.
    """

    grace: int
    timeout: int | None = None
    leader_only: bool = False
    hold_at_least: int = 0


class Ending(enum.Enum):
    """Why the command is ended, or was."""

    LOST = "lost"
    NOT_EXTENDED = "not_extended"
    HUNG = "hung"
    """This process did not run, so the guardian has sent SIGTERM."""
    TIMED_OUT = "timed_out"


IN_ADVANCE = {Ending.NOT_EXTENDED, Ending.HUNG}
"""An end that begins while the lock is held, and is called off by an extension."""


class Supervision:
    """
    A command that runs under a lease.

    Args:
        frame: Where messages go, and signals come from.

        lease: The lease, which is released at the end.

        observed: What the listener of its manager gets.

        limits: How long the command may run.
    """

    def __init__(self, frame: Frame, lease: Lease, observed: Observed, limits: Limits) -> None:
        self._frame = frame
        self._out = frame.out
        self._lease = lease
        self._observed = observed
        self._limits = limits
        self._grace = limits.grace / 1000
        self._spare = min(SPARE, lease.ttl * SPARE_SHARE) / 1000
        self._clock: Callable[[], float] = boot_clock
        self._over = -math.inf  # when the command must be gone: the validity is over soon
        self._times_out = math.inf
        self._due = -math.inf  # when the next look was to be; before the first none was
        self._ending: Ending | None = None  # what is under way
        self._began_to_end = 0.0
        self._ended_for: Ending | None = None  # the first reason for a SIGTERM
        self._chance = -math.inf  # until when an extension is awaited after a stop of `redlock`
        self._guardian: Guardian | None = None
        self._grace_of_guardian = limits.grace
        self._told: tuple[float, float] | None = None  # what the guardian has been told last

    def __repr__(self) -> str:
        return f"<Supervision under {self._lease!r}>"

    async def run(self, words: list[str], environment: dict[str, str]) -> int:
        """
        Run the command to its end, release the lock, and return the exit code.

        Raises:
            Failure: It can't be executed.

            LockLostError: The lock was lost before the command has begun.

        Cancellation:
            Does not occur: signals are forwarded to the command from now on.
        """
        started = list[Child]()

        def forward(number: int) -> None:
            for child in started:
                child.forward(number)
            if number == signal.SIGTERM:
                self._let_guardian_kill()

        # The last messages, too, are written in this way: a reader that is stuck must not keep
        # the exit code from the one who waits for it.
        messages = Impatience()
        self._out.deliver = messages.write
        # Signals are handled before the command begins, because it may send some at once: they
        # are forwarded in a later turn of the loop, when it has begun. And until the lock is
        # released: a late SIGUSR1, meant for the command, must not end this process before.
        self._frame.on_signal = forward
        is_gone = False
        with handling((*TO_GROUP, *TO_COMMAND), forward):
            try:
                with self._guarded():
                    self._lease.ensure_valid()  # `redlock` may have been stopped meanwhile
                    child = self._start(words, environment)
                    started.append(child)
                    try:
                        is_gone = await self._until_gone(child)
                    finally:
                        self._frame.interrupted = child.close()
            finally:
                lost = await self._released()
                messages.command_has_ended()
                self._tell_if_it_may_stay()
        return self._code(child, lost, is_gone=is_gone)

    def _start(self, words: list[str], environment: dict[str, str]) -> Child:
        self._begin_clock()
        self._tell_guardian()
        return Child(
            words,
            environment,
            before=self._guardian.watch if self._guardian is not None else lambda: None,
            may_go_on=lambda: self._lease.valid,
            on_stop=self._on_stop,
        )

    def _begin_clock(self) -> None:
        loop = asyncio.get_running_loop()
        self._clock = getattr(loop, "boottime", boot_clock)  # as the clock of leases
        now = self._now()
        if self._limits.timeout is not None:
            self._times_out = now + self._limits.timeout / 1000

    def _now(self) -> float:
        """Return the present instant; note until when the command may run."""
        now = self._clock()
        if left := self._lease.remaining:
            self._over = now + left / 1000 - self._spare
        return now

    async def _until_gone(self, child: Child) -> bool:
        """Wait until the group is empty, and end it when it has to; return whether it is empty."""
        child.leader_only = self._limits.leader_only
        gone = asyncio.create_task(child.gone())
        lost = asyncio.create_task(self._lease.lost.wait())
        staying = asyncio.create_task(self._tell_who_stays(child))
        try:
            while not gone.done():
                now = self._now()
                self._look(child, now)
                kill_at = self._kill_at()
                if now >= kill_at:
                    child.signal(signal.SIGKILL)
                    await asyncio.wait([gone], timeout=KILLED)
                    if gone.done() or not self._lease.valid:
                        break
                    continue  # a program of another user: the lock is held as long as it is valid
                self._tell_guardian()
                due = min(self._term_at(), self._times_out) if self._ending is None else kill_at
                pause = max(0.0, min(due - now, LOOK))
                self._due = now + pause
                # After the loss its event would end each wait at once.
                awaited = [gone] if self._ending is Ending.LOST else [gone, lost]
                await asyncio.wait(awaited, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
            self._hear_guardian(child, self._now())
            return gone.done()
        finally:
            for task in (gone, lost, staying):
                task.cancel()

    def _term_at(self) -> float:
        """Return when SIGTERM is due, unless the lease is extended."""
        return max(self._over - self._grace, self._chance)

    def _kill_at(self) -> float:
        """Return when SIGKILL is due: never while nothing ends the command."""
        if self._ending is None:
            return math.inf
        if self._ending in IN_ADVANCE:
            return self._over  # moves on with each extension
        return min(self._began_to_end + self._grace, self._over)

    def _look(self, child: Child, now: float) -> None:
        """Begin to end the command if it has to be, or call its end off."""
        # First the lease. Between the two questions this process may be stopped until the lease
        # is over; the guardian has acted then, and that is what is told.
        is_valid = self._lease.valid
        self._hear_guardian(child, now)
        if not is_valid:
            if self._ending is None:
                self._out.note(f"the lock is lost; ending {child.group} by SIGTERM")
            self._end(child, Ending.LOST, now)
        elif self._ending in IN_ADVANCE:
            if now < self._over - self._grace:
                self._ending = None
                self._out.note(f"the lock was extended after all; {child.group} gets no SIGKILL")
        elif self._ending is None and now >= self._times_out:
            shown = durations.shown(self._limits.timeout or 0)
            self._out.note(f"the timeout of {shown} is over; ending {child.group} by SIGTERM")
            self._end(child, Ending.TIMED_OUT, now)
        elif self._ending is None and now >= self._term_at() and not self._may_be_extended(now):
            self._out.note(f"the lock was not extended in time; ending {child.group} by SIGTERM")
            self._end(child, Ending.NOT_EXTENDED, now)

    def _may_be_extended(self, now: float) -> bool:
        """
        Return whether an extension may come at once, because none could be tried until now.

        After Ctrl-Z and `fg` this process may wake up with less than the grace left. The
        watchdog wakes up with it, and most likely extends the lease within a round trip. In the
        same way most of the ttl may be over when the command begins, on a busy machine.
        """
        if now - self._due < LATE:
            return False
        self._chance = now + min((self._over - now) / 4, LOOK)
        return self._chance > now

    def _end(self, child: Child, ending: Ending, now: float) -> None:
        """Send SIGTERM, unless that was done, and begin to wait for the end."""
        if self._ending is None:
            self._began_to_end = now
            if ending is not Ending.HUNG:
                child.terminate()
        child.leader_only = False  # without the lock, none of them may go on
        self._ending = ending
        self._ended_for = self._ended_for or ending

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """Run a guardian during the body."""
        try:
            self._guardian = Guardian(self._limits.grace)
        except OSError as error:
            self._out.note(
                f"no guardian ({error}): a SIGKILL or SIGSTOP of redlock does not end the command"
            )
        try:
            yield
        finally:
            if self._guardian is not None:
                self._guardian.dismiss()

    def _let_guardian_kill(self) -> None:
        """
        Leave the command no grace any more if this process is killed.

        Whoever sends SIGTERM, and SIGKILL later, has given it the time to end. This may be another
        ``redlock run``, whose lock is over soon after that SIGKILL.
        """
        self._grace_of_guardian = 0
        if self._guardian is not None:
            self._guardian.allow(0)

    def _tell_guardian(self) -> None:
        """Tell the guardian until when the command may run if no other word follows."""
        if self._guardian is None:
            return
        # A moment behind ours: it acts only if this process does not run.
        behind = min(BEHIND, self._grace * BEHIND_SHARE)
        term_at = self._term_at() + behind if self._ending is None else math.inf
        kill_at = min(self._kill_at(), self._over) + self._spare / 2
        if self._told is None or max(map(_distance, self._told, (term_at, kill_at))) > PRECISION:
            now = self._clock()
            self._guardian.tell(term_at - now, kill_at - now)
            self._told = (term_at, kill_at)

    def _hear_guardian(self, child: Child, now: float) -> None:
        """Notice that the guardian has ended the command, or was killed; replace it then."""
        guardian = self._guardian
        if guardian is None:
            return
        lives = guardian.look()
        if guardian.has_acted:
            guardian.has_acted = False
            if self._ending is None:
                self._out.note(
                    f"redlock did not run in time; the guardian has sent SIGTERM to {child.group}"
                )
                self._end(child, Ending.HUNG, now)
        if not lives and not child.is_gone:
            self._replace(guardian, child)

    def _replace(self, guardian: Guardian, child: Child) -> None:
        guardian.dismiss()
        self._guardian = self._told = None
        try:
            if time.monotonic() - guardian.began < YOUNG:
                raise ChildProcessError("it has ended at once")
            self._guardian = Guardian(self._grace_of_guardian, child.group)
        except OSError as error:
            self._out.note(
                f"no guardian ({error}): a SIGKILL or SIGSTOP of redlock does not end the command"
            )
        else:
            self._out.note("the guardian was killed; another one watches the command")

    async def _tell_who_stays(self, child: Child) -> None:
        await asyncio.wait([child.ended])
        await asyncio.sleep(STAY)
        self._out.note(
            f"the command has ended with {child.status};"
            f" the other processes of group {child.group} keep the lock"
        )

    def _on_stop(self) -> None:
        left = durations.shown(self._lease.remaining)
        self._out.note(f"stopped; the lock is lost if that takes longer than {left}")
        # The command need not be ended while it is stopped. But a process of its group may
        # have ignored the stop, or be continued by others: the guardian stops it in time.
        now = self._now()
        if self._guardian is not None:
            self._guardian.tell(math.inf, self._over - now, signal.SIGSTOP)
            self._told = None

    async def _released(self) -> Lost | None:
        """Release the lock; return its loss if it was lost."""
        try:
            await self._lease.release()
        except LockNotHeldError:
            return self._observed.lost  # the listener has got it by now
        return None

    def _tell_if_it_may_stay(self) -> None:
        """Say for how long masters may keep the lock, if no majority has confirmed the release."""
        released = self._observed.released
        votes = () if released is None else released.votes
        confirmed = sum(vote.answer in RELEASED for vote in votes)
        if released is not None and votes and 2 * confirmed <= len(votes):
            # A master that hangs may begin to keep it for the rest of that time only later.
            rest = math.ceil(self._limits.hold_at_least - released.held_ms)
            # No number of masters: if a majority is away, others confirm it only after this.
            self._out.note(
                "no majority of the masters has confirmed the release of the lock;"
                f" it may stay for up to {durations.shown(max(self._lease.ttl, rest))}",
                masters=facts_of_votes(votes),
            )

    def _code(self, child: Child, lost: Lost | None, *, is_gone: bool) -> int:
        """Return the exit code, after a message if it is not that of the command."""
        status = child.status if child.ended.done() else None
        if lost is not None:
            facts = _facts(Exit.LOST, status, lost.cause, lost.votes)
            if is_gone:
                self._out.note(
                    f"the lock was lost: {lost.reason}; the command has ended with {status}",
                    **facts,
                )
            else:
                self._out.note(
                    f"the lock was lost: {lost.reason}; the command can't be ended, and goes on",
                    **facts,
                )
            return Exit.LOST
        if self._ended_for is Ending.TIMED_OUT:
            shown = durations.shown(self._limits.timeout or 0)
            self._out.note(
                f"the command has ended with {status} after its timeout of {shown}",
                **_facts(Exit.TIMED_OUT, status),
            )
            return Exit.TIMED_OUT
        if self._ended_for is not None:
            hung = self._ended_for is Ending.HUNG
            cause = LossCause.LOOP_STALLED if hung else LossCause.NOT_EXTENDED
            self._out.note(
                f"the lock was not extended in time; the command has ended with {status}",
                **_facts(Exit.LOST, status, cause, self._observed.away),
            )
            return Exit.LOST
        return child.status


def _facts(
    code: Exit, status: int | None, cause: LossCause | None = None, votes: tuple[Vote, ...] = ()
) -> dict[str, object]:
    facts: dict[str, object] = {
        "error": code.name.lower(),
        "exit_code": int(code),
        "command_exit_code": status,
    }
    if cause is not None:
        facts |= {"cause": cause.value, "masters": facts_of_votes(votes)}
    return facts


def _distance(one: float, other: float) -> float:
    return 0.0 if one == other else abs(one - other)  # infinite instants are equal
