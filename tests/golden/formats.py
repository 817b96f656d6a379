"""Every file of a cluster as text, decoded without the product: the log's own content byte for byte, the content
of libraries as values.

For Parquet files the text has the schema, the metadata, encodings and statistics of the columns, and the records;
the checksums in their footers are computed again. Their bytes depend on pyarrow and its zstd, and are in a
separate line, which is compared for one version of pyarrow only (``of_this_pyarrow``). For a Delta log, ids, times
of the machine, versions and sizes are left out.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

CHECKSUMS, TAG, MARK = b"log.segment.crc", b"log.segment.tag", b"log.snapshot"
REPEATED = b"log.metadata.repeated"
BY_LIBRARY = {
    "timestamp",
    "txnId",
    "id",
    "createdTime",
    "modificationTime",
    "size",
    "engineInfo",
    "clientVersion",
    "operationParameters",
}
"""Fields of a Delta log whose values come from a library, a machine or a moment."""
BYTES = "bytes by "


def described(files: Mapping[str, bytes]) -> str:
    """A section for each file; files with equal bytes refer to the first one."""
    seen: dict[bytes, str] = {}
    lines: list[str] = []
    for path, data in sorted(files.items()):
        lines.append(path)
        first = seen.setdefault(data, path) if data else path
        lines += [f"  {line}" for line in ([f"= {first}"] if first != path else _content(path, data))]
    return "\n".join([*lines, ""])


def of_this_pyarrow(golden: str) -> bool:
    """Whether the lines about bytes were written by the pyarrow that runs here."""
    return f"{BYTES}parquet-cpp-arrow version {pa.__version__}:" in golden


def without_bytes(text: str) -> str:
    """The text without these lines."""
    return re.sub(rf"\n *{BYTES}.*", "", text)


def _content(path: str, data: bytes) -> Iterator[str]:
    if data[:4] == b"PAR1":
        yield from _parquet(data)
    elif path.endswith(".metadata"):
        yield from _cache(data)
    elif "/_delta_log/" in path:
        for line in data.decode().splitlines():
            yield json.dumps(_without_library(json.loads(line)), ensure_ascii=False, sort_keys=True)
    else:
        yield from data.decode().split("\n") if data else ["(empty)"]


def _without_library(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: "..." if key in BY_LIBRARY else _without_library(each) for key, each in value.items()}
    return [_without_library(each) for each in value] if isinstance(value, list) else value


def _cache(data: bytes) -> Iterator[str]:
    """A digest of the rest (MessagePack). ``layout`` depends on the release."""
    digest, body = data[:16], data[16:]
    assert hashlib.blake2b(body, digest_size=16).digest() == digest
    for name, value in msgspec.msgpack.decode(body).items():
        if name == "topics":
            yield "topics:"
            yield from (f"  {topic_id}: {topic}" for topic_id, topic in sorted(value.items()))
        else:
            yield f"{name}: {'...' if name == 'layout' else repr(value)}"


def _parquet(data: bytes) -> Iterator[str]:
    file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
    meta = file.metadata
    yield f"{BYTES}{meta.created_by}: {len(data)}, blake2b {hashlib.blake2b(data, digest_size=16).hexdigest()}"
    yield from str(file.schema).splitlines()[1:]
    for key, value in meta.metadata.items():
        yield f"{key.decode()}: {_metadata(data, key, value)}"
    for number in range(meta.num_row_groups):
        group = meta.row_group(number)
        yield f"row group {number}: {group.num_rows} rows"
        yield from (_column(group.column(index)) for index in range(group.num_columns))
    for row in file.read(use_threads=False).to_pylist():
        shown = (f"{name} {_value(value)}" for name, value in row.items() if value is not None)
        yield f"row: {', '.join(shown)}"


def _column(column: Any) -> str:
    encodings = ", ".join(sorted(column.encodings))
    statistics = "no statistics"
    if column.statistics is not None and column.statistics.has_min_max:
        found = column.statistics
        statistics = f"{_value(found.min)} to {_value(found.max)}, {found.null_count} null"
    index = "index" if column.has_column_index and column.has_offset_index else "no index"
    return f"  {column.path_in_schema}: {column.compression} {encodings}; {statistics}; {index}"


def _value(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else repr(value)


def _metadata(data: bytes, key: bytes, value: bytes) -> str:
    """A value of Parquet's footer, except values that depend on a library's bytes, which are checked."""
    if key == CHECKSUMS:
        _check(data, value)
    elif key == MARK:
        mark = json.loads(value)
        assert zlib.crc32(data[: mark["record_bytes"]]) == mark["record_crc"]
        return json.dumps(mark | {"record_bytes": "...", "record_crc": "..."})
    if key == REPEATED:
        packed = json.loads(value)
        repeated = pa.decompress(base64.b64decode(packed["zstd"]), packed["size_bytes"], "zstd", asbytes=True)
        return json.dumps(packed | {"zstd": "..."}) + f" of {repeated.decode()}"
    return "..." if key in (CHECKSUMS, TAG) else value.decode()


def _check(data: bytes, stated: bytes) -> None:
    """The CRC-32 of the footer, the CRC-32 of the bytes before it, the start of the page index, and its CRC-32."""
    footer_at = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    footer, index_at = data[footer_at:-8], int(stated[16:32], 16)
    zeroed = footer.replace(stated, b"0" * 8 + stated[8:])
    of = [zeroed, data[:footer_at], data[index_at:footer_at]]
    assert [b"%08x" % zlib.crc32(part) for part in of] == [stated[:8], stated[8:16], stated[32:]]
