"""The tier of a Kafka cluster as a DataFrame: tasks read the segments, on a session of either kind."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stratalog.bridges.kafka_tier import tasks as tier_tasks
from stratalog.bridges.mirror.compare import compare
from stratalog.bridges.mirror.mirror import mirror
from stratalog.bridges.mirror.options import MirrorOptions
from tests.bridges.kafka_tier_data import AIVEN, MAIN, Row, Tier, opened, real
from tests.bridges.test_mirror_tier import Brokers, whole
from tests.ports import ports_of, with_ports
from tests.spark.spark_cluster import TIERED, format_cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, real]


def rows_of(frame: DataFrame) -> list[Row]:
    rows = frame.selectExpr("*", "unix_millis(timestamp) AS ms").orderBy("topic", "partition", "offset").collect()
    return [
        (
            *(row.offset, -1 if row.ms is None else row.ms, row.timestampType, row.leaderEpoch),
            None if row.key is None else bytes(row.key),
            None if row.value is None else bytes(row.value),
            [(pair.key, None if pair.value is None else bytes(pair.value)) for pair in row.headers or []],
        )
        for row in rows
    ]


@pytest.mark.connect
@pytest.mark.parametrize("folder", [MAIN, f"{AIVEN}/encrypted"])
def test_a_dataframe_has_the_records_that_consumers_got(folder: str, spark: SparkSession) -> None:
    topic = "plain" if folder == MAIN else "docs"
    tier, data = opened(folder), Tier(folder)
    frame = tier.read(spark, topic, start={0: 5, 1: 100}, end={0: 850, 1: 900})
    assert frame.columns == [
        *("topic", "partition", "offset", "timestamp", "timestampType", "key", "value", "headers", "leaderEpoch"),
    ]
    expected = [row for row in data.records(f"{topic}-0") if 5 <= row[0] < 850]
    expected += [row for row in data.records(f"{topic}-1") if 100 <= row[0] < 900]
    assert rows_of(frame) == expected
    assert frame.select("topic", "partition").distinct().count() == 2
    assert rows_of(tier.read(spark, topic, start=3, end=3)) == []


@pytest.mark.connect
def test_committed_records_end_where_a_transaction_is_open(spark: SparkSession) -> None:
    with pytest.warns(UserWarning, match="has not ended in the tier"):
        frame = opened(MAIN).read(spark, "txn", partitions=[0], isolation="read_committed")
    [part] = Tier(MAIN).truth("txn")["partitions"][:1]
    committed = {offset for first, last in part["readCommittedRanges"] for offset in range(first, last + 1)}
    truth = Tier(MAIN).records("txn-0")
    assert rows_of(frame) == [row for row in truth if row[0] in committed and row[0] < 1033]


@pytest.mark.connect
def test_values_are_decoded_by_the_tasks(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "any.ddl").write_text("id BIGINT, `to where` STRING")
    frame = opened(MAIN).read(
        spark, "plain", partitions=[0], end=50, value_format="json", schema_file=str(tmp_path / "any.ddl")
    )
    assert frame.select("value.*").columns == ["_undecoded", "id", "to where"]
    found = frame.orderBy("offset").select("value._undecoded").collect()
    values = [row[5] for row in Tier(MAIN).records("plain-0")[:50]]
    assert [None if row[0] is None else bytes(row[0]) for row in found] == values


@pytest.mark.long("executors mirror a topic, which is then tiered")
def test_executors_mirror_a_tier_which_is_then_a_delta_table_here(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tier_tasks, "TASK_BYTES", 16_000)
    cluster = format_cluster(spark, tmp_path)
    options = MirrorOptions(replication_factor=2, bulk_offsets=1, tier=True)
    report = with_ports(mirror, ports_of(cluster))(whole("plain"), ["plain"], options).raise_for_failures()
    assert int(report.totals["tasks"] or 0) > 8
    assert report.totals["from_tier"] == 2430 + 2040, report.notes
    with_ports(compare, ports_of(cluster))(Brokers("plain"), ["plain"]).raise_for_failures()
    cluster.topics.alter_configs("plain", TIERED)
    assert cluster.tier().raise_for_failures().totals["uploaded_files"]
    with_ports(compare, ports_of(cluster))(Brokers("plain"), ["plain"]).raise_for_failures()
