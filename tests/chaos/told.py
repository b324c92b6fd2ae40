"""
What happened in a run, in a few lines for whoever looks.
"""

import sys
from collections import Counter
from collections.abc import Mapping

from .crew import Crew
from .history import by_resource, longest_gap


def report(crew: Crew, done: Mapping[str, int]) -> None:
    """Say what happened, for whoever looks."""
    sections = crew.sections()
    lost = Counter(section.reason for section in sections if section.ended == "lost")
    for resource, those in by_resource(sections).items():
        wrote = sum(section.wrote for section in those)
        sys.stdout.write(
            f"{resource}: {wrote} increments in {crew.job.seconds:g} s,"
            f" longest gap {longest_gap(those):.2f} s\n"
        )
    missed = dict(Counter(crew.missed()))
    sys.stdout.write(f"masters: {done}; leases lost: {dict(lost)}; gave up: {missed}\n")
    how = Counter("fair" if wait.fair else "plain" for wait in crew.waits() if wait.acquired_at)
    sys.stdout.write(f"turns: {dict(how)}; killed: {len(crew.killed_at)} workers\n")
