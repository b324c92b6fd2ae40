"""What all commands have in common: options, errors, JSON, and passwords that nobody sees."""

import io
import json
import logging
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis

from redlock_aio.cli import app, durations, frame, look, main
from redlock_aio.cli.exits import Exit
from redlock_aio.cli.output import Output
from redlock_aio.cli.redaction import Redaction

from .conftest import PASSWORD, Masters


@pytest.fixture
def environment(masters: Masters, monkeypatch: pytest.MonkeyPatch) -> None:
    """Name the masters in the environment of this process."""
    monkeypatch.setenv("REDLOCK_MASTERS", masters.environment["REDLOCK_MASTERS"])


@pytest.mark.parametrize(
    ("text", "ms"),
    [("0", 0), ("500ms", 500), ("30s", 30_000), ("1.5s", 1_500), ("1m", 60_000), ("2h", 7_200_000),
     ("1d", 86_400_000), (" 3s ", 3_000), ("9007199254740992ms", 2**53)],
)  # fmt: skip
def test_a_duration(text: str, ms: int) -> None:
    assert durations.milliseconds(text) == ms


@pytest.mark.parametrize("text", ["", "5", "s", "-5s", "5 s", "1m30s", "1e3s", "0.5ms", "٣s", "5S"])
def test_a_wrong_duration_is_refused_with_what_came(text: str) -> None:
    with pytest.raises(ValueError, match="must be") as caught:
        durations.milliseconds(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "0 ms"), (999, "999 ms"), (1_000, "1 s"), (28_399, "28.3 s"), (60_000, "1 min"),
     (90_000, "1 min 30 s"), (5_400_000, "1 h 30 min"), (172_799_000, "47 h 59 min"),
     (276_000_000, "3 d 4 h")],
)  # fmt: skip
def test_a_duration_for_people(ms: int, text: str) -> None:
    assert durations.shown(ms) == text


@pytest.mark.parametrize(
    ("given", "text", "shown"),
    [
        ("redis://:hunter2@a:1", "no hunter2 here", "no *** here"),
        ("redis://u:hunter2@a,redis://:other1@b", "other1 and hunter2", "*** and ***"),
        ("redis://:p%40ssw@a", "p@ssw and p%40ssw", "*** and ***"),
        ("redis://:pass@word@a", "it is pass@word", "it is ***"),
        ("rediss://a?ssl_password=letmein&db=1", "letmein", "***"),
        ("redis+sentinel://a/m?sentinel_password=letmein&db=1", "letmein", "***"),
        ("redis+sentinel://u:hunter2@a,b/m,redis://:other1@b", "other1 hunter2", "*** ***"),
        ('redis://:a\\bc"d@a', r'"a\\bc\"d"', '"***"'),  # as in JSON
        ("redis://:abc@a", "abc", "abc"),  # so short that it would hide parts of words
        ("", "redis://u:abc@a:1 and redis://a:1/0", "redis://***@a:1 and redis://a:1/0"),
        ("", "unix:///s?password=x&db=1", "unix:///s?password=***&db=1"),
        ("redis://user@a", "user", "user"),
    ],
)
def test_passwords_are_hidden(given: str, text: str, shown: str) -> None:
    assert Redaction([given])(text) == shown


WRONG = [
    (["inspect"], "Missing argument 'KEY'"),
    (["inspect", "k", f"redis://:{PASSWORD}@b"], "unexpected extra argument"),
    ([f"redis://:{PASSWORD}@b"], "No such command"),
    (["inspect", "k", f"--mastersredis://:{PASSWORD}@b"], "No such option"),
    (["inspect", "k", "-m", f"redis://:{PASSWORD}@a:x"], "masters[0] "),
    (["inspect", "k", "-m", "redis://a,redis://a"], "a:6379 is named twice"),
    (
        ["inspect", "k", "-m", "redis+sentinel://s1,s2/m,redis+sentinel://s1,s3/m"],
        "m (by Sentinel s1",
    ),
    (["inspect", "k", "-m", f"redis+sentinel://:{PASSWORD}@s1,s2"], "masters[0] "),
    (["inspect", "k", "-m", "redis+sentinel://s1,s2"], "masters[0] names no service"),
    (["inspect", "k", "--master-timeout", "5"], "'--master-timeout': must be a duration, such as"),
    (["inspect", "k", "--master-timeout", f"redis://:{PASSWORD}@a"], "'--master-timeout': must be"),
    (
        ["run", "k", "--timeout", f"{'9' * 400}s"],
        "'--timeout': must be at most 9007199254740992 ms",
    ),
    (["watch", "k", "--for", "9007199254740993ms"], "'--for': must be at most 9007199254740992 ms"),
    (["inspect", "k", "--restart-guard", "on"], "'--restart-guard'"),
    (["inspect", "k", "--max-ttl", "1ms"], "max_ttl must be at least 50 ms, not 1 ms"),
    (["inspect", "k", "--permits", "x"], "'--permits': must be a whole number, not 'x'"),
    (["inspect", "k", "--permits", "1001"], "'--permits': must be from 1 to 1000, not 1001"),
    (["inspect", "k", "--permits", f"redis://:{PASSWORD}@a"], "'--permits': must be a whole"),
    (["list", "--limit", "0"], "'--limit': must be at least 1, not 0"),
    (["list", "--limit", "1.5"], "'--limit': must be a whole number, not '1.5'"),
    (["release", "k", "--permit=-1"], "'--permit': must be from 0 to 999, not -1"),
    (["run", "k", "-E", "x", "/bin/echo"], "'-E': must be a whole number, not 'x'"),
    (["inspect", "k", "--name", "a{b"], "name must have printable characters"),
    (["inspect", "redlock_aio:x"], "must not make a key that starts with"),
    (["inspect", "k\n"], "resource"),
    (
        ["inspect", "k", "--masters", ","],
        "no masters: name them in --masters or REDLOCK_MASTERS, with commas",
    ),
]


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize(("arguments", "wanted"), WRONG, ids=range(len(WRONG)))
def test_a_wrong_argument_is_refused_without_a_password(
    arguments: list[str], wanted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.main(arguments) == Exit.USAGE
    shown = capsys.readouterr()
    assert wanted in shown.err
    assert shown.err.startswith("redlock: ")
    assert shown.out == ""
    assert PASSWORD not in shown.err
    assert "s3cret" not in shown.err
    assert app.main([arguments[0], "--json", *arguments[1:]]) == Exit.USAGE
    shown_as_json = json.loads(capsys.readouterr().err)
    assert wanted.replace('"', "'") in shown_as_json["message"]
    assert (shown_as_json["error"], shown_as_json["exit_code"]) == ("usage", 64)


@pytest.mark.usefixtures("environment")
def test_a_short_time_is_refused_without_advice_for_programs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A number means milliseconds there; here a duration has a unit."""
    assert app.main(["inspect", "k", "--max-ttl", "1ms"]) == Exit.USAGE
    assert capsys.readouterr().err == "redlock: max_ttl must be at least 50 ms, not 1 ms\n"


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--ttl", "0"], "ttl must be positive, not 0 ms"),
        (["--ttl", "2m"], "ttl must be at most max_ttl, which is 60000 ms, not 120000 ms"),
        (["--permits", "0"], "permits must be from 1 to 1000, not 0"),
    ],
    ids=["ttl of 0", "ttl beyond max_ttl", "no permits"],
)
def test_a_wrong_option_of_a_lock_is_refused_before_a_master_is_asked(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is said of masters that are away: the command line is wrong, whatever they are."""
    nobody = ["--masters", "redis://127.0.0.1:1"]
    assert app.main(["run", *nobody, *words, "k", "/bin/echo"]) == Exit.USAGE
    assert capsys.readouterr().err == f"redlock: {message}\n"


def test_json_is_valid_with_every_password_and_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(file, encoding="ascii"))
    out = Output(Redaction(["redis://:1234@a,redis://:null@b"]), as_json=True)
    facts = {"left_ms": 12345, "holder": None, "name": "\u00e9\U0001f600"}
    out.result({**facts, "text": "it is 1234", "more": [{"null": "1234"}]}, "")
    shown = json.loads(file.getvalue())
    assert shown == {**facts, "text": "it is ***", "more": [{"***": "***"}]}


@pytest.mark.usefixtures("environment")
def test_a_traceback_shows_no_password(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError(f"could not connect to redis://:{PASSWORD}@a, {PASSWORD!r}")

    monkeypatch.setattr(look, "facts_of", broken)
    assert app.main(["inspect", "k"]) == Exit.FAILED
    shown = capsys.readouterr().err
    assert "RuntimeError: could not connect to redis://" in shown
    assert "s3cret" not in shown


def test_what_the_library_logs_is_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    out = Output(Redaction([f"redis://:{PASSWORD}@a"]))
    with frame.messages_of_the_library(out):
        logging.getLogger("redlock_aio").warning("master %s is away", PASSWORD)
    assert capsys.readouterr().err == "redlock: master *** is away\n"
    assert not logging.getLogger("redlock_aio").handlers


def test_what_was_told_about_a_master_is_not_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    away = ["a:1: unreachable, Connection refused at 10.0.0.1:1", "b:1: unreachable, connecting"]
    waiting = f"'k': waiting for a majority of the masters ({'; '.join(away)}; c:1: timed out)"
    log = logging.getLogger("redlock_aio")
    for as_json in (False, True):
        with frame.messages_of_the_library(Output(Redaction([]), as_json=as_json)):
            for text in (*away, waiting, *away):  # they are away once more
                log.warning("%s", text)
        lines = capsys.readouterr().err.splitlines()
        if as_json:
            assert [json.loads(line)["message"] for line in lines] == [*away, waiting, *away]
            continue
        short = "'k': waiting for a majority of the masters (a:1; b:1; c:1: timed out)"
        assert lines == [f"redlock: {text}" for text in (*away, short, *away)]


def test_a_result_that_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], masters: Masters
) -> None:
    class Full(io.StringIO):
        def write(self, _: str) -> int:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys, "stdout", Full())
    assert app.main(["inspect", "k", "-m", masters.urls[0]]) == Exit.FAILED
    assert capsys.readouterr().err.startswith("redlock: failed: ")
    monkeypatch.setattr(sys, "stdout", None)
    assert app.main(["inspect", "k", "-m", masters.urls[0]]) == Exit.NO


def test_a_terminal_that_is_gone_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    Output(Redaction([])).note("nobody reads this")


def test_json_of_others_cannot_write_to_the_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # From a holder's metadata: control characters, a change of direction, no numbers of JSON.
    strange = "\x9b31m\x1b[2J\u202eключ\x7f\ud800🔒é"
    metadata = json.loads('{"a": NaN, "b": [-Infinity, 1e999]}')
    for encoding in ("utf-8", "ascii", "latin-1"):
        stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        monkeypatch.setattr(sys, "stdout", stream)
        Output(Redaction([]), as_json=True).result({"name": strange, strange: metadata}, "")
        stream.seek(0)
        line = stream.read().removesuffix("\n")
        assert line.isascii()
        assert line.isprintable()
        numbers = {"a": None, "b": [None, None]}
        assert json.loads(line, parse_constant=pytest.fail) == {"name": strange, strange: numbers}


def test_json_of_others_may_be_nested_deep(capsys: pytest.CaptureFixture[str]) -> None:
    deep = "[" * 600 + "]" * 600
    Output(Redaction([]), as_json=True).result({"metadata": json.loads(deep)}, "")
    assert capsys.readouterr().out == f'{{"metadata": {deep}}}\n'


def test_names_of_others_cannot_write_to_the_terminal() -> None:
    assert Output(Redaction([])).printable("a\x1b[31m\nb") == "a?[31m?b"


def test_help_names_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["--help"]) == 0
    assert "inspect" in capsys.readouterr().out
    assert app.main([]) == 0
    assert "inspect" in capsys.readouterr().out
    assert app.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("redlock 0.")


@pytest.mark.spread(0)
@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_extra_it_says_what_to_install(missing: str) -> None:
    code = (
        "import sys; sys.modules[sys.argv[1]] = None\n"
        "from redlock_aio.cli import main\n"
        "sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, missing], capture_output=True, text=True, check=False
    )
    how = "pip install '.[cli]' in the clone of redlock_aio"
    wanted = f"redlock: the package {missing!r} is missing: {how}\n"
    assert (done.returncode, done.stdout, done.stderr) == (Exit.FAILED, "", wanted)


def test_only_what_draws_imports_rich() -> None:
    """Each start of `redlock` would take longer."""
    folder = Path(str(app.__file__)).parent
    importing = {
        path.name
        for path in folder.rglob("*.py")
        if re.search("^(from|import) rich", path.read_text(), re.MULTILINE)
    }
    assert importing == {"drawing.py", "help_pages.py"}


def test_the_end_of_a_command_does_not_go_through_what_was_imported() -> None:
    """It took a quarter of the processor time of a short command."""
    code = (
        "import gc, sys\n"
        "from redlock_aio.cli import main\n"
        "before = len(gc.get_objects())\n"
        "main()\n"
        "print(gc.get_freeze_count() > before > len(gc.get_objects()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[1] == "True"


@pytest.mark.spread(0)
@pytest.mark.usefixtures("sigint_is_not_ignored")
@pytest.mark.parametrize("ignored", [False, True])
@pytest.mark.parametrize("made", [False, True], ids=["imported", "made"])
def test_an_interrupt_while_it_begins_ends_it_without_a_traceback(
    tmp_path: Path, *, made: bool, ignored: bool
) -> None:
    """The first package that it imports interrupts it, as somebody with a keyboard does."""
    package = "import os, signal, sys\ndel sys.modules['typer'], sys.path[0]\n"
    interrupt = "os.kill(os.getpid(), signal.SIGINT)\n"
    package += "import typer.main as main\n" if made else f"{interrupt}import typer\n"
    if made:  # when its commands are
        package += f"def made(app, make=main.get_command):\n    {interrupt}    return make(app)\n"
        package += "main.get_command = made\n"
    (tmp_path / "typer.py").write_text(package)
    code = (
        "import signal, sys\n"
        "if sys.argv.pop() == 'True': signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "sys.path.insert(0, sys.argv.pop())\n"
        "from redlock_aio.cli import main\n"
        "sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "--version", str(tmp_path), str(ignored)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0 if ignored else -signal.SIGINT, "")


@pytest.mark.spread(0)
@pytest.mark.usefixtures("sigint_is_not_ignored")
@pytest.mark.parametrize(
    "place",
    [
        "app.Redaction = interrupt",
        "frame.Frame = interrupt",
        "frame.until_signal = interrupt",
        "frame.handling = interrupt",
        "frame.typer.Exit = interrupt",
    ],
)
def test_an_interrupt_beside_the_command_ends_it_without_a_traceback(place: str) -> None:
    """Before its event loop handles signals, and behind its end."""
    code = (
        "import os, signal, sys\n"
        "from redlock_aio.cli import app, frame, main\n"
        "interrupt = lambda *_: os.kill(os.getpid(), signal.SIGINT)\n"
        f"{place}\n"
        "sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "inspect", "k"],
        env={**os.environ, "REDLOCK_MASTERS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    message = "redlock: no masters: name them in --masters or REDLOCK_MASTERS, with commas\n"
    said = message if "Exit" in place else ""
    assert (done.returncode, done.stderr) == (-signal.SIGINT, said)


@pytest.mark.usefixtures("sigint_is_not_ignored")
def test_it_begins_in_a_thread_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread than the first one may not set what signals do."""
    monkeypatch.setattr(sys, "argv", ["redlock", "--version"])
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(main).result(60) == Exit.DONE


def end_of(
    masters: Masters, arguments: list[str], stdout: int, *, unbuffered: str
) -> tuple[int, str]:
    """Return the exit code and the messages of `redlock` with this stdout."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "redlock_aio", *arguments],
        env={**masters.environment, "PYTHONUNBUFFERED": unbuffered},
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr


WRITING = [(["inspect", "k"], ""), (["--version"], ""), (["--help"], ""), (["--help"], "1")]


@pytest.mark.spread(0)
@pytest.mark.parametrize(("arguments", "unbuffered"), WRITING)
def test_a_closed_pipe_ends_it_quietly(
    masters: Masters, arguments: list[str], unbuffered: str
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        assert end_of(masters, arguments, writer, unbuffered=unbuffered) == (141, "")
    finally:
        os.close(writer)


@pytest.mark.spread(0)
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize(("arguments", "unbuffered"), WRITING)
def test_a_full_disk_is_one_message(
    masters: Masters, arguments: list[str], unbuffered: str
) -> None:
    with Path("/dev/full").open("w") as full:
        code, messages = end_of(masters, arguments, full.fileno(), unbuffered=unbuffered)
    assert code == Exit.FAILED
    assert messages == "redlock: failed: [Errno 28] No space left on device\n"


def test_the_state_of_a_lock_as_text_and_json(
    masters: Masters, key: str, environment: None, capsys: pytest.CaptureFixture[str]
) -> None:
    del environment
    assert app.main(["inspect", key]) == Exit.NO
    assert capsys.readouterr().out.startswith(f"{key!r} is held by nobody\n  127.0.0.1:")

    async def hold(redlock: object) -> None:
        lock = redlock.lock(key, ttl=60_000, metadata={"job": "nightly"})  # type: ignore[attr-defined]
        (await lock.acquire()).export()

    masters.ask(hold)
    assert app.main(["inspect", key]) == Exit.DONE
    assert " on 3 of 3 masters, " in capsys.readouterr().out
    assert app.main(["inspect", key, "--json"]) == Exit.DONE
    state = json.loads(capsys.readouterr().out)
    assert (state["resource"], state["locked"], state["certain"]) == (key, True, True)
    assert state["holder"]["metadata"] == {"job": "nightly"}
    assert 50_000 < state["remaining_ms"] <= 60_000
    assert [view["answer"] for view in state["masters"]] == ["held"] * 3


def test_without_a_majority_the_state_is_not_certain(
    masters: Masters, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    urls = [masters.urls[0], "redis://127.0.0.1:1", "redis://127.0.0.1:2"]
    assert app.main(["inspect", key, "--json", "-m", ",".join(urls)]) == Exit.UNAVAILABLE
    shown = capsys.readouterr()
    state = json.loads(shown.out)
    assert (state["locked"], state["certain"]) == (False, False)
    assert [view["answer"] for view in state["masters"]] == ["free", "unreachable", "unreachable"]
    assert all("message" in json.loads(line) for line in shown.err.splitlines())


def test_looking_writes_nothing_on_the_masters(masters: Masters) -> None:
    with redis.Redis.from_url(masters.urls[0]) as client:
        before = sorted(client.keys())
        app.main(["inspect", "k", "-m", masters.urls[0]])
        assert sorted(client.keys()) == before
