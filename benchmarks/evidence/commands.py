"""
Programs under ``redlock run``, which write to a store and record what they do.

    python -m benchmarks.evidence.commands JOB NAME
    redlock run ... KEY -- python -m benchmarks.evidence.commands JOB NAME CLIENT TURN KEY ASKED

The first form works in the place of `worker`: its tasks start the second one under a lock, again
and again. The program holds the lock for as long as it runs, and that is what it records: it asks
nobody, and relies on being ended before the lock is lost. Nothing of the library is imported here.
"""

import asyncio
import gc
import os
import random
import signal
import sys
from pathlib import Path

from .job import Job
from .recorder import Client, Recorder, now
from .store import Store

WORDS = sys.executable, "-m", "benchmarks.evidence.commands"

TASKS = 2
"""How many commands a process runs at once: each is three programs."""

STEP = 0.02
"""Seconds for which a program promises itself the lock, before it does so again."""

BODY = 0.05, 1.5
"""The shortest and longest time in seconds for which a program works."""

ESCAPED = 60.0
"""
Seconds for which a program works that has left its process group. Its store goes with the run, and
ends it before.
"""

LEAST_LEFT = 1.5
"""Seconds before the end after which no command is started."""

TOKEN = "REDLOCK_FENCING_TOKEN"  # noqa: S105 - a name


class Commands:
    """The tasks of one process."""

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self.job = Job.read(path)
        self.name = name
        self.folder = Path(self.job.folder)
        self.recorder = Recorder(self.folder, name)
        self.random = random.Random(f"{self.job.seed} {name}")
        self.until = 0

    async def run(self) -> None:
        """Run a first command, say that this process is ready, and run others until the end."""
        began = now()
        await self._command(f"ready:{self.name}", "true")
        # A client that waits for programs to start is as late as an event loop that does not run.
        (self.folder / f"{self.name}.late").write_text(f"{began} {now() - began}\n")
        (self.folder / f"{self.name}.ready").touch()
        start = self.folder / "until"
        while not start.exists():  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(0.005)
        self.until = int(start.read_text())
        async with asyncio.TaskGroup() as tasks:
            for number in range(TASKS):
                tasks.create_task(self._turns(self.recorder.client(number), number))

    async def _turns(self, client: Client, number: int) -> None:
        key, turn = self.job.keys[number], 0  # each process wants each of these keys
        while self.until - now() > LEAST_LEFT * 1e9:
            asked = now()
            words = (*WORDS, str(self.path), self.name, str(number), str(turn), key, str(asked))
            code = await self._command(key, *words)
            if not (self.folder / f"{history(self.name, number, turn)}.jsonl").exists():
                pending = client.invoke_at("acquire", asked, **facts(key, self.job))
                pending.fail(f"redlock run ended with {code}")
            turn += 1
            await asyncio.sleep(self.random.uniform(0, self.job.rest))

    async def _command(self, key: str, *words: str) -> int:
        """Run a command under the lock *key*; return the exit code of ``redlock run``."""
        job = self.job
        urls = (f"redis+{url}" if url.startswith("sentinel://") else url for url in job.urls)
        with (self.folder / f"{self.name}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "redlock_aio", "run", "--masters", ",".join(urls)),
                *("--ttl", f"{job.ttl}ms", "--max-ttl", f"{job.ttl}ms", "--fencing"),
                *("--wait", f"{job.wait}ms", "--restart-guard", job.guard, "--name", self.name),
                *(key, "--", *words),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
            return await process.wait()


def history(name: str, number: int, turn: int) -> str:
    """Return the name of the history of one program."""
    return f"{name}-{number}-{turn}"


def facts(key: str, job: Job) -> dict[str, object]:
    """Return what an acquisition asks for."""
    return {"keys": [key], "ttl": job.ttl, "wait": job.wait, "fencing": True}


class Program:
    """
    What runs under a lock.

    Args:
        recorder: That of this program alone.

        client: The client that it is, a task of a process that starts commands.
    """

    def __init__(self, job: Job, recorder: Recorder, client: str, key: str) -> None:
        self.job = job
        self.client = Client(recorder, client)
        self.key = key
        self.lease = f"{recorder.name}-{os.getpid()}"
        self.token = int(os.environ[TOKEN])
        self.random = random.Random(f"{job.seed} {recorder.name}")

    async def run(self, asked: int) -> None:
        """Write until the time is over, or until SIGTERM says that the lock is lost."""
        pending = self.client.invoke_at("acquire", asked, **facts(self.key, self.job))
        pending.ok(lease=self.lease, until=self._until(), token=self.token)
        seconds = ESCAPED if self.job.misuse else self.random.uniform(*BODY)
        writing = asyncio.create_task(self._write(now() + int(seconds * 1e9)))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, writing.cancel)
        try:
            await writing
        except asyncio.CancelledError:
            self.client.lost(self.lease, "SIGTERM")
        else:
            # How the release ends only `redlock run` knows.
            self.client.invoke("release", lease=self.lease)

    async def _write(self, ends: int) -> None:
        values = os.getpid() << 24
        async with Store(self.job.store) as store:
            while (at := now()) < ends:
                self.client.held(self.lease, self._until(), at=at)
                values += 1
                what = {"key": self.key, "value": values, "token": self.token, "lease": self.lease}
                pending = self.client.invoke("write", **what)
                if await store.write(self.key, values, self.token):
                    pending.ok()
                else:
                    pending.fail("stale")
                await asyncio.sleep(STEP / 4)

    @staticmethod
    def _until() -> int:
        return now() + int(STEP * 1e9)


def main(path: Path, name: str, *program: str) -> None:
    """Run the form that the arguments ask for."""
    if not program:
        asyncio.run(Commands(path, name).run())
        return
    number, turn, key, asked = program
    job = Job.read(path)
    if job.misuse:
        # Its process group is empty then: for `redlock run` the command has ended.
        if os.fork():
            os._exit(0)
        os.setsid()
    recorder = Recorder(Path(job.folder), history(name, int(number), int(turn)))
    asyncio.run(Program(job, recorder, f"{name}/{number}", key).run(int(asked)))


if __name__ == "__main__":
    gc.freeze()  # what was imported stays to the end, and the end takes less time
    main(Path(sys.argv[1]), *sys.argv[2:])
