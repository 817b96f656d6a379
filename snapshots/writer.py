"""Writing a snapshot: in one streaming pass; it gets its name only when it is complete (KIP-630, "Snapshot
Format")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import BinaryIO, cast

import pyarrow as pa

from stratalog.partitions.clock import Clock
from stratalog.partitions.columns import binaries
from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.paths import join
from stratalog.partitions.producers import ProducerEntry
from stratalog.partitions.records import RECORD_COLUMNS, check_columns
from stratalog.partitions.segments.writer import SegmentWriter, Sign
from stratalog.partitions.store.protocol import Store
from stratalog.snapshots.layout import ChecksummedSink, Mark, encode_mark, footer_row, header_row
from stratalog.snapshots.snapshot_id import SnapshotId, lineage_up_to


class SnapshotWriter:
    """Writes one snapshot into ``folder``. It is invisible until ``freeze``. As a context manager it discards a
    snapshot that was not frozen.
    """

    def __init__(
        self,
        store: Store,
        folder: str,
        snapshot_id: SnapshotId,
        *,
        owner: str,
        partition: int,
        lineage: Lineage,
        last_contained_log_timestamp_ms: int,
        schema: pa.Schema,
        clock: Clock,
        compression: str = "zstd",
        producers: Mapping[str, ProducerEntry] | None = None,
        sign: Sign | None = None,
    ) -> None:
        """``owner`` is the id of the topic, or of the cluster for its metadata. ``lineage`` is the lineage of the
        log; the snapshot keeps the part up to its end. ``schema`` is the topic's physical schema. ``producers`` is
        the producer state at the snapshot's end. ``sign``: see ``SegmentWriter``.

        Raises: InvalidCallError when the last contained record has another epoch in ``lineage``, or does not
            exist; StorageError.
        """
        before = lineage_up_to(snapshot_id.end_offset, lineage)
        if not before.entries or before.latest_epoch != snapshot_id.epoch:
            raise InvalidCallError(
                f"no snapshot {snapshot_id} can be taken in {store.uri_of(folder)}: the epochs "
                "up to that offset are "
                f"{before}"
            )
        self._snapshot_id = snapshot_id
        self._lineage = before
        self._schema = schema
        self._clock = clock
        self._producers = dict(producers or {})
        self._name = join(folder, str(snapshot_id.name))
        self._what = store.uri_of(self._name)
        self._done = False
        self._staged = store.stage_writer(self._name)
        try:
            self._sink = ChecksummedSink(self._staged.file)
            self._segment = SegmentWriter(
                cast(BinaryIO, self._sink),
                schema,
                topic_id=owner,
                partition=partition,
                base_offset=0,
                compression=compression,
                sign=sign,
            )
            self._segment.write(header_row(schema, last_contained_log_timestamp_ms))
        except BaseException:
            self._staged.abort()
            raise

    def __enter__(self) -> SnapshotWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

    def write(self, batch: pa.RecordBatch) -> None:
        """Add the records of ``batch``: its columns timestamp, key, value and headers.

        Raises: InvalidRecordError when a column is missing, or does not have the type in the schema;
            InvalidCallError after ``freeze`` or ``abort``.
        """
        self._check_open()
        check_columns(batch.schema, self._schema, self._what)
        self._segment.write(batch.select(RECORD_COLUMNS))

    def append(self, values: Sequence[bytes]) -> None:
        """Add records with these values, without keys, timestamps and headers; adding thousands in one call is
        cheap.

        Raises: see ``write``.
        """
        self._append(pa.nulls(len(values), pa.binary()), binaries(values))

    def append_rows(self, rows: Sequence[tuple[bytes | None, bytes | None]]) -> None:
        """Add records with these keys and values, without timestamps and headers. Raises: see ``write``."""
        keys = binaries([key for key, _ in rows])
        self._append(keys, binaries([value for _, value in rows]))

    def _append(self, keys: pa.Array, values: pa.Array) -> None:
        columns = {"key": keys, "value": values}
        arrays = [
            columns[name] if name in columns else pa.nulls(len(values), self._schema.field(name).type)
            for name in RECORD_COLUMNS
        ]
        self.write(pa.RecordBatch.from_arrays(arrays, RECORD_COLUMNS))

    def freeze(self) -> bool:
        """End the snapshot and give it its name, atomically. True if this call created it; False if a snapshot
        with this id already exists, which stays unchanged.

        Raises: StorageError, OutcomeUnknownError; InvalidCallError after ``freeze`` or ``abort``.
        """
        self._check_open()
        self._segment.write(footer_row(self._schema))
        self._segment.close(
            lineage=self._lineage,
            producers=lambda _: self._producers,
            created_ms=self._clock.now_ms(),
            metadata=self._mark,
        )
        self._done = True
        return self._staged.commit()

    def abort(self) -> None:
        """Discard the snapshot; harmless after ``freeze``."""
        self._done = True
        self._segment.abort()
        self._staged.abort()

    def _mark(self) -> dict[bytes, bytes]:
        return encode_mark(
            Mark(
                end_offset=self._snapshot_id.end_offset,
                epoch=self._snapshot_id.epoch,
                generation=self._snapshot_id.generation,
                record_bytes=self._sink.passed_bytes,
                record_crc=self._sink.crc,
            )
        )

    def _check_open(self) -> None:
        if self._done:
            raise InvalidCallError(f"{self._what} was already frozen or discarded")
