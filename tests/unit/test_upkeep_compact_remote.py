"""cleanup.policy=compact with remote.storage.enable: both tiers keep the last record of each key at its offset."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from deltalake import DeltaTable

from stratalog.engine.upkeep.replication.compact import compact
from stratalog.partitions.errors import SourceChangedError
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.paths import DataName
from stratalog.partitions.removal import Rule
from stratalog.tiering.delta_table import DeltaTopicTable
from stratalog.tiering.divergence import Histories, Present
from stratalog.tiering.remote_segment import RemoteSegment
from stratalog.tiering.removal import Followed
from tests.ports import ports_of
from tests.unit.at_calls import dies_at
from tests.unit.cluster_harness import codes, rows_of
from tests.unit.compact_remote_harness import ROWS, Tiered, check_latest, filled
from tests.unit.faulty_store import CHANGES, Faults
from tests.unit.harness import SCHEMA
from tests.unit.test_upkeep_compact import DAY_MS, HOUR_MS, Row, fill, stop_before_removal
from tests.unit.tier_harness import in_turn
from tests.unit.tiering_harness import uploaded


def test_remote_segments_are_rewritten_by_the_same_rule(tmp_path: Path) -> None:
    live = filled(tmp_path, (*ROWS, ("z", "1")))
    assert live.log(live.leader()).local_start == 6
    report = live.cluster.compact()
    assert rows_of(report, "segments", "remote_segments", "remote_removed", "why") == [(0, 3, 3, None)]
    assert report.totals["remote_removed"] == 3
    assert live.names() == ["0-1.1", "1-2.1", "2-3.1", "3-4.0", "4-5.0", "5-6.0", "6-7.0"]
    wanted = {3: ("c", None), 4: ("b", "2"), 5: ("a", "3"), 6: ("z", "1")}
    assert live.fetched() == live.lake() == wanted
    assert live.cluster.verify(deep=True).ok
    assert live.cluster.heal().rows == []
    assert rows_of(live.cluster.compact(), "segments", "remote_segments") == [(0, 0)]


def test_neighbours_become_one_segment_and_clean_ones_are_not_read_as_a_whole(tmp_path: Path) -> None:
    live = filled(tmp_path, (*ROWS, ("z", "1")))
    live.cluster.topics.alter_configs("t", {"segment.bytes": "1000000"})
    report = live.cluster.compact()
    assert live.names() == ["0-3.1", "3-4.0", "4-5.0", "5-6.0", "6-7.0"]
    row = report.rows[0]
    assert row["remote_read_bytes"] == sum(
        path.stat().st_size
        for path in live.objects()
        if path.name.startswith(("0" * 20, "0" * 19 + "1", "0" * 19 + "2")) and "-" not in path.name
    )


def test_a_plan_marks_remote_files_with_gaps(tmp_path: Path) -> None:
    live = filled(tmp_path, (*ROWS, ("z", "1")))
    live.cluster.compact().raise_for_failures()
    marked = {part.start: part.marked for part in live.driver().plan_read("t")}
    assert [marked[offset] for offset in range(7)] == [True] * 3 + [False] * 4


def test_a_rule_covers_no_more_than_the_remote_log(tmp_path: Path) -> None:
    """The table alone has the last record of each key: for its readers, and for a restore."""
    live = Tiered(tmp_path)
    fill(live, [("a", "1"), ("b", "1")])
    live.cluster.tier().raise_for_failures()
    fill(live, [("a", "2"), ("c", "1"), ("d", "1")])
    live.cluster.compact().raise_for_failures()
    assert 0 in live.lake()
    assert 0 in live.fetched()
    live.tier_all()
    fill(live, [("z", "1")])
    live.cluster.compact().raise_for_failures()
    assert 0 not in live.lake()


def test_remote_files_count_for_the_dirty_ratio_and_for_the_lags(tmp_path: Path) -> None:
    live = filled(
        tmp_path, (*ROWS, ("z", "1")), min_compaction_lag_ms=str(HOUR_MS), min_cleanable_dirty_ratio="0.5"
    )
    young = live.cluster.compact()
    assert "older than 1 h" in str(rows_of(young, "why"))
    live.clock.sleep(2 * HOUR_MS / 1000)
    live.cluster.compact().raise_for_failures()
    assert live.remote_log().generation(0) == 1
    live.cluster.topics.alter_configs("t", {"min.compaction.lag.ms": "0"})
    fill(live, [("y", "1"), ("y", "2"), ("y", "3")])
    live.tier_all()
    assert "dirty: compaction starts at 50%" in str(rows_of(live.cluster.compact(), "why"))
    live.cluster.topics.alter_configs("t", {"max.compaction.lag.ms": str(HOUR_MS)})
    live.clock.sleep(2 * HOUR_MS / 1000)
    live.cluster.compact().raise_for_failures()
    assert live.remote_log().generation(0) == 2


@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.long("a crash at every step of ten compactions")
def test_a_crash_at_any_step_leaves_a_whole_log_and_the_next_run_continues(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Tiered(tmp_path, delete_retention_ms="0", segment_bytes="1")
    faults, rng, truth = Faults(), random.Random(seed), list[Row]()
    live.through = faults.wrap
    left = [0]

    def step(*_: object) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt

    put = DeltaTopicTable._put

    def counted(table: DeltaTopicTable, *change: object) -> None:
        step()
        put(table, *change)  # type: ignore[arg-type]
        step()

    monkeypatch.setattr(DeltaTopicTable, "_put", counted)
    crashes = 0
    for round_ in range(10):
        rows = [(rng.choice("abc"), rng.choice((None, str(round_)))) for _ in range(4)]
        fill(live, rows)
        truth += rows
        left[0] = 0
        live.cluster.tier().raise_for_failures()
        if rng.random() < 0.6:
            live.cluster.retain().raise_for_failures()
        at = round_ * 3 + seed + 1
        while True:
            driver = live.driver()
            faults.after = lambda uri, what, name: step() if what in CHANGES else None
            left[0] = at
            try:
                driver.compact().raise_for_failures()
            except KeyboardInterrupt:
                crashes += 1
            else:
                break
            finally:
                faults.none()
                left[0] = 0
            check_latest(truth, live.fetched())
            check_latest(truth, live.lake(), live.remote_log().end(0))
            at += 7
        check_latest(truth, live.fetched())
    assert crashes > 8
    assert live.driver().verify(deep=True).ok


def test_a_budget_ends_a_compaction_after_each_segment(tmp_path: Path) -> None:
    """The budget is checked in both tiers, the remote one first; readers always find the last record of
    each key.
    """
    rows: list[Row] = [("a", "0"), ("a", "1"), ("b", "1"), ("b", "2"), ("a", "2"), ("c", "1"), ("z", "1")]
    live = filled(tmp_path, rows, local_retention_bytes="-1")
    ends = []
    while True:
        ports = ports_of(live.driver())
        report = compact(ports.metadata, ports.storage, ports.execution, over=lambda: True)
        report.raise_for_failures()
        check_latest(rows, live.fetched())
        check_latest(rows, live.lake())
        ends.append((sum(name.endswith(".1") for name in live.names()), live.log(live.leader()).removed_to))
        if not report.totals.get("cut_off"):
            break
    assert ends == [(1, 0), (2, 0), (3, 1), *((3, end) for end in range(2, 7))]


def test_a_tombstone_leaves_neither_tier_before_what_it_deletes(tmp_path: Path) -> None:
    live = filled(tmp_path, [("k", "1"), ("k", None), ("y", "1"), ("z", "1")], delete_retention_ms="0")
    live.cluster.compact().raise_for_failures()
    assert live.lake().keys() == {1, 2, 3}
    fill(live, [("z", "2"), ("z", "3")])
    live.tier_all()
    live.cluster.compact().raise_for_failures()
    assert live.lake().keys() == {2, 4, 5}
    assert live.fetched().keys() == {2, 4, 5}


def test_a_reader_that_knows_an_old_table_reads_it_again(tmp_path: Path) -> None:
    """Otherwise the reader would get a record from the old table without its removed tombstone."""
    live = filled(tmp_path, [("k", "1"), ("y", "1"), ("z", "1")], delete_retention_ms="0")
    reader = live.driver()
    assert live.fetched(reader).keys() == {0, 1, 2}
    truth: list[Row] = [("k", "1"), ("y", "1"), ("z", "1")]
    for more in ([("k", None), ("z", "2")], [("z", "3"), ("z", "4")], [("z", "5"), ("z", "6")]):
        fill(live, more)
        truth += more
        live.tier_all()
        live.cluster.compact().raise_for_failures()
    assert 3 not in live.lake()
    check_latest(truth, live.fetched(reader))


def test_the_leader_follows_a_rule_only_when_the_table_has_it(tmp_path: Path) -> None:
    live = filled(tmp_path, (*ROWS, ("z", "1")), local_retention_bytes="-1")
    with dies_at(DeltaTopicTable, "record_rules"):
        live.cluster.compact()
    assert live.names()[0] == "0-1.1"
    assert live.log(live.leader()).removed_to == 0
    live.driver().compact().raise_for_failures()
    assert live.log(live.leader()).removed_to == 6
    assert live.remote_log().rules == {0: Rule(1, 6)}


def test_no_rule_follows_one_that_the_remote_log_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live = filled(tmp_path, (*ROWS, ("z", "1")), local_retention_bytes="-1")
    with monkeypatch.context() as patch:
        patch.setattr("stratalog.engine.upkeep.replication.compact.RemoteTables.carry_out", lambda *_: set())
        live.cluster.compact().raise_for_failures()
    fill(live, [("z", "2"), ("z", "3")])
    live.tier_all()
    live.cluster.compact().raise_for_failures()
    assert live.remote_log().rules == {0: Rule(1, 6)}
    live.cluster.compact().raise_for_failures()
    assert live.remote_log().generation(0) == 2


def test_the_table_refuses_an_upload_that_follows_an_older_rule(tmp_path: Path) -> None:
    live = Tiered(tmp_path)
    table = live.table()
    table.ensure(SCHEMA)
    histories = Histories({0: Lineage([(1, 0)])}, lambda: {0: Present(1)})
    table.record_rules({0: Followed(Rule(2, 20), frozenset())})

    def segment(start: int, end: int, generation: int) -> RemoteSegment:
        return RemoteSegment(0, DataName(start, end, 1, generation), end, 100)

    late = [uploaded(segment(0, 10, 1)), uploaded(segment(10, 20, 2)), uploaded(segment(20, 30, 0))]
    refused = table.commit(late, (), histories)
    assert refused.stale == tuple(late)
    assert not refused.listed
    done = table.commit([uploaded(segment(0, 10, 2)), *late[1:]], (), histories)
    assert len(done.listed) == 3
    assert not done.stale


def test_an_upload_that_a_rule_overtakes_is_named_and_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Tiered(tmp_path)
    fill(live)
    commit = DeltaTopicTable.commit

    def late(table: DeltaTopicTable, *batch: object) -> object:
        table.record_rules({0: Followed(Rule(1, 100), frozenset())})
        return commit(table, *batch)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(DeltaTopicTable, "commit", late)
        report = live.cluster.tier(check=False)
    assert codes(report) == {SourceChangedError.code: 1}
    assert "compaction or an erasure has removed records from" in str(report.failures)
    assert not live.remote_log().of_partition(0)


def test_records_that_are_not_copied_are_not_compacted(tmp_path: Path) -> None:
    live = Tiered(tmp_path, local_retention_bytes="-2", remote_log_copy_disable="true")
    fill(live, (*ROWS, ("z", "1")))
    report = live.cluster.compact()
    assert "records are compacted once they are in the remote tier" in str(report.rows[0]["why"])
    assert live.replicas().view.rules == ()


def test_a_follower_bootstraps_between_the_tiers(tmp_path: Path) -> None:
    live = filled(tmp_path, (*ROWS, ("z", "1"), ("z", "2")))
    live.cluster.topics.alter_configs(None, {"follower.fetch.last.tiered.offset.enable": "true"})
    stop_before_removal(live)
    assert live.remote_log().generation(0) == 1
    gone = live.followers()[0]
    replica = live.replica(gone)
    store = live.store(gone)
    store.delete([stored.name for stored in store.list(replica.folder)])
    driver = live.driver()
    driver.replicate()
    driver.bootstrap([gone]).raise_for_failures()
    driver.replicate().raise_for_failures()
    driver.compact().raise_for_failures()
    assert live.isr() == {1, 2, 3}
    assert live.fetched().keys() == {3, 4, 5, 7} or live.fetched().keys() == {3, 4, 5, 6, 7}
    driver.verify(deep=True).raise_for_failures()


def test_versions_of_the_table_stay_readable_until_vacuum(tmp_path: Path) -> None:
    live = filled(tmp_path, (*ROWS, ("z", "1")))
    before = live.remote_log().version
    everything = live.lake()
    live.cluster.compact().raise_for_failures()
    assert live.lake(before) == everything
    changes = DeltaTable(str(live.remote / live.table().folder)).history()
    assert {"compact"} <= {one.get("stratalog.operation") for one in changes}
    live.cluster.topics.alter_configs("t", {"file.delete.delay.ms": str(DAY_MS)})
    live.cluster.vacuum().raise_for_failures()
    assert live.lake(before) == everything
    live.cluster.topics.alter_configs("t", {"file.delete.delay.ms": "0"})
    live.cluster.retain().raise_for_failures()
    assert len(live.objects()) == 7
    with pytest.raises((OSError, Exception)):
        live.lake(before)
    assert live.lake().keys() == {3, 4, 5, 6}


def test_vacuum_keeps_an_object_that_a_late_commit_may_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = filled(tmp_path, (*ROWS, ("z", "1")))
    with dies_at(DeltaTopicTable, "remove_records"):
        live.cluster.compact()
    made = len(live.objects())
    assert made == 10
    live.clock.sleep(3 * DAY_MS / 1000)
    live.driver().vacuum().raise_for_failures()
    assert len(live.objects()) == made
    live.driver().compact().raise_for_failures()
    # delta-rs has a clock of its own, for which the removal lies in the future
    monkeypatch.setattr(DeltaTopicTable, "_due", lambda table, delta, delay_ms: table._removed_paths(delta))
    live.clock.sleep(3 * DAY_MS / 1000)
    live.driver().vacuum().raise_for_failures()
    live.driver().retain().raise_for_failures()
    assert len(live.objects()) == 7
    assert live.lake().keys() == {3, 4, 5, 6}


def test_total_retention_applies_with_compact_delete(tmp_path: Path) -> None:
    live = filled(tmp_path, (*ROWS, ("z", "1")), cleanup_policy="compact,delete")
    live.cluster.compact().raise_for_failures()
    live.cluster.topics.delete_records("t", {0: 4})
    live.cluster.retain().raise_for_failures()
    assert live.names()[0] == "4-5.0"
    assert live.fetched().keys() == {4, 5, 6}


def test_maintain_tiers_and_compacts(tmp_path: Path) -> None:
    live = Tiered(tmp_path)
    fill(live, ROWS)
    for _ in range(3):
        live.driver().maintain().raise_for_failures()
        live.clock.sleep(HOUR_MS / 1000)
        fill(live, [("z", "1")])
    assert {0, 1}.isdisjoint(live.lake())
    assert live.driver().verify(deep=True).ok


@pytest.mark.parametrize("local", ["0", "7000"])
def test_an_idle_topic_is_compacted_once(tmp_path: Path, local: str) -> None:
    """The last segment was sealed by its age, and uploaded after the compaction: it ends above the bound."""
    live = Tiered(
        tmp_path,
        min_cleanable_dirty_ratio="0.5",
        segment_bytes="1000000",
        segment_ms=str(HOUR_MS),
        local_retention_bytes=local,
    )
    fill(live, (*ROWS, ("z", "1")))
    live.clock.sleep(2 * 3600)
    live.tier_all()
    generations = []
    for _ in range(4):
        live.driver().compact().raise_for_failures()
        live.clock.sleep(3600)
        generations.append(live.replicas().view.generation)
    assert generations[1:] == generations[1:2] * 3


def test_remote_segments_that_are_being_given_up_hold_a_compaction_back(tmp_path: Path) -> None:
    """Otherwise the record whose tombstone is removed would return when the topic is tiered again."""
    configs = {"delete_retention_ms": "0", "cleanup_policy": "compact,delete", "retention_bytes": "-1"}
    live = filled(tmp_path, [("k", "1"), ("x", "1"), ("z", "1")], **configs, local_retention_bytes="0")
    live.tier_all()
    live.cluster.topics.alter_configs("t", {"local.retention.bytes": "-2"})
    fill(live, [("k", None), ("z", "2"), ("z", "3")])
    off = {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}
    live.cluster.topics.alter_configs("t", off)
    for number in range(3):
        fill(live, [("z", str(number)), ("z", "9")])
        report = live.driver().compact()
        assert "run retain first" in str(report.rows[0]["why"])
    live.cluster.topics.alter_configs("t", {"remote.storage.enable": "true"})
    assert dict(live.fetched().values())["k"] is None


def test_a_rule_stays_below_the_end_of_a_remote_log_that_does_not_grow(tmp_path: Path) -> None:
    live = filled(tmp_path, [("k", "1"), ("x", "1"), ("z", "1")], local_retention_bytes="-1")
    live.tier_all()
    live.cluster.topics.alter_configs("t", {"remote.log.copy.disable": "true"})
    for number in range(3):
        fill(live, [("z", str(number)), ("z", "9")])
        live.driver().compact().raise_for_failures()
    end = live.remote_log().end(0)
    assert end is not None
    assert live.replicas().view.compacted_to <= end


def test_the_copy_quota_holds_for_the_remote_part(tmp_path: Path) -> None:
    """The quota works as for uploads: a second's worth immediately, then by the clock."""
    live = filled(tmp_path, segment_bytes="1")
    # The keys a and b are removed from these segments.
    size = sum(segment.size_bytes for segment in live.remote_log().of_partition(0)[:2])
    live.cluster.topics.alter_configs(None, {"remote.log.manager.copy.max.bytes.per.second": str(size // 8)})
    before = live.clock.monotonic_s()
    report = in_turn(live.driver()).compact()
    assert rows_of(report, "remote_segments") == [(2,)]
    assert live.clock.monotonic_s() - before == pytest.approx(7, abs=0.5)
