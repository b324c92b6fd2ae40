"""How programs declare their sets of masters on each master, and read those of others."""

from redlock_aio._protocol.scripts import DECLARE, pack
from redlock_aio._rules.membership import Declared, parse

KEY = b"redlock_aio:masters:"
"""What the key begins with under which sets are declared; a *key_prefix* follows."""


def read(reply: object, now: float) -> list[Declared] | None:
    """Return the sets in the *reply* to `declare`, which came *now*; ``None`` if it is nonsense."""
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
    Return the command that says which sets are in use.

    Args:
        how: Whether to ``b"read"`` only, to ``b"write"`` *ours*, or to ``b"withdraw"`` it
            where nobody has written it again.

        age: For how many ms *ours* has been in use elsewhere.

        lasts: For how many ms *ours* counts if it is not written again.

        former: What *ours* stands for from now on.
    """
    numbers = (b"%d" % age, b"%d" % lasts)
    return pack(b"EVALSHA", DECLARE.sha, b"1", key, how, ours, *numbers, former)
