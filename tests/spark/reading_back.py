"""The records that a reader gets from a cluster on folders, without Spark: the planned files, read with pyarrow
alone."""

from __future__ import annotations

from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from stratalog import Cluster


def read_back(cluster: Cluster, topic: str) -> dict[int, list[Any]]:
    """The values of each partition in offset order. Offsets must be contiguous, and occur once."""
    found: dict[int, dict[int, Any]] = {}
    for part in cluster.plan_read(topic):
        rows = pq.ParquetFile(part.uri.removeprefix("file://")).read(["offset", "value"])
        offset = pc.field("offset")
        rows = rows.filter((offset >= part.start) & (offset < part.end))
        of_partition = found.setdefault(part.partition, {})
        for number, value in zip(rows["offset"].to_pylist(), rows["value"].to_pylist(), strict=True):
            assert number not in of_partition, f"{topic}-{part.partition}: offset {number} is planned twice"
            of_partition[number] = value
    for partition, offsets in found.items():
        expected = list(range(min(offsets), min(offsets) + len(offsets)))
        assert sorted(offsets) == expected, f"{topic}-{partition}: offsets are missing"
    return {partition: [offsets[number] for number in sorted(offsets)] for partition, offsets in found.items()}
