"""The columns of a stream: selected by name, read alone, and filled with nulls if a file is older than a field."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructField, StructType

from stratalog.engine.spark.stream_columns import check_new_fields, conformed, parquet_columns, stream_schema
from stratalog.engine.spark.types import record_schema
from stratalog.partitions.errors import InvalidCallError

INNER = StructType([StructField("x", LongType()), StructField("y", LongType())])
VALUE = StructType(
    [StructField("carrier", StringType()), StructField("inner", INNER), StructField("gate", StringType())]
)
RECORDS = record_schema(StringType(), VALUE)


def chosen(*columns: str) -> StructType:
    return stream_schema(RECORDS, columns)


def test_all_columns_are_those_of_a_read() -> None:
    names = ["topic", "partition", "offset", "timestamp", "key", "value", "headers"]
    assert stream_schema(RECORDS, None).fieldNames() == names


def test_a_field_of_the_value_leaves_the_rest_of_it_out() -> None:
    """A query with ``value.carrier`` has that column with the option and without it."""
    found = chosen("offset", "value.carrier", "VALUE.inner.y")
    assert found.simpleString() == "struct<offset:bigint,value:struct<carrier:string,inner:struct<y:bigint>>>"
    assert parquet_columns(found) == ["offset", "value.carrier", "value.inner.y"]


def test_a_struct_is_all_of_it() -> None:
    assert chosen("value").simpleString() == f"struct<value:{VALUE.simpleString()}>"
    assert chosen("value", "value.gate") == chosen("value")


def test_a_batch_of_the_topics_name_alone_still_counts_its_records() -> None:
    assert parquet_columns(chosen("topic")) == ["offset"]
    rows = pa.table({"offset": [4, 5]})
    (batch,) = conformed(rows, to_arrow_schema(chosen("topic")), "t")
    assert batch.to_pydict() == {"topic": ["t", "t"]}


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("ofset", "names 'ofset', which is not a column; did you mean 'offset'"),
        ("value.carier", "did you mean 'value.carrier'"),
        ("kafka_topic_name", "which is not a column; there are topic, partition"),
    ],
)
def test_the_nearest_column_to_an_unknown_one_is_named(column: str, message: str) -> None:
    with pytest.raises(InvalidCallError) as caught:
        chosen(column)
    assert message in str(caught.value)


def test_fields_that_a_file_does_not_know_are_null_in_its_records() -> None:
    old = pa.struct([("carrier", pa.string()), ("inner", pa.struct([("x", pa.int64())]))])
    values = [{"carrier": "UA", "inner": {"x": 1}}, None, {"carrier": "AA", "inner": None}]
    rows = pa.table({"value": pa.array(values, old)})
    (batch,) = conformed(rows, to_arrow_schema(chosen("value", "headers")), "t")
    assert batch.to_pydict() == {
        "value": [
            {"carrier": "UA", "inner": {"x": 1, "y": None}, "gate": None},
            None,
            {"carrier": "AA", "inner": None, "gate": None},
        ],
        "headers": [None, None, None],
    }


def test_fields_that_the_query_does_not_know_are_left_out() -> None:
    """The topic's schema has grown since the query began."""
    new = pa.struct([("carrier", pa.string()), ("later", pa.string())])
    rows = pa.table({"value": pa.array([{"carrier": "UA", "later": "z"}], new)})
    (batch,) = conformed(rows, to_arrow_schema(chosen("value.carrier")), "t")
    assert batch.to_pydict() == {"value": [{"carrier": "UA"}]}


def test_a_sliced_struct_keeps_its_rows() -> None:
    values = [{"carrier": str(number)} for number in range(10)]
    rows = pa.table({"value": pa.array(values, pa.struct([("carrier", pa.string())]))}).slice(3, 4)
    (batch,) = conformed(rows, to_arrow_schema(chosen("value")), "t")
    assert [row["carrier"] for row in batch.column("value").to_pylist()] == ["3", "4", "5", "6"]


@pytest.mark.slow
def test_batches_are_small_however_large_a_row_group_is() -> None:
    rows = pa.table({"offset": pa.array(range(2_000_000), pa.int64())})
    batches = list(conformed(rows, to_arrow_schema(chosen("offset")), "t"))
    assert max(batch.nbytes for batch in batches) <= 4 * 1024 * 1024
    assert pa.Table.from_batches(batches).column("offset").to_pylist() == list(range(2_000_000))


def test_parquet_knows_the_columns_by_these_names() -> None:
    rows = pa.table({"offset": [1], "value": pa.array([{"carrier": "UA", "gate": "A1"}])})
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink)
    file = pq.ParquetFile(pa.BufferReader(sink.getvalue()))
    found = file.read_row_group(0, columns=parquet_columns(chosen("value.carrier")))
    assert found.to_pylist() == [{"value": {"carrier": "UA"}}]


GROWN = record_schema(
    StringType(), StructType([*VALUE, StructField("late", LongType(), metadata={"stratalog.added": True})])
)


@pytest.mark.parametrize(
    ("columns", "grown"),
    [(None, True), (("value",), True), (("value.carrier",), False), (("key", "value.inner"), False)],
)
def test_a_query_ends_where_the_columns_that_it_reads_have_grown(
    columns: tuple[str, ...] | None, grown: bool
) -> None:
    query = stream_schema(RECORDS, columns)
    check_new_fields(query, RECORDS, columns, "t")
    if grown:
        with pytest.raises(InvalidCallError, match=r"'t' has gained value\.late since .*: restart the query"):
            check_new_fields(query, GROWN, columns, "t")
    else:
        check_new_fields(query, GROWN, columns, "t")
    check_new_fields(stream_schema(GROWN, columns), RECORDS, columns, "t")
