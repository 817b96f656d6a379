"""The content of a snapshot's file (KIP-630, "Snapshot Format", "Snapshot Control Records").

The file is a data file of the log: Parquet, the physical columns of the topic, checksummed pages and footers. Its
offsets count the rows of the snapshot from 0 on and are unrelated to those of the log; KIP-630 allows that. The
first row is the SnapshotHeaderRecord, the last one the SnapshotFooterRecord. Both are *control rows*: they have no
key and no value; ``control`` has a number (Kafka's types of control records), and ``headers`` the fields of the
record.

Under ``log.snapshot``, Parquet's footer names the snapshot and has a CRC of all bytes of the records: Parquet's
pages have checksums, but the headers before them have none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec
import pyarrow as pa
from isal import isal_zlib

from stratalog.partitions.bounded import parse_json
from stratalog.partitions.errors import CorruptionError, CorruptSegmentError
from stratalog.partitions.numbers import Epoch, Int64, Natural

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

VERSION = 0
"""The only version of header, footer and mark."""

HEADER_CONTROL = 3
FOOTER_CONTROL = 4

MARK_KEY = b"log.snapshot"

_CONTROL, _VERSION, _TIMESTAMP = "control", "version", "last-contained-log-timestamp"
_HEADER_NAME, _FOOTER_NAME = b"snapshot-header", b"snapshot-footer"


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """The description of a snapshot in Parquet's footer."""

    version: Int64 = VERSION
    end_offset: Natural
    epoch: Epoch
    generation: Natural = 0
    """The number of the erasure that the snapshot follows; 0: none."""
    record_bytes: Natural
    """Bytes of the file before its page index."""
    record_crc: Int64
    """CRC-32 of these bytes."""


class _Versioned(msgspec.Struct, frozen=True):
    version: Int64


def encode_mark(mark: Mark) -> dict[bytes, bytes]:
    """The mark as Parquet footer metadata."""
    return {MARK_KEY: msgspec.json.encode(mark)}


def decode_mark(metadata: Mapping[bytes, bytes], what: str) -> Mark:
    """Decode the mark in the footer ``metadata`` of the file ``what``.

    Raises: CorruptSegmentError if the file is not a snapshot; CorruptionError if it is a snapshot of a later
    version.
    """
    raw = metadata.get(MARK_KEY)
    if raw is None:
        raise CorruptSegmentError(f"{what} is a data file of a log, not a snapshot: its footer lacks log.snapshot")
    try:
        check_version(parse_json(raw, _Versioned).version, what)
        return parse_json(raw, Mark)
    except ValueError as error:
        raise CorruptSegmentError(f"{what}: the footer log.snapshot cannot be read: {error}") from error


def check_version(version: int, what: str) -> None:
    """Check that this release can read the version. Raises: CorruptionError."""
    if version != VERSION:
        raise CorruptionError(
            f"{what} is a snapshot of version {version}, but this release reads version {VERSION}: use the "
            "release that wrote it, or a later one"
        )


def header_row(schema: pa.Schema, last_contained_log_timestamp_ms: int) -> pa.RecordBatch:
    """The SnapshotHeaderRecord, for a file with these columns."""
    fields = [
        (_CONTROL, _HEADER_NAME),
        (_VERSION, b"%d" % VERSION),
        (_TIMESTAMP, b"%d" % last_contained_log_timestamp_ms),
    ]
    return _control_row(schema, HEADER_CONTROL, fields)


def footer_row(schema: pa.Schema) -> pa.RecordBatch:
    """The SnapshotFooterRecord, for a file with these columns."""
    return _control_row(schema, FOOTER_CONTROL, [(_CONTROL, _FOOTER_NAME), (_VERSION, b"%d" % VERSION)])


def _control_row(schema: pa.Schema, control: int, fields: list[tuple[str, bytes]]) -> pa.RecordBatch:
    values = {
        "headers": pa.array(
            [[{"key": key, "value": value} for key, value in fields]], schema.field("headers").type
        ),
        "control": pa.array([control], schema.field("control").type),
    }
    # Not pa.nulls, which would also set required fields of a struct to null.
    columns = [values[f.name] if f.name in values else pa.array([None], f.type) for f in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def read_header(headers: Any, what: str) -> int:
    """LastContainedLogTimestamp, in milliseconds, of a header row's ``headers``.

    Raises: CorruptSegmentError when they are not a SnapshotHeaderRecord; CorruptionError for a later version.
    """
    fields = _control_fields(headers, _HEADER_NAME, what)
    try:
        return int(fields[_TIMESTAMP])
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptSegmentError(f"{what}: its header lacks the last contained log timestamp") from error


def check_footer(headers: Any, what: str) -> None:
    """Check that a row's ``headers`` are a SnapshotFooterRecord. Raises: CorruptSegmentError if they are not;
    CorruptionError for a later version.
    """
    _control_fields(headers, _FOOTER_NAME, what)


def _control_fields(headers: Any, name: bytes, what: str) -> dict[str, bytes]:
    fields = {pair["key"]: pair["value"] for pair in headers or () if pair is not None}
    if fields.get(_CONTROL) != name or not (fields.get(_VERSION) or b"").isdigit():
        raise CorruptSegmentError(
            f"{what} is not a complete snapshot: the control record {name.decode()} is missing"
        )
    check_version(int(fields[_VERSION]), what)
    return fields


class ChecksummedSink:
    """Passes bytes on to ``file``, and counts them and their CRC-32."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.passed_bytes = 0
        self.crc = 0

    def write(self, data: ReadableBuffer, /) -> int:
        """Like ``write`` of a file."""
        view = memoryview(data)
        self._file.write(view)
        self.passed_bytes += view.nbytes
        self.crc = isal_zlib.crc32(view, self.crc)
        return view.nbytes
