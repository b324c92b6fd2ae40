"""
Compares published results with the code of today: which commits are newer than a result?

    python -m benchmarks.evidence.freshness

A result in `benchmarks/results*` names the library that it measured, and a verdict also the checker
that gave it, each by a hash of its files; older ones name a commit. The commits that have changed
these files since are listed, unless `benchmarks/explained.toml` says why a result stands in spite
of one. Results that name neither are counted there, too. The exit code is 1 if something is not
explained, and each such line can go into the file, with a reason. Needs the whole history of the
repository.

A commit is known there by its date and its subject, which stay when a history is written anew.
"""

import argparse
import functools
import json
import re
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .provenance import CHECKER, ROOT, SHORT, UNKNOWN, git, together
from .results import PUBLISHED

LIBRARY = ("redlock_aio",)

LEAVES = {
    f"redlock_aio/{folder}": columns
    for folder, columns in {
        "cli": {"command"},
        "sync": {"command", "sync"},
        "contrib": set[str](),
        "testing": set[str](),
    }.items()
}
"""Parts of the library that only the results of these columns depend on."""

EXPLAINED = PUBLISHED / "explained.toml"


@dataclass(frozen=True, slots=True)
class Result:
    """A result: a cell, a line of a log, or a page that has no data beside it."""

    file: str
    column: str
    library: str
    """The hash of the library; empty if the result is older than these hashes."""
    judge: str
    """The hash of the checker of histories; empty if no history was judged."""


@dataclass(frozen=True, slots=True)
class Explained:
    """What `explained.toml` says."""

    commits: Mapping[str, str]
    """Why results stand in spite of a commit."""
    unnamed: Mapping[str, int]
    """How many results of each file name no library."""

    @classmethod
    def read(cls, path: Path = EXPLAINED) -> "Explained":
        """
        Read the file.

        Raises:
            ValueError: A reason is missing.
        """
        facts: dict[str, list[dict[str, Any]]] = tomllib.loads(path.read_text())
        every = [*facts.get("commit", ()), *facts.get("unnamed", ())]
        for each in every:
            if not each.get("why"):
                raise ValueError(f"{path.name}: why is missing in {each}")
        return cls(
            {each["commit"]: each["why"] for each in facts.get("commit", ())},
            {each["results"]: each["number"] for each in facts.get("unnamed", ())},
        )


def published(folder: Path = PUBLISHED) -> Iterator[Result]:
    """Yield all results in a folder."""
    for path in sorted(folder.glob("results*")):
        match path.suffix:
            case ".json" if (cells := json.loads(path.read_text()).get("cells")) is not None:
                records = [each for each in cells if not each.get("skipped")]
            case ".jsonl":
                records = [json.loads(line) for line in path.read_text().splitlines()]
            case ".json" | ".md" if path.suffix == ".json" or not with_records(path):
                found = re.search(rf", library (\w{{{SHORT}}});", path.read_text())
                yield Result(path.name, "", found[1] if found else "", "")
                continue
            case _:
                continue
        for each in records:
            facts = each.get("facts", {})
            if "library" not in facts and facts.get("clean"):
                facts |= at(facts["commit"])
            library, judge = facts.get("library", ""), facts.get("judge", "")
            yield Result(path.name, each.get("column", ""), library, judge)


def with_records(page: Path) -> bool:
    """Return whether a page has its results in another file, by which they are judged."""
    return any(page.with_suffix(each).exists() for each in (".json", ".jsonl"))


@functools.cache
def at(commit: str) -> dict[str, str]:
    """Return what a result would name that has measured this commit; nothing if it is unknown."""
    paths = (*LIBRARY, *CHECKER)
    found = [git("rev-parse", "--verify", "--quiet", f"{commit}:{path}") or "" for path in paths]
    if not found[0]:
        return {}
    objects = dict(zip(paths, found, strict=True))
    return {
        "library": objects[LIBRARY[0]][:SHORT],
        "judge": together(CHECKER, objects.__getitem__),
    }


def why_not() -> str:
    """Return why results can't be compared with the history here; empty if they can."""
    shallow = git("rev-parse", "--is-shallow-repository")
    if shallow is None:
        return "there is no git, or no repository"
    return "the repository has a part of its history only" if shallow == "true" else ""


@functools.cache
def states(paths: tuple[str, ...]) -> dict[str, str]:
    """Return the newest commit with each hash that files had; of a folder alone, its own hash."""
    commits = (git("log", "--format=%H", "HEAD", "--", *paths) or "").splitlines()
    asked = [f"{commit}:{path}" for commit in commits for path in paths]
    given = "\n".join(asked) + "\n"
    answers = (git("cat-file", "--batch-check=%(objectname)", given=given) or "").splitlines()
    # Of a file that was not there yet, the answer has more words.
    objects = dict(zip(asked, answers, strict=True))
    found: dict[str, str] = {}
    for commit in commits:
        each = {path: objects[f"{commit}:{path}"] for path in paths}
        state = together(paths, each.__getitem__) if len(paths) > 1 else each[paths[0]][:SHORT]
        found.setdefault(state, commit)
    return found


@functools.cache
def newer(state: str, paths: tuple[str, ...], without: tuple[str, ...] = ()) -> tuple[str, ...]:
    """
    Return the date and the subject of each commit that has changed files since a *state*.

    Args:
        without: Files among them that do not matter.
    """
    commit = states(paths).get(state)
    if commit is None:
        return (f"none: no commit has {', '.join(paths)[:40]} with the hash {state}",)
    excluded = [f":(exclude){path}" for path in without]
    lines = git(
        "log", "--no-merges", "--date=short", "--format=%ad %s", f"{commit}..HEAD", "--", *paths,
        *excluded,
    )  # fmt: skip
    return tuple(dict.fromkeys((lines or "").splitlines()))


def changes(result: Result) -> Iterator[str]:
    """Yield each commit that is newer than a result that names its library."""
    others = tuple(path for path, columns in LEAVES.items() if result.column not in columns)
    yield from newer(result.library, LIBRARY, others)
    if result.judge:
        yield from newer(result.judge, CHECKER)


def unexplained(results: Sequence[Result], explained: Explained) -> list[str]:
    """Return what the explanations lack, and what they say in vain."""
    wrong = []
    # There are thousands of results, and few different ones.
    named = {each for each in results if each.library not in {"", UNKNOWN}}
    unnamed = Counter(each.file for each in results if each not in named)
    for file in sorted({*unnamed, *explained.unnamed}):
        here, said = unnamed[file], explained.unnamed.get(file, 0)
        if here != said:
            wrong.append(f"{file}: results that name no library: {here}, explained: {said}")
    files = defaultdict[str, set[str]](set)
    for result in named:
        for commit in changes(result):
            files[commit].add(result.file)
    wrong += [
        f'commit = "{commit}" is newer than results in {", ".join(sorted(names))}'
        for commit, names in sorted(files.items())
        if commit not in explained.commits
    ]
    wrong += [
        f'commit = "{commit}" is explained, and no result is older'
        for commit in explained.commits
        if commit not in files
    ]
    return wrong


def main(arguments: Sequence[str] | None = None) -> int:
    """Say what is not explained; return 1 if there is something."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args(arguments)
    if reason := why_not():
        parser.error(f"{reason} (of {ROOT.name})")
    results = list(published())
    wrong = unexplained(results, Explained.read())
    print(*wrong, f"{len(results)} results, {len(wrong)} not explained", sep="\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
