"""The names of the code: no two classes share one."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "redlock_aio"
MODULES = {path.relative_to(PACKAGE).as_posix(): path for path in sorted(PACKAGE.rglob("*.py"))}


def defined() -> Iterator[tuple[str, str, ast.AST]]:
    """Yield the module, the name and the node of each class, and of each constant of a module."""
    for module, path in MODULES.items():
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                yield module, node.name, node
        for node in tree.body:
            targets = node.targets if isinstance(node, ast.Assign) else []
            if isinstance(node, ast.AnnAssign):
                targets = [node.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    yield module, target.id, node


FOR_THREADS = (
    "sync/_election.py",
    "sync/_lease.py",
    "sync/_lock.py",
    "sync/_redlock.py",
    "sync/_semaphore.py",
)
"""Modules whose public classes have the names of those with asyncio."""

OF_BOTH = {"Election", "Lease", "Lock", "LockWatch", "Redlock", "Semaphore", "Term"}


def test_no_two_classes_and_no_class_and_constant_share_a_name() -> None:
    places = defaultdict(list)
    classes = set()
    for module, name, node in defined():
        if module in FOR_THREADS and name in OF_BOTH:
            continue
        places[name].append(module)
        if isinstance(node, ast.ClassDef):
            classes.add(name)
    assert {name: where for name, where in places.items() if name in classes and where[1:]} == {}
