"""The names, parameters, defaults and first sentences of `redlock_aio.sync` are the async ones."""

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any, get_args, get_type_hints

import pytest

import redlock_aio
import redlock_aio.sync
from redlock_aio.sync._decorator import SyncLockArguments

SAME_NAME = {
    "aclose": "close",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
}
"""Methods that Python, or a convention, names otherwise without asyncio."""

OTHER_SENTENCE = {
    "Redlock.locked": "Return a decorator: each call of a function or method runs under a lock.",
    "Lock.__enter__": "Acquire the lock; see `acquire`.",
    "Lock.__exit__": (
        "Release the lease that was entered where the block began; see `Lease.__exit__`."
    ),
    "Semaphore.__enter__": "Acquire the lock; see `acquire`.",
    "Semaphore.__exit__": (
        "Release the lease that was entered where the block began; see `Lease.__exit__`."
    ),
    "Term.__enter__": "Return the term, which the end of the block leaves.",
    "Term.__exit__": "Stand down; see `Lease.__exit__`.",
    "LockWatch": "The states of a lock, made by `Redlock.watch`; ``for state in watch:``.",
    "Lease.__enter__": "Return the lease, which the end of the block releases.",
}
"""First sentences that are not those of asyncio: a thread can't be cancelled."""

CLASSES = ("Election", "Lease", "Lock", "LockWatch", "Redlock", "Semaphore", "Term")


def pairs() -> Iterator[tuple[str, Any, Any]]:
    """Yield the name of each class and public method, the async one and that for threads."""
    for name in CLASSES:
        there, here = getattr(redlock_aio, name), getattr(redlock_aio.sync, name)
        yield name, there, here
        for member in public(there):
            other = SAME_NAME.get(member, member)
            yield f"{name}.{other}", getattr(there, member), getattr(here, other, None)


def public(of: type) -> list[str]:
    """Return the public names of a class, and its context manager."""
    found = [name for name in dir(of) if not name.startswith("_")]
    return found + [name for name in SAME_NAME if name.startswith("__") and hasattr(of, name)]


PAIRS = list(pairs())
METHODS = [pair for pair in PAIRS if "." in pair[0] and callable(pair[1])]
IDS = [name for name, _, _ in METHODS]


def plain(annotation: object) -> str:
    """Return an annotation without modules, and without what awaits."""
    text = re.sub(r"[\w.]+\.(\w)", r"\1", inspect.formatannotation(annotation)).strip("'\"")
    return re.sub(r"^CoroutineType\[Any, Any, (.*)\]$", r"\1", text)


def parameters(function: Callable[..., object]) -> dict[str, tuple[object, object, str]]:
    """Return the kind, the default and the annotation of each parameter."""
    return {
        name: (it.kind, it.default, plain(it.annotation))
        for name, it in inspect.signature(function).parameters.items()
    }


def test_all_names_are_there_and_no_others() -> None:
    for name in CLASSES:
        there, here = getattr(redlock_aio, name), getattr(redlock_aio.sync, name)
        wanted = {SAME_NAME.get(member, member) for member in public(there)}
        found = {member for member in dir(here) if not member.startswith("_")}
        found |= {it for it in SAME_NAME.values() if it.startswith("__") and hasattr(here, it)}
        assert found == wanted, name
        properties = {member for member in wanted if isinstance(vars(there).get(member), property)}
        assert properties == {
            member for member in wanted if isinstance(vars(here).get(member), property)
        }


@pytest.mark.parametrize(("name", "there", "here"), METHODS, ids=IDS)
def test_parameters_and_defaults_are_the_same(name: str, there: Any, here: Any) -> None:
    wanted, found = parameters(there), parameters(here)
    if wanted.pop("unknown", None) and name != "Redlock.lock":
        del found["unknown"]  # a class of its own
    if "on_lost" in wanted:
        assert found.pop("on_lost")[1:] == (None, "Callable[[LockLostError], object] | None")
        del wanted["on_lost"]
    if name == "Redlock.locked":  # the options have another `on_lost`
        del found["options"], wanted["options"]
    if name == "Redlock.lock":  # the options are passed on, see the next test but one
        assert found.pop("options")[0] is inspect.Parameter.VAR_KEYWORD
        assert list(found) == ["self", "resources"]
        wanted = found
    assert list(found.items()) == list(wanted.items())
    results = [inspect.signature(method).return_annotation for method in (there, here)]
    if name != "Redlock.locked":
        assert plain(results[0]) == plain(results[1])


def test_the_options_of_a_manager_are_the_same() -> None:
    wanted, found = (parameters(it.Redlock.__init__) for it in (redlock_aio, redlock_aio.sync))
    assert list(found) == list(wanted)
    for option, (kind, default, annotation) in wanted.items():
        assert found[option][:2] == (kind, default), option
        if option not in ("masters", "restart_guard", "unknown"):  # private names, here written out
            assert found[option][2] == annotation, option


def test_the_options_of_a_lock_and_of_a_decorated_function_are_the_same() -> None:
    hints = get_type_hints(redlock_aio.Redlock.lock)
    wanted = inspect.signature(redlock_aio.Redlock.lock).parameters.values()
    options = {it.name: hints[it.name] for it in wanted if it.kind is it.KEYWORD_ONLY}
    del options["on_lost"]
    passed_on = get_type_hints(redlock_aio.sync.Redlock.lock)["options"]
    assert get_type_hints(get_args(passed_on)[0]) == options
    decorated = get_type_hints(SyncLockArguments)
    assert decorated.pop("on_lost") == get_type_hints(redlock_aio.sync.Redlock.lock)["on_lost"]
    assert decorated == options


@pytest.mark.parametrize(("name", "there", "here"), PAIRS, ids=[name for name, _, _ in PAIRS])
def test_first_sentences_are_the_same(name: str, there: Any, here: Any) -> None:
    wanted, found = (first_line(it) for it in (there, here))
    for there_word, here_word in (("await ", ""), ("aclose", "close"), ("`Redlock.lock`", "...")):
        wanted = wanted.replace(there_word, here_word)
    found = found.replace("`redlock_aio.sync.Redlock.lock`", "...")
    assert found == OTHER_SENTENCE.get(name, wanted)
    assert (found == wanted) == (name not in OTHER_SENTENCE), "no exception is needed"


def first_line(thing: object) -> str:
    return (inspect.getdoc(thing) or "").partition("\n")[0]


@pytest.mark.parametrize(("name", "there", "here"), METHODS, ids=IDS)
def test_the_same_errors_are_documented(name: str, there: Any, here: Any) -> None:
    """A thread has no loop, and its block raises for a loss although nothing is cancelled."""
    unlike = {"Lock.__enter__", "Lease.__exit__", "Redlock.__enter__", "Redlock.locked"}
    if name in {*unlike, "Semaphore.__enter__"}:
        return
    assert errors(here) == errors(there)


def errors(function: object) -> set[str]:
    text = (inspect.getdoc(function) or "").partition("Raises:")[2]
    found = re.findall(r"^    ([A-Z]\w+(?:, [A-Z]\w+)*): ", text, re.MULTILINE)
    return {name for names in found for name in names.split(", ")}
