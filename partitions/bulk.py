"""Making very many objects at once, all of which stay.

Python's collector of cycles walks over the living objects again and again while their number grows. Where none of
them can be garbage yet, that finds nothing and takes a third of the time; it is why ten times the segments of a
remote log took fifteen times as long.
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
    """No collection of cycles meanwhile, in the whole process; objects that nobody refers to go as ever. Several
    threads may pause at once: it goes on, if it was on before the first of them, after the last. For work that
    ends soon and makes no cycles.
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
