"""The schema of a remote table grows with the topic's, and every reader fills in nulls."""

from __future__ import annotations

import dataclasses
import json
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, Schema
from deltalake.exceptions import CommitFailedError

from stratalog.partitions.clock import ManualClock
from stratalog.partitions.erasure import Erasure
from stratalog.partitions.errors import CorruptionError, InvalidRecordError
from stratalog.partitions.records import physical_schema
from stratalog.partitions.store import StoreOptions
from stratalog.partitions.store.local import LocalStore
from stratalog.tiering.delta_metadata import set_properties
from stratalog.tiering.delta_schema import grown_fields
from stratalog.tiering.delta_table import DeltaTopicTable, hand_over
from tests.unit.harness import SCHEMA
from tests.unit.tiering_harness import OURS, segment, table_in, uploaded
from tests.unit.together import together

NARROW = pa.struct([("x", pa.int32())])
WIDE = pa.struct([("x", pa.int32()), ("y", pa.string())])
WIDER = pa.struct([("x", pa.int32()), ("y", pa.string()), ("z", pa.struct([("deep", pa.int64())]))])
DEEPER = pa.struct([*list(WIDER)[:2], ("z", pa.struct([("deep", pa.int64()), ("deeper", pa.date32())]))])


@pytest.fixture
def table(tmp_path: Path) -> DeltaTopicTable:
    made = table_in(LocalStore(str(tmp_path)))
    made.ensure(physical_schema(value=NARROW))
    return made


def value_type(table: DeltaTopicTable) -> pa.DataType:
    return pa.schema(DeltaTable(table.uri).schema().to_arrow()).field("value").type


@pytest.mark.parametrize("steps", [[WIDE], [WIDE, WIDER], [WIDER, DEEPER], [DEEPER]], ids=len)
def test_nullable_fields_at_the_end_of_any_struct_are_added(
    table: DeltaTopicTable, steps: list[pa.DataType]
) -> None:
    for value in steps:
        table.ensure(physical_schema(value=value))
    assert value_type(table) == steps[-1]
    assert table.load().version == len(steps), "one version each"


def test_widening_the_schema_keeps_the_committed_segments(table: DeltaTopicTable) -> None:
    table.commit([uploaded(segment(0, 10))], (), OURS)
    table.ensure(physical_schema(value=WIDE))
    done = table.commit([uploaded(segment(10, 20))], (), OURS)
    assert [each.base_offset for each in done.log.of_partition(0)] == [0, 10]
    assert DeltaTable(table.uri).metadata().configuration["stratalog.topic_id"] == table.topic_id


def test_a_driver_with_the_older_schema_continues(table: DeltaTopicTable) -> None:
    """Its segments lack the new fields; they are readable under both schemas."""
    table.ensure(physical_schema(value=WIDER))
    table.ensure(physical_schema(value=NARROW))
    assert value_type(table) == WIDER


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(pa.struct([("y", pa.int32())]), id="another name"),
        pytest.param(pa.struct([("x", pa.float64())]), id="another type"),
        pytest.param(pa.struct([("y", pa.string()), ("x", pa.int32())]), id="in front"),
        pytest.param(pa.struct([("x", pa.int32()), pa.field("y", pa.string(), False)]), id="not nullable"),
        pytest.param(pa.struct([("x", pa.int32(), False)]), id="no more nulls"),
        pytest.param(pa.binary(), id="no struct"),
    ],
)
def test_any_other_change_is_refused_and_changes_nothing(table: DeltaTopicTable, value: pa.DataType) -> None:
    with pytest.raises(
        InvalidRecordError, match="neither schema can be made from the other by adding nullable fields"
    ):
        table.ensure(physical_schema(value=value))
    assert (table.load().version, value_type(table)) == (0, NARROW)


@pytest.mark.parametrize("value", [WIDE, pa.struct([("x", pa.int64())])], ids=["more fields", "wider types"])
def test_a_table_to_which_others_have_added_a_nullable_column_still_grows(
    table: DeltaTopicTable, value: pa.DataType
) -> None:
    DeltaTable(table.uri).alter.add_columns([Field("note", "string")])
    table.ensure(physical_schema(value=NARROW))
    assert table.load().version == 1
    table.ensure(physical_schema(value=value))
    assert (table.load().version, value_type(table)) == (2, value)
    assert DeltaTable(table.uri).schema().fields[-1] == Field("note", "string")


def test_drivers_that_grow_it_at_once_grow_it_once(tmp_path: Path, table: DeltaTopicTable) -> None:
    def grow(number: int) -> None:
        table_in(table.remote, seed=number).ensure(physical_schema(value=WIDE if number % 2 else WIDER))

    together(*(partial(grow, number) for number in range(5)))
    assert value_type(table) == WIDER
    assert table.load().version <= 2


ZONELESS = physical_schema(value=pa.struct([("x", pa.timestamp("us"))]))


def test_properties_add_no_feature_to_a_table_with_times_without_a_zone(tmp_path: Path) -> None:
    """delta-rs would add ``variantType``, which many readers refuse."""
    remote, options = LocalStore(str(tmp_path)), StoreOptions()
    table = table_in(remote)
    table.ensure(ZONELESS)
    table.record_beginning({0: [Erasure(1, ())]}, {})
    table.commit([uploaded(segment(0, 4))], (), dataclasses.replace(OURS, erasures={0: 1}))
    table.mark_deleted(True)
    assert table.is_marked_deleted()
    assert hand_over(table, "c", "heir", options, ManualClock())
    heirs = table_in(remote, cluster_id="heir")
    assert (heirs.load().end(0), heirs.load().version) == (4, 4), "one version each"
    assert heirs.load().erased == {0: 1}
    protocol = DeltaTable(table.uri).protocol()
    assert (protocol.reader_features, protocol.writer_features) == (["timestampNtz"], ["timestampNtz"])


def test_only_one_of_two_sets_properties_of_the_next_version(tmp_path: Path) -> None:
    table = table_in(LocalStore(str(tmp_path)))
    table.ensure(ZONELESS)
    first, second = DeltaTable(table.uri), DeltaTable(table.uri)
    set_properties(first, table.remote, table.folder, {"a": "1"}, 0)
    with pytest.raises(CommitFailedError):
        set_properties(second, table.remote, table.folder, {"a": "2"}, 0)
    assert DeltaTable(table.uri).metadata().configuration["a"] == "1"


def test_the_feature_that_delta_rs_adds_for_another_program_is_understood(tmp_path: Path) -> None:
    table = table_in(LocalStore(str(tmp_path)))
    table.ensure(ZONELESS)
    DeltaTable(table.uri).alter.set_table_properties({"owner": "ops"}, raise_if_not_exists=False)
    assert "variantType" in (DeltaTable(table.uri).protocol().reader_features or ())
    assert table.commit([uploaded(segment(0, 4))], (), OURS).log.end(0) == 4
    table.record_beginning({1: [Erasure(1, ())]}, {})
    assert table.load().erased == {1: 1}


def test_equal_schemas_need_nothing() -> None:
    same = Schema.from_arrow(SCHEMA)
    assert grown_fields(same, same) == []


def test_growth_and_a_commit_at_once_lose_neither(table: DeltaTopicTable) -> None:
    """A commit that was planned on the version before the schema grew is retried on the one after it."""
    other = table_in(table.remote, seed=1)

    class Late(DeltaTopicTable):
        grew = False

        def _put(self, *change: object) -> None:
            if not self.grew:
                self.grew = True
                other.ensure(physical_schema(value=WIDE))
            super()._put(*change)  # type: ignore[arg-type]

    late = Late.__new__(Late)
    late.__dict__.update(table.__dict__)
    done = late.commit([uploaded(segment(0, 10))], (), OURS)
    assert (done.log.version, done.log.end(0)) == (2, 10)
    assert value_type(table) == WIDE


def test_a_driver_that_lost_the_race_to_widen_finds_the_table_as_it_wants_it(
    table: DeltaTopicTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = physical_schema(None, pa.struct([("x", pa.int64())]))
    create = type(table.remote).create
    answers = []

    def late(store: Any, name: str, data: bytes) -> bool:
        monkeypatch.setattr(type(table.remote), "create", create)
        table.ensure(wide)
        answers.append(create(store, name, data))
        return answers[0]

    before = DeltaTable(table.uri).version()
    monkeypatch.setattr(type(table.remote), "create", late)
    table.ensure(wide)
    assert answers == [False]
    assert DeltaTable(table.uri).version() == before + 1


def test_no_entry_is_written_under_a_feature_that_it_would_have_to_follow(tmp_path: Path) -> None:
    """Each commit to a table with in-commit timestamps must have one. Spark could not read the table otherwise."""
    table = table_in(LocalStore(str(tmp_path)))
    table.ensure(physical_schema(value=NARROW))
    versions = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["inCommitTimestamp"]}
    entry = Path(table.uri, "_delta_log", f"{1:020d}.json")
    entry.write_text(json.dumps({"protocol": versions}))
    with pytest.raises(CorruptionError, match=r"to inCommitTimestamp.*DROP FEATURE"):
        hand_over(table, "c", "heir", StoreOptions(), ManualClock())
    with pytest.raises(CorruptionError, match=r"to inCommitTimestamp.*DROP FEATURE"):
        table.ensure(physical_schema(value=pa.struct([("x", pa.int64())])))
    assert table.load().version == 1
