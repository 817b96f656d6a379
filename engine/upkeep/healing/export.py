"""Exports records of lost histories from a replica's files to plain Parquet files.

The footer of an exported file has a description of the file. The manifest lists these descriptions, and can be
rebuilt from the folder at any time.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import msgspec
import pyarrow.parquet as pq

from stratalog.partitions import paths
from stratalog.partitions.bounded import parse_json, read_bounded
from stratalog.partitions.errors import CorruptionError, InvalidCallError, StratalogError
from stratalog.partitions.listing import DataFile
from stratalog.partitions.numbers import Epoch, Int64, Natural
from stratalog.partitions.parquet_decoding import read_end
from stratalog.partitions.parquet_footer import SUFFIX_BYTES, key_values
from stratalog.partitions.segment import read_row_groups
from stratalog.partitions.store import Store

RECOVERED_KEY = b"stratalog.recovered"
MANIFEST = "manifest.json"
MOST_FOOTER_BYTES = 16 * 1024 * 1024
"""The maximum size of an exported file's Parquet footer. The size is limited because the folder may contain
arbitrary files of other writers.
"""


class Recovered(msgspec.Struct, frozen=True, kw_only=True):
    """The records of an exported file: ``[base_offset, next_offset)`` of one partition, unchanged."""

    path: str
    cluster_id: str
    topic: str
    topic_id: str
    partition: Int64
    epoch: Epoch
    base_offset: Natural
    next_offset: Natural
    broker_id: Int64
    file: str
    """The name of the source file on that broker."""
    why: str

    @property
    def records(self) -> int:
        """The number of records; offsets have no gaps."""
        return self.next_offset - self.base_offset


def export(source: Store, file: DataFile, target: Store, what: Recovered) -> int | None:
    """Write the records to ``what.path``. Returns the number of bytes written; None if the file already exists.
    Raises: InvalidCallError if the path has other content; CorruptSegmentError, StorageError.
    """
    staged = target.stage_writer(what.path)
    try:
        writer: pq.ParquetWriter | None = None
        for _, table in read_row_groups(source, file, what.base_offset, what.next_offset):
            if writer is None:
                writer = pq.ParquetWriter(
                    staged.file, table.schema.remove_metadata(), compression="zstd", write_page_checksum=True
                )
            writer.write_table(table.replace_schema_metadata(None))
        if writer is None:
            raise CorruptionError(f"{source.uri_of(file.object.name)} has none of its expected records")
        writer.add_key_value_metadata({RECOVERED_KEY: msgspec.json.encode(what)})
        writer.close()
        created = staged.commit()
    except BaseException:
        with suppress(StratalogError):
            staged.abort()
        raise
    if created:
        return staged.size_bytes
    there = described(target, what.path)
    if there is None or _content(there) != _content(what):
        raise InvalidCallError(
            f"{target.uri_of(what.path)} already exists with other content: export to another folder"
        )
    return None


def _content(what: Recovered) -> tuple[object, ...]:
    """The key of an export. Exports with the same key are equal, even if they come from different brokers."""
    return what.cluster_id, what.topic_id, what.partition, what.epoch, what.base_offset, what.next_offset


def described(target: Store, path: str) -> Recovered | None:
    """The description in an exported file; None for a foreign file."""
    try:
        stored = target.stat(path)
        with target.open(stored) as source:
            end = read_end(source, stored.size_bytes, target.uri_of(path), MOST_FOOTER_BYTES)
        return parse_json(key_values(end[:-SUFFIX_BYTES]).get(RECOVERED_KEY, b""), Recovered)
    except (FileNotFoundError, ValueError):
        return None


def write_manifest(target: Store, how: Iterable[str]) -> int:
    """List every exported file of the folder in its manifest. Returns the number of files. ``how`` explains how to
    use the files. An existing manifest with different content is replaced.
    """
    names = [stored.name for stored in target.list("") if paths.base_name(stored.name).endswith(".parquet")]
    files = [found for name in names if (found := described(target, name)) is not None]
    content = msgspec.json.format(
        msgspec.json.encode({"files": [msgspec.structs.asdict(file) for file in files], "how": list(how)}),
        indent=2,
    )
    with suppress(FileNotFoundError, CorruptionError):
        if read_bounded(target, MANIFEST, len(content)) == content:
            return len(files)
    target.delete([MANIFEST])
    target.create(MANIFEST, content)
    return len(files)
