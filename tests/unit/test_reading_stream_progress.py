"""A stream commits its position to a group: lag is visible outside, and failures there do not affect the
stream."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from stratalog.engine.reading.stream_offsets import Position, StreamOffsets
from stratalog.engine.reading.stream_source import StreamProgress
from stratalog.engine.state.group_commits import OffsetAndMetadata
from stratalog.engine.state.internal_topics import OFFSETS_TOPIC, partition_for
from stratalog.partitions.errors import InvalidGroupIdError, StorageError
from tests.ports import ports_of, with_ports
from tests.unit.cluster_harness import LiveCluster, rows_of
from tests.unit.faulty_store import Faults


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    made = LiveCluster(tmp_path)
    made.topic(partitions=2)
    made.append({0: "abcde", 1: "xyz"})
    return made


def at(live: LiveCluster, *offsets: int) -> StreamOffsets:
    positions = {("t", p): Position(offset, 1 if offset else None) for p, offset in enumerate(offsets)}
    return StreamOffsets({"t": live.cluster.image.topic("t").topic_id}, positions)


def progress(live: LiveCluster) -> StreamProgress:
    return with_ports(StreamProgress, ports_of(live.driver()))("g")


def test_lag_is_what_the_stream_has_not_processed(live: LiveCluster) -> None:
    found = progress(live)
    found.report(at(live, 2, 0))
    assert rows_of(live.cluster.groups.lag("g"), "partition", "committed", "lag") == [(0, 2, 3), (1, 0, 3)]
    found.report(at(live, 5, 3))
    assert rows_of(live.cluster.groups.lag("g"), "partition", "committed", "lag") == [(0, 5, 0), (1, 3, 0)]
    assert live.cluster.groups.committed("g")["t", 0] == OffsetAndMetadata(5, 1)


def test_the_lag_of_every_group_is_a_metric(live: LiveCluster) -> None:
    """Kafka's ``records-lag`` of consumers, by topic and partition."""
    progress(live).report(at(live, 2, 3))
    live.cluster.groups.commit("other", {("t", 0): 5})
    assert rows_of(live.cluster.groups.lag_metrics(), "metric", "group", "topic", "partition", "value") == [
        ("records-lag", "g", "t", 0, 3),
        ("records-lag", "g", "t", 1, 0),
        ("records-lag", "other", "t", 0, 0),
        ("records-lag", "other", "t", 1, 3),
    ]


def test_the_metric_of_many_groups_lists_each_partition_once(live: LiveCluster) -> None:
    live.cluster.topics.alter_configs(None, {"offsets.topic.num.partitions": "1"})
    lists = []
    for groups in (range(1), range(1, 9)):
        for group in groups:
            live.cluster.groups.commit(f"g{group}", {("t", 0): group % 6, ("t", 1): 0})
        with live.driver().measured() as measure:
            live.driver().groups.lag_metrics().raise_for_failures()
        lists.append(measure.counts.lists)
    assert lists[0] == lists[1]


@pytest.mark.parametrize(
    ("topic", "partition", "left"),
    [("t", 1, {("a", 0, 4), ("b", 0, 3)}), (OFFSETS_TOPIC, partition_for("b", 4), {("a", 0, 4), ("a", 1, 3)})],
    ids=["of a topic", "of groups"],
)
def test_a_partition_that_cannot_be_inspected_is_one_failure_of_the_metric(
    tmp_path: Path, topic: str, partition: int, left: set[tuple[str, int, int]]
) -> None:
    """The lag of all others is reported nevertheless."""
    faults = Faults()
    live = LiveCluster(tmp_path, through=faults.wrap)
    live.cluster.topics.alter_configs(None, {"offsets.topic.num.partitions": "4"})
    live.topic(partitions=2)
    live.append({0: "abcde", 1: "xyz"})
    for offset, group in enumerate("ab", start=1):
        live.cluster.groups.commit(group, {("t", 0): offset}).raise_for_failures()
    assert partition_for("a", 4) != partition_for("b", 4)
    driver = live.driver()

    def gone(uri: str, what: str, name: str) -> None:
        if f"/{topic}-" in name and f"/{partition}." in name:
            raise StorageError("gone")

    faults.before = gone
    report = driver.groups.lag_metrics()
    assert [(failure.item, failure.code) for failure in report.failures] == [
        (f"{topic}-{partition}", StorageError.code)
    ]
    assert {(row["group"], row["partition"], row["value"]) for row in report.rows} == left


def test_a_group_never_goes_back(live: LiveCluster) -> None:
    """A query is started again from an older checkpoint."""
    progress(live).report(at(live, 4, 1))
    progress(live).report(at(live, 3, 2))
    assert {key: found.offset for key, found in live.cluster.groups.committed("g").items()} == {
        ("t", 0): 4,
        ("t", 1): 2,
    }


def test_a_repeated_report_of_the_same_progress_makes_no_request(live: LiveCluster) -> None:
    found, done = progress(live), at(live, 2, 2)
    found.report(done)
    stores = list(found._storage.stores.values())
    before = [store.counts.requests for store in stores]
    found.report(done)
    assert [store.counts.requests for store in stores] == before


def test_an_error_is_reported_once_and_stops_nothing(live: LiveCluster, caplog: pytest.LogCaptureFixture) -> None:
    found = progress(live)
    with caplog.at_level(logging.WARNING):
        found.report(at(live, 50, 0))  # an offset beyond the log end
        found.report(at(live, 60, 0))
    assert [record.getMessage() for record in caplog.records] == [
        "the stream continues, but its offsets were not committed to group 'g', whose lag is out of date: "
        "OFFSET_OUT_OF_RANGE: t-0: offset 50 cannot be committed: the log ends at 5"
    ]
    found.report(at(live, 3, 0))  # the next report tries again
    assert live.cluster.groups.committed("g")["t", 0].offset == 3


def test_an_impossible_group_name_is_an_error_at_once(live: LiveCluster) -> None:
    with pytest.raises(InvalidGroupIdError):
        with_ports(StreamProgress, ports_of(live.driver()))("")
