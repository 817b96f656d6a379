"""Upgrades and properties of a table by others: may it still be read, and committed to?"""

from __future__ import annotations

from deltalake import DeltaTable

from stratalog.partitions.errors import CorruptionError
from stratalog.tiering.remote_change import TableChange

_UNDERSTOOD = frozenset({"timestampNtz"})
"""Features that leave paths, offsets and records what they are."""
_WRITTEN = _UNDERSTOOD | {"appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns"}
"""Those with which delta-rs commits (measured: it refuses all else that a table says its writers must know)."""
_WRITER_VERSION = 7
"""Delta's greatest: with it a table names the features that its writers must know."""


def check_readable(table: DeltaTable, uri: str) -> None:
    """Raises: CorruptionError when the files of the table do not say any more which records are in it."""
    protocol = table.protocol()
    features = {"columnMapping"} if protocol.min_reader_version == 2 else {*(protocol.reader_features or ())}
    if foreign := ", ".join(sorted(features - _UNDERSTOOD)):
        raise CorruptionError(
            f"the table {uri} was upgraded by somebody else, to {foreign}: its files alone do not "
            "say any more which records are in it; bring back the table as it was before"
        )


def check_writable(table: DeltaTable, change: TableChange, uri: str) -> None:
    """Raises: CorruptionError when others have set what keeps us from making this change."""
    if unknown := ", ".join(sorted({*(table.protocol().writer_features or ())} - _WRITTEN)):
        raise CorruptionError(
            f"the table {uri} was upgraded by somebody else, to {unknown}: it can be read, but delta-rs does not "
            f"commit to it; ALTER TABLE delta.`{uri}` DROP FEATURE brings it back"
        )
    if (version := table.protocol().min_writer_version) > _WRITER_VERSION:
        raise CorruptionError(
            f"the table {uri} was upgraded by somebody else, to minWriterVersion {version}. It can be read, but "
            f"nobody can commit to it: Delta has none above {_WRITER_VERSION}. Bring back its log "
            "as it was before, from a backup of the remote tier"
        )
    append_only = table.metadata().configuration.get("delta.appendOnly") == "true"
    if append_only and change.of_data and change.removes:
        raise CorruptionError(
            f"the table {uri} was made append-only by somebody else: {change.removes[0].path} has left the log, "
            "and cannot leave the table; set delta.appendOnly to false"
        )
