"""One committed batch of metadata records: a data file like any other, one row per record. Pure."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from engine.metadata import records
from engine.metadata.records import MetadataRecord
from partitions.errors import CorruptionError, CorruptSegmentError, InconsistentClusterIdError
from partitions.lineage import Lineage
from partitions.paths import DataName
from partitions.records import TIMESTAMP, physical_schema
from partitions.segment import is_of_this_process
from partitions.segment_footer import FOOTER_KEY, SegmentFooter
from partitions.segment_writer import SegmentWriter


@dataclass(frozen=True, slots=True)
class Batch:
    """Records ``[name.base_offset, next_offset)``, and the lineage of the log that ends with them."""

    name: DataName
    next_offset: int
    lineage: Lineage
    records: tuple[MetadataRecord, ...]
    appended_ms: int
    """When it was made, by the clock of its claimant."""


def encode_batch(
    cluster_id: str, name: DataName, lineage: Lineage, batch: Sequence[MetadataRecord], now_ms: int
) -> bytes:
    """The content of the data file ``name``. ``lineage`` includes the epoch of ``name``."""
    sink = io.BytesIO()
    writer = SegmentWriter(sink, physical_schema(), topic_id=cluster_id, partition=0, base_offset=name.base_offset)
    stamp = pa.scalar(now_ms * 1000, pa.int64()).cast(TIMESTAMP)
    values = [records.encode(record) for record in batch]
    stamps = pa.repeat(stamp, len(batch))
    writer.write(pa.record_batch({"timestamp": stamps, "value": pa.array(values, pa.binary())}))
    digest = _digest(lineage, values, now_ms)
    writer.close(lineage=lineage, producers=lambda _: {}, created_ms=now_ms, batch_id=digest)
    return sink.getvalue()


def decode_batch(cluster_id: str, name: DataName, data: bytes, what: str) -> Batch:
    """The batch of the data file ``name``, checksums verified; ``what`` names the file in errors.

    Raises: CorruptSegmentError for a truncated, damaged or foreign file; CorruptionError for a record of a
        later version; InconsistentClusterIdError for a batch of another cluster.
    """
    try:
        parquet = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        footer = msgspec.json.decode((parquet.metadata.metadata or {})[FOOTER_KEY], type=SegmentFooter)
        values = parquet.read(columns=["value"], use_threads=False).column("value").to_pylist()
        lineage = Lineage(footer.lineage)
    except (pa.ArrowException, OSError, KeyError, ValueError, CorruptionError) as error:
        if is_of_this_process(error):
            raise
        raise CorruptSegmentError(f"{what} is no readable batch of metadata: {error}") from error
    if footer.topic_id != cluster_id:
        raise InconsistentClusterIdError(f"{what} belongs to cluster {footer.topic_id!r}, not {cluster_id!r}")
    if footer.batch_id != _digest(lineage, values, footer.created_ms) or lineage.latest_epoch != name.epoch:
        raise CorruptSegmentError(f"{what} is damaged: its digest or its epoch is not what it should be")
    if footer.base_offset != name.base_offset or footer.next_offset != footer.base_offset + len(values):
        raise CorruptSegmentError(f"{what} holds {len(values)} records from offset {footer.base_offset} on")
    decoded = tuple(records.decode(value) for value in values)
    return Batch(name, footer.next_offset, lineage, decoded, footer.created_ms)


def _digest(lineage: Lineage, values: Sequence[bytes], appended_ms: int) -> str:
    """Of what a batch says. Parquet's checksums guard its pages, but not the footer, where the lineage is."""
    digest = hashlib.blake2b(lineage.to_json() + b"\n%d" % appended_ms, digest_size=16)
    for value in values:
        digest.update(b"\n")
        digest.update(value)
    return digest.hexdigest()
