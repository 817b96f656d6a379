"""The snapshot job on the metadata log, which snapshots also keep short (KIP-630)."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog import Cluster
from stratalog.engine.driver.report import Report
from stratalog.partitions.errors import StorageError, UnknownTopicOrPartitionError
from stratalog.snapshots.snapshot_id import SnapshotId
from tests.unit.cluster_harness import LiveCluster, rows_of
from tests.unit.faulty_store import CHANGES, Faults
from tests.unit.snapshot_harness import Keyed

METADATA = "__cluster_metadata"


@pytest.fixture
def live(tmp_path: Path) -> Keyed:
    return Keyed(tmp_path).begin()


def of_metadata(report: Report) -> dict[str, object]:
    """The row of the metadata log."""
    (row,) = (row for row in report.raise_for_failures().rows if row["topic"] == METADATA)
    return dict(row)


def checkpoints_of_voters(live: LiveCluster) -> dict[str, bytes]:
    return {name: data for name, data in live.on_brokers().items() if METADATA in name and ".checkpoint" in name}


@pytest.mark.slow
def test_the_metadata_log_is_one_of_all(live: Keyed) -> None:
    """The job is keyed by partition over all logs with snapshots; the metadata log comes last, when it has the
    commits of the others."""
    live.put([("a", "1")])
    report = live.cluster.snapshot(by_hand=True)
    assert [row["topic"] for row in report.rows] == ["t", METADATA]
    row = of_metadata(report)
    assert (row["outcome"], row["SnapshotLag"], row["why"]) == ("made", 0, None)
    assert row["snapshot"] == str(SnapshotId(live.cluster.image.next_offset, 2))
    assert report.totals == {"partitions": 2, "made": 2}
    (size,) = map(len, checkpoints_of_voters(live).values())
    assert row["SnapshotSizeBytes"] == size
    assert list(report.rows[0]) == list(report.rows[1]), "one report, one shape"


def test_the_metadata_log_can_be_named_alone(live: Keyed) -> None:
    live.put([("a", "1")])
    report = live.cluster.snapshot(METADATA, by_hand=True)
    assert rows_of(report, "topic", "outcome") == [(METADATA, "made")]
    assert live.ids(live.leader()) == []
    with pytest.raises(UnknownTopicOrPartitionError):
        live.cluster.snapshot([METADATA, "nix"])


def test_a_dry_run_says_what_would_become_of_the_metadata_log(live: Keyed) -> None:
    end = live.cluster.image.next_offset
    with live.unchanged():
        row = of_metadata(live.cluster.snapshot(METADATA, by_hand=True, dry_run=True))
    assert (row["outcome"], row["SnapshotLag"]) == (f"would be made up to {end}", end)


def test_the_metadata_log_has_the_policy_of_the_cluster(live: Keyed) -> None:
    """Bytes and changes (KIP-630), or age (KIP-876)."""
    with live.unchanged():
        assert "below metadata.log.max.record.bytes" in str(of_metadata(live.cluster.snapshot(METADATA))["why"])
    live.cluster.topics.alter_configs(None, {"metadata.log.max.snapshot.interval.ms": "5000"})
    live.clock.sleep(5)
    assert of_metadata(live.cluster.snapshot(METADATA))["outcome"] == "made"
    live.topic("u")
    live.clock.sleep(4)
    assert of_metadata(live.cluster.snapshot(METADATA))["outcome"] == "not now"
    live.clock.sleep(1)
    assert of_metadata(live.cluster.snapshot(METADATA))["outcome"] == "made"
    live.clock.sleep(3600)
    with live.unchanged():
        assert "nothing has been committed since" in str(of_metadata(live.cluster.snapshot(METADATA))["why"])


def test_a_metadata_log_that_cannot_be_kept_is_a_failure_of_its_own(tmp_path: Path) -> None:
    """The topics' snapshots are made nevertheless."""
    faults = Faults()
    live = Keyed(tmp_path, through=faults.wrap).begin()
    live.put([("a", "1")])

    faults.refuse(StorageError("the disk is full"), "stage", of=METADATA)
    report = live.cluster.snapshot(by_hand=True, check=False)
    assert [failure.item for failure in report.failures] == [METADATA]
    assert [(row["topic"], row["outcome"]) for row in report.rows] == [("t", "made"), (METADATA, "failed")]


@pytest.mark.parametrize(
    "nth", [2, 7, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 12) if n not in (2, 7))]
)
def test_two_runs_on_the_metadata_log_at_once_do_no_harm(tmp_path: Path, nth: int) -> None:
    """Before the n-th change of one run, another driver commits, and runs from beginning to end."""
    faults = Faults()
    live = Keyed(tmp_path, through=faults.wrap).begin()
    other = live.driver()
    live.take_metadata()
    live.topic("u")
    left = nth

    def interrupt(uri: str, what: str, name: str) -> None:
        nonlocal left
        left -= what in CHANGES
        if left == 0:
            faults.none()
            other.topics.create("v", replication_factor=1)
            other.snapshot(METADATA, by_hand=True).raise_for_failures()

    faults.before = interrupt
    live.take_metadata()
    faults.none()
    live.take_metadata()
    image = live.cluster.image
    assert set(image.topic_ids) >= {"t", "u"}
    assert live.driver().image == image
    assert of_metadata(live.cluster.snapshot(METADATA, by_hand=True))["outcome"] == "not now"
    names = [name.rpartition("/")[2] for name in checkpoints_of_voters(live)]
    assert len(names) <= 2, "the latest, and the one before it"


@pytest.mark.slow
def test_the_metadata_log_has_kafkas_snapshot_metrics(live: Keyed) -> None:
    """KIP-630, "Metrics": kafka.controller:type=KafkaController: these four were made for this log."""

    def found(driver: Cluster) -> dict[str, dict[str, object]]:
        rows = driver.metrics().raise_for_failures().rows
        return {str(row["metric"]): dict(row) for row in rows if row["topic"] == METADATA}

    before = found(live.cluster)
    assert (before["SnapshotSizeBytes"]["value"], before["SnapshotLag"]["value"]) == (
        0,
        live.cluster.image.next_offset,
    )
    live.take_metadata()
    live.topic("u")
    after = found(live.cluster)
    (size,) = map(len, checkpoints_of_voters(live).values())
    assert after["SnapshotSizeBytes"]["value"] == size
    assert after["SnapshotLag"]["value"] == live.cluster.image.next_offset - end_of_latest(live)
    assert after["GenSnapshotLatencyMs"]["count"] == 1
    assert "LoadSnapshotLatencyMs" not in after, "it knew the log already"


def end_of_latest(live: LiveCluster) -> int:
    (name,) = checkpoints_of_voters(live)
    return int(name.rpartition("/")[2].partition("-")[0])


def test_opening_a_cluster_from_a_snapshot_is_a_load(live: Keyed) -> None:
    """KIP-630, "Loading Snapshots": "1. When it is booting"; "Metrics": LoadSnapshotLatencyMs."""
    live.take_metadata()
    rows = live.driver().metrics().raise_for_failures().rows
    loads = [row for row in rows if row["metric"] == "LoadSnapshotLatencyMs"]
    assert [(row["topic"], row["count"]) for row in loads] == [(METADATA, 1)]
