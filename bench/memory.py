"""The peak memory of this process, or of the Python workers that its JVM has started, from ``/proc``."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

EVERY_S = 0.1
_PROC = Path("/proc")


@dataclass(slots=True)
class Peak:
    """The largest resident set of any single worker; None if the system does not report it."""

    bytes: int | None = None


@contextmanager
def worker_peak() -> Iterator[Peak]:
    """Watch the workers during the block; ``bytes`` is set afterwards."""
    peak = Peak()
    ended = threading.Event()

    def watch() -> None:
        while True:
            last = ended.wait(EVERY_S)
            sizes = [size for worker in workers(os.getpid()) if (size := _peak_of(worker)) is not None]
            peak.bytes = max([*sizes, *([] if peak.bytes is None else [peak.bytes])], default=None)
            if last:
                return

    for worker in workers(os.getpid()):
        _count_from_here(worker)
    watcher = threading.Thread(target=watch, name="worker-peak", daemon=True)
    watcher.start()
    try:
        yield peak
    finally:
        ended.set()
        watcher.join()


@contextmanager
def own_peak() -> Iterator[Peak]:
    """The peak memory of this process, including everything that it already holds."""
    peak = Peak()
    _count_from_here(_PROC / "self")
    yield peak
    peak.bytes = own_peak_so_far()


def own_peak_so_far() -> int | None:
    """The peak memory of this process since its program began; getrusage would include the process that forked
    it."""
    return _peak_of(_PROC / "self")


def workers(root: int) -> list[Path]:
    """The ``/proc`` folders of pyspark's processes below the process ``root``."""
    children: dict[int, list[int]] = defaultdict(list)
    for folder in _PROC.glob("[0-9]*"):
        with suppress(OSError, IndexError, ValueError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            children[parent].append(int(folder.name))
    found: list[Path] = []
    waiting = [root]
    while waiting:
        for child in children[waiting.pop()]:
            waiting.append(child)
            with suppress(OSError):
                # Forked processes keep the command of their parent.
                if b"pyspark.daemon" in (_PROC / str(child) / "cmdline").read_bytes():
                    found.append(_PROC / str(child))
    return found


def _count_from_here(process: Path) -> None:
    with suppress(OSError):
        (process / "clear_refs").write_text("5")  # resets the kernel's peak


def _peak_of(worker: Path) -> int | None:
    with suppress(OSError):
        for line in (worker / "status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return None
