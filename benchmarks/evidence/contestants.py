"""All contestants by their names: ours, installed peers, no lock, and naive designs."""

from .locks import Contestant
from .naive import NAIVE
from .naive_semaphores import NAIVE_SEMAPHORES
from .no_lock import NoLock
from .ours import BESIDE_PLAIN, COLUMNS, MIXED
from .peers import peers


def contestants() -> dict[str, Contestant]:
    """Return all contestants by their names."""
    naive = (NoLock(), *NAIVE, *NAIVE_SEMAPHORES)
    everybody: list[Contestant] = [*COLUMNS, MIXED, BESIDE_PLAIN, *peers(), *naive]
    return {each.name: each for each in everybody}
