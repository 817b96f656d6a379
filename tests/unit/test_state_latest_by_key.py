"""The latest record of each key, as a fold (KIP-630, cleanup.policy=snapshot)."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.engine.state.latest_by_key import LatestByKey, check_key, record_schema, reduced, without_tombstones
from stratalog.partitions.errors import InvalidConfigError, StaleMetadataError
from stratalog.partitions.records import physical_schema, type_to_json
from stratalog.snapshots.policy import changed_records
from tests.unit.state_machine_laws import Subject, check_laws

KEY = pa.struct([("land", pa.string()), ("at", pa.struct([("number", pa.int32())]))])
TYPED, BINARY = physical_schema(KEY, pa.string()), physical_schema()

Row = tuple[str | None, str | None]
"""Key and value."""
ROWS = st.lists(st.tuples(st.none() | st.sampled_from("abcd"), st.none() | st.sampled_from("123")), max_size=25)


def batch(rows: Sequence[Row], schema: pa.Schema = BINARY, first_us: int = 0) -> pa.RecordBatch:
    typed = schema is TYPED
    keys = [None if k is None else {"land": k, "at": {"number": ord(k)}} if typed else k.encode() for k, _ in rows]
    contents = [None if v is None else v if typed else v.encode() for _, v in rows]
    return pa.RecordBatch.from_pydict(
        {
            "timestamp": list(range(first_us, first_us + len(rows))),
            "key": keys,
            "value": contents,
            "headers": [None] * len(rows),
        },
        schema=record_schema(schema),
    )


def table(rows: Sequence[Row]) -> pa.Table:
    return pa.Table.from_batches([batch(rows)])


@pytest.mark.sample(2)
@pytest.mark.parametrize("schema", [pytest.param(BINARY, marks=pytest.mark.slow), TYPED], ids=["binary", "typed"])
@given(rows=ROWS, cuts=st.lists(st.integers(0, 25), max_size=3))
def test_a_snapshot_may_be_anywhere(schema: pa.Schema, rows: list[Row], cuts: list[int]) -> None:
    """KIP-630, "Loading Snapshots"."""
    log = [batch([row], schema, number) for number, row in enumerate(rows)]
    subject = Subject(LatestByKey.empty(schema), lambda records, offset: LatestByKey.load(records, offset, schema))
    check_laws(subject, log, cuts)


@pytest.mark.slow
@given(ROWS)
def test_it_is_what_a_dictionary_would_hold(rows: list[Row]) -> None:
    """A naive twin of the fold; records without a key are in no snapshot."""
    state = LatestByKey.empty(BINARY).apply(0, [batch(rows)])
    twin = {key: value for key, value in rows if key is not None}
    found = zip(*(state.table.column(name).to_pylist() for name in ("key", "value")), strict=True)
    assert {k.decode(): None if v is None else v.decode() for k, v in found} == twin
    assert state.table.num_rows == len(twin)
    assert state.next_offset == len(rows)


def test_the_rows_are_as_the_log_has_them() -> None:
    rows = [("a", "1"), ("b", "2"), ("a", "3"), ("c", None), ("b", "4")]
    state = LatestByKey.empty(BINARY).apply(0, [batch(rows)])
    assert state.table.column("key").to_pylist() == [b"a", b"c", b"b"]
    assert state.table.column("value").to_pylist() == [b"3", None, b"4"]


@pytest.mark.slow
@given(ROWS, ROWS)
def test_changed_records_are_counted_as_the_policy_defines(before: list[Row], after: list[Row]) -> None:
    """KIP-630, "When to Snapshot": deleted and modified records count, new ones do not."""
    held = LatestByKey.empty(BINARY).apply(0, [batch(before)]).table
    keys = {key for key, _ in before if key is not None}
    touched = [key for key, _ in after if key is not None]
    assert reduced(held, table(after)).changed == changed_records(keys, touched)


def test_a_null_struct_is_not_a_struct_of_nulls() -> None:
    schema = physical_schema(pa.struct([("a", pa.string())]))
    rows = pa.RecordBatch.from_pydict(
        {
            "timestamp": [0, 1, 2],
            "key": [{"a": None}, None, {"a": "x"}],
            "value": [b"1", b"2", b"3"],
            "headers": [None] * 3,
        },
        schema=record_schema(schema),
    )
    state = LatestByKey.empty(schema).apply(0, [rows])
    assert state.table.column("key").to_pylist() == [{"a": None}, {"a": "x"}]


def test_records_and_snapshots_of_before_the_schema_grew_have_nulls_in_the_new_fields() -> None:
    """A key with a null field is the same key as one without that field."""
    narrow = physical_schema(pa.struct([("a", pa.string())]), pa.struct([("n", pa.int32())]))
    wide = physical_schema(
        pa.struct([("a", pa.string()), ("b", pa.string())]), pa.struct([("n", pa.int32()), ("m", pa.int32())])
    )

    def one(schema: pa.Schema, key: dict[str, str], value: dict[str, int]) -> pa.RecordBatch:
        columns = {"timestamp": [0], "key": [key], "value": [value], "headers": [None]}
        return pa.RecordBatch.from_pydict(columns, schema=record_schema(schema))

    older = LatestByKey.empty(narrow).apply(
        0, [one(narrow, {"a": "x"}, {"n": 1}), one(narrow, {"a": "y"}, {"n": 2})]
    )
    state = LatestByKey.load(older.dump(), 2, wide)
    state = state.apply(2, [one(wide, {"a": "x", "b": "z"}, {"n": 3, "m": 4}), one(narrow, {"a": "x"}, {"n": 5})])
    assert {tuple(row["key"].values()): tuple(row["value"].values()) for row in state.table.to_pylist()} == {
        ("y", None): (2, None),
        ("x", "z"): (3, 4),
        ("x", None): (5, None),
    }
    with pytest.raises(StaleMetadataError, match="has the schema"):
        older.apply(2, [one(wide, {"a": "x"}, {"n": 1})])


def test_old_tombstones_are_left_out_and_nothing_else() -> None:
    """delete.retention.ms; a reader of key -> value cannot tell the difference."""
    rows = [("a", None), ("b", "1"), ("c", None), ("d", "2")]
    kept = without_tombstones(table(rows), 1)
    assert kept.column("key").to_pylist() == [b"b", b"c", b"d"]
    untimed = table(rows).set_column(0, "timestamp", pa.nulls(4, BINARY.field("timestamp").type))
    assert without_tombstones(untimed, 10**9).num_rows == 4


@pytest.mark.parametrize(
    ("key", "comparable"),
    [
        (pa.binary(), True),
        (pa.string(), True),
        (pa.decimal128(10, 2), True),
        (KEY, True),
        (pa.float64(), False),
        (pa.list_(pa.string()), False),
        (pa.map_(pa.string(), pa.string()), False),
        (pa.struct([("a", pa.list_(pa.string()))]), False),
    ],
    ids=str,
)
def test_keys_must_be_comparable(key: pa.DataType, comparable: bool) -> None:
    """Floats have two zeros and many NaNs, and Arrow and Spark do not agree on which of them are one key."""
    if comparable:
        check_key(type_to_json(key), "snapshot", "topic 't'")
    else:
        with pytest.raises(InvalidConfigError, match=r"topic 't': cleanup\.policy = snapshot"):
            check_key(type_to_json(key), "snapshot", "topic 't'")
