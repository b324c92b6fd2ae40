"""An ambiguous URL is refused, and no text that a user can see repeats a password."""

import functools
import re
import traceback
from pathlib import Path
from urllib.parse import unquote

import pytest
from hypothesis import given, settings, strategies as st

import redlock_aio
from redlock_aio import Redlock
from redlock_aio._transport.address import Address

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
}


def shown(master: str) -> tuple[str, Address | None]:
    """Return all texts that the user of a URL could see, and the address if it is accepted."""
    try:
        redlock = Redlock([master])
    except ValueError as error:
        seen = [str(error), repr(error), repr(error.args), repr(error.__dict__)]
        seen += map(str, (error.__cause__, error.__context__))
        # The traceback's other lines are lines of the code, so only the last line is checked.
        return " ".join([*seen, traceback.format_exception_only(error)[-1]]), None
    (address,) = redlock._opener.settings.diallers
    assert isinstance(address, Address)
    return f"{redlock!r} {redlock._opener.settings.diallers!r} {address} {address!r}", address


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
        if {"_rules", "_transport"} & set(path.parts) or path.name in ("redlock.py", "opener.py")
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
    if "option" not in url and "password=" not in url:
        assert unquote(password) in taken
    assert str(address) in {
        "10.0.0.4:6379", "10.0.0.4:6380", "10.0.0.4:6380/1", "10.0.0.4:6379/1",
        "example.org:6379", "/run/socket/2", "[::1]:6380",
    }  # fmt: skip


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
    ],
)
def test_a_url_with_one_meaning_is_accepted(url: str, password: str | None, name: str) -> None:
    _, address = shown(url)
    assert address is not None
    assert address._kwargs.get("password") == password
    assert str(address) == name
