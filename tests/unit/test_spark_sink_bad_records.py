"""Bad records in the sinks of the format, task by task, as far as they need no Spark."""

from __future__ import annotations

import pickle
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

from stratalog.engine.driver.report import OperationFailedError
from stratalog.engine.records.bad_record_lane import LeaveOut
from stratalog.engine.records.bad_records import ERRORS, NO_KEY, NO_PARTITION, PREFIX, UNKNOWN_PARTITION
from stratalog.engine.spark import stream_sink
from stratalog.engine.spark.batch_sink import batch_sink_options
from stratalog.engine.spark.sink_tasks import DEALT, LEFT_OUT, TaskAppend, TaskOf, TaskRows, left_out
from stratalog.engine.spark.stream_sink import StreamSink, sink_options
from stratalog.partitions.errors import InvalidCallError, InvalidRecordError
from tests.ports import ports_of
from tests.unit.cluster_harness import LiveCluster

DEALT_OUT = StructType(
    [
        StructField("partition", IntegerType(), metadata={DEALT: 2}),
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField(ERRORS, StructType([StructField("reason", StringType())]), metadata={LEFT_OUT: "bad"}),
    ]
)
PLAIN = StructType(
    [StructField("partition", IntegerType()), StructField("key", BinaryType()), StructField("value", BinaryType())]
)
TO_TOPIC = {"onBadRecord": "topic", "badRecordTopic": "bad"}


class Query:
    """A query's batches, as Spark would write and commit them."""

    def __init__(self, live: LiveCluster, monkeypatch: pytest.MonkeyPatch) -> None:
        self.live, self._monkeypatch = live, monkeypatch

    def sink(self, schema: StructType = DEALT_OUT, **options: str) -> StreamSink:
        """The sink that a task of a new batch gets."""
        given = sink_options({"cluster": str(self.live.file), "topic": "t", **options})
        task = StreamSink(given, schema)
        task.__dict__.update(StreamSink(given, schema).__getstate__())
        return task

    def write(self, number: int, batch: pa.RecordBatch, of: StreamSink | None = None) -> TaskAppend | TaskRows:
        task = TaskOf(number, "q1", 0)
        self._monkeypatch.setattr(stream_sink, "present_task", lambda: task)
        message: Any = (of or self.sink()).write(iter([batch]))
        return pickle.loads(pickle.dumps(message))  # type: ignore[no-any-return]

    def seen(self, topic: str = "t") -> list[str]:
        return sorted(value for values in self.live.read(topic).values() for value in values)

    def messages(self) -> dict[str, str]:
        """The messages in the topic of bad records, by value."""
        found = {}
        for partition in (0, 1):
            records = self.live.cluster.fetch("bad", partition, 0).records
            for row in records.select(["value", "headers"]).to_pylist():
                headers = {one["key"].removeprefix(PREFIX): one["value"].decode() for one in row["headers"]}
                assert headers["producer"] in ("stream", "stream@q1")
                assert headers["sequence"] == "0"
                found[row["value"].decode()] = headers["message"]
        return found


def dealt_out(partition: int, *keyed: tuple[str | None, str, str | None]) -> pa.RecordBatch:
    """Key, value, and the error of the row."""
    errors = pa.StructArray.from_arrays([pa.array([reason for *_, reason in keyed], pa.string())], ["reason"])
    return plain(*((partition, key, value) for key, value, _ in keyed)).append_column(ERRORS, errors)


def plain(*rows: tuple[int | None, str | None, str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "partition": pa.array([partition for partition, _, _ in rows], pa.int32()),
            "key": pa.array([None if key is None else key.encode() for _, key, _ in rows], pa.binary()),
            "value": pa.array([value.encode() for *_, value in rows], pa.binary()),
        }
    )


@pytest.fixture
def query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Query:
    live = LiveCluster(tmp_path)
    live.topic(partitions=2, cleanup_policy="snapshot")
    live.topic("bad", partitions=2)
    driver = cache(live.driver)
    monkeypatch.setattr(stream_sink, "_driver", lambda _: ports_of(driver()))
    return Query(live, monkeypatch)


FIRST = dealt_out(0, ("a", "1", None), (None, "2", None), ("b", "3", "given"))
SECOND = dealt_out(1, (None, "4", None))
SAID = {"2": NO_KEY, "3": "given", "4": NO_KEY}


def test_tasks_leave_bad_records_out_and_the_driver_appends_them_to_their_topic(
    query: Query, caplog: pytest.LogCaptureFixture
) -> None:
    """A partition without other records gets nothing."""
    sink = query.sink()
    messages = [query.write(0, FIRST, sink), query.write(1, SECOND, sink)]
    assert all(isinstance(message, TaskAppend) for message in messages)
    assert query.messages() == {}
    query.sink().commit([*messages], 0)
    assert (query.live.read(), query.messages()) == ({0: ["1"]}, SAID)
    assert "append to t, batch 0: 3 bad records were left out" in caplog.text


def test_a_batch_that_is_repeated_has_each_bad_record_once(query: Query) -> None:
    """The repeated batch is cut short before its end, or after it, and the tasks or the driver append it."""
    query.write(0, FIRST)  # the job is killed after the first task
    for _ in range(3):
        sink = query.sink()
        query.sink().commit([query.write(0, FIRST, sink), query.write(1, SECOND, sink)], 0)
        assert (query.seen(), query.messages(), query.seen("bad")) == (["1"], SAID, ["2", "3", "4"])


def test_a_batch_of_bad_records_alone_is_a_batch(query: Query) -> None:
    for _ in range(2):
        query.sink().commit([query.write(1, SECOND)], 0)
    assert (query.seen(), query.seen("bad")) == ([], ["4"])


def test_an_append_that_fails_leaves_no_bad_record(query: Query) -> None:
    query.live.cluster.topics.alter_configs("t", {"min.insync.replicas": "3"})
    query.live.cluster.brokers.fence(query.live.followers("t", 0)[0])
    sink = query.sink()
    with pytest.raises(OperationFailedError):
        query.sink().commit([query.write(0, FIRST, sink), query.write(1, SECOND, sink)], 0)
    assert query.seen("bad") == []


def test_undistributed_rows_may_have_no_partition(query: Query) -> None:
    rows = plain((1, "a", "1"), (None, "b", "2"), (7, "c", "3"), (-1, "d", "4"), (0, None, "5"))
    for _ in range(2):
        message = query.write(0, rows, query.sink(PLAIN, **TO_TOPIC))
        query.sink(PLAIN, **TO_TOPIC).commit([message], 0)
    assert query.live.read() == {1: ["1"]}
    assert query.messages() == {
        "2": NO_PARTITION,
        "3": f"{UNKNOWN_PARTITION}: 7",
        "4": f"{UNKNOWN_PARTITION}: -1",
        "5": NO_KEY,
    }
    assert query.seen("bad") == ["2", "3", "4", "5"]


def test_without_an_option_a_bad_record_ends_the_query_and_nothing_is_stored(query: Query) -> None:
    message = query.write(0, plain((1, "a", "1"), (0, None, "2")), query.sink(PLAIN))
    with query.live.unchanged(), pytest.raises(InvalidRecordError, match="the key is null"):
        query.sink(PLAIN).commit([message], 0)


def test_options_of_a_sink_choose_the_policy_for_bad_records() -> None:
    given = {"cluster": "c", "topic": "t"}
    assert sink_options(given).bad_records is None
    assert sink_options({**given, "onbadrecord": "skip"}).bad_records == LeaveOut()
    assert sink_options({**given, **TO_TOPIC}).bad_records == LeaveOut("bad")
    assert batch_sink_options({**given, **TO_TOPIC}).sink.bad_records == LeaveOut("bad")
    for wrong in ({"onBadRecord": "drop"}, {"onBadRecord": "topic"}, {"badRecordTopic": "bad"}):
        with pytest.raises(InvalidCallError):
            sink_options({**given, **wrong})


def test_the_rows_of_cluster_records_say_what_becomes_of_bad_ones(query: Query) -> None:
    assert left_out(DEALT_OUT) == LeaveOut("bad")
    assert left_out(PLAIN) is None
    unsaid = StructType([*PLAIN.fields, StructField(ERRORS, StructType([StructField("reason", StringType())]))])
    with pytest.raises(InvalidRecordError, match=r"reserved for cluster\.records"):
        query.sink(unsaid)
