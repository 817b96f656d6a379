"""Compares columns of a partition in Kafka and here, and finds the offsets that differ. Pure.

The columns are those of ``rows.SOURCE_SCHEMA`` without the leader epoch, with timestamps in milliseconds. On
Kafka's side the column ``decoded`` is an alternative form of the value.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stratalog.bridges.mirror.key_places import KeyPlaces
from stratalog.bridges.mirror.rows import offsets_of
from stratalog.partitions.columns import bools_of, integers_of, scalar, valid_of
from stratalog.partitions.identity import TopicPartition

RANGE = 100_000
"""The number of offsets that the report counts as one range."""
DECODED = "decoded"
_NAMED = 10
"""The number of differing offsets of a partition that the report names."""


@dataclass(slots=True)
class Compared:
    """The comparison of a partition over ``[start, end)``."""

    key: TopicPartition
    start: int
    end: int
    by_rules: bool = False
    """Whether a side removes records by a rule. If so, ``settle`` receives the records that are only on one side.
    """
    there: int = 0
    here: int = 0
    """The number of compared records."""
    compacted: int = 0
    """The number of records on one side only that a rule has removed from the other."""
    differences: int = 0
    named: list[str] = field(default_factory=list)
    """Some differing offsets, with the difference."""
    unknown: list[str] = field(default_factory=list)
    """Offsets that are not compared because their records are unknown, with the reason."""
    places: KeyPlaces | None = None
    """The sampled keys of the mirror."""
    _ranges: set[int] = field(default_factory=set)
    _differing: set[int] = field(default_factory=set)
    _hashes: dict[str, hashlib.blake2b] = field(default_factory=lambda: defaultdict(hashlib.blake2b))

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return self.differences == 0

    @property
    def ranges(self) -> int:
        """The number of ranges of ``RANGE`` offsets that have records."""
        return len(self._ranges)

    @property
    def equal_ranges(self) -> int:
        """The number of these ranges without a difference."""
        return len(self._ranges - self._differing)

    @property
    def digest(self) -> str:
        """A digest of all records here, independent of their batches; empty without records."""
        if not self.here:
            return ""
        whole = hashlib.blake2b(digest_size=16)
        for name in sorted(self._hashes):
            whole.update(self._hashes[name].digest())
        return whole.hexdigest()

    def differs(self, offset: int, how: str) -> None:
        """Count one more differing offset."""
        self.differences += 1
        if len(self.named) < _NAMED:
            self.named.append(f"{offset} {how}")

    def add(self, there: pa.RecordBatch, here: pa.RecordBatch) -> None:
        """Add the next records of both sides, up to the same offset."""
        self.there += there.num_rows
        self.here += here.num_rows
        if self.places is not None:
            self.places.add(here.column("key"))
        for name, data in _data_of(here):
            self._hashes[name].update(data)
        offsets, others = offsets_of(there), offsets_of(here)
        self._ranges.update(np.unique((np.concatenate([offsets, others]) - self.start) // RANGE).tolist())
        if not np.array_equal(offsets, others):
            both, rows, other_rows = np.intersect1d(offsets, others, assume_unique=True, return_indices=True)
            found: dict[int, str] = {}
            if not self.by_rules:
                for how, side in (("is only in the source", offsets), ("is only here", others)):
                    found |= {int(one): how for one in np.setdiff1d(side, both, assume_unique=True)}
            offsets, there, here = both, _taken(there, rows), _taken(here, other_rows)
        else:
            found = {}
        found |= {int(one): "is another record" for one in offsets[~_same_records(there, here)]}
        for offset in sorted(found):
            self._differs_in_range(offset, found[offset])

    def settle(self, offset: int, how: str | None) -> None:
        """Add a record that is on one side only. ``how`` None: a rule has removed it from the other side."""
        if how is None:
            self.compacted += 1
        else:
            self._differs_in_range(offset, how)

    def _differs_in_range(self, offset: int, how: str) -> None:
        self.differs(offset, how)
        self._differing.add((offset - self.start) // RANGE)


def _taken(records: pa.RecordBatch, rows: np.ndarray) -> pa.RecordBatch:
    return records.take(pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(rows.astype(np.int64))]))


def _same_records(there: pa.RecordBatch, here: pa.RecordBatch) -> np.ndarray:
    """For each row, whether both sides are equal."""
    same = _same(there.column("value"), here.column("value"))
    if DECODED in there.schema.names:
        same |= _same(there.column(DECODED), here.column("value"))
    for name in ("timestamp", "key", "headers"):
        same &= _same(there.column(name), here.column(name))
    return same


def _same(one: pa.Array, other: pa.Array) -> np.ndarray:
    """Nulls are equal, and null headers equal an empty list."""
    if one.equals(other):
        return np.ones(len(one), np.bool_)
    if pa.types.is_list(one.type):
        pairs = zip(one.to_pylist(), other.to_pylist(), strict=True)
        return np.array([(left or []) == (right or []) for left, right in pairs], np.bool_)
    valid, other_valid = valid_of(one), valid_of(other)
    both: np.ndarray = (valid & other_valid & bools_of(pc.equal(one, other))) | ~(valid | other_valid)
    return both


def _data_of(records: pa.RecordBatch) -> Iterator[tuple[str, bytes]]:
    """The records' full content, column by column; splitting a batch in two gives the same bytes. A null differs
    from an empty value."""
    yield "offset", offsets_of(records).tobytes()
    yield "timestamp", _numbers(records.column("timestamp").cast(pa.int64()), -1)
    for name in ("key", "value"):
        yield from _data_of_bytes(name, records.column(name))
    headers = records.column("headers")
    yield "headers", _numbers(pc.list_value_length(headers), 0)
    names, values = headers.flatten().flatten()
    yield from _data_of_bytes("names of headers", names.cast(pa.binary()))
    yield from _data_of_bytes("values of headers", values)


def _data_of_bytes(name: str, column: pa.Array) -> Iterator[tuple[str, bytes]]:
    yield f"lengths of {name}", _numbers(pc.binary_length(column), -1)
    yield name, b"".join(column.drop_null().to_pylist())


def _numbers(column: pa.Array, null: int) -> bytes:
    return integers_of(column.fill_null(scalar(null, column.type))).tobytes()
