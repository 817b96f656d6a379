"""The quorum of a whole cluster: described, shortened, and changed (protocol section 5)."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from stratalog import Cluster
from stratalog.engine.cluster.parts import with_parts
from stratalog.jobs import quorum as job
from stratalog.partitions.errors import (
    BrokerUnreachableError,
    CorruptionError,
    InvalidCallError,
    NoMajorityError,
    StaleBrokerError,
    UnknownBrokerError,
)
from stratalog.partitions.paths import voter_path
from stratalog.partitions.unwritable import UnwritableStorageError
from tests.unit.cluster_harness import LiveCluster


def voting(live: LiveCluster, *brokers: int) -> LiveCluster:
    """A cluster with these voters, in the log and in the file."""
    for broker in brokers:
        live.cluster.quorum.add_voter(broker)
    if 1 not in brokers:
        live.cluster.quorum.remove_voter(1)
    name_voters(live, *brokers)
    return live


def name_voters(live: LiveCluster, *brokers: int) -> None:
    lines = live.file.read_text().splitlines()
    lines = [f"voters = {list(brokers)}" if line.startswith("voters") else line for line in lines]
    live.file.write_text("\n".join(lines))


@pytest.fixture
def three(tmp_path: Path) -> LiveCluster:
    return voting(LiveCluster(tmp_path, brokers=4, on_disk=True), 1, 2, 3)


def any_voters(live: LiveCluster) -> Cluster:
    return with_parts(Cluster, clock=live.clock, new_id=live.new_id, opener=live.open_root).open(
        live.file, voters_as_logged=True
    )


@pytest.mark.slow
def test_voters_are_described_with_their_lag(three: LiveCluster) -> None:
    with three.unreachable(3):
        three.cluster.topics.create("t", replication_factor=1)
        away = three.driver().quorum.describe()
        assert [(row["voter"], row["lag"]) for row in away.rows] == [(1, 0), (2, 0), (3, None)]
        assert [failure.code for failure in away.failures] == ["BROKER_NOT_AVAILABLE"]
        unknown = ("claimed_epoch", "log_start", "log_end", "files", "size_bytes")
        assert [away.rows[2][name] for name in unknown] == [None] * 5
        assert None not in [away.rows[1][name] for name in unknown]
        # The volume is unmounted; a create that was not counted is below the mount point.
        shutil.rmtree(three.root(3))
        three.root(3).mkdir()
    report = three.driver().quorum.describe()
    lags = {row["voter"]: row["lag"] for row in report.rows}
    assert lags[1] == lags[2] == 0
    assert report.totals["high_watermark"] == three.cluster.image.next_offset
    assert len(str(report.totals["leader"])) == 32
    assert int(str(report.totals["epoch"])) >= 1
    assert report.totals["snapshot_lag"] == report.totals["high_watermark"]
    three.cluster.topics.create("u", replication_factor=1)
    three.cluster.quorum.snapshot().raise_for_failures()
    report = three.cluster.quorum.describe()
    assert [row["lag"] for row in report.rows] == [0, 0, 0]
    assert all(str(row["snapshots"]).endswith(".checkpoint") for row in report.rows)
    assert report.totals["snapshot_lag"] == 0


@pytest.mark.slow
def test_a_snapshot_is_taken_by_hand_and_makes_the_log_short(three: LiveCluster) -> None:
    for name in ("t", "u", "v"):
        three.cluster.topics.create(name, replication_factor=1)
        report = three.cluster.quorum.snapshot().raise_for_failures()
    assert [row["snapshot"] for row in report.rows] == ["made", "copied", "copied"]
    assert int(str(report.totals["log_start"])) > 0
    assert all(int(str(row["deleted_files"])) > 0 for row in report.rows)
    again = three.cluster.quorum.snapshot()
    assert "nothing has been committed since snapshot" in again.notes[0]
    assert three.driver().image == three.cluster.image


@pytest.mark.slow
def test_a_dry_run_changes_nothing(three: LiveCluster) -> None:
    before = three.cluster.image
    assert three.cluster.quorum.snapshot(dry_run=True).notes == ["a snapshot would be taken"]
    assert [row["voter"] for row in three.cluster.quorum.add_voter(4, dry_run=True).rows] == [1, 2, 3, 4]
    assert [row["voter"] for row in three.cluster.quorum.remove_voter(2, dry_run=True).rows] == [1, 3]
    assert three.cluster.image == before
    assert all(row["snapshots"] == "" for row in three.cluster.quorum.describe().rows)


@pytest.mark.parametrize("why", ["read-only", "in the way", "a link"])
def test_a_dry_run_refuses_a_new_voter_that_is_known_to_refuse_files(
    three: LiveCluster, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, see = three.root(4), os.statvfs

    def read_only(path: str) -> object:
        return SimpleNamespace(f_flag=os.ST_RDONLY, f_blocks=1, f_bavail=1) if path == str(root) else see(path)

    untested = "a dry run creates no file, so it does not test whether broker 4 accepts files"
    planned = three.cluster.quorum.add_voter(4, dry_run=True)
    assert untested in planned.notes
    assert not any("dry run" in note for note in three.cluster.quorum.add_voter(2, dry_run=True).notes)
    match why:
        case "read-only":
            monkeypatch.setattr(os, "statvfs", read_only)
        case "in the way":
            shutil.rmtree(root / ".staging")
            (root / ".staging").write_text("")
        case _:
            folder = root / voter_path(str(planned.rows[-1]["directory"]))
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.symlink_to(three.root(3))
    before = three.cluster.image
    with pytest.raises((UnwritableStorageError, CorruptionError), match=r"/b4"):
        three.cluster.quorum.add_voter(4, dry_run=True)
    assert three.cluster.image == before


@pytest.mark.slow
def test_both_conditions_of_the_policy_must_hold(three: LiveCluster) -> None:
    """KIP-630, "When to Snapshot": "Both of these configuration need to be satisfied"."""
    cluster = three.cluster
    assert (
        "below metadata.log.max.record.bytes.between.snapshots" in cluster.quorum.snapshot(by_hand=False).notes[0]
    )
    cluster.topics.alter_configs(None, {"metadata.log.max.record.bytes.between.snapshots": "1"})
    assert cluster.quorum.snapshot(by_hand=False).rows, "there is none yet"
    cluster.topics.create("t", replication_factor=1)
    assert "0 of 6 records" in cluster.quorum.snapshot(by_hand=False).notes[0], "new records do not count"
    cluster.topics.alter_configs(None, {"metadata.snapshot.min.changed_records.ratio": "0"})
    assert cluster.quorum.snapshot(by_hand=False).rows


@pytest.mark.slow
def test_a_wiped_voter_is_replaced(three: LiveCluster) -> None:
    """The new voter gets the snapshot and the log before it votes again."""
    for name in ("t", "u", "v"):
        three.cluster.topics.create(name, replication_factor=1)
        three.cluster.quorum.snapshot().raise_for_failures()
    three.wipe(2)
    driver = three.driver()
    with pytest.raises(BrokerUnreachableError, match=r"broker 2 .* has no broker.json: bootstrap it first"):
        driver.quorum.replace_voter(2)
    driver.bootstrap(2).raise_for_failures()
    planned = driver.quorum.replace_voter(2, dry_run=True)
    assert planned.dry_run
    done = driver.quorum.replace_voter(2)
    assert {(row["voter"], row["directory"]) for row in done.rows} == {
        (row["voter"], row["directory"]) for row in planned.rows
    }
    assert not done.notes, "the cluster file names the same voters"
    assert [row["lag"] for row in three.driver().quorum.describe().rows] == [0, 0, 0]
    with three.unreachable(1):
        assert three.driver().image.topic("v")
    end = driver.image.next_offset
    assert driver.quorum.replace_voter(2).rows
    assert driver.image.next_offset == end, "it votes with what it has: nothing to do"


def test_voters_are_added_and_removed_and_even_numbers_warn(three: LiveCluster) -> None:
    report = three.cluster.quorum.add_voter(4)
    assert "4 voters: an even number tolerates no more losses than one voter fewer" in report.notes
    with pytest.raises(
        InvalidCallError, match=r"names brokers \[1, 2, 3\] as voters, but the metadata log names \[1, 2, 3, 4\]"
    ):
        three.driver()
    assert any_voters(three).image == three.cluster.image
    name_voters(three, 1, 2, 3, 4)
    assert three.driver().image == three.cluster.image
    report = three.cluster.quorum.remove_voter(1)
    assert report.notes == ["set voters = [2, 3, 4] in the cluster file"]
    name_voters(three, 2, 3, 4)
    three.wipe(1)
    assert three.driver().image == three.cluster.image


def test_an_unknown_broker_is_no_voter(three: LiveCluster) -> None:
    before = three.cluster.image
    with pytest.raises(InvalidCallError, match="the cluster file does not name broker 9"):
        three.cluster.quorum.add_voter(9)
    with pytest.raises(UnknownBrokerError, match="broker 9 is neither"):
        three.cluster.quorum.remove_voter(9)
    with pytest.raises(
        InvalidCallError, match="broker 4 is not a metadata voter; add it with `quorum add-voter 4`"
    ):
        three.cluster.quorum.replace_voter(4)
    assert three.cluster.image == before


def test_a_voter_with_a_root_that_is_not_registered_is_refused(three: LiveCluster) -> None:
    three.cluster.brokers.decommission(4).raise_for_failures()
    with pytest.raises(UnknownBrokerError, match="broker 4 is not registered"):
        three.cluster.quorum.add_voter(4)
    three.wipe(3)
    (three.root(3) / "broker.json").write_text(
        '{"cluster_id": "c", "broker_id": 3, "directory_id": "' + "f" * 32 + '"}'
    )
    with pytest.raises(StaleBrokerError, match="bootstrap or register the broker first"):
        three.driver().quorum.replace_voter(3)


@pytest.mark.slow
def test_the_last_known_state_is_there_without_a_majority(three: LiveCluster) -> None:
    """Reads report it; writes fail with one clear error."""
    three.cluster.topics.create("t", replication_factor=1)
    known = three.cluster.image
    with three.unreachable(2), three.unreachable(3):
        with pytest.raises(NoMajorityError, match="1 of 3 metadata voters can be reached"):
            _ = three.cluster.image
        with pytest.raises(NoMajorityError, match="voters can be reached"):
            three.cluster.topics.create("u", replication_factor=1)
        assert three.cluster.last_known_image == known
        opened = three.driver()  # the remaining voters answer
        assert opened.last_known_image == known
        with pytest.raises(NoMajorityError):
            _ = opened.image
        described = opened.quorum.describe()
        assert [(row["voter"], row["lag"]) for row in described.rows] == [(1, 0), (2, None), (3, None)]
        assert described.failures[0].code == "NO_MAJORITY"
        assert described.totals["high_watermark"] == known.next_offset


@pytest.mark.slow
def test_the_job_describes_and_changes(three: LiveCluster, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(three.file)
    assert job.main(["--cluster", file, "describe"]) == 0
    assert "leader" in capsys.readouterr().out
    assert job.main(["--cluster", file, "snapshot", "--dry-run"]) == 0
    assert "a snapshot would be taken" in capsys.readouterr().out
    assert job.main(["--cluster", file, "add-voter", "4"]) == 0
    assert job.main(["--cluster", file, "remove-voter", "4"]) == 0
    assert job.main(["--cluster", file, "replace-voter", "4"]) == 2
    assert "broker 4 is not a metadata voter" in capsys.readouterr().err
