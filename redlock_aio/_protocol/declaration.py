"""The command by which programs write about their masters, and read what others have written."""

from collections.abc import Iterable
from typing import NamedTuple

from redlock_aio._protocol.scripts import DECLARE, pack
from redlock_aio._rules.membership import LIVES, Line, parse

KEY = b"redlock_aio:masters:"
"""The prefix of the key with the lines; a *key_prefix* follows."""


class Text(NamedTuple):
    """
    A line to write.

    Attributes:
        lasts: The ms for which it counts if it is not written again.

        ago: The ms since it was true last.

        since: The instant at which it came, if it was deleted meanwhile, in ms of the master's
            clock; 0 if it was not.
    """

    text: bytes
    lasts: int
    ago: int = 0
    since: int = 0


class Reply(NamedTuple):
    """
    What a master has answered to `declare`.

    Attributes:
        found: How many of the texts that were written were there before.

        lines: All lines, in the order in which they came.
    """

    found: int
    lines: list[Line]


def read(reply: object, now: float) -> Reply | None:
    """Parse the *reply* to `declare` that arrived *now*; ``None`` if it is malformed."""
    if not isinstance(reply, list) or len(reply) % 2 == 0 or type(reply[0]) is not int:
        return None
    found, *rest = reply
    lines = []
    for text, times in zip(rest[::2], rest[1::2], strict=True):
        line = parse(text)
        if line is None or not isinstance(times, list) or [type(ms) for ms in times] != [int] * 3:
            continue
        since, left, lasts = times
        until = now + left / 1000
        held = until - lasts / 1000 * (1 - 1 / LIVES)
        lines.append(Line(*line, since, until, held))
    return Reply(found, lines)


def declare(key: bytes, texts: Iterable[Text] = ()) -> bytes:
    """Return the command that writes *texts*, if any, and reads all lines."""
    packed: list[bytes] = []
    for text in texts:
        packed += [text.text, *(b"%d" % number for number in text[1:])]
    return pack(b"EVALSHA", DECLARE.sha, b"1", key, *packed)
