"""An ambiguous URL is refused, and no text that a user can see repeats a password."""

import functools
import re
import traceback
from pathlib import Path
from random import Random
from urllib.parse import unquote

import pytest
from hypothesis import given, settings, strategies as st
from redis.asyncio.connection import SSLConnection
from redis.asyncio.sentinel import SentinelManagedConnection

import redlock_aio
from redlock_aio import Redlock, requirements, sync as threads
from redlock_aio._rules import urls
from redlock_aio._transport.address import Address, SentinelAddress

pytestmark = pytest.mark.promise("S10")

# Rare letters, and all characters with a meaning in a URL.
PASSWORDS = st.text(":/?#[]@!$&'()*+,;=% \\|<>\"`~^{}-._\n\t789QXZJKVWäß", min_size=3, max_size=24)
URLS = {
    "password": "redis://:{}@10.0.0.4",
    "login": "redis://me:{}@10.0.0.4:6380/1",
    "tls": "rediss://me:{}@example.org?ssl_check_hostname=0",
    "socket": "unix://me:{}@/run/socket?db=2",
    "IPv6": "redis://:{}@[::1]:6380",
    "user": "redis://{}@10.0.0.4",
    "option": "redis://10.0.0.4:6380?password={}",
    "first option": "redis://10.0.0.4/?password={}&db=1",
    "TLS option": "rediss://example.org?ssl_password={}",
    "alone": "redis://:{}",
    "Valkey": "valkey://me:{}@10.0.0.4:6380/1",
    "Sentinels": "redis+sentinel://me:{}@10.0.0.4,10.0.0.5:7/mine?db=1",
    "Sentinels, TLS": "rediss+sentinel://:{}@example.org,[::1]/mine/2",
    "Sentinels' option": "redis+sentinel://10.0.0.4/mine?sentinel_password={}&db=1",
    "Sentinels' master": "redis+sentinel://10.0.0.4/mine?password={}",
}


AnyAddress = Address | SentinelAddress


def shown(master: str) -> tuple[str, AnyAddress | None]:
    """Return all texts that the user of a URL could see, and the address if it is accepted."""
    try:
        redlock = Redlock([master])
    except ValueError as error:
        seen = [str(error), repr(error), repr(error.args), repr(error.__dict__)]
        seen += map(str, (error.__cause__, error.__context__))
        # The traceback's other lines are lines of the code, so only the last line is checked.
        return " ".join([*seen, traceback.format_exception_only(error)[-1]]), None
    (address,) = redlock._opener.settings.diallers
    assert isinstance(address, AnyAddress)
    seen = [repr(redlock), repr(redlock._opener.settings.diallers), str(address), repr(address)]
    seen += [repr(requirements.parse_url(master)), repr(sentinels_of(address))]
    return " ".join(seen), address


def sentinels_of(address: AnyAddress | None) -> list[Address]:
    """Return the Sentinels of a master; none for one with a fixed address."""
    found = address.sentinels if isinstance(address, SentinelAddress) else []
    return [each for each in found if isinstance(each, Address)]


def pieces(password: str, url: str) -> set[str]:
    """
    Return all pieces of three characters of a password that no other text contains by chance.

    Three characters without a letter or a digit may be punctuation of the message.
    """
    elsewhere = url + always_shown(url)
    three = {password[n : n + 3] for n in range(len(password) - 2)} - in_sources()
    return {piece for piece in three if piece not in elsewhere and any(c.isalnum() for c in piece)}


@functools.cache
def in_sources() -> set[str]:
    """Return all pieces of three characters of the code that a traceback may show."""
    texts = [
        path.read_text()
        for path in Path(redlock_aio.__file__).parent.rglob("*.py")
        if {"_rules", "_transport"} & set(path.parts) or path.name in ("redlock.py", "session.py")
    ]
    return {text[n : n + 3] for text in texts for n in range(len(text) - 2)}


@functools.cache
def always_shown(url: str) -> str:
    """Return what a user sees of *url* if its password is harmless."""
    return "".join(shown(url.format(plain))[0] for plain in ("plain", "pl#ain"))


@pytest.mark.parametrize("url", list(URLS.values()), ids=list(URLS))
@settings(deadline=None)
@given(PASSWORDS)
def test_no_piece_of_a_password_is_shown_wherever_it_is_in_the_url(url: str, password: str) -> None:
    text, address = shown(url.format(password))
    if address is not None and url == URLS["alone"]:
        return  # "redis://:Q@XZJ" names the host XZJ, also if it was meant as a password
    for piece in pieces(password, url):
        assert piece not in text
        assert piece.lower() not in text
    if address is None or url == URLS["user"]:
        return
    # An accepted URL is parsed right: the whole password, and nothing else, is the password.
    kwargs = address._kwargs
    taken = {str(kwargs.get("password")), str(kwargs.get("ssl_password"))}
    taken |= {str(each._kwargs.get("password")) for each in sentinels_of(address)}
    if "option" not in url and "password=" not in url:
        assert unquote(password) in taken
    assert str(address) in {
        "10.0.0.4:6379", "10.0.0.4:6380", "10.0.0.4:6380/1", "10.0.0.4:6379/1",
        "example.org:6379", "/run/socket/2", "[::1]:6380",
        "mine (by Sentinel 10.0.0.4:26379)", "mine (by Sentinel example.org:26379)",
    }  # fmt: skip
    assert unquote(password) not in (str(address), kwargs.get("username"))


@pytest.mark.parametrize(
    "url",
    [
        "redis://:p@Zq/wXV#ord@host",
        "redis://me:12345/Zqx@host",
        "redis://me:12345/Zqx#KJ",
        "redis://me:12345?Zqx@host",
        "redis://:a?db=Zqx",
        "redis://:a?ZqxKJ=1&password=b",
        "redis://host?password=b&ZqxKJ=1",
        "redis://host?password=b&ssl_ZqxKJ=1",
        "rediss://host?ssl_cert_reqs=ZqxKJ",
        "redis://:a://Zqx@host",
        "redis://:aredis://Zqx@host",
        "redis://:ZqxKJ",
        "redis://[ZqxKJ@host",
        "redis://\u2100ZqxKJ@h\u2100st",
        "Zqx://me@host",
        "unix://me:a@Zqx/run/socket",
        "redis://host#ZqxKJ",
        "redis://host/ZqxKJ",
        "redis://host?port=ZqxKJ",
        "redis://h ZqxKJ",
        "redis://host,ZqxKJ",
        "valkey://:ZqxKJ",
        "redis+sentinel://:p@Zq/wXV#ord@s1,s2/mine",
        "redis+sentinel://me:12345/Zqx@s1,s2/mine",
        "redis+sentinel://me:12345?Zqx@s1/mine",
        "redis+sentinel://me:1@Zqx,me:2@s2/mine",
        "redis+sentinel://me:1,Zqx/mine?db=KJ&sentinel_password=b",
        "redis+sentinel://:ZqxKJ",
        "redis+sentinel://:a/ZqxKJ!",
        "redis+sentinel://s1/mine?sentinel_password=b&ZqxKJ=1",
        "redis+sentinel://s1,[ZqxKJ/mine",
        "redis+sentinel://s1:ZqxKJ,s2/mine",
        "redis+sentinel://:redis+sentinel://ZqxKJ@s1/mine",
        "unix+sentinel://ZqxKJ/mine",
        "redis+cluster+sentinel://ZqxKJ/mine",
        "redis+sentinel+cluster://ZqxKJ/mine",
        "Zqx+sentinel://s1/mine",
    ],
)
def test_an_ambiguous_url_is_refused_without_repeating_it(url: str) -> None:
    text, address = shown(url)
    assert address is None
    assert not re.search("Zq|KJ|XV|ord@", text, re.IGNORECASE)


@pytest.mark.parametrize(
    ("url", "password", "name"),
    [
        ("redis://:p@ss@host", "p@ss", "host:6379"),
        ("redis://:p%2Fss%23@host", "p/ss#", "host:6379"),
        ("redis://me:a b'\"|:c@host:1/3", "a b'\"|:c", "host:1/3"),
        ("REDISS://host:7/", None, "host:7"),
        ("redis://host:?db=3", None, "host:6379/3"),
        ("redis://host?password=a%26b", "a&b", "host:6379"),
        ("unix://:p@ss@/run/socket", "p@ss", "/run/socket"),
        ("redis://[::1]", None, "[::1]:6379"),
        ("valkey://:a@host/2", "a", "host:6379/2"),
        ("VALKEYS://host", None, "host:6379"),
        ("redis+sentinel://me:a,b@s1,s2/mine", "a,b", "mine (by Sentinel s1:26379)"),
        ("Redis+Sentinel://:p%40ss@S1/mine", "p@ss", "mine (by Sentinel s1:26379)"),
        ("rediss+sentinel://s1:1/a-b_c.d/", None, "a-b_c.d (by Sentinel s1:1)"),
        ("valkey+sentinel://[::1],[::2]/mine", None, "mine (by Sentinel [::1]:26379)"),
        ("valkeys+sentinel://s1/mine?password=a%26b", "a&b", "mine (by Sentinel s1:26379)"),
    ],
)
def test_a_url_with_one_meaning_is_accepted(url: str, password: str | None, name: str) -> None:
    _, address = shown(url)
    assert address is not None
    assert address._kwargs.get("password") == password
    assert str(address) == name


def test_the_url_of_a_master_behind_sentinels() -> None:
    text = (
        "rediss+sentinel://me:p%40ss@s1:1,[::2],s3/mine?db=4&sentinel_username=watch"
        "&sentinel_password=s%2Bt&client_name=app&ssl_cert_reqs=none&socket_timeout=3"
    )
    _, address = shown(text)
    assert isinstance(address, SentinelAddress)
    of_master = address._kwargs
    assert (of_master["username"], of_master["password"], of_master["db"]) == ("me", "p@ss", 4)
    assert issubclass(address._class, SSLConnection)
    assert issubclass(address._class, SentinelManagedConnection)
    assert (address.service, str(address)) == ("mine", "mine (by Sentinel s1:1)")
    assert [str(each) for each in sentinels_of(address)] == ["s1:1", "[::2]:26379", "s3:26379"]
    for each in sentinels_of(address):
        theirs = each._kwargs
        assert (theirs["username"], theirs["password"]) == ("watch", "s+t")
        assert issubclass(each._class, SSLConnection)
        assert "db" not in theirs
        assert each.client_name == "app"
        assert each._make().cert_reqs == address._make().cert_reqs
    assert {"p@ss", "s+t"} == set(address.secrets)


def test_a_url_with_sentinels_stands_for_the_urls_of_servers() -> None:
    named = requirements.parse_url("valkeys+sentinel://me:p%40ss@s1,[::1]:7/mine/2?client_name=a")
    assert named.service == "mine"
    assert named.sentinels == ("rediss://s1:26379?client_name=a", "rediss://[::1]:7?client_name=a")
    assert named.at("10.0.0.1", 7) == "rediss://me:p%40ss@10.0.0.1:7?client_name=a&db=2"
    assert named.at("::2", 7) == "rediss://me:p%40ss@[::2]:7?client_name=a&db=2"
    assert named.server == ""
    plain = requirements.parse_url("VALKEY://:a@h/1")
    assert (plain.server, plain.service, plain.sentinels) == ("redis://:a@h/1", "", ())
    with pytest.raises(ValueError, match=r"^url is empty"):
        requirements.parse_url("")


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://me:secret@s1,s2/mine/3",
        "redis+sentinel://s1,s2/mine?username=me&password=secret&db=3",
    ],
)
def test_the_sentinels_do_not_get_the_login_of_the_master(url: str) -> None:
    _, address = shown(url)
    assert address is not None
    taken = [address._kwargs[name] for name in ("username", "password", "db")]
    assert taken == ["me", "secret", 3]
    assert len(sentinels_of(address)) == 2
    for each in sentinels_of(address):
        assert not {"username", "password", "db"} & set(each._kwargs)
        assert not issubclass(each._class, SSLConnection)


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("redis+sentinel:///mine", "names no Sentinel before the path"),
        ("redis+sentinel://s1,,s2/mine", "has a comma without a Sentinel"),
        ("redis+sentinel://s1,s2,/mine", "has a comma without a Sentinel"),
        ("redis+sentinel://s1,s2", "names no service: the path is the master's name on"),
        ("redis+sentinel://s1,s2/", "names no service"),
        ("redis+sentinel://s1/my master", "has a path that is no service"),
        ("redis+sentinel://s1/mine/zero", "has a path that is no service"),
        ("redis+sentinel://s1/mine/1?db=2", "has a database in its path, and an option 'db'"),
        ("redis+sentinel://s1:0,s2/mine", "has a port that is not a number"),
        ("redis+sentinel://s1,::1/mine", "has a port that is not a number"),
        ("redis+sentinel://s1,:7/mine", "names no host"),
        ("redis+sentinel://s1,s 2/mine", "must name one host"),
        ("redis+sentinel://:a@s1,:b@s2/mine", "has two '@' before the path"),
        ("redis+sentinel://me:a@@s1/mine", "has two '@' before the path"),
        ("redis+sentinel://s1/mine?password=a&b=3", "has an option that is unknown, or has"),
        ("redis+sentinel://s1,S1:26379/mine", "names the Sentinel s1:26379 twice"),
        ("redis+sentinel://s1/mine?ssl_ca_certs=a", "which is for rediss+sentinel:// URLs"),
        ("valkey://s1?ssl_ca_certs=a", "which is for rediss:// URLs"),
        ("redis+sentinel://s1/mine?port=3", "has an option 'port'"),
        ("redis+sentinel://s1/mine?sentinel_password=", "has an option without a value"),
        ("redis+sentinel://s1/mine?retries=3", "has an option 'retries' that is unknown"),
        ("redis+sentinel://s1/mine?socket_timeout=soon", "has an option 'socket_timeout' that"),
        ("redis://host?sentinel_username=me", "has an option 'sentinel_username' that is unknown"),
        ("sentinel://s1/mine", "not a sentinel:// URL"),
        ("redis-sentinel://s1/mine", "not a redis-sentinel:// URL"),
        ("redis+sentinel://s1/mine,redis://a", "holds two URLs"),
        ("redis+sentinel://s1;s2/mine", "must name one host"),
    ],
)
def test_a_url_with_sentinels_that_is_wrong_says_what_is(url: str, complaint: str) -> None:
    text, address = shown(url)
    assert address is None
    assert complaint in text
    with pytest.raises(ValueError, match=r"^masters\[0\] "):
        threads.Redlock([url])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("redis://a,redis://b", ["redis://a", "redis://b"]),
        (" redis://a , ,rediss://b,\n", ["redis://a", "rediss://b"]),
        (
            "redis+sentinel://s1,s2:7,s3/mine,valkey://a, REDIS+SENTINEL://s1/x",
            ["redis+sentinel://s1,s2:7,s3/mine", "valkey://a", "REDIS+SENTINEL://s1/x"],
        ),
        ("redis://:p,w@a,unix:///s", ["redis://:p,w@a", "unix:///s"]),
        ("redis://a,b", ["redis://a,b"]),  # one URL, whose error says what to write
        ("", []),
        (" , ", []),
    ],
)
def test_a_comma_separates_urls_only_before_a_scheme(text: str, found: list[str]) -> None:
    assert requirements.split_urls(text) == found


@settings(deadline=None)
@given(st.lists(st.sampled_from(sorted(urls.SCHEMES)), min_size=1), st.randoms())
def test_urls_that_were_joined_are_split_again(schemes: list[str], random: Random) -> None:
    joined = []
    for scheme in schemes:
        hosts = ",".join(f"h{n}:{n + 1}" for n in range(random.randint(1, 4)))
        joined.append(f"{scheme}+sentinel://:p%2Cw@{hosts}/mine?db=1")
    assert requirements.split_urls(",".join(joined)) == joined
