"""
Settings of all tests, and the choice of those that run by default.

``python -m pytest`` runs a short form of everything, in three to six minutes on two cores.
``python -m pytest --full`` runs everything: the second kind of server, faults, long proofs
and many seeds. Tests marked `full` run there only. Without this option a test marked `seeds`
gets its first seeds, and a product of parameters marked `spread` some of its cases. A module
with a number of repetitions chooses it by ``REDLOCK_AIO_FULL``, which this option sets. Long
searches of `tests/proofs` are left out of the full run, too, while their inputs are those with
which they have passed: ``python -m pytest tests/proofs --prove`` runs them all.
"""

import functools
import gc
import itertools
import os
import signal
from collections import Counter
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest
import redis.utils
from hypothesis import HealthCheck, settings

# Until the tests have been collected nearly all objects stay; see `frozen_objects`.
gc.disable()

# For each connection redis-py asks for its own version, and reads a file to find it.
redis.utils.get_lib_version = functools.cache(redis.utils.get_lib_version)

# No deadline: the time of an example depends on how busy the machine is.
for name, examples in {"short": 25, "full": 100}.items():
    settings.register_profile(
        name, max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--full",
        action="store_true",
        default="REDLOCK_AIO_FULL" in os.environ,
        help="run everything, which takes much longer; as REDLOCK_AIO_FULL=1 does",
    )
    parser.addoption(
        "--prove",
        action="store_true",
        help="run also the searches that tests/proofs/record.json has, and write it; means --full",
    )


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        stop_as_an_interrupt_does()
    # Programs that tests start inherit ignored signals, as in the background of a shell or under
    # nohup, and could not be interrupted.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if config.getoption("--prove"):
        config.option.full = True
        if not hasattr(config, "workerinput"):
            from .proofs.record import Writer

            config.pluginmanager.register(Writer(), "writer of the record")
    if config.getoption("--full"):
        os.environ["REDLOCK_AIO_FULL"] = "1"
    settings.load_profile("full" if config.getoption("--full") else "short")


def stop_as_an_interrupt_does() -> None:
    """
    Let SIGTERM stop the tests as an interrupt from the keyboard does: fixtures are closed.

    By default it would end the process at once, and leave folders and networks. The second one
    does nothing, because it would interrupt the clean-up: `timeout` sends two of them.
    """
    tests = os.getpid()

    def stop(number: int, _frame: FrameType | None) -> None:
        if os.getpid() == tests:
            signal.signal(number, lambda *_: None)  # not SIG_IGN: it would be inherited
            raise KeyboardInterrupt
        signal.signal(number, signal.SIG_DFL)  # in a forked child
        os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, stop)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """
    Return how many processes run the tests: three for each core, of at most four cores.

    Those with real servers wait for half of the time and longer. Tests in virtual time keep a core
    busy: alone they get one process for each core, and one more for those with threads.
    """
    cores = min(os.cpu_count() or 1, 4)
    if all("tests/unit" in argument for argument in config.args):
        return cores + 1
    return 3 * cores


def wants_everything(config: pytest.Config) -> bool:
    """Return whether no test is left out: in the full run, and where single tests are named."""
    return config.getoption("--full") or any("::" in argument for argument in config.args)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize a test marked `seeds` with its seeds."""
    for marker in metafunc.definition.iter_markers("seeds"):
        number = marker.kwargs["full"] if wants_everything(metafunc.config) else marker.args[0]
        metafunc.parametrize("seed", range(number))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests and cases that belong to the full run; begin with the longest."""
    # The first worker begins with them, and the others take the rest of its tests meanwhile.
    items.sort(key=lambda item: item.get_closest_marker("long") is None)
    if wants_everything(config):
        items[:] = dealt(items, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
        return
    left = {item for item in items if item.get_closest_marker("full")}
    products: dict[str, list[pytest.Function]] = {}
    for item in items:
        if item not in left and isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            products.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in products.values():
        if marker := cases[0].get_closest_marker("spread"):
            # The cases of a product share the objects of each parameter.
            values = [
                {name: id(value) for name, value in case.callspec.params.items()} for case in cases
            ]
            kept = spread(values, *marker.args)
            left |= {case for number, case in enumerate(cases) if number not in kept}
    config.hook.pytest_deselected(items=[item for item in items if item in left])
    items[:] = [item for item in items if item not in left]


def dealt(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """
    Return *items* so that each worker begins with tests that wait, and ends with busy ones.

    xdist gives each worker as many tests, one after the other, and then lets those without any
    take from the ends of the others. With the tests that wait for servers at the end, the machine
    would be idle for half of that time, after it had too much to do at the beginning.
    """
    kinds: dict[int, list[pytest.Item]] = {0: [], 1: [], 2: []}
    for item in items:
        waits = item.nodeid.startswith("tests/integration/") or item.get_closest_marker("long")
        is_busy = item.nodeid.startswith(("tests/unit/", "tests/proofs/"))
        kinds[0 if waits else 2 if is_busy else 1].append(item)
    return [
        item
        for number in range(workers)
        for kind in kinds.values()
        for item in kind[len(kind) * number // workers : len(kind) * (number + 1) // workers]
    ]


def spread(cases: list[dict[str, int]], strength: int) -> set[int]:
    """
    Return the numbers of a few *cases* that together cover all combinations of *strength* values.

    With 0, one case is left; with 1, each value of each parameter occurs; with 2, each pair of
    values of two parameters.
    """
    has = [set(itertools.combinations(case.items(), min(strength, len(case)))) for case in cases]
    missing = set[Any]().union(*has)
    used: Counter[tuple[str, int]] = Counter()
    kept: set[int] = set()
    while missing:
        # Among the cases with the most new combinations, the one with the rarest values.
        best = max(
            range(len(cases)),
            key=lambda number: (
                len(has[number] & missing), -sum(used[value] for value in cases[number].items())
            ),
        )  # fmt: skip
        kept.add(best)
        missing -= has[best]
        used.update(cases[best].items())
    return kept


@pytest.fixture(scope="session", autouse=True)
def frozen_objects() -> None:
    """Freeze the objects from before all tests: the collection after each test skips them."""
    gc.enable()
    # Each collection calls Hypothesis, and finds little: 6 % of the processor time less.
    gc.set_threshold(50_000, 20, 20)
    gc.collect()
    gc.freeze()


@pytest.fixture
def sigint_is_not_ignored() -> Iterator[None]:
    """
    Restore the default of SIGINT, so that processes of the test can be interrupted.

    A shell that starts the suite in the background ignores SIGINT, and every process below it
    inherits that.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
