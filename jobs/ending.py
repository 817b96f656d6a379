"""How a process that runs a job is told to end: SIGTERM, and SIGINT (Ctrl-C).

A job ends at once, which harms nothing: finished work stays done. One that runs again and again (``--every``), or
appends what it reads, goes on to the end of its run, or batch; told a second time, it ends at once, too.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

from stratalog.partitions.clock import Clock

T = TypeVar("T")


class Terminated(KeyboardInterrupt):
    """SIGTERM has come."""


class _Woken(BaseException):
    """Out of a pause."""


class Ending:
    """Whether the process has been told to end."""

    def __init__(self) -> None:
        self.told = False
        self._pausing = False

    def listen(self) -> None:
        """Take the signals; to be called again where a library may have taken them (Spark takes SIGINT). They come
        to the main thread: in another one nothing is taken."""
        if _is_main():
            for one in (signal.SIGTERM, signal.SIGINT):
                signal.signal(one, self._hear)

    def pause(self, clock: Clock, seconds: float) -> None:
        """Sleep, at most until the process is told to end."""
        self.wait(lambda: clock.sleep(seconds))

    def wait(self, call: Callable[[], T]) -> T | None:
        """The answer of a call that does nothing but wait; None when the process is told to end before."""
        answer = None
        try:
            self._pausing = True
            if not self.told:
                answer = call()
            self._pausing = False
        except _Woken:
            self._pausing = False
        return answer

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.told:
            raise Terminated if number == signal.SIGTERM else KeyboardInterrupt
        self.told = True
        if self._pausing:
            raise _Woken
        os.write(2, b"ending after the work at hand; told once more: at once\n")  # not print, which may be at work


@contextmanager
def after_the_work() -> Iterator[Ending]:
    """Within it, what it gives hears the signals, once it listens."""
    with _kept():
        yield Ending()


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
