"""Progress of a job. On a terminal, a bar shows the partitions done, the bytes so far and the bytes per second.
Elsewhere, plain lines report on long work, so that a scheduler's log is not silent for hours. Short jobs print no
lines.

Only the tasks know how many bytes there will be, because they list the logs. So the bar counts partitions, and
shows the bytes moved so far.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

from stratalog.partitions.clock import Clock, SystemClock

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

    from stratalog.engine.driver.tasks import Progress


def terminal_progress() -> Progress:
    """Return a bar if standard error is a terminal and rich is installed; otherwise lines on standard error."""
    terminal = open_terminal()
    if terminal is None:
        return PlainProgress()
    try:
        return TerminalProgress(terminal)
    except ImportError:
        return PlainProgress()


def open_terminal() -> TextIO | None:
    """Return standard error, if it is a terminal. spark-submit gives its driver a pipe. In this case, return the
    standard error of spark-submit itself, if that is a terminal, and if the system shows which file it is.
    """
    if sys.stderr is not None and sys.stderr.isatty():
        return sys.stderr
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        with suppress(OSError):
            # "a": mode "w" would truncate a file to which standard error is redirected.
            terminal = open(f"/proc/{os.getppid()}/fd/2", "a", encoding="utf-8")  # noqa: SIM115 - kept open
            if terminal.isatty():
                return terminal
            terminal.close()
    return None


class TerminalProgress:
    """See ``stratalog.engine.driver.tasks.Progress``. Shows one bar per piece of work. The bar stays on screen
    afterwards."""

    def __init__(self, terminal: TextIO) -> None:
        """Raises: ImportError without rich."""
        from rich.console import Console

        self._console = Console(file=terminal)
        self._bars: Bars | None = None
        self._task: TaskID | None = None
        self._bytes = 0

    def start(self, operation: str, items: int, unit: str) -> None:
        from rich.filesize import decimal
        from rich.progress import BarColumn, MofNCompleteColumn, Task, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bars
        from rich.text import Text

        class BytesColumn(TextColumn):
            """``12.3 MB, 4.1 MB/s``."""

            def render(self, task: Task) -> Text:
                done, elapsed = int(task.fields["size_bytes"]), task.finished_time or task.elapsed
                rate = f", {decimal(int(done / elapsed))}/s" if elapsed and done else ""
                return Text(f"{decimal(done)}{rate}")

        self.finish()
        if items == 0:  # nothing to do, so show no bar
            return
        self._bytes = 0
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn(unit),
            BytesColumn(""),
            TimeElapsedColumn(),
            console=self._console,
        )
        self._task = self._bars.add_task(operation, total=items, size_bytes=0)
        self._bars.start()

    def advance(self, size_bytes: int = 0) -> None:
        if self._bars is not None and self._task is not None:
            self._bytes += size_bytes
            self._bars.update(self._task, advance=1, size_bytes=self._bytes)

    def finish(self) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None


class PlainProgress:
    """See ``stratalog.engine.driver.tasks.Progress``. Prints a line every ``every_s`` seconds. Shorter work prints
    no line.
    """

    def __init__(self, clock: Clock | None = None, every_s: float = 30.0) -> None:
        self._clock = clock if clock is not None else SystemClock()
        self._every_s = every_s
        self._operation, self._unit = "", ""
        self._items = self._done = self._bytes = 0
        self._began_s = self._shown_s = 0.0

    def start(self, operation: str, items: int, unit: str) -> None:
        self._operation, self._items, self._unit = operation, items, unit
        self._done = self._bytes = 0
        self._began_s = self._shown_s = self._clock.monotonic_s()

    def advance(self, size_bytes: int = 0) -> None:
        self._done += 1
        self._bytes += size_bytes
        now_s = self._clock.monotonic_s()
        if now_s - self._shown_s < self._every_s or sys.stderr is None:
            return
        self._shown_s = now_s
        moved = f", {self._bytes:,} bytes" if self._bytes else ""
        done = f"{self._done:,} of {self._items:,} {self._unit}{moved}"
        print(f"{self._operation}: {done}, {now_s - self._began_s:,.0f} s", file=sys.stderr, flush=True)

    def finish(self) -> None: ...
