"""What SIGTERM leaves of a run: nothing."""

import signal
from types import FrameType
from typing import NoReturn


def stop_cleanly() -> None:
    """
    Let SIGTERM and SIGHUP end this program by `SystemExit`, as an interrupt from the keyboard does.

    By default they would end the process at once: servers end with it, but folders and networks
    stay. The second one does nothing, because it would interrupt the clean-up: `timeout` sends
    two of them. One that is ignored, as under nohup, stays so.
    """
    mine = [
        number
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is signal.SIG_DFL
    ]

    def stop(number: int, _frame: FrameType | None) -> NoReturn:
        for each in mine:
            signal.signal(each, lambda *_: None)  # not SIG_IGN: started processes would inherit it
        raise SystemExit(128 + number)  # as a shell reports the signal

    for number in mine:
        signal.signal(number, stop)
