"""
The URL of a master: its check, above all for an unescaped password, and its meaning.

A password with a ``/``, ``?`` or ``#`` ends there, because that is read as the begin of
a path, of options or of a fragment. The rest of the password would be taken for a host,
a port or the name of an option, and shown in errors and votes. Therefore a URL is
accepted only if no part of its password can be there: no ``@`` and no fragment behind
the host, and each part has the right form. An error repeats nothing of the URL except
schemes of `KNOWN_SCHEMES` and names of options.

A URL with ``+sentinel`` names a master by its Sentinels. It stands for the URLs of several
servers, which redis-py can read: see `MasterUrl`.
"""

import re
from dataclasses import dataclass, field, replace
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

SCHEMES = {
    "redis": "redis", "rediss": "rediss", "unix": "unix", "valkey": "redis", "valkeys": "rediss",
}  # fmt: skip
"""Each scheme of one server, and its name in redis-py."""

BY_SENTINELS = "+sentinel"
"""Ends the scheme of a master that Sentinels name."""

BY_CLUSTER = "+cluster"
"""Ends the scheme of a Redis Cluster, several primaries of which are the masters."""

CLUSTER_PORT = 6379
"""The port of a node of a Cluster whose port is not named."""

SENTINEL_PORT = 26379
"""The port of a Sentinel whose port is not named."""

KNOWN_SCHEMES = frozenset({
    "http", "https", "redis+socket", "redis-sentinel", "rediss-sentinel",
    "sentinel", "sentinels", "tcp", "unix+cluster", "unix+sentinel",
})  # fmt: skip
"""Schemes that users write instead; any other scheme may be a part of a password."""

ESCAPES = (
    "in a password, write '/', '?', '#', '@', '%' and brackets as %2F, %3F, %23, %40, %25, %5B, %5D"
)
_PASSWORDS = {"password", "sentinel_password", "ssl_password"}
_BEFORE = {"host", "path", "port"}
_OF_MASTER = {"db", "password", "username"}
_OF_SENTINELS = {"sentinel_password": "password", "sentinel_username": "username"}
_OF_CLUSTER = {"masters", "tags", "db"}
_SECOND = re.compile(r"(rediss?|valkeys?|sentinel|cluster|unix)://", re.IGNORECASE)
_BETWEEN = re.compile(r",\s*(?=[a-z][a-z0-9+.-]*://)", re.IGNORECASE)
_SERVICE = re.compile(r"/([A-Za-z0-9._-]+)(?:/([0-9]{0,9}))?")


@dataclass(frozen=True, slots=True)
class MasterUrl:
    """
    The servers that the URL of a master names, as URLs that redis-py can read.

    Attributes:
        server: The URL of the server; empty if Sentinels name it.

        service: The name of the master on its Sentinels; empty if there are none.

        sentinels: The URL of each Sentinel.

        nodes: The URL of each node of a Redis Cluster that is named.

        tag: The tag of the master there, with braces; empty if the URL names several.
    """

    server: str = field(default="", repr=False)
    service: str = ""
    sentinels: tuple[str, ...] = field(default=(), repr=False)
    nodes: tuple[str, ...] = field(default=(), repr=False)
    tag: str = ""
    _before: str = field(default="", repr=False)
    _behind: str = field(default="", repr=False)

    def at(self, host: str, port: int) -> str:
        """Return the URL of the server at an address that Sentinels, or nodes, name."""
        where = f"[{host}]" if ":" in host else host
        return f"{self._before}{where}:{port}{self._behind}"


@dataclass(frozen=True, slots=True)
class ClusterUrl:
    """
    What the URL of a Redis Cluster says.

    Attributes:
        server: The URL of its first node that is named, as redis-py can read it.

        seeds: The host and port of each node that is named.

        by: What its scheme ends in.

        masters: How many masters it asks for; ``None`` if it does not.

        tags: The tags that it asks for; ``None`` if it does not.
    """

    server: str = field(repr=False)
    seeds: tuple[tuple[str, int], ...]
    by: str
    masters: int | None
    tags: tuple[str, ...] | None


def split(text: str) -> list[str]:
    """
    Return the URLs in *text*, which has commas between them.

    A comma ends a URL only if the next one begins behind it, with a scheme and ``://``. So
    commas between Sentinels stay, and those of a password.
    """
    found = [url.strip(", \t\r\n") for url in _BETWEEN.split(text)]
    return [url for url in found if url]


def locate(url: str) -> MasterUrl:
    """Return the servers that *url* names; `check` has accepted it."""
    scheme, _, rest = url.partition("://")
    if is_of_cluster(url):
        return _locate_node(url)
    base = scheme.lower().removesuffix(BY_SENTINELS)
    if base == scheme.lower():
        return MasterUrl(f"{SCHEMES[base]}://{rest}")
    login, hosts, path, query = _of_sentinels(rest)
    service, database = _service(path)
    options = parse_qsl(query)
    own = [(name, value) for name, value in options if name not in _OF_SENTINELS]
    own += [("db", database)] if database else []
    theirs = [(_OF_SENTINELS.get(n, n), value) for n, value in options if n not in _OF_MASTER]
    ports = [host if _port(host) else f"{host.removesuffix(':')}:{SENTINEL_PORT}" for host in hosts]
    sentinels = tuple(f"{SCHEMES[base]}://{host}{_query(theirs)}" for host in ports)
    before = f"{SCHEMES[base]}://{login}"
    return MasterUrl("", service, sentinels, _before=before, _behind=_query(own))


def is_of_cluster(url: str) -> bool:
    """Return whether the scheme of *url* is one of a Redis Cluster."""
    scheme, found, _ = url.lower().partition("://")
    base = scheme.removesuffix(BY_CLUSTER)
    return bool(found) and base != scheme and base in SCHEMES and base != "unix"


def locate_cluster(url: str) -> ClusterUrl:
    """Return what *url* says; `check_cluster` has accepted it."""
    scheme, _, rest = url.partition("://")
    base = scheme.lower().removesuffix(BY_CLUSTER)
    login, hosts, _, query = _of_sentinels(rest)
    options = parse_qsl(query)
    chosen = dict(options)
    seeds = [
        (urlsplit(f"{base}://{host}").hostname or "", int(_port(host) or CLUSTER_PORT))
        for host in hosts
    ]
    return ClusterUrl(
        f"{SCHEMES[base]}://{login}{hosts[0]}"
        + _query([(name, value) for name, value in options if name not in _OF_CLUSTER]),
        tuple(seeds),
        BY_CLUSTER if base != scheme.lower() else "",
        int(chosen["masters"]) if "masters" in chosen else None,
        tuple(chosen["tags"].split(",")) if "tags" in chosen else None,
    )


def _locate_node(url: str) -> MasterUrl:
    named = locate_cluster(url)
    scheme, _, rest = url.partition("://")
    login, _, _, query = _of_sentinels(rest)
    before = f"{SCHEMES[scheme.lower().removesuffix(BY_CLUSTER)]}://{login}"
    behind = _query([pair for pair in parse_qsl(query) if pair[0] not in _OF_CLUSTER])
    tags = named.tags or ()
    tag = f"{{{tags[0]}}}" if len(tags) == 1 else ""
    made = MasterUrl("", tag=tag, _before=before, _behind=behind)
    return replace(made, nodes=tuple([made.at(*seed) for seed in named.seeds]))


def with_tag(url: str, tag: str) -> str:
    """Return the *url* of a Cluster for the master with this *tag* alone, which has no braces."""
    scheme, _, rest = url.partition("://")
    before, _, query = rest.partition("?")
    options = [pair for pair in parse_qsl(query) if pair[0] not in {"masters", "tags"}]
    return f"{scheme}://{before}{_query([*options, ('masters', '1'), ('tags', tag)])}"


def check_cluster(url: str, *, name: str) -> None:
    """Raise `ValueError` unless *url* names nodes of a Redis Cluster, with any scheme of TCP."""
    scheme, found, rest = url.partition("://")
    base = scheme.lower().removesuffix(BY_CLUSTER)
    if found and base in SCHEMES and base != "unix":
        complaint = _complaint(f"{base}{BY_CLUSTER}://{rest}")
    else:
        complaint = (
            "must be a redis://, rediss://, valkey:// or valkeys:// URL of a node of a Redis"
            " Cluster, or one with +cluster in its scheme"
        )
    if complaint:
        raise ValueError(f"{name} {complaint}")


def _query(options: list[tuple[str, str]]) -> str:
    return f"?{urlencode(options)}" if options else ""


def _of_sentinels(rest: str) -> tuple[str, list[str], str, str]:
    """Return the login with its ``@``, the Sentinels, the path, and the options."""
    before, _, query = rest.partition("?")
    where, slash, path = before.partition("/")
    login, at, hosts = where.rpartition("@")
    return login + at, hosts.split(","), slash + path, query


def _service(path: str) -> tuple[str, str]:
    """Return the service and the database number in a path; both are empty if it has none."""
    found = _SERVICE.fullmatch(unquote(path))
    return (found[1], found[2] or "") if found else ("", "")


def check(url: str, *, name: str) -> None:
    """Raise `ValueError` unless *url* is unambiguous."""
    complaint = _complaint(url)
    if complaint:
        raise ValueError(f"{name} {complaint}")


def _complaint(url: str) -> str | None:
    scheme, has_scheme, rest = url.partition("://")
    scheme = scheme.lower()
    base = _base(scheme)
    if not url:
        return "is empty; it must be a URL, such as redis://host:6379"
    if url != url.strip() or not url.isprintable():
        return "has white space at an end, a line break or another character that is not printable"
    many = scheme != base
    if not has_scheme or base not in SCHEMES or (many and base == "unix"):
        came = f"a {scheme}:// URL" if scheme in KNOWN_SCHEMES else "one of another scheme"
        came = came if has_scheme else "a text without '://'"
        return (
            "must be a redis://, rediss://, valkey://, valkeys://, unix://, redis+sentinel:// or"
            f" rediss+sentinel:// URL, or one redis+cluster:// URL alone, not {came}"
        )
    if _SECOND.search(rest):
        if scheme.endswith(BY_CLUSTER):
            return (
                "holds two URLs; a Cluster is named alone, its nodes in one URL, such as"
                " redis+cluster://a:6379,b:6379"
            )
        return "holds two URLs; give a list with one URL for each master"
    return _of_rest(url, scheme, base, rest)


def _base(scheme: str) -> str:
    """Return *scheme* without its end, of which it has one at most."""
    more = BY_CLUSTER if scheme.endswith(BY_CLUSTER) else BY_SENTINELS
    return scheme.removesuffix(more)


def _of_rest(url: str, scheme: str, base: str, rest: str) -> str | None:
    """*rest* is what follows the ``://``."""
    if "#" in rest or "@" in re.sub(r"^[^/?#]*", "", rest):
        return f"has a '#', or an '@' behind the host; {ESCAPES}"
    if scheme == base:
        return _of_parts(url, scheme)
    return (_of_cluster if scheme.endswith(BY_CLUSTER) else _of_service)(base, rest)


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


def _of_service(base: str, rest: str) -> str | None:
    """*rest* is what follows the ``://``."""
    login, hosts, path, query = _of_sentinels(rest)
    complaint = None
    if "@" in login[:-1]:
        complaint = f"has two '@' before the path: a login stands once; {ESCAPES}"
    elif not any(hosts):
        complaint = "names no Sentinel before the path, as in redis+sentinel://s1,s2,s3/mymaster"
    elif not all(hosts):
        complaint = "has a comma without a Sentinel before or behind it"
    parts = (_of_parts(f"{base}://{login}{host}", base) for host in hosts)
    complaint = complaint or next(filter(None, parts), None)
    return complaint or _of_path(path, query) or _of_options(query)


def _of_cluster(base: str, rest: str) -> str | None:
    """*rest* is what follows the ``://``."""
    login, hosts, path, query = _of_sentinels(rest)
    complaint = None
    if "@" in login[:-1]:
        complaint = f"has two '@' before the path: a login stands once; {ESCAPES}"
    elif not any(hosts):
        complaint = "names no node, as in redis+cluster://host:6379?masters=3"
    elif not all(hosts):
        complaint = "has a comma without a node before or behind it"
    elif path not in {"", "/", "/0"}:
        complaint = f"has a path: a Redis Cluster has the database 0 only; {ESCAPES}"
    parts = (_of_parts(f"{base}://{login}{host}", base) for host in hosts)
    complaint = complaint or next(filter(None, parts), None) or _of_options(query)
    if complaint:
        return complaint
    options = dict(parse_qsl(query))
    if options.get("db", "0") != "0":
        return "has an option 'db': a Redis Cluster has the database 0 only"
    masters = options.get("masters")
    # The range is checked where the masters are made; that message tells what came.
    if masters is not None and not (masters.isascii() and masters.isdigit() and len(masters) < 10):
        return "has an option 'masters' that is not a number from 1 to 21, such as 3"
    return None


def _of_path(path: str, query: str) -> str | None:
    service, database = _service(path)
    if path in {"", "/"}:
        return (
            "names no service: the path is the master's name on its Sentinels, as in"
            " redis+sentinel://s1,s2,s3/mymaster"
        )
    if not service:
        return (
            "has a path that is no service, of letters, digits, '.', '_' and '-', as in"
            f" redis+sentinel://s1,s2,s3/mymaster; {ESCAPES}"
        )
    if database and "db" in dict(parse_qsl(query)):
        return "has a database in its path, and an option 'db'; name it once"
    return None


def _port(host: str) -> str:
    return host.rpartition("]")[2].partition(":")[2]


def _is_port(host: str) -> bool:
    port = _port(host)
    return not port or bool(re.fullmatch("[0-9]{1,5}", port) and 0 < int(port) < 2**16)


def _of_options(query: str) -> str | None:
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name in _BEFORE:
            return f"has an option {name!r}: host, port and path stand before the '?'"
        if not value:
            return "has an option without a value"
    return None


def wrong_option(url: str, option: str | None) -> str:
    """Return the complaint about a URL that `check` accepts and redis-py does not."""
    names = {name for name, _ in parse_qsl(urlsplit(url).query)}
    # A password among the options may contain '&'; its rest then looks like an option, too.
    if option is None or option not in names or names & _PASSWORDS:
        return "has an option that is unknown, or has a value of another kind"
    scheme = url.partition("://")[0].lower()
    base = _base(scheme)
    if option.startswith("ssl") and SCHEMES[base] != "rediss":
        more = scheme.removeprefix(base)
        return f"has an option {option!r}, which is for rediss{more}:// URLs"
    return f"has an option {option!r} that is unknown, or has a value of another kind"
