"""The files that a checkpoint of a Delta table names as removed (its tombstones)."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stratalog.partitions.errors import CorruptionError
from stratalog.partitions.store.protocol import Store, StoredObject
from stratalog.tiering.foreign_commits import ListedFile

_ROWS = 1024


def tombstones_with_values(remote: Store, checkpoint: StoredObject) -> list[ListedFile]:
    """The removed files whose statistics, partition values or tags the checkpoint has. delta-rs copies these from
    the entries of other writers (Spark's have statistics), so they may have bounds of erased keys. The entries of
    this product have none.

    Raises: CorruptionError; errors from the store.
    """
    found: list[ListedFile] = []
    with remote.open(checkpoint) as source:
        try:
            file = pq.ParquetFile(source)
            for batch in file.iter_batches(_ROWS, columns=["remove"], use_threads=False):
                removed = batch.column("remove")
                removed = removed.filter(pc.is_valid(removed))
                found += [
                    ListedFile(row["path"], row["size"] or 0, None) for row in removed.to_pylist() if _has(row)
                ]
        except (pa.ArrowException, ValueError, LookupError, OSError) as error:
            raise CorruptionError(f"{remote.uri_of(checkpoint.name)} cannot be read: {error}") from error
    return found


def _has(row: dict[str, object]) -> bool:
    return any(row.get(name) for name in ("stats", "partitionValues", "tags"))
