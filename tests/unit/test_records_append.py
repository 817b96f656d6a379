"""The cost of an append: it follows from what is appended."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.engine.metadata.image import ClusterImage, PartitionView
from tests.unit.cluster_harness import LiveCluster


def test_an_append_to_one_partition_looks_at_no_other_one_of_its_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = LiveCluster(tmp_path)
    live.topic(partitions=50)
    looked_at: set[int] = set()
    view = ClusterImage.view

    def viewed(image: ClusterImage, topic_id: str, partition: int) -> PartitionView:
        looked_at.add(partition)
        return view(image, topic_id, partition)

    monkeypatch.setattr(ClusterImage, "view", viewed)
    live.append({7: ["a"], 9: ["b"]}).raise_for_failures()
    assert looked_at == {7, 9}
