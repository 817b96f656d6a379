"""The Delta table that maps offsets of this cluster to offsets of the target, if offsets are not kept. A row is a
run of records with consecutive offsets on both sides. The table is derived from the journal. An application
transaction of the table counts the journal's entries that are in the table, so each row is added once. A journal
that was deleted and created again has a transaction of its own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import pyarrow as pa

from stratalog.bridges.export.journal import Journal, Run, Written
from stratalog.partitions.errors import InvalidCallError, StorageError
from stratalog.partitions.store import StoreOptions

_SCHEMA = pa.schema(
    [
        pa.field("export", pa.string(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("target_topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("target_offset", pa.int64(), nullable=False),
        pa.field("records", pa.int64(), nullable=False),
    ]
)
_TRIES = 10


def translated(runs: Sequence[Run], place: int, offset: int) -> int | None:
    """The offset in the target at which a reader continues if its next record here is at ``offset`` or later; None
    if not known yet. All records below ``place`` are in the target.
    """
    at = bisect_right(runs, (offset, float("inf"), 0)) - 1
    if at >= 0 and offset < runs[at][0] + runs[at][2]:
        return runs[at][1] + offset - runs[at][0]
    if at + 1 < len(runs):
        return runs[at + 1][1]
    if at >= 0 and offset <= place:
        return runs[at][1] + runs[at][2]
    return None


def write_map(
    table: str,
    export: str,
    topic: str,
    target_topic: str,
    journal: Journal,
    journal_id: str,
    options: StoreOptions,
) -> int:
    """Append the runs of the entries that the table lacks; creates a missing table. ``journal_id`` identifies the
    journal's topic. Returns the number of rows.

    Raises: InvalidCallError for an unusable address or table; StorageError kinds.
    """
    from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
    from deltalake.exceptions import CommitFailedError, DeltaError

    from stratalog.tiering.delta_options import error_text, storage_options

    connection = storage_options(table, options)
    transaction = f"{export} {journal_id}"
    for attempt in range(_TRIES):
        try:
            DeltaTable.create(table, _SCHEMA, mode="ignore", storage_options=connection)
            here = DeltaTable(table, storage_options=connection)
            has = here.transaction_version(transaction) or 0
            rows = [
                dict(zip(_SCHEMA.names, (export, topic, target_topic, entry.partition, *run), strict=True))
                for entry in journal.entries[has:]
                if isinstance(entry, Written)
                for run in entry.runs
            ]
            if rows:
                done = CommitProperties(app_transactions=[Transaction(transaction, len(journal.entries))])
                appended = pa.Table.from_pylist(rows, _SCHEMA)
                write_deltalake(here, appended, mode="append", commit_properties=done)
        except CommitFailedError as error:  # another writer committed first
            if attempt == _TRIES - 1:
                raise StorageError(f"the map {table}: {error_text(error)}") from None
        except (DeltaError, OSError) as error:
            raise StorageError(f"the map {table}: {error_text(error)}") from None
        except ValueError as error:
            raise InvalidCallError(f"the map {table}: {error}") from None
        else:
            return len(rows)
    raise AssertionError("unreachable")
