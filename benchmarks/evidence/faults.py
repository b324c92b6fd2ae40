"""The rows of the matrix: what is done to masters, networks and clients while clients work."""

import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from .clusters import Node
from .locks import Ability
from .world import OWNER_QUARANTINE, QUARANTINE, World


@dataclass(frozen=True, slots=True)
class Row:
    """
    One fault.

    Attributes:
        name: Its name in the table and on the command line.

        what: What happens, in a sentence.

        act: Does it, and returns when the run is over.

        seconds: How long a run takes, unless the command line says otherwise.

        needs: What it needs besides servers: "network", "clocks", "disks", "logs" (disks on which
            all servers append to a file), "snapshots", "sentinels", "cluster", "event loop",
            "fork".

        late: Whether holders are stopped, so that without a fence a write may come too late.

        job: What is different in the clients' job.

        containers: Whether it can be done to masters in containers.

        ability: What a contestant must be able to do; empty if any can be tried.

        assumption: The assumption of the library that it breaks: two may hold a lock then.

        masters: How many masters a client names, the first ones; 5, or fewer.

        longest_gap: For how many seconds a lock that nobody holds may be wanted by a client that
            reaches a majority: what is promised while this happens. None is no limit.

        endpoint: How the first master, which has a replica then, is reached: "name" is a host
            name that moves to the replica, "address" an address that stays and leads there.
    """

    name: str
    what: str
    act: Callable[[World], None]
    seconds: float = 12.0
    needs: frozenset[str] = frozenset()
    late: bool = False
    job: Mapping[str, object] = field(default_factory=dict)
    containers: bool = False
    ability: Ability | None = None
    assumption: str = ""
    masters: int = 5
    longest_gap: float | None = None
    endpoint: Literal["", "name", "address"] = ""

    @property
    def expected(self) -> str:
        """What a run of it is expected to show: "holds", or "may overlap"."""
        return "may overlap" if self.assumption else "holds"


PROMPT = 2.0
"""
The longest gap in seconds if all clients go on. A message tells the next waiter. If it is lost, or
a permit ends by itself, which wakes only its own queue, a waiter looks by itself: after 0.2 s, a
fair one after 1 s. Attempts of several that split the votes come again within as long.
"""

PAUSED = 1.8 + PROMPT
"""
The same while masters stand still for 1.8 s: waiters need the same three of the others, and split
their votes until those that stand still count as gone.
"""

STANDS_STILL = 4.0
"""
The longest gap in seconds while clients stand still: a fair waiter that does not answer delays the
others until its entry in the queues, which lives for 3 s, is over, and a heartbeat finds that (S8).
The key of a holder is gone by then.
"""

UNANSWERED = 0.03
"""
Seconds for which masters stand still before a process is stopped: longer than most bodies, after
which a process asks again, and shorter than the shortest master timeout.
"""

GONE = 7.0
"""
The longest gap in seconds while clients die or are cut off from a majority: the 4 s of one that
stands still, and 3 s more if that happens while it leaves the queues (S8). The keys that masters
have just granted it, and those of a holder, are gone by then: they live for the ttl.
"""

NETWORK, CLUSTER = frozenset({"network"}), frozenset({"cluster"})

LONG_BODIES: Mapping[str, object] = {"long": 0.1}
"""
The job of rows in which masters lose keys at one instant: every tenth body is a long one, so that
the instant finds one of them.
"""

HELD_FOR_LONG: Mapping[str, object] = {"long": 0.03}
"""
The job of rows in which something happens to a holder: most of the time a lock is held by a long
body, and most bodies are short ones.
"""

OUTLASTING: Mapping[str, object] = {**LONG_BODIES, "ttl": 2_000}
"""
The same where masters are replaced, which takes half a second on a busy machine: a lease from
before is valid for longer than that.
"""

LET_EXPIRE: Mapping[str, object] = {
    "body": (0.3, 1.3), "auto_extend": False, "extend": 0.0, "handover": 0.0,
    "keys": ("red", "green", "blue", "cyan", "lime", "pink"),
}  # fmt: skip
"""
The job of rows about clocks: nobody extends a lease, so that many end by themselves, each of which
a client of another process waits for. What matters is whose clock is over first.
"""

SUSPENDED: Mapping[str, object] = {"body": (0.02, 0.3)}
"""The job of rows in which machines are suspended: something is held at that moment."""

LAG = 3.2
"""
Seconds by which a replica that is promoted is behind its master: longer than the ttl in
`REPLICATED`. Of a shorter time it would keep the keys of locks that were released since, and they
would keep others out for as long as the locks that it lacks.
"""

LAST = 2.0
"""
Seconds before the end of a run in which all clients are killed: with `EXPIRY` of a cell long enough
for the index of a semaphore, which lives for 5 s.
"""

LEFT_WITHIN = 3.0
"""
Seconds within which clients leave a server to which the name of a master leads no longer: two
look-ups, each a second after the one before, and a new connection.
"""

REPLICATED: Mapping[str, object] = {
    "ttl": 3_000, "body": (0.001, 0.8), "long": 0.05,
    "keys": ("red", "green", "blue", "cyan", "lime", "pink"),
}  # fmt: skip
"""
The job of rows with a replica. Bodies are long enough for a failover to find locks that the replica
lacks. The `max_ttl` is the ttl: names are looked up once a second at most, and with 3 s the
quarantine leaves time for two look-ups, as the default does.
"""


def nothing(world: World) -> None:
    """Do nothing."""
    world.until(1)


def killed(world: World) -> None:
    """Kill two of five masters, one after the other, for good."""
    world.until(0.2)
    with world.fault("m0 killed"), world.down(0):
        world.servers[0].kill()
        world.until(0.5)
        with world.fault("m1 killed"), world.down(1):
            world.servers[1].kill()
            world.until(1)


def paused(world: World) -> None:
    """Stop one or two masters for a moment, again and again."""
    world.until(0.1)
    while world.crew.time_left() > 0.2 * world.seconds:
        most = min(world.chance.choice((1, 2)), world.masters)
        chosen = world.chance.sample(range(world.masters), most)
        names = ", ".join(f"m{number}" for number in chosen)
        with world.fault("paused", names), world.down(*chosen):
            for number in chosen:
                world.servers[number].pause()
            world.wait(world.chance.uniform(0.05, 1.8))
            for number in chosen:
                world.servers[number].resume()
        world.wait(world.chance.uniform(1.0, 1.5))
    world.until(1)


def restarted(world: World) -> None:
    """Restart two masters empty, and two others when these vote again."""
    world.until(0.1)
    world.restart(0, 1)
    world.wait(QUARANTINE + 1)
    world.restart(2, 3)
    world.until(1)


def majority_restarted(world: World) -> None:
    """Restart three of five masters empty at once, three times."""
    for share in (0.15, 0.45, 0.75):
        world.until(share)
        world.restart(0, 1, 2)
    world.until(1)


def _restored(world: World, *masters: int) -> None:
    for number in masters:
        world.servers[number].save()
    world.wait(0.4)
    world.restart(*masters)


def restored(world: World) -> None:
    """Restart two masters from a file that is 0.4 s old; later the three others."""
    world.until(0.1)
    _restored(world, 0, 1)
    world.wait(QUARANTINE + 1)
    _restored(world, 2, 3, 4)
    world.until(1)


def gone_back(world: World) -> None:
    """Let three masters have their memory of 0.4 s before again; three times, and not the same."""
    world.until(0.1)
    for masters in ((0, 1, 2), (2, 3, 4), (4, 0, 1)):
        with world.fault("old memory", ", ".join(f"m{number}" for number in masters)):
            for number in masters:
                world.servers[number].save()
            world.wait(0.4)
            with world.down(*masters):
                for number in masters:
                    world.servers[number].go_back()
        world.wait(0.2 * world.seconds)
    world.until(1)


def flushed(world: World) -> None:
    """Flush two masters, and the three others when these vote again."""
    world.until(0.1)
    world.flush(0, 1)
    world.wait(QUARANTINE + 1)
    world.flush(2, 3, 4)
    world.until(1)


def clock_set(world: World) -> None:
    """Set the clock of one master an hour ahead, an hour back, and right; move those of three."""
    world.until(0.1)
    alone, three = (0,), (0, 1, 2)
    for masters, ahead in (
        *((alone, seconds) for seconds in (3600.0, -3600.0, 0.7, 0.0)),
        # The counters of a majority are ahead of the time then, so that tokens rise by them alone.
        *((three, seconds) for seconds in (3.0, 0.0)),
    ):
        names = ", ".join(f"m{number}" for number in masters)
        with world.fault("clock", f"{names}: {ahead:+g} s ahead"):
            for number in masters:
                world.servers[number].set_clock(ahead)
            world.back(*masters, within=world.seconds)
            world.wait(0.14 * world.seconds)
    world.until(1)


def rates(most: float) -> Callable[[World], None]:
    """
    Return what lets the clocks of two machines drift apart by twice *most* at most, in a second.

    At first four masters are fast, so that a majority is free early, and one client is slow, which
    believes for long in its lease. Later the others are.
    """

    def act(world: World) -> None:
        masters, clients = ("m0", "m1", "m2", "m3"), {"w0": -most, "w2": most}
        world.until(0.05)
        with world.rates({**dict.fromkeys(masters, most), "m4": -most, **clients}):
            world.until(0.5)
        with world.rates({"m0": -most, "m1": most, "m2": most, "m3": most, "w1": -most}):
            world.until(0.95)
        world.until(1)

    return act


def suspended(world: World, *, counted: bool = True) -> None:
    """
    Suspend the machine of one holder after the other for longer than the ttl.

    Its packets pass a moment after it resumes, so that no master tells it that its lease is over.
    If the time is not *counted*, its CLOCK_BOOTTIME stands still, too.
    """
    seconds = 1.7 * world.crew.job.ttl / 1000
    world.until(0.1)
    last = ""
    while world.crew.time_left() > seconds + 2.5:
        last = world.crew.holder([name for name in world.crew.names if name != last])
        with world.suspended(last, counted=counted):
            world.wait(seconds)
        world.wait(1.0)  # it is connected again
    world.until(1)


def full_disk(world: World) -> None:
    """Fill the disks of two masters, and those of two others when these have space again."""
    world.until(0.1)
    for masters in ((0, 1), (2, 3)):
        with world.full_disks(*masters):
            world.wait(2.5)
        world.wait(1.0)
    world.until(1)


def cut(*masters: int, requests: bool = True, replies: bool = True) -> Callable[[World], None]:
    """Return what cuts one holder after the other off from some of five masters."""

    def act(world: World) -> None:
        name = ""
        for share in (0.15, 0.55):
            world.until(share)
            name = world.crew.holder([each for each in world.crew.names if each != name])
            with world.cut(name, masters, requests=requests, replies=replies):
                world.until(share + 0.3)
        world.until(1)

    return act


def cut_while_one_is_down(world: World) -> None:
    """Cut one client off from two masters while a third one hangs for all."""
    world.until(0.15)
    with world.down(4):
        world.servers[4].pause()
        with world.cut("w0", [0, 1]):
            world.until(0.75)
        world.servers[4].resume()
    world.until(1)


def rolling_restart(world: World) -> None:
    """Restart all masters, one after the other, while one client is away."""
    world.until(0.05)
    with world.link_down("w0"):
        for number in range(len(world.servers)):
            world.restart(number)
            world.wait(QUARANTINE)
    world.until(1)


def flushed_while_away(world: World) -> None:
    """Flush three of five masters while one client is away, which is back before they vote."""
    world.until(0.25)
    with world.link_down("w0"):
        world.wait(0.3)
        world.flush(0, 1, 2)
        world.wait(0.5)
    world.until(1)


def sentinel_split(world: World) -> None:
    """Split the network: the old master, one Sentinel and one client on one side."""
    world.until(0.1)
    ones = ["old", "s2", "w0"]
    others = ["new", "s0", "s1", "w1", "w2"]
    with world.fault("split", f"{', '.join(ones)} | {', '.join(others)}"):
        with world.down(0):
            world.net.separate(ones, others)
            world.until(0.75)
            world.net.heal()
        world.back(0)
    world.until(1)


def _lost_takeover(world: World, *masters: int) -> list[Node]:
    """Promote the replicas of these masters at once, without the locks of their primaries."""
    primaries = [world.owner(number) for number in masters]
    for primary in primaries:
        world.site.lose(primary)
    return world.site.take_over(*primaries)


def cluster_failover(world: World) -> None:
    """Promote two of three replicas that lack all locks; later the third one likewise."""
    world.until(0.1)
    with world.new_owner("failover, all locks lost", 0, 1):
        _lost_takeover(world, 0, 1)
    world.wait(OWNER_QUARANTINE + 1)
    world.site.wait_until(world.site.is_up, "the replicas are in sync")
    with world.new_owner("failover, all locks lost", 2):
        _lost_takeover(world, 2)
    world.until(1)


def cluster_paused(world: World) -> None:
    """Pause a primary until its replica was promoted and votes, and let it go on then."""
    world.until(0.1)
    old, slot = world.owner(0), world.slot(0)
    with world.new_owner("paused", 0):
        old.pause()
        world.site.wait_for_promotion(old, slot)
    world.wait(OWNER_QUARANTINE + 1)
    with world.fault("resumed", "what was m0"):
        old.resume()
        world.wait(1)
    world.until(1)


def cluster_resharded(world: World) -> None:
    """Move the slot of a master to a new node; take that of another one, without its locks."""
    site = world.site
    world.until(0.1)
    first, second = world.owner(0), world.owner(1)
    with world.fault("a node joins"):
        new = site.add()
    with world.new_owner("slot moved", 0):
        site.move(world.slot(0), new)
    world.wait(OWNER_QUARANTINE + 1)
    with world.new_owner("slots taken, all locks lost", 0, 1):
        site.take(world.slot(0), first)
        site.take(world.slot(1), new)
    world.wait(OWNER_QUARANTINE + 1)
    with world.new_owner("slot taken back", 1):
        site.take(world.slot(1), second)
    with world.fault("a node leaves"):
        site.forget(new)
    world.until(1)


def cluster_coverage(world: World) -> None:
    """Kill a primary, with full coverage required: all masters stop until it is replaced."""
    world.site.require_full_coverage("yes")
    world.until(0.2)
    old, slot = world.owner(0), world.slot(0)
    with world.new_owner("killed, full coverage", 0), world.down(1, 2):
        old.kill()
        world.site.wait_for_promotion(old, slot)
        others = [node for node in world.site.running if node is not old]
        world.site.wait_until(lambda: all(node.accepts_writes for node in others), "all go on")
    world.until(1)


def cluster_there_and_back(world: World) -> None:
    """Make two of three primaries replicas and primaries again: the locks are lost on the way."""
    world.until(0.2)
    with world.new_owner("there and back", 0, 1):
        promoted = _lost_takeover(world, 0, 1)
        world.site.wait_until(world.site.is_up, "the old primaries are in sync")
        world.site.take_over(*promoted)
    world.until(1)


def promoted(world: World) -> None:
    """
    Kill the only master and promote its replica, to which the name leads then; twice.

    The replica has nothing of the last 3 s. The killed one becomes its replica
    and is promoted in its turn.
    """
    first, second = world.servers[0], world.servers[-1]
    world.until(0.15)
    for old, new in ((first, second), (second, first)):
        with world.fault("failover", f"from {old.name} to {new.name}"), world.down(0):
            world.cut_replication(LAG)
            old.kill()
            world.promote(new)
        world.back(0, within=world.quarantine)
        old.start()
        world.follow(old, new)
        world.wait(world.quarantine + 1)
    world.until(1)


def there_and_back(world: World) -> None:
    """
    Promote the replica of the only master, and then the former master again, within a moment.

    Both live all the time. What the master has granted in the 3 s before is lost. One client is
    away meanwhile, and finds the server that it knew, with the marker that it knew; twice.
    """
    first, second = world.servers[0], world.servers[-1]
    for share, process in ((0.1, "w0"), (0.55, "w1")):
        world.until(share)
        with world.link_down(process):
            with world.fault("there and back"), world.down(0):
                world.cut_replication(LAG)
                world.promote(second)
                world.follow(first, second)
                world.promote(first)
                world.follow(second, first)
            world.back(0, within=world.quarantine)
    world.until(1)


def endpoint_moves(world: World) -> None:
    """
    Promote the replica of the first master and move the name to it, while the old one lives on.

    One client is cut off from the old one, so it finds the new one at once. The others stay
    connected to the old one until they look up the name again.
    """
    world.until(0.15)
    world.cut_replication(LAG)
    with world.fault("the name leads to the replica"):
        world.promote(world.servers[-1])
        # Until the clients have left the old one, and the quarantine that begins then is over.
        world.back(0, within=LEFT_WITHIN + world.quarantine)
        with world.cut("w0", [0]):
            world.until(0.9)
    world.until(1)


def endpoint_moves_unseen(world: World) -> None:
    """
    Promote the replica of the first master behind an address that stays; later kill the old one.

    One client is cut off from the old one, so that its next connection leads to the new one. The
    others stay connected to the old one until that is killed.
    """
    world.until(0.15)
    world.cut_replication(LAG)
    with world.fault("the address leads to the replica"):
        world.promote(world.servers[-1])
        with world.cut("w0", [0]):
            world.until(0.65)
            with world.fault("the old one is killed"), world.down(0):
                world.servers[0].kill()
                world.until(1)


def _stalls(world: World, detail: str, seconds: float) -> Iterator[str]:
    """Yield processes that hold locks, one after the other, and record that they stand still."""
    world.until(0.1)
    last = ""
    while world.crew.time_left() > seconds + 1.5:
        last = world.crew.holder([name for name in world.crew.names if name != last])
        with world.fault("stall", detail, client=last):
            yield last
            world.wait(0.3)
    world.until(1)


def stopped(world: World) -> None:
    """Stop one holder after the other (SIGSTOP) for longer than the ttl."""
    seconds = 1.7 * world.crew.job.ttl / 1000
    for name in _stalls(world, "SIGSTOP", seconds):
        world.crew.signal(name, signal.SIGSTOP)
        world.wait(seconds)
        world.crew.signal(name, signal.SIGCONT)


def acquirer_stopped(world: World) -> None:
    """
    Stop one process after the other (SIGSTOP) between its requests for locks and their answers.

    The masters stand still first, so that each holder asks for the next of its tasks and gets no
    answer. They grant that, and it expires, while the process is stopped.
    """
    seconds = 1.7 * world.crew.job.ttl / 1000
    for name in _stalls(world, "SIGSTOP, before it gets answers", seconds):
        for server in world.servers:
            server.pause()
        world.wait(UNANSWERED)
        world.crew.signal(name, signal.SIGSTOP)
        for server in world.servers:
            server.resume()
        world.wait(seconds)
        world.crew.signal(name, signal.SIGCONT)


def stalled(world: World) -> None:
    """Block the event loop of one holder after the other for longer than the ttl."""
    for name in _stalls(world, "its event loop is blocked", world.crew.job.stall):
        world.crew.signal(name, signal.SIGUSR1)
        world.wait(world.crew.job.stall)


def client_killed(world: World) -> None:
    """Kill one holder after the other, and start another process each time; in the end kill all."""
    world.until(0.1)
    while world.crew.time_left() > LAST + 3.0:
        # Waiters behind a dead one in a fair queue wait for 4 s: a kill a second would only show
        # how many kills there were.
        name = world.crew.holder(world.crew.living())
        with world.fault(f"{name} killed"):
            world.crew.kill(name)
            world.crew.start_one()
            world.note()
        world.wait(4.5)
    # What the last ones leave is put right by nobody who comes after them: it has to end by itself.
    world.wait(world.crew.time_left() - LAST)
    with world.fault("all killed"):
        # One that has no time for another turn may have ended by itself.
        for name in filter(world.crew.runs, world.crew.living()):
            world.crew.kill(name)
        world.note()
    world.until(1)


def forked(world: World) -> None:
    """Make each client process fork while it holds a lock; parent and child go on."""
    world.until(0.1)
    for name in list(world.crew.names):
        with world.fault("fork", name):
            world.crew.signal(name, signal.SIGUSR2)
            world.wait(0.2 * world.seconds)
    world.until(1)


ROWS = (
    Row("no fault", "Nothing fails.", nothing, longest_gap=PROMPT),
    Row(
        "master killed", "Two of five masters are killed, one after the other, for good.", killed,
        containers=True, longest_gap=PROMPT,
    ),
    Row(
        "master paused",
        "One or two masters are stopped (SIGSTOP) for 0.05 to 1.8 s, again and again.", paused,
        containers=True, longest_gap=PAUSED,
    ),
    Row(
        "restarted empty",
        "Two masters are killed and come back empty; 5 s later two others do.",
        restarted, job=LONG_BODIES, containers=True, longest_gap=PROMPT,
    ),
    Row(
        "majority restarted empty",
        "Three masters are killed at once and come back empty; three times.",
        majority_restarted, seconds=18.0, job=OUTLASTING, containers=True, longest_gap=PROMPT,
    ),
    Row(
        "restored from an old RDB",
        "Two masters come back with the keys of 0.4 s before; 5 s later the three others do.",
        restored, seconds=14.0, job=LONG_BODIES, longest_gap=PROMPT,
    ),
    Row(
        "flushed", "Two masters are flushed; 5 s later the three others are.",
        flushed, job=LONG_BODIES, containers=True, longest_gap=PROMPT,
    ),
    Row(
        "clock set",
        "The clock of one master is set an hour ahead, an hour back, 0.7 s ahead, and right; then"
        " those of three are set 3 s ahead, and right.",
        clock_set, needs=frozenset({"clocks"}), assumption="nobody sets the clock of a master",
        # One master takes entries of its queues for too old, or keeps them for too long.
        longest_gap=STANDS_STILL,
    ),
    Row(
        "clock rates differ",
        "The clocks of masters and clients run up to 0.45 % too fast or too slow, so that two drift"
        " apart by 0.9 %. No lease is extended.",
        rates(0.0045), needs=frozenset({"clocks"}), job=LET_EXPIRE, longest_gap=PROMPT,
    ),
    Row(
        "full disk",
        "The disks of two masters are full, so that they refuse all writes, one because of its"
        " append-only file and one because of its snapshots; when they have space again, those of"
        " two others.",
        full_disk, seconds=30.0, needs=frozenset({"disks"}), longest_gap=PAUSED,
    ),
    Row(
        "cut off from a minority",
        "A client that holds locks can't reach two masters; later another one can't.",
        cut(0, 1), needs=NETWORK, job=HELD_FOR_LONG, longest_gap=PROMPT,
    ),
    Row(
        "cut off from a majority",
        "A client that holds locks can't reach three masters; later another one can't.",
        cut(0, 1, 2), needs=NETWORK, job=HELD_FOR_LONG, longest_gap=GONE,
    ),
    Row(
        "requests lost",
        "The requests of a holder to three masters are lost, and what they send arrives; later the"
        " same for another one.",
        cut(0, 1, 2, replies=False), needs=NETWORK, job=HELD_FOR_LONG, longest_gap=GONE,
    ),
    Row(
        "replies lost",
        "What three masters send to a holder is lost, and its requests arrive; later the same for"
        " another one.",
        cut(0, 1, 2, requests=False), needs=NETWORK, job=HELD_FOR_LONG, longest_gap=GONE,
    ),
    Row(
        "cut off, and a master down",
        "One client can't reach two masters while a third one hangs for all.",
        cut_while_one_is_down, needs=NETWORK, longest_gap=GONE,
    ),
    Row(
        "rolling restart, a client away",
        "All masters restart empty, one when the other votes again, while a client's link is down.",
        rolling_restart, seconds=26.0, needs=NETWORK, job=LONG_BODIES, longest_gap=GONE,
    ),
    Row(
        "flush, a client away",
        "Three masters are flushed while a client's link is down; it is back before they vote.",
        flushed_while_away, needs=NETWORK, job=LONG_BODIES, longest_gap=GONE,
    ),
    Row(
        "Sentinel split",
        "The only master is behind Sentinels. It is cut off with one of three Sentinels and one"
        " client; the others promote its replica.",
        sentinel_split, seconds=20.0, needs=frozenset({"network", "sentinels"}),
        longest_gap=GONE,
    ),
    Row(
        "Cluster, failover",
        "The masters are three primaries of a Redis Cluster of six nodes. The replicas of two lose"
        " all locks and are promoted at once; later the third one.",
        cluster_failover, seconds=20.0, needs=CLUSTER, job=LONG_BODIES, longest_gap=PROMPT,
    ),
    Row(
        "Cluster, paused primary",
        "A primary is stopped (SIGSTOP) until its replica was promoted and votes; then it goes on.",
        cluster_paused, seconds=20.0, needs=CLUSTER, job=LONG_BODIES, longest_gap=PROMPT,
    ),
    Row(
        "Cluster, resharded",
        "A node joins. The slot of one master moves to it with its keys, and back without; that of"
        " another one moves there and back without. The node leaves.",
        cluster_resharded, seconds=34.0, needs=CLUSTER, job=LONG_BODIES, longest_gap=PROMPT,
    ),
    Row(
        "Cluster, full coverage",
        "A primary is killed, and cluster-require-full-coverage is yes: all stop until its replica"
        " is promoted.",
        cluster_coverage, seconds=20.0, needs=CLUSTER, job=LONG_BODIES, longest_gap=PROMPT,
    ),
    Row(
        "Cluster, there and back",
        "Two primaries become replicas, lose all locks, and are primaries again at once.",
        cluster_there_and_back, seconds=16.0, needs=CLUSTER, job=LONG_BODIES, longest_gap=PROMPT,
    ),
    Row(
        "promoted",
        "The only master has a replica that is 3 s behind. It is killed, the replica is promoted,"
        " and the name of the master leads there; later the same once more.",
        promoted, seconds=30.0, needs=NETWORK, job=REPLICATED, masters=1, endpoint="name",
        longest_gap=PROMPT,
    ),
    Row(
        "there and back",
        "The replica of the only master, 3 s behind, is promoted, and then the former master again,"
        " while a client's link is down; later the same once more.",
        there_and_back, seconds=30.0, needs=NETWORK, job=REPLICATED, masters=1, endpoint="name",
        longest_gap=GONE,
    ),
    Row(
        "endpoint moves, the old one lives",
        "The replica of the only master, 3 s behind, is promoted, and the name leads there. A"
        " client that can't reach the old one any more follows at once; the others are connected"
        " to the old one.",
        endpoint_moves, seconds=22.0, needs=NETWORK, job=REPLICATED, masters=1, endpoint="name",
        longest_gap=GONE,
    ),
    Row(
        "endpoint moves unseen",
        "The same behind an address that stays, such as a load balancer's: the others are connected"
        " to the old one until it is killed, half of the run later.",
        endpoint_moves_unseen, seconds=26.0, needs=NETWORK, job=REPLICATED, masters=1,
        endpoint="address", assumption="all programs are connected to the same server, if it is"
        " the only master", longest_gap=GONE,
    ),
    Row(
        "one of three endpoints moves unseen",
        "The same, and two other masters stay as they are.",
        endpoint_moves_unseen, seconds=26.0, needs=NETWORK, job=REPLICATED, masters=3,
        endpoint="address", longest_gap=PROMPT,
    ),
    Row(
        "one of five endpoints moves",
        "The name of one of five masters moves to its replica, as above, and the old one lives.",
        endpoint_moves, seconds=22.0, needs=NETWORK, job=REPLICATED, endpoint="name",
        longest_gap=PROMPT,
    ),
    Row(
        "holder stopped", "Holders of locks are stopped (SIGSTOP) for 1.7 ttls, one at a time.",
        stopped, late=True, longest_gap=STANDS_STILL,
    ),
    Row(
        "acquirer stopped",
        "Processes are stopped (SIGSTOP) for 1.7 ttls between their requests for locks and the"
        " answers of the masters, one at a time.",
        acquirer_stopped, late=True, longest_gap=STANDS_STILL,
    ),
    Row(
        "client suspended",
        "The machines of holders are suspended for 1.7 ttls, one at a time: CLOCK_MONOTONIC does"
        " not count the time, and packets pass a moment after the end.",
        suspended, late=True, needs=frozenset({"network", "clocks"}), job=SUSPENDED,
        longest_gap=GONE,  # it stands still, and is cut off for a moment after that
    ),
    Row(
        "loop stalled", "The event loops of holders are blocked for 1.7 ttls, one at a time.",
        stalled, late=True, needs=frozenset({"event loop"}), longest_gap=STANDS_STILL,
    ),
    Row(
        "client killed",
        "Processes that hold locks are killed, one every 4.5 s, and others start; in the end all"
        " are killed.",
        client_killed, seconds=18.0, job=HELD_FOR_LONG, longest_gap=GONE,
    ),
    Row(
        "client forked", "Each client process forks while it holds a lock; both go on.", forked,
        needs=frozenset({"fork"}), longest_gap=PROMPT,
    ),
    Row(
        "released by force", "Clients release locks that others hold by force.", nothing,
        job={"force": 0.7}, ability="force_release", longest_gap=PROMPT,
    ),
)  # fmt: skip
