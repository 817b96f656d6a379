"""The progress of a run, for a bar: ``STEP`` offsets are one step of the bar."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from stratalog.bridges.mirror.partitions import MirroredPartition
from stratalog.engine.driver.tasks import Progress

STEP = 100_000
"""The number of offsets per step."""


class OffsetSteps:
    """Reports steps of ``STEP`` offsets, counted over all partitions."""

    def __init__(self, progress: Progress, parts: Iterable[MirroredPartition]) -> None:
        """Start the progress up to the partitions' ``stable_end``."""
        self._progress = progress
        self._lock = threading.Lock()
        self._whole = sum(max(0, part.bounds.stable_end - part.log_end) for part in parts)
        self._offsets = self._shown = self._bytes = 0
        progress.start("mirror", -(-self._whole // STEP), f"x {STEP:,} offsets")

    def passed(self, offsets: int, size_bytes: int) -> None:
        """Count more copied offsets. Thread-safe."""
        with self._lock:
            self._offsets += offsets
            self._bytes += size_bytes
            all_here = self._offsets >= self._whole
            due = -(-self._whole // STEP) if all_here else self._offsets // STEP
            while self._shown < due:
                self._shown += 1
                self._progress.advance(self._bytes)
                self._bytes = 0
