"""How a process that runs a job is told to end: SIGTERM, and SIGINT (Ctrl-C).

A job ends at once, which harms nothing: finished work stays done. One that runs again and again (``--every``), or
appends what it reads, goes on to the end of its run, or batch; told a second time, it ends at once, too.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

_MOST_SIGNALS = 4096


class Terminated(KeyboardInterrupt):
    """SIGTERM has come."""


class Ending:
    """Whether the process has been told to end.

    It waits for a pipe besides: a signal that comes just before the system call of a sleep does not interrupt it,
    but Python has written the number of the signal to the pipe by then.
    """

    def __init__(self, pipe: int) -> None:
        """``pipe``: the end to read, of what ``signal.set_wakeup_fd`` writes to."""
        self.told = False
        self._pipe = pipe
        self._waiting = False

    def listen(self) -> None:
        """Take the signals; to be called again where a library may have taken them (Spark takes SIGINT). They come
        to the main thread: in another one nothing is taken."""
        if _is_main():
            for one in (signal.SIGTERM, signal.SIGINT):
                signal.signal(one, self._hear)

    def pause(self, seconds: float) -> None:
        """Sleep, at most until the process is told to end."""
        self.wait((), seconds)

    def wait(self, sources: Sequence[int], seconds: float | None) -> bool:
        """Whether one of these descriptors can be read, after ``seconds`` at most (None: without a limit), or
        when the process is told to end."""
        end_s = None if seconds is None else time.monotonic() + seconds
        self._waiting = True
        try:
            while not self.told:
                left_s = None if end_s is None else max(0.0, end_s - time.monotonic())
                ready, _, _ = select.select([self._pipe, *sources], [], [], left_s)
                if ready != [self._pipe]:
                    return bool(ready)
                os.read(self._pipe, _MOST_SIGNALS)  # of any signal, also one that does not end the process
            return False
        finally:
            self._waiting = False

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.told:
            raise Terminated if number == signal.SIGTERM else KeyboardInterrupt
        self.told = True
        if not self._waiting:
            os.write(
                2, b"ending after the work at hand; told once more: at once\n"
            )  # not print: it may be at work


@contextmanager
def after_the_work() -> Iterator[Ending]:
    """Within it, what it gives hears the signals, once it listens."""
    reads, writes = os.pipe()
    try:
        os.set_blocking(writes, False)
        before = signal.set_wakeup_fd(writes, warn_on_full_buffer=False) if _is_main() else -1
        try:
            with _kept():
                yield Ending(reads)
        finally:
            if _is_main():
                signal.set_wakeup_fd(before)
    finally:
        os.close(reads)
        os.close(writes)


@contextmanager
def at_once() -> Iterator[None]:
    """Within it, SIGTERM raises ``Terminated``."""

    def hear(number: int, frame: FrameType | None) -> None:
        raise Terminated

    with _kept():
        if _is_main():
            signal.signal(signal.SIGTERM, hear)
        yield


@contextmanager
def _kept() -> Iterator[None]:
    """Handlers of signals are as they were, afterwards."""
    before: dict[signal.Signals, Any] = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for one, handler in before.items() if _is_main() else ():
            if handler is not None:
                signal.signal(one, handler)


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()
