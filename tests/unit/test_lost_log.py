"""A partition that once had records, and has none on any replica or in a remote log: the metadata knows that it
was written to, an error names the partition, and no offset is assigned twice.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stratalog.engine.admin import topics
from stratalog.engine.metadata.election_commands import Election, ElectLeaders
from stratalog.engine.metadata.partition_commands import MarkWritten, RefusedPartition, WrittenUpTo
from stratalog.engine.replication.lost_log import LogLostError, check_not_lost
from stratalog.partitions.errors import CorruptionError, ElectionNotNeededError
from stratalog.partitions.paths import DataName
from tests.ports import ports_of, with_ports
from tests.unit.cluster_harness import LiveCluster, codes, fence, rows_of, the_failure
from tests.unit.erase_harness import Erasable, stop_at
from tests.unit.restore_harness import partly_tiered, restored
from tests.unit.snapshot_harness import keyed


def lose(live: LiveCluster, *brokers: int, partition: int = 0) -> None:
    """Delete the partition's folders on these brokers (by default on all); returns a driver without caches."""
    for broker in brokers or live.replicas(partition=partition).view.replicas:
        replica = live.replica(broker, partition=partition)
        store = replica.store
        store.delete([stored.name for stored in store.list("") if stored.name.startswith(f"{replica.folder}/")])
    live.cluster = live.driver()


def written_to(live: LiveCluster, partition: int = 0) -> int:
    return live.replicas(partition=partition).view.written_to


def written(folder: Path, *, copies: int = 3, tiered: bool = False, records: int = 5) -> LiveCluster:
    """Five records, which a run of maintain has seen."""
    live = LiveCluster(folder)
    if tiered:
        live.tiered(copies=copies, segment_bytes="1000000")
    else:
        live.topic(copies=copies)
    live.fill(f"v{number}" for number in range(records))
    live.cluster.replicate().raise_for_failures()
    assert written_to(live) == records
    return live


def findings(live: LiveCluster) -> dict[object, str]:
    return {row["finding"]: str(row["do"]) for row in live.cluster.health().rows}


@pytest.mark.parametrize("tiered", [False, True])
@pytest.mark.parametrize("copies", [1, 3])
def test_a_lost_log_is_named_and_nothing_is_appended(tmp_path: Path, copies: int, tiered: bool) -> None:
    live = written(tmp_path, copies=copies, tiered=tiered)
    lose(live)
    with live.unchanged():
        failure = the_failure(live.append(["too early"]))
        for found in ("LOG_LOST", "the high watermark reached 5", "recover --keep brokers", "at offset 5"):
            assert found in failure
        for report in (live.cluster.verify(), live.cluster.verify(deep=True), live.cluster.describe()):
            assert "LOG_LOST" in codes(report)
        assert "recover t --keep brokers --dry-run" in findings(live)["lost-log"]
        with pytest.raises(LogLostError):
            live.read()
    for report in (live.cluster.replicate(check=False), live.cluster.heal(check=False)):
        assert "LOG_LOST" in codes(report)
    assert any("LOG_LOST" in str(failure) for failure in live.cluster.maintain(check=False).failures)
    for broker in live.replicas().view.replicas:
        assert not live.log(broker).listing.data, "nothing was written by any of them"


@pytest.mark.parametrize("removed_by", ["compact", "erase"])
def test_a_log_from_which_records_were_removed_does_not_begin_again(tmp_path: Path, removed_by: str) -> None:
    """The error of such a log names the remedy, and recover refuses the log, also in a dry run."""
    live = Erasable(tmp_path, cleanup_policy="compact" if removed_by == "compact" else "delete")
    live.cluster.replicate().raise_for_failures()
    if removed_by == "compact":
        live.cluster.compact().raise_for_failures()
    else:
        stop_at(live, "erase_partition")
    lose(live)
    appended = live.cluster.append_batches("t", {0: [keyed([("x", "too early")], 1)]}, check=False)
    failure = the_failure(appended)
    for found in ("LOG_LOST", "bring back the storage of a broker", "delete the topic and create it again"):
        assert found in failure
    assert "recover --keep" not in failure
    assert "replicate --topics t" in findings(live)["lost-log"]
    for dry_run in (True, False):
        with live.unchanged():
            report = live.cluster.recover("t", keep="brokers", dry_run=dry_run, check=False)
        assert "bring back a broker that was in the ISR" in the_failure(report)


@pytest.mark.parametrize("copies", [1, 3])
def test_a_person_lets_it_begin_again_where_it_was_known_to_end(tmp_path: Path, copies: int) -> None:
    live = written(tmp_path, copies=copies)
    epoch = live.replicas().view.leader_epoch
    lose(live)
    with live.unchanged():
        plan = live.cluster.recover("t", keep="brokers", dry_run=True)
    shown = ("same_until", "brokers_end", "remote_end", "keeps", "gives_up", "outcome")
    assert rows_of(plan, *shown) == [(5, 0, None, "brokers", 5, "planned")]
    assert rows_of(live.cluster.recover("t", keep="brokers"), *shown) == [(5, 0, None, "brokers", 5, "kept")]
    live.append(["new"]).raise_for_failures()
    assert live.replicas().view.leader_epoch == epoch + 1
    assert live.isr() == set(live.replicas().view.replicas)
    assert live.read() == {0: ["new"]}
    assert live.log(live.leader()).log_end == 6
    live.cluster.verify(deep=True).raise_for_failures()
    assert "lost-log" not in findings(live)
    assert live.cluster.recover("t", keep="brokers").rows == []
    assert written_to(live) == 0
    live.cluster.replicate().raise_for_failures()
    assert written_to(live) == 6


@pytest.mark.parametrize("appended", [0, 1, 4])
def test_every_answer_says_that_what_was_behind_the_known_offset_is_unknown(tmp_path: Path, appended: int) -> None:
    """The metadata records an offset whenever there are twice as many records: later ones are unknown, and their
    offsets are assigned again.
    """
    live = written(tmp_path)
    live.fill([f"w{number}" for number in range(appended)])
    live.cluster.replicate().raise_for_failures()
    assert written_to(live) == 5
    lose(live)
    unknown = "it is unknown whether there were records from offset 5 on; if so, their offsets are assigned again"
    assert unknown in the_failure(live.append(["too early"]))
    (finding,) = [row for row in live.cluster.health().rows if row["finding"] == "lost-log"]
    assert unknown in str(finding["what"])
    for dry_run in (True, False):
        report = live.cluster.recover("t", keep="brokers", dry_run=dry_run)
        assert any(
            unknown in note and "although its records reached at least offset 5" in note for note in report.notes
        )
    live.append(["new"]).raise_for_failures()
    assert live.log(live.leader()).local_start == 5
    assert live.read() == {0: ["new"]}


def test_an_append_that_comes_late_to_a_lost_folder_does_no_harm(tmp_path: Path) -> None:
    """A driver that knows the end of the log writes once more before it looks. The append is refused, and its file
    stays in an abandoned folder.
    """
    live = written(tmp_path)
    late = live.driver()
    for number in range(2):  # the second append uses the result of the first one
        live.append([f"w{number}"], driver=late).raise_for_failures()
    lose(live)
    assert codes(live.append(["late"], driver=late)) == {"LOG_LOST": 1}
    leader = live.log(live.leader())
    assert [file.name for file in leader.listing.data] == [DataName(7, None, 1)]
    assert codes(live.append(["too early"])) == {"LOG_LOST": 1}
    rows_of(live.cluster.recover("t", keep="brokers"), "outcome")
    live.append(["new"]).raise_for_failures()
    assert live.read() == {0: ["new"]}
    live.cluster.verify(deep=True).raise_for_failures()


def test_it_begins_no_earlier_than_its_log_start(tmp_path: Path) -> None:
    """The metadata also knows the log start; a leader that has lost everything does not continue from there."""
    live = written(tmp_path)
    live.fill(["v5", "v6"])
    live.cluster.topics.delete_records("t", {0: 6}).raise_for_failures()
    lose(live)
    assert codes(live.append(["too early"])) == {"LOG_LOST": 1}
    assert rows_of(live.cluster.recover("t", keep="brokers"), "same_until", "gives_up") == [(6, 0)]
    live.append(["new"]).raise_for_failures()
    assert live.log(live.leader()).log_end == 7


def test_a_member_that_has_the_log_leads(tmp_path: Path) -> None:
    """If the folders of the leader and of other members are missing, the remaining member leads."""
    live = written(tmp_path)
    leader, gone, left = live.leader(), *live.followers()
    lose(live, leader, gone)
    assert "stratalog replicate" in findings(live)["lost-log"]
    (failure,) = live.cluster.recover("t", keep="brokers", dry_run=True, check=False).failures
    assert f"broker {left}, a member of the ISR, has the log" in failure.message
    assert codes(live.append(["v5"])) == {}
    assert live.leader() == left
    live.cluster.replicate(check=False)
    live.cluster.replicate().raise_for_failures()
    assert live.read() == {0: [f"v{number}" for number in range(6)]}


def test_records_that_only_a_replica_outside_the_isr_has_are_not_given_up_unseen(tmp_path: Path) -> None:
    live = written(tmp_path)
    outside, *members = live.followers()
    fence(live, outside)
    live.append(["v5"]).raise_for_failures()
    assert live.isr() == {live.leader(), *members}
    live.cluster.brokers.unfence([outside])
    lose(live, live.leader(), *members)
    (failure,) = live.cluster.recover("t", keep="brokers", check=False).failures
    assert f"broker {outside} has records up to offset 5" in failure.message
    fence(live, outside)
    report = live.cluster.recover("t", keep="brokers", dry_run=True)
    assert any(f"broker {outside} is fenced, and was not checked" in note for note in report.notes)


def test_a_remote_tier_that_does_not_answer_may_have_the_records(tmp_path: Path) -> None:
    live = written(tmp_path, tiered=True)
    live.cluster.tier().raise_for_failures()
    lose(live)
    away = tmp_path / "away"
    live.remote.rename(away)
    live.remote.write_text("no folder")
    assert "It is unknown whether the remote tier has records" in the_failure(live.append(["too early"]))
    live.remote.unlink()
    away.rename(live.remote)
    assert codes(live.driver().verify()) == {"LOG_LOST": 1}, "nothing was due to be tiered"


def test_if_the_remote_log_has_records_it_continues_from_there(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    live.tiered(local_retention_bytes="-2")
    live.fill(f"v{number}" for number in range(5))
    live.cluster.tier().raise_for_failures()
    live.cluster.replicate().raise_for_failures()
    lose(live)
    assert codes(live.append(["too early"])) == {"LOG_BEHIND_REMOTE": 1}
    assert "lost-log" not in findings(live)
    assert live.cluster.recover("t", keep="brokers", dry_run=True, partitions=[0]).rows[0]["brokers_end"] == 0
    live.cluster.replicate().raise_for_failures()
    live.fill(["v5"])
    assert live.read() == {0: [f"v{number}" for number in range(6)]}


# ---------------------------------------------------------------------------------- no false alarm


def unwritten(folder: Path) -> LiveCluster:
    live = LiveCluster(folder)
    live.topic()
    live.cluster.replicate().raise_for_failures()
    return live


def unwritten_and_gone(folder: Path) -> LiveCluster:
    live = unwritten(folder)
    lose(live)
    return live


def never_maintained_and_gone(folder: Path) -> LiveCluster:
    """No run has recorded that the partition was written to."""
    live = LiveCluster(folder)
    live.topic()
    live.fill(["v0"])
    lose(live)
    return live


def all_expired(folder: Path) -> LiveCluster:
    live = written(folder)
    live.cluster.topics.alter_configs(
        "t", {"retention.ms": "1", "segment.bytes": "1", "file.delete.delay.ms": "0"}
    )
    live.clock.advance_ms(10**9)
    for _ in range(3):
        live.cluster.maintain(check=False)
        live.cluster.retain().raise_for_failures()
    assert live.log(live.leader()).chain == ()
    return live


def all_deleted(folder: Path) -> LiveCluster:
    live = written(folder)
    live.cluster.topics.alter_configs("t", {"file.delete.delay.ms": "0"})
    live.cluster.topics.delete_records("t", {0: "latest"}).raise_for_failures()
    for _ in range(2):
        live.cluster.retain().raise_for_failures()
    assert live.log(live.leader()).chain == ()
    return live


def moved(folder: Path) -> LiveCluster:
    live = LiveCluster(folder, 4)
    live.topic(copies=1)
    live.fill(["v0"])
    live.cluster.replicate().raise_for_failures()
    others = [broker for broker in (1, 2, 3, 4) if broker != live.leader()]
    live.cluster.reassign({("t", 0): others}).raise_for_failures()
    live.cluster.vacuum(older_than_ms=0).raise_for_failures()
    assert set(live.replicas().view.replicas) == set(others)
    return live


def begun_at_70(folder: Path) -> LiveCluster:
    live = LiveCluster(folder)
    with_ports(topics.create_topic, ports_of(live.cluster))(
        "t", partitions=1, replication_factor=3, log_starts=[70]
    )
    live.cluster.replicate().raise_for_failures()
    return live


def of_a_mirror(folder: Path) -> LiveCluster:
    """The log begins at another offset than 0."""
    live = begun_at_70(folder)
    live.append(["v70"]).raise_for_failures()
    live.cluster.replicate().raise_for_failures()
    return live


def of_a_mirror_and_gone(folder: Path) -> LiveCluster:
    """The mirror had no records, so the log begins at its original start."""
    live = begun_at_70(folder)
    lose(live)
    return live


def of_a_restore(folder: Path) -> LiveCluster:
    live = restored(partly_tiered(folder))
    live.cluster.replicate().raise_for_failures()
    return live


def elected_uncleanly(folder: Path) -> LiveCluster:
    """A replica without records was elected, because an operator has abandoned the records."""
    live = written(folder)
    leader, *others = live.leader(), *live.followers()
    fence(live, *others)
    fence(live, leader)
    lose(live, *others)
    live.cluster.brokers.unfence(others)
    live.cluster.elect("t", unclean=True).raise_for_failures()
    return live


def another_leader(folder: Path) -> LiveCluster:
    live = written(folder)
    live.cluster.elect("t", leader=live.followers()[0]).raise_for_failures()
    return live


def after_acks_of_the_leader(folder: Path) -> LiveCluster:
    """No record was acknowledged by all, and the leader is gone: the members have nothing."""
    live = LiveCluster(folder)
    live.topic()
    live.append(["v0"], acks="leader").raise_for_failures()
    fence(live, live.leader())
    return live


def a_lost_disk(folder: Path) -> LiveCluster:
    live = written(folder)
    live.cluster.elect("t", leader=3).raise_for_failures()  # this broker does not vote
    live.wipe(3)
    live.cluster = live.driver()
    live.cluster.maintain(check=False)
    live.cluster.maintain(check=False)
    return live


@pytest.mark.parametrize(
    "build",
    [
        unwritten,
        unwritten_and_gone,
        never_maintained_and_gone,
        written,
        all_expired,
        all_deleted,
        moved,
        of_a_mirror,
        of_a_mirror_and_gone,
        pytest.param(of_a_restore, marks=pytest.mark.slow),
        elected_uncleanly,
        another_leader,
        after_acks_of_the_leader,
        a_lost_disk,
    ],
    ids=lambda build: build.__name__,
)
def test_nothing_is_claimed_of_a_log_that_is_not_lost(
    tmp_path: Path, build: Callable[[Path], LiveCluster]
) -> None:
    live = build(tmp_path)
    assert "lost-log" not in findings(live)
    assert "LOG_LOST" not in codes(live.cluster.verify())
    assert "LOG_LOST" not in codes(live.cluster.describe())
    assert "LOG_LOST" not in codes(live.cluster.maintain(check=False))
    assert live.cluster.recover(keep="brokers", topics=None, dry_run=True).rows == []
    assert codes(live.append(["v"])) == {}


# --------------------------------------------------------------------------------------- the mark


def test_one_commit_marks_all_partitions_and_few_follow(tmp_path: Path) -> None:
    """Partitions are marked when they have records, and when they have twice as many; appends commit nothing."""
    live = LiveCluster(tmp_path)
    live.topic(partitions=3)
    commits: list[int] = []
    before = live.cluster.image.next_offset
    for _ in range(9):
        live.append({0: ["v"], 2: ["v"]}).raise_for_failures()
        assert live.cluster.image.next_offset == before
        live.cluster.replicate().raise_for_failures()
        commits.append(live.cluster.image.next_offset - before)
        before = live.cluster.image.next_offset
    assert [written_to(live, partition) for partition in range(3)] == [8, 0, 8]
    assert [count > 0 for count in commits] == [True, True, False, True, False, False, False, True, False]


def test_a_mark_counts_under_the_leader_epoch_of_which_it_is(tmp_path: Path) -> None:
    live = written(tmp_path)
    view, metadata = live.replicas().view, ports_of(live.cluster).metadata
    assert metadata.submit(MarkWritten((WrittenUpTo(*view.key, 50, view.leader_epoch - 1),))) == 0
    assert metadata.submit(MarkWritten((WrittenUpTo(*view.key, 3, view.leader_epoch),))) == 0
    assert metadata.submit(MarkWritten((WrittenUpTo("0" * 32, 0, 3, view.leader_epoch),))) == 0
    assert written_to(live) == 5
    assert metadata.submit(MarkWritten((WrittenUpTo(*view.key, 6, view.leader_epoch),))) == 1
    assert written_to(live) == 6
    assert live.replicas().view == view, "nobody's view has passed"


def test_a_log_of_which_no_records_are_known_does_not_begin_again(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    live.topic()
    live.fill(["v0"])
    metadata = ports_of(live.cluster).metadata
    (refused,) = metadata.submit(ElectLeaders((Election(*live.replicas().view.key, lost=True),)))
    assert isinstance(refused, RefusedPartition)
    assert isinstance(refused.error, ElectionNotNeededError)


def test_the_error_is_damage_of_the_leader(tmp_path: Path) -> None:
    live = written(tmp_path)
    lose(live)
    replicas = live.replicas()
    with pytest.raises(CorruptionError) as caught:
        check_not_lost(replicas, replicas.leader.log(fresh=True))
    assert caught.value.broker_id == live.leader()
