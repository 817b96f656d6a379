"""Checks the log of a table before delta-rs reads it, because other writers may have written anything there.

delta-rs crashes the process on JSON that is nested some ten thousand levels deep, including JSON in strings
(statistics, schemas). It reads entries, checkpoints and checksum files of any size. So this module lists these
files, and reads new files within these bounds:

    entries, compacted ones,        up to ``ENTRY_BYTES`` each, together up to ``LOG_BYTES``, nested up to
    ``.crc``, ``_last_checkpoint``  ``MOST_DEPTH`` brackets deep
    checkpoints                     up to ``LOG_BYTES``, also by the uncompressed size that they state;
                                    statistics in them are nested no deeper

V2 checkpoints name sidecars, which delta-rs would read wherever they are: any Parquet file of the machine, or a
FIFO. So this module refuses the folder ``_sidecars``, names of V2 checkpoints, hints at one, and checkpoints with
sidecars.

At most ``MOST_FILES`` files may have to be read, because both delta-rs and this module read each of them.
Checkpoints are written every 20 versions; other Delta writers write one every 10 or 100.

Only entries after the latest checkpoint are checked, or, to open an older version, after the checkpoint before
that version: no reader opens other entries. A refused table fails alone, and the error names the file and the
remedy.

Limits: delta-rs reads on its own a moment later, and may then find a different entry or a link. Repeated
dictionary values of a checkpoint are not counted. Spark's own Delta reader is out of scope: such an entry fails
the query there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stratalog.partitions import paths
from stratalog.partitions.bounded import parse_json
from stratalog.partitions.cache import BoundedCache
from stratalog.partitions.errors import BrokerUnreachableError, CorruptionError, SourceChangedError, StorageError
from stratalog.partitions.segments.parquet_decoding import read_end
from stratalog.partitions.segments.parquet_footer import SUFFIX_BYTES
from stratalog.partitions.segments.thrift import I64, LIST, STRUCT, CompactReader, Field
from stratalog.partitions.store.protocol import LEFT_ALONE, Store, StoredObject

_OPENING, _CLOSING = b"[{", b"]}"
ENTRY_BYTES = 64 * 1024 * 1024
"""The size of a commit with 50,000 files."""
LOG_BYTES = 256 * 1024 * 1024
MOST_DEPTH = 1000
MOST_FILES = 10_000
REMEMBERED = MOST_FILES
"""The number of checked log files that this process remembers."""

ENTRY = re.compile(r"(\d{20})\.json")
"""Matches the whole name of a log entry."""
_VERSION = re.compile(r"(\d{20})\.(?:\d{20}\.)?(json|compacted\.json|crc|checkpoint\.parquet|checkpoint\..*)\Z")
_SECOND_KIND = re.compile(r"\d{20}\.checkpoint\.(?!parquet\Z|\d{10}\.\d{10}\.parquet\Z)")
"""Matches the names of all checkpoints except classic ones (one file, or numbered parts)."""
_SIDECARS = "_sidecars"
_LAST_CHECKPOINT = "_last_checkpoint"
_STRING = re.compile(rb'"(?:[^"\\]++|\\(?:.|\Z))*+(?:"|\Z)', re.DOTALL)
"""Matches a JSON string to its end, or to the end of the text, so that nothing is scanned twice."""
_AT_ONCE = 1024 * 1024
_FOOTER_BYTES = 16 * 1024 * 1024
_MOST_ELEMENTS = 1_000_000
_STATISTICS = "add.stats"
_SIDECAR_SIZE = "sidecar.sizeInBytes"
_ROWS_AT_ONCE = 1024

_harmless: BoundedCache[tuple[Store, StoredObject], bool] = BoundedCache(REMEMBERED)


def check_log(remote: Store, folder: str, version: int | None = None) -> list[StoredObject]:
    """Check the files of a table's log that are read to open a version; None: the newest version. Returns these
    files.

    Raises: CorruptionError naming the file that delta-rs must not read; StorageError when the remote does not
        answer.
    """
    log = paths.join(folder, paths.DELTA_LOG)
    try:
        found = remote.walk(log)
    except BrokerUnreachableError as error:  # the error concerns the remote tier, not a broker's root
        raise StorageError(f"cannot read the table {remote.uri_of(folder)}: {error}") from error
    files = {paths.base_name(one.name): one for one in found if paths.folder_of(one.name) == log}
    for one in found:
        if one.special:  # delta-rs follows links, both in reads and for the entry that it writes
            raise CorruptionError(f"{remote.uri_of(one.name)} is {one.special}: {LEFT_ALONE}")
        if paths.folder_of(one.name) == paths.join(log, _SIDECARS) or (
            paths.folder_of(one.name) == log and _SECOND_KIND.match(paths.base_name(one.name))
        ):
            raise _refused(remote, one, "belongs to a V2 checkpoint of Delta")
    read = list(_read_of(files, version))
    size_bytes = sum(one.size_bytes for one in read)
    if size_bytes > LOG_BYTES:
        largest = max(read, key=lambda one: one.size_bytes)
        raise _refused(remote, largest, f"has {largest.size_bytes} bytes, and all files to read have {size_bytes}")
    if len(read) > MOST_FILES:
        raise CorruptionError(
            f"{remote.uri_of(log)} has {len(read)} files since its latest checkpoint, more "
            f"than {MOST_FILES}: the table is not opened. Find out who wrote these files. Afterwards, "
            "write a checkpoint with a Delta engine, or restore the log from a backup of the remote tier"
        )
    for one in read:
        if _harmless.get((remote, one)) is None:
            _check(remote, one)
            if one.version:
                _harmless.put((remote, one), True)
    return read


def _read_of(files: dict[str, StoredObject], version: int | None) -> Iterator[StoredObject]:
    """The files among these that delta-rs reads."""
    known = [(int(found[1]), found[2], one) for name, one in files.items() if (found := _VERSION.match(name))]
    wanted = [entry for entry in known if version is None or entry[0] <= version]
    latest = max((number for number, kind, _ in wanted if kind == "checkpoint.parquet"), default=0)
    yield from (one for number, _, one in wanted if number >= latest)
    if _LAST_CHECKPOINT in files:
        yield files[_LAST_CHECKPOINT]


def _check(remote: Store, one: StoredObject) -> None:
    parquet = one.name.endswith(".parquet")
    if not parquet and one.size_bytes > ENTRY_BYTES:
        raise _refused(remote, one, f"has {one.size_bytes} bytes, more than {ENTRY_BYTES}")
    try:
        with remote.open(one) as source:
            if parquet:
                end = read_end(source, one.size_bytes, remote.uri_of(one.name), _FOOTER_BYTES)
                check_checkpoint(end[:-SUFFIX_BYTES])
                check_sidecars(source)
                check_statistics(source)
            else:
                text = source.read(ENTRY_BYTES)
                check_nesting(text)
                if paths.base_name(one.name) == _LAST_CHECKPOINT and b"v2Checkpoint" in text:
                    raise ValueError("it points to a V2 checkpoint of Delta")
    except (FileNotFoundError, SourceChangedError):
        return  # a log cleanup has removed the file, so delta-rs will not find it either
    except ValueError as error:
        raise _refused(remote, one, f"cannot be read: {error}") from error


def check_nesting(text: bytes) -> None:
    """Check that brackets are not nested deeper than ``MOST_DEPTH``, in the text or in one of its strings. Raises:
    ValueError.
    """
    bare = _STRING.sub(b"", text)
    if _depth(bare) > MOST_DEPTH:
        raise ValueError(f"its brackets nest more than {MOST_DEPTH} levels deep")
    if _hidden(text) - _brackets(bare) <= MOST_DEPTH:
        return
    for found in _STRING.finditer(text):
        string = found[0]
        if _hidden(string) > MOST_DEPTH:
            inner = parse_json(string, str).encode()
            if inner != string:
                check_nesting(inner)


def _brackets(text: bytes) -> int:
    return text.count(b"[") + text.count(b"{")


def _hidden(text: bytes) -> int:
    """An upper bound of the number of brackets, including those written as escapes."""
    return _brackets(text) + text.count(b"\\u")


def _depth(bare: bytes) -> int:
    """The maximum nesting of brackets of any kind, line by line."""
    deepest = 0
    for line in bare.splitlines():
        level = 0
        for start in range(0, len(line) if _brackets(line) > MOST_DEPTH else 0, _AT_ONCE):
            codes = np.frombuffer(line[start : start + _AT_ONCE], np.uint8)
            opened, closed = (np.isin(codes, list(each)).astype(np.int64) for each in (_OPENING, _CLOSING))
            levels = level + np.cumsum(opened - closed)
            levels -= np.minimum.accumulate(np.minimum(levels, 0))  # ignore an unmatched closing bracket
            level = int(levels[-1])
            deepest = max(deepest, int(levels.max()))
    return deepest


def check_checkpoint(footer: bytes) -> None:
    """Check the Parquet footer of a checkpoint. Raises: ValueError when the footer claims too much."""
    found, _ = CompactReader(footer, _MOST_ELEMENTS).struct(0, _FILE)
    unpacked = sum(chunk.get(3, {}).get(6, 0) for group in found.get(4, ()) for chunk in group.get(1, ()))
    if unpacked > LOG_BYTES:
        raise ValueError(f"it unpacks to {unpacked} bytes, more than {LOG_BYTES}")
    if found.get(3, 0) * 8 > LOG_BYTES:
        raise ValueError(f"it has {found[3]} rows")


def check_sidecars(checkpoint: BinaryIO) -> None:
    """Check that a checkpoint names no sidecars. (Some writers add the column, but with nulls only.) Raises:
    ValueError.
    """
    leaves = leaves_of(checkpoint)
    if not any(leaf.startswith("sidecar.") for leaf in leaves):
        return
    if _SIDECAR_SIZE not in leaves:
        raise ValueError(f"it has a column of sidecars without {_SIDECAR_SIZE}")
    try:
        parquet = pq.ParquetFile(checkpoint)
        for batch in parquet.iter_batches(_ROWS_AT_ONCE, columns=[_SIDECAR_SIZE], use_threads=False):
            if batch.column(0).null_count < batch.num_rows:
                raise ValueError("it names sidecars")
    except (pa.ArrowException, OSError, MemoryError) as error:
        raise ValueError(str(error)) from error


def check_statistics(checkpoint: BinaryIO) -> None:
    """Check the JSON statistics of files in a checkpoint. Raises: ValueError."""
    if _STATISTICS not in leaves_of(checkpoint):
        return
    try:
        # Read as a dictionary, so that a repeated value is decoded and checked once.
        parquet = pq.ParquetFile(checkpoint, read_dictionary=[_STATISTICS])
        for batch in parquet.iter_batches(_ROWS_AT_ONCE, columns=[_STATISTICS], use_threads=False):
            for column in batch.columns:
                for text in column.field(0).dictionary.cast(pa.binary()).to_pylist():
                    check_nesting(text)
    except (pa.ArrowException, OSError, AttributeError, MemoryError) as error:
        raise ValueError(str(error)) from error


def leaves_of(checkpoint: BinaryIO) -> set[str]:
    """The paths of the columns of a Parquet file, such as ``add.stats``. Raises: ValueError."""
    try:
        schema = pq.ParquetFile(checkpoint).schema
    except (pa.ArrowException, OSError, MemoryError) as error:
        raise ValueError(str(error)) from error
    return {schema.column(number).path for number in range(len(schema))}


def _refused(remote: Store, one: StoredObject, why: str) -> CorruptionError:
    return CorruptionError(
        f"{remote.uri_of(one.name)} {why}: stratalog never writes such a file to the "
        "log of a table, and does not open the table while it exists. Find out who "
        "wrote the file. Then restore it from a copy of the remote tier; if it is the newest version, you can "
        "remove it instead"
    )


_CHUNK = Field(STRUCT, fields={3: Field(STRUCT, fields={6: Field(I64)})})
_ROW_GROUP = Field(STRUCT, fields={1: Field(LIST, of=_CHUNK, most=10_000)})
_FILE = Field(STRUCT, fields={3: Field(I64), 4: Field(LIST, of=_ROW_GROUP, most=10_000)})
