"""Verify on snapshots: of topics' replicas, and of the metadata log on its voters (KIP-630, "Validation of
Snapshot and Log")."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from stratalog.engine.driver.report import Report
from stratalog.partitions.paths import CheckpointName, base_name
from tests.unit.cluster_harness import LiveCluster, codes, rows_of, the_failure
from tests.unit.snapshot_harness import Keyed, checkpoint
from tests.unit.tampering import Spot, spot

METADATA = "__cluster_metadata"


@pytest.fixture
def live(tmp_path: Path) -> Keyed:
    """A topic and the metadata log, both with a snapshot and later records."""
    live = Keyed(tmp_path).begin()
    live.put([("a", "1"), ("b", "1")])
    live.take()
    live.put([("a", "2")])
    live.take_metadata()
    live.topic("u")
    return live


def of_voter(live: LiveCluster, ending: str, index: int = -1) -> Spot:
    """A file of the only voter."""
    store = live.store(1)
    names = sorted(one.name for one in store.list("") if METADATA in one.name and one.name.endswith(ending))
    return Spot(store, names[index])


def verified(live: LiveCluster, topic: str, *, deep: bool = True) -> Report:
    with live.unchanged():
        return live.cluster.verify(topic, deep=deep)


def test_whole_snapshots_are_no_finding(live: Keyed) -> None:
    with live.unchanged():
        report = live.cluster.verify(deep=True)
    assert rows_of(report, "topic", "findings") == [("t", 0), ("u", 0), (METADATA, 0)]


@pytest.mark.slow
@pytest.mark.parametrize("broker", [1, 2, 3])
def test_a_damaged_snapshot_of_a_replica_is_named(live: Keyed, broker: int) -> None:
    """A flipped bit is found with ``deep``, which reads every byte; the finding names the replacement in use."""
    file = checkpoint(live, broker)
    file.flip(700)
    assert verified(live, "t", deep=False).ok
    failure = the_failure(verified(live, "t"))
    assert file.name in failure
    assert "CORRUPT_SEGMENT" in failure
    assert "readers use the previous snapshot and the log" in failure


def test_a_snapshot_in_the_wrong_folder_is_named(live: Keyed) -> None:
    """A snapshot of another topic is intact, but not one of this topic."""
    data = checkpoint(live, 1).read()
    replica = live.replica(1, "u")
    replica.store.create(replica.path(CheckpointName(2, 1)), data)
    assert "INCONSISTENT_CLUSTER_ID" in the_failure(verified(live, "u"))


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.slow
def test_a_log_with_nothing_to_cover_the_part_below_its_start_is_found(live: Keyed, deep: bool) -> None:
    """KIP-630: "If the LogStartOffset is greater than 0, there are one or more snapshots where the end offset of
    the snapshot is between LogStartOffset and the High-Watermark"."""
    live.cluster.retain("t").raise_for_failures()
    assert live.log(2).local_start == 2
    checkpoint(live, 2).remove()
    failure = the_failure(verified(live, "t", deep=deep))
    assert (
        "the log starts at 2 and is committed up to 3, but no snapshot ends in this range (existing: none)"
        in failure
    )


def test_a_file_that_is_nearly_a_snapshot_is_foreign(live: Keyed) -> None:
    """Odd names are left alone, and reported."""
    replica = live.replica(2)
    replica.store.create(f"{replica.folder}/2-1.checkpoint", b"odd")
    live.store(1).create(f"{of_voter(live, '.checkpoint').path}.old", b"odd")
    assert "2-1.checkpoint is a foreign file" in the_failure(verified(live, "t"))
    assert ".checkpoint.old is a foreign file" in the_failure(verified(live, METADATA))


@pytest.mark.slow
@pytest.mark.parametrize("broker", [1, 2, 3])
@pytest.mark.parametrize("how", ["flipped", "gone"])
def test_heal_gives_a_replica_a_whole_copy_of_a_snapshot(live: Keyed, broker: int, how: str) -> None:
    """The replica gets the copy even if there are no new records for another snapshot. No replica leaves the ISR
    for it, because its log is intact.
    """
    live.cluster.retain("t").raise_for_failures()
    file, before = checkpoint(live, broker), live.replicas().view
    whole = file.read()
    file.flip(700) if how == "flipped" else file.remove()
    report = live.cluster.heal("t")
    assert rows_of(report, "broker", "damage", "outcome") == [(broker, file.name, "repaired")]
    assert file.read() == whole
    assert live.replicas().view == before


@pytest.mark.slow
def test_heal_names_a_snapshot_that_is_whole_nowhere(live: Keyed) -> None:
    for broker in (1, 2, 3):
        checkpoint(live, broker).flip(700)
    assert codes(live.cluster.heal("t", check=False)) == {"CORRUPT_SEGMENT": 3}
    live.put([("c", "1")])
    live.take()
    assert live.held(1)["c"] == "1"


def test_a_replica_whose_snapshot_alone_is_damaged_may_lead_while_its_leader_is_healed(tmp_path: Path) -> None:
    live = Keyed(tmp_path).begin(copies=2)
    live.put([("a", "1")])
    live.take()
    leader, (follower,) = live.leader(), live.followers()
    checkpoint(live, follower).flip(700)
    spot(live, leader, 0).flip(30)
    live.cluster.heal("t").raise_for_failures()
    assert live.leader() == follower
    assert live.isr() == {1, 2}


# ----------------------------------------------------------------------------- the metadata log


def test_the_metadata_log_has_a_row(live: Keyed) -> None:
    report = verified(live, METADATA)
    ((topic, voters, files, findings),) = rows_of(report, "topic", "replicas", "files", "findings")
    assert (topic, voters, findings) == (METADATA, 1, 0)
    assert int(str(files)) > 2


def test_a_damaged_snapshot_of_a_voter_is_named(live: Keyed) -> None:
    file = of_voter(live, ".checkpoint")
    file.flip(700)
    assert verified(live, METADATA, deep=False).ok
    failure = the_failure(verified(live, METADATA))
    assert file.name in failure
    assert "readers use the previous snapshot and the log" in failure


def test_a_damaged_batch_of_a_voter_is_named(live: Keyed) -> None:
    file = of_voter(live, ".parquet")
    file.flip(700)
    assert file.name in the_failure(verified(live, METADATA))


def test_a_batch_that_is_missing_is_named_with_its_offsets(tmp_path: Path) -> None:
    """A voter cannot show that it lacks a file in the middle of its log, and a majority may hide the gap from
    every reader.
    """
    live = LiveCluster(tmp_path)
    for broker in (2, 3):
        live.cluster.quorum.add_voter(broker)
    live.topic("t")
    live.topic("u")
    store = live.store(2)
    names = sorted(one.name for one in store.list("") if METADATA in one.name and one.name.endswith(".parquet"))
    base = int(base_name(names[-2]).partition(".")[0])
    Spot(store, names[-2]).remove()
    with live.unchanged():
        failure = the_failure(live.cluster.verify(METADATA, deep=True))
    assert f"offsets [{base}, " in failure
    assert "LOG_GAP" in failure


def test_a_voter_that_is_away_is_a_failure_until_its_broker_is_fenced(tmp_path: Path) -> None:
    """The failure is like that of a replica."""
    live = LiveCluster(tmp_path, on_disk=True)
    for broker in (2, 3):
        live.cluster.quorum.add_voter(broker)
    with live.unreachable(3):
        report = live.cluster.verify(METADATA)
        assert codes(report) == {"BROKER_NOT_AVAILABLE": 1}
        assert [row["replicas"] for row in report.rows] == [2]
        live.cluster.brokers.fence(3).raise_for_failures()
        live.cluster.verify(METADATA).raise_for_failures()
        # The volume is unmounted; a create that was not counted is below the mount point.
        shutil.rmtree(live.root(3))
        live.root(3).mkdir()


def test_a_voter_that_was_wiped_waits_to_be_replaced(tmp_path: Path) -> None:
    """The wiped root is another incarnation, and no voter: the log has no fault."""
    live = LiveCluster(tmp_path)
    for broker in (2, 3):
        live.cluster.quorum.add_voter(broker)
    live.wipe(3)
    live.cluster.bootstrap(3)
    report = live.cluster.verify(METADATA)
    assert rows_of(report, "replicas", "findings") == [(2, 0)]
