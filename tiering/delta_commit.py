"""The only code that adds files to a Delta table and removes them: ``commit(table, actions, expected_version,
...)``.

A table whose catalog commits to it (the feature ``catalogManaged``) would be supported here: the catalog would
ratify the version after ``expected_version``, instead of the log's conditional put. delta-rs cannot open such a
table, so ``topic_table`` refuses it by name. Versions without files come from ``delta_metadata`` (properties,
wider types), and from delta-rs' own calls in ``topic_table`` (creation, new columns).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import unquote

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.transaction import AddAction, RemoveAction

from stratalog.tiering.remote_change import TableChange
from stratalog.tiering.topic_table import ONE_ATTEMPT

Action = AddAction | RemoveAction


def actions_of(change: TableChange, now_ms: int) -> list[Action]:
    """A change as Delta actions."""
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
    return [*adds, *(removal(path, size, now_ms, of_data=change.of_data) for path, size in gone)]


def removal(path: str, size_bytes: int, now_ms: int, *, of_data: bool) -> RemoveAction:
    """The action that removes a file of any writer. ``path`` is encoded as in the log; delta-rs encodes it."""
    return RemoveAction(unquote(path), of_data, now_ms, size_bytes, {})


def commit(
    table: DeltaTable,
    actions: Sequence[Action],
    expected_version: int,
    transactions: Sequence[Transaction],
    info: Mapping[str, str],
) -> None:
    """Commit the version after ``expected_version``, or nothing. ``table`` was opened at ``expected_version``.
    ``transactions`` are application transactions; ``info`` is added to the commit info.

    Raises: Delta's CommitFailedError when another writer committed that version; DeltaError, OSError when the
        outcome is unknown (the table shows it).
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
