"""Versions of a Delta table that change nothing but its metadata: properties, or the types of columns."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError

from stratalog.partitions import paths
from stratalog.partitions.errors import OutcomeUnknownError
from stratalog.partitions.store.protocol import Store

_NAMES_FEATURES = 7
"""The writer version from which a table names its features."""
_ENGINE = "stratalog"


def set_properties(
    table: DeltaTable,
    remote: Store,
    folder: str,
    properties: Mapping[str, str],
    now_ms: int,
    info: Mapping[str, str] | None = None,
    transactions: Sequence[Transaction] = (),
) -> None:
    """Commit the version after the table's, which sets these properties, or nothing. ``info`` is added to the
    commit info; ``now_ms`` is the time of a version that is written here. The caller must check that the table
    has no feature that this version would have to follow (``check_commits``), unless the table is to be deleted.

    delta-rs sets the properties, unless the table names its features (it has ``TIMESTAMP_NTZ``). To such a table
    delta-rs 1.6.6 would also add ``variantType``, which many readers refuse.

    Raises: CommitFailedError when another writer committed that version; StorageError; DeltaError, OSError when
        the outcome is unknown (the table shows it).
    """
    if table.protocol().min_writer_version < _NAMES_FEATURES:
        table.alter.set_table_properties(
            dict(properties),
            raise_if_not_exists=False,
            commit_properties=CommitProperties(
                max_commit_retries=0, custom_metadata=dict(info or {}) or None, app_transactions=[*transactions]
            ),
        )
        return
    configuration = {**table.metadata().configuration, **properties}
    commit_info = {
        "timestamp": now_ms,
        "operation": "SET TBLPROPERTIES",
        "operationParameters": {"properties": json.dumps(dict(properties))},
        **(info or {}),
    }
    schema = table.schema().to_json()
    _create(table, remote, folder, commit_info, _metadata(table, schema, configuration), transactions)


def set_schema(table: DeltaTable, remote: Store, folder: str, schema: str, now_ms: int) -> None:
    """Commit the version after the table's, which has this schema (Delta's JSON), or nothing. delta-rs has no call
    for it. Raises: see ``set_properties``."""
    commit_info = {"timestamp": now_ms, "operation": "CHANGE COLUMNS"}
    _create(table, remote, folder, commit_info, _metadata(table, schema, table.metadata().configuration), ())


def _metadata(table: DeltaTable, schema: str, configuration: Mapping[str, str]) -> dict[str, Any]:
    now = table.metadata()
    return {
        "id": now.id,
        "name": now.name,
        "description": now.description,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema,
        "partitionColumns": now.partition_columns,
        "createdTime": now.created_time,
        "configuration": dict(configuration),
    }


def _create(
    table: DeltaTable,
    remote: Store,
    folder: str,
    info: Mapping[str, Any],
    metadata: Mapping[str, Any],
    transactions: Sequence[Transaction],
) -> None:
    version = table.version() + 1
    actions = [
        {"commitInfo": {**info, "engineInfo": _ENGINE}},
        {"metaData": metadata},
        *(
            {"txn": {"appId": one.app_id, "version": one.version, "lastUpdated": one.last_updated}}
            for one in transactions
        ),
    ]
    name = paths.join(folder, paths.DELTA_LOG, f"{version:020d}.json")
    try:
        created = remote.create(name, "\n".join(map(json.dumps, actions)).encode())
    except OutcomeUnknownError as error:
        raise DeltaError(str(error)) from None
    if not created:
        raise CommitFailedError(f"version {version} exists already")
