"""
The restart guard of one manager: a sentry for each master, and the founding of a new set.

A `Sentry` judges its master by what that master has forgotten, and by the `GuardState` that
all sentries share. A set of masters without any marker is judged here: only all of them
together show that it is new.
"""

from collections.abc import Callable

from redlock_aio._rules import quarantine
from redlock_aio._rules.marker import milliseconds
from redlock_aio._rules.quarantine import MEMBER, UNDECIDED, Seen, Verdict
from redlock_aio._rules.quorum import GRANTED
from redlock_aio._rules.server_info import ServerInfo
from redlock_aio._transport.guard_state import GuardSettings, GuardState
from redlock_aio._transport.handshake import read_marker
from redlock_aio._transport.sentinels import Route
from redlock_aio._transport.sentry import Sentry


class Guard:
    """
    The restart guard of one manager.

    Args:
        seen: The observations of each address; they outlive the connections.

        clock: The clock of leases.
    """

    def __init__(
        self, seen: list[Seen], clock: Callable[[], float], settings: GuardSettings
    ) -> None:
        self._state = GuardState(seen, clock, settings, self.found)
        self._sentries: list[Sentry] = []

    def __repr__(self) -> str:
        states = ", ".join(s.state.name if s.state else "AWAY" for s in self._sentries)
        return f"<Guard of {states}>"

    def sentry(
        self,
        number: int,
        *,
        route: Route,
        on_push: Callable[[int, object], None],
        judged: Callable[[], None],
        looked: Callable[[ServerInfo], None],
    ) -> Sentry:
        """Return the sentry of a master; for the arguments see `Sentry`."""
        sentry = Sentry(
            self._state,
            number,
            route=route,
            on_push=on_push,
            judged=judged,
            looked=looked,
        )
        self._sentries.append(sentry)
        return sentry

    async def found(self) -> None:
        """
        Mark all masters as members, if none of them has a marker.

        The set is new only if the markers, read back after all were written, still prove it:
        another program that knows a master from before may have marked it as rejoining
        meanwhile. A master that can't be marked is judged alone.

        Cancellation:
            Markers that were written by then stay.
        """
        sentries, state = self._sentries, self._state
        if state.founding or state.is_old or any(sentry.state is None for sentry in sentries):
            return
        state.founding = True
        try:
            asked = [s.ask_for(quarantine.founding(s.info, s.lasts), over=b"") for s in sentries]
            if None in asked:
                return  # a connection has just ended
            replies = [(await mark.reply, await get.reply) for mark, get in filter(None, asked)]
        finally:
            state.founding = False
        # Another program may know one of these servers from before, and mark it as rejoining
        # while this one marks all of them as new. Its marker is left, or replaces this
        # program's. Hence the markers are judged after all were written: one that rejoins
        # shows that the set is not new, and the markers written here are replaced below.
        found = [read_marker(reply) for _, reply in replies]
        for marker in found:
            state.learn(0.0 if marker is None else marker.lasts / 1000)
        new = not any(
            marker is not None and (marker.rejoining or not sentry.info.is_named(marker.run_id))
            for sentry, marker in zip(sentries, found, strict=True)
        )
        for sentry, marker, (marked, get) in zip(sentries, found, replies, strict=True):
            if new and marker is not None and sentry.state is UNDECIDED:
                if marker.lasts < milliseconds(state.lasts):
                    sentry.recheck_soon()  # a program with a shorter quarantine has marked it
                else:
                    sentry.set_verdict(Verdict(MEMBER), marker)
            elif not new and marked == GRANTED:
                late = quarantine.not_new(sentry.info, sentry.lasts, certain=True)
                sentry.ask_for(late, over=get)
                sentry.recheck_soon()  # masters do not push a client's own changes to it
