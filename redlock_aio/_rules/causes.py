"""
The causes of losses, for programs to compare.

The value of a cause is a word for metrics and logs. It stays the same when a text is improved.
"""

import enum
from typing import NamedTuple

from redlock_aio._rules.quorum import Vote


class LossCause(enum.Enum):
    """
    Why a lease was lost.

    The value of each is its name in lower case, such as ``key_gone``, for metrics and logs.

    Attributes:
        NOT_EXTENDED: Too few masters confirmed an extension before its validity was over,
            or it was not to be extended.

        LOOP_STALLED: The same, and the event loop did not run when an extension was due:
            code blocked it, or the process or the machine was suspended.

        MAX_HOLD: It was held for as long as *max_hold* allows.

        KEY_GONE: A majority of the masters no longer has its key.

        OVERTAKEN: Another client has acquired the lock on a majority since.

        FORCED: It was released by `Redlock.force_release`, of any program.

        CLOSED: Its manager was closed.

        CANCELLED: The tasks of its manager were cancelled, as at the end of a program.

        LOOP_CLOSED: The event loop in which it was acquired was closed.

        ADOPTED_LATE: `Redlock.adopt` came when its validity was over.

        NOT_ADOPTED: Too few masters answered `Redlock.adopt` in time.

        FENCING_AHEAD: `Redlock.adopt` got a fencing token beyond the masters' clocks.
    """

    NOT_EXTENDED = "not_extended"
    LOOP_STALLED = "loop_stalled"
    MAX_HOLD = "max_hold"
    KEY_GONE = "key_gone"
    OVERTAKEN = "overtaken"
    FORCED = "forced"
    CLOSED = "closed"
    CANCELLED = "cancelled"
    LOOP_CLOSED = "loop_closed"
    ADOPTED_LATE = "adopted_late"
    NOT_ADOPTED = "not_adopted"
    FENCING_AHEAD = "fencing_ahead"

    @property
    def text(self) -> str:
        """What it means, as the text of an error has it."""
        return _TEXTS[self]


_TEXTS = {
    LossCause.NOT_EXTENDED: "it was not extended before its validity was over",
    LossCause.LOOP_STALLED: "it was not extended before its validity was over",
    LossCause.MAX_HOLD: "it was held for as long as max_hold allows",
    LossCause.KEY_GONE: "a majority of the masters no longer has its key",
    LossCause.OVERTAKEN: "another client has acquired the lock on a majority of the masters since",
    LossCause.FORCED: "it was released by force",
    LossCause.CLOSED: "its Redlock was closed",
    LossCause.CANCELLED: "the tasks of its Redlock were cancelled",
    LossCause.LOOP_CLOSED: "the event loop in which it was acquired was closed",
    LossCause.ADOPTED_LATE: "it was handed over, and its validity was over before it was adopted",
    LossCause.NOT_ADOPTED: "too few masters answered before its validity was over",
    LossCause.FENCING_AHEAD: "its fencing token is too far ahead of the masters' clocks",
}


class NoVoteCause(enum.Enum):
    """
    Why a master has no vote.

    The value of each is its name in lower case, such as ``not_a_master``, for metrics and logs.

    Attributes:
        NO_CONNECTION: No connection can be made: it is down, its address is wrong, or only
            one side uses TLS.

        DISCONNECTED: The connection has ended.

        SILENT: It has not answered for so long that this client has ended the connection.

        BAD_REPLY: It has sent what no Redis or Valkey sends.

        LOGIN_REFUSED: The password or the user is wrong or missing.

        FORBIDDEN: The user lacks a permission.

        NOT_A_MASTER: It is a replica or a Sentinel.

        SAME_SERVER: It is the same server as another master.

        UNSUPPORTED: It is too old, a node of a Redis Cluster, or no Redis or Valkey.

        SERVER_ERROR: It has answered with another error.

        RESTARTED: It has restarted, and may have forgotten locks.

        FLUSHED: Its keys were flushed, and locks with them.

        PROMOTED: It was a replica, and may lack locks.

        MOVED: The slot of its tag has come from another node of the Cluster.

        MARKED: Another program has marked it as one that may have forgotten locks.

        BAD_UPTIME: Its uptime is not plausible, so it may have restarted.

        UNPROVEN: It is young, and it is not known yet that all masters are new.

        SET_CONFLICT: Other programs name other masters for the same locks.

        SET_UNDECLARED: The masters of this program are not declared there yet.

        UNCONFIRMED: Too few Sentinels, or nodes of the Cluster, confirm it.

        FAILOVER: The Sentinels, or the nodes of the Cluster, name another server as the master,
            or its host name leads to another one.

        CLOSED: This program has ended the connection.
    """

    NO_CONNECTION = "no_connection"
    DISCONNECTED = "disconnected"
    SILENT = "silent"
    BAD_REPLY = "bad_reply"
    LOGIN_REFUSED = "login_refused"
    FORBIDDEN = "forbidden"
    NOT_A_MASTER = "not_a_master"
    SAME_SERVER = "same_server"
    UNSUPPORTED = "unsupported"
    SERVER_ERROR = "server_error"
    RESTARTED = "restarted"
    FLUSHED = "flushed"
    PROMOTED = "promoted"
    MOVED = "moved"
    MARKED = "marked"
    BAD_UPTIME = "bad_uptime"
    UNPROVEN = "unproven"
    SET_CONFLICT = "set_conflict"
    SET_UNDECLARED = "set_undeclared"
    UNCONFIRMED = "unconfirmed"
    FAILOVER = "failover"
    CLOSED = "closed"


class Loss(NamedTuple):
    """The loss of a lease: the arguments of its `LockLostError` after the resources."""

    cause: LossCause
    detail: str = ""
    votes: tuple[Vote, ...] = ()

    @property
    def reason(self) -> str:
        return f"{self.cause.text}: {self.detail}" if self.detail else self.cause.text
