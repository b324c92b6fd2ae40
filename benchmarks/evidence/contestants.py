"""All contestants by their names: ours, installed peers, no lock, and naive designs."""

from .locks import Contestant
from .naive import NAIVE
from .no_lock import NoLock
from .ours import MIXED, OURS
from .peers import peers


def contestants() -> dict[str, Contestant]:
    """Return all contestants by their names."""
    everybody: list[Contestant] = [*OURS, MIXED, *peers(), NoLock(), *NAIVE]
    return {each.name: each for each in everybody}
