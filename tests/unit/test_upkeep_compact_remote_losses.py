"""Compacted and tiered topics after losses: older copies, emptied brokers, a restored cluster, damaged objects."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from stratalog.engine.driver.run import NOT_DONE
from stratalog.partitions.errors import InvalidConfigError
from stratalog.partitions.removal import Rule
from tests.ports import ports_of
from tests.unit.cluster_harness import report_of
from tests.unit.compact_remote_harness import ROWS, Tiered, fetched, filled, lake
from tests.unit.restore_harness import Heir
from tests.unit.test_upkeep_compact import Compacted, stop_before_removal


def test_verify_names_a_remote_tier_that_was_restored_from_an_older_copy(tmp_path: Path) -> None:
    live = filled(tmp_path, (*ROWS, ("z", "1")), local_retention_bytes="-1")
    older = shutil.copytree(live.remote, tmp_path / "older")
    live.cluster.compact().raise_for_failures()
    live.driver().verify().raise_for_failures()
    shutil.rmtree(live.remote)
    older.rename(live.remote)
    report = report_of(live.driver().verify)
    assert "restored from an older copy" in str(report.failures)
    live.driver().compact().raise_for_failures()
    assert live.remote_log().rules == {0: Rule(1, 6)}
    live.driver().verify(deep=True).raise_for_failures()


def test_without_the_remote_tier_nothing_is_compacted_and_each_partition_has_a_row(tmp_path: Path) -> None:
    live = filled(tmp_path, (*ROWS, ("z", "1")), local_retention_bytes="-1")
    live.remote.rename(tmp_path / "away")
    live.remote.write_text("no folder")
    report = live.driver().compact(check=False)
    assert report.failures
    assert [(row["segments"], row["why"]) for row in report.rows] == [(0, NOT_DONE)]
    assert live.log(live.leader()).removed_to == 0


def test_the_remote_tier_cannot_be_given_up_while_it_has_the_last_record_of_keys(tmp_path: Path) -> None:
    live = Tiered(tmp_path)
    off = {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}
    with pytest.raises(InvalidConfigError, match="compact,delete first"):
        live.cluster.topics.alter_configs("t", off)
    live.cluster.topics.alter_configs("t", {**off, "cleanup.policy": "compact,delete"})


def test_a_leader_whose_storage_was_emptied_continues_from_the_remote_end(tmp_path: Path) -> None:
    """The table has the last record of each key that a rule covers, so no other record is lost."""
    live = filled(tmp_path, (*ROWS, ("z", "1")))
    live.cluster.compact().raise_for_failures()
    for broker in (1, 2, 3):
        replica, store = live.replica(broker), live.store(broker)
        store.delete([stored.name for stored in store.list(replica.folder)])
    driver = live.driver()
    for _ in range(2):
        driver.replicate(check=False)
    driver.replicate().raise_for_failures()
    assert live.fetched() == {3: ("c", None), 4: ("b", "2"), 5: ("a", "3"), 6: ("z", "1")}
    live.put(("a", "4"))
    assert live.fetched()[7] == ("a", "4")


@pytest.mark.slow
def test_a_restored_cluster_continues_with_later_rules(tmp_path: Path) -> None:
    live = filled(tmp_path, (*ROWS, ("z", "1")))
    live.cluster.compact().raise_for_failures()
    heir = Heir(live)
    heir.restore().raise_for_failures()
    there = heir.live_again()
    assert there.replicas().view.generation == 1
    wanted = {3: ("c", None), 4: ("b", "2"), 5: ("a", "3")}
    assert fetched(there.cluster) == wanted | {6: ("z", "1")}
    for row in [("a", "4"), ("z", "2")]:
        Compacted.put(there, row)  # type: ignore[arg-type]
    there.cluster.tier().raise_for_failures()
    there.cluster.compact().raise_for_failures()
    assert there.replicas().view.generation == 2
    image = there.cluster.image
    wanted = {3: ("c", None), 4: ("b", "2"), 6: ("z", "1"), 7: ("a", "4"), 8: ("z", "2")}
    assert lake(live.remote / ports_of(there.cluster).storage.remote_table(image.topic("t")).folder) == wanted
    there.cluster.verify(deep=True).raise_for_failures()


@pytest.mark.parametrize("which", [0, 4])
def test_a_damaged_object_is_rebuilt_from_a_replica_that_follows_the_rule(tmp_path: Path, which: int) -> None:
    live = filled(tmp_path, (*ROWS, ("z", "1")), local_retention_bytes="-1")
    live.cluster.compact().raise_for_failures()
    before = live.lake()
    segment = live.remote_log().of_partition(0)[which]
    (live.remote / live.table().path(segment)).unlink()
    live.driver().heal().raise_for_failures()
    assert live.lake() == before
    live.driver().verify(deep=True).raise_for_failures()


def test_a_replica_that_does_not_follow_the_rule_is_no_source(tmp_path: Path) -> None:
    live = filled(tmp_path, (*ROWS, ("z", "1")), local_retention_bytes="-1")
    stop_before_removal(live)
    before = live.lake()
    segment = live.remote_log().of_partition(0)[0]
    assert segment.generation == 1
    (live.remote / live.table().path(segment)).unlink()
    healed = live.driver().heal(check=False)
    assert "Run compact, which also removes these records from the leader" in str(healed.failures) + str(
        healed.notes
    )
    live.driver().compact().raise_for_failures()
    live.driver().heal().raise_for_failures()
    assert live.lake() == before
