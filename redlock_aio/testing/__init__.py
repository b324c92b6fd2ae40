"""
Helpers for tests of programs that use locks: real masters, a fake master, virtual time.

`EmbeddedMaster` and `embedded_masters` start real servers on this machine, and
pause, kill and restart them: pass their `url` to `redlock_aio.Redlock`.
`FakeMaster` is a master in memory, for tests in virtual time
(`VirtualTimeLoop`): pass it to `redlock_aio.Redlock` as it is. It runs the same Lua
scripts as real masters. ``pip install '.[testing]'`` in the clone installs the
dependencies of both. `cancelled_at` cancels a coroutine at a chosen suspension.
The package is a plugin of pytest, too, with these masters and managers as fixtures.
``python -m redlock_aio.testing 5`` starts five real servers until Ctrl-C, to try locks with.
"""

from redlock_aio.testing._embedded import (
    EmbeddedMaster as EmbeddedMaster,
    embedded_masters as embedded_masters,
    server_binary as server_binary,
)
from redlock_aio.testing._fake import FakeMaster as FakeMaster
from redlock_aio.testing._virtual import (
    VirtualTime as VirtualTime,
    VirtualTimeLoop as VirtualTimeLoop,
    cancelled_at as cancelled_at,
)

__all__ = (
    "EmbeddedMaster",
    "FakeMaster",
    "VirtualTime",
    "VirtualTimeLoop",
    "cancelled_at",
    "embedded_masters",
    "server_binary",
)

# Tracebacks, reprs and pickles name the names above as users import them.
for _name in __all__:
    globals()[_name].__module__ = __name__
del _name
