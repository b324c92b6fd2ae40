"""The fake master runs scripts: nothing passes from one to the next, and defects are seen."""

import gc
import subprocess
import sys
import weakref

import pytest

from redlock_aio.testing import FakeMaster

WITHOUT_LUPA = """
import sys
sys.modules["lupa"] = None
from redlock_aio.testing import EmbeddedMaster, FakeMaster, VirtualTimeLoop
VirtualTimeLoop().close()
try:
    FakeMaster()
except ImportError as error:
    print(error)
"""


def run(master: FakeMaster, text: str, *words: bytes, keys: int = 0) -> object:
    """Load a script and run it; return the reply."""
    sha = master.execute([b"SCRIPT", b"LOAD", text.encode()])
    assert isinstance(sha, bytes), sha
    return master.execute([b"EVALSHA", sha, b"%d" % keys, *words])


def test_what_is_missing_without_lupa_is_named_by_the_fake_master_alone() -> None:
    shown = subprocess.run(
        [sys.executable, "-c", WITHOUT_LUPA], capture_output=True, text=True, check=True
    )
    assert "pip install 'redlock-aio[testing]'" in shown.stdout


async def test_a_script_has_the_keys_of_its_own_master() -> None:
    one, other = FakeMaster(), FakeMaster()
    text = "redis.call('SET', KEYS[1], ARGV[1]) return {#KEYS, #ARGV}"
    assert run(one, text, b"k", b"1", b"2", keys=1) == [1, 2]
    assert run(other, text, b"k", b"2", keys=1) == [1, 1]
    assert (one.keys, other.keys) == ({"k": "1"}, {"k": "2"})
    assert run(one, "return {#KEYS, #ARGV}") == [0, 0]


async def test_a_master_knows_only_the_scripts_that_it_was_given() -> None:
    one, other = FakeMaster(), FakeMaster()
    sha = one.execute([b"SCRIPT", b"LOAD", b"return 'x'"])
    assert isinstance(sha, bytes)
    assert one.execute([b"EVALSHA", sha, b"0"]) == b"x"
    assert str(other.execute([b"EVALSHA", sha, b"0"])).startswith("NOSCRIPT")
    one.execute([b"SCRIPT", b"FLUSH"])
    assert str(one.execute([b"EVALSHA", sha, b"0"])).startswith("NOSCRIPT")


@pytest.mark.parametrize("last", ["return 1", "error('x')", "return {err = 'NO'}", "nonsense()"])
async def test_no_master_is_kept_alive_by_a_script(last: str) -> None:
    master = FakeMaster()
    run(master, "redis.call('SET', 'k', 'v') " + last)
    assert master.keys == {"k": "v"}
    ended = weakref.ref(master)
    del master
    gc.collect()
    assert ended() is None


async def test_a_script_that_sets_a_global_variable_fails() -> None:
    assert "global variable 'x'" in str(run(FakeMaster(), "x = 1"))
    assert "global variable 'x'" in str(run(FakeMaster(), "return x"))


async def test_a_defect_of_the_fake_is_no_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a test could pass because a command of the fake is broken."""

    def broken(*_: object) -> object:
        raise ZeroDivisionError

    monkeypatch.setattr(FakeMaster, "_do_get", broken)
    with pytest.raises(ZeroDivisionError):
        run(FakeMaster(), "return redis.pcall('GET', 'k')")
    monkeypatch.undo()
    assert run(FakeMaster(), "return redis.pcall('GET', 'k')") is None
