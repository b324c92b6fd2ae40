"""The pytest plugin: its fixtures in runs of pytest of their own, with each async plugin."""

from collections.abc import Callable
from pathlib import Path

import pytest

pytest_plugins = ("pytester",)

ROOT = Path(__file__).parents[2]

Run = Callable[..., pytest.RunResult]

COMMON = """
import asyncio
import time
import pytest
from redlock_aio import Redlock
from redlock_aio.testing import FakeMaster, VirtualTimeLoop

def all_have_it(masters):  # a lock is held from a majority on; the others may be a little later
    return all(master.client().exists("r") for master in masters)

"""

SYNC = """
def test_a_manager_for_threads(sync_redlock, redlock_masters):
    with sync_redlock.lock("r"):
        while not all_have_it(redlock_masters):
            time.sleep(0.01)

def test_a_manager_for_threads_on_fakes(sync_redlock, fake_masters):
    with sync_redlock.lock("r"):
        assert all(isinstance(master, FakeMaster) for master in fake_masters)

def test_virtual_time_runs_a_coroutine(virtual_time, fake_masters):
    async def work():
        async with Redlock(fake_masters) as redlock, redlock.lock("r", on_lost="flag") as lease:
            fake_masters[0].hang()
            await asyncio.sleep(600)
            assert lease.valid
            virtual_time.suspend(60)
            return lease.valid
    assert virtual_time.run(work()) is False

def test_the_masters_are_repaired(redlock_masters):
    redlock_masters[0].client().set("x", 1)
    redlock_masters[1].pause()
    redlock_masters.pop().kill()

def test_the_masters_are_empty_and_up(redlock_masters):
    assert [master.client().dbsize() for master in redlock_masters] == [0, 0, 0]
"""

ASYNC = """
@MARK
async def test_on_servers(redlock, redlock_masters):
    async with redlock.lock("r"):
        while not all_have_it(redlock_masters):
            await asyncio.sleep(0.01)

@MARK
async def test_on_empty_servers(redlock, redlock_masters):
    for master in redlock_masters:
        master.client().flushall()  # costs no vote, as with a restart guard it would
    async with redlock.lock("r", wait=0):
        pass

@MARK
async def test_in_virtual_time(redlock, virtual_time, fake_masters):
    assert isinstance(asyncio.get_running_loop(), VirtualTimeLoop)
    async with redlock.lock("r", on_lost="flag") as lease:
        fake_masters[0].hang()
        await asyncio.sleep(600)
        assert lease.valid
        virtual_time.stall(60)
        assert not lease.valid

@MARK
async def test_in_real_time_again(fake_masters, redlock):
    assert not isinstance(asyncio.get_running_loop(), VirtualTimeLoop)
    async with redlock.lock("r"):
        assert not hasattr(fake_masters[0], "url")
"""

SCOPES = """
@pytest.mark.parametrize("number", range(2))
@pytest.mark.asyncio(loop_scope="session")
async def test_in_one_loop(redlock, number):
    async with redlock.lock("r", wait=0):
        pass

@pytest.mark.asyncio(loop_scope="module")
class TestAll:
    async def test_in_a_class(self, redlock):
        async with redlock.lock("r", wait=0):
            pass
"""

STRICT = ("-o", "asyncio_mode=strict", "-o", "asyncio_default_fixture_loop_scope=function")
AUTO = ("-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function")


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs tests in a folder of their own, with warnings as errors."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    pytester.makeini("[pytest]")

    def run(tests: str, *options: str) -> pytest.RunResult:
        pytester.makepyfile(test_it=COMMON + tests)
        own = ("-q", "-W", "error", "-p", "no:cacheprovider", "-p", "pytest_redlock_aio")
        return pytester.runpytest_subprocess(*own, *options, timeout=250)

    return run


@pytest.mark.spread(0)
@pytest.mark.integration
@pytest.mark.parametrize(
    ("mark", "options", "more"),
    [
        ("pytest.mark.asyncio", STRICT, SYNC + SCOPES),
        pytest.param(
            "pytest.mark.filterwarnings", AUTO, "", marks=pytest.mark.full
        ),  # no mark that says what runs it
        pytest.param(
            "pytest.mark.anyio",
            STRICT,
            "anyio_backend = pytest.fixture(lambda: 'asyncio')\n",
            marks=pytest.mark.full,
        ),
        ("pytest.mark.anyio", ("-p", "no:asyncio"), ""),
    ],
    ids=["strict", "auto", "anyio", "anyio alone"],
)
def test_the_fixtures_work_with_each_plugin(
    run: Run, mark: str, options: tuple[str, ...], more: str
) -> None:
    done = run(ASYNC.replace("MARK", mark) + more, *options)
    done.assert_outcomes(passed=4 + (5 + 3 if more.startswith(SYNC) else 0))
    assert done.ret == 0
    assert done.errlines == []


OTHER_OPTIONS = """
import redis

@pytest.fixture
def redlock_options():
    return {"key_prefix": "x:", "restart_guard": "auto"}

@pytest.fixture
def redlock(redlock):  # and one of their own
    return redlock

@pytest.mark.asyncio
async def test_options(redlock, redlock_masters):
    assert len(redlock_masters) == 1
    async with redlock.lock("r"):
        assert redlock_masters[0].client().exists("x:r", "redlock_aio:marker") == 2
    redis.Redis.from_url(redlock_masters[0].url, db=1).set("x", 1)

@pytest.mark.asyncio
async def test_the_marker_stays_unless_a_master_was_restarted(redlock_masters):
    assert redlock_masters[0].client().keys() == ["redlock_aio:marker"]
    assert [*redlock_masters[0].client().info("keyspace")] == ["db0"]
    redlock_masters[0].restart()

def test_else_all_are_empty(redlock_masters):
    assert redlock_masters[0].client().keys() == []
"""


@pytest.mark.integration
@pytest.mark.full
def test_the_number_of_masters_is_a_number_in_a_toml_file(
    run: Run, pytester: pytest.Pytester
) -> None:
    pytester.path.joinpath("tox.ini").unlink()
    pytester.makepyprojecttoml("[tool.pytest]\nredlock_masters = 1\n")
    tests = "def test_it(redlock_masters): assert len(redlock_masters) == 1"
    run(tests, *STRICT).assert_outcomes(passed=1)


@pytest.mark.full
def test_a_text_in_a_toml_file_is_no_number(run: Run, pytester: pytest.Pytester) -> None:
    """pytest has no type of an option that takes both in its native TOML."""
    pytester.path.joinpath("tox.ini").unlink()
    pytester.makepyprojecttoml("[tool.pytest]\nredlock_masters = '3'\n")
    done = run("def test_it(redlock_masters): ...", *STRICT)
    done.assert_outcomes(errors=1)
    why = "UsageError: redlock_masters must be a positive number: *expects an int, got str: '3'"
    done.stdout.fnmatch_lines(f"*{why}*")


HANGS = """
@pytest.mark.asyncio
async def test_that_waits_for_ever(redlock, virtual_time, fake_masters):
    async with Redlock(fake_masters) as other, other.lock("r"), redlock.lock("r"):
        pass

@pytest.mark.asyncio
async def test_after_it(redlock, virtual_time):
    async with redlock.lock("r", wait=0):
        pass
"""


@pytest.mark.full
def test_pytest_timeout_ends_a_test_in_virtual_time_that_waits_for_ever(run: Run) -> None:
    done = run(HANGS, *STRICT, "--timeout=2")
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines("*Timeout (>2.0s) from pytest-timeout*")


PLUGIN_BY_MODULE = """
@pytest.mark.asyncio
async def test_it(redlock, virtual_time):
    async with redlock.lock("r"):
        await asyncio.sleep(600)
"""


@pytest.mark.full
def test_pytest_asyncio_may_be_named_by_its_module(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where no plugin is loaded by itself."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    run(PLUGIN_BY_MODULE, *STRICT, "-p", "pytest_asyncio.plugin").assert_outcomes(passed=1)


KEPT_LOOP = """
pytestmark = pytest.mark.anyio
anyio_backend = pytest.fixture(lambda: "asyncio", scope="session")

@pytest.fixture(scope="session")
async def database(anyio_backend):
    yield

async def test_with_it(database, redlock, fake_masters):
    pass

async def test_in_virtual_time(redlock, virtual_time):
    await asyncio.sleep(3_600)
"""


@pytest.mark.full
def test_a_loop_that_a_fixture_keeps_does_not_let_a_test_wait_in_real_time(run: Run) -> None:
    done = run(KEPT_LOOP, "-p", "no:asyncio")
    done.assert_outcomes(passed=1, errors=1)
    done.stdout.fnmatch_lines("*the test does not run in virtual time, but in a *")


OLD_PYTEST_ASYNCIO = """
def test_without_a_loop_of_pytest_asyncio(virtual_time, fake_masters):
    async def work():
        async with Redlock(fake_masters) as redlock, redlock.lock("r"):
            await asyncio.sleep(600)
    virtual_time.run(work())

@pytest.mark.asyncio
async def test_with_one(virtual_time):
    pass
"""


@pytest.mark.full
def test_only_what_needs_a_newer_pytest_asyncio_fails(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makeconftest("""
        from redlock_aio.testing import _fixtures

        _fixtures._makes_loops = lambda config: False  # as before 1.4
    """)
    done = run(OLD_PYTEST_ASYNCIO, *STRICT)
    done.assert_outcomes(passed=1, errors=1)
    done.stdout.fnmatch_lines("the fixture virtual_time needs pytest-asyncio 1.4 or newer")


BEFORE_0_26 = """
import sys
import pytest

def getini(self, name, now=pytest.Config.getini):
    asks = sys._getframe(1).f_globals["__name__"]
    if name == "asyncio_default_test_loop_scope" and asks.startswith("redlock_aio."):
        raise ValueError(f"unknown configuration value: {name!r}")
    return now(self, name)

pytest.Config.getini = getini
"""

BEFORE_0_24 = """
import pytest_asyncio

def fixture(*callables, loop_scope=None, now=pytest_asyncio.fixture, **options):
    if loop_scope is not None:
        raise TypeError("an unexpected keyword argument 'loop_scope'")
    return now(*callables, **options)

pytest_asyncio.fixture = fixture
"""

ON_FAKES = """
@pytest.mark.asyncio
async def test_it(redlock, fake_masters):
    async with redlock.lock("r"):
        pass

def test_without_a_loop_of_pytest_asyncio(sync_redlock, fake_masters):
    with sync_redlock.lock("r"):
        pass
"""


@pytest.mark.full
def test_an_older_pytest_asyncio_runs_the_manager_or_is_told_that_it_can_not(
    run: Run, pytester: pytest.Pytester
) -> None:
    pytester.makeconftest(BEFORE_0_26)
    run(ON_FAKES, *STRICT).assert_outcomes(passed=2)
    pytester.makeconftest(BEFORE_0_24)
    done = run(ON_FAKES, *STRICT)
    done.assert_outcomes(passed=1, errors=1)
    done.stdout.fnmatch_lines("the fixture redlock needs pytest-asyncio 0.24 or newer")


@pytest.mark.integration
@pytest.mark.full
def test_options_and_the_number_of_masters_can_be_chosen(run: Run) -> None:
    run(OTHER_OPTIONS, *STRICT, "-o", "redlock_masters=1").assert_outcomes(passed=3)


DAMAGE = """
FUNCTION = "#!lua name=l\\nredis.register_function('f', function() return 1 end)"

@pytest.mark.parametrize("damage", [
    lambda master: master.client().shutdown(nosave=True),
    lambda master: master.client().replicaof("127.0.0.1", 1),
    lambda master: master.client().config_set("requirepass", "x"),
    lambda master: master.client().config_set("maxmemory", 1),
    lambda master: master.client().client_pause(3_600_000),
    lambda master: master.client().config_set("maxclients", 2),
    lambda master: master.client().acl_setuser("default", enabled=True, commands=["-evalsha"]),
    lambda master: master.client().function_load(FUNCTION),
    lambda master: master.stop(),
    lambda master: None,
])
def test_the_masters_are_repaired(redlock_masters, damage):
    assert [master.state for master in redlock_masters] == ["running"] * 3
    assert [master.client().dbsize() for master in redlock_masters] == [0] * 3
    assert [master.client().set("x", 1) for master in redlock_masters] == [True] * 3
    for master in redlock_masters:
        assert master.client().config_get("maxclients") == {"maxclients": "10000"}
        assert master.client().acl_list() == ["user default on nopass ~* &* +@all"]
        assert master.client().function_list() == []
    damage(redlock_masters[1])
"""


@pytest.mark.integration
@pytest.mark.full
def test_masters_that_a_test_has_made_unusable_are_restarted(run: Run) -> None:
    run(DAMAGE, *STRICT).assert_outcomes(passed=10)


OTHER_TIMES = """
class TestAnotherFixture:
    @pytest.fixture
    def virtual_time(self):
        return "not ours"

    @pytest.mark.asyncio
    async def test_it(self, virtual_time):
        assert virtual_time == "not ours"
        assert not isinstance(asyncio.get_running_loop(), VirtualTimeLoop)

@pytest.mark.asyncio
@pytest.mark.parametrize("virtual_time", [5])
async def test_a_parameter(virtual_time):
    assert virtual_time == 5
    assert not isinstance(asyncio.get_running_loop(), VirtualTimeLoop)

class TestOneThatAsksForOurs:
    @pytest.fixture
    def virtual_time(self, virtual_time):
        return virtual_time

    @pytest.mark.asyncio
    async def test_it(self, virtual_time):
        virtual_time.stall(1)
        assert isinstance(asyncio.get_running_loop(), VirtualTimeLoop)
"""


@pytest.mark.full
def test_a_fixture_of_the_same_name_does_not_change_the_loop(run: Run) -> None:
    """Each project in an environment with this plugin has its hooks."""
    run(OTHER_TIMES, *STRICT).assert_outcomes(passed=3)


MISTAKES = {
    "the fixture redlock is for async tests that pytest-asyncio or anyio's plugin runs;"
    " others use sync_redlock": ("def test_it(redlock): ...", STRICT),
    "redlock_masters must be a positive number: *'three'": (
        "def test_it(redlock_masters): ...",
        (*STRICT, "-o", "redlock_masters=three"),
    ),
    "redlock_masters must be a positive number: 0": (
        "def test_it(redlock_masters): ...",
        (*STRICT, "-o", "redlock_masters=0"),
    ),
    "pytest-asyncio in auto mode runs this test of anyio's plugin: use its strict mode": (
        "@pytest.mark.anyio\nasync def test_it(redlock, fake_masters): ...",
        AUTO,
    ),
    "the test does not run in virtual time, but in a _UnixSelectorEventLoop": (
        """
async def main(virtual_time): virtual_time.stall(1)
def test_it(virtual_time): asyncio.run(main(virtual_time))
""",
        STRICT,
    ),
}


@pytest.mark.parametrize("why", MISTAKES, ids=["sync", "number", "none", "both", "real time"])
@pytest.mark.full
def test_a_mistake_is_explained(run: Run, why: str) -> None:
    tests, options = MISTAKES[why]
    done = run(tests, *options)
    done.stdout.fnmatch_lines(f"*{why}*")
    assert done.ret == 1


@pytest.mark.full
def test_a_run_without_locks_imports_nothing(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plugin is part of each run of pytest in an environment with redlock_aio."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeini("[pytest]")
    pytester.makepyfile("""
        import sys

        def test_it():
            names = ("asyncio", "anyio", "redis", "redlock_aio")
            assert not [name for name in names if name in sys.modules]
    """)
    done = pytester.runpytest_subprocess("-p", "pytest_redlock_aio", "-p", "no:cacheprovider")
    done.assert_outcomes(passed=1)
