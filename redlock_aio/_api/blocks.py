"""
Which block of a lock is left.

A lock may be entered again while it is entered, by the same task or thread and by others, and
``__exit__`` gets nothing that says which block it ends.
"""

import inspect
from types import CodeType, FrameType
from typing import TypeAlias, TypeVar

B = TypeVar("B")
T = TypeVar("T")

GENERATORS = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
"""The flags of functions whose blocks another task or thread may leave."""

Site: TypeAlias = FrameType | CodeType
"""Where a block is entered and left: the frame that does it, or the code that this runs."""

Block: TypeAlias = tuple[Site, B]
"""A block: where it is entered, and the task or thread by which."""


def caller_of(frame: FrameType | None) -> FrameType | None:
    return None if frame is None else frame.f_back


def place_of(frame: FrameType | None, kept: int = GENERATORS) -> Site:
    """
    Return what *frame*, which enters or leaves a lock, has in common at both ends of a block.

    Args:
        kept: The flags of functions of which the frame itself tells the block. Of others it is
            the code: to keep a frame keeps the variables of all its callers alive, and those of
            an `ExitStack` would stay for as long as the lock is held.
    """
    if frame is None:  # called by no function of Python
        return place_of.__code__
    return frame if frame.f_code.co_flags & kept else frame.f_code


def left_by(frame: FrameType | None, here: Block[B], entered: dict[T, Block[B]]) -> T | None:
    """
    Return the block that *frame* leaves; ``None`` if this task or thread has entered none.

    A ``with`` enters and leaves in one function. Others, such as an `ExitStack`, enter by one
    function and leave by another: they leave the last block that this task or thread has not
    entered by a ``with`` which is still open.

    Args:
        frame: The caller of ``__exit__``.

        here: The place of *frame*, and the task or thread that runs it.

        entered: The blocks in the order of entering.
    """
    place, by = here
    # A generator leaves its own block, whoever ends it.
    whoever = place is frame
    for key, block in reversed(entered.items()):
        if block[0] is place and (whoever or block[1] == by):
            return key
    running = set[Site]()
    while frame is not None:
        running.add(frame.f_code)
        frame = frame.f_back
    ours = [key for key, (_, enterer) in reversed(entered.items()) if enterer == by]
    for key in ours:
        began = entered[key][0]
        if began not in running and not isinstance(began, FrameType):
            return key
    return ours[0] if ours else None
