"""
The rows of the matrix for peers: those of `faults` that concern any lock, and one master's own.

Left out are features that no peer has, Sentinels, forks, and the rows in which a client is away
while masters restart or are flushed: these try the quarantine of redlock_aio.
"""

from .faults import (
    LONG_BODIES,
    NETWORK,
    ROWS,
    Row,
    client_killed,
    nothing,
    stalled,
    stopped,
)
from .world import World

QUORUM_ROWS = tuple(
    row
    for row in ROWS
    if row.name
    in {
        "no fault",
        "master killed",
        "master paused",
        "restarted empty",
        "majority restarted empty",
        "restored from an old RDB",
        "flushed",
        "clock set",
        "cut off from a minority",
        "cut off from a majority",
        "requests lost",
        "replies lost",
        "cut off, and a master down",
        "holder stopped",
        "loop stalled",
        "client killed",
    }
)


def paused(world: World) -> None:
    """Stop the master for a moment, again and again."""
    world.until(0.1)
    while world.crew.time_left() > 0.2 * world.seconds:
        with world.fault("paused", "m0"), world.down(0):
            world.servers[0].pause()
            world.wait(world.chance.uniform(0.05, 1.8))
            world.servers[0].resume()
        world.wait(world.chance.uniform(1.0, 1.5))
    world.until(1)


def restarted(world: World) -> None:
    """Kill the master three times; it comes back empty."""
    for share in (0.2, 0.45, 0.7):
        world.until(share)
        world.restart(0)
    world.until(1)


def restored(world: World) -> None:
    """Kill the master three times; it comes back with the keys of 0.4 s before."""
    for share in (0.2, 0.45, 0.7):
        world.until(share)
        world.servers[0].save()
        world.wait(0.4)
        world.restart(0)
    world.until(1)


def flushed(world: World) -> None:
    """Delete all keys of the master three times."""
    for share in (0.2, 0.45, 0.7):
        world.until(share)
        world.flush(0)
    world.until(1)


def cut_off(world: World) -> None:
    """Cut one client off from the master."""
    world.until(0.15)
    with world.cut("w0", [0]):
        world.until(0.75)
    world.until(1)


def requests_lost(world: World) -> None:
    """Lose the requests of one client to the master, but not what the master sends."""
    world.until(0.15)
    with world.cut("w0", [0], replies=False):
        world.until(0.75)
    world.until(1)


def replies_lost(world: World) -> None:
    """Lose what the master sends to one client, whose requests arrive."""
    world.until(0.15)
    with world.cut("w0", [0], requests=False):
        world.until(0.75)
    world.until(1)


ONE_MASTER_ROWS = (
    Row("no fault", "Nothing fails.", nothing),
    Row(
        "master paused",
        "The master is stopped (SIGSTOP) for 0.05 to 1.8 s, again and again.",
        paused,
    ),
    Row(
        "restarted empty", "The master is killed and comes back empty, three times.", restarted,
        job=LONG_BODIES,
    ),
    Row(
        "restored from an old RDB",
        "The master is killed and comes back with the keys of 0.4 s before, three times.",
        restored,
        job=LONG_BODIES,
    ),
    Row("flushed", "All keys of the master are deleted, three times.", flushed, job=LONG_BODIES),
    Row("cut off", "One client can't reach the master.", cut_off, needs=NETWORK),
    Row(
        "requests lost",
        "The requests of one client are lost; what the master sends arrives.",
        requests_lost,
        needs=NETWORK,
    ),
    Row(
        "replies lost",
        "What the master sends to one client is lost; its requests arrive.",
        replies_lost,
        needs=NETWORK,
    ),
    Row(
        "holder stopped",
        "Holders of locks are stopped (SIGSTOP) for 1.7 ttls, one at a time.",
        stopped,
        late=True,
    ),
    Row(
        "loop stalled",
        "The event loops of holders are blocked for 1.7 ttls, one at a time.",
        stalled,
        late=True,
        needs=frozenset({"event loop"}),
    ),
    Row(
        "client killed", "Processes that hold locks are killed, one every 4.5 s, and others start.",
        client_killed,
        seconds=15.0,
    ),
)  # fmt: skip

_EMPTY = (
    "A master that comes back without its keys is outside of what Redlock promises by itself:"
    " its description asks for persistence with `fsync` at each write, or for a restart that is"
    " delayed by the longest ttl. No documentation of these libraries says so."
)
_ALONE = "Outside of what a lock on one master without persistence promises."
_LATE = (
    "A write that comes after the lease's end is outside of what a lock without fencing tokens"
    " promises."
)

QUORUM_NOTES = {
    "restarted empty": _EMPTY,
    "majority restarted empty": _EMPTY,
    "restored from an old RDB": _EMPTY,
    "flushed": _EMPTY,
    "clock set": "Redlock assumes that the clocks of masters run at about the same rate, so a"
    " clock that is set is outside of what it promises.",
    "holder stopped": _LATE,
    "loop stalled": _LATE,
}
ONE_MASTER_NOTES = {
    "restarted empty": _ALONE,
    "restored from an old RDB": _ALONE,
    "flushed": _ALONE,
    "holder stopped": _LATE,
    "loop stalled": _LATE,
}
"""For faults outside of what the libraries promise: why."""
