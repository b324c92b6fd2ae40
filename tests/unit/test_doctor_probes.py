"""The commands by which ``redlock doctor`` finds missing permissions."""

import pytest
from redis.exceptions import (
    BusyLoadingError,
    MovedError,
    NoPermissionError,
    OutOfMemoryError,
    ResponseError,
)

from redlock_aio import requirements
from redlock_aio.cli.doctor import probes
from redlock_aio.cli.doctor.probes import PermissionProbe

DENIED_COMMAND = [
    NoPermissionError("User app has no permissions to run the 'get' command"),
    ResponseError("NOPERM this user has no permissions to run the 'get' command or its subcommand"),
]
DENIED_ACCESS = [
    NoPermissionError("No permissions to access a key"),
    ResponseError(
        "NOPERM this user has no permissions to access one of the keys used as arguments"
    ),
    NoPermissionError("No permissions to access a channel"),
]


def test_a_denial_is_assigned_to_the_permission_that_is_missing() -> None:
    command_probe, key_probe = (
        PermissionProbe("+get", ("GET", "k")),
        PermissionProbe("~app:*", ("GET", "k")),
    )
    for error in DENIED_COMMAND:
        assert (command_probe.is_denied(error), key_probe.is_denied(error)) == (True, False)
    for error in DENIED_ACCESS:
        assert (command_probe.is_denied(error), key_probe.is_denied(error)) == (False, True)
    for reply in (ResponseError("syntax error"), b"OK", None, MovedError("1 a:1")):
        assert not command_probe.is_denied(reply)


UNKNOWN = [
    "unknown command 'get', with args beginning with: 'k'",
    "ERR unknown command `get`",
    "unknown subcommand 'TRACKING'. Try CLIENT HELP.",
    "Unknown subcommand or wrong number of arguments for 'TRACKING'. Try CLIENT HELP.",
]


@pytest.mark.parametrize("text", UNKNOWN)
async def test_a_command_that_the_server_does_not_know_is_no_missing_permission(text: str) -> None:
    async def ask(*words: str) -> object:
        return ResponseError(text) if words[:1] == ("GET",) else b"OK"

    probe = PermissionProbe("+get", ("GET", "k"))
    assert probe.is_unknown(ResponseError(text))
    assert not probe.is_denied(ResponseError(text))
    assert not PermissionProbe("~app:*", ("GET", "k")).is_unknown(ResponseError(text))
    found = await probes.missing(ask, requirements.permissions(), "app:", "x")
    assert found == ([], ["+get"])
    for reply in (*DENIED_COMMAND, ResponseError("syntax error"), b"OK", None):
        assert not probe.is_unknown(reply)


async def test_a_server_that_speaks_resp2_only_does_not_know_hello_3() -> None:
    async def ask(*words: str) -> object:
        unsupported = ResponseError("NOPROTO unsupported protocol version")
        return unsupported if words[:2] == ("HELLO", "3") else b"OK"

    found = await probes.missing(ask, requirements.permissions(), "app:", "x")
    assert found == ([], ["+hello|3"])


@pytest.mark.parametrize(
    "options", [{}, {"fair": True}, {"shared": True}, {"semaphores": True}], ids=str
)
def test_each_permission_has_a_probe(options: dict[str, bool]) -> None:
    permissions = requirements.permissions(fencing=True, **options)
    found = list(probes.probes(permissions, "app:", "x"))
    wanted = {f"+{name}" for name in permissions.commands}
    wanted |= {f"~{pattern}" for pattern in (*permissions.keys, "app:*")}
    wanted |= {f"&{pattern}" for pattern in permissions.channels}
    assert {probe.permission for probe in found} == wanted
    if options:
        assert found[-1].words[0] == "SUBSCRIBE"  # other commands are refused after it
        keys = {probe.words[1] for probe in found if probe.permission == "~redlock_aio:*"}
        assert {key.split(":")[1] for key in keys} == {
            "marker",
            "masters",
            "fence",
            "queue",
            "shares",
            "permit",
            "waiting",
        }


def test_no_probe_can_change_a_key() -> None:
    permissions = requirements.permissions(fencing=True, shared=True, semaphores=True)
    harmless = {"GET", "GETRANGE", "PTTL", "TIME", "INFO", "PING", "ZRANK", "ZRANGE", "EVALSHA",
                "ZRANGEBYSCORE", "ZSCORE", "ZCARD", "PUBLISH", "SUBSCRIBE",
                "UNSUBSCRIBE"}  # fmt: skip
    for probe in probes.probes(permissions, "", "redlock-doctor:1"):
        name, *words = probe.words
        if name in {"DEL", "ZREM"}:
            assert words[0] == "redlock-doctor:1"  # a key that does not exist
        elif name == "SCRIPT":
            assert words == ["LOAD", "("]
        elif name not in harmless:
            assert words[-1] == probes.WRONG


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (OutOfMemoryError("command not allowed"), "OOM command not allowed"),
        (BusyLoadingError("Redis is loading"), "LOADING Redis is loading"),
        (ResponseError("MISCONF Valkey is configured"), "MISCONF Valkey is configured"),
        (ResponseError("NOREPLICAS Not enough"), "NOREPLICAS Not enough"),
        (ResponseError("BUSY Redis is busy"), "BUSY Redis is busy"),
        (ResponseError("syntax error"), ""),
        (b"OK", ""),
    ],
)
def test_a_refusal_to_write(reply: object, text: str) -> None:
    assert probes.refusal(reply) == text
