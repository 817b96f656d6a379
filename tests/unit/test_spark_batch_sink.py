"""The sink of a batch without Spark: its tasks append once, and the driver acknowledges."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

from stratalog.engine.driver.report import OperationFailedError
from stratalog.engine.spark import batch_sink, stream_sink
from stratalog.engine.spark.batch_sink import BatchSink, batch_sink_options
from stratalog.engine.spark.sink_tasks import DEALT, TaskAppend, TaskRows
from stratalog.partitions.errors import InvalidCallError, InvalidRecordError, UnknownTopicOrPartitionError
from tests.ports import ports_of
from tests.unit.cluster_harness import LiveCluster

PLAIN = StructType([StructField("partition", IntegerType()), StructField("value", BinaryType())])
DEALT_OUT = StructType(
    [StructField("partition", IntegerType(), metadata={DEALT: 2}), StructField("value", BinaryType())]
)


class Write:
    """A write, task by task, as Spark would run it."""

    def __init__(self, live: LiveCluster, monkeypatch: pytest.MonkeyPatch) -> None:
        self.live, self._monkeypatch = live, monkeypatch

    def sink(self, schema: StructType = DEALT_OUT, **options: str) -> BatchSink:
        given = batch_sink_options({"cluster": str(self.live.file), "path": "t", **options})
        return BatchSink(given, schema)

    def task(self, sink: BatchSink, number: int, *values: str, **more: list[object]) -> TaskAppend | TaskRows:
        """The rows of the task with this number, as an executor would append them."""

        class Present:
            def partitionId(self) -> int:  # noqa: N802 - Spark's name
                return number

            def getLocalProperty(self, _: str) -> None:  # noqa: N802 - Spark's name
                return None

        for module in (batch_sink, stream_sink):
            self._monkeypatch.setattr(module.TaskContext, "get", staticmethod(Present))  # type: ignore[attr-defined]
        columns = {
            "partition": pa.array([number] * len(values), pa.int32()),
            "value": pa.array([value.encode() for value in values]),
        }
        return sink.write(iter([pa.RecordBatch.from_pydict(columns | more)]))

    def read(self) -> dict[int, list[str]]:
        return {0: [], 1: [], **self.live.read()}


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    live = LiveCluster(tmp_path)
    live.topic(partitions=2)
    driver = cache(live.driver)
    monkeypatch.setattr(stream_sink, "_driver", lambda _: ports_of(driver()))
    return Write(live, monkeypatch)


@pytest.mark.parametrize("named", [{}, {"producer": "p", "sequence": "0"}])
def test_a_task_that_runs_twice_appends_once(write: Write, named: dict[str, str]) -> None:
    sink = write.sink(**named)
    lost = write.task(sink, 0, "a", "b")
    again = write.task(sink, 0, "a", "b")
    assert isinstance(lost, TaskAppend)
    assert isinstance(again, TaskAppend)
    sink.commit([again, write.task(sink, 1, "c")])
    assert write.read() == {0: ["a", "b"], 1: ["c"]}


@pytest.mark.parametrize("schema", [PLAIN, DEALT_OUT])
def test_a_repeated_save_with_a_name_appends_once_and_one_without_twice(write: Write, schema: StructType) -> None:
    def save(value: str, **options: str) -> None:
        sink = write.sink(schema, **options)
        sink.commit([write.task(sink, 0, value)])

    for _ in range(2):
        save("a", producer="p", sequence="0")
    assert write.read()[0] == ["a"]
    with pytest.raises(OperationFailedError, match="was appended before with other records"):
        save("b", producer="p", sequence="0")
    save("b", producer="p", sequence="1")
    for _ in range(2):
        save("c")
    assert write.read()[0] == ["a", "b", "c", "c"]


def test_nothing_is_seen_of_a_write_that_is_not_committed(write: Write) -> None:
    write.task(write.sink(), 0, "a")
    assert write.read() == {0: [], 1: []}


def test_columns_besides_those_of_records_must_be_null_or_match_the_topic(write: Write) -> None:
    wider = StructType([StructField("topic", StringType()), *DEALT_OUT, StructField("offset", IntegerType())])
    sink = write.sink(wider)
    none: list[object] = [None]
    sink.commit([write.task(sink, 0, "a", topic=["t"], offset=pa.nulls(1, pa.int32()))])  # type: ignore[arg-type]
    assert write.read()[0] == ["a"]
    with pytest.raises(InvalidRecordError, match="a row's topic is 'other'"):
        write.task(sink, 0, "a", topic=["other"], offset=none)
    with pytest.raises(InvalidRecordError, match="a row's offset is 4: omit the column"):
        write.task(sink, 0, "a", topic=none, offset=[4])


def test_bad_options_are_refused(write: Write) -> None:
    with pytest.raises(InvalidCallError, match="name the topic"):
        BatchSink(batch_sink_options({"cluster": str(write.live.file)}), DEALT_OUT)
    with pytest.raises(UnknownTopicOrPartitionError):
        write.sink(path="others")
    for options, message in (
        ({"sequence": "1"}, "name the producer as well"),
        ({"producer": "p"}, "needs a sequence"),
        ({"producer": "p", "sequence": "x"}, "the option sequence is 'x'"),
        ({"onChangedReplay": "accept"}, "name the producer as well"),
    ):
        with pytest.raises(InvalidCallError, match=message):
            write.sink(**options)
    with pytest.raises(InvalidCallError, match="a write goes to one topic"):
        batch_sink_options({"cluster": "c", "subscribe": "a,b"})
    assert batch_sink_options({"cluster": "c", "subscribe": "a", "startingOffsets": "latest"}).sink.topic == "a"
