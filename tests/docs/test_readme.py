"""What the README claims is so."""

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import redlock_aio
from redlock_aio import Lease, Lock, Redlock, Retry

SIGNATURES: dict[str, Callable[..., Any]] = {
    "Redlock(masters, ...)": Redlock.__init__,
    "redlock.lock(*resources, ...)": Redlock.lock,
    "Retry(...)": Retry.__init__,
}
GIVEN = {"self", "masters", "resources", "unknown"}

# Met by those who write tests for the library itself, not by its users.
NOT_FOR_USERS = {"Lease.enter"}


def section(readme: str, title: str) -> str:
    """Return what stands below a heading, up to the next one."""
    match = re.search(rf"^#+ {re.escape(title)}$(.*?)(?=^#+ |\Z)", readme, re.MULTILINE | re.DOTALL)
    assert match, f"no heading {title!r}"
    return match[1]


def between(readme: str, marker: str) -> str:
    begin, end = f"<!-- {marker}:begin -->", f"<!-- {marker}:end -->"
    assert readme.count(begin) == readme.count(end) == 1
    return readme.split(begin)[1].split(end, maxsplit=1)[0].strip()


def rows(text: str) -> list[list[str]]:
    """Return the cells of a table without its head."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_it_is_short_enough_to_be_read(readme: str) -> None:
    assert len(readme.splitlines()) <= 300


def test_its_python_is_an_example_to_the_letter(readme: str, root: Path) -> None:
    examples = [path.read_text() for path in (root / "examples").glob("*.py")]
    blocks = re.findall(r"^```python\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        assert any(block in example for example in examples), block


@pytest.mark.parametrize("title", SIGNATURES)
def test_the_options_are_those_of_the_signature(readme: str, title: str) -> None:
    parameters = inspect.signature(SIGNATURES[title]).parameters
    taken = {name: p.default for name, p in parameters.items() if name not in GIVEN}
    told = {
        name.strip("`"): eval(default.strip("`"), {"Retry": Retry})
        for name, default, _ in rows(section(readme, title))
    }
    assert told == taken
    assert list(told) == list(taken), "in the order of the signature"


def test_every_public_name_is_told(readme: str) -> None:
    code = " ".join(re.findall(r"```.*?```|`[^`\n]+`", readme, re.DOTALL))
    for name in redlock_aio.__all__:
        assert re.search(rf"\b{name}\b", code), name
    for owner, prefix in ((Lease, "lease"), (Lock, "lock")):
        for name in vars(owner):
            whole = f"{owner.__name__}.{name}"
            if not name.startswith("_") and whole not in NOT_FOR_USERS:
                assert f"{prefix}.{name}" in code, whole


def test_every_promised_attribute_of_an_error_is_there(readme: str) -> None:
    kinds = (
        *(redlock_aio.LockNotAcquiredError, redlock_aio.QuorumUnavailableError),
        *(redlock_aio.LockLostError, redlock_aio.LockNotHeldError),
    )
    told = {row[0].strip("`"): row[1] for row in rows(readme) if len(row) == 2}
    for kind in kinds:
        assert kind.__doc__ is not None
        names = re.findall(r"`(\w+)`", told[kind.__name__].partition(":")[2])
        for name in names:
            source = inspect.getsource(kind.__init__)
            assert re.search(rf"self\.{name}(: [^=]+)? =", source), f"{kind.__name__}.{name}"


def test_every_file_that_it_names_is_there(readme: str, root: Path) -> None:
    named = set(re.findall(r"`((?:docs|examples|tests|benchmarks|\.ci)/[\w./-]*)`", readme))
    named |= set(re.findall(r"`((?:CHANGELOG|LICENSE)[\w.]*)`", readme))
    named |= set(re.findall(r"\]\((?!https?:)([^)#]+)\)", readme))
    modules = re.findall(r"`([\w/]+(?:\.py|/))`", section(readme, "How it is built"))
    named |= {f"redlock_aio/{module}" for module in modules}
    assert len(named) > 20
    assert not [name for name in sorted(named) if not (root / name).exists()]


def test_the_page_about_the_architecture_names_files_that_exist(root: Path) -> None:
    page = (root / "docs" / "architecture.md").read_text()
    package = root / "redlock_aio"
    named = re.findall(r"`((?:_[a-z]+/)*[a-z_]+\.py)`", page)
    assert len(named) > 10
    for name in named:
        assert (package / name).is_file(), name
    for path in package.glob("_*/"):
        assert f"{path.name}/" in page or path.name == "__pycache__", path.name


def test_every_example_is_in_the_table_of_what_it_can_do(readme: str, root: Path) -> None:
    told = rows(section(readme, "What it can do"))
    named = {name for *_, shown in told for name in re.findall(r"`(examples/\w+\.py)`", shown)}
    assert named == {f"examples/{path.name}" for path in (root / "examples").glob("*.py")}
    assert all("examples/" in shown for *_, shown in told), "every row has its example"


def test_every_promise_is_told(readme: str, root: Path) -> None:
    told = set(re.findall(r"\bS\d+\b", section(readme, "What always holds")))
    shown = set()
    for path in (root / "tests").rglob("test_*.py"):
        shown |= set(re.findall(r"\.promise\(\"(S\d+)\"", path.read_text()))
    assert told == {f"S{number}" for number in range(1, 11)}
    assert shown <= told


@pytest.mark.parametrize(
    ("marker", "results"), [("benchmarks", "results.md"), ("contention", "results-contention.md")]
)
def test_the_comparison_is_what_was_measured(
    readme: str, root: Path, marker: str, results: str
) -> None:
    measured = root / "benchmarks" / results
    text = between(readme, marker) if f"<!-- {marker}:" in readme else ""
    told = [line for line in text.splitlines() if line.startswith("|")]
    if not measured.exists():
        assert not told, "figures that nobody measured"
        pytest.skip("nothing is measured yet")
    assert told
    assert set(told) <= set(measured.read_text().splitlines())
