"""Faulty remote tiers: one clear error each, and nothing is lost."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType
from deltalake.table import TableFeatures
from deltalake.transaction import AddAction

from stratalog.partitions import paths
from stratalog.partitions.errors import StorageError
from stratalog.partitions.paths import DataName
from stratalog.partitions.store.local import LocalStore
from tests.unit.cluster_harness import LiveCluster, codes, remote_files, the_failure
from tests.unit.faulty_store import Faults
from tests.unit.foreign_table import make_catalog_managed
from tests.unit.harness import SCHEMA
from tests.unit.remote_folder import assert_tables_and_folders_agree, listed, lying
from tests.unit.retention_harness import filled
from tests.unit.tampering import remote_spot
from tests.unit.tiering_harness import table_in

HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS


def emptied(live: LiveCluster) -> None:
    for child in live.remote.iterdir():
        shutil.rmtree(child)


def of_another_cluster(live: LiveCluster) -> None:
    emptied(live)
    topic = live.cluster.image.topic("t")
    table_in(LocalStore(str(live.remote)), topic_id=topic.topic_id, cluster_id="other").ensure(SCHEMA)


def without_its_table(live: LiveCluster) -> None:
    shutil.rmtree(next(live.remote.glob("t-*/_delta_log")))


def lacking_an_object(live: LiveCluster) -> None:
    remote_files(live)[1].unlink()


def written_by_somebody_else(live: LiveCluster) -> None:
    table = DeltaTable(str(next(live.remote.glob("t-*"))))
    table.create_write_transaction(
        [AddAction("part-0.parquet", 1, {}, 0, True, "{}")], mode="append", schema=table.schema()
    )


def truncated(live: LiveCluster) -> None:
    remote_spot(live, 1).cut()


def replaced_by_a_longer_one(live: LiveCluster) -> None:
    remote_spot(live, 1).replace(remote_spot(live, 2).read() + b"x")


def replaced_by_one_of_its_size(live: LiveCluster) -> None:
    """The footer reveals this damage."""
    path = remote_files(live)[1]
    path.write_bytes(b"PAR1" + bytes(path.stat().st_size - 4))
    os.utime(path, (1, 1))


def replaced_by_one_with_its_footer(live: LiveCluster) -> None:
    """Only the checksums of the pages reveal this damage."""
    remote_spot(live, 1).flip(40)
    os.utime(remote_files(live)[1], (1, 1))


def without_its_objects(live: LiveCluster) -> None:
    for path in remote_files(live):
        path.unlink()


def removed_by_hand(live: LiveCluster) -> None:
    shutil.rmtree(next(live.remote.glob("t-*")))


def table_of(live: LiveCluster) -> DeltaTable:
    return DeltaTable(str(next(live.remote.glob("t-*"))))


def removed_from_the_middle_by_somebody_else(live: LiveCluster) -> None:
    table_of(live).delete("offset = 1")


def removed_from_the_beginning_by_somebody_else(live: LiveCluster) -> None:
    table_of(live).delete("offset = 0")


def overwritten_by_somebody_else(live: LiveCluster) -> None:
    table = table_of(live)
    write_deltalake(table, table.to_pyarrow_table(), mode="overwrite")


def upgraded_by_somebody_else(live: LiveCluster) -> None:
    """An upgrade like ``delta.enableDeletionVectors = true``: a reader without this feature would see deleted
    records.
    """
    table_of(live).alter.add_feature([TableFeatures.DeletionVectors], allow_protocol_versions_increase=True)


def made_catalog_managed(live: LiveCluster) -> None:
    make_catalog_managed(str(next(live.remote.glob("t-*"))))


def with_an_entry_of_its_log_missing(live: LiveCluster) -> None:
    (Path(table_of(live).table_uri.removeprefix("file://")) / "_delta_log" / f"{0:020d}.json").unlink()


ALIKE = (
    without_its_objects,
    removed_by_hand,
    truncated,
    written_by_somebody_else,
    overwritten_by_somebody_else,
    removed_from_the_beginning_by_somebody_else,
)
"""Each kind of damage is detected like the others."""

ONE_IS_BAD = (replaced_by_one_of_its_size, replaced_by_one_with_its_footer)


SPOILT = [
    (emptied, "LOG_GAP", "check that the right remote tier is mounted"),
    (of_another_cluster, "INCONSISTENT_CLUSTER_ID", "belongs to cluster 'other'"),
    (without_its_table, "LOG_GAP", "check that the right remote tier is mounted"),
    (lacking_an_object, "REMOTE_OBJECT_MISSING", "missing or have another size"),
    (written_by_somebody_else, "CORRUPT_MESSAGE", "WRITE at version"),
    (truncated, "REMOTE_OBJECT_MISSING", "1 objects that are missing or have another size; the first is 0/"),
    (replaced_by_a_longer_one, "REMOTE_OBJECT_MISSING", "missing or have another size"),
    (replaced_by_one_of_its_size, "CORRUPT_SEGMENT", "00001.0000000001.parquet does not begin and end like"),
    (replaced_by_one_with_its_footer, "CORRUPT_SEGMENT", "00001.0000000001.parquet"),
    (without_its_objects, "REMOTE_OBJECT_MISSING", "lists 4 objects that are missing or have another size"),
    (removed_by_hand, "LOG_GAP", "check that the right remote tier is mounted"),
    (removed_from_the_middle_by_somebody_else, "CORRUPT_MESSAGE", "DELETE at version"),
    (removed_from_the_beginning_by_somebody_else, "CORRUPT_MESSAGE", "DELETE at version"),
    (overwritten_by_somebody_else, "CORRUPT_MESSAGE", "WRITE at version"),
    (upgraded_by_somebody_else, "CORRUPT_MESSAGE", "upgraded by another writer, to deletionVectors"),
    (made_catalog_managed, "CORRUPT_MESSAGE", "catalog-managed by another writer"),
    (with_an_entry_of_its_log_missing, "KAFKA_STORAGE_ERROR", "No table metadata or protocol found"),
]


@pytest.mark.parametrize(
    ("spoil", "code", "message"),
    [pytest.param(*case, marks=[pytest.mark.slow] if case[0] in ALIKE else []) for case in SPOILT],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_remote_that_is_not_as_it_should_be_is_one_error_and_nothing_is_dropped(
    live: LiveCluster, spoil: Callable[[LiveCluster], None], code: str, message: str
) -> None:
    """The remote object is damaged between the move of the local start and the end of the delay: the files on the
    brokers may be the last good copy.
    """
    filled(live, "abcd", file_delete_delay_ms="3600000")
    live.cluster.retain().raise_for_failures()  # the brokers already rely on the remote tier
    live.fill("ef")
    spoil(live)
    live.clock.advance_ms(2 * HOUR_MS)
    before = live.on_brokers()
    for _ in range(2):
        report = live.cluster.retain(check=False)
        assert codes(report) == {code: 1}
        assert message in the_failure(report)
        assert not codes(live.cluster.replicate(check=False)).keys() - {code}
        assert not codes(live.cluster.tier(check=False)).keys() - {code, "LOG_GAP"}
    data = {name for name in before if name.endswith(".parquet") and "/t-" in name}
    dropped = {paths.base_name(name) for name in data - live.on_brokers().keys()}
    behind_it = {str(DataName(2, None, 1))} if spoil in ONE_IS_BAD else set()
    assert dropped <= behind_it, "what is sound behind a bad one may go"


@pytest.mark.parametrize(
    "spoil",
    [
        removed_from_the_middle_by_somebody_else,
        *(
            pytest.param(spoil, marks=pytest.mark.slow)
            for spoil in (
                overwritten_by_somebody_else,
                removed_from_the_beginning_by_somebody_else,
            )
        ),
    ],
    ids=lambda spoil: spoil.__name__,
)
def test_a_table_that_another_writer_has_changed_can_be_restored_to_the_version_before(
    live: LiveCluster, spoil: Callable[[LiveCluster], None]
) -> None:
    """The change is like Delta's RESTORE: everything continues from that version."""
    filled(live, "abcd")
    for _ in range(2):
        live.cluster.retain().raise_for_failures()
    before = table_of(live).version()
    spoil(live)
    live.fill("ef")
    assert not live.cluster.verify().ok
    table_of(live).restore(before)
    live.cluster.tier().raise_for_failures()
    live.cluster.retain().raise_for_failures()
    live.cluster.verify(deep=True).raise_for_failures()
    assert live.read() == {0: list("abcdef")}


@pytest.mark.slow
def test_permitted_changes_by_others_to_a_table_do_no_harm(live: LiveCluster) -> None:
    """A vacuum of removed files, a checkpoint, a nullable column."""
    filled(live, "abcd")
    table_of(live).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    table_of(live).create_checkpoint()
    table_of(live).alter.add_columns([Field("note", PrimitiveType("string"), nullable=True)])
    live.fill("ef")
    live.tier_and_drop()
    live.cluster.verify(deep=True).raise_for_failures()
    assert live.read() == {0: list("abcdef")}


@pytest.mark.slow
@pytest.mark.parametrize("jump_ms", [-YEAR_MS, 10 * YEAR_MS], ids=["back a year", "forwards ten years"])
def test_a_clock_that_jumps_loses_nothing_and_delays_nothing(live: LiveCluster, jump_ms: int) -> None:
    """The clock of one driver is wrong, and then right again. Local retention and the delay before deletion depend
    on the clock, so records may leave the brokers too soon, but never before they are remote. Records without a
    limit stay.
    """
    live.tiered(local_retention_ms="3600000", local_retention_bytes="-2", file_delete_delay_ms="60000")
    live.fill("abc", at_ms=live.clock.now_ms())
    live.cluster.tier().raise_for_failures()
    live.fill("de", at_ms=live.clock.now_ms())
    live.clock.advance_ms(jump_ms)
    live.fill("f", at_ms=live.clock.now_ms())
    for _ in range(2):
        live.cluster.retain().raise_for_failures()
    report = live.cluster.tier(due=True).raise_for_failures()
    assert int(str(report.totals["next_ms"])) <= HOUR_MS
    assert all(int(str(row["copy_lag_ms"])) >= 0 for row in live.cluster.describe().rows)
    live.clock.advance_ms(-jump_ms + HOUR_MS)
    live.fill("g", at_ms=live.clock.now_ms())
    report = live.cluster.tier(due=True).raise_for_failures()
    assert [row["remote_end"] for row in report.rows] == [7]
    for _ in range(2):
        live.cluster.retain().raise_for_failures()
    assert live.read() == {0: list("abcdefg")}
    live.cluster.verify(deep=True).raise_for_failures()


def test_without_permission_to_delete_nothing_is_forgotten(tmp_path: Path) -> None:
    """The segments leave the table; their objects wait for a driver with the right to delete."""
    faults = Faults()
    live = LiveCluster(tmp_path, through=faults.wrap)
    filled(live, "abcd")
    live.cluster.topics.alter_configs("t", {"retention.bytes": "1"})

    faults.refuse(StorageError("cannot delete: AccessDenied"), "delete", at="/remote")
    assert "AccessDenied" in the_failure(live.driver().retain(check=False))
    assert len(listed(live)) == 1
    assert len(lying(live)) == 4
    faults.none()
    live.cluster.retain().raise_for_failures()
    assert_tables_and_folders_agree(live)
