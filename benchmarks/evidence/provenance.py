"""
What a result measured: the commit, whether more than that was there, and how busy the machine was.

A result that names its commit can be compared with the code of today (`freshness`), and its history
can be judged again (`rejudge`). Without git, or where the library is not that of this folder, a
result says so instead.

Hashes of commits change when a history is written anew. So a result also names what the library
consisted of: the hash that git gives to its folder, which is computed here from the files.
"""

import hashlib
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
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

FACTS = ("commit", "clean", "load", "library", "judge")
"""The names of the facts that `measured` returns."""

SHORT = 12
"""How many digits of a hash a result has."""


def measured() -> dict[str, Any]:
    """
    Return the facts about what a result measures that begins now.

    They are `commit`, `clean` (whether the files are those of the commit), `load`: the load
    average of the machine in the last minute, `library`: the hash of the library that programs
    import, and `judge`: that of the checker of histories.
    """
    commit, clean = _at("HEAD", MEASURED)
    found = importlib.util.find_spec("redlock_aio")
    library = tree(Path(found.origin).parent) if found and found.origin else ""
    return {
        "commit": commit,
        "clean": clean,
        "load": round(os.getloadavg()[0], 2),
        "library": library[:SHORT] or UNKNOWN,
        "judge": together(CHECKER, lambda name: blob((ROOT / name).read_bytes())),
    }


def tree(folder: Path) -> str:
    """Return the hash by which git knows a folder with these files; empty if there are none."""
    entries = []
    for path in folder.iterdir():
        if path.is_symlink():
            mode, found = "120000", blob(str(path.readlink()).encode())
        elif path.is_dir():
            mode, found = "40000", "" if path.name == "__pycache__" else tree(path)
        else:
            mode = "100755" if path.stat().st_mode & 0o100 else "100644"
            found = blob(path.read_bytes())
        if found:
            # Git sorts folders as if their names ended with a slash.
            place = path.name + ("/" if mode == "40000" else "")
            entry = f"{mode} {path.name}".encode() + b"\0" + bytes.fromhex(found)
            entries.append((place.encode(), entry))
    return _object("tree", b"".join(entry for _, entry in sorted(entries))) if entries else ""


def blob(content: bytes) -> str:
    """Return the hash by which git knows a file with this content."""
    return _object("blob", content)


def _object(kind: str, content: bytes) -> str:
    whole = f"{kind} {len(content)}".encode() + b"\0" + content
    return hashlib.sha1(whole, usedforsecurity=False).hexdigest()


def together(paths: Iterable[str], of: Callable[[str], str]) -> str:
    """Return one short hash of several files, from that *of* each."""
    lines = "".join(f"{path} {of(path)}\n" for path in paths)
    return hashlib.sha1(lines.encode(), usedforsecurity=False).hexdigest()[:SHORT]


def checker() -> str:
    """Return the last commit that changed the checker, and "+" if its files differ from it."""
    found = git("log", "-1", "--format=%h", "--", *CHECKER)
    if not found:
        return UNKNOWN
    return found if _is_clean(CHECKER) else f"{found}+"


def _at(commit: str, paths: Iterable[str]) -> tuple[str, bool]:
    found = git("rev-parse", "--short=10", commit)
    if not found or not _is_ours():
        return UNKNOWN, False
    return found, _is_clean(paths)


def _is_clean(paths: Iterable[str]) -> bool:
    return git("status", "--porcelain", "--", *paths) == ""


def _is_ours() -> bool:
    """Return whether the library that programs import is that of this folder."""
    found = importlib.util.find_spec("redlock_aio")
    return found is not None and Path(found.origin or "/").is_relative_to(ROOT)


def git(*words: str, given: str = "") -> str | None:
    """Return what git says of this folder; None if it says nothing, as without a repository."""
    program = shutil.which("git")
    if program is None or not (ROOT / ".git").exists():
        return None
    done = subprocess.run(  # noqa: S603 - only reads
        [program, "-C", str(ROOT), *words], input=given, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else None


def said(all_facts: Iterable[Mapping[str, Any]]) -> str:
    """Return a sentence about what results with these facts measured; "" if there are none."""
    every = list(all_facts)
    known = [facts for facts in every if "commit" in facts]
    if not known:
        several = len(every) > 1
        return f"The result{'s name' if several else ' names'} no commit." if every else ""
    commits = dict.fromkeys(commit(facts) for facts in known)
    loads = sorted(facts["load"] for facts in known)
    load = f"{loads[0]:g}" if loads[0] == loads[-1] else f"{loads[0]:g} to {loads[-1]:g}"
    others = len(every) - len(known)
    more = f" {others} of {len(every)} results name no commit." if others else ""
    return f"At {' and '.join(commits)}; the machine's load average was {load} before.{more}"


def where(all_facts: Sequence[Mapping[str, Any]], checkers: Iterable[str]) -> str:
    """Return sentences about the machines, the days, the code and the checkers of some runs."""
    machines = dict.fromkeys(f"{facts['machine']}; {facts['server']}" for facts in all_facts)
    dates = sorted({facts["date"] for facts in all_facts})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    return f"On {', and '.join(machines)}; {when}. {said(all_facts)}{judged_by(checkers)}"


def judged_by(checkers: Iterable[str]) -> str:
    """Return a sentence about the commits of the *checkers*; "" if none of them is known."""
    commits = [each for each in dict.fromkeys(checkers) if each]
    return f" The checker is that of commit {' and '.join(commits)}." if commits else ""


def commit(facts: Mapping[str, Any]) -> str:
    """Return the commit that a result measured, and the hash of the library there, in words."""
    library = f", library {facts['library']}" if "library" in facts else ""
    if facts["commit"] == UNKNOWN:
        return f"an unknown commit{library}"
    changed = "" if facts["clean"] else " with changes that are in no commit"
    return f"commit {facts['commit']}{changed}{library}"
