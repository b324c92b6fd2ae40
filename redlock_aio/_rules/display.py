"""Removes secrets and control characters from foreign texts before they are shown."""

import re


def harmless(text: str, secrets: tuple[str, ...] = ()) -> str:
    """
    Return *text* without secrets, on one line, cut after 200 characters.

    A server's error may repeat the arguments of a command, cut and with some characters
    replaced. These arguments are removed, and everything that could be a token, and all
    of *secrets*.
    """
    text = re.sub(r"[,;]?\s*(with )?args beginning with.*", "", text, flags=re.DOTALL)
    for secret in secrets:
        text = text.replace(secret, "***")
    text = re.sub(r"[A-Za-z0-9+/]{28}", "***", text)
    return "".join(c if c.isprintable() else " " for c in text)[:200]
