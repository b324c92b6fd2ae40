"""The example of a holder that is stopped past its ttl, on each kind of server."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from redlock_aio.testing import server_binary

from .helpers import RealMaster, call, urls

pytestmark = [pytest.mark.integration, pytest.mark.promise("S7")]

EXAMPLE = Path(__file__).parents[2] / "examples" / "paused_holder.py"


def run(environment: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLE)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.full
def test_the_late_write_is_refused_and_goes_through_without_a_fence(
    masters: list[RealMaster],
) -> None:
    said = run({**os.environ, "REDLOCK_MASTERS": ",".join(urls(masters))})
    tokens = [int(token) for token in re.findall(r"has the lock, with token (\d+)", said)]
    assert len(tokens) == 2
    assert tokens[0] < tokens[1]
    assert f"token {tokens[0]} is stale, {tokens[1]} has been seen" in said
    lines = said.splitlines()
    assert lines.index("second: has written") < lines.index("first: goes on and writes")
    assert call(masters[0], "GET", "ledger:paused:unguarded") == "first"
    assert call(masters[0], "GET", "ledger:paused:guarded") == "second"


@pytest.mark.full
def test_it_brings_masters_of_its_own() -> None:
    environment = {**os.environ, "REDLOCK_AIO_SERVER": server_binary()}
    environment.pop("REDLOCK_MASTERS", None)
    said = run(environment)
    assert said.endswith("without the fence: first\nthe last to write through the fence: second\n")
