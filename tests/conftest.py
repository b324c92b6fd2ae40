"""
What all tests share, and which of them run by default.

``python -m pytest`` runs a short form of everything, in under three minutes on two cores.
``python -m pytest --full`` runs everything: the second kind of server, chaos, long proofs
and many seeds. What `full` marks runs there only; a module that repeats something reads how
often from ``REDLOCK_AIO_FULL``, which this option sets.
"""

import gc
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says how busy the machine is, and nothing of the library.
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


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--full"):
        os.environ["REDLOCK_AIO_FULL"] = "1"
    settings.load_profile("full" if config.getoption("--full") else "short")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what belongs to the full run, but not where single tests are named."""
    if config.getoption("--full") or any("::" in argument for argument in config.args):
        return
    left = [item for item in items if item.get_closest_marker("full")]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if not item.get_closest_marker("full")]


@pytest.fixture(scope="module", autouse=True)
def what_is_there_already() -> Iterator[None]:
    """Spare the collection after each test what was there before, which is most of all objects."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def sigint_is_not_ignored() -> Iterator[None]:
    """
    Let the processes that a test starts be interrupted.

    A shell that starts the suite in the background ignores SIGINT, and every process below it
    inherits that.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
