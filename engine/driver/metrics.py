"""The metrics of KIP-630 ("Metrics"), as this driver has measured them."""

from __future__ import annotations

import threading
from collections.abc import Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from stratalog.engine.driver.run import Row
from stratalog.partitions.clock import Clock

GEN_LATENCY = "GenSnapshotLatencyMs"
LOAD_LATENCY = "LoadSnapshotLatencyMs"
SIZE = "SnapshotSizeBytes"
LAG = "SnapshotLag"

_MOST = 10_000
"""The maximum number of histograms; those without new values for the longest time are forgotten."""
_KEPT = 1000
"""The number of latest values that a histogram keeps for its quantiles."""


@dataclass(slots=True)
class Histogram:
    """Values of one metric of one partition."""

    count: int = 0
    latest: list[float] = field(default_factory=list)

    def add(self, value: float) -> None:
        """Add a value."""
        self.count += 1
        self.latest.append(value)
        del self.latest[:-_KEPT]

    def quantile(self, part: float) -> float:
        """The quantile ``part``, a fraction, of the latest values; there must be at least one value."""
        return sorted(self.latest)[min(int(part * len(self.latest)), len(self.latest) - 1)]


class HistogramRow(Row, frozen=True, kw_only=True):
    """A metric of a partition: its latest measurement, and the quantiles of the kept measurements."""

    metric: str
    topic: str
    partition: int
    value: float
    count: int
    median: float
    p99: float


class SnapshotMetrics:
    """Durations of generating and loading snapshots, by metric, topic and partition. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._histograms: dict[tuple[str, str, int], Histogram] = {}

    def add(self, metric: str, topic: str, partition: int, ms: float) -> None:
        """Add a measurement, in milliseconds."""
        key = metric, topic, partition
        with self._lock:
            histogram = self._histograms.pop(key, Histogram())
            histogram.add(ms)
            self._histograms[key] = histogram
            if len(self._histograms) > _MOST:  # also forgets topics that were deleted
                del self._histograms[next(iter(self._histograms))]

    @contextmanager
    def loading(self, topic: str, partition: int, clock: Clock) -> Iterator[None]:
        """Measures the block as a load, if it ends without an error."""
        began = clock.monotonic_s()
        yield
        self.add(LOAD_LATENCY, topic, partition, 1000 * (clock.monotonic_s() - began))

    def rows(self, topics: Container[str]) -> list[HistogramRow]:
        """One row per histogram. Forgets the topics other than these, which were deleted."""
        with self._lock:
            self._histograms = {key: one for key, one in self._histograms.items() if key[1] in topics}
            return [
                HistogramRow(
                    metric=metric,
                    topic=topic,
                    partition=partition,
                    value=histogram.latest[-1],
                    count=histogram.count,
                    median=histogram.quantile(0.5),
                    p99=histogram.quantile(0.99),
                )
                for (metric, topic, partition), histogram in sorted(self._histograms.items())
            ]
