"""The sinks of a stream, as far as they need no Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType, TimestampType

from stratalog.engine.driver.opening import Ports
from stratalog.engine.driver.report import OperationFailedError
from stratalog.engine.records.append import append_batches, who_appends
from stratalog.engine.spark import stream_sink
from stratalog.engine.spark.sink_tasks import batches_of
from stratalog.engine.spark.stream_sink import StreamSink, TaskRows, query_producer, sink_options
from stratalog.partitions.errors import InvalidCallError, InvalidRecordError
from tests.ports import ports_of, with_ports
from tests.unit.cluster_harness import LiveCluster

SCHEMA = StructType([StructField("partition", IntegerType()), StructField("value", BinaryType())])


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LiveCluster:
    made = LiveCluster(tmp_path)
    made.topic(partitions=2)

    def opened(file: str, *_: str | None) -> Ports:
        """The writer that Spark's process on the driver would open."""
        assert file == str(made.file)
        return ports_of(made.driver())

    monkeypatch.setattr(stream_sink, "open_driver", opened)
    return made


def sink(live: LiveCluster) -> StreamSink:
    return StreamSink(sink_options({"cluster": str(live.file), "topic": "t"}), SCHEMA)


def rows(*values: tuple[int, str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "partition": pa.array([partition for partition, _ in values], pa.int32()),
            "value": pa.array([value.encode() for _, value in values]),
        }
    )


def written(live: LiveCluster, *batches: pa.RecordBatch, query: str = "q1") -> TaskRows:
    return TaskRows(query, sink(live).write(iter(batches)).data)


def test_a_batch_is_appended_once_however_often_it_is_committed(live: LiveCluster) -> None:
    """This is so for any distribution of its rows over tasks."""
    sink(live).commit([written(live, rows((0, "a"), (1, "b")), rows((0, "c"))), written(live)], 0)
    assert live.read() == {0: ["a", "c"], 1: ["b"]}
    sink(live).commit([written(live, rows((1, "b"))), written(live, rows((0, "a"), (0, "c")))], 0)
    assert live.read() == {0: ["a", "c"], 1: ["b"]}
    sink(live).commit([written(live, rows((0, "d")))], 1)
    assert live.read() == {0: ["a", "c", "d"], 1: ["b"]}


def test_times_are_instants_whatever_the_time_zone_of_the_session(live: LiveCluster) -> None:
    """Spark puts the session's zone into the types that it passes; those of a topic are in UTC."""
    value = StructType([StructField("at", TimestampType())])
    schema = StructType([StructField("partition", IntegerType()), StructField("value", value)])
    made = StreamSink(sink_options({"cluster": str(live.file), "topic": "t"}), schema)
    times = pa.array([{"at": 5}], pa.struct({"at": pa.timestamp("us", "Etc/UTC")}))
    batch = pa.RecordBatch.from_pydict({"partition": pa.array([0], pa.int32()), "value": times})
    table = pa.ipc.open_stream(made.write(iter([batch])).data).read_all()
    assert table.column("value").type == pa.struct({"at": pa.timestamp("us", "UTC")})
    assert table.column("value").combine_chunks().field("at").cast(pa.int64()).to_pylist() == [5]


def test_a_batch_of_which_one_partition_was_appended_is_completed(live: LiveCluster) -> None:
    producer = query_producer("stream", "q1")
    only = batches_of(pa.Table.from_batches([rows((0, "a"))]), "t")
    with_ports(append_batches, ports_of(live.cluster))("t", only, who_appends(producer, 7)).raise_for_failures()
    sink(live).commit([written(live, rows((0, "a"), (1, "b")))], 7)
    assert live.read() == {0: ["a"], 1: ["b"]}


def test_a_query_with_a_new_checkpoint_is_another_one(live: LiveCluster) -> None:
    """The batches of the new query are counted from 0 again, and are not taken for those in the log."""
    sink(live).commit([written(live, rows((0, "a")), query="q1")], 0)
    sink(live).commit([written(live, rows((0, "b")), query="q2")], 0)
    assert live.read() == {0: ["a", "b"]}


def test_a_batch_without_rows_appends_nothing(live: LiveCluster) -> None:
    with live.unchanged():
        sink(live).commit([written(live), None], 0)


def test_a_partition_that_cannot_be_appended_to_ends_the_query(live: LiveCluster) -> None:
    live.cluster.topics.alter_configs("t", {"min.insync.replicas": "3"})
    live.cluster.brokers.fence(live.followers()[0])
    with pytest.raises(OperationFailedError):
        sink(live).commit([written(live, rows((0, "a")))], 0)


def test_too_many_rows_for_the_driver_are_refused(live: LiveCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_sink, "MOST_TASK_BYTES", 1000)
    large = rows(*((0, f"{number:x}" * 9) for number in range(1000)))
    with pytest.raises(InvalidRecordError, match=r"cluster\.stream_writer"):
        sink(live).write(iter([large]))


def test_columns_that_are_not_given_are_filled_in() -> None:
    found = batches_of(pa.Table.from_batches([rows((1, "a"), (0, "b"))]), "t")
    assert sorted(found) == [0, 1]
    assert found[1][0].to_pylist() == [
        {"timestamp": None, "key": None, "value": b"a", "headers": None}  # the append sets the time
    ]


def test_a_row_without_a_partition_is_refused() -> None:
    with pytest.raises(InvalidRecordError, match="append to t: a row's partition is null"):
        batches_of(pa.table({"partition": pa.nulls(1, pa.int32()), "value": [b"a"]}), "t")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"topic": "t"}, "the option cluster is missing"),
        ({"cluster": "c", "topic": "t", "producer": ""}, "the option producer is missing"),
        ({"cluster": "c", "topic": "t", "prodcer": "x"}, "did you mean 'producer'"),
        ({"cluster": "c", "topic": "t", "onChangedReplay": "ignore"}, "give 'refuse' or 'accept'"),
        ({"cluster": "c", "topic": "t", "startingOffsets": "latest"}, "unknown option 'startingOffsets'"),
    ],
)
def test_bad_options_of_a_sink_are_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidCallError) as caught:
        sink_options(given)
    assert message in str(caught.value)


def test_the_folder_of_a_table_is_no_topic() -> None:
    with pytest.raises(InvalidCallError, match=r'start\("topic"\); toTable passes the folder'):
        sink_options({"cluster": "c", "topic": "t", "path": "file:/warehouse/trips"})


def test_the_argument_of_start_is_the_topic() -> None:
    assert sink_options({"cluster": "c", "path": "t"}) == sink_options({"cluster": "c", "topic": "t"})
    with pytest.raises(InvalidCallError, match="the options topic and path are the same"):
        sink_options({"cluster": "c", "topic": "t", "path": "u"})


def test_a_stream_writer_without_a_name_is_refused(live: LiveCluster) -> None:
    with pytest.raises(InvalidCallError, match="the name of the producer is empty"):
        live.cluster.stream_writer("t", producer="")


@pytest.mark.slow
def test_a_batch_that_is_repeated_with_other_rows_ends_the_query_and_says_what_to_do(live: LiveCluster) -> None:
    """The checkpoint is older than the topic."""
    for batch_id in range(7):
        sink(live).commit([written(live, rows((0, f"{batch_id}"), (1, f"{batch_id}")))], batch_id)
    before = live.read()
    for batch_id, other in ((6, rows((0, "x"), (1, "6"))), (5, rows((1, "5"))), (0, rows((0, "x"), (1, "0")))):
        with pytest.raises(
            OperationFailedError, match=r"OUT_OF_ORDER_SEQUENCE_NUMBER.*Restore the newer checkpoint"
        ):
            sink(live).commit([written(live, other)], batch_id)
    sink(live).commit([written(live, rows((0, "0"), (1, "0")))], 0)  # the log's files show that it is the same
    assert live.read() == before


def test_a_sink_that_accepts_changed_replays_takes_them_for_the_same(live: LiveCluster) -> None:
    options = sink_options({"cluster": str(live.file), "topic": "t", "onChangedReplay": "accept"})
    accepting = StreamSink(options, SCHEMA)
    for value in ("a", "b"):
        accepting.commit([written(live, rows((0, value)))], 0)
    assert live.read() == {0: ["a"]}
