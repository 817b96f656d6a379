"""A type of Spark that no topic can hold is refused with an error that names it, before anything is appended."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stratalog import Cluster
from stratalog.partitions.errors import InvalidCallError, InvalidRecordError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

VALUES = {
    "day-time interval": "INTERVAL '1 02:03:04' DAY TO SECOND",
    "year-month interval": "INTERVAL '1-2' YEAR TO MONTH",
    "calendar interval": "make_interval(1, 2)",
    "variant": "parse_json('{\"a\": 1}')",
    "void": "NULL",
    "array of variants": "array(parse_json('1'))",
    "array of intervals": "array(INTERVAL '1' DAY)",
    "struct of a void": "named_struct('x', NULL)",
}
DECLARED = ("STRING", "BIGINT", "BINARY", "STRUCT<c: STRING>", "ARRAY<BIGINT>")


@pytest.mark.parametrize("name", VALUES)
def test_a_type_that_no_topic_can_hold(cluster: Cluster, spark: SparkSession, name: str) -> None:
    frame = spark.range(1).selectExpr("id AS n", f"{VALUES[name]} AS c")
    for number, declared in enumerate(DECLARED if name != "void" else ()):  # a void is null in any type
        topic = f"declared-{number}"
        cluster.topics.create(
            topic, partitions=1, replication_factor=1, value=f"n BIGINT, c {declared}", if_not_exists=True
        )
        for policy in ("fail", "skip"):
            with pytest.raises(InvalidRecordError, match=r"'c(\.x)?'"):
                cluster.append(topic, frame, on_bad_record=policy)  # type: ignore[arg-type]
    cluster.topics.create("narrow", partitions=1, replication_factor=1, value="n BIGINT", if_not_exists=True)
    with pytest.raises(InvalidCallError, match=r"on_unknown_field is 'add': .* cannot hold the type"):
        cluster.append("narrow", frame, on_unknown_field="add")
    assert cluster.append("narrow", frame, on_unknown_field="drop").totals["dropped_fields"] == 1
