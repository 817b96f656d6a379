"""Clusters with a topic to consume, for tests of consumer groups."""

from __future__ import annotations

from pathlib import Path

from stratalog.engine.state.internal_topics import OFFSETS_TOPIC
from tests.unit.cluster_harness import LiveCluster

MINUTE_S = 60
DAY_MS = 24 * 60 * 60 * 1000


def in_memory(folder: Path) -> LiveCluster:
    """Topic ``t``: three records in partition 0, one in partition 1."""
    live = LiveCluster(folder)
    live.cluster.topics.alter_configs(None, {"offsets.topic.num.partitions": "4"})
    live.topic(partitions=2)
    live.append({0: ["a", "b", "c"], 1: ["d"]}).raise_for_failures()
    return live


def on_disk(folder: Path) -> LiveCluster:
    """Topic ``t`` with two records in either partition. Broker 1, the only voter, leads neither its partitions nor
    those of ``__consumer_offsets``.
    """
    live = LiveCluster(folder, brokers=4, on_disk=True)
    live.cluster.topics.alter_configs(None, {"offsets.topic.num.partitions": "1"})
    live.topic(partitions=2)
    live.append({0: ["a", "b"], 1: ["c", "d"]}).raise_for_failures()
    live.cluster.groups.commit("warm-up", {("t", 0): 0})
    for topic, partition in ((OFFSETS_TOPIC, 0), ("t", 0), ("t", 1)):
        if live.leader(topic, partition) == 1:
            leader = min(live.isr(topic, partition) - {1})
            live.cluster.elect(topic, [partition], leader=leader).raise_for_failures()
    return live
