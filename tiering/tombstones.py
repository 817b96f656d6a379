"""The files that the log of a Delta table names as removed (its tombstones)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stratalog.partitions import paths
from stratalog.partitions.bounded import read_listed
from stratalog.partitions.errors import CorruptionError
from stratalog.partitions.store.protocol import Store, StoredObject
from stratalog.tiering.delta_entries import ENTRY, ENTRY_BYTES, leaves_of
from stratalog.tiering.foreign_commits import ListedFile, parse_commit

_ROWS = 1024
_PATH = "remove.path"
_CHECKPOINT = re.compile(r"\d{20}\.checkpoint\..*parquet")


def removed_paths(remote: Store, log_files: Iterable[StoredObject]) -> frozenset[str]:
    """The paths of the files that a table has removed, and has not added again. ``log_files`` are the files of its
    log that are read to open it. The times of the removals do not matter: the clock of the job that removed a file
    may be ahead, and delta-rs shows no removal in the future.

    Raises: CorruptionError; SourceChangedError if a log cleanup deletes a file meanwhile; StorageError kinds.
    """
    removed: set[str] = set()
    for one in sorted(log_files, key=lambda file: file.name):
        name = paths.base_name(one.name)
        if _CHECKPOINT.fullmatch(name):
            for removals in _removals(remote, one, _PATH):
                removed.update(pc.struct_field(removals, "path").to_pylist())
        elif found := ENTRY.fullmatch(name):
            entry = read_listed(remote, one, ENTRY_BYTES)
            commit = parse_commit(int(found[1]), entry, remote.uri_of(one.name))
            removed |= commit.removed
            removed -= commit.added.keys()
    return frozenset(map(unquote, removed))


def tombstones_with_values(remote: Store, checkpoint: StoredObject) -> list[ListedFile]:
    """The removed files whose statistics, partition values or tags the checkpoint has. delta-rs copies these from
    the entries of other writers (Spark's have statistics), so they may have bounds of erased keys. The entries of
    this product have none.

    Raises: CorruptionError; errors from the store.
    """
    return [
        ListedFile(row["path"], row["size"] or 0, None)
        for removals in _removals(remote, checkpoint, "remove")
        for row in removals.to_pylist()
        if _has(row)
    ]


def _removals(remote: Store, checkpoint: StoredObject, column: str) -> Iterator[pa.StructArray]:
    """The actions in a checkpoint that remove files, with this column, or this field of it."""
    with remote.open(checkpoint) as source:
        try:
            if _PATH not in leaves_of(source):
                return
            file = pq.ParquetFile(source)
            for batch in file.iter_batches(_ROWS, columns=[column], use_threads=False):
                removed = batch.column("remove")
                yield removed.filter(pc.is_valid(removed))
        except (pa.ArrowException, ValueError, LookupError, OSError) as error:
            raise CorruptionError(f"{remote.uri_of(checkpoint.name)} cannot be read: {error}") from error


def _has(row: dict[str, object]) -> bool:
    return any(row.get(name) for name in ("stats", "partitionValues", "tags"))
