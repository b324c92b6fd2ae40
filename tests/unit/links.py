"""Links between one program and fake masters, which a test can cut in one direction or both."""

import asyncio
from collections.abc import Callable

from redlock_aio.testing import FakeMaster


class Link:
    """
    The link between one program and one master.

    Bytes that are sent while their direction is cut arrive when it is mended, because TCP
    sends them again, unless the program has reset its connection by then.

    Args:
        master: The master at the other end.
    """

    secrets = ()

    def __init__(self, master: FakeMaster) -> None:
        self._master = master
        self._requests_pass = True
        self._replies_pass = True
        self._delayed: list[Callable[[], None]] = []

    def __str__(self) -> str:
        return str(self._master)

    def cut(self, *, requests: bool = True, replies: bool = True) -> None:
        """Stop the bytes in these directions."""
        self._requests_pass = self._requests_pass and not requests
        self._replies_pass = self._replies_pass and not replies

    def mend(self) -> None:
        """Deliver the stopped bytes, and all later ones."""
        self._requests_pass = self._replies_pass = True
        delayed, self._delayed = self._delayed, []
        for deliver in delayed:
            deliver()

    async def dial(self) -> tuple[asyncio.Transport, object]:
        """Connect when both directions are open."""
        while not (self._requests_pass and self._replies_pass):  # noqa: ASYNC110 - as a lost SYN
            await asyncio.sleep(0.05)
        transport, keep = await self._master.dial()
        write, deliver = transport.write, transport.deliver  # type: ignore[attr-defined]

        def send(data: bytes) -> None:
            self._pass(self._requests_pass, lambda: write(data))

        def receive(data: bytes) -> None:
            self._pass(self._replies_pass, lambda: self.read(lambda: deliver(data)))

        transport.__dict__.update(write=send, deliver=receive)
        return transport, keep

    def read(self, deliver: Callable[[], None]) -> None:
        """Deliver bytes to the program; subclasses delay them."""
        deliver()

    def _pass(self, passes: bool, deliver: Callable[[], None]) -> None:
        if passes:
            deliver()
        else:
            self._delayed.append(deliver)


class BusyLink(Link):
    """A link to a quick master whose replies a busy program reads late, one after the other."""

    each = 0.0
    """Seconds that the program needs for each reply."""

    _free_at = 0.0

    def read(self, deliver: Callable[[], None]) -> None:
        """Deliver bytes when the program has read all earlier ones."""
        loop = asyncio.get_running_loop()
        self._free_at = max(self._free_at, loop.time()) + self.each
        loop.call_at(self._free_at, deliver)


class FarLink(Link):
    """A link to a master that is far away."""

    delay = 0.15
    """The additional delay in each direction, in seconds."""

    def _pass(self, passes: bool, deliver: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(self.delay, super()._pass, passes, deliver)


def links_to(masters: list[FakeMaster]) -> list[Link]:
    """Return the links of one program to *masters*."""
    return [Link(master) for master in masters]
