"""Spark's reads of a mirrored topic: a gap is no record, hot or cold; other appends are refused."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stratalog import Cluster
from stratalog.bridges.formats.json_text import JsonValues
from stratalog.bridges.formats.typed import TypedValues
from stratalog.bridges.mirror.compare import compare
from stratalog.bridges.mirror.mirror import mirror
from stratalog.bridges.mirror.options import MirrorOptions
from stratalog.partitions.declared import declared
from stratalog.partitions.errors import PolicyViolationError
from tests.bridges.memory_source import MemorySource
from tests.ports import ports_of, with_ports
from tests.spark.spark_cluster import TIERED, format_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_spark_reads_the_records_of_a_mirror_at_their_offsets(spark: SparkSession, tmp_path: Path) -> None:
    cluster: Cluster = format_cluster(spark, tmp_path)
    source = MemorySource()
    source.logs[0].append("a", "b", gaps=2)
    source.logs[0].append("c", None, gaps=1)
    with_ports(mirror, ports_of(cluster))(source, ["t"], MirrorOptions(replication_factor=2)).raise_for_failures()
    cluster.topics.alter_configs("t", TIERED)
    for _ in range(2):
        found = cluster.read("t").orderBy("offset").collect()
        assert [(row.offset, row.value) for row in found] == [(0, b"a"), (1, b"b"), (4, b"c"), (5, None)]
        streamed = spark.read.format("stratalog").option("cluster", str(tmp_path / "cluster.toml"))
        assert streamed.option("subscribe", "t").load().count() == 4
        cluster.tier().raise_for_failures()
        cluster.retain().raise_for_failures()
    with pytest.raises(PolicyViolationError, match="stratalog mirror t --end"):
        cluster.append("t", spark.createDataFrame([("k", b"v")], "key STRING, value BINARY"), key="key")


def test_executors_mirror_what_is_new_in_many_partitions_and_decode_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    cluster: Cluster = format_cluster(spark, tmp_path)
    source = MemorySource(3)
    for log in source.logs:
        log.append('{"id": 1}', None, "no JSON", gaps=2)
        log.epoch = 1
        log.append('{"id": 2}')
    values = TypedValues(JsonValues(declared("id LONG")))
    options = MirrorOptions(replication_factor=2, values=values, bulk_offsets=1)
    report = with_ports(mirror, ports_of(cluster))(source, ["t"], options).raise_for_failures()
    assert report.totals["tasks"]
    assert [(row["records"], row["undecoded"], row["gaps"]) for row in report.rows] == [(4, 1, 2)] * 3
    with_ports(compare, ports_of(cluster))(source, ["t"], values).raise_for_failures()
    found = cluster.read("t").orderBy("partition", "offset").select("offset", "value.id", "value._undecoded")
    assert [tuple(row) for row in found.collect()] == [
        (0, 1, None),
        (1, None, None),
        (2, None, b"no JSON"),
        (5, 2, None),
    ] * 3
