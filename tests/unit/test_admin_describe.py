"""Tables of a cluster, as far as it is visible."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.engine.metadata.records import TopicRecord
from stratalog.engine.state.internal_topics import OFFSETS_TOPIC
from stratalog.jobs import topics as job
from stratalog.partitions.errors import NoMajorityError
from tests.unit.cluster_harness import LiveCluster, led_by_each, rows_of, the_failure


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    return led_by_each(tmp_path, on_disk=True)


def test_every_topic_is_a_row(live: LiveCluster) -> None:
    live.topic("s", copies=2, **{"segment.bytes": "1000"})
    report = live.cluster.topics.list().raise_for_failures()
    columns = "topic", "partitions", "replication_factor", "key", "value", "configs"
    assert rows_of(report, *columns) == [
        ("s", 1, 2, "BINARY", "BINARY", "retention.ms=-1 segment.bytes=1000"),
        ("t", 3, 3, "BINARY", "BINARY", "retention.ms=-1"),
    ]


def test_a_topic_whose_partitions_nobody_has_committed_is_a_row(live: LiveCluster) -> None:
    """The record of another writer; this project commits a topic with its partitions."""
    live.cluster._ports.metadata.with_log(lambda log: log.commit([TopicRecord("bare", "b" * 32)]))
    rows = rows_of(live.driver().topics.list().raise_for_failures(), "topic", "partitions", "replication_factor")
    assert ("bare", 0, 0) in rows


def test_a_broker_that_is_missing_is_one_failure_however_many_replicas_it_has(live: LiveCluster) -> None:
    with live.unreachable(3):
        report = live.cluster.describe("t")
    assert len(report.rows) == 9
    assert the_failure(report).startswith("broker 3, which has 3 of these replicas")


def test_an_unreachable_replica_is_shown_only_as_the_metadata_knows_it(live: LiveCluster) -> None:
    """The table does not say "in sync", and shows no zeros for unknown numbers."""
    with live.unreachable(3):
        rows = live.cluster.describe("t").rows
        assert not live.cluster.brokers.list().ok
    seen = "local_start", "high_watermark", "log_end", "files", "local_bytes"
    for row in rows:
        away = row["broker"] == 3
        assert [row[name] is None for name in seen] == [away] * len(seen)
        leads = row["broker"] == live.leader("t", int(str(row["partition"])))
        other = "leader" if leads else "in sync"
        assert row["role"] == (other if not away else "leader, unreachable" if leads else "unreachable")
    assert {row["epoch"] for row in rows} == {1}


def test_a_replica_that_cannot_be_read_is_shown_by_its_error(live: LiveCluster) -> None:
    follower = live.followers()[0]
    for path in (live.root(follower) / live.replica(follower).folder).glob("*.epoch"):
        path.write_bytes(b"no lineage")
    report = live.cluster.describe("t")
    assert the_failure(report).startswith(f"t-0 on broker {follower}: CORRUPT_MESSAGE: ")
    (row,) = [row for row in report.rows if (row["partition"], row["broker"]) == (0, follower)]
    assert (row["role"], row["log_end"]) == ("CORRUPT_MESSAGE", None)


def test_without_a_majority_of_voters_what_was_known_last_is_shown(live: LiveCluster) -> None:
    """Protocol section 5: the committed state is unknown; the error says so, and shows the known part."""
    known = live.cluster.image
    with live.unreachable(1):
        topics = live.cluster.topics.list()
        replicas = live.cluster.describe("t")
        brokers = live.cluster.brokers.list()
        with pytest.raises(NoMajorityError):
            live.cluster.topics.create("u")
    assert [(row["topic"], row["partitions"]) for row in topics.rows] == [("t", 3)]
    assert {row["log_end"] for row in replicas.rows if row["broker"] != 1} == {1}
    assert len(brokers.rows) == 3
    for report in (topics, replicas, brokers):
        assert report.failures[0].code == "NO_MAJORITY"
        assert f"The last known state is shown, up to offset {known.next_offset}" in report.failures[0].message
    live.cluster.topics.list().raise_for_failures()


def test_listing_topics_is_a_job(live: LiveCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert job.main(["--cluster", str(live.file), "list"]) == 0
    assert "replication_factor" in capsys.readouterr().out


@pytest.mark.slow
def test_only_the_partitions_with_records_of_the_engines_own_topics_are_rows(live: LiveCluster) -> None:
    """There are fifty partitions for the offsets of groups, and one of them is in use; all of them appear if the
    topic is named."""
    live.cluster.groups.commit("readers", {("t", 0): 0}).raise_for_failures()
    for report in (live.cluster.describe(), live.cluster.verify()):
        used = {row["partition"] for row in report.rows if row["topic"] == OFFSETS_TOPIC}
        assert len(used) == 1
    report = live.cluster.describe()
    assert report.totals["replicas"] == len(report.rows) == 12  # three of them are in the partition that is in use
    assert report.totals["empty_internal_replicas"] == 49 * 3
    with live.unreachable(3):
        assert live.cluster.describe().totals == report.totals
    assert len({row["partition"] for row in live.cluster.describe(OFFSETS_TOPIC).rows}) == 50
    assert len(live.cluster.verify(OFFSETS_TOPIC).rows) == 50


def test_a_report_has_the_name_of_its_method(tmp_path: Path) -> None:
    """The name in the history consists of the group of methods and the method."""
    live = LiveCluster(tmp_path)
    live.topic()
    of = live.cluster
    of.groups.commit("g", {("t", 0): 0})
    reports = {
        "brokers list": of.brokers.list(),
        "brokers register": of.brokers.register(),
        "brokers fence": of.brokers.fence(3),
        "brokers unfence": of.brokers.unfence(3),
        "groups list": of.groups.list(),
        "groups lag": of.groups.lag("g"),
        "groups commit": of.groups.commit("g", {("t", 0): 0}),
        "groups reset_offsets": of.groups.reset_offsets("g", to=0),
        "groups delete_offsets": of.groups.delete_offsets("g", "t"),
        "groups delete": of.groups.delete("g", if_exists=True),
        "quorum describe": of.quorum.describe(),
        "quorum snapshot": of.quorum.snapshot(),
        "transactions list": of.transactions.list(),
        "transactions find_hanging": of.transactions.find_hanging(),
        "transactions finish": of.transactions.finish(),
        "topics list": of.topics.list(),
        "topics troubled": of.topics.troubled(),
        "topics describe": of.topics.describe("t"),
        "topics delete": of.topics.delete("t"),
    }
    assert [report.operation for report in reports.values()] == [*reports]


def test_an_internal_topic_does_not_widen_the_list(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The object has all attributes of its type."""
    monkeypatch.setenv("STRATALOG_HISTORY", "on")
    live = LiveCluster(tmp_path, on_disk=True)
    argv = ["list", "--cluster", str(live.file)]
    assert job.main(["create", "t", *argv[1:]]) == 0  # which leaves an event
    capsys.readouterr()
    assert job.main(argv) == 0
    shown = capsys.readouterr().out
    assert "time TIMESTAMP, operation STRING, pha..." in shown
    assert "duration BIGINT" not in shown
    assert job.main([*argv, "--json"]) == 0
    assert "duration BIGINT" in capsys.readouterr().out
