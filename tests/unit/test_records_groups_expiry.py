"""Commits of consumer groups are deleted with their topic, and after a time (KIP-211)."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog import OffsetAndMetadata
from stratalog.engine.state.internal_topics import OFFSETS_TOPIC
from tests.unit.cluster_harness import LiveCluster
from tests.unit.faulty_store import Faults
from tests.unit.groups_harness import MINUTE_S, in_memory
from tests.unit.harness import batch


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    return in_memory(tmp_path)


def test_offsets_do_not_pass_to_a_new_topic_of_the_same_name(live: LiveCluster) -> None:
    """Offsets are stored by topic id."""
    live.cluster.groups.commit("g", {("t", 0): 3})
    live.cluster.topics.delete("t")
    assert live.cluster.groups.committed("g") == {}
    live.topic(partitions=2)
    assert live.cluster.groups.committed("g") == {}
    assert live.cluster.groups.lag("g").rows == []


def forgotten(live: LiveCluster) -> int:
    """The number of records that a run of the snapshot job appends to delete groups and offsets."""
    report = live.cluster.snapshot(OFFSETS_TOPIC).raise_for_failures()
    return sum(int(str(row["expired"])) for row in report.rows)


def test_dead_groups_are_forgotten_by_the_snapshot_job(live: LiveCluster) -> None:
    """offsets.retention.minutes after the latest commit; a live group keeps all of its offsets (KIP-211)."""
    live.cluster.topics.alter_configs(None, {"offsets.retention.minutes": "10"})
    live.cluster.groups.commit("dead", {("t", 0): 1, ("t", 1): 1}, member_epoch=4)
    live.cluster.groups.commit("lives", {("t", 0): 1})
    live.clock.sleep(5 * MINUTE_S)
    live.cluster.groups.commit("lives", {("t", 1): 1})
    live.clock.sleep(5 * MINUTE_S - 0.001)
    assert forgotten(live) == 0
    live.clock.sleep(0.001)
    assert forgotten(live) == 3  # two offsets, and the group itself
    for cluster in (live.cluster, live.driver()):
        assert cluster.groups.committed("dead") == {}
        assert cluster.groups.committed("lives") == {
            ("t", 0): OffsetAndMetadata(1),
            ("t", 1): OffsetAndMetadata(1),
        }
    assert forgotten(live) == 0
    live.cluster.groups.commit("dead", {("t", 0): 2}, member_epoch=1)  # the group begins again


def test_offsets_of_deleted_topics_are_forgotten_at_once(live: LiveCluster) -> None:
    live.topic("u")
    live.append(["x"], "u")
    live.cluster.groups.commit("g", {("t", 0): 1, ("u", 0): 1})
    live.cluster.topics.delete("u")
    assert forgotten(live) == 1
    assert forgotten(live) == 0
    assert live.driver().groups.committed("g") == {("t", 0): OffsetAndMetadata(1)}


def test_a_group_that_commits_again_right_at_its_expiry_keeps_what_it_has(tmp_path: Path) -> None:
    """The group commits between the look at the expired groups and the append: nothing of a live group is lost,
    not even offsets of partitions for which it has not committed now.
    """
    faults = Faults()
    live = LiveCluster(tmp_path, through=faults.wrap)
    live.cluster.topics.alter_configs(
        None, {"offsets.topic.num.partitions": "1", "offsets.retention.minutes": "10"}
    )
    live.topic(partitions=2)
    live.append({0: ["a"], 1: ["b"]}).raise_for_failures()
    live.cluster.groups.commit("g", {("t", 0): 1, ("t", 1): 1})
    live.clock.sleep(10 * MINUTE_S)
    consumer = live.driver()

    faults.once(lambda: consumer.groups.commit("g", {("t", 0): 0}), "stage", of=OFFSETS_TOPIC)
    assert forgotten(live) == 3
    for cluster in (live.cluster, live.driver()):
        assert cluster.groups.committed("g") == {("t", 0): OffsetAndMetadata(0), ("t", 1): OffsetAndMetadata(1)}


def test_a_topic_that_is_created_while_offsets_expire_keeps_its_commits(tmp_path: Path) -> None:
    """Groups are read before topics, so commits for a topic that is younger than either look are not mistaken for
    commits for a deleted one.
    """
    faults = Faults()
    live = LiveCluster(tmp_path, through=faults.wrap)
    live.cluster.topics.alter_configs(None, {"offsets.topic.num.partitions": "1"})
    live.topic()
    live.append(["a"]).raise_for_failures()
    live.cluster.groups.commit("g", {("t", 0): 1})
    other, partitions_listed = live.driver(), 0

    def create(uri: str, what: str, name: str) -> None:
        nonlocal partitions_listed
        if what == "list" and OFFSETS_TOPIC in name:
            faults.none()
            partitions_listed += 1
            other.topics.create("new", replication_factor=3)
            other.append_batches("new", {0: [batch(["x"])]}).raise_for_failures()
            other.groups.commit("g", {("new", 0): 1})

    faults.before = create
    live.cluster.snapshot(OFFSETS_TOPIC).raise_for_failures()
    assert partitions_listed == 1
    assert live.driver().groups.committed("g", "new") == {("new", 0): OffsetAndMetadata(1)}
