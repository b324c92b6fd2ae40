"""
Follow the state of a lock: who holds it now, and then each change.

    subscribe ─► look at the key (tracked) ─┬─ other values ─► inspect ─┬─ news ──► return
                      ▲                     └─ as before ─► wait ◄──────┘
                      └──── a push, or after `INTERVAL` ─────┘

The look comes before the inspection on each connection, so a change that the inspection does
not show is pushed after it. A lock changes on all masters, and most often twice, by a release
and the next grant: after the first push there is a pause, and the newest state counts. An
extension changes the end of the key, which is pushed too: then the look is all that it costs.
"""

import asyncio

from redlock_aio._engine.admin import survey
from redlock_aio._engine.masters import MasterSet, Query
from redlock_aio._engine.session import Session
from redlock_aio._protocol import commands, replies
from redlock_aio._protocol.lock_state import LockState
from redlock_aio._protocol.primitives import Mutex

SETTLES = 0.1
"""Seconds from the first push of a change to the inspection."""

INTERVAL = 10.0
"""Seconds after which a lock is inspected without a push: readers may change without one."""


class Change:
    """A wait for the next change of a key, as a party of its local queue."""

    __slots__ = ("event",)
    member = b""

    def __init__(self) -> None:
        self.event = asyncio.Event()

    def changed(self, _master: int) -> None:
        """Called when others may have changed the key."""
        self.event.set()

    def on_local_release(self) -> None:
        """Called when this process may have changed the key, or the manager was closed."""
        self.event.set()


async def next_state(
    session: Session, resource: str, key: Mutex, before: LockState | None
) -> LockState:
    """Return the state of *resource* as soon as it differs from the one *before*."""
    masters, queue, change = session.masters, session.local_queues.of(key), Change()
    queue.add_onlooker(change)
    seen: list[object] | None = None
    due = 0.0
    try:
        while True:
            change.event.clear()
            values = await _values(masters, key)
            # Pushes without news, such as those of extensions, do not put off the next inspection.
            if values != seen or masters.loop.time() >= due:
                due = masters.loop.time() + INTERVAL
                state = await survey.inspect(masters, resource, key)
                if before is None or state.facts != before.facts:
                    return state
            seen = values
            try:
                async with asyncio.timeout_at(due):
                    await change.event.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(SETTLES)
    finally:
        queue.remove_onlooker(change)


async def _values(masters: MasterSet, key: Mutex) -> list[object]:
    """Return the value of *key* on each master, which pushes the next change of it."""
    masters.check_open()
    looking = Query(
        masters,
        commands.look(key),
        count=lambda _, reply: reply,
        enough=lambda round: round.complete,
    )
    masters.send_and_watch(looking)
    if not looking.complete:
        await masters.wait_for(looking)
    return [replies.looked(reply) for reply in looking.replies]
