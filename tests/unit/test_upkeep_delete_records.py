"""DeleteRecords: its effect on a log, and its refusals (KIP-107; KIP-630, "When to Increase the
LogStartOffset")."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from stratalog import FoundOffset, OffsetSpec
from stratalog.jobs.delete_records import main as job
from stratalog.jobs.run import Job
from stratalog.jobs.topics import main as topics
from stratalog.partitions.errors import (
    InvalidCallError,
    InvalidTopicError,
    OffsetOutOfRangeError,
    PolicyViolationError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from tests.unit.cluster_harness import LiveCluster, codes, rows_of, the_failure
from tests.unit.faulty_store import Faults


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    live = LiveCluster(tmp_path)
    live.topic(partitions=2)
    live.fill("abcde")
    return live


# ----------------------------------------------------------------------------------- what it does


def test_records_below_the_offset_cannot_be_read_any_more(live: LiveCluster) -> None:
    """The effect is immediate, for every reader; the offset may be in the middle of a file."""
    live.append(["f", "g", "h"])
    assert rows_of(live.cluster.topics.delete_records("t", {0: 6}), "partition", "low_watermark") == [(0, 6)]
    assert live.read("t", partitions=[0]) == {0: ["g", "h"]}
    earliest = live.cluster.offsets("t", OffsetSpec.EARLIEST)[0]
    assert isinstance(earliest, FoundOffset)
    assert earliest.offset == 6
    with pytest.raises(OffsetOutOfRangeError):
        live.cluster.plan_read("t", start={0: 5})


def test_minus_one_is_the_high_watermark(live: LiveCluster) -> None:
    """Kafka: RecordsToDelete.beforeOffset(-1). Uncommitted records stay, and are not lost."""
    live.append(["f"], acks="leader")
    assert live.log(live.leader()).log_end == 6
    report = live.cluster.topics.delete_records("t", {0: -1, 1: -1})
    assert rows_of(report, "partition", "low_watermark", "deleted_records") == [(0, 5, 5), (1, 0, 0)]
    live.append(["g"]).raise_for_failures()
    assert live.read("t", partitions=[0]) == {0: ["f", "g"]}


@pytest.mark.parametrize("latest", ["latest", OffsetSpec.LATEST])
def test_the_high_watermark_has_a_name_and_other_positions_are_refused(live: LiveCluster, latest: str) -> None:
    assert rows_of(live.cluster.topics.delete_records("t", {0: latest}), "low_watermark") == [(5,)]
    for other in ("earliest", "lattest", "2013-06-01", OffsetSpec.EARLIEST):
        with live.unchanged(), pytest.raises(InvalidCallError, match="t-0: offset"):
            live.cluster.topics.delete_records("t", {0: other})


def test_below_the_log_start_there_is_nothing_to_delete(live: LiveCluster) -> None:
    """Kafka answers with the current low watermark; log starts never go back."""
    live.cluster.topics.delete_records("t", {0: 3}).raise_for_failures()
    with live.unchanged():
        report = live.cluster.topics.delete_records("t", {0: 2})
    assert rows_of(report, "low_watermark", "deleted_records") == [(3, 0)]


def test_the_bytes_leave_with_retain(live: LiveCluster) -> None:
    """Retain deletes whole files below the offset, on every replica, after file.delete.delay.ms."""
    live.cluster.topics.delete_records("t", {0: 3}).raise_for_failures()
    assert [len(live.data(broker)) for broker in (1, 2, 3)] == [5, 5, 5]
    live.cluster.retain("t").raise_for_failures()
    live.clock.sleep(61)
    live.cluster.retain("t").raise_for_failures()
    for broker in (1, 2, 3):
        assert live.log(broker).local_start == 3
        assert not any(file.name.base_offset < 3 for file in live.log(broker).listing.data)
    live.cluster.verify().raise_for_failures()


@pytest.mark.slow
def test_remote_segments_below_leave_with_retain_and_local_starts_follow(tmp_path: Path) -> None:
    """A tiered topic: the start is in the remote tier, or above all tiered records."""
    live = LiveCluster(tmp_path)
    live.tiered()
    live.fill("abcde")
    live.cluster.tier("t").raise_for_failures()
    live.fill("fg")
    live.cluster.retain("t").raise_for_failures()
    live.cluster.topics.delete_records("t", {0: 2}).raise_for_failures()
    assert live.read() == {0: list("cdefg")}
    (removed,) = rows_of(live.cluster.retain("t"), "log_start", "remote_removed")
    assert removed == (2, 2)
    live.cluster.topics.delete_records("t", {0: 6}).raise_for_failures()
    assert live.read() == {0: ["g"]}
    live.cluster.retain("t").raise_for_failures()
    assert {live.log(broker).local_start for broker in (1, 2, 3)} == {6}
    live.cluster.retain("t").raise_for_failures()
    assert list(live.remote.rglob("0/*.parquet")) == []
    live.cluster.verify(deep=True).raise_for_failures()


def test_a_follower_that_was_away_starts_at_the_log_start(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    live.topic()
    live.fill("abc")
    lost = live.followers()[0]
    live.wipe(lost)
    live.cluster.topics.delete_records("t", {0: 3}).raise_for_failures()
    live.append(["d"])
    live.cluster.retain("t")
    live.cluster.bootstrap(lost).raise_for_failures()
    assert (live.log(lost).local_start, live.log(lost).log_end) == (3, 4)
    assert live.isr() == {1, 2, 3}


def test_a_dry_run_changes_nothing(live: LiveCluster) -> None:
    with live.unchanged():
        report = live.cluster.topics.delete_records("t", {0: 2}, dry_run=True)
    assert report.dry_run
    assert rows_of(report, "low_watermark", "deleted_records") == [(2, 2)]


# ------------------------------------------------------------------------------- where it is refused


@pytest.mark.parametrize("offset", [6, -2])
def test_an_offset_beyond_the_high_watermark_is_out_of_range(live: LiveCluster, offset: int) -> None:
    """Kafka: OFFSET_OUT_OF_RANGE; the other partitions of the call do not change, either."""
    with (
        live.unchanged(),
        pytest.raises(OffsetOutOfRangeError, match=rf"below offset {offset} .* high watermark is 5"),
    ):
        live.cluster.topics.delete_records("t", {1: 0, 0: offset})


def test_unknown_topics_and_partitions_are_refused(live: LiveCluster) -> None:
    with live.unchanged():
        for topic, partition in (("nix", 0), ("t", 2)):
            with pytest.raises(UnknownTopicOrPartitionError):
                live.cluster.topics.delete_records(topic, {partition: 0})


@pytest.mark.parametrize("topic", ["__cluster_metadata", "__consumer_offsets", "kept"])
def test_the_log_of_a_topic_with_snapshots_is_refused(live: LiveCluster, topic: str) -> None:
    """KIP-630, "When to Increase the LogStartOffset": "Those requests will be rejected for the __cluster_metadata
    topic with a POLICY_VIOLATION error"."""
    live.topic("kept", cleanup_policy="snapshot")
    live.cluster.groups.commit("g", {("t", 0): 1})
    with live.unchanged(), pytest.raises(PolicyViolationError, match="only a snapshot advances the start"):
        live.cluster.topics.delete_records(topic, {0: -1})
    assert PolicyViolationError.code == "POLICY_VIOLATION"


@pytest.mark.parametrize("topic", ["__cluster_metadata", "__consumer_offsets"])
@pytest.mark.parametrize("dry_run", [False, True])
def test_configs_of_internal_topics_can_only_be_read(live: LiveCluster, topic: str, dry_run: bool) -> None:
    """KIP-630, "Topic configuration": "This configuration can only be read. Updates to this configuration will not
    be allowed"."""
    live.cluster.groups.commit("g", {("t", 0): 1})
    with live.unchanged(), pytest.raises(InvalidTopicError, match=f"'{topic}' is internal"):
        live.cluster.topics.alter_configs(topic, {"cleanup.policy": "delete"}, dry_run=dry_run)


def test_the_cleanup_policy_of_the_metadata_log_is_snapshot(
    disks: LiveCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """KIP-630, "Topic configuration": "The __cluster_metadata topic will have a cleanup.policy value of snapshot.
    This configuration can only be read"; a call that writes it is wrong.
    """
    at = ["alter-configs", "--cluster", str(disks.file), "--json", "__cluster_metadata"]
    assert topics(at) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == [
        {"config": "cleanup.policy", "value": "snapshot", "changed": False}
    ]
    with disks.unchanged():
        assert topics([*at, "--set", "cleanup.policy=delete"]) == 2
    assert "INVALID_TOPIC_EXCEPTION" in capsys.readouterr().err


# --------------------------------------------------------------------------------- races and faults


def on_commit_of(faults: Faults, deed: Callable[[], None]) -> None:
    """Run a function once, before the next write to the metadata log."""

    faults.once(deed, "create", of="__cluster_metadata")


def test_the_log_of_a_leader_elected_meanwhile_is_inspected(tmp_path: Path) -> None:
    """FENCED_LEADER_EPOCH: refresh, and continue."""
    faults = Faults()
    live = LiveCluster(tmp_path, through=faults.wrap)
    live.topic()
    live.fill("abc")
    other, heir = live.driver(), live.followers()[0]
    on_commit_of(faults, lambda: other.elect("t", leader=heir).raise_for_failures() and None)
    report = live.cluster.topics.delete_records("t", {0: 2})
    assert live.leader() == heir
    assert rows_of(report, "low_watermark") == [(2,)]
    assert live.replicas().view.log_start_offset == 2


def test_after_an_unclean_election_the_start_does_not_go_beyond_the_log(tmp_path: Path) -> None:
    """The new leader has fewer records than requested: this is a failure, and must not set a log start that hides
    future records.
    """
    faults = Faults()
    live = LiveCluster(tmp_path, through=faults.wrap)
    live.topic(copies=2, unclean_leader_election_enable="true")
    live.fill("a")
    leader, (behind,) = live.leader(), live.followers()
    live.cluster.brokers.fence(behind).raise_for_failures()
    live.fill("bc")
    other = live.driver()

    def replace_leader() -> None:
        other.brokers.unfence(behind).raise_for_failures()
        other.brokers.fence(leader, force=True).raise_for_failures()
        other.elect("t", unclean=True)

    on_commit_of(faults, replace_leader)
    report = live.cluster.topics.delete_records("t", {0: 3}, check=False)
    assert live.leader() == behind
    assert the_failure(report).startswith("t-0: OFFSET_OUT_OF_RANGE: ")
    assert live.replicas().view.log_start_offset == 0


def test_a_leader_that_cannot_be_read_keeps_no_other_partition(tmp_path: Path) -> None:
    faults = Faults()
    live = LiveCluster(tmp_path, through=faults.wrap)
    live.topic(partitions=2, copies=1)
    live.append({0: "a", 1: "b"}).raise_for_failures()

    folder = live.replica(live.leader(partition=1), partition=1).folder

    def refuse(uri: str, what: str, name: str) -> None:
        if what == "list" and name == folder:
            raise StorageError("no such mount")

    faults.before = refuse
    report = live.cluster.topics.delete_records("t", {0: 1, 1: 1}, check=False)
    assert codes(report) == {"KAFKA_STORAGE_ERROR": 1}
    assert [(row["partition"], row["low_watermark"]) for row in report.rows] == [(0, 1), (1, None)]


# ------------------------------------------------------------------------------------------- the job


@pytest.fixture
def disks(tmp_path: Path) -> LiveCluster:
    live = LiveCluster(tmp_path, on_disk=True)
    live.topic(partitions=2)
    live.fill("abc")
    return live


def offsets_file(live: LiveCluster, *partitions: tuple[str, int, int], **more: object) -> str:
    path = live.folder / f"offsets-{len(list(live.folder.iterdir()))}.json"
    named = [{"topic": t, "partition": p, "offset": o} for t, p, o in partitions]
    path.write_text(json.dumps({"partitions": named, "version": 1, **more}))
    return str(path)


def test_the_job_takes_kafkas_own_file(disks: LiveCluster, capsys: pytest.CaptureFixture[str]) -> None:
    """kafka-delete-records.sh --offset-json-file."""
    argv = [
        "--cluster",
        str(disks.file),
        "--json",
        "--offset-json-file",
        offsets_file(disks, ("t", 0, 2), ("t", 1, -1)),
    ]
    with disks.unchanged():
        assert job([*argv, "--dry-run"]) == 0
    assert job([*argv, "--yes"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [(row["topic"], row["partition"], row["low_watermark"]) for row in report["rows"]] == [
        ("t", 0, 2),
        ("t", 1, 0),
    ]
    assert disks.read() == {0: ["c"]}


def test_an_error_about_the_second_topic_leaves_a_report_of_the_first(
    disks: LiveCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The topic was protected while the job waited for its confirmation. Exit status 2 would say that nothing was
    changed.
    """
    disks.topic("later")
    disks.fill("ab", "later")

    def confirm(job: Job, what: str) -> None:
        disks.cluster.topics.protect("later", days=1)

    monkeypatch.setattr(Job, "confirm", confirm)
    file = offsets_file(disks, ("t", 0, 2), ("later", 0, 1))
    assert job(["--cluster", str(disks.file), "--json", "--offset-json-file", file]) == 1
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [(row["topic"], row["low_watermark"]) for row in report["rows"]] == [("t", 2)]
    assert [(one["item"], one["code"]) for one in report["failures"]] == [("later", "POLICY_VIOLATION")]


def test_the_job_takes_one_partition_by_words(disks: LiveCluster) -> None:
    assert job(["--cluster", str(disks.file), "t", "--before", "0:latest", "--yes"]) == 0
    assert disks.read() == {}


def test_a_wrong_call_of_the_job_changes_nothing(disks: LiveCluster, capsys: pytest.CaptureFixture[str]) -> None:
    """The call changes nothing even if the first of its topics is right."""
    disks.topic("kept", cleanup_policy="snapshot")
    at = ["--cluster", str(disks.file)]
    garbage = disks.folder / "garbage.json"
    garbage.write_text('{"partitions": [{"topic": "t"}]}')
    for argv, says in (
        ([], "one of the arguments TOPIC --offset-json-file is required"),
        (["t"], "no partitions were given"),
        (["t", "--before", "0=1"], "write offsets by partition as 0:1000,1:latest"),
        (["t", "--before", "0:1,0:2"], "given twice"),
        (["--before", "0:1", "--offset-json-file", str(garbage)], "cannot be used together"),
        (["--offset-json-file", str(disks.folder / "none.json")], "cannot be read"),
        (["--offset-json-file", str(garbage)], "is not in the format of"),
        (["--offset-json-file", offsets_file(disks, ("t", 0, 1), version=2)], "has version 2"),
        (["--offset-json-file", offsets_file(disks, ("t", 0, 1), ("t", 0, 2))], "given twice"),
        (["--offset-json-file", offsets_file(disks, ("t", 0, 1), ("kept", 0, 0))], "POLICY_VIOLATION"),
        (["--offset-json-file", offsets_file(disks, ("t", 0, 1), ("t", 1, 9))], "OFFSET_OUT_OF_RANGE"),
    ):
        with disks.unchanged():
            assert job([*at, *argv]) == 2
        assert says in capsys.readouterr().err
