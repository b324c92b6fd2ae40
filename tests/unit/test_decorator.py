"""Decorated functions: the names they lock, the checks, the results of their calls."""

# ruff: noqa: ARG001, ARG004 - the arguments of a locked function are used in its lock's name

import asyncio
import functools
import inspect
import itertools
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, get_type_hints

import pytest
from hypothesis import given, strategies as st

from redlock_aio import (
    LockLostError,
    LockNotAcquiredError,
    QuorumUnavailableError,
    Redlock,
    Retry,
)
from redlock_aio._api.decorator import LockArguments
from redlock_aio._api.templates import Names, Template
from redlock_aio.testing import FakeMaster

from .cancelling import When, every_place
from .kit import LATENCY, hang, now, occupy, resume


def held(masters: list[FakeMaster]) -> set[str]:
    """Return the names that are locked on all masters."""
    first, *others = [set(master.keys) for master in masters]
    assert all(each == first for each in others)
    return first


def unused() -> Redlock:
    """Return a manager that no test opens; `is_unused` checks that it was not opened."""
    return Redlock([FakeMaster() for _ in range(3)])


def is_unused(redlock: Redlock) -> bool:
    return repr(redlock) == "<Redlock 3 masters, not used yet>"


class Recorder(Redlock):
    """A manager that records the names and options of its locks."""

    def __init__(self, masters: list[FakeMaster]) -> None:
        super().__init__(masters)
        self.made: list[tuple[tuple[str, ...], dict[str, object]]] = []

    def lock(self, *names: str, **options: Any) -> Any:
        self.made.append((names, options))
        return super().lock(" ".join(names), **options)


class Customer:
    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"<{self.name}>"


# Names


@pytest.mark.promise("S1")
async def test_each_call_acquires_and_releases_the_lock_of_its_name(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    inside: list[int] = []

    @redlock.locked("r:{number}", ttl=5_000)
    async def work(number: int) -> str:
        assert number not in inside
        inside.append(number)
        await asyncio.sleep(1)
        assert all(3_990 < master.pttl(f"r:{number}") <= 5_000 for master in masters)
        inside.remove(number)
        return f"done {number}"

    began = now()
    assert list(await asyncio.gather(work(1), work(number=2))) == ["done 1", "done 2"]
    assert now() - began == pytest.approx(1 + 2 * LATENCY)
    assert held(masters) == set()
    await asyncio.gather(work(1), work(1))
    assert now() - began > 3


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{number}", "7"),
        ("r:{number:04d}", "r:0007"),
        ("{customer.name}", "ada"),
        ("{customer.name[0]}", "a"),
        ("{customer!r:>6}", " <ada>"),
        ("{customer}", "<ada>"),
        ("{items[1]}", "y"),
        ("{args[0]}-{args[1]}", "p-q"),
        ("{only}", "default"),
        ("{kwargs[function]}{kwargs[self]}", "red"),
        ("{{{number}}}", "{7}"),
        ("{number}:{number}", "7:7"),
        ("job {{1}}", "job {1}"),
    ],
)
async def test_a_template_is_filled_from_the_arguments(
    redlock: Redlock, masters: list[FakeMaster], template: str, name: str
) -> None:
    @redlock.locked(template)
    async def work(
        number: int,
        customer: Customer,
        items: list[str],
        *args: str,
        only: str = "default",
        **kwargs: str,
    ) -> tuple[Any, ...]:
        assert held(masters) == {name}
        return number, customer, items, args, only, kwargs

    ada = Customer("ada")
    got = await work(7, ada, ["x", "y"], "p", "q", function="r", self="ed")
    assert got == (7, ada, ["x", "y"], ("p", "q"), "default", {"function": "r", "self": "ed"})


@pytest.mark.parametrize("skip_if_locked", [False, True])
async def test_several_templates_make_one_lock(
    masters: list[FakeMaster], skip_if_locked: bool
) -> None:
    engine = Recorder(masters)

    @engine.locked("a:{x}", "b:{y}", "c{{}}", skip_if_locked=skip_if_locked, ttl=5_000, fair=True)
    async def work(x: int, y: int) -> None:
        pass

    (stand_ins, checked), *_ = engine.made
    assert len(set(stand_ins)) == 3, "a lock may refuse to have one resource twice"
    assert stand_ins[2] == "c{}"
    assert checked == {"ttl": 5_000, "fair": True}
    async with engine:
        await work(1, y=2)
    options = {**checked, "wait": 0} if skip_if_locked else checked
    assert engine.made[1:] == [(("a:1", "b:2", "c{}"), options)]


async def test_methods_of_each_kind(redlock: Redlock, masters: list[FakeMaster]) -> None:
    class Account:
        kind = "giro"

        def __init__(self, name: str) -> None:
            self.name = name

        @redlock.locked("account:{self.name}")
        async def book(self, amount: int) -> tuple[object, int, set[str]]:
            return self, amount, held(masters)

        @classmethod
        @redlock.locked("accounts:{cls.kind}")
        async def close_all(cls) -> tuple[object, set[str]]:
            return cls, held(masters)

        @staticmethod
        @redlock.locked("rate:{currency}")
        async def rate(currency: str) -> set[str]:
            return held(masters)

    account = Account("ada")
    assert await account.book(5) == (account, 5, {"account:ada"})
    assert await Account.book(account, amount=5) == (account, 5, {"account:ada"})
    assert await Account.close_all() == (Account, {"accounts:giro"})
    assert await account.rate("eur") == {"rate:eur"}

    bound = redlock.locked("bound:{amount}")(account.book)
    assert await bound(1) == (account, 1, {"account:ada", "bound:1"})
    partial = redlock.locked("partial:{amount}")(functools.partial(account.book, amount=3))
    assert await partial() == (account, 3, {"account:ada", "partial:3"})


def test_a_decorated_function_keeps_its_name_and_signature() -> None:
    async def send(invoice_id: int, *, urgent: bool = False) -> str:
        """Send an invoice."""
        raise NotImplementedError

    redlock = unused()
    for wrapped in (
        redlock.locked("{invoice_id}")(send),
        redlock.locked("{invoice_id}", skip_if_locked=True)(send),
    ):
        seen: Any = wrapped
        assert seen is not send
        assert inspect.iscoroutinefunction(seen)
        if sys.version_info < (3, 14):  # deprecated from then on
            assert asyncio.iscoroutinefunction(seen)
        assert (seen.__name__, seen.__doc__, seen.__module__) == (
            "send",
            "Send an invoice.",
            __name__,
        )
        assert seen.__qualname__ == send.__qualname__
        assert inspect.signature(seen) == inspect.signature(send)
        assert seen.__wrapped__ is send
    assert is_unused(redlock)


# Checks when a function is decorated


async def function(x: Any, items: list[int]) -> None:
    """Do nothing; it exists to be decorated."""


FIELDS = {
    "r:{y}": "y", "r:{x}:{y.x}": "y", "{y[x]}": "y", "{ x}": " x", "{x }": "x ", "{}": "",
    "{.x}": "", "{0.x}": "0", "{1[0]}": "1", "{x}{self}": "self",
}  # fmt: skip
"""Templates with a field that names no parameter."""

BROKEN = {
    "{x": "expected '}'",
    "x}": "Single '}'",
    "{": "Single '{'",
    "{x.}": "Empty attribute",
    "{items[]}": "Empty attribute",
    "{items[0}": "expected '}'",
    "{items[0]x}": r"Only '\.' or '\['",
    "{x!z}": "conversion",
    "{x!r:d}": "format code 'd'",
    "{x:{items}}": "'x' contains another field",
    "{x:{}}": "'x' contains another field",
    "{x:>{items[0]}}": "'x' contains another field",
}
"""Malformed templates, and the words of their errors."""


def test_a_template_is_checked_when_a_function_is_decorated() -> None:
    for template, root in FIELDS.items():
        with pytest.raises(ValueError) as caught:
            unused().locked(template)(function)
        why = f"template {template!r} has a field {root!r}, which is no parameter of"
        assert str(caught.value) == f"{why} function(x, items)"
    for template, why in BROKEN.items():
        with pytest.raises(ValueError, match=why) as caught:
            unused().locked(template)(function)
        assert str(caught.value).startswith(f"template {template!r} is broken: ")
    for template in ("", "a\nb", "redlock_aio:x", "x" * 513, "redlock_aio:{{x}}"):
        with pytest.raises(ValueError, match="resource must"):
            unused().locked(template)


def test_a_template_that_only_arguments_can_refuse_is_accepted() -> None:
    for template in (
        "{x.a.b[c][0]!r:>9}",
        "{x.__class__.__name__}",
        "{x.__doc__.a:%Y-%m}",
        "{x!a}",
    ):
        assert unused().locked(template)(function) is not None


def test_templates_must_be_there_and_be_strings() -> None:
    locked: Any = unused().locked
    with pytest.raises(TypeError, match="at least one template"):
        locked()
    with pytest.raises(TypeError, match="template must be a str, not an int"):
        locked("a", 5)
    with pytest.raises(TypeError, match="needs a name: write @redlock"):
        locked(function)


def generator() -> Any:
    yield


async def async_generator() -> Any:
    yield


def plain() -> None:
    pass


class Callable_:  # noqa: N801 - the error has this name
    async def __call__(self) -> None:
        pass


@pytest.mark.parametrize(
    ("thing", "what"),
    [
        (plain, "the plain function 'plain'"),
        (generator, "the plain function 'generator'"),
        (async_generator, "the async generator 'async_generator'"),
        (Callable_, "the class 'Callable_'"),
        (Callable_(), "a Callable_"),
        (functools.partial(plain), "a partial"),
        (print, "the plain function 'print'"),
        (property(), "a property"),
        (None, "a NoneType"),
        (staticmethod(function), "a staticmethod: put @redlock.locked(...) below @staticmethod"),
        (classmethod(function), "a classmethod: put @redlock.locked(...) below @classmethod"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_only_async_functions_are_decorated(thing: Any, what: str) -> None:
    for skip_if_locked in (False, True):
        decorate = unused().locked("r", skip_if_locked=skip_if_locked)
        with pytest.raises(TypeError) as caught:
            decorate(thing)
        assert str(caught.value) == f"locked() decorates an 'async def' function, not {what}"


def test_a_bad_option_is_refused_when_a_function_is_decorated() -> None:
    wrongs: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"nonsense": 1}, TypeError, "nonsense"),
        ({"ttl": 1.5}, TypeError, "ttl must be"),
        ({"ttl": 0}, ValueError, "ttl must be"),
        ({"wait": -1}, ValueError, "wait must"),
        ({"wait": False}, TypeError, "wait must"),
        ({"on_lost": "shrug"}, ValueError, "on_lost must be"),
        ({"retry": 5}, TypeError, "retry must be"),
        ({"permits": 0}, ValueError, "permits must be from 1 to 1000, not 0"),
        ({"permits": "5"}, TypeError, "permits must be an int, not a str"),
        ({"permits": 5, "shared": True}, ValueError, "shared must not be True with permits=5"),
        ({"permits": 5, "owner": "me"}, ValueError, "owner must be None with permits=5"),
    ]
    for template, skip in itertools.product(["r", "{x}"], [False, True]):
        for options, kind, why in wrongs:
            with pytest.raises(kind, match=why):
                unused().locked(template, skip_if_locked=skip, **options)
    for template in ("r", "{x}"):
        with pytest.raises(ValueError, match="permits=5 takes one resource, not 2"):
            unused().locked(template, "s", permits=5)
    locked: Any = unused().locked
    for wait in (None, 1, 5_000, timedelta(seconds=1)):
        with pytest.raises(ValueError, match="wait must be 0 with skip_if_locked=True, not"):
            locked("r", skip_if_locked=True, wait=wait)
    for value in (1, None, "yes"):
        with pytest.raises(TypeError, match="skip_if_locked must be a bool"):
            locked("r", skip_if_locked=value)


def test_the_options_are_those_of_a_lock() -> None:
    parameters = inspect.signature(Redlock.lock).parameters.values()
    hints = get_type_hints(Redlock.lock)
    assert get_type_hints(LockArguments) == {
        parameter.name: hints[parameter.name]
        for parameter in parameters
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    assert not LockArguments.__required_keys__


# Checks of a call


@pytest.mark.parametrize("template", ["r", "{x}"])
@pytest.mark.parametrize("skip_if_locked", [False, True])
@pytest.mark.parametrize(
    ("args", "kwargs", "why"),
    [
        ((), {}, "missing a required argument: 'x'"),
        ((1, 2, 3), {}, "too many positional arguments"),
        ((1,), {"x": 2}, "multiple values for argument 'x'"),
        ((1,), {"z": 2}, "got an unexpected keyword argument 'z'"),
    ],
)
async def test_arguments_that_do_not_fit_are_refused_before_anything_is_sent(
    template: str, skip_if_locked: bool, args: tuple[int, ...], kwargs: dict[str, int], why: str
) -> None:
    redlock = unused()

    @redlock.locked(template, skip_if_locked=skip_if_locked)
    async def work(x: int, y: int = 0) -> None:
        pytest.fail("it was called")

    call: Callable[..., Awaitable[None]] = work
    with pytest.raises(TypeError) as caught:
        await call(*args, **kwargs)
    assert str(caught.value) == f"{work.__qualname__}(): {why}"
    assert is_unused(redlock)


KINDS = list(inspect._ParameterKind)


@st.composite
def signatures(draw: st.DrawFn) -> inspect.Signature:
    kinds = sorted(draw(st.lists(st.sampled_from(KINDS), max_size=6)))
    parameters: list[inspect.Parameter] = []
    for name, kind in zip("abcdef", kinds, strict=False):
        several = kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        if several and kind in [parameter.kind for parameter in parameters]:
            continue
        # After a positional parameter with a default come only parameters with a default.
        last = parameters[-1] if parameters else None
        after = last is not None and last.default == 0 and kind < KINDS[2]
        default = 0 if not several and (after or draw(st.booleans())) else inspect.Parameter.empty
        parameters.append(inspect.Parameter(name, kind, default=default))
    return inspect.Signature(parameters)


def outcome(bind: Callable[[], dict[str, Any]]) -> dict[str, Any] | str:
    try:
        return bind()
    except TypeError as error:
        return str(error)


@given(
    signature=signatures(),
    args=st.lists(st.integers(1, 9), max_size=5).map(tuple),
    kwargs=st.dictionaries(st.sampled_from("abcdefg"), st.integers(1, 9), max_size=4),
)
def test_arguments_are_bound_as_python_binds_them(
    signature: inspect.Signature, args: tuple[int, ...], kwargs: dict[str, object]
) -> None:
    def whole() -> dict[str, Any]:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound.arguments

    called: Any = functools.partial(
        function
    )  # a lambda without a name in its error, with any signature
    called.__signature__ = signature
    names = Names(called, [])
    before = dict(kwargs)
    expected = outcome(whole)
    if isinstance(expected, str):
        expected = f"{called!r}(): {expected}"
    elif names._required - expected.keys():  # a mistake of Python 3.13.0: the call would fail
        with pytest.raises(TypeError, match="missing a required argument"):
            names._arguments(args, kwargs)
        return
    assert outcome(lambda: names._arguments(args, kwargs)) == expected
    assert kwargs == before


def test_a_call_that_plainly_fits_is_not_bound_by_inspect() -> None:
    """`inspect` would cost a tenth of a lock."""

    async def called(x: int, y: int = 0, *, z: int = 0) -> None:
        """Do nothing; a function that is called often."""

    names = Names(called, [Template("{x}{y}{z}")])
    names._signature = None  # type: ignore[assignment]
    assert names.of((1,), {}) == ["100"]
    assert names.of((1, 2), {"z": 3}) == ["123"]
    assert names.of((), {"y": 2, "x": 1}) == ["120"]
    with pytest.raises(AttributeError):
        names.of((), {})


class Odd:
    @property
    def broken(self) -> str:
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("template", "value", "kind"),
    [
        ("{x.y}", 1, AttributeError),
        ("{x[y]}", {}, KeyError),
        ("{x[3]}", [], IndexError),
        ("{x:d}", "one", ValueError),
        ("{x:>5}", None, TypeError),
        ("{x.broken}", Odd(), ZeroDivisionError),
    ],
)
async def test_an_error_while_a_template_is_filled_names_it(
    template: str, value: object, kind: type[Exception]
) -> None:
    redlock = unused()

    @redlock.locked(template)
    async def work(x: object) -> None:
        pytest.fail("it was called")

    with pytest.raises(kind) as caught:
        await work(value)
    assert caught.value.__notes__ == [
        f"while the template {template!r} of {work.__qualname__}() was filled"
    ]
    assert is_unused(redlock)


class Order:
    def __init__(self, number: int) -> None:
        self.number = number


@pytest.mark.parametrize("field", ["order", "order!r", "order!s:>60", "orders[0]"])
async def test_an_address_in_memory_is_no_name(field: str) -> None:
    """Two calls for one order would lock two names, and both would run."""
    redlock = unused()

    @redlock.locked("order:{" + field + "}")
    async def ship(order: Order, orders: list[Order]) -> None:
        pytest.fail("it was called")

    where = r"in memory of a \S*test_decorator\.Order, .* such as 'order(s\[0\])?\.id'"
    with pytest.raises(TypeError, match=where):
        await ship(Order(7), [Order(7)])
    assert is_unused(redlock)


@pytest.mark.parametrize("field", ["args", "kwargs", "kwargs[orders]", "kwargs[by_number]"])
async def test_an_address_within_a_container_is_no_name(field: str) -> None:
    redlock = unused()

    @redlock.locked("order:{" + field + "}")
    async def ship(*args: object, **kwargs: object) -> None:
        pytest.fail("it was called")

    orders: list[Any] = [{1, 2}, {Order(7)}]
    orders.append(orders)  # a container may be in itself
    with pytest.raises(TypeError, match=r"in memory of a \S*test_decorator\.Order, .*\.id'"):
        await ship((1, Order(7)), orders=orders, by_number={7: Order(7)})
    with pytest.raises(TypeError, match=r"such as 'args\[0\]\[1\]\.id'"):
        await redlock.locked("{args}")(ship)((1, Order(7)))
    assert is_unused(redlock)


async def test_a_text_of_the_arguments_may_look_like_an_address(redlock: Redlock) -> None:
    @redlock.locked("block:{address}:{number:#x}:{order.number}:{texts}")
    async def read(address: str, number: int, order: Order, texts: list[str]) -> Order:
        return order

    order = Order(7)
    text = f"<Order object at {id(order):#x}>"
    assert await read(text, 0xBEEF, order, [text]) is order


class Silent:
    def __repr__(self) -> str:
        return "silent"

    def __str__(self) -> str:
        raise AssertionError("only its repr is in the text of a mapping")


def test_to_look_for_addresses_in_a_large_container_takes_little_time() -> None:
    """And it needs no text but that of the name."""
    template = Template("{first}:{rest}")
    numbers = list(range(50_000))
    began = time.process_time()
    name = template.filled({"first": {Silent(): "0xBEEF"}, "rest": numbers})
    assert name == f"{{silent: '0xBEEF'}}:{numbers}"
    assert time.process_time() - began < 2


async def test_a_filled_template_must_be_a_valid_name() -> None:
    redlock = unused()

    @redlock.locked("{name}")
    async def work(name: str) -> None:
        pytest.fail("it was called")

    for name in ("", "a\nb", "redlock_aio:x", "x" * 513):
        with pytest.raises(ValueError, match="resource must"):
            await work(name)
    assert is_unused(redlock)


# Results


async def test_an_exception_of_the_function_comes_out_and_the_lock_is_released(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    @redlock.locked("r", wait=timedelta(seconds=1))
    async def work() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await work()
    await asyncio.sleep(LATENCY)
    assert held(masters) == set()
    occupy(masters)
    began = now()
    with pytest.raises(LockNotAcquiredError):
        await work()
    assert now() - began == pytest.approx(1, abs=0.1)


@pytest.mark.promise("S2")
async def test_a_lost_lock_cancels_the_function(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    ended: list[float] = []

    @redlock.locked("r", ttl=1_000)
    async def work() -> None:
        hang(masters)
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(now())

    began = now()
    with pytest.raises(LockLostError):
        await work()
    assert ended == [pytest.approx(began + 1, abs=0.02)]
    resume(masters)


@pytest.mark.spread(1)
@pytest.mark.parametrize("skip_if_locked", [False, True])
@pytest.mark.parametrize("when", ["waiting", "answered"])
@pytest.mark.parametrize("hung", [0, 2])
@pytest.mark.promise("S3")
async def test_nothing_stays_wherever_a_call_is_cancelled(
    redlock: Redlock, masters: list[FakeMaster], hung: int, when: When, skip_if_locked: bool
) -> None:
    begun: list[str] = []
    ended: list[str] = []

    @redlock.locked("r:{x}", skip_if_locked=skip_if_locked)
    async def work(x: str) -> None:
        begun.append(x)
        try:
            await asyncio.sleep(0.01)
        finally:
            ended.append(x)

    await every_place(masters, when, hung, lambda: work("x"))
    assert begun == ended
    assert begun
    assert "0 leases" in repr(redlock)


# Permits


@pytest.mark.promise("S1")
@pytest.mark.full
async def test_as_many_calls_run_at_once_as_there_are_permits(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    running = {"a": 0, "b": 0}
    most = dict(running)

    async def call(host: str, seconds: float) -> str:
        running[host] += 1
        most[host] = max(most[host], running[host])
        await asyncio.sleep(seconds)
        running[host] -= 1
        return host

    async with Redlock(masters, restart_guard="off") as other:
        here = redlock.locked("api:{host}", permits=3)(call)
        elsewhere = other.locked("api:{host}", permits=3)(call)
        began = now()
        calls = [each("ab"[n % 2], 10) for n in range(12) for each in (here, elsewhere)]
        assert await asyncio.gather(*calls) == ["a", "a", "b", "b"] * 6
        assert most == {"a": 3, "b": 3}
        assert now() - began == pytest.approx(40, abs=1), "four times three for each name"
        async with redlock.lock("api:a", wait=0):
            assert await here("a", 0) == "a", "a lock of the same name is independent"
    await asyncio.sleep(1)
    assert held(masters) == set()


async def test_calls_that_find_no_free_permit_skip(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    async def job() -> str:
        await asyncio.sleep(60)
        return "done"

    async with Redlock(masters, restart_guard="off") as other:
        here = redlock.locked("job", permits=2, skip_if_locked=True)(job)
        elsewhere = other.locked("job", permits=2, skip_if_locked=True)(job)
        together = await asyncio.gather(*(each() for each in (here, elsewhere) * 4))
        assert sorted(map(str, together)) == ["None"] * 6 + ["done"] * 2
        running = [asyncio.create_task(here()) for _ in range(2)]
        await asyncio.sleep(1)
        began = now()
        assert [await here(), await elsewhere()] == [None, None]
        assert now() - began == pytest.approx(2 * LATENCY, abs=LATENCY), "one attempt each"
        running[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await running[0]
        assert await elsewhere() == "done"
        assert await running[1] == "done"


# Skipping


async def test_of_several_calls_at_once_one_runs_and_the_others_skip(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    ran: list[int] = []

    async def job(number: int) -> str:
        ran.append(number)
        assert held(masters) == {"job"}
        await asyncio.sleep(60)
        return "done"

    async with Redlock(masters, restart_guard="off") as other:
        here = redlock.locked("job", skip_if_locked=True)(job)
        elsewhere = other.locked("job", skip_if_locked=True, wait=0)(job)
        first = asyncio.create_task(here(0))
        await asyncio.sleep(1)
        began = now()
        assert [await here(1), await elsewhere(2)] == [None, None]
        assert now() - began == pytest.approx(2 * 2 * LATENCY), "one attempt each"
        assert await first == "done"
        assert await elsewhere(3) == "done"
    assert ran == [0, 3]


@pytest.mark.parametrize("wait", [0, timedelta(0)])
async def test_a_call_skips_after_one_attempt_if_the_holder_is_known(
    redlock: Redlock, masters: list[FakeMaster], wait: int | timedelta
) -> None:
    occupy(masters, "job", ttl=5)

    @redlock.locked("job", skip_if_locked=True, wait=wait, retry=Retry(min_delay=1, max_delay=1))
    async def job() -> str:
        return "done"

    assert await job() is None
    await asyncio.sleep(1)
    assert await job() == "done"


@pytest.mark.parametrize("whose", ["manager", "lock"])
async def test_a_skipping_call_retries_after_split_votes_as_its_retry_has_it(
    masters: list[FakeMaster], whose: str
) -> None:
    retry = Retry(min_delay=1_000, max_delay=1_000, attempts=3)
    for master, value in zip(masters, ["x", "x", "y", "y", "z"], strict=True):
        master.set("job", value)
    manager: Any = {"retry": retry} if whose == "manager" else {}
    options: Any = {"retry": retry} if whose == "lock" else {}
    async with Redlock(masters, restart_guard="off", **manager) as redlock:

        @redlock.locked("job", skip_if_locked=True, **options)
        async def job() -> str:
            return "done"

        began = now()
        assert await job() is None
        assert now() - began == pytest.approx(2.0, abs=0.05), "three attempts, two delays"


async def test_a_call_does_not_skip_for_votes_that_are_split(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    for master, value in zip(masters, ["x", "x", "y", "y", "z"], strict=True):
        master.set("job", value, ttl=50)
    calls = []

    @redlock.locked("job", skip_if_locked=True)
    async def job() -> str:
        calls.append(now())
        return "done"

    began = now()
    assert await job() == "done"
    assert 0.05 < calls[0] - began < 0.5
    for master, value in zip(masters, ["x", "x", "y", "y", "z"], strict=True):
        master.set("job", value)
    assert await job() is None, "they never end, and nobody has it"
    assert now() - began < 3


async def test_a_call_does_not_skip_without_a_quorum(
    redlock: Redlock, masters: list[FakeMaster]
) -> None:
    @redlock.locked("job", skip_if_locked=True)
    async def job() -> None:
        pytest.fail("it was called")

    hang(masters[:3])
    with pytest.raises(QuorumUnavailableError):
        await job()
    resume(masters)
    await asyncio.sleep(1)
    assert held(masters) == set()


@pytest.mark.parametrize("kind", [LockNotAcquiredError, QuorumUnavailableError])
async def test_a_lock_that_the_function_does_not_acquire_is_no_skip(
    redlock: Redlock, masters: list[FakeMaster], kind: type[LockNotAcquiredError]
) -> None:
    occupy(masters, "inner")

    @redlock.locked("job", skip_if_locked=True)
    async def job() -> None:
        if kind is QuorumUnavailableError:
            hang(masters[:3])
        async with redlock.lock("inner", wait=0):
            pytest.fail("it was free")

    with pytest.raises(kind) as caught:
        await job()
    assert type(caught.value) is kind
    assert caught.value.resources == ("inner",)
    resume(masters)
    await asyncio.sleep(1)
    assert held(masters) == {"inner"}
