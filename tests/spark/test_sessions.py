"""Both kinds of session have the same results: a classic one, and one of Spark Connect. ``make test`` runs
both."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from pyspark.sql.types import DataType

from stratalog import Cluster
from stratalog.engine.cluster.parts import with_parts
from stratalog.engine.replication.leader import look_at_leader
from stratalog.engine.spark.read_errors import unread_file
from stratalog.engine.spark.runner import SparkRunner
from stratalog.jobs.streaming import append_stream
from stratalog.partitions.clock import Clock
from stratalog.partitions.declared import declared
from stratalog.partitions.errors import (
    CorruptSegmentError,
    InvalidCallError,
    InvalidRecordError,
    LeaderNotAvailableError,
    RetriableError,
    SourceChangedError,
)
from stratalog.partitions.runner import Done, Failed
from stratalog.partitions.store import Store, StoreOptions
from stratalog.partitions.store.local import LocalStore
from tests.ports import ports_of
from tests.spark.spark_cluster import TIERED, ordered, write_cluster_file
from tests.spark.streams import Numbers, patiently, topic_of_its_own
from tests.spark_session import ON_CONNECT
from tests.unit.test_declared import KNOWN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

pytestmark = [pytest.mark.spark, pytest.mark.connect]


def test_the_session_is_of_the_kind_that_was_asked_for(spark: SparkSession) -> None:
    assert type(spark).__module__.startswith("pyspark.sql.connect") == ON_CONNECT


# ------------------------------------------------------------------------------------ tasks


@dataclass(frozen=True)
class Work:
    """Reads a name of a store as many times as its number."""

    store: Store
    number: int

    def stores_used(self) -> list[Store]:
        return [self.store]


def read_often(work: Work) -> tuple[int, int]:
    """The number, and the process."""
    if work.number == 3:
        raise LeaderNotAvailableError("number 3 is led by broker 2")
    for _ in range(work.number):
        work.store.read("name")
    return work.number, os.getpid()


def die(work: Work) -> None:
    os._exit(3)


def stumble(work: Work) -> None:
    raise ZeroDivisionError(work.number)


@pytest.fixture
def works(tmp_path: Path) -> list[Work]:
    store = LocalStore(str(tmp_path))
    store.create("name", b"12345")
    return [Work(store, number) for number in range(20)]


def test_tasks_return_values_stratalog_errors_and_counts_of_store_calls(
    spark: SparkSession, works: list[Work]
) -> None:
    runner = SparkRunner(spark)
    outcomes = list(runner.run(read_often, works))
    done = {outcome.item.number: outcome.value for outcome in outcomes if isinstance(outcome, Done)}
    assert {number: value[0] for number, value in done.items()} == {n: n for n in range(20) if n != 3}
    assert os.getpid() not in {value[1] for value in done.values()}
    [failed] = [outcome for outcome in outcomes if isinstance(outcome, Failed)]
    assert (failed.item.number, type(failed.error)) == (3, LeaderNotAvailableError)
    assert (failed.error.code, str(failed.error)) == (LeaderNotAvailableError.code, "number 3 is led by broker 2")
    assert runner.counts.read_bytes == 5 * (sum(range(20)) - 3)
    assert runner.processes == 2


def test_a_worker_that_dies_is_an_error_of_its_items_and_a_bug_is_raised(
    spark: SparkSession, works: list[Work]
) -> None:
    runner = SparkRunner(spark)
    outcomes = list(runner.run(die, works[:2]))
    assert [type(one.error) for one in outcomes if isinstance(one, Failed)] == [RetriableError, RetriableError]
    assert all("run the operation again" in str(one.error) and "\n" not in str(one.error) for one in outcomes)  # type: ignore[union-attr]
    with pytest.raises(Exception, match="ZeroDivisionError"):
        list(runner.run(stumble, works[:1]))
    assert list(runner.run(read_often, [])) == []


# ------------------------------------------------------------------------------- snapshots


def test_a_partition_larger_than_memory_is_reduced(cluster: Cluster, spark: SparkSession) -> None:
    configs = {"cleanup.policy": "snapshot", "retention.ms": "-1"}
    cluster.topics.create(
        "state", partitions=1, replication_factor=1, key="STRING", value="n BIGINT", configs=configs
    )
    rows = spark.range(100).selectExpr("id AS n", "cast(id % 7 AS STRING) AS k")
    cluster.append("state", rows.coalesce(1), key="k", order_by=["value.n"]).raise_for_failures()
    for one in (cluster, cluster.using(spark, runner="threads")):
        one.snapshot("state", by_hand=True, memory_bytes=0).raise_for_failures()
        found = one.read_snapshot("state").selectExpr("key", "value.n").collect()
        assert {row.key: row.n for row in found} == {str(n % 7): n for n in range(93, 100)}
        cluster.append("state", rows.limit(0), key="k").raise_for_failures()


# ------------------------------------------------------------------------------------ errors


def test_a_row_that_is_refused_is_named_and_nothing_is_appended(cluster: Cluster, spark: SparkSession) -> None:
    topic = topic_of_its_own(cluster, "refused")
    rows = spark.range(30_000).selectExpr("id AS n", "'w' AS word", "cast(id % 3 AS INT) AS p")
    with pytest.raises(InvalidRecordError, match=r"a row's partition is 2, but the topic has partitions 0 to 1$"):
        cluster.append(topic, rows, partition="p")
    with pytest.raises(InvalidRecordError, match="column 'k' is not in the DataFrame"):
        cluster.append(topic, rows, key="k", partition="p")
    with pytest.raises(InvalidRecordError, match=r"unresolved|cannot be resolved"):
        cluster.append(topic, rows, key="word", partition="p", order_by=["nothing"])
    assert cluster.read(topic).count() == 0


def test_files_that_are_broken_or_gone_raise_stratalog_errors(cluster: Cluster, spark: SparkSession) -> None:
    topic = topic_of_its_own(cluster, "broken")
    Numbers(cluster, spark, topic).append(50)
    frame = cluster.read(topic)
    file = Path(next(iter(cluster.plan_read(topic).topics[topic])).uri.removeprefix("file://"))
    good = file.read_bytes()
    file.write_bytes(good[:40] + b"broken" + good[46:])
    with pytest.raises(CorruptSegmentError, match=rf"{topic}-\d: offsets"), cluster.read_errors():
        frame.collect()
    file.unlink()
    with (
        pytest.raises(SourceChangedError, match=r"\.parquet was deleted during the read"),
        cluster.read_errors(),
    ):
        frame.collect()
    file.write_bytes(good)
    assert frame.count() == 50

    elsewhere = "file:///nowhere/at all/x.parquet"
    with pytest.raises(Exception, match="PATH_NOT_FOUND") as raised, cluster.read_errors():
        spark.read.parquet(elsewhere).collect()
    assert unread_file(raised.value) is None or "nowhere" in str(unread_file(raised.value))


@pytest.mark.parametrize("text", [*KNOWN, "a INT COMMENT 'of the day', b ARRAY<STRUCT<c: DECIMAL(3,1) NOT NULL>>"])
def test_ddl_declares_what_sparks_own_parser_reads_in_it(spark: SparkSession, text: str) -> None:
    assert json.loads(declared(text)) == json.loads(DataType.fromDDL(text).json())


def test_a_type_that_is_invalid_is_refused(cluster: Cluster) -> None:
    with pytest.raises(InvalidCallError, match="does not declare a type that a topic can have"):
        cluster.topics.create("untyped", value="n NUMBER_OF_NO_KIND")


# ----------------------------------------------------------------------------------- streams


def run(writing: DataStreamWriter) -> None:
    """Run over all current records."""
    patiently(lambda: writing.trigger(availableNow=True).start().awaitTermination())


def files_of_numbers(spark: SparkSession, folder: Path) -> DataFrame:
    """A stream of two files, a batch each."""
    for number in range(2):
        rows = spark.range(10 * number, 10 * number + 10, numPartitions=1)
        rows.selectExpr("id AS n", "'w' AS word", "cast(id AS STRING) AS k").write.parquet(
            str(folder / "in"), mode="append"
        )
    reading = spark.readStream.schema("n BIGINT, word STRING, k STRING").option("maxFilesPerTrigger", 1)
    return reading.parquet(str(folder / "in"))


def producers(cluster: Cluster, topic: str) -> set[str]:
    """The named producers of a topic."""
    ports = ports_of(cluster)
    found: set[str] = set()
    for view in cluster.image.views(topic):
        replicas = ports.storage.replicas(view)
        found |= replicas.leader.producers(look_at_leader(replicas)).keys()
    return found


def test_a_writer_of_batches_knows_its_query_and_appends_each_batch_once(
    cluster: Cluster, spark: SparkSession, tmp_path: Path
) -> None:
    topic = topic_of_its_own(cluster, "written")
    frame, checkpoint = files_of_numbers(spark, tmp_path), tmp_path / "checkpoint"
    for _ in range(3):
        writer = cluster.stream_writer(topic, producer="numbers", key="k")
        writing = frame.writeStream.foreachBatch(writer).option("checkpointLocation", str(checkpoint))
        run(writing)
        last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
        for file in (last, last.with_name(f".{last.name}.crc")):
            file.unlink()
    assert sorted(row.n for row in cluster.read(topic).select("value.n").collect()) == list(range(20))
    query = json.loads((checkpoint / "metadata").read_text())["id"]
    assert producers(cluster, topic) == {f"numbers@{query}"}


def test_two_queries_of_a_session_at_once_name_their_checkpoints(
    cluster: Cluster, spark: SparkSession, tmp_path: Path
) -> None:
    """A classic session identifies each without a checkpoint."""
    topic = topic_of_its_own(cluster, "two")
    frame = files_of_numbers(spark, tmp_path)
    idle = spark.readStream.format("rate").load().writeStream.format("noop")
    other = idle.option("checkpointLocation", str(tmp_path / "other")).start()
    try:
        for given in (None, str(tmp_path / "checkpoint")):
            writer = cluster.stream_writer(topic, producer="numbers", key="k", checkpoint=given)
            writing = frame.writeStream.foreachBatch(writer).option(
                "checkpointLocation", str(tmp_path / "checkpoint")
            )
            if ON_CONNECT and given is None:
                with pytest.raises(Exception, match="the session has 2 active queries"):
                    run(writing)
            else:
                run(writing)
    finally:
        other.stop()
    assert sorted(row.n for row in cluster.read(topic).select("value.n").collect()) == list(range(20))
    query_id = json.loads((tmp_path / "checkpoint" / "metadata").read_text())["id"]
    assert producers(cluster, topic) == {f"numbers@{query_id}"}


def test_a_job_of_a_stream_reports_its_batches_and_the_error_that_ends_it(
    cluster: Cluster, spark: SparkSession, tmp_path: Path
) -> None:
    topic = topic_of_its_own(cluster, "reported")
    frame, checkpoint = files_of_numbers(spark, tmp_path), str(tmp_path / "checkpoint")
    writer = cluster.stream_writer(topic, producer="numbers", key="k", checkpoint=checkpoint)
    report = patiently(partial(append_stream, frame, checkpoint, writer.append))
    assert [(row["batch"], row["records"]) for row in report.rows] == [(0, 10), (1, 10)]
    assert report.totals["bytes"]
    assert patiently(partial(append_stream, frame, checkpoint, writer.append)).rows == []

    wrong = cluster.stream_writer(topic, producer="numbers", key="k", partition="n", checkpoint=checkpoint + "2")
    with pytest.raises(InvalidRecordError, match=r"a row's partition is \d+, but the topic has partitions 0 to 1"):
        patiently(partial(append_stream, frame, checkpoint + "2", wrong.append))


# ----------------------------------------------------------------------------------- threads


class StayingStore(LocalStore):
    """Storage of this process that cannot be sent to another one."""

    def __reduce__(self) -> str:
        raise TypeError("the store was to stay here")


def staying(uri: str, options: StoreOptions, clock: Clock) -> Store:
    return StayingStore(urlsplit(uri).path)


def test_executors_that_may_not_reach_the_storage_are_never_asked_to(spark: SparkSession, tmp_path: Path) -> None:
    cluster = with_parts(Cluster, opener=staying).format(write_cluster_file(tmp_path), spark, runner="threads")
    cluster.topics.create("t", partitions=3, replication_factor=2, key="STRING", value="n BIGINT", configs=TIERED)
    rows = spark.range(20_000).selectExpr("20000 - id AS n", "cast(id % 7 AS STRING) AS k")
    cluster.append("t", rows, key="k", order_by=["value.n"]).raise_for_failures()
    for job in (cluster.replicate, cluster.merge, cluster.tier, cluster.maintain):
        job().raise_for_failures()
    assert cluster.verify(deep=True).ok
    found = ordered(cluster.read("t"), "partition", "value.n")
    assert [n for _, n in found] == [n for p in range(3) for n in sorted(n for q, n in found if q == p)]
    assert len(found) == 20_000

    with pytest.raises(Exception, match="the store was to stay here"):
        cluster.using(spark).append("t", rows, key="k")
    with pytest.raises(InvalidCallError, match=r"runner is 'ray': use 'spark' or 'threads'"):
        Cluster.open(tmp_path / "cluster.toml", spark, runner="ray")


@pytest.fixture(autouse=True)
def _no_query_goes_on(spark: SparkSession) -> Iterator[None]:
    yield
    assert [query.id for query in spark.streams.active] == []
