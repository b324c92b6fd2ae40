"""What all tests share."""

import gc
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says how busy the machine is, and nothing of the library.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


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
