"""Runs many seeds in several processes."""

import gc
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context

from .log import Chunk
from .plan import draw
from .run import run

AT_ONCE = 25
"""How many seeds a process runs at a time."""


def simulated(
    ranges: Sequence[tuple[int, int]], jobs: int, size: int, ends: float | None = None
) -> Iterator[Chunk]:
    """
    Yield a chunk of *size* seeds or less after another, run in *jobs* processes.

    Args:
        ranges: The first and the last seed of each range.

        ends: When to end, on the monotonic clock; the last chunk may be short then.
    """
    batches = (
        (begin, min(begin + AT_ONCE - 1, start + size - 1, last))
        for first, last in ranges
        for start in range(first, last + 1, size)
        for begin in range(start, min(start + size, last + 1), AT_ONCE)
    )
    # Spawned processes have nothing of this one, such as a plugin that traces it.
    with ProcessPoolExecutor(jobs, get_context("spawn"), _begin, (os.getpid(),)) as pool:
        chunk: Chunk | None = None
        running: list[Future[Chunk]] = [
            pool.submit(simulate, *each) for each in islice(batches, 2 * jobs)
        ]
        try:
            while running:
                part = running.pop(0).result()
                late = ends is not None and time.monotonic() > ends
                if not late:
                    running += [pool.submit(simulate, *each) for each in islice(batches, 1)]
                if chunk is not None and (chunk.last + 1 != part.first or chunk.seeds >= size):
                    yield chunk
                    chunk = None
                if chunk is None:
                    chunk = part
                else:
                    chunk.join(part)
            if chunk is not None:
                yield chunk
        finally:
            # After an interrupt each process ends with the seeds that it runs.
            pool.shutdown(cancel_futures=True)


def simulate(first: int, last: int) -> Chunk:
    """Run the seeds from *first* to *last*."""
    chunk, began = Chunk(first, first), time.process_time()
    for seed in range(first, last + 1):
        chunk.add(run(draw(seed)))
    chunk.cpu = time.process_time() - began
    return chunk


def _begin(parent: int) -> None:
    """Leave Ctrl-C to the *parent*, end with it, and do not collect what stays."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)  # 4 % less CPU time; a process has 50 MB


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)
