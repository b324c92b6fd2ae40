"""`RedisFence` without a server: its arguments, its key, its error."""

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
    """Return a fence without a server: each request raises ConnectionError."""
    return RedisFence(Redis(unix_socket_path="/nowhere"), "invoice:42")


@pytest.mark.parametrize(
    ("highest", "text"), [(8, "8 has been seen"), (None, "a higher one has been seen")]
)
@pytest.mark.parametrize("copied", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_the_error_has_facts_and_can_be_copied(copied: Any, highest: int | None, text: str) -> None:
    error = copied(StaleTokenError("invoice:42", 7, highest))
    assert type(error) is StaleTokenError
    assert isinstance(error, RedlockError)
    assert (error.name, error.token, error.highest) == ("invoice:42", 7, highest)
    assert str(error) == f"'invoice:42' not written: token 7 is stale, {text} [stale-token]"


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
def test_the_highest_token_has_its_own_key(fence: RedisFence, name: str, key: str) -> None:
    assert RedisFence(fence._client, name).key == key
    assert repr(fence) == "<RedisFence 'invoice:42'>"


@pytest.mark.parametrize(
    ("token", "error", "text"),
    [
        (True, TypeError, "token must be an int, not a bool"),
        ("2", TypeError, "token must be an int, not a str"),
        (None, TypeError, "token must be an int, not a NoneType"),
        (0, ValueError, "token must be from 1 to .*, not 0"),
        (2**53, ValueError, f"token must be from 1 to .*, not {2**53}"),
    ],
)
async def test_a_token_is_one_that_a_lease_can_have(
    fence: RedisFence, token: Any, error: type[Exception], text: str
) -> None:
    for call in (fence.write(token=token), fence.run("return 1", token=token)):
        with pytest.raises(error, match=f"^{text}$"):
            await call


@pytest.mark.parametrize(
    ("command", "error", "text"),
    [
        ("SET k v", TypeError, "a command must be a list or tuple of its words, not a str"),
        ({"SET": 1}, TypeError, "a command must be a list or tuple of its words, not a dict"),
        ([], ValueError, "a command must have 1 to 7000 words, not 0"),
        (["SADD"] * 7001, ValueError, "a command must have 1 to 7000 words, not 7001"),
    ],
    ids=["text", "mapping", "no words", "too many words"],
)
async def test_a_command_is_a_list_of_words(
    fence: RedisFence, command: Any, error: type[Exception], text: str
) -> None:
    assert MOST_WORDS == 7000
    with pytest.raises(error, match=f"^{text}$"):
        await fence.write(("GET", "k"), command, token=1)


@pytest.mark.parametrize("word", [True, None, ["x"]])
async def test_a_word_is_one_that_redis_py_takes(fence: RedisFence, word: Any) -> None:
    with pytest.raises((redis.DataError, redis.ConnectionError)):
        await fence.write(("SET", "k", word), token=1)


async def test_scripts_and_names_are_text(fence: RedisFence) -> None:
    wrong: Any = b"return 1"
    with pytest.raises(TypeError, match=r"^script must be a str, not a bytes$"):
        await fence.run(wrong, token=1)
    with pytest.raises(TypeError, match=r"^name must be a str, not a bytes$"):
        RedisFence(fence._client, wrong)
    with pytest.raises(ValueError, match=r"^name must not be empty$"):
        RedisFence(fence._client, "")


@pytest.mark.parametrize(
    "client",
    [redis.Redis(), redis.Redis().pipeline(), Redis().pipeline(), "redis://localhost", None],
    ids=lambda client: f"{type(client).__module__}.{type(client).__name__}",
)
def test_the_client_is_asynchronous(client: Any) -> None:
    with pytest.raises(TypeError, match=r"^client must be a redis\.asyncio\.Redis or"):
        RedisFence(client, "x")
