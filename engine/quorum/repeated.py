"""Batches inside a later batch, so that one request reads many batches. Pure.

A batch's name identifies its content (``stratalog.engine.quorum``), wherever the content is stored. A claimant has
read the complete log that its epoch continues, so the footer of each of its batches has the records of the batches
before it, with a digest. Names alone show which batches belong to the log, and which voter has them; a repeated
batch only saves a request. A release without this feature reads the files.

The size of the repeated batches is limited. If they do not reach back to the snapshot, a reader must also fetch
the batch before them, which repeats earlier batches.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from stratalog.engine.metadata import records
from stratalog.engine.metadata.records import MetadataRecord
from stratalog.partitions.bounded import parse_json
from stratalog.partitions.numbers import Epoch, Int64, Natural
from stratalog.partitions.paths import DataName

REPEATED_KEY = b"log.metadata.repeated"
"""The key in Parquet's footer."""

MOST_REPEATED_BYTES = 256 * 1024
"""The maximum number of bytes of repeated values; compressed they take about a tenth of that."""
_MOST_TEXT_BYTES = 4 * MOST_REPEATED_BYTES
"""The maximum size of the JSON of the repeated batches, with names and escapes."""
_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class BatchRecords:
    """The encoded records of one batch, and its name."""

    name: DataName
    values: tuple[bytes, ...]
    appended_ms: int
    """The creation time, by the clock of its claimant."""

    @classmethod
    def of(cls, name: DataName, batch: Iterable[MetadataRecord], now_ms: int) -> BatchRecords:
        """Records to commit as a batch."""
        return cls(name, tuple(map(records.encode, batch)), now_ms)

    @property
    def next_offset(self) -> int:
        """The offset after the last record."""
        return self.name.base_offset + len(self.values)

    def records(self) -> tuple[MetadataRecord, ...]:
        """The records. Raises: CorruptionError for a record of a later version."""
        return tuple(map(records.decode, self.values))


def latest_of(batches: Sequence[BatchRecords], start: int) -> tuple[BatchRecords, ...]:
    """The last batches, which the next batch repeats: no batch below ``start``, and not too many bytes."""
    left = MOST_REPEATED_BYTES
    kept: list[BatchRecords] = []
    for one in reversed(batches):
        left -= sum(map(len, one.values))
        if left < 0 or one.name.base_offset < start:
            break
        kept.append(one)
    return tuple(reversed(kept))


def unrepeated(files: Collection[DataName], repeated: Sequence[BatchRecords]) -> int:
    """An upper bound for the number of files of a log that no later batch repeats. A reader must request each of
    these files.
    """
    if not repeated:
        return len(files)
    return sum(name.base_offset < repeated[0].name.base_offset for name in files)


class _Text(msgspec.Struct, frozen=True):
    size_bytes: Natural
    digest: str
    """The digest of the uncompressed content, because Parquet's checksums do not cover the footer."""
    zstd: str
    """In base 64, because footers are text."""


class _Batch(msgspec.Struct, frozen=True, array_like=True):
    base_offset: Natural
    epoch: Epoch
    appended_ms: Int64
    values: tuple[str, ...]


def encode_repeated(batches: Sequence[BatchRecords]) -> Mapping[bytes, bytes]:
    """The batches as metadata for Parquet's footer."""
    if not batches:
        return {}
    held = [
        _Batch(
            one.name.base_offset, one.name.epoch, one.appended_ms, tuple(value.decode() for value in one.values)
        )
        for one in batches
    ]
    data = msgspec.json.encode(held)
    zstd = base64.b64encode(pa.compress(data, codec="zstd", asbytes=True)).decode()
    return {REPEATED_KEY: msgspec.json.encode(_Text(len(data), _digest(data), zstd))}


def decode_repeated(text: bytes | None) -> tuple[BatchRecords, ...]:
    """The batches in a footer. Raises: ValueError for any other text, or a damaged text; Arrow's errors."""
    if text is None:
        return ()
    found = parse_json(text, _Text)
    if found.size_bytes > _MOST_TEXT_BYTES:
        raise ValueError(f"{found.size_bytes} bytes exceed the limit of repeated batches")
    packed = base64.b64decode(found.zstd, validate=True)
    data = pa.decompress(packed, decompressed_size=found.size_bytes, codec="zstd", asbytes=True)
    if _digest(data) != found.digest:
        raise ValueError("the digest of the repeated data is wrong")
    return tuple(
        BatchRecords(
            DataName(one.base_offset, None, one.epoch),
            tuple(value.encode() for value in one.values),
            one.appended_ms,
        )
        for one in parse_json(data, list[_Batch])
    )


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()
