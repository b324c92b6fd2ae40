"""What all tests share."""

import gc
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
