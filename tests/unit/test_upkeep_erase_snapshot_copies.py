"""Copies of snapshots that an erasure must find, delete, wait for, or explain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stratalog.engine.replication import erasing_snapshots
from stratalog.engine.upkeep.erasing import snapshot_run
from stratalog.partitions.errors import CorruptSegmentError, InvalidConfigError
from stratalog.partitions.paths import ChunkName
from tests.unit.at_calls import raising
from tests.unit.erase_harness import DAY_MS, KEY, OTHER, SECRET, stop_at, traces
from tests.unit.erase_snapshots_harness import Erasable, erasable_topic

DAY_S = DAY_MS / 1000


live = erasable_topic


def forget_key(live: Erasable) -> None:
    """Make a snapshot without the key, whose tombstone is old."""
    live.put([(KEY, None)], at_ms=1)
    live.take()
    live.clock.sleep(2 * DAY_S)
    live.put([(OTHER, "3")])
    live.take()
    assert KEY not in live.held(live.leader())


def as_chunk(live: Erasable, broker: int) -> None:
    """Turn the only snapshot of a replica into a piece of one that is being fetched."""
    [(name, stored)] = live.log(broker).listing.checkpoints
    path, store = live.replica(broker).path(ChunkName(name.end_offset, name.epoch, 0)), live.store(broker)
    assert store.create(path, store.read(stored.name))
    store.delete([stored.name])


# -------------------------------------------------------------------------- former replicas


@pytest.mark.parametrize("chunk", [False, True])
def test_a_snapshot_of_a_former_replica_is_searched(tmp_path: Path, chunk: bool) -> None:
    """The leader has no record of the key any more, so the run makes no erasure."""
    live = Erasable(tmp_path).start(copies=2)
    live.take()
    live.cluster.retain().raise_for_failures()
    live.clock.sleep(3600)
    live.cluster.retain().raise_for_failures()
    live.cluster.vacuum().raise_for_failures()
    live.put([(OTHER, "3")])
    leader, former = live.leader(), live.followers()[0]
    if chunk:
        as_chunk(live, former)
    (added,) = {1, 2, 3} - {leader, former}
    live.cluster.reassign({("t", 0): [leader, added]}).raise_for_failures()
    live.cluster.replicate().raise_for_failures()
    live.cluster.replicate().raise_for_failures()
    assert {*live.replicas().view.replicas} == {leader, added}
    forget_key(live)
    live.cluster.retain().raise_for_failures()
    report = live.erase(KEY, now=True, certificate=tmp_path / "certificate.json")
    assert len(traces(live, KEY)) == 1
    assert not report.whole
    assert "it belongs to a former replica: run `stratalog vacuum`" in str(report.failures)
    assert not live.replicas().view.erasures
    live.clock.sleep(30 * DAY_S)
    live.cluster.vacuum().raise_for_failures()
    assert live.erase(KEY, now=True).whole
    assert traces(live, KEY, SECRET) == []


# -------------------------------------------------------------------------------- dry runs


@pytest.mark.parametrize("more", [0, 1])
def test_a_dry_run_has_no_failure_if_the_run_has_none(live: Erasable, more: int) -> None:
    for _ in range(more):
        live.take()
    assert not live.erase(KEY, dry_run=True).failures
    assert live.erase(KEY).whole
    assert not live.erase(KEY, dry_run=True).failures


def test_a_partition_that_failed_names_its_snapshots_with_this_reason(
    live: Erasable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_run, "find_keys", raising(CorruptSegmentError("it is damaged")))
    report = live.erase(KEY)
    assert report.certificate is not None
    assert not report.certificate.whole
    left = [one.why for one in report.certificate.topics[0].partitions[0].not_erased]
    assert any("correct the failure, then erase again" in why for why in left)
    assert "a writer gave it its name" not in str(report.failures)


# ----------------------------------------------------------------------------------- delays


def test_the_delay_begins_when_a_snapshot_without_the_keys_replaces_a_file(tmp_path: Path) -> None:
    live = Erasable(tmp_path).start(file_delete_delay_ms="60000")
    broker = live.followers()[0]
    live.take()
    path = live.log(broker).listing.checkpoints[-1][1].name
    live.clock.sleep(120)
    live.put([(KEY, None)], at_ms=1)
    live.clock.sleep(3 * DAY_S)
    live.put([(OTHER, "3")])
    live.take()
    live.cluster.retain().raise_for_failures()
    live.erase(KEY)
    assert any(name.endswith(path) for name in live.on_brokers()), "a reader may still use it"
    live.clock.sleep(61)
    live.erase(KEY)
    assert not any(name.endswith(path) for name in live.on_brokers())


# ----------------------------------------------------------------------------- lost snapshots


def test_a_member_that_gets_no_snapshot_leaves_the_isr(live: Erasable, monkeypatch: pytest.MonkeyPatch) -> None:
    follower = live.followers()[0]
    start = erasing_snapshots.start_at_snapshot

    def without_one(replicas: Any, replica: Any) -> Any:
        return None if replica.broker_id == follower else start(replicas, replica)

    with monkeypatch.context() as patch:
        patch.setattr(erasing_snapshots, "start_at_snapshot", without_one)
        report = live.erase(KEY)
    assert follower not in live.isr()
    assert "no readable replica has an intact snapshot" in str(report.failures)
    live.cluster.replicate().raise_for_failures()
    assert follower in live.isr()
    assert live.erase(KEY).whole
    live.check_erased()


def test_a_snapshot_that_the_leader_had_lost_needs_a_second_run_only(tmp_path: Path) -> None:
    live = Erasable(tmp_path, on_disk=True).start(copies=2)
    live.take()
    live.cluster.retain().raise_for_failures()
    live.put([(OTHER, "3")])
    leader = live.leader()
    for _, stored in live.log(leader).listing.checkpoints:
        live.store(leader).delete([stored.name])
    report = live.erase(KEY, now=True)
    if not report.whole:
        assert "erase again; if the file stays, run `stratalog snapshot`" in str(report.failures)
        report = live.erase(KEY, now=True)
    assert report.whole
    assert traces(live, KEY, SECRET) == []


# ------------------------------------------------------------------------- the topic's policy


@pytest.mark.sample(3)
@pytest.mark.parametrize("policy", ["delete", "compact", "compact,delete"])
@pytest.mark.parametrize("step", ["erase_partition", "clean", "forget"])
def test_a_topic_keeps_its_snapshots_until_its_erasure_is_finished(live: Erasable, policy: str, step: str) -> None:
    stop_at(live, step)
    with pytest.raises(InvalidConfigError, match="an erasure of the topic's records is not finished"):
        live.cluster.topics.alter_configs("t", {"cleanup.policy": policy})
    live.cluster.topics.alter_configs("t", {"cleanup.policy": "snapshot", "retention.ms": "1000000"})
    assert live.erase().whole
    live.check_erased()
    live.cluster.topics.alter_configs("t", {"cleanup.policy": policy})
    live.put([(KEY, f"{SECRET}-c"), ("new", "1")])
    report = live.erase(KEY)
    assert report.whole, report.failures
    assert not any(one.offsets for one in live.replicas().view.erasures)
    assert traces(live, KEY, SECRET) == []


def test_defaults_of_the_cluster_keep_the_snapshots_too(live: Erasable) -> None:
    live.cluster.topics.alter_configs(None, {"cleanup.policy": "snapshot"})
    live.cluster.topics.alter_configs("t", {"cleanup.policy": None})
    stop_at(live, "clean")
    for value in ("delete", None):
        with pytest.raises(InvalidConfigError, match="an erasure of the topic's records is not finished"):
            live.cluster.topics.alter_configs(None, {"cleanup.policy": value})
    assert live.erase().whole
    live.cluster.topics.alter_configs(None, {"cleanup.policy": None})


def test_an_old_snapshot_of_a_topic_that_keeps_none_now_is_searched(live: Erasable) -> None:
    live.take()
    live.cluster.topics.alter_configs("t", {"cleanup.policy": "delete"})
    assert live.erase("nobody").whole
    report = live.erase(KEY)
    assert not report.whole
    assert "the topic no longer has snapshots, so nothing uses this file: delete it by hand" in str(
        report.failures
    )
    for broker in (1, 2, 3):
        listing = live.log(broker).listing
        old = [*listing.other_snapshots, *(stored for _, stored in listing.checkpoints)]
        live.store(broker).delete([stored.name for stored in old])
    assert live.erase(KEY).whole
    assert traces(live, KEY, SECRET) == []
