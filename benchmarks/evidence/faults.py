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

        needs: What it needs besides servers: "network", "clocks", "sentinels", "cluster",
            "event loop".

        late: Whether holders are stopped, so that without a fence a write may come too late.

        job: What is different in the clients' job.

        containers: Whether it can be done to masters in containers.

        ability: What a contestant must be able to do; empty if any can be tried.

        assumption: The assumption of the library that it breaks: two may hold a lock then.

        masters: How many masters a client names, the first ones; 5, or fewer.

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
    endpoint: Literal["", "name", "address"] = ""

    @property
    def expected(self) -> str:
        """What a run of it is expected to show: "holds", or "may overlap"."""
        return "may overlap" if self.assumption else "holds"


NETWORK, CLUSTER = frozenset({"network"}), frozenset({"cluster"})

LONG_BODIES: Mapping[str, object] = {"long": 0.1}
"""
The job of rows in which masters lose keys at one instant: every tenth body is a long one, so that
the instant finds one of them.
"""

LAG = 3.2
"""
Seconds by which a replica that is promoted is behind its master: longer than the ttl in
`REPLICATED`. Of a shorter time it would keep the keys of locks that were released since, and they
would keep others out for as long as the locks that it lacks.
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
    """Restart three of five masters empty at once."""
    world.until(0.25)
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


def flushed(world: World) -> None:
    """Flush two masters, and the three others when these vote again."""
    world.until(0.1)
    world.flush(0, 1)
    world.wait(QUARANTINE + 1)
    world.flush(2, 3, 4)
    world.until(1)


def clock_set(world: World) -> None:
    """Set the clock of one master an hour ahead, an hour back, and right again."""
    world.until(0.1)
    for ahead in (3600.0, -3600.0, 0.7, 0.0):
        with world.fault("clock", f"m0 is {ahead:+g} s ahead"):
            world.servers[0].set_clock(ahead)
            world.back(0, within=world.seconds)
            world.wait(0.2 * world.seconds)
    world.until(1)


def cut_minority(world: World) -> None:
    """Cut one client off from two of five masters."""
    world.until(0.15)
    with world.cut("w0", [0, 1]):
        world.until(0.75)
    world.until(1)


def cut_majority(world: World) -> None:
    """Cut one client off from three of five masters."""
    world.until(0.15)
    with world.cut("w0", [0, 1, 2]):
        world.until(0.75)
    world.until(1)


def requests_lost(world: World) -> None:
    """Lose a client's requests to three of five masters, but not their replies and pushes."""
    world.until(0.15)
    with world.cut("w0", [0, 1, 2], replies=False):
        world.until(0.75)
    world.until(1)


def replies_lost(world: World) -> None:
    """Lose the replies of three of five masters to a client, which still get its requests."""
    world.until(0.15)
    with world.cut("w0", [0, 1, 2], requests=False):
        world.until(0.75)
    world.until(1)


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


def stalled(world: World) -> None:
    """Block the event loop of one holder after the other for longer than the ttl."""
    for name in _stalls(world, "its event loop is blocked", world.crew.job.stall):
        world.crew.signal(name, signal.SIGUSR1)
        world.wait(world.crew.job.stall)


def client_killed(world: World) -> None:
    """Kill one holder after the other, and start another process each time."""
    world.until(0.1)
    while world.crew.time_left() > 3.0:
        # Waiters behind a dead one in a fair queue wait for 4 s: a kill a second would only show
        # how many kills there were.
        name = world.crew.holder(world.crew.living())
        with world.fault(f"{name} killed"):
            world.crew.kill(name)
            world.crew.start_one()
            world.note()
        world.wait(4.5)
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
    Row("no fault", "Nothing fails.", nothing),
    Row(
        "master killed", "Two of five masters are killed, one after the other, for good.", killed,
        containers=True,
    ),
    Row(
        "master paused",
        "One or two masters are stopped (SIGSTOP) for 0.05 to 1.8 s, again and again.", paused,
        containers=True,
    ),
    Row(
        "restarted empty",
        "Two masters are killed and come back empty; 5 s later two others do.",
        restarted, job=LONG_BODIES, containers=True,
    ),
    Row(
        "majority restarted empty", "Three masters are killed at once and come back empty.",
        majority_restarted, job=LONG_BODIES, containers=True,
    ),
    Row(
        "restored from an old RDB",
        "Two masters come back with the keys of 0.4 s before; 5 s later the three others do.",
        restored, seconds=14.0, job=LONG_BODIES,
    ),
    Row(
        "flushed", "Two masters are flushed; 5 s later the three others are.",
        flushed, job=LONG_BODIES, containers=True,
    ),
    Row(
        "clock set",
        "The clock of one master is set an hour ahead, an hour back, 0.7 s ahead, and right.",
        clock_set, needs=frozenset({"clocks"}), assumption="nobody sets the clock of a master",
    ),
    Row("cut off from a minority", "One client can't reach two masters.", cut_minority,
        needs=NETWORK),
    Row("cut off from a majority", "One client can't reach three masters.", cut_majority,
        needs=NETWORK),
    Row(
        "requests lost",
        "The requests of one client to three masters are lost; what they send arrives.",
        requests_lost, needs=NETWORK,
    ),
    Row(
        "replies lost", "What three masters send to one client is lost; its requests arrive.",
        replies_lost, needs=NETWORK,
    ),
    Row(
        "cut off, and a master down",
        "One client can't reach two masters while a third one hangs for all.",
        cut_while_one_is_down, needs=NETWORK,
    ),
    Row(
        "rolling restart, a client away",
        "All masters restart empty, one when the other votes again, while a client's link is down.",
        rolling_restart, seconds=26.0, needs=NETWORK, job=LONG_BODIES,
    ),
    Row(
        "flush, a client away",
        "Three masters are flushed while a client's link is down; it is back before they vote.",
        flushed_while_away, needs=NETWORK, job=LONG_BODIES,
    ),
    Row(
        "Sentinel split",
        "The only master is behind Sentinels. It is cut off with one of three Sentinels and one"
        " client; the others promote its replica.",
        sentinel_split, seconds=20.0, needs=frozenset({"network", "sentinels"}),
    ),
    Row(
        "Cluster, failover",
        "The masters are three primaries of a Redis Cluster of six nodes. The replicas of two lose"
        " all locks and are promoted at once; later the third one.",
        cluster_failover, seconds=20.0, needs=CLUSTER, job=LONG_BODIES,
    ),
    Row(
        "Cluster, paused primary",
        "A primary is stopped (SIGSTOP) until its replica was promoted and votes; then it goes on.",
        cluster_paused, seconds=20.0, needs=CLUSTER, job=LONG_BODIES,
    ),
    Row(
        "Cluster, resharded",
        "A node joins. The slot of one master moves to it with its keys, and back without; that of"
        " another one moves there and back without. The node leaves.",
        cluster_resharded, seconds=34.0, needs=CLUSTER, job=LONG_BODIES,
    ),
    Row(
        "Cluster, full coverage",
        "A primary is killed, and cluster-require-full-coverage is yes: all stop until its replica"
        " is promoted.",
        cluster_coverage, seconds=20.0, needs=CLUSTER, job=LONG_BODIES,
    ),
    Row(
        "Cluster, there and back",
        "Two primaries become replicas, lose all locks, and are primaries again at once.",
        cluster_there_and_back, seconds=16.0, needs=CLUSTER, job=LONG_BODIES,
    ),
    Row(
        "promoted",
        "The only master has a replica that is 3 s behind. It is killed, the replica is promoted,"
        " and the name of the master leads there; later the same once more.",
        promoted, seconds=30.0, needs=NETWORK, job=REPLICATED, masters=1, endpoint="name",
    ),
    Row(
        "there and back",
        "The replica of the only master, 3 s behind, is promoted, and then the former master again,"
        " while a client's link is down; later the same once more.",
        there_and_back, seconds=30.0, needs=NETWORK, job=REPLICATED, masters=1, endpoint="name",
    ),
    Row(
        "endpoint moves, the old one lives",
        "The replica of the only master, 3 s behind, is promoted, and the name leads there. A"
        " client that can't reach the old one any more follows at once; the others are connected"
        " to the old one.",
        endpoint_moves, seconds=22.0, needs=NETWORK, job=REPLICATED, masters=1, endpoint="name",
    ),
    Row(
        "endpoint moves unseen",
        "The same behind an address that stays, such as a load balancer's: the others are connected"
        " to the old one until it is killed, half of the run later.",
        endpoint_moves_unseen, seconds=26.0, needs=NETWORK, job=REPLICATED, masters=1,
        endpoint="address", assumption="all programs are connected to the same server, if it is"
        " the only master",
    ),
    Row(
        "one of three endpoints moves unseen",
        "The same, and two other masters stay as they are.",
        endpoint_moves_unseen, seconds=26.0, needs=NETWORK, job=REPLICATED, masters=3,
        endpoint="address",
    ),
    Row(
        "one of five endpoints moves",
        "The name of one of five masters moves to its replica, as above, and the old one lives.",
        endpoint_moves, seconds=22.0, needs=NETWORK, job=REPLICATED, endpoint="name",
    ),
    Row(
        "holder stopped", "Holders of locks are stopped (SIGSTOP) for 1.7 ttls, one at a time.",
        stopped, late=True,
    ),
    Row(
        "loop stalled", "The event loops of holders are blocked for 1.7 ttls, one at a time.",
        stalled, late=True, needs=frozenset({"event loop"}),
    ),
    Row(
        "client killed", "Processes that hold locks are killed, one every 4.5 s, and others start.",
        client_killed,
        seconds=15.0,
    ),
    Row(
        "client forked", "Each client process forks while it holds a lock; both go on.", forked,
    ),
    Row(
        "released by force", "Clients release locks that others hold by force.", nothing,
        job={"force": 0.7}, ability="force_release",
    ),
)  # fmt: skip
