"""The exit codes of ``redlock``: from 64 to 78 they are those of sysexits.h."""

import enum


class Exit(enum.IntEnum):
    """An exit code: its name is the `error` in JSON; `meaning` is the text in the reference."""

    DONE = 0
    NO = 1
    USAGE = 64
    NO_LOCK = 65
    UNAVAILABLE = 69
    FAILED = 70
    HELD_BY_OTHERS = 75
    LOST = 79
    TIMED_OUT = 124
    CANNOT_RUN = 126
    NOT_FOUND = 127

    @property
    def meaning(self) -> str:
        """The meaning of the code, for people."""
        return _MEANINGS[self]


_MEANINGS = {
    Exit.DONE: "done; `inspect`: the lock is held",
    Exit.NO: (
        "the answer is no; `inspect`, `release`: nobody holds the lock;"
        " `doctor`: a finding is serious"
    ),
    Exit.USAGE: "a wrong option or argument",
    Exit.NO_LOCK: "the keys on the masters can't be a lock, or can't be used in this way",
    Exit.UNAVAILABLE: "too few masters answered, or they refuse for good",
    Exit.FAILED: "`redlock` itself failed, or its extra is not installed",
    Exit.HELD_BY_OTHERS: "others hold the lock",
    Exit.LOST: "the lock was lost, or about to be lost, before the command had ended",
    Exit.TIMED_OUT: "the command, or others of its group, have not ended within `--timeout`",
    Exit.CANNOT_RUN: "the command can't be executed",
    Exit.NOT_FOUND: "there is no such command",
}

SIGNALLED = 128
"""Added to the number of the signal that has ended a process, as shells do."""


class Failure(Exception):  # noqa: N818 - not an error of the library, but an end of this program
    """
    An end of ``redlock`` with a message.

    Attributes:
        code: The exit code.

        facts: More about it, for ``--json``.
    """

    def __init__(self, code: Exit, message: str, **facts: object) -> None:
        super().__init__(message)
        self.code: Exit = code
        self.facts: dict[str, object] = facts
