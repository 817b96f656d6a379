"""One committed batch of metadata records: a data file like any other, one row per record. Pure.

The footer of a batch repeats the records of earlier batches (``stratalog.engine.quorum.repeated``), so opening a
cluster only has to read the latest snapshot and the last batch.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq

from stratalog.engine.metadata.records import MetadataRecord
from stratalog.engine.quorum.repeated import REPEATED_KEY, BatchRecords, decode_repeated, encode_repeated
from stratalog.partitions.cluster_key import ClusterKey
from stratalog.partitions.columns import binaries, constant
from stratalog.partitions.errors import (
    CorruptionError,
    CorruptSegmentError,
    InconsistentClusterIdError,
    InvalidCallError,
)
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.paths import DataName
from stratalog.partitions.records import TIMESTAMP, physical_schema
from stratalog.partitions.register import REGISTER_BYTES
from stratalog.partitions.segments.footer import FOOTER_KEY, decode_footer
from stratalog.partitions.segments.parquet_decoding import is_of_this_process
from stratalog.partitions.segments.reader import check_held
from stratalog.partitions.segments.signature import TAG_KEY
from stratalog.partitions.segments.writer import SegmentWriter

KIND = "batch"
"""The kind in the tags of batches."""

BATCH_BYTES = 64 * 1024 * 1024
"""The maximum size of a batch as a file."""
DECODED_BYTES = 160 * 1024 * 1024
"""The maximum uncompressed size of a batch."""
MOST_RECORDS = 2_000_000
"""The maximum number of records of a batch: one commit may change each of a million partitions."""
_BESIDE_VALUE_BYTES = 32
"""The maximum size of a record's other columns."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Records ``[name.base_offset, next_offset)``, and the lineage of the log that ends with them."""

    content: BatchRecords
    lineage: Lineage
    records: tuple[MetadataRecord, ...]
    """The records in ``content``."""
    repeated: tuple[BatchRecords, ...] = ()
    """The batches directly before this batch, ascending; the last of them ends where this batch begins."""
    signed: bool = False
    """Whether the file has a tag, which was verified before."""

    @property
    def name(self) -> DataName:
        """The name of the data file."""
        return self.content.name

    @property
    def next_offset(self) -> int:
        """The offset after the last record."""
        return self.content.next_offset


def encode_batch(
    cluster_id: str,
    content: BatchRecords,
    lineage: Lineage,
    key: ClusterKey | None = None,
    repeated: Sequence[BatchRecords] = (),
) -> bytes:
    """Encode the data file ``content.name``. ``lineage`` includes the epoch of the file. The file repeats those
    batches of ``repeated`` that are in ``lineage``. With ``key``, the file is signed.

    Raises: InvalidCallError for a batch that is too large to be read again.
    """
    name, values, now_ms = content.name, content.values, content.appended_ms
    sink = io.BytesIO()
    writer = SegmentWriter(
        sink,
        physical_schema(),
        topic_id=cluster_id,
        partition=0,
        base_offset=name.base_offset,
        sign=None if key is None else partial(key.tag, KIND, str(name)),
    )
    decoded_bytes = sum(map(len, values)) + _BESIDE_VALUE_BYTES * len(values)
    if len(values) > MOST_RECORDS or decoded_bytes > DECODED_BYTES:
        raise _too_large(len(values), decoded_bytes)
    stamps = constant(now_ms * 1000, TIMESTAMP, len(values))
    writer.write(pa.record_batch({"timestamp": stamps, "value": binaries(values)}))
    digest = _digest(lineage, values, now_ms)
    listed = [one for one in repeated if lineage.epoch_at(one.name.base_offset) == one.name.epoch]
    writer.close(
        lineage=lineage,
        producers=lambda _: {},
        created_ms=now_ms,
        batch_id=digest,
        metadata=lambda: encode_repeated(listed),
    )
    data = sink.getvalue()
    if len(data) > BATCH_BYTES:
        raise _too_large(len(values), len(data))
    return data


def _too_large(count: int, size_bytes: int) -> InvalidCallError:
    return InvalidCallError(
        f"{count} records of {size_bytes} bytes are too many for one metadata commit: "
        "they would exceed what readers accept; change fewer topics or partitions at a time. Nothing was changed"
    )


def decode_batch(cluster_id: str, name: DataName, data: bytes, what: str) -> Batch:
    """Return the batch of the data file ``name``, after its checksums are verified; ``what`` names the file in
    errors.

    Raises: CorruptSegmentError for a truncated, damaged or foreign file; CorruptionError for a record of a
        later version; InconsistentClusterIdError for a batch of another cluster.
    """
    check_held(data, "value", DECODED_BYTES, what)
    try:
        parquet = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        footer = decode_footer((parquet.metadata.metadata or {})[FOOTER_KEY])
        lineage = Lineage(footer.lineage)
        values = tuple(value for some in _values(parquet) for value in some)
        repeated = decode_repeated((parquet.metadata.metadata or {}).get(REPEATED_KEY))
    except (pa.ArrowException, OSError, KeyError, ValueError, CorruptionError) as error:
        if is_of_this_process(error):
            raise
        raise CorruptSegmentError(f"{what} is not a readable metadata batch: {error}") from error
    if footer.topic_id != cluster_id:
        raise InconsistentClusterIdError(f"{what} belongs to cluster {footer.topic_id!r}, not {cluster_id!r}")
    if footer.batch_id != _digest(lineage, values, footer.created_ms) or lineage.latest_epoch != name.epoch:
        raise CorruptSegmentError(f"{what} is damaged: its digest or its epoch is wrong")
    if footer.base_offset != name.base_offset or footer.next_offset != footer.base_offset + len(values):
        raise CorruptSegmentError(f"{what} holds {len(values)} records from offset {footer.base_offset} on")
    ends = [*(one.name.base_offset for one in repeated), name.base_offset]
    for one, end in zip(repeated, ends[1:], strict=False):
        if one.next_offset != end or lineage.epoch_at(one.name.base_offset) != one.name.epoch:
            raise CorruptSegmentError(
                f"{what} contains a copy of batch {one.name}, but that batch is not in the log that {what} "
                "continues"
            )
    content = BatchRecords(name, values, footer.created_ms)
    try:
        decoded = content.records()
    except CorruptionError as error:
        raise CorruptionError(f"{what}: {error}") from error
    return Batch(content, lineage, decoded, repeated, TAG_KEY in parquet.metadata.metadata)


def _values(parquet: pq.ParquetFile) -> Iterator[list[bytes]]:
    """The values of each row group; nothing is decoded before all row groups are known to be small.

    Raises: ValueError for a file that exceeds the bounds of a batch; Arrow's errors.
    """
    groups = range(parquet.metadata.num_row_groups)
    decoded_bytes = sum(parquet.metadata.row_group(group).total_byte_size for group in groups)
    if decoded_bytes > DECODED_BYTES or parquet.metadata.num_rows > MOST_RECORDS:
        raise ValueError(
            f"{parquet.metadata.num_rows} records of {decoded_bytes} bytes exceed the limit of one batch"
        )
    for group in groups:
        column = parquet.read_row_group(group, columns=["value"], use_threads=False).column("value")
        if column.type != pa.binary() or column.null_count:
            raise ValueError("its values are not text")
        yield column.to_pylist()


def _digest(lineage: Lineage, values: Sequence[bytes], appended_ms: int) -> str:
    """The digest of a batch's content. Parquet's checksums cover its pages, but not the footer with the
    lineage.
    """
    digest = hashlib.blake2b(lineage.to_json(REGISTER_BYTES) + b"\n%d" % appended_ms, digest_size=16)
    for value in values:
        digest.update(b"\n")
        digest.update(value)
    return digest.hexdigest()
