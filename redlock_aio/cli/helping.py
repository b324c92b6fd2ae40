"""
The help of ``redlock`` and its commands: one panel for each kind of option, and an example.

The pages themselves are made in `help_pages`, which is imported when somebody asks for one.
"""

from typing import Any

from typer.core import TyperCommand, TyperGroup

MASTERS_PANEL = "Masters and output"
"""The panel of the options that every command has; the last one."""


class HelpfulCommand(TyperCommand):
    """
    A command whose help is made here: its `epilog` is an example.

    The help of typer names types of Python, and defaults a second time beside those in the texts.
    """

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help."""
        from redlock_aio.cli import help_pages

        formatter.write(help_pages.of_command(self, ctx, MASTERS_PANEL))


class HelpfulGroup(TyperGroup):
    """``redlock`` itself: its help names the commands."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help."""
        from redlock_aio.cli import help_pages

        formatter.write(help_pages.of_group(self, ctx, MASTERS_PANEL))
