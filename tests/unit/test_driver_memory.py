"""A driver's memory is bounded: it forgets topics that were deleted, or not used for a long time."""

from __future__ import annotations

import pytest

from stratalog.engine.driver import memory, metrics
from stratalog.engine.driver.memory import ASK_AGAIN_MS, Memory
from stratalog.engine.driver.metrics import GEN_LATENCY, SnapshotMetrics
from tests.unit.cluster_harness import LiveCluster


def test_remote_ends_and_wide_topics_are_forgotten(live: LiveCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_MOST_PARTITIONS", 2)
    live.tiered(partitions=3)
    views, kept = live.cluster.image.views("t"), Memory()
    for view in views:
        kept.remote_ends.remember(view)
        kept.remote_ends.was_silent(f"topic {view.partition}", 1000)
        kept.wide_topics.put(f"topic {view.partition}", value=True)
    assert kept.remote_ends.unknown(views) == [views[0]]
    silent = [kept.remote_ends.is_silent(f"topic {view.partition}", 999 + ASK_AGAIN_MS) for view in views]
    assert silent == [False, True, True]
    assert [kept.wide_topics.get(f"topic {view.partition}") for view in views] == [None, True, True]


def test_the_metrics_of_a_deleted_topic_end(live: LiveCluster) -> None:
    live.topic()
    live.topic("u")
    latencies = live.cluster._ports.memory.snapshot_metrics
    for topic in ("t", "u", "__cluster_metadata"):
        latencies.add(GEN_LATENCY, topic, 0, 1.0)
    live.cluster.topics.delete("t").raise_for_failures()
    rows = live.cluster.metrics().raise_for_failures().rows
    assert [row["topic"] for row in rows if row["metric"] == GEN_LATENCY] == ["__cluster_metadata", "u"]
    assert {topic for _, topic, _ in latencies._histograms} == {"u", "__cluster_metadata"}


def test_histograms_are_bounded_although_nobody_asks_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_MOST", 2)
    latencies = SnapshotMetrics()
    for topic in ("t", "u", "t", "v"):
        latencies.add(GEN_LATENCY, topic, 0, 1.0)
    assert [(row.topic, row.count) for row in latencies.rows({"t", "u", "v"})] == [("t", 2), ("v", 1)]
