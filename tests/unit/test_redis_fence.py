"""What a fence says before it asks a server."""

import copy
import pickle
from typing import Any

import pytest
import redis
from redis.asyncio import Redis

from redlock_aio import RedlockError
from redlock_aio.fencing import MOST_WORDS, RedisFence, StaleTokenError

pytestmark = pytest.mark.promise("S7")


@pytest.fixture
def fence() -> RedisFence:
    """A fence on a server that is not there: who asks it gets a ConnectionError."""
    return RedisFence(Redis(unix_socket_path="/nowhere"), "invoice:42")


@pytest.mark.parametrize("highest", [8, None])
@pytest.mark.parametrize("copied", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_the_error_can_be_copied(copied: Any, highest: int | None) -> None:
    error = StaleTokenError("invoice:42", 7, highest)
    same = copied(error)
    assert type(same) is StaleTokenError
    assert isinstance(same, RedlockError)
    assert (same.name, same.token, same.highest) == ("invoice:42", 7, highest)
    assert str(same) == str(error)


def test_the_error_says_who_was_refused_and_why() -> None:
    said = str(StaleTokenError("invoice:42", 7, 8))
    assert said == "'invoice:42' not written: token 7 is stale, 8 has been seen"
    said = str(StaleTokenError("invoice:42", 7))
    assert said == "'invoice:42' not written: token 7 is stale, a higher one has been seen"


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("invoice:42", "redlock_aio:seen:{invoice:42}"),
        ("invoice:{42}:x", "redlock_aio:seen:=invoice:{42}:x"),
        ("{}x", "redlock_aio:seen:{{}x}"),
        ("{x", "redlock_aio:seen:{{x}"),
        ("ä b", "redlock_aio:seen:{ä b}"),
    ],
)
def test_the_token_has_a_key_of_its_own(fence: RedisFence, name: str, key: str) -> None:
    assert RedisFence(fence._client, name).key == key


def test_it_tells_what_it_guards(fence: RedisFence) -> None:
    assert repr(fence) == "<RedisFence 'invoice:42'>"


@pytest.mark.parametrize("token", [True, 1.0, "2", b"3", None])
async def test_a_token_is_an_int(fence: RedisFence, token: Any) -> None:
    kind = type(token).__name__
    for call in (fence.write(token=token), fence.run("return 1", token=token)):
        with pytest.raises(TypeError, match=f"^token must be an int, not a {kind}$"):
            await call


@pytest.mark.parametrize("token", [0, -1, 2**53, 10**30])
async def test_a_token_is_one_that_a_lease_can_have(fence: RedisFence, token: int) -> None:
    for call in (fence.write(token=token), fence.run("return 1", token=token)):
        with pytest.raises(ValueError, match=f"^token must be from 1 to .*, not {token}$"):
            await call


@pytest.mark.parametrize("command", ["SET k v", b"PING", 5, None, {"SET": 1}])
async def test_a_command_is_a_list_of_words(fence: RedisFence, command: Any) -> None:
    with pytest.raises(TypeError, match=r"^a command must be a list or tuple of its words, not a"):
        await fence.write(("GET", "k"), command, token=1)


@pytest.mark.parametrize("words", [0, MOST_WORDS + 1])
async def test_a_command_has_words_but_not_too_many(fence: RedisFence, words: int) -> None:
    with pytest.raises(ValueError, match=rf"^a command must have 1 to 7000 words, not {words}$"):
        await fence.write(["SADD"] * words, token=1)


@pytest.mark.parametrize("word", [True, None, ["x"]])
async def test_a_word_is_what_redis_takes(fence: RedisFence, word: Any) -> None:
    with pytest.raises((redis.DataError, redis.ConnectionError)):
        await fence.write(("SET", "k", word), token=1)


async def test_a_script_is_text(fence: RedisFence) -> None:
    script: Any = b"return 1"
    with pytest.raises(TypeError, match=r"^script must be a str, not a bytes$"):
        await fence.run(script, token=1)


@pytest.mark.parametrize("name", [b"x", 5, None])
def test_a_name_is_text(fence: RedisFence, name: Any) -> None:
    with pytest.raises(TypeError, match=r"^name must be a str, not a "):
        RedisFence(fence._client, name)
    with pytest.raises(ValueError, match=r"^name must not be empty$"):
        RedisFence(fence._client, "")


@pytest.mark.parametrize(
    "client",
    [redis.Redis(), redis.Redis().pipeline(), Redis().pipeline(), "redis://localhost", None],
    ids=lambda client: f"{type(client).__module__}.{type(client).__name__}",
)
def test_a_client_is_one_that_can_be_awaited(client: Any) -> None:
    with pytest.raises(TypeError, match=r"^client must be a redis\.asyncio\.Redis or"):
        RedisFence(client, "x")
