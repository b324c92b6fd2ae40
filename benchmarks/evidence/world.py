"""
What a fault may act on: masters, client processes and the network, and the record of it.

Beside each fault the record says which masters each process reaches. A master counts for a
process if packets pass in both directions, and if it runs and may vote. A master that has
restarted, was flushed, or whose clock was set does not count until its quarantine is surely over.
"""

import contextlib
import math
import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from .clocks import Name
from .clusters import Cluster, Node, slot_of, standard_tags
from .crew import Crew
from .networks import PORT, Network
from .recorder import Recorder
from .servers import Master, wait_for_copy

QUARANTINE = 4.0
"""
Seconds until a master votes again, with a `max_ttl` of 1 s: 1 % more and 1 s, 1 s because
uptimes are whole seconds, and up to 0.5 s until a client connects again; rounded up.
"""

OWNER_QUARANTINE = 7.0
"""
Seconds until a new owner of a slot votes, likewise: 2 s more than after a restart, and up to 1 s
until a client knows of it.
"""

AWAKE = 0.3
"""Seconds after a stop until a client has surely run again."""

RECONNECT = 1.0
"""Seconds in which clients connect to a master again that they can reach again."""


@dataclass(slots=True, eq=False)
class Absence:
    """Masters that do not count for a process, or for all."""

    masters: frozenset[int]
    process: str = ""
    """The process; empty for all of them."""
    until: float = math.inf
    """Up to when, on `time.monotonic`; infinite if that is not known yet."""


@dataclass(slots=True)
class World:
    """One run, while its row acts on it."""

    servers: Sequence[Master]
    """
    The masters, in their order, and last the replica of the first one if it has one. For a master
    behind Sentinels the servers that can be it.
    """

    crew: Crew
    record: Recorder
    chance: random.Random
    seconds: float
    network: Network | None = None
    lead: Callable[[str], None] = lambda _: None
    """Lets the endpoint of the first master lead to the server with this name."""

    masters: int = 5
    cluster: Cluster | None = None
    """The Cluster whose primaries are the masters."""
    _absences: list[Absence] = field(default_factory=list)
    """Several of them may be of one master, when faults overlap: the last one to end counts."""
    _known: dict[str, list[int]] = field(default_factory=dict)

    # ------------------------------------------------------------------------ time

    def until(self, share: float) -> None:
        """Wait until this share of the run is over."""
        self.wait(self.crew.time_left() - (1 - share) * self.seconds)

    def wait(self, seconds: float) -> None:
        """Wait, and record what is reached again meanwhile."""
        ends = time.monotonic() + seconds
        while True:
            self.note()
            now = time.monotonic()
            due = min((each.until for each in self._absences if each.until > now), default=ends)
            if now >= ends:
                return
            time.sleep(max(0.0, min(due, ends) - now))

    # --------------------------------------------------------------------- records

    @contextlib.contextmanager
    def fault(self, name: str, detail: str = "", *, client: str = "") -> Iterator[None]:
        """Record that the body is a fault, from its begin to its end."""
        self.record.fault(name, "begin", detail, client=client)
        yield
        self.record.fault(name, "end", detail, client=client)

    def away(self, process: str = "") -> set[int]:
        """Return the masters that do not run, or may not vote yet; or that *process* lacks."""
        now = time.monotonic()
        self._absences = [each for each in self._absences if each.until > now]
        mine = (each for each in self._absences if each.process in {"", process})
        return {number for each in mine for number in each.masters}

    def note(self) -> None:
        """Record which masters each process reaches now, where that has changed."""
        for name in self.crew.names:
            gone = self.away(name)
            reached = [number for number in range(self.masters) if number not in gone]
            if name in self.crew.dead:
                reached = []
            if self._known.get(name) != reached:
                self._known[name] = reached
                self.record.reach(name, reached)

    # --------------------------------------------------------------------- masters

    @contextlib.contextmanager
    def down(self, *masters: int, process: str = "") -> Iterator[None]:
        """Count *masters* as down, or only for *process*, in the body and for a moment after it."""
        absence = Absence(frozenset(masters), process)
        self._absences.append(absence)
        self.note()
        yield
        absence.until = time.monotonic() + RECONNECT
        self.note()

    def back(self, *masters: int, within: float = QUARANTINE) -> None:
        """Count *masters* as away until *within* seconds from now."""
        self._absences.append(Absence(frozenset(masters), until=time.monotonic() + within))
        self.note()

    @contextlib.contextmanager
    def restarting(self, *masters: int) -> Iterator[None]:
        """Kill *masters*, and start them after the body with the keys that they have saved."""
        with self.fault("restart", ", ".join(f"m{number}" for number in masters)):
            with self.down(*masters):
                for number in masters:
                    self.servers[number].kill()
                yield
                # One after the other, the last one would be away for most of a ttl.
                with ThreadPoolExecutor(len(masters)) as threads:
                    list(threads.map(lambda number: self.servers[number].start(), masters))
            self.back(*masters, within=self.quarantine)

    def restart(self, *masters: int) -> None:
        """Kill *masters* at once and start them again, with the keys that they have saved."""
        with self.restarting(*masters):
            pass

    @contextlib.contextmanager
    def full_disks(self, *masters: int) -> Iterator[None]:
        """Fill the disks of *masters* during the body: they refuse all writes."""
        names = ", ".join(f"m{number}" for number in masters)
        with self.fault("full disk", names), self.down(*masters):
            for number in masters:
                self.servers[number].fill_disk()
            yield
            for number in masters:
                self.servers[number].free_disk()

    @contextlib.contextmanager
    def rates(self, rates: Mapping[str, float]) -> Iterator[None]:
        """Let the clocks of masters and clients run at other rates in the body, by their names."""
        masters = {server.name: server for server in self.servers}
        detail = ", ".join(f"{name} {rate:+.2%}" for name, rate in sorted(rates.items()))
        with self.fault("clock rates", detail):
            for name, rate in rates.items():
                if name in masters:
                    masters[name].run_at(rate)
                else:
                    self.crew.clock(name).run_at(rate)
            yield
            for name in rates:
                if name in masters:
                    masters[name].run_at(0)
                else:
                    self.crew.clock(name).run_at(0)

    def drop(self, *masters: int) -> None:
        """Close the connections of all clients of *masters*."""
        names = ", ".join(f"m{number}" for number in masters)
        with self.fault("dropped", names), self.down(*masters):
            for number in masters:
                self.servers[number].cut()

    def flush(self, *masters: int) -> None:
        """Delete all keys of *masters*."""
        with self.fault("flush", ", ".join(f"m{number}" for number in masters)):
            with self.down(*masters):  # from before the first key is gone
                for number in masters:
                    self.servers[number].flush()
            self.back(*masters, within=self.quarantine)

    # -------------------------------------------------------------------- replicas

    @property
    def quarantine(self) -> float:
        """As `QUARANTINE`, with the `max_ttl` of this run."""
        return QUARANTINE + 1.01 * (self.crew.job.ttl / 1000 - 1)

    def cut_replication(self, seconds: float) -> None:
        """Wait *seconds*, in which the replica gets nothing of its master; `promote` it then."""
        one, other = self.servers[0].name, self.servers[-1].name
        with self.fault("replication cut", f"{one}, {other}"):
            self.net.separate([one], [other])
            self.wait(seconds)

    def promote(self, server: Master) -> None:
        """Make *server* a master, and let the endpoint lead to it."""
        with contextlib.closing(server.client()) as client:
            client.replicaof("NO", "ONE")
        # Not before: its former master would send it what it lacks.
        self.net.heal()
        self.lead(server.name)

    def follow(self, server: Master, master: Master) -> None:
        """Make *server* a replica of *master*, and wait until it has its keys."""
        with contextlib.closing(server.client()) as client:
            client.replicaof(self.net.address(master.name), str(PORT))
        wait_for_copy(server)

    # --------------------------------------------------------------------- network

    @property
    def net(self) -> Network:
        """The network; only for rows that need one."""
        if self.network is None:
            raise RuntimeError("this row needs a network")
        return self.network

    @contextlib.contextmanager
    def cut(
        self, process: str, masters: Sequence[int], *, requests: bool = True, replies: bool = True
    ) -> Iterator[None]:
        """Drop a process's requests to *masters*, or their replies, or both, during the body."""
        nodes = [self.servers[number].name for number in masters]
        lost = " and ".join(["requests"] * requests + ["replies"] * replies)
        detail = f"{process}: {lost} of {', '.join(nodes)} are lost"
        with self.down(*masters, process=process), self.fault("cut", detail):
            if requests:
                self.net.cut([process], nodes)
            if replies:
                self.net.cut(nodes, [process])
            yield
            if requests:
                self.net.mend([process], nodes)
            if replies:
                self.net.mend(nodes, [process])

    @contextlib.contextmanager
    def link_down(self, process: str) -> Iterator[None]:
        """Disable the link of a process during the body."""
        with self.down(*range(self.masters), process=process), self.fault("link down", process):
            self.net.link_down(process)
            yield
            self.net.link_up(process)

    # --------------------------------------------------------------------- clients

    @contextlib.contextmanager
    def stopped(self, name: str, detail: str = "SIGSTOP") -> Iterator[None]:
        """Stop the processes of a client during the body."""
        with self.fault("stall", detail, client=name):
            self.crew.signal(name, signal.SIGSTOP)
            yield
            self.crew.signal(name, signal.SIGCONT)
            self.wait(AWAKE)

    @contextlib.contextmanager
    def suspended(self, name: str, *, counted: bool = True) -> Iterator[None]:
        """
        Suspend a client's machine during the body, and its link for a moment longer.

        Its CLOCK_MONOTONIC does not count the time, and CLOCK_BOOTTIME does, if it is *counted*.
        """
        began = time.monotonic()
        with contextlib.ExitStack() as link, self.stopped(name, "its machine is suspended"):
            if self.network is not None:  # after the stop, or it would release what it holds before
                link.enter_context(self.link_down(name))
            yield
            clocks: tuple[Name, ...] = ("monotonic",) if counted else ("monotonic", "boottime")
            self.crew.clock(name).stand_still(time.monotonic() - began, *clocks)

    # --------------------------------------------------------------------- cluster

    @property
    def site(self) -> Cluster:
        """The Cluster; only for rows that need one."""
        if self.cluster is None:
            raise RuntimeError("this row needs a Cluster")
        return self.cluster

    def slot(self, master: int) -> int:
        """Return the slot of a master of the Cluster."""
        return slot_of(standard_tags(self.masters)[master])

    def owner(self, master: int) -> Node:
        """Return the node that is this master now."""
        return self.site.owner(self.slot(master))

    @contextlib.contextmanager
    def new_owner(self, what: str, *masters: int) -> Iterator[None]:
        """Record that *masters* get new owners in the body, which are quarantined after it."""
        with self.fault(what, ", ".join(f"m{number}" for number in masters)):
            with self.down(*masters):
                yield
            self.back(*masters, within=OWNER_QUARANTINE)
