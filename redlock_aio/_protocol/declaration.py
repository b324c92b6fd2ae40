"""The command by which programs declare their sets of masters and read those of others."""

from redlock_aio._protocol.scripts import DECLARE, pack
from redlock_aio._rules.membership import Declared, parse

KEY = b"redlock_aio:masters:"
"""The prefix of the key under which sets are declared; a *key_prefix* follows."""


def read(reply: object, now: float) -> list[Declared] | None:
    """Parse the *reply* to `declare` that arrived *now*; ``None`` if it is malformed."""
    if not isinstance(reply, list) or len(reply) % 2:
        return None
    found = []
    for text, times in zip(reply[::2], reply[1::2], strict=True):
        masters = parse(text)
        if (
            masters is None
            or not isinstance(times, list)
            or [type(ms) for ms in times] != [int] * 2
        ):
            continue
        age, ago = times
        found.append(Declared(text, masters, age, now - ago / 1000))
    return found


def declare(
    key: bytes, how: bytes, ours: bytes = b"", *, age: int = 0, lasts: int = 1, former: bytes = b""
) -> bytes:
    """
    Return the command that declares a set of masters, and reads the sets that are in use.

    Args:
        how: ``b"read"`` to read only, ``b"write"`` to declare *ours*, ``b"withdraw"`` to
            remove it where it was declared only once.

        age: The ms for which *ours* has been in use on other masters.

        lasts: The ms for which *ours* counts if it is not written again.

        former: The declared set that *ours* replaces, if any.
    """
    numbers = (b"%d" % age, b"%d" % lasts)
    return pack(b"EVALSHA", DECLARE.sha, b"1", key, how, ours, *numbers, former)
