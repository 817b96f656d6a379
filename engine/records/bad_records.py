"""Separates bad records, which the topic's log cannot store, from the other records during an append.

Reasons

    NO_KEY       the record has no key, and the topic keeps the latest record of each key (cleanup.policy)
    required     a field that is declared NOT NULL is null
    TOO_LARGE    the record takes more memory than readers have
    given        the caller gives the reason in the column ``ERRORS``, for rows of a DataFrame
                 (``stratalog.engine.spark.bad_rows``)

With the policy ``fail``, a bad record refuses its append before anything is written. With the other policies, the
task appends the good records, and returns the counts of the bad records. If bad records are kept, the task also
returns the bad records, as records of another topic. The driver appends the bad records when all good records are
acknowledged.

A kept record has the bad record's key and value as bytes (bytes unchanged, text as UTF-8, other values as JSON),
its timestamp and headers, and then headers that describe the error. Each of Kafka's tools has its own prefix for
such headers: ``__connect.errors.`` (KIP-298) and ``__streams.errors.`` (KIP-1034). This log also has its own
prefix (``PREFIX``). The rest of a name is from KIP-1034, if it has a fitting name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stratalog.engine.driver.plain_values import as_it_is, raw_bytes
from stratalog.partitions.errors import InvalidRecordError
from stratalog.partitions.records import HEADERS, RECORD_COLUMNS, TIMESTAMP, physical_schema
from stratalog.partitions.segments.writer import MOST_RECORD_BYTES, memory_bytes

ERRORS = "__errors"
"""A column of batches in addition to the record columns: a struct with ``reason`` (null: none known). If bad
records are kept, the struct also has ``detail``, ``key`` and ``value`` as given, the ``text`` that a reader could
not parse, and the origin of the row: ``topic``, ``partition`` and ``offset``.
"""
PREFIX = "__stratalog.errors."
"""Prefix of the headers that describe the error."""

NO_KEY = "the key is null, but the topic keeps the latest record of each key"
TOO_LARGE = "the record is too large"
NO_PARTITION = "the partition is null"
UNKNOWN_PARTITION = "the topic has no such partition"

MOST_KEPT_BYTES = 64 * 1024 * 1024
"""The maximum bytes of bad records that a task returns to the driver per partition."""
MOST_BYTES = MOST_RECORD_BYTES - 64 * 1024
"""The maximum bytes of a record in memory; leaves room for the columns that the log adds."""

_Mask = npt.NDArray[np.bool_]


def missing(path: str) -> str:
    """The reason for a null field that is declared NOT NULL."""
    return f"{path} is null, but declared NOT NULL"


@dataclass(frozen=True, slots=True)
class BadRecordRule:
    """Decides which records of an append are bad, and which data of bad records to keep. Picklable."""

    topic: str
    schema: pa.Schema
    """All columns of the topic's segments."""
    keys_required: bool
    kept: bool = False
    """Whether bad records are kept, or only counted."""
    more_headers: tuple[tuple[str, str], ...] = ()
    """Names and values that describe the append, for the headers of kept records."""
    most_record_bytes: int = MOST_BYTES

    def reasons(self, batch: pa.RecordBatch) -> list[str | None] | None:
        """The reason for each bad record of a batch, None for a good record; None if all records are good. The
        batch has the record columns, with the topic's types or earlier forms of these types. It may lack
        ``headers``, and may have ``ERRORS``.
        """
        found: list[tuple[str, _Mask]] = []
        if ERRORS in batch.schema.names:
            given = pc.struct_field(batch.column(ERRORS), "reason")
            if given.null_count < len(given):
                found += [(one, _mask(pc.equal(given, one))) for one in pc.unique(given.drop_null()).to_pylist()]
        if self.keys_required and (key := batch.column("key")).null_count:
            found.append((NO_KEY, _mask(key.is_null())))
        for name in ("key", "value"):
            found += [
                (missing(path), mask)
                for path, mask in _missing(batch.column(name), self.schema.field(name).type, name)
            ]
        rows = batch.select([name for name in batch.schema.names if name in RECORD_COLUMNS])
        if memory_bytes(rows) > self.most_record_bytes:
            sizes = np.array([memory_bytes(rows.slice(row, 1)) for row in range(len(rows))])
            found.append((TOO_LARGE, sizes > self.most_record_bytes))
        if not any(mask.any() for _, mask in found):
            return None
        reasons: list[str | None] = [None] * batch.num_rows
        for reason, mask in reversed(found):  # the first reason overrides the others
            for row in np.flatnonzero(mask):
                reasons[row] = reason
        return reasons

    def refuse(self, batch: pa.RecordBatch, what: str) -> None:
        """Raises: InvalidRecordError naming the first bad record of a batch, and the reason."""
        reasons = self.reasons(batch)
        if reasons is None:
            return
        row = next(row for row, reason in enumerate(reasons) if reason is not None)
        key = raw_bytes(as_it_is(batch.column("key")[row]))
        named = "no key" if key is None else f"the key {key[:100].decode(errors='backslashreplace')!r}"
        more = sum(reason is not None for reason in reasons) - 1
        raise InvalidRecordError(
            f"{what}: record {row} of its batch, with {named}: {reasons[row]}"
            f"{f' (and {more} more bad records)' if more else ''}; nothing was appended: "
            "correct the record, or see on_bad_record"
        )


@dataclass(frozen=True, slots=True)
class FoundBad:
    """The bad records of one partition's part of an append."""

    good: int
    """The number of good records."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Counts by reason."""
    rows: tuple[pa.RecordBatch, ...] = ()
    """The kept records, as records of a topic of bytes."""


class BadRecordFilter:
    """Passes on the good records of a partition, and collects the bad records."""

    def __init__(self, rule: BadRecordRule, partition: int, batches: Iterator[pa.RecordBatch]) -> None:
        self._rule = rule
        self._partition = partition
        self._batches = batches
        self._good = 0
        self._counts: Counter[str] = Counter()
        self._rows: list[pa.RecordBatch] = []
        self._kept_bytes = 0

    def good(self) -> Iterator[pa.RecordBatch]:
        """Yield the good records, in batches of at least one record.

        Raises: InvalidRecordError when the kept bad records exceed ``MOST_KEPT_BYTES``.
        """
        for batch in self._batches:
            reasons = self._rule.reasons(batch)
            if reasons is not None:
                self._keep(batch, reasons)
                batch = batch.filter(pa.array([reason is None for reason in reasons]))
            if batch.num_rows:
                self._good += batch.num_rows
                yield batch.select([name for name in batch.schema.names if name != ERRORS])

    def found(self) -> FoundBad:
        """The bad records of the batches read so far."""
        return FoundBad(self._good, dict(self._counts), tuple(self._rows))

    def _keep(self, batch: pa.RecordBatch, reasons: list[str | None]) -> None:
        bad = [(row, reason) for row, reason in enumerate(reasons) if reason is not None]
        self._counts.update(reason for _, reason in bad)
        if not self._rule.kept:
            return
        kept = _records(batch, bad, self._rule, self._partition)
        self._kept_bytes += kept.nbytes
        if self._kept_bytes > MOST_KEPT_BYTES:
            raise InvalidRecordError(
                f"append to {self._rule.topic}-{self._partition}: its bad records have more than "
                f"{MOST_KEPT_BYTES} bytes, which is too much for the driver "
                f"({self._counts.most_common(1)[0][0]}): "
                'append fewer records per call, or skip the bad ones with on_bad_record="skip"'
            )
        self._rows.append(kept)


def marked(batch: pa.RecordBatch, reasons: Mapping[str, _Mask], detail: pa.Array) -> pa.RecordBatch:
    """Return the batch with each reason, and with ``detail``, in the rows of the reason's mask. The new reasons
    override existing reasons.
    """
    errors = batch.column(ERRORS) if ERRORS in batch.schema.names else None
    fields = {} if errors is None else {f.name: pc.struct_field(errors, f.name) for f in errors.type}
    for name in ("reason", "detail"):
        fields.setdefault(name, pa.nulls(batch.num_rows, pa.string()))
    for text, mask in reasons.items():
        fields["reason"] = pc.if_else(pa.array(mask), text, fields["reason"])
        fields["detail"] = pc.if_else(pa.array(mask), detail, fields["detail"])
    new = pa.StructArray.from_arrays(list(fields.values()), names=list(fields))
    if errors is None:
        return batch.append_column(ERRORS, new)
    return batch.set_column(batch.schema.get_field_index(ERRORS), ERRORS, new)


def with_places(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with the origin of its records in ``ERRORS``, if it has the columns."""
    places = [name for name in ("topic", "partition", "offset") if name in batch.schema.names]
    if not places or ERRORS in batch.schema.names:
        return batch
    fields = {name: batch.column(name) for name in places}
    errors = pa.StructArray.from_arrays([pa.nulls(len(batch), pa.string()), *fields.values()], ["reason", *fields])
    return batch.append_column(ERRORS, errors)


def _mask(array: pa.Array) -> _Mask:
    mask: _Mask = np.asarray(array.fill_null(False))
    return mask


def _missing(array: pa.Array, declared: pa.DataType, path: str) -> Iterator[tuple[str, _Mask]]:
    """For each null field that must not be null: its path, and a mask of the array's rows."""
    if not _requires(declared) or len(array) == 0:
        return
    if pa.types.is_struct(declared):
        for index in range(array.type.num_fields):
            of = declared.field(index)
            child = pc.struct_field(array, [index])
            if not of.nullable and child.null_count:
                yield f"{path}.{of.name}", _mask(child.is_null()) & _mask(array.is_valid())
            yield from _missing(child, of.type, f"{path}.{of.name}")
        return
    offsets = np.asarray(array.offsets)
    rows = np.repeat(np.arange(len(array)), np.diff(offsets))
    inner: tuple[tuple[pa.Array, pa.DataType, str], ...]
    if pa.types.is_map(declared):
        inner = ((array.keys, declared.key_type, "key"), (array.items, declared.item_type, "value"))
    else:
        inner = ((array.values, declared.value_type, "element"),)
    for values, kind, name in inner:
        part = values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
        for below, mask in _missing(part, kind, f"{path}.{name}"):
            around: _Mask = np.zeros(len(array), dtype=bool)
            around[rows[mask]] = True
            yield below, around & _mask(array.is_valid())


def _requires(declared: pa.DataType) -> bool:
    """Whether any nested field must not be null."""
    if pa.types.is_struct(declared):
        return any(not field.nullable or _requires(field.type) for field in declared)
    if pa.types.is_map(declared):
        return _requires(declared.key_type) or _requires(declared.item_type)
    return pa.types.is_list(declared) and _requires(declared.value_type)


def _records(
    batch: pa.RecordBatch, bad: list[tuple[int, str]], rule: BadRecordRule, partition: int
) -> pa.RecordBatch:
    """The bad records as records of a topic of bytes."""
    keys, values, headers = [], [], []
    errors = batch.column(ERRORS) if ERRORS in batch.schema.names else None
    for row, reason in bad:
        given = {} if errors is None else dict(errors[row])
        as_given = given.get("reason") is not None and given["reason"].is_valid
        key, value = (given[n] if as_given and n in given else batch.column(n)[row] for n in ("key", "value"))
        if "text" in given and given["text"].is_valid:
            value = given["text"]
        keys.append(raw_bytes(as_it_is(key)))
        values.append(None if reason == TOO_LARGE else raw_bytes(as_it_is(value)))
        own = as_it_is(batch.column("headers")[row]) if "headers" in batch.schema.names else None
        headers.append([*(own or ()), *_what_happened(reason, given, rule, partition)])
    rows = pa.array([row for row, _ in bad], pa.int64())
    return pa.RecordBatch.from_arrays(
        [
            batch.column("timestamp").take(rows).cast(TIMESTAMP),
            pa.array(keys, pa.binary()),
            pa.array(values, pa.binary()),
            pa.array(headers, HEADERS),
        ],
        schema=pa.schema([physical_schema().field(name) for name in RECORD_COLUMNS]),
    )


def _what_happened(
    reason: str, given: Mapping[str, pa.Scalar], rule: BadRecordRule, partition: int
) -> list[dict[str, object]]:
    known = {name: as_it_is(given[name]) for name in ("detail", "topic", "partition", "offset") if name in given}
    detail = known.pop("detail", None)
    if reason == TOO_LARGE:
        detail = f"at most {rule.most_record_bytes:,} bytes; its value is omitted here"
    astray = reason in (NO_PARTITION, UNKNOWN_PARTITION)
    headers = {
        "message": reason if detail is None else f"{reason}: {detail}",
        "destination": rule.topic if astray else f"{rule.topic}-{partition}",
        **known,
        **dict(rule.more_headers),
    }
    return [
        {"key": f"{PREFIX}{name}", "value": str(value).encode()}
        for name, value in headers.items()
        if value is not None
    ]
