"""
Workers that take jobs from a queue: start them on any number of hosts.

Queues deliver a job twice now and then. The lock lets one worker at a time do it, and the mark in
the database tells the next one that it is done.

docs/how-to/worker.md explains it.
"""

import asyncio
import os

from redlock_aio import LockLostError, LockNotAcquiredError, QuorumUnavailableError, Redlock

MASTERS = os.environ.get("REDLOCK_MASTERS", "redis://localhost:6379").split(",")

queue: asyncio.Queue[int] = asyncio.Queue()  # yours: RabbitMQ, SQS, a table
done: list[int] = []  # your database


async def work(redlock: Redlock) -> None:
    while True:
        job = await queue.get()
        try:
            async with redlock.lock(f"job:{job}", ttl=10_000, wait=0) as lease:
                if job not in done:
                    await asyncio.sleep(0.1)  # your work: cancelled if the lock is lost
                    lease.ensure_valid()  # before each write
                    done.append(job)
        except QuorumUnavailableError:  # a LockNotAcquiredError too, so it comes first
            await asyncio.sleep(1)
            queue.put_nowait(job)
        except LockLostError:
            queue.put_nowait(job)  # perhaps half done, so somebody does it again
        except LockNotAcquiredError:
            pass  # another worker is doing it
        finally:
            queue.task_done()


async def main() -> None:
    for job in (1, 2, 3, 3, 2, 1):
        queue.put_nowait(job)
    async with Redlock(MASTERS, key_prefix="lock:") as redlock:
        workers = [asyncio.create_task(work(redlock)) for _ in range(3)]
        await queue.join()
        for worker in workers:
            worker.cancel()  # a stopped worker releases its lock
        await asyncio.gather(*workers, return_exceptions=True)
    print("each job was done once:", sorted(done))


asyncio.run(main())
