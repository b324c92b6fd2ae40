"""
The pushes of a fake master: invalidations and published messages.

Invalidations work as in Redis: a connection that tracks with OPTIN and NOLOOP
gets one push for the next change of a key that it has read directly after
CLIENT CACHING, unless the change is its own.
"""

import asyncio
from collections.abc import Callable

NOTICED_AFTER = 0.1
"""Seconds after which the end of a key is noticed without an access."""


class Push(list[object]):
    """A message that is not a reply to a command."""


class PushReceiver:
    """
    One connection as the target of pushes.

    Args:
        on_push: Called with each push.
    """

    def __init__(self, on_push: Callable[[Push], None]) -> None:
        self.on_push = on_push
        self.tracking = False
        self.caching = False
        self.channels: dict[bytes, None] = {}
        self.gone = False


class Pushes:
    """
    The tracked keys and the subscriptions of all connections.

    Args:
        notice: Called with a tracked key that should have ended `NOTICED_AFTER`
            seconds ago.

        loop: Returns the event loop that uses the master, ``None`` if none has used it.

    Attributes:
        speaker: The connection whose command is being executed.
    """

    def __init__(
        self,
        notice: Callable[[bytes], None],
        loop: Callable[[], asyncio.AbstractEventLoop | None],
    ) -> None:
        self._notice = notice
        self._loop = loop
        # Dicts, because the order of a set changes from run to run.
        self._tracking: dict[PushReceiver, None] = {}
        self._remembered: dict[bytes, dict[PushReceiver, None]] = {}
        self._timers: dict[bytes, asyncio.TimerHandle] = {}
        self._subscribed: dict[bytes, dict[PushReceiver, None]] = {}
        self.speaker = self.stranger = PushReceiver(lambda _: None)

    @property
    def remembered(self) -> list[bytes]:
        """The keys that any connection tracks."""
        return list(self._remembered)

    def track(self) -> None:
        """Turn on tracking for the speaker."""
        if not self.speaker.gone:
            self.speaker.tracking = True
            self._tracking[self.speaker] = None

    def was_read(self, key: bytes, until: float) -> None:
        """Track *key* for the speaker, if it has asked for that with CLIENT CACHING."""
        speaker = self.speaker
        if speaker.tracking and speaker.caching and not speaker.gone:
            self._remembered.setdefault(key, {})[speaker] = None
            self.watch(key, until)

    def watch(self, key: bytes, until: float) -> None:
        """Schedule the notice that *key* has ended at *until*, if any connection tracks it."""
        self._unwatch(key)
        if key in self._remembered and until != float("inf"):
            loop = self._loop()
            if loop is not None and not loop.is_closed():  # else nobody hears the notice
                self._timers[key] = loop.call_at(until + NOTICED_AFTER, self._notice, key)

    def _unwatch(self, key: bytes) -> None:
        if timer := self._timers.pop(key, None):
            timer.cancel()

    def was_changed(self, key: bytes) -> None:
        """Push the change of *key* to all that track it except the speaker; stop tracking it."""
        self._unwatch(key)
        for listener in self._remembered.pop(key, ()):
            if listener is not self.speaker:
                listener.on_push(Push([b"invalidate", [key]]))

    def flushed(self) -> None:
        """Push to all connections with tracking, the speaker too, that all keys are gone."""
        for key in self.remembered:
            self._unwatch(key)
        self._remembered.clear()
        for listener in list(self._tracking):
            listener.on_push(Push([b"invalidate", None]))

    def subscribe(self, channel: bytes) -> Push:
        """Subscribe the speaker to *channel*; return the confirmation."""
        speaker = self.speaker
        if not speaker.gone:
            speaker.channels[channel] = None
            self._subscribed.setdefault(channel, {})[speaker] = None
        return Push([b"subscribe", channel, len(speaker.channels)])

    def unsubscribe(self, channel: bytes) -> Push:
        """End the speaker's subscription to *channel*; return the confirmation."""
        self._unsubscribe(self.speaker, channel)
        return Push([b"unsubscribe", channel, len(self.speaker.channels)])

    def _unsubscribe(self, listener: PushReceiver, channel: bytes) -> None:
        listener.channels.pop(channel, None)
        self._drop(self._subscribed, channel, listener)

    def publish(self, channel: bytes, message: bytes) -> int:
        """Push *message* to all subscribers of *channel*; return their number."""
        listeners = self._subscribed.get(channel, {})
        for listener in listeners:
            listener.on_push(Push([b"message", channel, message]))
        return len(listeners)

    def forget(self, listener: PushReceiver) -> None:
        """Stop all pushes to *listener*; later commands of it register nothing."""
        listener.gone = True
        self._tracking.pop(listener, None)
        for channel in list(listener.channels):
            self._unsubscribe(listener, channel)
        for key in self.remembered:
            self._drop(self._remembered, key, listener)
            if key not in self._remembered:
                self._unwatch(key)

    @staticmethod
    def _drop(
        lists: dict[bytes, dict[PushReceiver, None]], name: bytes, listener: PushReceiver
    ) -> None:
        listeners = lists.get(name, {})
        listeners.pop(listener, None)
        if not listeners:
            lists.pop(name, None)
