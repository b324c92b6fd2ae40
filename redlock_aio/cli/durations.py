"""Durations as people write them: ``30s``, ``1m``, ``500ms``."""

import re
from decimal import Decimal

UNITS: dict[str, int] = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
"""The milliseconds of each unit."""

LONGEST = 2**53
"""The longest duration in milliseconds, as for the library: beyond it floats can't count."""

EXPLAINED = "a number and a unit, such as 500ms, 30s, 1m, 2h or 1d; only 0 needs none"
"""What a duration is, for people."""

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", re.ASCII)


def milliseconds(text: str) -> int:
    """
    Return the duration that *text* states, in whole milliseconds.

    Raises:
        ValueError: It has no unit, is no whole number of milliseconds, or is too long.
    """
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        if text.strip() == "0":
            return 0
        raise ValueError(f"must be a duration, such as 500ms, 30s or 1m, not {text!r}")
    exact = Decimal(found[1]) * UNITS[found[2]]
    if exact > LONGEST:
        raise ValueError(f"must be at most {LONGEST} ms, about 285,000 years")
    if exact != int(exact):
        raise ValueError(f"must be whole milliseconds, not {text!r}")
    return int(exact)


def shown(ms: int) -> str:
    """Return *ms* for people, rounded down, with the largest unit that suits."""
    if ms < 1_000:
        return f"{ms} ms"
    if ms < 60_000:
        return f"{ms // 100 / 10:g} s"
    minutes, seconds = divmod(ms // 1_000, 60)
    if minutes < 60:
        return f"{minutes} min {seconds} s" if seconds else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"
