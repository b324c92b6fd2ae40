"""
The storage refuses writes that come too late: in Redis, and in SQL.

The fencing token of a lease is higher than those of all leases before it. Here a holder
writes with the token of an earlier lease, after another lease has written.

docs/explanation/fencing.md explains it.
"""

import asyncio
import os
import sqlite3

from redis.asyncio import Redis

from redlock_aio import Redlock
from redlock_aio.fencing import RedisFence, StaleTokenError

MASTERS = os.environ.get("REDLOCK_MASTERS", "redis://localhost:6379").split(",")

TABLE = """
    CREATE TABLE invoice (id TEXT PRIMARY KEY, state TEXT, fence BIGINT NOT NULL DEFAULT 0)
"""

UPDATE = """
    UPDATE invoice SET state = :state, fence = :token
    WHERE id = :id AND fence <= :token
"""

INSERT_OR_UPDATE = """
    INSERT INTO invoice (id, state, fence) VALUES (:id, :state, :token)
    ON CONFLICT (id) DO UPDATE SET state = excluded.state, fence = excluded.fence
    WHERE invoice.fence <= excluded.fence
"""


def save(database: sqlite3.Connection, statement: str, name: str, state: str, token: int) -> None:
    """Write a row, or raise if the token is stale."""
    with database:
        row = {"id": name, "state": state, "token": token}
        if database.execute(statement, row).rowcount == 0:
            raise StaleTokenError(name, token)


# Names and values are arguments, so the script's text is always the same.
CANCEL = """
    if redis.call("GET", KEYS[1]) == "sent" then
        redis.call("SET", KEYS[1], ARGV[1])
    end
"""


async def main() -> None:
    name, state = "fenced:42", "fenced:42:state"
    database = sqlite3.connect(":memory:")
    database.execute(TABLE)
    data = Redis.from_url(MASTERS[0], decode_responses=True)  # any server will do
    async with Redlock(MASTERS, key_prefix="lock:") as redlock, data as redis:
        fence = RedisFence(redis, name)
        lock = redlock.lock(name, fencing=True)

        async with lock as lease:
            late = lease.fencing_token
            await fence.write(("SET", state, "sent"), ("EXPIRE", state, 3600), token=late)
            save(database, INSERT_OR_UPDATE, name, "sent", late)
            print("sent, with token", late)

        async with lock as lease:
            await fence.run(CANCEL, [state], ["cancelled"], token=lease.fencing_token)
            save(database, UPDATE, name, "cancelled", lease.fencing_token)
            print("cancelled, with token", lease.fencing_token)

        try:
            await fence.write(("SET", state, "sent again"), token=late)
        except StaleTokenError as error:
            print("Redis:", error)
        try:
            save(database, INSERT_OR_UPDATE, name, "sent again", late)
        except StaleTokenError as error:
            print("SQL:", error)

        print("Redis says:", await redis.get(state))
        print("SQL says:", *database.execute("SELECT state FROM invoice").fetchone())
    database.close()


asyncio.run(main())
