"""Streams of several topics, like Spark's Kafka source: by name, by a pattern, or some partitions."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from stratalog.engine.reading.stream_source import StreamProgress
from stratalog.partitions.errors import InvalidCallError, OffsetOutOfRangeError, UnknownTopicOrPartitionError
from tests.ports import ports_of, with_ports
from tests.unit.cluster_harness import LiveCluster, rows_of
from tests.unit.harness import batch
from tests.unit.stream_harness import Query, source


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    """``trips-a`` and ``trips-b`` of two partitions, ``rides`` of one."""
    made = LiveCluster(tmp_path)
    made.cluster.topics.alter_configs(None, {"offsets.topic.num.partitions": "1"})
    for topic in ("trips-a", "trips-b"):
        made.topic(topic, partitions=2)
        made.append({0: [f"{topic}0"], 1: [f"{topic}1"]}, topic).raise_for_failures()
    made.topic("rides")
    made.append(["ride"], "rides").raise_for_failures()
    return made


ALL = ["ride", "trips-a0", "trips-a1", "trips-b0", "trips-b1"]


@pytest.mark.parametrize(
    ("given", "found", "more"),
    [
        ({"subscribe": "rides,trips-b"}, ["ride", "trips-b0", "trips-b1"], []),
        ({"subscribePattern": "trips-.*"}, ALL[1:], ["new0", "new1"]),
        ({"subscribePattern": ".*"}, ALL, ["new0", "new1"]),
        ({"assign": '{"trips-a": [1], "rides": [0]}'}, ["ride", "trips-a1"], ["new1"]),
    ],
    ids=str,
)
def test_a_stream_reads_the_topics_and_partitions_that_it_subscribes_to(
    live: LiveCluster, given: dict[str, str], found: list[str], more: list[str]
) -> None:
    """A pattern matches none of the engine's own topics."""
    live.cluster.groups.commit("g", {("rides", 0): 0})
    query = Query(live, **given)
    assert query.batch() == found
    live.append({0: ["new0"], 1: ["new1"]}, "trips-a").raise_for_failures()
    assert query.batch() == more
    assert query.nothing_new()


def test_a_limit_is_shared_by_the_partitions_of_all_topics(live: LiveCluster) -> None:
    query = Query(live, subscribePattern=".*")
    batches = [query.batch(rows=2) for _ in range(3)]
    assert [len(values) for values in batches] == [2, 2, 1]
    assert sorted(value for values in batches for value in values) == ALL


def test_topics_and_partitions_that_come_later_are_read_from_their_beginning(live: LiveCluster) -> None:
    query = Query(live, subscribePattern="trips-.*", startingOffsets="latest")
    assert query.batch() == []
    live.topic("trips-c")
    live.append(["c"], "trips-c").raise_for_failures()
    live.cluster.topics.create_partitions("rides", 2)
    live.cluster.topics.create_partitions("trips-a", 3)
    live.append({2: ["a2"]}, "trips-a").raise_for_failures()
    assert query.batch() == ["a2", "c"]


def test_assigned_partitions_stay_those(live: LiveCluster) -> None:
    query = Query(live, assign='{"trips-a": [0]}')
    assert query.batch() == ["trips-a0"]
    live.cluster.topics.create_partitions("trips-a", 3)
    live.append({1: ["b"], 2: ["c"]}, "trips-a").raise_for_failures()
    assert query.nothing_new()


def test_a_batch_that_is_run_again_is_the_same(live: LiveCluster) -> None:
    """The batch is the same even if the query reads other partitions by now."""
    query = Query(live, assign='{"trips-a": [0, 1], "rides": [0]}')
    query.plan()
    first = query.run()
    live.append(["later"], "trips-a").raise_for_failures()
    query.options = {"assign": '{"trips-a": [0], "rides": [0]}'}
    assert query.done is None
    begin = query.begin()
    query.start()
    assert query.planned is not None
    assert [len(query.source.plan(begin, query.planned)), query.run()] == [2, first]


def test_each_partition_begins_at_its_offset_or_time(live: LiveCluster) -> None:
    live.append({0: ["x"], 1: ["y"]}, "trips-a", at_ms=5000).raise_for_failures()
    offsets = '{"trips-a": {"0": 1, "1": -2}, "rides": {"0": -1}}'
    assert Query(live, subscribe="trips-a,rides", startingOffsets=offsets).batch() == ["trips-a1", "x", "y"]
    assert Query(live, subscribe="trips-a,rides", startingTimestamp="4000").batch() == ["x", "y"]
    times = '{"trips-a": {"0": 4000, "1": 0}, "rides": {"0": 0}}'
    found = Query(live, subscribe="trips-a,rides", startingOffsetsByTimestamp=times).batch()
    assert found == ["ride", "trips-a1", "x", "y"]
    with pytest.raises(InvalidCallError, match="is given for rides-0, but rides-0, trips-a-0, trips-a-1 are read"):
        source(live, subscribe="trips-a,rides", startingOffsets='{"rides": {"0": 0}}').initial()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"subscribe": "trips-a,ridez"}, "'ridez' does not exist.*did you mean 'rides'"),
        ({"subscribePattern": "cars-.*"}, "no topic matches the pattern 'cars-"),
        ({"assign": '{"rides": [1]}'}, "topic 'rides' has no partition 1: it has 1"),
    ],
    ids=str,
)
def test_missing_things_are_refused_by_name(live: LiveCluster, given: dict[str, str], message: str) -> None:
    with pytest.raises(UnknownTopicOrPartitionError, match=message):
        source(live, **given).initial()


def test_a_topic_whose_records_do_not_fit_is_refused_by_name(live: LiveCluster) -> None:
    """The refusal comes when the query begins, or when the pattern later matches the topic."""
    query = Query(live, subscribePattern="trips-.*")
    query.batch()
    value = StructType([StructField("n", LongType())])
    live.cluster.topics.create("trips-typed", value=value, partitions=1, replication_factor=1)
    with pytest.raises(
        InvalidCallError, match="'trips-a' and 'trips-typed' cannot be read in one frame: their values"
    ):
        query.batch()


def test_a_deleted_topic_of_a_pattern_ends_the_query_unless_records_may_be_lost(live: LiveCluster) -> None:
    query = Query(live, subscribePattern="trips-.*")
    query.batch()
    live.cluster.topics.delete("trips-b").raise_for_failures()
    live.append(["more"], "trips-a").raise_for_failures()
    with pytest.raises(OffsetOutOfRangeError, match=r"topic 'trips-b' was deleted.*failOnDataLoss = false"):
        query.plan()
    query.options = {**query.options, "failOnDataLoss": "false"}
    query.start()
    assert query.batch() == ["more"]
    assert query.nothing_new()


def test_a_topic_that_is_not_read_any_more_takes_another_checkpoint(live: LiveCluster) -> None:
    query = Query(live, subscribe="trips-a,rides")
    query.batch()
    query.options = {"subscribe": "rides"}
    query.start()
    with pytest.raises(
        InvalidCallError, match="checkpoint belongs to topic 'trips-a', but the query reads 'rides'"
    ):
        query.plan()


def test_a_topic_that_is_read_from_now_on_is_read_from_its_beginning(live: LiveCluster) -> None:
    query = Query(live, subscribe="rides")
    query.batch()
    query.options = {"subscribe": "trips-a,rides"}
    query.start()
    assert query.batch() == ["trips-a0", "trips-a1"]


def test_a_group_reports_all_topics(live: LiveCluster) -> None:
    query = Query(live, subscribe="trips-a,rides")
    query.batch()
    assert query.done is not None
    with_ports(StreamProgress, ports_of(live.driver()))("g").report(query.done)
    assert rows_of(live.cluster.groups.lag("g"), "topic", "partition", "committed", "lag") == [
        ("rides", 0, 1, 0),
        ("trips-a", 0, 1, 0),
        ("trips-a", 1, 1, 0),
    ]


def test_records_of_a_transaction_are_distinguished_by_topic(live: LiveCluster) -> None:
    live.cluster.topics.alter_configs(None, {"transaction.state.log.num.partitions": "1"})
    with live.cluster.transactions.begin("copy") as transaction:
        transaction.append_batches("rides", {0: [batch(["in"])]})
    live.cluster.transactions.begin("open").append_batches("trips-a", {0: [batch(["open"])]})
    query = Query(live, subscribe="trips-a,rides", isolation="read_committed")
    assert query.batch() == ["in", "ride", "trips-a0", "trips-a1"]
