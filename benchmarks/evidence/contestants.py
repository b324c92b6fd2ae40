"""All contestants by their names: ours, the peers whose packages are installed, and no lock."""

from .locks import Contestant
from .no_lock import NoLock
from .ours import MIXED, OURS
from .peers import peers


def contestants() -> dict[str, Contestant]:
    """Return all contestants by their names."""
    everybody: list[Contestant] = [*OURS, MIXED, *peers(), NoLock()]
    return {each.name: each for each in everybody}
