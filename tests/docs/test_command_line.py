"""The page about the command line lists what the code has: commands, options, exit codes."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from redlock_aio import Answer, Holder, LockState, MasterView, SemaphoreState
from redlock_aio.cli import app, bench, durations, help_pages, helping, look
from redlock_aio.cli.doctor import command
from redlock_aio.cli.doctor.facts import MasterFacts
from redlock_aio.cli.doctor.findings import Finding, Kind
from redlock_aio.cli.exits import Exit
from redlock_aio.cli.frame import Common
from redlock_aio.contrib._measures import OUTCOMES

PAGE_FOLDER = Path(__file__).parents[2] / "docs" / "reference"
PAGE = (PAGE_FOLDER / "command-line.md").read_text()
PROGRAM: Any = get_command(app.app)
COMMANDS: dict[str, Any] = PROGRAM.commands
ALONE = {"demo", "masters"}
"""The commands that start masters of their own, and do not have the common options."""

FINDING = command.json_of(Finding(Kind.EVEN, (), ""))
VIEW = MasterView("a", Answer.FREE)
STATE = LockState("r", None, None, None, 0, (VIEW,))
PERMITS = SemaphoreState("r", 5, {3: Holder("1a2b")}, {3: 9}, 0, ())
HOLDER = look.facts_of_holder(Holder("1a2b")) or {}
BENCH = ("master_timeout_ms", "shortest_ttl_ms", "masters", "pairs", "master")


def options_of(command: Any, *, common: bool) -> list[Any]:
    """Return the parameters of a command: the common ones, or its own."""
    shared = {"json", "as_json", *vars(Common)["__dataclass_fields__"]}
    return [
        parameter
        for parameter in command.params
        if (parameter.name in shared) is common and parameter.name != "help"
    ]


def table_of(parameters: list[Any]) -> str:
    """Return the table of some parameters, as the page has it."""
    lines = ["| option | meaning |", "| --- | --- |"]
    for parameter in parameters:
        is_option = parameter.param_type_name == "option"
        words = ", ".join(f"`{word}`" for word in parameter.opts)
        takes = f" *{parameter.metavar}*" if is_option and parameter.metavar else ""
        if is_option and takes == "" and not parameter.is_flag:
            takes = " *CHOICE*"
        names = f"{words}{takes}" if is_option else f"*{parameter.metavar}*"
        variable = f" Variable: `{parameter.envvar}`." if parameter.envvar else ""
        meaning = parameter.help + variable
        lines.append(f"| {names} | {meaning} |")
    return "\n".join(lines) + "\n"


def section(heading: str) -> str:
    """Return the part of the page below a heading, up to the next one of any level."""
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, heading
    return found[1]


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_a_section_with_its_options(name: str) -> None:
    command = COMMANDS[name]
    shown = section(f"redlock {name}")
    assert shown.strip().startswith(command.help.partition("\n")[0].strip())
    if own := options_of(command, common=False):
        assert table_of(own) in shown


def test_the_common_options_are_listed_once() -> None:
    assert table_of(options_of(COMMANDS["inspect"], common=True)) in section("Common options")


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_an_example_that_it_accepts(name: str) -> None:
    example: str = COMMANDS[name].epilog
    assert f"\n\n    {example}\n" in section(f"redlock {name}")
    program, command, *words = shlex.split(example)
    assert (program, command) == ("redlock", name)
    COMMANDS[name].make_context(name, words)


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_each_command(
    name: str, columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert app.main([name, "--help"]) == Exit.DONE
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    assert max(map(len, lines)) <= min(columns, help_pages.WIDEST)
    assert f"Example: {COMMANDS[name].epilog}" in shown
    assert "\x1b" not in shown
    for strange in ("<", "[default", "list[", "{", "[[", "[env"):
        assert strange not in shown, strange
    text = " ".join(shown.replace("│", " ").split())
    for parameter in COMMANDS[name].params:
        assert " ".join(parameter.help.split()) in text
    panels = re.findall(r"╭─ ([\w ]+) ─", shown)
    assert panels[-1] == ("Options" if name in ALONE else helping.MASTERS_PANEL)
    below = shown.partition(f"─ {helping.MASTERS_PANEL} ─")[2]
    for parameter in options_of(COMMANDS[name], common=True):
        assert name in ALONE or parameter.opts[0] in below
        assert shown.count(f" {parameter.opts[0]} ") <= 2
    assert (durations.EXPLAINED.split(",")[0] in text) is ("DURATION" in shown)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_json(name: str) -> None:
    assert "--json" in {word for parameter in COMMANDS[name].params for word in parameter.opts}


def test_no_other_command_is_described() -> None:
    assert re.findall(r"^## redlock (.+)$", PAGE, re.MULTILINE) == list(COMMANDS)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("inspect", [*look.facts_of(STATE), *look.facts_of_view(VIEW), *HOLDER]),
        ("watch", ["time"]),
        ("bench", [*bench.facts_of(bench.Sample([])), *BENCH]),
        ("demo", ["updates_lost"]),
        ("masters", ["masters"]),
        ("release", ["resource", "released", "holder", "permit"]),
        ("inspect", [*look.facts_of(PERMITS), *look.facts_of_permits(PERMITS)[0]]),
        ("list", ["resource", "claimed"]),
    ],
)
def test_the_fields_of_json_are_listed(name: str, fields: list[str]) -> None:
    assert {field for field in fields if f"`{field}`" not in section(f"redlock {name}")} == set()


def test_the_exit_codes() -> None:
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", section("Exit codes"), re.MULTILINE)
    assert rows == [(str(int(code)), code.meaning) for code in Exit]


def test_the_names_of_failures() -> None:
    listed = re.search(r"its name, `error`: (.*?)\.", PAGE)
    assert listed
    names = [code.name.lower() for code in Exit if code not in {Exit.DONE, Exit.NO}]
    assert re.findall(r"`(\w+)`", listed[1]) == names


def test_metrics_have_the_same_words_for_an_acquisition_that_fails() -> None:
    words = {code.name.lower() for code in (Exit.HELD_BY_OTHERS, Exit.UNAVAILABLE)}
    assert words == set(OUTCOMES) - {"acquired", "cancelled"}


def test_the_findings_of_the_doctor() -> None:
    page = (PAGE_FOLDER / "doctor.md").read_text()
    block = page.partition("<!-- findings:begin -->")[2].partition("<!-- findings:end -->")[0]
    rows = [
        f"| `{kind.value}` | {kind.severity.name.lower()} | {kind.meaning} | {kind.advice} |"
        for kind in sorted(Kind, key=lambda kind: -kind.severity)
    ]
    assert block.strip().splitlines()[2:] == rows
    for field in (*command.facts_of(MasterFacts(name="a"), []), *FINDING):
        assert f"`{field}`" in page
