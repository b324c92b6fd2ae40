"""The recommended SQL works as documented, with connections that compete."""

import ast
import inspect
import random
import re
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

import redlock_aio.fencing

pytestmark = pytest.mark.promise("S7")

ROOT = Path(__file__).parents[2]
WORKERS = 8


def statement(name: str) -> str:
    """Return a constant of the example."""
    tree = ast.parse((ROOT / "examples" / "fenced_writes.py").read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return str(ast.literal_eval(node.value))
    raise AssertionError(f"the example has no {name}")


UPDATE, INSERT_OR_UPDATE = statement("UPDATE"), statement("INSERT_OR_UPDATE")
BOTH = pytest.mark.parametrize("sql", [UPDATE, INSERT_OR_UPDATE], ids=["update", "insert"])


def connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=30, isolation_level=None)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "database"
    with closing(connect(path)) as database:
        database.execute(statement("TABLE"))
        # A log of all successful writes, in their order.
        database.execute("CREATE TABLE log (number INTEGER PRIMARY KEY, token BIGINT)")
        database.execute("INSERT INTO invoice (id, state) VALUES ('there', 'new')")
        for event in ("INSERT", "UPDATE"):
            database.execute(
                f"CREATE TRIGGER {event}ed AFTER {event} ON invoice"
                " BEGIN INSERT INTO log (token) VALUES (new.fence); END"
            )
    return path


@pytest.fixture
def database(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(connect(path)) as database:
        yield database


def write(database: sqlite3.Connection, sql: str, name: str, state: str, token: int) -> int:
    """Write a row; return the number of rows written."""
    return database.execute(sql, {"id": name, "state": state, "token": token}).rowcount


def test_the_module_s_statements_are_the_example_s() -> None:
    text = inspect.getdoc(redlock_aio.fencing)
    assert text is not None
    documented = re.findall(r"^    (?:UPDATE|INSERT)(?:.*\n)+?(?=\n)", text, re.MULTILINE)
    documented = [" ".join(sql.split()) for sql in documented]
    names = (("account", "invoice"), ("balance", "state"))
    for one, other in names:
        documented = [sql.replace(one, other) for sql in documented]
    assert documented == [" ".join(sql.split()) for sql in (UPDATE, INSERT_OR_UPDATE)]


@BOTH
def test_a_row_takes_a_higher_token_and_the_same_again_and_no_lower_one(
    database: sqlite3.Connection, sql: str
) -> None:
    assert write(database, sql, "there", "a", 9) == 1
    assert write(database, sql, "there", "b", 9) == 1
    assert write(database, sql, "there", "c", 10) == 1
    assert write(database, sql, "there", "late", 9) == 0
    assert write(database, sql, "there", "d", 2**53 - 1) == 1
    assert write(database, sql, "there", "late", 2**53 - 2) == 0
    row = database.execute("SELECT state, fence FROM invoice WHERE id = 'there'").fetchone()
    assert row == ("d", 2**53 - 1)


def test_a_missing_row_is_inserted_only_by_the_statement_for_that(
    database: sqlite3.Connection,
) -> None:
    assert write(database, UPDATE, "new", "a", 5) == 0
    assert write(database, INSERT_OR_UPDATE, "new", "a", 5) == 1
    assert write(database, INSERT_OR_UPDATE, "new", "late", 4) == 0
    assert database.execute("SELECT state FROM invoice WHERE id = 'new'").fetchall() == [("a",)]


@pytest.mark.parametrize(
    ("sql", "name"),
    [(UPDATE, "there"), (INSERT_OR_UPDATE, "there"), (INSERT_OR_UPDATE, "new")],
    ids=["update", "insert over", "insert"],
)
def test_of_many_connections_none_writes_after_a_higher_token(
    path: Path, database: sqlite3.Connection, sql: str, name: str
) -> None:
    tokens = list(range(1, 201))
    random.Random(0).shuffle(tokens)
    ready = threading.Barrier(WORKERS)

    def work(number: int) -> list[int]:
        with closing(connect(path)) as own:
            ready.wait(10)
            mine = sorted(tokens[number::WORKERS])
            return [token for token in mine if write(own, sql, name, str(token), token)]

    with ThreadPoolExecutor(WORKERS) as pool:
        took = [token for tokens in pool.map(work, range(WORKERS)) for token in tokens]
    log = [token for (token,) in database.execute("SELECT token FROM log ORDER BY number")]
    assert log == sorted(took)
    state = database.execute("SELECT state, fence FROM invoice WHERE id = ?", (name,)).fetchone()
    assert state == ("200", 200)


@BOTH
def test_a_transaction_whose_first_statement_it_is_goes_as_a_whole(
    path: Path, database: sqlite3.Connection, sql: str
) -> None:
    """A write that comes while it is open waits, and is then refused by its token."""
    with closing(connect(path)) as other:
        other.execute("PRAGMA busy_timeout = 0")
        database.execute("BEGIN")
        assert write(database, sql, "there", "a", 5) == 1
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            write(other, sql, "there", "late", 4)
        database.execute("INSERT INTO invoice (id, state) VALUES ('more', 'a')")
        database.execute("COMMIT")
        assert write(other, sql, "there", "late", 4) == 0
