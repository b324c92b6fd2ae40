"""What the real masters of the tests promise where there is no such server."""

import contextlib
import shutil

import pytest

from . import servers
from .servers import Sets


@pytest.mark.parametrize("kind", ["redis", "containers"])
def test_each_test_is_skipped_where_there_is_no_such_server(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An empty set of masters was remembered once: the first test was skipped, all others failed.
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    monkeypatch.setattr(servers, "docker_refuses", lambda: "no Docker engine answers")
    monkeypatch.delenv("REDLOCK_AIO_CONTAINERS", raising=False)
    with contextlib.ExitStack() as stack:
        sets = Sets(stack)
        for _ in range(2):
            with pytest.raises(pytest.skip.Exception, match=r"no redis-server|no Docker engine"):
                _ = sets[kind]
