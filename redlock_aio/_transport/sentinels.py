"""The route to a master that Sentinels name; see `route` for what all such routes have."""

import asyncio
import functools
from collections.abc import Callable

from redlock_aio._log import log
from redlock_aio._protocol import commands, confirmation
from redlock_aio._protocol.confirmation import Confirmation
from redlock_aio._protocol.request import pack
from redlock_aio._rules.server_info import ServerInfo
from redlock_aio._transport.address import Dialler, ServiceDialler, chosen_name
from redlock_aio._transport.route import ConfirmedRoute, Poll


class Sentinels(ConfirmedRoute):
    """
    The route to a master that Sentinels name; polls them until `close`.

    Args:
        client_name: The name of the connections to Sentinels for which the user chose none.

        changed: As for `ConfirmedRoute`.
    """

    def __init__(
        self,
        dialler: ServiceDialler,
        clock: Callable[[], float],
        *,
        client_name: str,
        changed: Callable[[], None],
    ) -> None:
        names = [str(each) for each in dialler.sentinels]
        super().__init__(
            dialler, clock, Confirmation(names), client_name=client_name, changed=changed
        )
        self._service = dialler
        self._cautioned = ""
        self._client_name = client_name
        self._polls: list[Poll] = []
        self._polls += [self._poll(*each) for each in enumerate(dialler.sentinels)]

    def _poll(self, number: int, sentinel: Dialler) -> Poll:
        return Poll(
            sentinel,
            self._clock,
            first=[commands.set_name(chosen_name(sentinel) or self._client_name)],
            # The subscription is for failovers.
            subscription=confirmation.SUBSCRIBE,
            questions=[
                pack(*map(str.encode, words))
                for words in confirmation.questions(self._service.service)
            ],
            on_answer=functools.partial(self._answered, number),
            on_failure=functools.partial(self._failed, number),
            on_push=self._pushed,
        )

    def identified(self, info: ServerInfo) -> ServerInfo:
        return info.in_epoch(self._dialled.epoch) if self._dialled is not None else info

    async def _dial_to(self, host: str, port: int) -> tuple[asyncio.Transport, object]:
        return await self._service.dial_to(host, port)

    def _answered(self, number: int, replies: list[object], asked_at: float) -> None:
        self._confirmation.on_answer(number, confirmation.read_answer(replies, asked_at))
        self.conclude()

    def _failed(self, number: int, reason: str, permanent: bool) -> None:
        self._confirmation.failed(number, reason, permanent=permanent)
        self.conclude()

    def _pushed(self, _number: int, push: object) -> None:
        """Called with each push: after a failover all Sentinels are asked at once."""
        if confirmation.is_switch(push, self._service.service):
            for poll in self._polls:
                poll.ask_now()

    def conclude(self) -> None:
        caution = self._confirmation.caution
        if caution and caution != self._cautioned:
            log.warning("%s", f"{self._service}: {caution}")
        self._cautioned = caution
        super().conclude()

    def _replaced_by(self, current: str) -> str:
        return f"the Sentinels name {current} as the master"

    def close(self) -> None:
        for poll in self._polls:
            poll.close()

    def abandon(self) -> None:
        for poll in self._polls:
            poll.abandon()

    async def ended(self) -> None:
        await asyncio.wait([poll.task for poll in self._polls])
