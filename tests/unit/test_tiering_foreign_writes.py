"""Writes of data to a remote table by other programs: refused, with the remedy, without any change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import write_deltalake
from deltalake.transaction import AddAction, RemoveAction

from stratalog.partitions.errors import CorruptionError
from tests.unit.foreign_table import compacted, deleted, delta, offsets, spans
from tests.unit.tiering_harness import TieredPartition, three_segments


@pytest.fixture
def part(tmp_path: Path) -> TieredPartition:
    return three_segments(tmp_path)


def appended(part: TieredPartition) -> None:
    write_deltalake(delta(part), delta(part).to_pyarrow_table(), mode="append")


def overwritten(part: TieredPartition) -> None:
    """With the very same records: only the writer's claim distinguishes this from a rewrite."""
    write_deltalake(delta(part), delta(part).to_pyarrow_table(), mode="overwrite")


def deleted_a_whole_file_at_the_end(part: TieredPartition) -> None:
    delta(part).delete("offset >= 7")


def updated(part: TieredPartition) -> None:
    delta(part).update(updates={"key": "'x'"}, predicate="offset = 4")


def merged(part: TieredPartition) -> None:
    table = delta(part)
    rows = table.to_pyarrow_table().slice(0, 1)
    table.merge(rows, "s.offset = t.offset", source_alias="s", target_alias="t").when_matched_delete().execute()


def optimized_and_deleted(part: TieredPartition) -> None:
    compacted(part)
    deleted(part)


def deleted_and_optimized(part: TieredPartition) -> None:
    deleted(part)
    compacted(part)


def restored_to_an_older_version(part: TieredPartition) -> None:
    delta(part).restore(0)


WRITES = [
    (appended, "WRITE at version 2"),
    (overwritten, "WRITE at version 2"),
    (deleted, "DELETE at version 2"),
    (deleted_a_whole_file_at_the_end, "DELETE at version 2"),
    (updated, "UPDATE at version 2"),
    (merged, "MERGE at version 2"),
    (optimized_and_deleted, "DELETE at version 3"),
    (deleted_and_optimized, "DELETE at version 2"),
    (restored_to_an_older_version, "RESTORE at version 2"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("write", "who"), WRITES, ids=lambda value: getattr(value, "__name__", ""))
def test_a_write_of_data_is_refused_with_the_remedy_and_nothing_is_changed(
    part: TieredPartition, write: Callable[[TieredPartition], None], who: str
) -> None:
    uploads = part.upload(part.plan())
    write(part)
    version = delta(part).version()
    remedy = rf"changed the records.*{who} with delta-rs.*DeltaTable\(.*\)\.restore\(1\)"
    for call in (
        part.table.load,
        part.table.undo_rewrites,
        lambda: part.commit(uploads),
        lambda: part.table.vacuum(0),
    ):
        with pytest.raises(CorruptionError, match=remedy):
            call()
    assert delta(part).version() == version
    delta(part).restore(1)
    assert spans(part) == [(0, 3), (3, 7), (7, 12)]
    part.append(2)
    part.tier()
    assert offsets(part) == list(range(14))


def test_a_rewrite_that_says_it_changes_no_data_and_loses_records_is_refused(part: TieredPartition) -> None:
    """Like ``dataChange = false`` of Spark's writer, which trusts its user."""
    first = part.table.load().of_partition(0)[0]
    actions = [
        RemoveAction(first.path, False, 0, first.size_bytes, {}),
        AddAction("part-0.parquet", 1, {}, 0, False, '{"numRecords":2}'),
    ]
    delta(part).create_write_transaction(actions, mode="append", schema=delta(part).schema())
    with pytest.raises(CorruptionError, match="changed the records"):
        part.table.load()
