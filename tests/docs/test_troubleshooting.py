"""The page about messages has an entry for each message of the library, and no other one."""

import re
from pathlib import Path

import pytest

from redlock_aio import Answer, LossCause, NoVoteCause, QuorumUnavailableError, Vote

from .messages import NO_MESSAGES, Grammar, Text, of_library, of_page

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "redlock_aio"
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()


@pytest.fixture(scope="module")
def texts() -> list[Text]:
    return of_library(PACKAGE)


@pytest.fixture(scope="module")
def grammar(texts: list[Text]) -> Grammar:
    return Grammar(texts)


def test_each_message_of_the_library_has_an_entry(texts: list[Text], grammar: Grammar) -> None:
    explained = {part for message in of_page(PAGE) for part in grammar.parts(message) or ()}
    assert [f"{where}: {text}" for text, where in texts if text not in explained] == []


def test_each_entry_names_a_message_of_the_library(grammar: Grammar) -> None:
    assert [message for message in of_page(PAGE) if grammar.parts(message) is None] == []


@pytest.mark.parametrize("cause", LossCause)
def test_each_cause_of_a_loss_is_named_with_its_text(cause: LossCause) -> None:
    entries = [why for message, why in of_page(PAGE).items() if cause.text in message]
    assert any(f"`{cause.name}`" in why.partition(". ")[0] for why in entries)


def test_each_cause_of_a_master_without_a_vote_is_in_the_table_once() -> None:
    table = PAGE.partition("### Causes for programs")[2].partition("\n### ")[0]
    listed = re.findall(r"`([A-Z_]+)`", table)
    assert sorted(listed) == sorted(cause.name for cause in NoVoteCause)


def test_the_whole_page_is_parsed() -> None:
    listed = re.findall(r"^`([^`]+)`$", PAGE, re.MULTILINE)
    assert listed == list(of_page(PAGE)), "a message is listed twice, or has no explanation"
    assert len(listed) > 200
    assert [message for message, why in of_page(PAGE).items() if len(why.split()) < 3] == []


def test_the_example_is_the_text_of_an_error() -> None:
    votes = [
        Vote("10.0.0.1:6379", Answer.GRANTED),
        Vote("10.0.0.2:6379", Answer.TIMED_OUT),
        Vote("10.0.0.3:6379", Answer.UNREACHABLE, "silent for 1000 ms"),
    ]
    error = QuorumUnavailableError(["invoice:42"], attempts=3, elapsed=2005, votes=votes)
    assert str(error) in " ".join(PAGE.split())


def test_each_text_that_counts_as_no_message_is_in_the_library() -> None:
    assert NO_MESSAGES.keys() <= {text for text, _ in of_library(PACKAGE, unseen=())}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('raise ValueError(f"{name} must be {least!r} or more")', ["... must be ... or more"]),
        ('raise error or OSError("refused")', ["refused"]),
        ('def f(): return "is empty; it" " must not be"', ["is empty; it must not be"]),
        ('why += f": it took {ms:.1f} s"', ["it took ... s"]),
        ('log.warning("%s: away for %.1f s", name, s)', ["...: away for ... s"]),
        ('way = "ahead of" if late else "behind"', ["ahead of", "behind"]),
        ('NoReply(answer, "connecting")', ["connecting"]),
        ("f\"{a} is {f'held by {b}'}\"", ["held by ...", "... is ..."]),
        ('def f():\n    "Return no message."', []),
        ('def __repr__(self): return f"<Lock of {self.name}>"', []),
        ('text.startswith("the begin of a message")', []),
        ('if "a part of a message" in text: pass', []),
        ('Sharer: TypeAlias = "Task | None"', []),
        ('mode = "strict"', []),
    ],
)
def test_the_texts_of_a_module(tmp_path: Path, source: str, found: list[str]) -> None:
    (tmp_path / "module.py").write_text(source)
    assert [text for text, _ in of_library(tmp_path)] == found


def test_the_texts_of_a_script(tmp_path: Path) -> None:
    line = 'return {err = "WRONGTYPE the key holds " .. (kind and "a " .. kind or "another type")}'
    (tmp_path / "get.lua").write_text(line)
    assert [text for text, _ in of_library(tmp_path)] == [
        "another type",
        "WRONGTYPE the key holds ...",
    ]


@pytest.mark.parametrize(
    ("message", "parts"),
    [
        ("'...' lost: it was closed", {"... lost: ...", "it was closed"}),
        ("... lost: it was closed; use a lease", {"... lost: ...", "it was closed", "use a lease"}),
        ("... lost: it was shut", None),
        ("... lost: it was closed by hand", None),
        ("lost: it was closed", None),
    ],
)
def test_a_message_is_made_of_texts_of_the_library(message: str, parts: set[str] | None) -> None:
    texts = [Text(text, "") for text in ("... lost: ...", "it was closed", "use a lease")]
    assert Grammar(texts).parts(message) == parts
