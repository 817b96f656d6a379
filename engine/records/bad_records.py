"""Bad records: those that no log of their topic can hold, told from the others as they are appended.

A record is bad for one of these reasons, and each kind of caller can meet some of them:

    NO_KEY        it has no key, and the topic keeps the latest record of each key (cleanup.policy=snapshot)
    required      a field is null that is declared NOT NULL
    TOO_LARGE     it takes more memory than readers have room for
    given         the caller says so: of rows of a DataFrame, which get to the append with a reason in ``ERRORS``
                  (``stratalog.engine.spark.bad_rows``)

With ``fail`` a bad record refuses its append, before anything is written. Otherwise it is left out: a task tells
the good records from the bad as they pass, appends the good ones, and answers with the bad ones: counted, and
where they are kept as records of another topic, which the driver appends when all good ones are acknowledged.

A record of that topic has the bad one's key and value as bytes (bytes as they were, text as UTF-8, anything else
as JSON), its timestamp and headers, and behind these headers that say what happened. Kafka's tools each have a
prefix of their own for such headers, ``__connect.errors.`` (KIP-298) and ``__streams.errors.`` (KIP-1034), since
their meanings differ; so does this one, with the last words of KIP-1034 where they fit.
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
from stratalog.partitions.segment_writer import MOST_RECORD_BYTES, memory_bytes

ERRORS = "__errors"
"""A column beside those of records: a struct with ``reason`` (null: no reason is known) and, where bad records are
kept, ``detail``, ``key`` and ``value`` as they were given, the ``text`` that a reader could not parse, and the
place that the row came from: ``topic``, ``partition`` and ``offset``."""
PREFIX = "__stratalog.errors."
"""Of the headers that say what happened."""

NO_KEY = "the key is null, but the topic keeps the latest record of each key"
TOO_LARGE = "the record is too large"
NO_PARTITION = "the partition is null"
UNKNOWN_PARTITION = "the topic has no such partition"

MOST_KEPT_BYTES = 64 * 1024 * 1024
"""Of a partition's bad records, on their way to the driver."""
MOST_BYTES = MOST_RECORD_BYTES - 64 * 1024
"""In memory, of a record, with room for what the log adds to it."""

_Mask = npt.NDArray[np.bool_]


def missing(path: str) -> str:
    """The reason of a record in which a field is null that is declared NOT NULL."""
    return f"{path} is null, but declared NOT NULL"


@dataclass(frozen=True, slots=True)
class BadRecordRule:
    """Which records of an append are bad, and what is kept of them. Picklable."""

    topic: str
    schema: pa.Schema
    """All columns of the topic's segments."""
    keys_required: bool
    kept: bool = False
    """Whether their rows are kept, or only counted."""
    said: tuple[tuple[str, str], ...] = ()
    """Of the append, for the headers of kept ones: names and values."""
    most_record_bytes: int = MOST_BYTES

    def reasons(self, batch: pa.RecordBatch) -> list[str | None] | None:
        """Of each record of a batch why it is bad, None for a good one; None when all are good. The batch has the
        record columns, of the topic's types or of those that they grew from; it may lack ``headers``, and may have
        ``ERRORS``."""
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
        for reason, mask in reversed(found):  # the first one counts
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
            f"{f' (and {more} more of them are bad)' if more else ''}; nothing was appended: "
            "correct the record, or see on_bad_record"
        )


@dataclass(frozen=True, slots=True)
class FoundBad:
    """The bad records of one partition's part of an append."""

    good: int
    """How many others there were."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """By reason."""
    rows: tuple[pa.RecordBatch, ...] = ()
    """Those that are kept, as records of a topic of bytes."""


class BadRecordFilter:
    """Lets the good records of a partition pass, and remembers the others."""

    def __init__(self, rule: BadRecordRule, partition: int, batches: Iterator[pa.RecordBatch]) -> None:
        self._rule = rule
        self._partition = partition
        self._batches = batches
        self._good = 0
        self._counts: Counter[str] = Counter()
        self._rows: list[pa.RecordBatch] = []
        self._kept_bytes = 0

    def good(self) -> Iterator[pa.RecordBatch]:
        """The good records, in batches of one at least.

        Raises: InvalidRecordError when more bad ones are to be kept than the driver has room for.
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
        """The bad ones, as far as the batches were taken."""
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
                'append fewer records at once, or skip the bad ones with on_bad_record="skip"'
            )
        self._rows.append(kept)


def marked(batch: pa.RecordBatch, reasons: Mapping[str, _Mask], detail: pa.Array) -> pa.RecordBatch:
    """A batch whose records have these reasons, each where its mask says so, with ``detail``, above those that
    they may have."""
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
    """A batch with the places of its records in ``ERRORS``, where it has columns that say them."""
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
    """Where a field is null that must not be: its path, and a mask of the array's rows."""
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
    """Whether any field in it must not be null."""
    if pa.types.is_struct(declared):
        return any(not field.nullable or _requires(field.type) for field in declared)
    if pa.types.is_map(declared):
        return _requires(declared.key_type) or _requires(declared.item_type)
    return pa.types.is_list(declared) and _requires(declared.value_type)


def _records(
    batch: pa.RecordBatch, bad: list[tuple[int, str]], rule: BadRecordRule, partition: int
) -> pa.RecordBatch:
    """Bad records as those of a topic of bytes."""
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
    said = {
        "message": reason if detail is None else f"{reason}: {detail}",
        "destination": rule.topic if astray else f"{rule.topic}-{partition}",
        **known,
        **dict(rule.said),
    }
    return [
        {"key": f"{PREFIX}{name}", "value": str(value).encode()}
        for name, value in said.items()
        if value is not None
    ]
