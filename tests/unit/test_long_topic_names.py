"""The longest name of a topic fits every folder named after it, on brokers and in the remote tier."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.partitions.errors import InvalidTopicError
from stratalog.partitions.paths import MAX_TOPIC_LENGTH, topic_folder
from tests.unit.cluster_harness import LiveCluster

LONGEST_FILE_NAME = 255
"""The limit of ext4, xfs, APFS and NTFS."""


def test_the_longest_name_with_the_topic_id_is_the_longest_name_of_a_folder() -> None:
    assert len(topic_folder("t" * MAX_TOPIC_LENGTH, "a" * 32)) == LONGEST_FILE_NAME


def test_a_topic_with_the_longest_name_is_appended_to_tiered_read_and_deleted(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path, on_disk=True)
    topic = "t" * MAX_TOPIC_LENGTH
    live.tiered(topic)
    live.fill("ab", topic)
    for job in (live.cluster.tier, live.cluster.retain, live.cluster.snapshot, live.cluster.vacuum):
        job().raise_for_failures()
    live.cluster.verify(deep=True).raise_for_failures()
    assert live.read(topic) == {0: ["a", "b"]}
    live.cluster.topics.delete(topic).raise_for_failures()


def test_a_longer_name_is_refused_before_anything_is_committed(tmp_path: Path) -> None:
    """No replica could have a folder, and every job would fail because of the topic."""
    live = LiveCluster(tmp_path, on_disk=True)
    with live.unchanged(), pytest.raises(InvalidTopicError, match="use 1 to 222 of a-z"):
        live.topic("t" * (MAX_TOPIC_LENGTH + 1))
