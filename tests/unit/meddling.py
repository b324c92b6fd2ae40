"""What others do to a master in the midst of what we do, and what it has been asked."""

from collections.abc import Callable

from redlock_aio._protocol.primitives import Counter
from redlock_aio._protocol.scripts import Script
from redlock_aio.testing import FakeMaster
from redlock_aio.testing._fake_pushes import PushReceiver

LEAD = 2**53
"""A lead with which any proposal will do."""


def ran(master: FakeMaster, script: Script) -> int:
    """Return how often *master* was asked to run a script."""
    return sum(script.sha in command for command in master.commands)


def before(master: FakeMaster, script: Script, meddle: Callable[[], object]) -> None:
    """Have something happen each time before *master* runs a script."""
    execute = master.execute

    def meddled(command: list[bytes], listener: PushReceiver | None = None) -> object:
        if script.sha in command:
            meddle()
        return execute(command, listener)

    # It is not the class that is meddled with.
    vars(master)["execute"] = meddled


def fence(name: str = "r") -> str:
    """Return the key of the counter of a resource."""
    return Counter((name.encode(),), LEAD).keys[0].decode()


def counter(master: FakeMaster, name: str = "r") -> int:
    """Return what a counter says, without the mark of a holder that has lifted it."""
    return int(master.keys[fence(name)].partition(".")[0])


def count_up(master: FakeMaster, by: int = 1, name: str = "r") -> int:
    """Raise a counter as a grant to somebody else would; return what it says now."""
    value = counter(master, name) + by
    master.set(fence(name), f"{value:016}")
    return value


def had_it(masters: list[FakeMaster], name: str = "r") -> int:
    """Let somebody else have had the lock on *masters* where nobody has it; return the token."""
    free = [master for master in masters if name not in master.keys]
    if 2 * len(free) <= len(masters):
        return 0
    token = max(counter(master, name) for master in free) + 1
    for master in free:
        master.set(fence(name), f"{token:016}")
    return token
