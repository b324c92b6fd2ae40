"""
The replies of a fake master to commands about itself and its connections.

Implemented are the commands that the library sends, and a few for tests with other clients.
"""

import asyncio
import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Concatenate, ParamSpec, TypeVar

from redlock_aio._protocol import commands
from redlock_aio.testing._fake_data import NEVER, Data
from redlock_aio.testing._fake_keys import KeyCommands
from redlock_aio.testing._fake_lua import OK, Error, Status
from redlock_aio.testing._fake_pushes import Push, Pushes, PushReceiver

AGE = 864_000.0
"""The uptime in seconds of a master that was not restarted."""

EPOCH = 1_700_000_000
"""The time on a master's clock when the running loop's time is 0, in seconds."""

PATIENCE = 20.0
"""How many seconds a loop in another thread may take for a change that a test makes."""

P = ParamSpec("P")
T = TypeVar("T")
M = TypeVar("M", bound="Commands")


def in_its_loop(method: Callable[Concatenate[M, P], T]) -> Callable[Concatenate[M, P], T]:
    """
    Make *method* run in the event loop that uses the master, whichever thread calls it.

    A test that is not async has its manager, or its whole program, in the loop of another thread.
    The loops of two managers for threads run at the same time, so the method has the master alone.
    """

    @functools.wraps(method)
    def called(self: M, /, *args: P.args, **kwargs: P.kwargs) -> T:
        loop = self._loop
        if loop is None or loop is running() or not loop.is_running():
            with self._alone:
                self._go_on()
                return method(self, *args, **kwargs)
        done = Future[T]()

        def run() -> None:
            try:
                with self._alone:
                    result = method(self, *args, **kwargs)
                done.set_result(result)
            except BaseException as error:  # noqa: BLE001 - it belongs to the caller
                done.set_exception(error)

        loop.call_soon_threadsafe(run)
        return done.result(PATIENCE)

    return called


class Commands(KeyCommands):
    """
    A master without its connections; the public attributes are those of `FakeMaster`.

    Args:
        run_id: The identity of the server, as in ``INFO``.
    """

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.role = "master"
        self.error = ""
        self.forbid: set[str] = set()
        self.clock_offset: float = 0.0
        self.replica_before = False
        self.replid = run_id
        self.fed = 0
        self.replicas = 0
        self.commands: list[list[bytes]] = []
        self._alone = threading.RLock()
        """Held by the thread that uses the master; no code of a client runs meanwhile."""
        self._loop: asyncio.AbstractEventLoop | None = None
        """The loop of the last client."""
        self._timed_by = running()
        """The loop whose time it has: that of the last client; before, the first one that runs."""
        self._age, self._age_at = AGE, _now(self._timed_by)
        self._pushes = Pushes(self._notice, self._used_by)
        super().__init__(Data(self._pushes, self._time))
        self._keys = self._data.keys

    def _time(self) -> float:
        """Return the time of the loop that runs, or has used the master last; 0 before."""
        return _now(self._used_by())

    def _used_by(self) -> asyncio.AbstractEventLoop | None:
        """Return the loop that runs; outside of one, that which has used the master last."""
        return running() or self._timed_by

    def _go_on(self) -> None:
        """Take the time of the loop that runs, if there was none before, or that was closed."""
        before = self._timed_by
        if before is not None and not before.is_closed():
            return
        if (loop := running()) is None:
            return
        self._timed_by = loop
        later = loop.time() - _now(before)  # virtual time begins at 0 in each loop
        self._age_at += later
        for key, (value, until) in self._keys.items():
            self._keys[key] = (value, until + later)

    @property
    def uptime(self) -> float:
        """The seconds for which the master has been running."""
        self._go_on()
        return self._age + self._time() - self._age_at

    @uptime.setter
    def uptime(self, seconds: float) -> None:
        self._go_on()
        self._age, self._age_at = seconds, self._time()

    # Changes by another client.

    @in_its_loop
    def set(self, key: str, value: str, ttl: int | None = None) -> None:
        """Set a key as another client would, to live *ttl* ms."""
        self._data.set(key.encode(), value.encode(), ttl)

    @in_its_loop
    def delete(self, key: str) -> None:
        """Delete a key as another client would."""
        self._data.delete(key.encode())

    @in_its_loop
    def flush(self) -> None:
        """Delete all keys as another client would."""
        self._do_flushall()

    @property
    @in_its_loop
    def keys(self) -> dict[str, str]:
        """
        The keys that have not expired, with their values.

        The fair queues, the restart guard's marker and the declared sets are left out.
        """
        return {
            key.decode(): value.decode()
            for key, (value, until) in self._keys.items()
            if (until == NEVER or self._time() < until)
            and isinstance(value, bytes)
            and not key.startswith((commands.MARKER, commands.DECLARED_SETS))
        }

    @property
    @in_its_loop
    def marker(self) -> str | None:
        """The marker of the restart guard; ``None`` if there is none."""
        value = self._data.find(commands.MARKER)[0]
        return value.decode() if isinstance(value, bytes) else None

    @in_its_loop
    def pttl(self, key: str) -> int:
        """Return the remaining ms of *key*, -1 if it does not end, -2 if it does not exist."""
        return self._data.pttl(key.encode())

    def _forget_everything(self) -> None:
        self._keys.clear()
        self._scripts.clear()

    def _notice(self, key: bytes) -> None:
        """Push the end of *key* to the connections that track it, if it has ended."""
        with self._alone:
            _, until = self._data.find(key)
            self._pushes.watch(key, until)

    # The commands.

    def execute(self, command: list[bytes], listener: PushReceiver | None = None) -> object:
        """
        Execute *command* and return its reply.

        The reply is bytes, a `Status`, an int, ``None``, a list of these, or an `Error`; or a
        `Push`, which takes the place of a reply.

        Args:
            listener: The connection on which it came, as the target of pushes; if left
                out, another client's, which gets no pushes.
        """
        with self._alone:
            self._go_on()
            self.commands.append(command)
            self._pushes.speaker = speaker = listener or self._pushes.stranger
            try:
                return self._execute(*command)
            except Error as error:
                return error
            finally:
                self._pushes.speaker = self._pushes.stranger
                if speaker.caching and command[0].upper() != b"CLIENT":
                    speaker.caching = False

    def _execute(self, called: bytes, *arguments: bytes) -> object:
        handler = self._handler(called)
        if self.forbid or self.error:
            self._check_refusal(called, *arguments)
        return handler(*arguments)

    def _check_refusal(self, called: bytes, *arguments: bytes) -> None:
        """Raise the error with which the master refuses this command, if it does."""
        name = called.decode().lower()
        if name.upper() in self.forbid:
            full = "|".join([name, *(verb.decode().lower() for verb in arguments[:1])])
            full = full if name in ("client", "script") else name
            raise Error(f"NOPERM User default has no permissions to run the '{full}' command")
        if self.error and name in ("set", "evalsha", "delifeq"):
            raise Error(self.error)

    def _do_ping(self) -> object:
        return Status(b"PONG")

    def _do_info(self) -> object:
        fields = {
            "redis_version": "7.0.0",
            "run_id": self.run_id,
            "role": self.role,
            "uptime_in_seconds": int(self.uptime),
            "server_time_usec": self._clock(),
            "master_replid": self.replid,
            "master_replid2": ("1" if self.replica_before else "0") * 40,
            "total_net_repl_input_bytes": self.fed,
            "aof_enabled": 0,
            "connected_slaves": self.replicas,
        }
        return "".join(f"{key}:{value}\r\n" for key, value in fields.items()).encode()

    def _clock(self) -> int:
        """Return the time on the master's clock, in microseconds."""
        seconds = EPOCH + self.clock_offset + self._time()
        return round(seconds * 1_000_000)

    def _do_client(self, *arguments: bytes) -> object:
        verb, *options = (argument.upper() for argument in arguments)
        if verb == b"TRACKING" and options == [b"ON", b"OPTIN", b"NOLOOP"]:
            self._pushes.track()
        elif verb == b"CACHING" and options == [b"YES"]:
            if not self._pushes.speaker.tracking:
                raise Error(
                    "ERR CLIENT CACHING can be called only when the client is in tracking mode"
                    " with OPTIN or OPTOUT mode enabled"
                )
            self._pushes.speaker.caching = True
        elif verb == b"SETNAME" and len(options) == 1:
            if not all(0x20 < byte < 0x7F for byte in options[0]):
                raise Error(
                    "ERR Client names cannot contain spaces, newlines or special characters."
                )
        else:
            raise Error("ERR syntax error")
        return OK

    def _do_subscribe(self, channel: bytes) -> object:
        return self._pushes.subscribe(channel)

    def _do_unsubscribe(self, channel: bytes) -> object:
        return self._pushes.unsubscribe(channel)

    def _do_flushall(self) -> object:
        self._keys.clear()
        self._pushes.flushed()
        return OK


def running() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread, ``None`` if there is none."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _now(loop: asyncio.AbstractEventLoop | None) -> float:
    return 0.0 if loop is None else loop.time()


def encode(reply: object) -> bytes:
    """Encode a reply of `Commands.execute` in RESP3."""
    if type(reply) is bytes:  # the most frequent kind
        return b"$%d\r\n%b\r\n" % (len(reply), reply)
    if isinstance(reply, Status):
        return b"+%b\r\n" % reply
    if reply is None:
        return b"_\r\n"
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    if isinstance(reply, list):
        kind = b">" if isinstance(reply, Push) else b"*"
        return b"%b%d\r\n%b" % (kind, len(reply), b"".join(map(encode, reply)))
    return b"-%b\r\n" % str(reply).encode()
