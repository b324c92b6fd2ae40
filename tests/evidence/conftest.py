import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from evidence.history import HistoryError, read
from evidence.porcupine import SOURCE, Porcupine, built, said, source_of

from .kit import Script


@pytest.fixture
def script(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Script]:
    made = Script(tmp_path / "run")
    # With the variable each history that is written by hand here is judged by porcupine, too.
    porcupine: Porcupine | None = None
    if os.environ.get(SOURCE):
        porcupine = request.getfixturevalue("porcupine")
    yield made
    if porcupine is not None and made.folder.exists():
        try:
            (verdicts,) = porcupine.compare([read(made.folder)])
        except HistoryError:
            return  # it is made to be none
        assert verdicts.agree, said(verdicts)


@pytest.fixture(scope="session")
def porcupine() -> Iterator[Porcupine]:
    """The program that asks porcupine; skips the test where it can't be built."""
    with contextlib.ExitStack() as stack:
        try:
            found = stack.enter_context(built(source_of()))
        except OSError as error:
            pytest.skip(str(error))
        yield found
