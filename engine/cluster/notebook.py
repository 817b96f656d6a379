"""IPython support: progress of operations in the cell, and short tracebacks.

This module never imports IPython; without it, nothing happens.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from stratalog.partitions.clock import Clock, SystemClock
from stratalog.partitions.errors import StratalogError
from stratalog.partitions.html_table import escaped

if TYPE_CHECKING:
    from stratalog.engine.driver.tasks import Progress

_PACKAGE = __name__.partition(".")[0]
_EVERY_S = 0.5
"""The shortest time in seconds between two updates of a cell."""


def settle(progress: Progress | None) -> Progress | None:
    """Make this IPython shell, if there is one, show stratalog's errors in short form. Returns ``progress``. If
    ``progress`` is None and this is a notebook, returns a listener that draws in the notebook's cells."""
    shell = _shell()
    if shell is None:
        return progress
    if not shell.custom_exceptions:  # keep the handler of another library
        shell.set_custom_exc((StratalogError,), _show_shortly)
    if progress is None and getattr(shell, "kernel", None) is not None:
        return CellProgress(SystemClock())
    return progress


def _shell() -> Any:
    """The running shell of IPython, or None."""
    found = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return None if found is None else found()


def _show_shortly(
    shell: Any,
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
    tb_offset: int | None = None,
) -> None:
    """Show the user's lines, then the message. ``%tb`` and ``%debug`` still have the full traceback."""
    lines = list(_lines(shell, kind, error, trace))
    vars(error)["_render_traceback_"] = lambda: lines  # IPython now calls this method of the error itself
    try:
        shell.InteractiveTB.tb = trace  # for ``%debug``
        shell.showtraceback((kind, error, trace), tb_offset=tb_offset)
    finally:
        vars(error).pop("_render_traceback_", None)


def _lines(
    shell: Any, kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> Iterable[str]:
    name_of = getattr(shell.compile, "format_code_name", lambda _: None)  # since IPython 8
    for frame in _of_user(trace):
        name = name_of(frame.filename)
        where = " ".join(name) if name is not None else f"File {frame.filename}"
        yield f"{where}, line {frame.lineno}"
        yield f"----> {frame.lineno} {frame.line}"
        yield ""
    yield f"{kind.__name__}: {error}"
    yield "(%tb shows the full traceback)"


def _of_user(trace: TracebackType | None) -> list[traceback.FrameSummary]:
    """The frames of the user's code, up to the first frame of stratalog; IPython's frames are left out."""
    frames: list[traceback.FrameSummary] = []
    for at, line in traceback.walk_tb(trace):
        package = str(at.f_globals.get("__name__", "")).partition(".")[0]
        if package == _PACKAGE:
            break
        if package != "IPython":
            frames += traceback.StackSummary.extract([(at, line)])
    return frames


class CellProgress:
    """A progress bar in the cell (``stratalog.engine.driver.tasks.Progress``). The bar disappears when the work
    has ended, because the report has the result. Only work of the main thread is shown, because a stream's batches
    would draw in the cell that ran last."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._cell: Any = None
        self._operation, self._unit = "", ""
        self._items = self._done = self._bytes = 0
        self._began_s = self._drawn_s = 0.0

    def start(self, operation: str, items: int, unit: str) -> None:
        self.finish()
        if threading.current_thread() is not threading.main_thread() or not items:
            return
        from IPython.display import display

        self._operation, self._items, self._unit = operation, items, unit
        self._done = self._bytes = 0
        self._began_s = self._drawn_s = self._clock.monotonic_s()
        self._cell = display(self, display_id=True)  # type: ignore[no-untyped-call]

    def advance(self, size_bytes: int = 0) -> None:
        if self._cell is None or threading.current_thread() is not threading.main_thread():
            return
        self._done += 1
        self._bytes += size_bytes
        if self._clock.monotonic_s() - self._drawn_s >= _EVERY_S:
            self._drawn_s = self._clock.monotonic_s()
            self._cell.update(self)

    def finish(self) -> None:
        if self._cell is not None and threading.current_thread() is threading.main_thread():
            cell, self._cell = self._cell, None
            cell.update({"text/html": "", "text/plain": ""}, raw=True)

    def __repr__(self) -> str:
        seconds = self._drawn_s - self._began_s
        rate = f", {self._bytes / seconds / 1e6:,.1f} MB/s" if self._bytes and seconds else ""
        moved = f", {self._bytes / 1e6:,.1f} MB{rate}" if self._bytes else ""
        return f"{self._operation}: {self._done} of {self._items} {self._unit}{moved}, {seconds:.0f} s"

    def _repr_html_(self) -> str:
        bar = f'<progress max="{self._items}" value="{self._done}" style="width:20em"></progress>'
        return f"{bar} {escaped(repr(self))}"
