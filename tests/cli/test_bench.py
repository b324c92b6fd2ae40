"""``redlock bench`` and ``redlock demo``."""

import json
import math

import pytest
import redis

from redlock_aio import demo, requirements
from redlock_aio.cli import app, bench
from redlock_aio.cli.exits import Exit
from redlock_aio.testing import EmbeddedMaster

from .conftest import Masters


def test_quantiles() -> None:
    sample = bench.Sample([1.0, 2.0, 3.0, 4.0])
    assert [sample.quantile(share) for share in (0.01, 0.5, 0.51, 0.99, 1.0)] == [1, 2, 3, 4, 4]
    assert bench.Sample([]).quantile(0.5) == math.inf


def test_a_picture_has_a_line_at_the_timeout() -> None:
    picture = bench.Sample([0.2, 0.2, 0.21, 5.0]).picture(50)
    assert len(picture) == len(bench.EDGES) + 2
    assert picture.replace(" ", "") == "█▃|"
    assert bench.Sample([500.0]).picture(50).replace(" ", "") == "|█"
    assert bench.Sample([]).picture(50).strip() == "|"


@pytest.mark.parametrize(("timeout", "pair"), [(50, 0.5), (50, 40.0), (200, 100.0), (1_000, 900.0)])
def test_the_shortest_ttl_survives_extensions_that_time_out(timeout: int, pair: float) -> None:
    ttl = bench.shortest_ttl(timeout, pair)
    validity = ttl * 0.99 - 2
    assert validity - ttl / 3 * 0.99 >= bench.FAILED_EXTENSIONS * timeout + pair
    assert ttl % 50 == 0
    assert ttl <= (3 * timeout + pair) * 1.6 + 60


def test_the_masters_are_measured(
    masters: Masters, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("REDLOCK_MASTERS", masters.environment["REDLOCK_MASTERS"])
    app.main(["bench", "--for", "400ms", "--json", "--master-timeout", "1s"])
    shown = json.loads(capsys.readouterr().out)
    assert set(shown) == {"master_timeout_ms", "shortest_ttl_ms", "masters", "pairs"}
    assert shown["master_timeout_ms"] == 1_000
    assert len(shown["masters"]) == 3
    for figures in (*shown["masters"], shown["pairs"]):
        assert figures["answers"] > 0
        assert 0 < figures["p50_ms"] <= figures["p99_ms"] <= figures["max_ms"]
    app.main(["bench", "--for", "100ms"])
    assert "; ttl can be " in capsys.readouterr().out
    assert not masters.ask(lambda redlock: redlock.find_locks("redlock-bench")).states


def test_masters_that_do_not_answer_are_named(
    masters: Masters, capsys: pytest.CaptureFixture[str]
) -> None:
    urls = [masters.urls[0], "redis://127.0.0.1:1", "redis://127.0.0.1:2"]
    assert app.main(["bench", "--for", "100ms", "-m", ",".join(urls)]) == Exit.UNAVAILABLE
    assert "redlock: 127.0.0.1:1, 127.0.0.1:2: no answer\n" in capsys.readouterr().err
    assert app.main(["bench", "--for", "1ms", "-m", urls[0]]) == Exit.USAGE


def test_a_lock_that_is_never_acquired_has_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    allowed = [f"+{name}" for name in requirements.permissions().commands if name != "set"]
    with EmbeddedMaster() as server:
        with redis.Redis.from_url(server.url) as client:
            client.execute_command("ACL", "SETUSER", "app", "on", ">app", "-@all", *allowed, "~*")
        where = f"redis://app:app@127.0.0.1:{server.port}"
        words = ["bench", "--for", "200ms", "--json", "--master-timeout", "1s", "-m", where]
        assert app.main(words) == Exit.UNAVAILABLE
    said = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert (said["error"], said["exit_code"]) == ("unavailable", Exit.UNAVAILABLE)
    assert "'set'" in said["masters"][0]["detail"]
    assert "reference/acl" in said["message"]


def test_a_wrong_url_is_named_by_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    # Each wait for a connection would take seconds, and make its own master the first one.
    urls = ["redis://127.0.0.1:1", "redis://127.0.0.1:x"]
    assert app.main(["bench", "-m", ",".join(urls)]) == Exit.USAGE
    assert "masters[1] has a port that is no" in capsys.readouterr().err


@pytest.mark.parametrize(("status", "code"), [(0, 0), (1, 1), (2, Exit.FAILED), (130, 130)])
def test_the_demonstration(
    status: int, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    called: list[list[str]] = []

    def main(arguments: list[str]) -> int:
        called.append(arguments)
        print("updates lost: ...")  # noqa: T201 - as it does
        return status

    monkeypatch.setattr(demo, "main", main)
    assert app.main(["demo", "--seconds", "4"]) == code
    assert app.main(["demo", "--plain"]) == code
    assert called == [["--seconds", "4.0"], ["--seconds", "10.0", "--plain"]]
    assert capsys.readouterr().out == "updates lost: ...\n" * 2
    assert app.main(["demo", "--json"]) == code
    assert called[-1] == ["--seconds", "10.0", "--plain"]
    shown = capsys.readouterr()
    assert shown.err == "updates lost: ...\n"
    assert shown.out == (
        f'{{"updates_lost": {"true" if status else "false"}}}\n' if status < 2 else ""
    )
    assert app.main(["demo", "--seconds", "1"]) == Exit.USAGE
