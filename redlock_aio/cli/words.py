"""Where the options of ``redlock`` end, and the words of another command begin."""

from collections.abc import Sequence
from typing import Any

from redlock_aio.cli.helping import HelpfulCommand


class CommandBefore(HelpfulCommand):
    """
    A command that runs another one: ``redlock run KEY COMMAND...``.

    Its own options end at the first word of the other command, or at ``--``, as those of
    ``flock``, ``env`` and ``timeout`` do. What follows belongs to the other command, also if
    it looks like an option of this one.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse only the words of this command."""
        own = self.count_own(args)
        rest = args[own:]
        return super().parse_args(ctx, args[:own] + (["--", *rest] if rest[:1] != ["--"] else rest))

    def count_own(self, words: Sequence[str]) -> int:
        """Return how many of *words* come before the other command, or before ``--``."""
        have_value = {
            name
            for parameter in self.params
            if parameter.param_type_name == "option" and not getattr(parameter, "is_flag", False)
            for name in parameter.opts
        }
        names = 0  # of locks: there is one, then the command begins
        at = 0
        while at < len(words) and words[at] != "--":
            word = words[at]
            if not word.startswith("-") or word == "-":
                if names == 1:
                    break
                names += 1
            elif _takes_next(word, have_value):
                at += 1
            at += 1
        return min(at, len(words))


def _takes_next(word: str, have_value: set[str]) -> bool:
    """Return whether the value of an option is the next word: ``--ttl 5s``, but ``--ttl=5s``."""
    if word.startswith("--"):
        return word in have_value
    for place, letter in enumerate(word[1:], 2):
        if f"-{letter}" in have_value:
            return place == len(word)  # `-mURL` has it in the same word
    return False
