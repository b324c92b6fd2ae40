"""
What a seed stands for: masters, programs with their actions, and faults, all as plain values.

A plan decides everything that happens: it can be written down, made smaller, and run again.
"""

import random
from dataclasses import dataclass, replace
from typing import Final

TTLS: Final = (100, 300, 1_000)
MAX_TTL: Final = max(TTLS)
PERMITS: Final = 2
KEPT: Final = 300
"""For how many ms a lock of the kind "kept" stays locked at least."""

KINDS: Final[dict[str, dict[str, object]]] = {
    "plain": {},
    "fenced": {"fencing": True},
    "fair": {"fair": True},
    "fair and fenced": {"fair": True, "fencing": True},
    "reader": {"shared": True},
    "writer": {"fair": True, "fencing": True},
    "permit": {"permits": PERMITS, "fencing": True},
    "several": {},
    "several, fenced": {"fencing": True},
    "kept": {"hold_at_least": KEPT},
}
"""The options of each kind of lock."""

MASTER_FAULTS: Final = {
    "hangs": "answers nothing for a while, and executes all of it late",
    "is mute": "executes requests, but its replies are late",
    "loses replies": "executes requests, but its replies are lost with the connections",
    "resets": "loses all connections, with the requests underway",
    "restarts": "dies, and comes back empty",
    "is flushed": "loses all keys, and goes on",
    "refuses": "answers commands about locks with an error",
    "forgets scripts": "has to be told the scripts again",
}
"""What may happen to a master."""

PROGRAM_FAULTS: Final = {
    "stands still": "its process is stopped, or its event loop blocked",
    "sleeps": "its machine is suspended: clocks that don't count that stand still",
    "is cut off": "reaches no master, or only some of them",
    "dies": "is killed",
    "reopens": "closes its manager, and opens it again",
}
"""What may happen to a program."""

FAULTS: Final = MASTER_FAULTS | PROGRAM_FAULTS
OFTEN: Final = (
    *FAULTS, "hangs", "restarts", "restarts", "stands still", "stands still", "sleeps",
    "is cut off",
)  # fmt: skip
"""The faults, some of them more often."""

WIDER: Final = 1_000_000
"""The first seed that may have more in it: those before are published, and stay as they are."""

CANCELLED: Final = "is cancelled"
"""What may happen to an action, besides the `FAULTS`."""


@dataclass(frozen=True, slots=True)
class Action:
    """One acquisition with what is done under the lease. All times are in ms."""

    program: int
    task: int
    kind: str
    names: tuple[str, ...]
    rest: int
    """How long its task rests before it."""
    ttl: int
    wait: int | None
    hold: int
    extends: int | None = None
    """The ttl of an extension in the middle, if there is one."""
    auto_extend: bool = True
    max_hold: int | None = None
    block: bool = True
    """Whether it is an ``async with`` block, whose body is cancelled if the lease is lost."""
    fails: bool = False
    """Whether the body ends with an error."""
    cancelled: int | None = None
    """At which of its awaits it is cancelled, counted from 1."""
    stopped: int | None = None
    """When it is cancelled, wherever it is then."""
    apart: bool = False
    """Whether the lease of an ``async with`` block is acquired before the block."""
    again: int = 0
    """How often its body acquires the lock again, each time in the body of the last."""

    def __str__(self) -> str:
        waits = "" if self.wait is None else f" wait={self.wait}"
        more = "" if self.auto_extend else " auto_extend=False"
        more += f" max_hold={self.max_hold}" if self.max_hold else ""
        more += f", extend({self.extends})" if self.extends else ""
        more += ", fails" if self.fails else ""
        more += f", cancelled at await {self.cancelled}" if self.cancelled else ""
        more += f", cancelled after {self.stopped} ms" if self.stopped is not None else ""
        more += f", {self.again} times again" if self.again else ""
        names = "+".join(self.names)
        way = "with" if self.block else "acquire"
        way += " apart" if self.apart else ""
        return f"{way} {self.kind} {names!r} ttl={self.ttl}{waits}, hold {self.hold} ms{more}"


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that happens to a master or a program. Times are in ms."""

    at: int
    name: str
    targets: tuple[int, ...]
    """The numbers of masters; or that of a program, and then of the masters that it can't reach."""
    lasts: int

    @property
    def of_program(self) -> bool:
        """Whether it happens to a program."""
        return self.name in PROGRAM_FAULTS


@dataclass(frozen=True, slots=True)
class Plan:
    """All that happens in a run."""

    seed: int
    """From what delays, tokens and other random numbers of the library are drawn."""
    latencies: tuple[float, ...]
    """The round trip to each master, in ms."""
    offsets: tuple[float, ...]
    """By how many seconds the clock of each master is ahead."""
    programs: int
    actions: tuple[Action, ...]
    faults: tuple[Fault, ...] = ()
    tick: int = 1
    """The step of fencing tokens and places in queues, in microseconds: long ones make ties."""
    jitter: bool = True
    """Whether the delay of each message differs."""

    def without_program(self, program: int) -> "Plan":
        """Return the plan with nothing that this program does, or that happens to it."""
        return replace(
            self,
            actions=tuple(each for each in self.actions if each.program != program),
            faults=tuple(
                each for each in self.faults if not (each.of_program and each.targets[0] == program)
            ),
        )


def draw(seed: int) -> Plan:
    """Return the plan of *seed*. It is the same in every process and version of Python."""
    chance = random.Random(seed)
    pick = chance.choice
    masters = pick((1, 3, 3, 3, 3, 5) if seed < WIDER else (1, 2, 3, 3, 4, 5))
    programs = pick((2, 2, 2, 3))
    latencies = tuple(pick((0.6, 1.0, 4.0, 20.0 if chance.random() < 0.3 else 2.0))
                      for _ in range(masters))  # fmt: skip
    offsets = tuple(round(chance.random() * 0.05, 3) for _ in range(masters))
    kinds = _kinds(chance)
    long = pick((0.1, 0.1, 0.6))
    actions: list[Action] = []
    for program in range(programs):
        for task in range(pick((1, 1, 2))):
            actions += [
                _action(chance, program, task, pick(kinds), long)
                for _ in range(chance.randint(1, 4))
            ]
    lasts = 1_500 if chance.random() < 0.75 else 4_000
    some = range((masters - 1) // 2) if masters > 2 and chance.random() < 0.5 else range(masters)
    # Half of the seeds have a few kinds of faults, and these more often.
    names = OFTEN if chance.random() < 0.5 else tuple(chance.sample(OFTEN, 3))
    faults = [
        _fault(chance, pick(names), chance.randrange(lasts), some, programs, masters)
        for _ in range(pick((0, 1, 2, 2, 3, 4, 6)))
    ]
    if masters > 1 and chance.random() < 0.1:
        actions, faults = _forgetful(chance, actions, masters)
    faults.sort(key=lambda each: each.at)
    tick = pick((1, 1, 100_000))
    if seed >= WIDER:
        actions = [_wider(chance, each) for each in actions]
    return Plan(seed, latencies, offsets, programs, tuple(actions), tuple(faults), tick)


def _wider(chance: random.Random, action: Action) -> Action:
    """Return *action* in one of the ways that the published seeds do not have."""
    return replace(
        action,
        stopped=chance.randrange(1_000) if chance.random() < 0.15 else None,
        apart=action.block and chance.random() < 0.3,
        again=0 if action.kind == "permit" else chance.choice((0, 0, 1, 2)),
    )


def _forgetful(
    chance: random.Random, actions: list[Action], masters: int
) -> tuple[list[Action], list[Fault]]:
    """
    Return holders that ask no master before they release, and majorities that restart meanwhile.

    Only the quarantine keeps others from the lock then.
    """
    actions = [
        replace(each, ttl=MAX_TTL, hold=chance.randint(500, 900), wait=None, auto_extend=False,
                extends=None, max_hold=None, cancelled=None, fails=False)
        for each in actions
    ]  # fmt: skip
    faults = [
        Fault(
            chance.randrange(100, 2_000), "restarts",
            tuple(sorted(chance.sample(range(masters), masters // 2 + 1))), 1,
        )
        for _ in range(3)
    ]  # fmt: skip
    return actions, faults


def _kinds(chance: random.Random) -> list[str]:
    """Return the kinds of a run: a few, so that programs want the same."""
    swarm = (
        ["plain"], ["fenced"], ["fenced", "plain"], ["fair"], ["fair and fenced"],
        ["reader", "writer"], ["permit"],
        ["several", "several, fenced", "fenced"], ["plain", "fair", "fenced", "fair and fenced"],
        ["kept", "plain"], ["reader", "plain", "writer"], ["reader", "several", "kept", "fair"],
        list(KINDS),
    )  # fmt: skip
    return chance.choice(swarm)


def _action(chance: random.Random, program: int, task: int, kind: str, long: float) -> Action:
    pick = chance.choice
    names: tuple[str, ...] = (pick("aaab"),)
    if kind.startswith("several"):
        names = pick((("a", "b"), ("b", "a"), ("a", "b", "c"), ("b", "c")))
    if kind == "permit":
        names = ("s",)
    ttl = pick(TTLS)
    hold = chance.randrange(int(1.5 * ttl) if chance.random() < long else 40)
    return Action(
        program, task, kind, names,
        rest=pick((0, 0, chance.randrange(20), chance.randrange(300))),
        ttl=ttl,
        wait=pick((0, 50, 500, 2_000, None, None)),
        hold=hold,
        extends=pick((50, *TTLS)) if chance.random() < 0.15 else None,
        auto_extend=chance.random() < 0.7,
        max_hold=200 if chance.random() < 0.1 else None,
        block=chance.random() < 0.7,
        fails=chance.random() < 0.07,
        cancelled=chance.randint(1, pick((3, 8, 20))) if chance.random() < 0.2 else None,
    )  # fmt: skip


def _fault(
    chance: random.Random, name: str, at: int, some: range, programs: int, masters: int
) -> Fault:
    lasts = int(chance.random() * chance.choice((30, 300, 2_500)))
    if name in MASTER_FAULTS:
        # What loses the keys of more masters at once than the guard can see is not promised.
        most = min(len(some), chance.choice((1, 1, 2, 3, 5))) if name != "is flushed" else 1
        return Fault(at, name, tuple(sorted(chance.sample(some, most))), lasts)
    targets: tuple[int, ...] = (chance.randrange(programs),)
    if name == "is cut off":
        targets += tuple(sorted(chance.sample(range(masters), chance.randint(1, masters))))
    return Fault(at, name, targets, lasts)
