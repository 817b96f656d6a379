"""The histograms of KIP-630, "Metrics": "A histogram of the amount of time it took ..."."""

from __future__ import annotations

import pytest

from stratalog.engine.driver.metrics import LOAD_LATENCY, SnapshotMetrics
from stratalog.partitions.clock import ManualClock


def test_a_histogram_has_a_count_and_quantiles() -> None:
    metrics = SnapshotMetrics()
    for ms in range(1, 101):
        metrics.add("GenSnapshotLatencyMs", "t", 0, float(ms))
    metrics.add("GenSnapshotLatencyMs", "t", 1, 7.0)
    assert [row.columns() for row in metrics.rows({"t"})] == [
        {
            "metric": "GenSnapshotLatencyMs",
            "topic": "t",
            "partition": 0,
            "value": 100.0,
            "count": 100,
            "median": 51.0,
            "p99": 100.0,
        },
        {
            "metric": "GenSnapshotLatencyMs",
            "topic": "t",
            "partition": 1,
            "value": 7.0,
            "count": 1,
            "median": 7.0,
            "p99": 7.0,
        },
    ]


def test_quantiles_are_of_the_latest_values() -> None:
    """A long-lived driver does not keep all measurements."""
    metrics = SnapshotMetrics()
    for ms in range(5000):
        metrics.add("GenSnapshotLatencyMs", "t", 0, float(ms))
    (row,) = metrics.rows({"t"})
    assert (row.count, row.median) == (5000, 4500.0)


def test_a_load_that_fails_is_none() -> None:
    metrics, clock = SnapshotMetrics(), ManualClock()
    with pytest.raises(ZeroDivisionError), metrics.loading("t", 0, clock):
        raise ZeroDivisionError
    with metrics.loading("t", 0, clock):
        clock.sleep(0.25)
    (row,) = metrics.rows({"t"})
    assert (row.metric, row.value, row.count) == (LOAD_LATENCY, 250.0, 1)
