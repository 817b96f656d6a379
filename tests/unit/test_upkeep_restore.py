"""Restore: a cluster on empty brokers from the remote tier alone."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from stratalog import Cluster
from stratalog.engine.cluster.parts import with_parts
from stratalog.engine.metadata.description import describe
from stratalog.engine.metadata.partition_commands import AdvanceLogStart, LogStart
from stratalog.engine.metadata.records import EPOCH_GAP
from stratalog.engine.replication.replica_selector import LeaderSelector
from stratalog.engine.upkeep.tiering.point import write_description
from stratalog.partitions.errors import CorruptionError, InconsistentClusterIdError, InvalidCallError
from stratalog.partitions.offsets import OffsetSpec
from stratalog.partitions.paths import DESCRIPTIONS
from tests.depth import at_depth
from tests.ports import ports_of
from tests.unit.cluster_harness import LiveCluster, codes, rows_of, the_failure
from tests.unit.faulty_store import CHANGES, Faults
from tests.unit.restore_harness import CONFIGS, Heir, append, partly_tiered, restored


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    return partly_tiered(tmp_path)


@pytest.mark.slow
def test_a_restored_cluster_is_what_was_tiered(live: LiveCluster) -> None:
    """Topics, configs, schemas, epochs and records are restored; the log continues at the remote end, and nothing
    is local.
    """
    before = live.cluster.image
    heir = Heir(live)
    report = heir.restore()
    assert rows_of(report, "topic", "partition", "log_start", "log_end", "replicas") == [
        ("t", 0, 0, 6, 3),
        ("t", 1, 0, 0, 3),
    ]
    live = heir.live_again()
    after = live.cluster.image
    assert after.configs == before.configs
    now, then = after.topic("t"), before.topic("t")
    assert (now.topic_id, now.configs, now.key_schema) == (then.topic_id, then.configs, then.key_schema)
    for broker in live.replicas().view.replicas:
        log = live.log(broker)
        assert (log.local_start, log.high_watermark, log.log_end, log.chain) == (6, 6, 6, ())
    assert live.isr() == {1, 2, 3}
    assert live.read() == {0: [f"v{number}" for number in range(6)]}
    live.cluster.verify(deep=True).raise_for_failures()


@pytest.mark.slow
def test_appends_continue_at_the_end_and_producers_where_they_were(live: LiveCluster) -> None:
    """I3 across a restore: a retry of tiered records is a duplicate; lost records are appended if they are
    retried."""
    live = restored(live)
    again = live.append(["v5"], producer="p", sequence=5, at_ms=5)
    assert rows_of(again, "outcome", "base_offset") == [("duplicate", 5)]
    append(live, range(6, 9))
    live.cluster.tier().raise_for_failures()
    live.cluster.topics.alter_configs("t", {"local.retention.bytes": "0"})
    live.cluster.retain().raise_for_failures()
    assert live.read() == {0: [f"v{number}" for number in range(9)]}
    live.cluster.verify(deep=True).raise_for_failures()


@pytest.mark.slow
def test_leader_epochs_continue_far_above_the_known_ones(live: LiveCluster) -> None:
    """Files are named by epoch, so no file of the former cluster may ever be mistaken for one of the restored
    cluster's.
    """
    known = live.replicas().view.leader_epoch
    live = restored(live)
    assert live.replicas().view.leader_epoch == known + EPOCH_GAP + 1
    append(live, range(6, 7))
    epochs = [epoch for epoch, _ in live.log(live.leader()).lineage]
    assert epochs == [1, 2, known + EPOCH_GAP + 1]


@pytest.mark.slow
def test_the_former_cluster_can_commit_no_more(live: LiveCluster) -> None:
    """The table itself fences the former cluster, however late it resumes; its attempts fail with the reason."""
    former = live.cluster
    heir = Heir(live)
    heir.restore()
    report = former.tier(check=False)
    assert codes(report) == {"INCONSISTENT_CLUSTER_ID": 1}
    assert "belongs to cluster 'heir', not to 'c'" in the_failure(report)
    with pytest.raises(InconsistentClusterIdError):
        former.plan_read("t", OffsetSpec.LAST_TIERED)
    live = heir.live_again()
    append(live, range(6, 8))
    live.cluster.tier().raise_for_failures()
    assert live.read() == {0: [f"v{number}" for number in range(8)]}


@pytest.mark.slow
def test_a_table_that_was_not_there_yet_cannot_be_made_by_the_former_cluster(live: LiveCluster) -> None:
    live.tiered("young")
    live.append(["x"], "young").raise_for_failures()
    former = live.cluster
    former.tier(["t"]).raise_for_failures()
    Heir(live).restore().raise_for_failures()
    assert codes(former.tier(["young"], check=False)) == {"INCONSISTENT_CLUSTER_ID": 1}


@pytest.mark.slow
def test_records_that_the_former_cluster_commits_until_it_loses_the_tables_are_restored_too(
    tmp_path: Path,
) -> None:
    """Commit, then read: the end of the log is read after no other driver can move it."""
    faults = Faults()
    live = LiveCluster(tmp_path, through=faults.wrap)
    live.tiered(**CONFIGS)
    append(live, range(4))
    live.cluster.tier().raise_for_failures()
    append(live, range(4, 6))
    former = live.cluster

    faults.once(lambda: former.tier().raise_for_failures(), "create", of=f"{DESCRIPTIONS}/heir/")
    heir = Heir(live)
    assert rows_of(heir.restore(), "log_end") == [(6,)]
    assert heir.live_again().read() == {0: [f"v{number}" for number in range(6)]}


def test_a_log_start_inside_a_segment_is_kept(tmp_path: Path) -> None:
    """The table has the starts of its segments, and the description has the start of the log."""
    live = LiveCluster(tmp_path)
    live.tiered(**CONFIGS)
    live.append("abcdef").raise_for_failures()
    live.append(["g"]).raise_for_failures()
    live.cluster.tier().raise_for_failures()
    view = live.replicas().view
    command = AdvanceLogStart((LogStart(view.topic_id, 0, 4),))
    ports_of(live.cluster).metadata.submit(command)
    live.cluster.tier().raise_for_failures()
    live = restored(live)
    assert live.replicas().view.log_start_offset == 4
    assert live.read() == {0: ["e", "f", "g"]}


@pytest.mark.slow
def test_a_topic_that_was_not_tiered_comes_back_empty_and_is_named(live: LiveCluster) -> None:
    live.topic("local", partitions=2, copies=2, segment_bytes="4096")
    live.append(["x"], "local").raise_for_failures()
    live.cluster.groups.commit("group", {("t", 0): 3}).raise_for_failures()
    live.cluster.tier().raise_for_failures()
    heir = Heir(live)
    notes = heir.restore().raise_for_failures().notes
    assert any("the records of local are lost" in note for note in notes)
    assert any("__consumer_offsets is lost" in note for note in notes)
    live = heir.live_again()
    assert live.cluster.image.topic("local").configs["segment.bytes"] == "4096"
    assert "__consumer_offsets" not in live.cluster.image.topic_ids
    append_report = live.append(["y"], "local")
    assert rows_of(append_report, "base_offset") == [(0,)]
    assert live.cluster.groups.committed("group") == {}


@pytest.mark.slow
def test_fewer_brokers_hold_fewer_replicas_and_the_report_says_so(live: LiveCluster) -> None:
    heir = Heir(live, brokers=2)
    notes = heir.restore().raise_for_failures().notes
    assert "t has 2 replicas, not 3: the cluster does not have enough brokers" in notes
    assert heir.live_again().isr() == {1, 2}


def stopping_after(faults: Faults, changes: int) -> None:
    """The driver dies when it is about to make one more change."""
    left = changes

    def stop(uri: str, what: str, name: str) -> None:
        nonlocal left
        if what in CHANGES - {"stage"}:
            left -= 1
            if left < 0:
                raise KeyboardInterrupt

    faults.before = stop


def stopped_restore(folder: Path, changes: int) -> bool:
    """Whether a restore that would die after that number of changes ended before. The restore is then run again,
    and succeeds.
    """
    faults = Faults()
    live = LiveCluster(folder, through=faults.wrap)
    live.tiered(copies=2, **CONFIGS)
    append(live, range(3))
    live.cluster.tier().raise_for_failures()
    heir = Heir(live, brokers=2)
    stopping_after(faults, changes)
    try:
        heir.restore().raise_for_failures()
        return True
    except KeyboardInterrupt:
        faults.none()
    heir.restore().raise_for_failures()
    live = heir.live_again()
    assert live.read() == {0: ["v0", "v1", "v2"]}
    append(live, range(3, 5))
    live.cluster.tier().raise_for_failures()
    live.cluster.verify(deep=True).raise_for_failures()
    return False


@pytest.mark.slow
def test_a_restore_may_stop_after_each_of_its_changes(tmp_path: Path) -> None:
    for changes in range(0, 100, at_depth(test=3, nightly=1)):
        (tmp_path / str(changes)).mkdir()
        if stopped_restore(tmp_path / str(changes), changes):
            assert changes > 12
            return
    raise AssertionError("it never came to its end")


@pytest.mark.slow
def test_a_restored_cluster_can_be_restored_before_it_has_tiered_anything(live: LiveCluster) -> None:
    Heir(live).restore().raise_for_failures()
    third = Heir(live, cluster_id="third")
    third.restore("heir").raise_for_failures()
    live = third.live_again()
    assert live.read() == {0: [f"v{number}" for number in range(6)]}
    append(live, range(6, 7))
    assert live.replicas().view.leader_epoch > 2 * EPOCH_GAP


# --------------------------------------------------------------------------------------- bad input


def test_a_dry_run_changes_nothing(live: LiveCluster) -> None:
    heir = Heir(live)
    with live.unchanged():
        report = heir.restore(dry_run=True)
        assert rows_of(report, "partition", "log_end") == [(0, 6), (1, 0)]
    assert heir.untouched


def test_the_restored_cluster_needs_an_id_of_its_own(live: LiveCluster) -> None:
    heir = Heir(live)
    with live.unchanged(), pytest.raises(InvalidCallError, match="needs an id other than"):
        heir.restore("heir")


def test_an_unknown_cluster_is_named_with_those_that_are_there(live: LiveCluster) -> None:
    heir = Heir(live)
    with (
        live.unchanged(),
        pytest.raises(InvalidCallError, match="no restore point of cluster 'd': it has restore points of c"),
    ):
        heir.restore("d")


def test_a_damaged_remote_restores_nothing(live: LiveCluster) -> None:
    """A listed object is missing, or a description differs from its name: one clear error."""
    path = next(live.remote.rglob("0/*.parquet"))
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    heir = Heir(live)
    with live.unchanged():
        failure = the_failure(heir.restore())
    assert failure.startswith("t: REMOTE_OBJECT_MISSING")
    assert path.name in failure
    assert heir.untouched
    path.write_bytes(content)
    (described,) = (live.remote / DESCRIPTIONS / "c").iterdir()
    described.write_bytes(described.read_bytes().replace(b'"t"', b'"u"'))
    with pytest.raises(CorruptionError, match=described.name):
        heir.restore()


def test_configs_that_cannot_be_set_any_more_restore_nothing(live: LiveCluster) -> None:
    """The configs are checked before the tables are taken over."""
    remote = ports_of(live.cluster).storage.remote_store("test")
    now = describe(live.cluster.image)
    later = msgspec.structs.replace(now.topics[0], configs={**now.topics[0].configs, "segment.bites": "5"})
    write_description(remote, msgspec.structs.replace(now, topics=(later,)), 10**6)
    heir = Heir(live)
    with live.unchanged():
        assert "t: INVALID_CONFIG: unknown config 'segment.bites'" in the_failure(heir.restore())
    assert heir.untouched
    write_description(remote, msgspec.structs.replace(now, configs={"segment.bites": "5"}), 10**7)
    assert codes(heir.restore()) == {"INVALID_CONFIG": 1}


@pytest.mark.slow
def test_a_selector_that_a_backup_names_is_a_name_to_the_restored_cluster(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No module is imported for the selector: readers without it read from the leader, and say so."""
    live = partly_tiered(tmp_path)
    live.select_by(**{"remote.evil.X": LeaderSelector})
    live.cluster.tier().raise_for_failures()
    live.selectors = {}
    again = restored(live)
    assert again.cluster.image.configs["replica.selector.class"] == "remote.evil.X"
    assert again.cluster.fetch("t", 0, 0, client_rack="b").records.num_rows > 0
    assert "replica.selector.class = 'remote.evil.X': this process offers no selector" in caplog.text


@pytest.mark.slow
def test_brokers_that_hold_something_else_are_left_alone(live: LiveCluster) -> None:
    heir = Heir(live)
    other = with_parts(Cluster, clock=live.clock, new_id=live.new_id, opener=live.open_root).format(heir.file)
    other.topics.create("mine", partitions=1, replication_factor=1)
    for dry_run in (True, False):
        with live.unchanged(), pytest.raises(InvalidCallError, match=r"already has topics \(mine"):
            heir.restore(dry_run=dry_run)
    live.cluster.tier().raise_for_failures()
