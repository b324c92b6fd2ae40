"""One cell of the matrix: a kind of lock under a fault, from the first server to the last key."""

import contextlib
import dataclasses
import itertools
import json
import os
import platform
import random
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .clocks import compiled
from .clusters import Cluster
from .containers import ContainerServer
from .crew import Crew
from .faults import Row
from .job import Job
from .locks import Contestant
from .networks import BALANCER, NAME, PORT, Network
from .provenance import measured
from .recorder import FAULTS, Recorder, now
from .servers import DEBUGGED, SERVICE, Master, Place, SentinelServer, Server, wait_for_copy
from .world import World

WORKERS = 3
REPLICA = "new"
"""The node of the replica of the first master."""

AT_ONCE = "--repl-diskless-sync-delay", "0"
"""The options of a server that copies its keys to a replica without a wait for other replicas."""

LOGS = "--appendonly", "yes"
ON_DISK = {"disks": (LOGS, ("--save", "1 1")), "logs": (LOGS,)}
"""The options of servers with a disk, in turn: they append to a file, or write snapshots."""

MEANT_TO_STAY = ("redlock_aio:marker", "redlock_aio:masters:", "redlock_aio:fence:")
"""The prefixes of the keys that outlive every lock."""

TAG = re.compile(r"^\{\d{4}\}")
"""What the keys of a master in a Cluster begin with."""

EXPIRY = 4.0
"""
Seconds after the end of a run until all keys of its locks have expired: those of a killed
process, and registrations in fair queues, which live for 3 s.
"""

BUSY: Mapping[str, float] = {
    "longest_gap": 4.0, "overtaken_within": 2.0, "lost_within": 0.0, "cancelled_within": 2.0,
    "kept_within": 1.0,
}  # fmt: skip
"""
The limits that a cell may have (`Cell.limits`), and how often the longest delay of a client's
event loop is added to each: on a busy machine all of them wait.
"""

ORDER = 0.1
"""
The seconds by which a fair waiter may have come earlier than one that is served before it. What is
promised is twice the difference between the masters' clocks, which is 0 on one machine. The rest is
the time until a waiter takes its place, and half a round trip.
"""

CANCELLED = 0.01
"""
The seconds after the end of its lease in which a body may begin a write: the step that its event
loop was in. What is recorded as the end is up to a millisecond early.
"""

KEPT = 0.01
"""The seconds from the instant of an acquisition, as the library sees it, to its record."""


def cannot(contestant: Contestant, row: Row) -> str:
    """Return why a kind of lock can't be tried in a row anywhere; empty if it can."""
    if "sentinels" in row.needs and "sentinel" not in contestant.abilities:
        return "it takes no master behind Sentinels"
    if "cluster" in row.needs and "cluster" not in contestant.abilities:
        return "it takes no Redis Cluster"
    if row.ability and row.ability not in contestant.abilities:
        return "it has no such operation"
    if "event loop" in row.needs and not contestant.event_loop:
        return "its event loop is not that of the program"
    if "fork" in row.needs and not contestant.forks:
        return "it does not fork"
    return ""


def promised(row: Row, contestant: Contestant) -> dict[str, float]:
    """Return what the library promises of a kind of lock under the fault of *row*: see `BUSY`."""
    limits = {"cancelled_within": CANCELLED, "kept_within": KEPT}
    if row.longest_gap is not None:
        limits["longest_gap"] = row.longest_gap
    # Where two servers serve, or the clock of a master is an hour off, no order is promised; where
    # clocks drift apart, less of it than `ORDER`.
    if contestant.fair and not row.assumption and "clocks" not in row.needs:
        limits["overtaken_within"] = ORDER
    return limits


def leaves_nothing(row: Row, contestant: Contestant) -> bool:
    """Return whether no key of a lock may be left when all has expired."""
    # What is kept is not released, and ends by the clock of its master: if somebody sets that back
    # by an hour, an hour later.
    return not (contestant.keeps and row.assumption and "clocks" in row.needs)


@dataclass(frozen=True, slots=True)
class Cell:
    """
    What is run.

    Attributes:
        job: What differs from the job of the row.

        program: The module whose command repeats it.

        limits: What the checker holds the run to, in seconds, by the names in `BUSY`.

        clean_within: The seconds after the end by which no key of a lock is left.
    """

    row: Row
    contestant: Contestant
    seed: int
    binary: str
    seconds: float = 0.0
    job: dict[str, object] = field(default_factory=dict)
    expected: str = "holds"
    containers: bool = False
    control: str = ""
    program: str = "matrix"
    limits: Mapping[str, float] = field(default_factory=dict)
    clean_within: float = EXPIRY

    @property
    def name(self) -> str:
        """A name for files."""
        where = " containers" if self.containers else ""
        words = f"{self.control or self.row.name} {self.contestant.name}{where}"
        return words.replace(",", "").replace(" ", "-").lower()


class Stage:
    """The servers, the network and the clients of one run."""

    def __init__(self, cell: Cell, folder: Path, stack: contextlib.ExitStack) -> None:
        self._cell = cell
        self._stack = stack
        self.folder = folder
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="evidence-")))
        needs = cell.row.needs
        self._network: Network | None = None
        self._cluster: Cluster | None = None
        self._masters = min(cell.row.masters, cell.contestant.masters)
        names = [f"m{number}" for number in range(self._masters)]
        if "sentinels" in needs:
            names = ["old", "new", "s0", "s1", "s2"]
        if "network" in needs:
            nodes = (*names, *(f"w{number}" for number in range(WORKERS)))
            if cell.row.endpoint:
                nodes += REPLICA, BALANCER
            self._network = stack.enter_context(Network(nodes))
        self._shim = compiled(scratch) if "clocks" in needs else None
        self._place = Place(cell.binary, scratch, self._network, self._shim)
        self.servers: Sequence[Master]
        if "sentinels" in needs:
            self._start_sentinels()
        elif "cluster" in needs:
            self._start_cluster()
        elif cell.containers:
            self.servers = [stack.enter_context(ContainerServer(name)) for name in names]
        else:
            options: tuple[str, ...] = AT_ONCE if cell.row.endpoint else ()
            options += DEBUGGED if "snapshots" in needs else ()
            disks = [options for need in needs & set(ON_DISK) for options in ON_DISK[need]]
            kept = itertools.cycle(disks or [()])
            self.servers = [
                self._start(Server(self._place, name, *options, *keeps, disk=bool(keeps)))
                for name, keeps in zip(names, kept, strict=False)
            ]
        if not needs & {"sentinels", "cluster"}:
            self.urls = tuple(server.url for server in self.servers)
        if cell.row.endpoint:
            self._start_replica()
        self.store = self._start(Server(Place(cell.binary, scratch), "store"))

    def _start(self, server: Server) -> Server:
        return self._stack.enter_context(server)

    def _start_cluster(self) -> None:
        self._masters = 3
        self._cluster = self._stack.enter_context(Cluster(self._place))
        self.servers = self._cluster.nodes
        places = ",".join(f"{node.address}:{node.port}" for node in self._cluster.nodes)
        self.urls = (f"redis+cluster://{places}?masters={self._masters}",)

    def _start_replica(self) -> None:
        """Start a replica of the first master, which clients reach by an endpoint then."""
        place, net, first = self._place, self._network, self.servers[0]
        if net is None:
            raise ValueError("an endpoint needs a network")
        replica = self._start(Server(place, REPLICA, *AT_ONCE, *follow(net, first.name)))
        wait_for_copy(replica)
        self.servers = [*self.servers, replica]
        self._lead(first.name)
        where = NAME if self._cell.row.endpoint == "name" else net.address(BALANCER)
        self.urls = (f"redis://{where}:{PORT}", *self.urls[1:])

    def _lead(self, node: str) -> None:
        """Let the endpoint of the first master lead to a node."""
        if self._network is not None:
            by_name = self._cell.row.endpoint == "name"
            (self._network.lead if by_name else self._network.balance)(node)

    def _start_sentinels(self) -> None:
        self._masters = 1
        place, net = self._place, self._network
        if net is None:
            raise ValueError("Sentinels need a network")
        old = self._start(Server(place, "old", *AT_ONCE))
        new = self._start(Server(place, "new", *AT_ONCE, *follow(net, "old")))
        self.servers = [old, new]
        sentinels, addresses = [], []
        for name in ("s0", "s1", "s2"):
            socket, config = place.folder / f"{name}.socket", place.folder / f"{name}.conf"
            lines = [
                *(f"port {PORT}", "bind 0.0.0.0", "protected-mode no", f"unixsocket {socket}"),
                f"sentinel down-after-milliseconds {SERVICE} 600",
            ]
            watched = net.address("old"), PORT
            sentinel = SentinelServer(
                place.binary, config, f"unix://{socket}", watched, lines, net.within(name)
            )
            self._stack.callback(sentinel.kill)
            sentinel.start()
            addresses.append(f"{net.address(name)}:{PORT}")
            sentinels.append(sentinel)
        self.urls = (f"sentinel://{','.join(addresses)}/{SERVICE}",)
        ends = time.monotonic() + 30
        while not all(sentinel.knows_all() for sentinel in sentinels):
            if time.monotonic() > ends:
                raise OSError("the Sentinels do not find each other")
            time.sleep(0.1)

    def crew(self) -> Crew:
        """Return the clients, which are not started yet."""
        cell, net = self._cell, self._network
        job = Job(
            folder=str(self.folder),
            contestant=cell.contestant.name,
            urls=self.urls,
            store=self.store.unix_url,
            seed=cell.seed,
        )
        job = dataclasses.replace(job, **{**cell.row.job, **cell.job})  # type: ignore[arg-type]

        def within(name: str) -> Sequence[str]:
            if net is None:
                return ()
            if name not in net:  # it takes the place of one that was killed
                net.add(name)
            return net.within(name)

        # A program in another language has no use for the library, or records wrong times with it.
        shim = self._shim if cell.contestant.command[:1] in {(), (sys.executable,)} else None
        return Crew(job, within, cell.contestant.command, shim)

    def world(self, crew: Crew, record: Recorder) -> World:
        """Return what the row acts on."""
        cell = self._cell
        return World(
            servers=self.servers,
            crew=crew,
            record=record,
            chance=random.Random(cell.seed),
            seconds=cell.seconds or cell.row.seconds,
            network=self._network,
            lead=self._lead,
            masters=self._masters,
            cluster=self._cluster,
        )


def follow(network: Network, master: str) -> tuple[str, str]:
    """Return the options of a replica."""
    return "--replicaof", f"{network.address(master)} {PORT}"


def run(cell: Cell, folder: Path) -> list[str]:
    """
    Run one cell, and leave its history in *folder*.

    Returns:
        What went wrong in the run itself, such as a client that ended with an error.
    """
    measures = measured()  # before this run is what makes the machine busy
    with contextlib.ExitStack() as stack:
        stage = Stage(cell, folder, stack)
        crew = stage.crew()
        record = Recorder(folder, FAULTS)
        stack.callback(record.close)
        world = stage.world(crew, record)
        server = described(stage.servers[0])
        with crew.working(WORKERS, world.seconds):
            began = now()
            world.note()
            cell.row.act(world)
            wrong = crew.wait()
            ended = now()
            late = crew.late()
        clean = leaves_nothing(cell.row, cell.contestant)
        left = keys_left(stage.servers, cell.clean_within) if clean else None
        meta = facts(cell, crew.job, server) | measures
        meta |= {"began": began, "ended": ended, "keys_left": left, "masters": world.masters}
        meta |= {name: limit + BUSY[name] * late for name, limit in cell.limits.items()}
        (folder / "meta.json").write_text(json.dumps(meta, indent=1) + "\n")
    return wrong


def keys_left(servers: Sequence[Master], within: float = EXPIRY) -> dict[str, list[int]]:
    """Return the keys of locks that are still on running masters after *within* seconds."""
    ends = time.monotonic() + within
    while True:
        began = time.monotonic()
        left: dict[str, list[int]] = {}
        for number, server in enumerate(servers):
            for key in keys(server):
                left.setdefault(key, []).append(number)
        if not left or began > ends:
            return left
        time.sleep(0.1)


def keys(server: Master) -> Iterator[str]:
    """Yield the keys of a master that should not stay; none if it does not run, or is a replica."""
    if server.state == "stopped":
        return
    with contextlib.closing(server.client()) as client:
        # A replica that lost keys before it was promoted has a former master that keeps them. No
        # command for them comes from the new one, and no client asks the former one.
        if client.role()[0] != "master":
            return
        for key in client.scan_iter():
            if not TAG.sub("", key).startswith(MEANT_TO_STAY):
                yield key


def facts(cell: Cell, job: Job, server: str) -> dict[str, Any]:
    """Return what `meta.json` says of a run before it is over."""
    row, contestant = cell.row, cell.contestant
    seconds = cell.seconds or row.seconds
    return {
        "row": row.name,
        "what": row.what,
        "column": contestant.name,
        "contestant": contestant.distribution,
        "versions": contestant.versions(),
        "seed": cell.seed,
        "ttl": job.ttl,
        "workers": WORKERS,
        "tasks": job.tasks,
        "long": job.long,
        "rest": job.rest,
        "server": server,
        "machine": machine(),
        "expected": cell.expected,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "command": command(cell, seconds),
    }


def command(cell: Cell, seconds: float) -> str:
    """Return the command that repeats a run."""
    if cell.program != "matrix":
        return (
            f"python -m benchmarks.evidence.{cell.program} --rows '{cell.row.name}'"
            f" --columns '{cell.contestant.name}' --seconds {seconds:g} --seed {cell.seed}"
        )
    what = f"--rows '{cell.row.name}' --columns '{cell.contestant.name}' --controls"
    if cell.control:
        what = f"--controls '{cell.control}'"
    where = " --containers" if cell.containers else ""
    where += " --server redis" if Path(cell.binary).name == "redis-server" else ""
    if not cell.control and (rest := cell.job.get("rest")):
        where += f" --rest {rest}"
    return (
        f"python -m benchmarks.evidence.matrix {what} --seconds {seconds:g}"
        f" --seed {cell.seed}{where}"
    )


def described(server: Master) -> str:
    """Return the name and the version of a server."""
    with contextlib.closing(server.client()) as client:
        info = client.info("server")
    name = info.get("server_name", "redis")
    return f"{name} {info.get(f'{name}_version', info['redis_version'])}"


def machine() -> str:
    """Return one line about the machine, without the host's name."""
    cpu = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    for line in cpuinfo.read_text().splitlines() if cpuinfo.exists() else ():
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
            break
    return (
        f"{cpu}, {os.cpu_count()} cores,"
        f" {platform.system()} {platform.release().partition('-')[0]},"
        f" {platform.python_implementation()} {platform.python_version()}"
    )
