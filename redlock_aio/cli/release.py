"""``redlock release``: the release of a lock that somebody else holds."""

from typing import Annotated

import typer

from redlock_aio.cli import look
from redlock_aio.cli.exits import Exit, Failure
from redlock_aio.cli.frame import Frame, Number, command, wrong_options

Force = Annotated[
    bool, typer.Option("--force", help="Confirm that the holder loses the lock while it works.")
]
OfPermit = Annotated[
    int | None,
    Number(
        "--permit",
        least=0,
        most=999,
        help="Release this permit of the semaphore of this name; the first has the number 0.",
    ),
]


def add_to(app: typer.Typer) -> None:
    """Add the command to *app*."""
    command(app, name="release", guard="auto", example="redlock release invoice:42 --force")(
        release
    )


async def release(
    frame: Frame, key: look.Key, force: Force = False, permit: OfPermit = None
) -> int:
    """
    Release a lock for its holder, which loses it.

    The holder is notified, and its work is cancelled; then others get the lock. A holder that
    can't be notified works on, although others may have the lock.
    """
    if not force:
        raise Failure(
            Exit.USAGE, "release ends the lock of a holder that may still work: say --force"
        )
    if permit is not None:
        return await release_permit(frame, key, permit)
    async with frame.connected() as redlock:
        with wrong_options():
            state = await redlock.inspect(key)
            released = await redlock.force_release(key)
    holder = "a minority of the masters" if state.holder is None else str(state.holder)
    if state.shared:
        holder = "readers"
    text = f"{key!r} is released; it was held by {holder}" if released else f"{key!r} was not held"
    facts = {"resource": key, "released": released, "holder": look.facts_of_holder(state.holder)}
    frame.out.result(facts, frame.out.printable(text))
    return Exit.DONE if released else Exit.NO


async def release_permit(frame: Frame, key: str, permit: int) -> int:
    """Release a permit of a semaphore for its holder."""
    async with frame.connected() as redlock:
        with wrong_options():
            semaphore = redlock.semaphore(key, permits=permit + 1)
            state = await semaphore.inspect()
            released = await semaphore.force_release(permit)
    holder = state.holders.get(permit)
    who = "a minority of the masters" if holder is None else str(holder)
    name = f"permit {permit} of {key!r}"
    text = f"{name} is released; it was held by {who}" if released else f"{name} was not held"
    facts = {
        "resource": key,
        "permit": permit,
        "released": released,
        "holder": look.facts_of_holder(holder),
    }
    frame.out.result(facts, frame.out.printable(text))
    return Exit.DONE if released else Exit.NO
