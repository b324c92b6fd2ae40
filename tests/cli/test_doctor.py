"""``redlock doctor`` as users start it: exit codes, JSON, and no password."""

import json
import re

import pytest
import redis

from redlock_aio import Redlock, requirements
from redlock_aio.cli import app
from redlock_aio.cli.doctor import command
from redlock_aio.cli.doctor.facts import MasterFacts
from redlock_aio.cli.exits import Exit
from redlock_aio.testing import EmbeddedMaster, embedded_masters

from .conftest import PASSWORD, URL, Masters


@pytest.fixture(autouse=True)
def environment(masters: Masters, monkeypatch: pytest.MonkeyPatch) -> None:
    """Name the masters in the environment of this process."""
    monkeypatch.setenv("REDLOCK_MASTERS", masters.environment["REDLOCK_MASTERS"])


SLOW = ["--ignore", "slow", "--ignore", "too-slow"]
"""A busy machine may delay a reply by a second."""


def test_masters_of_one_machine_are_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["doctor", "--fencing", "--fair", "--timeout", "1m", *SLOW]) == Exit.NO
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split("\t") == ["MASTER", "SERVER", "UPTIME", "P50", "P99", "CLOCK", "VOTES"]
    assert [line.split("\t")[-1] for line in lines[:3]] == ["yes"] * 3
    for line in lines[:3]:
        _, _, uptime, p50, p99, clock, _ = line.split("\t")
        assert re.fullmatch(r"\d+( s| min( \d+ s)?)", uptime)
        assert all(re.fullmatch(r"\d+\.\d+ ms", trip) for trip in (p50, p99))
        assert re.fullmatch(r"0 ms|[+-]\d+(\.\d+)? (ms|s)", clock)
    serious, meaning, advice, trial = lines[4:8]
    assert serious.startswith("SERIOUS one-host: 127.0.0.1:")
    assert meaning == "    So many masters are on one host that its failure ends all leases."
    assert advice == "    To do: Put each master on a host of its own."
    assert trial == "    For a trial on a laptop: redlock doctor --ignore one-host"
    assert lines[-1] == "masters: 3, 1 serious, 0 warnings, 0 notes"


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("colours", [True, False])
def test_in_a_terminal_it_has_colours_and_no_broken_address(
    masters: Masters,
    columns: int,
    colours: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    if not colours:
        monkeypatch.setenv("NO_COLOR", "1")
    assert app.main(["doctor", "--timeout", "1m", *SLOW]) == Exit.NO
    shown = capsys.readouterr().out
    assert shown.count("\x1b[32myes") == 3 * colours
    assert shown.count("\x1b[1;31mSERIOUS\x1b[0m") == colours
    assert bool(re.search(r"\x1b\[(\d;)?3\d", shown)) is colours
    lines = re.sub(r"\x1b\[[\d;]*m", "", shown).splitlines()
    assert max(map(len, lines)) <= columns
    for server in masters.servers:
        assert sum(f"127.0.0.1:{server.port}" in line for line in lines) == 2


@pytest.mark.parametrize(
    ("column", "value", "cell"),
    [
        ("uptime_s", 0, "0 s"),  # it has started in this second
        ("uptime_s", 133, "2 min 13 s"),
        ("uptime_s", 276_000, "3 d 4 h"),
        ("p50_ms", 0.397, "0.40 ms"),
        ("p99_ms", 12.34, "12.3 ms"),
        ("clock_ms", 0, "0 ms"),
        ("clock_ms", -3, "-3 ms"),
        ("clock_ms", 65_000, "+1 min 5 s"),
        ("votes", True, "yes"),
        ("votes", False, "no"),
        ("server", None, "?"),
    ],
)
def test_a_cell_has_its_unit(column: str, value: object, cell: str) -> None:
    assert command._cell(column, value) == cell


def test_a_finding_can_be_ignored(capsys: pytest.CaptureFixture[str]) -> None:
    ignore = ["--ignore", "one-host", "--timeout", "1m", *SLOW]
    assert app.main(["doctor", "--json", *ignore]) == Exit.DONE
    (line,) = capsys.readouterr().out.splitlines()
    facts = json.loads(line)
    assert (facts["serious"], facts["warnings"], facts["notes"]) == (0, 0, 0)
    for master in facts["masters"]:
        assert set(master) == set(command.facts_of(MasterFacts(name="a"), []))
        assert (master["role"], master["votes"]) == ("master", True)
        assert 0 < master["p50_ms"] <= master["p99_ms"]
        assert isinstance(master["clock_ms"], int)


def test_a_master_that_refuses_to_write_has_no_vote(capsys: pytest.CaptureFixture[str]) -> None:
    with EmbeddedMaster(options=["--maxmemory", "1"]) as full:
        where = ["-m", f"redis://127.0.0.1:{full.port}"]
        code = app.main(["doctor", "--json", "--timeout", "1m", "--ignore", "refuses", *where])
    assert code == Exit.NO
    *found, summary = map(json.loads, capsys.readouterr().out.splitlines())
    assert "refuses" not in {each["finding"] for each in found}
    assert [master["votes"] for master in summary["masters"]] == [False]


@pytest.mark.full
def test_half_of_the_masters_down(masters: Masters, capsys: pytest.CaptureFixture[str]) -> None:
    with EmbeddedMaster(options=["--requirepass", PASSWORD]) as hung:
        where = [masters.urls[0], URL.format(hung.port), URL.format(1), masters.urls[1]]
        hung.pause()
        try:
            code = app.main(["doctor", "--json", "--timeout", "3s", "-m", ",".join(where)])
        finally:
            hung.resume()
    assert code == Exit.NO
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    away = {name for each in lines[:-1] if each["finding"] == "unreachable"
            for name in each["masters"]}  # fmt: skip
    assert {"127.0.0.1:1", f"127.0.0.1:{hung.port}"} <= away
    assert "no-majority" in {each["finding"] for each in lines[:-1]}
    assert all(each["advice"] and each["meaning"] for each in lines[:-1])


@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_no_password_is_shown(
    masters: Masters, as_json: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = masters.urls[0].replace("s3cret", "wr0ng-secret")
    where = ",".join([wrong, f"redis://:{PASSWORD.replace('/', '%2F')}@no-such-host.invalid"])
    assert app.main(["doctor", *as_json, "--timeout", "10s", "-m", where]) == Exit.NO
    shown = capsys.readouterr()
    assert "unreachable" in shown.out
    for secret in ("s3cret", "p@ss", "p%40ss", "wr0ng"):
        assert secret not in shown.out + shown.err


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["--timeout", "99ms"], "--timeout must be at least 100ms, not 99ms"),
        (["--ignore", "nonsense"], "'nonsense' is not one of 'unreachable', "),
        (["--max-ttl", "1ms"], "max_ttl must be at least 50 ms"),
        (["-m", "redis://a,redis://a"], "a:6379 is named twice"),
        (["-m", ","], "no masters: name them"),
    ],
)
def test_a_wrong_option_is_refused(
    arguments: list[str], wanted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.main(["doctor", *arguments]) == Exit.USAGE
    assert wanted in capsys.readouterr().err


def test_an_examination_leaves_no_marker(
    masters: Masters, capsys: pytest.CaptureFixture[str]
) -> None:
    async def quarantined(redlock: Redlock) -> list[str]:
        return [master.reason for master in redlock.statistics().masters]

    del capsys
    before = [server_keys(master) for master in masters.servers]
    app.main(["doctor", "--shared", "--fencing", "--timeout", "1m"])
    assert [server_keys(master) for master in masters.servers] == before
    assert masters.ask(quarantined) == [""] * 3


def server_keys(server: EmbeddedMaster) -> list[str]:
    """Return the keys of a master."""
    with redis.Redis.from_url(URL.format(server.port), decode_responses=True) as client:
        return sorted(client.keys())


def test_masters_on_unix_sockets_are_on_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    with embedded_masters(3, unix=True) as servers:
        where = ",".join(server.url for server in servers)
        assert app.main(["doctor", "--json", "--timeout", "1m", "-m", where, *SLOW]) == Exit.NO
    finding, facts = map(json.loads, capsys.readouterr().out.splitlines())
    assert finding["finding"] == "one-host"
    assert finding["message"] == "they are on one host: this machine"
    assert [master["hosts"] for master in facts["masters"]] == [[]] * 3


def test_a_permission_that_only_readers_need(capsys: pytest.CaptureFixture[str]) -> None:
    fair, shared = requirements.permissions(fair=True), requirements.permissions(shared=True)
    allowed = [*(f"+{name}" for name in fair.commands), "~*", "&*"]
    with EmbeddedMaster() as server:
        with redis.Redis.from_url(server.url) as client:
            client.execute_command("ACL", "SETUSER", "app", "on", ">app", "-@all", *allowed)
        where = f"redis://app:app@127.0.0.1:{server.port}"
        words = ["doctor", "--json", "--timeout", "1m", "-m", where, "--ignore", "single", *SLOW]
        assert app.main([*words, "--fair"]) == Exit.DONE
        capsys.readouterr()
        assert app.main([*words, "--shared"]) == Exit.NO
    finding = json.loads(capsys.readouterr().out.splitlines()[0])
    lacking = [f"+{name}" for name in shared.commands if name not in fair.commands]
    assert (finding["finding"], finding["message"].split()[-len(lacking) :]) == (
        "permission",
        lacking,
    )
