"""A sync and a merge whose view is older than a removal of records: they call no sound replica damaged, and copy
nothing that was removed.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from stratalog.engine.metadata.chosen import topic_config_of
from stratalog.engine.records import through_rules
from stratalog.engine.records.append import append_options, end_appends
from stratalog.engine.replicas.foreign_files import under_present_rules
from stratalog.engine.replication.append import Appended, append
from stratalog.engine.replication.later_rule import LaterRuleError
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.engine.replication.removal import check_follows
from stratalog.engine.replication.sync import Synced, SyncOptions, sync_followers
from stratalog.engine.upkeep.replication import compact
from stratalog.engine.upkeep.replication.merge import MergeWork, merge_partition
from stratalog.partitions.errors import LogGapError, RetriableError, StratalogError
from stratalog.partitions.producers import ProducerAppend
from stratalog.partitions.rewrites.merge import MergePolicy
from stratalog.partitions.runner import Done, Failed, SerialRunner
from tests.ports import ports_of, with_ports
from tests.unit.harness import batch
from tests.unit.test_upkeep_compact import Compacted, fill


def compacted(folder: Path, *, of: Collection[str] = ()) -> tuple[Compacted, PartitionReplicas]:
    """A compacted log, and its replicas as a view from before the compaction knows them. The replaced files of the
    leader or of a follower (``of``) are deleted.
    """
    live = Compacted(folder, min_cleanable_dirty_ratio="0", file_delete_delay_ms="60000")
    fill(live)
    before = ports_of(live.cluster).storage.replicas(live.cluster.image.views("t")[0])
    live.cluster.compact().raise_for_failures()
    for broker in {live.leader(): "leader", live.followers()[0]: "follower"}.items():
        if broker[1] in of:
            hidden = live.log(broker[0]).hidden
            assert hidden
            live.store(broker[0]).delete([file.object.name for file in hidden])
    return live, before


def synced(replicas: PartitionReplicas, follower: int) -> Synced | StratalogError:
    (outcome,) = sync_followers(replicas, [follower], SyncOptions(copies=SerialRunner()))[1]
    match outcome:
        case Done(_, done):
            return done
        case Failed(_, error):
            return error


def test_a_sync_under_an_old_view_blames_no_follower(tmp_path: Path) -> None:
    live, before = compacted(tmp_path, of=["follower"])
    follower = live.followers()[0]
    files = live.on_brokers()
    error = synced(before, follower)
    assert isinstance(error, LaterRuleError)
    assert live.on_brokers() == files
    assert isinstance(
        synced(ports_of(live.cluster).storage.replicas(live.cluster.image.views("t")[0]), follower), Synced
    )
    lost = synced(replace(before, foreign=error.names), follower)
    assert isinstance(lost, LogGapError), "if no rule made these files, the follower has lost records"


def test_a_merge_under_an_old_view_makes_no_file(tmp_path: Path) -> None:
    live, before = compacted(tmp_path)
    work = MergeWork(
        replicas=before,
        policy=MergePolicy(segment_bytes=1_000_000, segment_ms=1 << 50, min_files=2),
        from_offset=0,
        compression="none",
        clock=live.clock,
    )
    files = live.on_brokers()
    with pytest.raises(LaterRuleError) as caught:
        merge_partition(work)
    assert live.on_brokers() == files
    ports = ports_of(live.cluster)
    again = under_present_rules(ports.metadata, ports.storage, [(before.view, caught.value)])
    assert again[before.view.key].view.generation == 1
    assert merge_partition(replace(work, replicas=again[before.view.key])).segments == 0


def test_a_file_of_no_rule_stops_no_merge(tmp_path: Path) -> None:
    live = Compacted(tmp_path, cleanup_policy="delete", segment_merge_min_files="2", segment_bytes="1000000")
    fill(live)
    leader = live.leader()
    data = live.store(leader).read(live.log(leader).chain[0].file.object.name)
    planted = f"{0:020d}-{1:020d}.0000000001.0000000009.parquet"
    live.store(leader).create(live.replica(leader).path(planted), data)
    report = live.cluster.merge("t")
    report.raise_for_failures()
    assert report.totals["segments"]


@pytest.mark.parametrize(
    ("tiered", "remote", "needed", "refused"),
    [
        (False, None, 3, False),
        (True, None, 3, True),
        (True, 3, 3, False),
        (True, 4, 3, False),
        (True, 2, 3, True),
        (False, 2, 3, True),
    ],
)
def test_replicas_follow_no_rule_that_the_run_has_not_carried_out_remotely(
    tmp_path: Path, tiered: bool, remote: int | None, needed: int, refused: bool
) -> None:
    """A task's view is read after the remote log: meanwhile another run may have committed a rule, or the topic
    may have become tiered.
    """
    live = Compacted(tmp_path)
    replicas = ports_of(live.cluster).storage.replicas(live.cluster.image.views("t")[0])
    replicas = replace(replicas, view=replace(replicas.view, tiered=tiered))
    if not refused:
        check_follows(replicas, remote, needed)
        return
    with pytest.raises(RetriableError, match="the records must be removed from its remote log first"):
        check_follows(replicas, remote, needed)


def test_a_compaction_stops_at_a_rule_of_another_run(tmp_path: Path) -> None:
    live = Compacted(tmp_path, min_cleanable_dirty_ratio="0", file_delete_delay_ms="60000")
    fill(live)
    live.cluster.compact().raise_for_failures()
    ports = ports_of(live.cluster)
    (work,) = compact._plan(ports.storage, ports.clock, live.cluster.image, ["t"], None, lambda: 0)[0].values()
    compact.compact_partition(work)
    with pytest.raises(RetriableError, match="run the command again"):
        compact.compact_partition(replace(work, recorded=0))


@pytest.mark.parametrize("rounds", [2, 1], ids=["one rule", "too many rules"])
def test_an_append_that_a_rule_overtakes_is_acknowledged_or_not_reported_as_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rounds: int
) -> None:
    """A task has appended under a view from before the rule. Its records may move only the high watermark of a log
    that was looked at under the current view."""
    live = Compacted(tmp_path, min_cleanable_dirty_ratio="0", file_delete_delay_ms="60000")
    fill(live)
    ports, who = ports_of(live.cluster), ProducerAppend("p", 0, 0, on_changed_replay="refuse")
    image = live.cluster.image
    replicas = ports.storage.replicas(image.views("t")[0])
    options = append_options(image.topic("t"), topic_config_of(image, image.topic("t")), "all", who)
    records = batch(["late"])
    records = records.set_column(1, "key", pa.array([b"late"], pa.binary()))
    appended = append(replicas, who, iter([records]), options, clock=live.clock, copies=SerialRunner())
    assert isinstance(appended, Appended)
    live.cluster.compact().raise_for_failures()
    monkeypatch.setattr(through_rules, "_ROUNDS", rounds)
    report = with_ports(end_appends, ports)("t", who, {0: (replicas.view, appended)})
    acknowledged = live.log(live.leader()).high_watermark == appended.next_offset
    assert acknowledged == (rounds == 2)
    assert [row["outcome"] for row in report.rows] == ["acknowledged" if acknowledged else "unknown"]
    assert report.ok == acknowledged
