from pathlib import Path

import pytest

from .kit import Script


@pytest.fixture
def script(tmp_path: Path) -> Script:
    return Script(tmp_path / "run")
