"""Speeds up the creation of very many objects that all stay alive.

Python's cycle collector traverses the living objects again and again while their number grows. While no object can
be garbage, the collector finds nothing, but takes a third of the running time. Without this module, a remote log
with ten times the segments takes fifteen times as long.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_pausing = 0
_was_enabled = False


@contextmanager
def collector_paused() -> Iterator[None]:
    """A context in which the whole process collects no cycles; objects without references are freed as usual.
    Several threads may pause collection at the same time. Collection resumes when the last pause ends, if it was
    on before the first pause. Use it for short work that creates no cycles.
    """
    global _pausing, _was_enabled
    with _lock:
        if _pausing == 0:
            _was_enabled = gc.isenabled()
            gc.disable()
        _pausing += 1
    try:
        yield
    finally:
        with _lock:
            _pausing -= 1
            if _pausing == 0 and _was_enabled:
                gc.enable()
