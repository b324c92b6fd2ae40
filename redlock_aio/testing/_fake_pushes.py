"""
What a fake master says unasked: that a key has changed, and what was published.

It is told as Redis does it: a connection that tracks with OPTIN and NOLOOP
hears of the next change of a key that it has read right after CLIENT CACHING,
once, unless the change is its own.
"""

import asyncio
from collections.abc import Callable

NOTICED_AFTER = 0.1
"""Seconds after its end at which a key is missed that nobody accesses."""


class Push(list[object]):
    """Something that is said unasked."""


class Listener:
    """
    One connection, as one who can be told things.

    Args:
        hear: Called with each thing that it is told.
    """

    def __init__(self, hear: Callable[[Push], None]) -> None:
        self.hear = hear
        self.tracking = False
        self.caching = False
        self.channels: dict[bytes, None] = {}
        self.gone = False


class Pushes:
    """
    Who listens to what.

    Args:
        notice: Called with a key that should have ended some time ago, if
            somebody wants to know.

    Attributes:
        speaker: Whose command is being executed.
    """

    def __init__(self, notice: Callable[[bytes], None]) -> None:
        self._notice = notice
        # Dicts, because the order of a set changes from run to run.
        self._tracking: dict[Listener, None] = {}
        self._remembered: dict[bytes, dict[Listener, None]] = {}
        self._timers: dict[bytes, asyncio.TimerHandle] = {}
        self._subscribed: dict[bytes, dict[Listener, None]] = {}
        self.speaker = self.stranger = Listener(lambda _: None)

    @property
    def remembered(self) -> list[bytes]:
        """The keys of which somebody wants to hear."""
        return list(self._remembered)

    def track(self) -> None:
        """Let the speaker be told of changes from now on."""
        if not self.speaker.gone:
            self.speaker.tracking = True
            self._tracking[self.speaker] = None

    def was_read(self, key: bytes, until: float) -> None:
        """Remember that the speaker has read *key*, if it has asked for that."""
        speaker = self.speaker
        if speaker.tracking and speaker.caching and not speaker.gone:
            self._remembered.setdefault(key, {})[speaker] = None
            self.watch(key, until)

    def watch(self, key: bytes, until: float) -> None:
        """Notice that *key* has ended, which will be at *until*, if somebody wants to know."""
        self._unwatch(key)
        if key in self._remembered and until != float("inf"):
            loop = asyncio.get_running_loop()
            self._timers[key] = loop.call_at(until + NOTICED_AFTER, self._notice, key)

    def _unwatch(self, key: bytes) -> None:
        if timer := self._timers.pop(key, None):
            timer.cancel()

    def was_changed(self, key: bytes) -> None:
        """Tell all who remember *key* but the speaker; all have forgotten it then."""
        self._unwatch(key)
        for listener in self._remembered.pop(key, ()):
            if listener is not self.speaker:
                listener.hear(Push([b"invalidate", [key]]))

    def flushed(self) -> None:
        """Tell all who track that all keys are gone, the speaker too."""
        for key in self.remembered:
            self._unwatch(key)
        self._remembered.clear()
        for listener in list(self._tracking):
            listener.hear(Push([b"invalidate", None]))

    def subscribe(self, channel: bytes) -> Push:
        """Let the speaker hear what is published; return what it is told of that."""
        speaker = self.speaker
        if not speaker.gone:
            speaker.channels[channel] = None
            self._subscribed.setdefault(channel, {})[speaker] = None
        return Push([b"subscribe", channel, len(speaker.channels)])

    def unsubscribe(self, channel: bytes) -> Push:
        """Undo `subscribe`."""
        self._unsubscribe(self.speaker, channel)
        return Push([b"unsubscribe", channel, len(self.speaker.channels)])

    def _unsubscribe(self, listener: Listener, channel: bytes) -> None:
        listener.channels.pop(channel, None)
        self._drop(self._subscribed, channel, listener)

    def publish(self, channel: bytes, message: bytes) -> int:
        """Tell all who listen to *channel*; return how many that are."""
        listeners = self._subscribed.get(channel, {})
        for listener in listeners:
            listener.hear(Push([b"message", channel, message]))
        return len(listeners)

    def forget(self, listener: Listener) -> None:
        """Never tell *listener* anything again; what it still says makes no difference."""
        listener.gone = True
        self._tracking.pop(listener, None)
        for channel in list(listener.channels):
            self._unsubscribe(listener, channel)
        for key in self.remembered:
            self._drop(self._remembered, key, listener)
            if key not in self._remembered:
                self._unwatch(key)

    @staticmethod
    def _drop(lists: dict[bytes, dict[Listener, None]], name: bytes, listener: Listener) -> None:
        listeners = lists.get(name, {})
        listeners.pop(listener, None)
        if not listeners:
            lists.pop(name, None)
