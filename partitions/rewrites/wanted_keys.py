"""Finds the records of given keys in data files: reads only the key column, and only row groups that may contain a
key.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stratalog.partitions.columns import bools_of, integers_of
from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.growth import fitted
from stratalog.partitions.listing import DataFile
from stratalog.partitions.records import TIMESTAMP
from stratalog.partitions.rewrites.comparable_keys import flat_keys, is_comparable
from stratalog.partitions.segments.reader import Segment, read_row_groups, read_segment
from stratalog.partitions.store.protocol import Readable


@dataclass(frozen=True)
class WantedKeys:
    """Finds the records of one topic that have one of these keys and are older than a given time."""

    keys: pa.Array
    """Values of the topic's key type, without nulls or duplicates."""
    before_us: int | None = None
    """Microseconds since 1970; None: all records. A record without a timestamp is included."""

    @property
    def read(self) -> pa.Schema:
        """See ``RecordFinder``."""
        key = pa.field("key", self.keys.type)
        return pa.schema([key] if self.before_us is None else [pa.field("timestamp", TIMESTAMP), key])

    @cached_property
    def _flat(self) -> list[pa.Array]:
        return [*flat_keys(self.keys)]

    @cached_property
    def _rows(self) -> frozenset[tuple[object, ...]]:
        return frozenset(_tuples(self._flat))

    @cached_property
    def _sorted(self) -> list[object]:
        """The keys in order, for a type whose statistics are in one column."""
        found: list[object] = sorted(self.keys.to_pylist())
        return found

    def offsets_in(self, source: Readable, file: DataFile, start: int, end: int) -> Iterator[int]:
        """The offsets in ``[start, end)`` of a data file at which a record has one of the keys, ascending. Records
        of aborted transactions are included, gaps are not.

        Raises: see ``read_row_groups``.
        """
        segment = read_segment(source, file)
        chosen = {group.first for index, group in enumerate(segment.row_groups) if self.may_hold(segment, index)}
        read = self.read
        columns = ["offset", *read.names]
        for _, table in read_row_groups(source, file, start, end, columns, lambda group: group.first in chosen):
            for batch in table.to_batches():
                held = self.selects(fitted(batch.select(read.names), read, segment.what))
                yield from integers_of(batch.column("offset"))[held].tolist()

    def selects(self, records: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """See ``RecordFinder``."""
        held = self.matches(records.column("key"))
        if self.before_us is not None:
            held &= is_before(records, self.before_us)
        return held

    def matches(self, key: pa.Array) -> npt.NDArray[np.bool_]:
        """A boolean for each key of a column: whether it is one of the wanted keys."""
        flat = [*flat_keys(key)]
        held = bools_of(pc.fill_null(pc.is_valid(key), False))
        for column, wanted in zip(flat, self._flat, strict=True):
            held &= bools_of(pc.is_in(column, value_set=wanted))
        if len(flat) > 1 and held.any():
            places = np.flatnonzero(held)
            rows = _tuples([column.take(pa.array(places)) for column in flat])
            held[places] = [row in self._rows for row in rows]
        return held

    def may_hold(self, segment: Segment, index: int) -> bool:
        """Whether a row group, by its statistics, may hold one of the keys."""
        metadata = segment.parquet.row_group(index)
        for number in range(metadata.num_columns):
            column = metadata.column(number)
            if column.path_in_schema != "key":
                continue
            statistics = column.statistics
            if statistics is None or not statistics.has_min_max:
                return not (statistics is not None and statistics.null_count == segment.row_groups[index].num_rows)
            try:
                at = bisect_left(self._sorted, statistics.min)
                return at < len(self._sorted) and bool(self._sorted[at] <= statistics.max)
            except (
                TypeError,
                ValueError,
                OverflowError,
            ):  # a file of a narrower type; a time outside Python's range
                return True
        return True

    def digests(self, salt: bytes) -> tuple[str, ...]:
        """The keyed digest of each key, sorted."""
        return tuple(sorted(set(key_digests(self.keys, salt))))


def is_before(records: pa.RecordBatch, before_us: int) -> npt.NDArray[np.bool_]:
    """Whether each record is older than a time, in microseconds since 1970. One without a timestamp is."""
    times = records.column("timestamp").cast(pa.int64())
    return bools_of(pc.fill_null(pc.less(times, before_us), True))


def key_digests(keys: pa.Array, salt: bytes) -> list[str]:
    """HMAC-SHA256 of each key: of its bytes or, for a typed key, of its JSON text. Null keys are left out."""
    found = []
    for key in keys.to_pylist():
        if key is None:
            continue
        text = key if isinstance(key, bytes) else key.encode() if isinstance(key, str) else _json(key)
        found.append(hmac.new(salt, text, hashlib.sha256).hexdigest())
    return found


def _json(key: object) -> bytes:
    return json.dumps(key, sort_keys=True, separators=(",", ":"), default=str).encode()


def _tuples(columns: Iterable[pa.Array]) -> list[tuple[object, ...]]:
    return [*zip(*(column.to_pylist() for column in columns), strict=True)]


def wanted_keys(
    keys: Iterable[object], key_type: pa.DataType, what: str, before_us: int | None = None
) -> WantedKeys:
    """The keys as ``WantedKeys``. If keys are binary, text becomes its UTF-8 bytes.

    Raises: InvalidCallError if no key is given, or a key is null or of another type, or if equal keys of the type
        may have different bytes (floating-point numbers, arrays, maps).
    """
    if not is_comparable(key_type):
        raise InvalidCallError(
            f"{what}: keys of type {key_type} cannot be compared, so records cannot be erased by key"
        )
    given = [*keys]
    if pa.types.is_binary(key_type):
        given = [key.encode() if isinstance(key, str) else key for key in given]
    if not given:
        raise InvalidCallError(f"{what}: no key was given")
    if any(key is None for key in given):
        raise InvalidCallError(f"{what}: null is not a key: records without a key cannot be erased by key")
    for number, key in enumerate(given, 1):
        if why := wrong_fields(key, key_type):
            raise InvalidCallError(f"{what}: key {number} {why}")
    try:
        made = pa.array(given, key_type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, ValueError):
        bad = next((number for number, key in enumerate(given, 1) if not _fits(key, key_type)), 1)
        raise InvalidCallError(f"{what}: key {bad} is not of the topic's key type {key_type}") from None
    if not pa.types.is_struct(key_type):
        made = pc.unique(made)
    return WantedKeys(made, before_us)


def wrong_fields(key: object, key_type: pa.DataType) -> str | None:
    """The problem with the fields of a key, which is a dict for a struct; None if they are exactly the fields of
    the type. Arrow would ignore a field that the type lacks, and treat a missing one as null: another key would be
    erased. The text does not contain any part of the key.
    """
    if not isinstance(key, dict) or not pa.types.is_struct(key_type):
        return None
    types = {field.name: field.type for field in key_type}
    if key.keys() - types:
        return f"has a field that the key type lacks: give {', '.join(types)}, and no other fields"
    for name, of in types.items():
        if name not in key:
            return f"lacks the field {name!r}: give each field of the key type, including null fields"
        if why := wrong_fields(key[name], of):
            return f"in its field {name!r} {why}"
    return None


def _fits(key: object, key_type: pa.DataType) -> bool:
    try:
        pa.array([key], key_type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, ValueError):
        return False
    return True
