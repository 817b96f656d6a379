"""The tasks of a stream's sink: each appends the rows of its partition, once, and the driver acknowledges."""

from __future__ import annotations

import pickle
from functools import cache
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

from stratalog.engine.driver.report import OperationFailedError
from stratalog.engine.spark import sink_tasks, stream_sink
from stratalog.engine.spark.sink_tasks import DEALT, TaskAppend, TaskOf, TaskRows
from stratalog.engine.spark.stream_sink import StreamSink, sink_options
from stratalog.partitions.errors import RetriableError, StorageError
from tests.ports import ports_of
from tests.unit.cluster_harness import LiveCluster
from tests.unit.faulty_store import Faults

SCHEMA = StructType(
    [StructField("partition", IntegerType(), metadata={DEALT: 2}), StructField("value", BinaryType())]
)
Message = TaskAppend | TaskRows


class Query:
    """A query's batches, task by task, as Spark would write and commit them."""

    def __init__(self, live: LiveCluster, monkeypatch: pytest.MonkeyPatch, faults: Faults) -> None:
        self.live, self.faults = live, faults
        self._monkeypatch = monkeypatch
        self.schema = SCHEMA

    def sink(self) -> StreamSink:
        """The sink that a task of a new batch gets."""
        made = StreamSink(sink_options({"cluster": str(self.live.file), "topic": "t"}), self.schema)
        task = StreamSink(sink_options({"cluster": str(self.live.file), "topic": "t"}), self.schema)
        task.__dict__.update(made.__getstate__())
        return task

    def write(
        self, number: int, *values: str, batch: int = 0, of: StreamSink | None = None, partition: int | None = None
    ) -> Message:
        """Run the task with this number."""
        task = TaskOf(number, "q1", batch)
        self._monkeypatch.setattr(stream_sink, "present_task", lambda: task)
        partition = number if partition is None else partition
        return (of or self.sink()).write(iter([rows(partition, *values)] if values else []))

    def commit(self, *messages: Message, batch: int = 0) -> None:
        """End a batch on the driver."""
        self.sink().commit([*messages], batch)

    def visible(self) -> dict[int, list[str]]:
        """The records of readers."""
        return {0: [], 1: [], **self.live.read()}

    def stored(self) -> list[int]:
        """The number of records in the leaders' logs, acknowledged or not."""
        return [self.live.log(self.live.leader("t", partition), "t", partition).log_end for partition in (0, 1)]


def rows(partition: int, *values: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "partition": pa.array([partition] * len(values), pa.int32()),
            "value": pa.array([value.encode() for value in values]),
        }
    )


@pytest.fixture
def query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Query:
    faults = Faults()
    live = LiveCluster(tmp_path, through=faults.wrap)
    live.topic(partitions=2)
    driver = cache(live.driver)
    monkeypatch.setattr(stream_sink, "_driver", lambda _: ports_of(driver()))
    return Query(live, monkeypatch, faults)


def test_tasks_append_and_the_driver_acknowledges(query: Query) -> None:
    sink = query.sink()
    messages = [query.write(0, "a", "b", of=sink), query.write(1, "c", of=sink)]
    assert all(isinstance(message, TaskAppend) for message in messages)
    assert (query.stored(), query.visible()) == ([2, 1], {0: [], 1: []})
    query.commit(*messages)
    assert query.visible() == {0: ["a", "b"], 1: ["c"]}
    assert isinstance(query.write(0, batch=1), TaskRows)
    query.commit(query.write(0, batch=1), query.write(1, "d", batch=1), batch=1)
    assert query.visible() == {0: ["a", "b"], 1: ["c", "d"]}


def test_messages_and_plans_travel(query: Query) -> None:
    message = query.write(0, "a")
    again = pickle.loads(pickle.dumps(message))
    query.commit(again)
    assert query.visible()[0] == ["a"]


def test_a_second_attempt_of_a_task_appends_nothing(query: Query) -> None:
    """The append survives a killed task that had finished its work, a speculative copy, and a repeated batch."""
    sink = query.sink()
    first, copy = (query.write(0, "a", "b", of=sink) for _ in range(2))
    query.commit(copy, query.write(1, "c", of=sink))
    query.commit(first, query.write(1, "c"))
    # The query was restarted: the sink is new, the batch is the same, and its rows have another order.
    for _ in range(2):
        query.commit(query.write(0, "b", "a"), query.write(1, "c"))
    assert query.visible() == {0: ["a", "b"], 1: ["c"]}


def test_a_batch_that_was_cut_short_is_completed(query: Query) -> None:
    """The driver appends the batch, after it has compared the other partitions; if there are too many rows, tasks
    append it.
    """
    query.write(0, "a")  # the job is killed after the first task
    sink = query.sink()
    messages = [query.write(0, "a", of=sink), query.write(1, "c", of=sink)]
    assert [type(message) for message in messages] == [TaskAppend, TaskRows]
    query.commit(*messages)
    assert query.visible() == {0: ["a"], 1: ["c"]}


def test_the_rest_of_a_large_batch_is_appended_by_tasks(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_tasks, "MOST_TASK_BYTES", 100)
    query.write(0, "a")
    large = [f"{number:09}" for number in range(100)]
    sink = query.sink()
    messages = [query.write(0, "a", of=sink), query.write(1, *large, of=sink)]
    assert [type(message) for message in messages] == [TaskAppend, TaskAppend]
    query.commit(*messages)
    assert query.visible() == {0: ["a"], 1: large}


def test_other_rows_under_the_batch_are_refused_and_nothing_is_stored(query: Query) -> None:
    """A partition without the batch waits for the answers of the others; a partition that has later batches gets
    no earlier one.
    """
    for batch in range(3):
        query.commit(query.write(0, "a", batch=batch), batch=batch)
    sink = query.sink()
    before = query.stored()
    for batch in (2, 1):
        messages = [query.write(0, "b", batch=batch, of=sink), query.write(1, "new", batch=batch, of=sink)]
        with pytest.raises(OperationFailedError, match="Restore the newer checkpoint"):
            query.commit(*messages, batch=batch)
        assert query.stored() == before


def test_rows_that_a_task_cannot_append_go_to_the_driver(query: Query) -> None:
    """The leader of the partition has changed since the batch began, or its storage fails."""
    sink = query.sink()
    query.live.cluster.elect("t", leader=query.live.followers("t", 0)[0]).raise_for_failures()
    query.live.append(["x"]).raise_for_failures()  # the new leader's epoch is in its log, and in the old one's
    messages = [query.write(0, "a", of=sink), query.write(1, "c", of=sink)]
    assert isinstance(messages[0], TaskRows)
    query.commit(*messages)
    assert query.visible() == {0: ["x", "a"], 1: ["c"]}


def test_a_task_with_too_many_rows_for_the_driver_fails_and_is_retried(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_tasks, "MOST_TASK_BYTES", 100)
    large = [f"{number:09}" for number in range(100)]

    query.faults.refuse(StorageError("no space left"), "stage")
    with pytest.raises(RetriableError, match="no space left"):
        query.write(0, *large)
    query.faults.none()
    query.commit(query.write(0, *large))
    assert query.visible()[0] == large


def test_a_leader_that_changes_before_the_acknowledgement_ends_the_query(query: Query) -> None:
    """The next run of the query appends the missing batch."""
    message = query.write(0, "a")
    query.live.cluster.elect("t", leader=query.live.followers("t", 0)[0]).raise_for_failures()
    with pytest.raises(OperationFailedError, match="the leader changed"):
        query.commit(message)
    query.commit(query.write(0, "a"))
    assert query.visible()[0] == ["a"]


@pytest.mark.parametrize("times", [1, 2])
def test_records_erased_before_the_acknowledgement_do_not_end_the_query(query: Query, times: int) -> None:
    """The append is looked up in the log by its sequence, and acknowledged."""
    query.commit(query.write(0, *(f"erased-{number}" for number in range(times))))
    message = query.write(0, "a", batch=1)
    for number in range(times):
        query.live.cluster.erase("t", where=f"value = X'{f'erased-{number}'.encode().hex()}'").raise_for_failures()
    query.commit(message, batch=1)
    assert query.live.cluster.fetch("t", 0, 0).records.column("value").to_pylist() == [b"a"]
    query.commit(query.write(0, "a", batch=1), batch=1)
    assert query.stored() == [times + 1, 0]


def test_rows_with_another_distribution_are_refused(query: Query) -> None:
    with pytest.raises(OperationFailedError, match="without redistributing them"):
        query.commit(query.write(0, "a", partition=1))
    assert query.stored() == [0, 0]


def test_undistributed_rows_go_to_the_driver(query: Query) -> None:
    query.schema = StructType([StructField("partition", IntegerType()), StructField("value", BinaryType())])
    messages = [query.write(0, "a", partition=1), query.write(1, "b", partition=1)]
    assert all(isinstance(message, TaskRows) for message in messages)
    query.commit(*messages)
    assert query.visible() == {0: [], 1: ["a", "b"]}


def test_if_spark_does_not_identify_the_batch_rows_go_to_the_driver(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark does not guarantee that the local property is set."""
    sink = query.sink()
    monkeypatch.setattr(stream_sink, "present_task", lambda: None)
    message = sink.write(iter([rows(0, "a")]))
    assert isinstance(message, TaskRows)
    query.commit(message)
    assert query.visible()[0] == ["a"]
