"""
Workers that take jobs from a queue: start them on any number of hosts.

Queues deliver a job twice now and then. The lock lets one worker at a time do it, and the mark in
the database tells the next one that it is done. A job that is not done goes back to the queue.

docs/how-to/worker.md explains it.
"""

import asyncio
import logging
import os

from redlock_aio import LockNotAcquiredError, Redlock

MASTERS = os.environ.get("REDLOCK_MASTERS", "redis://localhost:6379").split(",")

log = logging.getLogger(__name__)
queue: asyncio.Queue[int] = asyncio.Queue()  # yours: RabbitMQ, SQS, a table
done: list[int] = []  # your database


async def work(redlock: Redlock) -> None:
    while True:
        job = await queue.get()
        is_done = False
        try:
            async with redlock.lock(f"job:{job}", ttl=10_000, wait=0) as lease:
                if job not in done:
                    await asyncio.sleep(0.1)  # your work: cancelled if the lock is lost
                    lease.ensure_valid()  # before each write
                    done.append(job)
                is_done = True
        except LockNotAcquiredError:  # another worker does it, or has crashed; or no majority votes
            await asyncio.sleep(1)
        except Exception:  # the work failed, or its lock was lost
            log.exception("job %s, done: %s", job, is_done)
            await asyncio.sleep(1)
        finally:
            if not is_done:  # also if this worker is stopped
                queue.put_nowait(job)  # yours: reject it, so that it is delivered again
            queue.task_done()  # yours: acknowledge the job, only if it is done


async def main() -> None:
    for job in (1, 2, 3, 3, 2, 1):
        queue.put_nowait(job)
    async with Redlock(MASTERS, key_prefix="lock:") as redlock:
        workers = [asyncio.create_task(work(redlock)) for _ in range(3)]
        await queue.join()
        for worker in workers:
            worker.cancel()  # a stopped worker gives its job back, and releases its lock
        await asyncio.gather(*workers, return_exceptions=True)
    print("each job was done once:", sorted(done))


if __name__ == "__main__":
    asyncio.run(main())
