"""
What a result measured: the commit, whether more than that was there, and how busy the machine was.

A result that names its commit can be compared with the code of today, and its history can be
judged again (`rejudge`). Without git, or where the library is not that of this folder, a result
says so instead.
"""

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

MEASURED = ("redlock_aio", "benchmarks", ":(exclude)benchmarks/results*",
            ":(exclude)benchmarks/histories")  # fmt: skip
"""What a result depends on, as git is asked for it; a run changes the results itself."""

CHECKER = tuple(
    f"benchmarks/evidence/{name}.py"
    for name in ("checker", "expiry", "history", "leases", "linearizable", "order", "progress")
)
"""What decides on the verdict on a history."""

UNKNOWN = "unknown"
"""The commit where there is none to be found."""


def measured() -> dict[str, Any]:
    """
    Return the facts about what a result measures that begins now.

    They are `commit`, `clean` (whether the files are those of the commit), and `load`: the load
    average of the machine in the last minute.
    """
    commit, clean = _at("HEAD", MEASURED)
    return {"commit": commit, "clean": clean, "load": round(os.getloadavg()[0], 2)}


def checker() -> str:
    """Return the last commit that changed the checker, and "+" if its files differ from it."""
    found = _git("log", "-1", "--format=%h", "--", *CHECKER)
    if not found:
        return UNKNOWN
    return found if _is_clean(CHECKER) else f"{found}+"


def _at(commit: str, paths: Iterable[str]) -> tuple[str, bool]:
    found = _git("rev-parse", "--short=10", commit)
    if not found or not _is_ours():
        return UNKNOWN, False
    return found, _is_clean(paths)


def _is_clean(paths: Iterable[str]) -> bool:
    return _git("status", "--porcelain", "--", *paths) == ""


def _is_ours() -> bool:
    """Return whether the library that programs import is that of this folder."""
    found = importlib.util.find_spec("redlock_aio")
    return found is not None and Path(found.origin or "/").is_relative_to(ROOT)


def _git(*words: str) -> str | None:
    """Return what git says of this folder; None if it says nothing, as without a repository."""
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        return None
    done = subprocess.run(  # noqa: S603 - only reads
        [git, "-C", str(ROOT), *words], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else None


def said(all_facts: Iterable[Mapping[str, Any]]) -> str:
    """Return a sentence about what results with these facts measured; "" if none of them tells."""
    known = [facts for facts in all_facts if "commit" in facts]
    if not known:
        return ""
    commits = dict.fromkeys(commit(facts) for facts in known)
    loads = sorted(facts["load"] for facts in known)
    load = f"{loads[0]:g}" if loads[0] == loads[-1] else f"{loads[0]:g} to {loads[-1]:g}"
    return f"At {' and '.join(commits)}; the machine's load average was {load} before."


def judged_by(checkers: Iterable[str]) -> str:
    """Return a sentence about the commits of the *checkers*; "" if none of them is known."""
    commits = [each for each in dict.fromkeys(checkers) if each]
    return f" The checker is that of commit {' and '.join(commits)}." if commits else ""


def commit(facts: Mapping[str, Any]) -> str:
    """Return the commit that a result measured, in words."""
    if facts["commit"] == UNKNOWN:
        return "an unknown commit"
    changed = "" if facts["clean"] else " with changes that are in no commit"
    return f"commit {facts['commit']}{changed}"
