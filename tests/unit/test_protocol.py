"""Commands as bytes, replies as votes, and the facts in INFO."""

import hiredis
import pytest
from hypothesis import given, strategies as st

from redlock_aio import Answer, NoVoteCause
from redlock_aio._protocol import commands, replies, request, scripts
from redlock_aio._protocol.primitives import JointMutex, Mutex
from redlock_aio._protocol.request import NoReply
from redlock_aio._protocol.scripts import EXTEND, RELEASE
from redlock_aio._rules import lock_value
from redlock_aio._rules.fencing import KEPT
from redlock_aio._rules.quorum import NOT_YET
from redlock_aio._rules.server_info import ServerInfo
from redlock_aio._transport.guard import forbidden

keys = st.text(min_size=1, max_size=600).map(lambda text: text.encode("utf-8", "surrogatepass"))
tokens = st.binary(min_size=1, max_size=60)
ttls = st.integers(1, 10**12)


def parsed(payload: bytes) -> list[list[bytes]]:
    reader = hiredis.Reader()
    reader.feed(payload)
    commands: list[list[bytes]] = []
    while (command := reader.gets()) is not False:
        commands.append(command)
    return commands


@given(keys, tokens, ttls)
@pytest.mark.promise("S10")
def test_names_and_tokens_travel_as_arguments(key: bytes, token: bytes, ttl: int) -> None:
    digits = str(ttl).encode()

    assert parsed(commands.acquire(key, token, ttl)) == [[b"SET", key, token, b"NX", b"PX", digits]]
    assert parsed(commands.extend(commands.extension([key], 1, token, ttl))) == [
        [b"EVALSHA", EXTEND.sha, b"1", key, b"", b"%d" % KEPT, b"1", token, digits, b""]
    ]
    assert parsed(commands.release(key, token)) == [[b"EVALSHA", RELEASE.sha, b"1", key, token]]


@given(st.lists(st.binary(), min_size=1, max_size=5))
def test_packed_words_are_parsed_unchanged(arguments: list[bytes]) -> None:
    assert parsed(request.pack(*arguments)) == [arguments]


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        (b"OK", Answer.GRANTED),
        (1, Answer.ERROR),
        (1.0, Answer.ERROR),
        (True, Answer.ERROR),
        (False, Answer.ERROR),
        (None, Answer.HELD),
        (0, Answer.HELD),
        (NOT_YET, Answer.TIMED_OUT),
        (hiredis.ReplyError("LOADING"), Answer.ERROR),
        ([b"?"], Answer.ERROR),
        (b"NO", Answer.ERROR),
        (7, Answer.ERROR),
        (NoReply(Answer.UNREACHABLE, "gone"), Answer.UNREACHABLE),
    ],
)
def test_every_reply_is_a_vote(reply: object, answer: Answer) -> None:
    assert replies.classify(reply).answer is answer


@pytest.mark.promise("S10")
def test_the_error_of_a_server_shows_no_secret() -> None:
    token = "0123456789+/ABCDEFGHIJabcdef"
    shown = replies.harmless(f"ERR so: '{token}' 'pass word'\r\n", ("pass word",))

    assert shown == "ERR so: '***' '***'  "
    cut = "ERR unknown command 'SET', with args beginning with: 'key' '01234\r\n"
    assert replies.harmless(cut) == "ERR unknown command 'SET'"
    assert len(replies.harmless("x" * 10**6)) == 400


def test_the_longest_error_about_permissions_is_shown_whole() -> None:
    """At its end is the command that is missing."""
    error = (
        "NOPERM ACL failure in script: User billing-service-production has no permissions to run"
        " the 'getrange' command or one of its subcommands"
    )
    shown = replies.harmless(str(forbidden(hiredis.ReplyError(error), b"{redlock_aio:16383}")))
    assert shown.endswith(error)


def info(**fields: str) -> ServerInfo:
    usual = {"redis_version": "7.0.15", "run_id": "abc", "role": "master"} | fields
    return ServerInfo.parse("".join(f"{k}:{v}\r\n" for k, v in usual.items()).encode())


def test_a_server_with_an_objection_has_no_vote_and_one_with_a_caution_has() -> None:
    assert not info().objection
    a_slave = (NoVoteCause.NOT_A_MASTER, "not a master but a slave")
    assert info(role="slave").objection == a_slave
    cause, text = info(run_id="").objection or (None, "")
    assert cause is NoVoteCause.UNSUPPORTED
    assert "run_id" in text
    assert not info(cluster_enabled="0").objection
    for role in ("master", "slave"):
        cause, text = info(cluster_enabled="1", role=role).objection or (None, "")
        assert cause is NoVoteCause.UNSUPPORTED
        assert "a node of a Redis Cluster" in text
    assert ServerInfo.parse(b"\xff\x00 nonsense").role == "unknown"
    assert "allkeys-lru" in info(maxmemory="1048576", maxmemory_policy="allkeys-lru").caution
    assert not info(maxmemory="0", maxmemory_policy="allkeys-lru").caution
    assert not info(maxmemory="1", maxmemory_policy="noeviction").caution
    # A service that hides the limit has one; one that hides the policy is not judged.
    assert "volatile-lru" in info(maxmemory_policy="volatile-lru").caution
    assert not info(maxmemory_policy="noeviction").caution
    assert not info(maxmemory="1").caution


def test_a_caution_for_a_single_master_with_replicas() -> None:
    for absent in ({}, {"connected_slaves": "0"}):
        assert not info(**absent).caution_alone
    assert "has replicas" in info(connected_slaves="2").caution_alone
    assert not info(connected_slaves="2").caution


SHOWS_VALUES = (
    scripts.ENQUEUE, scripts.INSPECT, scripts.LEAVE, scripts.LOOK, scripts.RELEASE,
)  # fmt: skip


@pytest.mark.parametrize("script", SHOWS_VALUES, ids=lambda script: script.name)
def test_a_script_cuts_the_value_that_it_returns(script: scripts.Script) -> None:
    """It cuts after one byte more than the longest value of a lock: a cut value equals none."""
    assert b", 1, %d)" % lock_value.SHOWN in script.text
    assert lock_value.SHOWN > lock_value.LONGEST


def test_an_empty_value_is_no_free_lock() -> None:
    """Another library may lock with an empty value."""
    key, keys = Mutex(b"r"), JointMutex([Mutex(b"q"), Mutex(b"r")])
    assert key.is_free([None])
    assert not key.is_free([b""])
    assert keys.is_free([None, None])
    assert not keys.is_free([None, b""])
    assert not key.is_kept([b"x" * lock_value.SHOWN], b"x" * (lock_value.SHOWN + 1))


@pytest.mark.parametrize("reply", [None, b"v", [], [1], [b"v", b"v"], [[b"v"]], ValueError("no")])
def test_a_malformed_reply_to_look_has_no_values(reply: object) -> None:
    assert replies.looked(reply) is None
