"""Files that are cheaper than Parquet.

The decoded content of real files is cached by their bytes, including errors, because it is a pure function of
them. Most runs use *stand-ins* as files: a digest of the content, which is looked up instead of decoding. A
stand-in with a flipped bit is refused as a damaged file. Other tests explore formats.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from io import BytesIO
from types import TracebackType
from typing import Any, BinaryIO
from unittest.mock import patch

import msgspec

import stratalog.engine.metadata.fold
import stratalog.engine.quorum.checkpoints
import stratalog.engine.quorum.contents
import stratalog.engine.quorum.log
import stratalog.partitions.root
import stratalog.snapshots.reader
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.metadata.records import MetadataRecord
from stratalog.engine.quorum.batch import KIND, Batch, decode_batch, encode_batch
from stratalog.engine.quorum.repeated import BatchRecords
from stratalog.partitions.clock import Clock
from stratalog.partitions.cluster_key import ClusterKey
from stratalog.partitions.errors import CorruptSegmentError, StratalogError
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.listing import DataFile
from stratalog.partitions.paths import DataName, base_name, join, parse_name
from stratalog.partitions.segments.reader import Segment
from stratalog.partitions.segments.signature import check_signature_of
from stratalog.partitions.segments.writer import Sign
from stratalog.partitions.store import Store
from stratalog.partitions.store.protocol import StoredObject
from stratalog.snapshots.reader import Snapshot, verify_snapshot
from stratalog.snapshots.snapshot_id import SnapshotId

_MOST = 4096
_PARQUET = b"PAR1"
_DIGEST_BYTES = 24

_stand_ins: dict[bytes, object] = {}

parsed_name = lru_cache(maxsize=65536)(parse_name)
broker_file_of = lru_cache(maxsize=_MOST)(
    lambda data: msgspec.json.decode(data, type=stratalog.partitions.root.BrokerFile)
)


@lru_cache(maxsize=_MOST)
def _decoded(cluster_id: str, name: DataName, data: bytes) -> Batch | StratalogError:
    try:
        return decode_batch(cluster_id, name, data, "")
    except StratalogError as error:
        return error


def decoded(cluster_id: str, name: DataName, data: bytes, what: str) -> Batch:
    """Decodes a batch like ``decode_batch``."""
    if not data.startswith(_PARQUET):
        batch = _stand_in(Batch, data, what)
        if batch.name != name:
            raise CorruptSegmentError(f"{what} is {batch.name}")
        return batch
    found = _decoded(cluster_id, name, data)
    if isinstance(found, Batch):
        return found
    raise type(found)(f"{what}{found}")


@lru_cache(maxsize=_MOST)
def _encoded(
    cluster_id: str,
    content: BatchRecords,
    lineage: Lineage,
    key: ClusterKey | None,
    repeated: tuple[BatchRecords, ...],
) -> bytes:
    return encode_batch(cluster_id, content, lineage, key, repeated)


def encoded(
    cluster_id: str,
    content: BatchRecords,
    lineage: Lineage,
    key: ClusterKey | None = None,
    repeated: Sequence[BatchRecords] = (),
) -> bytes:
    """Encodes a batch like ``encode_batch``."""
    return _encoded(cluster_id, content, lineage, key, tuple(repeated))


class _Bytes:
    """A whole file as a readable object, equal to another one with the same bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Bytes) and self.data == other.data

    def __hash__(self) -> int:
        return hash(self.data)

    def open(self, stored: StoredObject) -> BytesIO:
        return BytesIO(self.data)

    def uri_of(self, name: str) -> str:
        return ""


@dataclass(frozen=True, kw_only=True)
class _ReadOnce(Snapshot):
    """A snapshot whose values are decoded once."""

    _rows: list[tuple[bytes | None, bytes | None]] | None = None
    _values: list[bytes] | None = None

    def rows(self) -> Iterator[tuple[bytes | None, bytes | None]]:
        if self._rows is None:
            object.__setattr__(self, "_rows", list(super().rows()))
        assert self._rows is not None
        return iter(self._rows)

    def values(self) -> Iterator[bytes]:
        if self._values is None:
            object.__setattr__(self, "_values", list(super().values()))
        assert self._values is not None
        return iter(self._values)


@lru_cache(maxsize=_MOST)
def _verified(data: _Bytes, name: str, owner: str, partition: int) -> Snapshot | StratalogError:
    stored = StoredObject(name, len(data.data), 0, "")
    try:
        found = verify_snapshot(data, stored, owner=owner, partition=partition)
    except StratalogError as error:
        return error
    return _ReadOnce(**{field: getattr(found, field) for field in Snapshot.__dataclass_fields__})


def verified(source: object, stored: StoredObject, *, owner: str, partition: int) -> Snapshot:
    """Verifies bytes in memory like ``verify_snapshot``."""
    assert isinstance(source, stratalog.snapshots.reader._Held)
    data = source._fetch(0, source._size_bytes)
    if not data.startswith(_PARQUET):
        return replace(_stand_in(_ReadOnce, data, source.uri_of(stored.name)), _source=source)
    found = _verified(_Bytes(data), base_name(stored.name), owner, partition)
    if isinstance(found, Snapshot):
        return found
    raise type(found)(f"{source.uri_of(stored.name)}: {found}")


# -------------------------------------------------------------------------------- stand-ins


def _put(value: object, sign: Sign | None, *content: object) -> bytes:
    """Store a stand-in; a signed one is followed by its tag."""
    data = hashlib.blake2b(repr(content).encode(), digest_size=_DIGEST_BYTES).digest()
    if sign is not None:
        data += sign(hashlib.sha256(data).digest()).encode()
    _stand_ins[data] = value
    return data


def check_any(key: ClusterKey | None, kind: str, name: str, data: bytes, what: str) -> None:
    """Checks a signature like ``check_signature_of``, also that of a stand-in."""
    if data.startswith(_PARQUET):
        check_signature_of(key, kind, name, data, what)
    elif key is not None:
        digest = hashlib.sha256(data[:_DIGEST_BYTES]).digest()
        key.check(kind, name, digest, data[_DIGEST_BYTES:].decode("latin-1"), what)


def _check_any_file(key: ClusterKey | None, kind: str, name: str, file: BinaryIO, what: str) -> None:
    check_any(key, kind, name, file.read(), what)


def _stand_in(kind: type[Any], data: bytes, what: str) -> Any:
    found = _stand_ins.get(data)
    if not isinstance(found, kind):
        raise CorruptSegmentError(f"{what} is damaged")
    return found


def stand_in_for_batch(
    cluster_id: str,
    content: BatchRecords,
    lineage: Lineage,
    key: ClusterKey | None = None,
    repeated: Sequence[BatchRecords] = (),
) -> bytes:
    """Encodes a batch like ``encode_batch``."""
    found = tuple(one for one in repeated if lineage.epoch_at(one.name.base_offset) == one.name.epoch)
    made = Batch(content, lineage, content.records(), found, key is not None)
    sign = None if key is None else partial(key.tag, KIND, str(content.name))
    return _put(made, sign, cluster_id, content, lineage, found)


class _StandInWriter:
    """Writes a snapshot like ``SnapshotWriter``."""

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
        schema: object,
        clock: Clock,
        sign: Sign | None,
    ) -> None:
        self._sign = sign
        self._what = snapshot_id, lineage, last_contained_log_timestamp_ms, clock.now_ms()
        self._staged = store.stage_writer(join(folder, str(snapshot_id.name)))
        self._rows: list[tuple[bytes | None, bytes | None]] = []

    def __enter__(self) -> _StandInWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._staged.abort()

    def append_rows(self, rows: Sequence[tuple[bytes | None, bytes | None]]) -> None:
        self._rows += rows

    def freeze(self) -> bool:
        snapshot_id, lineage, timestamp_ms, now_ms = self._what
        nothing: Any = None
        made = _ReadOnce(
            snapshot_id=snapshot_id,
            lineage=lineage,
            last_contained_log_timestamp_ms=timestamp_ms,
            records=len(self._rows),
            size_bytes=_DIGEST_BYTES,
            created_ms=now_ms,
            producers={},
            segment=nothing,
            stored=nothing,
            signed=self._sign is not None,
            _source=nothing,
            _file=nothing,
            _rows=self._rows,
            _values=[value for _, value in self._rows],
        )
        data = _put(made, self._sign, *self._what, self._rows)
        stored = StoredObject(str(snapshot_id.name), len(data), 0, "")
        listed = DataFile(DataName(0, None, snapshot_id.epoch), stored)
        object.__setattr__(made, "segment", Segment(listed, nothing, b"", 0, zlib.crc32(data), ""))
        self._staged.file.write(data)
        return self._staged.commit()


@contextmanager
def remembered(*, real_files: bool, chunk_bytes: int = 0) -> Iterator[None]:
    """Inside the block, the product's pure work on bytes is cached; without ``real_files`` most files are
    stand-ins. ``chunk_bytes``: snapshots above this size are fetched in chunks.
    """
    patches: list[tuple[object, str, object]] = [
        (stratalog.engine.quorum.contents, "decode_batch", decoded),
        (stratalog.engine.quorum.log, "encode_batch", encoded if real_files else stand_in_for_batch),
        (stratalog.engine.quorum.contents, "check_signature_of", check_any),
        (stratalog.engine.quorum.checkpoints, "check_signature", _check_any_file),
        (stratalog.snapshots.reader, "verify_snapshot", verified),
    ]
    if chunk_bytes:
        patches.append((stratalog.engine.quorum.checkpoints, "RESPONSE_MAX_BYTES", chunk_bytes))
    if not real_files:
        patches.append((stratalog.engine.quorum.checkpoints, "SnapshotWriter", _StandInWriter))
    _stand_ins.clear()
    with ExitStack() as stack:
        for target, name, variant in patches:
            stack.enter_context(patch.object(target, name, variant))
        yield


def fold(image: ClusterImage, offset: int, records: Sequence[MetadataRecord]) -> ClusterImage:
    """Fold like the product."""
    return stratalog.engine.metadata.fold.apply(image, offset, records)
