"""
Locks of other libraries, behind the interface of `locks`, each used as its documentation shows.

What all have in common:

- `until` is what the library promises. Where it promises no instant, it is the key's ttl,
  counted from before the command that set it: the key can't expire earlier, whatever happens
  on the way.
- `ensure_valid` asks what a user can ask without waiting. Where there is nothing to ask, it
  returns always, as the documented use goes on always.
- A time that the documentation recommends, or a default that it names, is taken. Where there
  is none, it is as with redlock_aio. The comments say which.

`pip install -e '.[peers]'` and `npm install --prefix benchmarks/evidence/node` install them.
`go build -C benchmarks/evidence/go -o worker` builds the client of redsync.
"""

import importlib.util

from .locks import Contestant
from .peers_go import Redsync, is_built
from .peers_node import NodeRedlock, is_installed
from .peers_one_master import PythonRedisLock, RedisPy
from .peers_quorum import Aioredlock, Pottery

_PYTHON: tuple[tuple[str, Contestant], ...] = (
    ("redis", RedisPy()),
    ("redis_lock", PythonRedisLock()),
    ("pottery", Pottery()),
    ("aioredlock", Aioredlock()),
)


def peers() -> list[Contestant]:
    """Return those whose packages are installed, or whose client is built."""
    found = [peer for module, peer in _PYTHON if importlib.util.find_spec(module)]
    if is_installed():
        found.append(NodeRedlock())
    if is_built():
        found.append(Redsync())
    return found
