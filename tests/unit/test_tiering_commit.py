"""The function for all commits to a Delta table, and tables that only a catalog commits to."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError

from stratalog.partitions.errors import CorruptionError
from stratalog.partitions.store.local import LocalStore
from stratalog.tiering.delta_commit import actions_of, commit
from stratalog.tiering.delta_table import DeltaTopicTable
from stratalog.tiering.remote_change import TableChange
from tests.unit.foreign_table import make_catalog_managed
from tests.unit.harness import SCHEMA
from tests.unit.tiering_harness import OURS, TENS, table_in, uploaded


@pytest.fixture
def table(tmp_path: Path) -> DeltaTopicTable:
    """At version 1, with one segment."""
    made = table_in(LocalStore(str(tmp_path)))
    made.ensure(SCHEMA)
    made.commit([uploaded(TENS[0])], histories=OURS)
    return made


def actions(number: int) -> list[object]:
    return [*actions_of(TableChange((uploaded(TENS[number]),), ()), 0)]


def test_a_commit_is_the_version_after_the_expected_one_or_none(table: DeltaTopicTable) -> None:
    one, other = DeltaTable(table.uri), DeltaTable(table.uri)
    commit(one, actions(1), 1, [Transaction("stratalog", 2, 0)], {"userMetadata": "of one"})  # type: ignore[arg-type]
    assert DeltaTable(table.uri).history(1)[0]["userMetadata"] == "of one"
    with pytest.raises(CommitFailedError):
        commit(other, actions(2), 1, [], {})  # type: ignore[arg-type]
    assert (table.load().version, table.load().end(0)) == (2, 20)
    with pytest.raises(ValueError, match="opened at version 1, not 2"):
        commit(other, actions(2), 2, [], {})  # type: ignore[arg-type]
    assert table.load().version == 2


@pytest.mark.parametrize("feature", ["catalogManaged", "catalogOwned-preview"])
def test_a_catalog_managed_table_is_refused_by_name_and_left_alone(table: DeltaTopicTable, feature: str) -> None:
    log = Path(table.uri) / "_delta_log"
    make_catalog_managed(table.uri, feature)
    before = sorted(log.iterdir())
    for call in (
        table.load,
        table.undo_rewrites,
        lambda: table.ensure(SCHEMA),
        lambda: table.commit([uploaded(TENS[1])], histories=OURS),
        lambda: table.mark_deleted(True),
    ):
        with pytest.raises(CorruptionError, match=r"catalog-managed by another writer.*create_table"):
            call()
    assert sorted(log.iterdir()) == before
