"""``redlock list``, ``watch`` and ``release``."""

import contextlib
import dataclasses
import json
import re
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis

from redlock_aio import (
    Answer,
    FoundLocks,
    Holder,
    LockState,
    MasterView,
    Redlock,
    SemaphoreState,
    SemaphoreView,
    Vote,
)
from redlock_aio.cli import app, look
from redlock_aio.cli.exits import Exit
from redlock_aio.cli.frame import Common, Frame
from redlock_aio.cli.output import Output
from redlock_aio.cli.redaction import Redaction

from .conftest import Masters, until

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture(autouse=True)
def environment(masters: Masters, monkeypatch: pytest.MonkeyPatch) -> None:
    """Name the masters in the environment of this process."""
    monkeypatch.setenv("REDLOCK_MASTERS", masters.environment["REDLOCK_MASTERS"])


def hold(masters: Masters, key: str) -> None:
    """Lock *key* for a minute, for a holder that is gone."""

    async def lock(redlock: Redlock) -> None:
        (await redlock.lock(key, ttl=60_000).acquire()).export()

    masters.ask(lock)


def test_the_list(masters: Masters, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"{key}:[b]", f"{key}:a*"]
    for name in names:
        hold(masters, name)
    assert app.main(["list", f"{key}:"]) == Exit.DONE
    head, *rows = capsys.readouterr().out.splitlines()
    assert head == "KEY\tHOLDER\tLEFT\tWAITING\tMASTERS"
    assert [row.split("\t")[0] for row in rows] == sorted(names)
    assert all(row.endswith(" s\t0\t3/3") for row in rows)
    assert app.main(["list", f"{key}:a*", "--json"]) == Exit.DONE
    state = json.loads(capsys.readouterr().out)
    assert (state["resource"], state["locked"]) == (names[1], True)
    assert app.main(["list", f"{key}:", "--limit", "1"]) == Exit.DONE
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 2
    assert shown.err == "redlock: there may be more locks than the 1 that are shown\n"
    assert app.main(["list", f"{key}:?"]) == Exit.DONE
    assert capsys.readouterr().out == f"{head}\n"


def test_a_list_that_may_lack_locks(masters: Masters, capsys: pytest.CaptureFixture[str]) -> None:
    urls = ",".join([masters.urls[0], "redis://127.0.0.1:1", "redis://127.0.0.1:2"])
    assert app.main(["list", "-m", urls]) == Exit.UNAVAILABLE
    assert "too few masters answered, locks may be missing (" in capsys.readouterr().err
    assert app.main(["list", "--limit", "0"]) == Exit.USAGE


@pytest.mark.parametrize(("remaining", "left"), [(None, "no end"), (2_000, "2 s")])
def test_a_lock_on_a_minority_without_an_end_has_none_in_the_list(
    remaining: int | None, left: str
) -> None:
    kept = MasterView("a", Answer.HELD, holder=Holder("1a2b"), remaining=remaining)
    away = MasterView("b", Answer.UNREACHABLE)
    row = look.row_of(LockState("r", None, None, None, 0, (kept, away)))
    assert row == ["r", "not certain", left, "0", "1/2"]


ANSWERS = [Answer.HELD, Answer.FREE, Answer.UNREACHABLE, Answer.QUARANTINED]


@pytest.mark.parametrize(("number", "code"), [(3, Exit.UNAVAILABLE), (4, Exit.DONE)])
def test_half_of_an_even_number_finds_each_lock(
    number: int, code: Exit, capsys: pytest.CaptureFixture[str]
) -> None:
    votes = [Vote(str(place), answer) for place, answer in enumerate(ANSWERS)][4 - number :]
    listing = Frame(Common(), Output(Redaction([])), "off")
    assert look.complete(listing, FoundLocks((), False, tuple(votes))) == code
    shown = capsys.readouterr().err
    assert ("locks may be missing" in shown) is (code == Exit.UNAVAILABLE)
    assert ("there may be more locks than the 0" in shown) is (code == Exit.DONE)


@pytest.mark.parametrize(
    ("in_terminal", "term", "view"),
    [(True, "xterm", "Picture"), (True, "dumb", "Changes"), (False, "xterm", "Changes")],
)
def test_a_watch_is_live_only_in_a_terminal(
    in_terminal: bool, term: str, view: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []

    class View(look.Changes):
        def show(self, state: LockState | SemaphoreState) -> None:
            shown.append(f"{type(self).__name__} of {state.resource}")

    for name in ("Changes", "Picture"):
        monkeypatch.setattr(look, name, type(name, (View,), {}))
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("FORCE_COLOR", "1")  # for colours in a log, and no terminal for `watch`
    monkeypatch.setattr("sys.stdout.isatty", lambda: in_terminal, raising=False)
    assert app.main(["watch", key, "--for", "0"]) == Exit.NO
    assert shown == [f"{view} of {key}"]


def test_a_watch_shows_each_change(redlock: Start, masters: Masters, key: str) -> None:
    watch = redlock("watch", key, "--json", "--interval", "20ms")
    assert watch.stdout is not None
    first = json.loads(watch.stdout.readline())
    assert (first["locked"], first["holder"]) == (False, None)
    hold(masters, key)
    states = [json.loads(watch.stdout.readline())]
    while states[-1]["holder"] is None:  # split for a moment
        states.append(json.loads(watch.stdout.readline()))
    assert states[-1]["locked"]
    watch.terminate()
    watch.communicate(timeout=60)
    assert watch.returncode == 143


def test_a_watch_ends_after_its_time(
    masters: Masters, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.main(["watch", key, "--for", "0", "--interval", "10ms"]) == Exit.NO
    hold(masters, key)
    capsys.readouterr()
    assert app.main(["watch", key, "--for", "100ms", "--interval", "10ms"]) == Exit.DONE
    (line,) = capsys.readouterr().out.splitlines()
    assert f"{key!r} is held by " in line


def test_a_watch_looks_once_more_when_its_time_is_over(
    masters: Masters, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exit code is that of the end, also if the next look would come later."""
    shown: list[LockState | SemaphoreState] = []

    class View(look.Changes):
        def show(self, state: LockState | SemaphoreState) -> None:
            shown.append(state)
            if len(shown) == 1:
                other = threading.Thread(target=hold, args=(masters, key))
                other.start()
                other.join()

    monkeypatch.setattr(look, "Changes", View)
    arguments = ["--for", "2s", "--interval", "1m", "--master-timeout", "1s"]
    assert app.main(["watch", key, *arguments]) == Exit.DONE
    assert len(shown) == 2


def test_a_release_wants_to_be_confirmed(
    masters: Masters, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    hold(masters, key)
    assert app.main(["release", key]) == Exit.USAGE
    assert "say --force" in capsys.readouterr().err
    assert masters.is_locked(key)
    assert app.main(["release", key, "--force"]) == Exit.DONE
    assert capsys.readouterr().out.startswith(f"{key!r} is released; it was held by ")
    until(lambda: not masters.is_locked(key))
    assert app.main(["release", key, "--force"]) == Exit.NO
    assert capsys.readouterr().out == f"{key!r} was not held\n"
    assert app.main(["release", key, "--force", "--json"]) == Exit.NO
    assert json.loads(capsys.readouterr().out) == {
        "resource": key, "released": False, "holder": None,
    }  # fmt: skip


def test_what_is_no_lock_is_not_released(
    masters: Masters, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for url in masters.urls:
        with redis.Redis.from_url(url) as client:
            client.hset(key, "a", "b")
    assert app.main(["release", key, "--force"]) == Exit.NO_LOCK
    assert "is not a lock, and was not released" in capsys.readouterr().err


def hold_permits(masters: Masters, key: str, permits: int, number: int) -> list[int]:
    """Acquire permits for a minute, for a holder that is gone; return their numbers."""

    async def acquire(redlock: Redlock) -> list[int]:
        semaphore = redlock.semaphore(key, permits=permits, ttl=60_000)
        leases = [await semaphore.acquire() for _ in range(number)]
        for lease in leases:
            lease.export()
        return [lease.permit for lease in leases if lease.permit is not None]

    return masters.ask(acquire)


def test_the_permits_of_a_semaphore(
    masters: Masters, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["inspect", key, "--permits", "3"]
    assert app.main(arguments) == Exit.NO
    assert capsys.readouterr().out.startswith(f"{key!r} has 0 of 3 permits held\n")
    held = sorted(hold_permits(masters, key, 3, 2))
    assert app.main(arguments) == Exit.DONE
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == f"{key!r} has 2 of 3 permits held"
    assert [line.partition(": held by ")[0] for line in lines[:2]] == [
        f"  permit {number}" for number in held
    ]
    assert len(lines) == 2 + 3
    assert app.main([*arguments, "--json"]) == Exit.DONE
    state = json.loads(capsys.readouterr().out)
    assert (state["permits"], state["claimed"], state["available"]) == (3, 2, 1)
    assert [one["permit"] for one in state["holders"]] == held
    assert all(50_000 < one["remaining_ms"] <= 60_000 for one in state["holders"])
    assert [view["answer"] for view in state["masters"]] == ["held"] * 3
    assert app.main(["inspect", key]) == Exit.NO  # no lock has this name
    for wrong in ("0", "1001", "x"):
        assert app.main(["inspect", key, "--permits", wrong]) == Exit.USAGE


@pytest.mark.parametrize("options", [(), ("--master-timeout", "50ms")])
@pytest.mark.parametrize("command", ["inspect", "list"])
def test_a_look_waits_longer_for_a_master_than_programs_do(
    masters: Masters,
    key: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    options: tuple[str, ...],
) -> None:
    """On a busy machine an answer takes longer than the 50 ms that programs learn."""
    hold(masters, key)
    asks = Redlock.inspect if command == "inspect" else Redlock.find_locks

    def asked_late(redlock: Redlock, *arguments: Any, **named: Any) -> Any:
        for server in masters.servers:
            server.pause()
            threading.Timer(0.4, server.resume).start()
        return asks(redlock, *arguments, **named)

    monkeypatch.setattr(Redlock, asks.__name__, asked_late)
    status = app.main([command, key, *options])
    assert status == (Exit.UNAVAILABLE if options else Exit.DONE)
    assert (key in capsys.readouterr().out) is (not options or command == "inspect")
    time.sleep(0.5 if options else 0)


@pytest.mark.parametrize("command", [("inspect", "k"), ("list",), ("watch", "k", "--for", "0")])
def test_masters_that_accept_connections_and_hang_are_told_soon(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with contextlib.ExitStack() as stack:
        listening = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in "abc"]
        places = [f"127.0.0.1:{each.getsockname()[1]}" for each in listening]
        urls = ",".join(f"redis://{place}" for place in places)
        began = time.monotonic()
        status = app.main([*command, "-m", urls, "--master-timeout", "2s"])
        took = time.monotonic() - began
    shown = capsys.readouterr()
    assert status == Exit.UNAVAILABLE
    assert "too few masters" in shown.out + shown.err
    if command[0] != "watch":
        assert all(f"{place}: unreachable" in shown.out + shown.err for place in places)
    assert took < 15, "an attempt to connect takes ten timeouts"


def test_a_list_has_semaphores(
    masters: Masters, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    hold(masters, f"{key}:lock")
    hold_permits(masters, f"{key}:sem", 5, 3)
    hold_permits(masters, f"{key}:one", 1, 1)
    assert app.main(["list", f"{key}:"]) == Exit.DONE
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [row[:2] for row in rows[2:]] == [
        [f"{key}:one", "1 permit"],
        [f"{key}:sem", "3 permits"],
    ]
    assert rows[1][0] == f"{key}:lock"
    assert app.main(["list", f"{key}:s", "--json"]) == Exit.DONE
    assert json.loads(capsys.readouterr().out) == {"resource": f"{key}:sem", "claimed": 3}


def test_a_watch_of_a_semaphore(
    masters: Masters, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    hold_permits(masters, key, 2, 2)
    arguments = ["watch", key, "--permits", "2", "--for", "1s", "--interval", "10ms"]
    assert app.main(arguments) == Exit.DONE
    (line,) = capsys.readouterr().out.splitlines()
    assert f" {key!r} has 2 of 2 permits held; permit 0: held by " in line
    assert "; permit 1: held by " in line


def test_the_release_of_a_permit(
    masters: Masters, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = hold_permits(masters, key, 4, 2)
    arguments = ["release", key, "--permit", str(first)]
    assert app.main(arguments) == Exit.USAGE
    assert "say --force" in capsys.readouterr().err
    assert app.main([*arguments, "--force"]) == Exit.DONE
    shown = capsys.readouterr().out
    assert shown.startswith(f"permit {first} of {key!r} is released; it was held by ")
    assert app.main([*arguments, "--force", "--json"]) == Exit.NO
    assert json.loads(capsys.readouterr().out) == {
        "resource": key, "permit": first, "released": False, "holder": None,
    }  # fmt: skip
    assert app.main(["inspect", key, "--permits", "4", "--json"]) == Exit.DONE
    state = json.loads(capsys.readouterr().out)
    assert [one["permit"] for one in state["holders"]] == [second]


Shown = Callable[[LockState | SemaphoreState], list[str]]


@pytest.fixture
def live(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shown:
    """Return what returns the lines that a live watch shows, without the time."""
    monkeypatch.setenv("COLUMNS", "100")

    def shown(state: LockState | SemaphoreState) -> list[str]:
        picture = look.Picture(Frame(Common(), Output(Redaction([])), "off"))
        with picture:
            picture.show(state)
        return capsys.readouterr().out.partition(" ")[2].splitlines()

    return shown


def test_a_live_watch_shows_masters_only_where_they_differ(live: Shown) -> None:
    ours, other = Holder("1a2b"), Holder("3c4d")
    held = [MasterView(name, Answer.HELD, holder=ours, remaining=900) for name in "abc"]
    state = LockState("k", ours, 900, None, 0, tuple(held))
    assert live(state) == ["'k' is held by 1a2b on 3 of 3 masters, 900 ms left"]
    theirs = MasterView("b", Answer.HELD, holder=other, remaining=100)
    away = MasterView("c", Answer.UNREACHABLE, "connecting")
    lines = live(dataclasses.replace(state, views=(held[0], theirs, away)))
    assert [line.partition(":")[0] for line in lines[1:]] == ["  b", "  c"]
    free = LockState("k", None, None, None, 0, tuple(MasterView(n, Answer.FREE) for n in "abc"))
    assert live(free) == ["'k' is held by nobody"]
    quarantined = MasterView("a", Answer.QUARANTINED, "restarted")
    lines = live(dataclasses.replace(free, views=(quarantined, *free.views[1:])))
    assert lines[1:] == [f"  {quarantined}"]


def test_a_live_watch_that_is_stopped_leaves_a_cursor(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    with look.Picture(Frame(Common(), Output(Redaction([])), "off")):
        shown = capsys.readouterr().out
    assert shown.rpartition("\x1b[?25")[2].startswith("h")


def test_a_live_watch_of_permits_shows_masters_only_where_they_differ(live: Shown) -> None:
    holders, left = {0: Holder("1a2b")}, {0: 900}
    same = [SemaphoreView(name, Answer.HELD, holders=holders, remaining=left) for name in "ab"]
    lacks = SemaphoreView("c", Answer.FREE)
    state = SemaphoreState("k", 2, holders, left, 0, (*same, lacks))
    first, permit, master = live(state)
    assert first == "'k' has 1 of 2 permits held"
    assert permit.startswith("  permit 0: held by 1a2b")
    assert master == f"  {lacks}"
    both = live(dataclasses.replace(state, views=tuple(same)))
    assert both == [first, permit]


def test_a_table_that_is_too_wide_has_each_name_on_a_line_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "45")
    monkeypatch.setenv("NO_COLOR", "1")
    names = [f"redis-{number}.production.internal:6379" for number in (1, 2)]
    Output(Redaction([])).table(
        ["MASTER", "SERVER", "ROLE", "VOTES"], [[n, "Valkey 9", "", "yes"] for n in names]
    )
    shown = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)
    below = "    server Valkey 9   votes yes"
    assert [line.rstrip() for line in shown.splitlines()] == [names[0], below, names[1], below]


def test_a_table_in_a_terminal_keeps_names_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "40")
    name = "[bold]" + "x" * 60
    Output(Redaction([])).table(["KEY", "HOLDER"], [[name, "me"]])
    shown = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)  # without colours
    assert "".join(shown.split()) == f"{name}holderme"
