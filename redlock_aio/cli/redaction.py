"""
Keeps the passwords in the URLs of masters out of every output.

A password may come to ``redlock`` in the wrong place, such as a second URL where a key is
expected, and then be part of a message that another package writes. So all output passes
through one `Redaction`, which knows every URL in the arguments and in the environment.
"""

import json
import re
from collections.abc import Iterable, Iterator
from urllib.parse import unquote

HIDDEN = "***"

SHORTEST = 4
"""A shorter password is hidden in URLs only: elsewhere it would hide parts of other words."""

_USER = re.compile(r"(\w://)[^\s/@'\"]*:[^\s/@'\"]*@")
"""A user with a password in a URL, up to the host."""

_OPTION = re.compile(r"((?:^|[?&;\s])(?:ssl_|sentinel_)?password=)([^&,\s'\"]+)", re.IGNORECASE)
"""A password among the options of a URL."""


class Redaction:
    """
    Replaces passwords in texts.

    Args:
        texts: The texts in which URLs may occur: arguments and variables.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        found = {secret for text in texts for secret in _passwords(text)}
        found |= {unquote(secret) for secret in found}
        found |= {form(secret)[1:-1] for secret in found for form in (repr, json.dumps)}
        # The longest first: a secret may contain another one.
        self._secrets = sorted((s for s in found if len(s) >= SHORTEST), key=len, reverse=True)

    def __repr__(self) -> str:
        return f"<Redaction of {len(self._secrets)} secrets>"

    def __call__(self, text: str) -> str:
        """Return *text* without passwords."""
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        return _OPTION.sub(rf"\1{HIDDEN}", _USER.sub(rf"\1{HIDDEN}@", text))


def _passwords(text: str) -> Iterator[str]:
    """
    Yield the passwords in *text* as they are written there.

    A password that should have been escaped may contain any character, also an ``@`` or a
    comma. So of several URLs in one text each goes up to the scheme of the next one.
    """
    for url in text.split("://")[1:]:
        user, at, _ = url.rpartition("@")
        if at and ":" in user:
            yield user.partition(":")[2]
    for option in _OPTION.finditer(text):
        yield option[2]
