"""The one seam by which files enter and leave a Delta table: ``commit(table, actions, expected_version, ...)``.

A table whose catalog commits to it (the feature ``catalogManaged``) would be served here, and nowhere else: the
catalog would ratify the version after ``expected_version`` in the place of the log's conditional put. delta-rs
does not open such a table, let alone commit to it, so today it is refused by name (``topic_table``). Versions
without files (a table made, its schema grown, a property set) are made by delta-rs' own calls in ``topic_table``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.transaction import AddAction, RemoveAction

from stratalog.tiering.remote_change import TableChange
from stratalog.tiering.topic_table import ONE_ATTEMPT

Action = AddAction | RemoveAction


def actions_of(change: TableChange, now_ms: int) -> list[Action]:
    """A change in Delta's words."""
    adds = [
        AddAction(
            path=upload.segment.path,
            size=upload.segment.size_bytes,
            partition_values={},
            modification_time=upload.modified_ms,
            data_change=change.of_data,
            stats=upload.statistics,
        )
        for upload in change.adds
    ]
    gone = [(file.path, file.size_bytes) for file in change.removes]
    gone += [(file.path, file.size_bytes) for file in change.foreign]
    return [*adds, *(RemoveAction(path, change.of_data, now_ms, size, {}) for path, size in gone)]


def commit(
    table: DeltaTable,
    actions: Sequence[Action],
    expected_version: int,
    transactions: Sequence[Transaction],
    info: Mapping[str, str],
) -> None:
    """Put the version after ``expected_version``, at which ``table`` was opened, or none. ``transactions`` are
    those of applications, ``info`` is added to the commit's.

    Raises: CommitFailedError of Delta's when somebody else has put that version; DeltaError, OSError: it may have
        landed or not, and the table tells.
    """
    if table.version() != expected_version:
        raise ValueError(f"the table was opened at version {table.version()}, not {expected_version}")
    table.create_write_transaction(
        list(actions),
        mode="append",
        schema=table.schema(),
        commit_properties=CommitProperties(
            max_commit_retries=ONE_ATTEMPT,
            custom_metadata=dict(info) or None,
            app_transactions=list(transactions),
        ),
    )
