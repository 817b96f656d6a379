"""Columns of Python values equal those of Arrow, without importing pandas."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.partitions.columns import binaries, bools_of, constant, integers_of, numbers, scalar, valid_of
from stratalog.partitions.records import TIMESTAMP

INT64 = st.integers(-(2**63), 2**63 - 1)


@given(st.lists(st.none() | st.binary(max_size=20), max_size=40))
def test_binaries_are_the_values(values: list[bytes | None]) -> None:
    column = binaries(values)
    column.validate(full=True)
    assert column.equals(pa.array(values, pa.binary()))


def test_binaries_of_more_than_a_column_takes_are_refused() -> None:
    class Long(bytes):
        def __len__(self) -> int:
            return 2**31

    with pytest.raises(OverflowError, match=r"2,147,483,648 bytes are too many for a column"):
        binaries([Long()])


@given(INT64, st.integers(0, 5))
def test_a_constant_is_the_value_in_each_row(value: int, rows: int) -> None:
    for data_type in (pa.int64(), TIMESTAMP):
        assert constant(value, data_type, rows).equals(pa.array([value] * rows, data_type))
        assert scalar(value, data_type).equals(pa.scalar(value, data_type))


@pytest.mark.parametrize("text", ["", "a", "é\0b"])
def test_a_constant_is_a_text(text: str) -> None:
    column = constant(text, pa.string(), 3)
    column.validate(full=True)
    assert column.equals(pa.array([text] * 3, pa.string()))


@pytest.mark.parametrize("value", [-(2**31), 0, 2**31 - 1])
def test_a_constant_is_a_number_of_32_bits(value: int) -> None:
    assert constant(value, pa.int32(), 2).equals(pa.array([value] * 2, pa.int32()))


def test_a_number_that_a_type_does_not_have_is_refused() -> None:
    with pytest.raises(OverflowError):
        constant(2**31, pa.int32(), 1)


@pytest.mark.parametrize(("start", "end"), [(0, 0), (3, 3), (2**40, 2**40 + 3)])
def test_numbers_are_half_open(start: int, end: int) -> None:
    assert numbers(start, end).equals(pa.array(range(start, end), pa.int64()))


@pytest.mark.slow
def test_a_producer_that_needs_no_pandas_imports_none(tmp_path: Path) -> None:
    """pandas is installed here, as with Spark; and 50 MB are a third of the memory of such a process."""
    for name in ("remote", "one", "two", "three"):
        (tmp_path / name).mkdir()
    (tmp_path / "cluster.toml").write_text(
        '[cluster]\nid = "c"\nremote = "remote"\nvoters = [1]\n'
        '[[brokers]]\nid = 1\nlog_dir = "one"\n[[brokers]]\nid = 2\nlog_dir = "two"\n'
        '[[brokers]]\nid = 3\nlog_dir = "three"\n'
    )
    program = """
import sys, pyarrow as pa
from stratalog import Cluster
from stratalog.partitions.columns import binaries
cluster = Cluster.format("cluster.toml")
cluster.topics.create("trips", partitions=2, replication_factor=2)
values = binaries([b"one", b"two"])
record = pa.record_batch({
    "timestamp": pa.nulls(2, pa.timestamp("us", "UTC")),
    "key": values,
    "value": values,
    "headers": pa.nulls(2, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
})
for _ in range(2):
    cluster.append_batches("trips", {0: [record], 1: [record]}).raise_for_failures()
with cluster.transactions.begin("t") as t:
    t.append_batches("trips", {0: [record]})
cluster.groups.commit("g", {("trips", 0): 1}).raise_for_failures()
cluster.merge().raise_for_failures()
cluster.maintain().raise_for_failures()
cluster.close()
loaded = {"pandas", "pyspark", "deltalake", "botocore"} & sys.modules.keys()
assert not loaded, loaded
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_mirror_and_a_comparison_import_none() -> None:
    program = """
import sys
from stratalog.bridges.mirror.compared import Compared
from stratalog.bridges.mirror.partitions import MirroredPartition
from stratalog.bridges.mirror.rows import batches_of, source_batch
from stratalog.bridges.mirror.source import SourceBounds, SourceRead
part = MirroredPartition(("t", 0), 0, None, SourceBounds(0, 9, 9))
headers = [None, [("h", None)], []]
records = source_batch([0, 2, 3], [None, 1, 2], [None, b"", b"k"], [b"v", None, b"w"], headers, [None, 1, 2])
for piece in part.pieces(SourceRead(("t", 0), records, 9)):
    assert list(batches_of(piece.batches, piece.start, piece.end))
    part.appended(piece)
assert (part.mirrored, part.gaps) == (3, 6)
found = Compared(("t", 0), 0, 9)
found.add(records, records.slice(0, 2))
found.add(records.slice(1, 2), source_batch([2, 3], [1, 9], [b"", None], [None] * 2, [None] * 2, [1, 2]))
assert found.differences == 3, found
assert "pandas" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("start", [0, 3, 8])
def test_numbers_and_nulls_of_a_slice_are_those_of_its_rows(start: int) -> None:
    values = [1, None, -3, 4, None, 6, 7, 8, None, 10]
    column = pa.array(values, pa.int32()).slice(start)
    assert valid_of(column).tolist() == [value is not None for value in values[start:]]
    assert [n for n, valid in zip(integers_of(column), valid_of(column), strict=True) if valid] == [
        value for value in values[start:] if value is not None
    ]
    bools = pa.array([value is not None and value > 3 for value in values]).slice(start)
    assert bools_of(bools).tolist() == bools.to_pylist()
    for empty in (pa.array([], pa.int64()), pa.array([], pa.bool_())):
        assert len(valid_of(empty)) == len((bools_of if empty.type == pa.bool_() else integers_of)(empty)) == 0
