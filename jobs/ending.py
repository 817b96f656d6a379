"""How SIGTERM and SIGINT (Ctrl-C) end a process that runs a job.

Most jobs end immediately. This does no harm, because finished work is kept. A job that repeats itself
(``--every``), or appends its input in batches, first finishes the run or batch in progress; a second signal ends
the job immediately.
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
    """The process has received SIGTERM."""


class Ending:
    """Whether a signal has asked the process to end.

    Waits also watch a pipe, because a signal that arrives just before the system call of a sleep does not
    interrupt the sleep. By then, Python has already written the signal's number to the pipe.
    """

    def __init__(self, pipe: int) -> None:
        """``pipe`` is the read end of the pipe that ``signal.set_wakeup_fd`` writes to."""
        self.requested = False
        self._pipe = pipe
        self._waiting = False

    def listen(self) -> None:
        """Install the signal handlers. Call this method again if a library may have replaced the handlers (Spark
        takes SIGINT). Only the main thread receives signals, so in another thread this method does nothing."""
        if _is_main():
            for one in (signal.SIGTERM, signal.SIGINT):
                signal.signal(one, self._hear)

    def pause(self, seconds: float) -> None:
        """Sleep, at most until a signal asks the process to end."""
        self.wait((), seconds)

    def wait(self, sources: Sequence[int], seconds: float | None) -> bool:
        """Wait until one of these descriptors can be read, for at most ``seconds`` (None: no limit), or until a
        signal asks the process to end. Returns whether a descriptor can be read."""
        end_s = None if seconds is None else time.monotonic() + seconds
        self._waiting = True
        try:
            while not self.requested:
                left_s = None if end_s is None else max(0.0, end_s - time.monotonic())
                ready, _, _ = select.select([self._pipe, *sources], [], [], left_s)
                if ready != [self._pipe]:
                    return bool(ready)
                # any signal writes to the pipe, not only a signal that ends the process
                os.read(self._pipe, _MOST_SIGNALS)
            return False
        finally:
            self._waiting = False

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise Terminated if number == signal.SIGTERM else KeyboardInterrupt
        self.requested = True
        if not self._waiting:
            os.write(
                2, b"ending after the work in progress; a second signal ends immediately\n"
            )  # print is not safe here, because the signal may have interrupted a print


@contextmanager
def after_the_work() -> Iterator[Ending]:
    """A context manager that yields an ``Ending``. The ``Ending`` receives signals from its first ``listen``
    on."""
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
    """A context manager: within its block, SIGTERM raises ``Terminated``."""

    def hear(number: int, frame: FrameType | None) -> None:
        raise Terminated

    with _kept():
        if _is_main():
            signal.signal(signal.SIGTERM, hear)
        yield


@contextmanager
def _kept() -> Iterator[None]:
    """A context manager that restores the signal handlers at the end of its block."""
    before: dict[signal.Signals, Any] = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for one, handler in before.items() if _is_main() else ():
            if handler is not None:
                signal.signal(one, handler)


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()
