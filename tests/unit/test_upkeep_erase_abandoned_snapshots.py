"""Current snapshots that end after the offsets that an erasure searched, and were made before it
(``stratalog.engine.upkeep.erasing.snapshot_tasks.may_be_later``).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.engine.upkeep.snapshots import snapshot as snapshotting
from stratalog.partitions.paths import WatermarkName, base_name, parse_name
from tests.unit.at_calls import dies_at
from tests.unit.cluster_harness import fence, unfence
from tests.unit.erase_harness import DAY_MS, KEY, OTHER, SECRET, traces
from tests.unit.erase_snapshots_harness import LATER, Erasable


def make_only(live: Erasable) -> None:
    """A snapshot job that dies before it copies the snapshot, and moves the log start."""
    with dies_at(snapshotting, "spread_snapshot"):
        live.cluster.snapshot("t", by_hand=True, check=False)


@pytest.mark.parametrize("before", [True, False])
def test_a_snapshot_of_a_history_that_an_unclean_election_has_abandoned_is_searched(
    tmp_path: Path, before: bool
) -> None:
    """The key may have been appended ``before`` the election, too, or only in the abandoned history."""
    live = Erasable(tmp_path, on_disk=True, voters=[3])
    unclean = {"unclean_leader_election_enable": "true", "min_insync_replicas": "1"}
    if before:
        live.start(copies=2, **unclean)
    else:
        live.begin(copies=2, file_delete_delay_ms="0", segment_bytes="1", **unclean)
        live.put([(OTHER, "1")])
    leader, [follower] = live.leader(), live.followers()
    with live.unreachable(follower):
        live.put([(KEY, f"{SECRET}-c"), (LATER, "lost")])
        live.put([(LATER, "lost")])
        make_only(live)
    with live.unreachable(leader):
        fence(live, leader)
        unfence(live, follower)
        live.cluster.elect("t", unclean=True)
    assert live.leader() == follower
    unfence(live, leader)
    live.cluster.replicate()
    live.put([(OTHER, "2")])
    live.cluster.replicate()
    assert live.ids(leader), "the snapshot of the abandoned history is there"
    report = live.erase(KEY, now=True)
    if not report.whole:
        report = live.erase(KEY, now=True)
    assert report.whole
    assert traces(live, KEY, SECRET) == []


def test_a_snapshot_above_a_lost_high_watermark_is_searched(tmp_path: Path) -> None:
    """The latest snapshot has a tombstone of the key no more, an earlier one above the watermark has it."""
    live = Erasable(tmp_path)
    live.begin(copies=3, file_delete_delay_ms="0", segment_bytes="1")
    live.put([(KEY, SECRET), (OTHER, "1")])
    live.put([(KEY, None)])
    live.take()
    live.clock.sleep(3600)
    live.cluster.retain().raise_for_failures()
    live.cluster.vacuum(check=False)
    live.put([(OTHER, "2")])
    live.put([(OTHER, "3")])
    make_only(live)
    live.clock.sleep(2 * DAY_MS / 1000)
    live.put([(OTHER, "4")])
    make_only(live)
    replica = live.replica(live.leader())
    names = [(parse_name(base_name(one.name)), one.name) for one in replica.store.list(replica.folder)]
    replica.store.delete(
        [name for parsed, name in names if isinstance(parsed, WatermarkName) and str(parsed) > f"{3:020}.1"]
    )
    assert live.log(live.leader()).high_watermark < 5
    report = live.erase(KEY, now=True)
    if not report.whole:
        report = live.erase(KEY, now=True)
    assert report.whole
    assert traces(live, KEY, SECRET) == []
