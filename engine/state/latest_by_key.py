"""Users' topics with ``cleanup.policy=snapshot``: the latest record of each key, as a fold over a partition. Pure.

This module works on Arrow data in memory; ``stratalog.engine.spark.reducing`` is the same fold for larger
partitions. Snapshots leave out records without a key, as Kafka's cleaner does. Rows are in the order of the latest
records in the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from stratalog.partitions.columns import numbers
from stratalog.partitions.errors import InvalidConfigError
from stratalog.partitions.growth import fitted
from stratalog.partitions.records import RECORD_COLUMNS, type_from_json
from stratalog.partitions.rewrites.comparable_keys import flat_keys, is_comparable

BATCH_ROWS = 16_384
"""Rows per batch of a dump."""

_ORDER = "order"
_WHAT = "latest record of each key"


@dataclass(frozen=True, slots=True)
class LatestByKey:
    """The latest record of each key below ``next_offset``, including tombstones (null values)."""

    table: pa.Table
    """Columns ``timestamp, key, value, headers``."""
    next_offset: int = 0

    @classmethod
    def empty(cls, schema: pa.Schema) -> LatestByKey:
        """The state of an empty log; ``schema`` is the topic's physical schema."""
        return cls(record_schema(schema).empty_table())

    def apply(self, offset: int, records: Iterable[pa.RecordBatch]) -> LatestByKey:
        """The state after these batches of records, the first of which is at ``offset``.

        Raises: StaleMetadataError if the batches have fields that the state's schema lacks.
        """
        schema = self.table.schema
        batches = [fitted(batch.select(RECORD_COLUMNS), schema, _WHAT) for batch in records]
        log = pa.Table.from_batches(batches, schema)
        return LatestByKey(reduced(self.table, log).table, offset + log.num_rows)

    def dump(self) -> Iterator[pa.RecordBatch]:
        """The records of a snapshot, in batches that depend only on the state."""
        yield from self.table.combine_chunks().to_batches(BATCH_ROWS)

    @classmethod
    def load(cls, records: Iterable[pa.RecordBatch], offset: int, schema: pa.Schema) -> LatestByKey:
        """The state at ``offset`` from its dumped ``records``, which may have an earlier, narrower schema.

        Raises: see ``apply``.
        """
        wanted = record_schema(schema)
        batches = [fitted(batch.select(RECORD_COLUMNS), wanted, _WHAT) for batch in records]
        return cls(pa.Table.from_batches(batches, wanted).combine_chunks(), offset)


class Reduced(NamedTuple):
    """The result of reducing two parts of a log by key."""

    table: pa.Table
    changed: int
    """The number of snapshot records that the later part has changed
    (``stratalog.snapshots.policy.counts_as_changed``)."""


def record_schema(schema: pa.Schema) -> pa.Schema:
    """The part of a physical schema that a producer supplies."""
    return pa.schema([schema.field(name) for name in RECORD_COLUMNS])


def reduced(earlier: pa.Table, later: pa.Table) -> Reduced:
    """The latest record of each key. A record of ``later`` replaces the record with the same key in ``earlier``,
    which has each key at most once.
    """
    both = pa.concat_tables([earlier, later]).append_column(_ORDER, numbers(0, earlier.num_rows + later.num_rows))
    keyed = both.filter(pc.is_valid(both.column("key")))
    is_later = pc.greater_equal(keyed.column(_ORDER), earlier.num_rows)
    keys = {f"key{index}": column for index, column in enumerate(flat_keys(keyed.column("key").combine_chunks()))}
    marked = pa.table({**keys, _ORDER: keyed.column(_ORDER), "touched": is_later.cast(pa.int64())})
    groups = marked.group_by(list(keys), use_threads=False).aggregate(
        [(_ORDER, "max"), ("touched", "sum"), (_ORDER, "min")]
    )
    kept = keyed.filter(pc.is_in(keyed.column(_ORDER), value_set=groups.column(f"{_ORDER}_max").combine_chunks()))
    held = pc.less(groups.column(f"{_ORDER}_min"), earlier.num_rows)
    touched = groups.column("touched_sum")
    changed = pc.and_(pc.greater(touched, 0), pc.or_(held, pc.greater(touched, 1)))
    count = pc.sum(changed.cast(pa.int64()), min_count=0).as_py()
    return Reduced(kept.drop_columns([_ORDER]).combine_chunks(), int(count))


def without_tombstones(table: pa.Table, until_us: int) -> pa.Table:
    """Remove the tombstones with a timestamp of ``until_us`` (microseconds) or earlier. The remaining rows still
    describe the same map from key to value.
    """
    old = pc.less_equal(table.column("timestamp").cast(pa.int64()), until_us)
    gone = pc.and_(pc.is_null(table.column("value")), pc.fill_null(old, False))
    return table.filter(pc.invert(gone))


def check_key(key_schema: str | None, policy: str, what: str) -> None:
    """Check that the keys of a topic with snapshots are comparable: binary, or of a declared type whose values are
    equal exactly when their bytes are equal, or a struct of such types.

    Raises: InvalidConfigError.
    """
    if key_schema is not None and not is_comparable(type_from_json(key_schema)):
        raise InvalidConfigError(
            f"{what}: cleanup.policy = {policy} keeps the latest record of each key, and keys of the declared "
            "type cannot be compared: use a type without floats, arrays and maps"
        )
