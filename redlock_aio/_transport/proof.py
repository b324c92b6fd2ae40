"""
Replies that count only if the master still has its marker.

    grant ──────► held back ─┐
    grant ──────► held back ─┼─► the marker is read ─► all count, or none
    (the proof's read) ──────┘

A server that was flushed grants locks whose leases are still valid. Replies on one connection
come in the order in which the commands were executed, so a marker that is read behind a
grant, and is the one by which the master got its vote, proves that the keys were there when
the lock was granted. Other programs may write a new marker after a flush; that is another one.
"""

from collections.abc import Callable, Sequence

from redlock_aio._protocol.request import Altered, NoReply, Sender

Judge = Callable[[Sequence[object]], NoReply | None]
"""Judges the replies to a proof's commands: ``None``, or what counts instead of held replies."""


class Proof(Sender):
    """
    Commands that look at a master, and the replies that are held back until they are answered.

    Args:
        commands: The packed commands.

        judge: Called once with their replies. If it ends the connection, it has to do so before
            it returns: first the master goes down, then the senders get their `NoReply`.
    """

    __slots__ = ("_held", "_judge", "_missing", "_replies", "over", "payload")

    def __init__(self, commands: Sequence[bytes], judge: Judge) -> None:
        self.payload = b"".join(commands)
        self.over = False
        """Whether replies count now, or never will."""
        self._judge = judge
        self._missing = len(commands)
        self._replies: list[object] = []
        self._held: list[tuple[Sender, object]] = []

    def __repr__(self) -> str:
        return f"<Proof of {len(self._held)}, {self._missing} replies missing>"

    @property
    def begun(self) -> bool:
        """Whether a command is answered."""
        return bool(self._replies)

    @property
    def senders(self) -> list[Sender]:
        """The senders of the commands: itself, for each of them."""
        return [self] * self._missing

    def hold(self, sender: Sender) -> Sender:
        """Return the sender to use for *sender*, whose reply waits for this proof."""
        return Altered(sender, self.keep)

    def keep(self, sender: Sender, master: int, reply: object) -> None:
        """Take the *reply* to a held command; without a reply there is nothing to wait for."""
        if self.over or reply.__class__ is NoReply:
            sender.on_reply(master, reply)
        else:
            self._held.append((sender, reply))

    def on_reply(self, master: int, reply: object, /) -> None:
        """Take the reply to the next command; after the last one, pass on what was held."""
        if self.over:
            return
        if isinstance(reply, NoReply):
            self._finish(master, reply)
            return
        self._replies.append(reply)
        self._missing -= 1
        if not self._missing:
            self._finish(master, self._judge(self._replies))

    def _finish(self, master: int, instead: NoReply | None) -> None:
        self.over = True
        held, self._held = self._held, []
        for sender, reply in held:
            sender.on_reply(master, reply if instead is None else instead)
