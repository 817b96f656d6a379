"""The source of a stream before Spark 4.2, which does not get the start of a batch."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.engine.reading.stream_options import stream_options
from stratalog.engine.spark.stream_source import StreamReader, source_schema
from stratalog.partitions.errors import InvalidCallError
from tests.unit.cluster_harness import LiveCluster


@pytest.mark.parametrize("what", ["expired", "grown"])
def test_a_query_continues_when_it_could_no_longer_start(tmp_path: Path, what: str) -> None:
    """Spark asks for the end of the log first, and only a new query for its start."""
    live = LiveCluster(tmp_path, on_disk=True)
    live.topic()
    live.fill("abcd")
    given = stream_options({"cluster": str(live.file), "subscribe": "t", "startingOffsets": '{"t": {"0": 1}}'})
    checkpoint = StreamReader(given, source_schema(given)).latestOffset()
    if what == "expired":
        live.cluster.topics.delete_records("t", {0: 3})
    else:
        live.cluster.topics.create_partitions("t", 2)
    live.fill("e")
    query = StreamReader(given, source_schema(given))
    end = query.latestOffset()
    assert end["topics"]["t"]["partitions"]["0"]["offset"] == 5
    assert len(query.partitions(checkpoint, end)) == 1
    with pytest.raises(InvalidCallError, match="startingOffsets"):
        query.initialOffset()
