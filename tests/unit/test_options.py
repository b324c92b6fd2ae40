"""The options of a lock are checked once, and the cache of options never replaces a check."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from redlock_aio import Lock, Redlock, Retry, Semaphore
from redlock_aio._api.redlock import MOST_OPTIONS
from redlock_aio.testing import FakeMaster

A_TIME = "must be an int (milliseconds) or a timedelta, not a"


class Unhashable(int):
    """An int that cannot be the key of a dict."""

    __hash__ = None  # type: ignore[assignment]


class Patient(Retry):
    """A subclass of `Retry` with a field that its comparison ignores."""

    more = 0


@pytest.fixture
def redlock() -> Redlock:
    return Redlock([FakeMaster(f"m{number}") for number in range(3)])


def test_locks_with_the_same_options_share_them(redlock: Redlock) -> None:
    given: dict[str, Any] = {"ttl": timedelta(seconds=5), "wait": 7, "fair": True}
    assert redlock.lock("a", **given)._spec.options is redlock.lock("b", **given)._spec.options
    assert redlock.lock("a")._spec.options is redlock.lock("b", "c")._spec.options
    options: Any = redlock.lock("a")._spec.options
    assert options != redlock.lock("a", **given)._spec.options
    with pytest.raises(AttributeError):
        options.ttl = 1


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ({"ttl": 10_000}, {"ttl": 10_000.0}, f"ttl {A_TIME} float"),
        ({"wait": 0}, {"wait": 0.0}, f"wait {A_TIME} float"),
        ({"wait": 0}, {"wait": False}, f"wait {A_TIME} bool"),
        ({"wait": 1}, {"wait": True}, f"wait {A_TIME} bool"),
        ({"max_hold": 1}, {"max_hold": True}, f"max_hold {A_TIME} bool"),
        ({"max_hold": 9}, {"max_hold": 9.0}, f"max_hold {A_TIME} float"),
        ({}, {"hold_at_least": False}, f"hold_at_least {A_TIME} bool"),
        ({"hold_at_least": 5}, {"hold_at_least": 5.0}, f"hold_at_least {A_TIME} float"),
        ({}, {"auto_extend": 1}, "auto_extend must be a bool, not an int"),
        ({"auto_extend": False}, {"auto_extend": 0}, "auto_extend must be a bool, not an int"),
        ({}, {"fair": 0}, "fair must be a bool, not an int"),
        ({"fair": True}, {"fair": 1.0}, "fair must be a bool, not a float"),
        ({"fencing": False}, {"fencing": 0}, "fencing must be a bool, not an int"),
        ({"reentrant": True}, {"reentrant": 1}, "reentrant must be a bool, not an int"),
        ({"permits": 5}, {"permits": 5.0}, "permits must be an int, not a float"),
    ],
)
def test_an_equal_value_of_another_type_is_refused(
    redlock: Redlock, right: dict[str, Any], wrong: dict[str, Any], message: str
) -> None:
    for _ in range(2):  # a refused value is not cached either
        redlock.lock("a", **right)
        with pytest.raises(TypeError) as refused:
            redlock.lock("a", **wrong)
        assert str(refused.value) == message
        assert refused.value.__suppress_context__ is True  # no second error of the cache


TIMES, FLAGS = ("ttl", "wait", "max_hold", "hold_at_least"), ("auto_extend", "fair", "fencing")


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        *((name, TypeError, f"{name} {A_TIME} list") for name in TIMES),
        *((name, TypeError, f"{name} must be a bool, not a list") for name in FLAGS),
        ("reentrant", TypeError, "reentrant must be a bool, not a list"),
        ("permits", TypeError, "permits must be an int, not a list"),
        ("retry", TypeError, "retry must be a Retry, not a list"),
        ("on_lost", ValueError, "on_lost must be 'cancel' or 'flag', not []"),
    ],
)
def test_a_value_that_is_not_hashable_gets_the_error_of_its_option(
    redlock: Redlock, name: str, kind: type[Exception], message: str
) -> None:
    given: dict[str, Any] = {name: []}
    with pytest.raises(kind) as refused:
        redlock.lock("a", **given)
    assert str(refused.value) == message


def test_a_valid_value_that_is_not_hashable_is_used(redlock: Redlock) -> None:
    assert [redlock.lock("a", wait=Unhashable(n))._spec.options.wait for n in (70, 80)] == [70, 80]


NO_PERMITS: list[tuple[object, type[Exception], str]] = [
    (0, ValueError, "permits must be from 1 to 1000, not 0"),
    (-1, ValueError, "permits must be from 1 to 1000, not -1"),
    (1_001, ValueError, "permits must be from 1 to 1000, not 1001"),
    (True, ValueError, "permits must be from 1 to 1000, not True"),
    (False, ValueError, "permits must be from 1 to 1000, not False"),
    ("5", TypeError, "permits must be an int, not a str"),
    (5.0, TypeError, "permits must be an int, not a float"),
    (timedelta(5), TypeError, "permits must be an int, not a datetime.timedelta"),
]


@pytest.mark.parametrize(("wrong", "kind", "message"), NO_PERMITS, ids=str)
def test_the_number_of_permits_must_be_a_number_from_1_to_1000(
    redlock: Redlock, wrong: Any, kind: type[Exception], message: str
) -> None:
    makers: list[Callable[..., object]] = [redlock.lock, redlock.semaphore, redlock.locked]
    for make in makers:
        for right in (1, 5, 1_000):  # those that are equal to a wrong one are cached
            make("a", permits=right)
        with pytest.raises(kind) as refused:
            make("a", permits=wrong)
        assert str(refused.value) == message
        assert refused.value.__cause__ is None
    assert repr(redlock) == "<Redlock 3 masters, not used yet>"


NOT_WITH_PERMITS: list[tuple[dict[str, Any], str]] = [
    ({"shared": True}, "shared must not be True with permits=5: a semaphore has no readers"),
    ({"fair": False}, "fair must not be False with permits=5: its waiters wait in queues"),
    (
        {"reentrant": True},
        "reentrant must not be True with permits=5: each acquisition has its own permit",
    ),
    ({"owner": "me"}, "owner must be None with permits=5: each acquisition has its own permit"),
    ({"owner": 0}, "owner must be None with permits=5: each acquisition has its own permit"),
    ({"retry": Retry()}, "retry must be None with permits=5: its waiters wait in queues"),
    ({"metadata": {"x": "y" * 1_024}}, "metadata must have at most 1024 bytes, not 1032"),
]


@pytest.mark.parametrize(("options", "message"), NOT_WITH_PERMITS, ids=str)
def test_options_that_a_semaphore_can_not_have(
    redlock: Redlock, options: dict[str, Any], message: str
) -> None:
    makers: list[Callable[..., object]] = [redlock.lock, redlock.locked]
    for make in makers:
        with pytest.raises(ValueError) as refused:
            make("a", permits=5, **options)
        assert str(refused.value) == message
        with pytest.raises(ValueError, match="permits=5 takes one resource, not 2"):
            make("a", "b", permits=5)


@pytest.mark.parametrize("name", ["fair", "shared", "reentrant", "owner", "retry", "tll"])
def test_the_options_that_semaphore_does_not_have(redlock: Redlock, name: str) -> None:
    given: dict[str, Any] = {name: None}
    with pytest.raises(TypeError) as refused:
        redlock.semaphore("a", permits=5, **given)
    assert str(refused.value) == f"semaphore() has no option {name!r}"


def test_a_semaphore_needs_one_name_and_permits(redlock: Redlock) -> None:
    semaphore: Any = redlock.semaphore
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'permits'"):
        semaphore("a")
    with pytest.raises(TypeError) as refused:
        semaphore("a", permits=None)
    assert str(refused.value) == "permits must be an int, not None"
    with pytest.raises(TypeError, match="takes 2 positional arguments but 3"):
        semaphore("a", 5)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'resource'"):
        semaphore(permits=5)
    with pytest.raises(TypeError, match=r"'timeout'; use ttl= .*, or wait="):
        semaphore("a", permits=5, timeout=3)
    for name, message in (
        ("", "resource must have 1 to 512 bytes, not 0"),
        ("redlock_aio:permit:{a}#0", "resource must not make a key that starts with"),
    ):
        with pytest.raises(ValueError, match=message):
            semaphore(name, permits=5)


def test_what_a_semaphore_is_given_is_what_it_has(redlock: Redlock) -> None:
    for made in (
        redlock.semaphore("a", permits=5, metadata={"x": 1}),
        redlock.lock("a", permits=5, fair=True, shared=False, owner=None, metadata={"x": 1}),
    ):
        assert isinstance(made, Semaphore)
        assert (made.permits, made.resources, made.metadata) == (5, ("a",), {"x": 1})
        assert repr(made) == "<Semaphore 'a', 5 permits>"
    assert type(redlock.lock("a", permits=None)) is Lock


async def test_a_number_of_permits_that_is_not_hashable_is_used(redlock: Redlock) -> None:
    async with redlock:
        for number in (1, 2):
            async with redlock.semaphore("a", permits=Unhashable(number)) as lease:
                assert lease.permit in range(number)


@pytest.mark.parametrize(
    ("wrong", "kind", "message"),
    [
        (0, ValueError, "must be positive"),
        (-1, ValueError, "must be positive"),
        (True, ValueError, "must be positive"),
        ("9", TypeError, "must be an int"),
    ],
)
def test_max_waiters_must_be_a_positive_number(
    wrong: Any, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=f"max_waiters {message}"):
        Redlock(["redis://a"], max_waiters=wrong)


def test_each_lock_has_the_same_retry_object_that_it_was_given(redlock: Redlock) -> None:
    first, second = Patient(5, 50), Patient(5, 50)
    assert first == second
    assert redlock.lock("a", retry=first)._spec.options.retry is first
    assert redlock.lock("a", retry=second)._spec.options.retry is second
    assert redlock.lock("a")._spec.options.retry == Retry()


def test_a_manager_caches_a_limited_number_of_options(redlock: Redlock) -> None:
    first = redlock.lock("a", wait=0)._spec.options
    assert redlock.lock("a", wait=0)._spec.options is first
    for wait in range(1, MOST_OPTIONS + 1):
        assert redlock.lock("a", wait=wait)._spec.options.wait == wait
    last = redlock.lock("b", wait=wait)._spec.options
    assert redlock.lock("a", wait=MOST_OPTIONS)._spec.options is last
    assert redlock.lock("a", wait=0)._spec.options is not first
