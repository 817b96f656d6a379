"""The content of files, cached by their bytes: the same bytes are decoded once in a process."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any
from unittest.mock import patch

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

import stratalog.engine.quorum.contents
import stratalog.engine.quorum.voter
import stratalog.engine.replication.append
import stratalog.engine.replication.append_file
import stratalog.partitions.listing
import stratalog.partitions.producer_changes
import stratalog.partitions.segments.reader
from stratalog.engine.metadata.records import MetadataRecord, decode
from stratalog.engine.quorum.batch import Batch, decode_batch
from stratalog.engine.replication.append_file import AppendOptions, ReplayableBatches
from stratalog.engine.replication.log_end import LogEnd
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import SourceChangedError
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.paths import DataName, base_name, parse_name
from stratalog.partitions.producer_changes import ProducerPart, part_after
from stratalog.partitions.producers import ProducerAppend, ProducerEntry
from stratalog.partitions.segments.footer import FOOTER_KEY, SegmentFooter
from stratalog.partitions.store import StagedWriter, Store
from stratalog.partitions.store.memory import MemoryStore
from stratalog.partitions.store.protocol import StoredObject

_MOST = 4096


@dataclass(frozen=True, slots=True)
class Content:
    """A data file: the tokens of its records, and its footer."""

    base_offset: int
    tokens: tuple[bytes, ...]
    control: tuple[int | None, ...]
    footer: SegmentFooter

    @property
    def next_offset(self) -> int:
        return self.base_offset + len(self.tokens)


@lru_cache(maxsize=4096)
def content_of(data: bytes) -> Content:
    """The content of a data file, read by Arrow in this thread: an Arrow thread that holds Python bytes when the
    process ends aborts it.
    """
    file = pq.ParquetFile(pa.BufferReader(data))
    footer = msgspec.json.decode(file.metadata.metadata[FOOTER_KEY], type=SegmentFooter)
    table = file.read(columns=[*TOKEN_COLUMNS, "control"], use_threads=False)
    offsets = table.column("offset").to_pylist()
    assert offsets == list(range(footer.base_offset, footer.next_offset)), (offsets, footer)
    return Content(footer.base_offset, tokens_of(table), tuple(table.column("control").to_pylist()), footer)


TOKEN_COLUMNS = ["offset", "value", "producer_id", "headers"]


def tokens_of(table: pa.Table) -> tuple[bytes, ...]:
    """The identity of each record: its value, or the header of a tombstone; for markers, and for the engine's own
    records, which may be equal, the offset too.
    """
    rows = zip(*(table.column(name).to_pylist() for name in TOKEN_COLUMNS), strict=True)
    return tuple(
        headers[0]["value"]
        if value is None and headers
        else value
        if value is not None and not value.startswith(b"{")
        else b"%d:%s" % (offset, value if value is not None else (producer or "").encode())
        for offset, value, producer, headers in rows
    )


@lru_cache(maxsize=4096)
def records_of_batch(data: bytes) -> Sequence[MetadataRecord]:
    """The records of a committed batch, read by Arrow alone."""
    table = pq.ParquetFile(pa.BufferReader(data)).read(columns=["value"], use_threads=False)
    return [decode(value) for value in table.column("value").to_pylist()]


@lru_cache(maxsize=4096)
def lineage_of(data: bytes) -> Lineage:
    """The content of an ``.epoch`` file."""
    return Lineage.from_json(data, "")


_parsed_layout = lru_cache(maxsize=4096)(stratalog.partitions.segments.reader.parse_layout)
parsed_name = lru_cache(maxsize=65536)(parse_name)


@lru_cache(maxsize=4096)
def _decode_batch(cluster_id: str, name: DataName, data: bytes, what: str) -> Batch:
    return decode_batch(cluster_id, name, data, what)


def _decode_batch_of_any_voter(cluster_id: str, name: DataName, data: bytes, what: str) -> Batch:
    return _decode_batch(cluster_id, name, data, "")


@lru_cache(maxsize=4096)
def _footer_in(data: bytes, stored: StoredObject) -> pq.FileMetaData:
    store = MemoryStore("memory://footers")
    store.create(stored.name, data)
    return _read_parquet_footer(store, replace(stored, version=""), stored.name)


def _footer(store: Store, stored: StoredObject, what: str) -> pq.FileMetaData:
    try:
        with store.open(stored) as source:
            data = source.read()
    except FileNotFoundError as error:
        raise SourceChangedError(f"{what} has been deleted since it was listed") from error
    return _footer_in(data, replace(stored, name=base_name(stored.name), version="", modified_ms=0))


_read_parquet_footer = stratalog.partitions.segments.reader._read_parquet_footer
_encode = stratalog.engine.replication.append._encode
_encoded: dict[Hashable, tuple[bytes, Mapping[str, ProducerEntry], int]] = {}
states_after: dict[bytes, Mapping[str, ProducerEntry]] = {}
"""All producers after an append of this run, by the bytes of its file, whose footer may hold only a few."""


def _encode_once(
    staged: StagedWriter,
    replicas: PartitionReplicas,
    end: LogEnd,
    producer: ProducerAppend,
    source: ReplayableBatches,
    options: AppendOptions,
    clock: Clock,
) -> int:
    values = tuple(
        row
        for batch in source
        for row in zip(
            *(map(str, batch.column(name).to_pylist()) for name in ("key", "value", "headers")), strict=True
        )
    )
    module, store = stratalog.engine.replication.append_file, replicas.leader.store
    times = tuple(told(clock, store) for told in (module.stamp_ms, module.agreed_ms, module.earlier_ms))
    known = end.state.last_transactional_offset, end.state.levels, *sorted(end.state.producers.items())
    key = (
        replicas.view.topic_id,
        replicas.view.partition,
        end.log_end,
        end.lineage,
        known,
        producer,
        values,
        times,
        options.producer_expiration_ms,
    )
    if key not in _encoded:
        memory = MemoryStore("memory://encoded").stage_writer("one")
        states: list[Mapping[str, ProducerEntry]] = []

        def noted(*arguments: Any) -> ProducerPart:
            states.append(arguments[4])
            return part_after(*arguments)

        with patch.object(stratalog.engine.replication.append_file, "part_after", noted):
            next_offset = _encode(memory, replicas, end, producer, source, options, clock)
        if len(_encoded) > _MOST:
            _encoded.clear()
        _encoded[key] = memory._buffer.bytes_written(), states[0], next_offset  # type: ignore[attr-defined]
    data, state, next_offset = _encoded[key]
    states_after[data] = state
    staged.file.write(data)
    return next_offset


@contextmanager
def remembered() -> Iterator[None]:
    """Inside the block, the product's pure work on bytes is cached too: names, metadata batches, footers,
    encoding."""
    states_after.clear()
    with ExitStack() as stack:
        stack.enter_context(
            patch.object(stratalog.engine.quorum.contents, "decode_batch", _decode_batch_of_any_voter)
        )
        stack.enter_context(patch.object(stratalog.engine.quorum.voter, "parse_name", parsed_name))
        stack.enter_context(patch.object(stratalog.partitions.listing, "parse_name", parsed_name))
        stack.enter_context(patch.object(stratalog.partitions.segments.reader, "_read_parquet_footer", _footer))
        stack.enter_context(patch.object(stratalog.partitions.segments.reader, "parse_layout", _parsed_layout))
        stack.enter_context(patch.object(stratalog.engine.replication.append, "_encode", _encode_once))
        # A footer holds only some of the few producers of a run.
        changes = stratalog.partitions.producer_changes
        for name, value in (("_FEW", 2), ("_SMALL", 0), ("_PART_OF_ALL", 2), ("_ENTRY_BYTES", 1_000_000)):
            stack.enter_context(patch.object(changes, name, value))
        yield
