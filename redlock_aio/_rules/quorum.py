"""
Votes and quorum: count the replies of one round.

Nothing here waits, reads a clock or opens a socket. A `Tally` gets the masters'
replies one by one, in any order, and knows after each whether the round is
decided. The speed of Redlock follows from two facts:

- A round is won with the first majority; the other masters are not awaited.
- A round is lost as soon as a majority is no longer possible. For an even
  number of masters that is at one half, not at one more than half.
"""

import enum
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field


class Answer(enum.Enum):
    """
    The answer of one master in one round.

    Attributes:
        GRANTED: It has set, extended or released the key as requested.

        HELD: Another holder has the lock there.

        FREE: Nobody has the lock there; for extensions, releases and `Redlock.inspect`.

        TIMED_OUT: It has not answered within the master timeout.

        UNREACHABLE: There is no connection to it.

        ERROR: It has answered with an error, see `Vote.detail`.

        QUARANTINED: It may have forgotten locks, so its vote does not count yet.
    """

    GRANTED = "granted"
    HELD = "held by another"
    FREE = "held by nobody"
    TIMED_OUT = "timed out"
    UNREACHABLE = "unreachable"
    ERROR = "error"
    QUARANTINED = "quarantined"


TAKING_PART = frozenset({Answer.GRANTED, Answer.HELD, Answer.TIMED_OUT})
"""The answers of masters that are up and may grant a lock, given time."""


class Outcome(enum.Enum):
    OPEN = enum.auto()
    WON = enum.auto()
    LOST = enum.auto()
    SPLIT = enum.auto()
    """A majority has granted, but other facts that must agree do not (fencing counters)."""


OK = b"OK"
"""The reply that grants a request of any kind; no other reply equals it."""

OPEN, WON, LOST, SPLIT = Outcome.OPEN, Outcome.WON, Outcome.LOST, Outcome.SPLIT


@dataclass(frozen=True, slots=True)
class Vote:
    """
    One master's answer in one round.

    Attributes:
        master: The master's address, without credentials.

        answer: Its answer, or why it gave none.

        detail: More about it, for people; never a credential or a token.

        permanent: Whether waiting does not help: a person has to change a permission,
            a password, the address of the master, or a key.
    """

    master: str
    answer: Answer
    detail: str = ""
    permanent: bool = field(default=False, repr=False, compare=False, kw_only=True)

    def __str__(self) -> str:
        text = f"{self.master}: {self.answer.value}"
        return f"{text}, {self.detail}" if self.detail else text


def majority(masters: int) -> int:
    """Return the size of a majority: any two majorities of *masters* share a master."""
    return masters // 2 + 1


class Unanswered(enum.Enum):
    """The placeholder in a tally for a master that has not replied yet."""

    YET = enum.auto()


NOT_YET = Unanswered.YET

COMPLETE = 1
"""
The sum of `Tally.to_win` and `Tally.to_lose` when every master has been counted. Each master
takes one from it, and at first it is one more than the masters.
"""


class Tally:
    """
    The count of one round among *masters*, each of which is counted once.

    Replies are kept as they came, and are interpreted only when they are read.

    Args:
        yes: The reply that grants.
    """

    __slots__ = ("_yes", "replies", "to_lose", "to_win", "verdict")

    def __init__(self, masters: int, yes: object = OK) -> None:
        self._yes = yes
        self.replies: list[object] = [NOT_YET] * masters
        self.verdict: Outcome = OPEN
        self.to_win: int = majority(masters)
        """How many more grants make a majority; 0 or less once there is one."""
        self.to_lose: int = masters - self.to_win + 1
        """How many more refusals leave no majority that could grant."""

    def __repr__(self) -> str:
        score = f"{self.granted}:{self.against} of {len(self.replies)}"
        return f"<{type(self).__name__} {score}, {self.verdict.name}>"

    def on_reply(self, master: int, reply: object, /) -> None:
        """
        Count the *reply* of the master with this number.

        A second reply of one master changes nothing: callers may have acted upon the
        first one.
        """
        replies = self.replies
        if replies[master] is not NOT_YET:
            self.late(master, reply)
            return
        if reply == self._yes:
            replies[master] = OK
            self.to_win = to_win = self.to_win - 1
            if not to_win:
                self.verdict = WON
                self.on_verdict()
        else:
            replies[master] = reply
            self.to_lose = to_lose = self.to_lose - 1
            self.declined(master, reply)
            # Never after WON: a majority granted, so fewer masters than that are left.
            if not to_lose:
                self.verdict = LOST
                self.on_verdict()

    def declined(self, master: int, reply: object) -> None:
        """Called for each reply that grants nothing; does nothing here."""

    def late(self, master: int, reply: object) -> None:
        """Called for a reply of a master that was counted before; does nothing here."""

    def recount(self, master: int) -> bool:
        """
        Count a grant of *master*, which was counted as granting nothing.

        Returns:
            Whether this grant makes the majority.
        """
        self.replies[master] = OK
        self.to_lose += 1
        self.to_win -= 1
        if self.to_win == 0:
            self.verdict = WON
        return self.to_win == 0

    def on_verdict(self) -> None:
        """Called once, when the verdict is final; does nothing here."""

    @property
    def granted(self) -> int:
        return majority(len(self.replies)) - self.to_win

    @property
    def against(self) -> int:
        return len(self.replies) - majority(len(self.replies)) + 1 - self.to_lose

    @property
    def complete(self) -> bool:
        return self.to_win + self.to_lose == COMPLETE

    @property
    def missing(self) -> list[int]:
        return [i for i, reply in enumerate(self.replies) if reply is NOT_YET]


FORBIDDEN = ("NOPERM", "ACL failure", "executing the script can't")
"""Parts of errors about a permission that is missing, also for a command in a script."""

PERMANENT = ("NOAUTH", "WRONGPASS", "MOVED", "WRONGTYPE")
"""The begins of other errors that stay until a person removes their cause."""


def is_forbidden(error: str) -> bool:
    return any(words in error for words in FORBIDDEN)


def is_permanent(error: str) -> bool:
    return error.startswith(PERMANENT) or is_forbidden(error)


def is_final(votes: Iterable[Vote]) -> bool:
    """
    Return whether waiting can't lead to a majority.

    That is so if the masters whose votes are not permanent are no majority: of three, two
    have to refuse for good. A minority of permanent refusals ends no wait.
    """
    votes = tuple(votes)
    left = sum(not vote.permanent for vote in votes)
    return left < len(votes) and left < majority(len(votes))


def is_contended(votes: Iterable[Vote]) -> bool:
    """Return whether a majority answered GRANTED or HELD, so that others held the lock."""
    votes = tuple(votes)
    on_reply = sum(vote.answer in (Answer.GRANTED, Answer.HELD) for vote in votes)
    return on_reply >= majority(len(votes))


def may_be_contended(votes: Sequence[Vote], missing: Collection[int]) -> bool:
    """Return whether the answers of the *missing* masters decide whether others held the lock."""
    heard = [vote for master, vote in enumerate(votes) if master not in missing]
    answers = sum(vote.answer in (Answer.GRANTED, Answer.HELD) for vote in heard)
    return answers < majority(len(votes)) <= answers + len(missing)
