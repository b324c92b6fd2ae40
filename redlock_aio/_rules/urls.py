"""
The check of a master's URL, above all for an unescaped password.

A password with a ``/``, ``?`` or ``#`` ends there, because that is read as the begin of
a path, of options or of a fragment. The rest of the password would be taken for a host,
a port or the name of an option, and shown in errors and votes. Therefore a URL is
accepted only if no part of its password can be there: no ``@`` and no fragment behind
the host, and each part has the right form. An error repeats nothing of the URL except
schemes of `KNOWN_SCHEMES` and names of options.
"""

import re
from urllib.parse import parse_qsl, unquote, urlsplit

SCHEMES = ("redis", "rediss", "unix")

KNOWN_SCHEMES = frozenset({
    "http", "https", "redis+cluster", "redis+sentinel", "redis+socket", "redis-sentinel",
    "sentinel", "tcp", "valkey", "valkeys",
})  # fmt: skip
"""Schemes that users write instead; any other scheme may be a part of a password."""

ESCAPES = (
    "in a password, write '/', '?', '#', '@', '%' and brackets as %2F, %3F, %23, %40, %25, %5B, %5D"
)
_PASSWORDS = {"password", "ssl_password"}
_BEFORE = {"host", "path", "port"}


def check(url: str, *, name: str) -> None:
    """
    Raise `ValueError` unless *url* is unambiguous.

    Args:
        name: The argument's name, for the error.

    Raises:
        ValueError: *url* is ambiguous or malformed; the text shows no part of a password.
    """
    complaint = _complaint(url)
    if complaint:
        raise ValueError(f"{name} {complaint}")


def _complaint(url: str) -> str | None:
    scheme, has_scheme, rest = url.partition("://")
    scheme = scheme.lower()
    if not url:
        return "is empty; it must be a URL, such as redis://host:6379"
    if url != url.strip() or not url.isprintable():
        return "has white space at an end, a line break or another character that is not printable"
    if not has_scheme or scheme not in SCHEMES:
        came = f"a {scheme}:// URL" if scheme in KNOWN_SCHEMES else "one of another scheme"
        came = came if has_scheme else "a text without '://'"
        return f"must be a redis://, rediss:// or unix:// URL, not {came}"
    if re.search(r"(redis|rediss|unix)://", rest, re.IGNORECASE):
        return "holds two URLs; give a list with one URL for each master"
    if "#" in rest or "@" in re.sub(r"^[^/?#]*", "", rest):
        return f"has a '#', or an '@' behind the host; {ESCAPES}"
    return _of_parts(url, scheme)


def _of_parts(url: str, scheme: str) -> str | None:
    try:
        split = urlsplit(url)
        host = split.hostname or ""
    except ValueError:  # brackets that do not match, or characters that look like others
        return f"can't be read as a URL; {ESCAPES}"
    complaint = None
    if scheme == "unix":
        if split.netloc.rpartition("@")[2]:
            complaint = "must name an absolute path, with three slashes: unix:///run/redis.sock"
        elif not split.path:
            complaint = "names no path"
    elif not _is_port(split.netloc.rpartition("@")[2]):
        complaint = f"has a port that is not a number from 1 to 65535; {ESCAPES}"
    elif not host:
        complaint = "names no host"
    elif re.search(r"[\s,;]", host):
        complaint = "must name one host; give a list with one URL for each master"
    elif not re.fullmatch("/?|/[0-9]{1,9}", unquote(split.path)):
        complaint = f"has a path that is no database number, as in redis://host:6379/0; {ESCAPES}"
    return complaint or _of_options(split.query)


def _is_port(where: str) -> bool:
    _, colon, port = where.rpartition("]")[2].partition(":")
    return not colon or not port or bool(re.fullmatch("[0-9]{1,5}", port) and 0 < int(port) < 2**16)


def _of_options(query: str) -> str | None:
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name in _BEFORE:
            return f"has an option {name!r}: host, port and path stand before the '?'"
        if not value:
            return "has an option without a value"
    return None


def wrong_option(url: str, option: str | None) -> str:
    """
    Return the complaint about a URL that `check` accepts and redis-py does not.

    Args:
        option: The option that redis-py rejects, if it names one.
    """
    names = {name for name, _ in parse_qsl(urlsplit(url).query)}
    # A password among the options may contain '&'; its rest then looks like an option, too.
    if option is None or option not in names or names & _PASSWORDS:
        return "has an option that is unknown, or has a value of another kind"
    if option.startswith("ssl") and not url.lower().startswith("rediss:"):
        return f"has an option {option!r}, which is for rediss:// URLs"
    return f"has an option {option!r} that is unknown, or has a value of another kind"
