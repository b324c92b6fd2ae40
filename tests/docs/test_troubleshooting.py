"""The pages about messages have an entry for each message of the library, and no other one."""

import copy
import pickle
import re
from collections import Counter
from pathlib import Path
from typing import Any, get_args

import pytest

from redlock_aio import (
    Answer,
    LockLostError,
    LockNotAcquiredError,
    LockNotHeldError,
    LossCause,
    NoVoteCause,
    QuorumUnavailableError,
    RedlockError,
    Vote,
)
from redlock_aio._rules.causes import Loss
from redlock_aio.errors import ErrorCode, lost_before
from redlock_aio.fencing import StaleTokenError

from .messages import NO_MESSAGES, OF_OTHERS, Grammar, Text, of_library, of_pages

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "redlock_aio"
DOCS = ROOT / "docs"
INDEX = (DOCS / "troubleshooting.md").read_text()
PAGES = {path.stem: path.read_text() for path in (DOCS / "troubleshooting").glob("*.md")}
ENTRIES = of_pages(DOCS / "troubleshooting")
LISTED = [(message, entry) for entry in ENTRIES for message in entry.messages]
CODES: tuple[str, ...] = get_args(ErrorCode)


@pytest.fixture(scope="module")
def texts() -> list[Text]:
    return of_library(PACKAGE)


@pytest.fixture(scope="module")
def grammar(texts: list[Text]) -> Grammar:
    return Grammar(texts)


def test_each_message_of_the_library_has_an_entry(texts: list[Text], grammar: Grammar) -> None:
    explained = {part for message, _ in LISTED for part in grammar.parts(message) or ()}
    assert [f"{where}: {text}" for text, where in texts if text not in explained] == []


def test_each_entry_names_a_message_of_the_library_or_one_of_others(grammar: Grammar) -> None:
    unknown = {message for message, _ in LISTED if grammar.parts(message) is None}
    assert unknown == OF_OTHERS


@pytest.mark.parametrize("cause", LossCause)
def test_each_cause_of_a_loss_is_named_with_its_text(cause: LossCause) -> None:
    whys = [entry.meaning for message, entry in LISTED if cause.text in message]
    assert any(f"`{cause.name}`" in why.partition(". ")[0] for why in whys)


def test_each_cause_of_a_master_without_a_vote_is_in_the_table_once() -> None:
    table = PAGES["votes"].partition("## Causes for programs")[2].partition("\n## ")[0]
    listed = re.findall(r"`([A-Z_]+)`", table)
    assert sorted(listed) == sorted(cause.name for cause in NoVoteCause)


def test_each_entry_is_parsed_and_has_an_anchor_of_its_own() -> None:
    headings = [line for page in PAGES.values() for line in page.splitlines() if line[:4] == "### "]
    words = [entry.word for entry in ENTRIES]
    assert len(headings) == len(words) > 200
    assert [word for word, times in Counter(words).items() if times > 1] == []
    assert [entry.word for entry in ENTRIES if len(entry.meaning.split()) < 3] == []
    messages = [(entry.page, message) for message, entry in LISTED]
    assert [message for message, times in Counter(messages).items() if times > 1] == []


# The code of an error


@pytest.mark.parametrize("code", CODES)
def test_each_code_of_an_error_is_the_anchor_of_an_entry_that_shows_it(code: str) -> None:
    (entry,) = [entry for entry in ENTRIES if entry.word == code]
    assert entry.meaning.startswith(f"`[{code}]`: ")
    link = f"[`{code}`](../troubleshooting/{entry.page}.md#{code})"
    assert (DOCS / "reference" / "errors.md").read_text().count(link) == 1


def test_each_entry_that_shows_a_code_has_it_as_its_anchor() -> None:
    shown = {entry.word for entry in ENTRIES if re.match(r"`\[[\w-]+\]`: ", entry.meaning)}
    assert shown == set(CODES)


def test_each_code_is_used_by_the_library() -> None:
    errors = (PACKAGE / "errors.py").read_text().partition("class RedlockError")[2]
    others = [path.read_text() for path in PACKAGE.rglob("*.py") if path.name != "errors.py"]
    source = "".join([errors, *others])
    causes = {cause.value.replace("_", "-") for cause in LossCause}
    assert [code for code in CODES if f'"{code}"' not in source and code not in causes] == []


VOTES = [Vote("a:1", Answer.TIMED_OUT), Vote("b:1", Answer.GRANTED), Vote("c:1", Answer.TIMED_OUT)]
GRANTED = [Vote(name, Answer.GRANTED) for name in "abc"]
REFUSED = [Vote(name, Answer.ERROR, "NOPERM no", permanent=True) for name in "abc"]
HELD = [Vote(name, Answer.HELD) for name in "abc"]
FACTS: Any = {"attempts": 2, "elapsed": 3}


ERRORS: list[tuple[RedlockError, str]] = [
    (LockNotAcquiredError(["r"], **FACTS, votes=HELD), "held"),
    (LockNotAcquiredError(["r"], **FACTS, votes=HELD, permits=1), "no-permit"),
    (LockNotAcquiredError(["r"], **FACTS, votes=HELD, permits=5), "no-permit"),
    (LockNotAcquiredError(["r"], **FACTS, votes=GRANTED), "answers-too-late"),
    (LockNotAcquiredError(["r"], **FACTS, votes=GRANTED, permits=5), "answers-too-late"),
    (QuorumUnavailableError(["r"], **FACTS, votes=VOTES), "too-few-masters"),
    (QuorumUnavailableError(["r"], **FACTS, votes=VOTES, permits=5), "too-few-masters"),
    (QuorumUnavailableError(["r"], **FACTS, votes=REFUSED), "masters-refuse"),
    (QuorumUnavailableError([], attempts=0, elapsed=3, votes=REFUSED), "masters-refuse"),
    (QuorumUnavailableError(["r"], attempts=0, elapsed=3, votes=VOTES), "too-few-masters"),
    (LockLostError(["r"], LossCause.KEY_GONE, "", VOTES), "key-gone"),
    (LockNotHeldError(["r"], "it has been released", "released"), "released"),
    (StaleTokenError("f", 3, 4), "stale-token"),
    (RedlockError("this Redlock was closed", "redlock-closed"), "redlock-closed"),
]


@pytest.mark.parametrize(
    ("error", "code"), ERRORS, ids=[f"{code} {number}" for number, (_, code) in enumerate(ERRORS)]
)
def test_the_code_is_the_end_of_the_message_and_stays_in_copies(
    error: RedlockError, code: str
) -> None:
    for each in (error, copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert (type(each), each.code, each.args) == (type(error), code, error.args)
        assert str(each) == str(error)
        assert str(each).endswith(f" [{code}]")
    # The message is one of those of the entry with this anchor.
    (entry,) = [entry for entry in ENTRIES if entry.word == code]
    text = str(error).removesuffix(f" [{code}]")
    shapes = [re.escape(message).replace(r"\.\.\.", ".+") for message in entry.messages]
    assert any(re.fullmatch(shape + r"(?: \(.*\))?", text) for shape in shapes), text


def test_each_loss_has_the_code_of_its_cause() -> None:
    codes = {LockLostError(["r"], cause).code for cause in LossCause}
    assert len(codes) == len(LossCause)
    assert codes <= set(CODES)
    for cause in LossCause:
        assert lost_before(["r"], Loss(cause)).code == LockLostError(["r"], cause).code


def test_messages_name_pages_by_their_place_on_the_site(texts: list[Text]) -> None:
    """Whoever has installed a wheel has no folder docs/, and the site has no files `.md`."""
    assert [text for text in texts if re.search(r"docs/|\.md\b", text.text)] == []
    named = [re.findall(r"the page (\S+) of the documentation", text.text) for text in texts]
    pages = {page for found in named for page in found}
    assert {"reference/acl", "how-to/replace-a-master"} <= pages
    assert [page for page in pages if not (DOCS / f"{page}.md").is_file()] == []


def test_the_example_is_the_text_of_an_error() -> None:
    votes = [
        Vote("10.0.0.1:6379", Answer.GRANTED),
        Vote("10.0.0.2:6379", Answer.TIMED_OUT),
        Vote("10.0.0.3:6379", Answer.UNREACHABLE, "silent for 1000 ms"),
    ]
    error = QuorumUnavailableError(["invoice:42"], attempts=3, elapsed=2005, votes=votes)
    assert str(error) in " ".join(INDEX.split())


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
