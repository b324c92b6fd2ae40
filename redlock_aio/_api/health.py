"""The health of a manager: whether its masters can give a lock now."""

from datetime import timedelta

from redlock_aio._api.opener import Opener
from redlock_aio._engine.admin.check import check
from redlock_aio._rules import timing

CHECK_WAIT = 1_000
"""The default *wait* of `Checking.check` in ms, the timeout of a readiness probe of Kubernetes."""


class Checking:
    """The part of `Redlock` that checks its masters."""

    __slots__ = ()
    _opener: Opener

    async def check(
        self,
        *,
        wait: int | timedelta = CHECK_WAIT,
        timeout: int | timedelta = CHECK_WAIT,  # noqa: ASYNC109 - also the limit of each reply
    ) -> None:
        """
        Check that a majority of the masters votes; no lock is acquired.

        Each master is asked once, by a command that reads and changes no key, and has the
        master timeout to answer. The call returns with the first majority, so a minority that
        hangs does not delay it. It is meant for readiness probes: any number of programs may
        call it every second. Like all methods it connects on first use.

        A master that answers but can't write, for lack of memory, still counts: only an
        acquisition finds that. Do not let a liveness probe call it: to restart the program
        brings no master back.

        Args:
            wait: How long to wait for connections and answers together, in milliseconds or
                as a `timedelta` (default 1 000).

            timeout: Another name of *wait*.

        Raises:
            QuorumUnavailableError: No majority votes; the error has the vote of each
                master. Its *resources* are empty, and *attempts* is 0.

            RedlockError: The manager is closed, or belongs to another event loop
                or process.

            TypeError, ValueError: *wait* is not a positive time, or *timeout* is given too.

        Cancellation:
            Nothing was asked that changes anything.
        """
        name, limit = ("wait", wait) if timeout == CHECK_WAIT else ("timeout", timeout)
        if limit is timeout and wait != CHECK_WAIT:
            raise TypeError("check() has one limit: wait=, or timeout=, which is the same")
        await check(self._opener.session(), timing.milliseconds(limit, name=name))
