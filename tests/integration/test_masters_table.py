"""The versions of servers that the documentation lists do what it says."""

from pathlib import Path

import pytest

from . import versions
from .masters_table import cells
from .rows import ROWS
from .versions import VERSIONS, WHEELS, binary

pytestmark = pytest.mark.integration


def test_the_page_has_a_cell_for_each_row_and_version() -> None:
    assert list(cells()) == [(row, version) for row in ROWS for version in VERSIONS]


@pytest.mark.full
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("row", ROWS)
async def test_a_version_does_what_its_cell_says(row: str, version: str) -> None:
    server = binary(version)
    assert await ROWS[row](server) == cells()[row, version]


def test_a_missing_server_skips_its_tests_and_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(versions, "FOLDER", tmp_path)
    for version in WHEELS:
        with pytest.raises(pytest.skip.Exception, match=r"python -m .*versions downloads it"):
            binary(version)
