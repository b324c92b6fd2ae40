"""Functions of threads that run under a lock: names, checks, skipped calls."""

# ruff: noqa: ARG001 - the arguments of a locked function are used in its lock's name

import inspect
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from redlock_aio import LockLostError, LockNotAcquiredError, QuorumUnavailableError, Retry
from redlock_aio.sync import Redlock
from redlock_aio.testing import FakeMaster


class Customer:
    def __init__(self, name: str) -> None:
        self.name = name


def test_a_call_holds_the_lock_of_its_arguments(redlock: Redlock) -> None:
    @redlock.locked("{customer.name}:{number:03d}", "{rest[0]}:{options[word]}:{unit}", ttl=5_000)
    def send(customer: Customer, number: int, *rest: str, unit: str = "eur", **options: str) -> str:
        """Send it."""
        assert redlock.is_locked("ada:007")
        assert redlock.is_locked("first:x:eur")
        assert redlock.statistics().leases == 1
        return f"sent {number}"

    assert send(Customer("ada"), 7, "first", word="x") == "sent 7"
    assert not redlock.is_locked("ada:007")
    assert (send.__name__, send.__doc__) == ("send", "Send it.")
    assert list(inspect.signature(send).parameters) == [
        "customer", "number", "rest", "unit", "options",
    ]  # fmt: skip
    with pytest.raises(TypeError, match=r"send\(\): missing a required argument: 'number'"):
        send(Customer("ada"))  # type: ignore[call-arg]
    with pytest.raises(IndexError) as raised:
        send(Customer("ada"), 7)
    assert "while the template '{rest[0]}" in raised.value.__notes__[0]


def test_an_argument_without_a_text_of_its_own_names_no_lock(redlock: Redlock) -> None:
    @redlock.locked("customer:{customer}")
    def send(customer: Customer) -> None:
        raise AssertionError

    with pytest.raises(TypeError, match=r"address in memory of .* such as 'customer\.id'"):
        send(Customer("ada"))
    assert redlock.find_locks().states == ()


def test_methods_of_each_kind(redlock: Redlock) -> None:
    class Account:
        name = "ada"

        @redlock.locked("account:{self.name}")
        def deposit(self) -> bool:
            return redlock.is_locked("account:ada")

        @classmethod
        @redlock.locked("class:{cls.name}")
        def audit(cls) -> bool:
            return redlock.is_locked("class:ada")

        @staticmethod
        @redlock.locked("fixed")
        def check() -> bool:
            return redlock.is_locked("fixed")

    assert Account().deposit()
    assert Account.audit()
    assert Account.check()


def test_an_error_of_the_function_and_a_loss_come_out(redlock: Redlock) -> None:
    losses: Future[LockLostError] = Future()

    @redlock.locked("r", wait=5_000, on_lost=losses.set_result)
    def work(how: Callable[[], object]) -> None:
        how()

    def fail() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        work(fail)
    with pytest.raises(LockLostError, match="it was released by force"):
        work(lambda: redlock.force_release("r"))
    assert losses.result(10).resources == ("r",)


@pytest.mark.parametrize("retry", [None, Retry(attempts=1)])
def test_a_call_skips_while_others_hold_the_lock(redlock: Redlock, retry: Retry | None) -> None:
    calls: list[int] = []

    @redlock.locked("r", skip_if_locked=True, retry=retry)
    def work() -> str:
        calls.append(1)
        return "done"

    assert work() == "done"
    with redlock.lock("r", owner="another"):
        assert work() is None
    assert len(calls) == 1


def test_of_several_calls_at_once_one_runs(redlock: Redlock) -> None:
    running: list[int] = []

    @redlock.locked("r", skip_if_locked=True, hold_at_least=20_000)
    def work() -> str:
        running.append(1)
        return "done"

    with ThreadPoolExecutor(8) as pool:
        results = [each.result(10) for each in [pool.submit(work) for _ in range(8)]]
    assert sorted(results, key=str) == [None] * 7 + ["done"]
    assert len(running) == 1


def test_a_call_does_not_skip_for_votes_that_are_split(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    async def split() -> None:
        for number, master in enumerate(masters):
            master.set("r", f"holder {number}", ttl=100)

    redlock._opener.opened().call(split)  # a ttl needs the clock of the event loop

    @redlock.locked("r", skip_if_locked=True, retry=Retry(min_delay=50, max_delay=50))
    def work() -> str:
        return "done"

    assert work() == "done"


def test_a_call_does_not_skip_without_a_quorum_or_for_another_lock(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    @redlock.locked("r", skip_if_locked=True)
    def work() -> None:
        redlock.lock("s", wait=0).acquire().release()

    with redlock.lock("s", owner="another"), pytest.raises(LockNotAcquiredError, match="'s'"):
        work()
    for master in masters[1:]:
        master.hang()
    with pytest.raises(QuorumUnavailableError):
        work()


def of_wrong_kinds() -> dict[str, Any]:
    async def coroutine() -> None: ...
    async def generates_later() -> Any:
        yield

    def generates() -> Any:
        yield

    return {
        "the async function '{}coroutine': use redlock_aio.Redlock for that": coroutine,
        "the async function '{}generates_later': use": generates_later,
        "the generator '{}generates'": generates,
        "the class 'Customer'": Customer,
        "a staticmethod: put @redlock.locked(...) below @staticmethod": staticmethod(print),
        "a classmethod: put @redlock.locked(...) below @classmethod": classmethod(print),
        "a int": 3,
    }


@pytest.mark.parametrize("what", of_wrong_kinds())
def test_only_plain_functions_are_decorated(redlock: Redlock, what: str) -> None:
    thing = of_wrong_kinds()[what]
    with pytest.raises(TypeError) as raised:
        redlock.locked("r")(thing)
    begin = "locked() of redlock_aio.sync decorates a plain function, not "
    assert str(raised.value).startswith(begin + what.format("of_wrong_kinds.<locals>."))


def test_mistakes_are_found_when_a_function_is_decorated(redlock: Redlock) -> None:
    def work(number: int) -> None: ...

    with pytest.raises(ValueError, match="has a field 'nummer', which is no parameter of"):
        redlock.locked("{nummer}")(work)
    for options in ({"ttl": 1.5}, {"timeout": 3}, {"skip_if_locked": 1}):
        with pytest.raises(TypeError):
            redlock.locked("r", **options)
    with pytest.raises(ValueError, match="wait must be 0 with skip_if_locked=True, not 5"):
        redlock.locked("r", skip_if_locked=True, wait=5)
    with pytest.raises(TypeError, match=r"write @redlock.locked\('invoice:"):
        redlock.locked(work)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"neither true nor false; use 'redlock.is_locked\(name\)'"):
        bool(redlock.locked("r"))
