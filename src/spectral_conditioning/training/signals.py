"""Signals that ask a run to stop: a handler only sets a flag, and the run looks at it where stopping is exact.

USR1 and USR2 are warnings that schedulers send ahead of a time limit or a preemption (`sbatch --signal`), TERM comes with a
preemption, a cancellation or from a person. Whoever asks, the answer is the same: save at the next step, then stop.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

STOP_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)
# sysexits.h: a temporary failure, try again.
STOPPED_STATUS = 75

_received: list[signal.Signals] = []


class Stopped(SystemExit):
    """The run was asked to stop, saved, and ends with status 75. No error: nothing that handles errors may swallow it."""

    def __init__(self, message: str) -> None:
        super().__init__(STOPPED_STATUS)
        self.message = message


def _note(number: int, frame: FrameType | None) -> None:
    _received.append(signal.Signals(number))


def listen() -> dict[signal.Signals, Any]:
    """Let the stop signals set the flag from now on; return the handlers before. A no-op outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {number: signal.signal(number, _note) for number in STOP_SIGNALS}


@contextlib.contextmanager
def listening() -> Iterator[None]:
    """Listen within a block, then put the handlers from before back and forget what came."""
    before = listen()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if before and all(handler is not _note for handler in before.values()):
            _received.clear()


def received() -> signal.Signals | None:
    """Return the first stop signal since listening began, None when there was none."""
    return _received[0] if _received else None
