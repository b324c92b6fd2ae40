"""The keys that are left on the masters."""

import time
from collections.abc import Sequence
from typing import Protocol

import redis

MEANT_TO_STAY = ("redlock_aio:marker", "redlock_aio:masters:", "redlock_aio:fence:")
"""The prefixes of the keys that outlive every lock."""


class Server(Protocol):
    """A master, however it is run."""

    @property
    def url(self) -> str:
        """The URL for the workers."""

    def client(self) -> redis.Redis:
        """Return a plain client."""


def left_behind(masters: Sequence[Server], *, within: float) -> dict[str, list[str]]:
    """Return the keys that are still on a master after at most *within* seconds."""
    ends = time.monotonic() + within
    while True:
        began = time.monotonic()
        left = {}
        for master in masters:
            with master.client() as client:
                if keys := [key for key in client.scan_iter() if not key.startswith(MEANT_TO_STAY)]:
                    left[master.url] = keys
        if not left or began > ends:
            return left
        time.sleep(0.02)
