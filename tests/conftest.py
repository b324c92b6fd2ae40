"""What all tests share."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def what_is_there_already() -> Iterator[None]:
    """Spare the collection after each test what was there before, which is most of all objects."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
